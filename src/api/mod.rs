//! The HTTP API: instances on demand. It writes specs and reads status; it never runs helm, and its state is the
//! cluster's.

pub mod audit;
pub mod auth;
mod body;
mod create;
pub mod dto;
mod events;
pub mod gate;
pub mod idempotency;
mod instances;
pub mod limits;
mod names;
mod openapi;
pub mod origin;
pub mod page;
pub mod problem;
mod query;
mod refusal;
mod reservations;
mod routes;
mod selector;
pub mod serve;
pub mod settings;
pub mod tls;
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

/// What the API is made of.
pub struct Parts {
    /// The operator's way to the API server.
    pub client: Client,
    /// The same for watches, which are silent for long.
    pub watch_client: Client,
    /// Settings.
    pub config: Arc<Config>,
    /// Who may do what.
    pub auth: Auth,
    /// The operator's own namespace; no instance is made in it.
    pub namespace: String,
}

/// What every request shares.
pub struct Shared {
    client: Client,
    watch_client: Client,
    config: Arc<Config>,
    auth: Auth,
    namespace: String,
    instances: Arc<Instances>,
    reservations: Arc<Reservations>,
    /// What is under way, whatever becomes of the connection that asked for it.
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Shared {
    /// Carries something out to its end, though who asked for it may hang up.
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
pub fn router(parts: Parts, tasks: &TaskTracker, stop: &CancellationToken) -> Router {
    let Parts { client, watch_client, config, auth, namespace } = parts;
    let instances = Instances::start(&watch_client, tasks, stop);
    let shared = Arc::new(Shared {
        client,
        watch_client,
        config,
        auth,
        namespace,
        instances,
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
