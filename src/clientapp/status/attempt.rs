//! An attempt to install or upgrade a release, as it is recorded: before helm runs, and with its outcome. **Pure.**

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    clientapp::{
        error::{self, Refusal},
        observed::types::{CachedChart, Observed},
        spec::desired::Desired,
    },
    crd::{
        Attempt, ClientAppStatus, InstalledChart,
        conditions::{find, kind},
    },
};

/// Returns an attempt that begins now. Failures are counted as long as the digest stays the same. An attempt that left its lock
/// and no outcome was cut off, and counts as a failure.
pub(crate) fn start(
    desired: &Desired,
    recorded: &ClientAppStatus,
    chart: Option<&CachedChart>,
    left_its_lock: bool,
    now: Timestamp,
) -> Attempt {
    let earlier = desired.attempt(recorded);
    // Keeps `startedAt`: the attempt has been queued since then.
    let waiting = earlier.filter(|attempt| attempt.failures > 0 && attempt.retry_at.is_none() && !left_its_lock);
    let failures = |attempt: &Attempt| attempt.failures + u32::from(left_its_lock && attempt.retry_at.is_none());
    Attempt {
        digest: desired.target().digest.clone(),
        started_at: waiting.map_or(Time(now), |attempt| attempt.started_at.clone()),
        failures: earlier.map_or(0, failures),
        retry_at: None,
        reason: None,
        // An attempt to fetch the chart again does not forget it.
        chart: chart.map(of_target).or_else(|| earlier.and_then(|earlier| earlier.chart.clone())),
        message: None,
        without_volumes: desired.data.without_volumes.iter().cloned().collect(),
    }
}

fn of_target(CachedChart { chart, version, app_version, digest }: &CachedChart) -> InstalledChart {
    InstalledChart {
        name: chart.clone(),
        version: version.to_string(),
        app_version: app_version.clone(),
        digest: digest.clone(),
    }
}

/// Returns the attempt after it failed. `unit` is uniform in `[0, 1)`.
pub(crate) fn record_failure(
    attempt: Attempt,
    refusal: Refusal,
    message: String,
    now: Timestamp,
    unit: f64,
) -> Attempt {
    let failures = attempt.failures + 1;
    let delay = refusal.disposition(failures).retry.delay(failures);
    let retry_at = delay.map(|delay| Time(now + error::jittered(delay, unit)));
    Attempt { failures, retry_at, reason: Some(refusal.reason().into()), message: Some(message), ..attempt }
}

/// Returns for how long an app has waited for helm: since something about it has to change, although it may have waited for its
/// database first, or since helm last ran for it. All of it is on record in the cluster, where neither a restart nor another
/// leader loses it.
pub(crate) fn queued_for(observed: &Observed, now: Timestamp) -> SignedDuration {
    let Observed { recorded, release, .. } = observed;
    let reconciling = find(&recorded.conditions, kind::RECONCILING).filter(|condition| condition.status == "True");
    let Some(reconciling) = reconciling else { return SignedDuration::ZERO };
    // An attempt that is repeated began when it was due.
    let repeated = recorded.last_attempt.as_ref().filter(|attempt| attempt.failures > 0);
    let due = repeated.map(|attempt| attempt.retry_at.as_ref().unwrap_or(&attempt.started_at).0);
    let last = [release.as_ref().and_then(|release| release.created_at), due];
    let since = last.into_iter().flatten().fold(reconciling.last_transition_time.0, Timestamp::max);
    now.duration_since(since)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clientapp::fixtures::{attempt, now, settled, want},
        crd::{
            Reason,
            conditions::{State, Verdict},
        },
    };

    #[test]
    fn an_attempt_that_is_repeated_keeps_its_place_until_it_runs() {
        let desired = want(&serde_json::json!({"hostname": "acme.example"}));
        let earlier =
            Attempt { started_at: Time(now() - SignedDuration::from_secs(50)), ..attempt(&desired.target().digest) };
        for (what, failures, retry_at, left_its_lock, kept) in [
            ("it waits", 1, None, false, true),
            ("it has failed", 1, Some(Time(now())), false, false),
            ("it was cut off", 1, None, true, false),
            ("it has succeeded, or is the first", 0, None, false, false),
        ] {
            let last_attempt = Some(Attempt { failures, retry_at, ..earlier.clone() });
            let recorded = ClientAppStatus { last_attempt, ..ClientAppStatus::default() };
            let begun = start(&desired, &recorded, None, left_its_lock, now());
            assert_eq!(begun.started_at == earlier.started_at, kept, "{what}");
        }
    }

    #[test]
    fn how_long_an_app_has_waited() {
        let before = |seconds| now() - SignedDuration::from_secs(seconds);
        let after = |reconciling: Option<(State, i64)>, written: Option<i64>, last_attempt: Attempt| {
            let mut observed = settled(&want(&serde_json::json!({"hostname": "acme.example"})));
            let condition = reconciling.map(|(state, at)| {
                let verdict = Verdict { state, reason: Reason::Upgrading.into(), message: String::new() };
                verdict.into_condition(kind::RECONCILING, &[], None, before(at))
            });
            observed.recorded.conditions = condition.into_iter().collect();
            observed.recorded.last_attempt = Some(last_attempt);
            observed.release.as_mut().unwrap().created_at = written.map(before);
            queued_for(&observed, now()).as_secs()
        };
        let first = || Attempt { started_at: Time(before(50)), ..attempt("d") };
        let again = || Attempt { failures: 2, ..first() };
        let failed = |at| Attempt { retry_at: Some(Time(before(at))), ..again() };
        let since = |seconds| Some((State::True, seconds));
        for (what, reconciling, written, last_attempt, expected) in [
            ("it was at rest", Some((State::False, 900)), Some(600), first(), 0),
            ("the first pass", None, None, first(), 0),
            ("a first installation", since(900), None, first(), 900),
            ("helm has run since", since(900), Some(600), first(), 600),
            ("it changed since", since(300), Some(600), first(), 300),
            ("it has failed", since(900), Some(600), failed(20), 20),
            ("the attempt after a failure", since(900), None, again(), 50),
            ("it is edited before it is due", since(900), Some(600), failed(-300), -300),
        ] {
            assert_eq!(after(reconciling, written, last_attempt), expected, "{what}");
        }
    }
}
