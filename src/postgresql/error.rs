//! Errors of a reconcile, and how the controller handles them. Pure.

use std::time::Duration;

use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    platform::{
        error::{Disposition, INTERNAL_ERROR, ReconcileError, ReconcileFailure, RetryPolicy},
        key::Key,
    },
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Failed(#[from] ReconcileFailure),
    /// An object with a name that this Postgresql needs has another owner, and has no label by which it could be watched.
    #[error("{object} belongs to {owner} and is not touched: rename this Postgresql or that object")]
    NotOurs { object: String, owner: String },
    /// The volume existed before this Postgresql. A server would start with the data on it.
    #[error(
        "PersistentVolumeClaim {claim} already exists and belongs to {owner}: delete it, or hand it over with `kubectl label pvc {claim} -n {namespace} {label}={uid}`"
    )]
    VolumeNotOurs { claim: String, namespace: String, owner: String, label: &'static str, uid: String },
    #[error(
        "PersistentVolumeClaim {claim} cannot grow to {to}: {problem}; set the size back, or let its StorageClass allow it (allowVolumeExpansion)"
    )]
    Expansion { claim: String, to: String, problem: String },
    #[error("cannot create the servers' certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The Postgresql is gone without its teardown.
    #[error("Postgresql {0} is gone")]
    Gone(Key),
}

impl Error {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| ReconcileFailure::api(operation)(source).into()
    }

    /// Returns true if a request may have been carried out, as its answer is lost.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Error::Failed(ReconcileFailure::Api { source, .. }) if !matches!(**source, kube::Error::Api(_)))
    }
}

impl ReconcileError for Error {
    fn disposition(&self) -> Disposition {
        let stalled = |reason, minutes: u64| Disposition {
            condition: Some(kind::READY),
            state: State::False,
            reason,
            stalled: true,
            retry: RetryPolicy::After(Duration::from_secs(60 * minutes)),
        };
        match self {
            Error::Failed(failure) => failure.disposition(),
            Error::Certificate(_) => INTERNAL_ERROR,
            // No watch shows when the object is gone.
            Error::NotOurs { .. } | Error::VolumeNotOurs { .. } => stalled(Reason::NotOurs, 1),
            Error::Gone(_) => Disposition::unreported(Reason::Gone, RetryPolicy::OnChange),
            Error::Expansion { .. } => stalled(Reason::ExpansionNotAllowed, 5),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unanswered_requests_may_have_taken_effect() {
        let refused = kube::Error::Api(serde_json::from_value(json!({"code": 500})).unwrap());
        let lost = kube::Error::SerdeError(serde_json::from_str::<u8>("").unwrap_err());
        for (source, unanswered) in [(refused, false), (lost, true)] {
            assert_eq!(Error::api("apply StatefulSet ns/acme")(source).is_unanswered(), unanswered);
        }
        assert!(!Error::from(ReconcileFailure::NotLeading { operation: "apply".to_owned() }).is_unanswered());
    }
}
