//! The fields of Percona's `PerconaPGCluster` (`pgv2.percona.com/v2`) that the operator reads. Pure.
//!
//! It writes a JSON document (`clientapp::spec::database::percona`), so that server-side apply claims exactly the intended fields and no
//! defaults of a typed struct.

#![allow(missing_docs, reason = "the fields are Percona's, documented in its manifests")]

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the CustomResourceDefinition, watched to notice an installation of Percona.
pub const CRD_NAME: &str = "perconapgclusters.pgv2.percona.com";
/// The CustomResourceDefinition of backups; Percona's manifests install it together with that of clusters.
pub const BACKUP_CRD_NAME: &str = "perconapgbackups.pgv2.percona.com";
/// On Percona's objects: the cluster that they belong to.
pub const CLUSTER_LABEL: &str = "postgres-operator.crunchydata.com/cluster";
/// Selects Percona's objects of PgBouncer.
pub const PGBOUNCER_SELECTOR: &str = "postgres-operator.crunchydata.com/role=pgbouncer";
/// Finalizer with which Percona deletes the cluster's volumes, including those of repositories, and its user Secrets, by the label of
/// the cluster (`percona/controller/pgcluster/finalizer.go`, `deletePVC`). Off by default. PerconaPGBackups have no owner and stay.
pub const DELETE_PVC: &str = "percona.com/delete-pvc";
/// Finalizer with which Percona deletes the cluster's certificates; off by default.
pub const DELETE_SSL: &str = "percona.com/delete-ssl";

/// Condition of a cluster that must be true before a PerconaPGBackup is created. A backup that waits while it has been false for two
/// minutes becomes `Failed` (`percona/controller/pgbackup/controller.go`, `failIfClusterIsNotReady`). A cluster without backups has it
/// false from its creation on (`TestUpdateConditions`), so once backups are enabled, those two minutes are already over.
pub const READY_FOR_BACKUP: &str = "ReadyForBackup";
/// For backups outside a schedule: by default, pgBackRest makes all but the first incremental, and incremental backups never expire
/// older ones.
pub const TYPE_FULL: &str = "--type=full";

/// Selects Percona's Secrets of users.
pub const USER_SELECTOR: &str = "postgres-operator.crunchydata.com/role=pguser";

/// Returns true if Percona names volumes of this cluster like this (`internal/naming/names.go`: `InstancePostgresDataVolume`,
/// `InstancePostgresWALVolume`, `InstanceTablespaceDataVolume`, `PGBackRestRepoVolume`).
pub fn names_volume(cluster: &str, name: &str) -> bool {
    let rest = name.strip_prefix(cluster).and_then(|rest| rest.strip_prefix('-'));
    let repo = |rest: &str| rest.strip_prefix("repo").is_some_and(|number| number.parse::<u8>().is_ok());
    rest.is_some_and(|rest| repo(rest) || ["-pgdata", "-pgwal", "-tablespace"].iter().any(|end| rest.ends_with(end)))
}

/// Returns true if Percona names the Secrets of users of this cluster like this (`internal/naming/names.go`, `PostgresUserSecret`).
pub fn names_user_secret(cluster: &str, name: &str) -> bool {
    name.strip_prefix(cluster).is_some_and(|rest| rest.starts_with("-pguser-"))
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "pgv2.percona.com",
    version = "v2",
    kind = "PerconaPGCluster",
    plural = "perconapgclusters",
    namespaced,
    status = "PerconaPGClusterStatus",
    schema = "disabled"
)]
#[serde(default, rename_all = "camelCase")]
pub struct PerconaPGClusterSpec {
    /// The running major version; only a PerconaPGUpgrade may change it.
    pub postgres_version: Option<i64>,
    pub instances: Vec<InstanceSet>,
    pub backups: Backups,
    /// The source from which the cluster is bootstrapped; ignored afterwards.
    pub data_source: Option<Value>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Backups {
    /// Enabled if unset (`Backups.IsEnabled` in `perconapgcluster_types.go`).
    pub enabled: Option<bool>,
    /// The configuration of pgBackRest, which may be present but is ignored while backups are disabled.
    pub pgbackrest: Option<Value>,
}

impl Backups {
    /// Returns true if backups are enabled and have a repository.
    pub fn are_made(&self) -> bool {
        let repos = self.pgbackrest.as_ref().and_then(|pgbackrest| pgbackrest["repos"].as_array());
        self.enabled != Some(false) && repos.is_some_and(|repos| !repos.is_empty())
    }

    /// The names of the repositories in use.
    pub fn repositories(&self) -> Vec<&str> {
        let repos = self.pgbackrest.as_ref().filter(|_| self.are_made()).and_then(|found| found["repos"].as_array());
        repos.into_iter().flatten().filter_map(|repo| repo["name"].as_str()).collect()
    }

    /// Where the backups in a repository are, in the format of a PerconaPGBackup's `status.destination`; empty for a volume.
    pub fn destination(&self, repository: &str) -> Option<String> {
        let pgbackrest = self.pgbackrest.as_ref()?;
        let repo = pgbackrest["repos"].as_array()?.iter().find(|repo| repo["name"] == repository)?;
        let path = pgbackrest["global"][format!("{repository}-path")].as_str().unwrap_or_default();
        Some(store(repo).map_or_else(String::new, |store| store + path))
    }

    /// Returns true if Percona is restoring the cluster in place: it sets this field for a PerconaPGRestore, and resets it afterwards
    /// (`percona/controller/pgrestore/utils/pgbackrest.go`, `Start` and `DisableRestore`).
    pub fn is_restoring(&self) -> bool {
        self.pgbackrest.as_ref().and_then(|pgbackrest| pgbackrest.pointer("/restore/enabled"))
            == Some(&Value::Bool(true))
    }
}

/// The bucket or container of a repository as a URL; `None` for a volume.
pub fn store(repo: &Value) -> Option<String> {
    let places = [("s3", "bucket", "s3"), ("gcs", "bucket", "gs"), ("azure", "container", "azure")];
    places.into_iter().find_map(|(kind, part, scheme)| Some(format!("{scheme}://{}", repo[kind][part].as_str()?)))
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct InstanceSet {
    pub data_volume_claim_spec: Value,
}

impl InstanceSet {
    pub fn storage(&self) -> Option<&str> {
        self.data_volume_claim_spec.pointer("/resources/requests/storage")?.as_str()
    }

    pub fn storage_class(&self) -> Option<&str> {
        self.data_volume_claim_spec.get("storageClassName")?.as_str()
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PerconaPGClusterStatus {
    /// `initializing`, `ready`, `paused` or `stopping`; there is no error state.
    pub state: Option<String>,
    pub postgres: Option<Instances>,
    /// PgBouncer's instances; 0 of 0 counts as ready in `state`.
    pub pgbouncer: Option<Instances>,
    /// Those of its PostgresCluster, and [`READY_FOR_BACKUP`].
    pub conditions: Vec<Condition>,
    /// That of its PostgresCluster, written together with [`READY_FOR_BACKUP`]; since 2.8.0.
    pub pgbackrest: Option<PgBackRestStatus>,
}

impl PerconaPGClusterStatus {
    /// Returns true if Percona says that a backup can be made.
    pub fn is_ready_for_backup(&self) -> bool {
        self.conditions.iter().any(|condition| condition.kind == READY_FOR_BACKUP && condition.status == "True")
    }

    /// Returns false if Percona does not know this repository of the cluster yet: it fails a backup into it at once
    /// (`internal/controller/postgrescluster/pgbackrest.go`, `InvalidBackupRepo`).
    pub fn knows(&self, repository: &str) -> bool {
        let status = self.pgbackrest.as_ref();
        status.is_none_or(|status| status.repos.iter().any(|known| known.name == repository))
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PgBackRestStatus {
    pub repos: Vec<RepositoryStatus>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct RepositoryStatus {
    pub name: String,
}

/// Percona's conditions may be incomplete, so only the type is required.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub status: String,
    #[serde(default)]
    pub reason: String,
    #[serde(default)]
    pub message: String,
    #[serde(default)]
    pub last_transition_time: Option<Time>,
}

/// Conditions that are false for other causes than that the cluster is not ready (`internal/controller/postgrescluster/pgbackrest.go`).
pub const NOT_FOR_READINESS: [&str; 5] = [
    READY_FOR_BACKUP,
    "PGBackRestReplicaCreate",
    "PGBackRestReplicaRepoReady",
    "PGBackRestManualBackupSuccessful",
    "StandbyLagging",
];
/// Condition of a cluster that was made from a backup.
pub const DATA_INITIALIZED: &str = "PostgresDataInitialized";
/// The kind that the operator makes for each cluster, with its name, and to which its events refer. Its group is
/// `postgres-operator.crunchydata.com` up to 2.9.0, and `upstream.pgv2.percona.com` from 3.0.0 on.
pub const POSTGRES_CLUSTER: &str = "PostgresCluster";

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Instances {
    pub size: i64,
    pub ready: i64,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "pgv2.percona.com",
    version = "v2",
    kind = "PerconaPGBackup",
    plural = "perconapgbackups",
    namespaced,
    status = "PerconaPGBackupStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct PerconaPGBackupSpec {
    /// The cluster in the same namespace, by name; it is not an owner.
    pub pg_cluster: String,
    /// A repository of the cluster. One that the cluster does not have is never reported in the status, and blocks all other backups
    /// of the cluster (`startBackup` comes before `getRepo` in `percona/controller/pgbackup/controller.go`).
    #[serde(default)]
    pub repo_name: Option<String>,
    /// Options for `pgbackrest backup`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

/// Status of a successful PerconaPGBackup: its label in the repository, its type, when it ended, and up to which time WAL is known to
/// reach.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackupResult {
    pub backup_name: Option<String>,
    pub backup_type: Option<String>,
    pub completed: Option<Time>,
    pub destination: Option<String>,
    /// In the format `2026-01-31 12:00:00.000000+0000`.
    pub latest_restorable_time: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PerconaPGBackupStatus {
    /// `Starting`, `Running`, `Failed` or `Succeeded`; the latter two are final. `None` while it waits to begin: because the cluster
    /// does not exist or is paused, or until another backup ends (`perconapgbackup_types.go`).
    pub state: Option<String>,
    /// The cause of its failure. Often missing, both for a failed Job and for a cluster that was not ready.
    pub error: Option<String>,
    #[serde(flatten)]
    pub result: BackupResult,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "pgv2.percona.com",
    version = "v2",
    kind = "PerconaPGRestore",
    plural = "perconapgrestores",
    namespaced,
    status = "PerconaPGRestoreStatus",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct PerconaPGRestoreSpec {
    /// The cluster to restore in place. Bootstrapping a cluster also creates a PerconaPGRestore.
    pub pg_cluster: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_name: Option<String>,
    /// Options for `pgbackrest restore`, which Percona passes through a shell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PerconaPGRestoreStatus {
    /// `Starting`, `Running`, `Failed` or `Succeeded`; the latter two are final. `None` while it waits for another restore.
    pub state: Option<String>,
    pub completed: Option<Time>,
}

/// pgBackRest options to restore up to the end of a backup.
pub fn up_to_backup(label: &str) -> Vec<String> {
    vec!["--type=immediate".to_owned(), format!("--set={label}")]
}

/// pgBackRest options to restore the state at a time. The quotes are for Percona's shell.
pub fn up_to_time(time: Timestamp) -> Vec<String> {
    vec!["--type=time".to_owned(), time.strftime("--target=\"%Y-%m-%d %H:%M:%S+00\"").to_string()]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{Backups, names_user_secret, names_volume};

    #[test]
    fn what_percona_has_named() {
        for (name, named) in [
            ("acme-pg-instance1-x7kd-pgdata", true),
            ("acme-pg-instance1-x7kd-pgwal", true),
            ("acme-pg-instance1-x7kd-fast-tablespace", true),
            ("acme-pg-repo1", true),
            ("acme-pg-repo", false),
            ("acme-pg-repo1-copy", false),
            ("acme-pg-pgdata-copy", false),
            ("copy-of-acme-pg-instance1-x7kd-pgdata", false),
            ("acme-pg2-instance1-x7kd-pgdata", false),
            ("acme-pg", false),
        ] {
            assert_eq!(names_volume("acme-pg", name), named, "{name}");
        }
        for (name, named) in [
            ("acme-pg-pguser-clientapp", true),
            ("acme-pg-pguser", false),
            ("acme-pg2-pguser-clientapp", false),
            ("copy-of-acme-pg-pguser-clientapp", false),
        ] {
            assert_eq!(names_user_secret("acme-pg", name), named, "{name}");
        }
    }

    #[test]
    fn options_are_for_a_shell() {
        assert_eq!(super::up_to_backup("20260131-030000F"), ["--type=immediate", "--set=20260131-030000F"]);
        let time = "2026-01-31T04:05:06.7+01:00".parse().unwrap();
        assert_eq!(super::up_to_time(time), ["--type=time", "--target=\"2026-01-31 03:05:06+00\""]);
    }

    #[test]
    fn backups_are_made_unless_disabled_and_if_they_have_somewhere_to_go() {
        let repos = json!({"repos": [{"name": "repo1", "volume": {}}], "manual": {"repoName": "repo1"}});
        let cases = [
            (json!({"pgbackrest": repos}), true),
            (json!({"enabled": true, "pgbackrest": repos}), true),
            (json!({"enabled": false, "pgbackrest": repos}), false),
            (json!({"enabled": false}), false),
            (json!({"enabled": true}), false),
            (json!({}), false),
        ];
        for (backups, made) in cases {
            let read: Backups = serde_json::from_value(backups.clone()).unwrap();
            assert_eq!(read.are_made(), made, "{backups}");
        }
    }
}
