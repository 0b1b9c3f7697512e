//! Who holds a release: one rule for all that changes it, be it to install, to upgrade or to uninstall. **Pure.**
//!
//! Asked only while no helm of this process runs for the release. This operator leads then, and no other operator's helm has a way
//! to the API server (`helm::gateway`): what carries an operator's stamp was left by a helm that is gone, whatever its machine does. What
//! that helm has begun in the cluster, such as a hook's Job, may go on.

use jiff::{SignedDuration, Timestamp};

use super::observed::{Phase, ReleaseView};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Free,
    /// A helm that is gone has left its lock.
    Left,
    /// Another Helm client holds it, and is respected until then; `None`: for as long as it does.
    Foreign(Option<Timestamp>),
}

/// Who holds a release of which the newest revision is this. `timeout`: how long another Helm client's lock is respected.
pub(super) fn lock(release: &ReleaseView, timeout: Option<SignedDuration>, now: Timestamp) -> Lock {
    if !matches!(release.phase, Phase::Pending | Phase::Uninstalling) {
        return Lock::Free;
    }
    // An uninstall changes the revision that is there, and its stamp says nothing of who uninstalls.
    if release.is_left_locked() {
        return Lock::Left;
    }
    let until = timeout.zip(release.written).map(|(timeout, written)| written + timeout);
    if until.is_some_and(|until| until <= now) { Lock::Left } else { Lock::Foreign(until) }
}

/// What a hold says of another Helm client's lock.
pub(super) fn held(release: &ReleaseView, name: &str) -> String {
    let by = match release.phase {
        Phase::Uninstalling => "another Helm client, or an uninstall that was cut off",
        _ => "another Helm client",
    };
    format!(
        "revision {} of release {name} is {}, by {by}, and the operator waits for it; if no client is at work on it any more, `helm rollback {name}` or `helm uninstall {name}` ends its lock, or set spec.upgrade.foreignLockTimeout",
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
