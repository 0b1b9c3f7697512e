//! Single fields of the spec: suspend, adminSecret; and what is never disclosed.

use std::collections::BTreeMap;

use clientapp_crd::conditions::{find, kind};
use clientapp_crd::{ClientApp, ClientAppStatus};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has};
use e2e::scenario::{secret, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

#[tokio::test]
async fn while_suspended_nothing_changes_and_afterwards_everything_does() {
    let tenant = Lab::shared().await.tenant("suspended").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let before = tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count();

    let app = tenant.patch("acme", json!({"suspend": true, "chartVersion": charts::PATCH})).await.unwrap();
    let status = tenant
        .status("acme", "suspended", |status| {
            status.observed_generation == app.metadata.generation && has(status, "Reconciling", "False", "Suspended")
        })
        .await;
    // The release does not match the spec, and the existing workloads still serve.
    assert!(has(&status, "Ready", "False", "Suspended"), "{status:?}");
    assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:?}");
    let told = tenant.condition("acme", "Ready", "False", "Suspended").await;
    assert!(told.contains("spec.suspend is true"), "{told}");
    let helms = tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count();
    assert_eq!(helms, before);
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(tenant.listed("acme").unwrap().2, format!("nextcloud-{}", charts::PATCH));

    // Suspended with nothing to do, it is still Ready; and it is not taken down until it is resumed.
    let app = tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant
        .status("acme", "suspended and Ready", |status| {
            status.observed_generation == app.metadata.generation
                && has(status, "Reconciling", "False", "Suspended")
                && has(status, "Ready", "True", "Ready")
        })
        .await;
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "Suspended").await;
    assert!(told.contains("nothing is taken down until it is false"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().0, "2");
    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme"), None);
}

/// A spec with which helm waits for a hook that no node runs.
fn slow() -> Value {
    json!({"chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 3600}})
}

async fn helm_waits(tenant: &Tenant) {
    let runs = |job: Option<&Job>| (job?.status.as_ref()?.active? > 0).then_some(());
    tenant.wait_for("acme-nextcloud-prepare", "active", runs).await;
}

#[tokio::test]
async fn suspending_stops_the_helm_that_runs() {
    let tenant = Lab::shared().await.tenant("suspended-midway").await;
    tenant.create("acme", with(small(&tenant, "acme"), slow())).await.unwrap();
    helm_waits(&tenant).await;
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    let suspended = |status: &ClientAppStatus| {
        status.observed_generation == app.metadata.generation && has(status, "Reconciling", "False", "Suspended")
    };
    tenant.status("acme", "suspended", suspended).await;
    assert_eq!(tenant.listed("acme").unwrap().1, "failed");
    let helms = tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count();

    tenant.patch("acme", json!({"suspend": false, "chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert!(tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count() > helms);
}

#[tokio::test]
async fn a_helm_that_takes_long_hides_nothing() {
    let tenant = Lab::shared().await.tenant("helm-takes-long").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", slow()).await.unwrap();
    helm_waits(&tenant).await;

    let nowhere = json!({"spec": {"template": {"spec": {"nodeSelector": {"no": "node"}}}}});
    let deployments = tenant.api::<Deployment>();
    deployments.patch("acme-nextcloud", &PatchParams::default(), &Patch::Strategic(nowhere)).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "NotReady").await;
    assert!(told.starts_with("Deployment acme-nextcloud: "), "{told}");
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let changed = |status: &ClientAppStatus| {
        let reconciling = find(&status.conditions, kind::RECONCILING);
        reconciling.is_some_and(|condition| condition.message.contains("the spec has changed since"))
    };
    tenant.status("acme", "to be upgraded again", changed).await;

    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
}

#[tokio::test]
async fn a_given_admin_secret_is_awaited_checked_and_used() {
    let tenant = Lab::shared().await.tenant("admin-secret").await;
    let spec = with(small(&tenant, "acme"), json!({"adminSecret": "my-admin"}));
    tenant.create("acme", spec).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
    assert!(told.contains("Secret my-admin") && told.contains("nextcloud-password"), "{told}");

    tenant.kubectl(&["create", "secret", "generic", "my-admin", "--from-literal=nextcloud-username=root"]).unwrap();
    let told = tenant.condition("acme", "Ready", "False", "AdminSecretKeyMissing").await;
    assert!(told.contains("no value under nextcloud-password"), "{told}");
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");

    let key = r#"{"stringData": {"nextcloud-password": "correct-horse-battery"}}"#;
    tenant.kubectl(&["patch", "secret", "my-admin", "--type=merge", "-p", key]).unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.admin_secret_name.as_deref(), Some("my-admin"));
    assert!(tenant.api::<Secret>().get_opt("acme-admin-secret").await.unwrap().is_none());
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let env = serde_json::to_string(&app.spec.unwrap().template.spec.unwrap().containers[0].env).unwrap();
    assert!(env.contains("my-admin"), "{env}");

    // The user's Secret stays the user's.
    tenant.delete("acme").await;
    assert_eq!(secret(&tenant, "my-admin", "nextcloud-password").await, "correct-horse-battery");
}

#[tokio::test]
async fn a_redis_secret_that_a_user_made_is_checked_and_a_generated_one_takes_its_place() {
    let tenant = Lab::shared().await.tenant("redis-secret").await;
    tenant.kubectl(&["create", "secret", "generic", "acme-redis-secret", "--from-literal=password=x"]).unwrap();
    tenant.create("acme", with(small(&tenant, "acme"), json!({"redis": {"enabled": true}}))).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "RedisSecretKeyMissing").await;
    assert!(told.starts_with("Secret acme-redis-secret") && told.contains("no value under redis-password"), "{told}");
    assert_eq!(tenant.listed("acme"), None);
    tenant.kubectl(&["delete", "secret", "acme-redis-secret"]).unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(secret(&tenant, "acme-redis-secret", "redis-password").await.len(), 32);
}

#[tokio::test]
async fn no_password_is_ever_told() {
    let tenant = Lab::shared().await.tenant("canary").await;
    let canary = "canary-8f1c2d";
    let given = Secret {
        metadata: kube::api::ObjectMeta { name: Some("my-admin".into()), ..Default::default() },
        string_data: Some(BTreeMap::from([
            ("nextcloud-username".into(), "root".into()),
            ("nextcloud-password".into(), canary.into()),
        ])),
        ..Secret::default()
    };
    tenant.api::<Secret>().create(&PostParams::default(), &given).await.unwrap();
    let host = |name| e2e::lab::hostname(&tenant, name);
    tenant.create("given", json!({"hostname": host("given"), "adminSecret": "my-admin"})).await.unwrap();
    tenant.create("made", json!({"hostname": host("made")})).await.unwrap();
    tenant.ready("given", 1).await;
    tenant.ready("made", 1).await;
    // Failures could disclose secrets, since helm quotes its input.
    tenant.patch("made", json!({"chartVersion": charts::MISSPELT})).await.unwrap();
    tenant.condition("made", "Released", "False", "ChartInvalid").await;

    let mut secrets = vec![canary.to_owned()];
    for (name, key) in [
        ("made-admin-secret", "nextcloud-password"),
        ("made-redis-secret", "redis-password"),
        ("given-redis-secret", "redis-password"),
        ("made-pg-pguser-clientapp", "password"),
        ("given-pg-pguser-clientapp", "password"),
    ] {
        secrets.push(secret(&tenant, name, key).await);
    }
    let everything = ListParams::default();
    let mut places = vec![("the log", tenant.lab.operator_log())];
    let apps = tenant.api::<ClientApp>().list(&everything).await.unwrap().items;
    assert_eq!(apps.len(), 2);
    places.push(("the objects", serde_json::to_string(&apps).unwrap()));
    let events = tenant.api::<Event>().list(&everything).await.unwrap().items;
    assert!(!events.is_empty());
    places.push(("the events", serde_json::to_string(&events).unwrap()));
    for release in ["given", "made"] {
        for what in ["values", "manifest", "hooks", "notes"] {
            let ran = tenant.helm(&["get", what, release]);
            assert!(ran.success, "{}", ran.stderr);
            places.push(("the release", ran.stdout));
        }
    }
    for (place, text) in &places {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} is in {place}");
        }
    }
}

#[tokio::test]
async fn events_are_told_once_in_the_words_of_the_status() {
    let tenant = Lab::shared().await.tenant("events").await;
    let spec = with(small(&tenant, "acme"), json!({"adminSecret": "my-admin"}));
    tenant.create("acme", spec).await.unwrap();
    let missing = tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
    // Reconciled again with the same result: no new event.
    for replicas in [2, 1] {
        let app = tenant.patch("acme", json!({"replicas": replicas})).await.unwrap();
        tenant.status("acme", "looked at", |status| status.observed_generation == app.metadata.generation).await;
    }
    let keys = ["--from-literal=nextcloud-username=root", "--from-literal=nextcloud-password=x"];
    tenant.kubectl(&[&["create", "secret", "generic", "my-admin"], &keys[..]].concat()).unwrap();
    tenant.ready("acme", 1).await;
    let first = tenant.condition("acme", "Ready", "True", "Ready").await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    let second = tenant.condition("acme", "Ready", "True", "Ready").await;
    assert_ne!(first, second);

    let told = tenant.events_with("acme", "Ready", &second).await;
    let count = |reason: &str, sentence: &str| {
        told.iter().filter(|event| **event == (reason.to_owned(), sentence.to_owned())).count()
    };
    assert_eq!(count("AdminSecretMissing", &missing), 1, "{told:#?}");
    assert_eq!(count("Ready", &first), 1, "{told:#?}");
    assert_eq!(count("Ready", &second), 1, "{told:#?}");
    assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{told:#?}");
}
