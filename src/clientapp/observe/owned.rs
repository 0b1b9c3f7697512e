//! Collects what the app owns. Reads caches only.

use std::borrow::Borrow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::{
    clientapp::{
        context::{App, Ctx},
        observed::owned::{self, OwnershipEvidence},
        spec::database::{self, DatabaseObject},
    },
    crd::{Inventory, Owned, annotation},
    deletion::permit::DataKind,
    platform::key::Key,
    secrets::SecretMeta,
};

/// Returns what holds data or gives access to it and is owned by the app: what is recorded, and what is observed, with these
/// volumes of the namespace.
pub(crate) fn owned(
    ctx: &Ctx,
    app: &App<'_>,
    inventory: Option<&Inventory>,
    claims: &[impl Borrow<ObjectMeta>],
) -> Vec<Owned> {
    let seen = OwnershipEvidence {
        app: app.meta(),
        inventory,
        claims: &claims.iter().map(Borrow::borrow).collect::<Vec<_>>(),
        made: ctx.memory.recently_created.created_for(app.key, app.uid()),
        named: &named(ctx, app.key),
    };
    owned::merge_owned(&app.recorded_status.owned, &seen)
}

/// Returns the objects that the operator creates for an app, as the caches show them: uid, creation time, and the app in their
/// stamp or ownerReference.
fn named(ctx: &Ctx, key: &Key) -> Vec<(DataKind, ObjectMeta)> {
    let meta = |name: String, uid: String, created: Option<Timestamp>, stamp: Option<String>, owner: Option<String>| {
        let owner = owner.map(|uid| OwnerReference { uid, ..OwnerReference::default() });
        ObjectMeta {
            name: Some(name),
            uid: Some(uid),
            creation_timestamp: created.map(Time),
            annotations: stamp.map(|stamp| [(annotation::OWNER_UID.to_owned(), stamp)].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    };
    let secrets = [key.admin_secret(), key.redis_secret()].into_iter().filter_map(|name| {
        let SecretMeta { uid, created, stamp, owner, deleting, retained_from, .. } =
            ctx.watches.secrets.get(&Key::new(&key.namespace, &name))?;
        let stays = !deleting && retained_from.is_none();
        stays.then(|| (DataKind::Secret, meta(name, uid, created, stamp, owner.map(|(_, _, uid)| uid))))
    });
    let databases = database::all().filter_map(|provider| {
        let DatabaseObject { uid, created, stamp, owner_uid, deleting, retained_from, .. } =
            ctx.watches.database(provider, key)?;
        let stays = !deleting && retained_from.is_none();
        stays.then(|| (provider.kind(), meta(key.database(), uid, created, stamp, owner_uid)))
    });
    secrets.chain(databases).collect()
}
