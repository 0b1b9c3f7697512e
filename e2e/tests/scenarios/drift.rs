//! Objects of a release that another client deletes, edits or detaches from it.

use clientapp_crd::{ClientApp, ClientAppStatus, conditions};
use e2e::lab::{Lab, Object, Tenant, has};
use e2e::scenario::{small, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::networking::v1::{Ingress, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde::Serialize;
use serde_json::{Value, json};

use super::installed;

/// The parts of an object that must be the same when it is recreated, and its field managers.
fn essence<K: Object + Serialize>(object: &K) -> (Value, Vec<String>) {
    let meta = object.meta();
    let managers = meta.managed_fields.iter().flatten().filter(|entry| entry.subresource.is_none());
    let managers = managers.map(|entry| format!("{:?} {:?}", entry.manager, entry.operation)).collect();
    let mut document = serde_json::to_value(object).unwrap();
    for field in ["metadata", "status"] {
        document.as_object_mut().unwrap().remove(field);
    }
    // Assigned by the cluster.
    for field in ["clusterIP", "clusterIPs"] {
        document["spec"].as_object_mut().and_then(|spec| spec.remove(field));
    }
    let mut annotations = meta.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| !key.starts_with("deployment.kubernetes.io/"));
    (json!([document, meta.labels, annotations, meta.namespace]), managers)
}

/// Deletes an object, and waits until it exists again, unchanged.
async fn comes_back<K: Object + Serialize>(tenant: &Tenant, name: &str) {
    let before = tenant.api::<K>().get(name).await.unwrap();
    tenant.replaced::<K>(name).await;
    let after = tenant.api::<K>().get(name).await.unwrap();
    assert_eq!(essence(&after), essence(&before));
}

#[tokio::test]
async fn what_is_deleted_comes_back_as_it_was() {
    // Helm reads the number as octal.
    let modes = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: modes}\nspec: {selector: {matchLabels: {a: b}}, template: \
                 {metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: a}], volumes: [{name: v, configMap: {name: v, \
                 defaultMode: 0755}}]}}}";
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "extra"}, "stringData": {"a": "b"}});
    let values = json!({"extraManifests": [modes, secret], "redis": {"networkPolicy": {"enabled": true}}});
    let more = json!({"ingressClassName": "traefik", "redis": {"enabled": true}, "values": values});
    let tenant = installed("drift", more).await;
    comes_back::<Service>(&tenant, "acme-nextcloud").await;
    tenant.ready("acme", 1).await;
    comes_back::<Ingress>(&tenant, "acme-nextcloud").await;
    comes_back::<Deployment>(&tenant, "acme-nextcloud").await;
    comes_back::<StatefulSet>(&tenant, "acme-redis-master").await;
    comes_back::<ConfigMap>(&tenant, "acme-nextcloud-config").await;
    comes_back::<NetworkPolicy>(&tenant, "acme-redis").await;
    comes_back::<PodDisruptionBudget>(&tenant, "acme-redis-master").await;
    comes_back::<Deployment>(&tenant, "modes").await;
    comes_back::<Secret>(&tenant, "extra").await;
    // Not deleted, but detached from the release.
    let service = tenant.uid::<Service>("acme-nextcloud").await;
    tenant.kubectl(&["label", "service", "acme-nextcloud", "app.kubernetes.io/managed-by-"]).unwrap();
    let marked = |found: Option<&Service>| {
        found?.labels().get("app.kubernetes.io/managed-by").filter(|manager| *manager == "Helm").map(|_| ())
    };
    tenant.wait_for("acme-nextcloud", "marked again", marked).await;
    assert_eq!(tenant.uid::<Service>("acme-nextcloud").await, service);
    let mark = "meta.helm.sh/release-name";
    tenant.kubectl(&["annotate", "ingress", "acme-nextcloud", &format!("{mark}-")]).unwrap();
    let marked = |found: Option<&Ingress>| found?.annotations().get(mark).map(|_| ());
    tenant.wait_for("acme-nextcloud", "marked again", marked).await;

    tenant.ready("acme", 1).await;
    for object in ["Service acme-nextcloud", "Ingress acme-nextcloud"] {
        let sentence = format!(
            "{object} of release acme: another client has deleted it, or removed Helm's marks from it; it is recreated"
        );
        tenant.events_with("acme", "Drifted", &sentence).await;
    }
    assert_eq!(tenant.listed("acme").unwrap().0, "1", "it got no revision");
    // To helm nothing has happened.
    tenant.patch("acme", json!({"chartVersion": "5.5.3"})).await.unwrap();
    tenant.ready("acme", 2).await;
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    for name in ["acme-nextcloud", "acme-redis-master"] {
        assert_eq!(tenant.uid::<Service>(name).await, None);
    }
}

#[tokio::test]
async fn what_another_client_makes_or_deletes_over_and_over_is_told_and_can_be_ignored() {
    let fought = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fought"}});
    let more = json!({"values": {"extraManifests": [fought]}});
    let tenant = installed("drift-foreign", more).await;
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let services = tenant.api::<Service>();
    services.delete("acme-nextcloud", &DeleteParams::default()).await.unwrap();
    let theirs = json!({"metadata": {"name": "acme-nextcloud"}, "spec": {"ports": [{"port": 1234}]}});
    let theirs = services.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();

    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    let words = "another object has its name, without Helm's marks of this release: delete or rename that";
    tenant.held("acme", "Drifted", &["Service acme-nextcloud of release acme is missing", words]).await;
    let found = services.get("acme-nextcloud").await.unwrap();
    assert_eq!((found.uid(), found.spec), (theirs.uid(), theirs.spec));
    // Objects that can be recreated are.
    comes_back::<ConfigMap>(&tenant, "acme-nextcloud-config").await;
    tenant.patch("acme", json!({"drift": "Ignore"})).await.unwrap();
    tenant.ready("acme", 1).await;
    services.delete("acme-nextcloud", &DeleteParams::default()).await.unwrap();

    // It is missing then, which is told, or ignored, or put right.
    tenant.patch("acme", json!({"drift": "Report"})).await.unwrap();
    let words = "spec.drift is Report; set it to Repair, and it is recreated";
    tenant.held("acme", "Drifted", &["Service acme-nextcloud of release acme", words]).await;
    let stalled = tenant.status("acme", "stalled", |status| has(status, "Stalled", "True", "Drifted")).await;
    assert!(has(&stalled, "Reconciling", "False", "Drifted"));
    assert_eq!(tenant.uid::<Service>("acme-nextcloud").await, None);
    tenant.patch("acme", json!({"drift": "Repair"})).await.unwrap();
    let again = |found: Option<&Service>| found.filter(|found| !found.annotations().is_empty()).map(|_| ());
    tenant.wait_for("acme-nextcloud", "recreated", again).await;
    tenant.ready("acme", 1).await;

    // A client that does not stop.
    let maps = tenant.api::<ConfigMap>();
    let mut deleted = 0;
    let told = |status: &ClientAppStatus| {
        let ready = conditions::find(&status.conditions, "Ready");
        ready.is_some_and(|ready| ready.message.contains("was recreated 2 times in a row"))
    };
    let message = until("it is reported", async || {
        if maps.delete("fought", &DeleteParams::default()).await.is_ok() {
            deleted += 1;
        }
        let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
        app.status.filter(|status| told(status)).map(|status| format!("{:?}", status.conditions))
    })
    .await;
    assert!(message.contains("stop that client"), "{message}");
    // Once by the test, and once for each time that it was recreated.
    assert_eq!(deleted, 3);
}

#[tokio::test]
async fn what_is_edited_is_put_back() {
    let tenant = Lab::shared().await.tenant("drift-edited").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"ingressClassName": "traefik"}))).await.unwrap();
    // Also right after helm has run.
    tenant.ready("acme", 1).await;
    let container = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let container = container.spec.unwrap().template.spec.unwrap().containers.remove(0);
    let (container, image) = (container.name, container.image.unwrap());
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=3"]).unwrap();
    let scaled = |to: i32| move |found: Option<&Deployment>| (found?.spec.as_ref()?.replicas == Some(to)).then_some(());
    tenant.wait_for("acme-nextcloud", "put back", scaled(1)).await;
    let sentence =
        "Deployment acme-nextcloud of release acme: another client (kubectl) has changed spec.replicas; it is put back";
    tenant.events_with("acme", "Drifted", sentence).await;

    let before = tenant.api::<Ingress>().get("acme-nextcloud").await.unwrap();
    let host = r#"[{"op": "replace", "path": "/spec/rules/0/host", "value": "evil.example.com"}]"#;
    tenant.kubectl(&["patch", "ingress", "acme-nextcloud", "--type=json", "-p", host]).unwrap();
    let back = |found: Option<&Ingress>| (found?.spec == before.spec).then_some(());
    tenant.wait_for("acme-nextcloud", "put back", back).await;
    let map = tenant.api::<ConfigMap>().get("acme-nextcloud-config").await.unwrap();
    let key = map.data.as_ref().unwrap().keys().next().unwrap().clone();
    let edit = json!({"data": {&key: "edited", "added": "by a user"}}).to_string();
    tenant.kubectl(&["patch", "configmap", "acme-nextcloud-config", "--type=merge", "-p", &edit]).unwrap();
    let back = |found: Option<&ConfigMap>| {
        let data = found?.data.as_ref()?;
        (data.get(&key) == map.data.as_ref()?.get(&key) && data.contains_key("added")).then_some(())
    };
    tenant.wait_for("acme-nextcloud-config", "put back, with what helm does not set", back).await;
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1", "it got no revision");

    // An autoscaler's replicas are its own, in later repairs as well.
    let replicas = |count: i32| Patch::Merge(json!({"spec": {"replicas": count}}));
    let autoscaler =
        PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
    tenant.api::<Deployment>().patch_scale("acme-nextcloud", &autoscaler, &replicas(2)).await.unwrap();
    tenant.kubectl(&["set", "image", "deployment/acme-nextcloud", "*=nextcloud:0"]).unwrap();
    let back = |found: Option<&Deployment>| {
        let spec = found?.spec.as_ref()?;
        let images = spec.template.spec.as_ref()?.containers.iter().filter_map(|container| container.image.as_deref());
        (images.eq([image.as_str()]) && spec.replicas == Some(2)).then_some(())
    };
    tenant.wait_for("acme-nextcloud", "put back except for its replicas", back).await;
    tenant.ready("acme", 1).await;
    let asked = tenant.requests().await.len();
    tenant.kubectl(&["annotate", "clientapp", "acme", "note=hello"]).unwrap();
    tenant.api::<Deployment>().patch_scale("acme-nextcloud", &autoscaler, &replicas(1)).await.unwrap();
    tenant.wait_for("acme-nextcloud", "scaled", scaled(1)).await;
    tenant.patch("acme", json!({"drift": "Report"})).await.unwrap();
    tenant.ready("acme", 1).await;
    let since = tenant.requests().await.split_off(asked);
    assert!(since.iter().all(|request| !request.contains("deployments")), "{since:?}");

    tenant.kubectl(&["set", "image", "deployment/acme-nextcloud", "*=nextcloud:0"]).unwrap();
    let field = format!("has changed spec.template.spec.containers[{container}].image, and spec.drift is Report");
    let words = ["Deployment acme-nextcloud of release acme", &field, "set it to Repair, and it is put back"];
    tenant.held("acme", "Drifted", &words).await;
    tenant.patch("acme", json!({"drift": "Ignore"})).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=0"]).unwrap();
    tenant.held("acme", "NotReady", &["acme-nextcloud: scaled to 0 replicas", "the chart has 1"]).await;
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=2"]).unwrap();
    tenant.ready("acme", 1).await;
    // A field that another client has taken holds up no upgrade, and helm puts it back.
    tenant.patch("acme", json!({"chartVersion": "5.5.3"})).await.unwrap();
    tenant.ready("acme", 2).await;
    let spec = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap().spec.unwrap();
    let images: Vec<_> = spec.template.spec.unwrap().containers.into_iter().filter_map(|it| it.image).collect();
    assert!(spec.replicas == Some(1) && !images.contains(&"nextcloud:0".to_owned()), "{images:?}");
}

#[tokio::test]
async fn ignored_fields_stay_as_other_clients_set_them() {
    let tenant = Lab::shared().await.tenant("drift-ignored").await;
    let ignored = |path: &str| json!({"driftIgnore": [{"kind": "Deployment", "paths": [path]}]});
    let image = "/spec/template/spec/containers/0/image";
    tenant.create("acme", with(small(&tenant, "acme"), ignored(image))).await.unwrap();
    tenant.ready("acme", 1).await;
    let state = |found: Option<&Deployment>| {
        let spec = found?.spec.as_ref()?;
        Some((spec.replicas?, spec.template.spec.as_ref()?.containers[0].image.clone()?))
    };
    let before = tenant.wait_for("acme-nextcloud", "there", state).await;
    tenant.kubectl(&["set", "image", "deployment/acme-nextcloud", "*=nextcloud:0"]).unwrap();
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=3"]).unwrap();
    let expected = (before.0, "nextcloud:0".to_owned());
    let is = |expected: (i32, String)| move |found: Option<&Deployment>| (state(found)? == expected).then_some(());
    tenant.wait_for("acme-nextcloud", "put back except for what is ignored", is(expected.clone())).await;
    tenant.ready("acme", 1).await;

    // Nothing of a field that another client has set in part is lost, nor what the API server has written otherwise.
    let resources = "/spec/template/spec/containers/0/resources";
    let more = json!({"driftIgnore": [{"kind": "Deployment", "paths": [image, resources]}]});
    let set = json!({"values": {"resources": {"limits": {"cpu": "1000m", "memory": "1024Mi"}}}});
    tenant.patch("acme", with(more, set)).await.unwrap();
    tenant.ready("acme", 2).await;
    tenant.kubectl(&["set", "resources", "deployment/acme-nextcloud", "--limits=cpu=2"]).unwrap();
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=3"]).unwrap();
    tenant
        .wait_for("acme-nextcloud", "scaled back", |found: Option<&Deployment>| (state(found)?.0 == 1).then_some(()))
        .await;
    tenant.ready("acme", 2).await;
    let limits = |found: Option<&Deployment>| {
        let container = &found?.spec.as_ref()?.template.spec.as_ref()?.containers[0];
        let limits = container.resources.as_ref()?.limits.clone()?;
        Some(limits.into_iter().map(|(of, amount)| format!("{of} {}", amount.0)).collect::<Vec<_>>().join(", "))
    };
    let left = tenant.wait_for("acme-nextcloud", "there", limits).await;
    assert_eq!(left, "cpu 2, memory 1Gi");

    // What is not ignored any more is put back.
    tenant.kubectl(&["set", "image", "deployment/acme-nextcloud", "*=nextcloud:0"]).unwrap();
    tenant.patch("acme", json!({"driftIgnore": null})).await.unwrap();
    tenant.wait_for("acme-nextcloud", "put back", is(before)).await;
    tenant.ready("acme", 2).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "2", "it got no revision");
}
