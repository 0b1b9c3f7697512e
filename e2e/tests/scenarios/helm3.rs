//! Helm 3 is the other Helm client: it reads the operator's releases, changes them, and has releases of its own.

use e2e::charts;
use e2e::lab::{Lab, Tenant};
use e2e::scenario::{helm3, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::release::{helm, history, never_ours, revision, uninstalled, upgraded_and_rolled_back};

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

/// Flux's controller and Terraform's provider are Helm 3 under names of their own, which the API server records.
#[tokio::test]
async fn what_flux_and_terraform_leave_is_taken_over_whole() {
    let tenant = tenant("helm3-named").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let repository = tenant.lab.repository.url();
    let by_hand =
        ["upgrade", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT, "--reuse-values"];
    let deployments = tenant.api::<Deployment>();
    for (revision, manager) in [(3, "helm-controller"), (5, "terraform-provider-helm_v3.1.1_x5")] {
        tenant.patch("acme", json!({"suspend": true})).await.unwrap();
        tenant.condition("acme", "Reconciling", "False", "Suspended").await;
        helm(&tenant, &[&by_hand[..], &["--set", "podAnnotations.theirs=yes"]].concat());
        let mut theirs = deployments.get("acme-nextcloud").await.unwrap();
        let fields = theirs.metadata.managed_fields.iter_mut().flatten();
        let written = fields
            .filter(|entry| (entry.manager.as_deref(), entry.operation.as_deref()) == (Some("helm"), Some("Update")));
        assert_eq!(written.map(|entry| entry.manager = Some(manager.to_owned())).count(), 1);
        let patch =
            json!([{"op": "replace", "path": "/metadata/managedFields", "value": theirs.metadata.managed_fields}]);
        let patch = Patch::Json::<()>(serde_json::from_value(patch).unwrap());
        deployments.patch("acme-nextcloud", &PatchParams::default(), &patch).await.unwrap();

        tenant.patch("acme", json!({"suspend": false})).await.unwrap();
        tenant.ready("acme", revision).await;
        let ours = deployments.get("acme-nextcloud").await.unwrap();
        let template = ours.spec.unwrap().template.metadata.unwrap();
        assert_eq!(template.annotations.unwrap_or_default().get("theirs"), None);
        let managers = ours.metadata.managed_fields.unwrap();
        let managers: Vec<_> =
            managers.iter().filter(|entry| entry.subresource.is_none()).map(|entry| &entry.manager).collect();
        assert_eq!(managers, [&Some("helm".to_owned())]);
    }
}

/// Argo CD renders a chart and applies the objects: there is no release, and Helm's annotations are missing.
#[tokio::test]
async fn what_argo_cd_has_applied_is_named_and_stays() {
    let tenant = Lab::shared().await.tenant("of-argo-cd").await;
    let theirs = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {
            "name": "acme-nextcloud", "labels": {"app.kubernetes.io/instance": "acme", "app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"argocd.argoproj.io/tracking-id": "acme:/Service:of-argo-cd/acme-nextcloud"},
        },
        "spec": {"ports": [{"port": 8080}]},
    });
    let services = tenant.api::<Service>();
    services.patch("acme-nextcloud", &PatchParams::apply("argocd-controller"), &Patch::Apply(theirs)).await.unwrap();
    let before = services.get("acme-nextcloud").await.unwrap();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    let sentence = ["Service \"acme-nextcloud\"", "cannot be imported into the current release"];
    tenant.condition_with("acme", ("Released", "UpgradeFailed"), &sentence).await;
    assert_eq!(services.get("acme-nextcloud").await.unwrap(), before);
    tenant.delete("acme").await;
    assert_eq!(services.get("acme-nextcloud").await.unwrap(), before);
}
