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
    data::{all_stay, destroy_all, hand_over, tell},
    last_dump::last_dump,
    outcome::{Outcome, outcome, retained_by_policy},
    recreatable::{rest, servers},
};
use super::{
    context::{Ctx, Database},
    decide::Hold,
    error::Error,
    names,
    observed::Kind,
    status::write::{write, write_hold},
    uncached::metadata,
};
use crate::{
    crd::{ClientApp, FINALIZER, PostgresqlStatus, Reason, annotation, label},
    deletion::{
        made,
        permit::{is_orphaned, takes_dependents},
    },
    platform::{controller::WRONGLY_GONE, subject::carries},
};

/// Watch events drive a deletion; this interval covers a missed event.
const SAFETY_NET: Duration = Duration::from_secs(60);

/// Takes down what belongs to a deleted Postgresql, as far as possible now, and reports it.
pub(crate) async fn take_down(ctx: &Ctx, of: &Database<'_>) -> Result<Action, Error> {
    ctx.end_turn(of.key);
    if let Some(hold) = teardown(ctx, of).await? {
        write_hold(ctx, of, &hold).await?;
        return Ok(if hold.reason.stalled() { Action::await_change() } else { Action::requeue(SAFETY_NET) });
    }
    let put = ctx.put_finalizer(of, false).await?;
    ctx.forget(of.key);
    Ok(put)
}

/// Returns what the rest of the teardown waits for; `None`: it is done.
async fn teardown(ctx: &Ctx, of: &Database<'_>) -> Result<Option<Hold>, Error> {
    let orphaned = orphaned(ctx, of).await?;
    let outcome = outcome(of.meta(), of.object(), orphaned.unwrap_or(true));
    if outcome == Outcome::Orphan {
        let why = match orphaned {
            Some(_) => "it was deleted with --cascade=orphan".to_owned(),
            None => format!(
                "it is not known whether the Postgresql was deleted with --cascade=orphan, since ConfigMap {}, which would show it, is gone",
                names::witness(&of.key.name)
            ),
        };
        let all = all_stay(ctx, of, &why).await?;
        hand_over(ctx, of, all).await?;
        return Ok(None);
    }
    if outcome == retained_by_policy()
        && let Some(app) = deleted_with(ctx, of).await?
    {
        let message = format!(
            "waiting for ClientApp {app}, which is being deleted as well and decides whether the data stay: see `kubectl get clientapp {app} -n {}`",
            of.key.namespace
        );
        return Ok(Some(Hold::new(Reason::Deleting, message)));
    }
    // On record before anything is deleted: the witness may be gone in the next pass, and a claim without a record is kept.
    let mut owned = of.before.owned.clone();
    made::add(&mut owned, &ctx.made.of(of.key, of.uid()));
    let recorded = PostgresqlStatus { orphaned: Some(false), owned, ..of.before.clone() };
    if of.object().is_ok() && recorded != of.before {
        write(ctx, of, &recorded).await?;
    }
    let of = &ctx.database(of.key, of.guard);
    let spec = of.object().ok().and_then(|object| ctx.desired(object).ok());
    let last = spec.as_ref().and_then(|desired| Some((desired, desired.backup.as_ref().filter(|b| b.on_delete)?)));
    if let Some((desired, backup)) = last
        && let Some(hold) = last_dump(ctx, of, desired, backup).await?
    {
        return Ok(Some(hold));
    }
    if let Some(hold) = servers(ctx, of).await? {
        return Ok(Some(hold));
    }
    let staying = match &outcome {
        Outcome::Retain(why) => all_stay(ctx, of, why).await?,
        _ => match destroy_all(ctx, of, last.is_some()).await? {
            Ok(staying) => staying,
            Err(hold) => return Ok(Some(hold)),
        },
    };
    hand_over(ctx, of, staying).await?;
    rest(ctx, of).await?;
    Ok(None)
}

/// Publishes what stays of a Postgresql that was removed without its teardown: a client removed its finalizer, or deleted it while
/// the operator was writing the finalizer.
pub(crate) async fn abandoned(ctx: &Ctx, of: &Database<'_>) -> Result<Action, Error> {
    if !of.is_gone(&ctx.client).await.map_err(Error::api(format!("get Postgresql {}", of.key)))? {
        return Ok(Action::requeue(WRONGLY_GONE));
    }
    let staying = all_stay(ctx, of, "the Postgresql was removed without its teardown").await?;
    tell(ctx, of, &staying).await;
    Ok(Action::await_change())
}

/// Returns the ClientApp whose database this is, while that is being deleted too and has not come to its database yet: its teardown
/// either sets `spec.deletionPolicy` to Delete, by the app's own proof, or takes these marks away. The marks prove nothing, and
/// nothing is deleted because of them.
async fn deleted_with(ctx: &Ctx, of: &Database<'_>) -> Result<Option<String>, Error> {
    let (labels, annotations) = (of.meta().labels.as_ref(), of.meta().annotations.as_ref());
    let Some(app) = labels.and_then(|labels| labels.get(label::APP)) else { return Ok(None) };
    let uid = annotations.and_then(|annotations| annotations.get(annotation::OWNER_UID));
    let found = metadata(ctx, of.key, &ApiResource::erase::<ClientApp>(&()), app).await?;
    let decides =
        |app: &ObjectMeta| app.deletion_timestamp.is_some() && app.uid.as_ref() == uid && carries(app, FINALIZER);
    Ok(found.filter(|found| decides(&found.metadata)).map(|found| found.name_any()))
}

/// Returns true if the Postgresql is deleted with `--cascade=orphan`; `None`: unknown. The garbage collector orphans dependents and removes
/// its own finalizer, even while the operator is down. The witness shows afterwards whether it did. A witness that is gone shows
/// nothing, since a user may have deleted it, unless the deletion is a foreground one.
async fn orphaned(ctx: &Ctx, of: &Database<'_>) -> Result<Option<bool>, Error> {
    let (key, uid) = (of.key, of.uid());
    if is_orphaned(of.meta()) {
        return Ok(Some(true));
    }
    let foreground = takes_dependents(of.meta()) || ctx.foreground.get(key).is_some_and(|seen| seen == uid);
    if foreground || of.before.orphaned == Some(false) {
        return Ok(Some(false));
    }
    let name = names::witness(&key.name);
    let found = metadata(ctx, key, &Kind::ConfigMap.resource(), &name).await?;
    let its = found.filter(|witness| witness.labels().get(label::POSTGRESQL_UID).is_some_and(|owner| owner == uid));
    Ok(its.map(|witness| witness.owner_references().iter().all(|owner| owner.uid != *uid)))
}
