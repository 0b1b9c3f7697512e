//! Holds what exists of a restore and of what it restores. Pure.

use super::percona::Seen;
use crate::{
    backup::{
        archive_job::Volume,
        observed::{ArchiveJob, Subject},
    },
    crd::{ClientAppBackup, Postgresql, percona::PerconaPGBackup},
};

#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub subject: Subject,
    pub database: Database,
    /// uid of the claim with the dumps of a Postgresql.
    pub volume_of_dumps: Option<String>,
    pub files: Files,
    /// The ClientAppBackup that the spec names, if it exists.
    pub source: Option<Box<ClientAppBackup>>,
    /// A ClientAppBackup of the same object that has begun and not ended.
    pub backup: Option<String>,
}

/// The database of what is restored.
#[derive(Clone, Debug, Default)]
pub(super) enum Database {
    /// It has none that the operator restores.
    #[default]
    None,
    /// It was created for the app, and the operator cannot restore it.
    Unsupported,
    Standalone(Option<Box<Postgresql>>),
    Percona {
        seen: Option<Box<Seen>>,
        /// The backup that is made first.
        first: Option<Box<PerconaPGBackup>>,
    },
}

/// Holds what restores its files.
#[derive(Clone, Debug, Default)]
pub(super) struct Files {
    /// The volumes, while there is no Job; `None`: they are not known, or not all of them exist.
    pub volumes: Option<Vec<Volume>>,
    /// The operator's own image.
    pub image: Option<String>,
    pub job: Option<ArchiveJob>,
    /// A pod that has one of the volumes, while there is no Job.
    pub user: Option<String>,
    /// The Secret that opens another app's repository, unless a label permits that. Its credentials may open those of any tenant.
    pub not_permitted: Option<String>,
}
