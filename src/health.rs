//! `/healthz`, `/readyz` and `/metrics`.

use std::{path::PathBuf, sync::Arc};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::IntoResponse,
    routing::get,
};
use tokio::{net::TcpListener, sync::watch};
use tokio_util::sync::CancellationToken;

use crate::{crd::Reason, helm::HelmUnavailable, metrics::Metrics};

/// Says why the operator is not ready, or else the path of helm, without which it is not ready either. A standby is ready, because it can
/// take over at any moment.
pub(crate) type Readiness = Result<PathBuf, String>;

#[derive(Clone)]
struct Health {
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
}

/// Serves until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    readiness: watch::Receiver<Readiness>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(render))
        .with_state(Health { readiness, metrics });
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

/// Clients that do not accept OpenMetrics get the same text with the older content type.
async fn render(State(health): State<Health>, headers: HeaderMap) -> impl IntoResponse {
    let accepted = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let content_type = match accepted.contains("application/openmetrics-text") {
        true => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        false => "text/plain; version=0.0.4; charset=utf-8",
    };
    ([(CONTENT_TYPE, content_type)], health.metrics.render())
}

async fn ready(State(health): State<Health>) -> (StatusCode, String) {
    let problem = match health.readiness.borrow().clone() {
        Ok(helm) if helm.is_file() => return (StatusCode::OK, "ok\n".to_owned()),
        Ok(path) => format!("{}: {}", Reason::HelmUnavailable, HelmUnavailable::Missing { path }),
        Err(problem) => problem,
    };
    (StatusCode::SERVICE_UNAVAILABLE, format!("{problem}\n"))
}
