//! Helm 3 is the other Helm client: it reads the operator's releases, changes them, and has releases of its own.

use e2e::charts;
use e2e::lab::{Lab, Tenant};
use e2e::scenario::{helm3, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Service};
use serde_json::{Value, json};

use super::release::{drifted, helm, history, never_ours, revision, uninstalled, upgraded_and_rolled_back};

/// A namespace whose cluster admin has helm 3.
async fn tenant(namespace: &str) -> Tenant {
    let helm3 = helm3().await;
    let tenant = Lab::shared().await.tenant(namespace).await.with_helm(&helm3);
    assert!(helm(&tenant, &["version", "--short"]).starts_with("v3."));
    tenant
}

#[tokio::test]
async fn it_reads_what_the_operator_has_installed() {
    let tenant = tenant("helm3-reads").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"replicas": 2}))).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;

    let newest = format!("nextcloud-{}", charts::PATCH);
    assert_eq!(tenant.listed("acme").unwrap(), ("2".to_owned(), "deployed".to_owned(), newest));
    let both = [revision(1, "superseded", charts::DEFAULT), revision(2, "deployed", charts::PATCH)];
    assert_eq!(history(&tenant, "acme"), both);
    let read = |command: &[&str]| -> Value {
        serde_json::from_str(&helm(&tenant, &[command, &["acme", "-o", "json"]].concat())).unwrap()
    };
    assert_eq!(read(&["get", "values"])["replicaCount"], 2);
    let status = read(&["status"]);
    assert_eq!((&status["version"], &status["info"]["status"]), (&json!(2), &json!("deployed")));
}

#[tokio::test]
async fn its_upgrade_and_rollback_are_put_right_once_each() {
    upgraded_and_rolled_back(&tenant("helm3-by-hand").await).await;
}

#[tokio::test]
async fn its_uninstall_is_put_right_once() {
    uninstalled(&tenant("helm3-uninstalls").await).await;
}

#[tokio::test]
async fn its_own_release_is_not_taken_over() {
    never_ours(&tenant("helm3-owns").await).await;
}

/// As crds/README.md describes it.
#[tokio::test]
async fn its_own_release_is_taken_over_once_a_cluster_admin_labels_it() {
    let tenant = tenant("helm3-hands-over").await;
    let repository = tenant.lab.repository.url();
    let install = ["install", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT];
    let values = "replicaCount=3,persistence.enabled=true,persistence.keep=false";
    helm(&tenant, &[&install[..], &["--set", values]].concat());
    let uids = async || {
        let app = tenant.uid::<Deployment>("acme-nextcloud").await.unwrap();
        let service = tenant.uid::<Service>("acme-nextcloud").await.unwrap();
        let config = tenant.uid::<ConfigMap>("acme-nextcloud-config").await.unwrap();
        // The ClientApp has no volume.
        [app, service, config, tenant.uid::<PersistentVolumeClaim>("acme-nextcloud-nextcloud").await.unwrap()]
    };
    let before = uids().await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"approval": "Manual"}))).await.unwrap();
    tenant.condition("acme", "Ready", "False", "ReleaseNotOurs").await;

    let label = "apps.bnerd-operator.local/digest=taken-over";
    tenant.kubectl(&["label", "secret", "-l", "owner=helm,name=acme", label]).unwrap();
    tenant.held("acme", "AwaitingApproval", &["waits for approval"]).await;
    assert_eq!(history(&tenant, "acme").len(), 1, "nothing is changed before that");
    let status = tenant.status("acme", "planned", |status| status.plan.is_some()).await;
    tenant.patch("acme", json!({"approved": status.plan.unwrap().digest})).await.unwrap();
    tenant.ready("acme", 2).await;

    let both = [revision(1, "superseded", charts::DEFAULT), revision(2, "deployed", charts::DEFAULT)];
    assert_eq!(history(&tenant, "acme"), both);
    assert_eq!(uids().await, before, "no object is recreated, and the volume stays");
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(app.spec.unwrap().replicas, Some(1));
    // Helm 3 wrote with updates. Their fields are among those that helm now applies, so that a later chart can remove them.
    let by_helm = app.metadata.managed_fields.iter().flatten().filter(|entry| entry.manager.as_deref() == Some("helm"));
    let operations: Vec<_> = by_helm.filter_map(|entry| entry.operation.as_deref()).collect();
    assert_eq!(operations, ["Apply"]);
    let told = drifted(&tenant, "acme").await;
    assert!(told.len() == 1 && told[0].contains("revision 1 of release acme was made by another Helm"), "{told:?}");
}
