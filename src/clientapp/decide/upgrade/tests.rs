use jiff::SignedDuration;
use serde_json::json;

use super::*;
use crate::{
    clientapp::{
        fixtures::{attempt, chart as at, now as noon, target, want, with},
        observed::{
            release::ReleasePhase,
            types::Prerequisites,
            upgrade_backup::{
                backup,
                tests::{asked, backed_up, meta, recorded, revision},
            },
        },
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

#[test]
fn helm_waits_for_the_backup_to_be_on_record() {
    let (running, succeeded, failed) = (BackupState::Running, BackupState::Succeeded, BackupState::Failed);
    let full = || Some("no space".to_owned());
    let desired = backed_up(json!({}));
    for (what, on_record, seen, asks, reason) in [
        ("nothing yet", None, None, true, Some("BackingUp")),
        ("one has its name already", None, Some((succeeded, None)), true, Some("BackingUp")),
        ("it was deleted while it ran", Some(running), None, true, Some("BackingUp")),
        ("it runs", Some(running), Some((running, None)), false, Some("BackingUp")),
        ("done, but not on record", Some(running), Some((succeeded, None)), false, Some("BackingUp")),
        ("done", Some(succeeded), Some((succeeded, None)), false, None),
        ("done, and deleted since", Some(succeeded), None, true, Some("BackingUp")),
        ("failed", Some(running), Some((failed, full())), false, Some("BackupFailed")),
        ("failed and deleted", Some(failed), None, true, Some("BackingUp")),
    ] {
        let record =
            |state| BackupRecord { state, ..backup(&desired, &meta(2), None, &recorded(None), noon()).unwrap() };
        let state = seen.as_ref().map(|(state, _)| *state).or(on_record).unwrap_or(running);
        let observed = Observed {
            prerequisites: Prerequisites {
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
    let tried = |at: i64| Some(revision(at, ReleasePhase::Failed, true));
    let put_right = Some(revision(2, ReleasePhase::Deployed, false));
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
        let observed = Observed {
            prerequisites: Prerequisites {
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
