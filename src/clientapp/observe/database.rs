//! Observes the database and the backup that an upgrade waits for.

use jiff::Timestamp;
use kube::api::{ApiResource, ListParams, TypeMeta};

use super::{secrets, uncached};
use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observed::{
            owned,
            pods::{GRACE, PodReasons, PodsView, next_check},
            types::{DatabasePods, DatabaseView, FormerDatabase, PartView, ScheduledBackups},
        },
        spec::{
            database::{
                DatabaseCaches, DatabaseObject, DatabaseState, DesiredDatabase, DesiredObject, PartCache, Provider,
            },
            desired::Desired,
        },
    },
    crd::{
        ClientAppStatus, Owned,
        conditions::{find, kind},
    },
    deletion::recreatable::is_recreatable,
    platform::{key::Key, warnings},
};

pub(super) async fn view(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    recorded: &ClientAppStatus,
    now: Timestamp,
) -> Result<DatabaseView, Error> {
    let key = &desired.key;
    let Some(DesiredDatabase { address, object }) = &desired.database else { return Ok(DatabaseView::default()) };
    // The user names this Secret, so its owner does not matter.
    let secret = secrets::keys(ctx, app, &Key::new(&key.namespace, &address.secret)).await?;
    let Some(object) = object else { return Ok(DatabaseView { secret, ..DatabaseView::default() }) };
    let DesiredObject { provider, name, .. } = object;
    let DatabaseCaches { objects, endpoints, warnings, parts, backups: _ } = ctx.watches.of(*provider);
    let found = ctx.watches.database(*provider, &Key::new(&key.namespace, name));
    let warnings = warnings.as_ref().zip(found.as_ref()).and_then(|((kind, warnings), found)| {
        let about = warnings::group(&key.namespace, kind, name);
        warnings::quoted(warnings, &about, found.progressed)
    });
    let addresses = endpoints.as_ref().filter(|_| object.needs_address());
    let reachable = addresses.is_none_or(|slices| {
        let of_service = slices.group(&Key::new(&key.namespace, object.service()));
        of_service.iter().any(|(_, ready)| *ready)
    });
    let scheduled = scheduled(ctx, key, object, found.as_ref());
    Ok(DatabaseView {
        kind: objects.availability(),
        app_uid: app.uid().to_owned(),
        recorded_uid: owned::uid(&recorded.owned, provider.kind(), name).map(str::to_owned),
        pods: pods(ctx, desired, object, found.as_ref().map(|found| (found, reachable)), (recorded, now)).await,
        object: found,
        secret,
        parts: self::parts(key, object, parts),
        warnings,
        scheduled,
        replaces: owned::replaced(recorded, provider.kind(), name).map(str::to_owned),
        former: former(ctx, key, (*provider, name), recorded),
        reachable,
    })
}

/// Observes why the pods of a database do not run that has not been ready, or not reachable, for a while and does not say why. They are
/// not listed in each pass; if the API server cannot answer, the reason is left out.
async fn pods(
    ctx: &Ctx,
    desired: &Desired,
    DesiredObject { provider, name, .. }: &DesiredObject,
    found: Option<(&DatabaseObject, bool)>,
    (recorded, now): (&ClientAppStatus, Timestamp),
) -> Option<DatabasePods> {
    let key = &desired.key;
    let waiting = found.filter(|(found, reachable)| match found.state {
        DatabaseState::NotReported | DatabaseState::Waiting(_) | DatabaseState::Stalled(_) => !found.deleting,
        DatabaseState::Restoring(_) => false,
        DatabaseState::Ready => !reachable,
    });
    let Some((selector, (found, _))) = provider.pods(name).zip(waiting) else {
        ctx.memory.drop(key, |app| app.database_pods = None);
        return None;
    };
    let condition = find(&recorded.conditions, kind::POSTGRES_READY).filter(|condition| condition.status == "False");
    let since = condition.map_or(now, |condition| condition.last_transition_time.0);
    let next = next_check(since, now);
    if now.duration_since(since) < GRACE {
        return Some(DatabasePods { why: None, until: next });
    }
    // Each spec has its own pods.
    let spec = (format!("{}/{}", found.uid, found.digest.as_deref().unwrap_or_default()), 0);
    let known = ctx.memory.read(key, |app| app.database_pods.clone());
    if let Some(PodReasons { until, mut reasons }) = known.filter(|known| now < known.until)
        && let Some(view) = reasons.remove(&spec)
    {
        return Some(DatabasePods { why: view.why, until });
    }
    let database = Key::new(&key.namespace, name);
    let listed = uncached::pods(ctx, key, &desired.account, ListParams::default().labels(&selector)).await;
    let listed = listed.inspect_err(|error| tracing::debug!(app = %key, "{error}")).unwrap_or_default();
    let refused = || ctx.watches.refused_job(&database, since).filter(|_| listed.is_empty());
    let why = provider.pods_problem(&database, &found.uid, &listed).or_else(refused);
    let view = PodsView { there: listed.len(), why: why.clone(), stuck: None };
    let look = PodReasons { until: next, reasons: [(spec, view)].into() };
    ctx.memory.put(key, |app| app.database_pods = Some(look));
    Some(DatabasePods { why, until: next })
}

/// Returns the databases that the app has left.
fn former(
    ctx: &Ctx,
    key: &Key,
    (provider, name): (&dyn Provider, &str),
    recorded: &ClientAppStatus,
) -> Vec<FormerDatabase> {
    let of_kind = owned::former(&recorded.owned, recorded, name).filter(|entry| entry.kind == provider.kind().as_str());
    let former = of_kind.filter_map(|Owned { name, uid, .. }| {
        let found = ctx.watches.database(provider, &Key::new(&key.namespace, name))?;
        let is_retained = found.retained_from.is_some();
        let exists = found.uid == *uid && !found.deleting;
        exists.then(|| FormerDatabase { name: name.clone(), uid: uid.clone(), is_retained })
    });
    former.collect()
}

/// Returns the objects beside a database, of each kind that its provider has.
fn parts(key: &Key, object: &DesiredObject, caches: &[PartCache]) -> Vec<PartView> {
    let view = |PartCache { kind, resource, name, to_install, objects }: &PartCache| {
        let (ApiResource { api_version, kind: api_kind, .. }, name) = (resource(), name(&object.name));
        PartView {
            kind,
            part_use: object.part_use(kind),
            is_recreatable: is_recreatable(&TypeMeta { api_version, kind: api_kind }),
            availability: objects.availability(),
            to_install,
            object: objects.objects.get(&Key::new(&key.namespace, name.as_str())),
            name,
        }
    };
    caches.iter().map(view).collect()
}

/// Returns the backups that the database's operator makes by schedule.
fn scheduled(ctx: &Ctx, key: &Key, object: &DesiredObject, found: Option<&DatabaseObject>) -> ScheduledBackups {
    let schedules = object.backup_schedules();
    let Some(backups) = ctx.watches.of(object.provider).backups.as_ref().filter(|_| !schedules.is_empty()) else {
        return ScheduledBackups::default();
    };
    let seen = backups.objects.group(&Key::new(&key.namespace, &object.name));
    ScheduledBackups::of(found, object.provider.info().backups, schedules, &seen)
}
