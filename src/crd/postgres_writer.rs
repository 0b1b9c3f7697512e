//! `PostgresWriter`: one row in a table of one PostgreSQL database.
//!
//! Every rule the API server can check is a rule of the schema; the operator checks the table's name once more.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the row shall hold.
#[derive(CustomResource, KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
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
    /// The table, such as `people` or `sales.people`: it has to exist, with the columns id (the primary key), name, age
    /// and country. Upper and lower case differ. Immutable.
    #[schemars(length(min = 1, max = 127))]
    #[x_kube(validation = Rule::new("self.matches('^[A-Za-z_][A-Za-z0-9_]{0,62}([.][A-Za-z_][A-Za-z0-9_]{0,62})?$')").message("must be the name of a table, with its schema before it if need be, such as people or sales.people: letters, digits and '_', not beginning with a digit"))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("table is immutable: a row does not move by itself; make a new PostgresWriter and delete this one"))]
    pub table: String,

    /// Value of the column name.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.contains('\\u0000')").message("must not contain the character NUL, which PostgreSQL cannot store"))]
    pub name: String,

    /// Value of the column age.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub age: i32,

    /// Value of the column country.
    #[schemars(length(min = 1, max = 1024))]
    #[x_kube(validation = Rule::new("!self.contains('\\u0000')").message("must not contain the character NUL, which PostgreSQL cannot store"))]
    pub country: String,
}

/// What the operator last saw and did.
#[derive(KubeSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PostgresWriterStatus {
    /// The generation of the spec that the conditions speak of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,

    /// `Ready`: the row is as the spec says. `Stalled`: somebody has to change something.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,

    /// The row as it was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
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
    /// Digest of its values. Equal values are not written twice.
    pub digest: String,
    /// When it was written.
    pub written_at: Time,
}
