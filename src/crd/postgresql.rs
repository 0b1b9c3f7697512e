//! `Postgresql`: one standalone PostgreSQL server, for clusters without Percona.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{
    DeletionPolicy, Drill, DrillStore, Dump, JobSettings, NetworkAccess, Owned, Parameters, RepositoryPassword,
    Resources, Restore, RestoreProgress, RestoreRecord, RestoreRequest, Scheduled, Scheduling, Store, Tls,
};

/// The PostgreSQL server that the user requests.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "Postgresql",
    plural = "postgresqls",
    // Not `pg`, which is the short name of Percona's PerconaPGCluster.
    shortname = "db",
    namespaced,
    status = "PostgresqlStatus",
    derive = "PartialEq",
        doc = "A Postgresql is one standalone PostgreSQL server on a volume of its own, with optional hot standbys and dumps. It has no automatic failover: a lost primary comes back on its volume.",
        validation = Rule::new("self.metadata.name.size() <= 44").message("the name can have at most 44 characters, since '-standby' is appended for a StatefulSet"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name is used for Services and must be a DNS label: lower-case letters, digits and '-', beginning with a letter"),
        validation = Rule::new("!has(self.spec.restore) || (has(oldSelf.spec.restore) && self.spec.restore == oldSelf.spec.restore) || !has(self.status) || !has(self.status.volume) || !self.status.volume.initialized").message("a dump can only be restored into a new database, and this one exists: create a ClientAppRestore, which replaces it").field_path(".spec.restore"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.version"),
    printcolumn(name = "Storage", type_ = "string", json_path = ".status.storageSize"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.password) || !has(self.passwordSecret)").message("give password or passwordSecret, not both").field_path(".password"))]
#[x_kube(validation = Rule::new("!has(self.password) || !has(oldSelf.password) || self.password == oldSelf.password").message("the password cannot be changed here: change it in the database with ALTER ROLE, then put the new one into a Secret and name that in passwordSecret").field_path(".password"))]
#[x_kube(validation = Rule::new("self.name == oldSelf.name").message("name is immutable: create another database with CREATE DATABASE, or another Postgresql").field_path(".name"))]
#[x_kube(validation = Rule::new("self.defaultUser == oldSelf.defaultUser").message("defaultUser is immutable: create another user with CREATE ROLE, or another Postgresql").field_path(".defaultUser"))]
#[x_kube(validation = Rule::new("self.version == oldSelf.version").message("version is immutable, since another major version cannot read the same files: dump this one with pg_dump, create a new Postgresql of the version you want, and restore the dump into it with pg_restore").field_path(".version"))]
#[x_kube(validation = Rule::new("has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storageClassName is immutable, because data is not moved: create a new Postgresql and restore a dump into it").field_path(".storageClassName"))]
#[x_kube(validation = Rule::new("!isQuantity(self.storageSize) || !isQuantity(oldSelf.storageSize) || quantity(self.storageSize).compareTo(quantity(oldSelf.storageSize)) >= 0").message("storageSize can only grow: a volume never shrinks").field_path(".storageSize"))]
#[x_kube(validation = Rule::new("!has(self.image) || !has(self.backup) || !has(self.backup.jobs) || !has(self.backup.jobs.serviceAccountName)").message("serviceAccountName is for official images: one of your own runs with the ServiceAccount default, also in Jobs").field_path(".backup.jobs.serviceAccountName"))]
pub struct PostgresqlSpec {
    /// The user that owns the database; not a superuser. Immutable.
    #[serde(default = "default_user")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z_][a-z0-9_]*$') && !self.startsWith('pg_') && !(self in ['postgres', 'replicator'])").message("must be lower-case letters, digits and '_', not beginning with a digit or 'pg_', and neither 'postgres' nor 'replicator', which are superusers"))]
    pub default_user: String,

    /// The user's password, in clear text, visible to every user who may read this object: use it for tests only. If neither this
    /// nor `passwordSecret` is set, a password is generated.
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^[^\\\\p{Cc}]*$')").message("must have no line break or other control character"))]
    pub password: Option<String>,

    /// The key of an existing Secret in this namespace with the user's password.
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

    /// Size of each server's volume, such as `1Gi`. It can only grow.
    #[serde(default = "super::default_storage")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub storage_size: String,

    /// StorageClass of the volumes. Absent: the cluster's default class. Immutable.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub storage_class_name: Option<String>,

    /// Container image to use instead of the official one. It must be based on that, with the same programs, user (999) and major
    /// version.
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/]*(:[0-9]+/[-a-zA-Z0-9._/]+)?(:[a-zA-Z0-9_][-a-zA-Z0-9._]*|@sha256:[0-9a-f]{64})$')").message("must be repository:tag or repository@sha256:<64 hex digits>"))]
    pub image: Option<String>,

    /// Major version of PostgreSQL, 14 to 18. Immutable.
    #[serde(default = "default_version")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.matches('^1[4-8]$')").message("must be a major version of PostgreSQL from \"14\" to \"18\""))]
    pub version: String,

    /// Number of servers. The additional ones are hot standbys, which clients can read from through the Service `<name>-ro`. There is
    /// no automatic failover: a lost primary comes back on its volume.
    #[serde(default = "super::number::<1>")]
    #[schemars(range(min = 1, max = 9))]
    pub replicas: i32,

    /// Requests and limits of each server, and of the Jobs that create or restore the database. A change restarts the servers.
    pub resources: Option<Resources>,

    /// Constraints on the nodes of the servers and Jobs. A change restarts the servers.
    pub scheduling: Option<Scheduling>,

    /// PostgreSQL parameters, such as `{max_connections: "200", shared_buffers: 256MB}`, for the primary and the standbys. They take
    /// precedence over ALTER SYSTEM. A change restarts the servers. Refused are parameters that the operator sets itself, that could
    /// lose data or weaken access control, or that run other programs.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "super::parameters::schema")]
    pub parameters: Parameters,

    /// A NetworkPolicy for the pods of this Postgresql: all pods of this namespace, and the given peers, may connect. Absent:
    /// there is no NetworkPolicy, and every pod of the cluster may connect.
    pub network_policy: Option<NetworkAccess>,

    /// Encryption of the connections, with a certificate that the operator creates. Absent: the servers do not support TLS. A change
    /// restarts the servers.
    pub tls: Option<Tls>,

    /// Dumps of the whole server onto a volume of their own.
    pub backup: Option<Backup>,

    /// The dump to create the database from, instead of an empty one: roles and all databases. Ignored once the database exists, and
    /// on a volume with a database that was handed over.
    pub restore: Option<Restore>,

    /// Requests that a dump replaces the database, whatever state that is in. The dump is restored beside it, and the former database
    /// is set aside on the volume. A ClientAppRestore sets this field.
    pub restore_request: Option<RestoreRequest>,

    /// Decides what happens to the volumes and Secrets when the Postgresql is deleted.
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
    /// Key in the Secret.
    #[serde(default = "super::default_password_key")]
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// Dumps of the whole server: roles and every database.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.schedule) || has(self.request) || self.onDelete").message("set schedule, request or onDelete, or omit backup"))]
#[x_kube(validation = Rule::new("!has(self.size) || !has(oldSelf.size) || !isQuantity(self.size) || !isQuantity(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0").message("size can only grow: a volume never shrinks").field_path(".size"))]
#[x_kube(validation = Rule::new("!has(self.drillStore) || (has(self.drill) && has(self.store))").message("drillStore is for drills from the bucket: set drill and store as well, or omit it").field_path(".drillStore"))]
pub struct Backup {
    /// When to dump, in cron notation, such as `0 3 * * *`, in UTC. A dump that was missed is made up for once.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 3 * * *', or @daily"))]
    pub schedule: Option<String>,

    /// A word of your choice; each new value requests a dump immediately. The result is in `status.dump`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be a word of lower-case letters, digits and '-', beginning and ending with a letter or digit"))]
    pub request: Option<String>,

    /// Number of dumps of this server to keep. A dump that is empty, damaged or of another server never replaces one with data.
    #[serde(default = "super::number::<{ Backup::KEPT }>")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: i32,

    /// Size of the volume for dumps. It can only grow. Absent: `storageSize`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub size: Option<String>,

    /// True if a last dump is made when the Postgresql is deleted, after clients are disconnected. The volume with the
    /// dumps is then kept.
    #[serde(default)]
    pub on_delete: bool,

    /// When to verify that the latest dump can be restored, in cron notation and UTC, such as `0 5 * * 0`: it is restored into a scratch
    /// volume of `storageSize`, its tables are counted, and the volume is deleted. The result is in `status.backup.drill`.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 5 * * 0', or @weekly"))]
    pub drill: Option<String>,

    /// Drills restore the latest dump in `store`, which proves that the bucket and its key can be used. Absent: they restore the latest
    /// dump on the volume.
    pub drill_store: Option<DrillStore>,

    /// S3-compatible storage to which the dumps are uploaded as well, outside the node and the cluster.
    pub store: Option<Store>,

    /// Settings of the Jobs that dump, upload and restore.
    pub jobs: Option<JobSettings>,
}

impl Backup {
    /// Default of `keep`. It also applies when a request for a dump adds `backup` to the spec.
    pub const KEPT: i32 = 7;
}

/// Records what the operator last observed.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresqlStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// `Ready`: the primary serves clients. `BackedUp`: the last dump is complete. `Reconciling`: work is in progress.
    /// `Stalled`: nothing happens until a user or a cluster admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The usability of the primary.
    pub phase: Option<Phase>,

    /// The pod of the primary.
    pub active: Option<ActivePod>,

    /// Major version of the files on the volume.
    pub version: Option<String>,

    /// Size of the primary's volume.
    pub storage_size: Option<String>,

    /// The volume with the database. The operator never accepts another volume in its place without confirmation.
    pub volume: Option<VolumeRecord>,

    /// Objects that hold or open data and were created for this Postgresql or handed over to it. An object whose uid is not in
    /// this list is never deleted with the Postgresql.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<Owned>,

    /// The Secret for clients, once a password is in use.
    pub secret: Option<SecretRecord>,

    /// The newest dump requested by `spec.backup.request`.
    pub dump: Option<DumpRecord>,

    /// Successes and failures of all dumps, however they were requested.
    pub backup: Option<BackupSummary>,

    /// The Secret with the password of the repository in `spec.backup.store`. Once it is on record, no other password is generated.
    pub repository_password: Option<RepositoryPassword>,

    /// The servers that restart because of another version of the operator, until they are ready again. As long as it is there, no
    /// other Postgresql restarts for that; a cluster admin can remove it.
    pub rollout: Option<PostgresqlRollout>,

    /// Progress of the newest `spec.restoreRequest`.
    pub restore: Option<RestoreProgress>,

    /// The dump that the database was created from.
    pub restored: Option<RestoreRecord>,

    /// `false` once it is certain that the Postgresql is not deleted with `--cascade=orphan`.
    pub orphaned: Option<bool>,
}

/// The PersistentVolumeClaim with the database.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct VolumeRecord {
    /// Name of the PersistentVolumeClaim.
    pub name: String,
    /// uid of the PersistentVolumeClaim.
    pub uid: String,
    /// True if it was initialized with a database. It is never initialized again.
    pub initialized: bool,
}

/// The turn of a Postgresql to restart.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresqlRollout {
    /// Names of the StatefulSets that restart.
    pub stateful_sets: Vec<String>,
    /// Since when it is the turn of this Postgresql.
    pub started_at: Time,
}

/// When dumps succeeded and failed.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackupSummary {
    /// When the last dump was complete.
    pub last_success: Option<Time>,
    /// How long that dump took, in seconds, with its upload.
    pub last_duration: Option<i64>,
    /// When a dump last failed.
    pub last_failure: Option<Time>,
    /// Job of the failed dump.
    pub failed_job: Option<String>,
    /// The complete dumps on the volume when the last dump was complete, newest first; at most 50.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dumps: Vec<Dump>,
    /// uid of the PersistentVolumeClaim with that volume.
    pub volume: Option<String>,
    /// Result of restoring the latest dump.
    pub drill: Option<Drill>,
    /// The cause of the last failure, from the termination message of its pod.
    pub failure: Option<String>,
    /// When the next dump is due.
    pub scheduled: Option<Scheduled>,
}

/// Says whether the primary can be used.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum Phase {
    /// Not yet.
    Pending,
    /// It can be used.
    Up,
    /// Not until a user or a cluster admin changes something.
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
    /// The field that provided the password, or `generated`.
    pub from: String,
    /// resourceVersion of the given Secret when it was last observed to hold the password in use.
    pub version: Option<String>,
}

/// A requested dump. A request that is recorded here as succeeded is not repeated.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DumpRecord {
    /// The value of `spec.backup.request`.
    pub request: String,
    /// Name of the Job.
    pub job: String,
    /// Progress of the dump.
    pub state: DumpState,
    /// Name of the dump, from the report of the Job's pod.
    pub dump: Option<String>,
    /// When the Job started.
    pub started_at: Option<Time>,
    /// When the Job ended.
    pub completed_at: Option<Time>,
    /// The cause if there is no dump, and what to do.
    pub message: Option<String>,
}

/// Progress of a dump.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum DumpState {
    /// The Job has not ended.
    Running,
    /// The dump is on its volume, and in the store if there is one.
    Succeeded,
    /// The dump failed, or was not uploaded to the store.
    Failed,
}

fn default_user() -> String {
    "app".to_owned()
}
fn default_version() -> String {
    "17".to_owned()
}
