//! The data and credentials of a deleted app: retained, or deleted one by one. An **effect**.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta},
};

use super::{
    context::{TeardownContext, TeardownProgress},
    policy::AppResource,
};
use crate::{
    clientapp::{
        Ctx,
        act::retention,
        context::App,
        error::Error,
        hold::{Hold, SAFETY_NET},
        observe::uncached,
        observed::owned,
        spec::{
            database::{self, DeletesByLabel, Provider, ProviderInfo},
            names,
        },
    },
    crd::{ClientApp, Owned, Reason, label},
    deletion::{
        self,
        permit::{DataKind, RetainedObject, is_owned_by},
    },
    platform::{clock, key::Key, watch_builder::Availability},
};

/// A database that an app may have.
pub(super) struct Database {
    pub(super) provider: &'static dyn Provider,
    pub(super) name: String,
}

/// Returns the databases that the app may have: those on record, and that of its spec. Without a record, nothing is deleted, and a kind
/// that the cluster lacks, or that the operator may not read, holds nothing up.
pub(super) fn databases(ctx: &Ctx, app: &App<'_>, owned: &[Owned]) -> Vec<Database> {
    let of_provider = |provider: &'static dyn Provider| {
        let kind = provider.kind().as_str();
        let recorded = owned.iter().filter(move |entry| entry.kind == kind).map(|entry| entry.name.clone());
        let is_there = ctx.watches.of(provider).objects.availability() == Availability::Installed;
        let names: BTreeSet<_> = recorded.chain(is_there.then(|| name(app))).collect();
        names.into_iter().map(move |name| Database { provider, name })
    };
    database::all().flat_map(of_provider).collect()
}

/// Returns the name of the database that the spec asks for, if it can be read.
pub(super) fn name(app: &App<'_>) -> String {
    app.object().map_or_else(|_| app.key.database(), |object| database::name(app.key, &object.spec.postgres))
}

/// Retains the recorded objects of the app, and what belongs to its database.
pub(super) async fn leave(ctx: &Ctx, teardown: &TeardownContext<'_>) -> Result<(), Error> {
    let key = teardown.app.key;
    // Credentials first: without them the data could be found, but not used.
    for database in databases(ctx, teardown.app, &teardown.status.owned) {
        let (kind, name) = (database.provider.kind(), &database.name);
        match uncached::object(ctx, key, kind, name).await? {
            None => drop(leftovers(ctx, teardown, &database).await?),
            Some(object) if teardown.owns(kind, &object) => {
                of_database(ctx, teardown, &database).await?;
                retention::retain(ctx, &teardown.retention(), kind, &object).await?;
            }
            Some(_) => tracing::warn!(kind = kind.as_str(), name, "is not this ClientApp's and stays as it is"),
        }
    }
    for entry in teardown.status.owned.iter().filter(|entry| entry.kind == DataKind::Volume.as_str()) {
        leave_one(ctx, teardown, DataKind::Volume, &entry.name).await?;
    }
    if !teardown.is_deleted(AppResource::RedisSecret) {
        // The release keeps using it.
        leave_one(ctx, teardown, DataKind::Secret, &key.redis_secret()).await?;
    }
    leave_one(ctx, teardown, DataKind::Secret, &key.admin_secret()).await
}

async fn leave_one(ctx: &Ctx, teardown: &TeardownContext<'_>, kind: DataKind, name: &str) -> Result<(), Error> {
    match uncached::object(ctx, teardown.app.key, kind, name).await? {
        Some(meta) if teardown.owns(kind, &meta) => retention::retain(ctx, &teardown.retention(), kind, &meta).await,
        _ => Ok(()),
    }
}

/// Retains the Secrets with a database's credentials, and its volumes, and returns those that nothing else deletes.
async fn of_database(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    Database { provider, name: database }: &Database,
) -> Result<Vec<(DataKind, String)>, Error> {
    let mut retained = Vec::new();
    // The garbage collector, or whoever has a finalizer, deletes the others.
    let stays = |meta: &ObjectMeta| {
        meta.deletion_timestamp.is_none() && meta.owner_references.iter().flatten().next().is_none()
    };
    let leaving = &teardown.retention();
    let key = leaving.key;
    for name in provider.secrets(database) {
        if let Some(secret) = uncached::object(ctx, key, DataKind::Secret, &name).await? {
            retention::retain(ctx, leaving, DataKind::Secret, &secret).await?;
            retained.extend(stays(&secret).then_some((DataKind::Secret, name)));
        }
    }
    let ProviderInfo { volume_label, names_volume, .. } = provider.info();
    for claim in labelled(ctx, key, DataKind::Volume, &format!("{volume_label}={database}")).await? {
        let of_others = claim.labels().get(label::RETAINED_FROM).is_some_and(|app| *app != key.name);
        if !of_others && names_volume(database, &claim.name_any()) {
            retention::retain(ctx, leaving, DataKind::Volume, &claim.metadata).await?;
            retained.extend(stays(&claim.metadata).then(|| (DataKind::Volume, claim.name_any())));
        }
    }
    Ok(retained)
}

/// Retains what is left of the app's database when that is gone, so that a later app of this name gets it only on request, and
/// returns it: of one that another client deleted, or that its operator did not delete whole.
async fn leftovers(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    database: &Database,
) -> Result<Vec<(DataKind, String)>, Error> {
    let Database { provider, name } = database;
    let had_one = owned::uid(&teardown.status.owned, provider.kind(), name).is_some();
    match had_one && provider.info().reuses_leftovers {
        true => of_database(ctx, teardown, database).await,
        false => Ok(Vec::new()),
    }
}

/// Deletes what the app owns, as far as possible now, each object with a proof; objects without one are reported.
pub(super) async fn destroy(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    foreign: bool,
) -> Result<TeardownProgress, Error> {
    let mut kept = Vec::new();
    if teardown.is_deleted(AppResource::Volumes) {
        if !foreign && let Some(hold) = volumes(ctx, teardown, &mut kept).await? {
            return Ok(TeardownProgress::Hold(hold));
        }
        for found in databases(ctx, teardown.app, &teardown.status.owned) {
            if !is_used(teardown, &found.name) {
                former(ctx, teardown, &found, &mut kept).await?;
            } else if let Some(hold) = database(ctx, teardown, &found, &mut kept).await? {
                return Ok(TeardownProgress::Hold(hold));
            }
        }
        let key = teardown.app.key;
        if let Some(meta) = uncached::object(ctx, key, DataKind::Secret, &key.admin_secret()).await?
            && let Some(hold) = one(ctx, teardown, DataKind::Secret, meta, &mut kept).await?
        {
            return Ok(TeardownProgress::Hold(hold));
        }
    }
    // Last, since it shows how the app was deleted to a process that does not find that on record.
    let (key, uid) = (teardown.app.key, teardown.app.uid());
    if teardown.is_deleted(AppResource::RedisSecret)
        && let Some(secret) = uncached::object(ctx, key, DataKind::Secret, &key.redis_secret()).await?
    {
        teardown.destroyer(ctx).delete_dependent::<ClientApp>(key, uid, secret).await?;
    }
    Ok(TeardownProgress::Done(kept))
}

/// Returns the release's volumes: charts ask Helm to keep them, and Helm never knew those of a StatefulSet.
async fn volumes(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    kept: &mut Vec<RetainedObject>,
) -> Result<Option<Hold>, Error> {
    let key = teardown.app.key;
    let mut waits = None;
    for entry in teardown.status.owned.iter().filter(|entry| entry.kind == DataKind::Volume.as_str()) {
        let Some(meta) = uncached::object(ctx, key, DataKind::Volume, &entry.name).await? else { continue };
        // It is a later object of the same name.
        if !teardown.owns(DataKind::Volume, &meta) {
            continue;
        }
        let hold = one(ctx, teardown, DataKind::Volume, meta, kept).await?;
        waits = waits.or(hold);
    }
    for claim in teardown.claims {
        let label = |key: &str| claim.labels.as_ref().and_then(|labels| labels.get(key));
        let alike = label(owned::INSTANCE) == Some(&key.name) || names::release_of(claim).as_ref() == Some(key);
        let of_database = label(label::RETAINED_FROM) == Some(&key.database()) && label(label::APP) == Some(&key.name);
        let because = match (alike, of_database) {
            (true, _) => "stays: it is not on record as made for this ClientApp",
            (_, true) => "stays: the database was deleted before its ClientApp, and has left it",
            (false, false) => continue,
        };
        if !teardown.owns(DataKind::Volume, claim) && claim.deletion_timestamp.is_none() {
            let name = claim.name.clone().unwrap_or_default();
            kept.push(RetainedObject { kind: DataKind::Volume, name, because: because.to_owned() });
        }
    }
    Ok(waits)
}

/// Returns true if the app uses the database of this name, or its spec names it, which may be to move to it. Of others on record, it is
/// not known which data are in them, and whether anybody needs those.
fn is_used(teardown: &TeardownContext<'_>, database: &str) -> bool {
    teardown.status.postgres_cluster_name.as_deref() == Some(database) || name(teardown.app) == database
}

/// Retains a database that the app has left, and names it.
async fn former(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    Database { provider, name }: &Database,
    kept: &mut Vec<RetainedObject>,
) -> Result<(), Error> {
    let kind = provider.kind();
    let found = uncached::object(ctx, teardown.app.key, kind, name).await?;
    if let Some(found) = found.filter(|found| found.deletion_timestamp.is_none() && teardown.owns(kind, found)) {
        retention::retain(ctx, &teardown.retention(), kind, &found).await?;
        let because = "stays: the ClientApp had moved to another".to_owned();
        kept.push(RetainedObject { kind, name: name.clone(), because });
    }
    Ok(())
}

async fn database(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    found: &Database,
    kept: &mut Vec<RetainedObject>,
) -> Result<Option<Hold>, Error> {
    let (key, Database { provider, name }) = (teardown.app.key, found);
    let kind = provider.kind();
    // Without the object or its kind, there is no database of this provider.
    let Some(meta) = uncached::object(ctx, key, kind, name).await? else {
        if let Some(hold) = collected(ctx, teardown, found).await? {
            return Ok(Some(hold));
        }
        let title = provider.info().title;
        let because = format!("stays: {title} has left it; delete it, or let the next ClientApp adopt it");
        let left = leftovers(ctx, teardown, found).await?.into_iter();
        kept.extend(left.map(|(kind, name)| RetainedObject { kind, name, because: because.clone() }));
        return Ok(None);
    };
    if meta.deletion_timestamp.is_none()
        && teardown.owns(kind, &meta)
        && let Some(hold) = look_alike(ctx, key, found).await?
    {
        return Ok(Some(hold));
    }
    let hold = one(ctx, teardown, kind, meta, kept).await?;
    let state = || ctx.watches.database(*provider, &Key::new(&key.namespace, name)).map(|seen| seen.state);
    Ok(hold.map(|hold| Hold { message: provider.deleting(name, state()), ..hold }))
}

/// Returns a hold while the garbage collector deletes the volumes and Secrets of a database object that is gone: a later app of this
/// name would meet them.
async fn collected(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    Database { provider, name }: &Database,
) -> Result<Option<Hold>, Error> {
    let (key, kind) = (teardown.app.key, provider.kind());
    let recorded = owned::uid(&teardown.status.owned, kind, name);
    let Some((uid, _)) = recorded.zip(provider.info().data_goes_with_object) else { return Ok(None) };
    let going = |reason: Reason, what: &str| {
        let message = format!("waiting for {what} of the deleted {} {name} to be gone", kind.as_str());
        Ok(Some(Hold::new(reason, message).until(clock::now() + SAFETY_NET)))
    };
    if let Some(claim) = teardown.claims.iter().find(|claim| is_owned_by(claim, uid)) {
        let claim = claim.name.as_deref().unwrap_or_default();
        return going(Reason::DeletingVolumes, &format!("PersistentVolumeClaim {claim}"));
    }
    for secret in provider.secrets(name) {
        let found = uncached::object(ctx, key, DataKind::Secret, &secret).await?;
        if found.is_some_and(|found| is_owned_by(&found, uid)) {
            return going(Reason::DeletingSecrets, &format!("Secret {secret}"));
        }
    }
    Ok(None)
}

/// Returns a hold if the database's deletion would also delete an object that does not belong to it.
async fn look_alike(
    ctx: &Ctx,
    key: &Key,
    Database { provider, name: database }: &Database,
) -> Result<Option<Hold>, Error> {
    let ProviderInfo { title, volume_label, deletes_by_label, .. } = provider.info();
    let Some(DeletesByLabel { objects, reason }) = deletes_by_label else { return Ok(None) };
    for (kind, more, names) in *objects {
        let more = more.map_or_else(String::new, |selector| format!(",{selector}"));
        let labelled = labelled(ctx, key, *kind, &format!("{volume_label}={database}{more}")).await?;
        let Some(other) = labelled.iter().map(|object| object.name_any()).find(|name| !names(database, name)) else {
            continue;
        };
        let message = format!(
            "{} {other} is not {title}'s, but has the label {volume_label}={database}, so {title} would delete it together with {} {database}: remove the label from it, or delete it",
            kind.as_str(),
            provider.kind().as_str(),
        );
        return Ok(Some(Hold::new(*reason, message).until(clock::now() + SAFETY_NET)));
    }
    Ok(None)
}

/// Deletes one object if there is a proof, and waits until it is gone.
async fn one(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    kind: DataKind,
    meta: ObjectMeta,
    kept: &mut Vec<RetainedObject>,
) -> Result<Option<Hold>, Error> {
    let name = meta.name.clone().unwrap_or_default();
    let hold = |reason: Reason, message: String| Ok(Some(Hold::new(reason, message).until(clock::now() + SAFETY_NET)));
    let destroyer = teardown.destroyer(ctx);
    let grant = match destroyer.grant::<ClientApp>(teardown.app.key, teardown.app.uid()).await? {
        Ok(grant) => grant,
        // The ClientApp may have changed since this pass began; the change triggers the next pass, which considers it.
        Err(why) => return hold(Reason::Deleting, format!("{} {name} is not deleted, since {why}", kind.as_str())),
    };
    match grant.permit(kind, meta) {
        Ok(permit) => destroyer.delete(permit).await?,
        Err(reason) => {
            kept.push(reason);
            return Ok(None);
        }
    }
    let reason = match kind {
        DataKind::Volume => Reason::DeletingVolumes,
        DataKind::Secret => Reason::DeletingSecrets,
        DataKind::Database(_) => Reason::DeletingDatabase,
    };
    if kind == DataKind::Secret && uncached::object(ctx, teardown.app.key, kind, &name).await?.is_none() {
        return Ok(None);
    }
    hold(reason, format!("waiting for {} {name} to be gone", kind.as_str()))
}

async fn labelled(
    ctx: &Ctx,
    key: &Key,
    kind: DataKind,
    labels: &str,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let api = deletion::api(&ctx.client, &key.namespace, kind);
    let objects = api.list_metadata(&ListParams::default().labels(labels)).await;
    let objects =
        objects.map_err(Error::api(format!("list each {} of {labels} in {}", kind.as_str(), key.namespace)))?;
    Ok(objects.items.into_iter().filter(|object| object.metadata.deletion_timestamp.is_none()).collect())
}
