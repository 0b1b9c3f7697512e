//! `spec.postgres.percona` of a ClientApp: where the backups of a PerconaPGCluster are kept, when they are made, and what a new one is
//! made from. Pure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Backups of a PerconaPGCluster, and what a new one is made from.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.repository) || !has(self.repository.path) || !has(self.dataSource)").message("the new database must not write into the repository that it is made from, whose system identifier it has: leave repository.path out, and it gets one of its own").field_path(".repository.path"))]
pub struct PerconaOptions {
    /// Where pgBackRest keeps backups and WAL, in place of a volume of the cluster. Once given, it stays: the backups do not move, and
    /// the operator deletes nothing there, not even when the ClientApp is deleted.
    pub repository: Option<BackupRepository>,

    /// When backups are made. With schedules, or `keep`, backups are made from the beginning, and not only before an upgrade.
    pub schedules: Option<BackupSchedules>,

    /// How many full backups are kept, with what depends on them: those of `schedules.full`, those before upgrades, and those by
    /// `kubectl clientapp backup`; one more is there while it is made. On a volume beside the repository it is always 2.
    /// Absent: 2.
    #[schemars(range(min = 1, max = 1000))]
    pub keep: Option<i32>,

    /// The backups that the database is made from, in place of an empty one; it is backed up itself then, from the beginning. It counts
    /// until the PerconaPGCluster is made, and never after; `kubectl clientapp restore` restores one that is made.
    pub data_source: Option<PerconaDataSource>,
}

impl PerconaOptions {
    /// Whether backups are made from the beginning. Percona restores with what a cluster backs up with, so that one that is made from
    /// backups needs that, too.
    pub fn backs_up(&self) -> bool {
        let PerconaOptions { repository, schedules, keep, data_source } = self;
        repository.is_some() || schedules.is_some() || keep.is_some() || data_source.is_some()
    }
}

/// A pgBackRest repository in object storage.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.s3), has(self.gcs), has(self.azure)].exists_one(given, given)").message("give one of s3, gcs and azure"))]
#[x_kube(validation = Rule::new("has(self.s3) == has(oldSelf.s3) && has(self.gcs) == has(oldSelf.gcs) && has(self.azure) == has(oldSelf.azure) && (!has(self.s3) || !has(oldSelf.s3) || self.s3.bucket == oldSelf.s3.bucket) && (!has(self.gcs) || !has(oldSelf.gcs) || self.gcs.bucket == oldSelf.gcs.bucket) && (!has(self.azure) || !has(oldSelf.azure) || self.azure.container == oldSelf.azure.container) && has(self.path) == has(oldSelf.path) && (!has(self.path) || !has(oldSelf.path) || self.path == oldSelf.path)").message("the bucket, or container, and the path are immutable, since backups do not move by themselves: make a new ClientApp, with this repository in postgres.percona.dataSource"))]
pub struct BackupRepository {
    /// A bucket of S3, or of storage that is compatible with it.
    pub s3: Option<S3Bucket>,

    /// A bucket of Google Cloud Storage.
    pub gcs: Option<GcsBucket>,

    /// A container of Azure Blob Storage.
    pub azure: Option<AzureContainer>,

    /// Name of a Secret of this namespace with files of pgBackRest's configuration, such as `s3.conf` with `[global]`,
    /// `repo1-s3-key=…` and `repo1-s3-key-secret=…`, and, for encrypted backups, `repo1-cipher-type=aes-256-cbc` and
    /// `repo1-cipher-pass=…`. Of a database that had backups on its volume before, these are `repo2-…`.
    #[schemars(length(min = 1, max = 253))]
    pub secret_name: String,

    /// The directory in it, such as `/shop/orders`; no other cluster's. Absent: one that is computed from namespace, name and uid.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^(/[a-zA-Z0-9][-a-zA-Z0-9._]*)+$')").message("must be a directory such as /shop/orders, of letters, digits, '-', '.' and '_'"))]
    pub path: Option<String>,
}

/// A bucket of S3.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct S3Bucket {
    /// The bucket's name.
    #[schemars(length(min = 1, max = 222))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._]*$')").message("must be the name of a bucket"))]
    pub bucket: String,

    /// Where it is served, such as `s3.eu-central-1.amazonaws.com`.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^(https?://)?[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[1-9][0-9]{0,4})?$')").message("must be a DNS name or an address, with :port behind it where that is not 443"))]
    pub endpoint: String,

    /// The bucket's region, such as `eu-central-1`; for other storage than Amazon's often any word.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9]*$')").message("must be the name of a region such as eu-central-1"))]
    pub region: String,
}

/// A bucket of Google Cloud Storage.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct GcsBucket {
    /// The bucket's name.
    #[schemars(length(min = 1, max = 222))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9][-a-zA-Z0-9._]*$')").message("must be the name of a bucket"))]
    pub bucket: String,
}

/// A container of Azure Blob Storage.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct AzureContainer {
    /// The container's name.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be the name of a container"))]
    pub container: String,
}

/// When backups are made, in cron's notation, such as `0 3 * * *`; in UTC, by the Percona operator.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.full)").message("name in full when all data is backed up: nothing but a newer full backup lets earlier ones expire"))]
pub struct BackupSchedules {
    /// When all data is backed up. Required: only a newer full backup lets earlier ones expire, and the WAL before them.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^ @]+( [^ ]+){4})$')").message("must be five fields in cron's notation such as '0 3 * * 0', or @weekly"))]
    pub full: Option<String>,

    /// When what has changed since the last full backup is backed up.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^ @]+( [^ ]+){4})$')").message("must be five fields in cron's notation such as '0 3 * * *', or @daily"))]
    pub differential: Option<String>,

    /// When what has changed since the last backup of any type is backed up.
    #[schemars(length(max = 100))]
    #[x_kube(validation = Rule::new("self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|[^ @]+( [^ ]+){4})$')").message("must be five fields in cron's notation such as '0 * * * *', or @hourly"))]
    pub incremental: Option<String>,
}

/// The backups that a new PerconaPGCluster is made from. It has to be of the same major version of PostgreSQL.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.cluster) != has(self.repository)").message("give one of cluster and repository"))]
#[x_kube(validation = Rule::new("!has(self.repository) || has(self.repository.path)").message("name the path of the backups").field_path(".repository.path"))]
#[x_kube(validation = Rule::new("!has(self.backup) || !has(self.time)").message("give one of backup and time, or neither for the newest state"))]
pub struct PerconaDataSource {
    /// Name of a PerconaPGCluster of this namespace that keeps backups, such as `acme-pg`: those in its first repository.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be the name of a PerconaPGCluster of this namespace"))]
    pub cluster: Option<String>,

    /// The repository of a cluster that may be gone; its `path` is required, and the options in its Secret are `repo1-…`. It is
    /// only read.
    pub repository: Option<BackupRepository>,

    /// The label of a backup, as in a PerconaPGBackup's `status.backupName`: the database is as it was at the end of this backup.
    #[schemars(length(max = 40))]
    #[x_kube(validation = Rule::new("self.matches('^[0-9]{8}-[0-9]{6}F(_[0-9]{8}-[0-9]{6}[DI])?$')").message("must be the label of a backup such as 20260131-030000F or 20260131-030000F_20260201-030000I"))]
    pub backup: Option<String>,

    /// The time that the database is as of, such as `2026-01-31T12:00:00Z`. Absent, with `backup` too: the newest state.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub time: Option<Time>,
}

impl BackupRepository {
    /// Where a bucket of S3 is served: another endpoint is another store.
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
