//! Keeps what a ClientApp leaves under `deletionPolicy: Retain`: the next ClientApp of its name finds it, and adopts it on request.
//! **Effects.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    Ctx,
    database::{self, Provider},
    desired::{Desired, SecretSource},
    error::Error,
    live,
    observed::Retained,
    owned,
};
use crate::{
    crd::{ClientAppStatus, InstalledChart, Owned, annotation, label},
    deletion::{self, made, permit::Kind},
    platform::{api::unless_gone, key::Key},
};

/// Finds retained objects: in the caches, and volumes through the API server for an app that has no release yet. An object that a
/// cache does not show yet would become the new app's, but retained data always include volumes.
pub(crate) async fn find(
    ctx: &Ctx,
    desired: &Desired,
    uid: &str,
    recorded: &ClientAppStatus,
) -> Result<Vec<Retained>, Error> {
    let key = &desired.key;
    let mut found = match recorded.release {
        None => volumes(ctx, desired, uid, recorded).await?,
        Some(_) => Vec::new(),
    };
    let admin = match &desired.secrets.admin {
        SecretSource::Generated(name) => Some(name.as_str()),
        SecretSource::Given(_) => None,
    };
    let awaited = awaited(ctx, desired, recorded).map(|provider| provider.secret(key));
    let of_databases = database::all().flat_map(|provider| provider.secrets(key)).map(|name| (name, true));
    let of_app = admin.into_iter().map(str::to_owned).chain([key.redis_secret()]).map(|name| (name, false));
    for (name, of_database) in of_databases.chain(of_app) {
        let Some(secret) = ctx.watches.secrets.get(&Key::new(&key.namespace, &name)) else { continue };
        // If an app's finalizer was edited out, its credentials have no label, but still belong to that app.
        let of_another = secret.owner.is_none() && secret.stamp.as_ref().is_some_and(|stamp| stamp != uid);
        let is_reused = awaited.as_ref() == Some(&name);
        if secret.retained_from.as_ref() == Some(&key.name) || !of_database && of_another || is_reused {
            let kind = Kind::Secret;
            found.push(Retained { kind, name, uid: secret.uid, of_database, installed: None });
        }
    }
    for provider in database::all() {
        let object = ctx.watches.database(provider, key);
        if let Some(object) = object.filter(|object| object.is_left(&key.name, uid)) {
            let kind = provider.kind();
            found.push(Retained { kind, name: key.database(), uid: object.uid, of_database: false, installed: None });
        }
    }
    Ok(found)
}

/// The API server is asked once for each app.
async fn volumes(ctx: &Ctx, desired: &Desired, uid: &str, recorded: &ClientAppStatus) -> Result<Vec<Retained>, Error> {
    let key = &desired.key;
    if ctx.memory.unburdened.get(key).is_some_and(|known| known == uid) {
        return Ok(Vec::new());
    }
    let api = deletion::api(&ctx.client, &key.namespace, Kind::Volume);
    // What a Postgresql of the app's name left is not the app's.
    let selector = format!("{}={},!{}", label::RETAINED_FROM, key.name, label::RETAINED_KIND);
    let params = ListParams::default().labels(&selector);
    let listing = || Error::api(format!("list the volumes that an earlier ClientApp {key} has left"));
    let mut claims = api.list_metadata(&params).await.map_err(listing())?.items;
    if let Some(provider) = awaited(ctx, desired, recorded) {
        let selector = format!("{}={},!{}", provider.facts().volume_label, key.database(), label::RETAINED_FROM);
        claims.extend(api.list_metadata(&ListParams::default().labels(&selector)).await.map_err(listing())?.items);
    }
    if claims.is_empty() {
        ctx.memory.unburdened.put(key.clone(), uid.to_owned());
    }
    let volume = |claim: &PartialObjectMeta<DynamicObject>| Retained {
        kind: Kind::Volume,
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        of_database: database::all().any(|provider| claim.labels().contains_key(provider.facts().volume_label)),
        installed: claim.annotations().get(annotation::INSTALLED).and_then(|chart| serde_json::from_str(chart).ok()),
    };
    Ok(claims.iter().map(volume).collect())
}

/// The provider that is about to create the app's first database, if its databases reuse what a former database of the same name
/// left. That may be a user's, and would be deleted with the app.
fn awaited(ctx: &Ctx, desired: &Desired, recorded: &ClientAppStatus) -> Option<&'static dyn Provider> {
    let provider = desired.database_object()?.provider;
    let is_awaited = provider.facts().reuses_leftovers
        && !desired.data.adopt
        && owned::uid(&recorded.owned, provider.kind(), &desired.key.database()).is_none()
        && ctx.watches.database(provider, &desired.key).is_none();
    is_awaited.then_some(provider)
}

/// The record once an adoption has started: all objects that the app owns from then on, and the chart that last ran with its
/// data.
pub(crate) fn adopted(recorded: &ClientAppStatus, found: &[Retained]) -> ClientAppStatus {
    let mut status = recorded.clone();
    if let Some(installed) = found.iter().find_map(|left| left.installed.clone()) {
        status.installed = Some(installed);
    }
    for Retained { kind, name, uid, of_database, .. } in found {
        // The database's own objects are deleted with it.
        if !of_database {
            let owned = Owned { kind: kind.as_str().to_owned(), name: name.clone(), uid: uid.clone() };
            made::put(&mut status.owned, owned);
        }
    }
    status
}

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
        if *kind == Kind::Secret && *name == key.redis_secret() {
            metadata["ownerReferences"] = json!([owner]);
        }
        let mut patch = json!({"metadata": metadata});
        if kind.is_database() {
            patch["metadata"]["labels"][label::APP] = json!(key.name);
            if let Some(found) = live::object(ctx, key, *kind, name).await? {
                deletion::leaves_behind(*kind, &found, &mut patch);
            }
        }
        mark(ctx, key, *kind, name, &patch).await?;
        tracing::info!(kind = kind.as_str(), %name, "adopted");
    }
    Ok(())
}

/// A deleted app whose data are retained.
pub(crate) struct Leaving<'a> {
    pub key: &'a Key,
    pub uid: &'a str,
    /// The chart that last ran with its data.
    pub installed: Option<&'a InstalledChart>,
}

/// Retains an object: removes the ownerReference to this app, so that the garbage collector does not delete it, and labels it, so
/// that it can be found. Other owners stay: they are retained as well.
pub(crate) async fn leave(ctx: &Ctx, leaving: &Leaving<'_>, kind: Kind, target: &ObjectMeta) -> Result<(), Error> {
    let Leaving { key, uid, installed } = leaving;
    let name = target.name.as_deref().unwrap_or_default();
    if target.labels.as_ref().and_then(|labels| labels.get(label::RETAINED_FROM)) == Some(&key.name) {
        return Ok(());
    }
    let mut metadata = json!({"uid": target.uid, "labels": {label::RETAINED_FROM: key.name}, "annotations": {}});
    if let Some(chart) = installed.filter(|_| kind == Kind::Volume) {
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
    deletion::leaves_behind(kind, target, &mut patch);
    mark(ctx, key, kind, name, &patch).await?;
    tracing::info!(kind = kind.as_str(), %name, "is retained");
    Ok(())
}

/// Merges a patch into an object, unless the object is gone. The patch has the uid of the intended object, which the API server
/// compares.
pub(crate) async fn mark(ctx: &Ctx, key: &Key, kind: Kind, name: &str, patch: &Value) -> Result<(), Error> {
    let operation = format!("label {} {}/{name}", kind.as_str(), key.namespace);
    if !ctx.lead.holds() {
        return Err(Error::Shutdown);
    }
    let patch = Patch::Merge(patch);
    let api = deletion::api(&ctx.client, &key.namespace, kind);
    let marked = api.patch_metadata(name, &PatchParams::default(), &patch).await;
    unless_gone(marked).map(|_| ()).map_err(Error::api(operation))
}
