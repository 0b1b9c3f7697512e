//! What the API server tells every run alike, its version and the kinds that it serves, is kept for a moment (effect).
//!
//! A helm process asks five times, and a fleet that is upgraded starts several per second.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{HeaderMap, HeaderValue, Request, StatusCode, Uri, header},
    response::{IntoResponse as _, Response},
};
use kube::Client;
use moka::future::Cache;
use tokio::time::timeout;

use super::{
    answer::{SILENCE, TIMEOUT, passed_back, status, unreachable},
    discovery,
};
use crate::runtime::error::api_sentence;

/// About as long as the API server itself takes to serve a kind whose definition was just created.
const FRESH: Duration = Duration::from_secs(2);
/// Size limit of a document, in bytes; with a thousand CustomResourceDefinitions discovery has some five million.
const LARGEST: usize = 32 << 20;
/// For each path, helm accepts two or three formats.
const KEPT: u64 = 16;

/// By path and accepted format. A failure is not kept, nor shared with a request at the same time: it may concern one account only.
pub(super) struct Known(Cache<(Uri, Option<HeaderValue>), Arc<Told>>);

struct Told {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Known {
    pub(super) fn new() -> Self {
        Known(Cache::builder().time_to_live(FRESH).max_capacity(KEPT).build())
    }

    /// Whether the answer is the same for every run.
    pub(super) fn is_for(path: &str) -> bool {
        ["/version", "/api", "/apis"].contains(&path)
    }

    pub(super) async fn answer(&self, client: &Client, mut request: Request<kube::client::Body>) -> Response {
        let tag = request.headers_mut().remove(header::IF_NONE_MATCH);
        let place = (request.uri().clone(), request.headers().get(header::ACCEPT).cloned());
        if let Some(told) = self.0.get(&place).await {
            return told.answer(tag.as_ref());
        }
        let told = Arc::new(ask(client, request).await);
        if told.status.is_success() {
            self.0.insert(place, told.clone()).await;
        }
        told.answer(tag.as_ref())
    }
}

impl Told {
    fn failed(code: StatusCode, message: &str) -> Self {
        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, json)]);
        Told { status: code, headers, body: status(code, message).into() }
    }

    /// helm keeps discovery with its ETag.
    fn answer(&self, tag: Option<&HeaderValue>) -> Response {
        let Told { status, headers, body } = self;
        match tag.is_some() && tag == headers.get(header::ETAG) {
            true => (StatusCode::NOT_MODIFIED, headers.clone()).into_response(),
            false => (*status, headers.clone(), body.clone()).into_response(),
        }
    }
}

async fn ask(client: &Client, request: Request<kube::client::Body>) -> Told {
    let failed = |problem: &str| Told::failed(StatusCode::SERVICE_UNAVAILABLE, &unreachable(problem));
    let answer = match timeout(TIMEOUT, client.send(request)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return failed(&api_sentence(&error)),
        Err(_) => return failed(&format!("no response within {} s", TIMEOUT.as_secs())),
    };
    let (parts, body) = answer.into_parts();
    let Ok(Ok(mut body)) = timeout(SILENCE, to_bytes(Body::new(body), LARGEST)).await else {
        return failed("the response is too long, or not complete within 30 s");
    };
    if parts.status.is_success() && discovery::is_aggregated(&parts.headers) {
        body = discovery::trimmed(&body).map_or(body, Bytes::from);
    }
    Told { status: parts.status, headers: passed_back(&parts.headers), body }
}
