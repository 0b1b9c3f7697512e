//! `Profile`: a class of instances, offered by a cluster admin.
//!
//! It has neither a controller nor a status: the ClientApps that name it follow it, and report so in their status.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::{Amount, AppTls, JobSettings};

/// The settings that ClientApps take from a Profile.
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "Profile",
    plural = "profiles",
    derive = "PartialEq",
    doc = "A Profile is a class of ClientApps: defaults and chart values for every ClientApp with its name in spec.profile. ClientApps follow changes of their Profile.",
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.defaults.replicaCount"),
    printcolumn(name = "Size", type_ = "string", json_path = ".spec.defaults.persistence.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description", priority = 1)
)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfileSpec {
    /// Description of this class of instances. Changing it changes no ClientApp.
    #[schemars(length(max = 1024))]
    pub description: String,

    /// Defaults for each ClientApp of this Profile; the ClientApp's own spec takes precedence.
    pub defaults: ProfileDefaults,

    /// Settings for helm.
    pub helm: ProfileHelm,

    /// Settings of namespaces that the HTTP API creates for instances. Existing namespaces are not changed.
    pub namespace: ProfileNamespace,
}

/// Defaults for each ClientApp of a Profile; the ClientApp's own spec takes precedence.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct ProfileDefaults {
    /// Number of app pods; `spec.replicas` of a ClientApp takes precedence. More than one needs a volume that several pods can write to
    /// (ReadWriteMany).
    #[schemars(range(min = 0, max = 100))]
    pub replica_count: Option<i32>,

    /// Requests and limits of an app pod; `spec.values.resources` of a ClientApp takes precedence.
    pub resources: Option<ProfileResources>,

    /// The volume for the app's files; `spec.persistence` of a ClientApp takes precedence.
    pub persistence: ProfilePersistence,

    /// Where the certificate of each hostname comes from; `spec.tls` of a ClientApp takes precedence. `issuer` and `secretName` apply to
    /// ClientApps with `spec.ingressClassName`.
    pub tls: Option<AppTls>,

    /// Settings of the Jobs that back up and restore the files and, if it is `standalone`, the database of a ClientApp that has these backups;
    /// each field that is set in `jobs` of its `persistence.backup` or `postgres.backup` takes precedence.
    pub jobs: Option<JobSettings>,

    /// Optional parts of the chart to enable or disable, by their key in the chart's values, such as `cronjob` or
    /// `metrics`; `spec.values` of a ClientApp takes precedence.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 64))]
    pub apps: BTreeMap<String, ProfileApp>,
}

/// Requests and limits of an app pod.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileResources {
    /// The amounts that the scheduler reserves, by resource, such as `{cpu: 200m, memory: 512Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 200m or 512Mi"))]
    pub requests: BTreeMap<String, Amount>,

    /// Maximum that a pod may use, by resource, such as `{cpu: 1000m, memory: 1024Mi}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 200m or 512Mi"))]
    pub limits: BTreeMap<String, Amount>,
}

/// The volume for the app's files.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.size) || !isQuantity(oldSelf.size) || has(self.size) && (!isQuantity(self.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)").message("size can only grow, since the volumes of the ClientApps that take it never shrink: create another Profile").field_path(".size"))]
pub struct ProfilePersistence {
    /// True if the app's files are kept on a volume.
    pub enabled: Option<bool>,

    /// Size of the volume, such as `10Gi`. It can only grow, because volumes never shrink. Raising it grows the volumes of all
    /// ClientApps that take their size from here.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 10Gi or 500Mi (not GB)"))]
    pub size: Option<String>,
}

/// An optional part of the chart.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileApp {
    /// True if it is enabled.
    pub enabled: bool,
}

/// Settings of a namespace that the HTTP API creates for an instance.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileNamespace {
    /// The Pod Security level that the namespace enforces.
    #[serde(default)]
    pub pod_security: PodSecurity,

    /// True if pods of other instances may connect to all pods in the namespace, rather than only to the app's.
    #[serde(default)]
    pub open: bool,

    /// Hard limits of a ResourceQuota, such as `{pods: "20", requests.storage: 100Gi}`. CPU and memory cannot be limited: such a quota
    /// would refuse pods without requests, such as those of databases.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32))]
    #[x_kube(validation = Rule::new("self.all(name, isQuantity(self[name]))").message("must be quantities such as 20 or 100Gi"))]
    #[x_kube(validation = Rule::new("self.all(name, !name.matches('(^|[.])(cpu|memory)$'))").message("must not limit cpu or memory: pods without requests would be refused"))]
    pub quota: BTreeMap<String, Amount>,
}

/// A level of the Pod Security Standards.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq, derive_more::Display)]
#[serde(rename_all = "lowercase")]
#[display(rename_all = "lowercase")]
pub enum PodSecurity {
    /// Unrestricted.
    Privileged,
    /// Prevents access to the node.
    #[default]
    Baseline,
    /// Only hardened pods are allowed.
    Restricted,
}

/// Settings for helm.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileHelm {
    /// Additional values for the chart, merged over the operator's base values and under `spec.values` of the ClientApp. A
    /// key that the operator computes is refused by name.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::any_object")]
    pub values: Map<String, Value>,
}
