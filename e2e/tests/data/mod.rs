//! Only data that was to be deleted is ever lost, whatever users, cluster admins and other Helm clients do at which
//! moment.

mod backups;
mod changes;
mod claims;
mod deletion;
mod files;
mod objects;
mod restore;
mod restores;

use std::collections::BTreeMap;

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, annotation, label};
use e2e::lab::{Tenant, hostname};
use e2e::scenario::{secret, with};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};

/// The claim with the files of app `acme`.
const FILES: &str = "acme-nextcloud-nextcloud";

/// A spec with a database, Redis and a volume.
fn whole(tenant: &Tenant, name: &str) -> Value {
    json!({"hostname": hostname(tenant, name)})
}

/// A spec with a database and a volume, where Redis has no part in what is tested.
fn with_database(tenant: &Tenant, name: &str) -> Value {
    with(whole(tenant, name), json!({"redis": {"enabled": false}}))
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

/// The database of an app with everything needed to use it stays, without an owner, and can be found.
async fn is_retained(tenant: &Tenant, app: &str, password: &str) {
    let user = format!("{app}-pg-pguser-clientapp");
    assert_eq!(secret(tenant, &user, "password").await, password);
    let is_marked = |meta: &ObjectMeta| {
        let from = meta.labels.as_ref().and_then(|labels| labels.get(label::RETAINED_FROM));
        let is_owned = meta.owner_references.iter().flatten().next().is_some();
        assert!(from.is_some_and(|from| from == app) && !is_owned && meta.deletion_timestamp.is_none(), "{meta:?}");
    };
    is_marked(&tenant.api::<PerconaPGCluster>().get(&format!("{app}-pg")).await.unwrap().metadata);
    for name in [user, format!("{app}-admin-secret")] {
        is_marked(&tenant.api::<Secret>().get(&name).await.unwrap().metadata);
    }
    let files = format!("{app}-nextcloud-nextcloud");
    is_marked(&tenant.api::<PersistentVolumeClaim>().get(&files).await.unwrap().metadata);
    assert!(!claims_of_database(tenant, app).await.is_empty());
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()));
}
