//! Credentials that change: one revision, with which exactly the pods that use them restart.

use clientapp_crd::annotation::CREDENTIALS;
use e2e::lab::{Tenant, hostname, leading};
use e2e::scenario::{operated, secret};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use serde_json::json;

use super::values::{looked_at, read};

/// What the pods of app and Redis were last told of their credentials.
async fn told(tenant: &Tenant) -> [String; 2] {
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap().spec.unwrap().template;
    let redis = tenant.api::<StatefulSet>().get("acme-redis-master").await.unwrap().spec.unwrap().template;
    [app, redis].map(|template| template.metadata.unwrap().annotations.unwrap()[CREDENTIALS].clone())
}

#[tokio::test]
async fn changed_credentials_restart_the_pods_that_use_them_with_one_revision() {
    let (apart, operator) = operated("credentials", &[]).await;
    let tenant = &apart.tenant;
    let keys = ["host=db", "user=u", "password=one", "dbname=d", "note=x"].map(|of| format!("--from-literal={of}"));
    tenant
        .kubectl(&[&["create", "secret", "generic", "theirs"], &keys.each_ref().map(String::as_str)[..]].concat())
        .unwrap();
    let external = json!({"provider": "external", "external": {"secretName": "theirs"}});
    tenant.create("acme", json!({"hostname": hostname(tenant, "acme"), "postgres": external})).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    let names: Vec<_> = status.credentials.iter().map(|of| of.secret.as_str()).collect();
    assert_eq!(names, ["acme-admin-secret", "acme-redis-secret", "theirs"]);
    let before = told(tenant).await;

    // A label and a key that the app does not read change nothing.
    let reads = read(tenant, "secrets").await;
    tenant.kubectl(&["label", "secret", "theirs", "acme-admin-secret", "a=b"]).unwrap();
    tenant.kubectl(&["patch", "secret", "theirs", "-p", r#"{"stringData": {"note": "y"}}"#]).unwrap();
    until("both are read again", async || read(tenant, "secrets").await >= reads + 2).await;
    looked_at(tenant, "Retain").await;
    tenant.ready("acme", 1).await;

    tenant.kubectl(&["patch", "secret", "theirs", "-p", r#"{"stringData": {"password": "two"}}"#]).unwrap();
    tenant.ready("acme", 2).await;
    tenant
        .event("acme", "CredentialsChanged", "other credentials in Secret theirs: the pods that use them restart")
        .await;
    let rotated = told(tenant).await;
    assert!(rotated[0] != before[0] && rotated[1] == before[1], "{before:?} {rotated:?}");

    // A change while no operator looks is noticed by the next one, which reads nothing that has not changed.
    drop(operator);
    tenant
        .kubectl(&["patch", "secret", "acme-admin-secret", "-p", r#"{"stringData": {"nextcloud-password": "three"}}"#])
        .unwrap();
    let operator = leading(&apart.options).await;
    tenant.ready("acme", 3).await;
    let again = told(tenant).await;
    assert!(again[0] != rotated[0] && again[1] == rotated[1], "{rotated:?} {again:?}");
    drop(operator);
    let _operator = leading(&apart.options).await;
    looked_at(tenant, "Delete").await;
    tenant.ready("acme", 3).await;

    // A lost password of Redis is replaced, and the new one reaches all pods.
    let password = secret(tenant, "acme-redis-secret", "redis-password").await;
    tenant.kubectl(&["delete", "secret", "acme-redis-secret"]).unwrap();
    tenant.ready("acme", 4).await;
    assert_ne!(secret(tenant, "acme-redis-secret", "redis-password").await, password);
    let lost = told(tenant).await;
    assert!(lost[0] != again[0] && lost[1] != again[1], "{again:?} {lost:?}");
    tenant.event("acme", "CredentialsChanged", "other credentials in Secret acme-redis-secret").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "4");
}
