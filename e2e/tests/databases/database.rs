//! The database: created, awaited, checked, and left alone if it belongs to another owner.

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, annotation};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has, hostname};
use e2e::percona::Knobs;
use e2e::scenario::secret;
use e2e::wait::until;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;

/// helm has sent no request yet.
async fn no_helm_yet(tenant: &Tenant) {
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
}

/// From a Percona that says nothing to a database that has grown and lost a key.
#[tokio::test]
async fn helm_waits_until_the_database_is_ready_and_goes_on_without_it() {
    let tenant = Lab::shared().await.tenant("initializing").await;
    let misbehaves = |knobs: Knobs| tenant.percona("acme-pg", knobs);
    let condition = async |reason: &str, words: &[&str]| {
        tenant.condition_with("acme", ("PostgresReady", reason), words).await;
    };
    tenant.percona_ignores(true).await;
    misbehaves(Knobs { hold: true, ..Knobs::default() });
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    condition("NotReporting", &["watches namespace initializing", "watchAllNamespaces"]).await;
    tenant.percona_ignores(false).await;
    condition("Provisioning", &["PerconaPGCluster acme-pg is initializing: 0 of 1 instances are ready"]).await;
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    let status = app.status.unwrap();
    assert!(has(&status, "Ready", "False", "Provisioning") && has(&status, "Stalled", "False", "NotStalled"));
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("acme-pg"));
    // Its Secret exists long before PostgreSQL runs, and must not start helm.
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    no_helm_yet(&tenant).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    // No ownerReference, since the garbage collector would delete it.
    assert_eq!(
        (cluster.annotations().get(annotation::OWNER_UID), cluster.owner_references()),
        (app.metadata.uid.as_ref(), &[][..])
    );

    // PostgreSQL runs, which is not enough.
    let unready = Knobs { pgbouncer_unready: true, ..Knobs::default() };
    misbehaves(unready.clone());
    condition("Provisioning", &["is initializing: 0 of 1 PgBouncers are ready"]).await;
    no_helm_yet(&tenant).await;
    misbehaves(Knobs::default());
    tenant.ready("acme", 1).await;

    // When it is no longer ready, that shows, and starts no helm. Nor does its growth.
    misbehaves(unready);
    tenant.condition("acme", "Ready", "False", "Provisioning").await;
    misbehaves(Knobs::default());
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"postgres": {"storageSize": "2Gi"}})).await.unwrap();
    tenant
        .wait_for("acme-pg", "grown", |cluster: Option<&PerconaPGCluster>| {
            (cluster?.spec.instances.first()?.storage() == Some("2Gi")).then_some(())
        })
        .await;
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    let generated = async || {
        [
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
            secret(&tenant, "acme-redis-secret", "redis-password").await,
            secret(&tenant, "acme-pg-pguser-clientapp", "password").await,
        ]
    };
    let before = generated().await;
    assert_eq!(before[2], password);
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(generated().await, before);

    // Percona takes a password that a user writes, and helm hands it to the app.
    const SECRET: &str = "acme-pg-pguser-clientapp";
    let before = tenant.api::<Secret>().get(SECRET).await.unwrap().data.unwrap();
    // If it was at work meanwhile, it would put back what it has read before.
    tenant.percona_ignores(true).await;
    let rotated = Patch::Merge(json!({"stringData": {"password": "rotated", "verifier": ""}}));
    tenant.api::<Secret>().patch(SECRET, &PatchParams::default(), &rotated).await.unwrap();
    tenant.ready("acme", 3).await;
    tenant.percona_ignores(false).await;
    let after = until("Percona takes a password", async || {
        let data = tenant.api::<Secret>().get(SECRET).await.ok()?.data?;
        data["verifier"].0.starts_with(b"SCRAM-SHA-256$").then_some(data)
    })
    .await;
    assert_eq!(after["password"].0, b"rotated");
    assert_ne!((&after["verifier"], &after["pgbouncer-uri"]), (&before["verifier"], &before["pgbouncer-uri"]));
    tenant.ready("acme", 3).await;

    // Percona would put a key back that is missing.
    tenant.percona_ignores(true).await;
    let patch = r#"--patch=[{"op": "remove", "path": "/data/password"}]"#;
    tenant.kubectl(&["patch", "secret", SECRET, "--type=json", patch]).unwrap();
    let told = tenant.condition("acme", "PostgresReady", "False", "SecretKeyMissing").await;
    assert_eq!(told, "Secret acme-pg-pguser-clientapp has no value under password");
    assert_eq!(tenant.listed("acme").unwrap().0, "3");
    tenant.percona_ignores(false).await;
    tenant.ready("acme", 4).await;
    assert_ne!(generated().await[2], "rotated");
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
    tenant.held("theirs", "DatabaseNotOurs", &["PerconaPGCluster theirs-pg", "not taken over"]).await;
    tenant.delete("theirs").await;
    assert_eq!(clusters.get("theirs-pg").await.unwrap(), before);
    no_helm_yet(&tenant).await;
}
