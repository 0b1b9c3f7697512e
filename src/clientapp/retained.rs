//! What a ClientApp leaves under `deletionPolicy: Retain`: found by the next one of its name, and adopted when that is asked
//! for. **Effects.**

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use serde_json::{Map, Value, json};

use super::{
    Ctx,
    desired::{Desired, SecretSource},
    error::Error,
    names::Maker,
    world::{Retained, RetainedKind},
};
use crate::{
    controller::key::Key,
    crd::{
        ClientAppStatus, DeletionPolicy, InstalledChart, PostgresProvider, Postgresql, annotation, label,
        percona::PerconaPGCluster,
    },
    postgresql,
};

/// What was left: by the caches, and of volumes by the API server, for an app that has no release yet. What a cache does not
/// show yet would become the new app's, and whatever is left has volumes.
///
/// # Errors
/// The API server refused to list volumes.
pub async fn find(ctx: &Ctx, desired: &Desired, uid: &str, recorded: &ClientAppStatus) -> Result<Vec<Retained>, Error> {
    let key = &desired.key;
    let left = |retained_from: Option<String>| retained_from.as_ref() == Some(&key.name);
    let mut found = match recorded.release {
        None => volumes(ctx, key, uid).await?,
        Some(_) => Vec::new(),
    };
    let admin = match &desired.admin {
        SecretSource::Generated(name) => Some(name.clone()),
        SecretSource::Given(_) => None,
    };
    for name in Maker::ALL.into_iter().flat_map(|maker| secrets(maker, key)).chain(admin) {
        let secret = ctx.watches.secrets.get(&Key::new(&key.namespace, &name));
        if secret.is_some_and(|secret| left(secret.retained_from)) {
            found.push(Retained { kind: RetainedKind::Secret, name, installed: None });
        }
    }
    for maker in Maker::ALL {
        let server = ctx.watches.servers(maker).objects.get(&Key::new(&key.namespace, key.cluster()));
        if server.is_some_and(|server| left(server.retained_from)) {
            found.push(Retained { kind: RetainedKind::Server(maker), name: key.cluster(), installed: None });
        }
    }
    Ok(found)
}

/// Asked once for each app.
async fn volumes(ctx: &Ctx, key: &Key, uid: &str) -> Result<Vec<Retained>, Error> {
    if ctx.memory.unburdened.get(key).is_some_and(|known| known == uid) {
        return Ok(Vec::new());
    }
    let api = api(ctx, key, RetainedKind::Volume);
    // What a Postgresql of the app's name has left is not the app's.
    let selector = format!("{}={},!{}", label::RETAINED_FROM, key.name, label::RETAINED_KIND);
    let params = ListParams::default().labels(&selector);
    let claims = api.list_metadata(&params).await;
    let claims = claims.map_err(Error::api(format!("list the volumes that an earlier ClientApp {key} has left")))?;
    if claims.items.is_empty() {
        ctx.memory.unburdened.put(key.clone(), uid.to_owned());
    }
    let volume = |claim: &PartialObjectMeta<DynamicObject>| Retained {
        kind: RetainedKind::Volume,
        name: claim.name_any(),
        installed: claim.annotations().get(annotation::INSTALLED).and_then(|chart| serde_json::from_str(chart).ok()),
    };
    Ok(claims.items.iter().map(volume).collect())
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
pub async fn adopt(ctx: &Ctx, owner: &OwnerReference, desired: &Desired, found: &[Retained]) -> Result<(), Error> {
    let key = &desired.key;
    for Retained { kind, name, installed: _ } in found {
        let mut metadata =
            json!({"labels": {label::RETAINED_FROM: null}, "annotations": {annotation::INSTALLED: null}});
        if *kind == RetainedKind::Secret && name == desired.admin.name() {
            metadata["ownerReferences"] = json!([owner]);
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
pub async fn leave(ctx: &Ctx, leaving: &Leaving<'_>, kind: RetainedKind, name: &str) -> Result<(), Error> {
    let Leaving { key, .. } = leaving;
    let mut labels = Map::from_iter([(label::RETAINED_FROM.to_owned(), json!(key.name))]);
    if matches!(kind, RetainedKind::Server(_)) {
        labels.insert(label::APP.to_owned(), Value::Null);
    }
    let annotations = leaving.annotations(kind);
    mark(ctx, key, kind, name, &json!({"ownerReferences": null, "labels": labels, "annotations": annotations})).await
}

/// The same, but whom it belongs to is left alone: that is somebody else's business, who is left behind as well.
///
/// # Errors
/// The API server's refusal.
pub async fn leave_to_its_owner(ctx: &Ctx, leaving: &Leaving<'_>, kind: RetainedKind, name: &str) -> Result<(), Error> {
    let labels = json!({label::RETAINED_FROM: leaving.key.name});
    let metadata = json!({"labels": labels, "annotations": leaving.annotations(kind)});
    mark(ctx, leaving.key, kind, name, &metadata).await
}

/// An app on its way out.
pub struct Leaving<'a> {
    /// The app.
    pub key: &'a Key,
    /// Its metadata.
    pub meta: &'a ObjectMeta,
    /// What becomes of its data.
    pub policy: DeletionPolicy,
    /// Who makes its database; `None`: nobody, or nobody knows.
    pub provider: Option<PostgresProvider>,
    /// The chart its data are of.
    pub installed: Option<&'a InstalledChart>,
}

impl Leaving<'_> {
    /// On volumes, which are looked for by whoever comes next.
    fn annotations(&self, kind: RetainedKind) -> Value {
        match self.installed {
            Some(chart) if kind == RetainedKind::Volume => json!({annotation::INSTALLED: json!(chart).to_string()}),
            _ => json!({}),
        }
    }
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
