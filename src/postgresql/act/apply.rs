//! Applies and deletes the objects that are made from documents; creates and grows volumes. An **effect**.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ObjectMeta, Patch, PatchParams, TypeMeta},
};
use serde_json::json;

use crate::{
    crd::label,
    deletion::{permit, recreatable},
    platform::{
        api::{create_if_absent, ignore_not_found},
        api_error::{ApiErrorKind, classify},
        error::{ReconcileFailure, api_sentence},
        key::Key,
    },
    postgresql::{
        context::PostgresqlContext,
        desired::Desired,
        error::Error,
        names,
        objects::Object,
        observed::{Kind, ObjectId},
        uncached::{api, metadata},
        watches::whose,
    },
};

/// Field manager of the objects that are applied from documents.
pub(super) const MANAGER: &str = "clientapp-operator/postgresql";
/// Field manager of volume sizes.
const VOLUME_MANAGER: &str = "clientapp-operator/volume";

/// Applies an object. An object that no watch shows may still exist, with another owner and without our labels.
///
/// By force: the operator owns these names, and users change the objects through the spec. Fields that other clients add stay, except
/// in policies and budgets, where one more field changes what all others mean, or contradicts them.
pub(crate) async fn apply(
    ctx: &PostgresqlContext,
    desired: &Desired,
    object: &Object,
    seen: bool,
) -> Result<(), Error> {
    let key = &desired.key;
    let (kind, name) = &object.id;
    let api = api(ctx, key, &kind.resource());
    let what = format!("{kind} {}/{name}", key.namespace);
    // A process that was frozen could otherwise apply this Postgresql's objects to a later Postgresql of the same name.
    if !ctx.lead.is_held() {
        return Err(ReconcileFailure::NotLeading { operation: format!("apply {what}") }.into());
    }
    if !seen {
        let found = metadata(ctx, key, &kind.resource(), name).await?;
        if let Some(owner) = found.and_then(|found| foreign_owner(&found, &desired.uid)) {
            return Err(Error::NotOurs { object: format!("{kind} {name}"), owner });
        }
        match kind {
            Kind::StatefulSet => volumes_are_ours(ctx, desired, name, &object.document["spec"]["replicas"]).await?,
            Kind::PersistentVolumeClaim => return create_claim(ctx, desired, object).await,
            _ => {}
        }
    }
    if seen && matches!(kind, Kind::NetworkPolicy | Kind::PodDisruptionBudget) {
        let replace = json!([{"op": "replace", "path": "/spec", "value": object.document["spec"]}]);
        let replace = serde_json::from_value(replace).expect("this is a JSON patch");
        let replaced = api.patch(name, &PatchParams::default(), &Patch::<()>::Json(replace)).await;
        ignore_not_found(replaced).map_err(Error::api(format!("put back {what}")))?;
    }
    let applied = api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object.document)).await;
    applied.map(|_| ()).map_err(Error::api(format!("apply {what}")))
}

/// Creates a claim, unless one was handed over, which has its own size and data. An apply would take over a claim that a user has
/// created since it was looked for.
pub(super) async fn create_claim(ctx: &PostgresqlContext, desired: &Desired, claim: &Object) -> Result<(), Error> {
    if adopted(ctx, desired, &claim.id.1).await? {
        return Ok(());
    }
    let (key, name) = (&desired.key, &claim.id.1);
    let operation = format!("create PersistentVolumeClaim {}/{name}", key.namespace);
    let claim = serde_json::from_value(claim.document.clone()).map_err(kube::Error::SerdeError);
    let claim: DynamicObject = claim.map_err(Error::api(operation.clone()))?;
    // A claim that was created in the meantime is judged in the next pass.
    let created =
        create_if_absent(&api(ctx, key, &Kind::PersistentVolumeClaim.resource()), Some(MANAGER), &claim).await;
    if let Some(created) = created.map_err(Error::api(operation))? {
        ctx.recently_created.record(key, &desired.uid, permit::DataKind::Volume.owned(&created.metadata));
    }
    Ok(())
}

/// Returns true if a claim of this name exists. One that a cluster admin has handed over gets the label by which the watch sees it.
async fn adopted(ctx: &PostgresqlContext, desired: &Desired, claim: &str) -> Result<bool, Error> {
    let key = &desired.key;
    let resource = Kind::PersistentVolumeClaim.resource();
    let found = metadata(ctx, key, &resource, claim).await?;
    let Some(found) = found else { return Ok(false) };
    if let Some(owner) = foreign_owner(&found, &desired.uid) {
        return Err(Error::VolumeNotOurs {
            claim: claim.to_owned(),
            namespace: key.namespace.clone(),
            owner: owner.trim_end_matches(',').to_owned(),
            label: label::POSTGRESQL_UID,
            uid: desired.uid.clone(),
        });
    }
    let labels = found.labels();
    if labels.get(label::POSTGRESQL) != Some(&key.name) || labels.contains_key(label::RETAINED_KIND) {
        let patch = json!({"metadata": {"labels": settled(desired)}});
        let settled =
            api(ctx, key, &resource).patch_metadata(claim, &PatchParams::default(), &Patch::Merge(&patch)).await;
        settled.map_err(Error::api(format!("adopt PersistentVolumeClaim {}/{claim}", key.namespace)))?;
    }
    Ok(true)
}

/// Refuses foreign volumes: a StatefulSet uses any claim of the right name: an old claim would give a new server old data, with a password that is lost.
async fn volumes_are_ours(
    ctx: &PostgresqlContext,
    desired: &Desired,
    set: &str,
    replicas: &serde_json::Value,
) -> Result<(), Error> {
    for ordinal in 0..replicas.as_i64().and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1) {
        adopted(ctx, desired, &names::data_claim(set, ordinal)).await?;
    }
    Ok(())
}

/// Returns the owner of an object that does not belong to this Postgresql.
fn foreign_owner<K: kube::Resource>(object: &K, uid: &str) -> Option<String> {
    match whose(object) {
        Ok(owner) if owner == uid => None,
        Ok(_) => Some("another Postgresql".to_owned()),
        Err(owner) => Some(owner),
    }
}

/// Returns the labels of an object that now belongs to this Postgresql.
pub(super) fn settled(desired: &Desired) -> serde_json::Value {
    json!({
        label::POSTGRESQL: desired.key.name,
        label::RETAINED_FROM: null,
        label::RETAINED_KIND: null,
        label::APP: null,
    })
}

/// Grows a claim, neither by force nor by apply, so that a user's larger size stays.
pub(super) async fn grow(ctx: &PostgresqlContext, key: &Key, claim: &str, to: &str) -> Result<(), Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": to}}}});
    let params = PatchParams { field_manager: Some(VOLUME_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(claim, &params, &Patch::Merge(&patch)).await {
        Err(error) if classify(&error) == ApiErrorKind::Expansion => {
            Err(Error::Expansion { claim: claim.to_owned(), to: to.to_owned(), problem: api_sentence(&error) })
        }
        Err(error) => Err(Error::api(format!("grow PersistentVolumeClaim {}/{claim}", key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}

/// Deletes an object that holds no data, with background cascade. An object that is already gone is not an error.
pub(crate) async fn delete(
    ctx: &PostgresqlContext,
    key: &Key,
    (kind, name): &ObjectId,
    uid: &str,
) -> Result<(), Error> {
    let resource = kind.resource();
    let api = api(ctx, key, &resource);
    let type_meta = TypeMeta { api_version: resource.api_version, kind: resource.kind };
    let meta = ObjectMeta { name: Some(name.clone()), uid: Some(uid.to_owned()), ..ObjectMeta::default() };
    let deleted = recreatable::delete(&api, &type_meta, &meta).await;
    deleted.map(|_| ()).map_err(Error::api(format!("delete {kind} {}/{name}", key.namespace)))
}
