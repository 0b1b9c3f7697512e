//! An expired watch lists again, and only the list shows the changes in between.

use clientapp_crd::{ClientApp, ClientAppStatus, Postgresql};
use e2e::charts;
use e2e::lab::{Apart, Tenant};
use e2e::proxy::{Fault, Proxy, Rule};
use e2e::scenario::{admin_secret, operated, small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::installed;

/// The watch of these objects reports nothing from now on.
fn blind(proxy: &Proxy, resource: &'static str) {
    proxy.set([Rule::new("watch", resource, Fault::Hang)]);
}

/// The pending events are lost: the watch lists again.
async fn relisted(proxy: &Proxy, resource: &'static str) {
    let met = proxy.met();
    proxy.set([Rule::new("watch", resource, Fault::Expire)]);
    proxy.met_more_than(met).await;
    proxy.set([]);
}

/// The operator writes a status because of an unrelated change.
async fn written_over(tenant: &Tenant) {
    let nowhere = json!({"spec": {"template": {"spec": {"nodeSelector": {"clientapp.test/no-such-node": "true"}}}}});
    let deployments = tenant.api::<Deployment>();
    deployments.patch("acme-nextcloud", &PatchParams::default(), &Patch::Merge(&nowhere)).await.unwrap();
    tenant.condition("acme", "WorkloadsReady", "False", "NotReady").await;
}

#[tokio::test]
async fn a_deletion_over_which_a_status_was_written_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-deletion", &[]).await;
    installed(&tenant, "acme").await;
    blind(&proxy, "clientapps");
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    written_over(&tenant).await;
    relisted(&proxy, "clientapps").await;
    tenant.gone("acme").await;
}

#[tokio::test]
async fn a_spec_over_which_a_status_was_written_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-spec", &[]).await;
    installed(&tenant, "acme").await;
    blind(&proxy, "clientapps");
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    written_over(&tenant).await;
    relisted(&proxy, "clientapps").await;
    let upgraded = |status: &ClientAppStatus| {
        status.release.as_ref().is_some_and(|release| release.chart_version.as_deref() == Some(charts::PATCH))
    };
    tenant.status("acme", "upgraded", upgraded).await;
}

#[tokio::test]
async fn a_deletion_of_a_database_over_which_a_status_was_written_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-database", &[]).await;
    let databases = tenant.api::<Postgresql>();
    let database = json!({"metadata": {"name": "acme"}, "spec": {}});
    databases.create(&PostParams::default(), &serde_json::from_value(database).unwrap()).await.unwrap();
    let active = |found: Option<&Postgresql>| found?.status.as_ref()?.active.as_ref().map(|active| active.uid.clone());
    let before = tenant.wait_for("acme", "up", active).await;
    blind(&proxy, "postgresqls");
    databases.delete("acme", &DeleteParams::default()).await.unwrap();
    // The StatefulSet may be scaled up again before the scale-down has ended its pod.
    tenant.api::<Pod>().delete("acme-0", &DeleteParams::default()).await.unwrap();
    let another = |found: Option<&Postgresql>| (active(found) != Some(before.clone())).then_some(());
    tenant.wait_for("acme", "no longer up with that pod", another).await;
    relisted(&proxy, "postgresqls").await;
    tenant.wait_for("acme", "gone", |found: Option<&Postgresql>| found.is_none().then_some(())).await;
}

/// It has the same name and other credentials.
#[tokio::test]
async fn a_secret_that_was_made_anew_is_one_revision_and_was_never_lost() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-secret", &[]).await;
    let secrets = tenant.api::<Secret>();
    admin_secret(&tenant, "given", "one").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"adminSecret": "given"}))).await.unwrap();
    tenant.ready("acme", 1).await;
    // A pass that reads the Secret itself may not look in between: it would truly find none.
    proxy.set(["watch", "get"].map(|verb| Rule::new(verb, "secrets", Fault::Hang)));
    secrets.delete("given", &DeleteParams::default()).await.unwrap();
    admin_secret(&tenant, "given", "two").await;
    relisted(&proxy, "secrets").await;
    tenant.ready("acme", 2).await;
    tenant.event("acme", "CredentialsChanged", "other credentials in Secret given").await;
    // There was no other revision.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 3).await;
    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(reason, _)| !reason.starts_with("AdminSecret")), "{told:#?}");
}

/// Objects deleted in between are missing from the list.
#[tokio::test]
async fn a_hostname_that_has_become_free_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-hostname", &[]).await;
    tenant.create("holder", small(&tenant, "same")).await.unwrap();
    tenant.ready("holder", 1).await;
    tenant.create("waiter", small(&tenant, "same")).await.unwrap();
    tenant.condition("waiter", "Ready", "False", "HostnameConflict").await;
    // The operator knows of the deletion, but not that it is complete.
    let met = proxy.met();
    proxy.set([Rule::new("*", "services", Fault::Hang)]);
    tenant.api::<ClientApp>().delete("holder", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    blind(&proxy, "clientapps");
    tenant.gone("holder").await;
    relisted(&proxy, "clientapps").await;
    tenant.ready("waiter", 1).await;
}

/// A slot offered to an app that was deleted meanwhile is not lost.
#[tokio::test]
async fn an_app_in_the_queue_that_has_gone_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted-queue", &["--max-concurrent", "1"]).await;
    installed(&tenant, "warm").await;
    let busy = Rule::new("*", "services", Fault::Hang);
    let met = proxy.met();
    proxy.set([busy.clone()]);
    tenant.create("first", small(&tenant, "first")).await.unwrap();
    proxy.met_more_than(met).await;
    for name in ["second", "third"] {
        tenant.create(name, small(&tenant, name)).await.unwrap();
        tenant.condition(name, "Reconciling", "True", "Upgrading").await;
    }
    proxy.set([busy.clone(), Rule::new("watch", "clientapps", Fault::Hang)]);
    let apps = tenant.api::<ClientApp>();
    let unsealed = json!({"metadata": {"finalizers": null}});
    apps.patch("second", &PatchParams::default(), &Patch::Merge(&unsealed)).await.unwrap();
    apps.delete("second", &DeleteParams::default()).await.unwrap();
    tenant.gone("second").await;
    let met = proxy.met();
    proxy.set([busy, Rule::new("watch", "clientapps", Fault::Expire)]);
    proxy.met_more_than(met).await;
    proxy.set([]);
    tenant.ready("first", 1).await;
    tenant.ready("third", 1).await;
}
