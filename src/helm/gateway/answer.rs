//! Sends requests to the API server, and makes the responses for helm (effect).

use std::time::Duration;

use axum::{
    body::{Bytes, to_bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri, header, request},
    response::{IntoResponse as _, Response},
};
use kube::{Client, client::Body};
use serde_json::json;
use tokio::time::timeout;

use super::run::Run;
use crate::platform::{client::IMPERSONATE, error::api_sentence};

/// Timeout until the response begins: the API server itself gives up after a minute.
const TIMEOUT: Duration = Duration::from_secs(65);
/// Limits the pauses of a response.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// Limit of a Retry-After that helm sees, in seconds. helm would wait silently; during longer outages it should fail instead, so
/// that the operator reports them.
const RETRY_AFTER: u64 = 5;

/// Size limit of an object, and of the list of a namespace's autoscalers, in bytes; the API server's own is smaller.
const MAX_OBJECT: usize = 4 << 20;

pub(super) const NOT_UNDERSTOOD: &str = "the gateway does not understand this request";

/// Request headers that helm may set. Authentication and impersonation are not among them.
const FORWARDED_HEADERS: [HeaderName; 4] =
    [header::ACCEPT, header::CONTENT_TYPE, header::IF_NONE_MATCH, header::USER_AGENT];

/// Returns the request as the gateway sends it to the API server, with the run's identity.
pub(super) fn to_upstream(parts: request::Parts, body: Bytes, run: &Run) -> Result<Request<Body>, axum::http::Error> {
    let mut headers = HeaderMap::new();
    for name in FORWARDED_HEADERS {
        headers.extend(parts.headers.get_all(&name).iter().map(|value| (name.clone(), value.clone())));
    }
    // Without it, the request has the rights of the client.
    if let Some(user) = &run.scope.user {
        headers.insert(IMPERSONATE, HeaderValue::from_str(user)?);
    }
    let path = parts.uri.into_parts().path_and_query;
    let uri = Uri::builder().path_and_query(path.map_or_else(|| "/".to_owned(), |path| path.to_string())).build()?;
    let mut request = Request::builder().method(parts.method).uri(uri).body(body.into())?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Sends a request as it is, or says that there is no response.
pub(super) async fn send(client: &Client, request: Request<Body>) -> Result<axum::http::Response<Body>, String> {
    match timeout(TIMEOUT, client.send(request)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(unreachable(&api_sentence(&error))),
        Err(_) => Err(unreachable(&format!("no response within {} s", TIMEOUT.as_secs()))),
    }
}

/// A complete response, with the headers that are passed to helm.
pub(super) type Buffered = (StatusCode, HeaderMap, Bytes);

/// Sends a request and reads the response, of at most `limit` bytes, or says that there is none.
pub(super) async fn fetch(client: &Client, request: Request<Body>, limit: usize) -> Result<Buffered, String> {
    let (parts, body) = send(client, request).await?.into_parts();
    let Ok(Ok(body)) = timeout(SILENCE, to_bytes(axum::body::Body::new(body), limit)).await else {
        let problem = format!("the response is too long, or not complete within {} s", SILENCE.as_secs());
        return Err(unreachable(&problem));
    };
    Ok((parts.status, response_headers(&parts.headers), body))
}

/// Reads what is at a path, with the run's identity.
///
/// # Errors
/// The response to helm instead: there is none of the API server.
pub(super) async fn get(client: &Client, run: &Run, path: &str, accept: &str) -> Result<Buffered, Response> {
    let request = Request::get(path).header(header::ACCEPT, accept).body(());
    let Ok(request) = request.and_then(|request| to_upstream(request.into_parts().0, Bytes::new(), run)) else {
        return Err(refusal_response(StatusCode::BAD_REQUEST, NOT_UNDERSTOOD));
    };
    let document = fetch(client, request, MAX_OBJECT).await;
    document.map_err(|problem| refusal_response(StatusCode::SERVICE_UNAVAILABLE, &problem))
}

/// Makes a response with these headers and no others: helm takes those of a 304 for its own copy, a content type included.
pub(super) fn response((status, headers, body): Buffered) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

pub(super) fn unreachable(problem: &str) -> String {
    format!("the API server cannot be reached: {problem}")
}

/// Returns the response headers that are passed to helm. Content-Length is not: with it, hyper would not wait for the stream to end,
/// where the result is recorded. Cache-Control is: without the API server's `no-cache`, helm's client would believe a document that it
/// holds until the clock has reached its `Date`, which after the clock was set back can be long.
pub(super) fn response_headers(headers: &HeaderMap) -> HeaderMap {
    let names = [header::CONTENT_TYPE, header::WARNING, header::ETAG, header::CACHE_CONTROL];
    let passed = names.into_iter().filter_map(|name| headers.get(&name).cloned().map(|value| (name, value)));
    let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let again = seconds.map(|seconds| (header::RETRY_AFTER, seconds.min(RETRY_AFTER).into()));
    passed.chain(again).collect()
}

/// Makes a refusal in the API server's format, so that helm reports it like one of the server's own.
pub(super) fn refusal_response(status: StatusCode, message: &str) -> Response {
    let reason = match status {
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::CONFLICT => "Conflict",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => "Unauthorized",
        _ => "BadRequest",
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": status.as_u16(),
        "reason": reason, "message": message,
    });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}
