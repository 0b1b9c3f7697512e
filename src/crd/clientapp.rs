//! `ClientApp`: one tenant's complete, isolated instance of the web app.
//!
//! The doc comments here are the output of `kubectl explain clientapp.spec`. Every rule that the API server can check is part of the
//! schema, so that `kubectl apply` fails at once.

use clap::ValueEnum;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{
    AppTls, Backup, BoundRevision, CloudNativePgOptions, DeletionPolicy, JobSettings, Owned, Parameters,
    PerconaOptions, RepositoryPassword, Resources, Restore, Scheduled, Store, Tls, ValuesReference,
};

/// Longest name of a new ClientApp. The published charts make `<name>-redis-replicas` a StatefulSet, whose pods have a label with
/// `-` and a hash of up to 10 characters after it, of at most 63; and `<name>-nextcloud-cron` a CronJob, of at most 52.
pub const MAX_NAME: usize = 37;
/// The end of a sentence about a name longer than that.
pub const NAME_TOO_LONG: &str =
    "can have at most 37 characters: the chart's objects append up to 26 to it, and Kubernetes allows 63";

/// The chart's version if neither spec nor Profile sets it.
pub const DEFAULT_CHART_VERSION: &str = "5.5.2";

/// The instance that the tenant requests.
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
    // A name is for life: ClientApps that were created with a longer one can still be changed and deleted.
    validation = Rule::new(format!("self.metadata.name.size() <= {MAX_NAME} || oldSelf.hasValue()")).message(&*format!("the name {NAME_TOO_LONG}")).optional_old_self(true),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')").message("the name is used for Services and must be a DNS label: lower-case letters, digits and '-', beginning with a letter"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.release.revision"),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.release.chartVersion"),
    printcolumn(name = "Hostname", type_ = "string", json_path = ".spec.hostname"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Pinned", type_ = "string", json_path = ".spec.chartVersion", priority = 1),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1)
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(oldSelf.persistence.size) || has(oldSelf.profile) || !has(self.persistence.size) || !isQuantity(self.persistence.size) || quantity(self.persistence.size).compareTo(quantity('8Gi')) >= 0").message("size can only grow: without one the volume has 8Gi, and a volume never shrinks").field_path(".persistence.size"))]
#[x_kube(validation = Rule::new("!self.upgrade.backup || !self.postgres.enabled || self.postgres.provider != 'cloudnativepg' || has(self.postgres.backup)").message("backup needs a bucket with postgres.provider cloudnativepg: set postgres.backup, or upgrade.backup to false").field_path(".upgrade.backup"))]
#[x_kube(validation = Rule::new("!has(self.tls) || has(self.tls.terminatedElsewhere) || has(self.ingressClassName)").message("issuer and secretName are for the Ingress: set ingressClassName as well, or terminatedElsewhere instead").field_path(".tls"))]
pub struct ClientAppSpec {
    /// DNS name that the app is served under, in lower case, such as `acme.example.com`. It must be unique among the ClientApps of the
    /// cluster: the first that has it keeps it. After a restart of the operator, that is the one that is already served under it, else
    /// the oldest.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new(super::HOSTNAME).message(super::NOT_A_HOSTNAME))]
    pub hostname: String,

    /// Exact version of the chart, such as `5.5.2`; ranges are not allowed. helm installs exactly this version. Absent: as set by the
    /// Profile, otherwise `5.5.2`.
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new(super::EXACT_VERSION).message(super::NOT_A_VERSION))]
    pub chart_version: Option<String>,

    /// Name of an existing Secret in this namespace with the keys `nextcloud-username` and `nextcloud-password`. Absent:
    /// `<name>-admin-secret` is generated.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub admin_secret: Option<String>,

    /// IngressClass to serve the hostname with. Absent: no Ingress is rendered.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub ingress_class_name: Option<String>,

    /// Where the certificate of the hostname comes from. Absent: as set by the Profile, otherwise the app is served without TLS, unless
    /// `values` set `ingress.tls`.
    pub tls: Option<AppTls>,

    /// Name of the Profile that this instance takes defaults from.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub profile: Option<String>,

    /// Container image to use instead of the chart's own: `repository:tag`, `repository@sha256:…` or both, in lower case, with or
    /// without a registry. Empty: the chart's own.
    #[serde(default)]
    #[schemars(length(max = 512))]
    #[x_kube(validation = Rule::new("self == '' || self.matches('^[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(:[0-9]+/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)?(/[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*)*(:[a-zA-Z0-9_][-a-zA-Z0-9._]{0,127}(@sha256:[0-9a-f]{64})?|@sha256:[0-9a-f]{64})$')").message("must be repository:tag or repository@sha256:<64 hex digits>, in lower case"))]
    pub image: String,

    /// Number of app pods. Absent: as set by the Profile, otherwise by the chart. More than one needs a volume that several
    /// pods can write to (ReadWriteMany).
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

    /// Name of a ServiceAccount in this namespace with whose rights helm installs, upgrades and uninstalls the chart. If helm lacks a
    /// right, the condition `AccessDenied` names verb, resource and account. Absent: `clientapp-deployer`, which the operator creates
    /// with a RoleBinding to the ClusterRole of that name. Any other account must be created and bound by you, and a cluster admin
    /// must allow the operator to impersonate it.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')").message("must be the name of a ServiceAccount: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"))]
    pub service_account_name: Option<String>,

    /// Requirements before helm installs another `chartVersion`.
    #[serde(default)]
    pub upgrade: Upgrade,

    /// Decides whether helm installs what the spec asks for at once, or only what a user has approved. With `Manual`, everything that gives a
    /// new revision waits: the installation, another `chartVersion`, other values, a changed Profile, changed credentials.
    #[serde(default)]
    pub approval: Approval,

    /// The digest in `status.plan` that a user approves, with `approval: Manual`. It approves exactly that plan; `kubectl clientapp
    /// plan` shows what it changes, and `kubectl clientapp approve` sets this field.
    #[schemars(length(min = 1, max = 63))]
    pub approved: Option<String>,

    /// Helm's tests of the chart.
    #[serde(default)]
    pub test: Test,

    /// Objects of this namespace that have to be Ready before helm installs or upgrades the chart. A release that is installed stays
    /// as it is when they are not Ready later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub depends_on: Vec<Dependency>,

    /// Reaction when another client deletes an object of the release, changes a field that helm set, or removes Helm's marks. Applies to Deployments,
    /// StatefulSets, Services, ConfigMaps, Secrets, Ingresses, NetworkPolicies and PodDisruptionBudgets.
    #[serde(default)]
    pub drift: Drift,

    /// Fields that other clients may edit, in objects of the release: they are neither reported nor put back. The next upgrade
    /// resets them all the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub drift_ignore: Vec<DriftIgnore>,

    /// Values for the chart from Secrets and ConfigMaps of this namespace; later entries take precedence, and `values` over all of
    /// them. They are read as the account that helm acts as, and must not set computed keys either. A change of their content is
    /// installed at once. A Secret that contains a token of Kubernetes or a release of Helm is refused, and so is an object of this
    /// ClientApp's own release.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub values_from: Vec<ValuesReference>,

    /// Additional values for the chart. The layers, where later ones take precedence: the operator's base values, the Profile,
    /// `valuesFrom`, these values, values computed by the operator. A key that the operator computes is refused, and the message
    /// names the field to use instead: `nextcloud.host`, `nextcloud.existingSecret`, `nextcloud.username`, `nextcloud.password`,
    /// `ingress.enabled`, `ingress.className`, `redis.enabled`, `redis.auth`, `persistence.enabled`, `persistence.size`,
    /// `persistence.storageClass`, `image.repository`, `image.tag`, `replicaCount`, while `image` is set
    /// `image.registry`, while `postgres.enabled` is true `internalDatabase` and `externalDatabase`, with a Secret in `tls`
    /// `ingress.tls`, with an issuer its annotations, and the annotations `podAnnotations.checksum/clientapp-credentials`,
    /// `redis.master.podAnnotations.checksum/clientapp-credentials` and
    /// `redis.replica.podAnnotations.checksum/clientapp-credentials`. Values reach the chart exactly as they are stored here; `null` removes a
    /// default of the chart, and is lost if `kubectl apply` without `--server-side` adds it to a ClientApp that exists. helm reads numbers
    /// as 64-bit floats, so a number that would change is refused: put it in quotes.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    #[schemars(schema_with = "super::any_object")]
    pub values: Map<String, Value>,

    /// While true, the operator changes nothing for this ClientApp and, if it is deleted, deletes nothing. Its status is still updated, and
    /// its files are still archived.
    #[serde(default)]
    pub suspend: bool,

    /// Decides what happens to the database, the volumes and the generated administrator's Secret when the ClientApp is deleted.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// The tenant's Redis.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Redis {
    /// True if the instance has its own Redis, with a generated password.
    #[serde(default = "yes")]
    pub enabled: bool,
}

/// The tenant's PostgreSQL.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.provider == oldSelf.provider").message("provider is immutable, because data is not moved: create a new ClientApp and restore a dump into it").field_path(".provider"))]
#[x_kube(validation = Rule::new("!self.enabled || (self.provider == 'external') == has(self.external)").message("external must be set if the provider is external, and only then").field_path(".external"))]
#[x_kube(validation = Rule::new("!isQuantity(self.storageSize) || !isQuantity(oldSelf.storageSize) || quantity(self.storageSize).compareTo(quantity(oldSelf.storageSize)) >= 0").message("storageSize can only grow: a volume never shrinks").field_path(".storageSize"))]
#[x_kube(validation = Rule::new("self.adopt || has(self.storageClassName) == has(oldSelf.storageClassName) && (!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)").message("storageClassName is immutable, because data is not moved: create another ClientApp and restore a backup into it").field_path(".storageClassName"))]
#[x_kube(validation = Rule::new("self.provider != 'external' || !has(self.storageClassName)").message("storageClassName is for a database that is created for this instance, not for an external one").field_path(".storageClassName"))]
#[x_kube(validation = Rule::new("self.provider in ['standalone', 'cloudnativepg'] || !has(self.backup)").message("backup is for the providers standalone and cloudnativepg; for percona, use percona.schedules and upgrade.backup").field_path(".backup"))]
#[x_kube(validation = Rule::new("self.provider != 'cloudnativepg' || !has(self.backup) || has(self.backup.store)").message("store is required with the provider cloudnativepg, whose backups are in a bucket").field_path(".backup.store"))]
#[x_kube(validation = Rule::new("self.provider != 'cloudnativepg' || !has(self.backup) || !(has(self.backup.size) || has(self.backup.drill) || has(self.backup.drillStore) || has(self.backup.jobs) || self.backup.onDelete || self.backup.keep != 7)").message("with the provider cloudnativepg, backup has only schedule and store; the others are for dumps").field_path(".backup"))]
#[x_kube(validation = Rule::new("self.provider != 'cloudnativepg' || !has(self.backup) || !has(self.backup.store) || !has(self.backup.store.passwordSecret)").message("passwordSecret is not supported with the provider cloudnativepg: the plugin leaves encryption to the bucket").field_path(".backup.store.passwordSecret"))]
#[x_kube(validation = Rule::new("self.provider != 'cloudnativepg' || !has(self.backup) || !has(self.backup.store) || !has(self.backup.store.keep) || self.backup.store.keep.last + self.backup.store.keep.hourly + self.backup.store.keep.yearly == 0 && [self.backup.store.keep.daily, self.backup.store.keep.weekly, self.backup.store.keep.monthly].exists_one(count, count > 0)").message("with the provider cloudnativepg, keep is how far back a restore reaches: set exactly one of daily, weekly and monthly").field_path(".backup.store.keep"))]
#[x_kube(validation = Rule::new("self.provider != 'cloudnativepg' || !has(oldSelf.backup) || !has(oldSelf.backup.store) || has(self.backup) && has(self.backup.store) && self.backup.store.bucket == oldSelf.backup.store.bucket && has(self.backup.store.prefix) == has(oldSelf.backup.store.prefix) && (!has(self.backup.store.prefix) || self.backup.store.prefix == oldSelf.backup.store.prefix)").message("the bucket and prefix of a Cluster's backups are immutable, because backups are not moved, and they cannot be removed").field_path(".backup.store"))]
#[x_kube(validation = Rule::new("self.provider in ['standalone', 'cloudnativepg'] || !has(self.parameters)").message("parameters are for the providers standalone and cloudnativepg; a PerconaPGCluster has them in patroni.dynamicConfiguration, and an external database in its own configuration").field_path(".parameters"))]
#[x_kube(validation = Rule::new("self.provider == 'standalone' || !has(self.tls)").message("tls is for the provider standalone; clusters of percona and cloudnativepg always support TLS, and an external database has it in its own configuration").field_path(".tls"))]
#[x_kube(validation = Rule::new("self.provider != 'external' || !has(self.resources)").message("resources are for a database that is created for this instance, not for an external one").field_path(".resources"))]
#[x_kube(validation = Rule::new("self.provider == 'standalone' || !has(self.restore)").message("restore is for the provider standalone; for percona, use percona.dataSource; for cloudnativepg, cloudnativepg.dataSource").field_path(".restore"))]
#[x_kube(validation = Rule::new("!has(self.backup) || !has(self.backup.request)").message("request a dump with `kubectl clientapp backup`; this field is not supported here").field_path(".backup.request"))]
#[x_kube(validation = Rule::new("self.provider == 'percona' || !has(self.percona)").message("percona is for the provider percona").field_path(".percona"))]
#[x_kube(validation = Rule::new("self.provider == 'cloudnativepg' || !has(self.cloudnativepg)").message("cloudnativepg is for the provider cloudnativepg").field_path(".cloudnativepg"))]
#[x_kube(validation = Rule::new("!has(self.cloudnativepg) || !has(self.cloudnativepg.dataSource) || (has(oldSelf.cloudnativepg) && has(oldSelf.cloudnativepg.dataSource) && self.cloudnativepg.dataSource == oldSelf.cloudnativepg.dataSource) || (has(self.cloudnativepg.cluster) && !(has(oldSelf.cloudnativepg) && has(oldSelf.cloudnativepg.cluster) && self.cloudnativepg.cluster == oldSelf.cloudnativepg.cluster))").message("dataSource is only for a new database: to set or change it later, name another Cluster in cluster at the same time").field_path(".cloudnativepg.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.cloudnativepg) || !has(self.cloudnativepg.dataSource) || !self.adopt").message("dataSource creates a new database, and adopt keeps the old one: choose one").field_path(".cloudnativepg.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.cloudnativepg) || !has(self.cloudnativepg.dataSource) || has(self.cloudnativepg.dataSource.objectStore) || has(self.backup)").message("objectStore is required without postgres.backup, whose store has the backups otherwise").field_path(".cloudnativepg.dataSource.objectStore"))]
#[x_kube(validation = Rule::new("!has(oldSelf.percona) || !has(oldSelf.percona.repository) || (has(self.percona) && has(self.percona.repository))").message("repository cannot be removed: the backups in it would no longer be found").field_path(".percona.repository"))]
#[x_kube(validation = Rule::new("!has(self.percona) || !has(self.percona.dataSource) || (has(oldSelf.percona) && has(oldSelf.percona.dataSource) && self.percona.dataSource == oldSelf.percona.dataSource)").message("dataSource is only for a new database and cannot be set or changed later: `kubectl clientapp restore` restores the database of a ClientApp; for another dataSource, create another ClientApp").field_path(".percona.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.percona) || !has(self.percona.dataSource) || !self.adopt").message("dataSource creates a new database, and adopt keeps the old one: choose one").field_path(".percona.dataSource"))]
#[x_kube(validation = Rule::new("!has(self.restore) || !self.adopt").message("restore creates a new database, and adopt keeps the old one: choose one").field_path(".restore"))]
pub struct Postgres {
    /// True if the instance has its own PostgreSQL database.
    #[serde(default = "yes")]
    pub enabled: bool,

    /// Where the database comes from: `percona` (a PerconaPGCluster created for this instance), `standalone` (a Postgresql of
    /// this operator created for this instance), `cloudnativepg` (a Cluster of CloudNativePG created for this instance) or `external`
    /// (an existing database). Immutable.
    #[serde(default)]
    pub provider: PostgresProvider,

    /// Major version of PostgreSQL, 13 to 18: `standalone` and `cloudnativepg` have 14 to 18, and with `percona` it depends on Percona's
    /// version.
    #[serde(default = "default_postgres_version")]
    #[schemars(length(max = 2))]
    #[x_kube(validation = Rule::new("self.matches('^1[3-8]$')").message("must be a major version of PostgreSQL from \"13\" to \"18\""))]
    pub version: String,

    /// Size of the database's volume, such as `1Gi`. It can only grow.
    #[serde(default = "super::default_storage")]
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub storage_size: String,

    /// StorageClass of the database's volumes, unless the provider is `external`. Absent: the cluster's default class.
    /// Immutable, except with `adopt`: it has to be the class of the database that is adopted.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub storage_class_name: Option<String>,

    /// Number of PostgreSQL instances. With the providers `percona` and `cloudnativepg`, more than one form a cluster with automatic
    /// failover; with `standalone`, the additional ones are hot standbys without automatic failover.
    #[serde(default = "super::number::<1>")]
    #[schemars(range(min = 1, max = 9))]
    pub instances: i32,

    /// True if this ClientApp adopts the data that an earlier ClientApp of its name has left under `deletionPolicy: Retain`: the
    /// database, the volumes, and the Secrets that open them. If false, the operator creates nothing while such data exists.
    #[serde(default)]
    pub adopt: bool,

    /// Dumps of the database on a schedule and before a deletion, and drills that restore them, for the provider `standalone`. With
    /// `cloudnativepg`, `schedule` and `store` alone: by its plugin barman-cloud, WAL is archived in the bucket and backups are made, in
    /// `<prefix>/<namespace>/<server>`; `store.keep` is how far back a restore reaches, and the bucket has to exist.
    pub backup: Option<Backup>,

    /// The dump to create the database from, instead of an empty one, for the provider `standalone`. Ignored once the database exists.
    pub restore: Option<Restore>,

    /// Options of the provider `percona`: where backups are kept, when they are made, and which backups to create the database from.
    pub percona: Option<PerconaOptions>,

    /// Options of the provider `cloudnativepg`: which Cluster the app has, which backups to create it from, and a connection pool.
    pub cloudnativepg: Option<CloudNativePgOptions>,

    /// Requests and limits of each PostgreSQL instance, unless the provider is `external`. A change restarts the database.
    pub resources: Option<Resources>,

    /// PostgreSQL parameters, such as `{max_connections: "200"}`, for the providers `standalone` and `cloudnativepg`. A change may restart
    /// the database.
    #[serde(default, skip_serializing_if = "Parameters::is_empty")]
    #[schemars(schema_with = "super::parameters::schema")]
    pub parameters: Parameters,

    /// Encryption of the connections to the database, for the provider `standalone`; clusters of `percona` and `cloudnativepg` always
    /// support it. A change restarts the database.
    pub tls: Option<Tls>,

    /// The existing database, for the provider `external`; `version`, `storageSize` and `instances` do not apply to it.
    pub external: Option<ExternalPostgres>,
}

/// An existing PostgreSQL database, and the Secret with its credentials. The operator never changes or deletes either.
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
    #[x_kube(validation = Rule::new("self.matches('^([[][0-9a-fA-F:.]+[]]|[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?)(:[1-9][0-9]{0,4})?$')").message("must be a DNS name or an address, followed by :port if the port is not 5432"))]
    pub host: Option<String>,

    /// The database's name; overrides `databaseKey`.
    #[schemars(length(min = 1, max = 63))]
    pub database: Option<String>,
}

/// Where the database comes from.
#[derive(JsonSchema, ToSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum PostgresProvider {
    /// A PerconaPGCluster created for this instance.
    #[default]
    Percona,
    /// A Postgresql of this operator created for this instance.
    Standalone,
    /// A Cluster of CloudNativePG created for this instance.
    #[value(name = "cloudnativepg")]
    CloudNativePg,
    /// An existing database.
    External,
}

/// Requirements before helm installs another `chartVersion`.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Upgrade {
    /// True if the database is backed up before each change of `chartVersion`, by a ClientAppBackup; with the provider `cloudnativepg`, it needs `postgres.backup`. helm runs only after the backup has succeeded; a backup older than half an hour is repeated.
    #[serde(default)]
    pub backup: bool,

    /// A `chartVersion` that may be installed although its app is older than the installed one, or skips a major version. It is valid
    /// for one change: it is spent once that version is installed or `chartVersion` names another, and is valid again only after the
    /// field was removed or changed.
    #[schemars(length(min = 1, max = 63))]
    pub allow: Option<String>,

    /// How long a lock of another Helm client on the release is respected, such as `30m` or `2h`, counted from when the lock was taken;
    /// afterwards it is taken over. Absent: forever.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('5m') && duration(self) <= duration('720h')").message("must be a duration such as 30m or 2h, at least 5m and at most 720h"))]
    pub foreign_lock_timeout: Option<String>,

    /// Decides what follows when a revision fails: when helm fails and leaves a failed revision more often than `retries` allows or, only
    /// with `Rollback`, when a revision does not become ready within `timeout`.
    #[serde(default)]
    pub on_failure: OnFailure,

    /// How many attempts follow a failed one before `onFailure` applies.
    #[serde(default = "super::number::<2>")]
    #[schemars(range(min = 0, max = 100))]
    pub retries: i32,

    /// How long a revision may take to become ready, such as `15m` or `1h`, with `onFailure: Rollback`.
    #[serde(default = "default_upgrade_timeout")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('1m') && duration(self) <= duration('24h')").message("must be a duration such as 15m, at least 1m and at most 24h"))]
    pub timeout: String,
}

impl Default for Upgrade {
    fn default() -> Self {
        Upgrade {
            backup: false,
            allow: None,
            foreign_lock_timeout: None,
            on_failure: OnFailure::default(),
            retries: 2,
            timeout: default_upgrade_timeout(),
        }
    }
}

/// Decides whether helm runs at once.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum Approval {
    /// At once.
    #[default]
    Automatic,
    /// Once `spec.approved` is the digest in `status.plan`. A rollback by `upgrade.onFailure` needs no approval: it goes back to what
    /// was installed before.
    Manual,
}

/// Helm's tests of the chart: its hooks of the kind `test`, which check that the app works.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Test {
    /// True if each new revision is tested once its workloads are ready, with `helm test`. Ready waits for the tests. After a failure
    /// they are repeated at growing intervals; `upgrade.onFailure` and `upgrade.retries` apply to them as well.
    #[serde(default)]
    pub enabled: bool,

    /// How long the tests of a revision may take, such as `5m`.
    #[serde(default = "default_test_timeout")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('10s') && duration(self) <= duration('1h')").message("must be a duration such as 5m, at least 10s and at most 1h"))]
    pub timeout: String,
}

impl Default for Test {
    fn default() -> Self {
        Test { enabled: false, timeout: default_test_timeout() }
    }
}

/// Decides what follows when a revision fails.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum OnFailure {
    /// helm tries again, at growing intervals of up to 10 minutes.
    #[default]
    Retry,
    /// Nothing, until the spec changes or a user asks for another attempt.
    Stop,
    /// The release goes back to the last revision that was Ready, if that has the same version of the app, and stays there until
    /// the spec changes or a user asks for another attempt. Otherwise as with `Stop`: an older app does not understand data that a
    /// newer one has migrated.
    Rollback,
}

/// An object that has to be Ready first.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.apiVersion) || self.kind in ['ClientApp', 'Postgresql']").message("apiVersion must be set if the kind is neither ClientApp nor Postgresql").field_path(".apiVersion"))]
pub struct Dependency {
    /// API group and version of an object of another kind, such as `example.com/v1`. The object needs a condition `Ready`, and is
    /// read as the account that helm acts as. Absent: the operator's own.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?v[0-9][a-z0-9]*$')").message("must be a group and version such as example.com/v1"))]
    pub api_version: Option<String>,

    /// Kind of the object.
    #[serde(default = "client_app")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Z][A-Za-z0-9]*$')").message("must be a kind such as ClientApp"))]
    pub kind: String,

    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
}

impl Dependency {
    /// Returns true if it is a ClientApp.
    pub fn is_app(&self) -> bool {
        self.api_version.is_none() && self.kind == client_app()
    }
}

/// Fields of objects of the release that may differ from what helm set.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct DriftIgnore {
    /// Kind of the objects, such as `Deployment`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,

    /// Name of the object. Absent: all objects of this kind.
    #[schemars(length(min = 1, max = 253))]
    pub name: Option<String>,

    /// JSON pointers (RFC 6901) to the fields, such as `/spec/replicas` or `/metadata/annotations/example.com~1note`. An index of a
    /// list counts in what the chart renders; items with a name are then found by their name. A pointer to a field that an object
    /// does not have has no effect.
    #[schemars(length(min = 1, max = 32), inner(length(max = 256)))]
    #[x_kube(validation = Rule::new("self.all(path, path.matches('^(/([^~/]|~0|~1)+)+$'))").message("must be JSON pointers such as /spec/replicas; in a name, '/' is written as ~1 and '~' as ~0"), validation = Rule::new("self.all(path, !path.matches('^/(kind|apiVersion|status)(/|$)') && (!path.matches('^/metadata(/|$)') || path.matches('^/metadata/(labels|annotations)(/|$)')))").message("can be anything but kind, apiVersion and status; of metadata, only labels and annotations"))]
    pub paths: Vec<String>,
}

/// Reaction when an object of the release is missing or edited.
#[derive(JsonSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum Drift {
    /// The object is recreated, or its fields are set, as helm did it, without a new revision; except that StatefulSets whose claims are
    /// deleted with them are not recreated.
    #[default]
    Repair,
    /// `Ready` reports it, and nothing is changed.
    Report,
    /// Ignored, except that a missing workload is not ready.
    Ignore,
}

/// The volume for the app's files.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(oldSelf.size) || !isQuantity(oldSelf.size) || has(self.size) && (!isQuantity(self.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0)").message("size can only grow and cannot be removed: a volume never shrinks").field_path(".size"))]
pub struct Persistence {
    /// True if the app's files are kept on a volume; without a volume, they are lost with the pod. Absent: as set by the Profile,
    /// otherwise true.
    pub enabled: Option<bool>,

    /// Size of the volume, such as `8Gi`. It can only grow. Absent: as set by the Profile, otherwise `8Gi`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 8Gi or 500Mi (not GB)"))]
    pub size: Option<String>,

    /// StorageClass of the volume. Empty: the cluster's default class.
    #[serde(default)]
    #[schemars(length(max = 253), regex(pattern = super::OBJECT_NAME_OR_NOTHING))]
    pub storage_class_name: String,

    /// Archives of the app's files in S3-compatible storage. Absent: none.
    pub backup: Option<FilesBackup>,
}

/// Archives of the app's files: all volumes of the release, except those of StatefulSets such as Redis. Files that the app changes
/// meanwhile are archived as they are read.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct FilesBackup {
    /// When to archive, in cron notation, such as `30 3 * * *`, in UTC; best after the dump of the database, so
    /// that no file that the database lists is missing. Absent: only on request, with `kubectl clientapp backup`.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '30 3 * * *', or @daily"))]
    pub schedule: Option<String>,

    /// Where the archives are uploaded to: the repository `<prefix>/<namespace>/<name>.files` of the bucket.
    pub store: Store,

    /// uid and gid that own the files, with which they are read and restored: 33 in Nextcloud's images that are based on Debian, 82 in
    /// those based on Alpine.
    #[serde(default = "super::number::<33>")]
    #[schemars(range(min = 1, max = 65_534))]
    pub user: i32,

    /// Settings of the Jobs that archive and restore the files.
    pub jobs: Option<JobSettings>,
}

impl FilesBackup {
    /// Prefix of all objects of this ClientApp's archives. No Postgresql has it, since their names contain no dot.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        self.store.path(namespace, &format!("{name}.files"))
    }

    /// Returns true if this path in a bucket ends as that of the app's archives does, whatever its prefix.
    pub fn is_path_of(path: &str, namespace: &str, name: &str) -> bool {
        format!("/{path}").ends_with(&format!("/{namespace}/{name}.files"))
    }

    /// Returns restic's name of that repository.
    pub fn repository(&self, namespace: &str, name: &str) -> String {
        let bucket = &self.store.bucket;
        format!("s3:{}/{}/{}", bucket.endpoint.trim_end_matches('/'), bucket.bucket, self.path(namespace, name))
    }
}

impl ClientApp {
    /// Returns true while it is backed up before an upgrade that is still asked for.
    pub fn is_backed_up_before_upgrade(&self) -> bool {
        let backup = self.status.as_ref().and_then(|status| status.backup.as_ref());
        let backup = backup.filter(|_| self.spec.upgrade.backup);
        backup.is_some_and(|backup| backup.state == BackupState::Running && backup.revision.is_none())
    }

    /// Returns the conditions of its status; none without one.
    pub fn conditions(&self) -> &[Condition] {
        self.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default()
    }
}

/// Records what the operator last observed and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAppStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// `Ready` summarizes `PostgresReady`, `Released`, `WorkloadsReady` and, with `test`, `Tested`. `CertificateReady`: there is a valid
    /// certificate for the hostname, which does not expire soon; only with `tls.issuer` or `tls.secretName`. `Ready` is False without a
    /// valid one, but not because it expires soon. `BackedUp`: the last dump of the Postgresql of this
    /// instance, and the last drill, succeeded; only with `postgres.backup`. Or the last backup of its PerconaPGCluster did; only with
    /// `postgres.percona.schedules`. Or that of its Cluster; only with `postgres.backup`. `FilesBackedUp`: the last archive of the app's files is complete; only with `persistence.backup`. `Reconciling`: work is in progress. `Stalled`: nothing happens until a user or a cluster
    /// admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The Helm release, as `helm list` shows it.
    pub release: Option<Release>,

    /// Secret with the administrator's name and password.
    pub admin_secret_name: Option<String>,

    /// Secret with the Redis password.
    pub redis_secret_name: Option<String>,

    /// The PerconaPGCluster, Postgresql or Cluster that was created for this instance.
    pub postgres_cluster_name: Option<String>,

    /// Secret with the certificate of the hostname.
    pub tls_secret_name: Option<String>,

    /// The revision of the Profile that this instance has. It gets another one when it is its turn in the Profile's rollout.
    pub profile_revision: Option<BoundRevision>,

    /// URL of the app. It begins with `https://` if there is a valid certificate, if a proxy has it, or if `values` set `ingress.tls`.
    pub url: Option<String>,

    /// The chart that was installed last. Unlike `release`, it is kept when the release is gone, because the data still belongs to its
    /// app.
    pub installed: Option<InstalledChart>,

    /// Objects that hold or open data and were created for this ClientApp or adopted by it. An object whose uid is not in this
    /// list is never deleted with the ClientApp.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owned: Vec<Owned>,

    /// True if the ClientApp is deleted with `--cascade=orphan`; recorded when the deletion begins.
    pub orphaned: Option<bool>,

    /// The objects of the release, from the manifest that Helm stored.
    pub inventory: Option<Inventory>,

    /// The credentials that the app's pods use. When they change, a new revision restarts the pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub credentials: Vec<Credentials>,

    /// The result of `spec.valuesFrom`. When it changes, an event names the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub values_from: Vec<ValuesDigest>,

    /// True if the deployed revision may have values from Secrets, which `kubectl clientapp plan` hides. Absent: it is not known.
    pub secret_values: Option<bool>,

    /// The last backup before an upgrade.
    pub backup: Option<BackupRecord>,

    /// The value of `spec.upgrade.allow` that is spent: it is not valid until the field is removed or changed.
    pub spent_allow: Option<String>,

    /// The last run of helm for this ClientApp, recorded before it starts.
    pub last_attempt: Option<Attempt>,

    /// The change that waits for approval, with `spec.approval: Manual`.
    pub plan: Option<Planned>,

    /// The last tests, with `spec.test`.
    pub test: Option<Tested>,

    /// The last revision that was Ready.
    pub last_ready: Option<ReadyRevision>,

    /// The revision that the release was rolled back to, and why, under `spec.upgrade.onFailure: Rollback`.
    pub rolled_back: Option<RolledBack>,

    /// The last archives of the app's files, with `spec.persistence.backup`.
    pub files: Option<FilesSummary>,

    /// The Secret with the password of the repository in `spec.persistence.backup.store`. Once it is on record, no other password is
    /// generated.
    pub repository_password: Option<RepositoryPassword>,
}

/// Successes and failures of archives of the app's files.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct FilesSummary {
    /// When the last archive was complete.
    pub last_success: Option<Time>,
    /// How long that archive took, in seconds.
    pub last_duration: Option<i64>,
    /// Name of that archive in the bucket.
    pub archive: Option<String>,
    /// Size of its files.
    pub bytes: Option<i64>,
    /// Number of its files and directories.
    pub files: Option<i64>,
    /// When an archive last failed.
    pub last_failure: Option<Time>,
    /// The ClientAppBackup that has failed.
    pub failed_backup: Option<String>,
    /// The cause of its failure.
    pub failure: Option<String>,
    /// When the next archive is due.
    pub scheduled: Option<Scheduled>,
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
    /// SHA-256 of the chart archive that was installed. The same version with another digest is refused.
    pub chart_digest: Option<String>,
    /// When the revision was written.
    pub deployed_at: Option<Time>,
}

/// Records what the app's pods read from a Secret when they start.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Credentials {
    /// Name of the Secret.
    pub secret: String,
    /// The keys that they read.
    pub keys: Vec<String>,
    /// The Secret's `resourceVersion` when it was read.
    pub resource_version: String,
    /// Salted digest of the values.
    pub digest: String,
}

/// The values from one object.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ValuesDigest {
    /// Kind and name of the object, and the key in it.
    pub of: String,
    /// Salted digest of the values.
    pub digest: String,
}

/// A revision that was Ready.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReadyRevision {
    /// Revision, as in `helm history`.
    pub revision: i64,
    /// Digest of chart version, values and flags.
    pub digest: String,
    /// Version of the chart.
    pub chart_version: String,
    /// Version of the app in the chart.
    pub app_version: Option<String>,
}

/// A rollback after a failure.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    /// Digest of what failed: the rollback holds as long as the spec asks for it.
    pub digest: String,
    /// The cause, in one sentence.
    pub message: String,
    /// The revision that the release has gone back to.
    pub to: ReadyRevision,
}

/// Records what waits for approval.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Planned {
    /// Digest of the chart's archive, its version, the values and the credentials. `spec.approved` names it.
    pub digest: String,
    /// Version of the chart.
    pub chart_version: String,
}

/// The tests of a revision.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    /// uid of the Secret in which Helm stored the revision that was tested.
    pub secret: String,
    /// Its revision, as in `helm history`.
    pub revision: i64,
    /// True if the tests have passed.
    pub passed: bool,
    /// How many tests have run, or what has failed.
    pub message: String,
    /// How often the tests of this revision have failed.
    // The API server does not support unsigned formats.
    #[serde(default)]
    #[schemars(with = "i32", range(min = 0))]
    pub failures: u32,
    /// When they ended.
    pub ended_at: Option<Time>,
    /// Earliest time of the next run.
    pub retry_at: Option<Time>,
}

/// The objects of a revision of a release.
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Inventory {
    /// uid of the Secret in which Helm stored the revision: revision numbers start over after an uninstall.
    pub secret: String,
    /// The objects, in the order in which Helm applied them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub objects: Vec<ReleaseObject>,
    /// Jobs of the chart's hooks, which Helm does not count among the objects, of this and former revisions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hook_jobs: Vec<String>,
    /// Pods of the chart's hooks, such as its tests, of this and former revisions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hook_pods: Vec<String>,
    /// Only for an installation: the chart's hooks that Helm does not run with upgrades, and that are incomplete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub install_hooks: Vec<String>,
    /// The hosts of its Ingresses, and of its routes and listeners of Gateway API, which no other ClientApp may have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
}

/// An object of a release.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ReleaseObject {
    /// API group and version.
    pub api_version: String,
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// Namespace, if the chart sets one other than the release's.
    pub namespace: Option<String>,
    /// True if `helm uninstall` keeps it (`helm.sh/resource-policy: keep`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// Of a StatefulSet: the names of its claim templates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claim_templates: Vec<String>,
    /// Of a StatefulSet: whether its claims are deleted with it (`persistentVolumeClaimRetentionPolicy.whenDeleted: Delete`).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub takes_claims: bool,
    /// Of a Deployment or StatefulSet: how many pods the chart asks for.
    pub replicas: Option<i64>,
}

impl ReleaseObject {
    /// Returns the parts of `apiVersion`; the group of the core kinds is empty.
    pub fn group_version(&self) -> (&str, &str) {
        self.api_version.split_once('/').unwrap_or(("", &self.api_version))
    }
}

/// A chart.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct InstalledChart {
    /// Name of the chart.
    pub name: String,
    /// Version of the chart.
    pub version: String,
    /// Version of the app in the chart.
    pub app_version: Option<String>,
    /// SHA-256 of the chart archive.
    pub digest: String,
}

/// A backup before an upgrade.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct BackupRecord {
    /// `ClientAppBackup`; in records of earlier versions of the operator, `PerconaPGBackup` or `Postgresql`.
    pub kind: String,
    /// Name of the ClientAppBackup.
    pub name: String,
    /// The chart version that was installed.
    pub from: String,
    /// The chart version that was to be installed.
    pub to: String,
    /// Progress of the backup.
    pub state: BackupState,
    /// The newest revision of the release when the backup was requested; 0 if there was none.
    pub at_revision: Option<i64>,
    /// When it was requested, or last seen running: its content is at least as new as this.
    pub as_of: Option<Time>,
    /// The revision when this upgrade was over: the one created after the backup or, if the upgrade was withdrawn, the one before.
    pub revision: Option<i64>,
}

/// Progress of a backup.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum BackupState {
    /// Requested or running.
    Running,
    /// Complete: it can be restored.
    Succeeded,
    /// Failed: it cannot be restored.
    Failed,
}

/// A run of helm: recorded before it starts, completed when it ends.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    /// Digest of what helm was to install; failures are counted from zero when it changes.
    pub digest: String,
    /// When the run started.
    pub started_at: Time,
    /// Consecutive failures with this digest.
    #[serde(default)]
    // The API server does not support unsigned formats.
    #[schemars(with = "i32", range(min = 0))]
    pub failures: u32,
    /// Earliest time of the next run, unless the digest changes.
    pub retry_at: Option<Time>,
    /// Reason of the last failure, as in the conditions.
    pub reason: Option<String>,
    /// The chart that helm installs in this run.
    pub chart: Option<InstalledChart>,
    /// Message of the last failure; or, if it succeeded, what helm left as it was although the spec asks for something else.
    pub message: Option<String>,
    /// uids of the volumes without which a user had confirmed that the app goes on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without_volumes: Vec<String>,
}

fn yes() -> bool {
    true
}
fn client_app() -> String {
    "ClientApp".to_owned()
}
fn default_test_timeout() -> String {
    "5m".to_owned()
}
fn default_upgrade_timeout() -> String {
    "15m".to_owned()
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
            storage_class_name: None,
            instances: 1,
            adopt: false,
            backup: None,
            restore: None,
            percona: None,
            cloudnativepg: None,
            resources: None,
            parameters: Parameters::new(),
            tls: None,
            external: None,
        }
    }
}
