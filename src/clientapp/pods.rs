//! Why pods are not ready, **pure**: in the terms of `kubectl describe pod`, and in the same words as long as nothing changes.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{ContainerState, ContainerStatus, Pod},
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::ResourceExt as _;

use crate::crd::{
    ClientAppStatus, Reason,
    conditions::{find, kind},
};

/// How long a workload may take before its pods are listed: most workloads need less.
pub(super) const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// The longest interval between two lists.
const SELDOM: SignedDuration = SignedDuration::from_secs(300);

/// What was observed of the pods of an app.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Look {
    /// When to list them again.
    pub until: Timestamp,
    /// Why they are not ready, by uid and generation of their workload.
    pub reasons: BTreeMap<(String, i64), Option<String>>,
}

/// How many workloads that are not ready are named; the rest are counted.
pub(crate) const NAMED_WORKLOADS: usize = 3;

/// Since when the workloads are not ready, according to the recorded status.
pub(super) fn not_ready_since(recorded: &ClientAppStatus) -> Option<Timestamp> {
    let condition = find(&recorded.conditions, kind::WORKLOADS_READY)?;
    let is_waiting = condition.status == "False" && condition.reason != Reason::NoRelease.as_str();
    is_waiting.then_some(condition.last_transition_time.0)
}

/// When to list pods next, if workloads have not been ready since then: the longer, the less often. Pods are not watched.
pub(super) fn next_look(since: Timestamp, now: Timestamp) -> Timestamp {
    let waited = now.duration_since(since);
    match waited < GRACE {
        true => since + GRACE,
        false => now + (waited / 4).clamp(GRACE, SELDOM),
    }
}

/// A label selector for a list request; `None`: it cannot be expressed in one.
pub(super) fn selector(selector: &LabelSelector) -> Option<String> {
    let labels = selector.match_labels.as_ref().filter(|labels| !labels.is_empty())?;
    let is_plain = selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    is_plain.then(|| labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","))
}

/// The worst problem that keeps one of these pods from being ready. A problem that needs a user or a cluster admin comes before a
/// problem that may pass.
pub(super) fn why(pods: &[Pod]) -> Option<String> {
    let mut found: Vec<_> =
        pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).filter_map(of_pod).collect();
    found.sort();
    found.into_iter().next().map(|(_, why)| why)
}

/// The lower, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Failed,
    Unscheduled,
    NotReady,
}

fn of_pod(pod: &Pod) -> Option<(Rank, String)> {
    let (name, status) = (pod.name_any(), pod.status.as_ref()?);
    let condition = |type_: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
    if condition("Ready").is_some_and(|ready| ready.status == "True") {
        return None;
    }
    if let Some(unscheduled) = condition("PodScheduled").filter(|scheduled| scheduled.status == "False") {
        let message = unscheduled.message.as_deref().unwrap_or("no node fits");
        return Some((Rank::Unscheduled, format!("pod {name} is not scheduled: {}", tidy(message))));
    }
    // Without words, the containers say more.
    let words =
        [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": ");
    if status.phase.as_deref() == Some("Failed") && !words.is_empty() {
        return Some((Rank::Failed, format!("pod {name} has failed: {}", tidy(&words))));
    }
    let init = status.init_container_statuses.iter().flatten().map(|container| ("init container", container));
    let main = status.container_statuses.iter().flatten().map(|container| ("container", container));
    let mut found: Vec<_> =
        init.chain(main).filter_map(|(what, container)| of_container(pod, what, container)).collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().next()
}

fn of_container(pod: &Pod, what: &str, container: &ContainerStatus) -> Option<(Rank, String)> {
    let (name, pod_name) = (&container.name, pod.name_any());
    let this = format!("{what} {name} of pod {pod_name}");
    let logs = || {
        let namespace = pod.namespace().unwrap_or_default();
        format!("see `kubectl logs -n {namespace} {pod_name} -c {name}`")
    };
    let state = container.state.clone().unwrap_or_default();
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    match state {
        ContainerState { waiting: Some(waiting), .. } => {
            let reason = waiting.reason.unwrap_or_default();
            match (reason.as_str(), last) {
                // These reasons alternate, and their messages change with each try.
                ("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull", _) => {
                    let say = format!("{this} cannot pull image {}: see `kubectl describe pod`", container.image);
                    Some((Rank::Failed, say))
                }
                ("CrashLoopBackOff", Some(last)) => Some((
                    Rank::Failed,
                    format!("{this} {}: {}", ended(last.exit_code, last.reason.as_deref()), logs()),
                )),
                // Containers that wait for another container.
                ("ContainerCreating" | "PodInitializing" | "", _) => None,
                (_, _) => {
                    let message = waiting.message.unwrap_or_default();
                    Some((Rank::Failed, format!("{this} does not start: {reason}: {}", tidy(&message))))
                }
            }
        }
        ContainerState { terminated: Some(terminated), .. } if terminated.exit_code != 0 => {
            let how = ended(terminated.exit_code, terminated.reason.as_deref());
            Some((Rank::Failed, format!("{this} {how}: {}", logs())))
        }
        ContainerState { running: Some(_), .. } if what == "container" && !container.ready => match last {
            Some(last) if last.exit_code != 0 => {
                let how = ended(last.exit_code, last.reason.as_deref());
                Some((Rank::Failed, format!("{this} {how}: {}", logs())))
            }
            _ => Some((Rank::NotReady, format!("{this} runs but is not ready: {}", logs()))),
        },
        _ => None,
    }
}

fn ended(exit_code: i32, reason: Option<&str>) -> String {
    match reason {
        Some("OOMKilled") => "was ended for needing more memory than its limit (OOMKilled)".to_owned(),
        _ => format!("ends with exit code {exit_code}"),
    }
}

/// One line, not too long, without a final full stop.
fn tidy(message: &str) -> String {
    const MOST: usize = 300;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.trim_end_matches(['.', ' ']).chars().take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "status": status})).unwrap()
    }

    fn containers(kind: &str, state: Value, last: Value) -> Value {
        json!({kind: [{
            "name": "web", "image": "shop:7", "imageID": "", "ready": false, "restartCount": 1, "state": state, "lastState": last,
        }]})
    }

    #[test]
    fn why_pods_are_not_ready() {
        let main = |state: Value, last: Value| containers("containerStatuses", state, last);
        let waiting = |reason: &str, message: &str| json!({"waiting": {"reason": reason, "message": message}});
        let ended = |code: i32, reason: &str| json!({"terminated": {"exitCode": code, "reason": reason}});
        let none = json!({});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let unscheduled = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu.\n"},
        ]});
        let init = containers("initContainerStatuses", ended(3, "Error"), none.clone());
        for (status, expected) in [
            (ready.clone(), None),
            (json!({}), None),
            (unscheduled.clone(), Some("pod a is not scheduled: 0/1 nodes are available: 1 Insufficient cpu")),
            (
                main(waiting("ImagePullBackOff", "Back-off pulling image \"shop:7\""), none.clone()),
                Some("container web of pod a cannot pull image shop:7: see `kubectl describe pod`"),
            ),
            (
                main(waiting("CrashLoopBackOff", "back-off 40s restarting"), ended(1, "Error")),
                Some("container web of pod a ends with exit code 1: see `kubectl logs -n ns a -c web`"),
            ),
            (
                main(waiting("CrashLoopBackOff", "back-off"), ended(137, "OOMKilled")),
                Some(
                    "container web of pod a was ended for needing more memory than its limit (OOMKilled): see `kubectl logs -n ns a -c web`",
                ),
            ),
            (
                main(waiting("CreateContainerConfigError", "secret \"x\" not found"), none.clone()),
                Some("container web of pod a does not start: CreateContainerConfigError: secret \"x\" not found"),
            ),
            (main(waiting("ContainerCreating", ""), none.clone()), None),
            (
                main(json!({"running": {}}), none.clone()),
                Some("container web of pod a runs but is not ready: see `kubectl logs -n ns a -c web`"),
            ),
            (
                main(json!({"running": {}}), ended(1, "Error")),
                Some("container web of pod a ends with exit code 1: see `kubectl logs -n ns a -c web`"),
            ),
            (init, Some("init container web of pod a ends with exit code 3: see `kubectl logs -n ns a -c web`")),
            (
                json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "}),
                Some("pod a has failed: Evicted: The node was low on resource: memory"),
            ),
        ] {
            assert_eq!(why(&[pod("a", status.clone())]).as_deref(), expected, "{status}");
        }
        // The worst of several, whatever their order; a pod that is being deleted does not count.
        let running = pod("b", main(json!({"running": {}}), none.clone()));
        let crashing = pod("c", main(waiting("CrashLoopBackOff", "x"), ended(1, "Error")));
        for pods in [[running.clone(), crashing.clone()], [crashing.clone(), running.clone()]] {
            assert!(why(&pods).unwrap().contains("pod c ends with exit code 1"));
        }
        let mut going = crashing;
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(why(&[going, running]).unwrap().contains("pod b runs"));
    }

    #[test]
    fn pods_are_asked_for_more_and_more_seldom() {
        let at = |seconds: i64| Timestamp::from_second(1000 + seconds).unwrap();
        for (now, next) in [(0, 10), (9, 10), (10, 20), (100, 125), (10_000, 10_300)] {
            assert_eq!(next_look(at(0), at(now)), at(next), "{now}");
        }
    }

    #[test]
    fn what_selects_them() {
        let of = |value: Value| selector(&serde_json::from_value(value).unwrap());
        assert_eq!(of(json!({"matchLabels": {"a": "1", "b": "2"}})).as_deref(), Some("a=1,b=2"));
        // An empty selector, which matches all pods of the namespace, does not select a workload's pods.
        assert_eq!(of(json!({})), None);
        assert_eq!(
            of(json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]})),
            None
        );
    }
}
