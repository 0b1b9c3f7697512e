//! `PostgresWriter`: one row in a table of one PostgreSQL database.
//!
//! Every rule that the API server can check is part of the schema; the operator checks again what an older schema accepted. The rules
//! are patterns instead of CEL: if the API server could not evaluate a CEL rule on a stored object, it would refuse every change of
//! it, and the finalizer could not be removed.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

const TABLE: &str = "^[A-Za-z_][A-Za-z0-9_]{0,62}([.][A-Za-z_][A-Za-z0-9_]{0,62})?$";
/// Any text without NUL.
const TEXT: &str = r"^[^\x00]*$";

/// The desired content of the row.
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[expect(clippy::duplicated_attributes, reason = "columns of the same type")]
#[kube(
    group = "apps.bnerd-operator.local",
    version = "v1alpha1",
    kind = "PostgresWriter",
    plural = "postgreswriters",
    namespaced,
    status = "PostgresWriterStatus",
    derive = "PartialEq",
    doc = "A PostgresWriter is one row, with the primary key <namespace>/<name>, in a table of the operator's PostgreSQL database. The row is inserted, kept up to date and deleted with the object.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Table", type_ = "string", json_path = ".spec.table"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Status",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterSpec {
    /// The table, optionally with its schema, such as `people` or `sales.people`. It must exist with the columns id (the primary key),
    /// name, age and country, and the cluster admin must allow it. The name is case-sensitive. When it changes, the row moves.
    #[schemars(length(min = 1, max = 127), regex(pattern = TABLE))]
    pub table: String,

    /// Value of the column name. NUL is not allowed, because PostgreSQL cannot store it.
    #[schemars(length(min = 1, max = 1024), regex(pattern = TEXT))]
    pub name: String,

    /// Value of the column age.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub age: i32,

    /// Value of the column country. NUL is not allowed.
    #[schemars(length(min = 1, max = 1024), regex(pattern = TEXT))]
    pub country: String,
}

/// Records what the operator last observed and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterStatus {
    /// The generation of the spec that the conditions refer to.
    pub observed_generation: Option<i64>,

    /// `Ready`: the row is as specified. `Stalled`: nothing happens until a user or an admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The row as it was last written.
    pub row: Option<WrittenRow>,
}

/// A row that was written.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WrittenRow {
    /// Table of the row.
    pub table: String,
    /// Primary key of the row.
    pub id: String,
    /// The generation of the spec that it was written for.
    #[serde(default)]
    pub generation: i64,
    /// When it was written.
    pub written_at: Time,
}
