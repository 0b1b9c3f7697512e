//! Reduces the discovery document to what helm needs (pure).
//!
//! Each run reads the whole document, writes it to files by group and version, and reads those again, which takes a quarter of the CPU
//! time of an upgrade. So fields that only `kubectl` uses are dropped: verbs, short names, categories, and subresources such as
//! `pods/log`. Charts still see every kind in `.Capabilities.APIVersions`, and `lookup` works.

use axum::http::{HeaderMap, header};
use serde_json::Value;

/// Fields with which helm maps a kind to its resource.
const NEEDED: [&str; 4] = ["resource", "responseKind", "scope", "singularResource"];

/// Returns true if a response is a document of all groups (k8s.io/apiserver/pkg/endpoints/discovery/aggregated), by its content type.
pub(super) fn is_aggregated(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json") && kind.contains("g=apidiscovery.k8s.io"))
}

/// Returns the document without the fields that helm does not need, or `None` if it is another document.
pub(super) fn trimmed(document: &[u8]) -> Option<Vec<u8>> {
    let mut document: Value = serde_json::from_slice(document).ok()?;
    for group in document.get_mut("items")?.as_array_mut()? {
        for version in group.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
            for resource in version.get_mut("resources").and_then(Value::as_array_mut).into_iter().flatten() {
                resource.as_object_mut()?.retain(|field, _| NEEDED.contains(&field.as_str()));
            }
        }
    }
    serde_json::to_vec(&document).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_stay_and_what_only_kubectl_asks_about_goes() {
        let kind = json!({"group": "", "version": "v1", "kind": "Pod"});
        let resource =
            json!({"resource": "pods", "responseKind": kind, "scope": "Namespaced", "singularResource": "pod"});
        let mut served = resource.clone();
        served["verbs"] = json!(["get"]);
        served["subresources"] = json!([{"subresource": "log", "responseKind": kind, "verbs": ["get"]}]);
        let document = |resource: &Value| {
            let version = json!({"version": "v1", "freshness": "Current", "resources": [resource]});
            json!({"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": [
                {"metadata": {"name": "apps"}, "versions": [version]}, {"metadata": {"name": "empty.example.com"}},
            ]})
        };
        let left = trimmed(document(&served).to_string().as_bytes()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&left).unwrap(), document(&resource));
        for other in ["", "{}", r#"{"items": {}}"#, r#"{"items": [{"versions": [{"resources": [1]}]}]}"#] {
            assert_eq!(trimmed(other.as_bytes()), None, "{other}");
        }
    }
}
