//! Tells what helm does for the app, and whether the caches show what it has done. **Pure**, except for reads after tests.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::uncached;
use crate::{
    clientapp::{
        context::Ctx,
        error::Error,
        helm_runs::{HelmRun, TestRun, Upgraded, Upgrading},
        observed::{
            helm_tests,
            release::{ReleasePhase, ReleaseView},
            repair_backoff::WATCH_LAG,
            types::{Busy, Observed},
        },
        spec::desired::Desired,
    },
    crd::Tested,
    platform::{key::Key, pods::why as pods_why},
};

/// A helm run that takes longer is reported while it goes on: its hooks may wait for workloads that never become ready.
const LONG: SignedDuration = SignedDuration::from_secs(5);

/// Returns what is known while helm works on the release, or while the watch does not show yet what helm wrote: both count as
/// busy. **Pure.**
pub(super) fn busy(run: &HelmRun, cached: Option<&ReleaseView>, now: Timestamp) -> Option<Busy> {
    match run {
        HelmRun::Upgrading(upgrading) => {
            let Upgrading { digest, sentence, since } = upgrading.as_ref();
            let until = Some(*since + LONG).filter(|until| now < *until);
            Some(Busy { digest: Some(digest.clone()), sentence: sentence.clone(), until })
        }
        HelmRun::Upgraded(upgraded) => {
            let until = Some(wait_for_cache(upgraded, cached, now)?);
            let digest = Some(upgraded.attempt.digest.clone());
            Some(Busy { digest, sentence: String::new(), until })
        }
        HelmRun::OfPredecessor => {
            let sentence =
                "helm is still running for a deleted ClientApp of this name, and is being stopped".to_owned();
            Some(Busy { digest: None, sentence, until: None })
        }
        // A test changes nothing of the release.
        HelmRun::Idle
        | HelmRun::FetchingChart(_)
        | HelmRun::Testing(_)
        | HelmRun::Tested(_)
        | HelmRun::Uninstalling
        | HelmRun::Uninstalled(_) => None,
    }
}

/// Returns true if this shows the revision of a run that has ended, and its end: after helm has ended, the revision is not
/// pending, even if a late watch shows it so.
pub(super) fn cache_has(upgraded: &Upgraded, release: Option<&ReleaseView>) -> bool {
    upgraded.revision.is_none_or(|revision| {
        release.is_some_and(|release| release.revision >= revision && release.phase != ReleasePhase::Pending)
    })
}

/// Returns until when to wait for a watch that does not show the revision yet; `None`: it shows it, or is too late.
fn wait_for_cache(upgraded: &Upgraded, release: Option<&ReleaseView>, now: Timestamp) -> Option<Timestamp> {
    let until = upgraded.at + WATCH_LAG;
    (upgraded.succeeded && !cache_has(upgraded, release) && now < until).then_some(until)
}

/// Adds why a hook's Job, for which helm waits, has no pod.
pub(super) fn with_refused_hook(ctx: &Ctx, key: &Key, observed: &mut Observed) {
    if let (HelmRun::Upgrading(upgrading), Some(at_work)) = (&observed.run.state, &mut observed.run.busy)
        && let Some(refusal) = ctx.watches.refused_job(key, upgrading.since)
    {
        at_work.sentence.push_str("; ");
        at_work.sentence.push_str(&refusal);
    }
}

/// Returns what has become of tests that have ended: helm's words say little, and its storage says which tests have failed.
pub(super) async fn test_record(
    ctx: &Ctx,
    (key, desired): (&Key, Option<&Desired>),
    test_run: &TestRun,
    before: Option<&Tested>,
) -> Result<Tested, Error> {
    let TestRun { secret, account, failed, started_at: began, .. } = test_run;
    let tests = uncached::tests(ctx, key, secret).await?;
    let mut pods = None;
    // Without a valid spec, nothing says which values are secret, and kubelet may quote them.
    if let (Some(_), Ok(tests), Some(desired)) = (failed, &tests, desired)
        && let Some((kind, name)) = tests.failed.first()
    {
        let found = uncached::pods(ctx, key, account, helm_tests::pods_of(kind, name)).await;
        let mut found = found.inspect_err(|error| tracing::debug!(app = %key, "{error}")).unwrap_or_default();
        // The pod of an earlier test says nothing about this one. Its time has no fractions.
        let is_new = |created: &Time| created.0.as_second() >= began.as_second();
        found.retain(|pod| pod.metadata.creation_timestamp.as_ref().is_some_and(is_new));
        pods = pods_why(&found, None).map(|why| desired.values.redactor.redact(&why));
    }
    Ok(helm_tests::record(before, test_run, tests, pods))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clientapp::fixtures::{attempt, now, release},
        helm::gateway::record::Recorded,
    };

    #[test]
    fn a_late_cache_is_waited_for() {
        for (what, revision, succeeded, seen, seconds, waits, shown) in [
            ("nothing yet", Some(4), true, None, 1, true, false),
            ("the one before", Some(4), true, Some((3, ReleasePhase::Deployed)), 1, true, false),
            ("its lock", Some(4), true, Some((4, ReleasePhase::Pending)), 1, true, false),
            ("its lock, too long", Some(4), true, Some((4, ReleasePhase::Pending)), 6, false, false),
            ("its end", Some(4), true, Some((4, ReleasePhase::Deployed)), 1, false, true),
            ("another client's next", Some(4), true, Some((5, ReleasePhase::Deployed)), 1, false, true),
            ("a failure", Some(4), false, Some((3, ReleasePhase::Deployed)), 1, false, false),
            ("no run", None, false, None, 1, false, true),
        ] {
            let at = now() - SignedDuration::from_secs(seconds);
            let upgraded = Upgraded { attempt: attempt("d"), revision, succeeded, at, wrote: Recorded::default() };
            let seen = seen.map(|(revision, phase)| ReleaseView { revision, phase, ..release("d") });
            assert_eq!(wait_for_cache(&upgraded, seen.as_ref(), now()).is_some(), waits, "{what}");
            assert_eq!(cache_has(&upgraded, seen.as_ref()), shown, "{what}");
        }
    }
}
