//! Changes in the middle of a deletion take effect: policy, suspension, propagation, and the existing objects.

use axum::http::StatusCode;
use clientapp_crd::Postgresql;
use e2e::lab::{Apart, Lab};
use e2e::proxy::{Fault, Proxy, Rule};
use e2e::scenario::{names, operated, small};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;

use super::*;

async fn delete(tenant: &Tenant, name: &str) {
    begin_deletion(tenant, name, PropagationPolicy::Background).await;
}

async fn orphan(tenant: &Tenant, name: &str) {
    begin_deletion(tenant, name, PropagationPolicy::Orphan).await;
}

#[tokio::test]
async fn while_it_waits_for_its_turn_and_half_way() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("turn", &["--max-concurrent", "1"]).await;
    const APPS: [&str; 3] = ["suspended", "retained", "orphaned"];
    let files = |name: &str| format!("{name}-nextcloud-nextcloud");
    let mut before = Vec::new();
    for name in APPS {
        install(&tenant, name, with(small(&tenant, name), unkept())).await;
        before.push(volume(&tenant, &files(name)).await);
    }
    // All others have to wait for this one's helm.
    deletion::installing(&tenant, "slow").await;
    for name in APPS {
        delete(&tenant, name).await;
        let judged = |app: Option<&ClientApp>| (!app?.status.as_ref()?.orphaned?).then_some(());
        tenant.wait_for(name, "about to be taken down", judged).await;
    }
    tenant.patch("suspended", json!({"suspend": true})).await.unwrap();
    tenant.patch("retained", json!({"deletionPolicy": "Retain"})).await.unwrap();
    orphan(&tenant, "orphaned").await;
    // A deletion ends the helm that runs, and leaves nothing.
    delete(&tenant, "slow").await;
    tenant.gone("slow").await;
    assert_eq!(tenant.listed("slow"), None);
    let no_job = |job: Option<&Job>| job.is_none().then_some(());
    tenant.wait_for("slow-nextcloud-prepare", "gone", no_job).await;
    assert!(!names::<Secret>(&tenant).await.iter().any(|name| name.contains("slow")));
    tenant.condition("suspended", "Ready", "False", "Suspended").await;
    tenant.condition("retained", "Ready", "False", "RetainUnsafe").await;
    tenant.gone("orphaned").await;
    for (name, before) in APPS.into_iter().zip(before) {
        assert_eq!(volume(&tenant, &files(name)).await, before, "{name}");
        assert_eq!(tenant.listed(name).unwrap().1, "deployed", "{name}");
    }
    // The advice of RetainUnsafe works.
    orphan(&tenant, "retained").await;
    tenant.gone("retained").await;
    assert!(volume(&tenant, &files("retained")).await.is_some());
    assert_eq!(tenant.listed("retained").unwrap().1, "deployed");

    // A watch that is late with a volume does not hide it from the policy.
    proxy.set([Rule::new("watch", "persistentvolumeclaims", Fault::Hang)]);
    install(&tenant, "late", with(small(&tenant, "late"), with(unkept(), json!({"deletionPolicy": "Retain"})))).await;
    delete(&tenant, "late").await;
    tenant.condition("late", "Ready", "False", "RetainUnsafe").await;
    assert!(volume(&tenant, &files("late")).await.is_some());

    proxy.set([]);

    // An interrupted deletion of the database that is changed to Retain is undone.
    let spec = with(small(&tenant, "half"), json!({"postgres": {"provider": "standalone"}}));
    install(&tenant, "half", spec.clone()).await;
    let database = volume(&tenant, "data-half-pg-0").await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "postgresqls", Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
    delete(&tenant, "half").await;
    proxy.met_more_than(met).await;
    tenant.patch("half", json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant.gone("half").await;
    proxy.set([]);
    install(&tenant, "half", with(spec, json!({"postgres": {"provider": "standalone", "adopt": true}}))).await;
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
    install(&tenant, "acme", with(small(&tenant, "acme"), claims)).await;
    let redis = "redis-data-acme-redis-master-0";
    let before = volume(&tenant, redis).await;
    assert!(before.is_some());
    delete(&tenant, "acme").await;
    tenant.condition("acme", "Ready", "False", "RetainUnsafe").await;
    tenant.kubectl(&["delete", "secret", "sh.helm.release.v1.acme.v1"]).unwrap();
    // After this, the operator has handled everything before it.
    install(&tenant, "later", small(&tenant, "later")).await;
    tenant.condition("acme", "Ready", "False", "RetainUnsafe").await;
    assert_eq!(volume(&tenant, redis).await, before);
    // The remedy in its message.
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.gone("acme").await;
}

/// Without the record of its only revision, a release looks as if another Helm client had uninstalled it.
#[tokio::test]
async fn a_release_whose_secret_is_lost_is_installed_over_its_volume() {
    let tenant = Lab::shared().await.tenant("record-lost").await;
    install(&tenant, "acme", with(small(&tenant, "acme"), unkept())).await;
    let before = volume(&tenant, FILES).await;
    assert!(before.is_some());
    let record = "sh.helm.release.v1.acme.v1";
    let lost = tenant.uid::<Secret>(record).await;
    tenant.kubectl(&["delete", "secret", record]).unwrap();
    let again = |found: Option<&Secret>| {
        let found = found.filter(|found| found.uid() != lost)?;
        (found.labels()["status"] == "deployed").then_some(())
    };
    tenant.wait_for(record, "deployed again", again).await;
    tenant.event("acme", "ReleaseDrifted", "was uninstalled by another Helm client").await;
    tenant.patch("acme", json!({"replicas": 2, "deletionPolicy": "Retain"})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(volume(&tenant, FILES).await, before);
    delete(&tenant, "acme").await;
    tenant.held("acme", "RetainUnsafe", &[FILES]).await;
    assert_eq!(volume(&tenant, FILES).await, before);
    orphan(&tenant, "acme").await;
    tenant.gone("acme").await;
    assert_eq!(volume(&tenant, FILES).await, before);
}

#[tokio::test]
async fn a_namespace_stays_with_what_was_said_to_stay() {
    let tenant = Lab::shared().await.tenant("made-for-acme").await;
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let marks = json!({"metadata": {"labels": {label::MANAGED_BY: label::OPERATOR, label::INSTANCE: "acme"}}});
    namespaces.patch(&tenant.namespace, &PatchParams::default(), &Patch::Merge(marks)).await.unwrap();
    let spec = with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}));
    install(&tenant, "acme", with(spec.clone(), json!({"deletionPolicy": "Retain"}))).await;
    tenant.delete("acme").await;
    install(&tenant, "acme", with(spec, json!({"postgres": {"enabled": false, "adopt": true}}))).await;
    // Adopted, and since then owned by another object.
    let before = volume(&tenant, FILES).await;
    let velero = Patch::Merge(json!({"metadata": {"labels": {label::MANAGED_BY: "velero"}}}));
    tenant.api::<PersistentVolumeClaim>().patch(FILES, &PatchParams::default(), &velero).await.unwrap();
    delete(&tenant, "acme").await;
    tenant.gone("acme").await;
    let told = tenant.events("acme").await;
    for reason in ["DataKept", "NamespaceKept"] {
        assert!(told.iter().any(|(event, note)| event == reason && note.contains(FILES)), "{reason}: {told:#?}");
    }
    let namespace = namespaces.get(&tenant.namespace).await.unwrap();
    assert_eq!((namespace.metadata.deletion_timestamp, volume(&tenant, FILES).await), (None, before));
}

/// Deleted at any moment of its first reconcile: the objects created for it are deleted, or named.
#[tokio::test]
async fn created_and_deleted_at_once() {
    let tenant = Lab::shared().await.tenant("at-once").await;
    let name = |number: usize| format!("app-{number}");
    // Deleted when this much of it is visible.
    let moments: [fn(&ClientApp) -> bool; 4] = [
        |_| true,
        |app| !app.finalizers().is_empty(),
        |app| app.status.is_some(),
        |app| app.status.as_ref().is_some_and(|status| status.last_attempt.is_some()),
    ];
    let lived = (0..12).map(|number| {
        let tenant = &tenant;
        async move {
            let name = name(number);
            let spec = with(small(tenant, &name), json!({"redis": {"enabled": number % 8 < 4}}));
            tenant.create(&name, spec).await.unwrap();
            let come = |app: Option<&ClientApp>| moments[number % 4](app?).then_some(());
            tenant.wait_for(&name, "at its moment", come).await;
            delete(tenant, &name).await;
            tenant.gone(&name).await;
        }
    });
    futures::future::join_all(lived).await;
    for number in 0..12 {
        let secret = format!("{}-admin-secret", name(number));
        if tenant.api::<Secret>().get_opt(&secret).await.unwrap().is_some() {
            tenant.event(&name(number), "DataKept", &secret).await;
        }
        assert_eq!(tenant.listed(&name(number)), None);
    }
}

/// Nothing waits for its teardown then: the objects created for it stay, and are named.
#[tokio::test]
async fn gone_in_the_middle_of_a_reconcile() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("in-the-middle", &[]).await;

    async fn vanish<K>(tenant: &Tenant, proxy: &Proxy, rule: Rule, name: &str, spec: Value)
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let met = proxy.met();
        proxy.set([rule]);
        let object = json!({"metadata": {"name": name}, "spec": spec});
        let api = tenant.api::<K>();
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        proxy.met_more_than(met).await;
        api.delete(name, &DeleteParams::default()).await.unwrap();
        let off = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(name, &PatchParams::default(), &off).await.unwrap();
        proxy.set([]);
    }
    let spec = json!({"hostname": hostname(&tenant, "acme")});
    vanish::<ClientApp>(&tenant, &proxy, Rule::new("create", "secrets", Fault::Hang), "acme", spec).await;
    tenant.event("acme", "DataKept", "Secret acme-admin-secret stays").await;
    // The first status of a database records the owner of its volume.
    let rule = Rule::new("patch", "postgresqls/status", Fault::Hang);
    vanish::<Postgresql>(&tenant, &proxy, rule, "db", json!({})).await;
    tenant.event("db", "Retained", "Secret db-credentials stays").await;
}
