//! Only data that was to be deleted is ever lost, whatever users, cluster admins and other Helm clients do at which
//! moment.

mod changes;
mod claims;
mod deletion;
mod files;
mod objects;
mod restore;

use std::collections::BTreeMap;

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, annotation, label};
use e2e::lab::{Tenant, hostname};
use e2e::scenario::secret;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};

/// The claim with the files of app `acme`.
const FILES: &str = "acme-nextcloud-nextcloud";

/// A spec with a database, Redis and a volume.
fn whole(tenant: &Tenant, name: &str) -> Value {
    json!({"hostname": hostname(tenant, name)})
}

/// Volumes that helm deletes with the release.
fn unkept() -> Value {
    json!({"persistence": {"enabled": true}, "values": {"persistence": {"keep": false}}})
}

/// Creates a ClientApp, and waits until it is Ready.
async fn install(tenant: &Tenant, name: &str, spec: Value) {
    tenant.create(name, spec).await.unwrap();
    tenant.ready(name, 1).await;
}

/// Deletes a ClientApp, and does not wait.
async fn begin_deletion(tenant: &Tenant, name: &str, propagation: PropagationPolicy) {
    let params = DeleteParams { propagation_policy: Some(propagation), ..DeleteParams::default() };
    tenant.api::<ClientApp>().delete(name, &params).await.unwrap();
}

/// Removes the finalizers of a ClientApp, as by hand.
async fn free(tenant: &Tenant, name: &str) {
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tenant.api::<ClientApp>().patch(name, &PatchParams::default(), &free).await.unwrap();
}

/// The uid of a claim that is not being deleted.
async fn volume(tenant: &Tenant, name: &str) -> Option<String> {
    let found = tenant.api::<PersistentVolumeClaim>().get_opt(name).await.unwrap();
    found.filter(|claim| claim.metadata.deletion_timestamp.is_none()).and_then(|claim| claim.uid())
}

/// The claims of an app's database, with their uids.
async fn claims_of_database(tenant: &Tenant, app: &str) -> BTreeMap<String, Option<String>> {
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let of_database = claims.into_iter().filter(|claim| claim.name_any().contains(&format!("{app}-pg-")));
    of_database.map(|claim| (claim.name_any(), claim.uid())).collect()
}

/// Another user's claim, with these marks on it.
async fn foreign_claim(tenant: &Tenant, name: &str, labels: Value, annotations: Value) -> PersistentVolumeClaim {
    let claim = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }));
    tenant.api().create(&PostParams::default(), &claim.unwrap()).await.unwrap()
}

/// The labels and annotations of what belongs to a release.
fn of_release(name: &str, namespace: &str) -> (Value, Value) {
    let annotations = json!({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace});
    (json!({"app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "Helm"}), annotations)
}

/// The parts of an object that only its owner may change.
fn essence(claim: &PersistentVolumeClaim) -> (Option<String>, BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut annotations = claim.annotations().clone();
    // The volume controllers write their own.
    annotations.retain(|key, _| !key.contains("kubernetes.io/"));
    (claim.uid(), claim.labels().clone(), annotations)
}

async fn is_untouched(tenant: &Tenant, before: &PersistentVolumeClaim) {
    let now = tenant.api::<PersistentVolumeClaim>().get(&before.name_any()).await.unwrap();
    assert_eq!(essence(&now), essence(before));
    assert_eq!(now.metadata.deletion_timestamp, None);
}

/// The database of app `acme` with everything needed to use it stays, without an owner, and can be found.
async fn is_retained(tenant: &Tenant, password: &str) {
    assert_eq!(secret(tenant, "acme-pg-pguser-clientapp", "password").await, password);
    let retained =
        |labels: &BTreeMap<String, String>| labels.get(label::RETAINED_FROM).map(String::as_str) == Some("acme");
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert!(retained(cluster.labels()) && cluster.owner_references().is_empty(), "{:?}", cluster.metadata);
    assert!(cluster.metadata.deletion_timestamp.is_none());
    for name in ["acme-pg-pguser-clientapp", "acme-admin-secret"] {
        let kept = tenant.api::<Secret>().get(name).await.unwrap();
        assert!(retained(kept.labels()) && kept.owner_references().is_empty(), "{:?}", kept.metadata);
    }
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let files = claims.iter().find(|claim| claim.name_any() == FILES).unwrap();
    assert!(retained(files.labels()) && files.owner_references().is_empty(), "{:?}", files.metadata);
    assert!(claims.iter().any(|claim| claim.name_any().starts_with("acme-pg-")));
    assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()));
}

/// Confirms that app `acme` goes on without the volume of this uid.
fn confirm(tenant: &Tenant, uid: &str) {
    let mark = format!("{}={uid}", annotation::WITHOUT_VOLUME);
    tenant.kubectl(&["annotate", "clientapp", "acme", "--overwrite", &mark]).unwrap();
}
