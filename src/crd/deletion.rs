//! Data at a deletion: whose they are, and what becomes of them.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What becomes of data when their owner is deleted.
#[derive(JsonSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[value(rename_all = "PascalCase")]
pub enum DeletionPolicy {
    /// They are deleted with it.
    #[value(help = "They are deleted")]
    #[default]
    Delete,
    /// They outlive it, without owner, labelled `apps.bnerd-operator.local/retained-from`.
    #[value(help = "They are kept")]
    Retain,
}

/// An object that holds or opens data, by kind, name and uid; its namespace is that of its owner.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Owned {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid: an object made later under the same name is another one.
    pub uid: String,
}
