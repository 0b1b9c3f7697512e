//! The status and the events. [`status`] is pure, and the only place where conditions are made; [`write`](write()) is its effect.

use jiff::Timestamp;

use super::{
    context::{Backup, BackupContext},
    decide::Outcome,
    error::Error,
};
use crate::{
    crd::{
        BackupPhase, ClientAppBackupStatus, Reason,
        conditions::{Verdict, kind},
    },
    platform::{
        clock,
        controller::ReconcileError as _,
        events::{publish_by, ready_transition},
        status::is_gone,
    },
};

/// Writes the status unless it is unchanged, and publishes an event when the backup has ended. `false`: the object is gone.
pub(super) async fn write(
    ctx: &BackupContext,
    backup: &Backup<'_>,
    outcome: Result<&Outcome, &Error>,
) -> Result<bool, Error> {
    let status = status(&backup.recorded_status, backup.meta().generation, outcome, clock::now());
    match ctx.statuses.write(&ctx.parts.client, backup, &status).await {
        Err(error) if is_gone(&error) => return Ok(false),
        written => written.map_err(Error::api(format!("write the status of ClientAppBackup {}", backup.key)))?,
    }
    let turn = ready_transition("BackUp", &backup.recorded_status.conditions, &status.conditions);
    publish_by(&ctx.parts.recorder, &backup.reference(), turn.as_slice()).await;
    Ok(true)
}

fn status(
    recorded: &ClientAppBackupStatus,
    generation: Option<i64>,
    outcome: Result<&Outcome, &Error>,
    now: Timestamp,
) -> ClientAppBackupStatus {
    let (status, ready, is_stalled) = match outcome.map_err(|error| (error, error.disposition())) {
        Ok(Outcome { status, ready, step: _ }) => {
            (status.clone(), ready.clone(), status.phase == Some(BackupPhase::Failed))
        }
        Err((_, disposition)) if disposition.condition.is_none() => return recorded.clone(),
        Err((error, disposition)) => (recorded.clone(), disposition.verdict(error), disposition.stalled),
    };
    let stalled = match is_stalled {
        true => ready.that(true),
        false => Verdict::no(Reason::NotStalled, "no manual action is required"),
    };
    let condition = |type_, verdict: Verdict| verdict.into_condition(type_, &recorded.conditions, generation, now);
    let conditions = vec![condition(kind::READY, ready), condition(kind::STALLED, stalled)];
    ClientAppBackupStatus { observed_generation: generation, conditions, ..status }
}
