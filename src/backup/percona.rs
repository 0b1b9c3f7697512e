//! Tells whether Percona would carry out a backup now. Pure.

use crate::crd::percona::{PerconaPGCluster, READY_FOR_BACKUP};

/// Says why Percona would not carry out a backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    KeepsNone,
    Restoring,
    NotReady,
}

/// Returns the repository for a backup: the cluster's last one.
pub(crate) fn repository(cluster: &PerconaPGCluster) -> Result<String, Refusal> {
    let backups = &cluster.spec.backups;
    let repository = backups.repositories().last().map(ToString::to_string).ok_or(Refusal::KeepsNone)?;
    if backups.is_restoring() {
        return Err(Refusal::Restoring);
    }
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    match conditions.any(|condition| condition.kind == READY_FOR_BACKUP && condition.status == "True") {
        true => Ok(repository),
        // A backup requested too early fails for good.
        false => Err(Refusal::NotReady),
    }
}
