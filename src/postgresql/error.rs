//! Errors of a reconcile, and how the controller handles them. Pure.

use std::time::Duration;

use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    deletion,
    platform::{
        controller::ReconcileError,
        error::{Disposition, INTERNAL_ERROR, RetryPolicy, api_disposition, api_sentence},
        key::Key,
        panic::Panic,
    },
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{operation}: {}", api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    /// An object with a name that this Postgresql needs has another owner, and has no label by which it could be watched.
    #[error("{object} belongs to {owner} and is not touched: rename this Postgresql or that object")]
    NotOurs { object: String, owner: String },
    /// The volume existed before this Postgresql. A server would start with the data on it.
    #[error(
        "PersistentVolumeClaim {claim} already exists and belongs to {owner}: delete it, or hand it over with `kubectl label pvc {claim} -n {namespace} {label}={uid}`"
    )]
    VolumeNotOurs { claim: String, namespace: String, owner: String, label: &'static str, uid: String },
    #[error("{operation}: this operator is no longer the leader")]
    NotLeading { operation: String },
    #[error(
        "PersistentVolumeClaim {claim} cannot grow to {to}: {problem}; set the size back, or let its StorageClass allow it (allowVolumeExpansion)"
    )]
    Expansion { claim: String, to: String, problem: String },
    #[error("cannot create the servers' certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// The Postgresql is gone without its teardown.
    #[error("Postgresql {0} is gone")]
    Gone(Key),
    #[error(transparent)]
    Panicked(Panic),
}

impl Error {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }

    /// Returns true if a request may have been carried out, as its answer is lost.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Error::Api { source, .. } if !matches!(**source, kube::Error::Api(_)))
    }

    pub(crate) fn destroy(error: deletion::Error) -> Error {
        match error {
            deletion::Error::Api { operation, source } => Error::Api { operation, source },
            deletion::Error::NotLeading { operation } => Error::NotLeading { operation },
        }
    }
}

impl ReconcileError for Error {
    fn panicked(panic: Panic) -> Self {
        Error::Panicked(panic)
    }

    fn disposition(&self) -> Disposition {
        let stalled = |reason, minutes: u64| Disposition {
            condition: Some(kind::READY),
            state: State::False,
            reason,
            stalled: true,
            retry: RetryPolicy::After(Duration::from_secs(60 * minutes)),
        };
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Panicked(_) | Error::Certificate(_) => INTERNAL_ERROR,
            // No watch shows when the object is gone.
            Error::NotOurs { .. } | Error::VolumeNotOurs { .. } => stalled(Reason::NotOurs, 1),
            Error::NotLeading { .. } => Disposition::unreported(Reason::NotLeading, RetryPolicy::OnChange),
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
        assert!(!Error::NotLeading { operation: "apply".to_owned() }.is_unanswered());
    }
}
