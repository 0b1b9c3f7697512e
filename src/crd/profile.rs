//! `Profile`: a class of instances, as a cluster admin offers them.
//!
//! It has no controller and no status of its own: the ClientApps that name it follow it, and say so in theirs.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

/// What the ClientApps that name a Profile take from it.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "Profile",
    plural = "profiles",
    derive = "PartialEq",
    doc = "A Profile is a class of ClientApps: defaults and chart values that every ClientApp with its name in spec.profile takes, and takes anew when the Profile changes.",
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.defaults.replicaCount"),
    printcolumn(name = "Size", type_ = "string", json_path = ".spec.defaults.persistence.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfileSpec {
    /// What this class of instances is for. A change of it changes no ClientApp.
    #[schemars(length(max = 1024))]
    pub description: String,

    /// Defaults for each ClientApp of this Profile; its own spec wins.
    pub defaults: ProfileDefaults,

    /// Settings for helm.
    pub helm: ProfileHelm,

    /// What a namespace gets that the HTTP API makes for an instance. A change of it changes no namespace that is there.
    pub namespace: ProfileNamespace,
}

/// Defaults for each ClientApp of a Profile; its own spec wins.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfileDefaults {
    /// Number of app pods; `spec.replicas` of a ClientApp wins. More than one needs a volume that several pods can write
    /// (ReadWriteMany).
    #[schemars(range(min = 0, max = 100))]
    pub replica_count: Option<i32>,

    /// Requests and limits of an app pod; `spec.values.resources` of a ClientApp wins.
    pub resources: Option<ProfileResources>,

    /// The volume for the app's files; `spec.persistence` of a ClientApp wins.
    pub persistence: ProfilePersistence,

    /// Optional parts of the chart to switch on or off, by their key in the chart's values, such as `cronjob` or
    /// `metrics`; `spec.values` of a ClientApp wins.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub apps: BTreeMap<String, ProfileApp>,
}

/// Requests and limits of an app pod.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileResources {
    /// What the scheduler reserves, by resource, such as `{cpu: 200m, memory: 512Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 200m or 512Mi"))]
    pub requests: BTreeMap<String, Amount>,

    /// What a pod may use at most, by resource, such as `{cpu: 1000m, memory: 1024Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 200m or 512Mi"))]
    pub limits: BTreeMap<String, Amount>,
}

/// A quantity, such as `200m` or `512Mi`.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[schemars(inline)]
pub struct Amount(#[schemars(length(max = 32))] pub String);

/// The volume for the app's files.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.size) || !isQuantity(oldSelf.size) || has(self.size) && (!isQuantity(self.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)").message("size can only grow, since the volumes of the ClientApps that take it never shrink: make another Profile").field_path(".size"))]
pub struct ProfilePersistence {
    /// Whether the app's files are kept on a volume.
    pub enabled: Option<bool>,

    /// Size of the volume, such as `10Gi`. Raising it grows the volumes of all ClientApps that take their size from here. Only
    /// grows: a volume never shrinks.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 10Gi or 500Mi (not GB)"))]
    pub size: Option<String>,
}

/// An optional part of the chart.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileApp {
    /// Whether it is switched on.
    pub enabled: bool,
}

/// What a namespace gets that the HTTP API makes for an instance.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileNamespace {
    /// The Pod Security level that it enforces.
    #[serde(default)]
    pub pod_security: PodSecurity,

    /// Whether pods of other instances may connect to all of its pods, and not to the app's alone.
    #[serde(default)]
    pub open: bool,

    /// Hard limits of a ResourceQuota, such as `{pods: "20", requests.storage: 100Gi}`. None of processor time or memory: it would
    /// refuse each pod that does not say what it needs, such as those of databases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 20 or 100Gi"))]
    #[x_kube(validation = Rule::new("self.all(name, !name.matches('(^|[.])(cpu|memory)$'))").message("must not limit cpu or memory: pods that do not say what they need would be refused"))]
    pub quota: BTreeMap<String, Amount>,
}

/// A level of the Pod Security Standards.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum PodSecurity {
    /// Nothing is refused.
    Privileged,
    /// No way to the node.
    #[default]
    Baseline,
    /// Hardened pods only.
    Restricted,
}

/// Settings for helm.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileHelm {
    /// Further values for the chart, merged over the operator's base values and under `spec.values` of the ClientApp. A
    /// key that the operator computes is refused by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::any_object")]
    pub values: Map<String, Value>,
}
