//! Resources, scheduling and network access of a database's pods: parts of a `Postgresql`, some of which a `ClientApp` passes on.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::{Affinity, Toleration},
    networking::v1::NetworkPolicyPeer,
};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{Amount, quantity};

/// Requests and limits of a container, as in a Pod.
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.requests) || !has(self.limits) || self.requests.all(name, !(name in self.limits) || !isQuantity(self.requests[name]) || !isQuantity(self.limits[name]) || quantity(self.requests[name]).compareTo(quantity(self.limits[name])) <= 0)").message("a request must not be above its limit").field_path(".requests"))]
pub struct Resources {
    /// The amounts that the scheduler reserves, by resource, such as `{cpu: 200m, memory: 512Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    #[schema(value_type = BTreeMap<String, String>)]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]) && !quantity(self[name]).isLessThan(quantity('0')))").message("must be quantities such as 200m or 512Mi"))]
    pub requests: BTreeMap<String, Amount>,

    /// Maximum that the container may use, by resource. PostgreSQL is killed if it needs more memory.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 16))]
    #[schema(value_type = BTreeMap<String, String>)]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]) && !quantity(self[name]).isLessThan(quantity('0')))").message("must be quantities such as 200m or 512Mi"))]
    pub limits: BTreeMap<String, Amount>,
}

impl Resources {
    /// Returns why they are invalid, beginning with the field at fault.
    pub fn problem(&self) -> Option<String> {
        for (field, amounts) in [("requests", &self.requests), ("limits", &self.limits)] {
            let wrong = amounts.iter().find(|(_, Amount(text))| quantity::parse(text).is_none());
            if let Some((name, Amount(text))) = wrong {
                return Some(format!("{field}.{name}: {text:?} is not a quantity such as 200m or 512Mi"));
            }
        }
        let value = |amount: &Amount| quantity::parse(&amount.0);
        let above = self.requests.iter().find_map(|(name, request)| {
            let limit = self.limits.get(name)?;
            (value(request) > value(limit)).then_some((name, &request.0, &limit.0))
        });
        above.map(|(name, request, limit)| format!("requests.{name}: {request} is above its limit {limit}"))
    }

    /// Returns true if nothing is set.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.limits.is_empty()
    }
}

/// Encryption of the connections to the servers.
#[derive(KubeSchema, ToSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Tls {
    /// True if the servers refuse every connection of another pod that is not encrypted.
    #[serde(default)]
    pub required: bool,
}

/// Constraints on the nodes of pods, as in a Pod.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduling {
    /// Labels that a node must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,

    /// Taints of nodes that are tolerated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,

    /// Affinity of the servers. Your own `podAntiAffinity` replaces the default one, which prefers nodes without another server of this
    /// Postgresql for standbys. Only `nodeAffinity` applies to Jobs that dump.
    pub affinity: Option<Affinity>,
}

/// Which pods may connect to the database's pods.
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct NetworkAccess {
    /// True if there is a NetworkPolicy.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Peers that may connect to PostgreSQL's port, in addition to all pods of the same namespace, as in a NetworkPolicy.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.all(peer, has(peer.podSelector) || has(peer.namespaceSelector) || has(peer.ipBlock))").message("must have a podSelector, a namespaceSelector or an ipBlock each"))]
    #[x_kube(validation = Rule::new("self.all(peer, !has(peer.ipBlock) || !has(peer.podSelector) && !has(peer.namespaceSelector))").message("ipBlock cannot be combined with a podSelector or namespaceSelector"))]
    pub from: Vec<NetworkPolicyPeer>,
}

fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_and_limits() {
        for (resources, problem) in [
            (json!({}), None),
            (json!({"requests": {"cpu": "200m", "memory": "512Mi"}, "limits": {"memory": "512Mi"}}), None),
            (json!({"requests": {"cpu": "0"}, "limits": {"cpu": "1"}}), None),
            (json!({"requests": {"cpu": "1000m"}, "limits": {"cpu": "1"}}), None),
            (json!({"requests": {"memory": "lots"}}), Some("requests.memory: \"lots\" is not a quantity")),
            (json!({"limits": {"memory": "-1Gi"}}), Some("limits.memory: \"-1Gi\" is not a quantity")),
            (
                json!({"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}),
                Some("requests.memory: 1Gi is above its limit 1G"),
            ),
        ] {
            let found = serde_json::from_value::<Resources>(resources.clone()).unwrap().problem();
            let beginning = found.as_deref().map(|found| &found[..problem.map_or(0, str::len).min(found.len())]);
            assert_eq!(beginning, problem, "{resources}");
        }
    }
}
