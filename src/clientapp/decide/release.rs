//! Compares the release with what is desired.

use jiff::Timestamp;

use super::plan::{Step, UpgradeCause};
use crate::clientapp::{
    observed::{
        lock::{self, LockHolder},
        pods,
        release::{ReleasePhase, ReleaseView},
        types::Observed,
    },
    spec::desired::Desired,
};

/// A release, by its newest revision.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum ReleaseState {
    /// There is none, or only the history of one that was uninstalled: helm installs it.
    Absent(DueUpgrade),
    /// Another Helm client made it, and never an operator: it is left alone.
    Unmanaged,
    /// Another Helm client works on it; until then that is respected, or for as long as the lock exists.
    Locked(Option<Timestamp>),
    /// A helm process that is dead has left its lock.
    StaleLock(DueUpgrade),
    /// It is not as desired, or has failed.
    OutOfSync(DueUpgrade),
    InSync,
}

/// The upgrade that makes the release as desired.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DueUpgrade {
    /// Removes a stale lock first.
    pub(super) unlock: Option<Step>,
    pub(super) revision: i64,
    /// The cause, if it is not the spec.
    pub(super) cause: Option<UpgradeCause>,
}

impl ReleaseState {
    /// Returns the upgrade that is due.
    pub(super) fn upgrade(&self) -> Option<&DueUpgrade> {
        match self {
            ReleaseState::Absent(upgrade) | ReleaseState::StaleLock(upgrade) | ReleaseState::OutOfSync(upgrade) => {
                Some(upgrade)
            }
            ReleaseState::Unmanaged | ReleaseState::Locked(_) | ReleaseState::InSync => None,
        }
    }
}

pub(super) fn state(desired: &Desired, observed: &Observed, now: Timestamp) -> ReleaseState {
    let recorded = observed.recorded.release.as_ref().map(|release| release.revision);
    let uninstalled = || recorded.map(|revision| UpgradeCause::Uninstalled { revision });
    let Some(release) = &observed.release else {
        return ReleaseState::Absent(DueUpgrade { unlock: None, revision: 1, cause: uninstalled() });
    };
    let ReleaseView { revision, secret, secret_uid, phase, managed_digest, ever_managed, .. } = release;
    let upgrade = |cause| DueUpgrade { unlock: None, revision: revision + 1, cause };
    let is_managed = *ever_managed || recorded.is_some();
    match (phase, managed_digest) {
        (ReleasePhase::Deployed, Some(managed_digest)) if *managed_digest == desired.target().digest => {
            ReleaseState::InSync
        }
        (ReleasePhase::Deployed | ReleasePhase::Failed, Some(_)) => ReleaseState::OutOfSync(upgrade(None)),
        (ReleasePhase::Deployed | ReleasePhase::Failed, None) if is_managed => {
            ReleaseState::OutOfSync(upgrade(Some(UpgradeCause::ChangedByOthers { revision: *revision })))
        }
        (ReleasePhase::Deployed | ReleasePhase::Failed, None) => ReleaseState::Unmanaged,
        (ReleasePhase::Uninstalled, _) => ReleaseState::Absent(upgrade(uninstalled())),
        (ReleasePhase::Pending | ReleasePhase::Uninstalling, _) => {
            match lock::holder(release, desired.upgrade.foreign_lock_timeout, now) {
                LockHolder::OtherClient(until) => ReleaseState::Locked(until),
                LockHolder::None | LockHolder::Stale if managed_digest.is_none() && !is_managed => {
                    ReleaseState::Unmanaged
                }
                LockHolder::None | LockHolder::Stale => {
                    let (secret, uid) = (secret.clone(), secret_uid.clone());
                    let unlock = Some(Step::UnlockRelease { secret, uid, revision: *revision });
                    ReleaseState::StaleLock(DueUpgrade { unlock, ..upgrade(None) })
                }
            }
        }
    }
}

/// Returns when to list the pods of workloads that are not ready. Pods are not watched.
pub(super) fn next_pod_check(observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    (observed.asks_for_pods() && !observed.workloads_are_ready())
        .then(|| pods::next_check(pods::not_ready_since(&observed.recorded).unwrap_or(now), now))
}
