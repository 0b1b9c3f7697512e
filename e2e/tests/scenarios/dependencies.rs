//! `spec.dependsOn`: helm waits for other objects.

use clientapp_crd::Postgresql;
use e2e::charts;
use e2e::lab::Lab;
use e2e::scenario::{small, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

fn on(dependencies: Value) -> Value {
    json!({"dependsOn": dependencies})
}

#[tokio::test]
async fn helm_waits_for_what_an_app_depends_on() {
    let tenant = Lab::shared().await.tenant("depends").await;
    let spec = |name: &str, more: Value| with(small(&tenant, name), more);
    // The base is missing, then not ready, then ready: each is noticed at once.
    let waits = async |words: &str| {
        tenant.condition_with("acme", ("Released", "DependencyNotReady"), &[words]).await;
    };
    tenant.create("acme", spec("acme", on(json!([{"name": "base"}])))).await.unwrap();
    waits("ClientApp base does not exist").await;
    assert_eq!(tenant.listed("acme"), None);
    tenant.create("base", spec("base", json!({"chartVersion": charts::UNRENDERABLE}))).await.unwrap();
    waits("ClientApp base is not Ready (ChartInvalid)").await;
    tenant.patch("base", json!({"chartVersion": charts::DEFAULT})).await.unwrap();
    tenant.ready("acme", 1).await;

    // What is installed stays; the next upgrade waits.
    tenant.patch("base", json!({"suspend": true, "chartVersion": charts::PATCH})).await.unwrap();
    tenant.condition_with("base", ("Ready", "Suspended"), &[]).await;
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    waits("ClientApp base is not Ready (Suspended)").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    tenant.patch("base", json!({"suspend": false})).await.unwrap();
    tenant.ready("acme", 2).await;

    // A circle is named by each of its members, and can be left.
    tenant.create("one", spec("one", on(json!([{"name": "two"}])))).await.unwrap();
    tenant.create("two", spec("two", on(json!([{"name": "one"}])))).await.unwrap();
    for (name, other) in [("two", "one"), ("one", "two")] {
        let words = [&*format!("ClientApp {other} is not Ready"), "circular dependency: it depends on this ClientApp"];
        tenant.held(name, "DependencyCircle", &words).await;
    }
    tenant.patch("one", on(json!(null))).await.unwrap();
    tenant.ready("two", 1).await;
}

#[tokio::test]
async fn helm_waits_for_objects_of_other_kinds() {
    let tenant = Lab::shared().await.tenant("depends-others").await;
    let dependencies = json!([
        {"kind": "Postgresql", "name": "shared"},
        {"apiVersion": "apps/v1", "kind": "Deployment", "name": "cache"},
    ]);
    tenant.create("acme", with(small(&tenant, "acme"), on(dependencies))).await.unwrap();
    let words = ["Postgresql shared does not exist, Deployment cache does not exist"];
    tenant.condition_with("acme", ("Released", "DependencyNotReady"), &words).await;
    tenant.kubectl(&["create", "deployment", "cache", "--image=cache:1", "--replicas=0"]).unwrap();
    let words = ["Deployment cache has no condition Ready"];
    tenant.condition_with("acme", ("Released", "DependencyNotReady"), &words).await;
    // As the controller of a kind with such a condition would.
    let condition = json!({"type": "Ready", "status": "True", "reason": "Made", "message": ""});
    let status = Patch::Merge(json!({"status": {"conditions": [condition]}}));
    let api = tenant.api::<Deployment>();
    let shared = serde_json::from_value(json!({"metadata": {"name": "shared"}, "spec": {}})).unwrap();
    tenant.api::<Postgresql>().create(&PostParams::default(), &shared).await.unwrap();
    // The Deployment's own controller may take the condition away again.
    until("helm runs", async || {
        api.patch_status("cache", &PatchParams::default(), &status).await.unwrap();
        tenant.listed("acme").is_some()
    })
    .await;
    tenant.ready("acme", 1).await;
}
