//! The stage `act`, the **effect** that changes things: carries out a plan's steps in order and stops at the first error.

pub(crate) mod account;
mod backup;
mod drift_repair;
mod helm;
pub(crate) mod retention;
mod take_over;

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    core::v1::{Pod, Secret},
};
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams, TypeMeta},
};
use serde_json::json;

use self::retention::RetentionContext;
use super::{
    context::{App, Ctx, owner_reference},
    decide::plan::{Apply, Plan, Step},
    error::Error,
    observe::{sources, uncached},
    observed::types::{FormerDatabase, Observed},
    spec::{
        database::{DatabasePart, DesiredObject, PartCache, SeenPart},
        desired::Desired,
        secrets,
    },
    status::{events, write},
};
use crate::{
    crd::ClientAppStatus,
    deletion::{self, permit::DataKind, recreatable},
    platform::{
        api::create_if_absent,
        client::impersonating,
        key::Key,
        pods::{self, StuckPod},
        watch::owner,
    },
};

const POSTGRES_MANAGER: &str = "clientapp-operator/postgres";

/// Carries out the steps. `status` is what was recorded before.
///
/// # Errors
/// The first step that failed. A failure of helm or of the chart is not a failure of a step.
pub(crate) async fn act(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    status: &ClientAppStatus,
) -> Result<(), Error> {
    for step in &plan.steps {
        match step {
            Step::CreateDeployer { part, again } => account::create(ctx, app, *part, *again).await?,
            Step::CreateAdminSecret => create(ctx, app, secrets::admin(app.key, app.uid())).await?,
            Step::CreateRedisSecret => create(ctx, app, secrets::redis(app.key, owner_reference(app))).await?,
            Step::Adopt(found) => retention::adopt(ctx, &owner_reference(app), desired, found).await?,
            Step::ApplyDatabase(apply) => apply_database(ctx, app, desired, apply).await?,
            Step::RetainDatabase(former) => retain_database(ctx, app, desired, former).await?,
            Step::DeletePart { kind, uid } => delete_part(ctx, app, desired, (kind, uid)).await?,
            Step::BackUp(record) => backup::before_upgrade(ctx, app, record).await?,
            Step::UnlockRelease { secret, uid, revision } => {
                helm::unlock(ctx, app.key, (secret, uid), *revision).await?;
            }
            Step::CancelHelm => ctx.helm_runs.cancel(app.key),
            Step::FetchChart => helm::fetch(ctx, app, desired, observed),
            // Nothing to do: recording it in the status is the step.
            Step::RollBack(_) => {}
            Step::Repair(missing) => drift_repair::repair(ctx, app, desired, observed, missing).await?,
            Step::DeleteStuckPod(pod) => delete_stuck_pod(ctx, app, desired, pod).await?,
            Step::CreateRepositoryPassword(secret) => backup::create_password(ctx, app, secret).await?,
            Step::CreateBackup { name } => backup::create(ctx, app, name).await?,
            Step::DeleteBackup { name, uid } => backup::delete(ctx, app, name, uid).await,
            Step::WithdrawBackup { name, uid } => backup::withdraw(ctx, app, name, uid).await,
            Step::Test => helm::test(ctx, app, desired, observed, plan),
            Step::HelmUpgrade { revision, .. } => {
                helm::upgrade(ctx, app, desired, observed, plan, status, *revision).await?
            }
        }
    }
    // If the app is gone without a teardown, no later reconcile would name what was created for it.
    let stays = |step: &Step| {
        matches!(step, Step::CreateAdminSecret | Step::Adopt(_) | Step::ApplyDatabase(Apply { uid: None, .. }))
    };
    match plan.steps.iter().any(stays) && uncached::is_gone(ctx, app).await? {
        true => Err(Error::Gone(app.key.clone())),
        false => Ok(()),
    }
}

/// Creates a Secret, and never changes an existing one: its password is in use.
async fn create(ctx: &Ctx, app: &App<'_>, secret: Secret) -> Result<(), Error> {
    let key = app.key;
    let name = secret.metadata.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let made = create_if_absent(&api, None, &secret).await;
    if let Some(made) = made.map_err(Error::api(format!("create Secret {}/{name}", key.namespace)))? {
        ctx.memory.recently_created.record(key, app.uid(), DataKind::Secret.owned(&made.metadata));
        if let Ok(object) = app.object() {
            sources::remember(ctx, object, made).await?;
        }
    }
    Ok(())
}

/// Applies the database object without force: a field that a user or another operator has taken over stays theirs, and the
/// conflict is reported.
async fn apply_database(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    Apply { targets, source, isolated, uid }: &Apply,
) -> Result<(), Error> {
    let Some(object @ DesiredObject { provider, name, .. }) = desired.database_object() else { return Ok(()) };
    let mut document = object.document(targets).applied(app.uid(), uid.as_deref());
    if *isolated {
        provider.isolate(&mut document);
    }
    if let Some(source) = source {
        provider.set_data_source(&mut document, source);
    }
    let api = deletion::api(&ctx.client, &app.key.namespace, provider.kind());
    let what = format!("{} {}/{name}", provider.kind().as_str(), app.key.namespace);
    // A late watch may show an outdated spec that asks for an empty database, while the current spec restores it from a dump.
    if uid.is_none() && !uncached::is_current(ctx, app).await? {
        return Ok(());
    }
    // An apply would take over an object that the cache does not show yet. The next pass finds out who owns it.
    if uid.is_none() && api.get_metadata_opt(name).await.map_err(Error::api(format!("look for {what}")))?.is_some() {
        return Ok(());
    }
    if let Some(uid) = uid {
        for part in object.parts(targets, uid) {
            if !apply_part(ctx, app, uid, part).await? {
                return Ok(());
            }
        }
    }
    let applied = api.patch(name, &PatchParams::apply(POSTGRES_MANAGER), &Patch::Apply(&document)).await;
    let applied = applied.map_err(Error::api(format!("apply {what}")))?;
    if uid.is_none() {
        ctx.memory.recently_created.record(app.key, app.uid(), provider.kind().owned(&applied.metadata));
    }
    Ok(())
}

/// Labels a database that the app has left, and changes nothing else of it.
async fn retain_database(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    FormerDatabase { name, uid, is_retained: _ }: &FormerDatabase,
) -> Result<(), Error> {
    let Some(object) = desired.database_object() else { return Ok(()) };
    let kind = object.provider.kind();
    let found = uncached::object(ctx, app.key, kind, name).await?;
    let Some(found) = found.filter(|found| found.uid.as_ref() == Some(uid) && found.deletion_timestamp.is_none())
    else {
        return Ok(());
    };
    let context = RetentionContext { key: app.key, uid: app.uid(), installed: None };
    retention::retain(ctx, &context, kind, &found).await?;
    let note = events::database_left(object, &Key::new(&app.key.namespace, name));
    write::publish(ctx, app, &[note]).await;
    Ok(())
}

/// Applies an object beside the database with this uid, in the same way. False: it is another's, which a later pass reports.
async fn apply_part(
    ctx: &Ctx,
    app: &App<'_>,
    uid: &str,
    DatabasePart { resource, mut document }: DatabasePart,
) -> Result<bool, Error> {
    let Key { namespace, name: app_name } = app.key;
    let name = document["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = format!("{} {namespace}/{name}", resource.kind);
    let api = Api::<DynamicObject>::namespaced_with(ctx.client.clone(), namespace, &resource);
    let found = api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for {what}")))?;
    if let Some(found) = found {
        if !SeenPart::read(&found.metadata).is_of(app_name, uid) {
            return Ok(false);
        }
        document["metadata"]["uid"] = json!(found.metadata.uid);
    }
    let applied = api.patch(&name, &PatchParams::apply(POSTGRES_MANAGER), &Patch::Apply(&document)).await;
    applied.map(|_| true).map_err(Error::api(format!("apply {what}")))
}

/// Deletes the object of this kind and uid beside the database, unless it or the spec has changed since it was judged.
async fn delete_part(ctx: &Ctx, app: &App<'_>, desired: &Desired, (kind, uid): (&str, &String)) -> Result<(), Error> {
    let Some(DesiredObject { provider, name: database, .. }) = desired.database_object() else { return Ok(()) };
    let namespace = &app.key.namespace;
    let Some(PartCache { resource, name, .. }) = ctx.watches.of(*provider).parts.iter().find(|part| part.kind == kind)
    else {
        return Ok(());
    };
    let (resource, name) = (resource(), name(database));
    let what = format!("{kind} {namespace}/{name}, which the spec no longer asks for");
    let api = Api::<DynamicObject>::namespaced_with(ctx.client.clone(), namespace, &resource);
    let found = api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for {what}")))?;
    let Some(found) = found.filter(|found| found.metadata.uid.as_ref() == Some(uid)) else { return Ok(()) };
    let is_its = SeenPart::read(&found.metadata).app.as_ref() == Some(&app.key.name);
    if !is_its || !uncached::is_current(ctx, app).await? {
        return Ok(());
    }
    let part_type = TypeMeta { api_version: resource.api_version.clone(), kind: resource.kind.clone() };
    let deleted = recreatable::delete_unchanged(&api, &part_type, &found.metadata).await;
    if deleted.map_err(Error::api(format!("delete {what}")))? {
        tracing::info!(app = %app.key, kind, name, "deleted: the spec no longer asks for it");
    }
    Ok(())
}

/// Deletes a pod, unless it or its StatefulSet has changed since it was judged. Later passes see what becomes of it.
async fn delete_stuck_pod(ctx: &Ctx, app: &App<'_>, desired: &Desired, judged: &StuckPod) -> Result<(), Error> {
    let Key { namespace, .. } = app.key;
    ctx.memory.drop(app.key, |app| app.pods = None);
    let client = impersonating(&ctx.client, namespace, &desired.account);
    let what = format!("pod {namespace}/{}, of a former revision", judged.name);
    // The watch that shows the present revision may be late.
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let sets: Api<StatefulSet> = Api::namespaced(client, namespace);
    let Some(pod) = pods.get_opt(&judged.name).await.map_err(Error::api(format!("get {what}")))? else { return Ok(()) };
    let Some(owner) = owner(&pod).map(|(_, name, _)| name) else { return Ok(()) };
    let set = sets.get_opt(&owner).await.map_err(Error::api(format!("get StatefulSet {namespace}/{owner}")))?;
    let Some(rollout) = set.as_ref().filter(|set| set.uid().as_ref() == Some(&judged.set)).and_then(pods::rollout)
    else {
        return Ok(());
    };
    let meta = pod.metadata.clone();
    if pods::stuck(&[pod], &judged.set, &rollout).as_ref() != Some(judged) || !uncached::is_current(ctx, app).await? {
        return Ok(());
    }
    let pod_type = TypeMeta { api_version: "v1".to_owned(), kind: "Pod".to_owned() };
    let deleted =
        recreatable::delete_unchanged(&pods, &pod_type, &meta).await.map_err(Error::api(format!("delete {what}")))?;
    if deleted {
        tracing::info!(app = %app.key, pod = judged.name, "deleted: it does not run, and its StatefulSet waits for it");
    }
    Ok(())
}
