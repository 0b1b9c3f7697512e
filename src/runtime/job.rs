//! What Jobs and their pods report. **Pure.**

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{ContainerStateTerminated, ContainerStatus, Pod},
    },
    apimachinery::pkg::apis::meta::v1::Time,
};

/// Kubernetes' label of each pod of a Job: the Job's name.
pub(crate) const JOB_NAME: &str = "batch.kubernetes.io/job-name";
/// The maximum length, in characters, of the message of a Job's pod.
pub(crate) const WORDS: usize = 600;

/// How far a Job is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Whether it succeeded; `None` while it runs.
    pub succeeded: Option<bool>,
    pub started: Option<Time>,
    pub ended: Option<Time>,
}

pub(crate) fn progress(job: &Job) -> Progress {
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
    Progress {
        succeeded: ended.map(|(succeeded, _)| succeeded),
        started: status.and_then(|status| status.start_time.clone()),
        // Only a successful Job has a completion time.
        ended: ended.and_then(|(_, condition)| {
            status.and_then(|status| status.completion_time.clone()).or_else(|| condition.last_transition_time.clone())
        }),
    }
}

/// The sentence about a Job that has failed, and perhaps why.
pub(crate) fn failure(job: &str, at: &Time, why: Option<&str>) -> String {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    format!("Job {job} has failed at {}{why}: see `kubectl logs job/{job}`", at.0)
}

/// Exit codes and messages of a pod's terminated containers, init containers first.
fn endings(pod: &Pod) -> impl Iterator<Item = (i32, &str)> {
    let status = pod.status.as_ref();
    let containers = status.map(|status| [&status.init_container_statuses, &status.container_statuses]);
    let containers = containers.into_iter().flatten().flatten().flatten();
    containers.filter_map(ended_by).map(|ended| (ended.exit_code, ended.message.as_deref().unwrap_or_default()))
}

/// The termination message of a pod's containers, if all of them that have ended succeeded.
pub(crate) fn said(pod: &Pod) -> Option<String> {
    let words = endings(pod).find(|(_, words)| !words.trim().is_empty())?.1;
    endings(pod).all(|(code, _)| code == 0).then(|| words.trim().to_owned())
}

/// The last line of the container that has failed.
pub(crate) fn failed(pod: &Pod) -> Option<String> {
    let (_, words) = endings(pod).find(|(code, _)| *code != 0)?;
    let line = words.lines().rev().map(str::trim).find(|line| !line.is_empty())?;
    let line = line.strip_prefix("error: ").unwrap_or(line).trim_end_matches('.');
    Some(line.chars().filter(|c| !c.is_control()).take(WORDS).collect())
}

/// The latest termination of a container.
pub(crate) fn ended_by(container: &ContainerStatus) -> Option<&ContainerStateTerminated> {
    let states = [container.state.as_ref(), container.last_state.as_ref()];
    states.into_iter().flatten().find_map(|state| state.terminated.as_ref())
}
