//! The database: created, awaited, checked, and left alone if it belongs to another owner.

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, annotation};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has, hostname};
use e2e::percona::Knobs;
use e2e::scenario::secret;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

/// helm has sent no request yet.
async fn no_helm_yet(tenant: &Tenant) {
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
}

/// An app whose database misbehaves, and the message of its condition once it has this reason.
async fn misbehaving(tenant: &Tenant, name: &str, knobs: Knobs, reason: &str) -> String {
    tenant.percona(&format!("{name}-pg"), knobs);
    tenant.create(name, json!({"hostname": hostname(tenant, name)})).await.unwrap();
    tenant.condition(name, "PostgresReady", "False", reason).await
}

#[tokio::test]
async fn helm_waits_until_the_database_is_through_with_initializing() {
    let tenant = Lab::shared().await.tenant("initializing").await;
    let hold = Knobs { hold: true, ..Knobs::default() };
    misbehaving(&tenant, "db-slow", hold, "Provisioning").await;
    let initializing = "PerconaPGCluster db-slow-pg is initializing: 0 of 1 instances are ready";
    let status = tenant
        .status("db-slow", initializing, |status| status.conditions.iter().any(|c| c.message.starts_with(initializing)))
        .await;
    assert!(has(&status, "Ready", "False", "Provisioning") && has(&status, "Stalled", "False", "NotStalled"));
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("db-slow-pg"));
    // Its Secret exists long before PostgreSQL runs, and must not start helm.
    let password = secret(&tenant, "db-slow-pg-pguser-clientapp", "password").await;
    no_helm_yet(&tenant).await;

    let cluster = tenant.api::<PerconaPGCluster>().get("db-slow-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("db-slow").await.unwrap();
    // No ownerReference, since the garbage collector would delete it.
    assert_eq!(
        (cluster.annotations().get(annotation::OWNER_UID), cluster.owner_references()),
        (app.metadata.uid.as_ref(), &[][..])
    );

    tenant.percona("db-slow-pg", Knobs::default());
    tenant.ready("db-slow", 1).await;
    assert_eq!(secret(&tenant, "db-slow-pg-pguser-clientapp", "password").await, password);
}

#[tokio::test]
async fn a_missing_key_of_the_databases_secret_is_named() {
    let tenant = Lab::shared().await.tenant("no-key").await;
    tenant.create("db-keyless", json!({"hostname": hostname(&tenant, "db-keyless")})).await.unwrap();
    tenant.ready("db-keyless", 1).await;
    // It would put the key back.
    tenant.percona_ignores(true).await;
    let name = "db-keyless-pg-pguser-clientapp";
    let before = secret(&tenant, name, "password").await;
    tenant
        .kubectl(&["patch", "secret", name, "--type=json", r#"--patch=[{"op": "remove", "path": "/data/password"}]"#])
        .unwrap();
    let told = tenant.condition("db-keyless", "PostgresReady", "False", "SecretKeyMissing").await;
    assert_eq!(told, "Secret db-keyless-pg-pguser-clientapp has no value under password");
    assert_eq!(tenant.listed("db-keyless").unwrap().0, "1");
    tenant.percona_ignores(false).await;
    tenant.ready("db-keyless", 2).await;
    assert_ne!(secret(&tenant, name, "password").await, before);
}

#[tokio::test]
async fn a_pgbouncer_that_is_not_ready_is_waited_for() {
    let tenant = Lab::shared().await.tenant("no-pgbouncer").await;
    let unready = Knobs { pgbouncer_unready: true, ..Knobs::default() };
    misbehaving(&tenant, "db-bounced", unready, "Provisioning").await;
    // PostgreSQL itself runs by now, which is not enough.
    tenant
        .wait_for("db-bounced-pg", "half ready", |cluster: Option<&PerconaPGCluster>| {
            (cluster?.status.as_ref()?.state.as_deref() == Some("initializing")).then_some(())
        })
        .await;
    no_helm_yet(&tenant).await;
    tenant.percona("db-bounced-pg", Knobs::default());
    tenant.ready("db-bounced", 1).await;
}

#[tokio::test]
async fn a_percona_that_says_nothing_is_told_of() {
    let tenant = Lab::shared().await.tenant("silent").await;
    tenant.percona_ignores(true).await;
    let told = misbehaving(&tenant, "db-silent", Knobs::default(), "NotReporting").await;
    assert!(told.contains("watches namespace silent") && told.contains("watchAllNamespaces"), "{told}");
    no_helm_yet(&tenant).await;
    tenant.percona_ignores(false).await;
    tenant.ready("db-silent", 1).await;
}

#[tokio::test]
async fn a_database_grows_without_helm_and_its_passwords_stay() {
    let tenant = Lab::shared().await.tenant("growing").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    let passwords = async || {
        [
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
            secret(&tenant, "acme-redis-secret", "redis-password").await,
            secret(&tenant, "acme-pg-pguser-clientapp", "password").await,
        ]
    };
    let before = passwords().await;

    tenant.patch("acme", json!({"postgres": {"storageSize": "2Gi"}})).await.unwrap();
    tenant
        .wait_for("acme-pg", "grown", |cluster: Option<&PerconaPGCluster>| {
            (cluster?.spec.instances.first()?.storage() == Some("2Gi")).then_some(())
        })
        .await;
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    let smaller = tenant.patch("acme", json!({"postgres": {"storageSize": "1Gi"}})).await.unwrap_err();
    assert!(smaller.to_string().contains("storageSize can only grow"), "{smaller}");

    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(passwords().await, before);

    // An object deleted by mistake is recreated, unless data depends on the old one.
    tenant.kubectl(&["delete", "secret", "acme-redis-secret"]).unwrap();
    tenant.wait_for("acme-redis-secret", "back", |secret: Option<&Secret>| secret.is_some().then_some(())).await;
    let after = passwords().await;
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    assert_ne!(after[1], before[1]);
    tenant.ready("acme", 2).await;
}

#[tokio::test]
async fn a_database_of_another_owner_is_never_touched() {
    let tenant = Lab::shared().await.tenant("their-database").await;
    tenant.percona_ignores(true).await;
    let resource = ApiResource::erase::<PerconaPGCluster>(&());
    let clusters: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &resource);
    let volume = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "7Gi"}}});
    let cluster = serde_json::from_value(json!({
        "apiVersion": "pgv2.percona.com/v2",
        "kind": "PerconaPGCluster",
        "metadata": {"name": "theirs-pg"},
        "spec": {
            // Percona, which cannot set it here, would end.
            "crVersion": "2.9.0",
            "postgresVersion": 16,
            "instances": [{"name": "one", "replicas": 1, "dataVolumeClaimSpec": volume}],
            "backups": {"enabled": false},
        },
    }));
    let before = clusters.create(&PostParams::default(), &cluster.unwrap()).await.unwrap();

    let spec = json!({"hostname": hostname(&tenant, "theirs")});
    tenant.create("theirs", spec).await.unwrap();
    let told = tenant.condition("theirs", "Ready", "False", "DatabaseNotOurs").await;
    assert!(told.contains("PerconaPGCluster theirs-pg") && told.contains("not taken over"), "{told}");
    tenant.delete("theirs").await;
    assert_eq!(clusters.get("theirs-pg").await.unwrap(), before);
    no_helm_yet(&tenant).await;
}

#[tokio::test]
async fn a_database_that_is_not_ready_any_more_shows_and_starts_no_helm() {
    let tenant = Lab::shared().await.tenant("database-down").await;
    tenant.create("db-down", json!({"hostname": hostname(&tenant, "db-down")})).await.unwrap();
    tenant.ready("db-down", 1).await;
    tenant.percona("db-down-pg", Knobs { pgbouncer_unready: true, ..Knobs::default() });
    tenant.condition("db-down", "Ready", "False", "Provisioning").await;
    tenant.percona("db-down-pg", Knobs::default());
    tenant.ready("db-down", 1).await;
    assert_eq!(tenant.listed("db-down").unwrap().0, "1");
}
