//! `spec.postgres.percona` of a ClientApp: where the backups of a PerconaPGCluster are kept, when they are made, and what a new cluster
//! is created from. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Backups of a PerconaPGCluster, and what a new cluster is created from.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.repository) || !has(self.repository.path) || !has(self.dataSource)").message("the new database must not write into the repository that it is created from, because both have the same system identifier: omit repository.path, so that it gets a path of its own").field_path(".repository.path"))]
pub struct PerconaOptions {
    /// Where pgBackRest keeps backups and WAL, instead of on a volume of the cluster. It cannot be removed later, because backups do
    /// not move. The operator deletes nothing there, not even when the ClientApp is deleted.
    pub repository: Option<BackupRepository>,

    /// When backups are made. With schedules or `keep`, backups are made from the beginning, rather than only before an upgrade.
    pub schedules: Option<BackupSchedules>,

    /// Number of full backups to keep, with the backups that depend on them: those of `schedules.full`, those before upgrades, and
    /// those of `kubectl clientapp backup`. One more exists while it is being made. On a volume used in addition to the repository, it
    /// is always 2. Absent: 2.
    #[schemars(range(min = 1, max = 1000))]
    pub keep: Option<i32>,

    /// The backups to create the database from, instead of an empty one; the new database is backed up from the beginning. Ignored
    /// once the PerconaPGCluster exists; `kubectl clientapp restore` restores an existing one.
    pub data_source: Option<PerconaDataSource>,
}

impl PerconaOptions {
    /// Returns true if backups are made from the beginning. Percona restores with a cluster's backup configuration, so a cluster that is
    /// created from backups needs one, too.
    pub fn backs_up(&self) -> bool {
        let PerconaOptions { repository, schedules, keep, data_source } = self;
        repository.is_some() || schedules.is_some() || keep.is_some() || data_source.is_some()
    }
}

/// A pgBackRest repository in object storage.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.s3), has(self.gcs), has(self.azure)].exists_one(given, given)").message("set exactly one of s3, gcs and azure"))]
#[x_kube(validation = Rule::new("has(self.s3) == has(oldSelf.s3) && has(self.gcs) == has(oldSelf.gcs) && has(self.azure) == has(oldSelf.azure) && (!has(self.s3) || !has(oldSelf.s3) || self.s3.bucket == oldSelf.s3.bucket) && (!has(self.gcs) || !has(oldSelf.gcs) || self.gcs.bucket == oldSelf.gcs.bucket) && (!has(self.azure) || !has(oldSelf.azure) || self.azure.container == oldSelf.azure.container) && has(self.path) == has(oldSelf.path) && (!has(self.path) || !has(oldSelf.path) || self.path == oldSelf.path)").message("the bucket, or container, and the path are immutable, because backups are not moved: create a new ClientApp with this repository in postgres.percona.dataSource"))]
pub struct BackupRepository {
    /// A bucket of S3, or of S3-compatible storage.
    pub s3: Option<S3Bucket>,

    /// A bucket of Google Cloud Storage.
    pub gcs: Option<GcsBucket>,

    /// A container of Azure Blob Storage.
    pub azure: Option<AzureContainer>,

    /// Name of a Secret in this namespace with configuration files of pgBackRest, such as `s3.conf` with `[global]`,
    /// `repo1-s3-key=…` and `repo1-s3-key-secret=…`, and, for encrypted backups, `repo1-cipher-type=aes-256-cbc` and
    /// `repo1-cipher-pass=…`. For a database that had backups on its volume before, these are `repo2-…`.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,

    /// The directory in the bucket, such as `/shop/orders`, which no other cluster may use. Absent: computed from namespace, name and
    /// uid.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^(/[a-zA-Z0-9][-a-zA-Z0-9._]*)+$')").message("must be a directory such as /shop/orders, of letters, digits, '-', '.' and '_'"))]
    pub path: Option<String>,
}

/// A bucket of S3.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct S3Bucket {
    /// Name of the bucket.
    #[schemars(length(min = 1, max = 222))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._]*$')").message("must be the name of a bucket"))]
    pub bucket: String,

    /// Endpoint of the storage, such as `s3.eu-central-1.amazonaws.com`.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^(https?://)?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[1-9][0-9]{0,4})?$')").message("must be a DNS name or an address, followed by :port if the port is not 443"))]
    pub endpoint: String,

    /// Region of the bucket, such as `eu-central-1`; storage other than Amazon's often accepts any word.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9]*$')").message("must be the name of a region such as eu-central-1"))]
    pub region: String,
}

/// A bucket of Google Cloud Storage.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GcsBucket {
    /// Name of the bucket.
    #[schemars(length(min = 1, max = 222))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._]*$')").message("must be the name of a bucket"))]
    pub bucket: String,
}

/// A container of Azure Blob Storage.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AzureContainer {
    /// Name of the container.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be the name of a container"))]
    pub container: String,
}

/// When backups are made, in cron notation, such as `0 3 * * *`; in UTC, by the Percona operator.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.full)").message("set full: only a newer full backup lets earlier ones expire"))]
pub struct BackupSchedules {
    /// When to make full backups. Required: only a newer full backup lets earlier ones expire, and the WAL before them.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 3 * * 0', or @weekly"))]
    pub full: Option<String>,

    /// When to back up the changes since the last full backup.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 3 * * *', or @daily"))]
    pub differential: Option<String>,

    /// When to back up the changes since the last backup of any type.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new(super::schedule::CRON).message("must be five fields in cron's notation such as '0 * * * *', or @hourly"))]
    pub incremental: Option<String>,
}

/// The backups to create a new PerconaPGCluster from, which must have the same major version of PostgreSQL.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cluster) != has(self.repository)").message("set either cluster or repository"))]
#[x_kube(validation = Rule::new("!has(self.repository) || has(self.repository.path)").message("set the path of the backups").field_path(".repository.path"))]
#[x_kube(validation = Rule::new("!has(self.backup) || !has(self.time)").message("set either backup or time, or neither for the newest state"))]
pub struct PerconaDataSource {
    /// Name of a PerconaPGCluster in this namespace that keeps backups, such as `acme-pg`; the backups in its first repository are
    /// used.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be the name of a PerconaPGCluster in this namespace"))]
    pub cluster: Option<String>,

    /// The repository of a cluster that may be gone; its `path` is required, and the options in its Secret are `repo1-…`. It is
    /// only read.
    pub repository: Option<BackupRepository>,

    /// Label of a backup, as in a PerconaPGBackup's `status.backupName`: the database is restored to the end of this backup.
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{8}-[0-9]{6}F(_[0-9]{8}-[0-9]{6}[DI])?$')").message("must be the label of a backup such as 20260131-030000F or 20260131-030000F_20260201-030000I"))]
    pub backup: Option<String>,

    /// Point in time to restore, such as `2026-01-31T12:00:00Z`. Absent, together with `backup`: the newest state.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub time: Option<Time>,
}

impl BackupRepository {
    /// The endpoint of an S3 bucket: another endpoint is another store.
    pub fn endpoint(&self) -> Option<String> {
        self.s3.as_ref().map(|s3| s3.endpoint.clone())
    }

    /// The bucket or container as a URL.
    pub fn store(&self) -> String {
        match (&self.s3, &self.gcs, &self.azure) {
            (Some(S3Bucket { bucket, .. }), ..) => format!("s3://{bucket}"),
            (None, Some(GcsBucket { bucket }), _) => format!("gs://{bucket}"),
            (None, None, Some(AzureContainer { container })) => format!("azure://{container}"),
            (None, None, None) => String::new(),
        }
    }
}
