//! The namespace that was made for an instance.

use e2e::lab::{Lab, PATIENCE, Tenant};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;

use crate::{hostname, small};

/// A tenant in a namespace that carries the mark of the HTTP API.
async fn made(name: &str) -> (Tenant, Api<Namespace>) {
    let tenant = Lab::shared().await.tenant(name).await;
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let labels = json!({"metadata": {"labels": {
        "app.kubernetes.io/managed-by": "clientapp-operator",
        "apps.bnerd-operator.local/instance": "acme",
    }}});
    namespaces.patch(name, &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    (tenant, namespaces)
}

async fn gone(namespaces: &Api<Namespace>, name: &str) {
    let uid = namespaces.get(name).await.ok().and_then(|namespace| namespace.metadata.uid).unwrap_or_default();
    let gone = await_condition(namespaces.clone(), name, conditions::is_deleted(&uid));
    tokio::time::timeout(PATIENCE, gone).await.expect("the namespace goes").unwrap();
}

#[tokio::test]
async fn it_goes_with_the_last_instance_in_it() {
    let (tenant, namespaces) = made("made").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.create("other", small(&tenant, "other")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.ready("other", 1).await;
    tenant.delete("acme").await;
    let told = "namespace made was made for this ClientApp and stays, since ClientApp other is in it";
    tenant.events_with("acme", "NamespaceKept", told).await;
    assert!(namespaces.get("made").await.unwrap().metadata.deletion_timestamp.is_none());
    tenant.delete("other").await;
    gone(&namespaces, "made").await;
}

#[tokio::test]
async fn it_stays_with_what_is_somebodys() {
    let (tenant, namespaces) = made("made-kept").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let notes = serde_json::from_value(json!({"metadata": {"name": "notes"}, "data": {"a": "b"}})).unwrap();
    tenant.api::<ConfigMap>().create(&PostParams::default(), &notes).await.unwrap();
    tenant.delete("acme").await;
    let told = "namespace made-kept was made for this ClientApp and stays, since ConfigMap notes is in it";
    tenant.events_with("acme", "NamespaceKept", told).await;
    assert!(namespaces.get("made-kept").await.unwrap().metadata.deletion_timestamp.is_none());
}

#[tokio::test]
async fn it_stays_with_what_is_retained() {
    let (tenant, namespaces) = made("made-retained").await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "deletionPolicy": "Retain"});
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.delete("acme").await;
    assert!(namespaces.get("made-retained").await.unwrap().metadata.deletion_timestamp.is_none());
}
