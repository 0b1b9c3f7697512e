//! State shared by all requests of the API.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use kube::Client;
use tokio::{
    sync::{Semaphore, SemaphorePermit},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{auth::Auth, instances::Instances, problem::Problem, refusal::SOON, reservations::Reservations};
use crate::config::Config;

/// Instances that are created at the same time; other requests wait. If hundreds were, the API server would answer none in time.
const CREATIONS: usize = 16;
/// For how long a request waits for a place; less than most proxies wait for an answer.
const PATIENCE: Duration = Duration::from_secs(45);

pub(crate) struct ApiParts {
    pub(crate) client: Client,
    /// A client for watches, which may be silent for long.
    pub(crate) watch_client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) auth: Auth,
    /// The operator's own namespace, in which no instance may be created.
    pub(crate) namespace: String,
}

pub(crate) struct ApiState {
    pub(super) parts: ApiParts,
    pub(super) instances: Arc<Instances>,
    pub(super) reservations: Arc<Reservations>,
    pub(super) creations: Creations,
    /// Work in progress, which outlives the connection that has requested it.
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

/// The places of the instances that are being created.
pub(super) struct Creations {
    places: Semaphore,
    patience: Duration,
}

impl Default for Creations {
    fn default() -> Self {
        Creations { places: Semaphore::new(CREATIONS), patience: PATIENCE }
    }
}

impl Creations {
    /// Waits for a place, which is free again when it is dropped. 503 if that takes too long, or the operator stops before.
    pub(super) async fn place(&self, stop: &CancellationToken) -> Result<SemaphorePermit<'_>, Problem> {
        let free = timeout(self.patience, self.places.acquire());
        let refused = |reason, detail| Problem::new(StatusCode::SERVICE_UNAVAILABLE, reason, detail).retry_after(SOON);
        match stop.run_until_cancelled(free).await {
            Some(Ok(Ok(place))) => Ok(place),
            Some(_) => Err(refused(
                "Busy",
                "other instances are being created, and nothing was created for this request: try again",
            )),
            None => Err(refused("Stopping", "the operator is stopping, and nothing was created: try again")),
        }
    }
}

impl ApiState {
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

    #[tokio::test]
    async fn a_creation_waits_for_a_place_and_not_for_ever() {
        let (creations, stop) = (Creations::default(), CancellationToken::new());
        let place = || creations.place(&stop);
        let mut taken: Vec<_> = (0..CREATIONS).map(|_| place().now_or_never().unwrap().unwrap()).collect();
        let mut next = Box::pin(place());
        assert!(next.as_mut().now_or_never().is_none());
        drop(taken.pop());
        taken.push(next.await.unwrap());
        let creations = Creations { places: Semaphore::new(0), patience: Duration::ZERO };
        let refused = creations.place(&stop).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.reason), (503, "Busy"));
        stop.cancel();
        let refused = creations.place(&stop).await.unwrap_err();
        assert_eq!((refused.status().as_u16(), refused.reason), (503, "Stopping"));
    }
}
