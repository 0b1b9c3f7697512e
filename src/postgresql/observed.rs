//! What is there, as far as decisions read it. Pure data.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::{CronJob, Job},
        core::v1::{ConfigMap, PersistentVolumeClaim, Service},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::api::ApiResource;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{desired::Desired, names};
use crate::crd::{PostgresqlStatus, Reason, Restore};

#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Service,
    StatefulSet,
    PersistentVolumeClaim,
    CronJob,
    Job,
    PodDisruptionBudget,
    NetworkPolicy,
}

impl Kind {
    pub(crate) fn resource(self) -> ApiResource {
        match self {
            Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
            Kind::Service => ApiResource::erase::<Service>(&()),
            Kind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
            Kind::PersistentVolumeClaim => ApiResource::erase::<PersistentVolumeClaim>(&()),
            Kind::CronJob => ApiResource::erase::<CronJob>(&()),
            Kind::Job => ApiResource::erase::<Job>(&()),
            Kind::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Kind::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
        }
    }
}

/// An object by kind and name, in the namespace at hand.
pub(crate) type Id = (Kind, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This very `Postgresql`'s: it has its uid as owner or label.
    Ours,
    /// Another owner's, in words.
    Other(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectView {
    pub owner: Owner,
    pub uid: String,
    /// Digest of the document it was made from.
    pub digest: Option<String>,
    pub deleting: bool,
    pub detail: Detail,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Detail {
    None,
    StatefulSet {
        replicas: i32,
        /// Size that its pods' volumes are made with. It cannot be changed.
        storage: Option<String>,
    },
    Claim {
        /// Size it asks for, in bytes.
        requested: Option<f64>,
        capacity: Option<String>,
        /// uid of the `Postgresql` it was made for by this operator, to begin a database on.
        made_for: Option<String>,
    },
    Job(JobView),
    /// Its spec, of an object that says who may do what: a user's edit is put back.
    Spec(Value),
}

/// How far a Job is, in its own words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobView {
    /// The request that it dumps for.
    pub request: Option<String>,
    /// The deletion that it takes the last dump for.
    pub deletion: Option<String>,
    /// The dump that it makes the database from: what `spec.restore` said.
    pub restore: Option<Box<Restore>>,
    /// It restores a dump to see that this can be done.
    pub is_drill: bool,
    /// It ended, and how.
    pub succeeded: Option<bool>,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

/// What a pod of a Postgresql is for: the value of its label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    Primary,
    Standby,
    Backup,
    Initialize,
    Drill,
}

impl Role {
    pub(crate) fn parse(label: &str) -> Option<Role> {
        serde_json::from_value(label.into()).ok()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodView {
    pub name: String,
    pub uid: String,
    pub role: Option<Role>,
    /// The Job that it is of.
    pub job: Option<String>,
    /// The last words of its containers, which have ended as they should.
    pub said: Option<String>,
    /// The last line of the container that has failed.
    pub failed: Option<String>,
    pub waiting: Option<String>,
    /// Its script has refused what is on the volume.
    pub refused: Option<Refused>,
    /// The deletion for which it lets no client in.
    pub closed: Option<String>,
}

/// What a server finds on its volume, and leaves as it is; or what a restore does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    NoDatabase,
    OtherVersion,
    Dump,
}

/// The volume with the dump that the database is to be made from, or the Secret that opens the bucket with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DumpSource {
    #[default]
    Missing,
    Going,
    /// No label says that this Postgresql may be made from it.
    NotAllowed,
    Usable,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecretView {
    #[default]
    Absent,
    NotOurs(String),
    Ours {
        uid: String,
    },
}

/// Of any Secret: whose it is, and which version of it this is. Never its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretMeta {
    pub uid: String,
    pub resource_version: String,
    /// uid of the `Postgresql` it belongs to; or to whom else, in words.
    pub owner: Result<String, String>,
    pub deleting: bool,
    /// It has an ownerReference, by which the garbage collector may delete it, or the label of what a `Postgresql` has left.
    pub unsettled: bool,
}

/// What a look at the passwords was based on.
#[derive(Clone, PartialEq)]
pub(crate) struct Basis {
    pub desired: Desired,
    pub secrets: [Option<SecretMeta>; 3],
}

/// What the spec gives as password, beside what is in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Given {
    #[default]
    Nothing,
    /// The Secret, or its key, is missing or of no use: reason and sentence.
    Unusable(Reason, String),
    /// A password, and the version of the Secret it is in; nothing is in use yet to compare it with.
    Usable(Option<String>),
    /// The password in use, and the version of the Secret it is in.
    Same(Option<String>),
    Differs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientSecret {
    #[default]
    Absent,
    NotOurs(String),
    /// It says something else than it should. `password`: it has one.
    Stale {
        password: bool,
    },
    Current,
}

/// The passwords, without a word of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CredentialsView {
    pub kept: SecretView,
    /// It has no usable password: what is wrong with it.
    pub broken: Option<&'static str>,
    pub given: Given,
    pub client: ClientSecret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnSecret {
    pub uid: String,
    /// It still says that it belongs to another owner, or that it was left behind.
    pub unsettled: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observed {
    pub recorded: PostgresqlStatus,
    pub credentials: CredentialsView,
    pub replication: SecretView,
    pub secrets: BTreeMap<String, OwnSecret>,
    /// What is labelled with this `Postgresql`'s name.
    pub objects: BTreeMap<Id, ObjectView>,
    pub pods: Vec<PodView>,
    /// Looked at only before a database is restored.
    pub dump_source: DumpSource,
}

impl Observed {
    pub(crate) fn primary(&self, desired: &Desired) -> Option<&PodView> {
        let name = names::primary_pod(&desired.key.name);
        self.pods.iter().find(|pod| pod.role == Some(Role::Primary) && pod.name == name)
    }
}
