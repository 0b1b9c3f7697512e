//! The controller of `ClientAppBackup`: **observe → decide → report → act**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what exists | [`observed`], [`observe`] | pure, and reads only |
//! | what follows | [`decide`] | pure |
//! | status and events | [`status`] | pure, then one write |
//! | the one step that follows | [`act`] | effect |
//!
//! What a backup is going to make is in its status, by name, before it is made: so whichever process is killed, it is made once. Of several
//! backups of one object, the oldest runs, and is looked at every few seconds; the others wait for its end without a request. One that has
//! ended is never read again.

mod act;
pub(crate) mod archive_job;
mod context;
mod decide;
mod error;
mod observe;
pub(crate) mod observed;
pub(crate) mod percona;
mod status;

use std::{ops::RangeInclusive, time::Duration};

use jiff::Timestamp;
use kube::runtime::{controller::Action, watcher::Event};

pub(crate) use self::context::run;
use self::{
    context::{Backup, BackupContext},
    decide::Outcome,
    error::Error,
};
use crate::{
    crd::{BackupPhase, BackupSubject, ClientAppBackup, ClientAppBackupStatus, Guard},
    platform::{
        clock,
        controller::{RECHECK_GONE, Reconciler},
        key::{Key, key_of},
        panic::caught,
    },
};

/// Limits how often a backup that runs is looked at: after a tenth of the time that it has taken so far, within these limits.
const LOOKS: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(30);

impl Reconciler for BackupContext {
    type Object = ClientAppBackup;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        self.statuses.forget(key);
    }

    fn on_event(&self, event: &Event<Guard<ClientAppBackup>>) {
        let (Event::Apply(object) | Event::Delete(object)) = event else { return };
        // The next one of its object may run.
        if matches!(event, Event::Delete(_)) || is_over(object) {
            let of = subject(object);
            let waits = |other: &Guard<ClientAppBackup>| !is_over(other) && subject(other) == of;
            self.objects.trigger_in(object.metadata.namespace.as_deref().unwrap_or_default(), waits);
        }
    }

    fn is_own_write(&self, object: &Guard<ClientAppBackup>) -> bool {
        self.statuses.is_own_write(&object.metadata, &key_of(object))
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<ClientAppBackup>) -> Result<Action, Error> {
        let backup = &self.statuses.reconciled(key, guard);
        let is_over = backup.recorded_status.phase.is_some_and(BackupPhase::is_final);
        if is_over || backup.is_deleted() {
            return Ok(Action::await_change());
        }
        let waits = comes_later(self, guard);
        let outcome = match waits {
            true => Ok(decide::waiting(&backup.recorded_status)),
            false => caught(decided(self, backup), Error::Panicked).await,
        };
        let is_recorded = outcome.as_ref().is_ok_and(|outcome| is_recorded(outcome, &backup.recorded_status));
        let outcome = match outcome {
            // What a successor would make as well, so that a refusal is all that the status tells.
            Ok(outcome) if is_recorded => taken(self, backup, &outcome).await.map(|()| outcome),
            outcome => outcome,
        };
        if !status::write(self, backup, outcome.as_ref()).await? {
            self.on_deleted(key);
            return Ok(Action::requeue(RECHECK_GONE));
        }
        let outcome = outcome?;
        if !is_recorded && let Err(error) = taken(self, backup, &outcome).await {
            let written = self.statuses.reconciled(key, guard);
            status::write(self, &written, Err(&error)).await?;
            return Err(error);
        }
        let status = outcome.status;
        let is_over = status.phase.is_some_and(BackupPhase::is_final);
        Ok(match is_over || waits {
            true => Action::await_change(),
            false => Action::requeue(look_in(backup.meta().creation_timestamp.as_ref().map(|at| at.0), clock::now())),
        })
    }
}

/// Returns true if what a step makes is in the status already.
fn is_recorded(outcome: &Outcome, recorded: &ClientAppBackupStatus) -> bool {
    let Outcome { status, .. } = outcome;
    status.database == recorded.database && status.files == recorded.files
}

/// Takes the step of a decision, if there is one.
async fn taken(ctx: &BackupContext, backup: &Backup<'_>, outcome: &Outcome) -> Result<(), Error> {
    match &outcome.step {
        Some(step) => act::act(ctx, backup, step).await,
        None => Ok(()),
    }
}

fn is_over(object: &Guard<ClientAppBackup>) -> bool {
    object.status().and_then(|status| status.phase).is_some_and(BackupPhase::is_final)
}

/// Returns what an object backs up; `None` if it does not decode, and so backs up nothing.
fn subject(object: &Guard<ClientAppBackup>) -> Option<&BackupSubject> {
    object.object.as_ref().ok().map(|object| &object.spec.of)
}

/// Returns true if an older backup of the same object has not ended.
fn comes_later(ctx: &BackupContext, object: &Guard<ClientAppBackup>) -> bool {
    let Some(of) = subject(object) else { return false };
    let age =
        |object: &Guard<ClientAppBackup>| (object.metadata.creation_timestamp.clone(), object.metadata.name.clone());
    let comes_first = |other: &Guard<ClientAppBackup>| {
        other.metadata.namespace == object.metadata.namespace
            && subject(other) == Some(of)
            && !is_over(other)
            && other.metadata.deletion_timestamp.is_none()
            && age(other) < age(object)
    };
    !ctx.objects.store.state_filter(comes_first).is_empty()
}

/// Returns when a backup that was created then is looked at again.
fn look_in(created: Option<Timestamp>, now: Timestamp) -> Duration {
    let age = created.and_then(|created| Duration::try_from(now.duration_since(created)).ok()).unwrap_or_default();
    (age / 10).clamp(*LOOKS.start(), *LOOKS.end())
}

/// Observes and decides.
async fn decided(ctx: &BackupContext, backup: &Backup<'_>) -> Result<Outcome, Error> {
    let spec = &backup.decoded().map_err(Error::Invalid)?.spec;
    let observed = observe::observe(ctx, backup, spec).await?;
    Ok(decide::decide(backup.uid(), spec, &backup.recorded_status, &observed, clock::now()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backup_that_takes_long_is_looked_at_less_often() {
        let created: Timestamp = "2026-01-31T04:00:00Z".parse().unwrap();
        for (later, expected) in [(0, 3), (20, 3), (100, 10), (400, 30), (100_000, 30), (-50, 3)] {
            let now = created + jiff::SignedDuration::from_secs(later);
            assert_eq!(look_in(Some(created), now), Duration::from_secs(expected), "{later}");
        }
        assert_eq!(look_in(None, created), Duration::from_secs(3));
    }
}
