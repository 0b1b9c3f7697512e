use serde_json::{Value, json};

use super::*;
use crate::clientapp::spec::deployer::DeployerObject;

fn resource(plural: &str, kind: &str, scope: &str, verbs: &[&str]) -> Value {
    json!({"resource": plural, "responseKind": {"kind": kind}, "scope": scope, "verbs": verbs})
}

fn group(name: &str, versions: &[(&str, &[Value])]) -> APIGroupDiscovery {
    let version = |(version, resources): &(&str, &[Value])| json!({"version": version, "resources": resources, "freshness": "Current"});
    let versions: Vec<_> = versions.iter().map(version).collect();
    serde_json::from_value(json!({"metadata": {"name": name}, "versions": versions})).unwrap()
}

const STORED: &[&str] = &["create", "delete", "get", "list", "watch"];
const APPS: &str = "apps.bnerd-operator.local/v1alpha1";

fn core() -> Vec<APIGroupDiscovery> {
    let resources = [
        resource("nodes", "Node", "Cluster", STORED),
        resource("bindings", "Binding", "Namespaced", &["create"]),
        resource("pods", "Pod", "Namespaced", STORED),
        resource("secrets", "Secret", "Namespaced", STORED),
    ];
    vec![group("", &[("v1", &resources)])]
}

#[test]
fn the_kinds_that_are_stored_in_namespaces() {
    let both = resource("things", "Thing", "Namespaced", STORED);
    let older = resource("relics", "Relic", "Namespaced", STORED);
    let ours =
        [resource("clientapps", "ClientApp", "Namespaced", STORED), resource("profiles", "Profile", "Cluster", STORED)];
    let groups = [
        group("apps.example.com", &[("v2", std::slice::from_ref(&both)), ("v1", &[both.clone(), older])]),
        group("metrics.k8s.io", &[("v1", &[resource("pods", "PodMetrics", "Namespaced", &["get", "list"])])]),
        group("apps.bnerd-operator.local", &[("v1alpha1", &ours)]),
    ];
    let kinds = Kinds::of(&core(), &groups, Deployer::default()).unwrap();
    let stored: Vec<_> = kinds.stored.iter().map(|kind| format!("{} {}", kind.api_version, kind.plural)).collect();
    assert_eq!(
        stored,
        [
            "apps.bnerd-operator.local/v1alpha1 clientapps",
            "v1 pods",
            "v1 secrets",
            "apps.example.com/v2 things",
            "apps.example.com/v1 relics",
        ]
    );
}

#[test]
fn unclear_contents_are_reported() {
    let mut stale = group("metrics.example.com", &[("v1", &[])]);
    stale.versions[0].freshness = Some("Stale".to_owned());
    let deaf = group("deaf.example.com", &[("v1", &[resource("x", "X", "Namespaced", &["delete"])])]);
    let clear = || group("apps.example.com", &[("v1", &[])]);
    for (core, groups, problem) in [
        (core(), vec![], "does not list its kinds"),
        (vec![], vec![clear()], "does not list its kinds"),
        (core(), vec![clear(), stale], "metrics.example.com/v1 are not known"),
        (core(), vec![clear(), deaf], "x.deaf.example.com cannot be listed"),
    ] {
        let unclear = Kinds::of(&core, &groups, Deployer::default()).unwrap_err();
        assert!(unclear.contains(problem), "{unclear}");
    }
    assert!(Kinds::of(&core(), &[clear()], Deployer::default()).is_ok());
}

#[test]
fn objects_that_keep_a_namespace() {
    let databases = ["acme-pg".to_owned()].into();
    let owner = |api_version: &str, kind: &str, name: &str, uid: &str, controller: bool| json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": controller}]);
    let own = owner(APPS, "ClientApp", "acme", "1", true);
    let other = owner(APPS, "ClientApp", "acme", "2", true);
    let server = owner("postgres-operator.crunchydata.com/v1beta1", "PostgresCluster", "acme-pg", "3", true);
    let another_server = owner("postgres-operator.crunchydata.com/v1beta1", "PostgresCluster", "theirs", "3", true);
    let cluster = owner("postgresql.cnpg.io/v1", "Cluster", "acme-pg", "3", true);
    let workload = owner("apps/v1", "ReplicaSet", "x", "4", true);
    let beside = owner("apps/v1", "ReplicaSet", "x", "4", false);
    let node = owner("v1", "Node", "x", "5", true);
    let unknown = owner("gone.example.com/v1", "Thing", "x", "6", true);
    let deleted = "2026-01-01T00:00:00Z";
    let stamped = |uid: &str| json!({"apps.bnerd-operator.local/clientapp-uid": uid});
    let alike = json!({"app.kubernetes.io/instance": "acme"});
    let retained = json!({"apps.bnerd-operator.local/retained-from": "acme"});
    let table = [
        ("v1", "ConfigMap", json!({"name": "kube-root-ca.crt"}), false),
        ("v1", "ConfigMap", json!({"name": "notes"}), true),
        // CloudNativePG leaves it in each namespace.
        ("v1", "ConfigMap", json!({"name": "cnpg-default-monitoring"}), false),
        ("v1", "Secret", json!({"name": "cnpg-default-monitoring"}), true),
        ("v1", "ConfigMap", json!({"name": "x", "deletionTimestamp": deleted}), false),
        ("v1", "ServiceAccount", json!({"name": "default"}), false),
        ("v1", "ServiceAccount", json!({"name": "clientapp-deployer", "uid": "made"}), false),
        ("v1", "ServiceAccount", json!({"name": "clientapp-deployer", "uid": "another"}), true),
        ("rbac.authorization.k8s.io/v1", "RoleBinding", json!({"name": "clientapp-deployer", "uid": "given"}), true),
        ("v1", "Secret", json!({"name": "default"}), true),
        ("v1", "Event", json!({"name": "x"}), false),
        ("events.k8s.io/v1", "Event", json!({"name": "x"}), false),
        ("example.com/v1", "Event", json!({"name": "x"}), true),
        ("v1", "Endpoints", json!({"name": "x"}), false),
        ("discovery.k8s.io/v1", "EndpointSlice", json!({"name": "x"}), true),
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot", json!({"name": "x"}), true),
        // By owner.
        ("v1", "Pod", json!({"name": "x"}), true),
        ("v1", "Pod", json!({"name": "x", "labels": alike}), true),
        ("v1", "Pod", json!({"name": "x", "ownerReferences": workload}), false),
        ("v1", "Pod", json!({"name": "x", "ownerReferences": beside}), true),
        ("v1", "Pod", json!({"name": "x", "ownerReferences": node}), true),
        ("v1", "Pod", json!({"name": "x", "ownerReferences": unknown}), true),
        ("v1", "Pod", json!({"name": "x", "ownerReferences": server}), false),
        ("snapshot.storage.k8s.io/v1", "VolumeSnapshot", json!({"name": "x", "ownerReferences": workload}), false),
        ("v1", "ConfigMap", json!({"name": "x", "ownerReferences": other}), false),
        // For data, an owner alone is not enough.
        ("v1", "Secret", json!({"name": "x", "ownerReferences": own}), false),
        // An earlier app's: that app is gone, or counts itself.
        ("v1", "Secret", json!({"name": "x", "ownerReferences": other}), false),
        ("v1", "Secret", json!({"name": "x", "ownerReferences": workload}), true),
        ("v1", "Secret", json!({"name": "x", "ownerReferences": server}), false),
        ("v1", "Secret", json!({"name": "x", "ownerReferences": another_server}), true),
        // The app's data that were to be deleted are already gone.
        ("v1", "Secret", json!({"name": "x", "annotations": stamped("1")}), true),
        ("v1", "Secret", json!({"name": "x", "annotations": stamped("2")}), true),
        ("v1", "Secret", json!({"name": "x", "annotations": stamped("1"), "labels": retained}), true),
        ("v1", "Secret", json!({"name": "x", "deletionTimestamp": deleted}), false),
        ("v1", "PersistentVolumeClaim", json!({"name": "x", "ownerReferences": workload}), true),
        ("v1", "PersistentVolumeClaim", json!({"name": "x", "ownerReferences": server}), false),
        ("v1", "PersistentVolumeClaim", json!({"name": "x", "ownerReferences": cluster}), false),
        ("v1", "PersistentVolumeClaim", json!({"name": "x", "ownerReferences": own, "labels": retained}), true),
        ("v1", "PersistentVolumeClaim", json!({"name": "x", "labels": alike}), true),
        // ClientApps.
        (APPS, "ClientApp", json!({"name": "acme", "uid": "1"}), false),
        (APPS, "ClientApp", json!({"name": "acme", "uid": "2"}), true),
        (APPS, "ClientApp", json!({"name": "x", "uid": "3", "deletionTimestamp": deleted}), true),
    ];
    let namespaced = [("apps", "ReplicaSet"), ("apps.bnerd-operator.local", "ClientApp")];
    let namespaced = namespaced.map(|(group, kind)| (group.to_owned(), kind.to_owned())).into();
    let found = |uid: &str, made| {
        Some(DeployerObject { uid: uid.to_owned(), created: None, matches: true, created_by_us: made })
    };
    let deployer = Deployer { account: found("made", true), binding: found("given", false) };
    let kinds = Kinds { stored: Vec::new(), namespaced, deployer };
    let secret = ApiResource::erase::<k8s_openapi::api::core::v1::Secret>(&());
    let of_server = serde_json::from_value(json!({"name": "x", "ownerReferences": server})).unwrap();
    assert!(kinds.counts(&secret, &of_server, None));
    for (api_version, kind, meta, counts) in table {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let of = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let decoded: ObjectMeta = serde_json::from_value(meta.clone()).unwrap();
        assert_eq!(kinds.counts(&of, &decoded, Some((&databases, "1"))), counts, "{kind} {meta}");
        // Without an app, no object is excluded as its own.
        assert!(!counts || kinds.counts(&of, &decoded, None), "{kind} {meta}");
    }
}
