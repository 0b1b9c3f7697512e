//! Which hosts an Ingress takes (pure).

use std::collections::BTreeSet;

use serde_json::Value;

/// Other names of a host, by an annotation of ingress-nginx; what begins with `~` is a regular expression.
const SERVER_ALIAS: &str = "nginx.ingress.kubernetes.io/server-alias";

/// The hosts of an Ingress, in lower case; none of any other object.
pub fn hosts(document: &Value) -> BTreeSet<String> {
    let is_ingress = document["kind"] == "Ingress"
        && document["apiVersion"].as_str().is_some_and(|version| version.contains("networking.k8s.io/"));
    let items = |value: &'_ Value| value.as_array().map(Vec::as_slice).unwrap_or_default().to_vec();
    let spec = &document["spec"];
    let rules = items(&spec["rules"]).into_iter().map(|rule| rule["host"].clone());
    let tls = items(&spec["tls"]).into_iter().flat_map(|tls| items(&tls["hosts"]));
    let aliases = document["metadata"]["annotations"][SERVER_ALIAS].as_str().unwrap_or_default();
    let aliases = aliases.split(',').map(str::trim).map(str::to_lowercase);
    let hosts = rules.chain(tls).filter_map(|host| host.as_str().map(str::to_lowercase)).chain(aliases);
    hosts.filter(|host| is_ingress && !host.is_empty()).collect()
}

/// Whether both take requests for one and the same host; `*.` at the beginning is any one label.
pub fn overlap(one: &str, other: &str) -> bool {
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
        let mut service = ingress;
        service["kind"] = json!("Service");
        assert_eq!(hosts(&service), BTreeSet::new());
        assert_eq!(hosts(&json!("text")), BTreeSet::new());
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
