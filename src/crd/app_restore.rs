//! `ClientAppRestore`: replaces an app's database and files by those of a backup.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{BackupPart, BackupPhase, BackupSubject, DumpStore, MAX_NAME, NAME_TOO_LONG, StorePasswordSecret};

/// The object to restore, and the backup. It cannot be changed: another restore is another object.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "ClientAppRestore",
    plural = "clientapprestores",
    shortname = "car",
    namespaced,
    status = "ClientAppRestoreStatus",
    derive = "PartialEq",
    doc = "A ClientAppRestore replaces the database of a ClientApp or of a standalone Postgresql, and the app's files, by those of a backup. The former ones are set aside on their volumes, or backed up first. If a dump or the files cannot be restored, they are as they were.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.of.kind"),
    printcolumn(name = "Of", type_ = "string", json_path = ".spec.of.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Completed", type_ = "date", json_path = ".status.completedAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self == oldSelf").message("cannot be changed: create another ClientAppRestore"))]
#[x_kube(validation = Rule::new("has(self.backup) != (has(self.database) || has(self.files))").message("set either backup, the name of a ClientAppBackup, or database, files or both").field_path(".backup"))]
#[x_kube(validation = Rule::new("!has(self.parts) || has(self.backup)").message("parts are those of a ClientAppBackup: set backup, or name the parts by database and files").field_path(".parts"))]
#[x_kube(validation = Rule::new("!has(self.into) || self.of.kind == 'ClientApp'").message("needs of.kind ClientApp (another Postgresql is created with its own spec.restore)").field_path(".into"))]
#[x_kube(validation = Rule::new("!has(self.into) || self.into.name != self.of.name").message("must name another app than of (without into, the backup replaces what the app has)").field_path(".into"))]
#[x_kube(validation = Rule::new("!has(self.into) || has(self.backup) || has(self.database)").message("needs a database for the new app (set database or backup)").field_path(".into"))]
#[x_kube(validation = Rule::new("!has(self.into) || !has(self.parts) || 'Database' in self.parts").message("must contain Database for a new app").field_path(".parts"))]
pub struct ClientAppRestoreSpec {
    /// The object to restore, in this namespace.
    pub of: BackupSubject,

    /// Creates another ClientApp from the backup, and leaves `of` as it is. Absent: the backup replaces what `of` has.
    pub into: Option<RestoreInto>,

    /// A completed ClientAppBackup of this object.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub backup: Option<String>,

    /// The parts of the ClientAppBackup to restore. Absent: all that it has.
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(validation = Rule::new("self.all(part, self.exists_one(other, other == part))").message("must name each part once"))]
    pub parts: Option<Vec<BackupPart>>,

    /// The dump or backup that replaces the database.
    pub database: Option<DatabaseSource>,

    /// The archive that replaces the files.
    pub files: Option<FilesSource>,

    /// True: a PerconaPGCluster is backed up before it is restored. `false`: its present content is lost, as it is if it cannot be
    /// backed up any more. What a standalone database and the files were before is set aside in any case.
    #[serde(default = "yes")]
    pub backup_first: bool,
}

impl ClientAppRestoreSpec {
    /// Returns the name of the object whose database and files are written.
    pub fn target(&self) -> &str {
        self.into.as_ref().map_or(&self.of.name, |into| &into.name)
    }

    /// Returns the object whose database and files are written.
    pub fn subject(&self) -> BackupSubject {
        BackupSubject { kind: self.of.kind, name: self.target().to_owned() }
    }
}

/// The ClientApp that is created from a backup. It has the spec of the first and no pods.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreInto {
    /// Name of the new ClientApp.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(format!("self.size() <= {MAX_NAME}")).message(&*format!("the name {NAME_TOO_LONG}")))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("must be a DNS label: lower-case letters, digits and '-', beginning with a letter"))]
    pub name: String,

    /// DNS name that the new ClientApp is served under, unique in the cluster.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(super::HOSTNAME).message(super::NOT_A_HOSTNAME))]
    pub hostname: String,
}

/// The dump or backup that replaces the database.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.time) || self.from == 'latest'").message("give from or time, not both").field_path(".time"))]
pub struct DatabaseSource {
    /// `latest`, or the name of a dump, a PerconaPGBackup or a Backup of CloudNativePG.
    #[serde(default = "latest")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?$')").message("must be latest, or the name of a dump, PerconaPGBackup or Backup"))]
    pub from: String,

    /// A point in time, of a PerconaPGCluster or, with `into`, of a Cluster of CloudNativePG: something must have been committed after it.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub time: Option<Time>,

    /// The repository with the dump. Absent: the database's own volume or, if the dump is not there, its `backup.store`.
    pub store: Option<DumpStore>,
}

/// The archive that replaces the files.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FilesSource {
    /// `latest`, or the name of an archive.
    #[serde(default = "latest")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^(latest|[0-9]{8}T[0-9]{6}Z-[a-z0-9]+)$')").message("must be latest, or the name of an archive such as 20260131T033000Z-20543f14"))]
    pub from: String,

    /// Path of another repository in the bucket of `spec.persistence.backup.store`. Absent: the app's own.
    #[schemars(length(min = 1, max = 620))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$')").message("must be words of letters, digits, '.', '_' and '-', separated by '/'"))]
    pub path: Option<String>,

    /// The Secret with that repository's password, if it is another one.
    pub password_secret: Option<StorePasswordSecret>,
}

/// Records what the operator last observed and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAppRestoreStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// Progress of the restore.
    pub phase: Option<BackupPhase>,

    /// `Ready`: the restore is complete. `Stalled`: it has failed, and is not tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// uid of the object that is restored.
    pub subject_uid: Option<String>,

    /// uid of the ClientApp that `spec.into` has created.
    pub into_uid: Option<String>,

    /// When it was begun.
    pub started_at: Option<Time>,

    /// When its last part was complete.
    pub completed_at: Option<Time>,

    /// The restore of the database.
    pub database: Option<DatabaseRestore>,

    /// The restore of the files.
    pub files: Option<FilesRestore>,
}

impl ClientAppRestoreStatus {
    /// Returns true if its database is complete.
    pub fn has_database(&self) -> bool {
        self.database.as_ref().is_some_and(|database| database.completed_at.is_some())
    }

    /// Returns true while it replaces the database, or is about to. It then waits for no pod that helm would have to take away.
    pub fn replaces_database(&self) -> bool {
        let is_free = |database: &DatabaseRestore| self.files.is_none() || database.has_begun();
        self.phase == Some(BackupPhase::Running) && !self.has_database() && self.database.as_ref().is_some_and(is_free)
    }
}

/// The restore of a database.
#[skip_serializing_none]
#[derive(JsonSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseRestore {
    /// `PerconaPGRestore`, or `Postgresql` for a dump; with `spec.into`, the kind of the new database.
    pub kind: String,
    /// Name of the PerconaPGRestore, or the request with which the dump was requested from the Postgresql; with `spec.into`, the name
    /// of the new database.
    pub name: String,
    /// The dump, PerconaPGBackup or Backup that is restored.
    pub from: String,
    /// The PerconaPGBackup of what it was before.
    pub backup: Option<String>,
    /// When the dump was requested, or the PerconaPGRestore was created. It is not requested again.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub requested_at: Option<Time>,
    /// When it was complete.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Time>,
}

impl DatabaseRestore {
    /// Returns true once it, or the backup before it, has been asked for.
    pub fn has_begun(&self) -> bool {
        self.requested_at.is_some() || self.backup.is_some()
    }
}

/// The restore of an app's files.
#[skip_serializing_none]
#[derive(JsonSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FilesRestore {
    /// Name of the Job.
    pub job: String,
    /// The archive that is restored.
    pub archive: String,
    /// When it was complete.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Time>,
}

fn latest() -> String {
    "latest".to_owned()
}
fn yes() -> bool {
    true
}
