//! The hosts of Ingresses (pure).

use std::collections::BTreeSet;

use serde_json::Value;

use super::storage::RESOURCE_POLICY;
use crate::runtime::key::is_label;

/// Annotation of ingress-nginx with additional names of a host. They become names of nginx's `server_name`, which may be patterns:
/// `.x`, `*.x`, `x.*` and regular expressions.
const SERVER_ALIAS: &str = "nginx.ingress.kubernetes.io/server-alias";

pub(crate) fn is_ingress(document: &Value) -> bool {
    let group = |version: &str| version.contains("networking.k8s.io/");
    document["kind"] == "Ingress" && document["apiVersion"].as_str().is_some_and(group)
}

/// The hosts of an Ingress, or of a patch of one, in lower case.
pub(crate) fn hosts(ingress: &Value) -> BTreeSet<String> {
    fn items(value: &Value) -> impl Iterator<Item = &Value> {
        value.as_array().into_iter().flatten()
    }
    let spec = &ingress["spec"];
    let rules = items(&spec["rules"]).map(|rule| &rule["host"]);
    let tls = items(&spec["tls"]).flat_map(|tls| items(&tls["hosts"]));
    let named = rules.chain(tls).filter_map(Value::as_str).chain(aliases(ingress));
    named.filter(|host| !host.is_empty()).map(str::to_lowercase).collect()
}

fn aliases(ingress: &Value) -> impl Iterator<Item = &str> {
    let aliases = ingress["metadata"]["annotations"][SERVER_ALIAS].as_str().unwrap_or_default();
    aliases.split(',').map(str::trim).filter(|alias| !alias.is_empty())
}

/// Whether Helm keeps it when a later revision, or no revision, contains it.
fn stays(ingress: &Value) -> bool {
    let has = |annotation: &str| !ingress["metadata"]["annotations"][annotation].is_null();
    has("helm.sh/hook") || has(RESOURCE_POLICY)
}

/// Claims each host of an Ingress that is about to be written, or returns the reason why it must not be.
pub(crate) fn claimed(ingress: &Value, claim: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    if stays(ingress) {
        let why = "an Ingress that is a hook, or is marked to be kept, would keep its hosts after its release is gone";
        return Err(why.to_owned());
    }
    if let Some(alias) = aliases(ingress).find(|alias| !alias.to_lowercase().split('.').all(is_label)) {
        return Err(format!(
            "{alias} in {SERVER_ALIAS} is not a plain host name: as a pattern it could take hosts of others"
        ));
    }
    hosts(ingress).iter().try_for_each(|host| claim(host))
}

/// Whether this JSON patch changes only who manages which field. helm sends it before it applies an object that was written without
/// server-side apply, as by Helm 3 (k8s.io/client-go/util/csaupgrade).
pub(crate) fn is_of_managers(patch: &Value) -> bool {
    let is_harmless = |operation: &Value| {
        operation["op"] == "replace"
            && matches!(operation["path"].as_str(), Some("/metadata/managedFields" | "/metadata/resourceVersion"))
    };
    patch.as_array().is_some_and(|operations| operations.iter().all(is_harmless))
}

/// Whether both match a common host; a leading `*.` stands for exactly one label.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let under = |wildcard: &str, host: &str| {
        let parent = wildcard.strip_prefix("*.");
        parent
            .is_some_and(|parent| host.split_once('.').is_some_and(|(label, rest)| !label.is_empty() && rest == parent))
    };
    one == other || under(one, other) || under(other, one)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_hosts_of_an_ingress() {
        let ingress = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": {"annotations": {SERVER_ALIAS: "C.example.com, d.example.com,"}},
            "spec": {
                "rules": [{"host": "a.Example.com"}, {"http": {}}, {"host": "*.b.example.com"}],
                "tls": [{"hosts": ["a.example.com", "e.example.com"]}, {"secretName": "x"}],
            },
        });
        let expected = ["a.example.com", "*.b.example.com", "c.example.com", "d.example.com", "e.example.com"];
        assert_eq!(hosts(&ingress), expected.map(str::to_owned).into());
        assert!(is_ingress(&ingress));
        let mut service = ingress;
        service["kind"] = json!("Service");
        assert!(!is_ingress(&service) && !is_ingress(&json!("text")));
        assert_eq!(hosts(&json!("text")), BTreeSet::new());
    }

    #[test]
    fn an_alias_is_no_pattern() {
        let claimed = |aliases: &str| {
            claimed(&json!({"metadata": {"annotations": {SERVER_ALIAS: aliases}}}), |host| match host {
                "taken.example.com" => Err("taken".to_owned()),
                _ => Ok(()),
            })
        };
        for (aliases, refusal) in [
            ("", None),
            ("a.example.com, B.example.com,", None),
            ("a.example.com, Taken.example.com", Some("taken")),
            (".taken.example.com", Some(".taken.example.com in")),
            ("a.example.com, *.example.com", Some("*.example.com in")),
            ("taken.example.*", Some("taken.example.* in")),
            ("~^.*$", Some("~^.*$ in")),
            ("taken.example.com.", Some("taken.example.com. in")),
        ] {
            let found = claimed(aliases).err();
            let same = found.as_deref().zip(refusal).is_some_and(|(found, refusal)| found.starts_with(refusal));
            assert!(same || found.is_none() && refusal.is_none(), "{aliases}: {found:?}");
        }
    }

    #[test]
    fn a_patch_of_managers() {
        let managers = json!({"op": "replace", "path": "/metadata/managedFields", "value": []});
        let version = json!({"op": "replace", "path": "/metadata/resourceVersion", "value": "7"});
        let spec = json!({"op": "replace", "path": "/spec/rules/0/host", "value": "taken.example.com"});
        let moved = json!({"op": "move", "from": "/spec/rules", "path": "/metadata/managedFields"});
        for (patch, expected) in [
            (json!([managers, version]), true),
            (json!([managers, spec]), false),
            (json!([moved]), false),
            (json!([["op", "replace"]]), false),
            (managers, false),
            (json!("text"), false),
        ] {
            assert_eq!(is_of_managers(&patch), expected, "{patch}");
        }
    }

    #[test]
    fn hosts_that_overlap() {
        for (one, other, expected) in [
            ("a.example.com", "a.example.com", true),
            ("a.example.com", "b.example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "*.example.com", true),
            ("~^.*$", "a.example.com", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
