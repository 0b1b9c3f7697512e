//! Who holds the lock of a release: one rule for install, upgrade and uninstall. **Pure.**
//!
//! Asked only while no helm process of this operator process runs for the release. This process then leads, and no other
//! operator's helm can reach the API server (`helm::gateway`), so a pending revision with an operator's stamp was left by a dead
//! helm process, whatever its machine does. What that helm process started in the cluster, such as a hook's Job, may go on.

use jiff::{SignedDuration, Timestamp};

use super::release::{Phase, ReleaseView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    Free,
    /// A dead helm process left its lock.
    Left,
    /// Another Helm client holds it, and the operator respects that until then; `None`: for as long as the lock exists.
    Foreign(Option<Timestamp>),
}

/// Who holds the lock of a release whose newest revision is this. `timeout`: how long another Helm client's lock is respected.
pub(crate) fn lock(release: &ReleaseView, timeout: Option<SignedDuration>, now: Timestamp) -> Lock {
    if !matches!(release.phase, Phase::Pending | Phase::Uninstalling) {
        return Lock::Free;
    }
    // An uninstall changes the existing revision, so the stamp does not show who uninstalls.
    if release.is_left_locked() {
        return Lock::Left;
    }
    let until = timeout.zip(release.written).map(|(timeout, written)| written + timeout);
    if until.is_some_and(|until| until <= now) { Lock::Left } else { Lock::Foreign(until) }
}

/// The message of a hold for another Helm client's lock.
pub(crate) fn held(release: &ReleaseView, name: &str) -> String {
    let by = match release.phase {
        Phase::Uninstalling => "another Helm client, or an uninstall that was cut off",
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
    fn who_holds_a_release() {
        let hour = SignedDuration::from_hours(1);
        let begun = now() - hour;
        for (phase, stamped, timeout, expected) in [
            (Phase::Deployed, false, None, Lock::Free),
            (Phase::Failed, true, None, Lock::Free),
            (Phase::Uninstalled, false, None, Lock::Free),
            (Phase::Pending, true, None, Lock::Left),
            (Phase::Uninstalling, true, None, Lock::Foreign(None)),
            (Phase::Pending, false, None, Lock::Foreign(None)),
            (Phase::Uninstalling, false, None, Lock::Foreign(None)),
            (Phase::Pending, false, Some(hour * 2), Lock::Foreign(Some(now() + hour))),
            (Phase::Pending, false, Some(hour), Lock::Left),
            (Phase::Uninstalling, false, Some(hour), Lock::Left),
        ] {
            let stamp = release("d").stamp.filter(|_| stamped);
            let view = ReleaseView { phase, stamp, written: Some(begun), ..release("d") };
            assert_eq!(lock(&view, timeout, now()), expected, "{phase:?} {stamped} {timeout:?}");
        }
        let unknown = ReleaseView { phase: Phase::Pending, stamp: None, written: None, ..release("d") };
        assert_eq!(lock(&unknown, Some(hour), now()), Lock::Foreign(None), "when it was begun is not known");
    }
}
