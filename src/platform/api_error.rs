//! Classifies failed requests to the API server. **Pure.** This is the only place that reads the server's message, and it does so only
//! where code and causes do not tell the cases apart.

use kube::core::Status;

/// Says why a request failed, independently of what was requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiErrorKind {
    /// Another client changed or created the object first, or the object has another uid.
    Conflict,
    /// Another field manager owns a field that was applied without force.
    OwnedField,
    /// A namespace that is being deleted refuses every creation.
    NamespaceTerminating,
    Quota,
    /// The StorageClass does not allow volumes to grow.
    Expansion,
    /// RBAC refuses it: the operator lacks a right.
    Forbidden,
    /// Forbidden, but not by RBAC: an admission plugin or webhook.
    Admission,
    /// The object, its namespace or its kind is not there.
    NotFound,
    /// The object itself is refused: by its schema, by its rules, or for its size.
    Invalid,
    /// No answer, or an answer that says nothing about the request.
    Unavailable,
}

pub(crate) fn classify(error: &kube::Error) -> ApiErrorKind {
    let kube::Error::Api(status) = error else { return ApiErrorKind::Unavailable };
    let says = |text| status.message.contains(text);
    match status.code {
        409 if caused_by(status, "FieldManagerConflict") => ApiErrorKind::OwnedField,
        409 | 410 => ApiErrorKind::Conflict,
        403 if caused_by(status, "NamespaceTerminating") => ApiErrorKind::NamespaceTerminating,
        403 if says("exceeded quota") => ApiErrorKind::Quota,
        403 if says("must support resize") => ApiErrorKind::Expansion,
        403 if says(" cannot ") => ApiErrorKind::Forbidden,
        403 => ApiErrorKind::Admission,
        404 => ApiErrorKind::NotFound,
        400 | 413 | 422 => ApiErrorKind::Invalid,
        // With code 500: a server-side apply of a field that the kind does not have, and an object that etcd does not accept.
        _ if ["field not declared in schema", "failed to create typed patch object", "request is too large"]
            .map(says)
            .contains(&true) =>
        {
            ApiErrorKind::Invalid
        }
        _ => ApiErrorKind::Unavailable,
    }
}

/// Returns true if the status names this cause, a `CauseType` of Kubernetes.
fn caused_by(status: &Status, reason: &str) -> bool {
    status.details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_is_known_by_its_code_and_cause() {
        let terminating = serde_json::json!([{"reason": "NamespaceTerminating", "field": "metadata.namespace"}]);
        let owned = serde_json::json!([{"reason": "FieldManagerConflict", "field": ".spec.replicas"}]);
        let none = serde_json::json!([]);
        for (code, message, causes, expected) in [
            (409, "the object has been modified", &none, ApiErrorKind::Conflict),
            (410, "too old", &none, ApiErrorKind::Conflict),
            (409, "Apply failed with 1 conflict", &owned, ApiErrorKind::OwnedField),
            (403, "namespace a is being terminated", &terminating, ApiErrorKind::NamespaceTerminating),
            (403, "pods \"a\" is forbidden: exceeded quota: few", &none, ApiErrorKind::Quota),
            (
                403,
                "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
                &none,
                ApiErrorKind::Expansion,
            ),
            (403, "pods is forbidden: User \"x\" cannot create resource \"pods\"", &none, ApiErrorKind::Forbidden),
            (403, "admission webhook \"a\" denied the request", &none, ApiErrorKind::Admission),
            (404, "namespaces \"a\" not found", &none, ApiErrorKind::NotFound),
            (422, "is invalid", &none, ApiErrorKind::Invalid),
            (
                500,
                "failed to create typed patch object (a): .spec.b: field not declared in schema",
                &none,
                ApiErrorKind::Invalid,
            ),
            (500, "etcdserver: request is too large", &none, ApiErrorKind::Invalid),
            (500, "etcdserver: leader changed", &none, ApiErrorKind::Unavailable),
            (429, "too many requests", &none, ApiErrorKind::Unavailable),
        ] {
            let status = serde_json::json!({"code": code, "message": message, "details": {"causes": causes}});
            let error = kube::Error::Api(serde_json::from_value(status).unwrap());
            assert_eq!(classify(&error), expected, "{code} {message}");
        }
    }
}
