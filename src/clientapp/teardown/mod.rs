//! The teardown: records what is to be deleted, then handles the release, then volumes, database and credentials according to the
//! policy, then the finalizer. An **effect**.
//!
//! It works even if the spec is invalid or does not decode, and it ends whatever Helm's storage contains. Data and credentials
//! are deleted only by [`crate::deletion`]; what lacks a proof is kept, and named.

mod context;
mod data;
mod file_jobs;
pub(crate) mod namespace;
pub(crate) mod policy;
mod release;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::controller::Action;

use self::{
    context::{TeardownContext, TeardownProgress},
    policy::{AppResource, DeletionOptions},
};
use super::{
    context::{App, Ctx},
    decide::plan::Plan,
    error::Error,
    hold::Hold,
    observe::{owned::owned, release::inventory, uncached},
    observed::{
        self, installed_chart,
        release::{ReleaseView, release_view},
    },
    spec::{database, desired},
    status::{conditions, events, write},
};
use crate::{
    crd::{ClientApp, ClientAppStatus, DeletionPolicy, Reason},
    deletion::permit::{DataKind, DataOwner as _, DeletionIntent, RetainedObject, is_orphaned, takes_dependents},
    platform::{clock, controller::RECHECK_GONE},
};

/// Takes down what belongs to a deleted app, as far as possible now, and reports it.
///
/// # Errors
/// A request or helm failed; the teardown is tried again.
pub(super) async fn take_down(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let status = match teardown(ctx, app).await? {
        TeardownProgress::Done(kept) => {
            write::publish(ctx, app, events::data_kept(app.key, &kept).as_slice()).await;
            let postgres = app.object().ok().map(|app| &app.spec.postgres);
            let databases = database::names(app.key, postgres, &app.recorded_status);
            let outcome = namespace::release(ctx, &app.key.namespace, (&databases, app.uid())).await?;
            write::publish(ctx, app, outcome.note(&app.key.namespace).as_slice()).await;
            let put = ctx.remove_finalizer(app).await?;
            ctx.forget(app.key);
            return Ok(put);
        }
        TeardownProgress::Record(status) => {
            let sentence = "what the deletion covers is recorded";
            conditions::progress(&status, app.meta().generation, Reason::Deleting, sentence, clock::now())
        }
        TeardownProgress::Hold(hold) => {
            write::tell(
                ctx,
                app,
                &conditions::deleting(&app.recorded_status, app.meta().generation, &hold, clock::now()),
            )
            .await?;
            return Ok(Plan { hold: Some(hold), ..Plan::default() }.requeue(clock::now()));
        }
    };
    write::tell(ctx, app, &status).await?;
    Ok(Action::requeue(Duration::ZERO))
}

async fn teardown(ctx: &Ctx, app: &App<'_>) -> Result<TeardownProgress, Error> {
    let key = app.key;
    if let Some(hold) = release::stop_upgrade(ctx, app) {
        return Ok(TeardownProgress::Hold(hold));
    }
    let deletion_intent = app.object().ok().map(ClientApp::deletion_intent);
    if deletion_intent == Some(DeletionIntent::Suspended) {
        let message = "the ClientApp is deleted, and spec.suspend is true: nothing is taken down until it is false";
        return Ok(TeardownProgress::Hold(Hold::new(Reason::Suspended, message)));
    }

    let revisions = uncached::revisions(ctx, key).await?;
    let release = release_view(&revisions);
    let (status, claims) = recorded(ctx, app, release.as_ref()).await?;
    // An app that does not decode keeps everything, and the API server may reject any status for it.
    if status != app.recorded_status && deletion_intent.is_some() {
        return Ok(TeardownProgress::Record(Box::new(status)));
    }
    let teardown = TeardownContext {
        app,
        status: &status,
        claims: &claims,
        deletion_intent,
        // If the spec cannot be read, the deployer.
        account: app.object().ok().and_then(|app| desired::account(&app.spec).ok()).unwrap_or_default(),
        deletion: options(deletion_intent, &status),
        installed: installed_chart::installed(&status),
    };

    // Before the first step: an app that was deleted by accident keeps serving.
    if teardown.is_deleted(AppResource::Volumes)
        && !status.owned.is_empty()
        && let Some(message) = held(ctx, app).await?
    {
        return Ok(TeardownProgress::Hold(Hold::new(Reason::DeletionHeld, message)));
    }

    let foreign = release.as_ref().is_some_and(|release| !release.ever_managed);
    if foreign {
        tracing::warn!(release = %key, "the release is not this operator's and stays as it is");
    } else if teardown.is_deleted(AppResource::Release)
        && let Some(hold) = release::may_be_uninstalled(&teardown, release.as_ref())
    {
        return Ok(TeardownProgress::Hold(hold));
    }
    // A pod that archives a volume keeps it from being deleted.
    if teardown.is_deleted(AppResource::Release) {
        file_jobs::delete(ctx, app).await?;
    }
    // First, so that retained data can be found whatever happens to the rest.
    if !teardown.is_deleted(AppResource::Volumes) {
        data::leave(ctx, &teardown).await?;
    }
    if !foreign
        && teardown.is_deleted(AppResource::Release)
        && let Some(hold) = release::uninstall(ctx, &teardown, release.as_ref()).await?
    {
        return Ok(TeardownProgress::Hold(hold));
    }
    data::destroy(ctx, &teardown, foreign).await
}

/// Returns why the data of this app are not deleted yet.
async fn held(ctx: &Ctx, app: &App<'_>) -> Result<Option<String>, Error> {
    let (conditions, total) = (&app.recorded_status.conditions, ctx.watches.apps.store.len());
    let held = ctx.deletion_brake.held::<ClientApp>(&ctx.client, app.meta(), conditions, (total, clock::now()));
    Ok(held.await?)
}

/// Returns what a deletion may delete, by the spec and by how the app is deleted.
fn options(intent: Option<DeletionIntent>, status: &ClientAppStatus) -> DeletionOptions {
    let policy = match intent {
        Some(DeletionIntent::Delete) => DeletionPolicy::Delete,
        // If the policy cannot be read, the data are kept.
        _ => DeletionPolicy::Retain,
    };
    DeletionOptions { policy, orphans: status.orphaned == Some(true) }
}

/// Names what is left of an app that is gone without a teardown: its finalizer was edited out, or the app was deleted while the
/// finalizer was being added, for which the API server does not wait. An app that still exists after all is reconciled again.
pub(super) async fn abandoned(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let key = app.key;
    if !uncached::is_gone(ctx, app).await? {
        return Ok(Action::requeue(RECHECK_GONE));
    }
    let mut kept = Vec::new();
    let databases = data::databases(ctx, app, &app.recorded_status.owned);
    let of_databases = databases.into_iter().map(|data::Database { provider, name }| (provider.kind(), name));
    for (kind, name) in of_databases.chain([(DataKind::Secret, key.admin_secret())]) {
        let found = uncached::object(ctx, key, kind, &name).await?;
        if found.is_some_and(|found| observed::owned::is_stamped(app.meta(), &found)) {
            kept.push(RetainedObject {
                kind,
                name,
                because: "stays: the ClientApp is gone without a teardown".to_owned(),
            });
        }
    }
    write::publish(ctx, app, events::data_kept(key, &kept).as_slice()).await;
    Ok(Action::await_change())
}

/// Returns the status with everything that the deletion depends on: the inventory, the owned objects, and how the app is
/// deleted. And the volumes in its namespace.
async fn recorded(
    ctx: &Ctx,
    app: &App<'_>,
    release: Option<&ReleaseView>,
) -> Result<(ClientAppStatus, Vec<ObjectMeta>), Error> {
    let before = &app.recorded_status;
    let inventory = inventory(ctx, app.key, release, before).await?;
    // Listed from the API server: after the deletion, no watch that was late would matter any more. As late as possible, since a
    // controller may create another one.
    let claims = uncached::claims(ctx, &app.key.namespace).await?;
    let owned = owned(ctx, app, inventory.as_ref(), &claims);
    let orphaned = match before.orphaned {
        Some(true) => true,
        // Checked in each pass: a user may delete the app again, with --cascade=orphan.
        _ => {
            let orphaned = orphaned(ctx, app).await?;
            write::publish(ctx, app, events::orphaned(app.key, orphaned, &owned).as_slice()).await;
            orphaned.unwrap_or(true)
        }
    };
    let installed = installed_chart::installed_now(release, before);
    Ok((ClientAppStatus { inventory, installed, owned, orphaned: Some(orphaned), ..before.clone() }, claims))
}

/// Returns true if the app is deleted with `--cascade=orphan`; `None`: unknown. The garbage collector removes its finalizer
/// from the app after it has removed the app's ownerReference from all dependents. So the Redis Secret shows an orphaning
/// deletion to a process that did not see the finalizer, because it was not running or its watch was late. A Secret that is
/// gone shows nothing: a user may have deleted it. Only a foreground deletion explains it, since in a background deletion the
/// garbage collector waits for the app.
async fn orphaned(ctx: &Ctx, app: &App<'_>) -> Result<Option<bool>, Error> {
    let (key, meta, before) = (app.key, app.meta(), &app.recorded_status);
    if is_orphaned(meta) || ctx.memory.read(key, |seen| seen.orphaned.as_deref() == Some(app.uid())) {
        return Ok(Some(true));
    }
    if before.owned.is_empty() && before.inventory.is_none() && before.last_attempt.is_none() {
        return Ok(Some(false));
    }
    let name = key.redis_secret();
    let made = ctx.memory.recently_created.created_for(key, app.uid());
    let witness = observed::owned::uid(&before.owned, DataKind::Secret, &name)
        .or_else(|| observed::owned::uid(&made, DataKind::Secret, &name));
    let of_app =
        |found: &ObjectMeta| found.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == meta.uid.as_ref());
    Ok(match uncached::object(ctx, key, DataKind::Secret, &name).await? {
        Some(found) if of_app(&found) => Some(false),
        Some(found) if witness.is_some() && found.uid.as_deref() == witness => Some(true),
        // A Secret recreated by a user shows nothing.
        Some(_) => None,
        None => {
            let foreground =
                takes_dependents(meta) || ctx.memory.read(key, |seen| seen.foreground.as_deref() == Some(app.uid()));
            (before.orphaned == Some(false) || foreground && witness.is_some()).then_some(false)
        }
    })
}
