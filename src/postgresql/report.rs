//! Stage 5: the status. [`build_status`] is **pure** and, with its neighbours here, the only place where conditions are
//! made; [`write()`] is its effect.

use jiff::Timestamp;

use super::{
    Ctx,
    decide::{Hold, Plan, dumps, primary},
    desired::{Desired, PasswordSource},
    error::Error,
    names,
    world::{Detail, Given, Kind, SecretView, World},
};
use crate::{
    controller::{events::Note, key::Key, status::write_status},
    crd::{
        ActivePod, DumpState, Phase, Postgresql, PostgresqlStatus, SecretRecord,
        conditions::{State, Verdict, find, kind},
    },
};

/// The status that tells the truth about a pass.
#[must_use]
pub fn build_status(
    generation: Option<i64>,
    desired: &Desired,
    world: &World,
    plan: &Plan,
    now: Timestamp,
) -> PostgresqlStatus {
    let name = &desired.key.name;
    let pod = primary(desired, &world.pods);
    let serves = pod.is_some_and(|pod| pod.waiting.is_none());
    let volume = world.objects.get(&(Kind::PersistentVolumeClaim, names::data_claim(&names::primary(name), 0)));
    let size = volume.and_then(|volume| match &volume.detail {
        Detail::Claim { capacity, .. } => capacity.clone(),
        _ => None,
    });
    let host = format!("{}.{}.svc:{}", names::primary(name), desired.key.namespace, desired.port);
    let serving = Verdict::yes("Ready", format!("PostgreSQL {} serves at {host}", desired.version));
    let (ready, reconciling, stalled) = match &plan.hold {
        Some(Hold { reason, message, stalled: true }) => {
            (Verdict::no(*reason, message), Verdict::no(*reason, message), Verdict::yes(*reason, message))
        }
        hold => {
            let reconciling = match hold {
                Some(hold) => Verdict::yes(hold.reason, &hold.message),
                None if !plan.steps.is_empty() => Verdict::yes("Applying", "what was applied is on its way"),
                None => Verdict::no("Settled", "the operator has nothing left to do"),
            };
            let ready = match serves {
                true => serving,
                false => Verdict { state: State::False, ..reconciling.clone() },
            };
            (ready, reconciling, Verdict::no("NotStalled", "nothing has to be changed by hand"))
        }
    };
    let phase = match (serves, stalled.state) {
        (true, _) => Phase::Up,
        (false, State::True) => Phase::Failed,
        (false, _) => Phase::Pending,
    };
    let verdicts = [(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalled)];
    PostgresqlStatus {
        observed_generation: generation,
        conditions: verdicts
            .into_iter()
            .map(|(type_, verdict)| verdict.into_condition(type_, &world.recorded.conditions, generation, now))
            .collect(),
        phase: Some(phase),
        active: pod.filter(|_| serves).map(|pod| ActivePod {
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }),
        // Of the files, which are made once; not of what the spec asks for since.
        version: world.recorded.version.clone().or_else(|| volume.map(|_| desired.version.clone())),
        storage_size: size.or_else(|| world.recorded.storage_size.clone()),
        secret: secret(desired, world),
        dump: dumps::record(desired, world),
    }
}

/// That a password is in use, and what is known of where it came from.
fn secret(desired: &Desired, world: &World) -> Option<SecretRecord> {
    let recorded = world.recorded.secret.clone();
    let name = names::client_secret(&desired.key.name);
    match (&world.credentials.kept, &world.credentials.given) {
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

/// The status where nothing is done but to say so.
#[must_use]
pub fn only_said(
    recorded: &PostgresqlStatus,
    generation: Option<i64>,
    hold: &Hold,
    now: Timestamp,
) -> PostgresqlStatus {
    let Hold { reason, message, stalled } = hold;
    let state = |holds| if holds { State::True } else { State::False };
    let verdict = |state| Verdict { state, reason: (*reason).into(), message: message.clone() };
    amended(recorded, generation, verdict(State::False), state(!stalled), state(*stalled), now)
}

/// The status after a pass that failed half way; `observedGeneration` does not move.
#[must_use]
pub fn failed(recorded: &PostgresqlStatus, generation: Option<i64>, error: &Error, now: Timestamp) -> PostgresqlStatus {
    let disposition = error.disposition();
    if disposition.condition.is_none() {
        return recorded.clone();
    }
    let verdict = Verdict { state: disposition.state, reason: disposition.reason.into(), message: error.to_string() };
    let (reconciling, stalled) =
        if disposition.stalled { (State::False, State::True) } else { (State::True, State::False) };
    let status = amended(recorded, generation, verdict, reconciling, stalled, now);
    PostgresqlStatus { observed_generation: recorded.observed_generation, ..status }
}

fn amended(
    recorded: &PostgresqlStatus,
    generation: Option<i64>,
    ready: Verdict,
    reconciling: State,
    stalled: State,
    now: Timestamp,
) -> PostgresqlStatus {
    let verdicts = [
        (kind::READY, ready.clone()),
        (kind::RECONCILING, Verdict { state: reconciling, ..ready.clone() }),
        (kind::STALLED, Verdict { state: stalled, ..ready }),
    ];
    let conditions = verdicts
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &recorded.conditions, generation, now))
        .collect();
    let phase = match recorded.phase {
        Some(Phase::Up) => Phase::Up,
        _ if stalled == State::True => Phase::Failed,
        _ => Phase::Pending,
    };
    PostgresqlStatus { observed_generation: generation, conditions, phase: Some(phase), ..recorded.clone() }
}

/// Writes the status unless it is what the object has already.
///
/// # Errors
/// The API server's refusal.
pub async fn write(
    ctx: &Ctx,
    key: &Key,
    uid: &str,
    current: &PostgresqlStatus,
    status: &PostgresqlStatus,
) -> Result<(), Error> {
    if current == status {
        return Ok(());
    }
    let written = write_status::<Postgresql, _>(&ctx.client, key, uid, status).await;
    let version = written.map_err(Error::api(format!("write the status of Postgresql {key}")))?;
    ctx.statuses.put(key, uid, version.as_deref(), status);
    Ok(())
}

/// The events that a change of status is worth: transitions of Ready, and the ends of dumps on request. **Pure.**
#[must_use]
pub fn transitions(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Vec<Note> {
    readiness(before, after).into_iter().chain(dumped(before, after)).collect()
}

fn readiness(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let now = find(&after.conditions, kind::READY)?;
    let same = find(&before.conditions, kind::READY)
        .is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let on_the_way =
        ["Applying", "Provisioning", "NotReady", "Replacing", "Growing", "Dumping", "Stopping", "DeletingVolumes"];
    (!same).then(|| Note {
        action: "Reconcile".to_owned(),
        warning: now.status != "True" && !on_the_way.contains(&now.reason.as_str()),
        reason: now.reason.clone(),
        message: now.message.clone(),
    })
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
    // Events that differ in nothing but their sentence are counted as one.
    let action = format!("Dump {}", now.request);
    (!same).then(|| Note { action, warning, reason: reason.to_owned(), message })
}

/// The event about a password that stands in the spec. **Pure.**
#[must_use]
pub fn inline_password(key: &Key) -> Note {
    Note {
        action: "KeepPassword".to_owned(),
        warning: true,
        reason: "InlinePassword".to_owned(),
        message: format!(
            "spec.password of {} is in clear for everybody who may read Postgresqls, and in every copy of the object: put it into a Secret, and name that in spec.passwordSecret",
            key.name
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        crd::DumpRecord,
        postgresql::{desired, world::PodView},
    };

    fn acme() -> Desired {
        let object = json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "uid-1"}, "spec": {}});
        desired::desired(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn said(status: &PostgresqlStatus) -> String {
        let words = |kind: &str| {
            let condition = find(&status.conditions, kind).unwrap();
            format!("{}={}/{}", condition.type_, condition.status, condition.reason)
        };
        [kind::READY, kind::RECONCILING, kind::STALLED].map(words).join(" ")
    }

    #[test]
    fn phase_and_conditions() {
        let hold = |reason, stalled| Some(Hold { reason, message: "because".to_owned(), stalled });
        for (ready, hold, phase, expected) in [
            (true, None, Phase::Up, "Ready=True/Ready Reconciling=False/Settled Stalled=False/NotStalled"),
            (
                true,
                hold("Growing", false),
                Phase::Up,
                "Ready=True/Ready Reconciling=True/Growing Stalled=False/NotStalled",
            ),
            (
                true,
                hold("SecretLost", true),
                Phase::Up,
                "Ready=False/SecretLost Reconciling=False/SecretLost Stalled=True/SecretLost",
            ),
            (
                false,
                hold("NotReady", false),
                Phase::Pending,
                "Ready=False/NotReady Reconciling=True/NotReady Stalled=False/NotStalled",
            ),
            (
                false,
                hold("NotOurs", true),
                Phase::Failed,
                "Ready=False/NotOurs Reconciling=False/NotOurs Stalled=True/NotOurs",
            ),
        ] {
            let waiting = (!ready).then(|| "x".to_owned());
            let pod = PodView { name: "acme-0".to_owned(), uid: "p".to_owned(), role: "primary".to_owned(), waiting };
            let world = World { pods: vec![pod], ..World::default() };
            let plan = Plan { hold, ..Plan::default() };
            let status = build_status(Some(3), &acme(), &world, &plan, Timestamp::UNIX_EPOCH);
            assert_eq!((status.phase, said(&status).as_str()), (Some(phase), expected));
            assert_eq!(status.active.is_some(), ready);
        }
    }

    #[test]
    fn the_end_of_a_dump_is_told_once() {
        let with = |request: &str, state, message: Option<&str>| PostgresqlStatus {
            dump: Some(DumpRecord {
                request: request.to_owned(),
                job: "acme-dump-1".to_owned(),
                state,
                started_at: None,
                completed_at: None,
                message: message.map(str::to_owned),
            }),
            ..PostgresqlStatus::default()
        };
        let running = || with("one", DumpState::Running, None);
        let succeeded = |request| with(request, DumpState::Succeeded, None);
        let failed = || with("one", DumpState::Failed, Some("because"));
        for (before, after, expected) in [
            (PostgresqlStatus::default(), running(), None),
            (
                running(),
                succeeded("one"),
                Some((false, "Dumped", "Dump one", "Job acme-dump-1 has dumped the database for request one")),
            ),
            (succeeded("one"), succeeded("one"), None),
            (
                succeeded("one"),
                succeeded("two"),
                Some((false, "Dumped", "Dump two", "Job acme-dump-1 has dumped the database for request two")),
            ),
            (running(), failed(), Some((true, "DumpFailed", "Dump one", "because"))),
            (failed(), failed(), None),
            (failed(), running(), None),
        ] {
            let notes = transitions(&before, &after);
            let notes: Vec<_> = notes
                .iter()
                .map(|note| (note.warning, note.reason.as_str(), note.action.as_str(), note.message.as_str()))
                .collect();
            assert_eq!(notes, Vec::from_iter(expected));
        }
    }

    #[test]
    fn a_failure_keeps_what_was_seen() {
        let pod = ActivePod { kind: "Pod".to_owned(), name: "acme-0".to_owned(), uid: "p".to_owned() };
        let recorded = PostgresqlStatus {
            observed_generation: Some(2),
            phase: Some(Phase::Up),
            active: Some(pod.clone()),
            ..PostgresqlStatus::default()
        };
        let error = Error::NotOurs { object: "Service acme".to_owned(), owner: "Deployment x".to_owned() };
        let status = failed(&recorded, Some(3), &error, Timestamp::UNIX_EPOCH);
        assert_eq!((status.observed_generation, status.phase, status.active), (Some(2), Some(Phase::Up), Some(pod)));
        let ready = find(&status.conditions, kind::READY).unwrap();
        assert_eq!((ready.reason.as_str(), ready.status.as_str()), ("NotOurs", "False"));
        assert!(ready.message.contains("Service acme belongs to Deployment x"));
    }
}
