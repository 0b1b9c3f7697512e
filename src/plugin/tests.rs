//! What people see, for objects that are given at a time that is given.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DynamicObject, PartialObjectMeta};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::crd::ClientApp;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

fn built<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2026-01-01T11:55:30Z", "observedGeneration": 2})
}

fn app(name: &str, spec: Value, status: Value) -> Value {
    let mut full = json!({"hostname": format!("{name}.example.com")});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {"name": name, "namespace": "tenants", "generation": 2, "creationTimestamp": "2025-12-30T12:00:00Z"},
        "spec": full, "status": status,
    })
}

fn serving() -> Value {
    let deployed = "revision 2 with chart version 5.5.2 is deployed";
    app(
        "acme",
        json!({}),
        json!({
            "observedGeneration": 2, "url": "https://acme.example.com", "postgresClusterName": "acme-pg",
            "conditions": [
                condition("Ready", "True", "Ready", &format!("{deployed}, serving https://acme.example.com")),
                condition("PostgresReady", "True", "Ready", "PerconaPGCluster acme-pg is ready"),
                condition("Released", "True", "Deployed", deployed),
                condition("WorkloadsReady", "True", "Ready", "2 workloads are ready"),
                condition("Reconciling", "False", "Settled", "the operator has nothing left to do"),
                condition("Stalled", "False", "NotStalled", "nothing has to be changed by hand"),
            ],
            "release": {"name": "acme", "namespace": "tenants", "revision": 2, "status": "deployed", "chart": "nextcloud",
                "chartVersion": "5.5.2", "appVersion": "29.0.4", "digest": "0123456789abcdef",
                "deployedAt": "2026-01-01T11:00:00Z"},
            "lastAttempt": {"digest": "0123456789abcdef", "startedAt": "2026-01-01T10:59:58Z"},
        }),
    )
}

fn failing() -> Value {
    let why = "helm upgrade: the pre-install hook of the chart failed: Job globex-hook failed: BackoffLimitExceeded";
    app(
        "globex",
        json!({"postgres": {"enabled": false}, "chartVersion": "5.9.3"}),
        json!({
            "observedGeneration": 2,
            "conditions": [
                condition("Ready", "False", "UpgradeFailed", why),
                condition("PostgresReady", "True", "Disabled", "no database is asked for"),
                condition("Reconciling", "True", "UpgradeFailed", why),
                condition("Stalled", "False", "NotStalled", "nothing has to be changed by hand"),
            ],
            "lastAttempt": {"digest": "d", "startedAt": "2026-01-01T11:58:00Z", "failures": 3, "reason": "UpgradeFailed",
                "message": why, "retryAt": "2026-01-01T12:01:30Z"},
        }),
    )
}

#[test]
fn the_list() {
    let mut changed = serving();
    changed["metadata"]["generation"] = json!(3);
    let mut undecodable = app("odd", json!({}), json!({}));
    undecodable["spec"]["replicas"] = json!("many");
    let apps = [serving(), failing(), app("new", json!({}), Value::Null), changed, undecodable];
    let apps: Vec<DynamicObject> = apps.into_iter().map(built).collect();
    insta::assert_snapshot!(plain(&list::render(&apps, true, now())));
    insta::assert_snapshot!(plain(&list::render(&apps[..1], false, now())));
    // What is true is green, what is not is red.
    let coloured = list::render(&apps, false, now());
    assert!(coloured.contains("\u{1b}[32mTrue\u{1b}[0m") && coloured.contains("\u{1b}[31mFalse\u{1b}[0m"));
}

fn workload(kind: &str, name: &str, ready: i64) -> Value {
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": {"replicas": 2, "selector": {},
        "template": {}, "serviceName": "s"}, "status": {"replicas": 2, "readyReplicas": ready}})
}

#[test]
fn the_tree() {
    let app: ClientApp = built(serving());
    let cluster = json!({"apiVersion": "pgv2.percona.com/v2", "kind": "PerconaPGCluster", "metadata": {"name": "acme-pg"},
        "spec": {"postgresVersion": 15}, "status": {"state": "ready", "postgres": {"ready": 1, "size": 1}, "pgbouncer": {"ready": 1, "size": 1}}});
    let volume = json!({"metadata": {"name": "acme-nextcloud"},
        "spec": {"resources": {"requests": {"storage": "8Gi"}}}, "status": {"phase": "Bound"}});
    let seen = status::Belongings {
        database: Some(("acme-pg".to_owned(), Ok(built(cluster)))),
        deployments: Ok(vec![built(workload("Deployment", "acme-nextcloud", 2))]),
        stateful_sets: Ok(vec![built(workload("StatefulSet", "acme-redis-master", 1))]),
        volumes: Ok(vec![built(volume)]),
    };
    insta::assert_snapshot!(plain(&status::render(&app, &seen, now())));
}

#[test]
fn the_tree_of_a_user_who_may_see_little() {
    let refused = |resource: &str| format!("(no permission to list {resource})");
    let seen = status::Belongings {
        database: None,
        deployments: Err(refused("deployments")),
        stateful_sets: Err(refused("statefulsets")),
        volumes: Err(refused("persistentvolumeclaims")),
    };
    insta::assert_snapshot!(plain(&status::render(&built(failing()), &seen, now())));
}

#[test]
fn the_history() {
    let revision = |number: u32, status: &str, stamped: Option<u32>| -> PartialObjectMeta<_> {
        let mut labels = json!({"owner": "helm", "name": "acme", "version": number.to_string(), "status": status});
        if let Some(stamped) = stamped {
            labels["apps.bnerd-operator.local/revision"] = stamped.to_string().into();
            labels["apps.bnerd-operator.local/digest"] = "0123456789abcdef0123".into();
        }
        built(json!({"metadata": {"labels": labels, "creationTimestamp": "2026-01-01T11:00:00Z"}}))
    };
    let secrets =
        [revision(1, "superseded", Some(1)), revision(2, "failed", Some(1)), revision(3, "deployed", Some(3))];
    insta::assert_snapshot!(plain(&history::render(&secrets, now())));
}

#[test]
fn the_events() {
    let event = |type_: &str, reason: &str, count: u32| -> Event {
        let series = (count > 1).then(|| json!({"count": count, "lastObservedTime": "2026-01-01T11:59:00.000000Z"}));
        built(json!({"metadata": {}, "type": type_, "reason": reason, "note": "it is so", "series": series,
            "eventTime": "2026-01-01T11:00:00.000000Z"}))
    };
    let events = [event("Normal", "Provisioning", 1), event("Warning", "UpgradeFailed", 4)];
    insta::assert_snapshot!(plain(&events::render(&events, now())));
}

#[test]
fn what_a_deletion_takes_and_leaves() {
    let mut app: ClientApp = built(serving());
    insta::assert_snapshot!(plain(&delete::consequence(&app, "tenants", Some(false))));
    app.spec.deletion_policy = crate::crd::DeletionPolicy::Retain;
    app.spec.suspend = true;
    insta::assert_snapshot!(plain(&delete::consequence(&app, "tenants", None)));
}

#[test]
fn who_can_adopt() {
    use adopt::Adoption;
    let app = |released: Value, adopts: bool| -> ClientApp {
        let conditions = json!({"conditions": [released, condition("Ready", "False", "Provisioning", "wait")]});
        built(app("acme", json!({"postgres": {"adopt": adopts}}), conditions))
    };
    let retained = || condition("Released", "False", "DataRetained", "another provider's");
    let older = json!({"type": "Released", "status": "False", "reason": "DataRetained", "message": "m",
        "lastTransitionTime": "2026-01-01T11:55:30Z", "observedGeneration": 1});
    let waiting = || condition("Released", "False", "Waiting", "w");
    for (what, app, judged) in [
        ("held up", app(retained(), false), Adoption::Possible),
        ("by a Secret", app(condition("Released", "False", "SecretNotOurs", "s"), false), Adoption::Possible),
        ("of another provider", app(retained(), true), Adoption::Refused("another provider's".to_owned())),
        ("not looked at", built(super::tests::app("acme", json!({}), json!({}))), Adoption::Unknown),
        ("not looked at since it changed", app(older, false), Adoption::Unknown),
        ("done", app(waiting(), true), Adoption::Needless("it adopts already: nothing is changed".to_owned())),
        (
            "nothing is there",
            app(waiting(), false),
            Adoption::Needless(
                "nothing that an earlier ClientApp has left holds it up: nothing is changed; the operator says: wait"
                    .to_owned(),
            ),
        ),
    ] {
        assert_eq!(adopt::judge(&app), judged, "{what}");
    }
}
