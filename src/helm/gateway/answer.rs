//! What helm gets to hear (pure).

use std::time::Duration;

use axum::{
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use serde_json::json;

/// Timeout until the response begins: the API server itself gives up after a minute.
pub(super) const TIMEOUT: Duration = Duration::from_secs(65);
/// How long a response may pause.
pub(super) const SILENCE: Duration = Duration::from_secs(30);
/// Limit of a Retry-After that helm sees, in seconds. helm would wait silently; during longer outages it should fail instead, so
/// that the operator reports them.
const RETRY_AFTER: u64 = 5;

/// Response headers that are passed to helm. Content-Length is not: with it, hyper would not wait for the stream to end, where the
/// result is recorded.
pub(super) fn passed_back(headers: &HeaderMap) -> HeaderMap {
    let names = [header::CONTENT_TYPE, header::WARNING, header::ETAG];
    let passed = names.into_iter().filter_map(|name| headers.get(&name).cloned().map(|value| (name, value)));
    let seconds = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let again = seconds.map(|seconds| (header::RETRY_AFTER, seconds.min(RETRY_AFTER).into()));
    passed.chain(again).collect()
}

pub(super) fn unreachable(problem: &str) -> String {
    format!("the API server cannot be reached: {problem}")
}

pub(super) fn refused(code: StatusCode, message: &str) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], status(code, message)).into_response()
}

/// In the API server's format, so that helm reports it like one of the server's own.
pub(super) fn status(code: StatusCode, message: &str) -> String {
    let reason = match code {
        StatusCode::FORBIDDEN => "Forbidden",
        StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailable",
        StatusCode::PAYLOAD_TOO_LARGE => "RequestEntityTooLarge",
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => "Unauthorized",
        _ => "BadRequest",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code.as_u16(),
        "reason": reason, "message": message,
    });
    status.to_string()
}
