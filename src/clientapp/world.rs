//! What stage 1 has seen: plain data, which the pure stages read.

use std::collections::BTreeSet;

use jiff::Timestamp;

use semver::Version;

use super::names::Maker;
use crate::{
    controller::key::Key,
    crd::{BackupRecord, BackupState, ClientAppStatus, InstalledChart, Inventory, Owned},
    destroy::permit::Kind,
};

/// Everything that decisions depend on, as it was at one moment.
#[derive(Clone, Debug, Default)]
pub struct World {
    /// Another ClientApp that has the hostname.
    pub hostname_holder: Option<Key>,
    /// The Secret with the administrator's credentials.
    pub admin_secret: SecretView,
    /// The generated Secret with the Redis password.
    pub redis_secret: SecretView,
    /// The database and what leads to it.
    pub database: DatabaseView,
    /// What an earlier ClientApp of this name has left, to be adopted or not.
    pub retained: Vec<Retained>,
    /// The backup that the next upgrade waits for; `None`: it waits for none.
    pub backup: Option<BackupView>,
    /// The chart that is asked for, once it is fetched.
    pub target: Option<Target>,
    /// The newest revision of the release.
    pub release: Option<ReleaseView>,
    /// The release's Deployments and StatefulSets, sorted by kind and name.
    pub workloads: Vec<Workload>,
    /// What the release consists of; `None`: there is none, or it cannot be read.
    pub inventory: Option<Inventory>,
    /// What holds or opens data and is this app's own by now.
    pub owned: Vec<Owned>,
    /// The attempt that somebody asks to be repeated at once, by the annotation for it.
    pub retry: Option<String>,
    /// The status as it was last reported.
    pub recorded: ClientAppStatus,
}

/// A Secret, by what of it may be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SecretView {
    /// There is none.
    #[default]
    Absent,
    /// There is one, but it goes away with an object that is not this ClientApp.
    NotOurs {
        /// Kind and name of the owner.
        owner: String,
    },
    /// This very app's own, made by the operator.
    Own {
        /// Its uid.
        uid: String,
    },
    /// It can be used.
    Present {
        /// The keys whose value is not empty.
        keys: BTreeSet<String>,
    },
}

/// The database and what leads to it.
#[derive(Clone, Debug, Default)]
pub struct DatabaseView {
    /// Whether the cluster knows the kind that it is made from.
    pub kind: Availability,
    /// uid of the ClientApp, which a database of its own is stamped with.
    pub app_uid: String,
    /// uid of the database that this ClientApp has on record as its own.
    pub on_record: Option<String>,
    /// The PerconaPGCluster or Postgresql.
    pub server: Option<ServerView>,
    /// The Secret that opens it.
    pub secret: SecretView,
    /// Whether the Service that the app uses has a ready address.
    pub reachable: bool,
}

/// Whether the objects of a kind can be told.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Availability {
    /// The cluster does not know the kind.
    #[default]
    Missing,
    /// They can.
    Installed,
    /// RBAC refuses it, in the API server's words.
    Refused(String),
}

/// A PerconaPGCluster or Postgresql.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ServerView {
    /// The ClientApp it is labelled with.
    pub app: Option<String>,
    /// The ClientApp that left it behind.
    pub retained_from: Option<String>,
    /// Tells it from a successor of the same name.
    pub uid: String,
    /// The object that owns it. Those of earlier versions of this operator are owned by their ClientApp.
    pub owner_uid: Option<String>,
    /// uid of the ClientApp that it was made for, or adopted by.
    pub stamp: Option<String>,
    /// It is being deleted.
    pub deleting: bool,
    /// Digest of the document last applied by this operator.
    pub digest: Option<String>,
    /// Major version that runs.
    pub postgres_version: Option<i64>,
    /// Size of the data volume in bytes, as last applied.
    pub storage_bytes: Option<f64>,
    /// It has room for backups that this operator made.
    pub backups: bool,
    /// A backup that is asked for now can begin.
    pub ready_for_backup: bool,
    /// How it is.
    pub state: ServerState,
    /// The last dump that a Postgresql was asked for: the word, how far it is, and what went wrong.
    pub dump: Option<(String, BackupState, Option<String>)>,
    /// When it was created.
    pub created: Option<Timestamp>,
}

impl ServerView {
    /// Whether an earlier ClientApp of this name has left it: as retained, or because its finalizer was edited out.
    #[must_use]
    pub fn is_left(&self, app: &str, uid: &str) -> bool {
        let another = |of: &Option<String>| of.as_ref().is_some_and(|of| of != uid);
        self.retained_from.as_deref() == Some(app) || self.app.as_deref() == Some(app) && another(&self.stamp)
    }
}

/// How a database is, in the words of who makes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ServerState {
    /// Nothing was said yet.
    #[default]
    Silent,
    /// It is on its way: what follows on its kind and name in a sentence.
    Waiting(String),
    /// It goes on only after somebody changes something: the same.
    Stalled(String),
    /// It can be used.
    Ready,
}

/// A backup, as it is wanted and as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct BackupView {
    /// What is, or will be, on record.
    pub record: BackupRecord,
    /// How far it is, and what went wrong; `None`: nobody has been asked for it yet.
    pub seen: Option<(BackupState, Option<String>)>,
}

/// A chart, as far as it decides whether it may be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Name of the chart.
    pub chart: String,
    /// Version of the chart.
    pub version: Version,
    /// Version of the app in it.
    pub app_version: Option<String>,
}

/// Something that outlived a ClientApp.
#[derive(Clone, Debug, PartialEq)]
pub struct Retained {
    /// Its kind.
    pub kind: RetainedKind,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// It belongs to the database, which takes it along.
    pub of_database: bool,
    /// The chart that the data on it are of, where it says.
    pub installed: Option<InstalledChart>,
}

/// What can outlive a ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetainedKind {
    /// A PersistentVolumeClaim.
    Volume,
    /// A Secret.
    Secret,
    /// A PerconaPGCluster or Postgresql.
    Server(Maker),
}

impl RetainedKind {
    /// The same among all that holds or opens data.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self {
            RetainedKind::Volume => Kind::Volume,
            RetainedKind::Secret => Kind::Secret,
            RetainedKind::Server(maker) => maker.data(),
        }
    }

    /// The word in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.kind().as_str()
    }
}

/// The newest revision of a release, from the labels of Helm's storage Secret. The payload is never decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleaseView {
    /// Revision.
    pub revision: i64,
    /// Name of the storage Secret.
    pub secret: String,
    /// uid of that Secret.
    pub secret_uid: String,
    /// What its status means to a decision.
    pub phase: Phase,
    /// Helm's own word for the status.
    pub status: String,
    /// What the operator stamped on this very revision; `None`: somebody else wrote it.
    pub stamp: Option<Stamp>,
    /// Whether any kept revision carries a stamp of ours, be it inherited.
    pub known: bool,
    /// When the revision was written.
    pub written: Option<Timestamp>,
}

/// What a release's status means to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `deployed`
    Deployed,
    /// `failed`, and whatever else leaves an upgrade possible
    Failed,
    /// `pending-install`, `pending-upgrade`, `pending-rollback`: Helm's lock
    Pending,
    /// `uninstalling`
    Uninstalling,
    /// `uninstalled`: history that was kept
    Uninstalled,
}

impl Phase {
    /// Reads Helm's `status` label (helm.sh/helm/v4/pkg/release/common, `Status`).
    #[must_use]
    pub fn parse(status: &str) -> Phase {
        match status {
            "deployed" => Phase::Deployed,
            "uninstalling" => Phase::Uninstalling,
            "uninstalled" => Phase::Uninstalled,
            pending if pending.starts_with("pending-") => Phase::Pending,
            _ => Phase::Failed,
        }
    }
}

/// What the operator stamps on a revision it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Digest of what was asked of helm.
    pub digest: String,
    /// What is known of the operator process that ran helm.
    pub holder: Fate,
}

/// What is known of the operator process that holds a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Its helm is provably not running any more.
    Dead,
    /// It may still run.
    Unknown,
}

/// A Deployment or StatefulSet of the release.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Workload {
    /// `Deployment` or `StatefulSet`.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// Why it is not ready; `None`: it is.
    pub waiting: Option<String>,
}
