//! Carries out a `ClientAppRestore`, [once](crate::platform::run_once).
//!
//! | stage | module | |
//! |---|---|---|
//! | what exists | [`observed`], [`observe`] | pure, and reads only |
//! | what follows | [`decide`] | pure |
//! | what another app is created from | [`permission`] | pure |
//! | what a PerconaPGCluster can be restored to | [`percona`], [`history`] | pure |
//! | what another Cluster can be created from | [`cloudnativepg`] | pure |
//! | the one step that follows | [`step`], [`act`] | pure, and effect |

mod act;
mod cloudnativepg;
mod context;
mod decide;
pub(crate) mod history;
mod observe;
mod observed;
pub(crate) mod percona;
mod permission;
mod step;

pub(crate) use self::context::Restores;
use self::{
    decide::Outcome,
    step::{Me, Step},
};
use crate::{
    crd::{BackupSubject, ClientAppRestore, ClientAppRestoreStatus, Reason},
    platform::{
        clock,
        run_once::{Error, Run, RunContext, RunOnce, RunReasons},
    },
    profile::Profiles,
};

impl RunOnce for Restores {
    type Object = ClientAppRestore;
    type Status = ClientAppRestoreStatus;
    type Shared = Profiles;
    type Step = Step;

    const ACTION: &'static str = "Restore";
    const REASONS: RunReasons = RunReasons {
        pending: Reason::RestorePending,
        running: Reason::RestoreRunning,
        failed: Reason::RestoreUnsuccessful,
        completed: Reason::RestoreCompleted,
    };

    fn subject(object: &ClientAppRestore) -> BackupSubject {
        object.spec.subject()
    }

    async fn decided(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>) -> Result<Outcome, Error> {
        let spec = &restore.decoded().map_err(Error::Invalid)?.spec;
        let observed = observe::observe(ctx, restore, spec).await?;
        let me = Me { uid: restore.uid(), name: &restore.key.name };
        Ok(decide::decide(me, spec, &restore.recorded_status, &observed, clock::now()))
    }

    async fn act(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>, step: &Step) -> Result<(), Error> {
        act::act(ctx, restore, step).await
    }

    async fn release(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>) -> Result<Option<String>, Error> {
        act::release(ctx, restore).await
    }
}
