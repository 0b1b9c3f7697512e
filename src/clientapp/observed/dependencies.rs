//! Reads whether an object that `spec.dependsOn` names is ready. **Pure.**

use std::collections::BTreeSet;

use serde_json::Value;

use crate::{
    crd::{
        ClientApp, Dependency, Guard,
        conditions::{find, kind::READY},
    },
    platform::key::Key,
};

/// Returns why a ClientApp is not Ready; `None`: it is.
pub(crate) fn app(name: &str, found: Option<&Guard<ClientApp>>) -> Option<String> {
    let not = |why: &str| Some(format!("ClientApp {name} {why}"));
    let Some(found) = found.filter(|found| found.metadata.deletion_timestamp.is_none()) else {
        return not("does not exist");
    };
    let status = found.status();
    let ready = status.as_ref().and_then(|status| find(&status.conditions, READY));
    let is_seen = status.as_ref().is_some_and(|status| status.observed_generation == found.metadata.generation);
    match ready {
        Some(ready) if ready.status == "True" && is_seen => None,
        Some(ready) if is_seen => not(&format!("is not Ready ({})", ready.reason)),
        _ => not("is not Ready yet"),
    }
}

/// Returns why a Postgresql is not Ready; `None`: it is. `found`: whether it is ready, if it exists.
pub(crate) fn database(dependency: &Dependency, found: Option<bool>) -> Option<String> {
    match found {
        Some(true) => None,
        Some(false) => Some(format!("{} {} is not Ready yet", dependency.kind, dependency.name)),
        None => Some(format!("{} {} does not exist", dependency.kind, dependency.name)),
    }
}

/// Returns why an object is not Ready; `None`: it is.
pub(crate) fn object(dependency: &Dependency, found: Option<&Value>) -> Option<String> {
    let not = |why: &str| Some(format!("{} {} {why}", dependency.kind, dependency.name));
    let Some(found) = found else { return not("does not exist") };
    let conditions = found["status"]["conditions"].as_array().into_iter().flatten();
    match conditions.into_iter().find(|condition| condition["type"] == READY) {
        Some(ready) if ready["status"] == "True" => None,
        Some(ready) => not(&format!("is not Ready ({})", ready["reason"].as_str().unwrap_or("without a reason"))),
        None => not("has no condition Ready"),
    }
}

/// Returns true if `app` depends on itself through `from`. `of`: what an app depends on.
pub(crate) fn is_circle(app: &Key, from: &Key, depends: impl Fn(&Key) -> Vec<Key>) -> bool {
    let (mut open, mut seen) = (vec![from.clone()], BTreeSet::new());
    while let Some(next) = open.pop() {
        if next == *app {
            return true;
        }
        if seen.insert(next.clone()) {
            open.extend(depends(&next));
        }
    }
    false
}

/// Returns the ClientApps of its namespace that one depends on.
pub(crate) fn apps(namespace: &str, dependencies: &[Dependency]) -> Vec<Key> {
    dependencies
        .iter()
        .filter(|dependency| dependency.is_app())
        .map(|dependency| Key::new(namespace, &dependency.name))
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn dependency(of: Value) -> Dependency {
        serde_json::from_value(of).unwrap()
    }

    #[test]
    fn when_a_clientapp_is_ready() {
        let of = |more: Value| {
            let mut found = json!({
                "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
                "metadata": {"name": "db", "generation": 2}, "spec": {"hostname": "a.example"},
            });
            for (part, fields) in more.as_object().unwrap() {
                found.as_object_mut().unwrap().entry(part).or_insert(json!({}));
                found[part].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            }
            serde_json::from_value::<Guard<ClientApp>>(found).unwrap()
        };
        let status = |generation: i64, ready: &str| {
            let condition = json!({"type": "Ready", "status": ready, "reason": "Why", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            json!({"status": {"observedGeneration": generation, "conditions": [condition]}})
        };
        for (what, found, expected) in [
            ("missing", None, Some("ClientApp db does not exist")),
            ("new", Some(of(json!({}))), Some("ClientApp db is not Ready yet")),
            ("ready", Some(of(status(2, "True"))), None),
            ("ready before its spec changed", Some(of(status(1, "True"))), Some("ClientApp db is not Ready yet")),
            ("not ready", Some(of(status(2, "False"))), Some("ClientApp db is not Ready (Why)")),
            (
                "being deleted",
                Some(of(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))),
                Some("ClientApp db does not exist"),
            ),
        ] {
            assert_eq!(app("db", found.as_ref()).as_deref(), expected, "{what}");
        }
    }

    #[test]
    fn when_any_object_is_ready() {
        let of = dependency(json!({"apiVersion": "example.com/v1", "kind": "Bucket", "name": "files"}));
        let ready = |status: Value| json!({"status": {"conditions": [{"type": "Other", "status": "True"}, status]}});
        for (found, expected) in [
            (None, Some("Bucket files does not exist")),
            (Some(json!({})), Some("Bucket files has no condition Ready")),
            (Some(ready(json!({"type": "Ready", "status": "True"}))), None),
            (
                Some(ready(json!({"type": "Ready", "status": "False", "reason": "Creating"}))),
                Some("Bucket files is not Ready (Creating)"),
            ),
        ] {
            assert_eq!(object(&of, found.as_ref()).as_deref(), expected, "{found:?}");
        }
    }

    #[test]
    fn circles() {
        let key = |name: &str| Key::new("tenants", name);
        let of = |app: &Key| match app.name.as_str() {
            "a" => vec![key("b"), key("c")],
            "b" => vec![key("d")],
            "d" => vec![key("a"), key("d")],
            "e" => vec![key("e")],
            _ => vec![],
        };
        for (app, from, expected) in [
            ("a", "b", true),
            ("a", "c", false),
            ("a", "a", true),
            ("x", "a", false),
            ("b", "d", true),
            ("x", "e", false),
        ] {
            assert_eq!(is_circle(&key(app), &key(from), of), expected, "{app} by {from}");
        }
        let apps = apps(
            "tenants",
            &[dependency(json!({"name": "a"})), dependency(json!({"kind": "Postgresql", "name": "b"}))],
        );
        assert_eq!(apps, [key("a")]);
    }
}
