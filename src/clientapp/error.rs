//! Defines what can fail, and what follows: condition, reason, and when to try again. Pure.

use std::time::Duration;

use jiff::SignedDuration;

use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    helm::{ChartError, HelmError, HelmFailure},
    platform::{
        controller::ReconcileError,
        error::{
            Disposition, INTERNAL_ERROR, MINUTE, ReconcileFailure, RetryPolicy, SECOND, api_disposition, api_sentence,
            jitter,
        },
        key::Key,
        panic::Panic,
    },
};

/// An invalid spec, with the field at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub(crate) struct InvalidSpec {
    pub reason: Reason,
    /// Path of the field, such as `spec.hostname`.
    pub field: &'static str,
    /// Holds what is wrong with it, and what would be valid.
    pub problem: String,
}

pub(crate) fn invalid(field: &'static str, problem: impl Into<String>) -> InvalidSpec {
    InvalidSpec { reason: Reason::InvalidSpec, field, problem: problem.into() }
}

/// A failure of one reconcile outside helm.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{operation}: {}", api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    /// A release's storage Secret could not be read or rewritten.
    #[error("mark revision {revision} of release {release} as failed: {problem}")]
    Unlock { release: String, revision: i64, problem: String },
    /// A revision to go back to cannot be read.
    #[error("roll release {release} back to revision {revision}: {problem}; change the spec to go on")]
    Stored { release: String, revision: i64, problem: String },
    #[error("uninstall release {release}: {message}")]
    Uninstall { release: Key, refusal: Refusal, message: String },
    /// The ClientApp is gone without a teardown.
    #[error("ClientApp {0} is gone")]
    Gone(Key),
    #[error(transparent)]
    Panicked(Panic),
    #[error("the operator is stopping")]
    Shutdown,
}

impl From<ReconcileFailure> for Error {
    fn from(failure: ReconcileFailure) -> Self {
        match failure {
            ReconcileFailure::Api { operation, source } => Error::Api { operation, source },
            // The new leader continues.
            ReconcileFailure::NotLeading { .. } => Error::Shutdown,
            ReconcileFailure::Panicked(panic) => Error::Panicked(panic),
        }
    }
}

impl Error {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }
}

/// After this many failures in a row an app counts as stalled; it is still retried.
const STALLED_AFTER: u32 = 5;

impl ReconcileError for Error {
    fn disposition(&self) -> Disposition {
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Unlock { .. } | Error::Stored { .. } => Disposition {
                condition: Some(kind::RELEASED),
                state: State::False,
                reason: if matches!(self, Error::Stored { .. }) { Reason::UpgradeFailed } else { Reason::UnlockFailed },
                stalled: true,
                retry: RetryPolicy::Doubling(30 * SECOND, 10 * MINUTE),
            },
            // Failures of a deletion are not counted: the uninstall is tried until it succeeds.
            Error::Uninstall { refusal, .. } => Disposition { stalled: false, ..refusal.disposition(1) },
            Error::Panicked(_) => INTERNAL_ERROR,
            Error::Gone(_) => Disposition::unreported(Reason::Gone, RetryPolicy::OnChange),
            Error::Shutdown => Disposition::unreported(Reason::Shutdown, RetryPolicy::OnChange),
        }
    }
}

/// Says why a release is not as desired after helm was asked to run: one variant for each reason in the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The chart, or its values, can never work: the chart is not found, does not render, or its schema rejects the values.
    ChartInvalid,
    /// The chart archive differs from the one that was installed as this version before.
    ChartDigestChanged,
    /// No key of the keyring has signed the chart as it is.
    ChartSignatureInvalid,
    ChartUnavailable,
    /// The revision has no place for a volume with the app's data, and was not made.
    VolumeDropped,
    /// The API server refused helm a verb on a resource.
    AccessDenied,
    Timeout,
    HelmUnavailable,
    UpgradeFailed,
    /// `helm uninstall` could not delete an object of the release, and does not say which.
    NotDeleted,
}

impl Refusal {
    /// Those of an upgrade.
    const ALL: [Refusal; 9] = [
        Refusal::ChartInvalid,
        Refusal::ChartDigestChanged,
        Refusal::ChartSignatureInvalid,
        Refusal::ChartUnavailable,
        Refusal::VolumeDropped,
        Refusal::AccessDenied,
        Refusal::Timeout,
        Refusal::HelmUnavailable,
        Refusal::UpgradeFailed,
    ];

    /// Returns the reason in the condition and in `status.lastAttempt`.
    pub(crate) fn reason(self) -> Reason {
        match self {
            Refusal::ChartInvalid => Reason::ChartInvalid,
            Refusal::ChartDigestChanged => Reason::ChartDigestChanged,
            Refusal::ChartSignatureInvalid => Reason::ChartSignatureInvalid,
            Refusal::ChartUnavailable => Reason::ChartUnavailable,
            Refusal::VolumeDropped => Reason::VolumeDropped,
            Refusal::AccessDenied => Reason::AccessDenied,
            Refusal::Timeout => Reason::Timeout,
            Refusal::HelmUnavailable => Reason::HelmUnavailable,
            Refusal::UpgradeFailed | Refusal::NotDeleted => Reason::UpgradeFailed,
        }
    }

    /// Returns the condition, and when to try again.
    pub(crate) fn disposition(self, failures: u32) -> Disposition {
        let retry = match self {
            // What is repaired elsewhere (a chart is published, a kind or a right is added) is noticed after at most as long as it
            // was missing, and an app that stays broken costs little.
            Refusal::ChartInvalid | Refusal::ChartDigestChanged | Refusal::ChartSignatureInvalid => {
                RetryPolicy::Doubling(MINUTE, 30 * MINUTE)
            }
            Refusal::VolumeDropped => RetryPolicy::OnChange,
            // Each attempt is a revision.
            Refusal::AccessDenied => RetryPolicy::Doubling(MINUTE, 5 * MINUTE),
            Refusal::ChartUnavailable
            | Refusal::Timeout
            | Refusal::HelmUnavailable
            | Refusal::UpgradeFailed
            | Refusal::NotDeleted => RetryPolicy::Doubling(30 * SECOND, 10 * MINUTE),
        };
        let stalled = match self {
            Refusal::ChartInvalid
            | Refusal::ChartDigestChanged
            | Refusal::ChartSignatureInvalid
            | Refusal::VolumeDropped
            | Refusal::AccessDenied => true,
            Refusal::UpgradeFailed | Refusal::NotDeleted => failures >= STALLED_AFTER,
            Refusal::ChartUnavailable | Refusal::Timeout | Refusal::HelmUnavailable => false,
        };
        Disposition { condition: Some(kind::RELEASED), state: State::False, reason: self.reason(), stalled, retry }
    }

    pub(crate) fn of_helm(failure: &HelmFailure) -> Refusal {
        match failure {
            HelmFailure::ChartInvalid
            | HelmFailure::ChartNotFound
            | HelmFailure::InvalidObject
            | HelmFailure::Immutable
            | HelmFailure::UnknownKind
            | HelmFailure::ReleaseTooLarge
            | HelmFailure::ResourceLimit => Refusal::ChartInvalid,
            HelmFailure::RepositoryUnavailable => Refusal::ChartUnavailable,
            HelmFailure::SignatureInvalid => Refusal::ChartSignatureInvalid,
            HelmFailure::Forbidden { .. } => Refusal::AccessDenied,
            HelmFailure::Timeout | HelmFailure::ApiUnavailable => Refusal::Timeout,
            HelmFailure::NotDeleted => Refusal::NotDeleted,
            HelmFailure::Locked
            | HelmFailure::NotFound
            | HelmFailure::NoDeployedReleases
            | HelmFailure::NamespaceTerminating
            | HelmFailure::Admission
            | HelmFailure::Conflict
            | HelmFailure::HookFailed
            | HelmFailure::Quota
            | HelmFailure::Other => Refusal::UpgradeFailed,
        }
    }
}

/// Returns class and message of an error of the helm process; `None` if the operator itself stopped it.
pub(crate) fn of_helm_error(error: &HelmError) -> Option<(Refusal, String)> {
    let refusal = match error {
        HelmError::NotStarted { .. } | HelmError::Cancelled { .. } => return None,
        HelmError::Deadline { .. } => Refusal::Timeout,
        HelmError::Failed { failure, .. } => Refusal::of_helm(failure),
        HelmError::Killed { .. } => Refusal::UpgradeFailed,
        HelmError::NotListed { .. } => Refusal::ChartInvalid,
        HelmError::Credentials { .. } | HelmError::Index { .. } | HelmError::NothingPulled => Refusal::ChartUnavailable,
        HelmError::Process { .. } | HelmError::Prepare { .. } => Refusal::HelmUnavailable,
    };
    Some((refusal, with_causes(error)))
}

/// Returns true if a failure of `helm test` is that of a test: it has failed, or took too long. **Pure.**
pub(crate) fn is_of_test(error: &HelmError) -> bool {
    match error {
        HelmError::Deadline { .. } => true,
        HelmError::Failed { failure, .. } => {
            matches!(failure, HelmFailure::Timeout | HelmFailure::Other)
        }
        _ => false,
    }
}

/// Returns class and message of a helm run that panicked.
pub(crate) fn panicked() -> (Refusal, String) {
    (Refusal::UpgradeFailed, "internal error of the operator: report it with the operator's log".to_owned())
}

/// Returns class and message of a failure to get a chart; `None` if the operator itself stopped the attempt.
pub(crate) fn of_chart_error(error: &ChartError) -> Option<(Refusal, String)> {
    let refusal = match error {
        ChartError::Pull { source, .. } => match of_helm_error(source)?.0 {
            // A failure to get a chart says nothing about the cluster.
            Refusal::Timeout | Refusal::UpgradeFailed => Refusal::ChartUnavailable,
            refusal => refusal,
        },
        ChartError::NotFound { .. }
        | ChartError::TooLarge { .. }
        | ChartError::Invalid { .. }
        | ChartError::WrongChart { .. }
        | ChartError::NotAsListed { .. } => Refusal::ChartInvalid,
        ChartError::DigestChanged { .. } => Refusal::ChartDigestChanged,
        ChartError::Cache { .. } => Refusal::ChartUnavailable,
    };
    Some((refusal, with_causes(error)))
}

/// Returns an error in one sentence; a cause that the sentence already contains is not repeated.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
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

/// Returns a reason read back from `status.lastAttempt`, and whether it stalls the app.
pub(crate) fn recorded_reason(reason: Option<&str>, failures: u32) -> (Reason, bool) {
    let reason = reason.and_then(Reason::parse);
    let refusal =
        Refusal::ALL.into_iter().find(|refusal| Some(refusal.reason()) == reason).unwrap_or(Refusal::UpgradeFailed);
    (refusal.reason(), refusal.disposition(failures).stalled)
}

/// Returns a delay with jitter, to add to a timestamp.
pub(crate) fn jittered(delay: Duration, unit: f64) -> SignedDuration {
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
            (403, "secrets is forbidden: cannot create", "AccessDenied", true, Some(5)),
            (403, "secrets \"b\" is forbidden: exceeded quota: few", "QuotaExceeded", true, Some(30)),
            (422, "is invalid", "Refused", true, Some(30)),
            (500, ".spec.imagee: field not declared in schema", "Refused", true, Some(30)),
            (429, "slow down", "ApiUnavailable", false, Some(1)),
            (500, "oops", "ApiUnavailable", false, Some(1)),
            (503, "oops", "ApiUnavailable", false, Some(1)),
        ] {
            let error = api(code, message);
            let disposition = error.disposition();
            assert_eq!((disposition.reason.as_str(), disposition.stalled), (reason, stalled), "{code}");
            assert_eq!(disposition.retry.delay(1), first.map(Duration::from_secs), "{code}");
            assert_eq!(error.to_string(), format!("create Secret a/b: {message}"));
        }
    }

    #[test]
    fn charts() {
        let version = || semver::Version::new(5, 5, 2);
        let pull = |source| ChartError::Pull {
            chart: "nextcloud".parse().unwrap(),
            version: version(),
            source: Box::new(source),
        };
        let not_listed = HelmError::NotListed {
            chart: "nextcloud".parse().unwrap(),
            version: version(),
            repository: "https://charts.example.com".to_owned(),
        };
        let replaced = ChartError::NotAsListed {
            chart: "nextcloud".parse().unwrap(),
            version: version(),
            listed: "a".to_owned(),
            found: "b".to_owned(),
        };
        for (error, refusal) in [
            (pull(not_listed), Refusal::ChartInvalid),
            (pull(HelmError::NothingPulled), Refusal::ChartUnavailable),
            (replaced, Refusal::ChartInvalid),
        ] {
            assert_eq!(of_chart_error(&error).unwrap(), (refusal, error.to_string()));
        }
    }

    #[test]
    fn refusals() {
        for (refusal, failures, stalled, delay) in [
            (Refusal::ChartInvalid, 1, true, 60),
            (Refusal::ChartInvalid, 40, true, 1800),
            (Refusal::ChartDigestChanged, 2, true, 120),
            (Refusal::ChartSignatureInvalid, 1, true, 60),
            (Refusal::AccessDenied, 1, true, 60),
            (Refusal::AccessDenied, 4, true, 300),
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
            assert_eq!(recorded_reason(Some(refusal.reason().as_str()), failures), (refusal.reason(), stalled));
        }
    }
}
