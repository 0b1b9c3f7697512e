//! Tells what a PerconaPGCluster can be restored to. Pure.

use jiff::{Timestamp, fmt::strtime};
use kube::ResourceExt as _;

use super::history::{self, SUCCEEDED, completed, is_of};
use crate::crd::percona::{
    PerconaPGBackup, PerconaPGCluster, PerconaPGRestore, PerconaPGRestoreSpec, up_to_backup, up_to_time,
};

/// The newest state.
pub(crate) const LATEST: &str = "latest";
/// State of a backup or restore.
pub(crate) const FAILED: &str = "Failed";

/// An app's cluster, its backups and its restores.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub cluster: PerconaPGCluster,
    pub backups: Vec<PerconaPGBackup>,
    pub restores: Vec<PerconaPGRestore>,
}

impl Seen {
    /// Keeps the backups, newest first, and the restores of this cluster.
    pub(crate) fn of(
        cluster: PerconaPGCluster,
        mut backups: Vec<PerconaPGBackup>,
        mut restores: Vec<PerconaPGRestore>,
    ) -> Seen {
        let name = cluster.name_any();
        backups.retain(|backup| backup.spec.pg_cluster == name);
        backups.sort_by_key(|backup| std::cmp::Reverse(backup.creation_timestamp()));
        restores.retain(|restore| restore.spec.pg_cluster == name);
        Seen { cluster, backups, restores }
    }
}

/// Says what else is going on that a restore has to wait for.
pub(crate) fn busy(Seen { cluster, backups, restores }: &Seen) -> Option<String> {
    let name = cluster.name_any();
    let runs = |restore: &&PerconaPGRestore| {
        let state = restore.status.as_ref().and_then(|status| status.state.as_deref());
        !matches!(state, Some(SUCCEEDED | FAILED)) && restore.metadata.deletion_timestamp.is_none()
    };
    if let Some(running) = restores.iter().find(runs) {
        return Some(format!("PerconaPGCluster {name} is being restored by PerconaPGRestore {}", running.name_any()));
    }
    if cluster.spec.backups.is_restoring() {
        return Some(format!("PerconaPGCluster {name} is being restored"));
    }
    let running = backups.iter().find(|backup| !matches!(state(backup), SUCCEEDED | FAILED))?.name_any();
    Some(format!("PerconaPGBackup {running} is still running, and a restore would abort it"))
}

/// Returns the spec of a restore, or why it cannot start. `is_saved`: the present content is backed up first.
pub(crate) fn may_restore(
    app: &str,
    seen: &Seen,
    (from, time): (&str, Option<Timestamp>),
    is_saved: bool,
    now: Timestamp,
) -> Result<PerconaPGRestoreSpec, String> {
    let Seen { cluster, backups, restores } = seen;
    let name = cluster.name_any();
    let namespace = cluster.namespace().unwrap_or_default();
    let lists = format!("`kubectl clientapp backups {app} -n {namespace}` lists them");
    let Some(newest) = cluster.spec.backups.repositories().last().map(ToString::to_string) else {
        return Err(format!("PerconaPGCluster {name} keeps no backups: there is nothing to restore it from"));
    };
    if let Some(why) = busy(seen) {
        return Err(why);
    }
    let usable = |backup: &&PerconaPGBackup| state(backup) == SUCCEEDED && is_in(cluster, backup);
    if !backups.iter().any(|backup| usable(&backup)) {
        return Err(format!("{app} has no backup that can be restored: {lists}"));
    }
    let spec = |repository: String, options| PerconaPGRestoreSpec {
        pg_cluster: name.clone(),
        repo_name: Some(repository),
        options,
    };
    if time.is_none() && from == LATEST && is_saved {
        return Err(
            "the newest state is the current one: name a backup (--from) or a time (--time), or do not keep it (--no-backup, spec.backupFirst: false)"
                .to_owned(),
        );
    }
    if time.is_some() || from == LATEST {
        let Reach { bases, line, ranges } = reach(cluster, backups, restores, now);
        let to = time.unwrap_or(now);
        let Some(first) = bases.iter().map(|(end, _)| *end).min() else {
            return Err(format!(
                "{app} has no backup in {newest} that the current content of the database is based on, since an earlier restore has undone them: choose one by name; {lists}"
            ));
        };
        if to < first {
            return Err(format!("{to} is before the first backup of {app}, which was complete at {first}: {lists}"));
        }
        if to > now {
            return Err(format!("{to} is in the future"));
        }
        if !history::is_on(&line, to) {
            return Err(format!(
                "{to} was undone by an earlier restore and cannot be reached any more{}",
                sentence(&ranges)
            ));
        }
        let reached = |time: Timestamp| ranges.iter().any(|(from, to)| *from <= time && time <= *to);
        if let Some(time) = time.filter(|time| !ranges.is_empty() && !reached(*time)) {
            return Err(format!("the archive is not known to reach {time}{}", sentence(&ranges)));
        }
        // On its own, pgBackRest would take the last backup before that time, even if an earlier restore has undone it.
        let base = bases.into_iter().filter(|(end, _)| *end <= to).max().map(|(_, label)| label);
        let mut options = time.map_or_else(Vec::new, up_to_time);
        options.extend(base.map(|label| format!("--set={label}")));
        return Ok(spec(newest, options));
    }
    let Some(backup) = backups.iter().find(|backup| backup.name_any() == from) else {
        return Err(format!("{app} has no backup {from}: {lists}"));
    };
    let label = backup.status.as_ref().and_then(|status| status.result.backup_name.clone());
    match label.filter(|_| usable(&backup)) {
        Some(label) => Ok(spec(repository(backup), up_to_backup(&label))),
        None if state(backup) == SUCCEEDED && !is_of(cluster, &backup.metadata) => Err(format!(
            "backup {from} is older than PerconaPGCluster {name}, and not in its repositories: it was made from an earlier cluster of that name"
        )),
        None if state(backup) == SUCCEEDED => Err(format!(
            "backup {from} is not in a repository of PerconaPGCluster {name}: create a new ClientApp whose spec.postgres.percona.dataSource is the repository with the backup"
        )),
        None => Err(format!("backup {from} has failed: {lists}")),
    }
}

pub(crate) fn state(backup: &PerconaPGBackup) -> &str {
    let state = backup.status.as_ref().and_then(|status| status.state.as_deref()).unwrap_or_default();
    if state.is_empty() { "Waiting" } else { state }
}

fn repository(backup: &PerconaPGBackup) -> String {
    backup.spec.repo_name.clone().unwrap_or_default()
}

/// The latest time that a database can be restored to, as far as the Percona operator has observed it.
fn restorable(backup: &PerconaPGBackup) -> Option<Timestamp> {
    let text = backup.status.as_ref()?.result.latest_restorable_time.as_ref()?;
    strtime::parse("%Y-%m-%d %H:%M:%S%.f%z", text).ok()?.to_timestamp().ok()
}

/// Returns true if a backup is in one of the cluster's current repositories. An earlier cluster of the same name may have had others, and its
/// volume is gone.
pub(crate) fn is_in(cluster: &PerconaPGCluster, backup: &PerconaPGBackup) -> bool {
    let told = backup.status.as_ref().and_then(|status| status.result.destination.clone()).unwrap_or_default();
    let here = cluster.spec.backups.destination(&repository(backup)).is_some_and(|place| told == place);
    here && (!told.is_empty() || is_of(cluster, &backup.metadata))
}

/// Holds what a point-in-time restore can reach.
pub(crate) struct Reach {
    /// Backups in the newest repository that the current content of the database is based on: the time of completion and the label.
    bases: Vec<(Timestamp, String)>,
    line: history::Line,
    /// The times that can be restored to, as far as the Percona operator has observed; empty if it has not.
    pub(crate) ranges: history::Line,
}

pub(crate) fn reach(
    cluster: &PerconaPGCluster,
    backups: &[PerconaPGBackup],
    restores: &[PerconaPGRestore],
    now: Timestamp,
) -> Reach {
    let newest = cluster.spec.backups.repositories().last().map(ToString::to_string);
    let line = history::line(&history::done(cluster, restores, backups), now);
    let usable = || {
        let good = backups.iter().filter(|backup| state(backup) == SUCCEEDED && is_in(cluster, backup));
        let good = good.filter(|backup| newest.as_ref() == Some(&repository(backup)));
        good.filter(|backup| completed(backup).is_some_and(|end| history::is_on(&line, end)))
    };
    let label = |backup: &PerconaPGBackup| backup.status.as_ref()?.result.backup_name.clone();
    let bases: Vec<_> = usable().filter_map(|backup| Some((completed(backup)?, label(backup)?))).collect();
    let ends: Vec<_> = bases.iter().map(|(end, _)| *end).collect();
    let last = usable().filter_map(restorable).max();
    let ranges = last.map_or_else(Vec::new, |last| history::ranges(&line, &ends, last));
    Reach { bases, line, ranges }
}

/// Ends a message of refusal.
fn sentence(ranges: &history::Line) -> String {
    let each: Vec<_> = ranges.iter().map(|(from, to)| format!("between {from} and {to}")).collect();
    if each.is_empty() { String::new() } else { format!(": name a time {}", each.join(", or ")) }
}

/// Returns whether a restore is called over for the Job of one before: Percona 2.9.0 reads the status of that Job if it is not yet
/// deleted when the next restore starts. Of a failure, it reports no time.
pub(crate) fn is_of_an_earlier_one(restore: &PerconaPGRestore) -> bool {
    let completed = restore.status.as_ref().and_then(|status| status.completed.as_ref());
    let created = restore.metadata.creation_timestamp.as_ref();
    completed.zip(created).is_some_and(|(completed, created)| completed < created)
}

#[cfg(test)]
pub(crate) mod tests;
