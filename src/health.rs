//! `/healthz`, `/readyz` and `/metrics`.

use std::{net::SocketAddr, sync::Arc};

use axum::{Router, extract::State, http::StatusCode, routing::get};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Why the operator is not ready; `Ok` when it is. A standby is ready: it can take over at any moment.
pub type Readiness = Result<(), String>;

#[derive(Clone)]
struct Health {
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
}

/// Opens the address.
///
/// # Errors
/// When the address is in use or not this machine's.
pub async fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Serves until `stop`.
///
/// # Errors
/// When the listener fails.
pub async fn serve(
    listener: TcpListener,
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(|State(health): State<Health>| async move { health.metrics.render() }))
        .with_state(Health { readiness, metrics });
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    match health.readiness.borrow().as_ref() {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(problem) => (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n")),
    }
}
