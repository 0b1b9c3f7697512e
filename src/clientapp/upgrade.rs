//! What stands before another `chartVersion`, **pure**: whether the app's own version may go there, and the backup before it.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use semver::Version;
use sha2::{Digest as _, Sha256};

use super::{
    database::DesiredObject,
    desired::Desired,
    observed::{BackupView, Observed, Phase, ReleaseView, Target},
    plan::{Hold, SAFETY_NET},
};
use crate::{
    crd::{BackupRecord, BackupState, ClientAppStatus, InstalledChart, Reason, Release, annotation},
    runtime::key::hex,
};

/// Charts whose app migrates its data from one major version to the next only, and which versions of the chart have which
/// major version of it. Nextcloud: its manual, "Upgrade", and the image's entrypoint, which refuses to start.
const ONE_MAJOR_AT_A_TIME: &[(&str, &[(u64, &str)])] = &[(
    "nextcloud",
    &[(29, "5.x"), (30, "6.x"), (31, "7.x or 8.0.x"), (32, "8.1.x to 8.9.x"), (33, "9.0.x or 9.1.x"), (34, "9.2.x")],
)];

/// How long helm may begin after a backup that it follows. Longer, and too much has been written since.
const FRESH_FOR: SignedDuration = SignedDuration::from_mins(30);
/// What the clocks of two operators, one after the other, may differ by.
const SKEW: SignedDuration = SignedDuration::from_mins(1);
/// How often it is put down that a backup is still running.
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(1);

/// The chart that the app's data are of: as recorded, or as an operator before this one recorded it.
pub(crate) fn installed(recorded: &ClientAppStatus) -> Option<InstalledChart> {
    let of_release = || {
        let Release { chart, chart_version, app_version, chart_digest, .. } = recorded.release.clone()?;
        let (name, version, digest) = (chart?, chart_version?, chart_digest?);
        Some(InstalledChart { name, version, app_version, digest })
    };
    recorded.installed.clone().or_else(of_release)
}

/// The same now: the chart of the last attempt, where storage shows that it has succeeded. The attempt was put down before helm
/// began, so that nothing is forgotten by whom helm outlives; and it is looked at before anything is decided, as the spec may ask for
/// another chart by then.
pub(crate) fn installed_now(release: Option<&ReleaseView>, recorded: &ClientAppStatus) -> Option<InstalledChart> {
    let stamp = release.filter(|release| release.phase == Phase::Deployed).and_then(|release| release.stamp.as_ref());
    let attempt = recorded.last_attempt.as_ref();
    let attempt = attempt.filter(|attempt| stamp.is_some_and(|stamp| stamp.digest == attempt.digest));
    attempt.and_then(|attempt| attempt.chart.clone()).or_else(|| installed(recorded))
}

/// The value of `spec.upgrade.allow` that does not count any more. It is given for one change to the version it names: with
/// that version installed the change is made, and beside another `chartVersion` it is none of this change's. It stays spent
/// while it is in the spec, where the user may have forgotten it.
pub(crate) fn spent(
    desired: &Desired,
    installed: Option<&InstalledChart>,
    recorded: &ClientAppStatus,
) -> Option<String> {
    let allow = desired.upgrade.allow.as_ref()?;
    let text = allow.to_string();
    let made = installed.is_some_and(|installed| installed.version == text);
    (made || *allow != desired.chart_version || recorded.spent_allow.as_ref() == Some(&text)).then_some(text)
}

/// Why the chart that is asked for is not installed over the present chart.
fn refusal(desired: &Desired, target: &Target, recorded: &ClientAppStatus) -> Option<Hold> {
    let Target { chart, version, app_version, digest: _ } = target;
    let installed = installed(recorded)?;
    let InstalledChart { name: _, version: before, app_version: app_before, digest: _ } = &installed;
    let allowed = desired.upgrade.allow.as_ref() == Some(version);
    let spent = spent(desired, Some(&installed), recorded).is_some();
    if allowed && !spent {
        return None;
    }
    let anyway = match allowed {
        true => format!(
            "spec.upgrade.allow names {version}, which was for an earlier change: to install it all the same, remove the field, and then set it again"
        ),
        false => format!("to install it all the same, set spec.upgrade.allow to {version}"),
    };
    let refused = |reason, message: String| Some(Hold::new(reason, format!("{message}; {anyway}")));
    let parts = app_before.as_deref().and_then(numbers).zip(app_version.as_deref().and_then(numbers));
    let (Some(app_before), Some(app), Some((from, to))) = (app_before, app_version, parts) else {
        // Where the app's versions say nothing, the chart's own have to.
        return match Version::parse(before) {
            Ok(before) if before > *version => refused(
                Reason::DowngradeRefused,
                format!(
                    "chart {chart} {version} is older than {before}, which is installed, and migrated data cannot be migrated back: {BACK}"
                ),
            ),
            _ => None,
        };
    };
    let goes =
        format!("chart {chart} {version} has version {app} of the app, and {app_before} is installed (chart {before})");
    if to < from {
        return refused(Reason::DowngradeRefused, format!("{goes}: migrated data cannot be migrated back: {BACK}"));
    }
    let (_, charts) = ONE_MAJOR_AT_A_TIME.iter().find(|(name, _)| name == chart)?;
    let next = from.first()? + 1;
    if *to.first()? <= next {
        return None;
    }
    let by = charts.iter().find(|(major, _)| *major == next).map(|(_, versions)| format!(", which is {versions}"));
    refused(
        Reason::MajorSkipRefused,
        format!(
            "{goes}: it upgrades one major version at a time: set spec.chartVersion to a chart with version {next} of the app first{}, and go on when that is Ready",
            by.unwrap_or_default()
        ),
    )
}

const BACK: &str = "set spec.chartVersion to one that is not older, or restore a backup into a new ClientApp";

/// The numbers of a version, to be compared one by one; what follows them, such as `-apache`, says nothing about the data.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let end = version.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(version.len());
    version[..end].trim_end_matches('.').split('.').map(|number| number.parse().ok()).collect()
}

/// The backup that has to succeed before helm may install another chart version: the one on record, where it counts for this
/// very upgrade, else a new one. Its name follows from the object that asks for it and from the backup before it, so that it is
/// asked for once, whichever process is killed, and is no other app's and no earlier request's.
pub(crate) fn backup(
    desired: &Desired,
    meta: &ObjectMeta,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
    now: Timestamp,
) -> Option<BackupRecord> {
    let object = desired.database_object()?;
    let (from, to) = (installed(recorded)?.version, desired.chart_version.to_string());
    if !desired.upgrade.backup || from == to {
        return None;
    }
    if let Some(record) = of_this_upgrade(desired, recorded).filter(|record| counts(record, release, now)) {
        return Some(record.clone());
    }
    let revision = release.map_or(0, |release| release.revision);
    let (uid, generation) = (meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default());
    let earlier = recorded.backup.as_ref().map_or("", |record| &record.name);
    let asked = format!("{uid}/{generation}/{to}/{earlier}");
    let word = format!("r{revision}-{}", &hex(&Sha256::digest(asked.as_bytes()))[..8]);
    let (kind, name) = match object.provider.facts().backup_kind {
        Some(kind) => (kind, format!("{}-{word}", object.name)),
        None => (object.provider.kind().as_str(), word),
    };
    Some(BackupRecord {
        kind: kind.to_owned(),
        name,
        from,
        to,
        state: BackupState::Running,
        at_revision: Some(revision),
        as_of: Some(Time(now)),
        revision: None,
    })
}

/// The backup on record, where it was asked for between the same versions and that upgrade is not over.
fn of_this_upgrade<'a>(desired: &Desired, recorded: &'a ClientAppStatus) -> Option<&'a BackupRecord> {
    let record = recorded.backup.as_ref()?;
    let same = installed(recorded)?.version == record.from && desired.chart_version.to_string() == record.to;
    (same && record.revision.is_none()).then_some(record)
}

/// Whether a backup is of what helm would upgrade now: nothing but this upgrade's own tries has changed the release since it was
/// asked for, and it is fresh. Only times that operators took are compared: what makes backups has a clock of its own.
fn counts(record: &BackupRecord, release: Option<&ReleaseView>, now: Timestamp) -> bool {
    let BackupRecord { state, at_revision, as_of, kind: _, name: _, from: _, to: _, revision: _ } = record;
    let unchanged = *at_revision == Some(release.map_or(0, |release| release.revision));
    let fresh = as_of.as_ref().is_some_and(|as_of| {
        let age = now.duration_since(as_of.0);
        -SKEW <= age && age <= FRESH_FOR
    });
    (unchanged || release.is_some_and(is_failed_try)) && (*state != BackupState::Succeeded || fresh)
}

/// A revision that this operator's helm has begun and not brought to its end.
fn is_failed_try(release: &ReleaseView) -> bool {
    release.stamp.is_some() && matches!(release.phase, Phase::Failed | Phase::Pending)
}

/// The record of a backup, as it is put down after a look at it.
pub(crate) fn looked_at(view: &BackupView, recorded: &ClientAppStatus, now: Timestamp) -> Option<BackupRecord> {
    let BackupView { record, seen } = view;
    let before = recorded.backup.as_ref().filter(|before| before.name == record.name)?;
    let (state, _) = seen.as_ref()?;
    let running = *state == BackupState::Running;
    let beat = before.as_of.as_ref().is_none_or(|as_of| now.duration_since(as_of.0) >= HEARTBEAT);
    let as_of = if running && beat { Some(Time(now)) } else { before.as_of.clone() };
    Some(BackupRecord { state: *state, as_of, ..before.clone() })
}

/// What stands before an upgrade.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Before {
    /// A backup to put on record, and then to ask for.
    pub back_up: Option<BackupRecord>,
    pub hold: Hold,
}

/// Looks whether helm may install the chart now; `None`: it may.
pub(crate) fn before(desired: &Desired, observed: &Observed, target: &Target, now: Timestamp) -> Option<Before> {
    if let Some(hold) = refusal(desired, target, &observed.recorded) {
        return Some(Before { back_up: None, hold });
    }
    let BackupView { record, seen } = observed.backup.as_ref()?;
    let object = desired.database_object()?;
    let facts = object.provider.facts();
    let on_record = observed.recorded.backup.as_ref().filter(|on_record| on_record.name == record.name);
    let what = described(object, record);
    // It counts once it is on record: helm runs after that was written, never before.
    let (waits_for, seen) = match (on_record.map(|on_record| on_record.state), seen) {
        (Some(BackupState::Succeeded), Some((BackupState::Succeeded, _))) => return None,
        // The last backup, of which alone the database object tells, may be another by now.
        (Some(BackupState::Succeeded), None) if facts.backup_kind.is_none() => return None,
        (Some(_), Some((BackupState::Failed, problem))) => {
            let problem = problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default();
            let message = format!(
                "{what} has failed, and nothing is upgraded without it{problem}: {}, or set spec.upgrade.backup to false",
                facts.to_repeat_backup
            );
            return Some(Before { back_up: None, hold: Hold::new(Reason::BackupFailed, message) });
        }
        (Some(_), Some(_)) => (None, true),
        (None, _) if let Some(message) = outdated(desired, observed) => {
            return Some(Before { back_up: None, hold: Hold::new(Reason::BackupOutdated, message) });
        }
        _ => (observed.database.object.as_ref().map_or(Some("there"), |found| found.backup_waits_for), false),
    };
    // What is seen is put on record by this pass, and helm's turn is the next.
    let done = matches!(observed.backup, Some(BackupView { seen: Some((BackupState::Succeeded, _)), .. }));
    let message = match waits_for {
        None => format!("{what} has to succeed before chart version {} is installed", record.to),
        Some(state) => format!("{what} is made once {} is {state}", object.described()),
    };
    let asked = match on_record.map(|on_record| on_record.state) {
        // Asked for already, as far as is known.
        Some(BackupState::Running) => record.clone(),
        _ => BackupRecord { state: BackupState::Running, as_of: Some(Time(now)), ..record.clone() },
    };
    let hold = Hold::new(Reason::BackingUp, message).until(if seen && done { now } else { now + SAFETY_NET });
    Some(Before { back_up: (waits_for.is_none() && !seen).then_some(asked), hold })
}

fn described(object: &DesiredObject, record: &BackupRecord) -> String {
    match object.provider.facts().backup_kind {
        Some(kind) => format!("{kind} {}", record.name),
        None => format!("dump {} of {}", record.name, object.described()),
    }
}

/// Why no further backup is made by itself: a try after the last one has failed, so that the data may be upgraded in part. Of such
/// data one backup after the other would push the good one out of the repository, unseen.
fn outdated(desired: &Desired, observed: &Observed) -> Option<String> {
    let record = of_this_upgrade(desired, &observed.recorded)?;
    let tried = observed.release.as_ref().filter(|release| is_failed_try(release))?;
    let attempt = observed.recorded.last_attempt.as_ref()?;
    let asked_again = attempt.digest != desired.digest || observed.retry == Some(annotation::retry_after(attempt));
    let message = format!(
        "revision {} has failed, and {} is too old by now for another try to bring chart version {}: look at the app, whose data may be upgraded in part; `kubectl clientapp retry {} -n {}` takes another backup and tries again",
        tried.revision,
        described(desired.database_object()?, record),
        record.to,
        desired.key.name,
        desired.key.namespace,
    );
    (!asked_again).then_some(message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        clientapp::{
            database::DatabaseObject,
            fixtures::{attempt, chart as at, now as noon, release, target, want, with},
            observed::DatabaseView,
        },
        crd::Attempt,
    };

    #[test]
    fn where_an_app_may_go() {
        let none = |_: &str| json!({});
        let allowed = |version: &str| json!({"upgrade": {"allow": version}});
        let chart = |name: &str, target: Target| Target { chart: name.to_owned(), ..target };
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
            // Of another chart that is not known.
            (at("1.0.0", Some("1.0")), chart("wiki", target("3.0.0", Some("3.0"))), none(""), None),
            (at("3.0.0", Some("3.0")), chart("wiki", target("1.0.0", Some("1.0"))), none(""), Some("DowngradeRefused")),
            // Versions that say nothing: the chart's own have to.
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
        let said = |to: Target| refusal(&want(&json!({})), &to, &before).unwrap().message;
        insta::assert_snapshot!([
            said(target("7.0.0", Some("31.0.0"))),
            said(target("5.5.1", Some("29.0.4"))),
            said(target("5.5.1", None)),
        ].join("\n\n"));
    }

    #[test]
    fn a_leave_is_for_one_change() {
        /// What is installed when the app is looked at, spec.chartVersion and spec.upgrade.allow; and whether the change is
        /// refused.
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
                    // Removed and given anew it is another.
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
            (
                "for another version",
                &[("6.0.0", "5.5.2", Some("5.5.3"), true), ("6.0.0", "5.5.2", Some("5.5.2"), false)],
            ),
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

    /// A revision that this operator's helm, or another client's, has left so.
    fn revision(revision: i64, phase: Phase, ours: bool) -> ReleaseView {
        let release = release("d");
        ReleaseView { revision, phase, stamp: release.stamp.filter(|_| ours), ..release }
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

        // Asked for anew, or by another app of this name, it is another one.
        let other = ObjectMeta { uid: Some("other".to_owned()), ..meta(2) };
        for meta in [meta(3), other] {
            assert_ne!(needed(&meta, Some(&deployed), &recorded(None)).unwrap().name, new.name);
        }

        // Nothing to back up, or it is not asked for.
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
            // Otherwise it is a backup that is not there yet, and the same at each look.
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
            // When it ended, no operator saw.
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
                database: DatabaseView { object: Some(object), ..DatabaseView::default() },
                backup: Some(BackupView { record: record(state), seen }),
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
        let same = failed(&desired.digest);
        let retry = Some(annotation::retry_after(&same));
        let tried = |at: i64| Some(revision(at, Phase::Failed, true));
        let put_right = Some(revision(2, Phase::Deployed, false));
        const OUTDATED: Option<&str> = Some("BackupOutdated");
        const BACKING_UP: Option<&str> = Some("BackingUp");
        for (what, as_of, release, attempt, retry, asks, reason) in [
            ("fresh", asked().as_of, tried(1), &same, None, false, None),
            ("too old", old.clone(), tried(1), &same, None, false, OUTDATED),
            // As it is after a user has asked once.
            ("too old again", old.clone(), tried(0), &same, None, false, OUTDATED),
            ("a user asks", old.clone(), tried(1), &same, retry.clone(), true, BACKING_UP),
            ("the spec has changed", old.clone(), tried(1), &failed("other"), None, true, BACKING_UP),
            // Nothing was begun: what is there is as it was, and so are backups of it.
            ("no try has come to a revision", old.clone(), None, &same, None, true, BACKING_UP),
            ("another client has put it right", old, put_right, &same, None, true, BACKING_UP),
        ] {
            let status = ClientAppStatus { last_attempt: Some(attempt.clone()), ..recorded(Some(record(as_of))) };
            let needed = backup(&desired, &meta(2), release.as_ref(), &status, noon()).unwrap();
            let seen = (Some(&needed) == status.backup.as_ref()).then_some((BackupState::Succeeded, None));
            let object = DatabaseObject::default();
            let observed = Observed {
                database: DatabaseView { object: Some(object), ..DatabaseView::default() },
                backup: Some(BackupView { record: needed, seen }),
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
}
