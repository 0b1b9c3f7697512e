//! Defines what can go wrong, and what follows from it. Pure.

use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    platform::{
        controller::ReconcileError,
        error::{Disposition, INTERNAL_ERROR, RetryPolicy, api_disposition, api_sentence},
        panic::Panic,
    },
};

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{operation}: {}", api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Panicked(Panic),
}

impl Error {
    pub(super) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }
}

impl ReconcileError for Error {
    fn disposition(&self) -> Disposition {
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Panicked(_) => INTERNAL_ERROR,
            Error::Invalid(_) => Disposition {
                condition: Some(kind::READY),
                state: State::False,
                reason: Reason::InvalidSpec,
                stalled: Reason::InvalidSpec.stalled(),
                retry: RetryPolicy::OnChange,
            },
        }
    }

    fn panicked(panic: Panic) -> Error {
        Error::Panicked(panic)
    }
}
