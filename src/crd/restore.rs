//! Dumps to create databases from, and records of existing dumps.

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Secret},
    apimachinery::pkg::apis::meta::v1::Time,
};
use kube::{KubeSchema, api::ApiResource};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{Bucket, Scheduled};

/// The dump to create a new database from, on a volume or in a bucket.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.claim) != has(self.store)").message("set either claim, for dumps on a volume, or store, for dumps in a bucket"))]
pub struct Restore {
    /// `latest`, the newest dump with data, or the name of a dump, as in a Postgresql's `status.backup.dumps`.
    #[serde(default = "latest")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^(latest|[0-9]{8}T[0-9]{6}Z-[a-z0-9]+)$')").message("must be latest, or the name of a dump such as 20260131T030000Z-x7k2p"))]
    pub from: String,

    /// PersistentVolumeClaim in this namespace with the dumps. It is only read. Unless an earlier Postgresql of the same name has left
    /// it, it needs the label `apps.bnerd-operator.local/restore-to` with the Postgresql's name.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub claim: Option<String>,

    /// Bucket with the dumps. It is only read.
    pub store: Option<DumpStore>,
}

/// Where dumps are, for messages.
fn place(claim: Option<&str>, store: impl FnOnce() -> Option<String>) -> String {
    match claim {
        Some(claim) => format!("PersistentVolumeClaim {claim}"),
        None => store().unwrap_or_default(),
    }
}

impl RestoreRecord {
    /// Where the dump was, for messages.
    pub fn place(&self) -> String {
        place(self.claim.as_deref(), || self.store.clone())
    }
}

impl Restore {
    /// From the volume of this claim.
    pub fn of_claim(from: impl Into<String>, claim: impl Into<String>) -> Restore {
        Restore { from: from.into(), claim: Some(claim.into()), store: None }
    }

    /// From a bucket.
    pub fn of_store(from: impl Into<String>, store: DumpStore) -> Restore {
        Restore { from: from.into(), claim: None, store: Some(store) }
    }

    /// Returns the kind and name of what opens the dumps: the claim, or the Secret with the credentials of the bucket.
    pub fn holder(&self) -> Option<(ApiResource, &str)> {
        match (&self.claim, &self.store) {
            (Some(claim), _) => Some((ApiResource::erase::<PersistentVolumeClaim>(&()), claim)),
            (None, Some(store)) => Some((ApiResource::erase::<Secret>(&()), &store.bucket.credentials_secret.name)),
            (None, None) => None,
        }
    }

    /// Where the dumps are, for messages.
    pub fn place(&self) -> String {
        let url = |store: &DumpStore| {
            let Bucket { endpoint, bucket, .. } = &store.bucket;
            format!("{}/{bucket}/{}", endpoint.trim_end_matches('/'), store.path)
        };
        place(self.claim.as_deref(), || self.store.as_ref().map(url))
    }
}

/// Dumps in a bucket, uploaded through `backup.store` of a Postgresql.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DumpStore {
    /// The bucket.
    #[serde(flatten)]
    pub bucket: Bucket,

    /// Path of the repository in the bucket: `<prefix>/<namespace>/<name>` of the Postgresql that was dumped. Unless it is this
    /// namespace and the name of the new Postgresql, the Secret with the credentials needs the label
    /// `apps.bnerd-operator.local/restore-to` with that name.
    #[schemars(length(min = 1, max = 620))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$')").message("must be words of letters, digits, '.', '_' and '-', separated by '/'"))]
    pub path: String,

    /// Size of the volume for the dump while it is restored; the volume is deleted with the pod. Absent: `storageSize`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub size: Option<String>,
}

/// How drills restore dumps from `backup.store`.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct DrillStore {
    /// Size of the volume for the dump while it is restored; the volume is deleted with the pod. Absent: `storageSize`.
    #[schemars(length(max = 32))]
    #[x_kube(validation = Rule::new("isQuantity(self) && quantity(self).isGreaterThan(quantity('0'))").message("must be a quantity above zero such as 1Gi or 500Mi (not GB)"))]
    pub size: Option<String>,
}

/// Requests that a dump replaces the database.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRequest {
    /// A word of your choice; each new value requests that the database is replaced. The result is in `status.restore`.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')").message("must be a word of lower-case letters, digits and '-', beginning and ending with a letter or digit"))]
    pub request: String,

    /// The dump that replaces it.
    pub dump: Restore,
}

/// Progress of the newest `spec.restoreRequest`.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreProgress {
    /// The value of `spec.restoreRequest.request`.
    pub request: String,
    /// Name of the Job that restores the dump beside the database.
    pub job: String,
    /// Progress of the restore.
    pub state: RestoreState,
    /// When the Job ended.
    pub completed_at: Option<Time>,
    /// The cause if the database was not replaced, and what to do.
    pub message: Option<String>,
}

/// Progress of a restore.
#[derive(JsonSchema, Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
pub enum RestoreState {
    /// The dump is being restored beside the database, which serves meanwhile.
    Running,
    /// The dump is restored, and the primary restarts with it.
    Replacing,
    /// The primary serves what was restored. The former database is in the directory `former.<request>` of the volume.
    Succeeded,
    /// The database is as it was.
    Failed,
}

impl RestoreState {
    /// Returns true for a state that a restore stays in.
    pub fn is_final(self) -> bool {
        matches!(self, RestoreState::Succeeded | RestoreState::Failed)
    }
}

/// The dump that the database was created from.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRecord {
    /// Name of the dump.
    pub dump: String,
    /// The PersistentVolumeClaim that it was on.
    pub claim: Option<String>,
    /// URL of the bucket that the dump was in, and the path within it.
    pub store: Option<String>,
    /// Number of non-empty tables, in all databases.
    pub tables: Option<i64>,
    /// When the database was complete.
    pub completed_at: Option<Time>,
    /// The request for which it has replaced another database.
    pub request: Option<String>,
}

/// A dump on the volume.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    /// Name of the dump, which begins with its start time in UTC.
    pub name: String,
    /// Size of the dump.
    pub bytes: i64,
    /// Number of non-empty tables, in all databases.
    pub tables: i64,
}

/// Result of the last attempts to restore the latest dump.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Drill {
    /// When a dump was last restored.
    pub last_success: Option<Time>,
    /// The dump that was restored then.
    pub dump: Option<String>,
    /// Number of non-empty tables in it, in all databases.
    pub tables: Option<i64>,
    /// When a restore last failed.
    pub last_failure: Option<Time>,
    /// The cause of its failure.
    pub message: Option<String>,
    /// When the next drill is due.
    pub scheduled: Option<Scheduled>,
}

fn latest() -> String {
    "latest".to_owned()
}
