//! Credentials and values that change, also while no operator runs: one revision, with which exactly the pods that use them restart.

use clientapp_crd::annotation::CREDENTIALS;
use e2e::lab::{Tenant, hostname, leading};
use e2e::scenario::{operated, secret};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use serde_json::{Value, json};

/// What the pods of app and Redis were last told of their credentials.
async fn told(tenant: &Tenant) -> [String; 2] {
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap().spec.unwrap().template;
    let redis = tenant.api::<StatefulSet>().get("acme-redis-master").await.unwrap().spec.unwrap().template;
    [app, redis].map(|template| template.metadata.unwrap().annotations.unwrap()[CREDENTIALS].clone())
}

/// Changes texts in a Secret.
fn change(tenant: &Tenant, name: &str, texts: Value) {
    let patch = json!({"stringData": texts}).to_string();
    tenant.kubectl(&["patch", "secret", name, "-p", &patch]).unwrap();
}

/// Waits until the operator has looked at the app again.
async fn looked_at(tenant: &Tenant, deletion_policy: &str) {
    let app = tenant.patch("acme", json!({"deletionPolicy": deletion_policy})).await.unwrap();
    let seen = app.metadata.generation;
    tenant.status("acme", "looked at", |status| status.observed_generation == seen).await;
}

#[tokio::test]
async fn changed_credentials_restart_the_pods_that_use_them_with_one_revision() {
    let (apart, operator) = operated("credentials", &[]).await;
    let tenant = &apart.tenant;
    let keys = ["host=db", "user=u", "password=one", "dbname=d", "note=x"].map(|of| format!("--from-literal={of}"));
    tenant
        .kubectl(&[&["create", "secret", "generic", "theirs"], &keys.each_ref().map(String::as_str)[..]].concat())
        .unwrap();
    tenant.kubectl(&["create", "secret", "generic", "pin", "--from-literal=pin=0123"]).unwrap();
    let pin = json!({"kind": "Secret", "name": "pin", "valuesKey": "pin", "targetPath": "podAnnotations.my-pin"});
    let external = json!({"provider": "external", "external": {"secretName": "theirs"}});
    let spec = json!({"hostname": hostname(tenant, "acme"), "postgres": external, "valuesFrom": [pin]});
    tenant.create("acme", spec).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    let names: Vec<_> = status.credentials.iter().map(|of| of.secret.as_str()).collect();
    assert_eq!(names, ["acme-admin-secret", "acme-redis-secret", "theirs"]);
    let before = told(tenant).await;

    // A label and a key that the app does not read change nothing.
    let reads = async || tenant.requests().await.iter().filter(|asked| *asked == "operator get secrets/").count();
    let seen = reads().await;
    tenant.kubectl(&["label", "secret", "theirs", "acme-admin-secret", "a=b"]).unwrap();
    change(tenant, "theirs", json!({"note": "y"}));
    until("both are read again", async || reads().await >= seen + 2).await;
    looked_at(tenant, "Retain").await;
    tenant.ready("acme", 1).await;

    change(tenant, "theirs", json!({"password": "two"}));
    tenant.ready("acme", 2).await;
    tenant
        .event("acme", "CredentialsChanged", "other credentials in Secret theirs: the pods that use them restart")
        .await;
    let rotated = told(tenant).await;
    assert!(rotated[0] != before[0] && rotated[1] == before[1], "{before:?} {rotated:?}");

    // Changes while no operator looks are noticed by the next one, which reads nothing that has not changed.
    drop(operator);
    change(tenant, "acme-admin-secret", json!({"nextcloud-password": "three"}));
    let operator = leading(&apart.options).await;
    tenant.ready("acme", 3).await;
    let again = told(tenant).await;
    assert!(again[0] != rotated[0] && again[1] == rotated[1], "{rotated:?} {again:?}");
    drop(operator);
    tenant.kubectl(&["label", "secret", "pin", "a=b"]).unwrap();
    let operator = leading(&apart.options).await;
    looked_at(tenant, "Delete").await;
    tenant.ready("acme", 3).await;
    drop(operator);
    change(tenant, "pin", json!({"pin": "4567"}));
    let _operator = leading(&apart.options).await;
    tenant.ready("acme", 4).await;
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(app.spec.unwrap().template.metadata.unwrap().annotations.unwrap()["my-pin"], "4567");
    assert_eq!(told(tenant).await, again);

    // A lost password of Redis is replaced, and the new one reaches all pods.
    let password = secret(tenant, "acme-redis-secret", "redis-password").await;
    tenant.kubectl(&["delete", "secret", "acme-redis-secret"]).unwrap();
    tenant.ready("acme", 5).await;
    assert_ne!(secret(tenant, "acme-redis-secret", "redis-password").await, password);
    let lost = told(tenant).await;
    assert!(lost[0] != again[0] && lost[1] != again[1], "{again:?} {lost:?}");
    tenant.event("acme", "CredentialsChanged", "other credentials in Secret acme-redis-secret").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "5");
}
