//! What users see, for given objects at a given time.

use std::path::Path;

use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::{
    crd::ClientApp,
    platform::fake::{self, merged, of},
};

fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// The flags that messages add to commands.
pub(super) fn flags(namespace: &str) -> connection::Flags {
    Cli::try_parse_from(["kubectl-clientapp", "check"]).unwrap().global.connection.flags(namespace)
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

pub(super) fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({"type": type_, "status": status, "reason": reason, "message": message,
           "lastTransitionTime": "2026-01-01T11:55:30Z", "observedGeneration": 2})
}

pub(super) fn app(name: &str, spec: Value, status: Value) -> Value {
    json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {"name": name, "namespace": "tenants", "generation": 2, "creationTimestamp": "2025-12-30T12:00:00Z"},
        "spec": merged(json!({"hostname": format!("{name}.example.com")}), spec), "status": status,
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
        let session = Session { client: cluster(text), namespace: "tenants".to_owned(), flags: flags("tenants") };
        let stored = session.app("acme").await.unwrap();
        let mut told =
            status::tree(&session, &stored.app, None).await + &delete::consequence(&stored.app, "tenants", None);
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
    let app: ClientApp = of(serving());
    let cluster = json!({"apiVersion": "pgv2.percona.com/v2", "kind": "PerconaPGCluster", "metadata": {"name": "acme-pg"},
        "spec": {"postgresVersion": 15}, "status": {"state": "ready", "postgres": {"ready": 1, "size": 1}, "pgbouncer": {"ready": 1, "size": 1}}});
    let volume = json!({"metadata": {"name": "acme-nextcloud"},
        "spec": {"resources": {"requests": {"storage": "8Gi"}}}, "status": {"phase": "Bound"}});
    let seen = status::Belongings {
        database: Some(("acme-pg".to_owned(), Ok(of(cluster)))),
        deployments: Ok(vec![of(workload("Deployment", "acme-nextcloud", 2))]),
        stateful_sets: Ok(vec![of(workload("StatefulSet", "acme-redis-master", 1))]),
        volumes: Ok(vec![of(volume)]),
    };
    insta::assert_snapshot!(plain(&status::render(&app, &seen, (&flags("tenants"), None), now())));
    let narrow = plain(&status::render(&app, &seen, (&flags("tenants"), Some(80)), now()));
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
    insta::assert_snapshot!(plain(&status::render(&of(failing()), &seen, (&flags("tenants"), None), now())));
}

#[test]
fn what_a_deletion_takes_and_leaves() {
    let mut app: ClientApp = of(serving());
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
        of(app("acme", json!({"postgres": {"adopt": adopts}}), conditions))
    };
    let retained = || condition("Released", "False", "DataRetained", "another provider's");
    let older = json!({"type": "Released", "status": "False", "reason": "DataRetained", "message": "m",
        "lastTransitionTime": "2026-01-01T11:55:30Z", "observedGeneration": 1});
    let waiting = || condition("Released", "False", "Waiting", "w");
    for (what, app, judged) in [
        ("held up", app(retained(), false), Adoption::Possible),
        ("by a Secret", app(condition("Released", "False", "SecretNotOurs", "s"), false), Adoption::Possible),
        ("of another provider", app(retained(), true), Adoption::Refused("another provider's".to_owned())),
        ("not looked at", of(super::tests::app("acme", json!({}), json!({}))), Adoption::Unknown),
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

/// Checks that what is printed for the user to paste comes from [`connection::Flags`].
#[test]
fn no_command_is_printed_without_the_flags_that_reach_the_same_cluster() {
    let mut open = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src/plugin")];
    let mut seen = 0;
    while let Some(path) = open.pop() {
        if path.is_dir() {
            open.extend(std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        // Help texts are printed before a cluster is known.
        if path.extension().is_none_or(|end| end != "rs") || path.ends_with("tests.rs") || path.ends_with("args.rs") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        for line in code.lines().filter(|line| !line.trim_start().starts_with("//")) {
            let is_bare = line.contains("`kubectl ") && !line.contains("`kubectl apply` loses");
            assert!(!is_bare, "{}: {line}", path.display());
            seen += usize::from(line.contains("command(") && line.contains("kubectl "));
        }
    }
    assert!(seen > 10, "{seen} commands");
}
