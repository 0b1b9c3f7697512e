//! Requests for backups and restores, and their responses, as JSON. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::crd::{
    ArchivedFiles, BackupPart, BackupPhase, ClientAppBackup, ClientAppRestore, DatabaseBackup, DatabaseRestore,
    DatabaseSource, FilesRestore, FilesSource, Reclaim, RestoreInto,
    conditions::{find, kind},
};

/// A backup to create.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewBackup {
    /// Name of the backup, unique in the namespace. Absent: a name is generated.
    #[schema(max_length = 253)]
    pub(crate) name: Option<String>,
    /// The parts to back up. Absent: all that the instance has.
    pub(crate) parts: Option<Vec<BackupPart>>,
    /// True: the instance has no pods meanwhile, so that all parts are of one moment. Needs the part `Files`.
    #[serde(default)]
    pub(crate) quiesce: bool,
    /// Decides over what it has made when the backup is deleted. With `Delete`, that has to come before the instance is deleted.
    #[serde(default)]
    pub(crate) reclaim: Reclaim,
}

/// A restore to create: of `backup`, or of `database`, `files` or both.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewRestore {
    /// Name of the restore, unique in the namespace. Absent: a name is generated.
    #[schema(max_length = 253)]
    pub(crate) name: Option<String>,
    /// Creates another instance from the backup, and leaves this one as it is. Needs the right to create ClientApps.
    pub(crate) into: Option<RestoreInto>,
    /// Name of a backup of this instance.
    pub(crate) backup: Option<String>,
    /// The parts of the backup to restore. Absent: all that it has.
    pub(crate) parts: Option<Vec<BackupPart>>,
    /// The dump or backup that replaces the database.
    pub(crate) database: Option<DatabaseSource>,
    /// The archive that replaces the files.
    pub(crate) files: Option<FilesSource>,
    /// False: the present content of a PerconaPGCluster is not backed up first, and is lost. True by default.
    pub(crate) backup_first: Option<bool>,
}

/// A backup of an instance.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceBackup {
    #[serde(flatten)]
    progress: Progress,
    /// The parts that it consists of, once it has begun.
    parts: Option<Vec<BackupPart>>,
    /// The backup of the database.
    database: Option<DatabaseBackup>,
    /// The backup of the files.
    files: Option<ArchivedFiles>,
    /// Decides over what it has made when the backup is deleted.
    reclaim: Reclaim,
    /// When a drill last restored this very dump, in RFC 3339 format.
    verified_at: Option<String>,
}

/// A restore of an instance.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceRestore {
    #[serde(flatten)]
    progress: Progress,
    /// The instance that is created, if this one stays as it is.
    into: Option<RestoreInto>,
    /// The backup that is restored, if it was requested by name.
    backup: Option<String>,
    /// The restore of the database.
    database: Option<DatabaseRestore>,
    /// The restore of the files.
    files: Option<FilesRestore>,
}

/// How far a backup or restore is.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Progress {
    /// Its name.
    name: String,
    /// `Completed` and `Failed` are final.
    phase: BackupPhase,
    /// Message of the condition Ready.
    message: String,
    /// Time of creation, in RFC 3339 format.
    created: String,
    /// When it was begun, in RFC 3339 format.
    started_at: Option<String>,
    /// When it was complete, in RFC 3339 format.
    completed_at: Option<String>,
}

/// The backups of an instance.
#[derive(Serialize, ToSchema)]
pub(crate) struct BackupList {
    /// Newest first.
    pub(crate) items: Vec<InstanceBackup>,
}

/// The restores of an instance.
#[derive(Serialize, ToSchema)]
pub(crate) struct RestoreList {
    /// Newest first.
    pub(crate) items: Vec<InstanceRestore>,
}

impl From<ClientAppBackup> for InstanceBackup {
    fn from(backup: ClientAppBackup) -> Self {
        let status = backup.status.unwrap_or_default();
        let times = (status.started_at, status.completed_at);
        InstanceBackup {
            progress: Progress::of(backup.metadata, status.phase, &status.conditions, times),
            parts: status.parts,
            database: status.database,
            files: status.files,
            reclaim: backup.spec.reclaim,
            verified_at: status.verified_at.map(|at| at.0.to_string()),
        }
    }
}

impl From<ClientAppRestore> for InstanceRestore {
    fn from(restore: ClientAppRestore) -> Self {
        let status = restore.status.unwrap_or_default();
        let times = (status.started_at, status.completed_at);
        InstanceRestore {
            progress: Progress::of(restore.metadata, status.phase, &status.conditions, times),
            into: restore.spec.into,
            backup: restore.spec.backup,
            database: status.database,
            files: status.files,
        }
    }
}

impl Progress {
    fn of(
        meta: ObjectMeta,
        phase: Option<BackupPhase>,
        conditions: &[Condition],
        (started_at, completed_at): (Option<Time>, Option<Time>),
    ) -> Progress {
        let text = |time: Option<Time>| time.map(|time| time.0.to_string());
        let message = find(conditions, kind::READY).map(|ready| ready.message.clone());
        Progress {
            name: meta.name.unwrap_or_default(),
            phase: phase.unwrap_or(BackupPhase::Pending),
            message: message.unwrap_or_else(|| "not seen by the operator yet".to_owned()),
            created: text(meta.creation_timestamp).unwrap_or_default(),
            started_at: text(started_at),
            completed_at: text(completed_at),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_backup_says_when_it_was_verified_and_what_becomes_of_it() {
        let backup = json!({
            "metadata": {"name": "b"}, "spec": {"of": {"name": "acme"}, "reclaim": "Delete"},
            "status": {"phase": "Completed", "verifiedAt": "2026-02-01T05:00:00Z"},
        });
        let shown = json!(InstanceBackup::from(serde_json::from_value::<ClientAppBackup>(backup).unwrap()));
        assert_eq!((&shown["reclaim"], &shown["verifiedAt"]), (&json!("Delete"), &json!("2026-02-01T05:00:00Z")));
        let stays = json!({"metadata": {"name": "b"}, "spec": {"of": {"name": "acme"}}});
        let shown = json!(InstanceBackup::from(serde_json::from_value::<ClientAppBackup>(stays).unwrap()));
        assert_eq!((&shown["reclaim"], shown.get("verifiedAt")), (&json!("Retain"), None));
    }
}
