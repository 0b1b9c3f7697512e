//! Archives of the app's files, **pure**: what `spec.persistence.backup` asks for.
//!
//! The app neither waits for its archives nor is it less ready without them: they have a condition of their own.

use crate::{
    clientapp::error::{InvalidSpec, invalid},
    crd::{Bucket, DumpStore, FilesBackup, JobSettings},
    platform::schedule::Schedule,
};

/// `spec.persistence.backup`, as far as the ClientApp's own controller is concerned: a ClientAppBackup archives.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredFiles {
    /// `None`: archives are made on request only.
    pub schedule: Option<String>,
    pub bucket: Bucket,
    /// The operator generates the password of the repository.
    pub generate_password: bool,
}

/// Checks `spec.persistence.backup`. `restored`: the dump that the database is created from.
pub(crate) fn desired(
    FilesBackup { schedule, store, user: _, jobs }: &FilesBackup,
    restored: Option<&DumpStore>,
) -> Result<DesiredFiles, InvalidSpec> {
    let parsed = schedule.as_ref().map(|schedule| Schedule::parse(schedule)).transpose();
    parsed.map_err(|problem| invalid("spec.persistence.backup.schedule", problem))?;
    if let Some(problem) = jobs.as_ref().and_then(JobSettings::problem) {
        return Err(invalid("spec.persistence.backup.jobs", problem));
    }
    let bucket = store.bucket.clone();
    // What opens that dump exists, even if a user has not brought it yet.
    let is_known = restored.is_some_and(|restored| restored.bucket.password_secret == bucket.password_secret);
    Ok(DesiredFiles { schedule: schedule.clone(), bucket, generate_password: store.generate_password && !is_known })
}
