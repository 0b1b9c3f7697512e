//! Stage 1, an **effect** that only reads: from the caches, and by request only what no cache may hold (the keys of
//! a Secret that somebody else wrote) or what a cache seems to be late with (a revision this operator has seen).

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::Secret,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::{
    Api,
    api::{ListParams, PartialObjectMeta},
};
use std::collections::BTreeSet;

use super::{
    Ctx,
    desired::{Desired, DesiredDatabase, DesiredServer, SecretSource},
    error::Error,
    inventory,
    names::Maker,
    owned::{self, Seen},
    retained, upgrade,
    watches::{self, RevisionMeta, SecretMeta},
    world::{BackupView, DatabaseView, Phase, ReleaseView, SecretView, Stamp, World},
};
use crate::{
    controller::key::{Key, key_of},
    crd::{BackupRecord, ClientAppStatus, Inventory, Owned, annotation},
    destroy::permit::Kind,
    helm::storage,
    holder::Holder,
};

/// Looks at everything that decisions about this app depend on.
///
/// # Errors
/// The API server refused to show a Secret or the release's history.
pub async fn observe(
    ctx: &Ctx,
    desired: &Desired,
    meta: &ObjectMeta,
    recorded: ClientAppStatus,
) -> Result<World, Error> {
    let uid = meta.uid.as_deref().unwrap_or_default();
    let key = &desired.key;
    let watches = &ctx.watches;
    let admin_secret = match &desired.admin {
        SecretSource::Generated(name) => match own_secret(ctx, key, name, uid) {
            // Made by hand, in place of one that was lost or to begin with.
            SecretView::Present { .. } => secret_keys(ctx, &Key::new(&key.namespace, name)).await?,
            view => view,
        },
        SecretSource::Given(name) => {
            // Whoever owns a Secret that the user names has the user's trust.
            secret_keys(ctx, &Key::new(&key.namespace, name)).await?
        }
    };
    let redis_secret = own_secret(ctx, key, &key.redis_secret(), uid);
    let release = release(ctx, key, &recorded).await?;
    let inventory = inventory(ctx, key, release.as_ref(), &recorded).await?;
    let owned = owned::on_record(
        &recorded.owned,
        &Seen {
            app: meta,
            inventory: inventory.as_ref(),
            claims: &watches.claims(&key.namespace),
            named: &named(ctx, key),
        },
    );
    Ok(World {
        hostname_holder: hostname_holder(ctx, desired, uid),
        admin_secret,
        redis_secret,
        database: database(ctx, desired, uid, &recorded.owned).await?,
        retained: retained::find(ctx, desired, uid, &recorded).await?,
        backup: upgrade::backup(desired, meta, release.as_ref(), &recorded, ctx.now())
            .map(|record| backup(ctx, desired, record)),
        // Whoever fetches it adds it.
        target: None,
        release,
        workloads: inventory::with_missing(inventory.as_ref(), key, watches.workloads(key)),
        inventory,
        owned,
        retry: meta.annotations.as_ref().and_then(|annotations| annotations.get(annotation::RETRY).cloned()),
        recorded,
    })
}

/// What an app makes itself, as the caches show it: of each its uid, when it was made, and whose it says it is.
pub fn named(ctx: &Ctx, key: &Key) -> Vec<(Kind, ObjectMeta)> {
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
        stays.then(|| (Kind::Secret, meta(name, uid, created, stamp, owner.map(|(_, _, uid)| uid))))
    });
    let servers = Maker::ALL.into_iter().filter_map(|maker| {
        let server = ctx.watches.servers(maker).objects.get(&Key::new(&key.namespace, key.cluster()))?;
        let stays = !server.deleting && server.retained_from.is_none();
        stays.then(|| (maker.data(), meta(key.cluster(), server.uid, server.created, server.stamp, server.owner_uid)))
    });
    secrets.chain(servers).collect()
}

/// What the release consists of: as recorded for this revision, else read from what Helm stored.
///
/// # Errors
/// The API server's refusal.
pub async fn inventory(
    ctx: &Ctx,
    key: &Key,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
) -> Result<Option<Inventory>, Error> {
    let Some(release) = release.filter(|release| release.known) else { return Ok(recorded.inventory.clone()) };
    if let Some(inventory) = recorded.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid) {
        return Ok(Some(inventory.clone()));
    }
    if ctx.memory.unreadable.get(key).as_ref() == Some(&release.secret_uid) {
        return Ok(recorded.inventory.clone());
    }
    match stored(ctx, key, &release.secret).await? {
        Ok(inventory) => Ok(Some(inventory)),
        Err(problem) => {
            tracing::warn!(release = %key, secret = release.secret, "what revision {} consists of is not known: {problem}", release.revision);
            ctx.memory.unreadable.put(key.clone(), release.secret_uid.clone());
            Ok(recorded.inventory.clone())
        }
    }
}

/// Reads what Helm stored of a revision; inside, what is wrong with it.
///
/// # Errors
/// The API server's refusal.
pub async fn stored(ctx: &Ctx, key: &Key, secret: &str) -> Result<Result<Inventory, String>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_opt(secret).await.map_err(Error::api(format!("read Secret {}/{secret}", key.namespace)))?;
    let Some(Secret { metadata, data, .. }) = found else { return Ok(Err("its Secret is gone".to_owned())) };
    let payload = data.and_then(|mut data| data.remove("release"));
    let stored = payload.ok_or_else(|| "its Secret has no key release".to_owned()).and_then(|payload| {
        let stored = storage::read(&payload.0)?;
        inventory::read(&metadata.uid.unwrap_or_default(), &stored)
    });
    Ok(stored)
}

async fn database(ctx: &Ctx, desired: &Desired, uid: &str, owned: &[Owned]) -> Result<DatabaseView, Error> {
    let key = &desired.key;
    let Some(DesiredDatabase { address, server }) = &desired.database else { return Ok(DatabaseView::default()) };
    // Whoever owns a Secret that the user names has the user's trust, and Percona's have no owner.
    let secret = secret_keys(ctx, &Key::new(&key.namespace, &address.secret)).await?;
    let Some(DesiredServer { maker, name, .. }) = server else {
        return Ok(DatabaseView { secret, ..DatabaseView::default() });
    };
    let servers = ctx.watches.servers(*maker);
    Ok(DatabaseView {
        kind: servers.availability(),
        app_uid: uid.to_owned(),
        on_record: owned::uid(owned, maker.data(), name).map(str::to_owned),
        server: servers.objects.get(&Key::new(&key.namespace, name)),
        secret,
        reachable: match maker {
            Maker::Percona => {
                let service = Key::new(&key.namespace, maker.service(key));
                ctx.watches.endpoints.group(&service).iter().any(|(_, ready)| *ready)
            }
            // It is Up while the pod behind its Service is ready.
            Maker::Standalone => true,
        },
    })
}

/// How far a backup is.
fn backup(ctx: &Ctx, desired: &Desired, record: BackupRecord) -> BackupView {
    let key = &desired.key;
    let seen = match record.kind.as_str() {
        upgrade::PERCONA_BACKUP => ctx.watches.backups.objects.get(&Key::new(&key.namespace, &record.name)),
        _ => {
            let server = ctx.watches.postgresqls.objects.get(&Key::new(&key.namespace, key.cluster()));
            let dump = server.and_then(|server| server.dump).filter(|(word, ..)| *word == record.name);
            dump.map(|(_, state, problem)| (state, problem))
        }
    };
    let state = seen.as_ref().map_or(record.state, |(state, _)| *state);
    BackupView { record: BackupRecord { state, ..record }, seen }
}

/// The part of the world that needs no valid spec.
///
/// # Errors
/// The API server refused to show the release's history.
pub async fn observe_without_spec(ctx: &Ctx, key: &Key, recorded: ClientAppStatus) -> Result<World, Error> {
    let release = release(ctx, key, &recorded).await?;
    let inventory = inventory(ctx, key, release.as_ref(), &recorded).await?;
    Ok(World {
        workloads: inventory::with_missing(inventory.as_ref(), key, ctx.watches.workloads(key)),
        release,
        inventory,
        owned: recorded.owned.clone(),
        recorded,
        ..World::default()
    })
}

/// The newest revision of the release. The cache is asked first; when it knows less than the operator has recorded, or has
/// seen helm write, it is late or another Helm client removed revisions, and only the API server can tell which.
async fn release(ctx: &Ctx, key: &Key, recorded: &ClientAppStatus) -> Result<Option<ReleaseView>, Error> {
    let cached = release_view(&ctx.watches.revisions(key), &ctx.holder);
    let known = recorded.release.as_ref().map(|release| release.revision).max(ctx.memory.written.get(key));
    let newest = cached.as_ref().map(|release| release.revision);
    let settled = cached.as_ref().is_some_and(|release| release.phase != Phase::Pending);
    // A revision that helm has ended is not pending, whatever a late watch shows.
    if newest > known || newest == known && (settled || ctx.memory.written.get(key).is_none()) {
        ctx.memory.written.take(key);
        return Ok(cached);
    }
    let live = release_view(&live_revisions(ctx, key).await?, &ctx.holder);
    // Another Helm client has removed it.
    if live.as_ref().map(|release| release.revision) < ctx.memory.written.get(key) {
        ctx.memory.written.take(key);
    }
    Ok(live)
}

/// The stored revisions of a release, asked of the API server.
///
/// # Errors
/// The API server's refusal.
pub async fn live_revisions(ctx: &Ctx, key: &Key) -> Result<Vec<(String, RevisionMeta)>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let params = ListParams::default().labels(&format!("owner=helm,name={}", key.name));
    let secrets =
        api.list_metadata(&params).await.map_err(Error::api(format!("list the revisions of release {key}")))?;
    let name = |secret: &PartialObjectMeta<Secret>| secret.metadata.name.clone().unwrap_or_default();
    Ok(secrets.items.iter().filter_map(|secret| Some((name(secret), watches::revision(secret)?))).collect())
}

/// The newest of the stored revisions. **Pure.**
#[must_use]
pub fn release_view(revisions: &[(String, RevisionMeta)], holder: &Holder) -> Option<ReleaseView> {
    let (secret, newest) = revisions.iter().max_by_key(|(_, revision)| revision.revision)?;
    // Helm hands labels on: after somebody else's upgrade or rollback the newest revision carries our digest too, but
    // not the number that was stamped for it.
    let stamp = match (&newest.digest, newest.stamped) {
        (Some(digest), Some(stamped)) if stamped == newest.revision => Some(Stamp {
            digest: digest.clone(),
            holder: newest.holder.as_deref().map_or(super::world::Fate::Unknown, |label| holder.fate_of(label)),
        }),
        _ => None,
    };
    Some(ReleaseView {
        revision: newest.revision,
        secret: secret.clone(),
        secret_uid: newest.uid.clone(),
        phase: Phase::parse(&newest.status),
        status: newest.status.clone(),
        stamp,
        known: revisions.iter().any(|(_, revision)| revision.digest.is_some()),
        written: newest.written,
    })
}

/// A Secret that the operator generates: of this very app, of another, or made by hand.
fn own_secret(ctx: &Ctx, key: &Key, name: &str, uid: &str) -> SecretView {
    let Some(SecretMeta { uid: own, owner, stamp, deleting, .. }) =
        ctx.watches.secrets.get(&Key::new(&key.namespace, name))
    else {
        return SecretView::Absent;
    };
    match (owner, stamp) {
        _ if deleting => SecretView::NotOurs { owner: "an object that is gone".to_owned() },
        (Some((_, _, whose)), _) if whose == uid => SecretView::Own { uid: own },
        (Some((kind, owner, _)), _) => SecretView::NotOurs { owner: format!("{kind} {owner}") },
        (None, Some(whose)) if whose == uid => SecretView::Own { uid: own },
        (None, Some(whose)) => SecretView::NotOurs { owner: format!("an earlier ClientApp, with uid {whose}") },
        (None, None) => SecretView::Present { keys: BTreeSet::new() },
    }
}

/// A Secret that a user or a database's operator writes: which of its keys have a value. Asked once per version of the Secret; the values
/// themselves are dropped at once.
async fn secret_keys(ctx: &Ctx, secret: &Key) -> Result<SecretView, Error> {
    let Some(SecretMeta { resource_version, .. }) = ctx.watches.secrets.get(secret) else {
        return Ok(SecretView::Absent);
    };
    if let Some((version, keys)) = ctx.memory.secret_keys.get(secret)
        && version == resource_version
    {
        return Ok(SecretView::Present { keys });
    }
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
    let found = api.get_opt(&secret.name).await.map_err(Error::api(format!("read the keys of Secret {secret}")))?;
    let Some(found) = found else { return Ok(SecretView::Absent) };
    let version = found.metadata.resource_version.unwrap_or_default();
    let keys: BTreeSet<String> =
        found.data.into_iter().flatten().filter(|(_, value)| !value.0.is_empty()).map(|(key, _)| key).collect();
    ctx.memory.secret_keys.put(secret.clone(), (version, keys.clone()));
    Ok(SecretView::Present { keys })
}

/// Another ClientApp that has the hostname: the one that serves it already, else the oldest that asks for it.
fn hostname_holder(ctx: &Ctx, desired: &Desired, uid: &str) -> Option<Key> {
    let claims = ctx.watches.apps.state().into_iter().filter_map(|guard| {
        let app = guard.object.as_ref().ok()?;
        let claims = app.spec.hostname == desired.hostname;
        let serves = app.status.as_ref().and_then(|status| status.url.as_ref()) == Some(&desired.url);
        let rank = (!serves, app.metadata.creation_timestamp.as_ref().map(|time| time.0), app.metadata.uid.clone());
        claims.then(|| (rank, key_of(app)))
    });
    let (rank, holder) = claims.min_by(|(a, _), (b, _)| a.cmp(b))?;
    (rank.2.as_deref() != Some(uid)).then_some(holder)
}
