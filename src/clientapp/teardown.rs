//! Deletion: what is taken down is put on record, then the release, then volumes, database and credentials by policy, then
//! the finalizer. An **effect**.
//!
//! It works with a spec that is invalid or does not decode, and ends whatever Helm's storage says. What holds or opens data
//! goes by [`crate::destroy`] alone; what lacks a proof is kept, and named.

mod data;
mod going;
mod release;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::controller::Action;

use self::going::{Going, Progress};
use super::{
    context::{App, Ctx},
    database, desired,
    error::Error,
    live, namespace, observe,
    observed::ReleaseView,
    outcome::{Deletion, Piece},
    owned,
    plan::{Hold, Plan},
    report, upgrade,
};
use crate::{
    crd::{ClientApp, ClientAppStatus, DeletionPolicy, Reason},
    destroy::permit::{Kept, Kind, Owner as _, Wish, is_orphaned},
    runtime::{clock, controller::WRONGLY_GONE},
};

/// Takes down what belongs to a deleted app, as far as it goes now, and says so.
///
/// # Errors
/// A request or helm failed; the deletion is tried again.
pub(super) async fn take_down(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let status = match teardown(ctx, app).await? {
        Progress::Done(kept) => {
            report::publish(ctx, app, report::data_kept(app.key, &kept).as_slice()).await;
            let outcome = namespace::release(ctx, app.key, app.uid()).await?;
            report::publish(ctx, app, outcome.note(&app.key.namespace).as_slice()).await;
            let put = ctx.put_finalizer(app, false).await?;
            ctx.forget(app.key);
            return Ok(put);
        }
        Progress::Record(status) => {
            let sentence = "what the deletion is about is on record";
            report::progress(&status, app.meta().generation, Reason::Deleting, sentence, clock::now())
        }
        Progress::Hold(hold) => {
            report::tell(ctx, app, &report::deleting(&app.before, app.meta().generation, &hold, clock::now())).await?;
            return Ok(Plan::default().hold(hold).requeue(clock::now()));
        }
    };
    report::tell(ctx, app, &status).await?;
    Ok(Action::requeue(Duration::ZERO))
}

async fn teardown(ctx: &Ctx, app: &App<'_>) -> Result<Progress, Error> {
    let key = app.key;
    if let Some(hold) = release::stop_upgrade(ctx, app) {
        return Ok(Progress::Hold(hold));
    }
    let wish = app.object().ok().map(ClientApp::wish);
    if wish == Some(Wish::Suspended) {
        let message = "the ClientApp is deleted, and spec.suspend is true: nothing is taken down until it is false";
        return Ok(Progress::Hold(Hold::new(Reason::Suspended, message)));
    }

    let revisions = live::revisions(ctx, key).await?;
    let release = observe::release_view(&revisions);
    let status = recorded(ctx, app, release.as_ref()).await?;
    // What does not decode keeps everything anyway, and may take no status either.
    if status != app.before && wish.is_some() {
        return Ok(Progress::Record(Box::new(status)));
    }
    let policy = match wish {
        Some(Wish::Delete) => DeletionPolicy::Delete,
        // Who cannot read the policy keeps the data.
        _ => DeletionPolicy::Retain,
    };
    let deletion = Deletion { policy, orphans: status.orphaned == Some(true) };
    // Where the spec cannot be read, the one that the operator makes.
    let account = app.object().ok().and_then(|app| desired::account(&app.spec).ok()).unwrap_or_default();
    let going = Going { app, status: &status, wish, account, deletion, installed: upgrade::installed(&status) };

    let foreign = release.as_ref().is_some_and(|release| !release.known);
    if foreign {
        tracing::warn!(release = %key, "the release is not this operator's and stays as it is");
    } else if going.goes(Piece::Release)
        && let Some(hold) = release::may_be_uninstalled(ctx, &going, release.as_ref()).await?
    {
        return Ok(Progress::Hold(hold));
    }
    // First: whatever happens to the rest, what is retained can be found.
    if !going.goes(Piece::Volumes) {
        data::leave(ctx, &going).await?;
    }
    if !foreign
        && going.goes(Piece::Release)
        && let Some(hold) = release::uninstall(ctx, &going, release.as_ref()).await?
    {
        return Ok(Progress::Hold(hold));
    }
    data::destroy(ctx, &going, foreign).await
}

/// Names what stays of an app that went without its teardown: its finalizer was edited out, or it was deleted while that was
/// written, which the API server does not wait for. One that is there after all is looked at again.
pub(super) async fn abandoned(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let key = app.key;
    if !live::is_gone(ctx, app).await? {
        return Ok(Action::requeue(WRONGLY_GONE));
    }
    let mut kept = Vec::new();
    let of_databases = database::all().map(|provider| (provider.kind(), key.database()));
    for (kind, name) in of_databases.chain([(Kind::Secret, key.admin_secret())]) {
        let found = live::object(ctx, key, kind, &name).await?;
        if found.is_some_and(|found| owned::is_stamped(app.meta(), &found)) {
            kept.push(Kept { kind, name, because: "stays: the ClientApp has not waited for its teardown".to_owned() });
        }
    }
    report::publish(ctx, app, report::data_kept(key, &kept).as_slice()).await;
    Ok(Action::await_change())
}

/// The status with all that the deletion depends on: what the release consists of, what is the app's own, and how it is deleted.
async fn recorded(ctx: &Ctx, app: &App<'_>, release: Option<&ReleaseView>) -> Result<ClientAppStatus, Error> {
    let before = &app.before;
    let inventory = observe::inventory(ctx, app.key, release, before).await?;
    let owned = observe::owned(ctx, app, inventory.as_ref());
    let orphaned = match before.orphaned {
        Some(true) => true,
        // In each pass: a deletion may be asked for once more, with --cascade=orphan.
        _ => {
            let orphaned = orphaned(ctx, app).await?;
            report::publish(ctx, app, report::orphaned(app.key, orphaned, &owned).as_slice()).await;
            orphaned.unwrap_or(true)
        }
    };
    let installed = upgrade::installed_now(release, before);
    Ok(ClientAppStatus { inventory, installed, owned, orphaned: Some(orphaned), ..before.clone() })
}

/// Whether the app is deleted with `--cascade=orphan`; `None`: that cannot be known. The garbage collector takes its mark off
/// the app when it has taken the app's ownerReference off all that has one, and so the Redis Secret shows it to a process that
/// was not there to see the mark, or whose watch was late.
async fn orphaned(ctx: &Ctx, app: &App<'_>) -> Result<Option<bool>, Error> {
    let (key, meta, before) = (app.key, app.meta(), &app.before);
    let seen = ctx.memory.orphaned.get(key);
    if is_orphaned(meta) || (seen.is_some() && seen == meta.uid) {
        return Ok(Some(true));
    }
    if before.owned.is_empty() && before.inventory.is_none() && before.last_attempt.is_none() {
        return Ok(Some(false));
    }
    let name = key.redis_secret();
    let made = ctx.memory.made(key, app.uid());
    let witness = owned::uid(&before.owned, Kind::Secret, &name).or_else(|| owned::uid(&made, Kind::Secret, &name));
    let of_app =
        |found: &ObjectMeta| found.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == meta.uid.as_ref());
    Ok(match live::object(ctx, key, Kind::Secret, &name).await? {
        Some(found) if of_app(&found) => Some(false),
        Some(found) if witness.is_some() && found.uid.as_deref() == witness => Some(true),
        // Made anew by hand, it has seen nothing.
        Some(_) => None,
        // Collected, as in every other deletion.
        None => witness.map(|_| false),
    })
}
