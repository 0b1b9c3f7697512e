//! Holds what exists of an app's archives. **Pure.**

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::{ArchivedFiles, BackupPart, BackupPhase};

/// Holds what exists of an app's archives, as far as the cluster shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FilesView {
    /// True if the operator knows its own image.
    pub has_image: bool,
    pub app_uid: String,
    /// True if the release has volumes; `None`: they are not known, or not all of them exist.
    pub has_volumes: Option<bool>,
    /// The run for which the app has no pods.
    pub stopped_for: Option<String>,
    /// Says why the API server has refused a ClientAppBackup.
    pub refused: Option<RefusedBackup>,
    /// uid of the Secret with the password of the repository.
    pub password: Option<String>,
    pub backups: Vec<AppBackup>,
}

/// Says why a ClientAppBackup that is due was not created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedBackup {
    pub name: String,
    pub message: String,
    /// The next attempt.
    pub until: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AppBackup {
    pub name: String,
    pub uid: String,
    pub created: Option<Timestamp>,
    /// uid of the ClientApp for which the operator has made it, by schedule or before an upgrade; `None`: a user has made it.
    pub controller: Option<String>,
    pub deleting: bool,
    /// `None`: all that the app has.
    pub parts: Option<Vec<BackupPart>>,
    pub phase: Option<BackupPhase>,
    /// uid of the ClientApp that it has begun with.
    pub subject_uid: Option<String>,
    pub started_at: Option<Time>,
    /// When the backup of the database was complete.
    pub database_at: Option<Time>,
    /// Holds what it has made of the files.
    pub files: Option<ArchivedFiles>,
    /// When and why it has failed.
    pub failure: Option<(Time, String)>,
}

impl AppBackup {
    /// Returns true if it is of files, too.
    pub(crate) fn is_of_files(&self) -> bool {
        self.parts.as_ref().is_none_or(|parts| parts.contains(&BackupPart::Files))
    }

    /// Returns when and why the backup of the files has failed. The database comes first: its failure says nothing about files.
    pub(crate) fn failure_of_files(&self) -> Option<&(Time, String)> {
        let is_of_files = self.files.is_some() || self.parts.as_deref() == Some(&[BackupPart::Files]);
        self.failure.as_ref().filter(|_| is_of_files)
    }
}
