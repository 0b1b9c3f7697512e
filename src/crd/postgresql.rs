//! `Postgresql`: one standalone PostgreSQL server, for clusters without Percona.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{
    DeletionPolicy, Drill, Dump, NetworkAccess, Owned, Parameters, Resources, Restore, RestoreRecord, Scheduling, Store,
};

/// The PostgreSQL server that the user asks for.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "Postgresql",
    plural = "postgresqls",
    // Not `pg`, which is Percona's PerconaPGCluster.
    shortname = "db",
    namespaced,
    status = "PostgresqlStatus",
    derive = "PartialEq",
    doc = "A Postgresql is one standalone PostgreSQL server on a volume of its own, with hot standbys and dumps on request. It has no automatic failover: a primary that is lost comes back on its volume.",
    validation = Rule::new("self.metadata.name.size() <= 44").message("the name can have at most 44 characters, since StatefulSets get it with '-standby' behind it"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name is used for Services and must be a DNS label: lower-case letters, digits and '-', beginning with a letter"),
    validation = Rule::new("!has(self.spec.restore) || (has(oldSelf.spec.restore) && self.spec.restore == oldSelf.spec.restore) || !has(self.status) || !has(self.status.volume) || !self.status.volume.initialized").message("a dump is restored into a new database only, and this one is made: `kubectl clientapp restore` replaces a ClientApp's database, and without one make another Postgresql").field_path(".spec.restore"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Storage", type_ = "string", json_path = ".status.storageSize"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.password) || !has(self.passwordSecret)").message("give password or passwordSecret, not both").field_path(".password"))]
#[x_kube(validation = Rule::new("!has(self.password) || !has(oldSelf.password) || self.password == oldSelf.password").message("a password is changed in the database, not here: ALTER ROLE, then put the new one into a Secret and name that in passwordSecret").field_path(".password"))]
#[x_kube(validation = Rule::new("self.name == oldSelf.name").message("name is immutable: make the other database with CREATE DATABASE, or another Postgresql").field_path(".name"))]
#[x_kube(validation = Rule::new("self.defaultUser == oldSelf.defaultUser").message("defaultUser is immutable: make the other user with CREATE ROLE, or another Postgresql").field_path(".defaultUser"))]
#[x_kube(validation = Rule::new("self.version == oldSelf.version").message("version is immutable, since another major version cannot read the same files: dump this one with pg_dump, make a new Postgresql of the version you want, and restore the dump into it with pg_restore").field_path(".version"))]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storageClassName is immutable: data does not move by itself; make a new Postgresql and restore a dump into it").field_path(".storageClassName"))]
#[x_kube(validation = Rule::new("!isQuantity(self.storageSize) || !isQuantity(oldSelf.storageSize) || quantity(self.storageSize).compareTo(quantity(oldSelf.storageSize)) >= 0").message("storageSize can only grow: a volume never shrinks").field_path(".storageSize"))]
pub struct PostgresqlSpec {
    /// The user that owns the database; no superuser. Immutable.
    #[serde(default = "default_user")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_') && !(self in ['postgres', 'replicator'])").message("must be lower-case letters, digits and '_', not beginning with a digit or 'pg_', and neither 'postgres' nor 'replicator', which are superusers"))]
    pub default_user: String,

    /// The user's password, in clear text for every user who may read this object: use it for trials only. With neither this
    /// nor `passwordSecret`, a password is generated.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^[^\\\\p{Cc}]*$')").message("must have no line break or other control character"))]
    pub password: Option<String>,

    /// The key of an existing Secret in this namespace that holds the user's password.
    pub password_secret: Option<PasswordSecret>,

    /// Name of the database. Immutable.
    #[serde(default = "default_user")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z_][a-z0-9_]*$') && !(self in ['template0', 'template1'])").message("must be lower-case letters, digits and '_', not beginning with a digit, and not template0 or template1"))]
    pub name: String,

    /// Port of the Services.
    #[serde(default = "super::number::<5432>")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,

    /// Size of the volume of each server, such as `1Gi`. Only grows.
    #[serde(default = "super::default_storage")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub storage_size: String,

    /// StorageClass of the volumes. Absent: the cluster's default class. Immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub storage_class_name: Option<String>,

    /// Container image in place of the official one: built from it, with the same programs, user (999) and major version.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/]*(:[0-9]+/[-a-zA-Z0-9._/]+)?(:[a-zA-Z0-9_][-a-zA-Z0-9._]*|@sha256:[0-9a-f]{64})$')").message("must be repository:tag or repository@sha256:<64 hex digits>"))]
    pub image: Option<String>,

    /// Major version of PostgreSQL, 14 to 18. Immutable.
    #[serde(default = "default_version")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.matches('^1[4-8]$')").message("must be a major version of PostgreSQL from \"14\" to \"18\""))]
    pub version: String,

    /// Number of servers. All above one are hot standbys, which clients can read through the Service `<name>-ro`. There is no
    /// automatic failover: a lost primary comes back on its volume.
    #[serde(default = "super::number::<1>")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: i32,

    /// Requests and limits of each server, and of the Jobs that make or restore the database. A change restarts the servers.
    pub resources: Option<Resources>,

    /// On which nodes the servers and Jobs may run. A change restarts the servers.
    pub scheduling: Option<Scheduling>,

    /// Settings of PostgreSQL, such as `{max_connections: "200", shared_buffers: 256MB}`, for the primary and the standbys; they
    /// are above those of ALTER SYSTEM. A change restarts the servers. What the operator needs for itself, what could lose data or
    /// open the server, and what runs other programs is refused.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "super::parameters::schema")]
    pub parameters: Parameters,

    /// A NetworkPolicy for the pods of this Postgresql: all pods of this namespace may connect, and who else is named. Absent:
    /// there is none, and every pod of the cluster may.
    pub network_policy: Option<NetworkAccess>,

    /// Dumps of the whole server onto a volume of their own.
    pub backup: Option<Backup>,

    /// The dump that the database is made from, in place of an empty one: roles and all databases. It counts until the database
    /// is made, and never after; nor does it on a volume that was handed over, with the database that is there.
    pub restore: Option<Restore>,

    /// What becomes of the volumes and Secrets when the Postgresql is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// A key of a Secret.
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PasswordSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// Key in it.
    #[serde(default = "super::default_password_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Dumps of the whole server: roles and every database.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.schedule) || has(self.request) || self.onDelete").message("give a schedule, a request or onDelete, or leave backup out"))]
#[x_kube(validation = Rule::new("!has(self.size) || !has(oldSelf.size) || !isQuantity(self.size) || !isQuantity(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0").message("size can only grow: a volume never shrinks").field_path(".size"))]
pub struct Backup {
    /// When to dump, in cron's notation, such as `0 3 * * *`; in the time zone of the cluster.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^ @]+( [^ ]+){4})$')").message("must be five fields in cron's notation such as '0 3 * * *', or @daily"))]
    pub schedule: Option<String>,

    /// A word of your choice; each new value requests a dump at once. The result is in `status.dump`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be a word of lower-case letters, digits and '-', beginning and ending with a letter or digit"))]
    pub request: Option<String>,

    /// How many dumps of this server are kept. A dump that is empty or damaged, or of another server, never replaces one with
    /// data.
    #[serde(default = "super::number::<{ Backup::KEPT }>")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: i32,

    /// Size of the volume for dumps. Only grows. Absent: `storageSize`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub size: Option<String>,

    /// Whether a last dump is taken when the Postgresql is deleted, after clients have been disconnected. The volume with the
    /// dumps is then kept.
    #[serde(default)]
    pub on_delete: bool,

    /// When to prove that the latest dump can be restored, in cron's notation, such as `0 5 * * 0`: it is restored into a scratch
    /// volume of `storageSize`, what is in it is counted, and the volume goes. The result is in `status.backup.drill`.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^ @]+( [^ ]+){4})$')").message("must be five fields in cron's notation such as '0 5 * * 0', or @weekly"))]
    pub drill: Option<String>,

    /// S3-compatible storage to which the dumps go as well, off the node and the cluster.
    pub store: Option<Store>,
}

impl Backup {
    /// How many dumps are kept where the spec does not say that; a request for a dump brings it along.
    pub(crate) const KEPT: i32 = 7;
}

/// What the operator last saw.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresqlStatus {
    /// The generation of the spec that the conditions speak of.
    pub observed_generation: Option<i64>,

    /// `Ready`: the primary serves clients. `BackedUp`: the last dump is complete. `Reconciling`: work is under way.
    /// `Stalled`: nothing goes on until a user or a cluster admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// Whether the primary can be used.
    pub phase: Option<Phase>,

    /// The pod of the primary.
    pub active: Option<ActivePod>,

    /// Major version of the files on the volume.
    pub version: Option<String>,

    /// Size of the primary's volume.
    pub storage_size: Option<String>,

    /// The volume with the database. The operator never accepts another one in its place by itself.
    pub volume: Option<VolumeRecord>,

    /// Objects that hold or open data and were made for this Postgresql or handed over to it. An object whose uid is not on
    /// this list is never deleted with the Postgresql.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<Owned>,

    /// The Secret for clients, once a password is in use.
    pub secret: Option<SecretRecord>,

    /// The newest dump that `spec.backup.request` asked for.
    pub dump: Option<DumpRecord>,

    /// Successes and failures of all dumps, whatever asked for them.
    pub backup: Option<BackupSummary>,

    /// The dump that the database was made from.
    pub restored: Option<RestoreRecord>,
}

/// The PersistentVolumeClaim with the database.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// Name of the PersistentVolumeClaim.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Whether it was initialised with a database. It is never initialised again.
    pub initialized: bool,
}

/// When dumps succeeded and failed.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackupSummary {
    /// When the last dump was complete.
    pub last_success: Option<Time>,
    /// When the last failed dump failed.
    pub last_failure: Option<Time>,
    /// Its Job.
    pub failed_job: Option<String>,
    /// The complete dumps on the volume when the last dump was complete, the newest first; at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<Dump>,
    /// uid of the PersistentVolumeClaim with that volume.
    pub volume: Option<String>,
    /// How restoring the latest dump went.
    pub drill: Option<Drill>,
    /// Why it failed, in the last words of its pod.
    pub failure: Option<String>,
}

/// Whether the primary can be used.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum Phase {
    /// Not yet.
    Pending,
    /// It can.
    Up,
    /// Not before a user or a cluster admin changes something.
    Failed,
}

/// A reference to a pod of the same namespace.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ActivePod {
    /// `Pod`.
    pub kind: String,
    /// Name of the pod.
    pub name: String,
    /// uid of the pod.
    pub uid: String,
}

/// Where the password in use came from; never the password itself.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct SecretRecord {
    /// Secret with `host`, `port`, `user`, `password`, `dbname` and `uri`.
    pub name: String,
    /// The field that gave the password, or `generated`.
    pub from: String,
    /// resourceVersion of the given Secret when it was last seen to hold the password that is in use.
    pub version: Option<String>,
}

/// A dump that was asked for. A request that is recorded here as succeeded is not repeated.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DumpRecord {
    /// The word in `spec.backup.request`.
    pub request: String,
    /// Name of the Job.
    pub job: String,
    /// Its progress.
    pub state: DumpState,
    /// When the Job began.
    pub started_at: Option<Time>,
    /// When the Job ended.
    pub completed_at: Option<Time>,
    /// Why there is no dump, and what to do.
    pub message: Option<String>,
}

/// Progress of a dump.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum DumpState {
    /// Its Job has not ended.
    Running,
    /// It is on the volume for dumps, and in the store if there is one.
    Succeeded,
    /// It failed: there is no dump, or not in the store.
    Failed,
}

fn default_user() -> String {
    "app".to_owned()
}
fn default_version() -> String {
    "17".to_owned()
}
