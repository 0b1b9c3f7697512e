//! What every request of the API shares.

use std::sync::Arc;

use axum::http::StatusCode;
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use super::{auth::Auth, instances::Instances, problem::Problem, reservations::Reservations};
use crate::config::Config;

pub(crate) struct Parts {
    pub(crate) client: Client,
    /// The same for watches, which are silent for long.
    pub(crate) watch_client: Client,
    pub(crate) config: Arc<Config>,
    pub(crate) auth: Auth,
    /// The operator's own namespace; no instance is made in it.
    pub(crate) namespace: String,
}

/// What every request shares.
pub(crate) struct Shared {
    pub(super) parts: Parts,
    pub(super) instances: Arc<Instances>,
    pub(super) reservations: Arc<Reservations>,
    /// What is under way, whatever becomes of the connection that asked for it.
    pub(super) tasks: TaskTracker,
    pub(super) stop: CancellationToken,
}

impl Shared {
    /// Carries something out to its end, though the client that asked for it may hang up.
    pub(super) async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        self.tasks.spawn(work.in_current_span()).await.unwrap_or_else(|_| {
            let detail = "the operator failed at this; its log says why";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", detail))
        })
    }
}
