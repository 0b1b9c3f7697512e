//! Records a release's tests that have ended. **Pure.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ListParams;

use crate::{
    clientapp::{
        error,
        helm_runs::TestRun,
        hold::{NAMED, join_limited},
    },
    crd::Tested,
    helm::storage::Tests,
    platform::error::{MINUTE, RetryPolicy, SECOND},
};

/// Selects the pods of a test.
pub(crate) fn pods_of(kind: &str, name: &str) -> ListParams {
    match kind {
        "Job" => ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}")),
        _ => ListParams::default().fields(&format!("metadata.name={name}")),
    }
}

/// The record of tests that have ended. `pods` says what is wrong with the pods of the first that has failed.
pub(crate) fn record(
    before: Option<&Tested>,
    test_run: &TestRun,
    tests: Result<Tests, String>,
    pods: Option<String>,
) -> Tested {
    let TestRun { revision, secret: _, secret_uid, account: _, failed, conclusive, started_at: _, at, unit } = test_run;
    let failures = before.filter(|tested| tested.secret == *secret_uid).map_or(0, |tested| tested.failures);
    let (passed, failures, message) = match (failed, tests) {
        (None, Ok(Tests { count: 0, .. })) => (true, 0, "the chart has no tests".to_owned()),
        (None, Ok(Tests { count: 1, .. })) => (true, 0, "its test has passed".to_owned()),
        (None, Ok(Tests { count, .. })) => (true, 0, format!("its {count} tests have passed")),
        (None, Err(_)) => (true, 0, "its tests have passed".to_owned()),
        (Some(message), Ok(Tests { count, failed })) if *conclusive && !failed.is_empty() => {
            let named = join_limited(failed.iter().map(|(kind, name)| format!("{kind} {name}")), NAMED);
            let why = pods.unwrap_or_else(|| message.clone());
            (false, failures + 1, format!("{} of {count} tests failed: {named}: {why}", failed.len()))
        }
        (Some(message), _) => (false, failures, format!("its tests cannot be run: {message}")),
    };
    let retry = match conclusive {
        true => RetryPolicy::Doubling(30 * SECOND, 10 * MINUTE),
        // They could not be run, for example for lack of a right.
        false => RetryPolicy::After(2 * MINUTE),
    };
    let delay = retry.delay(failures).filter(|_| !passed);
    Tested {
        secret: secret_uid.clone(),
        revision: *revision,
        passed,
        message,
        failures,
        ended_at: Some(Time(*at)),
        retry_at: delay.map(|delay| Time(*at + error::jittered(delay, *unit))),
    }
}

#[cfg(test)]
mod tests;
