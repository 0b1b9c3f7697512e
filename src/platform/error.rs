//! Decides what follows from a failure: which condition reports it, and when to try again. **Pure.**

use std::time::Duration;

use super::{
    api_error::{ApiErrorKind, classify},
    panic::Panic,
};
use crate::crd::{
    Reason,
    conditions::{State, Verdict, kind},
};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// Returns the API server's own message, if there is one: it names the verb, resource and user of a refusal.
pub(crate) fn api_sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// Tells what has failed in a reconcile of any kind.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconcileFailure {
    #[error("{operation}: {}", api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    #[error("{operation}: this operator is no longer the leader")]
    NotLeading { operation: String },
    #[error(transparent)]
    Panicked(Panic),
}

impl ReconcileFailure {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> ReconcileFailure {
        |source| ReconcileFailure::Api { operation: operation.into(), source: Box::new(source) }
    }
}

/// A failure of a reconcile, as a controller handles it.
pub(crate) trait ReconcileError: std::error::Error + From<ReconcileFailure> + Send + Sync + 'static {
    fn disposition(&self) -> Disposition;

    fn panicked(panic: Panic) -> Self {
        ReconcileFailure::Panicked(panic).into()
    }
}

impl ReconcileError for ReconcileFailure {
    fn disposition(&self) -> Disposition {
        match self {
            ReconcileFailure::Api { source, .. } => api_disposition(source),
            // The next leader tells what it finds.
            ReconcileFailure::NotLeading { .. } => Disposition::unreported(Reason::NotLeading, RetryPolicy::OnChange),
            ReconcileFailure::Panicked(_) => INTERNAL_ERROR,
        }
    }
}

/// The backoff while a server is away: each object tries independently, and the first after the end of an outage does within half a minute.
pub(crate) const AWAY: RetryPolicy = RetryPolicy::Doubling(SECOND, Duration::from_secs(30));

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryPolicy {
    /// When something changes, which a watch reports.
    OnChange,
    /// After this time, the same every time.
    After(Duration),
    /// After the first duration, doubled with each consecutive failure, up to the second.
    Doubling(Duration, Duration),
}

impl RetryPolicy {
    /// Returns the time to wait after this many consecutive failures (1 is the first), before jitter.
    pub(crate) fn delay(self, failures: u32) -> Option<Duration> {
        match self {
            RetryPolicy::OnChange => None,
            RetryPolicy::After(delay) => Some(delay),
            RetryPolicy::Doubling(first, limit) => {
                let factor = 1u32 << failures.saturating_sub(1).min(16);
                Some(first.saturating_mul(factor).min(limit))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Disposition {
    /// The condition that reports it; `None`: no condition changes.
    pub condition: Option<&'static str>,
    /// Says whether that condition is known not to hold, or unknown.
    pub state: State,
    pub reason: Reason,
    /// Reconciliation stops until a user or cluster admin changes something.
    pub stalled: bool,
    pub retry: RetryPolicy,
}

pub(crate) const INTERNAL_ERROR: Disposition = Disposition {
    condition: Some(kind::READY),
    state: State::Unknown,
    reason: Reason::InternalError,
    stalled: true,
    retry: RetryPolicy::Doubling(Duration::from_secs(30), Duration::from_secs(600)),
};

impl Disposition {
    /// Returns the disposition of a failure that no condition reports.
    pub(crate) fn unreported(reason: Reason, retry: RetryPolicy) -> Disposition {
        Disposition { condition: None, state: State::Unknown, reason, stalled: false, retry }
    }

    /// Returns what the condition says about this failure.
    pub(crate) fn verdict(&self, failure: &impl std::fmt::Display) -> Verdict {
        Verdict { state: self.state, reason: self.reason.into(), message: failure.to_string() }
    }
}

/// Returns what follows from a failed request to the API server.
pub(crate) fn api_disposition(error: &kube::Error) -> Disposition {
    let often = RetryPolicy::Doubling(30 * SECOND, 10 * MINUTE);
    // A repair by a cluster admin is noticed within a minute. A starting API server also refuses like this, until it knows the roles
    // and kinds.
    let soon = RetryPolicy::Doubling(5 * SECOND, MINUTE);
    let (reason, stalled, retry) = match classify(error) {
        // With this backoff, another client that keeps changing the object does not cause a storm of requests.
        ApiErrorKind::Conflict => {
            let soon = RetryPolicy::Doubling(Duration::from_millis(200), 5 * SECOND);
            return Disposition::unreported(Reason::Conflict, soon);
        }
        // Until one of the two field managers gives up the field.
        ApiErrorKind::OwnedField => (Reason::Refused, true, RetryPolicy::After(5 * MINUTE)),
        // The deletion of the namespace deletes the app as well.
        ApiErrorKind::NamespaceTerminating => (Reason::NamespaceTerminating, false, RetryPolicy::After(30 * SECOND)),
        ApiErrorKind::Quota => (Reason::QuotaExceeded, true, often),
        ApiErrorKind::Forbidden | ApiErrorKind::Admission | ApiErrorKind::Expansion => {
            (Reason::AccessDenied, true, soon)
        }
        ApiErrorKind::NotFound => (Reason::Refused, true, soon),
        ApiErrorKind::Invalid => (Reason::Refused, true, often),
        ApiErrorKind::Unavailable => (Reason::ApiUnavailable, false, AWAY),
    };
    let state = if reason == Reason::ApiUnavailable { State::Unknown } else { State::False };
    Disposition { condition: Some(kind::READY), state, reason, stalled, retry }
}

/// Varies a delay by ±20 %, so that a fleet that failed together does not retry together. `unit` is uniform in `[0, 1)`.
pub(crate) fn jitter(delay: Duration, unit: f64) -> Duration {
    delay.mul_f64(0.8 + 0.4 * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conflicts_make_no_storm() {
        let conflict = kube::Error::Api(serde_json::from_value(serde_json::json!({"code": 409})).unwrap());
        let disposition = api_disposition(&conflict);
        assert_eq!((disposition.reason, disposition.condition, disposition.stalled), (Reason::Conflict, None, false));
        let delays = [1, 2, 3, 6, 20].map(|failures| disposition.retry.delay(failures).unwrap().as_millis());
        assert_eq!(delays, [200, 400, 800, 5000, 5000]);
    }

    #[test]
    fn what_says_its_cause_is_told_by_it() {
        for (code, cause, reason, stalled, first) in [
            (409, "FieldManagerConflict", Reason::Refused, true, 300),
            (403, "NamespaceTerminating", Reason::NamespaceTerminating, false, 30),
        ] {
            let status = serde_json::json!({"code": code, "details": {"causes": [{"reason": cause}]}});
            let disposition = api_disposition(&kube::Error::Api(serde_json::from_value(status).unwrap()));
            assert_eq!((disposition.reason, disposition.stalled), (reason, stalled));
            assert_eq!(disposition.retry.delay(1), Some(Duration::from_secs(first)));
        }
    }

    #[test]
    fn a_process_that_does_not_lead_any_more_tells_nothing() {
        let disposition =
            ReconcileFailure::NotLeading { operation: "delete PerconaPGBackup ns/b".to_owned() }.disposition();
        assert_eq!((disposition.condition, disposition.retry.delay(1)), (None, None));
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        assert_eq!(jitter(Duration::from_secs(10), 0.0), Duration::from_secs(8));
        assert_eq!(jitter(Duration::from_secs(10), 0.5), Duration::from_secs(10));
        assert!(jitter(Duration::from_secs(10), 0.999) < Duration::from_secs(12));
    }
}
