//! Decides what follows from the state of an app's archives. **Pure.**

use jiff::{SignedDuration, Timestamp, civil, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Step;
use crate::{
    clientapp::{
        observed::{
            file_backup::{AppBackup, FilesView, RefusedBackup},
            types::Observed,
            upgrade_backup,
        },
        spec::{desired::Desired, file_backup::DesiredFiles},
    },
    crd::{
        BackupPhase, FilesSummary, PasswordState, Reason, RepositoryPassword, Scheduled,
        conditions::{Verdict, find},
        reason::FILES_BACKED_UP,
    },
    platform::{
        password::lost,
        schedule::{due, overdue, overdue_at, scheduled},
    },
    postgresql::decide::dumps::NO_IMAGE,
};

/// How many ClientAppBackups of each kind are kept: of those that are complete, and of those that have failed.
const KEPT: usize = 7;
/// All of this time are kept: a restore that waits may name one.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(24);

/// Creates the ClientAppBackup that is due, and deletes old ones. Whatever the app waits for does not hold up its archives, except helm,
/// which may be changing the volumes; nor does `spec.suspend`: users go on changing files. The ClientAppBackup itself waits for a
/// restore to end.
/// `summary`: what is to be recorded.
pub(crate) fn steps(
    desired: &Desired,
    observed: &Observed,
    summary: Option<&FilesSummary>,
    now: Timestamp,
) -> Vec<Step> {
    let FilesView { has_image, has_volumes, .. } = &observed.files;
    let next = summary.and_then(|summary| summary.scheduled.as_ref());
    let can = *has_image && *has_volumes == Some(true) && observed.run.busy.is_none() && !runs(observed);
    let due = due(next, now).map(|due| name(&desired.key.name, due)).filter(|_| can);
    let is_refused =
        |name: &String| observed.files.refused.as_ref().is_some_and(|it| it.name == *name && now < it.until);
    let created = due.filter(|due| !is_refused(due)).map(|name| Step::CreateBackup { name });
    let password = match password_state(desired, observed).filter(|_| observed.run.busy.is_none()) {
        Some(PasswordState::Missing(secret)) => Some(Step::CreateRepositoryPassword(secret)),
        Some(PasswordState::Given | PasswordState::Lost(_)) | None => None,
    };
    password.into_iter().chain(created).chain(old(desired, observed, now)).chain(withdrawn(desired, observed)).collect()
}

/// Returns how the repository stands with its password; `None`: no archives are asked for.
fn password_state(desired: &Desired, observed: &Observed) -> Option<PasswordState> {
    let DesiredFiles { bucket, generate_password, schedule: _ } = desired.data.files.as_ref()?;
    let recorded = observed.recorded.repository_password.as_ref();
    Some(bucket.password_state(*generate_password, recorded, observed.files.password.is_some()))
}

/// Returns the record of the Secret with the repository's password.
pub(crate) fn password(desired: &Desired, observed: &Observed) -> Option<RepositoryPassword> {
    let recorded = observed.recorded.repository_password.as_ref();
    match &desired.data.files {
        Some(files) => files.bucket.password(recorded, observed.files.password.as_deref()),
        None => recorded.cloned(),
    }
}

/// Deletes those of upgrades that are not asked for any more, unless they have begun: then they end by themselves.
fn withdrawn(desired: &Desired, observed: &Observed) -> impl Iterator<Item = Step> {
    let needed = observed.prerequisites.backup.as_ref().map(|view| view.record.name.clone());
    let has_begun =
        |backup: &AppBackup| backup.started_at.is_some() || !matches!(backup.phase, None | Some(BackupPhase::Pending));
    let of_upgrades = made_by_operator(observed).filter(|backup| is_for_upgrade(&desired.key.name, backup));
    let idle = of_upgrades.filter(move |backup| !backup.deleting && !has_begun(backup));
    let unneeded = idle.filter(move |backup| needed.as_ref() != Some(&backup.name));
    unneeded.map(|backup| Step::WithdrawBackup { name: backup.name.clone(), uid: backup.uid.clone() })
}

/// Returns true for one that was made before an upgrade.
fn is_for_upgrade(app: &str, backup: &AppBackup) -> bool {
    !backup.is_of_files() && backup.name.starts_with(&format!("{app}{}", upgrade_backup::NAMED))
}

/// Deletes those that were made by schedule or before an upgrade, have ended and are old.
fn old(desired: &Desired, observed: &Observed, now: Timestamp) -> impl Iterator<Item = Step> {
    let app = &desired.key.name;
    let made_at = move |backup: &AppBackup| match backup.is_of_files() {
        true => due_of(app, &backup.name),
        false => backup.created.filter(|_| is_for_upgrade(app, backup)),
    };
    let ended = move |(phase, is_of_files)| {
        let mut ended: Vec<_> = made_by_operator(observed)
            .filter(|backup| backup.phase == Some(phase) && backup.is_of_files() == is_of_files)
            .filter_map(|backup| Some((made_at(backup)?, backup)))
            .collect();
        ended.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        ended.into_iter().skip(KEPT).filter(move |(at, backup)| !backup.deleting && now.duration_since(*at) > KEPT_FOR)
    };
    let phases = [BackupPhase::Completed, BackupPhase::Failed].into_iter();
    let old = phases.flat_map(|phase| [(phase, true), (phase, false)]).flat_map(ended);
    old.map(|(_, backup)| Step::DeleteBackup { name: backup.name.clone(), uid: backup.uid.clone() })
}

/// Returns the ClientAppBackups that the operator has made for the app.
fn made_by_operator(observed: &Observed) -> impl Iterator<Item = &AppBackup> {
    let FilesView { app_uid, backups, .. } = &observed.files;
    backups.iter().filter(move |backup| backup.controller.as_ref() == Some(app_uid))
}

/// Returns the ClientAppBackups that were made by the app's schedule.
fn ours(observed: &Observed) -> impl Iterator<Item = &AppBackup> {
    made_by_operator(observed).filter(|backup| backup.is_of_files())
}

/// Returns true while one of them has not ended.
fn runs(observed: &Observed) -> bool {
    ours(observed).any(|backup| !backup.phase.is_some_and(BackupPhase::is_final))
}

const TIME: &str = "%Y%m%d%H%M";

/// Returns the name of the ClientAppBackup that is due then.
fn name(app: &str, due: Timestamp) -> String {
    format!("{app}-files-{}", due.strftime(TIME))
}

/// Returns when the ClientAppBackup of this name was due.
fn due_of(app: &str, name: &str) -> Option<Timestamp> {
    let time = name.strip_prefix(app)?.strip_prefix("-files-")?;
    let due = civil::DateTime::strptime(TIME, time).ok()?;
    due.to_zoned(TimeZone::UTC).ok().map(|due| due.timestamp())
}

/// Returns when something changes with time alone.
pub(crate) fn times(observed: &Observed, summary: Option<&FilesSummary>) -> impl Iterator<Item = Timestamp> {
    let refused = observed.files.refused.as_ref().map(|refused| refused.until);
    let next = summary.and_then(|summary| summary.scheduled.as_ref()).map(|scheduled| scheduled.next.0);
    [refused, next, summary.and_then(late_at)].into_iter().flatten()
}

/// Returns when archives are overdue.
pub(crate) fn late_at(summary: &FilesSummary) -> Option<Timestamp> {
    overdue_at(summary.scheduled.as_ref()?, summary.last_success.as_ref())
}

/// Returns the record, updated from the ClientAppBackups.
pub(crate) fn summary(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<FilesSummary> {
    let files = desired.data.files.as_ref()?;
    let mut summary = observed.recorded.files.clone();
    let FilesView { app_uid, backups, .. } = &observed.files;
    for backup in backups.iter().filter(|backup| backup.subject_uid.as_ref() == Some(app_uid)) {
        let made = backup.files.as_ref().and_then(|files| Some((files, files.completed_at.as_ref()?)));
        if let Some((files, at)) = made
            && summary.as_ref().and_then(|summary| summary.last_success.as_ref()).is_none_or(|last| last.0 < at.0)
        {
            let since = backup.started_at.as_ref();
            summary = Some(FilesSummary {
                last_success: Some(at.clone()),
                last_duration: since.map(|since| at.0.duration_since(since.0).as_secs()),
                archive: files.archive.clone(),
                bytes: files.bytes,
                files: files.files,
                ..summary.unwrap_or_default()
            });
        }
        if let (None, Some((at, message))) = (made, backup.failure_of_files())
            && summary.as_ref().and_then(|summary| summary.last_failure.as_ref()).is_none_or(|last| last.0 < at.0)
        {
            summary = Some(FilesSummary {
                last_failure: Some(at.clone()),
                failed_backup: Some(backup.name.clone()),
                failure: Some(message.clone()),
                ..summary.unwrap_or_default()
            });
        }
    }
    let recorded = summary.as_ref().and_then(|summary| summary.scheduled.as_ref());
    // What is due while another is made is not made up for: a restore has to get its turn.
    let is_made =
        |due| ours(observed).any(|backup| backup.name == name(&desired.key.name, due)) || due <= now && runs(observed);
    let next = files.schedule.as_ref().and_then(|schedule| scheduled(schedule, recorded, is_made, now));
    match (summary, next) {
        (None, None) => None,
        (summary, scheduled) => Some(FilesSummary { scheduled, ..summary.unwrap_or_default() }),
    }
}

/// Returns the condition about the archives; `None`: none are asked for.
pub(crate) fn verdict(
    desired: &Desired,
    observed: &Observed,
    summary: Option<&FilesSummary>,
    now: Timestamp,
) -> Option<Verdict> {
    if let PasswordState::Lost(secret) = password_state(desired, observed)? {
        return Some(lost(&desired.key.namespace, &secret));
    }
    let FilesView { has_image, has_volumes, refused, stopped_for: _, app_uid: _, password: _, backups: _ } =
        &observed.files;
    if !has_image {
        return Some(Verdict::no(Reason::OperatorImageUnknown, format!("no archives are made: {NO_IMAGE}")));
    }
    if *has_volumes == Some(false) {
        let message = "no archives are made: the release has no volume with files of the app; enable spec.persistence, or remove spec.persistence.backup";
        return Some(Verdict::no(Reason::NoVolume, message));
    }
    let is_due = |refused: &&RefusedBackup| {
        let next = summary.and_then(|summary| summary.scheduled.as_ref()).map(|scheduled| scheduled.next.0);
        next.is_some_and(|next| name(&desired.key.name, next) == refused.name)
    };
    if let Some(RefusedBackup { message, .. }) = refused.as_ref().filter(is_due) {
        return Some(Verdict::no(Reason::Refused, format!("no archives are made: {message}")));
    }
    let FilesSummary { last_success, archive, last_failure, failed_backup, failure, scheduled, .. } =
        summary.cloned().unwrap_or_default();
    Some(match (last_success, last_failure) {
        (success, Some(at)) if success.as_ref().is_none_or(|success| success.0 < at.0) => {
            let before = success.map_or("there is no earlier archive".to_owned(), |success| {
                format!("the last complete archive is of {}", success.0)
            });
            let (backup, why) = (failed_backup.unwrap_or_default(), failure.unwrap_or_default());
            let message = format!("ClientAppBackup {backup} has failed at {}: {why}; {before}", at.0);
            Verdict::no(Reason::ArchiveFailed, message)
        }
        (success, _) => late(scheduled.as_ref(), success.as_ref(), &observed.files, now).unwrap_or_else(|| {
            let Some(success) = success else {
                return Verdict::unknown(Reason::NoArchive, "there is no archive of the app's files yet");
            };
            let archive = archive.map(|archive| format!(", {archive},")).unwrap_or_default();
            let message = format!("the last archive of the app's files{archive} was complete at {}", success.0);
            Verdict::yes(Reason::Archived, message)
        }),
    })
}

/// Returns the condition while the spec is not valid, and nothing is archived: as it was, or overdue.
pub(crate) fn kept(observed: &Observed, now: Timestamp) -> Option<Verdict> {
    let before = find(&observed.recorded.conditions, FILES_BACKED_UP)?;
    let recorded = observed.recorded.files.as_ref();
    let (scheduled, success) =
        (recorded.and_then(|it| it.scheduled.as_ref()), recorded.and_then(|it| it.last_success.as_ref()));
    Some(late(scheduled, success, &observed.files, now).unwrap_or_else(|| Verdict::of(before)))
}

/// Judges archives that are overdue.
fn late(
    scheduled: Option<&Scheduled>,
    success: Option<&Time>,
    FilesView { has_volumes, stopped_for, .. }: &FilesView,
    now: Timestamp,
) -> Option<Verdict> {
    let why = match stopped_for {
        _ if *has_volumes != Some(true) => "the spec is not valid, or a volume of the release is missing".to_owned(),
        Some(run) => format!("the app is stopped for {run}"),
        None => "the ClientAppBackup that is due says what it waits for".to_owned(),
    };
    overdue("archive", scheduled, success, &why, now)
}

#[cfg(test)]
mod tests;
