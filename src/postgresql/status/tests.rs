use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::{
    conditions::{backed_up, build_status, failed, held, without_primary},
    events::transitions,
    record::recorded,
};
use crate::{
    crd::{
        ActivePod, BackupSummary, Drill, DumpState, Owned, Phase, PostgresqlRollout, PostgresqlStatus, Reason,
        Scheduled, VolumeRecord,
        conditions::{find, kind},
        reason::BACKED_UP,
    },
    platform::fake::of,
    postgresql::{
        decide::{
            PostgresqlHold, PostgresqlPlan,
            tests::{acme, pod, view},
        },
        error::Error,
        observed::{Detail, Kind, ObjectView, ObservedPostgresql, OwnSecret, Ownership, SecretState},
    },
};

/// Status and reason of Ready, Reconciling and Stalled.
fn said(status: &PostgresqlStatus) -> [String; 3] {
    [kind::READY, kind::RECONCILING, kind::STALLED].map(|kind| {
        let condition = find(&status.conditions, kind).unwrap();
        format!("{}/{}", condition.status, condition.reason)
    })
}

fn error() -> Error {
    Error::NotOurs { object: "Service acme".to_owned(), owner: "Deployment x".to_owned() }
}

#[test]
fn phase_and_conditions() {
    for (ready, hold, phase, expected) in [
        (true, None, Phase::Up, ["True/Ready", "False/Settled", "False/NotStalled"]),
        (true, Some(Reason::Growing), Phase::Up, ["True/Ready", "True/Growing", "False/NotStalled"]),
        (true, Some(Reason::SecretLost), Phase::Up, ["False/SecretLost", "False/SecretLost", "True/SecretLost"]),
        (false, Some(Reason::NotReady), Phase::Pending, ["False/NotReady", "True/NotReady", "False/NotStalled"]),
        (false, Some(Reason::NotOurs), Phase::Failed, ["False/NotOurs", "False/NotOurs", "True/NotOurs"]),
    ] {
        let hold = hold.map(|reason| PostgresqlHold { reason, message: "because".to_owned() });
        let pod = pod("acme-0", "primary", (!ready).then_some("x"));
        let observed = ObservedPostgresql { pods: vec![pod], ..ObservedPostgresql::default() };
        let plan = PostgresqlPlan { hold, ..PostgresqlPlan::default() };
        let status = build_status(Some(3), &acme(json!({})), &observed, (&plan, None), Timestamp::UNIX_EPOCH);
        assert_eq!((status.phase, said(&status)), (Some(phase), expected.map(str::to_owned)));
        assert_eq!(status.active.is_some(), ready);
    }
}

#[test]
fn backed_up_condition() {
    let [early, late] = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"].map(|time| Some(of::<Time>(json!(time))));
    let has_failed = |but: &str| {
        format!("Job acme-backup-1 has failed at 2026-01-02T00:00:00Z: see `kubectl logs job/acme-backup-1`; {but}")
    };
    let built = |spec, observed: &ObservedPostgresql| {
        build_status(Some(3), &acme(spec), observed, (&PostgresqlPlan::default(), None), Timestamp::UNIX_EPOCH)
    };
    let complete = |day| format!("the last dump was complete at 2026-01-{day}T00:00:00Z");
    for (last_success, last_failure, status, reason, message) in [
        (None, None, "Unknown", "NoDump", "there is no dump yet".to_owned()),
        (early.clone(), None, "True", "Dumped", complete("01")),
        (late.clone(), early.clone(), "True", "Dumped", complete("02")),
        (early, late.clone(), "False", "DumpFailed", has_failed("the last complete dump is of 2026-01-01T00:00:00Z")),
        (None, late, "False", "DumpFailed", has_failed("there is no earlier dump")),
    ] {
        let expected = (status, reason, message.as_str());
        let failed_job = last_failure.as_ref().map(|_| "acme-backup-1".to_owned());
        let backup = BackupSummary { last_success, last_failure, failed_job, ..BackupSummary::default() };
        let mut observed = ObservedPostgresql::default();
        observed.recorded.backup = Some(backup);
        let status = built(json!({"backup": {"schedule": "@daily"}}), &observed);
        let condition = find(&status.conditions, BACKED_UP).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str(), condition.message.as_str()), expected);
        // It stays reported, whatever else happens.
        let after = failed(&status, Some(3), &error(), Timestamp::UNIX_EPOCH);
        assert_eq!(find(&after.conditions, BACKED_UP), Some(condition));
    }
    assert_eq!(find(&built(json!({}), &ObservedPostgresql::default()).conditions, BACKED_UP), None);
}

#[test]
fn a_failed_scheduled_dump_is_published_once() {
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
        let notes = transitions("ns", &before, &after);
        assert_eq!(notes.iter().any(|note| note.warning && note.reason == "DumpFailed"), told);
    }
}

#[test]
fn what_is_missing_twice_is_overdue() {
    let time = |day: u8| Time(format!("2026-01-{day:02}T12:00:00Z").parse().unwrap());
    let scheduled = |since: u8| Scheduled { schedule: "0 3 * * *".to_owned(), since: time(since), next: time(9) };
    let record = |dump: Option<u8>, drill: Option<u8>| {
        let drill = Drill { last_success: drill.map(time), scheduled: Some(scheduled(1)), ..Drill::default() };
        let (last_success, scheduled) = (dump.map(time), Some(scheduled(1)));
        BackupSummary { last_success, scheduled, drill: Some(drill), ..BackupSummary::default() }
    };
    let failed = BackupSummary { last_failure: Some(time(4)), ..record(Some(2), Some(2)) };
    let unscheduled = BackupSummary { scheduled: None, drill: None, ..record(Some(2), None) };
    for (what, backup, now, reason) in [
        ("none yet", record(None, None), 2, "NoDump"),
        ("none for two days", record(None, None), 3, "Overdue"),
        ("yesterday's", record(Some(8), Some(8)), 9, "Dumped"),
        ("it is two days old", record(Some(7), Some(8)), 9, "Overdue"),
        ("the drill is", record(Some(8), Some(7)), 9, "Overdue"),
        ("a failure says more", failed, 9, "DumpFailed"),
        ("no schedule", unscheduled, 9, "Dumped"),
    ] {
        let recorded = PostgresqlStatus { backup: Some(backup), ..PostgresqlStatus::default() };
        let verdict = backed_up(&recorded, None, time(now).0);
        assert_eq!(verdict.reason, reason, "{what}: {}", verdict.message);
        assert_eq!(verdict.message.contains("two drills"), what == "the drill is", "{}", verdict.message);
        let refused = backed_up(&recorded, Some("no room"), time(now).0);
        let is_due = recorded.backup.unwrap().scheduled.is_some() && now == 9;
        assert_eq!(refused.reason == Reason::Refused.as_str(), is_due, "{what}: {}", refused.message);
    }
}

#[test]
fn a_failed_drill_is_published_once_and_lowers_backed_up() {
    let time = |second: u8| serde_json::from_value(json!(format!("2026-01-01T00:00:0{second}Z"))).ok();
    let of_drill = |success: Option<u8>, failure: Option<u8>| {
        let message = failure.map(|_| "it is damaged".to_owned());
        let (last_success, last_failure) = (success.and_then(time), failure.and_then(time));
        let drill = Drill { last_success, last_failure, message, ..Drill::default() };
        let backup = BackupSummary { last_success: time(9), drill: Some(drill), ..BackupSummary::default() };
        PostgresqlStatus { backup: Some(backup), ..PostgresqlStatus::default() }
    };
    let vague = |mut status: PostgresqlStatus| {
        let drill = status.backup.as_mut().and_then(|backup| backup.drill.as_mut());
        drill.unwrap().message = Some("the latest dump cannot be restored".to_owned());
        status
    };
    for (what, before, after, told, reason) in [
        ("it succeeds", of_drill(None, None), of_drill(Some(1), None), false, "Dumped"),
        ("it fails", of_drill(Some(1), None), of_drill(Some(1), Some(2)), true, "DrillFailed"),
        ("its cause is known now", vague(of_drill(Some(1), Some(2))), of_drill(Some(1), Some(2)), true, "DrillFailed"),
        ("no other since", of_drill(Some(1), Some(2)), of_drill(Some(1), Some(2)), false, "DrillFailed"),
        ("the next succeeds", of_drill(Some(1), Some(2)), of_drill(Some(3), Some(2)), false, "Dumped"),
    ] {
        let notes = transitions("ns", &before, &after);
        assert_eq!(notes.iter().any(|note| note.warning && note.reason == "DrillFailed"), told, "{what}");
        assert_eq!(backed_up(&after, None, Timestamp::UNIX_EPOCH).reason, reason, "{what}");
    }
}

/// Only claims and Secrets that are this Postgresql's, by uid and by name, are recorded.
#[test]
fn owned_objects_are_recorded() {
    let detail = Detail::Claim { requested: None, capacity: None, made_for: None };
    let claim = |uid: &str, owner: Ownership, deleting| ObjectView {
        owner,
        uid: uid.to_owned(),
        deleting,
        ..view(None, detail.clone())
    };
    let other = || Ownership::Other("x".to_owned());
    let mut observed = ObservedPostgresql::default();
    for (name, view) in [
        ("data-acme-0", claim("another", Ownership::Ours, false)),
        ("data-acme-standby-0", claim("1", Ownership::Ours, false)),
        ("data-acme-standby-1", claim("2", other(), false)),
        ("data-acme-standby-2", claim("3", Ownership::Ours, true)),
        ("acme-backup", claim("4", Ownership::Ours, false)),
        ("precious", claim("5", Ownership::Ours, false)),
    ] {
        observed.objects.insert((Kind::PersistentVolumeClaim, name.to_owned()), view);
    }
    observed.secrets.insert("acme-app".to_owned(), OwnSecret { uid: "6".to_owned(), unsettled: false });
    let owned =
        |kind: &str, name: &str, uid: &str| Owned { kind: kind.to_owned(), name: name.to_owned(), uid: uid.to_owned() };
    // The volume with the data is not the recorded one; the volume with the dumps was recreated.
    observed.recorded.volume =
        Some(VolumeRecord { name: "data-acme-0".to_owned(), uid: "0".to_owned(), initialized: true });
    observed.recorded.owned =
        vec![owned("PersistentVolumeClaim", "data-acme-0", "0"), owned("PersistentVolumeClaim", "acme-backup", "old")];
    let expected = [
        owned("PersistentVolumeClaim", "data-acme-0", "0"),
        owned("PersistentVolumeClaim", "acme-backup", "4"),
        owned("PersistentVolumeClaim", "data-acme-standby-0", "1"),
        owned("Secret", "acme-app", "6"),
    ];
    assert_eq!(recorded(&acme(json!({})), &observed).owned, expected);
}

/// Later passes judge another version or password in the spec by this record, whether or not the steps succeed.
#[test]
fn version_and_password_are_recorded_first() {
    let mut observed = ObservedPostgresql::default();
    let volume = |initialized| VolumeRecord { name: "data-acme-0".to_owned(), uid: "u".to_owned(), initialized };
    let detail = Detail::Claim { requested: None, capacity: None, made_for: None };
    let claim = ObjectView { owner: Ownership::Ours, uid: "u".to_owned(), ..view(None, detail) };
    observed.objects.insert((Kind::PersistentVolumeClaim, "data-acme-0".to_owned()), claim);
    for (initialized, kept, version, from) in [
        (false, SecretState::Absent, None, None),
        (true, SecretState::Ours { uid: "k".to_owned() }, Some(acme(json!({})).version), Some("generated")),
    ] {
        observed.recorded.volume = Some(volume(initialized));
        observed.credentials.kept = kept;
        let on_record = recorded(&acme(json!({})), &observed);
        assert_eq!((on_record.version, on_record.secret.map(|secret| secret.from)), (version, from.map(str::to_owned)));
    }
    observed.recorded.version = Some("of its files".to_owned());
    assert_eq!(recorded(&acme(json!({})), &observed).version.as_deref(), Some("of its files"));
}

#[test]
fn the_result_of_a_dump_is_published_once() {
    let with = |request: &str, state: DumpState, message: Option<&str>| PostgresqlStatus {
        dump: of(json!({"request": request, "job": "acme-dump-1", "state": state, "message": message})),
        ..PostgresqlStatus::default()
    };
    let running = || with("one", DumpState::Running, None);
    let succeeded = |request| with(request, DumpState::Succeeded, None);
    let failed = || with("one", DumpState::Failed, Some("because"));
    let one = (false, "Dumped", "Dump one", "Job acme-dump-1 has dumped the database for request one");
    let two = (false, "Dumped", "Dump two", "Job acme-dump-1 has dumped the database for request two");
    for (before, after, expected) in [
        (PostgresqlStatus::default(), running(), None),
        (running(), succeeded("one"), Some(one)),
        (succeeded("one"), succeeded("one"), None),
        (succeeded("one"), succeeded("two"), Some(two)),
        (running(), failed(), Some((true, "DumpFailed", "Dump one", "because"))),
        (failed(), failed(), None),
        (failed(), running(), None),
    ] {
        let notes = transitions("ns", &before, &after);
        let notes: Vec<_> = notes
            .iter()
            .map(|note| (note.warning, note.reason.as_str(), note.action.as_str(), note.message.as_str()))
            .collect();
        assert_eq!(notes, Vec::from_iter(expected));
    }
}

/// Its servers restart, whatever fails; unless it is deleted, or not to be brought up.
#[test]
fn a_rollout_ends_with_a_pass_that_only_reports() {
    let now = Timestamp::UNIX_EPOCH;
    let rollout = PostgresqlRollout { stateful_sets: vec!["acme".to_owned()], started_at: Time(now) };
    let recorded = PostgresqlStatus { rollout: Some(rollout.clone()), ..PostgresqlStatus::default() };
    assert_eq!(failed(&recorded, Some(3), &error(), now).rollout, Some(rollout));
    let hold = PostgresqlHold::new(Reason::InvalidSpec, "x");
    assert_eq!(held(&recorded, Some(3), &hold, now).rollout, None);
}

#[test]
fn a_failure_keeps_the_recorded_status() {
    let pod = ActivePod { kind: "Pod".to_owned(), name: "acme-0".to_owned(), uid: "p".to_owned() };
    let recorded = PostgresqlStatus {
        observed_generation: Some(2),
        phase: Some(Phase::Up),
        active: Some(pod.clone()),
        ..PostgresqlStatus::default()
    };
    let status = failed(&recorded, Some(3), &error(), Timestamp::UNIX_EPOCH);
    assert_eq!((status.observed_generation, status.phase, status.active), (Some(2), Some(Phase::Up), Some(pod)));
    let ready = find(&status.conditions, kind::READY).unwrap();
    assert_eq!((ready.reason.as_str(), ready.status.as_str()), ("NotOurs", "False"));
    assert!(ready.message.contains("Service acme belongs to Deployment x"));
    // But not a primary that no longer serves.
    for (serving, up) in [(&["p".to_owned()][..], true), (&["other".to_owned()], false), (&[], false)] {
        let seen = without_primary(recorded.clone(), serving);
        let expected = if up {
            recorded.clone()
        } else {
            PostgresqlStatus { phase: Some(Phase::Pending), active: None, ..recorded.clone() }
        };
        assert_eq!(seen, expected, "{serving:?}");
    }
}
