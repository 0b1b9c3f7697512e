use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::{
    clientapp::{
        fixtures::{now, settled, want, with},
        observed::{
            types::{BackupView, Busy},
            upgrade_backup::tests::asked,
        },
    },
    crd::{ArchivedFiles, BackupPart, BackupRecord, StorePasswordSecret, conditions::State},
};

const ARCHIVE: &str = "20260101T110500Z-abcde";

fn spec(schedule: Option<&str>) -> Value {
    let store = json!({"endpoint": "https://s3.example.com", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    json!({"persistence": {"backup": {"schedule": schedule, "store": store}}})
}

fn daily() -> Value {
    spec(Some("30 3 * * *"))
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn minute(minute: u8) -> Time {
    Time(time(&format!("2026-01-01T11:{minute:02}:00Z")))
}

/// Returns a ClientAppBackup of this app, made by a user.
fn backup(name: &str, phase: Option<BackupPhase>, ended: u8) -> AppBackup {
    let made = ArchivedFiles {
        job: "j".to_owned(),
        archive: Some(ARCHIVE.to_owned()),
        bytes: Some(4096),
        files: Some(12),
        completed_at: (phase == Some(BackupPhase::Completed)).then(|| minute(ended)),
    };
    let failure =
        (phase == Some(BackupPhase::Failed)).then(|| (minute(ended), "Job j has failed: it is full".to_owned()));
    AppBackup {
        name: name.to_owned(),
        uid: format!("uid-of-{name}"),
        created: Some(minute(0).0),
        controller: None,
        deleting: false,
        parts: Some(vec![BackupPart::Files]),
        phase,
        subject_uid: Some("uid".to_owned()),
        started_at: Some(minute(0)),
        database_at: None,
        files: Some(made),
        failure,
    }
}

fn by_schedule(day: u8, phase: Option<BackupPhase>) -> AppBackup {
    let controller = Some("uid".to_owned());
    AppBackup { controller, ..backup(&format!("acme-files-202601{day:02}0330"), phase, 0) }
}

/// Returns one that was made before an upgrade.
fn before_upgrade(day: u8, phase: Option<BackupPhase>) -> AppBackup {
    AppBackup {
        created: Some(time(&format!("2026-01-{day:02}T03:30:00Z"))),
        controller: Some("uid".to_owned()),
        parts: Some(vec![BackupPart::Database]),
        files: None,
        ..backup(&format!("acme-upgrade-r{day}-b013e2be"), phase, 0)
    }
}

/// Returns one of which nothing has begun.
fn unbegun(day: u8, phase: Option<BackupPhase>) -> AppBackup {
    AppBackup { started_at: None, failure: None, ..before_upgrade(day, phase) }
}

fn observed(desired: &Desired) -> Observed {
    let mut observed = settled(desired);
    observed.files =
        FilesView { has_image: true, app_uid: "uid".to_owned(), has_volumes: Some(true), ..FilesView::default() };
    observed
}

/// When the next backup is due in the following rows.
const DUE: &str = "2026-01-10T03:30:00Z";
const CREATE: &str = "create acme-files-202601100330";

#[track_caller]
fn row(what: &str, spec: &Value, change: impl FnOnce(&mut FilesView), expected: &[&str]) {
    row_of(what, spec, |o| change(&mut o.files), expected);
}

#[track_caller]
fn row_of(what: &str, spec: &Value, change: impl FnOnce(&mut Observed), expected: &[&str]) {
    let (desired, due) = (want(spec), time(DUE));
    let mut observed = observed(&desired);
    let scheduled = Scheduled { schedule: "30 3 * * *".to_owned(), since: minute(0), next: Time(due) };
    observed.recorded.files = Some(FilesSummary { scheduled: Some(scheduled), ..FilesSummary::default() });
    change(&mut observed);
    let summary = summary(&desired, &observed, due);
    let found: Vec<_> = steps(&desired, &observed, summary.as_ref(), due)
        .iter()
        .map(|step| match step {
            Step::CreateBackup { name } => format!("create {name}"),
            Step::DeleteBackup { name, uid } if *uid == format!("uid-of-{name}") => format!("delete {name}"),
            Step::WithdrawBackup { name, uid } if *uid == format!("uid-of-{name}") => format!("withdraw {name}"),
            other => panic!("{what}: {other:?}"),
        })
        .collect();
    assert_eq!(found, expected, "{what}");
}

fn busy() -> Option<Busy> {
    Some(Busy { digest: None, sentence: String::new(), until: None })
}

#[test]
fn a_backup_is_made_when_it_is_due() {
    let refused = |minutes: i64| {
        let (name, message) = ("acme-files-202601100330".to_owned(), "no".to_owned());
        Some(RefusedBackup { name, message, until: time(DUE) + SignedDuration::from_mins(minutes) })
    };
    row("it is due", &daily(), |_| {}, &[CREATE]);
    row("files change in a suspended app, too", &with(daily(), &json!({"suspend": true})), |_| {}, &[CREATE]);
    row("none is asked for", &json!({}), |_| {}, &[]);
    row("there is no volume", &daily(), |o| o.has_volumes = Some(false), &[]);
    row("volumes are not seen", &daily(), |o| o.has_volumes = None, &[]);
    row_of("helm runs", &daily(), |o| o.run.busy = busy(), &[]);
    row("no image is known", &daily(), |o| o.has_image = false, &[]);
    row("it was refused", &daily(), |o| o.refused = refused(1), &[]);
    row("it was refused a while ago", &daily(), |o| o.refused = refused(0), &[CREATE]);
    row("it exists", &daily(), |o| o.backups = vec![by_schedule(10, None)], &[]);
    row("the one before runs", &daily(), |o| o.backups = vec![by_schedule(9, None)], &[]);
    let of_its_name = backup("acme-files-202601100330", None, 0);
    row("a user's has its name", &daily(), |o| o.backups = vec![of_its_name], &[CREATE]);
    row("a user's runs", &daily(), |o| o.backups = vec![backup("b", None, 0)], &[CREATE]);
    let running = before_upgrade(10, Some(BackupPhase::Running));
    row("that before an upgrade runs", &daily(), |o| o.backups = vec![running], &[CREATE]);
}

#[test]
fn old_backups_are_deleted() {
    let [completed, failed] = [BackupPhase::Completed, BackupPhase::Failed].map(Some);
    let nine = || (1..=9).map(|day| by_schedule(day, completed)).collect::<Vec<_>>();
    let deleted = [CREATE, "delete acme-files-202601020330", "delete acme-files-202601010330"];
    row("there are old ones", &daily(), |o| o.backups = nine(), &deleted);
    let needed = |o: &mut FilesView| {
        o.backups = nine();
        for (hour, backup) in (10..).zip(&mut o.backups) {
            backup.name = format!("acme-files-20260109{hour}30");
        }
    };
    row("a restore may still need one", &daily(), needed, &[CREATE]);
    let named = |o: &mut FilesView| {
        o.backups = nine();
        o.backups[0].name = "acme-files-x".to_owned();
        o.backups[1].name = "acme-2-files-202601020330".to_owned();
    };
    row("another name", &daily(), named, &[CREATE]);
    let of = |day: u8| by_schedule(day, if day < 3 { completed } else { failed });
    row("successes are kept beside failures", &daily(), |o| o.backups = (1..=9).map(of).collect(), &[CREATE]);
    let of_others = |o: &mut FilesView| {
        o.backups = nine();
        o.backups[0].controller = None;
        o.backups[1].controller = Some("earlier".to_owned());
    };
    row("those of users and of an earlier app are kept", &daily(), of_others, &[CREATE]);
    let going = |o: &mut FilesView| {
        o.backups = nine().split_off(1);
        o.backups[0].deleting = true;
    };
    row("one goes already", &daily(), going, &[CREATE]);
    let of_upgrades = |o: &mut FilesView| {
        o.backups = nine().split_off(2);
        o.backups.extend((1..=8).map(|day| before_upgrade(day, completed)));
        o.backups.extend((1..=7).map(|day| before_upgrade(day, failed)));
        o.backups.push(before_upgrade(9, Some(BackupPhase::Running)));
    };
    row("there are old ones of upgrades", &json!({}), of_upgrades, &["delete acme-upgrade-r1-b013e2be"]);
    let recent = |o: &mut FilesView| {
        o.backups = (1..=9).map(|day| before_upgrade(day, completed)).collect();
        o.backups[0].name = "mine".to_owned();
        let recent = time(DUE) - SignedDuration::from_hours(23);
        o.backups[1..].iter_mut().for_each(|backup| backup.created = Some(recent));
    };
    row("one of today and a user's name", &json!({}), recent, &[]);
}

#[test]
fn backups_of_withdrawn_upgrades_are_deleted() {
    let waiting = Some(BackupPhase::Pending);
    let withdrawn = |o: &mut FilesView| {
        let begun = AppBackup { started_at: None, ..before_upgrade(8, Some(BackupPhase::Running)) };
        o.backups = vec![
            unbegun(1, waiting),
            unbegun(2, None),
            before_upgrade(3, waiting),
            begun,
            AppBackup { deleting: true, ..unbegun(4, waiting) },
            AppBackup { controller: None, ..unbegun(5, waiting) },
            AppBackup { controller: Some("earlier".to_owned()), ..unbegun(6, waiting) },
            AppBackup { name: "mine".to_owned(), ..unbegun(7, waiting) },
            AppBackup { parts: None, ..unbegun(9, waiting) },
        ];
    };
    let both = ["withdraw acme-upgrade-r1-b013e2be", "withdraw acme-upgrade-r2-b013e2be"];
    row("an upgrade is withdrawn", &json!({}), withdrawn, &both);
    let other = |o: &mut Observed| {
        o.files.backups = vec![unbegun(1, None), unbegun(2, waiting)];
        let record = BackupRecord { name: unbegun(2, None).name, ..asked() };
        o.prerequisites.backup = Some(BackupView { record, seen: None });
    };
    row_of("another is asked for", &json!({}), other, &both[..1]);
}

#[test]
fn the_password_of_the_repository_is_generated_once() {
    let mut generated = spec(None);
    generated["persistence"]["backup"]["store"]["passwordSecret"] = json!({"name": "restic"});
    generated["persistence"]["backup"]["store"]["generatePassword"] = json!(true);
    let (desired, without) = (want(&generated), want(&json!({})));
    let dumps = json!({
        "endpoint": "https://s3.example.com", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "path": "ns/acme-pg",
        "passwordSecret": {"name": "restic"},
    });
    let moved = want(&with(generated, &json!({"postgres": {"provider": "standalone", "restore": {"store": dumps}}})));
    let known = || Some(RepositoryPassword { secret: "restic".to_owned(), uid: "u".to_owned() });
    for (what, desired, recorded, uid, busy, creates, reason, put_down) in [
        ("before the first backup", &desired, None, None, None, true, Some(Reason::NoArchive), None),
        ("it is there", &desired, None, Some("u"), None, false, Some(Reason::NoArchive), known()),
        ("it is lost", &desired, known(), None, None, false, Some(Reason::RepositoryPasswordLost), known()),
        ("what opens the dump to restore has to come", &moved, None, None, None, false, Some(Reason::NoArchive), None),
        // Nothing is looked at meanwhile.
        ("helm runs", &desired, None, None, busy(), false, Some(Reason::NoArchive), None),
        ("no archives are asked for", &without, known(), None, None, false, None, known()),
    ] {
        let mut observed = observed(desired);
        observed.recorded.repository_password = recorded;
        observed.files.password = uid.map(str::to_owned);
        observed.run.busy = busy;
        let found = steps(desired, &observed, None, now());
        let secret = StorePasswordSecret::named("restic");
        assert_eq!(found.contains(&Step::CreateRepositoryPassword(secret)), creates, "{what}: {found:?}");
        let told = verdict(desired, &observed, None, now());
        assert_eq!(
            told.map(|told| told.reason.into_owned()),
            reason.map(|reason| reason.as_str().to_owned()),
            "{what}"
        );
        assert_eq!(password(desired, &observed), put_down, "{what}");
    }
}

#[test]
fn the_next_time_is_recorded() {
    let desired = want(&daily());
    let mut observed = observed(&desired);
    let next = |observed: &Observed, now: &str| {
        let summary = summary(&desired, observed, time(now)).unwrap();
        (summary.scheduled.clone().unwrap().next.0.to_string(), summary)
    };
    let (first, recorded) = next(&observed, "2026-01-01T12:00:00Z");
    assert_eq!(first, "2026-01-02T03:30:00Z");
    observed.recorded.files = Some(recorded);
    assert_eq!(next(&observed, "2026-01-05T12:00:00Z").0, first);
    let recorded = summary(&desired, &observed, time("2026-01-01T12:00:00Z"));
    assert!(times(&observed, recorded.as_ref()).any(|at| at == time("2026-01-03T03:30:00Z")));
    for running in
        [by_schedule(2, None), by_schedule(1, Some(BackupPhase::Running)), by_schedule(2, Some(BackupPhase::Failed))]
    {
        observed.files.backups = vec![running];
        assert_eq!(next(&observed, "2026-01-05T12:00:00Z").0, "2026-01-06T03:30:00Z");
    }
    // With an invalid spec, the record tells.
    observed.files.backups.clear();
    assert_eq!(kept(&observed, time("2026-01-02T12:00:00Z")), None);
    let condition = Verdict::yes(Reason::Archived, "x").into_condition(FILES_BACKED_UP, &[], None, now());
    observed.recorded.conditions.push(condition);
    for (at, reason) in [("2026-01-02T12:00:00Z", Reason::Archived), ("2026-01-03T12:00:00Z", Reason::Overdue)] {
        assert_eq!(kept(&observed, time(at)).unwrap().reason, reason.as_str());
    }
    let none = want(&spec(None));
    assert_eq!(summary(&none, &observed, now()).and_then(|summary| summary.scheduled), None);
}

#[test]
fn archive_records_and_conditions() {
    let desired = want(&spec(None));
    let [completed, failed] = [BackupPhase::Completed, BackupPhase::Failed].map(Some);
    let mut lines = Vec::new();
    for (what, backups) in [
        ("none", vec![]),
        ("running", vec![backup("one", Some(BackupPhase::Running), 0)]),
        ("complete", vec![backup("one", completed, 5)]),
        ("failed first", vec![backup("one", failed, 5)]),
        ("failed after a complete one", vec![backup("one", completed, 5), backup("two", failed, 9)]),
        ("complete after a failed one", vec![backup("one", failed, 2), backup("two", completed, 5)]),
        ("an upgrade's has failed", vec![before_upgrade(1, failed)]),
        ("of an earlier app", vec![AppBackup { subject_uid: Some("x".to_owned()), ..backup("one", completed, 5) }]),
    ] {
        let mut observed = observed(&desired);
        observed.files.backups = backups;
        let files = summary(&desired, &observed, now());
        let verdict = verdict(&desired, &observed, files.as_ref(), now()).unwrap();
        // What the same backups say again changes nothing.
        observed.recorded.files.clone_from(&files);
        assert_eq!(summary(&desired, &observed, now()), files, "{what}");
        // Nor do they have to stay.
        observed.files.backups.clear();
        assert_eq!(summary(&desired, &observed, now()), files, "{what}");
        lines.push(format!("{what}: {} {}: {}", verdict.state.as_str(), verdict.reason, verdict.message));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn why_there_are_no_archives() {
    let desired = want(&daily());
    let mut observed = observed(&desired);
    let reason = |observed: &Observed, summary: Option<&FilesSummary>| {
        let verdict = verdict(&desired, observed, summary, now()).unwrap();
        assert_ne!(verdict.state, State::True);
        verdict.reason.into_owned()
    };
    assert_eq!(reason(&observed, None), Reason::NoArchive);
    let since = Time(now() - SignedDuration::from_hours(72));
    let scheduled = Scheduled { schedule: "30 3 * * *".to_owned(), since, next: Time(now()) };
    let late = FilesSummary { scheduled: Some(scheduled), ..FilesSummary::default() };
    assert_eq!(reason(&observed, Some(&late)), Reason::Overdue);
    let refused = |name: &str| RefusedBackup { name: name.to_owned(), message: "no".to_owned(), until: now() };
    observed.files.refused = Some(refused("acme-files-202512310330"));
    assert_eq!(reason(&observed, Some(&late)), Reason::Overdue, "another is due");
    observed.files.refused = Some(refused(&name("acme", now())));
    assert_eq!(reason(&observed, Some(&late)), Reason::Refused);
    observed.files.has_volumes = Some(false);
    assert_eq!(reason(&observed, None), Reason::NoVolume);
    observed.files.has_image = false;
    assert_eq!(reason(&observed, None), Reason::OperatorImageUnknown);
    let without = want(&json!({}));
    assert_eq!((verdict(&without, &observed, None, now()), summary(&without, &observed, now())), (None, None));
}
