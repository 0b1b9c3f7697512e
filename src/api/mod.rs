//! The HTTP API: instances on demand. It writes specs and reads status; it never runs helm, and its state is the
//! cluster's.

pub mod audit;
pub mod auth;
pub mod page;
pub mod problem;

use std::sync::Arc;

use axum::Router;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use self::auth::Auth;
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

/// The routes. What they watch ends with `stop`.
pub fn router(parts: Parts, _stop: &CancellationToken) -> Router {
    let Parts { client: _, watch_client: _, config: _, auth: _, namespace: _ } = parts;
    Router::new().merge(page::routes())
}

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(listener: TcpListener, parts: Parts, stop: CancellationToken) -> std::io::Result<()> {
    axum::serve(listener, router(parts, &stop)).with_graceful_shutdown(stop.cancelled_owned()).await
}
