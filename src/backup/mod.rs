//! The controller of `ClientAppBackup`: **observe → decide → report → act**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what exists | [`observed`], [`observe`] | pure, and reads only |
//! | what follows | [`decide`] | pure |
//! | status and events | [`status`] | pure, then one write |
//! | the one step that follows | [`act`] | effect |
//!
//! What a backup is going to make is in its status, by name, before it is made: so whichever process is killed, it is made once. A backup
//! that runs is looked at every few seconds; one that has ended is never read again.

mod act;
pub(crate) mod archive_job;
mod context;
mod decide;
mod error;
mod observe;
pub(crate) mod observed;
mod status;

use std::time::Duration;

use kube::runtime::controller::Action;

pub(crate) use self::context::run;
use self::{
    context::{Backup, BackupContext},
    decide::Outcome,
    error::Error,
};
use crate::{
    crd::{BackupPhase, ClientAppBackup, Guard},
    platform::{
        clock,
        controller::{RECHECK_GONE, Reconciler},
        key::{Key, key_of},
        panic::caught,
    },
};

/// How often a backup that runs is looked at.
const LOOK: Duration = Duration::from_secs(3);

impl Reconciler for BackupContext {
    type Object = ClientAppBackup;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        self.statuses.forget(key);
    }

    fn is_own_write(&self, object: &Guard<ClientAppBackup>) -> bool {
        self.statuses.is_own_write(&object.metadata, &key_of(object))
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<ClientAppBackup>) -> Result<Action, Error> {
        let backup = &self.statuses.reconciled(key, guard);
        let is_over = matches!(backup.recorded_status.phase, Some(BackupPhase::Completed | BackupPhase::Failed));
        if is_over || backup.is_deleted() {
            return Ok(Action::await_change());
        }
        let outcome = caught(decided(self, backup), Error::Panicked).await;
        if !status::write(self, backup, outcome.as_ref()).await? {
            self.on_deleted(key);
            return Ok(Action::requeue(RECHECK_GONE));
        }
        let Outcome { status, step, .. } = outcome?;
        // What is recorded is made now or, if this process is killed here, by its successor.
        if let Some(step) = &step {
            act::act(self, backup, step).await?;
        }
        Ok(match status.phase {
            Some(BackupPhase::Completed | BackupPhase::Failed) => Action::await_change(),
            _ => Action::requeue(LOOK),
        })
    }
}

/// Observes and decides.
async fn decided(ctx: &BackupContext, backup: &Backup<'_>) -> Result<Outcome, Error> {
    let spec = &backup.decoded().map_err(Error::Invalid)?.spec;
    let observed = observe::observe(ctx, backup, spec).await?;
    Ok(decide::decide(backup.uid(), spec, &backup.recorded_status, &observed, clock::now()))
}
