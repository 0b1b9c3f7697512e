//! The controller of `ClientApp`: **desired → observe → decide → report → act**, and teardown.
//!
//! | stage | module | |
//! |---|---|---|
//! | what shall be | [`mod@desired`], with [`build`], [`database`], [`deployer`] and [`names`] | pure |
//! | what is there | [`observe`] → [`observed`] | effect, reads only |
//! | what to do now | [`mod@decide`], with `gate`, [`upgrade`], `drift` and `repairs`, into [`plan`] | pure |
//! | say so | [`report`], with [`attempt`] | pure, then one write |
//! | do it | [`act`], with `release`, `repair` and `account` | effect |
//! | how helm gets on | [`helm_runs`] | effect |
//! | deletion | `teardown` | effect |
//! | what becomes of what | [`outcome`] | pure |
//!
//! This module is the driver: it runs the stages in order and knows nothing of what they decide. None of them waits.

mod account;
pub(crate) mod act;
pub(crate) mod attempt;
pub mod build;
pub(crate) mod context;
pub(crate) mod database;
pub(crate) mod decide;
pub(crate) mod deployer;
pub mod desired;
mod drift;
pub(crate) mod error;
#[cfg(test)]
mod fixtures;
mod gate;
pub(crate) mod helm_runs;
mod hostnames;
pub(crate) mod inventory;
mod live;
mod lock;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod observe;
pub(crate) mod observed;
pub mod outcome;
pub(crate) mod owned;
pub(crate) mod plan;
mod pods;
mod release;
mod repair;
mod repairs;
pub(crate) mod report;
pub(crate) mod retained;
mod start;
mod teardown;
pub(crate) mod upgrade;
pub(crate) mod watches;

use kube::runtime::{controller::Action, watcher::Event};

pub(crate) use self::start::{Tools, run};
use self::{
    context::{App, Ctx},
    decide::decide,
    error::Error,
    plan::Plan,
    report::Pass,
};
use crate::{
    crd::{ClientApp, FINALIZER, Guard},
    runtime::{
        clock,
        controller::Kind,
        key::{Key, key_of},
        panic::caught,
    },
};

impl Kind for Ctx {
    type Object = ClientApp;
    type Error = Error;

    fn gone(&self, key: &Key) {
        self.hostnames.gone(key);
        // Its place in the queue is free, and no reconcile may follow. What memory has of it is told by its uid.
        self.helm_runs.forget(key);
    }

    fn seen(&self, event: &Event<Guard<ClientApp>>) {
        self.app_changed(event);
    }

    fn wrote(&self, app: &Guard<ClientApp>) -> bool {
        self.memory.statuses.wrote(&app.metadata, &key_of(app))
    }

    async fn synced(&self) {
        self.watches.synced().await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<ClientApp>) -> Result<Action, Error> {
        let app = self.app(key, guard);
        let _offer = self.helm_runs.offer(key);
        let mut result = caught(reconcile(self, &app), Error::Panicked).await;
        if let Err(error) = &result {
            result = report::failure(self, &app, error).await.and(result);
        }
        if let Err(Error::Gone(_)) = result {
            result = teardown::abandoned(self, &app).await;
        }
        // It has gone meanwhile, perhaps before it asked for a slot.
        if self.watches.apps.get(key).is_none() {
            self.helm_runs.forget(key);
        }
        result
    }

    fn held_back(&self, key: &Key) {
        drop(self.helm_runs.offer(key));
    }
}

async fn reconcile(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    match (app.is_deleted(), app.carries(FINALIZER)) {
        (true, false) => ctx.forget(app.key),
        (true, true) => return teardown::take_down(ctx, app).await,
        // What does not decode is not acted for, and needs no teardown.
        (false, false) if app.guard.object.is_ok() => return ctx.put_finalizer(app, true).await,
        (false, _) => return bring_up(ctx, app).await,
    }
    Ok(Action::await_change())
}

/// The way up, and all that keeps an app there.
async fn bring_up(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let now = clock::now();
    let desired = ctx.desired(app);
    let observed = observe::observe(ctx, app, desired.as_ref().ok(), now).await?;
    let plan =
        desired.as_ref().map_or_else(|_| Plan::default(), |desired| decide(desired, &observed, &ctx.config, now));
    let pass = Pass {
        key: app.key,
        generation: app.meta().generation,
        desired: desired.as_ref(),
        observed: &observed,
        plan: &plan,
    };
    let status = report::build_status(&pass, now);
    // What is to be done is on record before it is begun.
    if !plan.only_makes_credentials() {
        report::report(ctx, app, &pass, &status).await?;
    }
    if let Ok(desired) = &desired {
        act::act(ctx, app, desired, &observed, &plan, &status).await?;
    }
    Ok(plan.requeue(now))
}
