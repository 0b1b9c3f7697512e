//! Archives of the app's files, **pure**: what `spec.persistence.backup` asks for.
//!
//! The app neither waits for its archives nor is it less ready without them: they have a condition of their own.

use crate::{
    clientapp::error::{InvalidSpec, invalid},
    crd::{Bucket, FilesBackup, JobSettings},
    platform::schedule::Schedule,
};

/// `spec.persistence.backup`, as far as the ClientApp's own controller is concerned: a ClientAppBackup archives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredFiles {
    /// `None`: archives are made on request only.
    pub schedule: Option<String>,
    /// Where the archives go.
    pub bucket: Bucket,
    /// The operator generates the password of the repository.
    pub generate_password: bool,
}

/// Checks `spec.persistence.backup`.
pub(crate) fn desired(
    FilesBackup { schedule, store, user: _, jobs }: &FilesBackup,
) -> Result<DesiredFiles, InvalidSpec> {
    let parsed = schedule.as_ref().map(|schedule| Schedule::parse(schedule)).transpose();
    parsed.map_err(|problem| invalid("spec.persistence.backup.schedule", problem))?;
    if let Some(problem) = jobs.as_ref().and_then(JobSettings::problem) {
        return Err(invalid("spec.persistence.backup.jobs", problem));
    }
    let (bucket, generate_password) = (store.bucket.clone(), store.generate_password);
    Ok(DesiredFiles { schedule: schedule.clone(), bucket, generate_password })
}
