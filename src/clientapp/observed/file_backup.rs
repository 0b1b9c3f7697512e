//! Holds what exists of an app's archives. **Pure.**

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::{ArchivedFiles, BackupPhase};

/// Holds what exists of an app's archives, as far as the cluster shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FilesView {
    /// True if the operator knows its own image.
    pub has_image: bool,
    /// uid of the ClientApp.
    pub app_uid: String,
    /// True if the release has volumes; `None`: they are not known, or not all of them exist.
    pub has_volumes: Option<bool>,
    /// The run for which the app has no pods.
    pub stopped_for: Option<String>,
    /// Says why the API server has refused a ClientAppBackup.
    pub refused: Option<RefusedBackup>,
    /// The ClientAppBackups of the app.
    pub backups: Vec<FilesBackupView>,
}

/// Says why a ClientAppBackup that is due was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedBackup {
    pub name: String,
    pub message: String,
    /// The next attempt.
    pub until: Timestamp,
}

/// A ClientAppBackup of the app's files.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FilesBackupView {
    pub name: String,
    pub uid: String,
    /// uid of the ClientApp by whose schedule it was made; `None`: a user has made it.
    pub scheduled_by: Option<String>,
    pub deleting: bool,
    pub phase: Option<BackupPhase>,
    /// uid of the ClientApp that it has begun with.
    pub subject_uid: Option<String>,
    pub started_at: Option<Time>,
    /// Holds what it has made of the files.
    pub files: Option<ArchivedFiles>,
    /// When and why it has failed.
    pub failure: Option<(Time, String)>,
}
