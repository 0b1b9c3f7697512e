//! State shared by all requests of the API.

use std::sync::Arc;

use axum::http::StatusCode;
use kube::Client;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{auth::Auth, instances::Instances, problem::Problem, refusal::SOON, reservations::Reservations};
use crate::config::Config;

/// Instances that are created at the same time; others wait. If hundreds were, the API server would answer none in time.
const CREATIONS: usize = 16;

pub(crate) struct Parts {
    pub(crate) client: Client,
    /// A client for watches, which may be silent for long.
    pub(crate) watch_client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) auth: Auth,
    /// The operator's own namespace, in which no instance may be created.
    pub(crate) namespace: String,
}

pub(crate) struct Shared {
    pub(super) parts: Parts,
    pub(super) instances: Arc<Instances>,
    pub(super) reservations: Arc<Reservations>,
    pub(super) creations: Creations,
    /// Work in progress, which outlives the connection that has requested it.
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

/// The instances that are being created.
pub(super) struct Creations(Semaphore);

impl Default for Creations {
    fn default() -> Self {
        Creations(Semaphore::new(CREATIONS))
    }
}

impl Creations {
    /// Waits until another instance may be created; 503 if the operator stops before.
    pub(super) async fn turn(&self, stop: &CancellationToken) -> Result<SemaphorePermit<'_>, Problem> {
        let turn = stop.run_until_cancelled(self.0.acquire()).await;
        turn.and_then(Result::ok).ok_or_else(|| {
            let detail = "the operator is stopping, and nothing was created: try again";
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Stopping", detail).retry_after(SOON)
        })
    }
}

impl Shared {
    /// Runs work to its end, even if the client disconnects.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        self.tasks.spawn(work.in_current_span()).await.unwrap_or_else(|_| {
            let detail = "the operator failed to handle the request; its log says why";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", detail))
        })
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn a_creation_waits_for_its_turn_unless_the_operator_stops() {
        let (creations, stop) = (Creations::default(), CancellationToken::new());
        let turn = || creations.turn(&stop);
        let mut under_way: Vec<_> = (0..CREATIONS).map(|_| turn().now_or_never().unwrap().unwrap()).collect();
        let mut next = Box::pin(turn());
        assert!(next.as_mut().now_or_never().is_none());
        drop(under_way.pop());
        under_way.push(next.now_or_never().unwrap().unwrap());
        stop.cancel();
        let refused = turn().now_or_never().unwrap().unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.reason), (503, "Stopping"));
    }
}
