//! Turns refusals of the API server into responses of this API. Pure.

use axum::http::StatusCode;

use kube::core::response::StatusCause;

use super::problem::Problem;
use crate::platform::{
    api_error::{ApiErrorKind, classify},
    error::api_sentence,
};

/// Retry-After in seconds when the API server did not respond.
const UNAVAILABLE_RETRY: u64 = 5;
/// Retry-After in seconds when something that is about to go is in the way.
pub(crate) const SOON: u64 = 2;

/// The response for a failed request to the API server. `operation` says what it was for, such as `create Namespace a`.
pub(crate) fn refused(operation: &str, error: &kube::Error) -> Problem {
    let detail = format!("{operation}: {}", api_sentence(error));
    match classify(error) {
        ApiErrorKind::Unavailable => {
            let detail = match error {
                kube::Error::Api(_) => detail,
                _ => {
                    tracing::warn!(operation, %error, "the API server does not respond");
                    format!("{operation}: the cluster's API server does not respond; try again")
                }
            };
            let problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ApiUnavailable", detail);
            problem.retry_after(UNAVAILABLE_RETRY)
        }
        ApiErrorKind::NamespaceTerminating => {
            Problem::new(StatusCode::CONFLICT, "NamespaceTerminating", detail).retry_after(SOON)
        }
        ApiErrorKind::Quota => Problem::new(StatusCode::CONFLICT, "QuotaExceeded", detail),
        ApiErrorKind::Forbidden => {
            let detail = format!("the operator lacks a right, which a cluster admin can grant: {detail}");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "AccessDenied", detail)
        }
        ApiErrorKind::Admission | ApiErrorKind::Expansion => Problem::new(StatusCode::FORBIDDEN, "Refused", detail),
        ApiErrorKind::Conflict | ApiErrorKind::OwnedField => {
            Problem::new(StatusCode::CONFLICT, "Conflict", detail).retry_after(SOON)
        }
        ApiErrorKind::NotFound => Problem::new(StatusCode::CONFLICT, "Missing", detail).retry_after(SOON),
        ApiErrorKind::Invalid => {
            let problem = Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "Refused", detail);
            match causes(error).iter().find(|cause| !cause.field.is_empty()) {
                Some(cause) => problem.about(of_request(&cause.field)),
                None => problem,
            }
        }
    }
}

/// [`refused`], for `map_err`.
pub(crate) fn failed(operation: String) -> impl FnOnce(kube::Error) -> Problem {
    move |error| refused(&operation, &error)
}

fn causes(error: &kube::Error) -> &[StatusCause] {
    match error {
        kube::Error::Api(status) => status.details.as_ref().map_or(&[], |details| &details.causes),
        _ => &[],
    }
}

/// The field of the request for a field of a ClientApp.
pub(crate) fn of_request(field: &str) -> &str {
    field.strip_prefix("spec.").or_else(|| field.strip_prefix("metadata.")).unwrap_or(field)
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn refusals() {
        for (code, message, status, reason) in [
            (403, "namespaces is forbidden: User \"x\" cannot create resource", 503, "AccessDenied"),
            (403, "clientapps \"a\" is forbidden: exceeded quota: few", 409, "QuotaExceeded"),
            (403, "admission webhook denied the request", 403, "Refused"),
            (409, "the object was modified", 409, "Conflict"),
            (422, "is invalid", 422, "Refused"),
            (400, "strict decoding error", 422, "Refused"),
            (429, "slow down", 503, "ApiUnavailable"),
            (500, "etcd is gone", 503, "ApiUnavailable"),
            (500, "etcdserver: request is too large", 422, "Refused"),
        ] {
            let error = kube::Error::Api(Box::new(Status { code, message: message.to_owned(), ..Status::default() }));
            let problem = refused("create ClientApp a/b", &error);
            assert_eq!((problem.status().as_u16(), problem.reason), (status, reason), "{message}");
            assert!(problem.detail.contains("create ClientApp a/b: ") && problem.detail.ends_with(message));
        }
        let terminating = serde_json::json!({
            "code": 403, "message": "namespace a is being terminated",
            "details": {"causes": [{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]},
        });
        let error = kube::Error::Api(serde_json::from_value(terminating).unwrap());
        let problem = refused("create ClientApp a/b", &error);
        assert_eq!((problem.status().as_u16(), problem.reason), (409, "NamespaceTerminating"));
        assert_eq!(of_request("spec.persistence.size"), "persistence.size");
        assert_eq!(of_request("metadata.name"), "name");
    }
}
