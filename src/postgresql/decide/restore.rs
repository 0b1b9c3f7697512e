//! Replaces the database by a dump on request, **pure**.
//!
//! A Job restores the dump into a directory beside the database, which serves meanwhile. Then the primary restarts, sets the directory
//! of the database aside, and serves the other one. Nothing is deleted, and whatever fails before leaves the database as it was.
//!
//! A request is one word and is carried out once. It also is the permission to begin anew on another volume, if that with the database
//! is lost.

use super::{
    dumps::{job_message, own_job, unusable},
    plan::{PostgresqlPlan, PostgresqlStep},
};
use crate::{
    crd::{PostgresqlStatus, Reason, RestoreProgress, RestoreRecord, RestoreRequest, RestoreState},
    postgresql::{
        desired::Desired,
        names,
        objects::initialize,
        observed::{Detail, JobView, Kind, ObjectView, ObservedPostgresql, Ownership},
    },
};

/// Returns the request that is not carried out yet.
pub(crate) fn pending<'a>(desired: &'a Desired, recorded: &PostgresqlStatus) -> Option<&'a RestoreRequest> {
    let requested = desired.restore_request.as_ref()?;
    let is_it = |restore: &RestoreProgress| restore.request == requested.request;
    let has_ended = |restore: &RestoreProgress| restore.state != RestoreState::Running;
    recorded.restore.as_ref().is_none_or(|restore| !is_it(restore) || !has_ended(restore)).then_some(requested)
}

/// Returns the progress of the newest request, and the dump that the database is from.
pub(crate) fn record(
    desired: &Desired,
    observed: &ObservedPostgresql,
    restored: Option<RestoreRecord>,
) -> (Option<RestoreProgress>, Option<RestoreRecord>) {
    let recorded = observed.recorded.restore.clone();
    let Some(RestoreRequest { request, dump }) = pending(desired, &observed.recorded) else {
        return (recorded.map(|recorded| followed(recorded, desired, observed)), told(restored, desired, observed));
    };
    let job = names::restore(&desired.key.name, request);
    let running = RestoreProgress {
        request: request.clone(),
        job: job.clone(),
        state: RestoreState::Running,
        completed_at: None,
        message: None,
    };
    let Some(JobView { succeeded: Some(succeeded), ended, .. }) = own_job(observed, &job) else {
        return (Some(running), restored);
    };
    let ended = RestoreProgress { completed_at: ended.clone(), ..running };
    if !succeeded {
        let why = job_message(&observed.pods, &job, false).or_else(|| observed.refused_job(&job));
        let why = why.map(|why| format!(": {why}")).unwrap_or_default();
        let namespace = &desired.key.namespace;
        let message = format!(
            "Job {job} has failed{why}; the database is as it was: see `kubectl logs -n {namespace} job/{job}`, then request the restore again"
        );
        return (Some(RestoreProgress { state: RestoreState::Failed, message: Some(message), ..ended }), restored);
    }
    let restored = RestoreRecord {
        dump: dump.from.clone(),
        claim: dump.claim.clone(),
        store: dump.store.is_some().then(|| dump.place()),
        tables: None,
        completed_at: ended.completed_at.clone(),
        request: Some(request.clone()),
    };
    (Some(RestoreProgress { state: RestoreState::Replacing, ..ended }), told(Some(restored), desired, observed))
}

/// Follows a request whose Job is of no more interest.
fn followed(recorded: RestoreProgress, desired: &Desired, observed: &ObservedPostgresql) -> RestoreProgress {
    let serves = observed
        .primary(desired)
        .is_some_and(|pod| pod.waiting.is_none() && pod.replaced.as_deref() == Some(recorded.request.as_str()));
    match recorded.state {
        RestoreState::Replacing if serves => RestoreProgress { state: RestoreState::Succeeded, ..recorded },
        RestoreState::Running => RestoreProgress {
            state: RestoreState::Failed,
            message: Some("spec.restoreRequest was removed; the database is as it was".to_owned()),
            ..recorded
        },
        _ => recorded,
    }
}

/// Completes a record by the report of the Job's pod: it may show later than the Job, and is lost once the pod is gone.
fn told(restored: Option<RestoreRecord>, desired: &Desired, observed: &ObservedPostgresql) -> Option<RestoreRecord> {
    let restored = restored?;
    let Some(request) = restored.request.as_ref().filter(|_| restored.tables.is_none()) else { return Some(restored) };
    let job = names::restore(&desired.key.name, request);
    let mut words = job_message(&observed.pods, &job, true).unwrap_or_default().split_whitespace();
    let dump = words.next().map_or_else(|| restored.dump.clone(), str::to_owned);
    Some(RestoreRecord { dump, tables: words.next().and_then(|tables| tables.parse().ok()), ..restored })
}

/// Creates the Job that restores, and deletes those of other requests.
pub(super) fn steps(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    let requested = pending(desired, &observed.recorded);
    let wanted = requested.map(|requested| initialize::restore(desired, requested));
    let prefix = names::restore_prefix(&desired.key.name);
    let is_needed = |job: &str, view: &JobView| {
        let newest = observed.recorded.restore.as_ref().filter(|restore| restore.job == job);
        // One that has ended has a log.
        newest.is_some_and(|newest| !newest.state.is_final() || view.succeeded.is_some())
    };
    for (id, view) in
        observed.objects.iter().filter(|((kind, name), _)| *kind == Kind::Job && name.starts_with(&prefix))
    {
        if let ObjectView { owner: Ownership::Ours, deleting: false, uid, detail: Detail::Job(job), .. } = view
            && !is_needed(&id.1, job)
        {
            plan.steps.push(PostgresqlStep::Delete { id: id.clone(), uid: uid.clone() });
        }
    }
    let Some((RestoreRequest { dump, .. }, job)) = requested.zip(wanted) else { return };
    let name = &job.id.1;
    match observed.objects.get(&job.id) {
        Some(ObjectView { owner: Ownership::Other(owner), .. }) => return plan.not_ours(&format!("Job {name}"), owner),
        Some(_) => {}
        None => {
            if let Some((reason, hold)) = unusable(desired, "spec.restoreRequest.dump", dump, observed.dump_source) {
                return plan.hold(reason, hold);
            }
            plan.steps.push(PostgresqlStep::Apply(job.clone()));
        }
    }
    let waiting = observed.job_waits(name);
    let (from, place) = (&dump.from, dump.place());
    let message = format!("Job {name} restores dump {from} of {place} beside the database{waiting}");
    plan.hold(Reason::Restoring, message);
}

#[cfg(test)]
mod tests;
