//! `Profile`: a class of instances, offered by a cluster admin.
//!
//! What it gives its ClientApps is a revision, as a ControllerRevision in the operator's namespace; a change of it reaches them in waves.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, Time},
    util::intstr::IntOrString,
};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::{Amount, AppTls, JobSettings};

/// The settings that ClientApps take from a Profile.
#[skip_serializing_none]
#[derive(CustomResource, JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "Profile",
    plural = "profiles",
    status = "ProfileStatus",
    derive = "PartialEq",
    doc = "A Profile is a class of ClientApps: defaults and chart values for every ClientApp with its name in spec.profile. ClientApps follow changes of their Profile, in waves.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.updateRevision"),
    printcolumn(name = "Apps", type_ = "integer", json_path = ".status.apps"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedApps"),
    printcolumn(name = "Replicas", type_ = "integer", json_path = ".spec.defaults.replicaCount"),
    printcolumn(name = "Size", type_ = "string", json_path = ".spec.defaults.persistence.size"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Description", type_ = "string", json_path = ".spec.description", priority = 1),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
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

    /// How a change of this Profile, or of the operator's base values, reaches its ClientApps. Absent: first one of them, then 10 %, then
    /// the rest, each wave once those before it have been Ready for a minute.
    pub rollout: Option<ProfileRollout>,
}

/// How a revision of a Profile reaches its ClientApps.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileRollout {
    /// How many ClientApps have the revision after each wave, as numbers or percent of all that count; the last wave is always all of
    /// them. Absent: `[1, 10%]`.
    #[serde(default)]
    #[schemars(schema_with = "waves")]
    pub waves: Option<Vec<IntOrString>>,

    /// Labels of the ClientApps that are the first in line.
    #[x_kube(validation = Rule::new("has(self.matchLabels) && size(self.matchLabels) > 0 || has(self.matchExpressions) && size(self.matchExpressions) > 0").message("an empty selector would select all: name labels"))]
    pub canary: Option<LabelSelector>,

    /// How many ClientApps of this Profile may be other than Ready before another one gets the revision, those that are so for reasons of
    /// their own included; a number or percent. Absent: any number.
    #[serde(default)]
    #[schemars(schema_with = "share")]
    #[x_kube(validation = Rule::new("type(self) == int ? int(self) >= 1 : string(self).matches('^([1-9][0-9]?|100)%$')").message("must be a number from 1, or a percentage from 1% to 100%"))]
    pub max_unavailable: Option<IntOrString>,

    /// How long all ClientApps of a wave have to be Ready, and healthy, before the next wave begins, such as `10m`. Absent: `1m`.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) <= duration('168h')").message("must be a duration such as 10m, at most 168h"))]
    pub soak: Option<String>,

    /// When ClientApps may get a revision. Absent: at any time. One whose turn has come goes on when the window closes, also if helm has
    /// not run for it yet; the way back to an earlier revision waits for no window.
    pub window: Option<RolloutWindow>,

    /// The number of ClientApps that have to fail with the revision for the rollout to stop. It goes on once fewer have failed. Absent: 1.
    #[schemars(range(min = 1))]
    pub stop_at_failures: Option<i32>,

    /// True if no further ClientApp gets a revision.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,

    /// The revision that the ClientApps are to have, instead of the newest: to go back to it, or to stay with it while the Profile is
    /// edited.
    #[schemars(range(min = 1))]
    pub revision: Option<i64>,

    /// A request that the operator makes to each ClientApp with the revision, before a further wave begins: once it is Ready, and once more when its
    /// soak ends. Absent: Ready is enough.
    pub health: Option<HealthCheck>,
}

/// A window of time that opens again and again.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutWindow {
    /// When it opens, in cron notation, such as `0 22 * * 1-4`.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 22 * * 1-4', or @daily"))]
    pub schedule: String,

    /// How long it is open, such as `4h`.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('1m') && duration(self) <= duration('168h')").message("must be a duration such as 4h, from 1m to 168h"))]
    pub duration: String,

    /// Time zone of `schedule`, such as `Europe/Berlin`. Absent: UTC.
    #[schemars(length(max = 64))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Z][-+_A-Za-z0-9/]*$') && self != 'Local' && timestamp(0).getHours(self) >= 0").message("must be the name of a time zone such as Europe/Berlin"))]
    pub time_zone: Option<String>,
}

/// A request over HTTP to the Service of a ClientApp, with its hostname as `Host`. The answer must have a status of 200 to 299; no redirect is
/// followed.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HealthCheck {
    /// Path of the request, such as `/status.php`; a query may follow it.
    #[schemars(length(max = 256))]
    #[x_kube(validation = Rule::new("self.matches('^/[-A-Za-z0-9._~!$&()*+,;=:@%/?]*$')").message("must be a path such as /status.php, without scheme, host and fragment"))]
    pub path: String,

    /// Number or name of the Service's port. Absent: the one named `http`, or else the first.
    #[serde(default)]
    #[schemars(schema_with = "port")]
    pub port: Option<IntOrString>,

    /// Values that the answer must have, which then has to be JSON of at most 64 KiB.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["pointer"]))]
    pub json: Vec<ExpectedJson>,

    /// How many seconds after a failure the ClientApp is asked again. Absent: 10.
    #[schemars(range(min = 1, max = 300))]
    pub period_seconds: Option<i32>,

    /// How many failures in a row make the ClientApp one that has failed with the revision. Absent: 12.
    #[schemars(range(min = 1, max = 100))]
    pub failure_threshold: Option<i32>,
}

/// A value that an answer must have.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedJson {
    /// JSON pointer to the value (RFC 6901), such as `/maintenance`.
    #[schemars(length(max = 128))]
    #[x_kube(validation = Rule::new("self.matches('^(/([^~/]|~[01])*)+$')").message("must be a JSON pointer such as /maintenance"))]
    pub pointer: String,
    /// The value: true, false, a number or a text.
    #[schemars(schema_with = "scalar")]
    pub value: Value,
}

fn port(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "x-kubernetes-int-or-string": true, "nullable": true, "minimum": 1, "maximum": 65535,
        "maxLength": 15, "pattern": "^[-a-z0-9]*[a-z][-a-z0-9]*$",
    })
}

fn scalar(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "x-kubernetes-preserve-unknown-fields": true, "maxLength": 64, "minProperties": 1, "maxProperties": 0, "minItems": 1, "maxItems": 0,
    })
}

fn share(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-int-or-string": true, "nullable": true})
}

/// Returns the schema of the waves. It has no rule: for Kubernetes 1.30 such a string has any length, and a rule for 32 of them costs too much.
fn waves(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let percentage = "^([1-9][0-9]?|100)%$";
    let items = schemars::json_schema!({
        "x-kubernetes-int-or-string": true, "minimum": 1, "maxLength": 4, "pattern": percentage,
    });
    schemars::json_schema!({"type": "array", "nullable": true, "maxItems": 32, "minItems": 1, "items": items})
}

/// Records the revisions of a Profile, and how far its ClientApps are.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// `Ready`: all ClientApps have `updateRevision`. `Reconciling`: they are getting it. `Stalled`: they do not, until a user or a
    /// cluster admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The revision that all ClientApps had last, and that new ones begin with.
    pub current_revision: Option<i64>,

    /// The revision that the ClientApps are to have.
    pub update_revision: Option<i64>,

    /// Number of ClientApps with this Profile.
    pub apps: Option<i32>,

    /// How many of them have `updateRevision`.
    pub updated_apps: Option<i32>,

    /// The waves, while a revision reaches the ClientApps.
    pub rollout: Option<RolloutStatus>,
}

/// Records how far a rollout is.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// The wave that it is in, beginning with 1.
    pub wave: i32,
    /// How many ClientApps have the revision after each wave.
    pub waves: Vec<i32>,
    /// The ClientApps that have failed with the revision, as `namespace/name`; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
    /// The ClientApps that the next wave waits for, because they are not Ready with the revision yet, or not healthy; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub awaited: Vec<String>,
    /// The ClientApps that do not count, because they are suspended or wait for an approval; at most ten. They get the revision last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_counted: Vec<String>,
    /// The ClientApps that are Ready with the revision, and do not answer as `spec.rollout.health` demands; at most ten.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unhealthy: Vec<UnhealthyApp>,
}

/// A ClientApp whose answer is not as demanded.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyApp {
    /// The ClientApp, as `namespace/name`.
    pub app: String,
    /// Says what its answer lacked when it was last asked.
    pub message: String,
}

/// The revision of a Profile that a ClientApp has.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct BoundRevision {
    /// Name of the Profile.
    pub profile: String,
    /// The revision.
    pub revision: i64,
    /// Name of the ControllerRevision, in the operator's namespace.
    pub name: String,
    /// Since when the ClientApp has it.
    pub since: Option<Time>,
    /// Since when the ClientApp is Ready with it.
    pub ready_since: Option<Time>,
}

/// Defaults for each ClientApp of a Profile; the ClientApp's own spec takes precedence.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ProfileDefaults {
    /// Exact version of the chart, such as `5.5.2`; `spec.chartVersion` of a ClientApp takes precedence, and pins it.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(super::EXACT_VERSION).message(super::NOT_A_VERSION))]
    pub chart_version: Option<String>,

    /// Number of app pods; `spec.replicas` of a ClientApp takes precedence. More than one needs a volume that several pods can write to
    /// (ReadWriteMany).
    #[schemars(range(min = 0, max = 100))]
    pub replica_count: Option<i32>,

    /// Requests and limits of an app pod; `spec.values.resources` of a ClientApp takes precedence.
    pub resources: Option<ProfileResources>,

    /// The volume for the app's files; `spec.persistence` of a ClientApp takes precedence.
    #[serde(default)]
    pub persistence: ProfilePersistence,

    /// Where the certificate of each hostname comes from; `spec.tls` of a ClientApp takes precedence. `issuer` and `secretName` apply to
    /// ClientApps with `spec.ingressClassName`.
    pub tls: Option<AppTls>,

    /// Settings of the Jobs that back up and restore the files and, if it is `standalone`, the database of a ClientApp that has these backups;
    /// each field that is set in `jobs` of its `persistence.backup` or `postgres.backup` takes precedence.
    pub jobs: Option<JobSettings>,

    /// Optional parts of the chart to enable or disable, by their key in the chart's values, such as `cronjob` or
    /// `metrics`; `spec.values` of a ClientApp takes precedence.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
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
