//! Stage 5: the status. [`build_status`] is **pure** and, with its neighbours here, the only place where conditions are
//! made; [`write()`] is its effect.

use jiff::Timestamp;

use super::{
    Ctx,
    decide::{Hold, Plan, dumps, primary, volume},
    desired::{Desired, PasswordSource},
    error::Error,
    names,
    world::{Detail, Given, Kind, Owner, SecretView, World},
};
use crate::{
    controller::{
        events::Note,
        key::Key,
        status::{is_gone, write_status},
    },
    crd::{
        ActivePod, BackupSummary, DumpState, Owned, Phase, Postgresql, PostgresqlStatus, SecretRecord, VolumeRecord,
        conditions::{State, Verdict, find, kind},
    },
    destroy::permit::Kept,
};

/// Type of the condition about dumps, of a Postgresql that shall have some.
pub const BACKED_UP: &str = "BackedUp";

/// What is to be on record before any step is taken: on which volume the database is, what goes with the Postgresql, how its dumps
/// went. Conditions stay as they were.
#[must_use]
pub fn recorded(desired: &Desired, world: &World) -> PostgresqlStatus {
    let volume = volume::record(desired, world);
    let mut owned = world.recorded.owned.clone();
    for entry in owned_now(desired, world, volume.as_ref()) {
        match owned.iter_mut().find(|known| (&known.kind, &known.name) == (&entry.kind, &entry.name)) {
            Some(known) => *known = entry,
            None => owned.push(entry),
        }
    }
    PostgresqlStatus { volume, owned, backup: dumps::summary(desired, world), ..world.recorded.clone() }
}

/// What holds or opens data and is labelled as this Postgresql's, under a name that it has.
fn owned_now(desired: &Desired, world: &World, volume: Option<&VolumeRecord>) -> Vec<Owned> {
    let name = &desired.key.name;
    let data = names::data_claim(&names::primary(name), 0);
    let claims = world.objects.iter().filter(|((kind, claim), view)| {
        let known = *claim != data || volume.is_some_and(|volume| volume.uid == view.uid);
        *kind == Kind::PersistentVolumeClaim
            && view.owner == Owner::Ours
            && !view.deleting
            && names::is_claim(name, claim)
            && known
    });
    let owned =
        |kind: &str, name: &String, uid: &String| Owned { kind: kind.to_owned(), name: name.clone(), uid: uid.clone() };
    let claims = claims.map(|((kind, claim), view)| owned(kind.as_str(), claim, &view.uid));
    claims.chain(world.secrets.iter().map(|(secret, own)| owned("Secret", secret, &own.uid))).collect()
}

/// How the dumps go.
fn backed_up(world: &World) -> Verdict {
    let BackupSummary { last_success, last_failure, failed_job } = world.recorded.backup.clone().unwrap_or_default();
    match (last_success, last_failure) {
        (success, Some(failure)) if success.as_ref().is_none_or(|success| success.0 < failure.0) => {
            let before = success.map_or("there is none from before".to_owned(), |success| {
                format!("the last good one is of {}", success.0)
            });
            let job = failed_job.unwrap_or_default();
            Verdict::no(
                "DumpFailed",
                format!("Job {job} has failed at {}: see `kubectl logs job/{job}`; {before}", failure.0),
            )
        }
        (Some(success), _) => Verdict::yes("Dumped", format!("the last dump was complete at {}", success.0)),
        (None, _) => Verdict::unknown("NoDump", "there is no dump yet"),
    }
}

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
    // Whatever a server on another volume serves, it is not this database.
    let lost = plan.hold.as_ref().is_some_and(|hold| hold.reason == volume::LOST);
    let serves = !lost && pod.is_some_and(|pod| pod.waiting.is_none());
    let initialized = world.recorded.volume.as_ref().is_some_and(|volume| volume.initialized);
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
    let mut verdicts = vec![(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalled)];
    if desired.backup.is_some() {
        verdicts.push((BACKED_UP, backed_up(world)));
    }
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
        version: world.recorded.version.clone().or_else(|| initialized.then(|| desired.version.clone())),
        storage_size: size.or_else(|| world.recorded.storage_size.clone()),
        secret: secret(desired, world),
        dump: dumps::record(desired, world),
        ..world.recorded.clone()
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
    let dumps = find(&recorded.conditions, BACKED_UP).cloned();
    let conditions = verdicts
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &recorded.conditions, generation, now))
        .chain(dumps)
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
    let version = written.map_err(|error| match is_gone(&error) {
        true => Error::Gone(key.clone()),
        false => Error::api(format!("write the status of Postgresql {key}"))(error),
    })?;
    ctx.statuses.put(key, uid, version.as_deref(), status);
    Ok(())
}

/// The events that a change of status is worth: transitions of Ready, and the ends of dumps on request. **Pure.**
#[must_use]
pub fn transitions(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Vec<Note> {
    readiness(before, after).into_iter().chain(dumped(before, after)).chain(dump_failed(before, after)).collect()
}

/// No user waits for a dump by schedule, and sees that it failed.
fn dump_failed(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let [then, now] = [before, after].map(|status| status.backup.as_ref().and_then(|backup| backup.failed_job.clone()));
    let job = now.filter(|job| then.as_ref() != Some(job))?;
    // Told with the request that asked for it.
    let asked_for = after.dump.as_ref().is_some_and(|dump| dump.job == job);
    (!asked_for).then(|| Note {
        action: format!("Dump {job}"),
        warning: true,
        reason: "DumpFailed".to_owned(),
        message: format!("Job {job} has failed, and there is no dump of that time: see `kubectl logs job/{job}`"),
    })
}

fn readiness(before: &PostgresqlStatus, after: &PostgresqlStatus) -> Option<Note> {
    let now = find(&after.conditions, kind::READY)?;
    let same = find(&before.conditions, kind::READY)
        .is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let on_the_way =
        ["Applying", "Provisioning", "NotReady", "Replacing", "Growing", "Closing", "Dumping", "Stopping", "Deleting"];
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

/// The event about what outlives a Postgresql. **Pure.**
#[must_use]
pub fn kept(key: &Key, kept: &[Kept]) -> Note {
    let kept: Vec<_> = kept.iter().map(Kept::to_string).collect();
    Note {
        action: "Delete".to_owned(),
        warning: false,
        reason: "Retained".to_owned(),
        message: format!("Postgresql {} is deleted; {}", key.name, kept.join("; ")),
    }
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
        postgresql::{
            desired,
            world::{ObjectView, OwnSecret, PodView},
        },
    };

    fn of(spec: serde_json::Value) -> Desired {
        let object = json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "uid-1"}, "spec": spec});
        desired::desired(&serde_json::from_value(object).unwrap()).unwrap()
    }

    fn acme() -> Desired {
        of(json!({}))
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
            let pod = PodView {
                name: "acme-0".to_owned(),
                uid: "p".to_owned(),
                role: "primary".to_owned(),
                waiting,
                refused: None,
                closed: None,
            };
            let world = World { pods: vec![pod], ..World::default() };
            let plan = Plan { hold, ..Plan::default() };
            let status = build_status(Some(3), &acme(), &world, &plan, Timestamp::UNIX_EPOCH);
            assert_eq!((status.phase, said(&status).as_str()), (Some(phase), expected));
            assert_eq!(status.active.is_some(), ready);
        }
    }

    #[test]
    fn how_dumps_go() {
        let time = |text: &str| -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
            serde_json::from_value(json!(text)).ok()
        };
        let (early, late) = (time("2026-01-01T00:00:00Z"), time("2026-01-02T00:00:00Z"));
        for (last_success, last_failure, expected) in [
            (None, None, ("Unknown", "NoDump", "there is no dump yet")),
            (early.clone(), None, ("True", "Dumped", "the last dump was complete at 2026-01-01T00:00:00Z")),
            (late.clone(), early.clone(), ("True", "Dumped", "the last dump was complete at 2026-01-02T00:00:00Z")),
            (
                early,
                late.clone(),
                (
                    "False",
                    "DumpFailed",
                    "Job acme-backup-1 has failed at 2026-01-02T00:00:00Z: see `kubectl logs job/acme-backup-1`; the last good one is of 2026-01-01T00:00:00Z",
                ),
            ),
            (
                None,
                late,
                (
                    "False",
                    "DumpFailed",
                    "Job acme-backup-1 has failed at 2026-01-02T00:00:00Z: see `kubectl logs job/acme-backup-1`; there is none from before",
                ),
            ),
        ] {
            let failed_job = last_failure.as_ref().map(|_| "acme-backup-1".to_owned());
            let backup = BackupSummary { last_success, last_failure, failed_job };
            let mut world = World::default();
            world.recorded.backup = Some(backup);
            let desired = of(json!({"backup": {"schedule": "@daily"}}));
            let status = build_status(Some(3), &desired, &world, &Plan::default(), Timestamp::UNIX_EPOCH);
            let condition = find(&status.conditions, BACKED_UP).unwrap();
            assert_eq!((condition.status.as_str(), condition.reason.as_str(), condition.message.as_str()), expected);
            // Whatever becomes of the rest, it stays said.
            let error = Error::NotOurs { object: "Service acme".to_owned(), owner: "Deployment x".to_owned() };
            let after = failed(&status, Some(3), &error, Timestamp::UNIX_EPOCH);
            assert_eq!(find(&after.conditions, BACKED_UP), Some(condition));
        }
        let status = build_status(Some(3), &acme(), &World::default(), &Plan::default(), Timestamp::UNIX_EPOCH);
        assert_eq!(find(&status.conditions, BACKED_UP), None);
    }

    #[test]
    fn a_dump_by_schedule_that_fails_is_told_once() {
        let with = |job: Option<&str>| PostgresqlStatus {
            backup: Some(BackupSummary { failed_job: job.map(str::to_owned), ..BackupSummary::default() }),
            ..PostgresqlStatus::default()
        };
        for (before, after, told) in [
            (with(None), with(Some("a")), true),
            (with(Some("a")), with(Some("a")), false),
            (with(Some("a")), with(Some("b")), true),
            (with(Some("a")), with(None), false),
        ] {
            let notes = transitions(&before, &after);
            assert_eq!(notes.iter().any(|note| note.warning && note.reason == "DumpFailed"), told);
        }
    }

    /// A claim or Secret that is put on record is one of this Postgresql, by uid and by name.
    #[test]
    fn what_is_put_on_record() {
        let claim = |uid: &str, owner: Owner, deleting| ObjectView {
            owner,
            uid: uid.to_owned(),
            digest: None,
            deleting,
            detail: Detail::Claim { requested: None, capacity: None, made_for: None },
        };
        let other = || Owner::Other("x".to_owned());
        let mut world = World::default();
        for (name, view) in [
            ("data-acme-0", claim("another", Owner::Ours, false)),
            ("data-acme-standby-0", claim("1", Owner::Ours, false)),
            ("data-acme-standby-1", claim("2", other(), false)),
            ("data-acme-standby-2", claim("3", Owner::Ours, true)),
            ("acme-backup", claim("4", Owner::Ours, false)),
            ("precious", claim("5", Owner::Ours, false)),
        ] {
            world.objects.insert((Kind::PersistentVolumeClaim, name.to_owned()), view);
        }
        world.secrets.insert("acme-app".to_owned(), OwnSecret { uid: "6".to_owned(), unsettled: false });
        let owned = |kind: &str, name: &str, uid: &str| Owned {
            kind: kind.to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        };
        // The data's volume is another one than on record; the dumps' was made anew.
        world.recorded.volume =
            Some(VolumeRecord { name: "data-acme-0".to_owned(), uid: "0".to_owned(), initialized: true });
        world.recorded.owned = vec![
            owned("PersistentVolumeClaim", "data-acme-0", "0"),
            owned("PersistentVolumeClaim", "acme-backup", "old"),
        ];
        let expected = [
            owned("PersistentVolumeClaim", "data-acme-0", "0"),
            owned("PersistentVolumeClaim", "acme-backup", "4"),
            owned("PersistentVolumeClaim", "data-acme-standby-0", "1"),
            owned("Secret", "acme-app", "6"),
        ];
        assert_eq!(recorded(&acme(), &world).owned, expected);
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
