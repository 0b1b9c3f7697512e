//! Says why pods are not ready, for the controllers of all kinds, **pure**: in the terms of `kubectl describe pod`, and unchanged as long as
//! nothing changes.

use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{StatefulSet, StatefulSetSpec},
        core::v1::{ContainerState, ContainerStateTerminated, ContainerStatus, Pod},
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::ResourceExt as _;

/// Returns a label selector for a list request, or `None` if it cannot be expressed in one.
pub(crate) fn selector(selector: &LabelSelector) -> Option<String> {
    let labels = selector.match_labels.as_ref().filter(|labels| !labels.is_empty())?;
    let is_plain = selector.match_expressions.as_ref().is_none_or(Vec::is_empty);
    is_plain.then(|| labels.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(","))
}

/// Holds what keeps a pod from being ready.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodProblem {
    rank: Rank,
    /// The container that has it, such as `init container fetch`; `None`: the pod itself.
    container: Option<String>,
    /// The rest of the sentence.
    words: String,
}

/// The lower, the worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Failed,
    Unscheduled,
    NotReady,
}

impl PodProblem {
    fn of_pod(rank: Rank, words: String) -> PodProblem {
        PodProblem { rank, container: None, words }
    }

    /// Returns the sentence about a pod of this name.
    fn named(&self, pod: &str) -> String {
        match &self.container {
            Some(container) => format!("{container} of pod {pod} {}", self.words),
            None => format!("pod {pod} {}", self.words),
        }
    }

    /// Returns the sentence that follows the name of the pod.
    pub(crate) fn unnamed(&self) -> String {
        format!("{} {}", self.container.as_deref().unwrap_or("it"), self.words)
    }
}

/// Kubernetes' labels of a pod: the revision of its StatefulSet or DaemonSet, and that of its Deployment.
const REVISIONS: [&str; 2] = ["controller-revision-hash", "pod-template-hash"];

fn revision(pod: &Pod) -> Option<&str> {
    REVISIONS.iter().find_map(|label| pod.labels().get(*label)).map(String::as_str)
}

/// Returns the phase of a pod; that of one without a status is empty.
pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

/// Returns the worst problem of a workload's pods. A problem that needs a user or a cluster admin comes before one that may pass.
pub(crate) fn why(pods: &[Pod], present: Option<&str>) -> Option<String> {
    let problems = of_present(pods, present).into_iter().filter_map(|pod| Some((problem(pod)?, pod.name_any())));
    problems.min().map(|(problem, pod)| problem.named(&pod))
}

/// Returns the pods that count: those of the present revision, which otherwise is that of the newest pod; and those that have failed,
/// such as evicted ones, only if there are no others.
fn of_present<'a>(pods: &'a [Pod], present: Option<&'a str>) -> Vec<&'a Pod> {
    let alive: Vec<_> = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect();
    let newest = || revision(alive.iter().max_by_key(|pod| pod.creation_timestamp().map(|time| time.0))?);
    let present = present.or_else(newest);
    let (new, former): (Vec<_>, Vec<_>) = alive.iter().copied().partition(|pod| revision(pod) == present);
    let counted = if new.is_empty() { former } else { new };
    let (failed, others): (Vec<_>, Vec<_>) = counted.into_iter().partition(|pod| phase(pod) == "Failed");
    if others.is_empty() { failed } else { others }
}

/// A StatefulSet's present revision, and how it replaces pods of former ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StatefulSetRollout {
    pub revision: String,
    /// It replaces each pod of a former revision, but only once that pod is ready: as long as it is not, neither a corrected spec
    /// nor a rollback brings it back (kubernetes.io/docs/concepts/workloads/controllers/statefulset, "Forced rollback").
    pub in_order: bool,
}

/// Returns `None` if the controller of the StatefulSet has not seen its spec yet.
pub(crate) fn rollout(set: &StatefulSet) -> Option<StatefulSetRollout> {
    let (spec, status) = (set.spec.as_ref()?, set.status.as_ref()?);
    if status.observed_generation < set.metadata.generation {
        return None;
    }
    let waits = spec.pod_management_policy.as_deref().is_none_or(|policy| policy == "OrderedReady");
    Some(StatefulSetRollout { revision: status.update_revision.clone()?, in_order: replaces_pods(spec) && waits })
}

/// Returns true if the StatefulSet replaces all pods of former revisions. With the strategy OnDelete or a partition, a user decides when.
pub(crate) fn replaces_pods(spec: &StatefulSetSpec) -> bool {
    let strategy = spec.update_strategy.as_ref();
    let rolls = strategy.and_then(|strategy| strategy.type_.as_deref()).is_none_or(|type_| type_ == "RollingUpdate");
    let partition = strategy.and_then(|strategy| strategy.rolling_update.as_ref()?.partition).unwrap_or_default();
    rolls && partition == 0
}

/// A pod of a former revision that keeps its StatefulSet from creating one of the present revision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StuckPod {
    /// uid of the StatefulSet.
    pub set: String,
    pub name: String,
    pub uid: String,
    /// The version that was judged: a pod that has changed since is judged again.
    pub version: String,
    /// Nothing runs in it. Deleting it does what its StatefulSet would do if it were ready, and interrupts nothing.
    pub is_idle: bool,
    pub why: String,
}

impl StuckPod {
    pub(crate) fn sentence(&self, namespace: &str) -> String {
        let StuckPod { name, why, is_idle, .. } = self;
        let so = match is_idle {
            true => "it is of a former revision, and is deleted so that its StatefulSet can go on".to_owned(),
            false => format!(
                "it is of a former revision, and its StatefulSet waits for it: `kubectl delete pod -n {namespace} {name}`"
            ),
        };
        format!("{why}; {so}")
    }
}

/// Returns the first such pod of the StatefulSet with this uid.
pub(crate) fn stuck(pods: &[Pod], set: &str, rollout: &StatefulSetRollout) -> Option<StuckPod> {
    let is_its = |pod: &&Pod| {
        let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true));
        owner.is_some_and(|owner| owner.kind == "StatefulSet" && owner.uid == set)
    };
    let is_former = |pod: &&Pod| revision(pod).is_some_and(|revision| revision != rollout.revision);
    let alive = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    alive.filter(is_its).filter(is_former).filter(|_| rollout.in_order).find_map(|pod| {
        let name = pod.name_any();
        Some(StuckPod {
            set: set.to_owned(),
            uid: pod.uid()?,
            version: pod.resource_version()?,
            is_idle: is_idle(pod),
            why: problem(pod)?.named(&name),
            name,
        })
    })
}

fn is_idle(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let all = [&status.init_container_statuses, &status.container_statuses, &status.ephemeral_container_statuses];
    let runs = |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    // Before it has a node, no container is reported.
    let is_known = matches!(status.phase.as_deref(), Some("Pending" | "Failed")) || status.container_statuses.is_some();
    is_known && !all.into_iter().flatten().flatten().any(runs)
}

/// Returns since when nothing has run in the pod of a Job: since it was created, or its last container ended. `None`: something runs, or that
/// is not known.
pub(crate) fn idle_since(pod: &Pod) -> Option<Timestamp> {
    if !is_idle(pod) {
        return None;
    }
    let status = pod.status.as_ref()?;
    let containers = [&status.init_container_statuses, &status.container_statuses];
    let states = containers.into_iter().flatten().flatten().flat_map(|it| [it.state.as_ref(), it.last_state.as_ref()]);
    let ended = states.flatten().filter_map(|state| state.terminated.as_ref()?.finished_at.as_ref());
    ended.chain(&pod.metadata.creation_timestamp).map(|time| time.0).max()
}

/// Returns what keeps this pod from being ready, if it says so.
pub(crate) fn problem(pod: &Pod) -> Option<PodProblem> {
    let status = pod.status.as_ref()?;
    let condition = |type_: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == type_);
    if condition("Ready").is_some_and(|ready| ready.status == "True") {
        return None;
    }
    if let Some(unscheduled) = condition("PodScheduled").filter(|scheduled| scheduled.status == "False") {
        let message = unscheduled.message.as_deref().unwrap_or("no node fits");
        return Some(PodProblem::of_pod(Rank::Unscheduled, format!("is not scheduled: {}", tidy(message))));
    }
    // Without words, the containers say more.
    let words =
        [status.reason.as_deref(), status.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": ");
    if status.phase.as_deref() == Some("Failed") && !words.is_empty() {
        return Some(PodProblem::of_pod(Rank::Failed, format!("has failed: {}", tidy(&words))));
    }
    let init = status.init_container_statuses.iter().flatten().map(|container| ("init container", container));
    let main = status.container_statuses.iter().flatten().map(|container| ("container", container));
    let problems = init.chain(main).filter_map(|(what, container)| {
        let (rank, words) = of_container(pod, what, container)?;
        Some(PodProblem { rank, container: Some(format!("{what} {}", container.name)), words })
    });
    problems.min_by_key(|problem| problem.rank).or_else(|| unreachable(pod))
}

/// Returns the problem of a pod whose containers were ready when its node last reported: the node lifecycle controller has called it
/// not ready.
fn unreachable(pod: &Pod) -> Option<PodProblem> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref()?);
    let mut containers = status.container_statuses.iter().flatten().peekable();
    let were_ready = containers.peek().is_some() && containers.all(|container| container.ready);
    let has_gates = spec.readiness_gates.as_ref().is_some_and(|gates| !gates.is_empty());
    let node = spec.node_name.as_ref().filter(|_| were_ready && !has_gates)?;
    Some(PodProblem::of_pod(Rank::Failed, format!("is on node {node}, which does not report")))
}

fn of_container(pod: &Pod, what: &str, container: &ContainerStatus) -> Option<(Rank, String)> {
    let (name, pod_name, namespace) = (&container.name, pod.name_any(), pod.namespace().unwrap_or_default());
    let logs = |option: &str| format!("see `kubectl logs{option} -n {namespace} {pod_name} -c {name}`");
    let state = container.state.clone().unwrap_or_default();
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    match state {
        ContainerState { waiting: Some(waiting), .. } => {
            let reason = waiting.reason.unwrap_or_default();
            match (reason.as_str(), last) {
                // These reasons alternate, and their messages change with each try.
                ("ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull", _) => {
                    let image = &container.image;
                    let words =
                        format!("cannot pull image {image}: see `kubectl describe pod -n {namespace} {pod_name}`");
                    Some((Rank::Failed, words))
                }
                ("CrashLoopBackOff", Some(last)) => {
                    Some((Rank::Failed, format!("{}: {}", ended(last, container), logs(""))))
                }
                // Containers that wait for another container.
                ("ContainerCreating" | "PodInitializing" | "", _) => None,
                (_, _) => {
                    let message = waiting.message.unwrap_or_default();
                    let message = if message.is_empty() { message } else { format!(": {}", tidy(&message)) };
                    Some((Rank::Failed, format!("does not start: {reason}{message}")))
                }
            }
        }
        ContainerState { terminated: Some(terminated), .. } if terminated.exit_code != 0 => {
            Some((Rank::Failed, format!("{}: {}", ended(&terminated, container), logs(""))))
        }
        ContainerState { running: Some(_), .. } if what == "container" && !container.ready => match last {
            Some(last) => Some((Rank::Failed, format!("{}: {}", ended(last, container), logs(" --previous")))),
            _ => Some((Rank::NotReady, format!("runs but is not ready: {}", logs("")))),
        },
        _ => None,
    }
}

fn ended(terminated: &ContainerStateTerminated, container: &ContainerStatus) -> String {
    match (terminated.reason.as_deref(), terminated.exit_code) {
        (Some("OOMKilled"), _) => "was ended for needing more memory than its limit (OOMKilled)".to_owned(),
        // SIGTERM or SIGKILL, or what a program makes of them.
        (_, code @ (0 | 137 | 143)) if container.restart_count > 0 => {
            format!("is restarted again (exit code {code}), probably because its liveness or startup probe fails")
        }
        (_, code) => format!("ends with exit code {code}"),
    }
}

/// Puts a message of another program on one line that is not too long, without a final full stop. It is cut between words: no part of
/// a password is left that could not be recognized any more.
pub(crate) fn tidy(message: &str) -> String {
    const MOST: usize = 300;
    let mut line = String::new();
    for word in message.split_whitespace() {
        let (space, cut) = (if line.is_empty() { "" } else { " " }, line.len() + word.len() >= MOST);
        line.push_str(space);
        line.push_str(if cut { "…" } else { word });
        if cut {
            break;
        }
    }
    line.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::platform::fake::{merged, of};

    fn pod(name: &str, status: Value) -> Pod {
        of(json!({"metadata": {"name": name, "namespace": "ns"}, "status": status}))
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
        let (none, running) = (|| json!({}), || json!({"running": {}}));
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let unscheduled = json!({"conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available: 1 Insufficient cpu.\n"},
        ]});
        let init = containers("initContainerStatuses", ended(3, "Error"), none());
        let evicted =
            json!({"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "});
        let misconfigured = main(waiting("CreateContainerConfigError", "secret \"x\" not found"), none());
        let looping = |last: Value| main(waiting("CrashLoopBackOff", "back-off"), last);
        let web = |words: &str| Some(format!("container web of pod a {words}"));
        let (logs, previous) = ("see `kubectl logs -n ns a -c web`", "see `kubectl logs --previous -n ns a -c web`");
        let again = "probably because its liveness or startup probe fails";
        let pod_is = |words: &str| Some(format!("pod a {words}"));
        let pulls = main(waiting("ImagePullBackOff", "Back-off pulling image \"shop:7\""), none());
        for (status, expected) in [
            (ready, None),
            (json!({}), None),
            (unscheduled, pod_is("is not scheduled: 0/1 nodes are available: 1 Insufficient cpu")),
            (pulls, web("cannot pull image shop:7: see `kubectl describe pod -n ns a`")),
            (looping(ended(1, "Error")), web(&format!("ends with exit code 1: {logs}"))),
            (
                looping(ended(137, "OOMKilled")),
                web(&format!("was ended for needing more memory than its limit (OOMKilled): {logs}")),
            ),
            (misconfigured, web("does not start: CreateContainerConfigError: secret \"x\" not found")),
            (main(waiting("ContainerCreating", ""), none()), None),
            (main(running(), none()), web(&format!("runs but is not ready: {logs}"))),
            (main(running(), ended(1, "Error")), web(&format!("ends with exit code 1: {previous}"))),
            // Killed by a probe, a program may end as if all were well.
            (
                main(running(), ended(0, "Completed")),
                web(&format!("is restarted again (exit code 0), {again}: {previous}")),
            ),
            (looping(ended(137, "Error")), web(&format!("is restarted again (exit code 137), {again}: {logs}"))),
            (init, Some(format!("init container web of pod a ends with exit code 3: {logs}"))),
            (evicted, pod_is("has failed: Evicted: The node was low on resource: memory")),
        ] {
            assert_eq!(why(&[pod("a", status.clone())], None), expected, "{status}");
        }
        // The worst of several, whatever their order; a pod that is being deleted does not count.
        let running = pod("b", main(running(), none()));
        let crashing = pod("c", main(waiting("CrashLoopBackOff", "x"), ended(1, "Error")));
        for pods in [[running.clone(), crashing.clone()], [crashing.clone(), running.clone()]] {
            assert!(why(&pods, None).unwrap().contains("pod c ends with exit code 1"));
        }
        let mut going = crashing;
        going.metadata.deletion_timestamp = of(json!("2026-01-01T00:00:00Z"));
        assert!(why(&[going, running], None).unwrap().contains("pod b runs"));
    }

    #[test]
    fn since_when_nothing_runs_in_the_pod_of_a_job() {
        let waiting = json!({"waiting": {"reason": "ImagePullBackOff"}});
        let ended = json!({"terminated": {"exitCode": 0, "finishedAt": "2026-01-01T00:07:00Z"}});
        let status = |phase: &str, init: &Value, main: &Value| {
            let mut status = containers("containerStatuses", main.clone(), json!({}));
            status["phase"] = json!(phase);
            merged(status, containers("initContainerStatuses", init.clone(), json!({})))
        };
        let running = json!({"running": {}});
        for (status, minute) in [
            // It has no node, and no container is reported.
            (json!({"phase": "Pending"}), Some(1)),
            (status("Pending", &waiting, &waiting), Some(1)),
            (status("Pending", &running, &waiting), None),
            (status("Pending", &ended, &waiting), Some(7)),
            (status("Running", &ended, &running), None),
            (status("Succeeded", &ended, &ended), Some(7)),
            // Another pod of its Job may never start.
            (status("Failed", &ended, &ended), Some(7)),
            (json!({"phase": "Failed", "reason": "Evicted"}), Some(1)),
        ] {
            let mut pod = pod("a", status.clone());
            pod.metadata.creation_timestamp = of(json!("2026-01-01T00:01:00Z"));
            let expected = minute.map(|minute: u8| format!("2026-01-01T00:{minute:02}:00Z").parse().unwrap());
            assert_eq!(idle_since(&pod), expected, "{status}");
        }
    }

    /// A pod with its creation time, revision and phase.
    fn revised(name: &str, created: i64, hash: Option<&str>, phase: &str) -> Pod {
        let mut pod = pod(name, json!({"phase": phase, "reason": "Evicted", "message": format!("{name} is evicted")}));
        if phase == "Pending" {
            let message = format!("no node for {name}");
            pod.status.as_mut().unwrap().conditions =
                of(json!([{"type": "PodScheduled", "status": "False", "message": message}]));
        }
        pod.metadata.creation_timestamp = of(json!(format!("2026-01-01T00:00:{created:02}Z")));
        pod.metadata.labels = hash.map(|hash| [("pod-template-hash".to_owned(), hash.to_owned())].into());
        pod
    }

    #[test]
    fn the_pods_of_the_present_revision_count() {
        let old = |phase: &str| revised("old", 1, Some("r1"), phase);
        let new = |phase: &str| revised("new", 9, Some("r2"), phase);
        let starts = || Pod { status: None, ..new("Running") };
        let gone = revised("gone", 1, Some("r2"), "Failed");
        for (what, pods, present, expected) in [
            ("the newest pod's revision", vec![old("Failed"), new("Pending")], None, Some("new")),
            ("in any order", vec![new("Pending"), old("Failed")], None, Some("new")),
            ("as the workload says", vec![old("Failed"), new("Pending")], Some("r1"), Some("old")),
            ("it has none yet", vec![old("Pending")], Some("r2"), Some("old")),
            ("it has nothing to say yet", vec![old("Pending"), starts()], None, None),
            ("evicted, and replaced", vec![gone, new("Pending")], None, Some("new")),
            ("evicted only", vec![new("Failed")], None, Some("new")),
            ("unlabelled", vec![revised("plain", 1, None, "Pending")], None, Some("plain")),
        ] {
            let why = why(&pods, present);
            assert_eq!(why.is_some(), expected.is_some(), "{what}: {why:?}");
            assert!(expected.is_none_or(|pod| why.unwrap().starts_with(&format!("pod {pod} "))), "{what}");
        }
    }

    #[test]
    fn the_pod_that_a_stateful_set_waits_for() {
        let owner = |kind: &str, uid: &str| json!([{"apiVersion": "apps/v1", "kind": kind, "name": "db", "uid": uid, "controller": true}]);
        let owned_pod = |hash: &str, owners: Value, status: Value| -> Pod {
            let labels = json!({"controller-revision-hash": hash});
            let meta = json!({"name": "db-0", "namespace": "ns", "uid": "u", "resourceVersion": "7", "labels": labels, "ownerReferences": owners});
            of(json!({"metadata": meta, "status": status}))
        };
        let set = || owner("StatefulSet", "s");
        let main = |state: Value| containers("containerStatuses", state, json!({}));
        let pulls = || main(json!({"waiting": {"reason": "ImagePullBackOff"}}));
        let (loops, ended) =
            (json!({"waiting": {"reason": "CrashLoopBackOff"}}), json!({"terminated": {"exitCode": 1}}));
        let looping = || containers("containerStatuses", loops.clone(), ended.clone());
        let unscheduled = || json!({"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]});
        let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
        let init = json!({
            "phase": "Pending",
            "initContainerStatuses": containers("x", json!({"running": {}}), json!({}))["x"],
            "containerStatuses": pulls()["containerStatuses"],
        });
        for (what, pod, in_order, expected) in [
            ("its image does not exist", owned_pod("r1", set(), pulls()), true, Some(true)),
            ("it ends again and again", owned_pod("r1", set(), looping()), true, Some(true)),
            ("no node has room", owned_pod("r1", set(), unscheduled()), true, Some(true)),
            // What runs may be about to become ready: a user decides.
            ("it runs", owned_pod("r1", set(), main(json!({"running": {}}))), true, Some(false)),
            ("an init container runs", owned_pod("r1", set(), init), true, Some(false)),
            ("it is ready", owned_pod("r1", set(), ready), true, None),
            ("it does not say why", owned_pod("r1", set(), json!({"phase": "Pending"})), true, None),
            ("it is of the present revision", owned_pod("r2", set(), pulls()), true, None),
            ("the StatefulSet does it, or never does", owned_pod("r1", set(), pulls()), false, None),
            ("it is a former StatefulSet's", owned_pod("r1", owner("StatefulSet", "former"), pulls()), true, None),
            ("it is another workload's", owned_pod("r1", owner("ReplicaSet", "s"), pulls()), true, None),
            ("it has no owner", owned_pod("r1", json!([]), pulls()), true, None),
        ] {
            let rollout = StatefulSetRollout { revision: "r2".to_owned(), in_order };
            let found = stuck(std::slice::from_ref(&pod), "s", &rollout);
            assert_eq!(found.as_ref().map(|stuck| stuck.is_idle), expected, "{what}");
            let mut going = pod;
            going.metadata.deletion_timestamp = of(json!("2026-01-01T00:00:00Z"));
            assert_eq!(stuck(&[going], "s", &rollout), None, "{what}");
            if let Some(stuck) = found {
                let command = "its StatefulSet waits for it: `kubectl delete pod -n ns db-0`";
                assert_eq!(stuck.sentence("ns").ends_with(command), !stuck.is_idle, "{what}");
            }
        }
    }

    #[test]
    fn how_a_stateful_set_replaces_pods() {
        for (spec, observed, expected) in [
            (json!({}), 2, Some(true)),
            (json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}), 2, Some(true)),
            (json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}), 2, Some(false)),
            (json!({"updateStrategy": {"type": "OnDelete"}}), 2, Some(false)),
            (json!({"podManagementPolicy": "Parallel"}), 2, Some(false)),
            (json!({}), 1, None),
        ] {
            let whole = merged(json!({"selector": {}, "serviceName": "db", "template": {}}), spec.clone());
            let status = json!({"replicas": 1, "observedGeneration": observed, "updateRevision": "r2"});
            let set = json!({"metadata": {"generation": 2}, "spec": whole, "status": status});
            let found = rollout(&of(set));
            assert_eq!(found.map(|rollout| rollout.in_order), expected, "{spec} {observed}");
        }
    }

    #[test]
    fn a_node_that_does_not_report() {
        let status = |ready: bool| {
            let mut status = containers("containerStatuses", json!({"running": {}}), json!({}));
            status["containerStatuses"][0]["ready"] = json!(ready);
            status["conditions"] = json!([{"type": "Ready", "status": "False"}]);
            status
        };
        let on = |spec: Value, ready: bool| {
            let mut pod = pod("a", status(ready));
            pod.spec = serde_json::from_value(spec).unwrap();
            why(&[pod], None)
        };
        let spec = json!({"nodeName": "one", "containers": []});
        let gated = merged(spec.clone(), json!({"readinessGates": [{"conditionType": "x"}]}));
        assert_eq!(on(spec.clone(), true).as_deref(), Some("pod a is on node one, which does not report"));
        assert!(on(spec, false).unwrap().contains("runs but is not ready"));
        assert_eq!(on(gated, true), None);
        assert_eq!(on(json!({"containers": []}), true), None);
    }

    #[test]
    fn what_others_say_is_one_short_line() {
        for (message, tidied) in [
            ("", String::new()),
            (" a\n\tb.  ", "a b".to_owned()),
            (&"x".repeat(400), "…".to_owned()),
            (&"word ".repeat(100), format!("{}…", "word ".repeat(60))),
        ] {
            assert_eq!(tidy(message), tidied);
        }
    }

    #[test]
    fn what_selects_them() {
        let parsed = |value: Value| selector(&serde_json::from_value(value).unwrap());
        assert_eq!(parsed(json!({"matchLabels": {"a": "1", "b": "2"}})).as_deref(), Some("a=1,b=2"));
        // An empty selector, which matches all pods of the namespace, does not select a workload's pods.
        assert_eq!(parsed(json!({})), None);
        let expressions = json!([{"key": "b", "operator": "Exists"}]);
        assert_eq!(parsed(json!({"matchLabels": {"a": "1"}, "matchExpressions": expressions})), None);
    }
}
