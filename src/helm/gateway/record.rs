//! Records what a helm run has written (pure).

use std::collections::HashMap;

use serde::Deserialize;

use super::rules::ObjectRequest;
use crate::platform::managed_fields;

/// An object as returned by the API server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WrittenObject {
    pub api_version: String,
    pub kind: String,
    pub metadata: Meta,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Meta {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// Digest of the fields that helm manages.
    #[serde(rename = "managedFields", deserialize_with = "managed_fields::helm_fields_digest")]
    pub helms: u64,
}

/// The result of a run's writes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Created or changed objects, in the order of the responses; for each object the last response counts.
    pub written: Vec<WrittenObject>,
    /// True if the outcome of any write is unknown.
    pub uncertain: bool,
    /// The claims that are larger than the chart asks, and stay so.
    pub kept: Vec<KeptSize>,
    /// Says why the revision was not made.
    pub refused: Option<String>,
}

/// A claim that keeps its size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeptSize {
    pub claim: String,
    /// The size that the chart asks for.
    pub requested: String,
    /// The size that it has.
    pub has: String,
}

impl Recorded {
    /// Returns the digest of the fields that helm manages of each object, by kind and name.
    pub(crate) fn managed(&self) -> HashMap<(&str, &str), u64> {
        let managed = self
            .written
            .iter()
            .map(|WrittenObject { kind, metadata, .. }| ((kind.as_str(), metadata.name.as_str()), metadata.helms));
        managed.collect()
    }

    /// Returns the Deployments and StatefulSets, each as it was written last.
    pub(crate) fn workloads(&self) -> Vec<WrittenObject> {
        let is_one = |written: &&WrittenObject| ["Deployment", "StatefulSet"].contains(&written.kind.as_str());
        let mut last: Vec<WrittenObject> = Vec::new();
        for written in self.written.iter().rev().filter(is_one) {
            let is_same =
                |later: &WrittenObject| (&later.kind, &later.metadata.name) == (&written.kind, &written.metadata.name);
            if !last.iter().any(is_same) {
                last.push(written.clone());
            }
        }
        last
    }
}

/// A run's writes so far.
#[derive(Debug, Default)]
pub(crate) struct Record {
    writes: Vec<WriteOutcome>,
    kept: Vec<KeptSize>,
    refused: Option<String>,
}

#[derive(Debug)]
enum WriteOutcome {
    /// Sent, without a complete response so far.
    Unknown,
    /// Refused, or a deletion.
    Nothing,
    Written(WrittenObject),
}

impl Record {
    /// Records that a write is about to be sent, and returns its number.
    pub(crate) fn begin(&mut self) -> usize {
        self.writes.push(WriteOutcome::Unknown);
        self.writes.len() - 1
    }

    /// Records that the API server has refused it, so nothing has changed.
    pub(crate) fn refused(&mut self, number: usize) {
        self.writes[number] = WriteOutcome::Nothing;
    }

    /// Records the API server's response.
    pub(crate) fn answered(&mut self, number: usize, object: &ObjectRequest, answer: &[u8]) {
        self.writes[number] = match serde_json::from_slice::<WrittenObject>(answer) {
            _ if object.verb == "delete" => WriteOutcome::Nothing,
            Ok(written) if !written.metadata.uid.is_empty() => WriteOutcome::Written(written),
            _ => WriteOutcome::Unknown,
        };
    }

    /// Records that a claim keeps its size; helm may write it more than once.
    pub(crate) fn keeps(&mut self, kept: KeptSize) {
        self.kept.retain(|before| before.claim != kept.claim);
        self.kept.push(kept);
    }

    /// Records that the revision may not be made, and why.
    pub(crate) fn refuses(&mut self, why: String) {
        self.refused = Some(why);
    }

    pub(crate) fn recorded(&self) -> Recorded {
        let written = |outcome: &WriteOutcome| match outcome {
            WriteOutcome::Written(written) => Some(written.clone()),
            WriteOutcome::Unknown | WriteOutcome::Nothing => None,
        };
        Recorded {
            written: self.writes.iter().filter_map(written).collect(),
            uncertain: self.writes.iter().any(|outcome| matches!(outcome, WriteOutcome::Unknown)),
            kept: self.kept.clone(),
            refused: self.refused.clone(),
        }
    }
}
