//! The observed state: plain data, which the pure stages read.

use std::{collections::BTreeSet, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use semver::Version;
use serde_json::Value;

use super::{
    certificate,
    file_backup::FilesView,
    release::{ReleasePhase, ReleaseView},
    repair_backoff::Repairs,
};
use crate::{
    clientapp::{
        helm_runs::HelmRun,
        spec::{
            database::{BackupProgress, BackupWords, DatabaseObject, PartUse, SeenBackup, SeenPart},
            deployer::Deployer,
            desired::Desired,
        },
    },
    crd::{
        BackupRecord, BackupState, ClientAppStatus, InstalledChart, Inventory, Owned, ReleaseObject, Tested, annotation,
    },
    deletion::permit::DataKind,
    helm::Chart,
    platform::{
        key::Key,
        pods::{StatefulSetRollout, StuckPod},
        watch_builder::Availability,
    },
};

/// Everything that decisions depend on, at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    pub run: ObservedRun,
    pub release: Option<ReleaseView>,
    /// Set if Helm's history has the last revision that was Ready.
    pub last_ready_is_stored: bool,
    pub objects: ObservedObjects,
    /// Observed only with a valid spec, and while helm does not work on the release.
    pub prerequisites: Prerequisites,
    pub files: FilesView,
    /// The objects that hold data or give access to it, and are owned by this app.
    pub owned: Vec<Owned>,
    /// When to reconcile again for what is not watched.
    pub requeue_at: Option<Timestamp>,
    /// The attempt that a user asks to repeat at once, by annotation.
    pub retry: Option<String>,
    /// The status as last reported.
    pub recorded: ClientAppStatus,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedRun {
    pub state: HelmRun,
    /// Set while helm works on the release, as far as can be seen; all else may be changing then.
    pub busy: Option<Busy>,
    /// The caches show the outcome of the run, so that it can be forgotten once it is recorded.
    pub is_in_cache: bool,
    /// Set if a helm run started now gets a slot; otherwise it waits in the queue.
    pub has_slot: bool,
    pub has_test_slot: bool,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ObservedObjects {
    /// Their list; `None`: there is no release, or it cannot be read.
    pub inventory: Option<Inventory>,
    /// The Deployments and StatefulSets, sorted by kind and name.
    pub workloads: Vec<Workload>,
    /// The pods of former revisions that their StatefulSets wait for.
    pub stuck_pods: Vec<StuckPod>,
    /// Missing and edited objects of the watched kinds, while the release is otherwise as the spec asks.
    pub drifted: Vec<DriftedObject>,
    /// The objects that were recreated recently.
    pub repairs: Repairs,
    /// A hook's Job that still runs, of a revision that an operator's helm left pending.
    pub hook: Option<String>,
    /// The PersistentVolumeClaims of the app's namespace.
    pub claims: Vec<Arc<ObjectMeta>>,
}

/// The conditions of a helm run outside of the release.
#[derive(Clone, Debug, Default)]
pub(crate) struct Prerequisites {
    /// Another ClientApp that holds the hostname.
    pub hostname_holder: Option<Key>,
    /// The certificate of the hostname; `None`: none is asked for, or its Secret does not exist.
    pub certificate: Option<certificate::Read>,
    pub admin_secret: SecretView,
    pub redis_secret: SecretView,
    pub database: DatabaseView,
    /// The deployer's objects in the namespace, if the spec names no other account.
    pub deployer: Deployer,
    /// The objects that an earlier ClientApp of this name left, whether or not they are to be adopted.
    pub retained: Vec<Retained>,
    /// The dependencies that are not Ready, while helm has to run.
    pub dependencies: Vec<UnreadyDependency>,
    /// The desired chart, if it is in the cache and may be installed.
    pub chart: Option<CachedChart>,
    /// The backup that the next upgrade waits for, if any.
    pub backup: Option<BackupView>,
}

impl Observed {
    /// Returns the newest revision if it is deployed as the spec asks, or as the revision that the app was rolled back to.
    pub(crate) fn deployed_as(&self, desired: &Desired) -> Option<&ReleaseView> {
        self.release.as_ref().filter(|release| release.is_deployed_as(&desired.target().digest))
    }

    /// Returns the last tests of the newest revision.
    pub(crate) fn tested(&self) -> Option<&Tested> {
        let release = self.release.as_ref()?;
        self.recorded.test.as_ref().filter(|tested| tested.secret == release.secret_uid)
    }

    /// Returns true if a user asks to repeat these tests at once.
    pub(crate) fn asks_for(&self, tested: &Tested) -> bool {
        self.retry.as_ref() == Some(&annotation::retest(tested))
    }

    /// Returns true if pods may say why a workload is not ready: of a revision that is deployed, or that helm is installing.
    pub(crate) fn asks_for_pods(&self) -> bool {
        let is_settled = self.release.as_ref().is_some_and(|release| release.phase == ReleasePhase::Deployed);
        is_settled || self.run.busy.is_some()
    }

    pub(crate) fn workloads_are_ready(&self) -> bool {
        self.objects.workloads.iter().all(|workload| workload.waiting.is_none())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnreadyDependency {
    /// DataKind, name, and why.
    pub sentence: String,
    /// True if a change of it triggers a reconcile.
    pub is_watched: bool,
    /// True if it waits for this app in turn: then neither is ever installed.
    pub is_circle: bool,
}

/// Holds what is known while helm works on a release: nothing else is decided then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Busy {
    /// Digest that helm was asked to install; `None`: for a deleted ClientApp of the same name.
    pub digest: Option<String>,
    /// The message of the conditions.
    pub sentence: String,
    /// Until then the recorded status is enough; `None`: the run takes long, so the status also reports what its workloads wait
    /// for.
    pub until: Option<Timestamp>,
}

/// A Secret, as far as the operator reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum SecretView {
    #[default]
    Absent,
    /// It exists, but it belongs to an object other than this ClientApp and goes with it.
    NotOurs {
        /// DataKind and name of the owner.
        owner: String,
        /// It is being deleted with its owner.
        is_being_deleted: bool,
    },
    /// Created by the operator for this very app.
    Own {
        uid: String,
        /// As for [`SecretView::Present`], if the app needs more keys than the operator generates; else none.
        keys: BTreeSet<String>,
    },
    /// It can be used.
    Present {
        /// The keys whose value is not empty, and those of them that need none.
        keys: BTreeSet<String>,
    },
}

impl SecretView {
    /// Returns the end of a sentence that begins with the Secret's name, if it lacks some of these keys.
    pub(crate) fn lacks(&self, keys: &[&str]) -> Option<String> {
        let (SecretView::Present { keys: present } | SecretView::Own { keys: present, .. }) = self else { return None };
        let missing: Vec<_> = keys.iter().copied().filter(|key| !present.contains(*key)).collect();
        (!missing.is_empty()).then(|| format!("has no value under {}", missing.join(" and ")))
    }
}

/// The database, and how the app reaches it.
#[derive(Clone, Debug, Default)]
pub(crate) struct DatabaseView {
    /// Says whether the cluster knows the database object's kind.
    pub(crate) kind: Availability,
    /// uid of the ClientApp, with which its own database is stamped.
    pub(crate) app_uid: String,
    /// uid of the database that is recorded as owned by this ClientApp.
    pub(crate) recorded_uid: Option<String>,
    pub(crate) object: Option<DatabaseObject>,
    /// The Secret with its credentials.
    pub(crate) secret: SecretView,
    /// True if the Service that the app uses has a ready address.
    pub(crate) reachable: bool,
    /// The warnings of the database's operator since it last made progress. Anybody may have written them.
    pub(crate) warnings: Option<String>,
    /// Its pods, unless it is ready or says itself why they do not run.
    pub(crate) pods: Option<DatabasePods>,
    /// The backups that the database's operator makes by schedule.
    pub(crate) scheduled: ScheduledBackups,
    /// The objects beside it, one for each kind that its provider has.
    pub(crate) parts: Vec<PartView>,
    /// Name of the database on record that the app uses until this one is ready; `None`: it uses this one.
    pub(crate) replaces: Option<String>,
    /// The databases that it has left, and that still exist.
    pub(crate) former: Vec<FormerDatabase>,
}

/// A database that the app has left for another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FormerDatabase {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) is_retained: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PartView {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) part_use: PartUse,
    /// Its deletion loses nothing.
    pub(crate) is_recreatable: bool,
    /// Says whether the cluster knows the kind.
    pub(crate) availability: Availability,
    /// Holds what a cluster admin has to do if it does not.
    pub(crate) to_install: &'static str,
    /// The object of the name that this database's has.
    pub(crate) object: Option<SeenPart>,
}

/// Holds what was observed of the pods of a database that is not ready. Any user of the namespace may have made pods with its label.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DatabasePods {
    /// The reason that they are not ready, in one sentence.
    pub(crate) why: Option<String>,
    /// When to list them again.
    pub(crate) until: Timestamp,
}

/// The backups that a database's operator makes by schedule.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ScheduledBackups {
    pub(crate) words: Option<BackupWords>,
    /// Empty: it makes none, or the database reports itself whether they are made.
    pub(crate) schedules: Vec<String>,
    /// When a backup was last complete, by schedule or not.
    pub(crate) last_success: Option<Timestamp>,
    /// The last backup that has failed: when it was created, its name and why.
    pub(crate) last_failure: Option<(Timestamp, String, Option<String>)>,
}

impl ScheduledBackups {
    /// Returns what the backups of this database say, by name. Those of a former one of its name do not count.
    pub(crate) fn of(
        database: Option<&DatabaseObject>,
        words: Option<BackupWords>,
        schedules: Vec<String>,
        all: &[(Key, SeenBackup)],
    ) -> Self {
        let its = || all.iter().filter(|(_, backup)| database.is_some_and(|database| backup.is_of(database)));
        let failed = its().filter(|(_, backup)| backup.progress.0 == BackupState::Failed);
        let failed =
            failed.filter_map(|(key, backup)| Some((backup.created?, key.name.clone(), backup.progress.1.clone())));
        let last_success = its().filter_map(|(_, backup)| backup.completed).max();
        Self { words, schedules, last_success, last_failure: failed.max() }
    }
}

/// A backup, as requested and as observed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackupView {
    /// The record, written already or about to be.
    pub record: BackupRecord,
    /// `None`: it has not been requested yet.
    pub seen: Option<BackupProgress>,
}

/// The facts about a chart that decide whether it may be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CachedChart {
    pub chart: String,
    pub version: Version,
    pub app_version: Option<String>,
    pub digest: String,
}

impl From<&Chart> for CachedChart {
    fn from(Chart { name, version, app_version, digest, .. }: &Chart) -> CachedChart {
        CachedChart {
            chart: name.to_string(),
            version: version.clone(),
            app_version: app_version.clone(),
            digest: digest.clone(),
        }
    }
}

/// An object that outlived a ClientApp.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Retained {
    pub kind: DataKind,
    pub name: String,
    pub uid: String,
    /// It belongs to the database and is deleted with it.
    pub of_database: bool,
    /// The chart that last used the data on it, if recorded.
    pub installed: Option<InstalledChart>,
}

/// An object of the release that no watch shows, or that was edited.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DriftedObject {
    pub object: ReleaseObject,
    pub state: LiveState,
}

/// Says what the API server has under the object's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LiveState {
    Absent,
    Deleting,
    /// It lacks some of Helm's marks.
    Unmarked,
    /// Another client has changed it.
    Edited(Edit),
    /// Another client may have changed it, and why that cannot be found out.
    Uncompared(String),
    /// It has none of Helm's marks, or those of another release.
    Foreign,
    /// The API server cannot tell, and why.
    Unknown(String),
}

/// Holds what another client has changed in an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Edit {
    /// The fields, such as `spec.replicas`, without values.
    pub fields: Vec<String>,
    /// The field manager that edited the object last.
    pub by: Option<String>,
    /// The fields that are left to the client that has changed them.
    pub ignored: Vec<IgnoredField>,
}

/// A field that is left to another client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IgnoredField {
    /// JSON pointer into the document that Helm stored.
    pub path: String,
    /// The value that the other client has set; `None`: the field is not applied.
    pub value: Option<Value>,
}

/// A Deployment or StatefulSet of the release.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Workload {
    /// `Deployment` or `StatefulSet`.
    pub kind: &'static str,
    pub name: String,
    /// Says why it is not ready, if it is not.
    pub waiting: Option<String>,
    /// Says why its pods are refused, as its condition says, which may quote Secrets.
    pub refused: Option<String>,
    pub uid: String,
    /// `metadata.generation`, as the watch has it.
    pub generation: i64,
    /// `metadata.resourceVersion`; `None`: it is missing.
    pub version: Option<u64>,
    /// `spec.replicas`, whichever client set it.
    pub replicas: i32,
    /// The selector of its pods, for a list request.
    pub selector: Option<String>,
    /// Its controller reports no progress within the deadline.
    pub stuck: bool,
    /// How a StatefulSet replaces its pods.
    pub rollout: Option<StatefulSetRollout>,
    /// Which of its fields helm manages, as a digest.
    pub helms: u64,
}
