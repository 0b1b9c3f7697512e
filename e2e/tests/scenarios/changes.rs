//! What changes in the middle of a deletion counts: policy, suspension, the kind of deletion, and what is there.

use axum::http::StatusCode;
use clientapp_operator::crd::{ClientApp, Postgresql, label};
use e2e::charts;
use e2e::lab::{Lab, Tenant};
use e2e::proxy::{Fault, Rule};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::{apart, small, with};

fn unkept() -> Value {
    json!({"persistence": {"enabled": true}, "values": {"persistence": {"keep": false}}})
}

async fn volume(tenant: &Tenant, name: &str) -> Option<String> {
    let found = tenant.api::<PersistentVolumeClaim>().get_opt(name).await.unwrap();
    found.filter(|claim| claim.metadata.deletion_timestamp.is_none()).and_then(|claim| claim.uid())
}

async fn delete(tenant: &Tenant, name: &str) {
    tenant.api::<ClientApp>().delete(name, &DeleteParams::default()).await.unwrap();
}

async fn orphan(tenant: &Tenant, name: &str) {
    let orphan = DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() };
    tenant.api::<ClientApp>().delete(name, &orphan).await.unwrap();
}

async fn gone(tenant: &Tenant, name: &str) {
    tenant.wait_for(name, "gone", |app: Option<&ClientApp>| app.is_none().then_some(())).await;
}

#[tokio::test]
async fn while_it_waits_for_its_turn_and_half_way() {
    let (lab, proxy) = apart(false, &["--max-concurrent", "1"]).await;
    let tenant = lab.tenant("turn").await;
    const APPS: [&str; 3] = ["suspended", "retained", "orphaned"];
    let files = |name: &str| format!("{name}-nextcloud-nextcloud");
    let mut before = Vec::new();
    for name in APPS {
        tenant.create(name, with(small(&tenant, name), unkept())).await.unwrap();
        tenant.ready(name, 1).await;
        before.push(volume(&tenant, &files(name)).await);
    }
    // All others have to wait for this one's helm.
    let slow = json!({"chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 3600}});
    tenant.create("slow", with(small(&tenant, "slow"), slow)).await.unwrap();
    let runs = |job: Option<&Job>| (job?.status.as_ref()?.active? > 0).then_some(());
    tenant.wait_for("slow-nextcloud-prepare", "there", runs).await;
    for name in APPS {
        delete(&tenant, name).await;
        let judged = |app: Option<&ClientApp>| (!app?.status.as_ref()?.orphaned?).then_some(());
        tenant.wait_for(name, "about to be taken down", judged).await;
    }
    tenant.patch("suspended", json!({"suspend": true})).await.unwrap();
    tenant.patch("retained", json!({"deletionPolicy": "Retain"})).await.unwrap();
    orphan(&tenant, "orphaned").await;
    delete(&tenant, "slow").await;
    gone(&tenant, "slow").await;
    tenant.condition("suspended", "Ready", "False", "Suspended").await;
    tenant.condition("retained", "Ready", "False", "RetainUnsafe").await;
    gone(&tenant, "orphaned").await;
    for (name, before) in APPS.into_iter().zip(before) {
        assert_eq!(volume(&tenant, &files(name)).await, before, "{name}");
        assert_eq!(tenant.listed(name).unwrap().1, "deployed", "{name}");
    }
    // What RetainUnsafe advises works.
    orphan(&tenant, "retained").await;
    gone(&tenant, "retained").await;
    assert!(volume(&tenant, &files("retained")).await.is_some());
    assert_eq!(tenant.listed("retained").unwrap().1, "deployed");

    // A watch that is late with a volume does not hide it from the policy.
    proxy.set([Rule::new("watch", "persistentvolumeclaims", Fault::Hang)]);
    tenant
        .create("late", with(small(&tenant, "late"), with(unkept(), json!({"deletionPolicy": "Retain"}))))
        .await
        .unwrap();
    tenant.ready("late", 1).await;
    delete(&tenant, "late").await;
    tenant.condition("late", "Ready", "False", "RetainUnsafe").await;
    assert!(volume(&tenant, &files("late")).await.is_some());

    proxy.set([]);

    // A deletion of the database that is cut off, and turned into Retain: nobody is left who would destroy it.
    let spec = with(small(&tenant, "half"), json!({"postgres": {"provider": "standalone"}}));
    tenant.create("half", spec.clone()).await.unwrap();
    tenant.ready("half", 1).await;
    let database = volume(&tenant, "data-half-pg-0").await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "postgresqls", Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
    delete(&tenant, "half").await;
    proxy.met_more_than(met).await;
    tenant.patch("half", json!({"deletionPolicy": "Retain"})).await.unwrap();
    gone(&tenant, "half").await;
    proxy.set([]);
    tenant.create("half", with(spec, json!({"postgres": {"provider": "standalone", "adopt": true}}))).await.unwrap();
    tenant.ready("half", 1).await;
    // By mistake.
    tenant.api::<Postgresql>().delete("half-pg", &DeleteParams::default()).await.unwrap();
    let again = |found: Option<&Postgresql>| (found?.metadata.deletion_timestamp.is_none()).then_some(());
    tenant.wait_for("half-pg", "there again", again).await;
    assert_eq!(volume(&tenant, "data-half-pg-0").await, database);
}

#[tokio::test]
async fn without_helms_secret_a_release_is_as_dangerous() {
    let tenant = Lab::shared().await.tenant("no-record").await;
    let claims = json!({"redis": {"enabled": true}, "deletionPolicy": "Retain",
        "values": {"redis": {"master": {"claimRetention": "Delete"}}}});
    tenant.create("acme", with(small(&tenant, "acme"), claims)).await.unwrap();
    tenant.ready("acme", 1).await;
    let redis = "redis-data-acme-redis-master-0";
    let before = volume(&tenant, redis).await;
    assert!(before.is_some());
    delete(&tenant, "acme").await;
    tenant.condition("acme", "Ready", "False", "RetainUnsafe").await;
    tenant.kubectl(&["delete", "secret", "sh.helm.release.v1.acme.v1"]).unwrap();
    // What was made later is done by now.
    tenant.create("later", small(&tenant, "later")).await.unwrap();
    tenant.ready("later", 1).await;
    tenant.condition("acme", "Ready", "False", "RetainUnsafe").await;
    assert_eq!(volume(&tenant, redis).await, before);
    // The way out that it names.
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    gone(&tenant, "acme").await;
}

#[tokio::test]
async fn a_namespace_stays_with_what_was_said_to_stay() {
    let tenant = Lab::shared().await.tenant("made-for-acme").await;
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let marks = json!({"metadata": {"labels": {label::MANAGED_BY: label::OPERATOR, label::INSTANCE: "acme"}}});
    namespaces.patch(&tenant.namespace, &PatchParams::default(), &Patch::Merge(marks)).await.unwrap();
    let spec = with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}));
    tenant.create("acme", with(spec.clone(), json!({"deletionPolicy": "Retain"}))).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.delete("acme").await;
    tenant.create("acme", with(spec, json!({"postgres": {"enabled": false, "adopt": true}}))).await.unwrap();
    tenant.ready("acme", 1).await;
    // Adopted, and another's since.
    let files = "acme-nextcloud-nextcloud";
    let before = volume(&tenant, files).await;
    let velero = Patch::Merge(json!({"metadata": {"labels": {label::MANAGED_BY: "velero"}}}));
    tenant.api::<PersistentVolumeClaim>().patch(files, &PatchParams::default(), &velero).await.unwrap();
    delete(&tenant, "acme").await;
    gone(&tenant, "acme").await;
    let told = tenant.events("acme").await;
    for reason in ["DataKept", "NamespaceKept"] {
        assert!(told.iter().any(|(event, note)| event == reason && note.contains(files)), "{reason}: {told:#?}");
    }
    let namespace = namespaces.get(&tenant.namespace).await.unwrap();
    assert_eq!((namespace.metadata.deletion_timestamp, volume(&tenant, files).await), (None, before));
}
