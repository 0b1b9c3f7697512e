//! Limits for drains of nodes, and for connections from other pods. Pure.

use serde_json::{Value, json};

use super::{
    network::PORT,
    object::{Object, object, selector},
};
use crate::{
    crd::label,
    postgresql::{
        desired::Desired,
        names,
        observed::{Kind, Role},
    },
};

/// Lets a drain evict one standby at a time. `None` with fewer than two standbys, where it would have no effect.
///
/// The primary has no budget. It is a single pod, and a budget that never allows its eviction would block a drain forever. It would
/// not help either, as no standby takes over: a drain of the primary's node interrupts service in any case, now or later.
pub(crate) fn disruption(desired: &Desired) -> Option<Object> {
    let spec = json!({
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(desired, Role::Standby)},
        // A standby that does not follow protects nothing, and would block the drain of its node.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    let name = names::disruption(&desired.key.name);
    (desired.standbys > 1).then(|| object(desired, Kind::PodDisruptionBudget, name, json!({"spec": spec})))
}

/// Allows connections from the namespace and from the peers in the spec. `None`: no policy, so no limit.
///
/// It is created only if the spec has the field. An older Postgresql does not have it, and its clients may be in any namespace, since
/// the host in their Secret works everywhere: a newer operator must not cut them off. The whole namespace is always allowed: standbys,
/// Jobs and the app run there, and a user who may create pods in it can read its Secrets too. Outgoing connections of the pods are
/// not limited.
pub(crate) fn network_policy(desired: &Desired) -> Option<Object> {
    let peers = desired.peers.as_ref()?;
    let mut ingress = vec![json!({"from": [{"podSelector": {}}]})];
    // A rule without peers would allow every pod.
    if !peers.is_empty() {
        let ports = json!([{"port": PORT, "protocol": "TCP"}]);
        ingress.push(json!({"from": tidy(json!(peers)), "ports": ports}));
    }
    let spec = json!({
        "podSelector": {"matchLabels": {label::POSTGRESQL: desired.key.name}},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    });
    Some(object(desired, Kind::NetworkPolicy, names::network_policy(&desired.key.name), json!({"spec": spec})))
}

/// Allows no connections to or from the pods that restore a dump. `None`: there are no such pods.
///
/// A restore runs code of the dumped server's users, with all dumps at hand. A pod that fetches its dump from a bucket needs the
/// network, so this policy does not select it. A policy that allows the namespace applies here as well: policies are additive.
pub(crate) fn sealed(desired: &Desired) -> Option<Object> {
    let drill = desired.backup.as_ref().is_some_and(|backup| backup.drill.is_some() && backup.drill_store.is_none());
    // One that is requested is of a database that exists: nothing else is restored then.
    let requested = desired.restore_request.as_ref().map(|requested| &requested.dump);
    let restore = requested.or(desired.restore.as_ref()).is_some_and(|restore| restore.store.is_none());
    let roles = [(drill, Role::Drill), (restore, Role::Initialize)];
    let roles: Vec<_> = roles.into_iter().filter_map(|(is_there, role)| is_there.then_some(role)).collect();
    let spec = json!({
        "podSelector": {
            "matchLabels": {label::POSTGRESQL: desired.key.name},
            "matchExpressions": [{"key": label::ROLE, "operator": "In", "values": roles}],
        },
        "policyTypes": ["Ingress", "Egress"],
    });
    (!roles.is_empty())
        .then(|| object(desired, Kind::NetworkPolicy, names::sealed(&desired.key.name), json!({"spec": spec})))
}

/// Allows no connections to the pods of drills from a bucket. `None`: there are no such pods.
///
/// They need to reach the bucket. Its endpoint is a hostname, which a policy cannot name, so their outgoing connections are not limited.
pub(crate) fn drill(desired: &Desired) -> Option<Object> {
    desired.backup.as_ref()?.drill_store.as_ref()?;
    let spec = json!({
        "podSelector": {"matchLabels": selector(desired, Role::Drill)},
        "policyTypes": ["Ingress"],
    });
    Some(object(desired, Kind::NetworkPolicy, names::drill(&desired.key.name), json!({"spec": spec})))
}

/// Returns a value as the API server stores it: without empty lists and empty `matchLabels`. Otherwise it would always look edited.
fn tidy(value: Value) -> Value {
    let is_void = |key: &str, value: &Value| {
        value.as_array().is_some_and(Vec::is_empty)
            || key == "matchLabels" && value.as_object().is_some_and(serde_json::Map::is_empty)
    };
    match value {
        Value::Array(items) => items.into_iter().map(tidy).collect(),
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(key, value)| !is_void(key, value));
            kept.map(|(key, value)| (key, tidy(value))).collect()
        }
        other => other,
    }
}
