//! Errors of the API, in the format of RFC 9457.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::IntoResponses;

/// An error: what is wrong, and what to do. Never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Problem {
    /// The HTTP status code.
    status: u16,
    /// The HTTP status in words.
    title: String,
    /// Holds what is wrong with this request, and what to do.
    pub(crate) detail: String,
    /// Machine-readable reason, such as `HostnameConflict` or `InvalidSpec`.
    pub(crate) reason: &'static str,
    /// The field of the request at fault, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    #[serde(skip)]
    retry_after: Option<u64>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, reason: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            status: status.as_u16(),
            title: status.canonical_reason().unwrap_or("Refused").to_owned(),
            detail: detail.into(),
            reason,
            field: None,
            retry_after: None,
        }
    }

    pub(crate) fn about(mut self, field: impl Into<String>) -> Problem {
        self.field = Some(field.into());
        self
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Problem {
        self.retry_after = Some(seconds);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let retry_after = self.retry_after.map(|seconds| [(header::RETRY_AFTER, HeaderValue::from(seconds))]);
        let scheme = (status == StatusCode::UNAUTHORIZED).then_some([(header::WWW_AUTHENTICATE, "Bearer")]);
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let body = serde_json::to_vec(&self).unwrap_or_default();
        (status, content_type, retry_after, scheme, body).into_response()
    }
}

/// The refusals of all routes, in the description of the API.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) enum Refusals {
    /// A parameter is invalid; the response names it
    #[response(status = 400, content_type = "application/problem+json")]
    Parameter(Problem),
    /// No valid token
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(Problem),
    /// The user may not do this
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(Problem),
    /// Too many requests
    #[response(status = 429, content_type = "application/problem+json")]
    TooMany(Problem),
    /// The cluster does not respond, or the operator has just started or is stopping
    #[response(status = 503, content_type = "application/problem+json")]
    Unavailable(Problem),
}

/// The further refusals of a request for an instance.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) enum InstanceRefusals {
    /// There is no such instance, or it has no such object
    #[response(status = 404, content_type = "application/problem+json")]
    NotFound(Problem),
    /// There are several instances of the name; the response names their namespaces
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
}

/// The further refusals of a POST.
#[derive(IntoResponses)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) enum PostRefusals {
    /// The body is not JSON, or a parameter is invalid
    #[response(status = 400, content_type = "application/problem+json")]
    Malformed(Problem),
    /// The name or the Idempotency-Key is taken, the instance is being deleted, or there are several of the name
    #[response(status = 409, content_type = "application/problem+json")]
    Conflict(Problem),
    /// The body is too large
    #[response(status = 413, content_type = "application/problem+json")]
    TooLarge(Problem),
    /// The body is not declared as JSON
    #[response(status = 415, content_type = "application/problem+json")]
    UnsupportedMediaType(Problem),
    /// A field is invalid; the response names it
    #[response(status = 422, content_type = "application/problem+json")]
    Invalid(Problem),
}
