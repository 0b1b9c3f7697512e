//! Keeps what a ClientApp leaves under `deletionPolicy: Retain`, and gives it to the next ClientApp of its name on request. **Effects.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{
    clientapp::{context::Ctx, error::Error, observe::uncached, observed::types::Retained, spec::desired::Desired},
    crd::{InstalledChart, annotation, label},
    deletion::{self, permit::DataKind},
    platform::{api::ignore_not_found, key::Key},
};

/// Takes over retained objects in the order in which they were found: the database last, so that an interrupted adoption starts
/// again.
pub(crate) async fn adopt(
    ctx: &Ctx,
    owner: &OwnerReference,
    desired: &Desired,
    found: &[Retained],
) -> Result<(), Error> {
    let key = &desired.key;
    for Retained { kind, name, uid, of_database, installed: _ } in found {
        let mut metadata =
            json!({"uid": uid, "labels": {label::RETAINED_FROM: null}, "annotations": {annotation::INSTALLED: null}});
        if !of_database {
            metadata["annotations"][annotation::OWNER_UID] = json!(owner.uid);
        }
        if *kind == DataKind::Secret && *name == key.redis_secret() {
            metadata["ownerReferences"] = json!([owner]);
        }
        let mut patch = json!({"metadata": metadata});
        if kind.is_database() {
            patch["metadata"]["labels"][label::APP] = json!(key.name);
            if let Some(found) = uncached::object(ctx, key, *kind, name).await? {
                deletion::retain_data(*kind, &found, &mut patch);
            }
        }
        patch_if_present(ctx, key, *kind, name, &patch).await?;
        tracing::info!(kind = kind.as_str(), %name, "adopted");
    }
    Ok(())
}

/// A deleted app whose data are retained.
pub(crate) struct RetentionContext<'a> {
    pub key: &'a Key,
    pub uid: &'a str,
    /// The chart that last ran with its data.
    pub installed: Option<&'a InstalledChart>,
}

/// Retains an object: removes the ownerReference to this app, so that the garbage collector does not delete it, and labels it, so
/// that it can be found. Other owners stay: they are retained as well.
pub(crate) async fn retain(
    ctx: &Ctx,
    context: &RetentionContext<'_>,
    kind: DataKind,
    target: &ObjectMeta,
) -> Result<(), Error> {
    let RetentionContext { key, uid, installed } = context;
    let name = target.name.as_deref().unwrap_or_default();
    if target.labels.as_ref().and_then(|labels| labels.get(label::RETAINED_FROM)) == Some(&key.name) {
        return Ok(());
    }
    let mut metadata = json!({"uid": target.uid, "labels": {label::RETAINED_FROM: key.name}, "annotations": {}});
    if let Some(chart) = installed.filter(|_| kind == DataKind::Volume) {
        metadata["annotations"][annotation::INSTALLED] = json!(json!(chart).to_string());
    }
    if target.annotations.as_ref().and_then(|found| found.get(annotation::OWNER_UID)).map(String::as_str) == Some(*uid)
    {
        metadata["annotations"][annotation::OWNER_UID] = Value::Null;
    }
    if kind.is_database() {
        metadata["labels"][label::APP] = Value::Null;
    }
    let owners: Vec<_> = target.owner_references.iter().flatten().collect();
    if owners.iter().any(|owner| owner.uid == *uid) {
        let others: Vec<_> = owners.into_iter().filter(|owner| owner.uid != *uid).collect();
        metadata["ownerReferences"] = json!(others);
        metadata["resourceVersion"] = json!(target.resource_version);
    }
    let mut patch = json!({"metadata": metadata});
    deletion::retain_data(kind, target, &mut patch);
    patch_if_present(ctx, key, kind, name, &patch).await?;
    tracing::info!(kind = kind.as_str(), %name, "is retained");
    Ok(())
}

/// Merges a patch into an object, unless the object is gone. The patch has the uid of the intended object, which the API server
/// compares.
pub(crate) async fn patch_if_present(
    ctx: &Ctx,
    key: &Key,
    kind: DataKind,
    name: &str,
    patch: &Value,
) -> Result<(), Error> {
    let operation = format!("label {} {}/{name}", kind.as_str(), key.namespace);
    if !ctx.lead.is_held() {
        return Err(Error::Shutdown);
    }
    let patch = Patch::Merge(patch);
    let api = deletion::api(&ctx.client, &key.namespace, kind);
    let marked = api.patch_metadata(name, &PatchParams::default(), &patch).await;
    ignore_not_found(marked).map(|_| ()).map_err(Error::api(operation))
}
