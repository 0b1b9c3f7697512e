//! Decides what follows from the state of an app's archives. **Pure.**

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::Step;
use crate::{
    clientapp::{
        observed::{
            file_backup::{FilesBackupView, FilesView, RefusedBackup},
            types::Observed,
        },
        spec::desired::Desired,
    },
    crd::{BackupPhase, FilesSummary, Reason, Scheduled, conditions::Verdict},
    platform::schedule::{due, overdue_at, scheduled},
    postgresql::decide::dumps::NO_IMAGE,
};

/// How many ClientAppBackups by schedule are kept: of those that are complete, and of those that have failed.
const KEPT: usize = 7;

/// Creates the ClientAppBackup that is due, and deletes old ones. Whatever the app waits for does not hold up its archives, except helm,
/// which may be changing the volumes; nor does `spec.suspend`: users go on changing files. The ClientAppBackup itself waits for a
/// restore to end.
pub(crate) fn steps(desired: &Desired, observed: &Observed, now: Timestamp) -> Vec<Step> {
    let FilesView { has_image, app_uid, has_volumes, stopped_for: _, refused, backups } = &observed.files;
    let ours = |backup: &&FilesBackupView| backup.scheduled_by.as_ref() == Some(app_uid);
    let ended = |phase| {
        let mut ended: Vec<_> = backups.iter().filter(ours).filter(|backup| backup.phase == Some(phase)).collect();
        // Their names end with the time.
        ended.sort_by(|a, b| b.name.cmp(&a.name));
        ended.into_iter().skip(KEPT).filter(|backup| !backup.deleting)
    };
    let old = [BackupPhase::Completed, BackupPhase::Failed].into_iter().flat_map(ended);
    let old = old.map(|backup| Step::DeleteBackup { name: backup.name.clone(), uid: backup.uid.clone() });
    let next = summary(desired, observed, now).and_then(|summary| summary.scheduled);
    let runs = backups.iter().filter(ours).any(|backup| !backup.phase.is_some_and(BackupPhase::is_final));
    let can = *has_image && *has_volumes == Some(true) && !runs && observed.run.busy.is_none();
    let is_refused = refused.as_ref().is_some_and(|refused| now < refused.until);
    let due = due(next.as_ref(), now).filter(|_| can && !is_refused);
    due.map(|due| Step::CreateBackup { name: name(desired, due) }).into_iter().chain(old).collect()
}

/// Returns the name of the ClientAppBackup that is due then.
fn name(desired: &Desired, due: Timestamp) -> String {
    format!("{}-files-{}", desired.key.name, due.strftime("%Y%m%d%H%M"))
}

/// Returns when something changes with time alone.
pub(crate) fn times(desired: &Desired, observed: &Observed, now: Timestamp) -> Vec<Timestamp> {
    let refused = observed.files.refused.as_ref().map(|refused| refused.until);
    let summary = summary(desired, observed, now).unwrap_or_default();
    let scheduled = summary.scheduled.as_ref();
    let late = scheduled.and_then(|scheduled| overdue_at(scheduled, summary.last_success.as_ref()));
    [refused, scheduled.map(|scheduled| scheduled.next.0), late].into_iter().flatten().collect()
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
        if let (None, Some((at, message))) = (made, &backup.failure)
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
    let is_made = |due| backups.iter().any(|backup| backup.name == name(desired, due));
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
    desired.data.files.as_ref()?;
    let FilesView { has_image, has_volumes, refused, stopped_for: _, app_uid: _, backups: _ } = &observed.files;
    if !has_image {
        return Some(Verdict::no(Reason::OperatorImageUnknown, format!("no archives are made: {NO_IMAGE}")));
    }
    if *has_volumes == Some(false) {
        let message = "no archives are made: the release has no volume with files of the app; enable spec.persistence, or remove spec.persistence.backup";
        return Some(Verdict::no(Reason::NoVolume, message));
    }
    if let Some(RefusedBackup { message, .. }) = refused {
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
        (success, _) => overdue(scheduled.as_ref(), success.as_ref(), &observed.files, now).unwrap_or_else(|| {
            let Some(success) = success else {
                return Verdict::unknown(Reason::NoArchive, "there is no archive of the app's files yet");
            };
            let archive = archive.map(|archive| format!(", {archive},")).unwrap_or_default();
            let message = format!("the last archive of the app's files{archive} was complete at {}", success.0);
            Verdict::yes(Reason::Archived, message)
        }),
    })
}

/// Says that archives were due twice without a success.
fn overdue(
    scheduled: Option<&Scheduled>,
    success: Option<&Time>,
    FilesView { has_volumes, stopped_for, .. }: &FilesView,
    now: Timestamp,
) -> Option<Verdict> {
    let scheduled = scheduled?;
    overdue_at(scheduled, success).filter(|at| *at <= now)?;
    let last = success.map_or("none is complete yet".to_owned(), |success| format!("the last is of {}", success.0));
    let why = match stopped_for {
        _ if *has_volumes != Some(true) => "the release's volumes are not known, or one is missing".to_owned(),
        Some(run) => format!("the app is stopped for {run}"),
        None => "the ClientAppBackup that is due says what it waits for".to_owned(),
    };
    let message = format!("two archives that were due by `{}` are missing, {last}: {why}", scheduled.schedule);
    Some(Verdict::no(Reason::Overdue, message))
}

#[cfg(test)]
mod tests;
