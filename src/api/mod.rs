//! The HTTP API: instances on demand. It writes specs and reads status; it never runs helm, and its state is the
//! cluster's.

pub mod audit;
pub mod auth;
mod body;
mod create;
pub mod dto;
mod events;
mod idempotency;
mod instances;
mod names;
mod openapi;
pub mod page;
pub mod problem;
mod query;
mod refusal;
mod reservations;
mod routes;
mod selector;
mod words;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{Request, State},
    http::{Method, StatusCode, Uri},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::get,
};
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{auth::Auth, instances::Instances, problem::Problem, reservations::Reservations};
use crate::config::Config;

/// How long connections may take to end once the operator stops.
const GRACE: Duration = Duration::from_secs(10);

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
        self.tasks.spawn(work).await.unwrap_or_else(|_| {
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
    let instances = routes::routes().layer(from_fn_with_state(shared.clone(), authenticated));
    Router::new()
        .merge(instances)
        .merge(page::routes())
        .route("/openapi.json", get(openapi::document))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(shared)
}

/// Serves until `stop`, and until everything is complete that was begun.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, parts: Parts, stop: CancellationToken) -> std::io::Result<()> {
    let tasks = TaskTracker::new();
    let routes = router(parts, &tasks, &stop);
    let late = {
        let stop = stop.clone();
        async move {
            stop.cancelled().await;
            tokio::time::sleep(GRACE).await;
        }
    };
    let served = tokio::select! {
        served = axum::serve(listener, routes).with_graceful_shutdown(stop.clone().cancelled_owned()).into_future() => served,
        () = late => Ok(()),
    };
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    served
}

/// Every request is somebody's.
async fn authenticated(State(shared): State<Arc<Shared>>, mut request: Request, next: Next) -> Response {
    match shared.auth.authenticate(request.headers()).await {
        Ok(user) => {
            request.extensions_mut().insert(user);
            next.run(request).await
        }
        Err(problem) => problem.into_response(),
    }
}

async fn no_such_path(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; /openapi.json tells what there is", uri.path());
    Problem::new(StatusCode::NOT_FOUND, "NotFound", detail)
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not possible at {}; /openapi.json tells what is", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", detail)
}
