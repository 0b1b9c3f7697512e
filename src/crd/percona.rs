//! The part of Percona's `PerconaPGCluster` (`pgv2.percona.com/v2`) that is read. Pure.
//!
//! Writing goes through a JSON document (`clientapp::build::postgres`), so that server-side apply names exactly the
//! fields this operator wants and no defaults of a typed struct.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// The CustomResourceDefinition's name, watched so that an installation of Percona is noticed.
pub const CRD_NAME: &str = "perconapgclusters.pgv2.percona.com";
/// Name of the CustomResourceDefinition of backups.
pub const BACKUP_CRD_NAME: &str = "perconapgbackups.pgv2.percona.com";
/// On Percona's objects: the cluster they belong to.
pub const CLUSTER_LABEL: &str = "postgres-operator.crunchydata.com/cluster";
/// Selects what belongs to PgBouncer among Percona's objects.
pub const PGBOUNCER_SELECTOR: &str = "postgres-operator.crunchydata.com/role=pgbouncer";
/// Makes Percona delete a cluster's volumes and user Secrets with it; off by default.
pub const DELETE_PVC: &str = "percona.com/delete-pvc";
/// Makes Percona delete a cluster's certificates with it; off by default.
pub const DELETE_SSL: &str = "percona.com/delete-ssl";

/// What is read of a cluster's spec.
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
#[serde(rename_all = "camelCase")]
pub struct PerconaPGClusterSpec {
    /// Major version that runs; a PerconaPGUpgrade changes it, nothing else may.
    #[serde(default)]
    pub postgres_version: Option<i64>,
    /// The instance sets; this operator makes one.
    #[serde(default)]
    pub instances: Vec<InstanceSet>,
    /// Backups.
    #[serde(default)]
    pub backups: Backups,
}

/// What is read of backups.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Backups {
    /// Whether there is room for them.
    #[serde(default)]
    pub enabled: Option<bool>,
}

/// What is read of a backup's spec.
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
    /// The cluster.
    #[serde(default)]
    pub pg_cluster: String,
    /// Which of its repositories.
    #[serde(default)]
    pub repo_name: String,
}

/// What is read of a backup's status.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PerconaPGBackupStatus {
    /// `Starting`, `Running`, `Succeeded` or `Failed`.
    #[serde(default)]
    pub state: Option<String>,
    /// What went wrong.
    #[serde(default)]
    pub error: Option<String>,
}

/// What is read of an instance set.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSet {
    /// The volume for the data.
    #[serde(default)]
    pub data_volume_claim_spec: VolumeClaim,
}

/// What is read of a claim for a volume.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct VolumeClaim {
    /// What the volume needs at least.
    #[serde(default)]
    pub resources: Resources,
}

/// What is read of resources.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Resources {
    /// At least this much.
    #[serde(default)]
    pub requests: Requests,
}

/// What is read of requests.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Requests {
    /// Size as a quantity.
    #[serde(default)]
    pub storage: Option<String>,
}

/// What is read of a cluster's status.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PerconaPGClusterStatus {
    /// `initializing`, `ready`, `paused` or `stopping`; there is no error state.
    #[serde(default)]
    pub state: Option<String>,
    /// PgBouncer's instances; 0 of 0 counts as ready in `state`.
    #[serde(default)]
    pub pgbouncer: Option<Instances>,
}

/// A count of instances.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Instances {
    /// How many are ready.
    #[serde(default)]
    pub ready: i64,
}
