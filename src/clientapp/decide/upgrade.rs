//! Decides what another `chartVersion` requires, **pure**: that the app's own version may change that way, and a backup first.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use semver::Version;

use crate::{
    clientapp::{
        hold::{Hold, SAFETY_NET},
        observed::{
            installed_chart::installed,
            types::{BackupView, CachedChart, Observed},
            upgrade_backup::{is_failed_try, of_this_upgrade},
        },
        spec::desired::Desired,
    },
    crd::{BackupRecord, BackupState, ClientAppStatus, InstalledChart, Reason, annotation},
};

/// Charts whose app migrates its data only from one major version to the next, and which chart versions contain which major
/// version of the app. Nextcloud: see "Upgrade" in its manual, and the image's entrypoint, which refuses to start otherwise.
const ONE_MAJOR_AT_A_TIME: &[(&str, &[(u64, &str)])] = &[(
    "nextcloud",
    &[(29, "5.x"), (30, "6.x"), (31, "7.x or 8.0.x"), (32, "8.1.x to 8.9.x"), (33, "9.0.x or 9.1.x"), (34, "9.2.x")],
)];

/// Returns the value of `spec.upgrade.allow` that does not count any more. It allows one change to the version it names: once that
/// version is installed, the change is complete, and next to a different `chartVersion` it does not refer to this change. It
/// stays spent as long as it is in the spec, where the user may have forgotten it.
pub(crate) fn spent(
    desired: &Desired,
    installed: Option<&InstalledChart>,
    recorded: &ClientAppStatus,
) -> Option<String> {
    let allow = desired.upgrade.allow.as_ref()?;
    let text = allow.to_string();
    let made = installed.is_some_and(|installed| installed.version == text);
    (made || *allow != desired.target().chart_version || recorded.spent_allow.as_ref() == Some(&text)).then_some(text)
}

/// Returns why the desired chart may not replace the present one.
pub(crate) fn refusal(desired: &Desired, target: &CachedChart, recorded: &ClientAppStatus) -> Option<Hold> {
    let CachedChart { chart, version, app_version, digest: _ } = target;
    let installed = installed(recorded)?;
    let InstalledChart { name: _, version: before, app_version: app_before, digest: _ } = &installed;
    let allowed = desired.upgrade.allow.as_ref() == Some(version);
    let spent = spent(desired, Some(&installed), recorded).is_some();
    if allowed && !spent {
        return None;
    }
    let anyway = match allowed {
        true => format!(
            "spec.upgrade.allow names {version}, which was for an earlier change: to install it anyway, remove the field, and then set it again"
        ),
        false => format!("to install it anyway, set spec.upgrade.allow to {version}"),
    };
    let refused = |reason, message: String| Some(Hold::new(reason, format!("{message}; {anyway}")));
    let parts = app_before.as_deref().and_then(numbers).zip(app_version.as_deref().and_then(numbers));
    let (Some(app_before), Some(app), Some((from, to))) = (app_before, app_version, parts) else {
        // If the app's versions cannot be compared, the chart's own versions decide.
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

/// Returns the numbers of a version, to be compared one by one; a suffix such as `-apache` says nothing about the data.
fn numbers(version: &str) -> Option<Vec<u64>> {
    let version = version.strip_prefix('v').unwrap_or(version);
    let end = version.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(version.len());
    version[..end].trim_end_matches('.').split('.').map(|number| number.parse().ok()).collect()
}

/// Holds what an upgrade has to wait for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Before {
    /// A backup to record, and then to request.
    pub back_up: Option<BackupRecord>,
    pub hold: Hold,
}

/// Decides whether helm may install the chart now; `None`: it may.
pub(crate) fn before(desired: &Desired, observed: &Observed, target: &CachedChart, now: Timestamp) -> Option<Before> {
    // The version of the app was compared before the rollback.
    if desired.rolled_back().is_some() {
        return None;
    }
    if let Some(hold) = refusal(desired, target, &observed.recorded) {
        return Some(Before { back_up: None, hold });
    }
    let BackupView { record, seen } = observed.prerequisites.backup.as_ref()?;
    let on_record = observed.recorded.backup.as_ref().filter(|on_record| on_record.name == record.name);
    let what = described(record);
    // A backup counts once its success is recorded: helm starts only after that.
    let is_made = match (on_record.map(|on_record| on_record.state), seen) {
        (Some(BackupState::Succeeded), Some((BackupState::Succeeded, _))) => return None,
        (Some(_), Some((BackupState::Failed, problem))) => {
            let problem = problem.as_ref().map(|problem| format!(" ({problem})")).unwrap_or_default();
            let message = format!(
                "{what} has failed, and nothing is upgraded without it{problem}: delete it to have another one made, or set spec.upgrade.backup to false"
            );
            return Some(Before { back_up: None, hold: Hold::new(Reason::BackupFailed, message) });
        }
        (Some(_), Some(_)) => true,
        (None, _) => match outdated(desired, observed) {
            Some(message) => return Some(Before { back_up: None, hold: Hold::new(Reason::BackupOutdated, message) }),
            None => false,
        },
        (Some(_), None) => false,
    };
    // This pass records the observation, and helm runs in the next.
    let is_done = is_made && matches!(seen, Some((BackupState::Succeeded, _)));
    let message = format!("{what} has to succeed before chart version {} is installed", record.to);
    let asked = match on_record.map(|on_record| on_record.state) {
        // Requested already, as far as is known.
        Some(BackupState::Running) => record.clone(),
        _ => BackupRecord { state: BackupState::Running, as_of: Some(Time(now)), ..record.clone() },
    };
    let hold = Hold::new(Reason::BackingUp, message).until(if is_done { now } else { now + SAFETY_NET });
    Some(Before { back_up: (!is_made).then_some(asked), hold })
}

fn described(record: &BackupRecord) -> String {
    format!("{} {}", record.kind, record.name)
}

/// Returns why no further backup is made without a user: an attempt after the last backup failed, so the data may be partly
/// upgraded. Repeated backups of such data would push the good backup out of the repository unnoticed.
fn outdated(desired: &Desired, observed: &Observed) -> Option<String> {
    let record = of_this_upgrade(desired, &observed.recorded)?;
    let tried = observed.release.as_ref().filter(|release| is_failed_try(release))?;
    let attempt = observed.recorded.last_attempt.as_ref()?;
    let asked_again =
        attempt.digest != desired.target().digest || observed.retry == Some(annotation::retry_after(attempt));
    let message = format!(
        "revision {} has failed, and {} is too old for another attempt at chart version {}: check the app's data; then `kubectl clientapp retry {} -n {}` takes another backup and tries again",
        tried.revision,
        described(record),
        record.to,
        desired.key.name,
        desired.key.namespace,
    );
    (!asked_again).then_some(message)
}

#[cfg(test)]
mod tests;
