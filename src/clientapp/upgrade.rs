//! What stands before another `chartVersion`, **pure**: whether the app's own version may go there, and the backup before it.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use semver::Version;
use sha2::{Digest as _, Sha256};

use super::{
    desired::{Desired, DesiredServer},
    names::Maker,
    plan::{Hold, SAFETY_NET},
    world::{BackupView, ReleaseView, Target, World},
};
use crate::{
    controller::key::hex,
    crd::{
        BackupRecord, BackupState, ClientAppStatus, InstalledChart, Release, conditions::kind,
        percona::READY_FOR_BACKUP,
    },
};

/// Charts whose app migrates its data from one major version to the next only, and which versions of the chart have which
/// major version of it. Nextcloud: its manual, "Upgrade", and the image's entrypoint, which refuses to start.
const ONE_MAJOR_AT_A_TIME: &[(&str, &[(u64, &str)])] = &[(
    "nextcloud",
    &[(29, "5.x"), (30, "6.x"), (31, "7.x or 8.0.x"), (32, "8.1.x to 8.9.x"), (33, "9.0.x or 9.1.x"), (34, "9.2.x")],
)];

/// Kind of Percona's backups.
pub const PERCONA_BACKUP: &str = "PerconaPGBackup";

/// The chart that the app's data are of: as recorded, or as an operator before this one recorded it.
#[must_use]
pub fn installed(recorded: &ClientAppStatus) -> Option<InstalledChart> {
    let of_release = || {
        let Release { chart, chart_version, app_version, chart_digest, .. } = recorded.release.clone()?;
        let (name, version, digest) = (chart?, chart_version?, chart_digest?);
        Some(InstalledChart { name, version, app_version, digest })
    };
    recorded.installed.clone().or_else(of_release)
}

/// Why the chart that is asked for is not installed over the one that is.
fn refusal(desired: &Desired, target: &Target, installed: &InstalledChart) -> Option<Hold> {
    let Target { chart, version, app_version } = target;
    let InstalledChart { name: _, version: before, app_version: app_before, digest: _ } = installed;
    if desired.upgrade.allow.as_ref() == Some(version) {
        return None;
    }
    let anyway = format!("to install it all the same, set spec.upgrade.allow to {version}");
    let refused = |reason, message: String| {
        Some(Hold {
            condition: kind::RELEASED,
            reason,
            message: format!("{message}; {anyway}"),
            stalled: true,
            until: None,
        })
    };
    let parts = app_before.as_deref().and_then(numbers).zip(app_version.as_deref().and_then(numbers));
    let (Some(app_before), Some(app), Some((from, to))) = (app_before, app_version, parts) else {
        // Where the app's versions say nothing, the chart's own have to.
        return match Version::parse(before) {
            Ok(before) if before > *version => refused(
                "DowngradeRefused",
                format!(
                    "chart {chart} {version} is older than {before}, which is installed, and data that were migrated do not go back: {BACK}"
                ),
            ),
            _ => None,
        };
    };
    let goes =
        format!("chart {chart} {version} has version {app} of the app, and {app_before} is installed (chart {before})");
    if to < from {
        return refused("DowngradeRefused", format!("{goes}: data that were migrated do not go back: {BACK}"));
    }
    let (_, charts) = ONE_MAJOR_AT_A_TIME.iter().find(|(name, _)| name == chart)?;
    let next = from.first()? + 1;
    if *to.first()? <= next {
        return None;
    }
    let by = charts.iter().find(|(major, _)| *major == next).map(|(_, versions)| format!(", which is {versions}"));
    refused(
        "MajorSkipRefused",
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

/// The backup that has to succeed before helm may install another chart version: the one on record, where it was taken for
/// this very upgrade, else a new one. Its name follows from the object that asks for it, so that it is asked for once, whoever
/// is killed, and is no other app's and no earlier request's.
#[must_use]
pub fn backup(
    desired: &Desired,
    meta: &ObjectMeta,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
) -> Option<BackupRecord> {
    let DesiredServer { maker, name, .. } = desired.database.as_ref()?.server.as_ref()?;
    let (from, to) = (installed(recorded)?.version, desired.chart_version.to_string());
    if !desired.upgrade.backup || from == to {
        return None;
    }
    let current = |record: &&BackupRecord| {
        let BackupRecord { kind: _, name: _, from: before, to: after, state: _, revision } = record;
        revision.is_none() && *before == from && *after == to
    };
    if let Some(record) = recorded.backup.as_ref().filter(current) {
        return Some(record.clone());
    }
    let revision = release.map_or(0, |release| release.revision);
    let asked = format!("{}/{}/{to}", meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default());
    let word = format!("r{revision}-{}", &hex(&Sha256::digest(asked.as_bytes()))[..8]);
    let (kind, name) = match maker {
        Maker::Percona => (PERCONA_BACKUP, format!("{name}-{word}")),
        Maker::Standalone => (maker.kind(), word),
    };
    Some(BackupRecord { kind: kind.to_owned(), name, from, to, state: BackupState::Running, revision: None })
}

/// What stands before an upgrade.
#[derive(Clone, Debug, PartialEq)]
pub struct Before {
    /// A backup to ask for.
    pub back_up: Option<BackupRecord>,
    /// What helm waits for.
    pub hold: Hold,
}

/// Looks whether helm may install the chart now; `None`: it may.
#[must_use]
pub fn before(desired: &Desired, world: &World, target: &Target, now: Timestamp) -> Option<Before> {
    if let Some(hold) = refusal(desired, target, &installed(&world.recorded)?) {
        return Some(Before { back_up: None, hold });
    }
    let BackupView { record, seen } = world.backup.as_ref()?;
    // It counts once it is on record: helm runs after that was written, never before. It may have been deleted since.
    if record.state == BackupState::Succeeded && world.recorded.backup.as_ref() == Some(record) {
        return None;
    }
    let what = match record.kind.as_str() {
        PERCONA_BACKUP => format!("{PERCONA_BACKUP} {}", record.name),
        kind => format!("dump {} of {kind} {}", record.name, desired.key.cluster()),
    };
    // Percona lets one that is asked for too early fail for good.
    let ready = seen.is_some() || world.database.server.as_ref().is_some_and(|server| server.ready_for_backup);
    let hold = match seen {
        Some((BackupState::Failed, problem)) => Hold {
            condition: kind::RELEASED,
            reason: "BackupFailed",
            message: format!(
                "{what} has failed, and nothing is upgraded without it{}: {}, or set spec.upgrade.backup to false",
                problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default(),
                if record.kind == PERCONA_BACKUP {
                    "delete it to have another one made"
                } else {
                    "delete its Job to have it tried again"
                }
            ),
            stalled: true,
            until: None,
        },
        _ => Hold {
            condition: kind::RELEASED,
            reason: "BackingUp",
            message: match ready {
                true => format!("{what} has to succeed before chart version {} is installed", record.to),
                false => format!(
                    "{what} is made once {} {} is {READY_FOR_BACKUP}",
                    Maker::Percona.kind(),
                    desired.key.cluster()
                ),
            },
            stalled: false,
            until: Some(now + SAFETY_NET),
        },
    };
    Some(Before { back_up: (seen.is_none() && ready).then(|| record.clone()), hold })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        clientapp::{
            desired::{app_for_tests, desired},
            world::{DatabaseView, ServerView},
        },
        config::Config,
    };

    fn want(spec: Value) -> Desired {
        let mut full = json!({"hostname": "a.example"});
        full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        desired(&app_for_tests(full), None, &Config::for_tests()).unwrap()
    }

    /// What is installed: chart and app.
    fn at(chart: &str, app: Option<&str>) -> InstalledChart {
        InstalledChart {
            name: "nextcloud".to_owned(),
            version: chart.to_owned(),
            app_version: app.map(str::to_owned),
            digest: "sha".to_owned(),
        }
    }

    fn target(version: &str, app: Option<&str>) -> Target {
        Target { chart: "nextcloud".to_owned(), version: version.parse().unwrap(), app_version: app.map(str::to_owned) }
    }

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
            // Nobody knows that of another chart.
            (at("1.0.0", Some("1.0")), chart("wiki", target("3.0.0", Some("3.0"))), none(""), None),
            (at("3.0.0", Some("3.0")), chart("wiki", target("1.0.0", Some("1.0"))), none(""), Some("DowngradeRefused")),
            // Versions that say nothing: the chart's own have to.
            (at("2.0.0", Some("latest")), target("3.0.0", Some("latest")), none(""), None),
            (at("2.0.0", Some("latest")), target("1.9.0", Some("latest")), none(""), Some("DowngradeRefused")),
            (at("2.0.0", None), target("1.9.0", Some("1.0")), none(""), Some("DowngradeRefused")),
        ] {
            let hold = refusal(&want(upgrade), &to, &from);
            assert_eq!(hold.as_ref().map(|hold| hold.reason), refused, "{from:?} -> {to:?}");
            assert!(hold.is_none_or(|hold| hold.stalled));
        }
    }

    #[test]
    fn the_way_is_told() {
        let before = at("5.5.2", Some("29.0.5"));
        let said = |to: Target| refusal(&want(json!({})), &to, &before).unwrap().message;
        insta::assert_snapshot!([
            said(target("7.0.0", Some("31.0.0"))),
            said(target("5.5.1", Some("29.0.4"))),
            said(target("5.5.1", None)),
        ].join("\n\n"));
    }

    fn backed_up(postgres: Value) -> Desired {
        want(json!({"chartVersion": "5.5.3", "upgrade": {"backup": true}, "postgres": postgres}))
    }

    fn recorded(backup: Option<BackupRecord>) -> ClientAppStatus {
        ClientAppStatus { installed: Some(at("5.5.2", Some("29.0.5"))), backup, ..ClientAppStatus::default() }
    }

    fn meta(generation: i64) -> ObjectMeta {
        ObjectMeta { uid: Some("uid".to_owned()), generation: Some(generation), ..ObjectMeta::default() }
    }

    #[test]
    fn which_backup_an_upgrade_needs() {
        let percona = backed_up(json!({}));
        let new = backup(&percona, &meta(2), None, &recorded(None)).unwrap();
        assert_eq!((new.kind.as_str(), new.name.as_str()), ("PerconaPGBackup", "acme-pg-r0-4a370ff2"));
        assert_eq!((new.from.as_str(), new.to.as_str(), new.state), ("5.5.2", "5.5.3", BackupState::Running));
        let dump = backup(&backed_up(json!({"provider": "standalone"})), &meta(2), None, &recorded(None)).unwrap();
        assert_eq!((dump.kind.as_str(), dump.name.as_str()), ("Postgresql", "r0-4a370ff2"));

        // Asked for anew, or by another app of this name, it is another one.
        let other = ObjectMeta { uid: Some("other".to_owned()), ..meta(2) };
        for meta in [meta(3), other] {
            assert_ne!(backup(&percona, &meta, None, &recorded(None)).unwrap().name, new.name);
        }

        // The one on record stays the one, whatever helm has tried since.
        let on_record = BackupRecord { name: "acme-pg-r2-b473c8".to_owned(), ..new.clone() };
        assert_eq!(backup(&percona, &meta(2), None, &recorded(Some(on_record.clone()))), Some(on_record.clone()));
        // Unless it was for another upgrade, or for an earlier one between the same versions.
        for other in [
            BackupRecord { to: "5.6.0".to_owned(), ..on_record.clone() },
            BackupRecord { from: "5.5.1".to_owned(), ..on_record.clone() },
            BackupRecord { revision: Some(3), ..on_record },
        ] {
            assert_eq!(backup(&percona, &meta(2), None, &recorded(Some(other))), Some(new.clone()));
        }

        // Nothing to back up, or nobody asks for it.
        assert_eq!(backup(&percona, &meta(2), None, &ClientAppStatus::default()), None);
        assert_eq!(
            backup(
                &want(json!({"upgrade": {"backup": true}, "chartVersion": "5.5.2"})),
                &meta(2),
                None,
                &recorded(None)
            ),
            None
        );
        assert_eq!(backup(&want(json!({"chartVersion": "5.5.3"})), &meta(2), None, &recorded(None)), None);
    }

    #[test]
    fn helm_waits_for_the_backup_to_be_on_record() {
        let desired = backed_up(json!({}));
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let record = |state| BackupRecord { state, ..backup(&desired, &meta(2), None, &recorded(None)).unwrap() };
        let (running, succeeded, failed) = (BackupState::Running, BackupState::Succeeded, BackupState::Failed);
        let full = || Some("no space".to_owned());
        for (what, on_record, seen, asks, reason) in [
            ("nothing yet", None, None, true, Some("BackingUp")),
            ("too early", None, None, false, Some("BackingUp")),
            ("it was deleted while it ran", Some(running), None, true, Some("BackingUp")),
            ("it runs", Some(running), Some((running, None)), false, Some("BackingUp")),
            ("done, but not on record", Some(running), Some((succeeded, None)), false, Some("BackingUp")),
            ("done", Some(succeeded), Some((succeeded, None)), false, None),
            ("done, and deleted since", Some(succeeded), None, false, None),
            ("failed", Some(running), Some((failed, full())), false, Some("BackupFailed")),
            ("failed and deleted", Some(failed), None, true, Some("BackingUp")),
        ] {
            let state = seen.as_ref().map(|(state, _)| *state).or(on_record).unwrap_or(running);
            let server = ServerView { ready_for_backup: what != "too early", ..ServerView::default() };
            let world = World {
                database: DatabaseView { server: Some(server), ..DatabaseView::default() },
                backup: Some(BackupView { record: record(state), seen }),
                recorded: recorded(on_record.map(record)),
                ..World::default()
            };
            let before = before(&desired, &world, &target("5.5.3", Some("29.0.5")), now);
            assert_eq!(before.as_ref().is_some_and(|before| before.back_up.is_some()), asks, "{what}");
            assert_eq!(before.map(|before| before.hold.reason), reason, "{what}");
        }
    }
}
