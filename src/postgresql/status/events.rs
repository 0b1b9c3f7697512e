//! Computes the events, **pure**.

use crate::{
    crd::{Drill, DumpState, PostgresqlStatus, Reason, RestoreRecord},
    deletion::permit::RetainedObject,
    platform::{
        events::{Note, ready_transition},
        key::Key,
    },
};

/// Returns the events for a change of status: transitions of Ready, and the results of restores, dumps and drills. **Pure.**
pub(crate) fn transitions(namespace: &str, before: &PostgresqlStatus, after: &PostgresqlStatus) -> Vec<Note> {
    let turn = ready_transition("Reconcile", &before.conditions, &after.conditions);
    let of_dumps = [
        restored(before, after),
        dumped(before, after),
        dump_failed(namespace, before, after),
        drill_failed(before, after),
    ];
    turn.into_iter().chain(of_dumps.into_iter().flatten()).collect()
}

fn restored(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let record = after.restored.as_ref()?;
    let RestoreRecord { dump, claim: _, store: _, tables, completed_at: _, request: _ } = record;
    let tables = tables.map_or_else(String::new, |tables| format!("; {tables} tables are not empty"));
    let message = format!("the database was made from dump {dump} of {}{tables}", record.place());
    (before.restored.as_ref() != Some(record)).then(|| Note::normal("Restore", Reason::Restored, message))
}

/// Tells of a failed drill, since no user waits for one and sees that it failed.
fn drill_failed(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let [then, now] = [before, after].map(|status| status.backup.as_ref().and_then(|backup| backup.drill.as_ref()));
    // The cause may be known later than the failure.
    let failure = |drill: &Drill| drill.last_failure.clone().map(|failure| (failure, drill.message.clone()));
    let is_new = now.and_then(failure).is_some() && now.and_then(failure) != then.and_then(failure);
    let message = now?.message.clone().filter(|_| is_new)?;
    Some(Note::warning("Drill", Reason::DrillFailed, format!("the latest dump was not restored: {message}")))
}

/// Tells of a failed dump by schedule, since no user waits for one and sees that it failed.
fn dump_failed(namespace: &str, before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let [then, now] = [before, after].map(|status| status.backup.as_ref().and_then(|backup| backup.failed_job.clone()));
    let job = now.filter(|job| then.as_ref() != Some(job))?;
    // Reported with the request instead.
    let asked_for = after.dump.as_ref().is_some_and(|dump| dump.job == job);
    let why = after.backup.as_ref().and_then(|backup| backup.failure.as_ref());
    let message = match why {
        Some(why) => format!("Job {job} has failed: {why}"),
        None => format!("Job {job} has failed, and there is no dump of that time"),
    };
    let message = format!("{message}: see `kubectl logs job/{job} -n {namespace}`");
    (!asked_for).then(|| Note::warning(format!("Dump {job}"), Reason::DumpFailed, message))
}

fn dumped(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let now = after.dump.as_ref()?;
    let same = before.dump.as_ref().is_some_and(|then| then.request == now.request && then.state == now.state);
    let (warning, reason, message) = match (now.state, &now.message) {
        (DumpState::Running, _) => return None,
        (DumpState::Succeeded, _) => {
            (false, "Dumped", format!("Job {} has dumped the database for request {}", now.job, now.request))
        }
        (DumpState::Failed, why) => (true, "DumpFailed", why.clone().unwrap_or_default()),
    };
    // Kubernetes counts events that differ only in their message as one.
    let action = format!("Dump {}", now.request);
    (!same).then(|| Note { warning, ..Note::normal(action, reason, message) })
}

pub(crate) fn data_kept(key: &Key, kept: &[RetainedObject]) -> Note {
    let kept: Vec<_> = kept.iter().map(RetainedObject::to_string).collect();
    Note::normal("Delete", Reason::Retained, format!("Postgresql {} is deleted; {}", key.name, kept.join("; ")))
}

pub(crate) fn inline_password(key: &Key) -> Note {
    let message = format!(
        "spec.password of {} is visible in clear text to every user who may read Postgresqls: put it into a Secret, and name that in spec.passwordSecret",
        key.name
    );
    Note::warning("KeepPassword", Reason::InlinePassword, message)
}
