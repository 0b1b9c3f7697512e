//! Keeps for a moment what the API server tells every run alike: its version and the kinds that it serves (effect).
//!
//! A helm process asks five times, and a fleet that is upgraded starts several per second.

use std::time::Duration;

use axum::{
    body::Bytes,
    http::{HeaderValue, Request, StatusCode, Uri, header},
    response::Response,
};
use kube::Client;
use moka::future::Cache;

use super::{
    answer::{Told, refused, response, told},
    discovery,
};

/// About as long as the API server itself takes to serve a kind whose definition was just created. Tests may be slow.
const FRESH: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });
/// Size limit of a document, in bytes; with a thousand CustomResourceDefinitions discovery has some five million.
const LARGEST: usize = 32 << 20;
/// For each path, helm accepts two or three formats.
const KEPT: u64 = 16;

/// By path, accepted format, and the ETag of the copy that helm has on disk. A failure is not kept, nor shared with a request at the
/// same time: it may concern one account only.
pub(super) struct Known(Cache<(Uri, [Option<HeaderValue>; 2]), Told>);

impl Known {
    pub(super) fn new() -> Self {
        Known(Cache::builder().time_to_live(FRESH).max_capacity(KEPT).build())
    }

    /// Returns true if the answer is the same for every run.
    pub(super) fn is_for(path: &str) -> bool {
        ["/version", "/api", "/apis"].contains(&path)
    }

    pub(super) async fn answer(&self, client: &Client, request: Request<kube::client::Body>) -> Response {
        let told_apart = [header::ACCEPT, header::IF_NONE_MATCH].map(|name| request.headers().get(name).cloned());
        let place = (request.uri().clone(), told_apart);
        if let Some(told) = self.0.get(&place).await {
            return response(told);
        }
        match ask(client, request).await {
            Ok(told) => {
                if told.0.is_success() || told.0 == StatusCode::NOT_MODIFIED {
                    self.0.insert(place, told.clone()).await;
                }
                response(told)
            }
            Err(problem) => refused(StatusCode::SERVICE_UNAVAILABLE, &problem),
        }
    }
}

async fn ask(client: &Client, request: Request<kube::client::Body>) -> Result<Told, String> {
    let (status, headers, mut body) = told(client, request, LARGEST).await?;
    if status.is_success() && discovery::is_aggregated(&headers) {
        body = discovery::trimmed(&body).map_or(body, Bytes::from);
    }
    Ok((status, headers, body))
}
