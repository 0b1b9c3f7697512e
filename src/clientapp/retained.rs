//! What a ClientApp leaves under `deletionPolicy: Retain`: found by the next one of its name, and adopted when that is asked
//! for. **Effects.**

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use super::{
    Ctx,
    act::Subject,
    desired::{Desired, SecretSource},
    error::Error,
    names::{Key, Maker},
    world::{Retained, RetainedKind},
};
use crate::{
    crd::{ClientAppStatus, Postgresql, label, percona::PerconaPGCluster},
    postgresql,
};

/// What was left to be found by an app that has no release yet; one that has was through with it before.
///
/// # Errors
/// The API server refused to list volumes.
pub async fn find(ctx: &Ctx, desired: &Desired, uid: &str, recorded: &ClientAppStatus) -> Result<Vec<Retained>, Error> {
    let key = &desired.key;
    if recorded.release.is_some() {
        return Ok(Vec::new());
    }
    let left = |retained_from: Option<String>| retained_from.as_ref() == Some(&key.name);
    let mut found = volumes(ctx, key, uid).await?;
    let admin = match &desired.admin {
        SecretSource::Generated(name) => Some(name.clone()),
        SecretSource::Given(_) => None,
    };
    for name in Maker::ALL.into_iter().flat_map(|maker| secrets(maker, key)).chain(admin) {
        let secret = ctx.watches.secrets.get(&Key::new(&key.namespace, &name));
        if secret.is_some_and(|secret| left(secret.retained_from)) {
            found.push(Retained { kind: RetainedKind::Secret, name });
        }
    }
    for maker in Maker::ALL {
        let server = ctx.watches.servers(maker).objects.get(&Key::new(&key.namespace, key.cluster()));
        if server.is_some_and(|server| left(server.retained_from)) {
            found.push(Retained { kind: RetainedKind::Server(maker), name: key.cluster() });
        }
    }
    Ok(found)
}

/// Asked of the API server, since what a cache does not show yet would become the new app's; once for each app.
async fn volumes(ctx: &Ctx, key: &Key, uid: &str) -> Result<Vec<Retained>, Error> {
    if ctx.memory.unburdened.get(key).is_some_and(|known| known == uid) {
        return Ok(Vec::new());
    }
    let api = api(ctx, key, RetainedKind::Volume);
    let params = ListParams::default().labels(&format!("{}={}", label::RETAINED_FROM, key.name));
    let claims = api.list_metadata(&params).await;
    let claims = claims.map_err(Error::api(format!("list the volumes that an earlier ClientApp {key} has left")))?;
    if claims.items.is_empty() {
        ctx.memory.unburdened.put(key.clone(), uid.to_owned());
    }
    let volume = |name| Retained { kind: RetainedKind::Volume, name };
    Ok(claims.items.iter().map(|claim| volume(claim.name_any())).collect())
}

/// The Secrets that open a database.
pub fn secrets(maker: Maker, app: &Key) -> Vec<String> {
    match maker {
        Maker::Percona => vec![maker.secret(app)],
        Maker::Standalone => vec![maker.secret(app), postgresql::names::credentials(&app.cluster())],
    }
}

/// Takes over what was left, in the order in which it was found: the database last, so that an adoption which is cut off
/// is begun again.
///
/// # Errors
/// The API server's refusal.
pub async fn adopt(ctx: &Ctx, subject: &Subject<'_>, desired: &Desired, found: &[Retained]) -> Result<(), Error> {
    let key = &desired.key;
    for Retained { kind, name } in found {
        let mut metadata = json!({"labels": {label::RETAINED_FROM: null}});
        if *kind == RetainedKind::Secret && name == desired.admin.name() {
            metadata["ownerReferences"] = json!([subject.owner]);
        }
        if matches!(kind, RetainedKind::Server(_)) {
            metadata["labels"][label::APP] = json!(key.name);
        }
        mark(ctx, key, *kind, name, &metadata).await?;
        tracing::info!(kind = kind.as_str(), %name, "adopted");
    }
    Ok(())
}

/// Leaves an object behind: without owner, so that nothing collects it, and labelled, so that it can be found.
///
/// # Errors
/// The API server's refusal.
pub async fn leave(ctx: &Ctx, key: &Key, kind: RetainedKind, name: &str) -> Result<(), Error> {
    let mut labels = Map::from_iter([(label::RETAINED_FROM.to_owned(), json!(key.name))]);
    if matches!(kind, RetainedKind::Server(_)) {
        labels.insert(label::APP.to_owned(), Value::Null);
    }
    mark(ctx, key, kind, name, &json!({"ownerReferences": null, "labels": labels})).await
}

/// The same, but whom it belongs to is left alone: that is somebody else's business, who is left behind as well.
///
/// # Errors
/// The API server's refusal.
pub async fn leave_to_its_owner(ctx: &Ctx, key: &Key, kind: RetainedKind, name: &str) -> Result<(), Error> {
    mark(ctx, key, kind, name, &json!({"labels": {label::RETAINED_FROM: key.name}})).await
}

/// Merges a patch into an object's metadata; one that is gone needs none.
async fn mark(ctx: &Ctx, key: &Key, kind: RetainedKind, name: &str, metadata: &Value) -> Result<(), Error> {
    let patch = Patch::Merge(json!({"metadata": metadata}));
    match api(ctx, key, kind).patch_metadata(name, &PatchParams::default(), &patch).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("label {} {}/{name}", kind.as_str(), key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}

/// Objects of a kind in an app's namespace.
#[must_use]
pub fn api(ctx: &Ctx, key: &Key, kind: RetainedKind) -> Api<DynamicObject> {
    let resource = match kind {
        RetainedKind::Volume => ApiResource::erase::<PersistentVolumeClaim>(&()),
        RetainedKind::Secret => ApiResource::erase::<Secret>(&()),
        RetainedKind::Server(Maker::Percona) => ApiResource::erase::<PerconaPGCluster>(&()),
        RetainedKind::Server(Maker::Standalone) => ApiResource::erase::<Postgresql>(&()),
    };
    Api::namespaced_with(ctx.client.clone(), &key.namespace, &resource)
}
