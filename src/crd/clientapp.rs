//! `ClientApp`: one tenant's complete, isolated instance of the web app.
//!
//! The doc comments here are what `kubectl explain clientapp.spec` prints, and every rule the API server can
//! check is a rule of the schema, so that `kubectl apply` refuses at once.

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{Backup, DeletionPolicy, Owned, Parameters, PerconaOptions, Resources, Restore};

/// The instance that the tenant asks for.
#[skip_serializing_none]
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "ClientApp",
    plural = "clientapps",
    shortname = "ca",
    namespaced,
    status = "ClientAppStatus",
    derive = "PartialEq",
    doc = "A ClientApp is one tenant's complete, isolated instance of a Helm-packaged web app: credentials, Redis, PostgreSQL, storage, ingress, and a Helm release of the ClientApp's own name.",
    validation = Rule::new("self.metadata.name.size() <= 53").message("the name is used as the Helm release name and can have at most 53 characters"),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name is used for Services and must be a DNS label: lower-case letters, digits and '-', beginning with a letter"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.release.revision"),
    printcolumn(name = "Chart version", type_ = "string", json_path = ".spec.chartVersion"),
    printcolumn(name = "Hostname", type_ = "string", json_path = ".spec.hostname"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(oldSelf.persistence.size) || has(oldSelf.profile) || !has(self.persistence.size) || !isQuantity(self.persistence.size) || quantity(self.persistence.size).compareTo(quantity('8Gi')) >= 0").message("size can only grow: without one the volume has 8Gi, and a volume never shrinks").field_path(".persistence.size"))]
pub struct ClientAppSpec {
    /// The DNS name the instance is served under, in lower case, such as `acme.example.com`. Unique among the
    /// ClientApps of the cluster: of several with the same hostname, the one that is served under it already keeps it; where
    /// none is, the oldest gets it.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')").message("must be a DNS name in lower case, such as acme.example.com: letters, digits, '-' and '.', no wildcard, no trailing dot"))]
    pub hostname: String,

    /// Exact version of the chart, such as `5.5.2`: no range. helm installs this version and no other.
    #[serde(default = "default_chart_version")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)(-[0-9A-Za-z-]+([.][0-9A-Za-z-]+)*)?([+][0-9A-Za-z-]+([.][0-9A-Za-z-]+)*)?$')").message("must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'"))]
    pub chart_version: String,

    /// Name of an existing Secret in this namespace with the keys `nextcloud-username` and
    /// `nextcloud-password`. Absent: `<name>-admin-secret` is generated.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub admin_secret: Option<String>,

    /// IngressClass to serve the hostname with. Absent: no Ingress is rendered.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub ingress_class_name: Option<String>,

    /// Name of the Profile whose defaults this instance takes.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub profile: Option<String>,

    /// Container image in place of the chart's own: `repository:tag` or `repository@sha256:…`. Empty: the chart's own.
    #[serde(default)]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._/]*(:[0-9]+/[-a-zA-Z0-9._/]+)?(:[a-zA-Z0-9_][-a-zA-Z0-9._]*|@sha256:[0-9a-f]{64})$')").message("must be repository:tag or repository@sha256:<64 hex digits>"))]
    pub image: String,

    /// Number of app pods. Absent: as the Profile says, else as the chart does. More than one needs a volume that several
    /// pods can write (ReadWriteMany).
    #[schemars(range(min = 0, max = 100))]
    pub replicas: Option<i32>,

    /// The tenant's Redis, from the chart.
    #[serde(default)]
    pub redis: Redis,

    /// The tenant's PostgreSQL.
    #[serde(default)]
    pub postgres: Postgres,

    /// The volume for the app's files.
    #[serde(default)]
    pub persistence: Persistence,

    /// Name of the ServiceAccount of this namespace with whose rights helm installs, upgrades and uninstalls the chart. What
    /// it may not do, helm may not: the condition `AccessDenied` names verb, resource and account. Absent:
    /// `clientapp-deployer`, which the operator creates with a RoleBinding to the ClusterRole of that name. Any other account
    /// you create and bind yourself, and a cluster admin lets the operator impersonate it.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be the name of a ServiceAccount: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"))]
    pub service_account_name: Option<String>,

    /// What has to happen before helm installs another `chartVersion`.
    #[serde(default)]
    pub upgrade: Upgrade,

    /// What follows when an object of the release is deleted, or taken off it, by another client. It is about Deployments,
    /// StatefulSets, Services, ConfigMaps, Secrets, Ingresses, NetworkPolicies and PodDisruptionBudgets.
    #[serde(default)]
    pub drift: Drift,

    /// Further values for the chart. Layers, later wins: the operator's base values, the Profile, these values, what the
    /// operator computes. A key that it computes is refused, and the message names the field to use instead:
    /// `nextcloud.host`, `nextcloud.existingSecret`, `nextcloud.username`, `nextcloud.password`, `ingress.enabled`,
    /// `ingress.className`, `redis.enabled`, `redis.auth`, `persistence.enabled`, `persistence.size`,
    /// `persistence.storageClass`, `image.repository`, `image.tag`, `replicaCount`, and, while `postgres.enabled` is true,
    /// `internalDatabase` and `externalDatabase`. Values reach the chart exactly as they are stored here; `null` removes a
    /// default of the chart. A number that helm, which reads numbers as 64-bit floats, would change is refused: put it into
    /// quotes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::any_object")]
    pub values: Map<String, Value>,

    /// While true the operator changes nothing for this ClientApp and, if it is deleted, takes nothing down. Its status is
    /// still kept up to date.
    #[serde(default)]
    pub suspend: bool,

    /// What becomes of the database, the volumes and the generated administrator's Secret when the ClientApp is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// The tenant's Redis.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Redis {
    /// Whether the instance has a Redis of its own, with a generated password.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// The tenant's PostgreSQL.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.provider == oldSelf.provider").message("provider is immutable: data does not move by itself; make a new ClientApp and restore a dump into it").field_path(".provider"))]
#[x_kube(validation = Rule::new("!self.enabled || (self.provider == 'external') == has(self.external)").message("external names the database of the provider external: that provider needs it, and no other has it").field_path(".external"))]
#[x_kube(validation = Rule::new("!isQuantity(self.storageSize) || !isQuantity(oldSelf.storageSize) || quantity(self.storageSize).compareTo(quantity(oldSelf.storageSize)) >= 0").message("storageSize can only grow: a volume never shrinks").field_path(".storageSize"))]
#[x_kube(validation = Rule::new("self.provider == 'standalone' || !has(self.backup)").message("backup is for the provider standalone; percona.schedules and upgrade.backup say when Percona's clusters are backed up").field_path(".backup"))]
#[x_kube(validation = Rule::new("self.provider == 'standalone' || !has(self.parameters)").message("parameters are for the provider standalone; Percona's clusters have them in patroni.dynamicConfiguration, and an existing database in its own configuration").field_path(".parameters"))]
#[x_kube(validation = Rule::new("self.provider != 'external' || !has(self.resources)").message("resources are of a database that is made for this instance, and an existing one has its own").field_path(".resources"))]
#[x_kube(validation = Rule::new("self.provider == 'standalone' || !has(self.restore)").message("restore is for the provider standalone; percona.dataSource says what a PerconaPGCluster is made from").field_path(".restore"))]
#[x_kube(validation = Rule::new("!has(self.backup) || !has(self.backup.request)").message("ask for a dump now with `kubectl clientapp backup`; here it is said when dumps are taken").field_path(".backup.request"))]
#[x_kube(validation = Rule::new("self.provider == 'percona' || !has(self.percona)").message("percona is for the provider percona").field_path(".percona"))]
#[x_kube(validation = Rule::new("!has(oldSelf.percona) || !has(oldSelf.percona.repository) || (has(self.percona) && has(self.percona.repository))").message("a repository stays, since the backups in it do: what is backed up would no longer be found").field_path(".percona.repository"))]
#[x_kube(validation = Rule::new("!has(self.percona) || !has(self.percona.dataSource) || (has(oldSelf.percona) && has(oldSelf.percona.dataSource) && self.percona.dataSource == oldSelf.percona.dataSource)").message("a new database only is made from a dataSource, and what it is cannot change: `kubectl clientapp restore` restores the database of a ClientApp, and for another dataSource make another ClientApp").field_path(".percona.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.percona) || !has(self.percona.dataSource) || !self.adopt").message("dataSource makes a new database, and adopt goes on with the old one: choose").field_path(".percona.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.restore) || !self.adopt").message("restore makes a new database, and adopt goes on with the old one: choose").field_path(".restore"))]
pub struct Postgres {
    /// Whether the instance has a PostgreSQL database of its own.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Where the database comes from: `percona` (a PerconaPGCluster, made for this instance), `standalone` (a Postgresql of
    /// this operator, made for this instance) or `external` (a database that exists already). Immutable.
    #[serde(default)]
    pub provider: PostgresProvider,

    /// Major version of PostgreSQL, 14 to 18.
    #[serde(default = "default_postgres_version")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.matches('^1[3-8]$')").message("must be a major version of PostgreSQL from \"13\" to \"18\""))]
    pub version: String,

    /// Size of the database's volume, such as `1Gi`. Only grows.
    #[serde(default = "super::default_storage")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub storage_size: String,

    /// Number of PostgreSQL instances. With the provider `percona`, more than one are a cluster with automatic failover; with
    /// `standalone`, all above one are hot standbys without automatic failover.
    #[serde(default = "super::number::<1>")]
    #[schemars(range(min = 1, max = 9))]
    pub instances: i32,

    /// Whether this ClientApp adopts what an earlier ClientApp of its name left under `deletionPolicy: Retain`: database,
    /// volumes, and the Secrets that open them. If false, the operator creates nothing while such data exist.
    #[serde(default)]
    pub adopt: bool,

    /// Dumps of the database by schedule and before a deletion, and drills that restore them, for the provider `standalone`.
    pub backup: Option<Backup>,

    /// The dump that the database is made from, in place of an empty one, for the provider `standalone`. It counts until the
    /// database is made, and never after.
    pub restore: Option<Restore>,

    /// Backups, for the provider `percona`: where they are kept, when they are made, and those that the database is made from.
    pub percona: Option<PerconaOptions>,

    /// Requests and limits of each PostgreSQL instance, for the providers `percona` and `standalone`. A change restarts the
    /// database.
    pub resources: Option<Resources>,

    /// Settings of PostgreSQL, such as `{max_connections: "200"}`, for the provider `standalone`. A change restarts the database.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "super::parameters::schema")]
    pub parameters: Parameters,

    /// The existing database, for the provider `external`; `version`, `storageSize` and `instances` do not apply to it.
    pub external: Option<ExternalPostgres>,
}

/// A PostgreSQL database that exists already, and the Secret that opens it. The operator never changes or deletes either.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ExternalPostgres {
    /// Name of a Secret in this namespace.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub secret_name: String,

    /// Key with the user's name.
    #[serde(default = "default_user_key")]
    #[schemars(length(min = 1, max = 253))]
    pub user_key: String,

    /// Key with the user's password.
    #[serde(default = "super::default_password_key")]
    #[schemars(length(min = 1, max = 253))]
    pub password_key: String,

    /// Key with the server's DNS name or address, followed by `:port` if the port is not 5432.
    #[serde(default = "default_host_key")]
    #[schemars(length(min = 1, max = 253))]
    pub host_key: String,

    /// Key with the database's name.
    #[serde(default = "default_database_key")]
    #[schemars(length(min = 1, max = 253))]
    pub database_key: String,

    /// The server, such as `db.example.com` or `db.example.com:6432`; overrides `hostKey`.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^([[][0-9a-fA-F:.]+[]]|[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?)(:[1-9][0-9]{0,4})?$')").message("must be a DNS name or an address, with :port behind it where that is not 5432"))]
    pub host: Option<String>,

    /// The database's name; overrides `databaseKey`.
    #[schemars(length(min = 1, max = 63))]
    pub database: Option<String>,
}

/// Where the database comes from.
#[derive(JsonSchema, ToSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PostgresProvider {
    /// A PerconaPGCluster, made for this instance.
    #[default]
    Percona,
    /// A Postgresql of this operator, made for this instance.
    Standalone,
    /// A database that exists already.
    External,
}

/// What has to happen before helm installs another `chartVersion`.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Upgrade {
    /// Whether the database is backed up before each change of `chartVersion`: by a PerconaPGBackup, or by a dump of the
    /// Postgresql. helm runs only after the backup has succeeded; a backup older than half an hour is taken anew.
    #[serde(default)]
    pub backup: bool,

    /// The one `chartVersion` that may be installed although it brings an older version of the app, or skips one of its major
    /// versions. It is for one change: it is spent once that version is installed or `chartVersion` names another, and counts
    /// again only after the field was removed or changed.
    #[schemars(length(min = 1, max = 63))]
    pub allow: Option<String>,

    /// How long a lock is respected that another Helm client has put on the release, such as `30m` or `2h`: after that, counted
    /// from when the lock was taken, it is taken over. Absent: it is respected for ever.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('5m') && duration(self) <= duration('720h')").message("must be a duration such as 30m or 2h, at least 5m and at most 720h"))]
    pub foreign_lock_timeout: Option<String>,
}

/// What follows when an object of the release is missing.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum Drift {
    /// It is recreated as helm has made it, without a new revision; but no StatefulSet whose claims go with it.
    #[default]
    Repair,
    /// `Ready` says so, and nothing is made.
    Report,
    /// Nothing, but that a workload that is not there is not ready.
    Ignore,
}

/// The volume for the app's files.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.size) || !isQuantity(oldSelf.size) || has(self.size) && (!isQuantity(self.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)").message("size can only grow: a volume never shrinks, and a size is not taken back").field_path(".size"))]
pub struct Persistence {
    /// Whether the app's files are kept on a volume; without one they are lost with the pod. Absent: as the Profile says,
    /// else true.
    pub enabled: Option<bool>,

    /// Size of the volume, such as `8Gi`. Only grows. Absent: as the Profile says, else `8Gi`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 8Gi or 500Mi (not GB)"))]
    pub size: Option<String>,

    /// StorageClass of the volume. Empty: the cluster's default class.
    #[serde(default)]
    #[schemars(length(max = 253), regex(pattern = super::OBJECT_NAME_OR_NOTHING))]
    pub storage_class_name: String,
}

/// What the operator last saw and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAppStatus {
    /// The generation of the spec that the conditions speak of.
    pub observed_generation: Option<i64>,

    /// `Ready` sums up `PostgresReady`, `Released` and `WorkloadsReady`. `Reconciling`: work is under way. `Stalled`: nothing
    /// goes on until a user or a cluster admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The Helm release, as `helm list` shows it.
    pub release: Option<Release>,

    /// Secret with the administrator's name and password.
    pub admin_secret_name: Option<String>,

    /// Secret with the Redis password.
    pub redis_secret_name: Option<String>,

    /// The PerconaPGCluster or Postgresql that was made for this instance.
    pub postgres_cluster_name: Option<String>,

    /// Where the instance is served.
    pub url: Option<String>,

    /// The chart that was installed last. Unlike `release` it stays when the release is gone, since the data are still those
    /// of its app.
    pub installed: Option<InstalledChart>,

    /// Objects that hold or open data and were made for this ClientApp or adopted by it. An object whose uid is not on this
    /// list is never deleted with the ClientApp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<Owned>,

    /// Whether the ClientApp is deleted with `--cascade=orphan`; recorded when the deletion begins.
    pub orphaned: Option<bool>,

    /// What the release consists of, from the manifest that Helm stored.
    pub inventory: Option<Inventory>,

    /// The last backup that was taken before an upgrade.
    pub backup: Option<BackupRecord>,

    /// The value of `spec.upgrade.allow` that is spent: it does not count until the field is removed or changed.
    pub spent_allow: Option<String>,

    /// The last time helm was run for this ClientApp, or was about to be.
    pub last_attempt: Option<Attempt>,
}

/// A Helm release.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Release {
    /// Name of the release: the ClientApp's own.
    pub name: String,
    /// Namespace of the release: the ClientApp's own.
    pub namespace: String,
    /// Revision, as in `helm history`.
    pub revision: i64,
    /// State of the release as Helm spells it, such as `deployed` or `failed`.
    pub status: String,
    /// Name of the chart.
    pub chart: Option<String>,
    /// Version of the chart.
    pub chart_version: Option<String>,
    /// Version of the app in the chart.
    pub app_version: Option<String>,
    /// Digest of chart version, values and flags. A release whose digest is unchanged is not upgraded again.
    pub digest: Option<String>,
    /// sha256 of the chart archive that was installed. The same version with another digest is refused.
    pub chart_digest: Option<String>,
    /// When the revision was written.
    pub deployed_at: Option<Time>,
}

/// What a revision of a release consists of.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// uid of the Secret in which Helm stored the revision: numbers of revisions begin anew after an uninstall.
    pub secret: String,
    /// The objects, in the order in which Helm applied them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ReleaseObject>,
    /// Jobs of the chart's hooks, which Helm does not count among the objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hook_jobs: Vec<String>,
    /// Of an installation: the chart's hooks that Helm runs with no upgrade, and that are not through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub install_hooks: Vec<String>,
    /// The hosts of its Ingresses, which no other ClientApp may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// An object of a release.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseObject {
    /// Group and version.
    pub api_version: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Namespace, where the chart names another than the release's.
    pub namespace: Option<String>,
    /// Whether `helm uninstall` keeps it (`helm.sh/resource-policy: keep`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Of a StatefulSet: the names of its claim templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_templates: Vec<String>,
    /// Of a StatefulSet: whether its claims go with it (`persistentVolumeClaimRetentionPolicy.whenDeleted: Delete`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_claims: bool,
    /// Of a Deployment or StatefulSet: how many pods the chart asks for.
    pub replicas: Option<i64>,
}

impl ReleaseObject {
    pub(crate) fn group_version(&self) -> (&str, &str) {
        self.api_version.split_once('/').unwrap_or(("", &self.api_version))
    }
}

/// A chart.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InstalledChart {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Version of the app in it.
    pub app_version: Option<String>,
    /// sha256 of its archive.
    pub digest: String,
}

/// A backup before an upgrade.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackupRecord {
    /// `PerconaPGBackup`, or `Postgresql` for a dump that the Postgresql takes.
    pub kind: String,
    /// Name of the PerconaPGBackup, or the word by which the Postgresql was asked for the dump.
    pub name: String,
    /// The chart version that was installed.
    pub from: String,
    /// The chart version that was to be installed.
    pub to: String,
    /// Its progress.
    pub state: BackupState,
    /// The newest revision of the release when it was asked for; 0 where there was none.
    pub at_revision: Option<i64>,
    /// When it was asked for, or last seen running: its content is no older than this.
    pub as_of: Option<Time>,
    /// The revision there was when this upgrade was over: the one made after the backup, or, where the upgrade was withdrawn,
    /// the one from before.
    pub revision: Option<i64>,
}

/// Progress of a backup.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum BackupState {
    /// It was asked for.
    Running,
    /// It can be restored from.
    Succeeded,
    /// It failed: it cannot be restored from.
    Failed,
}

/// One run of helm: written before it starts, completed when it ends.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Digest of what was asked of helm; failures count anew when it changes.
    pub digest: String,
    /// When the run was begun.
    pub started_at: Time,
    /// Consecutive failures with this digest.
    #[serde(default)]
    // The API server knows no unsigned formats.
    #[schemars(with = "i32", range(min = 0))]
    pub failures: u32,
    /// When helm is run again at the earliest, unless the digest changes.
    pub retry_at: Option<Time>,
    /// Class of the last failure, as in the conditions.
    pub reason: Option<String>,
    /// The chart that is installed.
    pub chart: Option<InstalledChart>,
    /// The last failure in a sentence.
    pub message: Option<String>,
}

fn yes() -> bool {
    true
}
fn default_chart_version() -> String {
    "5.5.2".to_owned()
}
fn default_postgres_version() -> String {
    "15".to_owned()
}
fn default_user_key() -> String {
    "user".to_owned()
}
fn default_host_key() -> String {
    "host".to_owned()
}
fn default_database_key() -> String {
    "dbname".to_owned()
}

impl Default for Redis {
    fn default() -> Self {
        Redis { enabled: yes() }
    }
}

impl Default for Postgres {
    fn default() -> Self {
        Postgres {
            enabled: yes(),
            provider: PostgresProvider::default(),
            version: default_postgres_version(),
            storage_size: super::default_storage(),
            instances: 1,
            adopt: false,
            backup: None,
            restore: None,
            percona: None,
            resources: None,
            parameters: Parameters::new(),
            external: None,
        }
    }
}
