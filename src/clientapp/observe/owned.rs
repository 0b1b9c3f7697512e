//! Collects what the app owns. Reads caches only.

use std::{borrow::Borrow, collections::BTreeSet};

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
    platform::{key::Key, watch_builder::Availability},
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
    let recorded = &app.recorded_status;
    let postgres = app.object().ok().map(|app| &app.spec.postgres);
    let names = database::names(app.key, postgres, recorded);
    let seen = OwnershipEvidence {
        app: app.meta(),
        inventory,
        claims: &claims.iter().map(Borrow::borrow).collect::<Vec<_>>(),
        made: ctx.memory.recently_created.created_for(app.key, app.uid()),
        named: &named(ctx, app.key, &names),
    };
    let mut owned = owned::merge_owned(&recorded.owned, &seen);
    if let Some(postgres) = postgres {
        let name = database::name(app.key, postgres);
        // Its name is free for another one. What this process has made is looked at, too, or it would come back in each pass.
        let former = owned::former(&owned, recorded, &name).filter(|former| is_gone(ctx, app.key, former));
        let gone: Vec<_> = former.cloned().collect();
        owned.retain(|entry| !gone.contains(entry));
    }
    owned
}

/// Returns true if the database of this entry does not exist any more.
fn is_gone(ctx: &Ctx, key: &Key, entry: &Owned) -> bool {
    database::all().filter(|provider| provider.kind().as_str() == entry.kind).all(|provider| {
        let found = ctx.watches.database(provider, &Key::new(&key.namespace, &entry.name));
        ctx.watches.of(provider).objects.availability() == Availability::Installed
            && found.is_none_or(|found| found.uid != entry.uid)
    })
}

/// Returns the objects that the operator creates for an app, as the caches show them: uid, creation time, and the app in their
/// stamp or ownerReference.
fn named(ctx: &Ctx, key: &Key, databases: &BTreeSet<String>) -> Vec<(DataKind, ObjectMeta)> {
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
    let databases = database::all().flat_map(|provider| databases.iter().map(move |name| (provider, name)));
    let databases = databases.filter_map(|(provider, name)| {
        let DatabaseObject { uid, created, stamp, owner_uid, deleting, retained_from, .. } =
            ctx.watches.database(provider, &Key::new(&key.namespace, name))?;
        let stays = !deleting && retained_from.is_none();
        stays.then(|| (provider.kind(), meta(name.clone(), uid, created, stamp, owner_uid)))
    });
    secrets.chain(databases).collect()
}
