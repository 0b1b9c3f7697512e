//! The fields of CloudNativePG's kinds (`postgresql.cnpg.io/v1`), and of its plugin barman-cloud (`barmancloud.cnpg.io/v1`), that the
//! operator reads. Pure.
//!
//! It writes JSON documents (`clientapp::spec::database::cloudnativepg`), so that server-side apply claims exactly the intended fields and no
//! defaults of a typed struct.

#![allow(missing_docs, reason = "the fields are CloudNativePG's, documented in its manifests")]

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the CustomResourceDefinition, watched to notice an installation of CloudNativePG.
pub const CRD_NAME: &str = "clusters.postgresql.cnpg.io";
/// The CustomResourceDefinition of backups; CloudNativePG's manifest installs it together with that of clusters.
pub const BACKUP_CRD_NAME: &str = "backups.postgresql.cnpg.io";
/// The same of backups by schedule.
pub const SCHEDULE_CRD_NAME: &str = "scheduledbackups.postgresql.cnpg.io";
/// The same of connection pools.
pub const POOLER_CRD_NAME: &str = "poolers.postgresql.cnpg.io";
/// The CustomResourceDefinition of the plugin's stores: while it is missing, a cluster with the plugin is not reconciled at all.
pub const STORE_CRD_NAME: &str = "objectstores.barmancloud.cnpg.io";
/// The plugin that archives WAL and makes backups (`internal/cnpgi/metadata/constants.go`).
pub const PLUGIN: &str = "barman-cloud.cloudnative-pg.io";
/// Condition of a cluster. True as well while nothing archives.
pub const ARCHIVING: &str = "ContinuousArchiving";
/// On CloudNativePG's objects: the cluster that they belong to.
pub const CLUSTER_LABEL: &str = "cnpg.io/cluster";
/// On a Pooler's pods and Service: the Pooler (`pkg/utils/labels_annotations.go`, `PgbouncerNameLabel`).
pub const POOLER_LABEL: &str = "cnpg.io/poolerName";
/// Annotation of a cluster, `on` or `off`, and condition: its pods are taken away, and its volumes stay.
pub const HIBERNATION: &str = "cnpg.io/hibernation";
/// Phase of a cluster that goes on only after a user has repaired it (`api/v1/cluster_types.go`).
pub const UNRECOVERABLE: &str = "Cluster is unrecoverable and needs manual intervention";

const POOLER: &str = "-pooler";

/// Phases that last as long as the data are large (`api/v1/cluster_types.go`).
pub const COPYING: [&str; 2] = ["Creating a new replica", "Upgrading Postgres major version"];

/// Returns true if CloudNativePG names volumes of this cluster like this (`pkg/specs/pods.go`, `GetInstanceName`, and
/// `pkg/reconciler/persistentvolumeclaim`: `-wal`, `-tbs-<tablespace>`).
pub fn names_volume(cluster: &str, name: &str) -> bool {
    let is_volume = |role: Option<&str>| role.is_none_or(|role| role == "wal" || role.starts_with("tbs-"));
    role(cluster, name).is_some_and(is_volume)
}

/// Returns true if CloudNativePG names the volumes with the data of this cluster like this.
pub fn names_data(cluster: &str, name: &str) -> bool {
    role(cluster, name) == Some(None)
}

/// Returns true if CloudNativePG names Jobs of this cluster like this, such as `acme-pg-1-initdb` (`pkg/specs/jobs.go`).
pub fn names_job(cluster: &str, name: &str) -> bool {
    role(cluster, name).is_some_and(|role| role.is_some())
}

/// Returns the name of a cluster's Pooler, and of the Service of that. No Pooler may have the name of a Cluster.
pub fn pooler(cluster: &str) -> String {
    format!("{cluster}{POOLER}")
}

/// Returns the cluster of a Pooler, by its name.
pub fn of_pooler(pooler: &str) -> Option<&str> {
    pooler.strip_suffix(POOLER)
}

/// Returns what follows an instance's number in a name such as `acme-pg-1-wal`, if anything does. `None`: it is no name of this cluster.
fn role<'a>(cluster: &str, name: &'a str) -> Option<Option<&'a str>> {
    let rest = name.strip_prefix(cluster)?.strip_prefix('-')?;
    let (serial, role) = rest.split_once('-').map_or((rest, None), |(serial, role)| (serial, Some(role)));
    serial.parse::<u32>().is_ok().then_some(role)
}

/// Returns the major version that an image is for, by its tag: CloudNativePG refuses an image without one.
pub fn major_version(image: &str) -> Option<i64> {
    let (_, tag) = image.split('@').next()?.rsplit('/').next()?.split_once(':')?;
    tag.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "postgresql.cnpg.io",
    version = "v1",
    kind = "Cluster",
    plural = "clusters",
    root = "CloudNativePgCluster",
    namespaced,
    status = "CloudNativePgClusterStatus",
    schema = "disabled"
)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudNativePgClusterSpec {
    pub instances: i64,
    pub image_name: Option<String>,
    pub storage: ClusterStorage,
    /// How the database is created: one of `initdb`, `recovery` and `pg_basebackup`. Ignored afterwards, but validated.
    pub bootstrap: Option<Value>,
    /// The clusters that `bootstrap` names.
    pub external_clusters: Option<Value>,
    pub plugins: Vec<ClusterPlugin>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterPlugin {
    pub name: String,
    /// True if unset.
    pub enabled: Option<bool>,
    #[serde(rename = "isWALArchiver")]
    pub is_wal_archiver: Option<bool>,
    pub parameters: BTreeMap<String, String>,
}

/// Where a cluster archives by the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalArchive {
    /// Name of the ObjectStore.
    pub store: String,
    /// The directory in it. No two clusters may have the same.
    pub server: String,
}

impl CloudNativePgCluster {
    /// Returns where the plugin archives (`internal/cnpgi/operator/config/config.go`, `NewFromCluster`).
    pub fn archive(&self) -> Option<WalArchive> {
        let is_it = |plugin: &&ClusterPlugin| {
            plugin.name == PLUGIN && plugin.enabled != Some(false) && plugin.is_wal_archiver == Some(true)
        };
        let parameters = &self.spec.plugins.iter().find(is_it)?.parameters;
        let server = parameters.get("serverName").cloned().unwrap_or_else(|| self.name_any());
        Some(WalArchive { store: parameters.get("barmanObjectName")?.clone(), server })
    }

    /// Returns true if it has a primary that serves, as far as it says.
    pub fn serves(&self) -> bool {
        let hibernates = self.annotations().get(HIBERNATION).is_some_and(|value| value == "on");
        let Some(status) = self.status.as_ref().filter(|_| !hibernates) else { return false };
        let is_ready = |condition: &Condition| condition.type_ == "Ready" && condition.status == "True";
        let has_primary = status.current_primary.as_ref().is_some_and(|primary| !primary.is_empty());
        status.conditions.iter().any(is_ready) && status.ready_instances >= 1 && has_primary
    }

    /// Returns why it cannot archive WAL, if it archives. While that lasts, it calls itself ready and healthy.
    pub fn archiving_problem(&self) -> Option<&str> {
        let status = self.status.as_ref().filter(|_| self.archive().is_some())?;
        let fails = |condition: &&Condition| condition.type_ == ARCHIVING && condition.status == "False";
        status.conditions.iter().find(fails).map(|condition| condition.message.as_str())
    }
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClusterStorage {
    pub size: Option<String>,
    pub storage_class: Option<String>,
}

/// There is no `observedGeneration`: for some tenths of a second, it is that of an earlier spec.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudNativePgClusterStatus {
    /// A sentence, such as `Cluster in healthy state`.
    pub phase: Option<String>,
    pub phase_reason: Option<String>,
    /// Of these, `Ready` is True while the cluster hibernates, and `Initialized` as soon as a Job exists.
    pub conditions: Vec<Condition>,
    /// Absent while the cluster hibernates.
    pub ready_instances: i64,
    /// Written by the instance itself, once it is the primary.
    pub current_primary: Option<String>,
    #[serde(rename = "pgDataImageInfo")]
    pub data: Option<DataImage>,
}

/// The image that last ran on the data.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct DataImage {
    pub major_version: Option<i64>,
}

#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "postgresql.cnpg.io",
    version = "v1",
    kind = "Backup",
    plural = "backups",
    root = "CloudNativePgBackup",
    namespaced,
    status = "CloudNativePgBackupStatus",
    schema = "disabled"
)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudNativePgBackupSpec {
    /// The cluster in the same namespace.
    pub cluster: ClusterName,
    /// `barmanObjectStore` if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin_configuration: Option<PluginName>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct ClusterName {
    pub name: String,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct PluginName {
    pub name: String,
}

/// The phase alone decides: after a failed backup, the cluster and the store may call its end the last success.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct CloudNativePgBackupStatus {
    /// Of a backup by the plugin: none, `pending`, `started`, and `completed` or `failed`, which are final (`api/v1/backup_types.go`).
    pub phase: Option<String>,
    pub error: Option<String>,
    /// Its name in the store.
    pub backup_id: Option<String>,
    pub stopped_at: Option<Time>,
    pub plugin_metadata: BTreeMap<String, String>,
}

impl CloudNativePgBackup {
    /// Returns true if it is in the archive of this cluster: a former one of its name has had another.
    pub fn is_of(&self, cluster: &CloudNativePgCluster) -> bool {
        let uid = cluster.metadata.uid.as_deref();
        self.spec.cluster.name == cluster.name_any() && uid.is_some_and(|uid| self.cluster_uid() == Some(uid))
    }

    /// Returns the uid of its cluster: of what the plugin has recorded, or of the owner. `None`: neither says it.
    pub fn cluster_uid(&self) -> Option<&str> {
        let recorded = self.status.as_ref().and_then(|status| status.plugin_metadata.get("clusterUID"));
        let owner = || {
            self.owner_references()
                .iter()
                .find(|owner| owner.kind == "Cluster" && owner.api_version.starts_with("postgresql.cnpg.io/"))
        };
        recorded.map(String::as_str).or_else(|| owner().map(|owner| owner.uid.as_str()))
    }

    /// Returns its phase; empty until CloudNativePG has seen it.
    pub fn phase(&self) -> &str {
        self.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
    }
}

/// Phase of a backup that can be restored.
pub const COMPLETED: &str = "completed";
/// Phase of a backup that waits, for another one or for the pod.
pub const PENDING: &str = "pending";
/// Phases of a backup that has failed.
pub const FAILED: [&str; 2] = ["failed", "invalid backup definition"];

/// Metadata of the plugin's store. What it holds is written, never read.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "barmancloud.cnpg.io",
    version = "v1",
    kind = "ObjectStore",
    plural = "objectstores",
    root = "BarmanObjectStore",
    namespaced,
    status = "BarmanObjectStoreStatus",
    schema = "disabled"
)]
#[serde(default)]
pub struct BarmanObjectStoreSpec {}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BarmanObjectStoreStatus {
    /// By server.
    pub server_recovery_window: BTreeMap<String, RecoveryWindow>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RecoveryWindow {
    pub first_recoverability_point: Option<Time>,
}

/// Connection pools. What its status says of itself is also said of one whose only pod does not run.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "postgresql.cnpg.io",
    version = "v1",
    kind = "Pooler",
    plural = "poolers",
    root = "CloudNativePgPooler",
    namespaced,
    schema = "disabled"
)]
#[serde(default)]
pub struct CloudNativePgPoolerSpec {}

/// Backups by schedule.
#[derive(CustomResource, Clone, Debug, Default, Deserialize, Serialize)]
#[kube(
    group = "postgresql.cnpg.io",
    version = "v1",
    kind = "ScheduledBackup",
    plural = "scheduledbackups",
    root = "CloudNativePgSchedule",
    namespaced,
    schema = "disabled"
)]
#[serde(default)]
pub struct CloudNativePgScheduleSpec {}

#[cfg(test)]
mod tests {
    use super::{major_version, names_volume};

    #[test]
    fn what_cloudnativepg_has_named() {
        for (name, named) in [
            ("acme-pg-1", true),
            ("acme-pg-12-wal", true),
            ("acme-pg-1-tbs-fast", true),
            ("acme-pg-1-copy", false),
            ("acme-pg-one", false),
            ("acme-pg", false),
            ("acme-pg2-1", false),
            ("copy-of-acme-pg-1", false),
            ("data-acme-pg-0", false),
        ] {
            assert_eq!(names_volume("acme-pg", name), named, "{name}");
        }
    }

    #[test]
    fn major_versions_of_images() {
        for (image, version) in [
            ("ghcr.io/cloudnative-pg/postgresql:17", Some(17)),
            ("registry.example.com:5000/postgresql:16.4-bookworm", Some(16)),
            ("postgresql:15.3@sha256:0123", Some(15)),
            ("registry.example.com:5000/postgresql", None),
            ("postgresql@sha256:0123", None),
            ("postgresql:latest", None),
            ("", None),
        ] {
            assert_eq!(major_version(image), version, "{image}");
        }
    }
}
