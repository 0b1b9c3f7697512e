//! Stage 1, an **effect** that only reads: from the caches, and by request only what no cache may hold (the keys of
//! a Secret that somebody else wrote) or what a cache seems to be late with (a revision this operator has seen).

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api,
    api::{ListParams, PartialObjectMeta},
};
use std::collections::BTreeSet;

use super::{
    Ctx,
    desired::{Desired, DesiredDatabase, DesiredServer, SecretSource},
    error::Error,
    names::Maker,
    retained, upgrade,
    watches::{self, RevisionMeta, SecretMeta},
    world::{BackupView, DatabaseView, Phase, ReleaseView, SecretView, Stamp, World},
};
use crate::{
    controller::key::{Key, key_of},
    crd::{BackupRecord, ClientAppStatus, annotation},
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
        SecretSource::Generated(name) => own_secret(ctx, key, name, uid),
        SecretSource::Given(name) => {
            // Whoever owns a Secret that the user names has the user's trust.
            secret_keys(ctx, &Key::new(&key.namespace, name)).await?
        }
    };
    let redis_secret = match &desired.redis_secret {
        Some(name) => own_secret(ctx, key, name, uid),
        None => SecretView::Absent,
    };
    let release = release(ctx, key, &recorded).await?;
    Ok(World {
        hostname_holder: hostname_holder(ctx, desired, uid),
        admin_secret,
        redis_secret,
        database: database(ctx, desired, uid).await?,
        retained: retained::find(ctx, desired, uid, &recorded).await?,
        backup: upgrade::backup(desired, meta, release.as_ref(), &recorded).map(|record| backup(ctx, desired, record)),
        // Whoever fetches it adds it.
        target: None,
        release,
        workloads: watches.workloads(key),
        retry: meta.annotations.as_ref().and_then(|annotations| annotations.get(annotation::RETRY).cloned()),
        recorded,
    })
}

async fn database(ctx: &Ctx, desired: &Desired, uid: &str) -> Result<DatabaseView, Error> {
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
    Ok(World {
        release: release(ctx, key, &recorded).await?,
        workloads: ctx.watches.workloads(key),
        recorded,
        ..World::default()
    })
}

/// The newest revision of the release. The cache is asked first; when it knows less than the operator has recorded,
/// it is late or somebody removed revisions, and only the API server can tell which.
async fn release(ctx: &Ctx, key: &Key, recorded: &ClientAppStatus) -> Result<Option<ReleaseView>, Error> {
    let cached = release_view(&ctx.watches.revisions(key), &ctx.holder);
    let recorded = recorded.release.as_ref().map(|release| release.revision);
    if cached.as_ref().map(|release| release.revision) >= recorded {
        return Ok(cached);
    }
    Ok(release_view(&live_revisions(ctx, key).await?, &ctx.holder))
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
        phase: Phase::parse(&newest.status),
        status: newest.status.clone(),
        stamp,
        known: revisions.iter().any(|(_, revision)| revision.digest.is_some()),
        written: newest.written,
    })
}

/// A Secret the operator generates: its keys are known, its owner has to be this very app.
fn own_secret(ctx: &Ctx, key: &Key, name: &str, uid: &str) -> SecretView {
    match ctx.watches.secrets.get(&Key::new(&key.namespace, name)) {
        None => SecretView::Absent,
        Some(SecretMeta { deleting: true, .. }) => SecretView::NotOurs { owner: "nobody any more".to_owned() },
        Some(SecretMeta { owner: Some((kind, owner, owner_uid)), .. }) if owner_uid != uid => {
            SecretView::NotOurs { owner: format!("{kind} {owner}") }
        }
        Some(SecretMeta { .. }) => SecretView::Present { keys: None },
    }
}

/// A Secret somebody else writes: which of its keys have a value. Asked once per version of the Secret; the values
/// themselves are dropped at once.
async fn secret_keys(ctx: &Ctx, secret: &Key) -> Result<SecretView, Error> {
    let Some(SecretMeta { resource_version, .. }) = ctx.watches.secrets.get(secret) else {
        return Ok(SecretView::Absent);
    };
    if let Some((version, keys)) = ctx.memory.secret_keys.get(secret)
        && version == resource_version
    {
        return Ok(SecretView::Present { keys: Some(keys) });
    }
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
    let found = api.get_opt(&secret.name).await.map_err(Error::api(format!("read the keys of Secret {secret}")))?;
    let Some(found) = found else { return Ok(SecretView::Absent) };
    let version = found.metadata.resource_version.unwrap_or_default();
    let keys: BTreeSet<String> =
        found.data.into_iter().flatten().filter(|(_, value)| !value.0.is_empty()).map(|(key, _)| key).collect();
    ctx.memory.secret_keys.put(secret.clone(), (version, keys.clone()));
    Ok(SecretView::Present { keys: Some(keys) })
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
