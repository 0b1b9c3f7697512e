use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{
    super::{DatabaseObject, DatabaseState, Provider as _},
    CloudNativePg, read,
};
use crate::{
    clientapp::fixtures::{app, config, want},
    clientapp::spec::{desired::desired, values_from::Sources},
    crd::cloudnativepg::CloudNativePgCluster,
    platform::key::Key,
};

fn spec(more: Value) -> Value {
    let mut postgres = json!({"provider": "cloudnativepg", "version": "17"});
    postgres.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"postgres": postgres})
}

fn document(more: Value) -> Value {
    let desired = want(&spec(more));
    let object = desired.database_object().unwrap();
    object.document(&object.targets(None).unwrap()).object
}

/// Returns what the operator reads from a stored object.
fn stored_as(object: &Value) -> DatabaseObject {
    read(&serde_json::from_value::<CloudNativePgCluster>(object.clone()).unwrap(), DatabaseObject::default())
}

#[test]
fn the_document_and_how_the_app_reaches_the_database() {
    let all = json!({
        "instances": 2, "storageSize": "5Gi", "storageClassName": "fast",
        "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "parameters": {"max_connections": "200", "shared_preload_libraries": "pg_stat_statements, auto_explain"},
    });
    let address = want(&spec(json!({}))).database.unwrap().address;
    insta::assert_snapshot!(
        [
            serde_yaml::to_string(&document(json!({}))).unwrap(),
            serde_yaml::to_string(&document(all.clone())["spec"]).unwrap(),
            format!("{address:#?}\n"),
        ]
        .join("---\n")
    );
    let seen = stored_as(&document(all));
    assert_eq!((seen.postgres_version, seen.storage_bytes), (Some(17), Some(5.0 * f64::from(1 << 30))));
    assert_eq!((seen.storage_class.as_deref(), seen.source), (Some("fast"), None));
}

#[test]
fn what_the_spec_may_not_ask_for() {
    let problem = |more: Value, upgrade: Value| {
        let mut app = app(&spec(more));
        app.spec.upgrade = serde_json::from_value(upgrade).unwrap();
        desired(&app, None, (&Sources::default(), &[]), &config()).err().map(|invalid| invalid.to_string())
    };
    assert_eq!(problem(json!({}), json!({})), None);
    for (more, upgrade, words) in [
        (
            json!({"version": "13"}),
            json!({}),
            "spec.postgres.version: the provider cloudnativepg has PostgreSQL 14 to 18",
        ),
        (json!({}), json!({"backup": true}), "spec.upgrade.backup: "),
        (json!({"parameters": {"ssl": "off"}}), json!({}), "spec.postgres.parameters: "),
    ] {
        let problem = problem(more.clone(), upgrade).unwrap();
        assert!(problem.contains(words), "{more}: {problem}");
    }
}

/// A cluster with this status, in the words of CloudNativePG 1.30 (`api/v1/cluster_types.go`).
fn cluster(metadata: Value, status: Value) -> Value {
    let mut meta = json!({"name": "acme-pg", "namespace": "tenants", "creationTimestamp": "2026-01-01T00:01:00Z"});
    meta.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let spec = json!({"instances": 1, "imageName": "ghcr.io/cloudnative-pg/postgresql:17"});
    json!({"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": meta, "spec": spec, "status": status})
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let time = "2026-01-01T00:02:00Z";
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
}

#[test]
fn when_a_cluster_can_be_used() {
    let ready = || condition("Ready", "True", "ClusterIsReady", "Cluster is Ready");
    let unready = || condition("Ready", "False", "ClusterIsNotReady", "Cluster Is Not Ready");
    // Untrue: it means that a Job was made.
    let initialized = || condition("Initialized", "True", "BootstrapCompleted", "Cluster has been bootstrapped");
    let archiving =
        || condition("ContinuousArchiving", "True", "ContinuousArchivingSuccess", "Continuous archiving is working");
    let status = |phase: &str, reason: &str, condition: Value, instances: i64, primary: &str| {
        json!({
            "phase": phase, "phaseReason": reason, "conditions": [initialized(), archiving(), condition],
            "readyInstances": instances, "currentPrimary": primary,
        })
    };
    let healthy = "Cluster in healthy state";
    let hibernated = json!({"annotations": {"cnpg.io/hibernation": "on"}});
    let awake = json!({"annotations": {"cnpg.io/hibernation": "off"}});
    let mut sleeping = status(healthy, "", ready(), 0, "acme-pg-1");
    sleeping.as_object_mut().unwrap().remove("readyInstances");
    let mut waking = sleeping.clone();
    waking["conditions"].as_array_mut().unwrap().push(condition("cnpg.io/hibernation", "True", "Hibernated", ""));
    let waiting = |words: &str| DatabaseState::Waiting(words.to_owned());
    let stalled = |words: &str| DatabaseState::Stalled(words.to_owned());
    let creating = "Creating primary instance acme-pg-1";
    let plugin = "Unknown plugin: 'barman-cloud.cloudnative-pg.io'. This may be caused by the plugin not being loaded";
    let failed = "Instance creation failed for the following jobs: badsql-1-initdb. Check the job logs to investigate the cause of the failure.";
    let wakes = " is hibernated; to wake it: `kubectl annotate clusters.postgresql.cnpg.io acme-pg -n tenants cnpg.io/hibernation-`";
    for (what, metadata, status, expected) in [
        ("no status", json!({}), Value::Null, DatabaseState::NotReported),
        ("no phase", json!({}), json!({}), DatabaseState::NotReported),
        (
            "created",
            json!({}),
            status("Setting up primary", creating, unready(), 0, ""),
            waiting(" is not ready: Setting up primary: Creating primary instance acme-pg-1"),
        ),
        (
            "it starts",
            json!({}),
            status(
                "Waiting for the instances to become active",
                "Some instances are not yet active. Please wait.",
                unready(),
                0,
                "acme-pg-1",
            ),
            waiting(
                " is not ready: Waiting for the instances to become active: Some instances are not yet active. Please wait",
            ),
        ),
        ("ready", json!({}), status(healthy, "", ready(), 1, "acme-pg-1"), DatabaseState::Ready),
        ("not hibernated", awake, status(healthy, "", ready(), 1, "acme-pg-1"), DatabaseState::Ready),
        (
            "another replica, while the primary serves",
            json!({}),
            status("Creating a new replica", "Creating replica acme-pg-2-join", unready(), 1, "acme-pg-1"),
            waiting(" is not ready: Creating a new replica: Creating replica acme-pg-2-join"),
        ),
        (
            "it fails over",
            json!({}),
            status("Failing over", "Failing over from acme-pg-1 to acme-pg-2", unready(), 1, "acme-pg-1"),
            waiting(" is not ready: Failing over: Failing over from acme-pg-1 to acme-pg-2"),
        ),
        ("hibernated", hibernated.clone(), sleeping.clone(), stalled(wakes)),
        ("about to", hibernated, status(healthy, "", ready(), 1, "acme-pg-1"), stalled(wakes)),
        ("it wakes", json!({}), waking, waiting(" wakes up from hibernation: Cluster in healthy state")),
        ("no pods", json!({}), sleeping, waiting(" has no ready instance: Cluster in healthy state")),
        (
            "no primary",
            json!({}),
            status(healthy, "", ready(), 1, ""),
            waiting(" has no primary: Cluster in healthy state"),
        ),
        (
            "another image, which cannot be pulled",
            json!({}),
            status(
                "Primary instance is being restarted without a switchover",
                "the instance is using a different image: a:17 -> b:17",
                unready(),
                0,
                "acme-pg-1",
            ),
            waiting(
                " is not ready: Primary instance is being restarted without a switchover: the instance is using a different image: a:17 -> b:17",
            ),
        ),
        (
            "a plugin is missing",
            json!({}),
            status(
                "Cluster cannot proceed to reconciliation due to an unknown plugin being required",
                plugin,
                unready(),
                0,
                "",
            ),
            waiting(&format!(
                " is not ready: Cluster cannot proceed to reconciliation due to an unknown plugin being required: {plugin}"
            )),
        ),
        (
            "its Job has failed for good",
            json!({}),
            status("Cluster is unrecoverable and needs manual intervention", failed, unready(), 0, ""),
            stalled(
                ": Cluster is unrecoverable and needs manual intervention: Instance creation failed for the following jobs: badsql-1-initdb. Check the job logs to investigate the cause of the failure",
            ),
        ),
    ] {
        let cluster = cluster(metadata, status);
        assert_eq!(stored_as(&cluster).state, expected, "{what}");
        // As `kubectl clientapp status` shows it.
        let object: DynamicObject = serde_json::from_value(cluster).unwrap();
        assert_eq!(CloudNativePg.summary(&object).is_ready, expected == DatabaseState::Ready, "{what}");
    }
}

#[test]
fn a_summary() {
    let ready = condition("Ready", "True", "ClusterIsReady", "Cluster is Ready");
    let status = json!({
        "phase": "Cluster in healthy state", "conditions": [ready], "readyInstances": 1, "currentPrimary": "acme-pg-1",
        // The data are upgraded after the image was changed.
        "pgDataImageInfo": {"majorVersion": 16},
    });
    let object: DynamicObject = serde_json::from_value(cluster(json!({}), status)).unwrap();
    let summary = CloudNativePg.summary(&object);
    assert_eq!((summary.state.as_deref(), summary.version.as_deref()), (Some("Cluster in healthy state"), Some("16")));
    let parts = [("instances".to_owned(), Some((1, 1))), ("primary acme-pg-1".to_owned(), None)];
    assert_eq!(summary.parts, parts);
}

#[test]
fn a_cluster_that_was_handed_over_keeps_how_it_was_created() {
    let recovery = json!({"recovery": {"source": "backups", "database": "clientapp", "owner": "clientapp"}});
    let mut cluster = cluster(json!({}), json!({"phase": "Setting up primary"}));
    cluster["spec"]["bootstrap"] = recovery.clone();
    let seen = stored_as(&cluster);
    assert_eq!(seen.progressed, None, "a recovery may need long");
    assert_eq!(seen.source.as_ref(), Some(&recovery));
    let mut document = document(json!({}));
    CloudNativePg.set_data_source(&mut document, &seen.source.unwrap());
    assert_eq!(document["spec"]["bootstrap"], recovery);
    cluster["status"]["currentPrimary"] = json!("acme-pg-1");
    assert!(stored_as(&cluster).progressed.is_some());
    cluster["status"]["phase"] = json!("Creating a new replica");
    assert_eq!(stored_as(&cluster).progressed, None, "so may a copy");
}

#[test]
fn why_its_pods_do_not_run() {
    let database = Key::new("tenants", "acme-pg");
    let pod = |name: &str, owner: Value, status: Value| -> Pod {
        let owners = if owner.is_null() { json!([]) } else { json!([owner]) };
        let labels = json!({"cnpg.io/cluster": "acme-pg"});
        let meta = json!({"name": name, "namespace": "tenants", "labels": labels, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
    };
    let owner = |kind: &str, name: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true});
    let its = || owner("Cluster", "acme-pg", "pg-uid");
    let initdb = || owner("Job", "acme-pg-1-initdb", "job-uid");
    let pulls = || {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "postgres", "image": "nowhere:17", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
        }]})
    };
    let failed = || {
        json!({"phase": "Failed", "containerStatuses": [{
            "name": "initdb", "image": "postgresql:17", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}},
        }]})
    };
    let cannot_pull = |pod: &str| {
        format!(
            "container postgres of pod {pod} cannot pull image nowhere:17: see `kubectl describe pod -n tenants {pod}`"
        )
    };
    let also = "; if you correct the spec, also `kubectl delete job acme-pg-1-initdb -n tenants`";
    for (what, pods, expected) in [
        ("none", vec![], None),
        ("an instance", vec![pod("acme-pg-1", its(), pulls())], Some(cannot_pull("acme-pg-1"))),
        (
            "a Job, which is never replaced",
            vec![pod("acme-pg-1-initdb-x", initdb(), pulls())],
            Some(cannot_pull("acme-pg-1-initdb-x") + also),
        ),
        (
            "a Job that has failed",
            vec![pod("acme-pg-1-initdb-x", initdb(), failed()), pod("acme-pg-1-initdb-y", initdb(), failed())],
            Some(format!(
                "container initdb of pod acme-pg-1-initdb-x ends with exit code 1: see `kubectl logs -n tenants acme-pg-1-initdb-x -c initdb`{also}"
            )),
        ),
        (
            "a Job that is done",
            vec![pod("acme-pg-1-initdb-x", initdb(), json!({"phase": "Succeeded"})), pod("acme-pg-1", its(), pulls())],
            Some(cannot_pull("acme-pg-1")),
        ),
        ("of a former cluster", vec![pod("acme-pg-1", owner("Cluster", "acme-pg", "former"), pulls())], None),
        ("of another Job", vec![pod("x", owner("Job", "nightly", "job-uid"), pulls())], None),
        ("labelled by a user", vec![pod("x", Value::Null, pulls())], None),
    ] {
        assert_eq!(CloudNativePg.pods_problem(&database, "pg-uid", &pods), expected, "{what}");
    }
}
