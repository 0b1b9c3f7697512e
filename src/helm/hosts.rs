//! Finds the hosts that objects of a release take: Ingresses, and the routes and listeners of Gateway API (pure).

use std::collections::BTreeSet;

use serde_json::Value;

use super::storage::RESOURCE_POLICY;
use crate::platform::key::is_label;

/// Annotation of ingress-nginx with additional names of a host. They become names of nginx's `server_name`, which may be patterns:
/// `.x`, `*.x`, `x.*` and regular expressions.
const SERVER_ALIAS: &str = "nginx.ingress.kubernetes.io/server-alias";
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// The kinds that name hosts: API group, kind and resource.
const KINDS: [(&str, &str, &str); 6] = [
    ("networking.k8s.io", "Ingress", "ingresses"),
    (GATEWAY_API, "HTTPRoute", "httproutes"),
    (GATEWAY_API, "GRPCRoute", "grpcroutes"),
    (GATEWAY_API, "TLSRoute", "tlsroutes"),
    (GATEWAY_API, "Gateway", "gateways"),
    (GATEWAY_API, "ListenerSet", "listenersets"),
];

/// Returns whether an object is of a kind that names hosts.
pub(crate) fn is_named_by_kind(document: &Value) -> bool {
    let (version, kind) = (document["apiVersion"].as_str(), document["kind"].as_str());
    let group = version.and_then(|version| version.split_once('/')).map(|(group, _)| group);
    KINDS.iter().any(|(its_group, its_kind, _)| group == Some(*its_group) && kind == Some(*its_kind))
}

/// Returns whether a resource has objects that name hosts.
pub(crate) fn is_named_by_resource(group: &str, resource: &str) -> bool {
    KINDS.iter().any(|(its_group, _, its_resource)| (*its_group, *its_resource) == (group, resource))
}

/// Returns the hosts of such an object, or of a patch of one, in lower case.
pub(crate) fn hosts(object: &Value) -> BTreeSet<String> {
    fn items(value: &Value) -> impl Iterator<Item = &Value> {
        value.as_array().into_iter().flatten()
    }
    let spec = &object["spec"];
    let rules = items(&spec["rules"]).map(|rule| &rule["host"]);
    let tls = items(&spec["tls"]).flat_map(|tls| items(&tls["hosts"]));
    let listeners = items(&spec["listeners"]).map(|listener| &listener["hostname"]);
    let named = rules.chain(tls).chain(items(&spec["hostnames"])).chain(listeners);
    let named = named.filter_map(Value::as_str).chain(aliases(object));
    named.filter(|host| !host.is_empty()).map(str::to_lowercase).collect()
}

fn aliases(object: &Value) -> impl Iterator<Item = &str> {
    let aliases = object["metadata"]["annotations"][SERVER_ALIAS].as_str().unwrap_or_default();
    aliases.split(',').map(str::trim).filter(|alias| !alias.is_empty())
}

/// Returns whether Helm keeps it when a later revision, or no revision, contains it.
fn outlives_release(object: &Value) -> bool {
    let has = |annotation: &str| !object["metadata"]["annotations"][annotation].is_null();
    has("helm.sh/hook") || has(RESOURCE_POLICY)
}

/// Returns whether it is a route without hostnames, or a patch that makes it one.
fn inherits_gateway_hosts(object: &Value) -> bool {
    // A patch has a kind only if helm applies the whole object.
    let is_route = object["kind"].as_str().is_some_and(|kind| kind.ends_with("Route"));
    let hostnames = object["spec"].get("hostnames");
    let is_empty = |hostnames: &Value| hostnames.as_array().is_none_or(Vec::is_empty);
    hostnames.map_or(is_route, is_empty)
}

/// Claims each host of an object that is about to be written, or returns the reason why it must not be.
pub(crate) fn claim_all(object: &Value, claim: impl Fn(&str) -> Result<(), String>) -> Result<(), String> {
    if outlives_release(object) {
        let why = "a hook, or an object that is marked to be kept, would keep its hosts after its release is gone";
        return Err(why.to_owned());
    }
    if inherits_gateway_hosts(object) {
        let why =
            "without spec.hostnames it has all hosts of its Gateway, also those of other ClientApps: name its own";
        return Err(why.to_owned());
    }
    if let Some(alias) = aliases(object).find(|alias| !alias.to_lowercase().split('.').all(is_label)) {
        return Err(format!(
            "{alias} in {SERVER_ALIAS} is not a plain host name: as a pattern it could take hosts of others"
        ));
    }
    hosts(object).iter().try_for_each(|host| claim(host))
}

/// Returns true if this JSON patch changes only who manages which field. helm sends it before it applies an object that was written without
/// server-side apply, as by Helm 3 (k8s.io/client-go/util/csaupgrade).
pub(crate) fn changes_managers_only(patch: &Value) -> bool {
    let is_harmless = |operation: &Value| {
        operation["op"] == "replace"
            && matches!(operation["path"].as_str(), Some("/metadata/managedFields" | "/metadata/resourceVersion"))
    };
    patch.as_array().is_some_and(|operations| operations.iter().all(is_harmless))
}

/// Returns whether both match a common host. A leading `*.` stands for one label or more, as in Gateway API and nginx; other
/// controllers of Ingresses match fewer.
pub(crate) fn overlap(one: &str, other: &str) -> bool {
    let under = |wildcard: &str, host: &str| {
        let parent = wildcard.strip_prefix('*').filter(|parent| parent.starts_with('.'));
        parent.is_some_and(|parent| host.len() > parent.len() && host.ends_with(parent))
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
        assert_eq!(hosts(&json!("text")), BTreeSet::new());
    }

    #[test]
    fn the_hosts_of_routes_and_listeners() {
        let route = json!({"spec": {
            "parentRefs": [{"name": "shared", "namespace": "gateways"}],
            "hostnames": ["a.Example.com", "*.b.example.com"],
            "rules": [{"filters": [{"type": "RequestRedirect", "requestRedirect": {"hostname": "c.example.com"}}]}],
        }});
        assert_eq!(hosts(&route), ["a.example.com", "*.b.example.com"].map(str::to_owned).into());
        let listeners = json!({"spec": {"listeners": [{"hostname": "d.example.com"}, {"port": 80}]}});
        assert_eq!(hosts(&listeners), ["d.example.com".to_owned()].into());
    }

    #[test]
    fn the_kinds_that_name_hosts() {
        for (version, kind, resource, expected) in [
            ("networking.k8s.io/v1", "Ingress", "ingresses", true),
            ("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", true),
            ("gateway.networking.k8s.io/v1beta1", "HTTPRoute", "httproutes", true),
            ("gateway.networking.k8s.io/v1", "GRPCRoute", "grpcroutes", true),
            ("gateway.networking.k8s.io/v1alpha3", "TLSRoute", "tlsroutes", true),
            ("gateway.networking.k8s.io/v1", "Gateway", "gateways", true),
            ("gateway.networking.k8s.io/v1", "ListenerSet", "listenersets", true),
            ("gateway.networking.k8s.io/v1alpha2", "TCPRoute", "tcproutes", false),
            ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", false),
            ("example.com/v1", "HTTPRoute", "httproutes", false),
            ("v1", "Service", "services", false),
        ] {
            assert_eq!(is_named_by_kind(&json!({"apiVersion": version, "kind": kind})), expected, "{version} {kind}");
            let group = version.split_once('/').map_or("", |(group, _)| group);
            assert_eq!(is_named_by_resource(group, resource), expected, "{group} {resource}");
        }
        assert!(!is_named_by_kind(&json!("text")));
    }

    #[test]
    fn what_claims_no_hosts_or_keeps_them_is_refused() {
        let free = |_: &str| Ok(());
        for (object, is_refused) in [
            (json!({"kind": "HTTPRoute", "spec": {"hostnames": ["a.example.com"]}}), false),
            (json!({"kind": "HTTPRoute", "spec": {"hostnames": []}}), true),
            (json!({"kind": "HTTPRoute", "spec": {"rules": []}}), true),
            (json!({"kind": "GRPCRoute"}), true),
            // Patches.
            (json!({"spec": {"rules": []}}), false),
            (json!({"spec": {"hostnames": null}}), true),
            (json!({"spec": {"hostnames": []}}), true),
            (json!({"kind": "Ingress", "spec": {"rules": [{"http": {}}]}}), false),
            (json!({"kind": "Gateway", "spec": {"listeners": [{"port": 80}]}}), false),
            (json!({"metadata": {"annotations": {"helm.sh/hook": "post-install"}}}), true),
            (json!({"metadata": {"annotations": {RESOURCE_POLICY: "keep"}}}), true),
        ] {
            assert_eq!(claim_all(&object, free).is_err(), is_refused, "{object}");
        }
    }

    #[test]
    fn an_alias_is_no_pattern() {
        let claimed = |aliases: &str| {
            claim_all(&json!({"metadata": {"annotations": {SERVER_ALIAS: aliases}}}), |host| match host {
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
            let error = claimed(aliases).err();
            let same = error.as_deref().zip(refusal).is_some_and(|(error, refusal)| error.starts_with(refusal));
            assert!(same || error.is_none() && refusal.is_none(), "{aliases}: {error:?}");
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
            assert_eq!(changes_managers_only(&patch), expected, "{patch}");
        }
    }

    #[test]
    fn hosts_that_overlap() {
        for (one, other, expected) in [
            ("a.example.com", "a.example.com", true),
            ("a.example.com", "b.example.com", false),
            ("*.example.com", "a.example.com", true),
            ("*.example.com", "a.b.example.com", true),
            ("*.example.com", "*.a.example.com", true),
            ("*.example.com", "a.badexample.com", false),
            ("*.example.com", ".example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", "*.example.com", true),
            ("~^.*$", "a.example.com", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
