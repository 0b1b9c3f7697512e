//! Deletion: a last dump if asked for, then servers, volumes by policy, Secrets, then the finalizer. An **effect**.
//!
//! One pure function, [`outcome`], decides what happens to the data: they are deleted only if the whole spec is understood and says
//! so. Each volume and Secret is deleted through [`crate::deletion`], which reads the API server again, and by its recorded uid; what
//! lacks a proof is kept and named in an event. Whether something is gone is also read from the API server, as a cache may be
//! outdated.

mod data;
mod last_dump;
mod outcome;
mod recreatable;

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{ResourceExt as _, api::ApiResource, runtime::controller::Action};

use self::{
    data::{all_leftovers, delete_all, publish_retained, retain_all},
    last_dump::last_dump,
    outcome::{DataOutcome, outcome, retained_by_policy},
    recreatable::{delete_rest, delete_servers},
};
use super::{
    context::{PostgresqlContext, PostgresqlObject},
    decide::PostgresqlHold,
    error::Error,
    names,
    observed::Kind,
    status::write::{write, write_hold},
    uncached::metadata,
};
use crate::{
    crd::{ClientApp, FINALIZER, POSTGRESQL_FINALIZER, Postgresql, PostgresqlStatus, Reason, annotation, label},
    deletion::{
        permit::{is_orphaned, takes_dependents},
        recently_created,
    },
    platform::{
        clock,
        controller::{RECHECK_GONE, after_write},
        reconciled::has_finalizer,
    },
};

/// Watch events drive a deletion; this interval covers a missed event.
const SAFETY_NET: Duration = Duration::from_secs(60);

/// Takes down what belongs to a deleted Postgresql, as far as possible now, and reports it.
pub(crate) async fn take_down(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Action, Error> {
    ctx.release_rollout_slot(postgres.key);
    if let Some(hold) = teardown(ctx, postgres).await? {
        write_hold(ctx, postgres, &hold).await?;
        return Ok(if hold.reason.stalled() { Action::await_change() } else { Action::requeue(SAFETY_NET) });
    }
    let removed = postgres.remove_finalizer(&ctx.client, POSTGRESQL_FINALIZER).await?;
    ctx.forget(postgres.key);
    Ok(after_write(removed))
}

/// Returns what the rest of the teardown waits for; `None`: it is done.
async fn teardown(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Option<PostgresqlHold>, Error> {
    let orphaned = orphaned(ctx, postgres).await?;
    let outcome = outcome(postgres.meta(), postgres.object(), orphaned.unwrap_or(true));
    if outcome == DataOutcome::Orphan {
        let why = match orphaned {
            Some(_) => "it was deleted with --cascade=orphan".to_owned(),
            None => format!(
                "it is not known whether the Postgresql was deleted with --cascade=orphan, since ConfigMap {}, which would show it, is gone",
                names::witness(&postgres.key.name)
            ),
        };
        let all = all_leftovers(ctx, postgres, &why).await?;
        retain_all(ctx, postgres, all).await?;
        return Ok(None);
    }
    if outcome == retained_by_policy()
        && let Some(app) = deleted_with(ctx, postgres).await?
    {
        let message = format!(
            "waiting for ClientApp {app}, which is being deleted as well and decides whether the data stay: see `kubectl get clientapp {app} -n {}`",
            postgres.key.namespace
        );
        return Ok(Some(PostgresqlHold::new(Reason::Deleting, message)));
    }
    // The database of an app goes with the app, which has asked for itself.
    if outcome == DataOutcome::Delete
        && !postgres.meta().labels.as_ref().is_some_and(|labels| labels.contains_key(label::APP))
        && let Some(message) = held(ctx, postgres).await?
    {
        return Ok(Some(PostgresqlHold::new(Reason::DeletionHeld, message)));
    }
    // On record before anything is deleted: the witness may be gone in the next pass, and a claim without a record is kept.
    let mut owned = postgres.recorded_status.owned.clone();
    recently_created::add_missing(&mut owned, &ctx.recently_created.created_for(postgres.key, postgres.uid()));
    let recorded = PostgresqlStatus { orphaned: Some(false), owned, ..postgres.recorded_status.clone() };
    if postgres.object().is_ok() && recorded != postgres.recorded_status {
        write(ctx, postgres, &recorded).await?;
    }
    let postgres = &ctx.postgres(postgres.key, postgres.guard);
    let spec = postgres.object().ok().and_then(|object| ctx.desired(object).ok());
    let last = spec.as_ref().and_then(|desired| Some((desired, desired.backup.as_ref().filter(|b| b.on_delete)?)));
    if let Some((desired, backup)) = last
        && let Some(hold) = last_dump(ctx, postgres, desired, backup).await?
    {
        return Ok(Some(hold));
    }
    if let Some(hold) = delete_servers(ctx, postgres).await? {
        return Ok(Some(hold));
    }
    let staying = match &outcome {
        DataOutcome::Retain(why) => all_leftovers(ctx, postgres, why).await?,
        _ => match delete_all(ctx, postgres, last.is_some()).await? {
            Ok(staying) => staying,
            Err(hold) => return Ok(Some(hold)),
        },
    };
    retain_all(ctx, postgres, staying).await?;
    delete_rest(ctx, postgres).await?;
    Ok(None)
}

/// Returns why the data of this Postgresql are not deleted yet.
async fn held(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Option<String>, Error> {
    let (conditions, total) = (&postgres.recorded_status.conditions, ctx.watches.postgresqls.store.len());
    let held = ctx.deletion_brake.held::<Postgresql>(&ctx.client, postgres.meta(), conditions, (total, clock::now()));
    Ok(held.await?)
}

/// Publishes what stays of a Postgresql that was removed without its teardown: a client removed its finalizer, or deleted it while
/// the operator was writing the finalizer.
pub(crate) async fn abandoned(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Action, Error> {
    if !postgres.is_gone(&ctx.client).await.map_err(Error::api(format!("get Postgresql {}", postgres.key)))? {
        return Ok(Action::requeue(RECHECK_GONE));
    }
    let staying = all_leftovers(ctx, postgres, "the Postgresql was removed without its teardown").await?;
    publish_retained(ctx, postgres, &staying).await;
    Ok(Action::await_change())
}

/// Returns the ClientApp whose database this is, while that is being deleted too and has not come to its database yet: its teardown
/// either sets `spec.deletionPolicy` to Delete, by the app's own proof, or takes these marks away. The marks prove nothing, and
/// nothing is deleted because of them.
async fn deleted_with(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Option<String>, Error> {
    let (labels, annotations) = (postgres.meta().labels.as_ref(), postgres.meta().annotations.as_ref());
    let Some(app) = labels.and_then(|labels| labels.get(label::APP)) else { return Ok(None) };
    let uid = annotations.and_then(|annotations| annotations.get(annotation::OWNER_UID));
    let found = metadata(ctx, postgres.key, &ApiResource::erase::<ClientApp>(&()), app).await?;
    let decides =
        |app: &ObjectMeta| app.deletion_timestamp.is_some() && app.uid.as_ref() == uid && has_finalizer(app, FINALIZER);
    Ok(found.filter(|found| decides(&found.metadata)).map(|found| found.name_any()))
}

/// Returns true if the Postgresql is deleted with `--cascade=orphan`; `None`: unknown. The garbage collector orphans dependents and removes
/// its own finalizer, even while the operator is down. The witness shows afterwards whether it did. A witness that is gone shows
/// nothing, since a user may have deleted it, unless the deletion is a foreground one.
async fn orphaned(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Option<bool>, Error> {
    let (key, uid) = (postgres.key, postgres.uid());
    if is_orphaned(postgres.meta()) {
        return Ok(Some(true));
    }
    let foreground = takes_dependents(postgres.meta()) || ctx.foreground.get(key).is_some_and(|seen| seen == uid);
    if foreground || postgres.recorded_status.orphaned == Some(false) {
        return Ok(Some(false));
    }
    let name = names::witness(&key.name);
    let found = metadata(ctx, key, &Kind::ConfigMap.resource(), &name).await?;
    let its = found.filter(|witness| witness.labels().get(label::POSTGRESQL_UID).is_some_and(|owner| owner == uid));
    Ok(its.map(|witness| witness.owner_references().iter().all(|owner| owner.uid != *uid)))
}
