//! When to list the pods of workloads that are not ready, and what was seen then. **Pure.** Pods are not watched.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::types::Workload;
use crate::{
    crd::{
        ClientAppStatus, Reason,
        conditions::{find, kind},
    },
    platform::pods::{StuckPod, phase, stuck, why as why_of},
};

/// How long a workload may take before its pods are listed: most workloads need less.
pub(crate) const GRACE: SignedDuration = SignedDuration::from_secs(10);
/// The longest interval between two lists.
const SELDOM: SignedDuration = SignedDuration::from_secs(300);

/// Holds what was observed of the pods of an app.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodReasons {
    /// When to list them again.
    pub until: Timestamp,
    /// Holds what keeps them from being ready, by uid and generation of their workload.
    pub reasons: BTreeMap<(String, i64), PodsView>,
}

/// Holds what keeps the pods of a workload from being ready.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PodsView {
    /// How many there are.
    pub there: usize,
    pub why: Option<String>,
    /// The pod of a former revision that its StatefulSet waits for.
    pub stuck: Option<StuckPod>,
}

impl PodsView {
    pub(crate) fn of(workload: &Workload, pods: &[Pod], namespace: &str) -> PodsView {
        let rollout = workload.rollout.as_ref();
        let stuck = rollout.and_then(|rollout| stuck(pods, &workload.uid, rollout));
        let why = stuck.as_ref().map(|stuck| stuck.sentence(namespace));
        let why = why.or_else(|| why_of(pods, rollout.map(|rollout| &*rollout.revision)));
        let is_there =
            |pod: &&Pod| pod.metadata.deletion_timestamp.is_none() && !["Failed", "Succeeded"].contains(&phase(pod));
        let there = pods.iter().filter(is_there).count();
        PodsView { there, why, stuck }
    }
}

/// Since when the workloads are not ready, according to the recorded status.
pub(crate) fn not_ready_since(recorded: &ClientAppStatus) -> Option<Timestamp> {
    let condition = find(&recorded.conditions, kind::WORKLOADS_READY)?;
    let is_waiting = condition.status == "False" && condition.reason != Reason::NoRelease.as_str();
    is_waiting.then_some(condition.last_transition_time.0)
}

/// Returns when to list the pods next, if workloads have not been ready since then: the longer, the less often.
pub(crate) fn next_check(since: Timestamp, now: Timestamp) -> Timestamp {
    let waited = now.duration_since(since);
    match waited < GRACE {
        true => since + GRACE,
        false => now + (waited / 4).clamp(GRACE, SELDOM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_asked_for_more_and_more_seldom() {
        let at = |seconds: i64| Timestamp::from_second(1000 + seconds).unwrap();
        for (now, next) in [(0, 10), (9, 10), (10, 20), (100, 125), (10_000, 10_300)] {
            assert_eq!(next_check(at(0), at(now)), at(next), "{now}");
        }
    }
}
