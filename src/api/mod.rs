//! The HTTP API: instances on demand. It writes specs and reads status; it never runs helm, and its state is the
//! cluster's.

pub mod auth;
mod body;
mod create;
mod dto;
mod events;
mod gate;
pub mod idempotency;
mod instances;
mod limits;
mod names;
mod openapi;
mod origin;
pub mod page;
mod problem;
mod query;
mod refusal;
mod reservations;
mod routes;
mod selector;
pub(crate) mod serve;
pub mod settings;
mod tls;
mod words;

use std::sync::Arc;

use axum::{
    Router,
    http::{Method, StatusCode, Uri},
    routing::get,
};
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{auth::Auth, instances::Instances, problem::Problem, reservations::Reservations};
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
    parts: Parts,
    instances: Arc<Instances>,
    reservations: Arc<Reservations>,
    /// What is under way, whatever becomes of the connection that asked for it.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    /// Carries something out to its end, though the client that asked for it may hang up.
    async fn to_the_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Problem>> + Send + 'static,
    ) -> Result<T, Problem> {
        self.tasks.spawn(work.in_current_span()).await.unwrap_or_else(|_| {
            let detail = "the operator failed at this; its log says why";
            Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", detail))
        })
    }
}

/// The routes. What they watch ends with `stop`; what they have begun is in `tasks`.
pub(crate) fn router(parts: Parts, tasks: &TaskTracker, stop: &CancellationToken) -> Router {
    let shared = Arc::new(Shared {
        instances: Instances::start(&parts.watch_client, tasks, stop),
        parts,
        reservations: Arc::default(),
        tasks: tasks.clone(),
        stop: stop.clone(),
    });
    Router::new()
        .merge(routes::routes())
        .merge(page::routes())
        .route("/openapi.json", get(openapi::document))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(shared)
}

async fn no_such_path(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; /openapi.json tells what there is", uri.path());
    Problem::new(StatusCode::NOT_FOUND, "NotFound", detail)
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not possible at {}; /openapi.json tells what is", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", detail)
}
