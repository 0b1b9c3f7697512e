//! What follows when a revision fails: `spec.upgrade.onFailure`.

use clientapp_crd::{ClientApp, ClientAppStatus, annotation};
use e2e::charts;
use e2e::lab::Tenant;
use e2e::scenario::with;
use e2e::wait::until;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::{admit_only, installed};

/// The API server refuses the Service that the chart renders with it.
pub(super) fn refused() -> Value {
    json!({"service": {"type": "Nonsense"}})
}

fn policy(policy: &str, more: Value) -> Value {
    json!({"upgrade": with(json!({"onFailure": policy, "retries": 0}), more)})
}

/// The values that helm stored with a revision.
fn values(tenant: &Tenant, revision: &str) -> Value {
    let stored = tenant.helm(&["get", "values", "acme", "--revision", revision, "-o", "json"]);
    serde_json::from_str(&stored.stdout).unwrap()
}

async fn status(tenant: &Tenant) -> ClientAppStatus {
    tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap()
}

/// Asks for another attempt, as `kubectl clientapp retry` does.
pub(super) async fn retry(tenant: &Tenant) {
    let last = status(tenant).await.last_attempt.unwrap();
    let annotation = format!("{}={}", annotation::RETRY, annotation::retry_after(&last));
    tenant.kubectl(&["annotate", "--overwrite", "clientapp", "acme", &annotation]).unwrap();
}

#[tokio::test]
async fn a_revision_that_fails_is_rolled_back_until_the_spec_changes() {
    let tenant = installed("remedy-back", policy("Rollback", json!({}))).await;
    tenant.patch("acme", json!({"values": refused()})).await.unwrap();
    let words =
        ["revision 2 of release acme has failed", "rolled back to what revision 1 was", "kubectl clientapp retry acme"];
    tenant.held("acme", "RolledBack", &words).await;
    assert_eq!(tenant.listed("acme").unwrap(), ("3".into(), "deployed".into(), "nextcloud-5.5.2".into()));
    assert_eq!(values(&tenant, "3"), values(&tenant, "1"));
    let told = tenant.condition("acme", "Stalled", "True", "RolledBack").await;
    assert!(told.contains("Nonsense"), "it says why: {told}");
    tenant.event("acme", "RolledBack", "revision 2 of release acme has failed").await;

    // What it went back to is looked after.
    tenant.replaced::<Service>("acme-nextcloud").await;
    tenant.held("acme", "RolledBack", &words).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "3");

    retry(&tenant).await;
    tenant.held("acme", "RolledBack", &["revision 4 of release acme has failed", "what revision 3 was"]).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "5");

    // Another version of the app may have migrated the data, so that one is not left without being asked.
    tenant.patch("acme", json!({"values": null, "chartVersion": charts::HOOK_FAILS})).await.unwrap();
    let words = ["revision 6 of release acme has failed", "it is not rolled back, since revision 5 has app 29.0.4"];
    tenant.held("acme", "UpgradeFailed", &words).await;
    tenant
        .patch("acme", json!({"chartVersion": charts::DEFAULT, "upgrade": {"allow": charts::DEFAULT}}))
        .await
        .unwrap();
    tenant.ready("acme", 7).await;
    let status = status(&tenant).await;
    assert_eq!((status.rolled_back, status.last_ready.unwrap().revision), (None, 7));
}

#[tokio::test]
async fn a_revision_that_is_not_ready_in_time_is_rolled_back() {
    let tenant = installed("remedy-late", json!({"redis": {"enabled": true}})).await;
    let nowhere = json!({"values": {
        "nodeSelector": {"clientapp.test/no-such-node": "true"},
        "redis": {"master": {"resources": {"requests": {"cpu": "10000"}}}},
    }});
    tenant.patch("acme", with(nowhere, policy("Rollback", json!({"timeout": "1m"})))).await.unwrap();
    // One by one, since each wait has its own time.
    for revision in [2, 3] {
        let secret = format!("sh.helm.release.v1.acme.v{revision}");
        until(&format!("{secret} is there"), async || tenant.uid::<Secret>(&secret).await.is_some()).await;
    }
    let words = ["revision 2 of release acme has failed: it was not ready within 1m", "what revision 1 was"];
    tenant.held("acme", "RolledBack", &words).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "3");
    assert_eq!(values(&tenant, "3"), values(&tenant, "1"));
    let placed = |found: Option<&Deployment>| {
        let pod = found?.spec.as_ref()?.template.spec.as_ref()?;
        (pod.node_selector.is_none() && found?.status.as_ref()?.available_replicas == Some(1)).then_some(())
    };
    tenant.wait_for("acme-nextcloud", "as before", placed).await;
    // A StatefulSet does not replace a pod of the failed revision by itself.
    let serves = |found: Option<&StatefulSet>| {
        (found?.status.as_ref()?.available_replicas == Some(1) && found?.metadata.generation > Some(2)).then_some(())
    };
    tenant.wait_for("acme-redis-master", "as before", serves).await;
}

/// The size of the volume in the template of Redis' StatefulSet is such a field.
#[tokio::test]
async fn a_field_that_cannot_be_changed_makes_no_new_statefulset() {
    let tenant = installed("remedy-immutable", json!({"redis": {"enabled": true}})).await;
    let uids = async || {
        let set = tenant.uid::<StatefulSet>("acme-redis-master").await;
        (set.unwrap(), tenant.uid::<PersistentVolumeClaim>("redis-data-acme-redis-master-0").await.unwrap())
    };
    let before = uids().await;
    let larger = json!({"values": {"redis": {"master": {"persistence": {"size": "9Gi"}}}}});
    tenant.patch("acme", larger.clone()).await.unwrap();
    let said = "updates to statefulset spec";
    tenant.held("acme", "ChartInvalid", &["acme-redis-master", said]).await;
    // Another attempt would fail as well, and each is a revision.
    tenant.condition("acme", "Stalled", "True", "ChartInvalid").await;
    assert_eq!(uids().await, before);
    tenant.patch("acme", json!({"values": null})).await.unwrap();
    tenant.ready("acme", 3).await;

    tenant.patch("acme", with(larger, policy("Rollback", json!({})))).await.unwrap();
    let words = ["revision 4 of release acme has failed", said, "rolled back to what revision 3 was"];
    tenant.held("acme", "RolledBack", &words).await;
    assert_eq!(tenant.listed("acme").unwrap(), ("5".into(), "deployed".into(), "nextcloud-5.5.2".into()));
    assert_eq!(uids().await, before);
    tenant.patch("acme", json!({"values": null})).await.unwrap();
    tenant.ready("acme", 5).await;
    assert_eq!(uids().await, before);
}

/// An admission policy that lets Deployments of the namespace have one replica. Its name is the namespace's.
async fn allow_one_replica(tenant: &Tenant) -> Api<ValidatingAdmissionPolicyBinding> {
    let deployments = json!({
        "apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["deployments"],
    });
    let few = json!({"expression": "object.spec.replicas < 2", "message": "one replica is enough"});
    let bindings = admit_only(tenant, deployments, few).await;
    until_two_are_allowed(tenant, false).await;
    bindings
}

/// Waits until the API server applies that policy, or no longer applies it.
async fn until_two_are_allowed(tenant: &Tenant, allowed: bool) {
    let dry = PatchParams { dry_run: true, ..PatchParams::default() };
    let two = Patch::Merge(json!({"spec": {"replicas": 2}}));
    let deployments = tenant.api::<Deployment>();
    let is = async || deployments.patch("acme-nextcloud", &dry, &two).await.is_ok() == allowed;
    until(&format!("two replicas are allowed: {allowed}"), is).await;
}

#[tokio::test]
async fn what_an_admission_policy_denies_is_told_in_its_words_and_goes_on_without_it() {
    let tenant = installed("remedy-denied", policy("Stop", json!({}))).await;
    let bindings = allow_one_replica(&tenant).await;
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let said = "one replica is enough";
    let stopped = "nothing is tried again, since spec.upgrade.onFailure is Stop";
    tenant.held("acme", "UpgradeFailed", &["revision 2 of release acme has failed", said, stopped]).await;
    tenant.condition("acme", "Stalled", "True", "UpgradeFailed").await;
    retry(&tenant).await;
    let failed = "revision 3 of release acme has failed";
    tenant.held("acme", "UpgradeFailed", &[failed, said, stopped]).await;

    tenant.patch("acme", policy("Rollback", json!({}))).await.unwrap();
    tenant.held("acme", "RolledBack", &[failed, said, "rolled back to what revision 1 was"]).await;
    assert_eq!(tenant.listed("acme").unwrap(), ("4".into(), "deployed".into(), "nextcloud-5.5.2".into()));
    let serves = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(serves.status.unwrap().available_replicas, Some(1));

    bindings.delete(&tenant.namespace, &DeleteParams::default()).await.unwrap();
    until_two_are_allowed(&tenant, true).await;
    retry(&tenant).await;
    tenant.ready("acme", 5).await;
}
