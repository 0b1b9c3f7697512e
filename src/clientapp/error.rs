//! What went wrong, and what follows from it: condition, reason, and when to try again. Pure.

use std::time::Duration;

use jiff::SignedDuration;

use super::names::Key;
use crate::{
    crd::conditions::{State, kind},
    helm::{ChartError, HelmError, HelmFailure},
};

/// A failure of one reconcile that helm has no part in.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("{operation}: {}", api_sentence(source))]
    Api {
        /// What was being done, on which object.
        operation: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// A release's storage Secret could not be read or rewritten.
    #[error("mark revision {revision} of release {release} as failed: {problem}")]
    Unlock {
        /// The release.
        release: String,
        /// The revision that stays locked.
        revision: i64,
        /// Why.
        problem: String,
    },
    /// A release could not be uninstalled.
    #[error("uninstall release {release}: {message}")]
    Uninstall {
        /// The release.
        release: Key,
        /// The class of the failure.
        refusal: Refusal,
        /// helm's sentence.
        message: String,
    },
    /// The operator is stopping.
    #[error("the operator is stopping")]
    Shutdown,
}

impl Error {
    /// Names the operation that failed.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }
}

/// The API server's own sentence where there is one: it names verb, resource and user of a refusal.
pub fn api_sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

/// When to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// When something changes; a watch tells.
    OnChange,
    /// After this time, the same every time.
    After(Duration),
    /// After the first time, doubled with every failure in a row up to the second.
    Doubling(Duration, Duration),
}

impl Retry {
    /// The time to wait after this many failures in a row (1 is the first), before jitter.
    #[must_use]
    pub fn delay(self, failures: u32) -> Option<Duration> {
        match self {
            Retry::OnChange => None,
            Retry::After(delay) => Some(delay),
            Retry::Doubling(first, most) => {
                let factor = 1u32 << failures.saturating_sub(1).min(16);
                Some(first.saturating_mul(factor).min(most))
            }
        }
    }
}

/// What follows from an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposition {
    /// The condition that says it; `None`: no condition changes.
    pub condition: Option<&'static str>,
    /// Whether that condition is known not to hold, or unknown.
    pub state: State,
    /// Its reason.
    pub reason: &'static str,
    /// Nothing goes on until somebody changes something.
    pub stalled: bool,
    /// When to try again.
    pub retry: Retry,
}

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
/// After this many failures in a row an app counts as stalled; it is still retried.
const STALLED_AFTER: u32 = 5;

impl Error {
    /// The table of design, section 4, for everything but helm.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        let of = |condition, state, reason, stalled, retry| Disposition { condition, state, reason, stalled, retry };
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Unlock { .. } => {
                of(Some(kind::RELEASED), State::False, "UnlockFailed", true, Retry::Doubling(30 * SECOND, 10 * MINUTE))
            }
            // Nobody reads failures of a deletion off a count: it is tried until it works.
            Error::Uninstall { refusal, .. } => Disposition { stalled: false, ..refusal.disposition(1) },
            Error::Shutdown => of(None, State::Unknown, "Shutdown", false, Retry::OnChange),
        }
    }
}

/// What follows from a refusal of the API server, whatever was asked of it.
#[must_use]
pub fn api_disposition(error: &kube::Error) -> Disposition {
    let of = |condition, state, reason, stalled, retry| Disposition { condition, state, reason, stalled, retry };
    match error {
        // A server-side apply of what somebody else has taken over: theirs until one of both gives in.
        kube::Error::Api(status) if status.code == 409 && status.message.contains("Apply failed with") => {
            of(Some(kind::READY), State::False, "Refused", true, Retry::After(5 * MINUTE))
        }
        kube::Error::Api(status) if status.code == 409 => {
            of(None, State::Unknown, "Conflict", false, Retry::After(SECOND))
        }
        // A namespace on its way out refuses every creation; its deletion ends the app's as well.
        kube::Error::Api(status) if status.code == 403 && status.message.contains("being terminated") => {
            of(Some(kind::READY), State::False, "NamespaceTerminating", false, Retry::After(30 * SECOND))
        }
        // Forbidden, but not for want of a right: no ClusterRole would help.
        kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota") => {
            of(Some(kind::READY), State::False, "QuotaExceeded", true, Retry::Doubling(30 * SECOND, 10 * MINUTE))
        }
        kube::Error::Api(status) if status.code == 403 => {
            of(Some(kind::READY), State::False, "AccessDenied", true, Retry::After(5 * MINUTE))
        }
        // A server-side apply of a field that the kind does not have is answered with 500.
        kube::Error::Api(status)
            if matches!(status.code, 400 | 404 | 413 | 422)
                || status.message.contains("field not declared in schema") =>
        {
            of(Some(kind::READY), State::False, "Refused", true, Retry::Doubling(30 * SECOND, 10 * MINUTE))
        }
        _ => of(Some(kind::READY), State::Unknown, "ApiUnavailable", false, Retry::Doubling(5 * SECOND, 2 * MINUTE)),
    }
}

/// Why a release is not as desired after helm was asked, as the conditions call it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The chart, or the values with it, can never work: not found, does not render, fails its schema.
    ChartInvalid,
    /// The chart archive of this version is not the one that was installed before.
    ChartDigestChanged,
    /// The chart could not be fetched.
    ChartUnavailable,
    /// The API server refused helm a verb on a resource.
    AccessDenied,
    /// A deadline passed or the network failed.
    Timeout,
    /// helm itself cannot be run.
    HelmUnavailable,
    /// Anything else helm reported.
    UpgradeFailed,
}

impl Refusal {
    const ALL: [Refusal; 7] = [
        Refusal::ChartInvalid,
        Refusal::ChartDigestChanged,
        Refusal::ChartUnavailable,
        Refusal::AccessDenied,
        Refusal::Timeout,
        Refusal::HelmUnavailable,
        Refusal::UpgradeFailed,
    ];

    /// The reason in the condition and in `status.lastAttempt`.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Refusal::ChartInvalid => "ChartInvalid",
            Refusal::ChartDigestChanged => "ChartDigestChanged",
            Refusal::ChartUnavailable => "ChartUnavailable",
            Refusal::AccessDenied => "AccessDenied",
            Refusal::Timeout => "Timeout",
            Refusal::HelmUnavailable => "HelmUnavailable",
            Refusal::UpgradeFailed => "UpgradeFailed",
        }
    }

    /// Design, section 4: what follows from it.
    #[must_use]
    pub fn disposition(self, failures: u32) -> Disposition {
        let retry = match self {
            Refusal::ChartInvalid | Refusal::ChartDigestChanged => Retry::After(30 * MINUTE),
            Refusal::AccessDenied => Retry::After(5 * MINUTE),
            Refusal::ChartUnavailable | Refusal::Timeout | Refusal::HelmUnavailable | Refusal::UpgradeFailed => {
                Retry::Doubling(30 * SECOND, 10 * MINUTE)
            }
        };
        let stalled = match self {
            Refusal::ChartInvalid | Refusal::ChartDigestChanged | Refusal::AccessDenied => true,
            Refusal::UpgradeFailed => failures >= STALLED_AFTER,
            Refusal::ChartUnavailable | Refusal::Timeout | Refusal::HelmUnavailable => false,
        };
        Disposition { condition: Some(kind::RELEASED), state: State::False, reason: self.reason(), stalled, retry }
    }

    /// The class of what helm reported.
    #[must_use]
    pub fn of_helm(failure: &HelmFailure) -> Refusal {
        match failure {
            HelmFailure::ChartInvalid
            | HelmFailure::ChartNotFound
            | HelmFailure::InvalidObject
            | HelmFailure::UnknownKind
            | HelmFailure::ReleaseTooLarge
            | HelmFailure::ResourceLimit => Refusal::ChartInvalid,
            HelmFailure::RepositoryUnavailable => Refusal::ChartUnavailable,
            HelmFailure::Forbidden { .. } => Refusal::AccessDenied,
            HelmFailure::Timeout | HelmFailure::ApiUnavailable => Refusal::Timeout,
            HelmFailure::Locked
            | HelmFailure::NotFound
            | HelmFailure::NoDeployedReleases
            | HelmFailure::NamespaceTerminating
            | HelmFailure::Admission
            | HelmFailure::Conflict
            | HelmFailure::Immutable
            | HelmFailure::HookFailed
            | HelmFailure::Quota
            | HelmFailure::Other => Refusal::UpgradeFailed,
        }
    }
}

/// Class and sentence of an error of the helm process, or `None` where the operator itself stopped it.
#[must_use]
pub fn of_helm_error(error: &HelmError) -> Option<(Refusal, String)> {
    let refusal = match error {
        HelmError::NotStarted { .. } | HelmError::Cancelled { .. } => return None,
        HelmError::Deadline { .. } => Refusal::Timeout,
        HelmError::Failed { failure, .. } => Refusal::of_helm(failure),
        HelmError::Killed { .. } => Refusal::UpgradeFailed,
        HelmError::NothingPulled => Refusal::ChartUnavailable,
        HelmError::Access { .. } | HelmError::Process { .. } | HelmError::Prepare { .. } => Refusal::HelmUnavailable,
    };
    Some((refusal, with_causes(error)))
}

/// Class and sentence of a chart that could not be had, or `None` where the operator itself stopped the attempt.
#[must_use]
pub fn of_chart_error(error: &ChartError) -> Option<(Refusal, String)> {
    let refusal = match error {
        ChartError::Pull { source, .. } => match of_helm_error(source)?.0 {
            // What went wrong on the way to a chart says nothing about the cluster.
            Refusal::Timeout | Refusal::UpgradeFailed => Refusal::ChartUnavailable,
            refusal => refusal,
        },
        ChartError::NotFound { .. }
        | ChartError::TooLarge { .. }
        | ChartError::Invalid { .. }
        | ChartError::WrongChart { .. } => Refusal::ChartInvalid,
        ChartError::DigestChanged { .. } => Refusal::ChartDigestChanged,
        ChartError::Cache { .. } => Refusal::ChartUnavailable,
    };
    Some((refusal, with_causes(error)))
}

/// An error in one sentence; a cause that the sentence contains already is not said twice.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut sentence = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !sentence.contains(&text) {
            sentence = format!("{sentence}: {text}");
        }
        cause = error.source();
    }
    sentence
}

/// A reason read back from `status.lastAttempt`, and whether it stalls the app.
#[must_use]
pub fn recorded_reason(reason: Option<&str>, failures: u32) -> (&'static str, bool) {
    let refusal =
        Refusal::ALL.into_iter().find(|refusal| Some(refusal.reason()) == reason).unwrap_or(Refusal::UpgradeFailed);
    (refusal.reason(), refusal.disposition(failures).stalled)
}

/// ±20 %, so that a fleet that failed together does not retry together. `unit` is uniform in `[0, 1)`.
#[must_use]
pub fn jitter(delay: Duration, unit: f64) -> Duration {
    delay.mul_f64(0.8 + 0.4 * unit)
}

/// The same for timestamps.
#[must_use]
pub fn jittered(delay: Duration, unit: f64) -> SignedDuration {
    SignedDuration::try_from(jitter(delay, unit)).unwrap_or(SignedDuration::MAX)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn api(code: u16, message: &str) -> Error {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        Error::api("create Secret a/b")(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn api_errors() {
        for (code, message, reason, stalled, first) in [
            (409, "the object has been modified", "Conflict", false, Some(1)),
            (
                409,
                "Apply failed with 1 conflict: conflict with \"kubectl-edit\": .spec.image",
                "Refused",
                true,
                Some(300),
            ),
            (403, "secrets is forbidden: cannot create", "AccessDenied", true, Some(300)),
            (403, "unable to create: namespace x is being terminated", "NamespaceTerminating", false, Some(30)),
            (403, "secrets \"b\" is forbidden: exceeded quota: few", "QuotaExceeded", true, Some(30)),
            (422, "is invalid", "Refused", true, Some(30)),
            (500, ".spec.imagee: field not declared in schema", "Refused", true, Some(30)),
            (429, "slow down", "ApiUnavailable", false, Some(5)),
            (500, "oops", "ApiUnavailable", false, Some(5)),
            (503, "oops", "ApiUnavailable", false, Some(5)),
        ] {
            let error = api(code, message);
            let disposition = error.disposition();
            assert_eq!((disposition.reason, disposition.stalled), (reason, stalled), "{code}");
            assert_eq!(disposition.retry.delay(1), first.map(Duration::from_secs), "{code}");
            assert_eq!(error.to_string(), format!("create Secret a/b: {message}"));
        }
    }

    #[test]
    fn refusals() {
        for (refusal, failures, stalled, delay) in [
            (Refusal::ChartInvalid, 1, true, 1800),
            (Refusal::ChartDigestChanged, 1, true, 1800),
            (Refusal::AccessDenied, 1, true, 300),
            (Refusal::Timeout, 1, false, 30),
            (Refusal::Timeout, 3, false, 120),
            (Refusal::Timeout, 40, false, 600),
            (Refusal::UpgradeFailed, 4, false, 240),
            (Refusal::UpgradeFailed, 5, true, 480),
            (Refusal::ChartUnavailable, 2, false, 60),
        ] {
            let disposition = refusal.disposition(failures);
            assert_eq!(disposition.stalled, stalled, "{refusal:?} {failures}");
            assert_eq!(disposition.retry.delay(failures), Some(Duration::from_secs(delay)), "{refusal:?} {failures}");
            assert_eq!(recorded_reason(Some(refusal.reason()), failures), (refusal.reason(), stalled));
        }
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        assert_eq!(jitter(Duration::from_secs(10), 0.0), Duration::from_secs(8));
        assert_eq!(jitter(Duration::from_secs(10), 0.5), Duration::from_secs(10));
        assert!(jitter(Duration::from_secs(10), 0.999) < Duration::from_secs(12));
    }
}
