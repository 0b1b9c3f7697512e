//! Data at a deletion: who owns it, and what happens to it.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Decides what happens to data when its owner is deleted.
#[derive(JsonSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[value(rename_all = "PascalCase")]
pub enum DeletionPolicy {
    /// The data is deleted with its owner.
    #[value(help = "The data is deleted")]
    #[default]
    Delete,
    /// The data outlives its owner, labelled `apps.bnerd-operator.local/retained-from`.
    #[value(help = "The data is kept")]
    Retain,
}

/// An object that holds or opens data, by kind, name and uid, in the namespace of its owner.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Owned {
    /// Kind of the object.
    pub kind: String,
    /// Name of the object.
    pub name: String,
    /// uid of the object, which distinguishes it from a later object of the same name.
    pub uid: String,
}
