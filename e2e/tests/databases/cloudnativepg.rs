//! Clusters of CloudNativePG, which [`Played`] plays.

use clientapp_crd::cloudnativepg::CloudNativePgCluster;
use clientapp_crd::{ClientApp, annotation, label};
use e2e::cloudnativepg::{Played, define};
use e2e::lab::{Lab, Tenant, hostname};
use e2e::scenario::{names, nothing_is_left, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A tenant of a cluster that knows CloudNativePG's kind.
async fn tenant(namespace: &str) -> Tenant {
    let tenant = Lab::shared().await.tenant(namespace).await;
    define(&tenant.client).await.unwrap();
    tenant
}

fn spec(tenant: &Tenant, more: Value) -> Value {
    let postgres = json!({"provider": "cloudnativepg", "version": "17"});
    with(json!({"hostname": hostname(tenant, "acme"), "postgres": postgres, "redis": {"enabled": false}}), more)
}

fn played(tenant: &Tenant) -> Played<'_> {
    Played { tenant, name: "acme-pg" }
}

/// Creates an app whose cluster has come up.
async fn running(tenant: &Tenant, more: Value) {
    tenant.create("acme", spec(tenant, more)).await.unwrap();
    played(tenant).begin().await.unwrap();
    played(tenant).is_healthy().await.unwrap();
    tenant.ready("acme", 1).await;
}

/// Runs the command that a message has in backquotes and that begins like this.
fn follow(tenant: &Tenant, message: &str, begin: &str) {
    let command = message.split('`').find(|part| part.starts_with(begin));
    let command = command.unwrap_or_else(|| panic!("{message} has no command {begin}"));
    let words: Vec<_> = command.split(' ').skip(1).collect();
    tenant.kubectl(&words).unwrap();
}

async fn no_helm_yet(tenant: &Tenant) {
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
}

#[tokio::test]
async fn helm_waits_for_a_cluster_of_cloudnativepg_and_for_what_it_does_not_say() {
    let tenant = tenant("cnpg").await;
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    let condition =
        async |reason: &str, words: &[&str]| tenant.condition_with("acme", ("PostgresReady", reason), words).await;
    condition("Provisioning", &["Cluster acme-pg was created and has no status yet"]).await;
    let cluster = tenant.api::<CloudNativePgCluster>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (cluster.annotations().get(annotation::OWNER_UID), cluster.owner_references()),
        (app.metadata.uid.as_ref(), &[][..])
    );
    assert_eq!(cluster.spec.image_name.as_deref(), Some("ghcr.io/cloudnative-pg/postgresql:17"));
    assert_eq!(cluster.spec.bootstrap, Some(json!({"initdb": {"database": "clientapp", "owner": "clientapp"}})));

    // Its Secret exists, and its status says that it is bootstrapped, long before PostgreSQL runs.
    played(&tenant).begin().await.unwrap();
    let starts = "Cluster acme-pg is not ready: Setting up primary: Creating primary instance acme-pg-1";
    condition("Provisioning", &[starts]).await;
    played(&tenant).cannot_pull().await.unwrap();
    let words = ["of pod acme-pg-1-initdb-", "cannot pull image ghcr.io/cloudnative-pg/postgresql:17"];
    let told = condition("Provisioning", &words).await;
    assert!(told.starts_with(starts), "{told}");
    follow(&tenant, &told, "kubectl delete job acme-pg-1-initdb");
    no_helm_yet(&tenant).await;
    played(&tenant).is_healthy().await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("acme-pg"));

    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let variables = deployment.spec.unwrap().template.spec.unwrap().containers[0].env.clone().unwrap();
    let variable = |name: &str| json!(variables.iter().find(|variable| variable.name == name).unwrap());
    let reference = |name: &str, key: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "acme-pg-app", "key": key}}});
    assert_eq!(variable("POSTGRES_HOST")["value"], "acme-pg-rw.cnpg.svc.cluster.local");
    assert_eq!(variable("POSTGRES_DB")["value"], "clientapp");
    assert_eq!(variable("POSTGRES_USER"), reference("POSTGRES_USER", "username"));
    assert_eq!(variable("POSTGRES_PASSWORD"), reference("POSTGRES_PASSWORD", "password"));

    // A cluster without pods calls itself ready.
    let hibernates = Patch::Merge(json!({"metadata": {"annotations": {"cnpg.io/hibernation": "on"}}}));
    let clusters = tenant.api::<CloudNativePgCluster>();
    clusters.patch("acme-pg", &PatchParams::default(), &hibernates).await.unwrap();
    played(&tenant).is_hibernated().await.unwrap();
    let told = condition("DatabaseStalled", &["Cluster acme-pg is hibernated"]).await;
    follow(&tenant, &told, "kubectl annotate");
    condition("Provisioning", &["Cluster acme-pg has no ready instance: Cluster in healthy state"]).await;
    played(&tenant).is_healthy().await.unwrap();
    tenant.ready("acme", 1).await;

    // It grows without helm.
    tenant.patch("acme", json!({"postgres": {"storageSize": "2Gi", "instances": 2}})).await.unwrap();
    let grown = |cluster: Option<&CloudNativePgCluster>| {
        let spec = &cluster?.spec;
        (spec.instances == 2 && spec.storage.size.as_deref() == Some("2Gi")).then_some(())
    };
    tenant.wait_for("acme-pg", "grown", grown).await;
    tenant.ready("acme", 1).await;

    // Its volume, which the garbage collector deletes after it, is awaited.
    let finalizers = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let claims = tenant.api::<PersistentVolumeClaim>();
    claims.patch("acme-pg-1", &PatchParams::default(), &finalizers(json!(["clientapp.test/held"]))).await.unwrap();
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let waits = "waiting for PersistentVolumeClaim acme-pg-1 of the deleted Cluster acme-pg to be gone";
    tenant.held("acme", "DeletingVolumes", &[waits]).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    claims.patch("acme-pg-1", &PatchParams::default(), &finalizers(json!(null))).await.unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_retained_cluster_goes_on_running_and_is_adopted() {
    let tenant = tenant("cnpg-retain").await;
    running(&tenant, json!({"deletionPolicy": "Retain"})).await;
    let clusters = tenant.api::<CloudNativePgCluster>();
    let uid = tenant.uid::<CloudNativePgCluster>("acme-pg").await;
    let parts =
        async || (tenant.uid::<Secret>("acme-pg-app").await, tenant.uid::<PersistentVolumeClaim>("acme-pg-1").await);
    let before = parts().await;
    tenant.delete("acme").await;
    let kept = clusters.get("acme-pg").await.unwrap();
    assert_eq!((kept.uid(), parts().await), (uid.clone(), before.clone()));
    assert_eq!(
        (&kept.labels()[label::RETAINED_FROM][..], kept.annotations().get(annotation::OWNER_UID)),
        ("acme", None)
    );

    // Not by name alone.
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DataRetained", &["Cluster acme-pg", "spec.postgres.adopt to true"]).await;
    tenant.delete("acme").await;
    assert_eq!(tenant.uid::<CloudNativePgCluster>("acme-pg").await, uid);
    let adopts = json!({"provider": "cloudnativepg", "version": "17", "adopt": true});
    tenant.create("acme", spec(&tenant, json!({"postgres": adopts}))).await.unwrap();
    tenant.ready("acme", 1).await;
    let (adopted, app) = (clusters.get("acme-pg").await.unwrap(), tenant.api::<ClientApp>().get("acme").await.unwrap());
    assert_eq!((adopted.uid(), parts().await), (uid, before));
    assert_eq!(
        (adopted.labels().get(label::RETAINED_FROM), adopted.annotations().get(annotation::OWNER_UID)),
        (None, app.metadata.uid.as_ref())
    );
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
}

#[tokio::test]
async fn a_cluster_that_is_deleted_is_not_replaced_by_an_empty_one_unnoticed() {
    let tenant = tenant("cnpg-lost").await;
    running(&tenant, json!({})).await;
    let uid = tenant.uid::<CloudNativePgCluster>("acme-pg").await.unwrap();
    tenant.kubectl(&["delete", "clusters.postgresql.cnpg.io", "acme-pg"]).unwrap();
    let words = ["Cluster acme-pg was deleted, and its data with it", uid.as_str()];
    let told = tenant.condition_with("acme", ("PostgresReady", "DatabaseLost"), &words).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    until("its parts are gone", async || {
        let parts = [names::<Secret>(&tenant).await, names::<Service>(&tenant).await, names::<Job>(&tenant).await];
        !parts.concat().iter().any(|part| part.starts_with("acme-pg-"))
    })
    .await;
    follow(&tenant, &told, "kubectl annotate");
    played(&tenant).begin().await.unwrap();
    played(&tenant).is_healthy().await.unwrap();
    tenant.condition("acme", "PostgresReady", "True", "Ready").await;
    assert_ne!(tenant.uid::<CloudNativePgCluster>("acme-pg").await, Some(uid));
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_cluster_or_a_volume_of_another_owner_is_not_taken_over() {
    let tenant = tenant("cnpg-theirs").await;
    let clusters = tenant.api::<CloudNativePgCluster>();
    let meta = json!({"name": "acme-pg", "labels": {label::APP: "acme"}});
    let theirs = json!({
        "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": meta,
        "spec": {"instances": 1, "storage": {"size": "1Gi"}},
    });
    let theirs = clusters.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DatabaseNotOurs", &["Cluster acme-pg", "not taken over"]).await;
    no_helm_yet(&tenant).await;
    tenant.delete("acme").await;
    let found = clusters.get("acme-pg").await.unwrap();
    assert_eq!((found.uid(), found.resource_version()), (theirs.uid(), theirs.resource_version()));
    clusters.delete("acme-pg", &DeleteParams::default()).await.unwrap();

    // CloudNativePG would take over a volume with its label and no owner.
    let spec_of_claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim =
        json!({"metadata": {"name": "acme-pg-1", "labels": {"cnpg.io/cluster": "acme-pg"}}, "spec": spec_of_claim});
    let claims = tenant.api::<PersistentVolumeClaim>();
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DataRetained", &["PersistentVolumeClaim acme-pg-1"]).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    tenant.delete("acme").await;
    claims.delete("acme-pg-1", &DeleteParams::default()).await.unwrap();
    nothing_is_left(&tenant).await;
}
