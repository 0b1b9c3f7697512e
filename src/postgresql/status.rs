//! Reports: the status. [`build_status`] is **pure**; together with its neighbours here it is the only place that computes
//! conditions. [`say`] is the effect that writes them.

use jiff::Timestamp;

use super::{
    context::{Ctx, Database},
    decide::{Hold, Plan, dumps, larger, volume},
    desired::{Desired, PasswordSource},
    error::Error,
    names,
    observed::{Detail, Given, Kind, Observed, Owner, SecretView},
};
use crate::{
    crd::{
        ActivePod, BackupSummary, Drill, DumpState, Owned, Phase, PostgresqlStatus, Reason, RestoreRecord,
        SecretRecord, VolumeRecord,
        conditions::{State, Verdict, find, kind},
    },
    deletion::permit::Kept,
    platform::{
        clock,
        controller::Failure as _,
        events::{Note, publish_by, turn_of_ready},
        job,
        key::Key,
        status::is_gone,
    },
};

pub(crate) use crate::crd::reason::BACKED_UP;

/// Returns what has to be recorded before any step is taken, as later passes depend on it: the volume with the database, the version of its
/// files, that a password is in use, what is deleted with the Postgresql, and the results of its dumps. Conditions stay as they are.
pub(crate) fn recorded(desired: &Desired, observed: &Observed) -> PostgresqlStatus {
    let volume = volume::record(desired, observed);
    let mut owned = observed.recorded.owned.clone();
    for entry in owned_now(desired, observed, volume.as_ref()) {
        match owned.iter_mut().find(|known| (&known.kind, &known.name) == (&entry.kind, &entry.name)) {
            Some(known) => *known = entry,
            None => owned.push(entry),
        }
    }
    // The version of the files, which are created once, not of the present spec.
    let initialized = volume.as_ref().is_some_and(|volume| volume.initialized);
    let version = observed.recorded.version.clone().or_else(|| initialized.then(|| desired.version.clone()));
    PostgresqlStatus {
        volume,
        version,
        secret: secret(desired, observed),
        owned,
        restored: volume::restored(desired, observed),
        backup: dumps::summary(desired, observed),
        ..observed.recorded.clone()
    }
}

/// The volumes and Secrets that are labelled as this Postgresql's and have one of its names.
fn owned_now(desired: &Desired, observed: &Observed, volume: Option<&VolumeRecord>) -> Vec<Owned> {
    let name = &desired.key.name;
    let data = names::data(name);
    let claims = observed.objects.iter().filter(|((kind, claim), view)| {
        let known = *claim != data || volume.is_some_and(|volume| volume.uid == view.uid);
        *kind == Kind::PersistentVolumeClaim
            && view.owner == Owner::Ours
            && !view.deleting
            && names::is_claim(name, claim)
            && known
    });
    let owned = |kind: &str, name: &str, uid: &str| Owned { kind: kind.into(), name: name.into(), uid: uid.into() };
    let claims = claims.map(|((_, claim), view)| owned("PersistentVolumeClaim", claim, &view.uid));
    claims.chain(observed.secrets.iter().map(|(secret, own)| owned("Secret", secret, &own.uid))).collect()
}

fn backed_up(observed: &Observed) -> Verdict {
    let BackupSummary {
        last_success,
        last_failure,
        failed_job,
        failure: why,
        drill,
        last_duration: _,
        dumps: _,
        volume: _,
    } = observed.recorded.backup.clone().unwrap_or_default();
    if let Some(Drill { last_success, last_failure: Some(failure), message, .. }) = drill
        && last_success.is_none_or(|success| success.0 < failure.0)
    {
        let message = message.unwrap_or_default();
        return Verdict::no(Reason::DrillFailed, format!("the drill of {} has failed: {message}", failure.0));
    }
    match (last_success, last_failure) {
        (success, Some(failure)) if success.as_ref().is_none_or(|success| success.0 < failure.0) => {
            let before = success.map_or("there is no earlier dump".to_owned(), |success| {
                format!("the last complete dump is of {}", success.0)
            });
            let sentence = job::failure(&failed_job.unwrap_or_default(), &failure, why.as_deref());
            Verdict::no(Reason::DumpFailed, format!("{sentence}; {before}"))
        }
        (Some(success), _) => Verdict::yes(Reason::Dumped, format!("the last dump was complete at {}", success.0)),
        (None, _) => Verdict::unknown(Reason::NoDump, "there is no dump yet"),
    }
}

pub(crate) fn build_status(
    generation: Option<i64>,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> PostgresqlStatus {
    let name = &desired.key.name;
    let pod = observed.primary(desired);
    // A server on another volume does not serve this database.
    let lost = plan.hold.as_ref().is_some_and(|hold| hold.reason == volume::LOST);
    let serves = !lost && pod.is_some_and(|pod| pod.waiting.is_none());
    let volume = observed.objects.get(&(Kind::PersistentVolumeClaim, names::data(name)));
    let size = volume.and_then(|volume| match &volume.detail {
        Detail::Claim { capacity, .. } => capacity.clone(),
        _ => None,
    });
    let host = format!("{}.{}.svc:{}", names::primary(name), desired.key.namespace, desired.port);
    let note = larger(desired, observed).map(|note| format!("; {note}")).unwrap_or_default();
    let serving = Verdict::yes(Reason::Ready, format!("PostgreSQL {} serves at {host}{note}", desired.version));
    let (ready, reconciling, stalled) = match &plan.hold {
        Some(Hold { reason, message }) if reason.stalled() => {
            (Verdict::no(*reason, message), Verdict::no(*reason, message), Verdict::yes(*reason, message))
        }
        hold => {
            let reconciling = match hold {
                Some(hold) => Verdict::yes(hold.reason, &hold.message),
                None if !plan.steps.is_empty() => {
                    Verdict::yes(Reason::Applying, "the applied objects are not ready yet")
                }
                None => Verdict::no(Reason::Settled, "the operator has nothing left to do"),
            };
            let ready = match serves {
                true => serving,
                false => Verdict { state: State::False, ..reconciling.clone() },
            };
            (ready, reconciling, Verdict::no(Reason::NotStalled, "no manual action is required"))
        }
    };
    let phase = match (serves, stalled.state) {
        (true, _) => Phase::Up,
        (false, State::True) => Phase::Failed,
        (false, _) => Phase::Pending,
    };
    let mut verdicts = vec![(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalled)];
    if desired.backup.is_some() {
        verdicts.push((BACKED_UP, backed_up(observed)));
    }
    PostgresqlStatus {
        observed_generation: generation,
        conditions: verdicts
            .into_iter()
            .map(|(type_, verdict)| verdict.into_condition(type_, &observed.recorded.conditions, generation, now))
            .collect(),
        phase: Some(phase),
        active: pod.filter(|_| serves).map(|pod| ActivePod {
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }),
        storage_size: size.or_else(|| observed.recorded.storage_size.clone()),
        dump: dumps::record(desired, observed),
        ..observed.recorded.clone()
    }
}

/// Records that a password is in use, and its source as far as known.
fn secret(desired: &Desired, observed: &Observed) -> Option<SecretRecord> {
    let recorded = observed.recorded.secret.clone();
    let name = names::client_secret(&desired.key.name);
    match (&observed.credentials.kept, &observed.credentials.given) {
        (SecretView::Ours { .. }, Given::Same(version)) => {
            Some(SecretRecord { name, from: desired.password.field().to_owned(), version: version.clone() })
        }
        (SecretView::Ours { .. }, _) => Some(recorded.unwrap_or_else(|| SecretRecord {
            name,
            from: PasswordSource::Generated.field().to_owned(),
            version: None,
        })),
        _ => recorded,
    }
}

/// The status of a pass that does nothing but report why.
fn only_said(recorded: &PostgresqlStatus, generation: Option<i64>, hold: &Hold, now: Timestamp) -> PostgresqlStatus {
    amended(recorded, generation, Verdict::no(hold.reason, &hold.message), hold.reason.stalled(), now)
}

/// The status without its primary if that no longer serves: a pass that fails or only reports must not hide it. `ready`: the uids of
/// the pods that serve.
fn without_primary(mut recorded: PostgresqlStatus, ready: &[String]) -> PostgresqlStatus {
    if recorded.active.as_ref().is_some_and(|active| !ready.contains(&active.uid)) {
        recorded.active = None;
        recorded.phase = recorded.phase.map(|_| Phase::Pending);
    }
    recorded
}

fn observed_now(ctx: &Ctx, of: &Database<'_>) -> PostgresqlStatus {
    let serving = ctx.watches.pods(of.key).into_iter().filter(|pod| pod.waiting.is_none());
    without_primary(of.before.clone(), &serving.map(|pod| pod.uid).collect::<Vec<_>>())
}

/// The status after a pass that failed; `observedGeneration` does not move.
pub(crate) fn failed(
    recorded: &PostgresqlStatus,
    generation: Option<i64>,
    error: &Error,
    now: Timestamp,
) -> PostgresqlStatus {
    let disposition = error.disposition();
    if disposition.condition.is_none() {
        return recorded.clone();
    }
    let status = amended(recorded, generation, disposition.verdict(error), disposition.stalled, now);
    PostgresqlStatus { observed_generation: recorded.observed_generation, ..status }
}

fn amended(
    recorded: &PostgresqlStatus,
    generation: Option<i64>,
    ready: Verdict,
    stalled: bool,
    now: Timestamp,
) -> PostgresqlStatus {
    let (reconciling, stalling) = (ready.that(!stalled), ready.that(stalled));
    let verdicts = [(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalling)];
    let dumps = find(&recorded.conditions, BACKED_UP).cloned();
    let conditions = verdicts
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &recorded.conditions, generation, now))
        .chain(dumps)
        .collect();
    let phase = match recorded.phase {
        Some(Phase::Up) => Phase::Up,
        _ if stalled => Phase::Failed,
        _ => Phase::Pending,
    };
    PostgresqlStatus { observed_generation: generation, conditions, phase: Some(phase), ..recorded.clone() }
}

/// Reports why a pass does nothing.
pub(crate) async fn said(ctx: &Ctx, of: &Database<'_>, hold: &Hold) -> Result<(), Error> {
    // With the status that this reconcile has already recorded.
    let of = ctx.database(of.key, of.guard);
    say(ctx, &of, &only_said(&observed_now(ctx, &of), of.meta().generation, hold, clock::now())).await
}

pub(crate) async fn failure(ctx: &Ctx, of: &Database<'_>, error: &Error) -> Result<(), Error> {
    // With the status that this reconcile has already recorded.
    let of = ctx.database(of.key, of.guard);
    say(ctx, &of, &failed(&observed_now(ctx, &of), of.meta().generation, error, clock::now())).await
}

/// Writes the status, and publishes what is new in it.
pub(crate) async fn say(ctx: &Ctx, of: &Database<'_>, status: &PostgresqlStatus) -> Result<(), Error> {
    ctx.statuses.write(&ctx.client, of, status).await.map_err(|error| match is_gone(&error) {
        true => Error::Gone(of.key.clone()),
        false => Error::api(format!("write the status of Postgresql {}", of.key))(error),
    })?;
    publish_by(&ctx.recorder, &of.reference(), &transitions(&of.before, status)).await;
    Ok(())
}

/// The events for a change of status: transitions of Ready, and the results of restores, dumps and drills. **Pure.**
pub(crate) fn transitions(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Vec<Note> {
    let turn = turn_of_ready("Reconcile", &before.conditions, &after.conditions);
    let of_dumps =
        [restored(before, after), dumped(before, after), dump_failed(before, after), drill_failed(before, after)];
    turn.into_iter().chain(of_dumps.into_iter().flatten()).collect()
}

fn restored(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let record = after.restored.as_ref()?;
    let RestoreRecord { dump, claim: _, store: _, tables, completed_at: _ } = record;
    let tables = tables.map_or_else(String::new, |tables| format!("; {tables} tables are not empty"));
    let message = format!("the database was made from dump {dump} of {}{tables}", record.place());
    (before.restored.as_ref() != Some(record)).then(|| Note::normal("Restore", Reason::Restored, message))
}

/// An event, since no user waits for a drill either.
fn drill_failed(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let [then, now] = [before, after].map(|status| status.backup.as_ref().and_then(|backup| backup.drill.as_ref()));
    // The cause may be known later than the failure.
    let failure = |drill: &Drill| drill.last_failure.clone().map(|failure| (failure, drill.message.clone()));
    let is_new = now.and_then(failure).is_some() && now.and_then(failure) != then.and_then(failure);
    let message = now?.message.clone().filter(|_| is_new)?;
    Some(Note::warning("Drill", Reason::DrillFailed, format!("the latest dump was not restored: {message}")))
}

/// An event, since no user waits for a scheduled dump and sees that it failed.
fn dump_failed(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let [then, now] = [before, after].map(|status| status.backup.as_ref().and_then(|backup| backup.failed_job.clone()));
    let job = now.filter(|job| then.as_ref() != Some(job))?;
    // Reported with the request instead.
    let asked_for = after.dump.as_ref().is_some_and(|dump| dump.job == job);
    let why = after.backup.as_ref().and_then(|backup| backup.failure.as_ref());
    let message = match why {
        Some(why) => format!("Job {job} has failed: {why}: see `kubectl logs job/{job}`"),
        None => format!("Job {job} has failed, and there is no dump of that time: see `kubectl logs job/{job}`"),
    };
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

pub(crate) fn kept(key: &Key, kept: &[Kept]) -> Note {
    let kept: Vec<_> = kept.iter().map(Kept::to_string).collect();
    Note::normal("Delete", Reason::Retained, format!("Postgresql {} is deleted; {}", key.name, kept.join("; ")))
}

pub(crate) fn inline_password(key: &Key) -> Note {
    let message = format!(
        "spec.password of {} is visible in clear text to every user who may read Postgresqls: put it into a Secret, and name that in spec.passwordSecret",
        key.name
    );
    Note::warning("KeepPassword", Reason::InlinePassword, message)
}

#[cfg(test)]
mod tests;
