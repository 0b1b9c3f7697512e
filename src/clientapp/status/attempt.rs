//! An attempt to install or upgrade a release, as it is recorded: before helm runs, and with its outcome. **Pure.**

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    clientapp::{
        error::{self, Refusal},
        observed::types::CachedChart,
        spec::desired::Desired,
    },
    crd::{Attempt, ClientAppStatus, InstalledChart},
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
    let failures = |attempt: &Attempt| attempt.failures + u32::from(left_its_lock && attempt.retry_at.is_none());
    Attempt {
        digest: desired.target().digest.clone(),
        started_at: Time(now),
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
