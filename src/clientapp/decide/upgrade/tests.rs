use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::*;
use crate::{
    clientapp::{
        fixtures::{attempt, chart as at, now as noon, release, target, want, with},
        observed::{
            release::{Phase, ReleaseView},
            types::{DatabaseView, Prerequisites},
            upgrade_backup::{backup, looked_at},
        },
        spec::database::DatabaseObject,
    },
    crd::Attempt,
};

#[test]
fn where_an_app_may_go() {
    let none = |_: &str| json!({});
    let allowed = |version: &str| json!({"upgrade": {"allow": version}});
    let chart = |name: &str, target: CachedChart| CachedChart { chart: name.to_owned(), ..target };
    for (from, to, upgrade, refused) in [
        (at("5.5.2", Some("29.0.5")), target("5.5.3", Some("29.0.5")), none(""), None),
        (at("5.5.3", Some("29.0.5")), target("5.5.2", Some("29.0.5")), none(""), None),
        (at("5.5.2", Some("29.0.5")), target("6.0.0", Some("30.0.1")), none(""), None),
        (at("5.5.2", Some("29.0.5-apache")), target("6.0.0", Some("v30.0.1")), none(""), None),
        (at("5.5.9", Some("29.0.10")), target("5.5.3", Some("29.0.9")), none(""), Some("DowngradeRefused")),
        (at("6.0.0", Some("30.0.1")), target("5.5.2", Some("29.0.5")), none(""), Some("DowngradeRefused")),
        (at("6.0.0", Some("30.0.1")), target("5.5.2", Some("29.0.5")), allowed("5.5.2"), None),
        (at("6.0.0", Some("30.0.1")), target("5.5.2", Some("29.0.5")), allowed("5.5.3"), Some("DowngradeRefused")),
        (at("5.5.2", Some("29.0.5")), target("7.0.0", Some("31.0.0")), none(""), Some("MajorSkipRefused")),
        (at("5.5.2", Some("29.0.5")), target("7.0.0", Some("31.0.0")), allowed("7.0.0"), None),
        // Another chart, which is not known.
        (at("1.0.0", Some("1.0")), chart("wiki", target("3.0.0", Some("3.0"))), none(""), None),
        (at("3.0.0", Some("3.0")), chart("wiki", target("1.0.0", Some("1.0"))), none(""), Some("DowngradeRefused")),
        // App versions that cannot be compared: the chart's own decide.
        (at("2.0.0", Some("latest")), target("3.0.0", Some("latest")), none(""), None),
        (at("2.0.0", Some("latest")), target("1.9.0", Some("latest")), none(""), Some("DowngradeRefused")),
        (at("2.0.0", None), target("1.9.0", Some("1.0")), none(""), Some("DowngradeRefused")),
    ] {
        let spec = with(json!({"chartVersion": to.version.to_string()}), &upgrade);
        let recorded = ClientAppStatus { installed: Some(from.clone()), ..ClientAppStatus::default() };
        let hold = refusal(&want(&spec), &to, &recorded);
        assert_eq!(hold.as_ref().map(|hold| hold.reason.as_str()), refused, "{from:?} -> {to:?}");
        assert!(hold.is_none_or(|hold| hold.stalled));
    }
}

#[test]
fn the_way_is_told() {
    let before = ClientAppStatus { installed: Some(at("5.5.2", Some("29.0.5"))), ..ClientAppStatus::default() };
    let said = |to: CachedChart| refusal(&want(&json!({})), &to, &before).unwrap().message;
    insta::assert_snapshot!(
        [said(target("7.0.0", Some("31.0.0"))), said(target("5.5.1", Some("29.0.4"))), said(target("5.5.1", None)),]
            .join("\n\n")
    );
}

#[test]
fn spec_upgrade_allow_is_for_one_change() {
    /// The installed version, spec.chartVersion and spec.upgrade.allow at one moment; and whether the change is refused.
    type Moment = (&'static str, &'static str, Option<&'static str>, bool);
    let lives: [(&str, &[Moment]); 6] = [
        (
            "used once, and left in the spec",
            &[
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
                ("5.5.2", "5.5.2", Some("5.5.2"), false),
                ("5.5.2", "6.0.0", Some("5.5.2"), false),
                ("6.0.0", "6.0.0", Some("5.5.2"), false),
                ("6.0.0", "5.5.2", Some("5.5.2"), true),
                // After the field was removed and set again, it allows another change.
                ("6.0.0", "5.5.2", None, true),
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
            ],
        ),
        (
            "it stands while helm is still to do it",
            &[
                ("6.0.0", "5.5.2", None, true),
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
            ],
        ),
        (
            "withdrawn before it was used",
            &[
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
                ("6.0.0", "6.0.0", Some("5.5.2"), false),
                ("6.0.0", "5.5.2", Some("5.5.2"), true),
            ],
        ),
        (
            "given from another version",
            &[
                ("6.0.0", "5.5.2", Some("5.5.2"), false),
                ("6.0.0", "7.0.0", Some("5.5.2"), false),
                ("7.0.0", "5.5.2", Some("5.5.2"), true),
            ],
        ),
        (
            "in the spec since an operator before this one",
            &[("6.0.0", "6.0.0", Some("5.5.2"), false), ("6.0.0", "5.5.2", Some("5.5.2"), true)],
        ),
        ("for another version", &[("6.0.0", "5.5.2", Some("5.5.3"), true), ("6.0.0", "5.5.2", Some("5.5.2"), false)]),
    ];
    let app = |chart: &str| match chart {
        "6.0.0" => "30.0.1",
        "7.0.0" => "31.0.0",
        _ => "29.0.5",
    };
    for (life, moments) in lives {
        let mut recorded = ClientAppStatus::default();
        for (at_chart, version, allow, refused) in moments {
            recorded.installed = Some(at(at_chart, Some(app(at_chart))));
            let desired = want(&json!({"chartVersion": version, "upgrade": {"allow": allow}}));
            let hold = refusal(&desired, &target(version, Some(app(version))), &recorded);
            assert_eq!(hold.is_some(), *refused, "{life}: {at_chart} -> {version}, {allow:?}");
            let again = hold.is_some_and(|hold| hold.message.contains("remove the field, and then set it again"));
            assert_eq!(again, *refused && *allow == Some(*version), "{life}");
            recorded.spent_allow = spent(&desired, recorded.installed.as_ref(), &recorded);
        }
    }
}

fn backed_up(postgres: Value) -> Desired {
    want(&json!({"chartVersion": "5.5.3", "upgrade": {"backup": true}, "postgres": postgres}))
}

fn recorded(backup: Option<BackupRecord>) -> ClientAppStatus {
    ClientAppStatus { installed: Some(at("5.5.2", Some("29.0.5"))), backup, ..ClientAppStatus::default() }
}

fn meta(generation: i64) -> ObjectMeta {
    ObjectMeta { uid: Some("uid".to_owned()), generation: Some(generation), ..ObjectMeta::default() }
}

/// A revision in this phase, by the operator's helm or by another client's.
fn revision(revision: i64, phase: Phase, ours: bool) -> ReleaseView {
    let release = release("d");
    ReleaseView { revision, phase, managed_digest: release.managed_digest.filter(|_| ours), ..release }
}

#[test]
fn which_backup_an_upgrade_needs() {
    let percona = backed_up(json!({}));
    let deployed = revision(3, Phase::Deployed, true);
    let needed = |meta: &ObjectMeta, release: Option<&ReleaseView>, recorded: &ClientAppStatus| {
        backup(&percona, meta, release, recorded, noon())
    };
    let new = needed(&meta(2), Some(&deployed), &recorded(None)).unwrap();
    assert_eq!((new.kind.as_str(), new.name.as_str()), ("PerconaPGBackup", "acme-pg-r3-b013e2be"));
    assert_eq!((new.from.as_str(), new.to.as_str(), new.state), ("5.5.2", "5.5.3", BackupState::Running));
    assert_eq!((new.at_revision, new.as_of.as_ref().map(|as_of| as_of.0)), (Some(3), Some(noon())));
    let standalone = backed_up(json!({"provider": "standalone"}));
    let dump = backup(&standalone, &meta(2), Some(&deployed), &recorded(None), noon()).unwrap();
    assert_eq!((dump.kind.as_str(), dump.name.as_str()), ("Postgresql", "r3-b013e2be"));

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
        name: "acme-pg-r3-b473c8".to_owned(),
        state: BackupState::Succeeded,
        ..backup(&desired, &meta(2), Some(&revision(3, Phase::Deployed, true)), &recorded(None), noon()).unwrap()
    };
    let ago = |minutes: i64| Some(Time(noon() - SignedDuration::from_mins(minutes)));
    let unchanged = || Some(revision(3, Phase::Deployed, true));
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
        ("another client has upgraded", of(&|_| {}), Some(revision(4, Phase::Deployed, false)), false),
        ("while it ran", of(&|r| r.state = running), Some(revision(4, Phase::Deployed, false)), false),
        ("another client has failed to", of(&|_| {}), Some(revision(4, Phase::Failed, false)), false),
        ("the release is gone", of(&|_| {}), None, false),
        ("a try has failed", of(&|_| {}), Some(revision(4, Phase::Failed, true)), true),
        ("a try was cut off", of(&|_| {}), Some(revision(5, Phase::Pending, true)), true),
        ("a try has failed, long after", of(&|r| r.as_of = ago(31)), Some(revision(4, Phase::Failed, true)), false),
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

fn asked() -> BackupRecord {
    backup(&backed_up(json!({})), &meta(2), None, &recorded(None), noon()).unwrap()
}

#[test]
fn helm_waits_for_the_backup_to_be_on_record() {
    let (running, succeeded, failed) = (BackupState::Running, BackupState::Succeeded, BackupState::Failed);
    let full = || Some("no space".to_owned());
    let percona = json!({});
    let standalone = json!({"provider": "standalone"});
    for (what, postgres, on_record, seen, asks, reason) in [
        ("nothing yet", &percona, None, None, true, Some("BackingUp")),
        ("too early", &percona, None, None, false, Some("BackingUp")),
        ("it was deleted while it ran", &percona, Some(running), None, true, Some("BackingUp")),
        ("it runs", &percona, Some(running), Some((running, None)), false, Some("BackingUp")),
        ("done, but not on record", &percona, Some(running), Some((succeeded, None)), false, Some("BackingUp")),
        ("done", &percona, Some(succeeded), Some((succeeded, None)), false, None),
        ("done, and deleted since", &percona, Some(succeeded), None, true, Some("BackingUp")),
        ("done, and dumped for another since", &standalone, Some(succeeded), None, false, None),
        ("failed", &percona, Some(running), Some((failed, full())), false, Some("BackupFailed")),
        ("failed and deleted", &percona, Some(failed), None, true, Some("BackingUp")),
    ] {
        let desired = backed_up(postgres.clone());
        let record =
            |state| BackupRecord { state, ..backup(&desired, &meta(2), None, &recorded(None), noon()).unwrap() };
        let state = seen.as_ref().map(|(state, _)| *state).or(on_record).unwrap_or(running);
        let waits = (what == "too early").then_some("ReadyForBackup");
        let object = DatabaseObject { backup_waits_for: waits, ..DatabaseObject::default() };
        let observed = Observed {
            prerequisites: Prerequisites {
                database: DatabaseView { object: Some(object), ..DatabaseView::default() },
                backup: Some(BackupView { record: record(state), seen }),
                ..Prerequisites::default()
            },
            recorded: recorded(on_record.map(record)),
            ..Observed::default()
        };
        let before = before(&desired, &observed, &target("5.5.3", Some("29.0.5")), noon());
        let asked = before.as_ref().and_then(|before| before.back_up.clone());
        assert_eq!(asked.is_some(), asks, "{what}");
        assert!(asked.is_none_or(|asked| asked.state == running), "{what}");
        assert_eq!(before.map(|before| before.hold.reason.as_str()), reason, "{what}");
    }
}

#[test]
fn after_a_try_that_failed_another_backup_is_made_when_a_user_asks() {
    let desired = backed_up(json!({}));
    let old = Some(Time(noon() - SignedDuration::from_mins(31)));
    let record = |as_of: Option<Time>| BackupRecord { as_of, state: BackupState::Succeeded, ..asked() };
    let failed = |digest: &str| Attempt { failures: 1, ..attempt(digest) };
    let same = failed(&desired.target().digest);
    let retry = Some(annotation::retry_after(&same));
    let tried = |at: i64| Some(revision(at, Phase::Failed, true));
    let put_right = Some(revision(2, Phase::Deployed, false));
    const OUTDATED: Option<&str> = Some("BackupOutdated");
    const BACKING_UP: Option<&str> = Some("BackingUp");
    for (what, as_of, release, attempt, retry, asks, reason) in [
        ("fresh", asked().as_of, tried(1), &same, None, false, None),
        ("too old", old.clone(), tried(1), &same, None, false, OUTDATED),
        // The state after a user has requested a retry once.
        ("too old again", old.clone(), tried(0), &same, None, false, OUTDATED),
        ("a user asks", old.clone(), tried(1), &same, retry.clone(), true, BACKING_UP),
        ("the spec has changed", old.clone(), tried(1), &failed("other"), None, true, BACKING_UP),
        // Nothing was started, so the data are unchanged, and backups of them are good.
        ("no try has come to a revision", old.clone(), None, &same, None, true, BACKING_UP),
        ("another client has put it right", old, put_right, &same, None, true, BACKING_UP),
    ] {
        let status = ClientAppStatus { last_attempt: Some(attempt.clone()), ..recorded(Some(record(as_of))) };
        let needed = backup(&desired, &meta(2), release.as_ref(), &status, noon()).unwrap();
        let seen = (Some(&needed) == status.backup.as_ref()).then_some((BackupState::Succeeded, None));
        let object = DatabaseObject::default();
        let observed = Observed {
            prerequisites: Prerequisites {
                database: DatabaseView { object: Some(object), ..DatabaseView::default() },
                backup: Some(BackupView { record: needed, seen }),
                ..Prerequisites::default()
            },
            release,
            retry,
            recorded: status,
            ..Observed::default()
        };
        let before = before(&desired, &observed, &target("5.5.3", Some("29.0.5")), noon());
        assert_eq!(before.as_ref().is_some_and(|before| before.back_up.is_some()), asks, "{what}");
        assert_eq!(before.as_ref().map(|before| before.hold.reason.as_str()), reason, "{what}");
        assert!(before.is_none_or(|before| before.hold.stalled == (reason == OUTDATED)), "{what}");
    }
}
