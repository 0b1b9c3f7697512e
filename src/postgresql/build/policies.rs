//! What keeps a drain of nodes and other pods within bounds. Pure.

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

/// A drain takes one standby at a time. `None`: where there are less than two, it would do nothing.
///
/// The primary has none. It is one pod, and a budget that lets none of one go holds a drain up for ever; nor would it be of use, as
/// no standby takes over: who drains the primary's node has to go without it until it is up on another, now or later.
pub(crate) fn disruption(desired: &Desired) -> Option<Object> {
    let spec = json!({
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(desired, Role::Standby)},
        // One that does not follow protects nothing, and would keep its node from being drained.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    });
    let name = names::disruption(&desired.key.name);
    (desired.standbys > 1).then(|| object(desired, Kind::PodDisruptionBudget, name, json!({"spec": spec})))
}

/// Lets the namespace in, and whom the spec names. `None`: there is no policy, and so no limit.
///
/// It is made only where the spec has the field. An older Postgresql has not, and its clients may be in any namespace, since the host
/// in their Secret is good for all: none of them is cut off by a newer operator. The namespace is always let in, as a whole: standbys,
/// Jobs and the app are there, and a user who may make pods in it has what is in its Secrets already. What the pods themselves
/// connect to is not limited.
pub(crate) fn network_policy(desired: &Desired) -> Option<Object> {
    let peers = desired.peers.as_ref()?;
    let mut ingress = vec![json!({"from": [{"podSelector": {}}]})];
    // A rule without peers would be for all.
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

/// Lets nothing in to the pods in which a dump is restored, and nothing out. `None`: there are none.
///
/// What users of the dumped server have made is run there, beside all that is in the dumps. What is fetched from a bucket is fetched by
/// the same pod, so that one is left open. Where another policy lets the namespace in, it is let in here as well: policies only add up.
pub(crate) fn sealed(desired: &Desired) -> Option<Object> {
    let drill = desired.backup.as_ref().is_some_and(|backup| backup.drill.is_some());
    let restore = desired.restore.as_ref().is_some_and(|restore| restore.store.is_none());
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

/// As the API server stores it: without lists that are empty, and empty `matchLabels`. Else it would never look as applied.
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
