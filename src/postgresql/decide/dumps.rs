//! Dumps that are requested or due, and drills, **pure**: the Jobs to create and to delete, and what is recorded about them.
//!
//! A request is one word and gets one dump. The record of a successful dump stays in the status even after its Job is gone, so the
//! same request is not carried out again. A failed dump is tried again once its Job is deleted.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::plan::{PostgresqlPlan, PostgresqlStep};
use crate::{
    crd::{
        BackupSummary, Drill, Dump, DumpRecord, DumpState, PasswordState, PostgresqlStatus, Reason, Restore, Scheduled,
        label,
    },
    platform::{
        job::starts_until,
        schedule::{due, overdue_at, scheduled},
    },
    postgresql::{
        desired::{Desired, DesiredBackup},
        names,
        objects::{backup, drill},
        observed::{
            Detail, DumpSource, JobView, Kind, NOT_READY_YET, ObjectView, ObservedPostgresql, Ownership, PodView,
            SecretState, pods_of,
        },
    },
};

/// Returns the record of the newest requested dump.
pub(crate) fn record(desired: &Desired, observed: &ObservedPostgresql) -> Option<DumpRecord> {
    let recorded = observed.recorded.dump.as_ref();
    if let Some((_, request)) = wanted(desired)
        && !is_over(desired, observed, request)
    {
        let job = names::dump(&desired.key.name, request);
        if let Some(view) = own_job(observed, &job) {
            return Some(record_from_job(desired, observed, request, job, view));
        }
        // Its Job was deleted before it ended, and is recreated.
        if recorded.is_some_and(|recorded| recorded.request == *request) {
            return recorded.cloned();
        }
    }
    // There is no new request, or its dump has not begun: the record of the previous dump stays.
    let recorded = recorded?;
    let refreshed = |view| record_from_job(desired, observed, &recorded.request, recorded.job.clone(), view);
    let has_reason = || job_message(&observed.pods, &recorded.job, false).is_some();
    Some(match (recorded.state, own_job(observed, &recorded.job)) {
        (DumpState::Running, Some(view)) => refreshed(view),
        (DumpState::Running, None) => DumpRecord {
            state: DumpState::Failed,
            message: Some(format!(
                "Job {} was deleted before it ended: another word in spec.backup.request asks for another dump",
                recorded.job
            )),
            ..recorded.clone()
        },
        // Its pod may show later than the Job.
        (DumpState::Failed, Some(view)) if view.succeeded == Some(false) && has_reason() => refreshed(view),
        (DumpState::Succeeded, Some(view)) if recorded.dump.is_none() && view.succeeded == Some(true) => {
            refreshed(view)
        }
        (DumpState::Failed | DumpState::Succeeded, _) => recorded.clone(),
    })
}

const AGAIN: &str = "delete the Job for another try, or put another word into spec.backup.request";

fn record_from_job(
    desired: &Desired,
    observed: &ObservedPostgresql,
    request: &str,
    job: String,
    view: &JobView,
) -> DumpRecord {
    let refusal = view.not_started.as_deref().or_else(|| observed.refused_job(&job));
    let (state, message) = match view.succeeded {
        None => (DumpState::Running, refusal.map(|refusal| format!("Job {job} has no pod: {refusal}"))),
        Some(true) => (DumpState::Succeeded, None),
        Some(false) => {
            let namespace = &desired.key.namespace;
            let why = view.not_started.as_deref().or_else(|| job_message(&observed.pods, &job, false)).or(refusal);
            let why = why.map(|why| format!(": {why}")).unwrap_or_default();
            let message = format!("Job {job} has failed{why}: see `kubectl logs -n {namespace} job/{job}`; {AGAIN}");
            (DumpState::Failed, Some(message))
        }
    };
    let dump = own_dump(&observed.pods, &job).filter(|_| state == DumpState::Succeeded);
    let (started_at, completed_at) = (view.started.clone(), view.ended.clone());
    DumpRecord { request: request.to_owned(), job, state, dump, started_at, completed_at, message }
}

/// Returns the dump that the pod of this Job has made, of those that it reports: the one that ends like the pod's name.
fn own_dump(pods: &[PodView], job: &str) -> Option<String> {
    pods_of(pods, job).find_map(|pod| {
        let (_, end) = pod.name.rsplit_once('-')?;
        let reported = pod.termination_message.as_deref()?.lines().filter_map(parse_dump);
        reported.map(|dump| dump.name).find(|name| name.rsplit_once('-').is_some_and(|(_, of)| of == end))
    })
}

/// Returns the message of a Job's pods, as long as they exist: the result of a success, or why the Job failed.
pub(crate) fn job_message<'a>(pods: &'a [PodView], job: &str, succeeded: bool) -> Option<&'a str> {
    pods_of(pods, job)
        .find_map(|pod| if succeeded { pod.termination_message.as_deref() } else { pod.failure_line.as_deref() })
}

/// Returns the results of all dumps, scheduled or requested: the record, updated from their Jobs, and when the next are due.
pub(crate) fn summary(desired: &Desired, observed: &ObservedPostgresql) -> Option<BackupSummary> {
    let summary = results(desired, observed);
    let name = &desired.key.name;
    let backup = desired.backup.as_ref();
    let (schedule, drill) = (backup.and_then(|it| it.schedule.as_ref()), backup.and_then(|it| it.drill.as_ref()));
    let recorded = summary.as_ref().and_then(|summary| summary.scheduled.as_ref());
    let is_made = |due| own_job(observed, &names::due_dump(name, due)).is_some();
    let dumps = schedule.and_then(|schedule| scheduled(schedule, recorded, is_made, observed.now));
    let recorded = summary.as_ref().and_then(|summary| summary.drill.as_ref()?.scheduled.as_ref());
    let is_made = |due| own_job(observed, &names::due_drill(name, due)).is_some();
    let drills = drill.and_then(|drill| scheduled(drill, recorded, is_made, observed.now));
    if summary.is_none() && dumps.is_none() && drills.is_none() {
        return None;
    }
    let mut summary = BackupSummary { scheduled: dumps, ..summary.unwrap_or_default() };
    if drills.is_some() || summary.drill.is_some() {
        summary.drill = Some(Drill { scheduled: drills, ..summary.drill.unwrap_or_default() });
    }
    Some(summary)
}

fn results(desired: &Desired, observed: &ObservedPostgresql) -> Option<BackupSummary> {
    let mut summary = observed.recorded.backup.clone();
    for (name, job) in jobs(desired, observed) {
        let JobView { succeeded: Some(succeeded), started, ended: Some(ended), is_drill, not_started, .. } = job else {
            continue;
        };
        let summary = summary.get_or_insert_default();
        let idle = not_started.as_deref().filter(|_| !succeeded);
        let message = idle.or_else(|| job_message(&observed.pods, name, *succeeded));
        if *is_drill {
            let job = (desired.key.namespace.as_str(), name.as_str());
            add_drill(summary.drill.get_or_insert_default(), job, *succeeded, ended, message);
            continue;
        }
        let last = if *succeeded { &mut summary.last_success } else { &mut summary.last_failure };
        if last.as_ref().is_none_or(|last| last.0 < ended.0) {
            *last = Some(ended.clone());
            if *succeeded {
                summary.last_duration = started.as_ref().map(|started| ended.0.duration_since(started.0).as_secs());
            } else {
                summary.failed_job = Some(name.clone());
                summary.failure = None;
            }
        }
        // Its pod may show later than the Job.
        if let Some(message) = message.filter(|_| *succeeded && summary.last_success.as_ref() == Some(ended)) {
            summary.dumps = message.lines().filter_map(parse_dump).collect();
            let volume = observed.objects.get(&(Kind::PersistentVolumeClaim, names::backup(&desired.key.name)));
            summary.volume = volume.map(|volume| volume.uid.clone());
        }
        if !succeeded && summary.failure.is_none() && summary.failed_job.as_ref() == Some(name) {
            summary.failure = message.or_else(|| observed.refused_job(name)).map(str::to_owned);
        }
    }
    summary
}

/// Returns the Jobs that dump, and those of drills.
fn jobs<'a>(desired: &Desired, observed: &'a ObservedPostgresql) -> impl Iterator<Item = (&'a String, &'a JobView)> {
    let name = &desired.key.name;
    let others = [names::initialize_prefix(name), names::restore_prefix(name)];
    let ours = observed.objects.iter().filter(|(_, view)| view.owner == Ownership::Ours);
    ours.filter_map(move |((_, name), view)| match &view.detail {
        Detail::Job(job) if others.iter().all(|prefix| !name.starts_with(prefix)) => Some((name, job)),
        _ => None,
    })
}

/// Returns the schedules of dumps and drills, with the last success of each.
fn schedules(recorded: &PostgresqlStatus) -> impl Iterator<Item = (&Scheduled, Option<&Time>)> {
    let summary = recorded.backup.as_ref();
    let dumps = summary.and_then(|it| Some((it.scheduled.as_ref()?, it.last_success.as_ref())));
    let drill = summary.and_then(|it| it.drill.as_ref());
    let drills = drill.and_then(|it| Some((it.scheduled.as_ref()?, it.last_success.as_ref())));
    dumps.into_iter().chain(drills)
}

/// Returns when dumps and drills are overdue.
pub(crate) fn overdue_times(recorded: &PostgresqlStatus) -> impl Iterator<Item = Timestamp> {
    schedules(recorded).filter_map(|(scheduled, success)| overdue_at(scheduled, success))
}

/// Returns true while a dump or a drill that is due has not begun.
pub(crate) fn is_due(recorded: &PostgresqlStatus, now: Timestamp) -> bool {
    schedules(recorded).any(|(scheduled, _)| due(Some(scheduled), now).is_some())
}

/// Returns when something about dumps and drills changes with time alone.
pub(crate) fn times(recorded: &PostgresqlStatus) -> impl Iterator<Item = Timestamp> {
    schedules(recorded).map(|(scheduled, _)| scheduled.next.0).chain(overdue_times(recorded))
}

/// Returns when a dump or a drill in which nothing runs is to end. That changes neither the database nor a dump that is complete.
pub(crate) fn start_deadlines(desired: &Desired, observed: &ObservedPostgresql) -> impl Iterator<Item = Timestamp> {
    idle(desired, observed).map(|(_, since)| starts_until(since))
}

/// Returns the Jobs in which nothing runs, and since when.
fn idle<'a>(desired: &Desired, observed: &'a ObservedPostgresql) -> impl Iterator<Item = (&'a String, Timestamp)> {
    let unfinished = |job: &JobView| job.succeeded.is_none() && job.not_started.is_none();
    let unfinished = jobs(desired, observed).filter(move |(_, job)| unfinished(job));
    unfinished.filter_map(|(name, job)| Some((name, observed.idle_since(name, job.waits_since)?)))
}

/// Ends the Jobs in which nothing has run for long: they would keep the volume with the dumps, and the next ones waiting.
fn end_idle(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    for (name, _) in idle(desired, observed).filter(|(_, since)| starts_until(*since) <= observed.now) {
        let Some(view) = observed.objects.get(&(Kind::Job, name.clone())).filter(|view| !view.deleting) else {
            continue;
        };
        let why = observed.job_waits_for(name).unwrap_or_else(|| "it has no pod".to_owned());
        let mut silent = pods_of(&observed.pods, name).filter(|pod| pod.waiting.as_deref() == Some(NOT_READY_YET));
        let pod = silent.next().map(|pod| pod.name.clone());
        plan.steps.push(PostgresqlStep::EndJob { job: name.clone(), uid: view.uid.clone(), why, pod });
    }
}

/// Reads a line of the message of a pod that has dumped: name, bytes and tables.
fn parse_dump(line: &str) -> Option<Dump> {
    let mut words = line.split_whitespace();
    let (name, bytes, tables) = (words.next()?.to_owned(), words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    Some(Dump { name, bytes, tables })
}

/// Adds the result of a drill to the record. Its pod may show later than the Job.
fn add_drill(drill: &mut Drill, (namespace, job): (&str, &str), succeeded: bool, ended: &Time, message: Option<&str>) {
    let last = if succeeded { &mut drill.last_success } else { &mut drill.last_failure };
    if last.as_ref().is_some_and(|last| last.0 > ended.0) {
        return;
    }
    let is_new = last.replace(ended.clone()).is_none_or(|last| last.0 < ended.0);
    if succeeded && is_new {
        // Those of the drill before are not what this one has restored.
        (drill.dump, drill.tables) = (None, None);
    }
    if succeeded && let Some(message) = message {
        let mut words = message.split_whitespace();
        drill.dump = words.next().map(str::to_owned);
        drill.tables = words.next().and_then(|tables| tables.parse().ok());
    } else if !succeeded && (is_new || message.is_some()) {
        let why = message.unwrap_or("the latest dump cannot be restored");
        drill.message = Some(format!("{why}; see `kubectl logs job/{job} -n {namespace}`"));
    }
}

/// Creates the requested Job as soon as it can dump, and deletes finished Jobs of earlier requests.
pub(super) fn steps(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    let Some((backup, request)) = wanted(desired) else { return };
    let job = backup::dump(desired, backup, request);
    match observed.objects.get(&job.id).map(|found| &found.owner) {
        Some(Ownership::Ours) => {}
        _ if is_over(desired, observed, request) || !can_dump(desired, observed) => return,
        Some(Ownership::Other(owner)) => return plan.not_ours(&format!("Job {}", job.id.1), owner),
        None => plan.steps.push(PostgresqlStep::Apply(job.clone())),
    }
    for (id, view) in observed.objects.iter().filter(|(id, view)| **id != job.id && !view.deleting) {
        if let ObjectView { owner: Ownership::Ours, uid, detail: Detail::Job(earlier), .. } = view
            && earlier.request.is_some()
            && earlier.succeeded.is_some()
        {
            plan.steps.push(PostgresqlStep::Delete { id: id.clone(), uid: uid.clone() });
        }
    }
}

/// Creates the Jobs that are due, as soon as they can do their work. A slow one is not joined by the next.
pub(super) fn due_steps(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    end_idle(plan, desired, observed);
    let Some((backup, recorded)) = desired.backup.as_ref().zip(observed.recorded.backup.as_ref()) else { return };
    let runs = |is_drill| jobs(desired, observed).any(|(_, job)| job.is_drill == is_drill && job.succeeded.is_none());
    let dump = due(recorded.scheduled.as_ref(), observed.now).filter(|_| can_dump(desired, observed) && !runs(false));
    let drill = due(recorded.drill.as_ref().and_then(|drill| drill.scheduled.as_ref()), observed.now);
    let drill = drill.filter(|_| dumps_are_ours(desired, observed) && !runs(true));
    let dump = dump.map(|at| backup::due(desired, backup, at));
    for job in dump.into_iter().chain(drill.and_then(|at| drill::due(desired, backup, at))) {
        if own_job(observed, &job.id.1).is_none() {
            plan.steps.push(PostgresqlStep::CreateDue(job));
        }
    }
}

/// Says why no bucket can be used, and what a cluster admin has to do.
pub(crate) const NO_IMAGE: &str = "the operator does not know its own image, which it needs to reach the bucket: a cluster admin has to set CLIENTAPP_POD_NAME, as in manifests/deployment.yaml, or CLIENTAPP_IMAGE";

/// Returns why no database can be created from these dumps, which a field of the spec names, and what to do.
pub(super) fn unusable(
    desired: &Desired,
    field: &str,
    restore: &Restore,
    source: DumpSource,
) -> Option<(Reason, String)> {
    let key = &desired.key;
    let (kind, resource, source_name) = match (&restore.claim, &restore.store) {
        (None, Some(store)) => ("Secret", "secret", &store.bucket.credentials_secret.name),
        (claim, _) => ("PersistentVolumeClaim", "pvc", claim.as_ref()?),
    };
    let what = format!("{kind} {source_name}, which {field} names,");
    let why = match source {
        DumpSource::Usable if restore.store.is_some() && desired.operator_image.is_none() => {
            return Some((Reason::OperatorImageUnknown, format!("{field}.store: {NO_IMAGE}")));
        }
        DumpSource::Usable => return None,
        DumpSource::Missing => format!("{what} does not exist in namespace {}", key.namespace),
        DumpSource::Deleting => format!("{what} is being deleted"),
        DumpSource::NotAllowed => format!(
            "{what} has no label that lets {name} be made from the dumps there: `kubectl label {resource} {source_name} -n {} {}={name}`",
            key.namespace,
            label::RESTORE_TO,
            name = key.name,
        ),
    };
    Some((Reason::DumpsMissing, why))
}

/// Reports that uploads, and drills from the bucket, are not possible; dumps to the volume go on.
pub(super) fn uploads(plan: &mut PostgresqlPlan, desired: &Desired) {
    let Some(backup) = desired.backup.as_ref().filter(|backup| backup.store.is_some()) else { return };
    if desired.operator_image.is_none() {
        let drills = if backup.drill_store.is_some() { ", and there are no drills" } else { "" };
        plan.hold(
            Reason::OperatorImageUnknown,
            format!("spec.backup.store: dumps go to their volume only{drills}, since {NO_IMAGE}"),
        );
    }
}

/// Generates the password of the repository, before the first dump.
pub(super) fn password(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    if let PasswordState::Missing(secret) = password_state(desired, observed) {
        plan.steps.push(PostgresqlStep::CreateRepositoryPassword(secret));
    }
}

/// Returns how the repository stands with its password.
pub(crate) fn password_state(desired: &Desired, observed: &ObservedPostgresql) -> PasswordState {
    let recorded = observed.recorded.repository_password.as_ref();
    desired.password_state(recorded, observed.repository_password.is_some())
}

/// Returns true if a Job could dump now. Otherwise it would fail, or wait without a message.
fn can_dump(desired: &Desired, observed: &ObservedPostgresql) -> bool {
    observed.primary_serves(desired)
        // Its Job would fail for want of it.
        && !matches!(password_state(desired, observed), PasswordState::Missing(_))
        && dumps_are_ours(desired, observed)
        && matches!(observed.replication, SecretState::Ours { .. })
}

/// Returns true unless the volume with the dumps is another's, or goes: a volume never holds dumps of two Postgresqls.
fn dumps_are_ours(desired: &Desired, observed: &ObservedPostgresql) -> bool {
    let volume = observed.objects.get(&(Kind::PersistentVolumeClaim, names::backup(&desired.key.name)));
    volume.is_none_or(|volume| volume.owner == Ownership::Ours && !volume.deleting)
}

fn wanted(desired: &Desired) -> Option<(&DesiredBackup, &String)> {
    let backup = desired.backup.as_ref()?;
    Some((backup, backup.request.as_ref()?))
}

fn is_over(desired: &Desired, observed: &ObservedPostgresql, request: &str) -> bool {
    let recorded = observed.recorded.dump.as_ref().filter(|recorded| recorded.request == request);
    match recorded.map(|recorded| recorded.state) {
        Some(DumpState::Succeeded) => true,
        Some(DumpState::Failed) => {
            let job = names::dump(&desired.key.name, request);
            own_job(observed, &job).is_some_and(|job| job.succeeded == Some(false))
        }
        Some(DumpState::Running) | None => false,
    }
}

pub(super) fn own_job<'a>(observed: &'a ObservedPostgresql, name: &str) -> Option<&'a JobView> {
    match observed.objects.get(&(Kind::Job, name.to_owned()))? {
        ObjectView { owner: Ownership::Ours, detail: Detail::Job(view), .. } => Some(view),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
