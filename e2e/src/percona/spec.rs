//! The fields of a `PerconaPGCluster` that the stand-in reads and writes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(super) type Cluster = Object<Spec, Status>;

pub(super) fn resource() -> ApiResource {
    of_kind("PerconaPGCluster")
}

pub(super) fn of_kind(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", kind))
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
    #[serde(default)]
    pub(super) cr_version: String,
    #[serde(default)]
    pub(super) image: String,
    pub(super) postgres_version: i64,
    pub(super) port: i32,
    #[serde(default)]
    pub(super) pause: bool,
    pub(super) users: Option<Vec<User>>,
    pub(super) instances: Vec<InstanceSet>,
    pub(super) proxy: Option<Proxy>,
    pub(super) backups: Backups,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct User {
    pub(super) name: String,
    #[serde(default)]
    pub(super) databases: Vec<String>,
    pub(super) password: Option<Password>,
    pub(super) secret_name: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Password {
    #[serde(rename = "type")]
    pub(super) kind: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InstanceSet {
    pub(super) name: String,
    pub(super) replicas: i32,
    pub(super) data_volume_claim_spec: PersistentVolumeClaimSpec,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Proxy {
    pub(super) pg_bouncer: PgBouncer,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct PgBouncer {
    #[serde(default)]
    pub(super) image: String,
    pub(super) replicas: i32,
    pub(super) port: i32,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Backups {
    pub(super) enabled: Option<bool>,
    pub(super) pgbackrest: Option<PgBackRest>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct PgBackRest {
    #[serde(default)]
    pub(super) image: String,
    #[serde(default)]
    pub(super) global: BTreeMap<String, String>,
    #[serde(default)]
    pub(super) repos: Vec<Repo>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) restore: Option<Restore>,
}

/// The restore in place that is in progress, or the last one.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Restore {
    pub(super) enabled: bool,
}

/// The target of backups: either a volume or a cloud store.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Repo {
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) volume: Option<RepoVolume>,
    #[serde(flatten)]
    pub(super) rest: Map<String, Value>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RepoVolume {
    pub(super) volume_claim_spec: PersistentVolumeClaimSpec,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) state: Option<State>,
    pub(super) host: Option<String>,
    pub(super) postgres: Option<PostgresStatus>,
    pub(super) pgbouncer: Option<Count>,
    pub(super) pgbackrest: Option<PgBackRestStatus>,
    pub(super) conditions: Option<Vec<Condition>>,
    pub(super) observed_generation: Option<i64>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct PgBackRestStatus {
    pub(super) repo_host: RepoHostStatus,
    pub(super) repos: Vec<RepoStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct RepoHostStatus {
    pub(super) ready: bool,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct RepoStatus {
    pub(super) name: String,
    pub(super) stanza_created: bool,
    pub(super) replica_create_backup_complete: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Initializing,
    Ready,
    Paused,
    Stopping,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct PostgresStatus {
    #[serde(flatten)]
    pub(super) count: Count,
    pub(super) version: Option<i64>,
    pub(super) instances: Vec<SetStatus>,
}

#[derive(Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct SetStatus {
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) count: Count,
}

/// The number of desired pods, and of ready ones.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) size: i32,
    pub(super) ready: i32,
}

impl Spec {
    /// The default is one user with the cluster's name; an empty list creates none.
    pub(super) fn users(&self, cluster: &str) -> Vec<User> {
        let name = || cluster.to_owned();
        let default = || vec![User { name: name(), databases: vec![name()], password: None, secret_name: None }];
        self.users.clone().unwrap_or_else(default)
    }

    pub(super) fn pgbouncer(&self) -> Option<&PgBouncer> {
        self.proxy.as_ref().map(|proxy| &proxy.pg_bouncer)
    }

    /// Images that the real operator requires, under its own names for them.
    pub(super) fn missing_images(&self) -> Vec<&'static str> {
        let none = String::new();
        let images = [
            // Since 2.9.0, with backups disabled as well.
            ("crunchy-pgbackrest", Some(self.backups.pgbackrest.as_ref().map_or(&none, |backups| &backups.image))),
            ("crunchy-pgbouncer", self.pgbouncer().map(|pgbouncer| &pgbouncer.image)),
            ("crunchy-postgres", Some(&self.image)),
        ];
        let missing = images.into_iter().filter(|(_, image)| image.is_some_and(String::is_empty));
        missing.map(|(name, _)| name).collect()
    }
}

impl Backups {
    /// Unset means enabled.
    pub(super) fn are_enabled(&self) -> bool {
        self.enabled != Some(false)
    }

    /// Whether the cluster is being restored in place.
    pub(super) fn is_restored(&self) -> bool {
        self.pgbackrest
            .as_ref()
            .and_then(|pgbackrest| pgbackrest.restore.as_ref())
            .is_some_and(|restore| restore.enabled)
    }

    /// The repositories in use: none while backups are disabled, even if some are listed.
    pub(super) fn repos(&self) -> &[Repo] {
        self.pgbackrest.as_ref().filter(|_| self.are_enabled()).map_or(&[], |pgbackrest| &pgbackrest.repos)
    }
}

impl Repo {
    /// The types of scheduled backups.
    pub(super) fn scheduled(&self) -> Vec<&str> {
        let schedules = self.rest.get("schedules").and_then(Value::as_object);
        schedules.into_iter().flat_map(Map::keys).map(String::as_str).collect()
    }

    /// The real operator's name for the type of storage.
    pub(super) fn storage_type(&self) -> &'static str {
        let stores = ["s3", "azure", "gcs"];
        stores.into_iter().find(|store| self.rest.contains_key(*store)).unwrap_or("filesystem")
    }

    /// Empty for a volume, as in reality.
    pub(super) fn destination(&self, global: &BTreeMap<String, String>) -> String {
        let (scheme, key) = match self.storage_type() {
            "s3" => ("s3", "bucket"),
            "gcs" => ("gs", "bucket"),
            "azure" => ("azure", "container"),
            _ => return String::new(),
        };
        let place = self.rest[self.storage_type()][key].as_str().unwrap_or_default();
        let path = global.get(&format!("{}-path", self.name)).map_or("", String::as_str);
        format!("{scheme}://{place}{path}")
    }
}

impl std::ops::Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { size: self.size + other.size, ready: self.ready + other.ready }
    }
}
