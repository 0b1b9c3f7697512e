//! Finds what an earlier ClientApp of the name left under `deletionPolicy: Retain`. An **effect**, reads only.

use std::collections::BTreeSet;

use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta},
};

use crate::{
    clientapp::{
        Ctx,
        error::Error,
        observed::{owned, types::Retained},
        spec::{
            database::{self, DesiredObject, Provider},
            desired::{Desired, SecretSource},
        },
    },
    crd::{ClientAppStatus, annotation, label},
    deletion::{self, permit::DataKind},
    platform::key::Key,
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
    let database = desired.database_object().map_or_else(|| key.database(), |object| object.name.clone());
    let reusing = provider_reusing_leftovers(ctx, desired, uid, recorded).map(|provider| provider.secret(&database));
    // Two providers have a Secret of the same name.
    let of_databases: BTreeSet<_> = database::all().flat_map(|provider| provider.secrets(&database)).collect();
    let of_databases = of_databases.into_iter().map(|name| (name, true));
    let of_app = admin.into_iter().map(str::to_owned).chain([key.redis_secret()]).map(|name| (name, false));
    for (name, of_database) in of_databases.chain(of_app) {
        let Some(secret) = ctx.watches.secrets.get(&Key::new(&key.namespace, &name)) else { continue };
        // If an app's finalizer was edited out, its credentials have no label, but still belong to that app.
        let of_another = secret.owner.is_none() && secret.stamp.as_ref().is_some_and(|stamp| stamp != uid);
        let is_reused = reusing.as_ref() == Some(&name);
        if secret.retained_from.as_ref() == Some(&key.name) || !of_database && of_another || is_reused {
            let kind = DataKind::Secret;
            found.push(Retained { kind, name, uid: secret.uid, of_database, installed: None });
        }
    }
    for provider in database::all() {
        let object = ctx.watches.database(provider, &Key::new(&key.namespace, &database));
        if let Some(object) = object.filter(|object| object.is_leftover_of(&key.name, uid)) {
            let kind = provider.kind();
            found.push(Retained { kind, name: database.clone(), uid: object.uid, of_database: false, installed: None });
        }
    }
    Ok(found)
}

/// Finds retained volumes; it asks the API server once for each app.
async fn volumes(ctx: &Ctx, desired: &Desired, uid: &str, recorded: &ClientAppStatus) -> Result<Vec<Retained>, Error> {
    let key = &desired.key;
    if ctx.memory.read(key, |app| app.no_retained_volumes.as_deref() == Some(uid)) {
        return Ok(Vec::new());
    }
    let api = deletion::api(&ctx.client, &key.namespace, DataKind::Volume);
    // What a Postgresql of the app's name left is not the app's.
    let selector = format!("{}={},!{}", label::RETAINED_FROM, key.name, label::RETAINED_KIND);
    let params = ListParams::default().labels(&selector);
    let listing = || Error::api(format!("list the volumes that an earlier ClientApp {key} has left"));
    let mut claims = api.list_metadata(&params).await.map_err(listing())?.items;
    if let Some(provider) = provider_reusing_leftovers(ctx, desired, uid, recorded)
        && let Some(object) = desired.database_object()
    {
        let selector = format!("{}={},!{}", provider.info().volume_label, object.name, label::RETAINED_FROM);
        claims.extend(api.list_metadata(&ListParams::default().labels(&selector)).await.map_err(listing())?.items);
    }
    if claims.is_empty() {
        ctx.memory.put(key, |app| app.no_retained_volumes = Some(uid.to_owned()));
    }
    let volume = |claim: &PartialObjectMeta<DynamicObject>| Retained {
        kind: DataKind::Volume,
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
        of_database: database::all().any(|provider| claim.labels().contains_key(provider.info().volume_label)),
        installed: claim.annotations().get(annotation::INSTALLED).and_then(|chart| serde_json::from_str(chart).ok()),
    };
    Ok(claims.iter().map(volume).collect())
}

/// Returns the provider that is about to create the app's first database, if its databases reuse what a former database of the
/// same name left. That may be a user's, and would be deleted with the app.
fn provider_reusing_leftovers(
    ctx: &Ctx,
    desired: &Desired,
    uid: &str,
    recorded: &ClientAppStatus,
) -> Option<&'static dyn Provider> {
    let DesiredObject { provider, name, .. } = desired.database_object()?;
    let (provider, database) = (*provider, Key::new(&desired.key.namespace, name));
    // Its parts may be seen before itself.
    let made = ctx.memory.recently_created.created_for(&desired.key, uid);
    let is_about_to_create = provider.info().reuses_leftovers
        && !desired.data.adopt
        && [&recorded.owned, &made].iter().all(|owned| owned::uid(owned, provider.kind(), name).is_none())
        && ctx.watches.database(provider, &database).is_none();
    is_about_to_create.then_some(provider)
}
