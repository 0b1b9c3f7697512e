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
    /// The repository has just been added.
    Unaware,
}

/// Returns the repository for a backup: the cluster's last one.
pub(crate) fn repository(cluster: &PerconaPGCluster) -> Result<String, Refusal> {
    let backups = &cluster.spec.backups;
    let repository = backups.repositories().last().map(ToString::to_string).ok_or(Refusal::KeepsNone)?;
    if backups.is_restoring() {
        return Err(Refusal::Restoring);
    }
    // A backup requested too early fails for good.
    match cluster.status.as_ref().filter(|status| status.is_ready_for_backup()) {
        None => Err(Refusal::NotReady),
        Some(status) if !status.knows(&repository) => Err(Refusal::Unaware),
        Some(_) => Ok(repository),
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
                let namespace = cluster.namespace().unwrap_or_default();
                let describe = format!("kubectl describe perconapgbackup {name} -n {namespace}");
                Progress::Failed(format!("PerconaPGBackup {name} has failed{why}; see `{describe}`"))
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
                Refusal::Unaware => format!("PerconaPGCluster {of} does not know its new repository for backups yet"),
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Percona refuses a backup into a repository that its status does not list (`internal/controller/postgrescluster/pgbackrest.go`,
    /// `InvalidBackupRepo`). Before 2.8.0, the cluster's status lists none.
    #[test]
    fn a_backup_waits_until_percona_knows_the_repository() {
        let one = json!([{"name": "repo1"}]);
        let two = json!([{"name": "repo1"}, {"name": "repo2"}]);
        for (repos, ready, known, expected) in [
            (&json!([]), "True", json!(null), Err(Refusal::KeepsNone)),
            (&one, "False", json!(null), Err(Refusal::NotReady)),
            (&one, "True", json!(null), Ok("repo1")),
            (&one, "True", json!({}), Err(Refusal::Unaware)),
            (&one, "True", json!({"repos": [{"name": "repo1", "stanzaCreated": true}]}), Ok("repo1")),
            (&two, "False", json!({"repos": [{"name": "repo1"}]}), Err(Refusal::NotReady)),
            (&two, "True", json!({"repos": [{"name": "repo1"}]}), Err(Refusal::Unaware)),
            (&two, "True", json!({"repos": [{"name": "repo1"}, {"name": "repo2"}]}), Ok("repo2")),
        ] {
            let cluster: PerconaPGCluster = serde_json::from_value(json!({
                "metadata": {"name": "acme-pg"},
                "spec": {"backups": {"pgbackrest": {"repos": repos}}},
                "status": {"conditions": [{"type": READY_FOR_BACKUP, "status": ready}], "pgbackrest": known},
            }))
            .unwrap();
            assert_eq!(repository(&cluster), expected.map(str::to_owned), "{repos} {ready} {known}");
        }
    }
}
