//! Which times a database can be restored to after it has been restored before. **Pure.**
//!
//! A restore ends one timeline and begins another. What happened between the time restored to and the restore is on the old one alone, and so
//! are backups from then: PostgreSQL follows the newest timeline, and from such a backup it stops with `requested timeline 2 is not a
//! child of this server's history`, when pgBackRest has overwritten the data already.

use jiff::{Timestamp, civil, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource as _, ResourceExt as _};

use crate::crd::percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore};

pub(super) const SUCCEEDED: &str = "Succeeded";

/// Stretches of time, without their begin and with their end, whose WAL leads to what is in a database.
pub(super) type Line = Vec<(Timestamp, Timestamp)>;

/// A restore that has changed the database.
#[derive(Debug)]
pub(super) struct Done {
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
    /// By other options than this plugin's, or of a backup that is not listed any more.
    Unknown,
}

/// Whether something was made for this very cluster, and not for an earlier one of its name.
pub(super) fn is_of(cluster: &PerconaPGCluster, made: &ObjectMeta) -> bool {
    made.creation_timestamp >= cluster.metadata.creation_timestamp
}

pub(super) fn completed(backup: &PerconaPGBackup) -> Option<Timestamp> {
    Some(backup.status.as_ref()?.result.completed.as_ref()?.0)
}

/// The restores of a cluster that have succeeded, in their order.
pub(super) fn done(
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

/// As this plugin writes a time.
fn time(text: &str) -> Option<Timestamp> {
    let text = text.strip_suffix("+00")?;
    let time = civil::DateTime::strptime("%Y-%m-%d %H:%M:%S", text).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// What leads to a database as it was at a time.
pub(super) fn line(restores: &[Done], at: Timestamp) -> Line {
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

pub(super) fn is_on(line: &Line, time: Timestamp) -> bool {
    line.iter().any(|(from, to)| *from < time && time <= *to)
}

/// The times that can be restored to: from when these backups were complete, and as far as WAL is known to reach.
pub(super) fn ranges(line: &Line, backups: &[Timestamp], last: Timestamp) -> Line {
    let Some(first) = backups.iter().min() else { return Line::new() };
    let cut = line.iter().map(|(from, to)| (*from.max(first), *to.min(&last)));
    cut.filter(|(from, to)| from < to).collect()
}
