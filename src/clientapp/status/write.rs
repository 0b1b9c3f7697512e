//! Writes a status, and publishes events. **Effects.** Once the status is written, [`report()`] also ends the helm run and settles the
//! hostnames that are recorded in it.

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::controller::Action;

use super::{
    conditions::{Pass, failed, progress},
    events::{about, archive_failed, because, other_values, rotated, transitions},
};
use crate::{
    clientapp::{
        context::{App, Ctx},
        decide::{plan::Step, tls},
        error::Error,
        helm_runs::HelmRun,
    },
    crd::{ClientAppStatus, Reason},
    platform::{
        clock,
        controller::ReconcileError as _,
        events::{Note, publish_by},
    },
};

/// Writes a status, and publishes events for what is new in it.
pub(crate) async fn report(ctx: &Ctx, app: &App<'_>, pass: &Pass<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    let Pass { desired, observed, plan, .. } = pass;
    if *status != app.recorded_status {
        let written = write(ctx, app, status).await;
        // The API server may reject any write to an object that it would not accept today, but never an event.
        let conflicts = |error: &Error| error.disposition().reason == Reason::Conflict;
        if written.as_ref().err().is_none_or(|error| desired.is_err() && !conflicts(error)) {
            let because = plan.steps.iter().find_map(|step| match step {
                Step::HelmUpgrade { cause: Some(why), .. } => Some(because(why, app.key)),
                _ => None,
            });
            let changed = about(transitions(&app.recorded_status, status), observed, app.key);
            let notes = rotated(&app.recorded_status, status, app.key).into_iter().chain(other_values(
                &app.recorded_status,
                status,
                app.key,
            ));
            let notes = notes.chain(because).chain(changed).chain(archive_failed(&app.recorded_status, status));
            let notes = notes.chain(tls::expires(&app.recorded_status, status));
            publish(ctx, app, &notes.collect::<Vec<_>>()).await;
        }
        written?;
    }
    if let HelmRun::Upgraded(upgraded) = &observed.run.state
        && observed.run.is_in_cache
        && status.last_attempt.as_ref() == Some(&upgraded.attempt)
    {
        ctx.helm_runs.settle(app.key);
        let hosts = status.inventory.as_ref().map_or(&[][..], |inventory| &inventory.hosts);
        ctx.hostnames.settled(app.key, hosts);
    }
    if let HelmRun::Tested(_) = &observed.run.state {
        ctx.helm_runs.settle(app.key);
    }
    Ok(())
}

/// Reports that the app's Profile has no revision yet. The controller of Profiles triggers the app once there is one.
pub(crate) async fn profile_without_revision(ctx: &Ctx, app: &App<'_>, now: Timestamp) -> Result<Action, Error> {
    let message = "the Profile in spec.profile has no revision yet: see the status of the Profile";
    tell(ctx, app, &progress(&app.recorded_status, app.meta().generation, Reason::Pending, message, now)).await?;
    // A look without a request, in case its cache was behind just then.
    Ok(Action::requeue(Duration::from_secs(10)))
}

pub(crate) async fn failure(ctx: &Ctx, app: &App<'_>, error: &Error) -> Result<(), Error> {
    // With the status that was written since the reconcile began.
    let app = ctx.app(app.key, app.guard);
    tell(ctx, &app, &failed(&app.recorded_status, app.meta().generation, error, clock::now())).await
}

/// Writes a status, if it changed, and publishes events for what is new in it.
pub(crate) async fn tell(ctx: &Ctx, app: &App<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    write(ctx, app, status).await?;
    publish(ctx, app, &transitions(&app.recorded_status, status)).await;
    Ok(())
}

async fn write(ctx: &Ctx, app: &App<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    match ctx.memory.statuses.record(&ctx.client, app, status).await? {
        true => Ok(()),
        false => Err(Error::Gone(app.key.clone())),
    }
}

/// Publishes events; a failure to publish is logged and never stops a reconcile.
pub(crate) async fn publish(ctx: &Ctx, app: &App<'_>, notes: &[Note]) {
    publish_by(&ctx.recorder, &app.reference(), notes).await;
}
