//! Tells when the operator has finished its work in a namespace. Pure.

use super::history::{Kind, Record, Seen, is_terminating};
use super::model::Asked;
use crate::random::oracle::{Condition, is_observed};

/// Reasons with which an app or a database may wait for ever, since no part of the plane resolves them: the Percona
/// stand-in does not recreate Secrets, and no volume grows.
const WAITING: [&str; 2] = ["SecretMissing", "Growing"];

/// Returns the work still in progress in a namespace.
pub fn busy(record: &Record, namespace: &str, asked: &Asked) -> Option<String> {
    let there = record.objects.values().filter(|seen| seen.namespace == namespace && seen.gone.is_none());
    there.filter_map(|seen| why(record, seen, asked).map(|why| format!("{} {why}", seen.what()))).next()
}

fn why(record: &Record, seen: &Seen, asked: &Asked) -> Option<&'static str> {
    let object = seen.last();
    match seen.kind {
        Kind::App | Kind::Postgresql => {
            let held = Condition::holds(object, "Stalled") || Condition::ready(object).reason == "Suspended";
            let reconciling = Condition::of(object, "Reconciling");
            let works = reconciling.status == "True" && !held && !WAITING.contains(&reconciling.reason.as_str());
            match is_terminating(object) {
                true => (!held).then_some("is being deleted"),
                // It has no decodable status.
                false if object["undecodable"].is_string() => None,
                false if !is_observed(object) => Some("was not reconciled since its last change"),
                false => works.then_some("is being reconciled"),
            }
        }
        Kind::Event => None,
        _ if is_terminating(object) && !asked.deleted.contains(&seen.uid) => Some("is being deleted"),
        _ => {
            let mut owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
            let gone = |uid: &str| record.objects.get(uid).is_some_and(|owner| owner.gone.is_some());
            let collected = owners.any(|owner| owner["uid"].as_str().is_some_and(gone));
            collected.then_some("is about to be garbage-collected")
        }
    }
}
