//! State shared by all requests of the API.

use std::sync::Arc;

use axum::http::StatusCode;
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{auth::Auth, instances::Instances, problem::Problem, reservations::Reservations};
use crate::config::Config;

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
    /// Work in progress, which outlives the connection that has requested it.
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
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
