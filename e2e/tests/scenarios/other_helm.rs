//! Other Helm clients: Helm 3 and Helm 4 read the operator's releases, change them, and have releases of their own.

use std::path::{Path, PathBuf};

use e2e::charts;
use e2e::lab::{Lab, Tenant, has};
use e2e::scenario::{helm3, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

/// A namespace whose cluster admin has this helm.
async fn shared(namespace: &str, program: &Path) -> Tenant {
    Lab::shared().await.tenant(namespace).await.with_helm(program)
}

/// The helms of cluster admins. Helm 3 applies objects on the client's side.
async fn both(lab: &Lab) -> [PathBuf; 2] {
    [helm3().await, lab.tools.helm.clone()]
}

/// Revision, status and chart of every kept revision, oldest first.
pub(super) fn history(tenant: &Tenant, release: &str) -> Vec<(i64, String, String)> {
    let ran = tenant.helm(&["history", release, "-o", "json"]);
    assert!(ran.success, "{}", ran.stderr);
    let revisions: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let word = |revision: &Value, key: &str| revision[key].as_str().unwrap().to_owned();
    revisions
        .iter()
        .map(|revision| (revision["revision"].as_i64().unwrap(), word(revision, "status"), word(revision, "chart")))
        .collect()
}

/// An entry of [`history`] for a version of the chart.
fn revision(number: i64, status: &str, version: &str) -> (i64, String, String) {
    (number, status.to_owned(), format!("nextcloud-{version}"))
}

/// Runs helm, which has to succeed, and returns what it printed.
pub(super) fn helm(tenant: &Tenant, arguments: &[&str]) -> String {
    let ran = tenant.helm(arguments);
    assert!(ran.success, "helm {arguments:?}: {}", ran.stderr);
    ran.stdout
}

/// The messages of the events about a corrected release.
async fn drifted(tenant: &Tenant, name: &str) -> Vec<String> {
    let events = tenant.events(name).await;
    events.into_iter().filter(|(reason, _)| reason == "ReleaseDrifted").map(|(_, sentence)| sentence).collect()
}

#[tokio::test]
async fn an_upgrade_and_a_rollback_by_hand_are_put_right_once_each() {
    let lab = Lab::shared().await;
    let mut tenant = lab.tenant("helm-by-hand").await;
    // With an Ingress: the gateway reads what helm writes of it.
    let more = json!({"ingressClassName": "traefik", "replicas": 2});
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    tenant.ready("acme", 1).await;
    let repository = lab.repository.url();
    let mut newest = 1;
    for (done, (program, major)) in both(lab).await.iter().zip(["v3.", "v4."]).enumerate() {
        tenant = tenant.with_helm(program);
        assert!(helm(&tenant, &["version", "--short"]).starts_with(major));
        // If it is put right more than once, a later revision is not the expected one.
        let by_hand = ["upgrade", "acme", "nextcloud", "--repo", &repository, "--version", charts::PATCH];
        helm(&tenant, &[&by_hand[..], &["--reuse-values", "--set", "replicaCount=3"]].concat());
        tenant.ready("acme", newest + 2).await;
        assert_eq!(
            history(&tenant, "acme"),
            [
                revision(newest, "superseded", charts::DEFAULT),
                revision(newest + 1, "superseded", charts::PATCH),
                revision(newest + 2, "deployed", charts::DEFAULT)
            ]
        );
        let read = |command: &[&str]| -> Value {
            serde_json::from_str(&helm(&tenant, &[command, &["acme", "-o", "json"]].concat())).unwrap()
        };
        assert_eq!(read(&["get", "values"])["replicaCount"], 2);
        let status = read(&["status"]);
        assert_eq!((&status["version"], &status["info"]["status"]), (&json!(newest + 2), &json!("deployed")));
        let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
        assert_eq!(app.spec.unwrap().replicas, Some(2));
        let ingress = tenant.api::<Ingress>().get("acme-nextcloud").await.unwrap();
        let managers = ingress.metadata.managed_fields.unwrap();
        let operations: Vec<_> = managers.iter().filter_map(|entry| entry.operation.as_deref()).collect();
        assert_eq!(operations, ["Apply"], "helm manages by server-side apply again what another client has written");

        helm(&tenant, &["rollback", "acme", &(newest + 1).to_string()]);
        tenant.ready("acme", newest + 4).await;
        let last =
            [revision(newest + 3, "superseded", charts::PATCH), revision(newest + 4, "deployed", charts::DEFAULT)];
        assert_eq!(history(&tenant, "acme")[1..], last);
        let told = drifted(&tenant, "acme").await;
        let by_hand = [newest + 1, newest + 3];
        let by_hand = by_hand.map(|made| format!("revision {made} of release acme was made by another Helm client"));
        assert_eq!(told.len(), 2 * (done + 1), "{told:?}");
        assert!(told[2 * done..].iter().zip(&by_hand).all(|(told, words)| told.contains(words)), "{told:?}");
        newest += 4;
    }
    tenant.patch("acme", json!({"replicas": 1})).await.unwrap();
    tenant.ready("acme", newest + 1).await;
    // --history-max
    assert_eq!(history(&tenant, "acme").len(), 3);
}

#[tokio::test]
async fn an_uninstall_by_hand_is_put_right_once() {
    let lab = Lab::shared().await;
    let mut tenant = lab.tenant("uninstalled-by-hand").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    for (done, program) in both(lab).await.iter().enumerate() {
        tenant = tenant.with_helm(program);
        helm(&tenant, &["uninstall", "acme"]);
        tenant.ready("acme", 1).await;
        let told = drifted(&tenant, "acme").await;
        assert_eq!(told.len(), 2 * done + 1, "{told:?}");
        assert!(told.iter().any(|words| words.contains("was uninstalled by another Helm client")), "{told:?}");

        helm(&tenant, &["uninstall", "acme", "--keep-history"]);
        tenant.ready("acme", 2).await;
        assert_eq!(drifted(&tenant, "acme").await.len(), 2 * done + 2);
    }
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 3).await;
}

/// Installed with Helm 3, and upgraded with Helm 4.
#[tokio::test]
async fn a_release_that_was_never_ours_is_not_taken_over() {
    let tenant = shared("not-ours", &helm3().await).await;
    let repository = tenant.lab.repository.url();
    helm(&tenant, &["install", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT]);
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.held("acme", "ReleaseNotOurs", &["release acme", "uninstall it or rename the ClientApp"]).await;

    // Neither a later reconcile nor a later revision by the other client makes it the operator's.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let upgrade = ["upgrade", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT];
    let program = tenant.lab.tools.helm.clone();
    let tenant = tenant.with_helm(&program);
    helm(&tenant, &upgrade);
    let mut generation = 0;
    for replicas in [2, 3] {
        generation = tenant.patch("acme", json!({"replicas": replicas})).await.unwrap().metadata.generation.unwrap();
        tenant
            .status("acme", "looked at again", |status| {
                status.observed_generation == Some(generation) && has(status, "Stalled", "True", "ReleaseNotOurs")
            })
            .await;
    }
    assert!(generation >= 4);
    let revisions = history(&tenant, "acme");
    assert_eq!(revisions.len(), 2, "{revisions:?}");
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");

    // A deletion leaves it alone as well.
    tenant.delete("acme").await;
    assert_eq!(history(&tenant, "acme").len(), 2);
    assert!(tenant.api::<Deployment>().get_opt("acme-nextcloud").await.unwrap().is_some());

    tenant.create("acme", with(small(&tenant, "acme"), json!({"chartVersion": charts::PATCH}))).await.unwrap();
    tenant.condition("acme", "Ready", "False", "ReleaseNotOurs").await;
    helm(&tenant, &["uninstall", "acme"]);
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().2, format!("nextcloud-{}", charts::PATCH));
    assert_eq!(drifted(&tenant, "acme").await, [""; 0]);
}

/// Flux's controller and Terraform's provider are Helm 3 under names of their own, which the API server records.
#[tokio::test]
async fn what_flux_and_terraform_leave_is_taken_over_whole() {
    let tenant = shared("helm3-named", &helm3().await).await;
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
