use serde_json::{Value, json};

use super::*;
use crate::clientapp::fixtures::{chart as at, now as noon, release, want};

pub(in crate::clientapp) fn backed_up(postgres: Value) -> Desired {
    want(&json!({"chartVersion": "5.5.3", "upgrade": {"backup": true}, "postgres": postgres}))
}

pub(in crate::clientapp) fn recorded(backup: Option<BackupRecord>) -> ClientAppStatus {
    ClientAppStatus { installed: Some(at("5.5.2", Some("29.0.5"))), backup, ..ClientAppStatus::default() }
}

pub(in crate::clientapp) fn meta(generation: i64) -> ObjectMeta {
    ObjectMeta { uid: Some("uid".to_owned()), generation: Some(generation), ..ObjectMeta::default() }
}

/// A revision in this phase, by the operator's helm or by another client's.
pub(in crate::clientapp) fn revision(revision: i64, phase: ReleasePhase, ours: bool) -> ReleaseView {
    let release = release("d");
    ReleaseView { revision, phase, managed_digest: release.managed_digest.filter(|_| ours), ..release }
}

pub(in crate::clientapp) fn asked() -> BackupRecord {
    backup(&backed_up(json!({})), &meta(2), None, &recorded(None), noon()).unwrap()
}

#[test]
fn which_backup_an_upgrade_needs() {
    let percona = backed_up(json!({}));
    let deployed = revision(3, ReleasePhase::Deployed, true);
    let needed = |meta: &ObjectMeta, release: Option<&ReleaseView>, recorded: &ClientAppStatus| {
        backup(&percona, meta, release, recorded, noon())
    };
    let new = needed(&meta(2), Some(&deployed), &recorded(None)).unwrap();
    assert_eq!((new.kind.as_str(), new.name.as_str()), ("ClientAppBackup", "acme-upgrade-r3-b013e2be"));
    assert_eq!((new.from.as_str(), new.to.as_str(), new.state), ("5.5.2", "5.5.3", BackupState::Running));
    assert_eq!((new.at_revision, new.as_of.as_ref().map(|as_of| as_of.0)), (Some(3), Some(noon())));
    let standalone = backed_up(json!({"provider": "standalone"}));
    assert_eq!(backup(&standalone, &meta(2), Some(&deployed), &recorded(None), noon()), Some(new.clone()));

    // A new request, or one of another app of this name, gets another backup.
    let other = ObjectMeta { uid: Some("other".to_owned()), ..meta(2) };
    for meta in [meta(3), other] {
        assert_ne!(needed(&meta, Some(&deployed), &recorded(None)).unwrap().name, new.name);
    }

    // Nothing to back up, or no backup is requested.
    assert_eq!(needed(&meta(2), Some(&deployed), &ClientAppStatus::default()), None);
    for spec in [json!({"upgrade": {"backup": true}, "chartVersion": "5.5.2"}), json!({"chartVersion": "5.5.3"})] {
        assert_eq!(backup(&want(&spec), &meta(2), None, &recorded(None), noon()), None);
    }
}

#[test]
fn a_backup_is_of_what_is_upgraded() {
    let desired = backed_up(json!({}));
    let on_record = BackupRecord {
        name: "acme-upgrade-r3-b473c8".to_owned(),
        state: BackupState::Succeeded,
        ..backup(&desired, &meta(2), Some(&revision(3, ReleasePhase::Deployed, true)), &recorded(None), noon()).unwrap()
    };
    let unchanged = || Some(revision(3, ReleasePhase::Deployed, true));
    let of = |change: &dyn Fn(&mut BackupRecord)| {
        let mut record = on_record.clone();
        change(&mut record);
        record
    };
    let running = BackupState::Running;
    for (what, record, release, counts) in [
        ("as it was asked for", of(&|_| {}), unchanged(), true),
        ("just fresh", of(&|r| r.as_of = ago(30)), unchanged(), true),
        ("too old", of(&|r| r.as_of = ago(31)), unchanged(), false),
        ("of days ago", of(&|r| r.as_of = ago(3000)), unchanged(), false),
        ("of a clock a little ahead", of(&|r| r.as_of = ago(-1)), unchanged(), true),
        ("of a clock far ahead", of(&|r| r.as_of = ago(-2)), unchanged(), false),
        ("it still runs", of(&|r| (r.state, r.as_of) = (running, ago(300))), unchanged(), true),
        ("of an operator that put down no time", of(&|r| r.as_of = None), unchanged(), false),
        ("nor a revision", of(&|r| r.at_revision = None), unchanged(), false),
        ("another client has upgraded", of(&|_| {}), Some(revision(4, ReleasePhase::Deployed, false)), false),
        ("while it ran", of(&|r| r.state = running), Some(revision(4, ReleasePhase::Deployed, false)), false),
        ("another client has failed to", of(&|_| {}), Some(revision(4, ReleasePhase::Failed, false)), false),
        ("the release is gone", of(&|_| {}), None, false),
        ("a try has failed", of(&|_| {}), Some(revision(4, ReleasePhase::Failed, true)), true),
        ("a try was cut off", of(&|_| {}), Some(revision(5, ReleasePhase::Pending, true)), true),
        (
            "a try has failed, long after",
            of(&|r| r.as_of = ago(31)),
            Some(revision(4, ReleasePhase::Failed, true)),
            false,
        ),
        (
            "of an operator that requested it elsewhere",
            of(&|r| r.kind = "PerconaPGBackup".to_owned()),
            unchanged(),
            false,
        ),
        ("a dump of such", of(&|r| (r.kind, r.state) = ("Postgresql".to_owned(), running)), unchanged(), false),
        ("for another version", of(&|r| r.to = "5.6.0".to_owned()), unchanged(), false),
        ("from another version", of(&|r| r.from = "5.5.1".to_owned()), unchanged(), false),
        ("for an upgrade that is over", of(&|r| r.revision = Some(3)), unchanged(), false),
    ] {
        let needed = backup(&desired, &meta(2), release.as_ref(), &recorded(Some(record.clone())), noon()).unwrap();
        assert_eq!(needed == record, counts, "{what}");
        // Otherwise a new backup is needed, and its name is the same at each observation.
        assert_eq!(needed.name == record.name, counts, "{what}");
        let later = noon() + SignedDuration::from_secs(5);
        let again = backup(&desired, &meta(2), release.as_ref(), &recorded(Some(record)), later).unwrap();
        assert!(again.name == needed.name || counts, "{what}");
    }
}

fn ago(minutes: i64) -> Option<Time> {
    Some(Time(noon() - SignedDuration::from_mins(minutes)))
}

/// Returns the object of the record.
fn of(phase: Option<BackupPhase>) -> AppBackup {
    AppBackup {
        name: asked().name,
        uid: "b".to_owned(),
        created: Some(noon()),
        controller: Some("uid".to_owned()),
        deleting: false,
        parts: Some(vec![BackupPart::Database]),
        phase,
        subject_uid: Some("uid".to_owned()),
        started_at: None,
        database_at: (phase == Some(BackupPhase::Completed)).then(|| Time(noon())),
        files: None,
        failure: (phase == Some(BackupPhase::Failed)).then(|| (Time(noon()), "it is full".to_owned())),
    }
}

#[test]
fn how_far_the_object_is() {
    let [pending, running, completed, failed] =
        [BackupPhase::Pending, BackupPhase::Running, BackupPhase::Completed, BackupPhase::Failed].map(Some);
    const NOT_OURS: Result<BackupState, &str> = Err("it is not the operator's");
    const OLD: Result<BackupState, &str> = Err("it is older than this upgrade");
    for (what, backup, expected) in [
        ("another's name", AppBackup { name: "b".to_owned(), ..of(completed) }, None),
        ("it goes", AppBackup { deleting: true, ..of(completed) }, None),
        ("it has just been created", of(None), Some(Ok(BackupState::Running))),
        ("it waits", of(pending), Some(Ok(BackupState::Running))),
        ("it runs", of(running), Some(Ok(BackupState::Running))),
        ("it is complete", of(completed), Some(Ok(BackupState::Succeeded))),
        ("a late watch", AppBackup { database_at: ago(31), ..of(completed) }, Some(Ok(BackupState::Succeeded))),
        ("created beforehand", AppBackup { database_at: ago(32), ..of(completed) }, Some(OLD)),
        ("without a database", AppBackup { database_at: None, ..of(completed) }, Some(OLD)),
        ("it has failed", of(failed), Some(Err("it is full"))),
        ("a user's", AppBackup { controller: None, ..of(completed) }, Some(NOT_OURS)),
        ("an earlier app's", AppBackup { controller: Some("x".to_owned()), ..of(completed) }, Some(NOT_OURS)),
        ("of files", AppBackup { parts: Some(vec![BackupPart::Files]), ..of(completed) }, Some(NOT_OURS)),
        ("of everything", AppBackup { parts: None, ..of(running) }, Some(NOT_OURS)),
    ] {
        let expected = expected.map(|expected| match expected {
            Ok(state) => (state, None),
            Err(why) => (BackupState::Failed, Some(why.to_owned())),
        });
        assert_eq!(seen(&asked(), "uid", &[backup]), expected, "{what}");
    }
}

#[test]
fn how_old_a_backup_is_is_put_down_while_it_runs() {
    let view = |state| BackupView { record: asked(), seen: Some((state, None)) };
    let at = |minutes: i64| noon() + SignedDuration::from_mins(minutes);
    let (running, succeeded) = (BackupState::Running, BackupState::Succeeded);
    let on_record = recorded(Some(asked()));
    for (what, on_record, seen, now, put_down) in [
        ("at once", &on_record, running, at(0), Some((running, at(0)))),
        ("a minute later", &on_record, running, at(1), Some((running, at(1)))),
        // No operator saw when it ended.
        ("hours later", &on_record, succeeded, at(300), Some((succeeded, at(0)))),
        ("never put on record", &recorded(None), succeeded, at(0), None),
    ] {
        let looked_at = looked_at(&view(seen), on_record, now);
        assert_eq!(looked_at.map(|record| (record.state, record.as_of.unwrap().0)), put_down, "{what}");
    }
}

/// The record of one that a late watch still shows running says "now" every minute.
#[test]
fn a_backup_is_as_old_as_what_it_has_made() {
    let running = AppBackup { started_at: ago(40), ..of(Some(BackupPhase::Running)) };
    let made = |minutes: i64| AppBackup { database_at: ago(minutes), ..of(Some(BackupPhase::Completed)) };
    for (what, backup, as_of, counts) in [
        ("seen at once", made(0), 0, true),
        ("seen 30 minutes late", made(30), 30, true),
        ("seen 31 minutes late", made(31), 31, false),
        ("by a clock ahead", made(-1), 0, true),
        ("it runs", running, 0, true),
    ] {
        let on_record = recorded(Some(asked()));
        let view = view(asked(), "uid", &[backup]);
        let record = looked_at(&view, &on_record, noon()).unwrap();
        assert_eq!(record.as_of, ago(as_of), "{what}");
        let needed = super::backup(&backed_up(json!({})), &meta(2), None, &recorded(Some(record.clone())), noon());
        assert_eq!(needed.unwrap().name == record.name, counts, "{what}");
    }
}
