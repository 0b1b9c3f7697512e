//! Computes the conditions, **pure**: the only place that does.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    crd::{
        ActivePod, BackupSummary, Drill, PasswordState, Phase, PostgresqlStatus, Reason, Scheduled,
        conditions::{State, Verdict, find, kind},
        reason::BACKED_UP,
    },
    platform::{controller::ReconcileError as _, job, password, schedule::overdue},
    postgresql::{
        decide::{PostgresqlHold, PostgresqlPlan, dumps, volume, volume_size::larger},
        desired::Desired,
        error::Error,
        names,
        observed::{Detail, Kind, ObservedPostgresql},
    },
};

pub(crate) fn build_status(
    generation: Option<i64>,
    desired: &Desired,
    observed: &ObservedPostgresql,
    (plan, refused_due): (&PostgresqlPlan, Option<&str>),
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
    let (ready, reconciling, stalled) = summary(plan, Some(serving).filter(|_| serves));
    let phase = match (serves, stalled.state) {
        (true, _) => Phase::Up,
        (false, State::True) => Phase::Failed,
        (false, _) => Phase::Pending,
    };
    let mut verdicts = vec![(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalled)];
    if desired.backup.is_some() {
        let lost = match dumps::password_state(desired, observed) {
            PasswordState::Lost(secret) => Some(password::lost(&desired.key.namespace, &secret)),
            PasswordState::Given | PasswordState::Missing(_) => None,
        };
        verdicts.push((BACKED_UP, lost.unwrap_or_else(|| backed_up(&observed.recorded, refused_due, now))));
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

/// Returns Ready, Reconciling and Stalled. `serving`: the first of them if the primary serves and nothing needs a user.
fn summary(plan: &PostgresqlPlan, serving: Option<Verdict>) -> (Verdict, Verdict, Verdict) {
    if let Some(PostgresqlHold { reason, message }) = plan.hold.as_ref().filter(|hold| hold.reason.stalled()) {
        let no = Verdict::no(*reason, message);
        return (no.clone(), no, Verdict::yes(*reason, message));
    }
    let reconciling = match &plan.hold {
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
        None if !plan.steps.is_empty() => Verdict::yes(Reason::Applying, "the applied objects are not ready yet"),
        None => Verdict::no(Reason::Settled, "the operator has nothing left to do"),
    };
    let ready = serving.unwrap_or_else(|| Verdict { state: State::False, ..reconciling.clone() });
    let stalled = Verdict::not_stalled(&ready);
    (ready, reconciling, stalled)
}

/// Judges the dumps and drills by their record. `refused`: why the Job of one that is due was refused.
pub(super) fn backed_up(recorded: &PostgresqlStatus, refused: Option<&str>, now: Timestamp) -> Verdict {
    if let Some(refused) = refused.filter(|_| dumps::is_due(recorded, now)) {
        return Verdict::no(Reason::Refused, format!("what is due is not made: {refused}"));
    }
    let BackupSummary {
        last_success,
        last_failure,
        failed_job,
        failure: why,
        drill,
        last_duration: _,
        dumps: _,
        volume: _,
        scheduled,
    } = recorded.backup.clone().unwrap_or_default();
    if let Some(Drill { last_success, last_failure: Some(failure), message, .. }) = &drill
        && last_success.as_ref().is_none_or(|success| success.0 < failure.0)
    {
        let message = message.clone().unwrap_or_default();
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
        (success, _) => {
            let late = |what: &str, scheduled: Option<&Scheduled>, success: Option<&Time>| {
                let why = format!("a {what} begins once the server is Ready and the one before has ended");
                overdue(what, scheduled, success, &why, now)
            };
            let dumps = late("dump", scheduled.as_ref(), success.as_ref());
            let drills = drill.and_then(|it| late("drill", it.scheduled.as_ref(), it.last_success.as_ref()));
            dumps.or(drills).unwrap_or_else(|| match success {
                Some(success) => Verdict::yes(Reason::Dumped, format!("the last dump was complete at {}", success.0)),
                None => Verdict::unknown(Reason::NoDump, "there is no dump yet"),
            })
        }
    }
}

/// Returns the status of a pass that does nothing but report why: what it does not bring up is in no rollout.
pub(super) fn held(
    recorded: &PostgresqlStatus,
    generation: Option<i64>,
    hold: &PostgresqlHold,
    now: Timestamp,
) -> PostgresqlStatus {
    let recorded = PostgresqlStatus { rollout: None, ..recorded.clone() };
    amended(&recorded, generation, Verdict::no(hold.reason, &hold.message), hold.reason.stalled(), now)
}

/// Returns the status after a pass that failed; `observedGeneration` does not move.
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
    let dumps = find(&recorded.conditions, BACKED_UP).map(|_| (BACKED_UP, backed_up(recorded, None, now)));
    let conditions = verdicts
        .into_iter()
        .chain(dumps)
        .map(|(type_, verdict)| verdict.into_condition(type_, &recorded.conditions, generation, now))
        .collect();
    let phase = match recorded.phase {
        Some(Phase::Up) => Phase::Up,
        _ if stalled => Phase::Failed,
        _ => Phase::Pending,
    };
    PostgresqlStatus { observed_generation: generation, conditions, phase: Some(phase), ..recorded.clone() }
}

/// Returns the status without its primary if that no longer serves: a pass that fails or only reports must not hide it. `ready`: the uids of
/// the pods that serve.
pub(super) fn without_primary(mut recorded: PostgresqlStatus, ready: &[String]) -> PostgresqlStatus {
    if recorded.active.as_ref().is_some_and(|active| !ready.contains(&active.uid)) {
        recorded.active = None;
        recorded.phase = recorded.phase.map(|_| Phase::Pending);
    }
    recorded
}
