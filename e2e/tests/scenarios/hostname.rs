//! One ClientApp for each hostname.

use clientapp_crd::ClientApp;
use e2e::lab::{Lab, Tenant, has};
use e2e::scenario::{admin_secret, small, with};
use e2e::wait::until;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{Patch, PatchParams};
use serde_json::json;

/// Waits until a new app would be younger than this one: creation times are whole seconds.
async fn a_second_later(tenant: &Tenant, name: &str) {
    let created = tenant.api::<ClientApp>().get(name).await.unwrap().metadata.creation_timestamp.unwrap().0;
    until("a second has passed", async || jiff::Timestamp::now().as_second() > created.as_second()).await;
}

#[tokio::test]
async fn the_older_has_it_and_the_younger_takes_over() {
    let tenant = Lab::shared().await.tenant("one-hostname").await;
    let other = Lab::shared().await.tenant("one-hostname-too").await;
    let contested = small(&tenant, "contested");
    // Neither serves it, so only age decides.
    let waiting = with(contested.clone(), json!({"adminSecret": "later"}));
    tenant.create("older", waiting).await.unwrap();
    tenant.condition("older", "Ready", "False", "AdminSecretMissing").await;
    a_second_later(&tenant, "older").await;
    other.create("younger", contested).await.unwrap();
    let words = ["contested.one-hostname.example.com belongs to ClientApp one-hostname/older"];
    other.held("younger", "HostnameConflict", &words).await;

    // The older one is deleted.
    tenant.delete("older").await;
    other.ready("younger", 1).await;

    // A third one waits until the holder asks for another hostname.
    a_second_later(&other, "younger").await;
    tenant.create("third", small(&tenant, "contested")).await.unwrap();
    tenant.condition("third", "Ready", "False", "HostnameConflict").await;
    other.patch("younger", small(&other, "free")).await.unwrap();
    other.ready("younger", 2).await;
    tenant.ready("third", 1).await;
}

#[tokio::test]
async fn the_app_that_has_claimed_it_or_serves_it_is_not_displaced_by_an_older_one() {
    let tenant = Lab::shared().await.tenant("incumbent").await;
    tenant.create("older", small(&tenant, "first")).await.unwrap();
    tenant.ready("older", 1).await;
    a_second_later(&tenant, "older").await;
    tenant.create("younger", with(small(&tenant, "second"), json!({"adminSecret": "later"}))).await.unwrap();
    tenant.condition("younger", "Ready", "False", "AdminSecretMissing").await;

    tenant.patch("older", small(&tenant, "second")).await.unwrap();
    tenant.held("older", "HostnameConflict", &["belongs to ClientApp incumbent/younger"]).await;
    // Nor does a user who may write its status.
    let served = json!({"status": {"url": format!("https://second.{}.example.com", tenant.namespace)}});
    tenant.api::<ClientApp>().patch_status("older", &PatchParams::default(), &Patch::Merge(served)).await.unwrap();
    admin_secret(&tenant, "later", "password").await;
    tenant.ready("younger", 1).await;
    tenant.condition("older", "Ready", "False", "HostnameConflict").await;
    // It is reconciled again and keeps the hostname; its Ingress is created, although another app asks for the host.
    tenant.patch("younger", json!({"chartVersion": "5.5.3", "ingressClassName": "traefik"})).await.unwrap();
    tenant.ready("younger", 2).await;

    tenant.patch("older", small(&tenant, "first")).await.unwrap();
    tenant.ready("older", 1).await;
}

#[tokio::test]
async fn each_host_of_an_ingress_is_claimed_like_the_hostname() {
    let tenant = Lab::shared().await.tenant("more-hosts").await;
    let other = Lab::shared().await.tenant("more-hosts-too").await;
    tenant.create("first", small(&tenant, "first")).await.unwrap();
    tenant.ready("first", 1).await;
    let takes = |host: &str| {
        let backend = json!({"service": {"name": "x", "port": {"number": 80}}});
        let paths = json!([{"path": "/", "pathType": "Prefix", "backend": backend}]);
        json!({"values": {"extraManifests": [{
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "more"},
            "spec": {"rules": [{"host": host, "http": {"paths": paths}}]},
        }]}})
    };
    let (taken, extra) = ("first.more-hosts.example.com", "extra.more-hosts-too.example.com");
    other.create("second", with(small(&other, "second"), takes(taken))).await.unwrap();
    other.held("second", "AccessDenied", &[&format!("host {taken} belongs to ClientApp more-hosts/first")]).await;
    assert!(other.api::<Ingress>().get_opt("more").await.unwrap().is_none());

    other.patch("second", takes(extra)).await.unwrap();
    let status = other.status("second", "Ready with it", |status| has(status, "Ready", "True", "Ready")).await;
    assert_eq!(status.inventory.unwrap().hosts, [extra]);
    tenant.create("third", with(small(&tenant, "third"), json!({"hostname": extra}))).await.unwrap();
    tenant.held("third", "HostnameConflict", &[&format!("{extra} belongs to ClientApp more-hosts-too/second")]).await;
    other.patch("second", json!({"values": null})).await.unwrap();
    tenant.ready("third", 1).await;
}
