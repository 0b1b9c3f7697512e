//! Backs up a PerconaPGCluster by a PerconaPGBackup. Pure.

use kube::{Resource as _, ResourceExt as _};

use crate::{
    crd::percona::{PerconaPGBackup, PerconaPGBackupSpec, PerconaPGCluster, READY_FOR_BACKUP},
    platform::run_once::Progress,
};

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

/// Tells how far the backup of this name is, or how it begins. `began`: it is recorded.
pub(crate) fn backed_up(
    name: String,
    options: Vec<String>,
    began: bool,
    (cluster, backup): (&PerconaPGCluster, Option<&PerconaPGBackup>),
) -> Progress<String, PerconaPGBackup> {
    let of = cluster.name_any();
    let message = format!("{} {name} backs up the database", PerconaPGBackup::kind(&()));
    if let Some(backup) = backup {
        if backup.spec.pg_cluster != of {
            return Progress::Failed(format!("PerconaPGBackup {name} is of another cluster: delete it"));
        }
        let status = backup.status.clone().unwrap_or_default();
        return match status.state.as_deref() {
            Some("Succeeded") => Progress::Completed(name),
            Some("Failed") => {
                let why = status.error.map_or_else(String::new, |why| format!(": {why}"));
                Progress::Failed(format!("PerconaPGBackup {name} has failed{why}; `kubectl describe` it"))
            }
            _ => Progress::Runs(name, None, message),
        };
    }
    let repository = match repository(cluster) {
        Ok(repository) => repository,
        Err(Refusal::KeepsNone) => {
            return Progress::Failed(format!(
                "PerconaPGCluster {of} keeps no backups: set spec.postgres.percona.schedules, keep or repository of the app"
            ));
        }
        Err(refusal) => {
            let why = match refusal {
                Refusal::Restoring => format!("PerconaPGCluster {of} is being restored"),
                _ => format!("PerconaPGCluster {of} is not ready for a backup: see its condition {READY_FOR_BACKUP}"),
            };
            return if began { Progress::Failed(why) } else { Progress::Waits(why) };
        }
    };
    let spec = PerconaPGBackupSpec { pg_cluster: of, repo_name: Some(repository), options };
    let mut object = PerconaPGBackup::new(&name, spec);
    object.metadata.namespace = cluster.namespace();
    Progress::Runs(name, Some(object), message)
}
