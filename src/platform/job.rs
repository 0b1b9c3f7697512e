//! Reads what Jobs and their pods report. **Pure.**

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{ContainerStateTerminated, ContainerStatus, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::{Value, json};

/// Kubernetes' label of each pod of a Job: the Job's name.
pub(crate) const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The maximum length, in characters, of the message of a Job's pod.
pub(crate) const MAX_MESSAGE: usize = 600;

/// Annotation of a Job that was ended because nothing ran in it: why.
const NOT_STARTED: &str = "apps.bnerd-operator.local/not-started";
/// How long nothing may run in a Job.
const START_PATIENCE: SignedDuration = SignedDuration::from_mins(15);

/// Returns why nothing runs in a Job, as it was recorded when that ended it.
pub(crate) fn not_started(job: &Job) -> Option<String> {
    let why = job.metadata.annotations.as_ref()?.get(NOT_STARTED)?;
    Some(why.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect())
}

/// Returns when a Job was started, or started again, unless it is suspended, as by a queue that admits it later.
pub(crate) fn waits_for_pods_since(job: &Job) -> Option<Timestamp> {
    let is_suspended = job.spec.as_ref().and_then(|spec| spec.suspend).unwrap_or_default();
    job.status.as_ref()?.start_time.as_ref().filter(|_| !is_suspended).map(|time| time.0)
}

/// Returns when a Job in which nothing has run since then is to end.
pub(crate) fn starts_until(idle_since: Timestamp) -> Timestamp {
    idle_since + START_PATIENCE
}

/// Returns since when nothing has run in a Job: `pods` tells it of each of its pods, and `started` is when the Job was. `None`: something
/// runs, or it waits to be started.
pub(crate) fn idle_since(
    started: Option<Timestamp>,
    pods: impl Iterator<Item = Option<Timestamp>>,
) -> Option<Timestamp> {
    let each: Option<Vec<_>> = pods.chain([started]).collect();
    each?.into_iter().max()
}

/// Builds the patch that ends a Job in which nothing runs: it fails at its deadline, whose past passing its controller sees at once, with
/// its pods, which keep volumes and claims in use.
pub(crate) fn end(uid: &str, why: &str) -> Value {
    let why = format!("nothing ran for {} minutes: {why}", START_PATIENCE.as_mins());
    json!({"metadata": {"uid": uid, "annotations": {NOT_STARTED: why}}, "spec": {"activeDeadlineSeconds": 1}})
}

/// Tells how far a Job is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobProgress {
    /// True if it succeeded; `None` while it runs.
    pub succeeded: Option<bool>,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

pub(crate) fn progress(job: &Job) -> JobProgress {
    let status = job.status.as_ref();
    let conditions = status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut ended = conditions.filter(|condition| condition.status == "True").filter_map(|condition| {
        match condition.type_.as_str() {
            "Complete" => Some((true, condition)),
            "Failed" => Some((false, condition)),
            _ => None,
        }
    });
    let ended = ended.next();
    JobProgress {
        succeeded: ended.map(|(succeeded, _)| succeeded),
        started: status.and_then(|status| status.start_time.clone()),
        // Only a successful Job has a completion time.
        ended: ended.and_then(|(_, condition)| {
            status.and_then(|status| status.completion_time.clone()).or_else(|| condition.last_transition_time.clone())
        }),
    }
}

/// Returns the sentence about a Job that has failed, with the reason if it is known.
pub(crate) fn failure(job: &str, at: &Time, why: Option<&str>) -> String {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("Job {job} has failed at {}{why}: see `kubectl logs job/{job}`", at.0)
}

/// Returns exit codes and messages of a pod's terminated containers, init containers first.
fn terminations(pod: &Pod) -> impl Iterator<Item = (i32, &str)> {
    let status = pod.status.as_ref();
    let containers = status.map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let containers = containers.into_iter().flatten().flatten().flatten();
    containers.filter_map(last_termination).map(|ended| (ended.exit_code, ended.message.as_deref().unwrap_or_default()))
}

/// Returns the termination message of a pod's containers, if all that have ended have succeeded.
pub(crate) fn termination_message(pod: &Pod) -> Option<String> {
    let message = terminations(pod).find(|(_, message)| !message.trim().is_empty())?.1;
    terminations(pod).all(|(code, _)| code == 0).then(|| message.trim().to_owned())
}

/// Returns the last error of the container that has failed. PostgreSQL's programs add to it in the lines below.
pub(crate) fn failure_line(pod: &Pod) -> Option<String> {
    let (_, message) = terminations(pod).find(|(code, _)| *code != 0)?;
    let lines = || message.lines().rev().filter(|line| !line.trim().is_empty());
    let line = lines().find(|line| !is_addition(line)).or_else(|| lines().next())?.trim();
    let line = line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.');
    Some(line.chars().filter(|c| !c.is_control()).take(MAX_MESSAGE).collect())
}

fn is_addition(line: &str) -> bool {
    const ADDITIONS: [&str; 8] = [
        "LINE ",
        "DETAIL:",
        "HINT:",
        "CONTEXT:",
        "QUERY:",
        "pg_dump: detail:",
        "pg_dump: hint:",
        "pg_restore: detail:",
    ];
    line.starts_with(char::is_whitespace) || ADDITIONS.iter().any(|addition| line.starts_with(addition))
}

pub(crate) fn last_termination(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    states.into_iter().flatten().find_map(|state| state.terminated.as_ref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn since_when_nothing_runs() {
        let at = |minute: i64| Some(Timestamp::UNIX_EPOCH + SignedDuration::from_mins(minute));
        for (started, pods, expected) in [
            (at(1), vec![], at(1)),
            // It is suspended, before its first pod or after one.
            (None, vec![], None),
            (None, vec![at(2)], None),
            (at(1), vec![at(2)], at(2)),
            // A node was drained, and another has no room.
            (at(1), vec![at(2), at(30)], at(30)),
            // It was suspended and started again since.
            (at(40), vec![at(2)], at(40)),
            (at(1), vec![None], None),
            (at(1), vec![at(2), None], None),
        ] {
            assert_eq!(idle_since(started, pods.clone().into_iter()), expected, "{pods:?}");
        }
        assert_eq!(starts_until(at(2).unwrap()), at(17).unwrap());
    }

    #[test]
    fn a_job_that_is_ended_says_why() {
        let patch = end("uid-1", "no node fits");
        let mut job = json!({"metadata": {"annotations": {}}, "spec": {"template": {}}});
        job["metadata"]["annotations"] = patch["metadata"]["annotations"].clone();
        let job: Job = serde_json::from_value(job).unwrap();
        assert_eq!(not_started(&job).as_deref(), Some("nothing ran for 15 minutes: no node fits"));
        assert_eq!(
            (&patch["metadata"]["uid"], &patch["spec"]),
            (&json!("uid-1"), &json!({"activeDeadlineSeconds": 1}))
        );
    }

    #[test]
    fn a_suspended_job_does_not_wait_for_pods() {
        for (suspend, waits) in [(json!(null), true), (json!(false), true), (json!(true), false)] {
            let meta = json!({"creationTimestamp": "2026-01-01T00:00:00Z"});
            let mut job = json!({"metadata": meta, "spec": {"suspend": suspend, "template": {}}});
            // It was admitted, and not seen by the Job controller since.
            assert_eq!(waits_for_pods_since(&serde_json::from_value(job.clone()).unwrap()), None, "{suspend}");
            job["status"] = json!({"startTime": "2026-01-01T00:20:00Z"});
            let since = waits_for_pods_since(&serde_json::from_value(job).unwrap()).map(|since| since.to_string());
            assert_eq!(since.as_deref(), waits.then_some("2026-01-01T00:20:00Z"), "{suspend}");
        }
    }

    #[test]
    fn why_a_container_has_failed() {
        let refused = "psql: error: connection to server at \"db\" (10.1.2.3), port 5432 failed: Connection refused";
        let syntax = "psql:<stdin>:1: ERROR:  syntax error at or near \"x\"";
        let denied = "pg_dump: error: query failed: ERROR:  permission denied";
        for (words, expected) in [
            ("one\nerror: two.\n\n".to_owned(), Some("two")),
            (
                format!("{refused}\n\tIs the server running on that host and accepting TCP/IP connections?\n"),
                Some(refused),
            ),
            (format!("{syntax}\nLINE 1: x\n        ^\n"), Some(syntax)),
            (format!("{denied}\npg_dump: detail: Query was: LOCK\n"), Some(denied)),
            ("  indented\n".to_owned(), Some("indented")),
            (String::new(), None),
        ] {
            let state = json!({"terminated": {"exitCode": 1, "message": words}});
            let pod = json!({"metadata": {}, "status": {"containerStatuses": [{
                "name": "x", "image": "x", "imageID": "x", "ready": false, "restartCount": 0, "state": state,
            }]}});
            assert_eq!(failure_line(&serde_json::from_value(pod).unwrap()).as_deref(), expected, "{words}");
        }
    }
}
