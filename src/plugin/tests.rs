//! What users see, for given objects at a given time.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::{
    Client,
    api::{DynamicObject, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::*;
use crate::{crd::ClientApp, platform::fake};

use list::Shape;

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

pub(super) fn built<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).unwrap()
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2026-01-01T11:55:30Z", "observedGeneration": 2})
}

pub(super) fn app(name: &str, spec: Value, status: Value) -> Value {
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
                condition("Stalled", "False", "NotStalled", "no manual action is required"),
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
                condition("Stalled", "False", "NotStalled", "no manual action is required"),
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
    let shape = Shape::default();
    insta::assert_snapshot!(plain(&list::render(&apps, Shape { with_namespace: true, ..shape }, now())));
    insta::assert_snapshot!(plain(&list::render(&apps[..1], shape, now())));
    insta::assert_snapshot!(plain(&list::render(&apps, Shape { wide: true, ..shape }, now())));
    // Healthy states are green, others red.
    let coloured = list::render(&apps, shape, now());
    assert!(coloured.contains("\u{1b}[32mTrue\u{1b}[0m") && coloured.contains("\u{1b}[31mFalse\u{1b}[0m"));
}

#[test]
fn a_list_has_one_line_for_each_app_on_a_terminal() {
    let apps: Vec<DynamicObject> = [serving(), failing()].into_iter().map(built).collect();
    let whole = plain(&list::render(&apps, Shape::default(), now()));
    for with_namespace in [false, true] {
        let drawn = |width: usize| {
            plain(&list::render(&apps, Shape { with_namespace, width: Some(width), ..Shape::default() }, now()))
        };
        assert!(with_namespace || drawn(200) == whole);
        for width in [80, 100, 120] {
            let text = drawn(width);
            assert_eq!(text.lines().count(), 3, "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            // The available width is used.
            assert!(text.lines().any(|line| line.chars().count() + 2 > width), "{text}");
            assert!(text.contains("globex   False   -          -> 5.9.3   globe"), "{text}");
        }
        // Where even that is too wide, names are not cut.
        assert!(drawn(20).contains("globex   False   -          -> 5.9.3   glo…       hel…     2d"), "{}", drawn(20));
    }
}

/// A cluster whose objects have this text in every free-text field.
fn cluster(evil: &str) -> Client {
    let mut app = serving();
    app["spec"]["postgres"] = json!({"provider": "standalone"});
    app["status"]["url"] = json!(evil);
    for condition in app["status"]["conditions"].as_array_mut().unwrap() {
        (condition["message"], condition["reason"]) = (json!(evil), json!(evil));
    }
    for field in ["status", "chart", "appVersion", "digest"] {
        app["status"]["release"][field] = json!(evil);
    }
    app["status"]["lastAttempt"]["reason"] = json!(evil);
    app["status"]["lastAttempt"]["message"] = json!(evil);
    let database = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Postgresql",
        "metadata": {"name": "acme-pg"}, "status": {"phase": evil, "version": evil, "active": {"name": evil}}});
    let volume = json!({"metadata": {"name": evil},
        "spec": {"resources": {"requests": {"storage": evil}}}, "status": {"phase": evil}});
    let refusal =
        json!({"kind": "Status", "status": "Failure", "code": 500, "message": evil, "reason": "InternalError"});
    fake::client(move |_, path, _| {
        let list = |items: Value| (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}));
        match path.rsplit('/').next().unwrap() {
            "acme-pg" => (200, database.clone()),
            "deployments" => list(json!([workload("Deployment", "a", 1)])),
            "statefulsets" => (500, refusal.clone()),
            "persistentvolumeclaims" => list(json!([volume])),
            _ => (200, app.clone()),
        }
    })
}

#[tokio::test]
async fn no_object_writes_to_the_terminal() {
    let told = async |text: &str| {
        let session = Session { client: cluster(text), namespace: "tenants".to_owned() };
        let stored = session.app("acme").await.unwrap();
        let shape = Shape { with_namespace: true, wide: true, width: None };
        let listed = list::render(&[stored.object], shape, now());
        let mut told = listed
            + &status::tree(&session, &stored.app, None).await
            + &delete::consequence(&stored.app, "tenants", None);
        let ours = [text::GOOD, text::BAD, text::UNSURE, text::FAINT, text::STRONG];
        for style in ours.map(|style| format!("{style}")).iter().chain([&format!("{:#}", text::GOOD)]) {
            told = told.replace(style, "");
        }
        told
    };
    let evil = told("\u{1b}]0;owned\u{7}\n\u{9b}2J\u{1b}[32m").await;
    assert!(evil.contains(" ]0;owned") && !evil.contains(|c: char| c != '\n' && c.is_control()), "{evil:?}");
    assert_eq!(evil.lines().count(), told("good").await.lines().count(), "{evil}");
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
    insta::assert_snapshot!(plain(&status::render(&app, &seen, None, now())));
    let narrow = plain(&status::render(&app, &seen, Some(80), now()));
    assert!(narrow.lines().all(|line| line.chars().count() <= 80) && narrow.contains('…'), "{narrow}");
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
    insta::assert_snapshot!(plain(&status::render(&built(failing()), &seen, None, now())));
}

#[test]
fn the_history() {
    let revision = |number: u32, status: &str, stamped: Option<u32>| -> PartialObjectMeta<_> {
        let mut labels = json!({"owner": "helm", "name": "acme", "version": number.to_string(), "status": status});
        if let Some(stamped) = stamped {
            labels["apps.bnerd-operator.local/revision"] = stamped.to_string().into();
            labels["apps.bnerd-operator.local/digest"] = "0123456789abcdef0123".into();
        }
        let name = format!("sh.helm.release.v1.acme.v{number}");
        built(json!({"metadata": {"name": name, "labels": labels, "creationTimestamp": "2026-01-01T11:00:00Z"}}))
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
    insta::assert_snapshot!(plain(&events::render(&events, None, now())));
    let narrow = plain(&events::render(&events, Some(44), now()));
    assert!(narrow.contains("it is …") && narrow.lines().all(|line| line.chars().count() <= 44), "{narrow}");
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
        ("done", app(waiting(), true), Adoption::Needless("spec.postgres.adopt is already true".to_owned())),
        (
            "nothing is there",
            app(waiting(), false),
            Adoption::Needless("no data of an earlier ClientApp is blocking it; the operator says: wait".to_owned()),
        ),
    ] {
        assert_eq!(adopt::judge(&app), judged, "{what}");
    }
}
