//! `PostgresWriter`: one row in a table of one PostgreSQL database.
//!
//! Every rule the API server can check is a rule of the schema; the operator checks once more what an older schema let pass. They are
//! patterns and no CEL rules: where the API server cannot evaluate such a rule on a stored object, it refuses every change of
//! it, and a finalizer could not be taken off.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

const TABLE: &str = "^[A-Za-z_][A-Za-z0-9_]{0,62}([.][A-Za-z_][A-Za-z0-9_]{0,62})?$";
/// Without NUL.
const TEXT: &str = r"^[^\x00]*$";

/// What the row shall hold.
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
    doc = "A PostgresWriter is one row, with the primary key <namespace>/<name>, in a table of the operator's PostgreSQL database: inserted with the object, kept as it says, and deleted with it.",
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Table", type_ = "string", json_path = ".spec.table"),
    printcolumn(name = "Status", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterSpec {
    /// The table, with its schema before it if need be, such as `people` or `sales.people`: it has to exist, with the columns
    /// id (the primary key), name, age and country, and the cluster admin has to allow it. Upper and lower case differ. When
    /// it changes, the row moves.
    #[schemars(length(min = 1, max = 127), regex(pattern = TABLE))]
    pub table: String,

    /// Value of the column name, without the character NUL, which PostgreSQL cannot store.
    #[schemars(length(min = 1, max = 1024), regex(pattern = TEXT))]
    pub name: String,

    /// Value of the column age.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub age: i32,

    /// Value of the column country, without the character NUL.
    #[schemars(length(min = 1, max = 1024), regex(pattern = TEXT))]
    pub country: String,
}

/// What the operator last saw and did.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterStatus {
    /// The generation of the spec that the conditions speak of.
    pub observed_generation: Option<i64>,

    /// `Ready`: the row is as the spec says. `Stalled`: nothing goes on until a user or an admin changes something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The row as it was last written.
    pub row: Option<WrittenRow>,
}

/// A row that was written.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct WrittenRow {
    /// Its table.
    pub table: String,
    /// Its primary key.
    pub id: String,
    /// The generation of the spec that it was written for.
    #[serde(default)]
    pub generation: i64,
    /// When it was written.
    pub written_at: Time,
}
