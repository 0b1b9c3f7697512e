//! Carries out a `ClientAppBackup`, [once](crate::platform::run_once).
//!
//! | stage | module | |
//! |---|---|---|
//! | what exists | [`observed`], [`observe`] | pure, and reads only |
//! | what follows | [`decide`] | pure |
//! | the one step that follows | [`act`] | effect |
//!
//! [`reclaim`] deletes what a backup has made, if its spec asks for that. [`archive_job`], [`percona`] and [`quiesce`] are of use to restores as well.

mod act;
pub(crate) mod archive_job;
mod cloudnativepg;
mod context;
pub(crate) mod decide;
pub(crate) mod observe;
pub(crate) mod observed;
pub(crate) mod percona;
pub(crate) mod quiesce;
mod reclaim;

pub(crate) use self::context::Backups;
use self::decide::{Outcome, Step};
use crate::{
    crd::{BackupSubject, ClientAppBackup, ClientAppBackupStatus, Reason, Reclaim, conditions::Verdict},
    platform::{
        clock,
        run_once::{Error, Run, RunContext, RunOnce, RunReasons},
    },
    profile::Profiles,
};

impl RunOnce for Backups {
    type Object = ClientAppBackup;
    type Status = ClientAppBackupStatus;
    type Shared = Profiles;
    type Step = Step;

    const ACTION: &'static str = "BackUp";
    const REASONS: RunReasons = RunReasons {
        pending: Reason::BackupPending,
        running: Reason::BackupRunning,
        failed: Reason::BackupUnsuccessful,
        completed: Reason::BackupCompleted,
    };

    fn subject(object: &ClientAppBackup) -> BackupSubject {
        object.spec.of.clone()
    }

    async fn decided(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>) -> Result<Outcome, Error> {
        let object = backup.decoded().map_err(Error::Invalid)?;
        let spec = &object.spec;
        let observed = observe::observe(ctx, backup, object).await?;
        let me = decide::Me { uid: backup.uid(), name: &backup.key.name };
        Ok(decide::decide(me, spec, &backup.recorded_status, &observed, clock::now()))
    }

    fn waits(object: &ClientAppBackup, other: &ClientAppBackup) -> Option<bool> {
        decide::waits(object, other)
    }

    async fn act(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>, step: &Step) -> Result<(), Error> {
        act::act(ctx, backup, step).await
    }

    async fn release(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>) -> Result<Option<String>, Error> {
        let app = backup.object().ok().map(|backup| backup.spec.of.name.clone());
        quiesce::start(&ctx.parts.client, backup.key, app.as_deref(), &decide::mark(&backup.key.name)).await?;
        Ok(None)
    }

    fn is_reclaimed(object: &ClientAppBackup) -> bool {
        object.spec.reclaim == Reclaim::Delete
    }

    async fn reclaim(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>) -> Result<Option<Verdict>, Error> {
        reclaim::reclaim(ctx, backup).await
    }
}
