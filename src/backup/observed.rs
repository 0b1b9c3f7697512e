//! Holds what exists of a backup and of what it backs up. Pure.

use std::sync::Arc;

use jiff::Timestamp;

use super::archive_job::{Place, Volume};
use crate::{
    crd::{
        ClientApp, Postgresql,
        cloudnativepg::{CloudNativePgBackup, CloudNativePgCluster},
        percona::{PerconaPGBackup, PerconaPGCluster},
    },
    platform::{job::JobProgress, operator_image::OperatorImage},
};

/// Holds what exists.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub subject: Subject,
    pub database: Database,
    /// Another ClientAppBackup, which awaits the last dump of which the Postgresql has a record.
    pub last_dump_of: Option<String>,
    pub files: Files,
    /// A ClientAppRestore of the same object that has begun and not ended, and that it has to wait for.
    pub restore: Option<String>,
}

impl Observed {
    /// Returns the uid of the object that is backed up.
    pub(super) fn subject_uid(&self) -> Option<String> {
        match (&self.subject, &self.database) {
            (Subject::App(app), _) => app.metadata.uid.clone(),
            (Subject::Postgresql, Database::Standalone(Some(found))) => found.metadata.uid.clone(),
            _ => None,
        }
    }
}

/// The object that is backed up.
#[derive(Clone, Debug, Default)]
pub(crate) enum Subject {
    #[default]
    Missing,
    App(Box<ClientApp>),
    /// In [`Observed::database`].
    Postgresql,
}

#[derive(Clone, Debug, Default)]
pub(crate) enum Database {
    /// It has none that the operator backs up.
    #[default]
    None,
    Standalone(Option<Box<Postgresql>>),
    Percona {
        cluster: Option<Box<PerconaPGCluster>>,
        backup: Option<Box<PerconaPGBackup>>,
    },
    CloudNativePg {
        cluster: Option<Box<CloudNativePgCluster>>,
        backup: Option<Box<CloudNativePgBackup>>,
    },
}

/// Holds what archives or restores its files.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// The volumes, while there is no Job; `None`: they are not known, or not all of them exist.
    pub volumes: Option<Vec<Volume>>,
    /// The operator's own image.
    pub image: Option<Arc<OperatorImage>>,
    /// Where its volumes are in use, while there is no Job.
    pub place: Option<Place>,
    pub job: Option<ArchiveJob>,
    /// A pod that has one of the volumes.
    pub user: Option<String>,
}

impl Files {
    /// Returns true if the volumes are known, or a Job that knows them exists.
    pub(crate) fn knows_volumes(&self) -> bool {
        self.volumes.is_some() || self.job.is_some()
    }
}

/// The Job of a backup.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArchiveJob {
    pub progress: JobProgress,
    /// False if another user has made a Job of that name.
    pub is_ours: bool,
    /// The termination message of its pod: name, bytes and number of files.
    pub report: Option<String>,
    /// Says why its pod has failed.
    pub failure: Option<String>,
    pub uid: String,
    /// Since when nothing has run in it; `None`: something runs, or it has ended.
    pub idle_since: Option<Timestamp>,
    /// Says why nothing runs in it, if that is known.
    pub idle_because: Option<String>,
    /// The reason that nothing ran in it, if it was ended for that.
    pub not_started: Option<String>,
}

impl ArchiveJob {
    /// Returns why nothing runs in it, as the end of a sentence; empty if something runs, or nothing is known.
    pub(crate) fn waits(&self) -> String {
        self.idle_because.as_ref().map_or_else(String::new, |why| format!("; {why}"))
    }

    /// Returns why it has failed, if that is known.
    pub(crate) fn failed_because(&self) -> Option<&String> {
        self.not_started.as_ref().or(self.failure.as_ref())
    }
}
