//! The controller of `ClientApp`: **spec → observe → decide → status → act**, and teardown.
//!
//! | room | | |
//! |---|---|---|
//! | [`helm_runs`] | the queue and the state of helm runs | effect |
//! | [`spec`] | what the spec asks for: [`desired`](spec::desired), the chart's values, names, Secrets, one file for each database provider | pure |
//! | [`observed`] | what there is: types, and what one object or record means by itself | pure |
//! | [`mod@decide`] | what to do now: questions in order, into a [`plan`](decide::plan) | pure |
//! | [`context`] | what all reconciles share: watches, memory, claimed hostnames | |
//! | [`mod@observe`] | reads caches and the API server: values and credentials from elsewhere first, the rest later | effect, reads only |
//! | [`status`] | conditions and events | pure, and one write |
//! | [`mod@act`] | carries the plan out | effect |
//! | [`teardown`] | deletion, by the [`policy`](teardown::policy) | effect |
//!
//! A room uses only rooms above it, which `e2e/tests/modules.rs` checks. This module runs the stages in order; no stage waits. Of what
//! they decide it knows a rollback in effect, whose target replaces that of the spec, the texts that no message may contain, and steps
//! that only create credentials.

mod act;
pub(crate) mod context;
pub(crate) mod decide;
pub(crate) mod error;
#[cfg(test)]
mod fixtures;
pub(crate) mod helm_runs;
pub(crate) mod hold;
pub(crate) mod observe;
pub(crate) mod observed;
pub(crate) mod spec;
mod start;
pub(crate) mod status;
pub(crate) mod teardown;

use std::time::Duration;

use kube::runtime::{controller::Action, watcher::Event};

pub use self::teardown::policy::{AppResource, DeletionOptions, DeletionOutcome};
pub use crate::helm::values::document;

pub(crate) use self::start::{Tools, run};
use self::{
    context::{App, Ctx},
    decide::{plan_of, remediation},
    error::Error,
    observe::{sources, values_in_effect},
    status::{
        conditions::{Pass, build_status},
        write,
    },
};
use crate::{
    crd::{ClientApp, FINALIZER, Guard, annotation},
    platform::{
        clock,
        controller::Reconciler,
        key::{Key, key_of},
        panic::caught,
    },
};

impl Reconciler for Ctx {
    type Object = ClientApp;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        self.hostnames.gone(key);
        // This frees its place in the queue, and no reconcile may follow. Entries in memory carry the app's uid, so a successor
        // does not use them.
        self.helm_runs.forget(key);
    }

    fn on_event(&self, event: &Event<Guard<ClientApp>>) {
        self.app_changed(event);
    }

    fn is_own_write(&self, app: &Guard<ClientApp>) -> bool {
        self.memory.statuses.is_own_write(&app.metadata, &key_of(app))
    }

    async fn synced(&self) {
        self.watches.synced().await;
        self.profiles.synced().await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<ClientApp>) -> Result<Action, Error> {
        let app = self.app(key, guard);
        let _offer = self.helm_runs.offer(key);
        let mut result = caught(reconcile(self, &app), Error::Panicked).await;
        if let Err(error) = &result {
            result = write::failure(self, &app, error).await.and(result);
        }
        if let Err(Error::Gone(_)) = result {
            result = teardown::abandoned(self, &app).await;
        }
        // The app may be gone by now, perhaps before this reconcile asked for a slot.
        if self.watches.apps.get(key).is_none() {
            self.helm_runs.forget(key);
        }
        result
    }

    fn has_background_work(&self, key: &Key, app: &Guard<ClientApp>) -> bool {
        // How often an upgrade or a test has failed is in the status.
        app.metadata.deletion_timestamp.is_some() && self.helm_runs.is_under_way(key)
    }

    fn on_throttled(&self, key: &Key) {
        drop(self.helm_runs.offer(key));
    }
}

async fn reconcile(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    match (app.is_deleted(), app.has_finalizer(FINALIZER)) {
        (true, false) => ctx.forget(app.key),
        (true, true) => return teardown::take_down(ctx, app).await,
        // The operator does nothing for an app that does not decode, so such an app needs no teardown.
        (false, false) if app.guard.object.is_ok() => return ctx.add_finalizer(app).await,
        (false, _) => return bring_up(ctx, app).await,
    }
    Ok(Action::await_change())
}

/// Creates an app and keeps it as desired.
async fn bring_up(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let now = clock::now();
    let Some(profile) = ctx.profile(app) else { return write::profile_without_revision(ctx, app, now).await };
    let sources = sources::read(ctx, app, now).await?;
    let credentials = sources::credentials(ctx, app).await?;
    let revisions = ctx.watches.revisions(app.key);
    let desired = ctx.desired(app, &profile, (&sources, &credentials));
    let desired = match desired.map(|desired| {
        remediation::in_effect(desired, app.annotation(annotation::RETRY), &app.recorded_status, &revisions)
    }) {
        Ok(desired) => Ok(values_in_effect::with_hidden(ctx, desired).await?),
        invalid => invalid,
    };
    let observed = observe::observe(ctx, app, desired.as_ref().ok(), now).await?;
    let plan = plan_of(desired.as_ref().ok(), &observed, &ctx.config, now);
    let pass = Pass {
        key: app.key,
        generation: app.meta().generation,
        desired: desired.as_ref(),
        observed: &observed,
        plan: &plan,
        profile: &profile,
    };
    let status = build_status(&pass, now);
    // The intent is recorded before a step acts on it.
    if !plan.only_makes_credentials() {
        // Its turn may have been taken back while it was observed.
        if profile.is_taken_by(app) && ctx.profile(app).is_none_or(|now| !now.is_same(&profile)) {
            return Ok(Action::requeue(Duration::ZERO));
        }
        write::report(ctx, app, &pass, &status).await?;
    }
    if let Ok(desired) = &desired {
        act::act(ctx, app, desired, &observed, &plan, &status).await?;
    }
    Ok(plan.requeue(now))
}
