//! Dumps that databases are made from, and what is known of the dumps that there are.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// The dump that a new database is made from.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Restore {
    /// `latest`, the newest dump with something in it, or the name of a dump, as in a Postgresql's `status.backup.dumps`.
    #[serde(default = "latest")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^(latest|[0-9]{8}T[0-9]{6}Z-[a-z0-9]+)$')").message("must be latest, or the name of a dump such as 20260131T030000Z-x7k2p"))]
    pub from: String,

    /// PersistentVolumeClaim of this namespace with the dumps. It is only read. Besides the one that an earlier Postgresql of the same
    /// name has left, it needs the label `apps.bnerd-operator.local/restore-to` with the Postgresql's name.
    #[schemars(length(min = 1, max = 253))]
    pub claim: String,
}

/// The dump that the database was made from.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRecord {
    /// Name of the dump.
    pub dump: String,
    /// The PersistentVolumeClaim that it was on.
    pub claim: String,
    /// Tables with something in them, in all databases.
    pub tables: Option<i64>,
    /// When the database was complete.
    pub completed_at: Option<Time>,
}

/// A dump on the volume.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Dump {
    /// Its name, which begins with the time at which it began, in UTC.
    pub name: String,
    /// Its size.
    pub bytes: i64,
    /// Tables with something in them, in all databases.
    pub tables: i64,
}

/// How restoring the latest dump went, the last time that it was tried.
#[skip_serializing_none]
#[derive(JsonSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Drill {
    /// When a dump was last restored.
    pub last_success: Option<Time>,
    /// The dump that was restored then.
    pub dump: Option<String>,
    /// Tables with something in them, in all databases of it.
    pub tables: Option<i64>,
    /// When a restore last failed.
    pub last_failure: Option<Time>,
    /// Why.
    pub message: Option<String>,
}

fn latest() -> String {
    "latest".to_owned()
}
