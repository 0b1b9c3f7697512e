//! The fields of CloudNativePG's `Cluster` (`postgresql.cnpg.io/v1`) that the operator reads. Pure.
//!
//! It writes a JSON document (`clientapp::database::cloudnativepg`), so that server-side apply claims exactly the intended fields and no
//! defaults of a typed struct.

#![allow(missing_docs, reason = "the fields are CloudNativePG's, documented in its manifests")]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Name of the CustomResourceDefinition, watched to notice an installation of CloudNativePG.
pub const CRD_NAME: &str = "clusters.postgresql.cnpg.io";
/// On CloudNativePG's objects: the cluster that they belong to.
pub const CLUSTER_LABEL: &str = "cnpg.io/cluster";
/// Annotation of a cluster, `on` or `off`, and condition: its pods are taken away, and its volumes stay.
pub const HIBERNATION: &str = "cnpg.io/hibernation";
/// Phase of a cluster that goes on only after a user has repaired it (`api/v1/cluster_types.go`).
pub const UNRECOVERABLE: &str = "Cluster is unrecoverable and needs manual intervention";

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
