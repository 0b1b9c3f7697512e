//! The fields of a `PerconaPGCluster` that the stand-in reads and writes.

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use kube::api::{ApiResource, GroupVersionKind, Object};
use serde::{Deserialize, Serialize};

pub(super) type Cluster = Object<Spec, Status>;

pub(super) fn resource() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", "PerconaPGCluster"))
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Spec {
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
}

#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub(super) struct Status {
    pub(super) state: Option<State>,
    pub(super) host: Option<String>,
    pub(super) postgres: Option<PostgresStatus>,
    pub(super) pgbouncer: Option<Count>,
    pub(super) observed_generation: Option<i64>,
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

/// How many pods there should be, and how many are ready.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) size: i32,
    pub(super) ready: i32,
}

impl Spec {
    /// The default is one user of the cluster's name; an empty list makes none.
    pub(super) fn users(&self, cluster: &str) -> Vec<User> {
        let name = || cluster.to_owned();
        let default = || vec![User { name: name(), databases: vec![name()], password: None, secret_name: None }];
        self.users.clone().unwrap_or_else(default)
    }

    pub(super) fn pgbouncer(&self) -> Option<&PgBouncer> {
        self.proxy.as_ref().map(|proxy| &proxy.pg_bouncer)
    }

    /// Images without which the real operator does not begin, under the names that it gives them.
    pub(super) fn missing_images(&self) -> Vec<&'static str> {
        let backups = self.backups.pgbackrest.as_ref().filter(|_| self.backups.enabled != Some(false));
        let images = [
            ("crunchy-pgbackrest", backups.map(|backups| &backups.image)),
            ("crunchy-pgbouncer", self.pgbouncer().map(|pgbouncer| &pgbouncer.image)),
            ("crunchy-postgres", Some(&self.image)),
        ];
        let missing = images.into_iter().filter(|(_, image)| image.is_some_and(String::is_empty));
        missing.map(|(name, _)| name).collect()
    }
}

impl std::ops::Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { size: self.size + other.size, ready: self.ready + other.ready }
    }
}
