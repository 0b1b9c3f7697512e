//! On which nodes pods run. Pure.

use k8s_openapi::api::core::v1::Affinity;
use serde_json::{Value, json};

use crate::{
    crd::{Scheduling, label},
    postgresql::{desired::Desired, observed::Role},
};

/// Places the primary, and the Job that creates its database: the Job's node decides where the volume is, and the server must be able to run
/// there.
pub(super) fn primary(desired: &Desired, pod: &mut Value) {
    place(desired, pod, desired.scheduling.affinity.clone().unwrap_or_default());
}

/// Places a standby, if possible on a node that has no other server of this Postgresql, so that a node's failure affects only one of them.
///
/// When the scheduler places a primary, it also considers the anti-affinity of running standbys. So the primary's pod does not need
/// its own, and neither an upgrade of the operator nor a first standby restarts it.
pub(super) fn standby(desired: &Desired, pod: &mut Value) {
    let mut affinity = desired.scheduling.affinity.clone().unwrap_or_default();
    affinity.pod_anti_affinity.get_or_insert_with(|| {
        let servers = json!({
            "matchLabels": {label::POSTGRESQL: desired.key.name},
            "matchExpressions": [{"key": label::ROLE, "operator": "In", "values": [Role::Primary, Role::Standby]}],
        });
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": servers});
        let apart = json!({
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}],
        });
        serde_json::from_value(apart).unwrap_or_default()
    });
    place(desired, pod, affinity);
}

/// Places a Job beside the servers. It does not get the rules that keep servers apart, with which it might find no node.
pub(super) fn job(desired: &Desired, pod: &mut Value) {
    let node_affinity = desired.scheduling.affinity.as_ref().and_then(|affinity| affinity.node_affinity.clone());
    place(desired, pod, Affinity { node_affinity, ..Affinity::default() });
}

/// Places a Job on the primary's node, since another node may not be able to attach the volume.
pub(super) fn beside_primary(desired: &Desired, pod: &mut Value) {
    let labels = json!({label::POSTGRESQL: desired.key.name, label::ROLE: Role::Primary});
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}});
    let beside = json!({"requiredDuringSchedulingIgnoredDuringExecution": [term]});
    let affinity = Affinity { pod_affinity: serde_json::from_value(beside).ok(), ..Affinity::default() };
    place(desired, pod, affinity);
}

/// Leaves out empty fields, so that the pods of a Postgresql without them stay unchanged.
fn place(desired: &Desired, pod: &mut Value, affinity: Affinity) {
    let Scheduling { node_selector, tolerations, affinity: _ } = &desired.scheduling;
    if !node_selector.is_empty() {
        pod["nodeSelector"] = json!(node_selector);
    }
    if !tolerations.is_empty() {
        pod["tolerations"] = json!(tolerations);
    }
    if affinity != Affinity::default() {
        pod["affinity"] = json!(affinity);
    }
}
