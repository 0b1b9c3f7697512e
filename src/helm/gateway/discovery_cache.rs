//! Caches for a moment the documents that are the same for every run: the API server's version and the kinds that it serves (effect).
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
    answer::{Buffered, fetch, refusal_response, response},
    discovery,
};

/// About as long as the API server itself takes to serve a kind whose definition was just created. Tests may be slow.
const TIME_TO_LIVE: Duration = Duration::from_secs(if cfg!(test) { 600 } else { 2 });
/// Size limit of a document, in bytes; with a thousand CustomResourceDefinitions discovery has some five million.
const LARGEST: usize = 32 << 20;
/// For each path, helm accepts two or three formats.
const MAX_DOCUMENTS: u64 = 16;

/// By path, accepted format, and the ETag of the copy that helm has on disk. A failure is not kept, nor shared with a request at the
/// same time: it may concern one account only.
pub(super) struct DiscoveryCache(Cache<(Uri, [Option<HeaderValue>; 2]), Buffered>);

impl DiscoveryCache {
    pub(super) fn new() -> Self {
        DiscoveryCache(Cache::builder().time_to_live(TIME_TO_LIVE).max_capacity(MAX_DOCUMENTS).build())
    }

    /// Returns true if the answer is the same for every run.
    pub(super) fn serves(path: &str) -> bool {
        ["/version", "/api", "/apis"].contains(&path)
    }

    pub(super) async fn answer(&self, client: &Client, request: Request<kube::client::Body>) -> Response {
        let varies_by = [header::ACCEPT, header::IF_NONE_MATCH].map(|name| request.headers().get(name).cloned());
        let key = (request.uri().clone(), varies_by);
        if let Some(document) = self.0.get(&key).await {
            return response(document);
        }
        match fetch_trimmed(client, request).await {
            Ok(document) => {
                if document.0.is_success() || document.0 == StatusCode::NOT_MODIFIED {
                    self.0.insert(key, document.clone()).await;
                }
                response(document)
            }
            Err(problem) => refusal_response(StatusCode::SERVICE_UNAVAILABLE, &problem),
        }
    }
}

async fn fetch_trimmed(client: &Client, request: Request<kube::client::Body>) -> Result<Buffered, String> {
    let (status, headers, mut body) = fetch(client, request, LARGEST).await?;
    if status.is_success() && discovery::is_aggregated(&headers) {
        body = discovery::trimmed(&body).map_or(body, Bytes::from);
    }
    Ok((status, headers, body))
}
