//! The observed state, as far as decisions read it. Pure data.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::StatefulSet,
        batch::v1::Job,
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
use crate::platform::job;
use crate::{
    crd::{PostgresqlStatus, Reason, Restore},
    platform::key::Key,
};

#[derive(Clone, Copy, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    ConfigMap,
    Service,
    StatefulSet,
    PersistentVolumeClaim,
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
            Kind::Job => ApiResource::erase::<Job>(&()),
            Kind::PodDisruptionBudget => ApiResource::erase::<PodDisruptionBudget>(&()),
            Kind::NetworkPolicy => ApiResource::erase::<NetworkPolicy>(&()),
        }
    }
}

/// Kind and name of an object in the Postgresql's namespace.
pub(crate) type ObjectId = (Kind, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// This `Postgresql`: the object has its uid as owner or label.
    Ours,
    /// Another owner, as text for messages.
    Other(String),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ObjectView {
    pub owner: Ownership,
    pub uid: String,
    /// Digest of the document that was applied.
    pub digest: Option<String>,
    pub deleting: bool,
    pub detail: Detail,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Detail {
    None,
    StatefulSet(SetView),
    Claim {
        /// The requested size, in bytes.
        requested: Option<f64>,
        capacity: Option<String>,
        /// uid of the `Postgresql` for whose new database this operator has created the claim.
        made_for: Option<String>,
    },
    Job(JobView),
    /// The spec of a NetworkPolicy or PodDisruptionBudget: the operator puts back a user's edit.
    Spec(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SetView {
    pub replicas: i32,
    /// Size of the volumes of new pods. It cannot be changed.
    pub storage: Option<String>,
    /// True if all its pods are those of the newest template.
    pub is_rolled: bool,
    /// For what it was applied.
    pub requested: UserRequest,
}

/// Holds what users ask of a StatefulSet: if that is as before, it is another version of the operator that changes its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UserRequest {
    /// Generation of the Postgresql; `None`: it was applied by a version of the operator that did not record it.
    pub generation: Option<String>,
    /// uids of the Secrets with the standbys' password and the certificate, and the restore that has replaced the database.
    pub mounted: [Option<String>; 3],
}

impl UserRequest {
    pub(crate) fn new(generation: i64, mounted: [Option<&str>; 3]) -> UserRequest {
        UserRequest { generation: Some(generation.to_string()), mounted: mounted.map(|uid| uid.map(str::to_owned)) }
    }

    /// Returns true if users still ask for the same. Not knowing it counts as the same: then servers wait for the rollout slot.
    pub(crate) fn is_same(&self, now: &UserRequest) -> bool {
        self.mounted == now.mounted && (self.generation.is_none() || self.generation == now.generation)
    }
}

/// The state of a Job, from its annotations, labels and status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct JobView {
    /// The request for which it dumps.
    pub request: Option<String>,
    /// The deletion for which it takes the last dump.
    pub deletion: Option<String>,
    /// The dump from which it creates the database: `spec.restore` when the Job was created.
    pub restore: Option<Box<Restore>>,
    /// Generation of the Postgresql for which it creates the database; `None`: another Job, or an earlier version of the operator.
    pub generation: Option<String>,
    /// It restores a dump only to prove that it can be restored.
    pub is_drill: bool,
    /// True if it succeeded; `None` while it runs.
    pub succeeded: Option<bool>,
    pub started: Option<Time>,
    pub ended: Option<Time>,
    pub waits_since: Option<Timestamp>,
    /// The reason that nothing ran in it, if it was ended for that.
    pub not_started: Option<String>,
}

/// The role of a Postgresql's pod: the value of its label.
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

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodView {
    pub name: String,
    pub uid: String,
    pub role: Option<Role>,
    /// The Job that it belongs to.
    pub job: Option<String>,
    /// The termination message of its containers, if all of them that have ended succeeded.
    pub termination_message: Option<String>,
    /// The last line of the container that has failed.
    pub failure_line: Option<String>,
    pub waiting: Option<String>,
    /// Since when nothing has run in it; `None`: something runs, or it has ended.
    pub idle_since: Option<Timestamp>,
    /// Holds what its script has refused.
    pub refused: Option<ScriptRefusal>,
    /// The deletion for which it refuses clients.
    pub closed: Option<String>,
    /// The request whose dump it serves in place of the database before.
    pub replaced: Option<String>,
}

/// Says of a pod what is known of each that is not ready.
pub(crate) const NOT_READY_YET: &str = "it is not ready yet";

/// Says why a server does not use its volume, which it leaves as it is, or why a dump is not restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScriptRefusal {
    NoDatabase,
    OtherVersion,
    Dump,
}

/// The state of the volume with the dump for `spec.restore`, or of the Secret with the credentials of its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DumpSource {
    #[default]
    Missing,
    Deleting,
    /// No label allows this Postgresql to be restored from it.
    NotAllowed,
    Usable,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecretState {
    #[default]
    Absent,
    NotOurs(String),
    Ours {
        uid: String,
    },
}

/// Owner and version of any Secret, never its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretIdentity {
    pub uid: String,
    pub resource_version: String,
    /// uid of the `Postgresql` that it belongs to, or another owner as text for messages.
    pub owner: Result<String, String>,
    pub deleting: bool,
    /// It has an ownerReference, by which the garbage collector may delete it, or the label of a retained object.
    pub unsettled: bool,
}

/// Holds what a [`CredentialsView`] was computed from.
#[derive(Clone, PartialEq)]
pub(crate) struct Basis {
    pub desired: Desired,
    pub secrets: [Option<SecretIdentity>; 4],
}

/// The password in the spec, compared with the password in use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum GivenPassword {
    #[default]
    Nothing,
    /// The Secret or its key is missing, or its value is not usable: reason and sentence.
    Unusable(Reason, String),
    /// A password, and the version of its Secret; no password is in use yet.
    Usable(Option<String>),
    /// The password in use, and the version of its Secret.
    Same(Option<String>),
    Differs,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientSecret {
    #[default]
    Absent,
    NotOurs(String),
    /// Its data differ from the desired data. `password`: it has a usable password.
    Stale {
        password: bool,
    },
    Current,
}

/// The state of the passwords, without the passwords themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CredentialsView {
    pub kept: SecretState,
    /// Says why its password is not usable.
    pub broken: Option<&'static str>,
    pub given: GivenPassword,
    pub client: ClientSecret,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OwnSecret {
    pub uid: String,
    /// It still has an ownerReference, or the label of a retained object.
    pub unsettled: bool,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ObservedPostgresql {
    /// When it was observed.
    pub now: Timestamp,
    pub recorded: PostgresqlStatus,
    pub credentials: CredentialsView,
    pub replication: SecretState,
    pub certificate: SecretState,
    pub secrets: BTreeMap<String, OwnSecret>,
    /// All objects with this `Postgresql`'s name as label.
    pub objects: BTreeMap<ObjectId, ObjectView>,
    pub pods: Vec<PodView>,
    /// Says why pods of its StatefulSets and Jobs are refused.
    pub refusals: BTreeMap<ObjectId, String>,
    /// The database that has the rollout slot; read only if this one needs it.
    pub slot_holder: Option<Key>,
    /// Read only before a dump is restored.
    pub dump_source: DumpSource,
    /// uid of the Secret with the password of the repository of dumps.
    pub repository_password: Option<String>,
}

/// Returns the pod of the primary of the Postgresql with this name.
pub(crate) fn primary<'a>(pods: &'a [PodView], name: &str) -> Option<&'a PodView> {
    let pod_name = names::primary_pod(name);
    pods.iter().find(|pod| pod.role == Some(Role::Primary) && pod.name == pod_name)
}

/// Returns the pods of a Job, as long as they exist.
pub(crate) fn pods_of<'a>(pods: &'a [PodView], job: &str) -> impl Iterator<Item = &'a PodView> {
    pods.iter().filter(move |pod| pod.job.as_deref() == Some(job))
}

impl ObservedPostgresql {
    pub(crate) fn primary(&self, desired: &Desired) -> Option<&PodView> {
        primary(&self.pods, &desired.key.name)
    }

    /// Returns why the pods of a StatefulSet are refused, as the end of a sentence.
    pub(crate) fn refusal(&self, set: &str) -> Option<String> {
        Some(format!("; {}", self.refusals.get(&(Kind::StatefulSet, set.to_owned()))?))
    }

    /// Returns why the pods of a Job that has none are refused.
    pub(crate) fn refused_job(&self, job: &str) -> Option<&str> {
        let refusal = self.refusals.get(&(Kind::Job, job.to_owned()))?;
        pods_of(&self.pods, job).next().is_none().then_some(refusal.as_str())
    }

    /// Returns what a Job that runs waits for, if that is known.
    pub(crate) fn job_waits_for(&self, job: &str) -> Option<String> {
        let pod = pods_of(&self.pods, job).find_map(|pod| Some(format!("pod {}: {}", pod.name, pod.waiting.as_ref()?)));
        pod.or_else(|| self.refused_job(job).map(str::to_owned))
    }

    /// Returns the same as the end of a sentence.
    pub(crate) fn job_waits(&self, job: &str) -> String {
        self.job_waits_for(job).map_or_else(String::new, |why| format!("; {why}"))
    }

    /// Returns since when nothing has run in a Job; `None`: something runs.
    pub(crate) fn idle_since(&self, job: &str, started: Option<Timestamp>) -> Option<Timestamp> {
        job::idle_since(started, pods_of(&self.pods, job).map(|pod| pod.idle_since))
    }

    pub(crate) fn primary_serves(&self, desired: &Desired) -> bool {
        self.primary(desired).is_some_and(|pod| pod.waiting.is_none())
    }
}
