//! The controller of `Postgresql`: **desired → observe → decide → act → report**, and teardown. Unlike a `ClientApp`, it reports after it
//! has acted; only what later passes depend on is recorded before any step.
//!
//! | stage | module | |
//! |---|---|---|
//! | what should exist | [`mod@desired`], with [`objects`] and [`names`] | pure |
//! | what exists | [`observe`] → [`observed`] | effect, reads only |
//! | what later passes depend on | [`status::record`] | pure, then one write |
//! | what to do now | [`mod@decide`] | pure |
//! | do it | [`act`] | effect |
//! | report it | [`status`] | pure, then one write |
//! | deletion | [`teardown`] | effect |
//!
//! This module runs the stages in order. It decides twice if a rollout needs its slot, which it takes in between.

pub(crate) mod act;
pub(crate) mod context;
pub(crate) mod decide;
pub(crate) mod desired;
pub(crate) mod error;
pub(crate) mod names;
pub(crate) mod objects;
pub(crate) mod observe;
pub(crate) mod observed;
mod rollout_queue;
pub(crate) mod status;
pub(crate) mod teardown;
mod termination_message;
pub(crate) mod uncached;
pub(crate) mod watches;

use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::{controller::Action, watcher::Event};

pub(crate) use self::context::run;
use self::{
    context::{PostgresqlContext, PostgresqlObject},
    decide::{PostgresqlHold, decide, dumps},
    error::Error,
    status::{
        conditions::build_status,
        record,
        write::{write, write_failure, write_hold},
    },
};
use crate::{
    crd::{Guard, POSTGRESQL_FINALIZER, Postgresql, PostgresqlStatus, Reason},
    deletion::permit::takes_dependents,
    platform::{
        clock,
        controller::{ReconcileError as _, Reconciler, after_write},
        key::{Key, key_of},
        panic::caught,
        schedule::look_in,
    },
};

/// The interval of checks for which there is no watch.
const RECHECK: Duration = Duration::from_secs(60);

impl Reconciler for PostgresqlContext {
    type Object = Postgresql;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        // A Postgresql that was removed without its teardown has no last reconcile, and its password must not stay in memory.
        self.forget(key);
    }

    fn on_event(&self, event: &Event<Guard<Postgresql>>) {
        if let Event::Apply(object) = event
            && takes_dependents(&object.metadata)
        {
            self.foreground.put(key_of(object), object.metadata.uid.clone().unwrap_or_default());
        }
    }

    fn is_own_write(&self, object: &Guard<Postgresql>) -> bool {
        self.statuses.is_own_write(&object.metadata, &key_of(object))
    }

    async fn synced(&self) {
        self.watches.synced().await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<Postgresql>) -> Result<Action, Error> {
        let postgres = self.postgres(key, guard);
        let mut result = caught(reconcile(self, &postgres), Error::panicked).await;
        if let Err(error) = &result {
            // What is refused does not restart. After a conflict, or without an answer, it may have begun to: the next try sees
            // that.
            let refused = error.disposition().condition.is_some() && !error.is_unanswered();
            result = write_failure(self, &postgres, error).await.and(result);
            if refused {
                self.release_rollout_slot(key);
            }
        }
        if let Err(Error::Gone(_)) = result {
            result = teardown::abandoned(self, &postgres).await;
        }
        result
    }
}

async fn reconcile(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Action, Error> {
    match (postgres.is_deleted(), postgres.has_finalizer(POSTGRESQL_FINALIZER)) {
        (true, false) => ctx.forget(postgres.key),
        (true, true) => return teardown::take_down(ctx, postgres).await,
        // The operator creates nothing for an object that does not decode, so it needs no teardown.
        (false, false) if postgres.guard.object.is_ok() => {
            let added = postgres.add_finalizer(&ctx.client, POSTGRESQL_FINALIZER).await?;
            return Ok(after_write(added));
        }
        (false, _) => return bring_up(ctx, postgres).await,
    }
    Ok(Action::await_change())
}

/// Creates a database and keeps it as desired.
async fn bring_up(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<Action, Error> {
    let desired = match postgres.decoded().and_then(|object| ctx.desired(object)) {
        Ok(desired) => desired,
        Err(message) => {
            write_hold(ctx, postgres, &PostgresqlHold::new(Reason::InvalidSpec, message)).await?;
            ctx.release_rollout_slot(postgres.key);
            return Ok(until_due(&postgres.recorded_status, None, clock::now()));
        }
    };
    let mut observed = observe::observe(ctx, &desired, postgres).await?;
    let recorded = record::recorded(&desired, &observed);
    if recorded != observed.recorded {
        // No step may depend on what is not recorded yet.
        write(ctx, postgres, &recorded).await?;
        return Ok(Action::requeue(Duration::ZERO));
    }
    let mut plan = decide(&desired, &observed);
    if plan.awaits_turn {
        observed.slot_holder = Some(ctx.take_rollout_slot(postgres.key));
        plan = decide(&desired, &observed);
    }
    if plan.rollout != recorded.rollout {
        // Servers restart, and others may, only once that is on record: the next leader waits for it, too.
        // Not at once: an older definition drops the field, and each pass would write it again.
        write(ctx, postgres, &PostgresqlStatus { rollout: plan.rollout, ..recorded }).await?;
        return Ok(Action::requeue(Duration::from_secs(1)));
    }
    if !plan.awaits_turn && plan.rollout.is_none() {
        ctx.release_rollout_slot(postgres.key);
    }
    act::act(ctx, postgres, &desired, &observed, &plan).await?;
    // The effects of the steps show in the watches, which trigger the next reconcile. The conditions are written after the steps, as
    // no later pass reads them: written before, a step that always fails would switch `Ready` between `Applying` and its failure.
    let generation = postgres.meta().generation;
    let refused = ctx.refused_due.get(postgres.key);
    let told = (&plan, refused.as_deref());
    write(ctx, postgres, &build_status(generation, &desired, &observed, told, clock::now())).await?;
    // No watch covers a claim that does not belong to this Postgresql.
    let waits_for_dumps = plan.hold.is_some_and(|hold| hold.reason == Reason::DumpsMissing);
    let is_refused = refused.is_some() && dumps::is_due(&recorded, observed.now);
    Ok(if waits_for_dumps || is_refused {
        Action::requeue(RECHECK)
    } else {
        let ends = dumps::start_deadlines(&desired, &observed).min();
        until_due(&recorded, ends, observed.now)
    })
}

/// Waits for a change, or until a dump or a drill is due or overdue, or one in which nothing runs is to end.
fn until_due(recorded: &PostgresqlStatus, ends: Option<Timestamp>, now: Timestamp) -> Action {
    look_in(dumps::times(recorded).chain(ends), now).map_or_else(Action::await_change, Action::requeue)
}
