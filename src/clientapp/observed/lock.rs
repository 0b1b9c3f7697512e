//! Tells who holds the lock of a release: one rule for install, upgrade and uninstall. **Pure.**
//!
//! Asked only while no helm process of this operator process runs for the release. This process then leads, and no other
//! operator's helm can reach the API server (`helm::gateway`), so a pending revision with an operator's stamp was left by a dead
//! helm process, whatever its machine does. What that helm process started in the cluster, such as a hook's Job, may go on.

use jiff::{SignedDuration, Timestamp};

use super::release::{ReleasePhase, ReleaseView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LockHolder {
    None,
    /// A dead helm process left its lock.
    Stale,
    /// Another Helm client holds it, and the operator respects that until then; `None`: for as long as the lock exists.
    OtherClient(Option<Timestamp>),
}

/// Returns who holds the lock of a release whose newest revision is this. `timeout`: how long another Helm client's lock is
/// respected.
pub(crate) fn holder(release: &ReleaseView, timeout: Option<SignedDuration>, now: Timestamp) -> LockHolder {
    if !matches!(release.phase, ReleasePhase::Pending | ReleasePhase::Uninstalling) {
        return LockHolder::None;
    }
    // An uninstall changes the existing revision, so the stamp does not show who uninstalls.
    if release.is_stale_lock() {
        return LockHolder::Stale;
    }
    let until = timeout.zip(release.created_at).map(|(timeout, written)| written + timeout);
    if until.is_some_and(|until| until <= now) { LockHolder::Stale } else { LockHolder::OtherClient(until) }
}

/// Returns the message of a hold for another Helm client's lock.
pub(crate) fn held(release: &ReleaseView, name: &str) -> String {
    let by = match release.phase {
        ReleasePhase::Uninstalling => "another Helm client, or an uninstall that was cut off",
        _ => "another Helm client",
    };
    format!(
        "revision {} of release {name} is {}, by {by}: the operator waits; if no client works on it any more, `helm rollback {name}` clears the lock, or spec.upgrade.foreignLockTimeout",
        release.revision, release.status
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clientapp::fixtures::{now, release};

    #[test]
    fn lock_holders() {
        let hour = SignedDuration::from_hours(1);
        let begun = now() - hour;
        for (phase, stamped, timeout, expected) in [
            (ReleasePhase::Deployed, false, None, LockHolder::None),
            (ReleasePhase::Failed, true, None, LockHolder::None),
            (ReleasePhase::Uninstalled, false, None, LockHolder::None),
            (ReleasePhase::Pending, true, None, LockHolder::Stale),
            (ReleasePhase::Uninstalling, true, None, LockHolder::OtherClient(None)),
            (ReleasePhase::Pending, false, None, LockHolder::OtherClient(None)),
            (ReleasePhase::Uninstalling, false, None, LockHolder::OtherClient(None)),
            (ReleasePhase::Pending, false, Some(hour * 2), LockHolder::OtherClient(Some(now() + hour))),
            (ReleasePhase::Pending, false, Some(hour), LockHolder::Stale),
            (ReleasePhase::Uninstalling, false, Some(hour), LockHolder::Stale),
        ] {
            let stamp = release("d").managed_digest.filter(|_| stamped);
            let view = ReleaseView { phase, managed_digest: stamp, created_at: Some(begun), ..release("d") };
            assert_eq!(holder(&view, timeout, now()), expected, "{phase:?} {stamped} {timeout:?}");
        }
        let unknown =
            ReleaseView { phase: ReleasePhase::Pending, managed_digest: None, created_at: None, ..release("d") };
        assert_eq!(
            holder(&unknown, Some(hour), now()),
            LockHolder::OtherClient(None),
            "when it was begun is not known"
        );
    }
}
