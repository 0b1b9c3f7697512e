//! Values for the chart that are kept in other objects.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;

/// One key of a Secret or ConfigMap in the ClientApp's own namespace.
#[skip_serializing_none]
#[derive(KubeSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct ValuesReference {
    /// Kind of the object.
    pub kind: ValuesKind,

    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,

    /// Key in the object.
    #[serde(default = "default_values_key")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret or ConfigMap: letters, digits, '-', '_' and '.'"))]
    pub values_key: String,

    /// Where the key's text is set, as one string, such as `smtp.password`. Absent: the text is a YAML map of values.
    #[schemars(length(min = 1, max = 250))]
    #[x_kube(validation = Rule::new("self.matches('^[-_a-zA-Z0-9]+([.][-_a-zA-Z0-9]+)*$')").message("must be keys separated by '.', such as smtp.password, each of letters, digits, '-' and '_'; for a list or any other key, leave it out and write YAML"))]
    pub target_path: Option<String>,

    /// True if the object may be missing. Its key may not be missing if the object exists.
    #[serde(default)]
    pub optional: bool,
}

/// The kind of an object with values.
#[derive(
    JsonSchema, Clone, Copy, Debug, derive_more::Display, Deserialize, Serialize, PartialEq, Eq, PartialOrd, Ord,
)]
pub enum ValuesKind {
    /// A Secret; its values are not shown in any message.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

fn default_values_key() -> String {
    "values.yaml".to_owned()
}
