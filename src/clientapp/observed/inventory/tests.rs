use super::*;
use crate::{
    clientapp::fixtures::stateful_set,
    helm::storage::{HookRun, Info},
};

const MANIFEST: &str = r"---
# ValuesSource: chart/templates/claim.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: acme-files, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: acme-scratch}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: acme-redis-master}
spec: {volumeClaimTemplates: [{metadata: {name: redis-data}}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: acme-cache}
spec: {volumeClaimTemplates: [{metadata: {name: c}}], persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}}
---
---
apiVersion: v1
kind: List
items: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: acme}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: far, namespace: elsewhere}
";

fn inventory() -> Inventory {
    let hook = |kind: &str, name: &str| Hook { kind: kind.to_owned(), name: name.to_owned(), ..Hook::default() };
    let hooks = vec![hook("Job", "prepare"), hook("Pod", "check"), hook("Job", "prepare")];
    read("uid", &Stored { manifest: MANIFEST.to_owned(), hooks, ..Stored::default() }).unwrap()
}

#[test]
fn invalid_objects_are_not_read() {
    let manifest = |manifest: &str| Stored { manifest: manifest.to_owned(), ..Stored::default() };
    let bomb = format!("---\n---\n- {}", "[],".repeat(1 << 20));
    let error = read("uid", &manifest(&bomb)).unwrap_err();
    assert_eq!(error, "its manifest has a document of 3145731 bytes, more than any object has");
    // A few kilobytes in Helm's storage, and gigabytes or an hour in this process.
    let many = "---\n{kind: A, apiVersion: v1, metadata: {name: a}}\n".repeat(MOST_OBJECTS + 1);
    assert_eq!(read("uid", &manifest(&many)).unwrap_err(), "its manifest: more than 5000 objects");
    let long = format!("{{kind: Ingress, apiVersion: v1, metadata: {{name: {}}}}}", "a".repeat(MOST_BYTES));
    assert!(read("uid", &manifest(&long)).unwrap_err().starts_with("the names of its objects"));
    let deep = format!("a: {}{}", "[".repeat(1_500_000), "]".repeat(1_500_000));
    assert!(read("uid", &manifest(&deep)).unwrap_err().starts_with("its manifest: not YAML"));
    for (text, expected) in [
        ("", &[""][..]),
        ("a: 1", &["a: 1"]),
        ("---\na: 1\n--- # b\nb: |\n  ---\n---", &["", "\na: 1\n", " # b\nb: |\n  ---\n", ""]),
    ] {
        assert_eq!(documents(text).collect::<Vec<_>>(), expected, "{text}");
    }
}

#[test]
fn the_hosts_of_ingresses_and_routes_are_claimed() {
    let manifest = r"---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: a}
spec: {rules: [{host: a.example.com}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: b}
spec: {hostnames: [B.example.com, '*.c.example.com']}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: d}
spec: {hostnames: [d.example.com]}
---
apiVersion: example.com/v1
kind: Other
metadata: {name: e}
spec: {hostnames: [e.example.com]}
";
    let found = read("uid", &Stored { manifest: manifest.to_owned(), ..Stored::default() }).unwrap();
    assert_eq!(found.hosts, ["*.c.example.com", "a.example.com", "b.example.com", "d.example.com"]);
}

#[test]
fn hooks_of_former_revisions_are_not_forgotten() {
    let former = Inventory {
        hook_pods: (0..60).map(|number| format!("check-{number}")).chain(["check".to_owned()]).collect(),
        hook_jobs: vec!["prepare".to_owned(), "migrate".to_owned()],
        objects: vec![ReleaseObject::default()],
        ..Inventory::default()
    };
    let now = with_former_hooks(inventory(), Some(&former));
    assert_eq!(now.hook_jobs, ["prepare", "migrate"]);
    assert_eq!((now.hook_pods.len(), now.hook_pods[0].as_str(), now.hook_pods[1].as_str()), (50, "check", "check-0"));
    assert_eq!(now.objects, inventory().objects);
    assert_eq!(with_former_hooks(inventory(), None), inventory());
}

#[test]
fn what_a_release_consists_of() {
    let inventory = inventory();
    let names: Vec<_> = inventory.objects.iter().map(|object| object.name.as_str()).collect();
    assert_eq!(names, ["acme-files", "acme-scratch", "acme-redis-master", "acme-cache", "acme", "far"]);
    assert_eq!(inventory.hook_jobs, ["prepare"]);
    for bad in ["kind: A\n", "apiVersion: v1\nkind: A\n", "a: [", "- 1\n"] {
        assert!(read("uid", &Stored { manifest: bad.to_owned(), ..Stored::default() }).is_err(), "{bad}");
    }
}

#[test]
fn hooks_that_only_an_installation_runs() {
    for (events, phase, last, expected) in [
        (&["pre-install"][..], "Failed", "now", true),
        (&["pre-install"], "Running", "now", true),
        (&["pre-install"], "Succeeded", "now", false),
        (&["post-install", "pre-upgrade"], "", "now", true),
        (&["pre-install", "pre-upgrade"], "", "now", false),
        (&["post-install", "post-upgrade"], "", "now", false),
        (&["test"], "", "now", false),
        // As in an upgrade.
        (&["pre-install"], "Failed", "later", false),
    ] {
        let events = events.iter().map(|event| (*event).to_owned()).collect();
        let last_run = HookRun { phase: phase.to_owned() };
        let hook = Hook { kind: "Job".to_owned(), name: "migrate".to_owned(), events, last_run, ..Hook::default() };
        let info = Info { first_deployed: Some("now".to_owned()), last_deployed: Some(last.to_owned()) };
        let inventory = read("uid", &Stored { hooks: vec![hook], info, ..Stored::default() }).unwrap();
        assert_eq!(inventory.install_hooks, ["Job migrate"][..usize::from(expected)], "{inventory:?}");
    }
}

#[test]
fn claim_ownership_and_retention() {
    let inventory = inventory();
    for (claim, made_by, dangerous) in [
        ("acme-files", Some("acme-files"), false),
        ("acme-scratch", Some("acme-scratch"), true),
        ("redis-data-acme-redis-master-0", Some("acme-redis-master"), false),
        ("redis-data-acme-redis-master-12", Some("acme-redis-master"), false),
        ("c-acme-cache-0", Some("acme-cache"), true),
        ("redis-data-acme-redis-master-x", None, false),
        ("redis-data-acme-redis-master-", None, false),
        ("other", None, false),
    ] {
        let found = maker(&inventory, "tenants", claim);
        assert_eq!(found.map(|object| object.name.as_str()), made_by, "{claim}");
        assert_eq!(found.is_some_and(|maker| danger(maker).is_some()), dangerous, "{claim}");
    }
    let first: Vec<_> = first_claims(&inventory, "tenants").collect();
    assert_eq!(first, ["acme-files", "acme-scratch", "redis-data-acme-redis-master-0", "c-acme-cache-0"]);
    assert!(first.iter().all(|claim| maker(&inventory, "tenants", claim).is_some()));
    let ordinals = |replicas: Option<i64>| {
        let set = ReleaseObject { replicas, ..stateful_set("db", "data") };
        let inventory = Inventory { objects: vec![set], ..Inventory::default() };
        assert!(first_claims(&inventory, "tenants").count() <= 1);
        ["data-db-0", "data-db-1", "data-db-x"].map(|claim| expects(&inventory, "tenants", claim))
    };
    assert_eq!(ordinals(None), [true, false, false]);
    assert_eq!(ordinals(Some(0)), [false; 3]);
    // What a tenant may ask for is not enumerated.
    assert_eq!(ordinals(Some(i64::MAX)), [true, true, false]);
}

#[test]
fn a_workload_that_is_missing_is_not_ready() {
    let seen = vec![Workload { kind: "Deployment", name: "acme".to_owned(), replicas: 1, ..Workload::default() }];
    let all = with_missing(Some(&inventory()), &Key::new("tenants", "acme"), seen.clone());
    let waiting: Vec<_> = all.iter().map(|workload| (workload.name.as_str(), workload.waiting.is_some())).collect();
    assert_eq!(waiting, [("acme", false), ("acme-cache", true), ("acme-redis-master", true)]);
    assert_eq!(with_missing(None, &Key::new("tenants", "acme"), seen.clone()), seen);
}

#[test]
fn a_workload_that_another_client_has_scaled_to_zero_is_not_ready() {
    let app = Key::new("tenants", "acme");
    for (asked, live, waits) in [
        (Some(1), 1, false),
        (Some(2), 0, true),
        (Some(0), 0, false),
        // From an inventory that was recorded without replicas.
        (None, 0, false),
    ] {
        let mut inventory = inventory();
        inventory.objects.retain(|object| object.kind == "Deployment" && object.name == "acme");
        inventory.objects[0].replicas = asked;
        let seen = Workload { kind: "Deployment", name: "acme".to_owned(), replicas: live, ..Workload::default() };
        let waiting = with_missing(Some(&inventory), &app, vec![seen]).remove(0).waiting;
        assert_eq!(waiting.is_some_and(|waiting| waiting.starts_with("scaled to 0")), waits, "{asked:?} {live}");
    }
    let asked: Vec<_> = inventory().objects.iter().filter_map(|object| object.replicas).collect();
    assert_eq!(asked, [1, 1, 1, 1], "what a manifest does not say is one");
}
