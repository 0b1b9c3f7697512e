//! Represents a helm run in the gateway: its rights, its record and its end.

use axum::http::Response;
use kube::client::Body;
use parking_lot::Mutex;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    record::Record,
    rules::{RunPhase, RunScope},
};
use crate::{helm::storage::Stored, leadership::Leadership};

const OVER: &str = "the helm run is over";
pub(super) const NOT_LEADING: &str = "this operator is no longer the leader";

/// Claims a host for an Ingress of the release, or returns which other release has it.
pub(crate) type Claim = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// Returns why a revision may not be made, although the chart renders: helm is about to store it, and has changed nothing yet. Fails if
/// the revision cannot be read.
pub(crate) type Review = Box<dyn Fn(&Stored) -> Result<Option<String>, String> + Send + Sync>;

#[derive(derive_more::Debug)]
pub(super) struct Run {
    pub(super) scope: RunScope,
    pub(super) lead: Leadership,
    #[debug(skip)]
    pub(super) claim: Claim,
    /// `None`: every revision may be made.
    #[debug(skip)]
    pub(super) review: Option<Review>,
    /// Cancelled when helm is asked to stop.
    pub(super) stopping: CancellationToken,
    /// Cancelled when the run is over.
    pub(super) over: CancellationToken,
    pub(super) record: Mutex<Record>,
    /// The writes that the API server has not answered yet.
    pub(super) writes: TaskTracker,
}

impl Run {
    pub(super) fn phase(&self) -> RunPhase {
        if self.stopping.is_cancelled() { RunPhase::Stopping } else { RunPhase::Running }
    }

    /// Waits until the run may send nothing more, and returns the reason.
    pub(super) async fn ended(&self) -> &'static str {
        tokio::select! {
            biased;
            () = self.over.cancelled() => OVER,
            () = self.lead.lost() => NOT_LEADING,
        }
    }

    /// Completes a write: waits until the API server has answered it, even if helm has ended by then, unless the operator does not lead
    /// any more. Cut off before, it could take effect after the operator has acted on the end of the run.
    pub(super) async fn complete_write(
        &self,
        sending: impl Future<Output = Result<Response<Body>, String>> + Send + 'static,
    ) -> Result<Response<Body>, String> {
        let (lead, under_way) = (self.lead.clone(), self.writes.token());
        // Asked after the token was taken, so that either this write is not sent, or the end of the run waits for it.
        if self.over.is_cancelled() {
            return Err(OVER.to_owned());
        }
        let sent = tokio::spawn(async move {
            let _under_way = under_way;
            tokio::select! {
                biased;
                () = lead.lost() => Err(NOT_LEADING.to_owned()),
                answer = sending => answer,
            }
        });
        sent.await.unwrap_or_else(|error| Err(error.to_string()))
    }
}
