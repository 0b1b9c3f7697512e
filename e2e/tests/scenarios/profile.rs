//! Profiles: the defaults that instances take from them, and later changes.

use clientapp_crd::Profile;
use e2e::lab::{Lab, Tenant};
use e2e::scenario::{small, with};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

async fn create(tenant: &Tenant, name: &str, spec: Value) {
    let profile = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<Profile>::all(tenant.client.clone()).create(&PostParams::default(), &profile).await.unwrap();
}

async fn patch(tenant: &Tenant, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    Api::<Profile>::all(tenant.client.clone()).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Requested CPU and replicas of the app's Deployment.
async fn deployed(tenant: &Tenant, name: &str) -> (Option<String>, Option<i32>) {
    let deployment = tenant.api::<Deployment>().get(&format!("{name}-nextcloud")).await.unwrap().spec.unwrap();
    let container = deployment.template.spec.unwrap().containers.remove(0);
    let requests = container.resources.and_then(|resources| resources.requests).unwrap_or_default();
    (requests.get("cpu").map(|cpu| cpu.0.clone()), deployment.replicas)
}

#[tokio::test]
async fn instances_wait_for_their_profile_and_follow_it() {
    let tenant = Lab::shared().await.tenant("profile").await;
    let of_class = |name: &str| with(small(&tenant, name), json!({"profile": "class"}));
    tenant.create("follows", of_class("follows")).await.unwrap();
    let told = tenant.condition("follows", "Stalled", "True", "ProfileMissing").await;
    assert_eq!(told, "spec.profile: there is no Profile class: create it, or name another");
    assert_eq!(tenant.listed("follows"), None);
    create(&tenant, "class", json!({"defaults": {"replicaCount": 2, "resources": {"requests": {"cpu": "200m"}}}}))
        .await;
    tenant.create("decides", with(of_class("decides"), json!({"replicas": 1}))).await.unwrap();
    tenant.create("without", small(&tenant, "without")).await.unwrap();
    for name in ["follows", "decides", "without"] {
        tenant.ready(name, 1).await;
    }
    let cpu = |amount: &str| Some(amount.to_owned());
    assert_eq!(deployed(&tenant, "follows").await, (cpu("200m"), Some(2)));
    assert_eq!(deployed(&tenant, "decides").await, (cpu("200m"), Some(1)));
    assert_eq!(deployed(&tenant, "without").await, (None, Some(1)));

    patch(&tenant, "class", json!({"defaults": {"resources": {"requests": {"cpu": "300m"}}}})).await;
    tenant.ready("follows", 2).await;
    tenant.ready("decides", 2).await;
    assert_eq!(deployed(&tenant, "follows").await, (cpu("300m"), Some(2)));
    assert_eq!(tenant.listed("without").unwrap().0, "1");

    // A changed description changes nothing.
    patch(&tenant, "class", json!({"description": "for trying things out"})).await;
    // An invalid Profile stops no instance.
    patch(&tenant, "class", json!({"helm": {"values": {"nextcloud": {"host": "elsewhere"}}}})).await;
    tenant.held("follows", "ProfileInvalid", &["Profile class", "nextcloud.host"]).await;
    patch(&tenant, "class", json!({"helm": {"values": null}})).await;
    tenant.ready("follows", 2).await;

    // Deleting a Profile leaves the release as it is.
    let profiles = Api::<Profile>::all(tenant.client.clone());
    profiles.delete("class", &DeleteParams::default()).await.unwrap();
    tenant.condition("follows", "Ready", "False", "ProfileMissing").await;
    assert_eq!(deployed(&tenant, "follows").await, (cpu("300m"), Some(2)));
    assert_eq!(tenant.listed("follows").unwrap().0, "2");
    tenant.delete("follows").await;
}

#[tokio::test]
async fn kubectl_is_told_what_a_profile_may_not_say() {
    let tenant = Lab::shared().await.tenant("profile-schema").await;
    let profiles = Api::<Profile>::all(tenant.client.clone());
    for (spec, sentence) in [
        (json!({"defaults": {"persistence": {"size": "10GB"}}}), "must be a quantity above zero"),
        (json!({"defaults": {"resources": {"limits": {"cpu": "much"}}}}), "must be quantities such as 200m"),
        (json!({"namespace": {"quota": {"pods": "many"}}}), "must be quantities such as 20"),
        (json!({"namespace": {"quota": {"pods": "20", "limits.memory": "8Gi"}}}), "must not limit cpu or memory"),
        (json!({"defaults": {"replicaCount": -1}}), "spec.defaults.replicaCount"),
    ] {
        let profile = serde_json::from_value(json!({"metadata": {"name": "wrong"}, "spec": spec})).unwrap();
        let refusal = profiles.create(&PostParams::default(), &profile).await.unwrap_err().to_string();
        assert!(refusal.contains(sentence), "{spec}: {refusal}");
    }
    create(&tenant, "sized", json!({"defaults": {"persistence": {"size": "10Gi"}}})).await;
    for smaller in [json!("9Gi"), json!(null)] {
        let patch = Patch::Merge(json!({"spec": {"defaults": {"persistence": {"size": smaller}}}}));
        let refusal = profiles.patch("sized", &PatchParams::default(), &patch).await.unwrap_err().to_string();
        assert!(refusal.contains("size can only grow") && refusal.contains("create another Profile"), "{refusal}");
    }
}
