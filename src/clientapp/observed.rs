//! What stage 1 has seen: plain data, which the pure stages read.

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject},
};
use semver::Version;

use super::{
    database::{BackupProgress, DatabaseObject},
    deployer::Deployer,
    helm_runs::HelmRun,
    repairs::Repairs,
};
use crate::{
    crd::{BackupRecord, ClientAppStatus, InstalledChart, Inventory, Owned, ReleaseObject},
    destroy::permit::Kind,
    helm::Chart,
    runtime::{feeder::Availability, key::Key},
};

/// Everything that decisions depend on, as it was at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Another ClientApp that has the hostname.
    pub hostname_holder: Option<Key>,
    /// A Job that still runs, of the hooks of a revision that an operator's helm has left pending.
    pub hook: Option<String>,
    pub admin_secret: SecretView,
    /// The generated Secret with the Redis password.
    pub redis_secret: SecretView,
    pub database: DatabaseView,
    /// What there is in the namespace of the account that helm acts as, where the spec names no other.
    pub deployer: Deployer,
    /// What an earlier ClientApp of this name has left, to be adopted or not.
    pub retained: Vec<Retained>,
    /// The backup that the next upgrade waits for; `None`: it waits for none.
    pub backup: Option<BackupView>,
    /// The chart that is asked for, where it is at hand and may be used.
    pub target: Option<Target>,
    pub run: HelmRun,
    /// helm is at work on the release, as far as can be seen.
    pub at_work: Option<AtWork>,
    /// Whether a helm run that is begun now has a slot; else it waits in the queue.
    pub has_slot: bool,
    /// The caches show what has come of it, so that it can be forgotten once that is on record.
    pub run_is_shown: bool,
    pub release: Option<ReleaseView>,
    /// The release's Deployments and StatefulSets, sorted by kind and name.
    pub workloads: Vec<Workload>,
    /// What of the release is not there, of the kinds that are watched, where it is as the spec asks otherwise.
    pub missing: Vec<Missing>,
    /// When to look again at what no watch shows.
    pub look_again: Option<Timestamp>,
    /// What was recreated of late.
    pub repairs: Repairs,
    /// What the release consists of; `None`: there is none, or it cannot be read.
    pub inventory: Option<Inventory>,
    /// What holds or opens data and is this app's own by now.
    pub owned: Vec<Owned>,
    /// The attempt that a user asks to be repeated at once, by the annotation for it.
    pub retry: Option<String>,
    /// The status as it was last reported.
    pub recorded: ClientAppStatus,
}

/// What is known while helm is at work on a release: nothing else is decided then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AtWork {
    /// Digest of what helm was asked for; `None`: a deleted ClientApp of the same name asked.
    pub digest: Option<String>,
    /// What the conditions say of it.
    pub sentence: String,
    /// Until when what is on record says enough of it; `None`: it takes long, and what its workloads wait for is told meanwhile.
    pub until: Option<Timestamp>,
}

/// A Secret, by what of it may be looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecretView {
    #[default]
    Absent,
    /// There is one, but it goes away with an object that is not this ClientApp.
    NotOurs {
        /// Kind and name of the owner.
        owner: String,
        /// It is on its way out with what it belonged to.
        goes: bool,
    },
    /// This very app's own, made by the operator.
    Own { uid: String },
    /// It can be used.
    Present {
        /// The keys whose value is not empty.
        keys: BTreeSet<String>,
    },
}

impl SecretView {
    /// What follows on its name in a sentence, where it can be used but for these keys.
    pub(crate) fn lacks(&self, keys: &[&str]) -> Option<String> {
        let SecretView::Present { keys: present } = self else { return None };
        let missing: Vec<_> = keys.iter().copied().filter(|key| !present.contains(*key)).collect();
        (!missing.is_empty()).then(|| format!("has no value under {}", missing.join(" and ")))
    }
}

/// The database and what leads to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DatabaseView {
    /// Whether the cluster knows the kind that it is made from.
    pub(crate) kind: Availability,
    /// uid of the ClientApp, which a database of its own is stamped with.
    pub(crate) app_uid: String,
    /// uid of the database that this ClientApp has on record as its own.
    pub(crate) on_record: Option<String>,
    pub(crate) object: Option<DatabaseObject>,
    /// The Secret that opens it.
    pub(crate) secret: SecretView,
    /// Whether the Service that the app uses has a ready address.
    pub(crate) reachable: bool,
}

/// A backup, as it is wanted and as it is.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackupView {
    /// What is, or will be, on record.
    pub record: BackupRecord,
    /// `None`: it has not been asked for yet.
    pub seen: Option<BackupProgress>,
}

/// A chart, as far as it decides whether it may be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub chart: String,
    pub version: Version,
    pub app_version: Option<String>,
    pub digest: String,
}

impl From<&Chart> for Target {
    fn from(Chart { name, version, app_version, digest, .. }: &Chart) -> Target {
        Target {
            chart: name.to_string(),
            version: version.clone(),
            app_version: app_version.clone(),
            digest: digest.clone(),
        }
    }
}

/// Something that outlived a ClientApp.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retained {
    pub kind: Kind,
    pub name: String,
    pub uid: String,
    /// It belongs to the database, which takes it along.
    pub of_database: bool,
    /// The chart that the data on it are of, where it says.
    pub installed: Option<InstalledChart>,
}

/// An object of the release that no watch shows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Missing {
    pub object: ReleaseObject,
    pub found: Found,
}

/// What the API server has under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// It is being deleted.
    Going,
    /// It lacks some of Helm's marks.
    Unmarked,
    /// It has none of them, or those of another release.
    Foreign,
    /// That cannot be asked, and why.
    Unknown(String),
}

/// The newest revision of a release, from the labels of Helm's storage Secret. The payload is never decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseView {
    pub revision: i64,
    /// Name of the storage Secret.
    pub secret: String,
    pub secret_uid: String,
    pub phase: Phase,
    /// Helm's own word for the status.
    pub status: String,
    /// What the operator stamped on this very revision; `None`: another Helm client wrote it.
    pub stamp: Option<Stamp>,
    /// Whether any kept revision carries a stamp of ours, be it inherited.
    pub known: bool,
    pub written: Option<Timestamp>,
}

impl ReleaseView {
    /// Whether it is deployed exactly as this digest asks.
    pub(crate) fn is_deployed_as(&self, digest: &str) -> bool {
        self.phase == Phase::Deployed && self.stamp.as_ref().is_some_and(|stamp| stamp.digest == digest)
    }

    /// Whether an operator's helm has left its lock: asked only while none of this process runs for the release.
    pub(crate) fn is_left_locked(&self) -> bool {
        self.phase == Phase::Pending && self.stamp.is_some()
    }
}

/// What a release's status means to a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
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
    pub(crate) fn parse(status: &str) -> Phase {
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
pub(crate) struct Stamp {
    /// Digest of what was asked of helm.
    pub digest: String,
}

/// A Deployment or StatefulSet of the release.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Workload {
    /// `Deployment` or `StatefulSet`.
    pub kind: &'static str,
    pub name: String,
    /// Why it is not ready; `None`: it is.
    pub waiting: Option<String>,
    /// uid of the Secret for which its pods were last restarted.
    pub restarted_for: Option<String>,
    pub uid: String,
    /// `metadata.generation`, as the watch has it.
    pub generation: i64,
    /// `spec.replicas`, by whichever client.
    pub replicas: i32,
    /// What selects its pods, for a request.
    pub selector: Option<String>,
    /// Its own controller has given up: no progress within its deadline.
    pub stuck: bool,
}

impl Workload {
    pub(crate) fn api(&self, client: &Client, namespace: &str) -> Api<DynamicObject> {
        let resource = match self.kind {
            "Deployment" => ApiResource::erase::<Deployment>(&()),
            _ => ApiResource::erase::<StatefulSet>(&()),
        };
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}
