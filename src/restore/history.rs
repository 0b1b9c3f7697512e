//! The times that a database can be restored to after earlier restores. **Pure.**
//!
//! A restore ends one timeline and begins another. Changes between the restored time and the restore are on the old timeline only, and
//! so are backups from then. From such a backup, PostgreSQL follows the newest timeline and stops with `requested timeline 2 is not a
//! child of this server's history`, after pgBackRest has already overwritten the data.

use jiff::{Timestamp, civil, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource as _, ResourceExt as _};

use crate::crd::percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore};

pub(crate) const SUCCEEDED: &str = "Succeeded";

/// Intervals of time, excluding their start and including their end, whose WAL leads to the content of a database.
pub(crate) type Line = Vec<(Timestamp, Timestamp)>;

/// A restore that has changed the database.
#[derive(Debug)]
pub(crate) struct Done {
    begun: Timestamp,
    ended: Timestamp,
    to: Target,
}

#[derive(Debug)]
enum Target {
    Newest,
    Time(Timestamp),
    /// The end of a backup.
    Backup(Timestamp),
    /// Options that this plugin does not use, or a backup that is not listed any more.
    Unknown,
}

/// Returns true if an object was created for this cluster rather than for an earlier one of its name.
pub(crate) fn is_of(cluster: &PerconaPGCluster, made: &ObjectMeta) -> bool {
    made.creation_timestamp >= cluster.metadata.creation_timestamp
}

pub(crate) fn completed(backup: &PerconaPGBackup) -> Option<Timestamp> {
    Some(backup.status.as_ref()?.result.completed.as_ref()?.0)
}

/// The successful restores of a cluster, in order.
pub(crate) fn done(
    cluster: &PerconaPGCluster,
    restores: &[PerconaPGRestore],
    backups: &[PerconaPGBackup],
) -> Vec<Done> {
    let of_cluster = restores.iter().filter(|restore| is_of(cluster, restore.meta()));
    let mut done: Vec<_> = of_cluster
        .filter_map(|restore| {
            let status = restore.status.as_ref().filter(|status| status.state.as_deref() == Some(SUCCEEDED))?;
            let begun = restore.creation_timestamp().map(|created| created.0);
            let ended = status.completed.as_ref().map(|time| time.0).or(begun)?;
            Some(Done { begun: begun.unwrap_or(ended), ended, to: target(&restore.spec.options, backups) })
        })
        .collect();
    done.sort_by_key(|done| done.ended);
    done
}

fn target(options: &[String], backups: &[PerconaPGBackup]) -> Target {
    let value = |name: &str| {
        let mut named = options.iter().filter_map(|option| option.trim().strip_prefix(name)?.strip_prefix('='));
        named.next_back().map(|value| value.trim_matches(['"', '\'']))
    };
    let label = |backup: &&PerconaPGBackup| {
        let of = backup.status.as_ref().and_then(|status| status.result.backup_name.as_deref());
        of.is_some() && of == value("--set")
    };
    if options.iter().any(|option| option.trim().starts_with("--t") && !option.contains('=')) {
        return Target::Unknown;
    }
    let known = match value("--type") {
        None | Some("default") => Some(Target::Newest),
        Some("time") => value("--target").and_then(time).map(Target::Time),
        Some("immediate") => backups.iter().find(label).and_then(completed).map(Target::Backup),
        Some(_) => None,
    };
    known.unwrap_or(Target::Unknown)
}

/// Reads a time as this plugin writes it.
fn time(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix("+00")?;
    let time = civil::DateTime::strptime("%Y-%m-%d %H:%M:%S", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// The intervals that lead to the database as it was at a time.
pub(crate) fn line(restores: &[Done], at: Timestamp) -> Line {
    let Some(last) = restores.iter().rposition(|restore| restore.ended <= at) else {
        return vec![(Timestamp::MIN, at)];
    };
    let (before, Done { begun, ended, to }) = (&restores[..last], &restores[last]);
    let mut line = match to {
        Target::Newest => line(before, *begun),
        Target::Time(time) => {
            let cut = line(before, *begun).into_iter().filter(|(from, _)| from < time);
            cut.map(|(from, to)| (from, to.min(*time))).collect()
        }
        Target::Backup(end) => line(before, *end),
        Target::Unknown => Line::new(),
    };
    line.push((*ended, at));
    line
}

pub(crate) fn is_on(line: &Line, time: Timestamp) -> bool {
    line.iter().any(|(from, to)| *from < time && time <= *to)
}

/// The times that can be restored to: from the completion of these backups to the end of the WAL that is known to be archived.
pub(crate) fn ranges(line: &Line, backups: &[Timestamp], last: Timestamp) -> Line {
    let Some(first) = backups.iter().min() else { return Line::new() };
    let cut = line.iter().map(|(from, to)| (*from.max(first), *to.min(&last)));
    cut.filter(|(from, to)| from < to).collect()
}
