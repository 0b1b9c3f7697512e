//! Decides what follows from the state of an app's archives. **Pure.**

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{LATEST_RETRY, Step};
use crate::{
    clientapp::{
        observed::{
            file_backup::{ArchiveView, CronJobView, FilesView, RefusedArchives},
            release::ReleasePhase,
            types::Observed,
        },
        spec::{
            desired::Desired,
            file_backup::{DesiredFiles, cron_job_spec},
        },
    },
    crd::{FilesSummary, Reason, conditions::Verdict},
    platform::{
        clock::is_awaited,
        job::{self, JobProgress},
    },
    postgresql::decide::dumps::NO_IMAGE,
    store::dump::Name,
};

/// Applies the CronJob, once the release has volumes, or deletes it if it is no longer asked for. Whatever else the app waits
/// for does not hold up its archives, except helm: it may be changing the volumes.
pub(crate) fn step(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<Step> {
    let FilesView { image, app_uid, volumes, cron_job, stopped_for, refused, archives: _ } = &observed.files;
    let is_foreign = cron_job.as_ref().is_some_and(|found| !found.is_of(app_uid));
    if observed.run.busy.is_some() || desired.suspend || is_foreign {
        return None;
    }
    let Some(files) = &desired.data.files else {
        // The Job that restores would go with it.
        let goes = cron_job.as_ref().filter(|_| stopped_for.is_none());
        return goes.map(|found| Step::DeleteArchives { uid: found.uid.clone() });
    };
    // Its volumes may still be created, or go with it.
    observed.release.as_ref().filter(|release| release.ever_managed && release.phase == ReleasePhase::Deployed)?;
    let volumes = volumes.as_ref().filter(|volumes| !volumes.is_empty())?;
    let chart = observed.recorded.installed.as_ref().map(|chart| chart.name.as_str()).unwrap_or_default();
    let files = &DesiredFiles { schedule: files.schedule.clone().filter(|_| stopped_for.is_none()), ..files.clone() };
    let document = cron_job_spec::cron_job(&desired.key, chart, files, volumes, image.as_ref()?);
    let digest = cron_job_spec::digest(&document);
    if refused.as_ref().is_some_and(|refused| refused.digest == digest && is_awaited(refused.until, now, LATEST_RETRY))
    {
        return None;
    }
    let is_applied = cron_job.as_ref().is_some_and(|found| {
        let is_edited = found.schedule.as_ref().is_some_and(|schedule| *schedule != cron_job_spec::schedule(files));
        found.digest.as_ref() == Some(&digest) && !is_edited
    });
    (!is_applied).then(|| Step::ApplyArchives { document, uid: cron_job.as_ref().map(|found| found.uid.clone()) })
}

/// Returns the record, updated from the Jobs.
pub(crate) fn summary(desired: &Desired, observed: &Observed) -> Option<FilesSummary> {
    desired.data.files.as_ref()?;
    let mut summary = observed.recorded.files.clone();
    let FilesView { app_uid, cron_job, archives, .. } = &observed.files;
    let ours = cron_job.as_ref().filter(|found| found.is_of(app_uid)).map(|found| &found.uid);
    // Any user can give a Job our labels.
    let archives = archives.iter().filter(|archive| ours.is_some() && archive.cron_job.as_ref() == ours);
    for ArchiveView { job, cron_job: _, progress: JobProgress { succeeded, started, ended }, report, failed } in
        archives
    {
        let (Some(succeeded), Some(ended)) = (succeeded, ended) else { continue };
        let summary = summary.get_or_insert_default();
        if *succeeded {
            succeeded_at(summary, started.as_ref(), ended, report.as_deref());
        } else {
            failed_at(summary, job, ended, failed.as_ref());
        }
    }
    summary
}

fn succeeded_at(summary: &mut FilesSummary, started: Option<&Time>, ended: &Time, report: Option<&str>) {
    if summary.last_success.as_ref().is_none_or(|last| last.0 < ended.0) {
        *summary = FilesSummary {
            last_success: Some(ended.clone()),
            last_duration: started.map(|started| ended.0.duration_since(started.0).as_secs()),
            archive: None,
            bytes: None,
            files: None,
            ..summary.clone()
        };
    }
    // Its pod may show later than the Job.
    if let Some(report) = report.filter(|_| summary.last_success.as_ref() == Some(ended)) {
        let mut words = report.split_whitespace();
        summary.archive = words.next().and_then(Name::parse).map(|name| name.as_str().to_owned());
        let mut number = || words.next().and_then(|number| number.parse().ok());
        (summary.bytes, summary.files) = (number(), number());
    }
}

fn failed_at(summary: &mut FilesSummary, job: &str, ended: &Time, why: Option<&String>) {
    if summary.last_failure.as_ref().is_none_or(|last| last.0 < ended.0) {
        *summary = FilesSummary {
            last_failure: Some(ended.clone()),
            failed_job: Some(job.to_owned()),
            failure: None,
            ..summary.clone()
        };
    }
    // Its pod may show later than the Job.
    if summary.failed_job.as_deref() == Some(job) && why.is_some() {
        summary.failure = why.cloned();
    }
}

/// Returns the condition about the archives; `None`: none are asked for.
pub(crate) fn verdict(desired: &Desired, observed: &Observed, summary: Option<&FilesSummary>) -> Option<Verdict> {
    desired.data.files.as_ref()?;
    let FilesView { image, app_uid, volumes, cron_job, stopped_for, refused, archives: _ } = &observed.files;
    if let Some(CronJobView { owner, .. }) = cron_job.as_ref().filter(|found| !found.is_of(app_uid)) {
        let owner =
            owner.as_ref().map_or("no ClientApp".to_owned(), |(kind, name, _)| format!("another {kind} {name}"));
        let message = format!(
            "no archives are made: CronJob {} belongs to {owner} and is not taken over; delete or rename it, and the operator creates its own",
            desired.key.files()
        );
        return Some(Verdict::no(Reason::NotOurs, message));
    }
    if image.is_none() {
        return Some(Verdict::no(Reason::OperatorImageUnknown, format!("no archives are made: {NO_IMAGE}")));
    }
    if cron_job.is_none() && volumes.as_ref().is_some_and(Vec::is_empty) {
        let message = "no archives are made: the release has no volume with files of the app; enable spec.persistence, or remove spec.persistence.backup";
        return Some(Verdict::no(Reason::NoVolume, message));
    }
    if let Some(RefusedArchives { message, .. }) = refused {
        return Some(Verdict::no(Reason::Refused, format!("no archives are made: {message}")));
    }
    if let Some(run) = stopped_for {
        let message = format!("no archives are made on schedule while the app has no pods for {run}");
        return Some(Verdict::unknown(Reason::Restoring, message));
    }
    let FilesSummary { last_success, archive, last_failure, failed_job, failure, .. } =
        summary.cloned().unwrap_or_default();
    Some(match (last_success, last_failure) {
        (success, Some(at)) if success.as_ref().is_none_or(|success| success.0 < at.0) => {
            let before = success.map_or("there is no earlier archive".to_owned(), |success| {
                format!("the last complete archive is of {}", success.0)
            });
            let sentence = job::failure(&failed_job.unwrap_or_default(), &at, failure.as_deref());
            Verdict::no(Reason::ArchiveFailed, format!("{sentence}; {before}"))
        }
        (Some(success), _) => {
            let archive = archive.map(|archive| format!(", {archive},")).unwrap_or_default();
            Verdict::yes(
                Reason::Archived,
                format!("the last archive of the app's files{archive} was complete at {}", success.0),
            )
        }
        (None, _) => Verdict::unknown(Reason::NoArchive, "there is no archive of the app's files yet"),
    })
}

#[cfg(test)]
mod tests;
