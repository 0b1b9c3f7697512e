//! `spec.postgres.cloudnativepg` of a ClientApp: which Cluster it has, what that is created from, and its Pooler. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::Parameters;

/// The Cluster of CloudNativePG, what a new one is created from, and its Pooler.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CloudNativePgOptions {
    /// Name of the app's Cluster, at most 50 characters; absent: `<name of the ClientApp>-pg`, shortened if that is long. CloudNativePG
    /// never restores in place. To return to a backup, name a Cluster that does not exist, and set `dataSource`: the app goes on with
    /// its former Cluster until the new one is ready, and then moves to it. The former one is retained, and goes on running; to return
    /// to that, name it again, with `adopt`.
    #[schemars(length(min = 1, max = 50))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("must be a DNS label that begins with a letter, such as acme-pg-2"))]
    pub cluster: Option<String>,

    /// The backups to create the database from, instead of an empty one. Ignored once the Cluster exists, and immutable unless `cluster`
    /// changes with it. A ClientAppRestore with `into` creates another ClientApp with this field.
    pub data_source: Option<CloudNativePgDataSource>,

    /// PgBouncer between the app and the primary: a Pooler `<name of the Cluster>-pooler`, whose Service the app uses. Removed, the app
    /// goes back to the Cluster's own Service, and then the Pooler is deleted.
    pub pooler: Option<PoolerOptions>,
}

/// A Pooler of CloudNativePG.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PoolerOptions {
    /// Number of its pods.
    #[serde(default = "super::number::<1>")]
    #[schemars(range(min = 1, max = 9))]
    pub instances: i32,

    /// When a connection to the server is free for another client: after the client's own has ended, or after each `transaction`, which
    /// an app without settings, locks or prepared statements of a session can use.
    #[serde(default)]
    pub pool_mode: PoolMode,

    /// Parameters of PgBouncer, such as `{max_client_conn: "500", default_pool_size: "20"}`; CloudNativePG refuses those that it does not
    /// know.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "super::parameters::of_pgbouncer")]
    pub parameters: Parameters,
}

/// When a connection to the server is free for another client.
#[derive(JsonSchema, ToSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PoolMode {
    /// After the client's connection has ended.
    #[default]
    Session,
    /// After each transaction.
    Transaction,
}

/// The backups to create a new Cluster from, by the plugin barman-cloud. They must have the same major version of PostgreSQL, and are only
/// read.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.backup) || !has(self.time)").message("set either backup or time, or neither for the newest state"))]
pub struct CloudNativePgDataSource {
    /// Name of an ObjectStore in this namespace with the backups. It has to stay as long as the Cluster. Absent: the ClientApp's own, from
    /// `postgres.backup.store`.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub object_store: Option<String>,

    /// The `serverName` under which the other Cluster archives, as in its `spec.plugins`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be the serverName of a Cluster, such as acme-pg-5f0c2c0e"))]
    pub server_name: String,

    /// ID of a backup, as in a Backup's `status.backupId`: the database is restored to the end of this backup.
    #[schemars(length(max = 15))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{8}T[0-9]{6}$')").message("must be the ID of a backup, such as 20260131T030000"))]
    pub backup: Option<String>,

    /// Point in time to restore, such as `2026-01-31T12:00:00Z`; something must have been committed after it. Absent, together with
    /// `backup`: the newest state.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub time: Option<Time>,
}
