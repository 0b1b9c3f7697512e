//! A helm run in the gateway: what it may do, and when it is over.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use super::{
    record::Record,
    rules::{Phase, Scope},
};
use crate::lead::Lead;

pub(super) const NOT_LEADING: &str = "this operator is no longer the leader";

/// Claims a host for an Ingress of the release, or returns which other release has it.
pub(crate) type Claim = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

#[derive(derive_more::Debug)]
pub(super) struct Run {
    pub(super) scope: Scope,
    pub(super) lead: Lead,
    #[debug(skip)]
    pub(super) claim: Claim,
    /// Cancelled when helm is asked to stop.
    pub(super) stopping: CancellationToken,
    /// Cancelled when the run is over.
    pub(super) over: CancellationToken,
    pub(super) record: Mutex<Record>,
}

impl Run {
    pub(super) fn phase(&self) -> Phase {
        if self.stopping.is_cancelled() { Phase::Stopping } else { Phase::Running }
    }

    /// Waits until the run may send nothing more, and returns the reason.
    pub(super) async fn ended(&self) -> &'static str {
        tokio::select! {
            biased;
            () = self.over.cancelled() => "the helm run is over",
            () = self.lead.over() => NOT_LEADING,
        }
    }

    pub(super) fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
