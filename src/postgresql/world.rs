//! What is there, as far as decisions read it. Pure data.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::PostgresqlStatus;

/// Kinds of the objects that are made from documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// v1
    ConfigMap,
    /// v1
    Service,
    /// apps/v1
    StatefulSet,
    /// v1
    PersistentVolumeClaim,
    /// batch/v1
    CronJob,
    /// batch/v1
    Job,
}

impl Kind {
    /// The word in the object.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::ConfigMap => "ConfigMap",
            Kind::Service => "Service",
            Kind::StatefulSet => "StatefulSet",
            Kind::PersistentVolumeClaim => "PersistentVolumeClaim",
            Kind::CronJob => "CronJob",
            Kind::Job => "Job",
        }
    }
}

/// An object by kind and name, in the namespace at hand.
pub type Id = (Kind, String);

/// Whose an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// This very `Postgresql`'s: it has its uid as owner or label.
    Ours,
    /// Somebody else's, in words.
    Other(String),
}

/// An object that was made from a document.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectView {
    /// Whose.
    pub owner: Owner,
    /// Its uid.
    pub uid: String,
    /// Digest of the document it was made from.
    pub digest: Option<String>,
    /// It is being deleted.
    pub deleting: bool,
    /// More, by kind.
    pub detail: Detail,
}

/// What else is read of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Detail {
    /// Nothing.
    None,
    /// Of a StatefulSet.
    StatefulSet {
        /// Pods it shall have.
        replicas: i32,
        /// Size that its pods' volumes are made with. It cannot be changed.
        storage: Option<String>,
    },
    /// Of a PersistentVolumeClaim.
    Claim {
        /// Size it asks for, in bytes.
        requested: Option<f64>,
        /// Size it has.
        capacity: Option<String>,
        /// uid of the `Postgresql` it was made for by this operator, to begin a database on.
        made_for: Option<String>,
    },
    /// Of a Job.
    Job(JobView),
}

/// How far a Job is, in its own words.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobView {
    /// The request that it dumps for.
    pub request: Option<String>,
    /// The deletion that it takes the last dump for.
    pub deletion: Option<String>,
    /// It ended, and how.
    pub succeeded: Option<bool>,
    /// When it began.
    pub started: Option<Time>,
    /// When it ended.
    pub ended: Option<Time>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodView {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `primary`, `standby`, `backup` or `initialize`.
    pub role: String,
    /// Why it is not ready, if it is not.
    pub waiting: Option<String>,
    /// Its script has refused what is on the volume.
    pub refused: Option<Refused>,
    /// The deletion for which it lets no client in.
    pub closed: Option<String>,
}

/// What a server finds on its volume, and leaves as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No database.
    NoDatabase,
    /// One of another major version.
    OtherVersion,
}

/// A Secret the operator makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SecretView {
    /// It is not there, or on its way out.
    #[default]
    Absent,
    /// It belongs to something else, in words.
    NotOurs(String),
    /// It is ours.
    Ours {
        /// Its uid.
        uid: String,
    },
}

/// What the spec gives as password, beside what is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Given {
    /// Nothing: one is generated.
    #[default]
    Nothing,
    /// The Secret, or its key, is missing or of no use: reason and sentence.
    Unusable(&'static str, String),
    /// A password, and the version of the Secret it is in; nothing is in use yet to compare it with.
    Usable(Option<String>),
    /// The password in use, and the version of the Secret it is in.
    Same(Option<String>),
    /// Another one.
    Differs,
}

/// The Secret for clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClientSecret {
    /// It is not there.
    #[default]
    Absent,
    /// It belongs to something else, in words.
    NotOurs(String),
    /// It says something else than it should. `password`: it has one.
    Stale {
        /// Whether it has a usable password.
        password: bool,
    },
    /// It is as it should be.
    Current,
}

/// The passwords, without a word of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CredentialsView {
    /// The Secret with the password in use.
    pub kept: SecretView,
    /// It has no usable password: what is wrong with it.
    pub broken: Option<&'static str>,
    /// What the spec gives.
    pub given: Given,
    /// The Secret for clients.
    pub client: ClientSecret,
}

/// A Secret of this `Postgresql`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnSecret {
    /// Its uid.
    pub uid: String,
    /// It still says that it belongs to another owner, or that it was left behind.
    pub unsettled: bool,
}

/// Everything that decisions depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// The status, as last written.
    pub recorded: PostgresqlStatus,
    /// The passwords.
    pub credentials: CredentialsView,
    /// The Secret with the standbys' password.
    pub replication: SecretView,
    /// Its Secrets, by name.
    pub secrets: BTreeMap<String, OwnSecret>,
    /// What is labelled with this `Postgresql`'s name.
    pub objects: BTreeMap<Id, ObjectView>,
    /// Its pods.
    pub pods: Vec<PodView>,
}
