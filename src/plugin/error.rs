//! Errors of the commands, worded for the user. Pure.

use std::path::Path;

use kube::{Resource as _, core::Status};

use super::connection::Flags;
use crate::crd::ClientApp;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Usage(String),
    #[error("{0}")]
    Kubeconfig(String),
    #[error("{operation}: {}", sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    #[error("there is no ClientApp {name} in namespace {namespace}{hint}")]
    NotFound { name: String, namespace: String, hint: String },
    /// It was deleted, or is being deleted.
    #[error("{0}")]
    Gone(String),
    #[error("{0}")]
    Timeout(String),
    /// Nothing happens until a user or a cluster admin changes something.
    #[error("{0}")]
    Stalled(String),
    #[error("{0}")]
    Missing(String),
    #[error("{path}: {problem}")]
    File { path: String, problem: String },
    #[error("write the answer: {0}")]
    Output(String),
    /// Of several ClientApps: each error is printed already.
    #[error("some of them have failed")]
    Told { code: u8 },
    /// The reader of standard output has closed it, which is not a failure.
    #[error("standard output was closed")]
    Closed,
}

impl Error {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }

    pub(crate) fn file(path: &Path) -> impl Fn(String) -> Error {
        move |problem| Error::File { path: path.display().to_string(), problem }
    }

    /// The exit code, on which scripts rely.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Error::Closed => 0,
            Error::Kubeconfig(_) | Error::Api { .. } | Error::Missing(_) | Error::File { .. } | Error::Output(_) => 1,
            Error::Usage(_) => 2,
            Error::Timeout(_) => 3,
            Error::Stalled(_) => 4,
            Error::NotFound { .. } | Error::Gone(_) => 5,
            Error::Told { code } => *code,
        }
    }
}

/// The exit code of two failures: the one that leaves the most to do. What failed for any reason is worse than a wrong name; a ClientApp
/// that is stalled needs a user; after a timeout it is enough to wait. **Pure.**
pub(crate) fn worse(one: u8, other: u8) -> u8 {
    const BEST_TO_WORST: [u8; 6] = [0, 3, 4, 5, 2, 1];
    let rank = |code: u8| BEST_TO_WORST.iter().position(|known| *known == code);
    if rank(one) >= rank(other) { one } else { other }
}

/// Says what a failed request means for the user.
pub(crate) fn sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => match status.code {
                        401 => "the cluster rejects your credentials: log in again, or choose another --context".to_owned(),
            403 => format!("{}; ask a cluster admin for this right", status.message.trim_end()),
            404 if kind_is_missing(status) => {
                "this cluster does not know the kind: run `clientapp-operator crds | kubectl apply -f -` as cluster admin, or choose another --context"
                    .to_owned()
            }
            422 => refusal(status),
            _ => status.message.trim_end().to_owned(),
        },
        kube::Error::Service(_) | kube::Error::HyperError(_) => {
                        format!("the cluster does not respond ({}): is it running, and is this the right --context?", deepest(error))
        }
        other => deepest(other),
    }
}

/// The server does not serve this resource, as opposed to a missing object.
pub(crate) fn kind_is_missing(status: &Status) -> bool {
    let named = status.details.as_ref().is_some_and(|details| !details.name.is_empty());
    status.code == 404 && !named
}

/// A rejected object, field by field.
fn refusal(status: &Status) -> String {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    // This one only follows from the others.
    let causes = causes.filter(|cause| !cause.message.contains("some validation rules were not checked"));
    let mut told: Vec<String> = Vec::new();
    for cause in causes {
        let message = plain(&cause.message);
        let sentence = match cause.field.as_str() {
            "" | "<nil>" => message.to_owned(),
            field => format!("{field}: {message}"),
        };
        if !told.contains(&sentence) {
            told.push(sentence);
        }
    }
    if told.is_empty() { status.message.clone() } else { told.join("; ") }
}

/// A cause without its prefix: `Invalid value: "…": ` or the type of a whole object.
fn plain(message: &str) -> &str {
    let Some(value) = message.strip_prefix("Invalid value: ") else { return message };
    let quoted = value.strip_prefix('"').and_then(|rest| rest.split_once("\": "));
    quoted.or_else(|| value.split_once(": ")).map_or(value, |(_, rest)| rest)
}

/// The innermost cause, because the outer ones only say that there is one.
fn deepest(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

/// Suggestions for a name that does not exist. **Pure.**
pub(crate) fn hint(name: &str, namespace: &str, there: &[(String, String)], flags: &Flags) -> String {
    let elsewhere: Vec<&str> =
        there.iter().filter(|(_, other)| other == name).map(|(namespace, _)| namespace.as_str()).collect();
    match elsewhere[..] {
        [] => {}
        [one] => return format!("; there is one in namespace {one}: add -n {one}"),
        [one, other, ..] => {
            let more = if elsewhere.len() > 2 { ", …" } else { "" };
            return format!("; there is one in {} namespaces: add -n {one}, -n {other}{more}", elsewhere.len());
        }
    }
    let mut similar: Vec<(f64, &str)> = there
        .iter()
        .filter(|(other, _)| other == namespace)
        .map(|(_, other)| (strsim::jaro_winkler(name, other), other.as_str()))
        .filter(|(likeness, _)| *likeness > 0.8)
        .collect();
    similar.sort_by(|a, b| b.0.total_cmp(&a.0));
    let similar: Vec<&str> = similar.into_iter().take(3).map(|(_, name)| name).collect();
    match similar.is_empty() {
        false => format!("; did you mean {}?", similar.join(", ")),
        true => format!("; {} shows the existing ones", flags.command("kubectl get clientapps")),
    }
}

pub(crate) fn described(namespace: &str, name: &str) -> String {
    format!("{} {namespace}/{name}", ClientApp::kind(&()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::plugin::tests::flags;

    fn refused(status: serde_json::Value) -> String {
        let status: Status = serde_json::from_value(status).unwrap();
        Error::api("create ClientApp a/acme")(kube::Error::Api(Box::new(status))).to_string()
    }

    #[test]
    fn a_refusal_is_one_sentence_with_the_field() {
        let rule = r#"Invalid value: "Acme_: x": must be a DNS name in lower case"#;
        let causes = json!([
            {"field": "spec.hostname", "message": rule},
            {"field": "<nil>", "message": "Invalid value: null: some validation rules were not checked because the object was invalid"},
            {"field": "spec.replicas", "message": "Invalid value: 101: spec.replicas in body should be less than or equal to 100"},
        ]);
        let sentence = refused(json!({"code": 422, "message": "long", "details": {"causes": causes}}));
        assert_eq!(
            sentence,
            "create ClientApp a/acme: spec.hostname: must be a DNS name in lower case; spec.replicas: spec.replicas in body should be less than or equal to 100"
        );
        assert_eq!(refused(json!({"code": 422, "message": "as it is"})), "create ClientApp a/acme: as it is");
    }

    #[test]
    fn a_missing_kind_is_not_a_missing_object() {
        let missing = refused(json!({"code": 404, "message": "404 page not found\n"}));
        assert!(missing.contains("clientapp-operator crds | kubectl apply -f -"), "{missing}");
        let namespace = json!({"code": 404, "message": "namespaces \"a\" not found", "details": {"name": "a"}});
        assert_eq!(refused(namespace), "create ClientApp a/acme: namespaces \"a\" not found");
    }

    #[test]
    fn the_worst_of_two_exit_codes() {
        for (one, other, both) in [(0, 3, 3), (3, 4, 4), (5, 4, 5), (5, 1, 1), (2, 5, 2), (1, 3, 1), (3, 3, 3)] {
            assert_eq!((worse(one, other), worse(other, one)), (both, both), "{one} and {other}");
        }
    }

    #[test]
    fn what_might_have_been_meant() {
        let there = [("a", "acme"), ("a", "globex"), ("b", "initech")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        let hint = |name: &str, namespace: &str, there: &[_]| hint(name, namespace, there, &flags("a"));
        assert_eq!(hint("acmee", "a", &there), "; did you mean acme?");
        assert_eq!(hint("initech", "a", &there), "; there is one in namespace b: add -n b");
        let everywhere = ["a", "b", "c"].map(|namespace| (namespace.to_owned(), "acme".to_owned()));
        assert_eq!(hint("acme", "d", &everywhere), "; there is one in 3 namespaces: add -n a, -n b, …");
        assert_eq!(hint("zzz", "a", &there), "; `kubectl get clientapps -n a` shows the existing ones");
    }
}
