//! Single fields of the spec: suspend, adminSecret.

use clientapp_crd::conditions::{find, kind};
use clientapp_crd::{ClientApp, ClientAppStatus};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has};
use e2e::scenario::{secret, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{helms, installed};

/// Suspends the app, and waits until the operator has seen that.
async fn suspended(tenant: &Tenant) -> ClientAppStatus {
    let app = tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    let seen = |status: &ClientAppStatus| {
        status.observed_generation == app.metadata.generation && has(status, "Reconciling", "False", "Suspended")
    };
    tenant.status("acme", "suspended", seen).await
}

#[tokio::test]
async fn while_suspended_nothing_changes_and_afterwards_everything_does() {
    let tenant = installed("suspended", json!({})).await;
    let before = helms(&tenant).await;

    tenant.patch("acme", json!({"chartVersion": charts::PATCH, "suspend": true})).await.unwrap();
    let status = suspended(&tenant).await;
    // The release does not match the spec, and the existing workloads still serve.
    assert!(has(&status, "Ready", "False", "Suspended"), "{status:?}");
    assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:?}");
    tenant.held("acme", "Suspended", &["spec.suspend is true"]).await;
    assert_eq!(helms(&tenant).await, before);
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(tenant.listed("acme").unwrap().2, format!("nextcloud-{}", charts::PATCH));

    // Suspended with nothing to do, it is still Ready; and it is not taken down until it is resumed.
    let status = suspended(&tenant).await;
    assert!(has(&status, "Ready", "True", "Ready"), "{status:?}");
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "Suspended", &["nothing is taken down until it is false"]).await;
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
async fn a_helm_that_takes_long_hides_nothing_and_is_stopped_by_suspending() {
    let tenant = installed("helm-takes-long", json!({})).await;
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

    suspended(&tenant).await;
    let (newest, status, _) = tenant.listed("acme").unwrap();
    assert_eq!((newest.as_str(), status.as_str()), ("2", "failed"));
    let before = helms(&tenant).await;
    let scheduled = json!({"spec": {"template": {"spec": {"nodeSelector": null}}}});
    deployments.patch("acme-nextcloud", &PatchParams::default(), &Patch::Strategic(scheduled)).await.unwrap();
    tenant.patch("acme", json!({"suspend": false, "chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 3).await;
    assert!(helms(&tenant).await > before);
}

/// Secrets of users are awaited, named, checked and used; and each event is told once, in the words of the status.
#[tokio::test]
async fn a_given_secret_is_awaited_checked_and_used() {
    let tenant = Lab::shared().await.tenant("given-secrets").await;
    tenant.kubectl(&["create", "secret", "generic", "acme-redis-secret", "--from-literal=password=x"]).unwrap();
    let spec = with(small(&tenant, "acme"), json!({"adminSecret": "my-admin", "redis": {"enabled": true}}));
    tenant.create("acme", spec).await.unwrap();
    let missing = tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
    for part in ["Secret my-admin", "spec.adminSecret", "does not exist", "nextcloud-username", "nextcloud-password"] {
        assert!(missing.contains(part), "{missing}");
    }
    tenant.condition("acme", "Stalled", "True", "AdminSecretMissing").await;
    // Reconciled again with the same result: no new event.
    for replicas in [2, 1] {
        let app = tenant.patch("acme", json!({"replicas": replicas})).await.unwrap();
        tenant.status("acme", "looked at", |status| status.observed_generation == app.metadata.generation).await;
    }

    tenant.kubectl(&["create", "secret", "generic", "my-admin", "--from-literal=nextcloud-username=root"]).unwrap();
    let no_password = ["my-admin", "no value under nextcloud-password"];
    tenant.held("acme", "AdminSecretKeyMissing", &no_password).await;
    // An empty value counts as missing.
    let set = |password: &str| {
        let patch = json!({"stringData": {"nextcloud-password": password, "touched": "yes"}}).to_string();
        tenant.kubectl(&["patch", "secret", "my-admin", "--patch", &patch]).unwrap();
    };
    set("");
    tenant.held("acme", "AdminSecretKeyMissing", &no_password).await;
    set("correct horse");
    let told = tenant.condition("acme", "Ready", "False", "RedisSecretKeyMissing").await;
    assert!(told.starts_with("Secret acme-redis-secret") && told.contains("no value under redis-password"), "{told}");
    assert_eq!((helms(&tenant).await, tenant.listed("acme")), (0, None));

    // A generated one takes the place of the one for Redis.
    tenant.kubectl(&["delete", "secret", "acme-redis-secret"]).unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(secret(&tenant, "acme-redis-secret", "redis-password").await.len(), 32);
    assert_eq!(status.admin_secret_name.as_deref(), Some("my-admin"));
    assert!(tenant.api::<Secret>().get_opt("acme-admin-secret").await.unwrap().is_none());
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let env = serde_json::to_string(&app.spec.unwrap().template.spec.unwrap().containers[0].env).unwrap();
    assert!(env.contains("my-admin"), "{env}");

    let first = tenant.condition("acme", "Ready", "True", "Ready").await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    let second = tenant.condition("acme", "Ready", "True", "Ready").await;
    assert_ne!(first, second);
    let told = tenant.events_with("acme", "Ready", &second).await;
    // What an app waits for while helm takes long may come and go, and is counted.
    let lasting = ["AdminSecretMissing", "AdminSecretKeyMissing", "RedisSecretKeyMissing", "Ready"];
    let told: Vec<_> = told.into_iter().filter(|(reason, _)| lasting.contains(&reason.as_str())).collect();
    let reasons: Vec<_> = told.iter().map(|(reason, _)| reason.as_str()).collect();
    let once = ["AdminSecretMissing", "AdminSecretKeyMissing", "RedisSecretKeyMissing", "Ready", "Ready"];
    assert_eq!(reasons, once, "{told:#?}");
    assert_eq!([&told[0].1, &told[3].1, &told[4].1], [&missing, &first, &second]);

    // The user's Secret stays the user's.
    tenant.delete("acme").await;
    assert_eq!(secret(&tenant, "my-admin", "nextcloud-password").await, "correct horse");
}
