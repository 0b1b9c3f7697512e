//! Archives of the app's files, **pure**: what `spec.persistence.backup` asks for, and the CronJob ([`cron_job_spec`]).
//!
//! The app neither waits for its archives nor is it less ready without them: they have a condition of their own.

pub(crate) mod cron_job_spec;

use crate::{crd::FilesBackup, platform::key::Key, postgresql::desired::DesiredStore};

/// `spec.persistence.backup`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredFiles {
    /// `None`: archives are made on request only.
    pub schedule: Option<String>,
    pub store: DesiredStore,
    /// uid and gid of the files' owner.
    pub user: i32,
}

/// A volume with files of the app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Name of the PersistentVolumeClaim.
    pub claim: String,
    /// uid of the PersistentVolumeClaim.
    pub uid: String,
}

/// When a CronJob makes Jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    pub cron: String,
    pub suspended: bool,
}

/// Completes `spec.persistence.backup`.
pub(crate) fn desired(key: &Key, given: &FilesBackup) -> DesiredFiles {
    let FilesBackup { schedule, store, user } = given;
    let store = DesiredStore::of(store, given.path(&key.namespace, &key.name));
    DesiredFiles { schedule: schedule.clone(), store, user: *user }
}
