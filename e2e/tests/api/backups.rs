//! Backups and restores through the API, as a portal requests them. The files and their storage are real.

use std::fs;
use std::path::Path;

use clientapp_crd::{ClientApp, ClientAppBackup, ClientAppRestore};
use e2e::lab::{Tenant, hostname};
use e2e::objects::{ACCESS_KEY, BUCKET, Objects, SECRET_KEY};
use e2e::scenario::names;
use e2e::worker::Worker;
use futures::future::join_all;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, Patch, PatchParams};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Http, is_gone, send, small, until, with};

impl Http {
    async fn post_to(&self, path: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).json(body)).await
    }

    async fn post_to_with_key(&self, path: &str, key: &str, body: &Value) -> Answer {
        send(self.request(Method::POST, path).header("Idempotency-Key", key).json(body)).await
    }

    /// Follows the path in `Location` until the phase is final.
    async fn ended(&self, requested: &Answer) -> Answer {
        assert_eq!(requested.status, 201, "{requested:?}");
        let path = requested.header("location");
        until("it has ended", async || {
            let shown = self.get(path).await;
            assert_eq!(shown.status, 200, "{shown:?}");
            ["Completed", "Failed"].contains(&shown.word("phase").as_str()).then_some(shown)
        })
        .await
    }
}

/// An instance that does nothing, and that the API knows.
async fn suspended(http: &Http, tenant: &Tenant, name: &str) -> String {
    tenant.create(name, with(small(&hostname(tenant, name)), "suspend", true)).await.unwrap();
    let (path, query) = (format!("/instances/{name}"), format!("?namespace={}", tenant.namespace));
    until("it is known", async || (http.get(&format!("{path}{query}")).await.status == 200).then_some(())).await;
    path
}

#[tokio::test]
async fn yesterdays_state_through_a_portal() {
    let (lab, http) = Http::shared().await;
    let tenant = lab.tenant("api-backups").await;
    let (worker, objects) = (Worker::start(&tenant).await.unwrap(), Objects::start().unwrap());
    let [key, secret] = [("ACCESS_KEY_ID", ACCESS_KEY), ("SECRET_ACCESS_KEY", SECRET_KEY)]
        .map(|(name, value)| format!("--from-literal=AWS_{name}={value}"));
    tenant.kubectl(&["create", "secret", "generic", "s3", &key, &secret]).unwrap();
    tenant.kubectl(&["label", "namespace", "api-backups", "app.kubernetes.io/managed-by=clientapp-operator"]).unwrap();
    let store = json!({"endpoint": objects.url(), "bucket": BUCKET, "credentialsSecret": {"name": "s3"}});
    let body = with(with(small(&hostname(&tenant, "yesterday")), "name", "yesterday"), "namespace", "api-backups");
    let persistence = json!({"enabled": true, "backup": {"schedule": "@yearly", "store": store}});
    http.post(&with(body, "persistence", persistence)).await.made();
    tenant.ready("yesterday", 1).await;
    let claim = tenant.uid::<PersistentVolumeClaim>("yesterday-nextcloud-nextcloud").await.unwrap();
    let file = worker.volume(&claim).unwrap().join("a.txt");
    let content = |file: &Path| fs::read_to_string(file).unwrap();
    fs::write(&file, "yesterday").unwrap();

    let requested = http.post_to("/instances/yesterday/backups", &json!({"name": "daily"})).await;
    assert_eq!((requested.word("name"), requested.word("phase")), ("daily".to_owned(), "Pending".to_owned()));
    assert_eq!(requested.header("location"), "/instances/yesterday/backups/daily?namespace=api-backups");
    let daily = http.ended(&requested).await;
    assert_eq!(daily.word("phase"), "Completed", "{daily:?}");
    assert!(daily.word("message").contains("ClientApp yesterday is backed up"), "{daily:?}");
    assert_eq!((&daily.json["parts"], &daily.json["files"]["files"]), (&json!(["Files"]), &json!(1)), "{daily:?}");
    assert!(daily.word("startedAt") <= daily.word("completedAt"), "{daily:?}");

    fs::write(&file, "today").unwrap();
    let requested = http.post_to("/instances/yesterday/restores", &json!({"backup": "daily"})).await;
    assert!(requested.word("name").starts_with("yesterday-"), "{requested:?}");
    let restored = http.ended(&requested).await;
    assert_eq!((restored.word("phase"), restored.word("backup")), ("Completed".to_owned(), "daily".to_owned()));
    assert_eq!(restored.json["files"]["archive"], daily.json["files"]["archive"]);
    assert_eq!(content(&file), "yesterday");

    let body = json!({"quiesce": true, "reclaim": "Delete"});
    let second = http.ended(&http.post_to("/instances/yesterday/backups", &body).await).await;
    assert_eq!((second.word("phase"), second.word("reclaim")), ("Completed".to_owned(), "Delete".to_owned()));
    assert_eq!(daily.word("reclaim"), "Retain");
    let backups = http.get("/instances/yesterday/backups?namespace=api-backups").await;
    assert_eq!((backups.header("allow"), &backups.json["items"][1]), ("GET, HEAD, POST", &daily.json));
    assert_eq!(backups.json["items"].as_array().unwrap().len(), 2);
    let restores = http.get("/instances/yesterday/restores").await;
    assert_eq!(restores.json, json!({"items": [restored.json]}));
    for answer in [&backups, &restores] {
        assert!(!answer.text.contains(SECRET_KEY) && !answer.text.contains("s3"), "{answer:?}");
    }
    let log = lab.operator_log();
    for (verb, count) in [("backup", 2), ("restore", 1)] {
        let audited =
            log.lines().filter(|line| line.contains("\"audit\"") && line.contains("\"api-backups/yesterday\""));
        let audited = audited.filter(|line| line.contains(&format!("\"verb\":\"{verb}\"")) && line.contains("201"));
        assert_eq!(audited.count(), count, "{log}");
    }
}

#[tokio::test]
async fn a_request_that_is_repeated_makes_one_backup() {
    let (lab, http) = Http::shared().await;
    let tenant = lab.tenant("api-backups-again").await;
    let instance = suspended(&http, &tenant, "again").await;
    let path = format!("{instance}/backups");
    let parts = json!({"parts": ["Files"]});
    let answers = join_all((0..6).map(|_| http.post_to_with_key(&path, "nightly", &parts))).await;
    let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
    assert_eq!(made.len(), 1, "{answers:?}");
    for answer in answers.iter().filter(|answer| answer.status != 201) {
        assert_eq!((answer.status, answer.header("idempotency-replayed")), (200, "true"), "{answer:?}");
        assert_eq!(answer.header("location"), made[0].header("location"));
    }
    assert_eq!(names::<ClientAppBackup>(&tenant).await, [made[0].word("name")]);
    let reused = http.post_to_with_key(&path, "nightly", &json!({})).await;
    reused.is_problem(409, "IdempotencyKeyReused", Some("Idempotency-Key"), "use a new key");
    // A key is for requests of one kind.
    let restores = format!("{instance}/restores");
    assert_eq!(http.post_to_with_key(&restores, "nightly", &json!({"files": {}})).await.status, 201);

    let named = json!({"name": "mine"});
    assert_eq!(http.post_to_with_key(&path, "named", &named).await.status, 201);
    assert_eq!(http.post_to_with_key(&path, "named", &named).await.status, 200);
    let other = http.post_to_with_key(&path, "named", &json!({"name": "yours"})).await;
    other.is_problem(409, "IdempotencyKeyReused", Some("Idempotency-Key"), "use a new key");
    http.post_to(&path, &named).await.is_problem(409, "NameTaken", Some("name"), "choose another name");
    // Without a key, each request makes another.
    for _ in 0..2 {
        assert_eq!(http.post_to(&path, &json!({})).await.status, 201);
    }
    assert_eq!(names::<ClientAppBackup>(&tenant).await.len(), 4);

    // The backups go with their instance, and a later one of the name has none.
    tenant.patch("again", json!({"suspend": false})).await.unwrap();
    tenant.delete("again").await;
    until("they are gone", async || names::<ClientAppBackup>(&tenant).await.is_empty().then_some(())).await;
    suspended(&http, &tenant, "again").await;
    assert_eq!(http.post_to_with_key(&path, "named", &named).await.status, 201);
}

#[tokio::test]
async fn a_backup_does_not_keep_the_namespace_of_its_instance() {
    let (lab, http) = Http::shared().await;
    let (namespace, name) = http.post(&small("gone.backups.example")).await.made();
    let path = format!("/instances/{name}");
    assert_eq!(http.post_to(&format!("{path}/backups"), &json!({})).await.status, 201);
    assert_eq!(http.delete(&format!("{path}?wait=120")).await.status, 204);
    let client = lab.plane.client().await.unwrap();
    until("the namespace is gone", async || is_gone(&client, &namespace).await.then_some(())).await;
}

#[tokio::test]
async fn what_cannot_be_backed_up_or_restored_is_refused_and_told_why() {
    let (lab, http) = Http::shared().await;
    let tenant = lab.tenant("api-backups-refused").await;
    suspended(&http, &tenant, "refused").await;
    suspended(&http, &tenant, "beside").await;
    // It has neither a database nor archives.
    let failed = http.ended(&http.post_to("/instances/refused/backups", &json!({"name": "failed"})).await).await;
    assert_eq!(failed.word("phase"), "Failed", "{failed:?}");
    http.post_to("/instances/beside/backups", &json!({"name": "theirs"})).await;
    for (path, body, reason, field, sentence) in [
        ("backups", json!({"part": ["Files"]}), "InvalidRequest", "part", "no such field"),
        ("backups", json!({"of": {"name": "beside"}}), "InvalidRequest", "of", "no such field"),
        ("backups", json!({"quiesce": "yes"}), "InvalidRequest", "quiesce", "expected a boolean"),
        ("backups", json!({"reclaim": "Keep"}), "InvalidRequest", "reclaim", "unknown variant"),
        ("backups", json!({"parts": []}), "Refused", "parts", "at least 1 items"),
        ("backups", json!({"parts": ["Files", "Files"]}), "Refused", "parts", "must name each part once"),
        ("backups", json!({"name": "No"}), "Refused", "name", "RFC 1123"),
        ("restores", json!({}), "Refused", "backup", "set either backup"),
        ("restores", json!({"backup": "failed", "files": {}}), "InvalidSpec", "backup", "has failed: choose another"),
        ("restores", json!({"backup": "none"}), "InvalidSpec", "backup", "has no backup none"),
        ("restores", json!({"backup": "theirs"}), "InvalidSpec", "backup", "has no backup theirs"),
        ("restores", json!({"backup": "../x"}), "InvalidSpec", "backup", "has no backup"),
        ("restores", json!({"files": {}, "parts": ["Files"]}), "Refused", "parts", "parts are those of"),
        ("restores", json!({"files": {"from": "x"}}), "Refused", "files.from", "must be latest"),
        ("restores", json!({"files": {"form": "latest"}}), "InvalidRequest", "files.form", "no such field"),
        (
            "restores",
            json!({"database": {"from": "a", "time": "2026-01-31T00:00:00Z"}}),
            "Refused",
            "database.time",
            "give from or time",
        ),
    ] {
        let answer = http.post_to(&format!("/instances/refused/{path}"), &body).await;
        answer.is_problem(422, reason, Some(field), sentence);
    }
    assert_eq!(names::<ClientAppBackup>(&tenant).await, ["failed", "theirs"]);
    assert_eq!(names::<ClientAppRestore>(&tenant).await, Vec::<String>::new());

    for kind in ["backups", "restores"] {
        let answer = http.post_to(&format!("/instances/nobody/{kind}"), &json!({})).await;
        answer.is_problem(404, "NotFound", None, "there is no instance nobody");
        for name in ["none", "theirs", "..%2Fx"] {
            let answer = http.get(&format!("/instances/refused/{kind}/{name}")).await;
            answer.is_problem(404, "NotFound", None, "instance api-backups-refused/refused has no");
        }
    }
    let answer = http.get("/instances/refused/backups?limit=1").await;
    answer.is_problem(400, "InvalidParameter", Some("limit"), "unknown");

    let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let (apps, as_user) = (tenant.api::<ClientApp>(), PatchParams::default());
    apps.patch("beside", &as_user, &hold(json!(["example.com/held"]))).await.unwrap();
    apps.delete("beside", &DeleteParams::default()).await.unwrap();
    let deleting = async || (http.get("/instances/beside").await.json["deleting"] == true).then_some(());
    until("it is being deleted", deleting).await;
    let answer = http.post_to("/instances/beside/backups", &json!({})).await;
    answer.is_problem(409, "Deleting", None, "is being deleted");
    apps.patch("beside", &as_user, &hold(Value::Null)).await.unwrap();
}
