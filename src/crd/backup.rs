//! `ClientAppBackup`: one backup of an app's database and files. The words are CloudNativePG's and Velero's.

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Names what is backed up. Only `reclaim` can be changed: another backup is another object.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "ClientAppBackup",
    plural = "clientappbackups",
    shortname = "cab",
    namespaced,
    status = "ClientAppBackupStatus",
    derive = "PartialEq",
    doc = "A ClientAppBackup is one backup of a ClientApp or of a standalone Postgresql: of its database first, then of its files. It is made once, and what it has made outlives it, unless `spec.reclaim` is Delete.",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.of.kind"),
    printcolumn(name = "Of", type_ = "string", json_path = ".spec.of.name"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Completed", type_ = "date", json_path = ".status.completedAt"),
    printcolumn(name = "Verified", type_ = "date", json_path = ".status.verifiedAt", priority = 1),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.of == oldSelf.of && self.quiesce == oldSelf.quiesce && has(self.parts) == has(oldSelf.parts) && (!has(self.parts) || self.parts == oldSelf.parts)").message("cannot be changed: create another ClientAppBackup"))]
#[x_kube(validation = Rule::new("self.reclaim == oldSelf.reclaim || self.reclaim == 'Retain'").message("can only be changed to Retain: what was made to stay is not deleted with its object").field_path(".reclaim"))]
#[x_kube(validation = Rule::new("self.reclaim != 'Delete' || self.of.kind == 'ClientApp'").message("Delete is not for a Postgresql: its dumps stay as long as its backup keeps them (set Retain)").field_path(".reclaim"))]
pub struct ClientAppBackupSpec {
    /// The object to back up, in this namespace.
    pub of: BackupSubject,

    /// The parts to back up. Absent: all that it has, which is `Database` unless the database is `External` or off, and `Files` with
    /// `spec.persistence.backup`.
    #[schemars(length(min = 1, max = 2))]
    #[x_kube(validation = Rule::new("self.all(part, self.exists_one(other, other == part))").message("must name each part once"))]
    pub parts: Option<Vec<BackupPart>>,

    /// True: the app has no pods from before the first part is begun until the last one is complete, so that all are of one moment. It
    /// gets them back however the backup ends. Needs the part `Files`.
    #[serde(default)]
    pub quiesce: bool,

    /// Decides over what it has made when the object is deleted.
    #[serde(default)]
    pub reclaim: Reclaim,
}

/// Decides what happens to what a backup has made when its object is deleted.
#[derive(JsonSchema, ToSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[value(rename_all = "PascalCase")]
pub enum Reclaim {
    /// It stays, as long as its database or store keeps it.
    #[value(help = "It stays")]
    #[default]
    Retain,
    /// The archive of the files is forgotten, and the PerconaPGBackup deleted; a dump of a Postgresql is refused, and so is a
    /// backup of a Cluster, which only the retention of its plugin deletes. Until that is done, the
    /// object stays, and its condition `Ready` says why.
    #[value(help = "It is deleted")]
    Delete,
}

/// The object that is backed up or restored.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BackupSubject {
    /// Its kind.
    #[serde(default)]
    pub kind: BackupSubjectKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
}

/// Kinds that can be backed up.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum BackupSubjectKind {
    /// An app, with its database and its files.
    #[default]
    ClientApp,
    /// A database of this operator.
    Postgresql,
}

/// A part of an app.
#[derive(JsonSchema, ToSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum BackupPart {
    /// The database.
    Database,
    /// The files on the volumes of the release.
    Files,
}

/// Records what the operator last observed and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAppBackupStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// Progress of the backup.
    pub phase: Option<BackupPhase>,

    /// `Ready`: the backup is complete. `Stalled`: it has failed, and is not tried again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The parts that it consists of.
    pub parts: Option<Vec<BackupPart>>,

    /// uid of the object that is backed up.
    pub subject_uid: Option<String>,

    /// When its first part was begun.
    pub started_at: Option<Time>,

    /// When its last part was complete.
    pub completed_at: Option<Time>,

    /// The backup of the database.
    pub database: Option<DatabaseBackup>,

    /// The backup of the files.
    pub files: Option<ArchivedFiles>,

    /// The restic repository that the files are archived in.
    pub repository: Option<String>,

    /// When a drill of the Postgresql last restored this very dump.
    pub verified_at: Option<Time>,
}

/// Progress of a backup or restore. `Completed` and `Failed` are final.
#[derive(JsonSchema, ToSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum BackupPhase {
    /// It has not begun, and waits for what the condition `Ready` says.
    Pending,
    /// It has begun.
    Running,
    /// All parts are complete.
    Completed,
    /// A part has failed; earlier ones stay.
    Failed,
}

impl BackupPhase {
    /// Returns true for a phase that a backup stays in.
    pub fn is_final(self) -> bool {
        matches!(self, BackupPhase::Completed | BackupPhase::Failed)
    }
}

/// The backup of a database.
#[skip_serializing_none]
#[derive(JsonSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DatabaseBackup {
    /// `PerconaPGBackup`, `Backup` of CloudNativePG, or `Postgresql` for a dump.
    pub kind: String,
    /// Name of the PerconaPGBackup or Backup, or the request with which the dump was requested from the Postgresql.
    pub name: String,
    /// Name of the dump.
    pub dump: Option<String>,
    /// When it was complete.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Time>,
}

/// The backup of an app's files.
#[skip_serializing_none]
#[derive(JsonSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ArchivedFiles {
    /// Name of the Job.
    pub job: String,
    /// Name of the archive: its time, and the first part of its restic snapshot's id.
    pub archive: Option<String>,
    /// Size of the files.
    pub bytes: Option<i64>,
    /// Number of files.
    pub files: Option<i64>,
    /// When it was complete.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub completed_at: Option<Time>,
}
