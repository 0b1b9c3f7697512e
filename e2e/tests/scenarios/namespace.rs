//! The namespace that was created for an instance.

use e2e::lab::{Lab, TIMEOUT, Tenant, hostname};
use e2e::scenario::{defined, small};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;

/// A tenant in a namespace with the mark of the HTTP API.
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

async fn gone(tenant: &Tenant, namespaces: &Api<Namespace>, name: &str) {
    let uid = namespaces.get(name).await.ok().and_then(|namespace| namespace.metadata.uid).unwrap_or_default();
    let gone = await_condition(namespaces.clone(), name, conditions::is_deleted(&uid));
    match tokio::time::timeout(TIMEOUT, gone).await {
        Ok(gone) => drop(gone.unwrap()),
        Err(_) => panic!("namespace {name} stays; the operator's log:\n{}", tenant.lab.operator_log()),
    }
}

#[tokio::test]
async fn it_goes_with_the_last_instance_in_it() {
    let (tenant, namespaces) = made("made").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.create("other", small(&tenant, "other")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.ready("other", 1).await;
    tenant.delete("acme").await;
    let told = "namespace made was created for this ClientApp and stays, since ClientApp other is in it";
    tenant.events_with("acme", "NamespaceKept", told).await;
    assert!(namespaces.get("made").await.unwrap().metadata.deletion_timestamp.is_none());
    tenant.delete("other").await;
    gone(&tenant, &namespaces, "made").await;
}

#[tokio::test]
async fn it_stays_with_what_a_user_has_put_there() {
    let (tenant, namespaces) = made("made-kept").await;
    let stays_with = async |object: &str| {
        tenant.create("acme", small(&tenant, "acme")).await.unwrap();
        tenant.ready("acme", 1).await;
        tenant.delete("acme").await;
        let told = format!("namespace made-kept was created for this ClientApp and stays, since {object} is in it");
        tenant.events_with("acme", "NamespaceKept", &told).await;
        assert!(namespaces.get("made-kept").await.unwrap().metadata.deletion_timestamp.is_none());
    };
    tenant.kubectl(&["create", "configmap", "notes", "--from-literal=a=b"]).unwrap();
    stays_with("ConfigMap notes").await;

    // Of a kind that is not known. Before the other object goes: an empty namespace is deleted.
    let kind = defined(&tenant.client, "snapshot.storage.k8s.io", "VolumeSnapshot").await;
    let snapshots = Api::<DynamicObject>::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind);
    snapshots.create(&PostParams::default(), &DynamicObject::new("nightly", &kind)).await.unwrap();
    tenant.kubectl(&["delete", "configmap", "notes"]).unwrap();
    stays_with("VolumeSnapshot nightly").await;
}
