//! The HTTP API: instances on demand. It writes specs and reads status, and never runs helm. It keeps its state in the cluster.

pub mod auth;
mod backups;
mod body;
mod create;
mod dto;
mod events;
pub mod idempotency;
mod instances;
mod limits;
mod middleware;
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
mod shared;
mod tls;
mod words;

use std::sync::Arc;

use axum::{
    Router,
    http::{Method, StatusCode, Uri},
    routing::get,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::shared::ApiParts;
use self::{
    instances::Instances,
    problem::Problem,
    shared::{ApiState, Creations},
};

/// The routes. Watches end with `stop`; work in progress is tracked in `tasks`.
pub(crate) fn router(parts: ApiParts, tasks: &TaskTracker, stop: &CancellationToken) -> Router {
    let shared = Arc::new(ApiState {
        instances: Instances::start(&parts.watch_client, tasks, stop),
        parts,
        reservations: Arc::default(),
        creations: Creations::default(),
        tasks: tasks.clone(),
        stop: stop.clone(),
    });
    Router::new()
        .merge(routes::routes())
        .merge(backups::routes())
        .merge(page::routes())
        .route("/openapi.json", get(openapi::document))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(shared)
}

async fn no_such_path(uri: Uri) -> Problem {
    let detail = format!("there is nothing at {}; /openapi.json lists all paths", uri.path());
    Problem::new(StatusCode::NOT_FOUND, "NotFound", detail)
}

async fn no_such_method(method: Method, uri: Uri) -> Problem {
    let detail = format!("{method} is not supported at {}; /openapi.json lists the methods", uri.path());
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", detail)
}
