//! An expired watch lists again, and only the list shows the changes in between.

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};

use super::*;

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

/// A deletion, and a spec, over which the operator wrote a status because of an unrelated change; and a hostname that has become free.
#[tokio::test]
async fn what_only_a_list_shows_is_seen() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("relisted", &[]).await;
    let apps = tenant.api::<ClientApp>();
    let written_over = async |name: &str| {
        let nowhere =
            json!({"spec": {"template": {"spec": {"nodeSelector": {"clientapp.test/no-such-node": "true"}}}}});
        let deployments = tenant.api::<Deployment>();
        let name_of = format!("{name}-nextcloud");
        deployments.patch(&name_of, &PatchParams::default(), &Patch::Merge(&nowhere)).await.unwrap();
        tenant.condition(name, "WorkloadsReady", "False", "NotReady").await;
    };
    for name in ["changed", "deleted"] {
        installed(&tenant, name).await;
    }
    blind(&proxy, "clientapps");
    tenant.patch("changed", json!({"chartVersion": charts::PATCH})).await.unwrap();
    apps.delete("deleted", &DeleteParams::default()).await.unwrap();
    written_over("changed").await;
    written_over("deleted").await;
    relisted(&proxy, "clientapps").await;
    tenant.gone("deleted").await;
    let upgraded = |status: &ClientAppStatus| {
        status.release.as_ref().is_some_and(|release| release.chart_version.as_deref() == Some(charts::PATCH))
    };
    tenant.status("changed", "upgraded", upgraded).await;

    tenant.create("holder", small(&tenant, "same")).await.unwrap();
    tenant.ready("holder", 1).await;
    tenant.create("waiter", small(&tenant, "same")).await.unwrap();
    tenant.condition("waiter", "Ready", "False", "HostnameConflict").await;
    // The operator knows of the deletion, but not that it is complete.
    let met = proxy.met();
    proxy.set([Rule::new("*", "services", Fault::Hang)]);
    apps.delete("holder", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    blind(&proxy, "clientapps");
    tenant.gone("holder").await;
    // Objects deleted in between are missing from the list.
    relisted(&proxy, "clientapps").await;
    tenant.ready("waiter", 1).await;

    database(&tenant, "db", json!({})).await;
    let active = |found: Option<&Postgresql>| found?.status.as_ref()?.active.as_ref().map(|active| active.uid.clone());
    let before = tenant.wait_for("db", "up", active).await;
    blind(&proxy, "postgresqls");
    delete_database(&tenant, "db").await;
    // The StatefulSet may be scaled up again before the scale-down has ended its pod.
    tenant.api::<Pod>().delete("db-0", &DeleteParams::default()).await.unwrap();
    let another = |found: Option<&Postgresql>| (active(found) != Some(before.clone())).then_some(());
    tenant.wait_for("db", "no longer up with that pod", another).await;
    relisted(&proxy, "postgresqls").await;
    database_gone(&tenant, &proxy, "db", 0).await;
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

/// Neither a slot offered to an app that was deleted meanwhile is lost, nor does an app hold one that waits for its next reconcile.
#[tokio::test]
async fn a_slot_is_for_no_app_that_has_gone_or_has_to_wait() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("queue", &["--max-concurrent", "1"]).await;
    installed(&tenant, "warm").await;
    admin_secret(&tenant, "given", "b").await;
    let busy = Rule::new("*", "services", Fault::Hang);
    let met = proxy.met();
    proxy.set([busy.clone()]);
    tenant.create("first", small(&tenant, "first")).await.unwrap();
    proxy.met_more_than(met).await;
    for (name, more) in [("gone", json!({})), ("waits", json!({"adminSecret": "given"})), ("last", json!({}))] {
        tenant.create(name, with(small(&tenant, name), more)).await.unwrap();
        tenant.condition(name, "Reconciling", "True", "Upgrading").await;
    }
    proxy.set([busy.clone(), Rule::new("watch", "clientapps", Fault::Hang)]);
    let apps = tenant.api::<ClientApp>();
    let unsealed = json!({"metadata": {"finalizers": null}});
    apps.patch("gone", &PatchParams::default(), &Patch::Merge(&unsealed)).await.unwrap();
    apps.delete("gone", &DeleteParams::default()).await.unwrap();
    tenant.gone("gone").await;
    let met = proxy.met();
    proxy.set([busy.clone(), Rule::new("watch", "clientapps", Fault::Expire)]);
    proxy.met_more_than(met).await;
    // After a missing right, the operator retries only after five minutes.
    proxy.set([Rule::new("get", "secrets", Fault::Answer(StatusCode::FORBIDDEN)).sparing_helm(), busy]);
    let touched = json!({"stringData": {"x": "y"}});
    let secrets = tenant.api::<Secret>();
    secrets.patch("given", &PatchParams::default(), &Patch::Merge(&touched)).await.unwrap();
    tenant.condition("waits", "Stalled", "True", "AccessDenied").await;
    proxy.set([]);
    tenant.ready("first", 1).await;
    tenant.ready("last", 1).await;
}
