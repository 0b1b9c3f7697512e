//! Whether the operator has finished its work in a namespace. Pure.

use super::history::{Kind, Record, Seen, condition, is_terminating};
use super::model::Asked;

/// Reasons with which an app or a database may wait for ever, since no part of the plane resolves them: the Percona
/// stand-in does not recreate Secrets, and no volume grows.
const WAITING: [&str; 2] = ["SecretMissing", "Growing"];

/// The work still in progress in a namespace.
#[must_use]
pub fn busy(record: &Record, namespace: &str, asked: &Asked) -> Option<String> {
    let there = record.objects.values().filter(|seen| seen.namespace == namespace && seen.gone.is_none());
    there.filter_map(|seen| why(record, seen, asked)).next()
}

fn why(record: &Record, seen: &Seen, asked: &Asked) -> Option<String> {
    let object = seen.last();
    let is = |kind: &str| condition(object, kind).is_some_and(|(status, ..)| status == "True");
    let what = seen.what();
    match seen.kind {
        Kind::App | Kind::Postgresql => {
            let held = is("Stalled") || condition(object, "Ready").is_some_and(|(_, reason, _)| reason == "Suspended");
            let undecodable = object["undecodable"].is_string();
            let current = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            if is_terminating(object) {
                (!held).then(|| format!("{what} is being deleted"))
            } else if undecodable {
                // It has no decodable status.
                None
            } else if !current {
                Some(format!("{what} was not reconciled since its last change"))
            } else {
                let waits = condition(object, "Reconciling").is_some_and(|(_, reason, _)| WAITING.contains(&reason));
                (is("Reconciling") && !held && !waits).then(|| format!("{what} is being reconciled"))
            }
        }
        Kind::Event => None,
        _ if is_terminating(object) && !asked.deleted.contains(&seen.uid) => Some(format!("{what} is being deleted")),
        _ => {
            let owners = object["metadata"]["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
            let gone = |uid: &str| record.objects.get(uid).is_some_and(|owner| owner.gone.is_some());
            let collected = owners.iter().any(|owner| owner["uid"].as_str().is_some_and(gone));
            collected.then(|| format!("{what} is about to be garbage-collected"))
        }
    }
}
