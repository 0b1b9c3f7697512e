//! What went wrong in a reconcile, and what follows from it. Pure.

use std::time::Duration;

use crate::{
    controller::{
        error::{Disposition, INTERNAL_ERROR, Retry, api_disposition, api_sentence},
        key::Key,
        panic::Panic,
    },
    crd::conditions::{State, kind},
    destroy,
};

/// A failure of one reconcile.
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
    /// An object of a name that is needed is somebody else's, and carries no label by which it could be watched.
    #[error("{object} belongs to {owner} and is not touched: rename this Postgresql, or that")]
    NotOurs {
        /// Kind and name.
        object: String,
        /// Whose it is, in words.
        owner: String,
    },
    /// A volume is there from before. A server would begin with what is on it.
    #[error(
        "PersistentVolumeClaim {claim} is there already and belongs to {owner}: delete it, or hand it over with `kubectl label pvc {claim} -n {namespace} {label}={uid}`"
    )]
    VolumeNotOurs {
        /// The claim.
        claim: String,
        /// Its namespace.
        namespace: String,
        /// Whose it was, in words.
        owner: String,
        /// The label that hands it over.
        label: &'static str,
        /// Value of that label.
        uid: String,
    },
    /// This process does not lead any more: another one acts.
    #[error("{operation}: this process does not lead any more")]
    NotLeading {
        /// What was to be done, on which object.
        operation: String,
    },
    /// A StorageClass does not let volumes grow.
    #[error(
        "PersistentVolumeClaim {claim} cannot grow to {to}: {problem}; set the size back, or let its StorageClass allow it (allowVolumeExpansion)"
    )]
    Expansion {
        /// The claim.
        claim: String,
        /// The size that was asked for.
        to: String,
        /// The API server's words.
        problem: String,
    },
    /// The Postgresql is gone, and did not wait for its teardown.
    #[error("Postgresql {0} is gone")]
    Gone(Key),
    /// The reconcile has panicked.
    #[error(transparent)]
    Panicked(Panic),
}

impl Error {
    /// Names the operation that failed.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }

    /// A step of a deletion that was not taken.
    pub fn destroy(error: destroy::Error) -> Error {
        match error {
            destroy::Error::Api { operation, source } => Error::Api { operation, source },
            destroy::Error::NotLeading { operation } => Error::NotLeading { operation },
        }
    }

    /// Condition, reason, and when to try again.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        let stalled = |reason, minutes: u64| Disposition {
            condition: Some(kind::READY),
            state: State::False,
            reason,
            stalled: true,
            retry: Retry::After(Duration::from_secs(60 * minutes)),
        };
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Panicked(_) => INTERNAL_ERROR,
            // Nothing tells when it is gone.
            Error::NotOurs { .. } | Error::VolumeNotOurs { .. } => stalled("NotOurs", 1),
            Error::NotLeading { .. } => Disposition {
                condition: None,
                state: State::Unknown,
                reason: "NotLeading",
                stalled: false,
                retry: Retry::OnChange,
            },
            Error::Gone(_) => Disposition {
                condition: None,
                state: State::Unknown,
                reason: "Gone",
                stalled: false,
                retry: Retry::OnChange,
            },
            Error::Expansion { .. } => stalled("ExpansionNotAllowed", 5),
        }
    }
}
