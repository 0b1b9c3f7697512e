//! The volume with the database, **pure**: whether a volume may be created, whether a database may be created on it, and whether it
//! is the recorded volume.
//!
//! A database is created once. Any sign of an earlier database prevents another from being created: a claim recorded as
//! initialized, a StatefulSet, or a primary that was once up. From then on, an empty volume means that the database is lost.

use super::{
    dumps::unusable,
    plan::{PostgresqlPlan, PostgresqlStep},
    restore,
};
use crate::{
    crd::{Phase, PostgresqlStatus, Reason, RestoreRecord, VolumeRecord},
    postgresql::{
        desired::{ACCEPT_VOLUME, Desired},
        names,
        objects::initialize,
        observed::{Detail, JobView, Kind, ObjectView, ObservedPostgresql, Ownership, ScriptRefusal, pods_of},
    },
};

/// The reason if the recorded volume or its database is gone.
pub(crate) const LOST: Reason = Reason::VolumeLost;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeState {
    /// There is no volume, and there never was a database.
    Missing,
    /// The volume is not recorded yet in its present state, and nothing may be done before it is.
    Unrecorded,
    /// No database on it is known. `allowed`: one may be created.
    Uninitialized {
        uid: String,
        /// True if this operator has created the claim for a new database.
        allowed: bool,
    },
    /// Servers may use it.
    Initialized,
    /// It is being deleted, and is gone as soon as no pod uses it.
    Deleting,
    NotOurs,
    Lost(String),
}

pub(crate) fn state(desired: &Desired, observed: &ObservedPostgresql) -> VolumeState {
    let name = claim(desired);
    let recorded = observed.recorded.volume.as_ref();
    let had_database = had_database(desired, observed);
    // Whatever there is will be set aside.
    let is_replaced = restore::pending(desired, &observed.recorded).is_some();
    let Some(found) = observed.objects.get(&(Kind::PersistentVolumeClaim, name.clone())) else {
        return match had_database && !is_replaced {
            true => VolumeState::Lost(format!("PersistentVolumeClaim {name} is gone")),
            false => VolumeState::Missing,
        };
    };
    if found.owner != Ownership::Ours {
        return VolumeState::NotOurs;
    }
    if found.deleting {
        return VolumeState::Deleting;
    }
    match recorded {
        Some(recorded) if recorded.uid == found.uid && had_database => VolumeState::Initialized,
        Some(recorded) if recorded.uid == found.uid => {
            VolumeState::Uninitialized { uid: found.uid.clone(), allowed: made_by_operator(desired, found) }
        }
        Some(recorded) if had_database && !is_replaced && desired.accepted_volume.as_ref() != Some(&found.uid) => {
            VolumeState::Lost(format!(
                "PersistentVolumeClaim {name} is not the one with the database: its uid is {}, and the uid on record is {}",
                found.uid, recorded.uid
            ))
        }
        _ => VolumeState::Unrecorded,
    }
}

pub(crate) fn record(desired: &Desired, observed: &ObservedPostgresql) -> Option<VolumeRecord> {
    let name = claim(desired);
    let found = observed.objects.get(&(Kind::PersistentVolumeClaim, name.clone()));
    let with = |initialized| Some(VolumeRecord { name: name.clone(), uid: found?.uid.clone(), initialized });
    match state(desired, observed) {
        VolumeState::Unrecorded | VolumeState::Initialized => with(had_database(desired, observed)),
        VolumeState::Uninitialized { uid, .. } => {
            let job = observed.objects.get(&(Kind::Job, names::initialize(&desired.key.name, &uid)));
            with(job.is_some_and(|job| ended(job) == Some(true)))
        }
        _ => observed.recorded.volume.clone(),
    }
}

/// Returns the dump from which the Job has created the database, once it is done.
pub(crate) fn restored(desired: &Desired, observed: &ObservedPostgresql) -> Option<RestoreRecord> {
    let PostgresqlStatus { restored: recorded, volume, .. } = &observed.recorded;
    let judged = state(desired, observed);
    let (uid, recorded) = match (&judged, recorded, volume) {
        (VolumeState::Uninitialized { uid, .. }, ..) => (uid, None),
        (_, Some(RestoreRecord { tables: None, .. }), Some(volume)) => (&volume.uid, recorded.clone()),
        _ => return recorded.clone(),
    };
    let name = names::initialize(&desired.key.name, uid);
    let Some(Detail::Job(JobView { succeeded: Some(true), restore: Some(restore), ended, .. })) =
        observed.objects.get(&(Kind::Job, name.clone())).map(|job| &job.detail)
    else {
        return recorded;
    };
    // Name and number of tables. The pod may show later than the Job, and they are lost once it is gone.
    let message = pods_of(&observed.pods, &name)
        .find(|pod| pod.refused.is_none())
        .and_then(|pod| pod.termination_message.as_ref());
    if recorded.is_some() && message.is_none() {
        return recorded;
    }
    let mut words = message.map(|message| message.split_whitespace()).into_iter().flatten();
    Some(RestoreRecord {
        dump: words.next().map_or_else(|| restore.from.clone(), str::to_owned),
        claim: restore.claim.clone(),
        store: restore.store.is_some().then(|| restore.place()),
        tables: words.next().and_then(|tables| tables.parse().ok()),
        completed_at: ended.clone(),
        request: None,
    })
}

/// Returns true if there is any sign of a database. Earlier versions of this operator did not record the volume.
fn had_database(desired: &Desired, observed: &ObservedPostgresql) -> bool {
    let recorded = &observed.recorded;
    let set = observed.objects.get(&(Kind::StatefulSet, names::primary(&desired.key.name)));
    recorded.volume.as_ref().is_some_and(|volume| volume.initialized)
        || recorded.active.is_some()
        || recorded.phase == Some(Phase::Up)
        || set.is_some_and(|set| set.owner == Ownership::Ours)
}

fn made_by_operator(desired: &Desired, claim: &ObjectView) -> bool {
    matches!(&claim.detail, Detail::Claim { made_for: Some(uid), .. } if *uid == desired.uid)
}

fn ended(job: &ObjectView) -> Option<bool> {
    match &job.detail {
        Detail::Job(job) => job.succeeded,
        _ => None,
    }
}

fn claim(desired: &Desired) -> String {
    names::data(&desired.key.name)
}

/// Adds the steps before servers can start. This does not wait for the servers themselves.
pub(super) fn steps(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql, volume: &VolumeState) {
    let name = claim(desired);
    match volume {
        VolumeState::Missing => {
            plan.steps.push(PostgresqlStep::CreateVolume(initialize::claim(desired)));
            plan.hold(Reason::Provisioning, format!("waiting for PersistentVolumeClaim {name}"));
        }
        VolumeState::Unrecorded => plan.hold(Reason::Provisioning, format!("PersistentVolumeClaim {name} is being put on record")),
        // Reported together with all other volumes.
        VolumeState::NotOurs => {}
        VolumeState::Deleting => plan.hold(
            Reason::VolumeGoing,
            format!(
                "PersistentVolumeClaim {name} is being deleted, and is gone as soon as pod {} is: save the data on it (`pg_dumpall`) before that",
                names::primary_pod(&desired.key.name)
            ),
        ),
        VolumeState::Lost(why) => lost(plan, desired, observed, why),
        VolumeState::Uninitialized { uid, allowed } => initialize(plan, desired, observed, uid, *allowed),
        VolumeState::Initialized => initialized(plan, desired, observed),
    }
}

/// Holds the plan: only a cluster admin knows whether the volume that is there now holds the data.
fn lost(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql, why: &str) {
    let key = &desired.key;
    let found = observed.objects.get(&(Kind::PersistentVolumeClaim, claim(desired)));
    let uid = found.map_or("UID", |found| found.uid.as_str());
    let message = format!(
        "{why}: restore a dump with a ClientAppRestore; or, if the claim that now has this name holds the data, accept it with `kubectl annotate db {} -n {} --overwrite {ACCEPT_VOLUME}={uid}`",
        key.name, key.namespace,
    );
    plan.hold(LOST, message);
}

fn initialize(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql, uid: &str, allowed: bool) {
    let job = initialize::job(desired, uid, allowed);
    let name = &job.id.1;
    // A volume that was handed over has a database already.
    let restore = desired.restore.as_ref().filter(|_| allowed);
    let doing = match restore {
        None => "makes the database".to_owned(),
        Some(restore) => format!("restores dump {} of {}", restore.from, restore.place()),
    };
    let underway = if restore.is_some() { Reason::Restoring } else { Reason::Provisioning };
    match observed.objects.get(&job.id) {
        None => {
            if let Some((reason, hold)) =
                restore.and_then(|restore| unusable(desired, "spec.restore", restore, observed.dump_source))
            {
                return plan.hold(reason, hold);
            }
            plan.hold(underway, format!("waiting for Job {name}, which {doing}"));
            plan.steps.push(PostgresqlStep::Initialize(job));
        }
        Some(ObjectView { owner: Ownership::Other(owner), .. }) => plan.not_ours(&format!("Job {name}"), owner),
        Some(ObjectView { deleting, uid, digest, detail: Detail::Job(found), .. })
            if digest.as_ref() != Some(&job.digest) && is_superseded(found, desired) =>
        {
            if !deleting {
                plan.steps.push(PostgresqlStep::Delete { id: job.id.clone(), uid: uid.clone() });
            }
            plan.hold(
                Reason::Replacing,
                format!("waiting for Job {name} to be gone: the spec has changed since it was created"),
            );
        }
        Some(found) if ended(found) == Some(false) => failed(plan, desired, observed, name),
        Some(_) => {
            plan.hold(underway, format!("waiting for Job {name}, which {doing}{}", observed.job_waits(name)));
        }
    }
}

/// Returns true for a Job that a user no longer asks for, or that has failed. While it runs, another version of the operator is no
/// reason to begin a restore of hours again.
fn is_superseded(job: &JobView, desired: &Desired) -> bool {
    match job.succeeded {
        Some(succeeded) => !succeeded,
        None => job.generation != Some(desired.generation.to_string()),
    }
}

/// Holds the plan because the Job has given up.
fn failed(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql, job: &str) {
    let claim = claim(desired);
    let pod = pods_of(&observed.pods, job).find(|pod| pod.refused.is_some());
    let (reason, why) = match pod.and_then(|pod| pod.refused) {
        Some(ScriptRefusal::OtherVersion) => (
            Reason::VersionMismatch,
            format!(
                "the database on PersistentVolumeClaim {claim} is of another major version than {}: hand the volume over to a Postgresql of its version",
                desired.version
            ),
        ),
        Some(ScriptRefusal::NoDatabase) => (
            LOST,
            format!(
                "there is no database on PersistentVolumeClaim {claim}, which was handed over, and none is made there: restore a dump into a new Postgresql"
            ),
        ),
        Some(ScriptRefusal::Dump) => {
            let message = pod.and_then(|pod| pod.failure_line.as_deref()).unwrap_or("the dump cannot be restored");
            (Reason::RestoreFailed, format!("{message}; change spec.restore, or delete Job {job} for another try"))
        }
        None => {
            let reason = match desired.restore {
                Some(_) => Reason::RestoreFailed,
                None => Reason::InitializationFailed,
            };
            let message = format!(
                "Job {job} has not made the database on PersistentVolumeClaim {claim}: delete the Job for another try"
            );
            (reason, message)
        }
    };
    plan.hold(reason, format!("{why}; see `kubectl logs -n {} job/{job}`", desired.key.namespace));
}

fn initialized(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    let prefix = names::initialize_prefix(&desired.key.name);
    for (id, view) in &observed.objects {
        if id.0 == Kind::Job && id.1.starts_with(&prefix) && view.owner == Ownership::Ours && !view.deleting {
            plan.steps.push(PostgresqlStep::Delete { id: id.clone(), uid: view.uid.clone() });
        }
    }
    let Some(pod) = observed.primary(desired) else { return };
    match pod.refused {
        Some(ScriptRefusal::NoDatabase) => {
            let why = format!(
                "pod {} finds no database on PersistentVolumeClaim {}, where there was one",
                pod.name,
                claim(desired)
            );
            lost(plan, desired, observed, &why);
        }
        Some(ScriptRefusal::OtherVersion) => {
            let message = format!(
                "pod {} has another major version of PostgreSQL than the database on its volume: set spec.image to an image of that version; {}",
                pod.name,
                pod.waiting.as_deref().unwrap_or_default()
            );
            plan.hold(Reason::VersionMismatch, message);
        }
        // No server restores a dump.
        Some(ScriptRefusal::Dump) | None => {}
    }
}

#[cfg(test)]
mod tests;
