//! Holds what exists of a restore and of what it restores. Pure.

use super::{cloudnativepg::SeenCluster, percona::Seen};
use crate::{
    backup::observed::{Files, Subject},
    crd::{ClientApp, ClientAppBackup, Postgresql, percona::PerconaPGBackup},
};

#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    pub subject: Subject,
    pub database: Database,
    /// uid of the claim with the dumps of a Postgresql.
    pub volume_of_dumps: Option<String>,
    pub files: Files,
    /// The Secret that opens another app's repository, unless a label permits that. Its credentials may open those of any tenant.
    pub not_permitted: Option<String>,
    /// The ClientAppBackup that the spec names, if it exists.
    pub source: Option<Box<ClientAppBackup>>,
    /// A ClientAppBackup of the same object that has begun and not ended.
    pub backup: Option<String>,
    /// Set for a restore into another app that has no database yet.
    pub copy: Option<Copy>,
}

/// Holds what exists of another app that is created from a backup.
#[derive(Clone, Debug, Default)]
pub(super) struct Copy {
    pub app: Option<Box<ClientApp>>,
    /// The Secret with its generated administrator, and for which uid of a ClientApp it was made.
    pub administrator: Option<Option<String>>,
    /// The Secret with the first app's administrator exists.
    pub has_first_administrator: bool,
    /// Kind and name of something that an app of its name would have, while it is not created.
    pub left: Option<String>,
    pub database: Option<Box<Postgresql>>,
    /// The claim or Secret that opens the dumps exists.
    pub has_dumps: bool,
    /// True if its database may be created from the dumps.
    pub is_permitted: bool,
    /// The Postgresql that the label with the permission is still for.
    pub label_needed_by: Option<String>,
}

/// The database of what is restored.
#[derive(Clone, Debug, Default)]
pub(super) enum Database {
    /// It has none that the operator restores.
    #[default]
    None,
    Standalone(Option<Box<Postgresql>>),
    Percona {
        seen: Option<Box<Seen>>,
        /// The backup that is made first.
        first: Option<Box<PerconaPGBackup>>,
    },
    CloudNativePg(Option<Box<SeenCluster>>),
}
