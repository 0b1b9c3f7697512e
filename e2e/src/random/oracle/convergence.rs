//! Tells what an end state owes to its last spec from what it owes to those before. Pure.

use serde_json::Value;

use super::Condition;
use super::state::{State, differences};

/// The state once nothing changes any more.
#[derive(Clone, Debug, Default)]
pub struct End {
    pub state: State,
    pub ready: Condition,
    /// Set if the status is of the current spec, and says why the object is Ready or not.
    pub is_current: bool,
    /// Says whether the object says that work is in progress.
    pub at_work: bool,
    /// The rows of PostgresWriters.
    pub rows: Vec<String>,
}

/// Reasons for which an object is not Ready because of its past, where its last spec alone would do.
const PAST: [(&str, &str); 11] = [
    ("DatabaseStalled", "the Postgresql of an app is not Ready, for one of the other reasons here"),
    ("DowngradeRefused", "the data belongs to a newer version of the app"),
    ("ExpansionNotAllowed", "the volume has its size from an earlier spec"),
    ("Growing", "the same, and no volume grows here"),
    ("MajorSkipRefused", "the data belongs to an older version of the app"),
    ("PasswordChanged", "the operator changes no password in a database"),
    ("RepositoryMismatch", "the backups are in another repository"),
    ("RolledBack", "the release is that of an earlier spec"),
    ("StorageShrink", "a volume never shrinks"),
    ("VersionMismatch", "the files of the database are those of another major version"),
    ("VolumeDropped", "no volume with data is left behind unasked"),
];

/// Reasons for which a new object is not Ready, while one with a past has what it needs.
const NEW: [(&str, &str); 8] = [
    ("DatabaseStalled", "the Postgresql of an app is not Ready, for one of the other reasons here"),
    ("DependencyNotReady", "an installed release does not wait for others"),
    ("DumpsMissing", "spec.restore is ignored once there is a database"),
    ("PasswordInvalid", "a database has its own copy of its password"),
    ("PasswordSecretKeyMissing", "the same"),
    ("PasswordSecretMissing", "the same"),
    ("RestoreFailed", "the same"),
    ("Restoring", "the same"),
];

/// A reason of an object with a past, and the one for which a new object with the same spec is not Ready.
const SAME: [(&str, &str, &str); 2] = [
    (
        "NotReady",
        "Provisioning",
        "a pod cannot run: that of the server, and that of the Job which makes a new database",
    ),
    ("CertificateMissing", "CertificatePending", "there is no cert-manager, which has five minutes"),
];

/// Beginnings of the kinds and names of what outlives the part of the spec that it was made for: there may be more of it.
const STAYS: [(&str, &str); 8] = [
    ("ConfigMap acme-pg", "part of the database of an app, which stays"),
    ("Job ", "it has ended"),
    ("PerconaPG", "databases and backups stay: no edit deletes data"),
    ("PersistentVolumeClaim ", "the same"),
    ("Postgresql ", "the same"),
    ("Secret ", "credentials stay with the data that they open"),
    ("Service acme-pg", "part of the database of an app, which stays"),
    ("StatefulSet acme-pg", "part of the database of an app, which stays"),
];

/// The fields in which the status of a ClientApp remembers its past.
const REMEMBERED: [(&str, &str); 8] = [
    ("backup", "the last backup before an upgrade"),
    ("files", "the last archives"),
    ("lastReady", "the last revision that was Ready"),
    ("owned", "lists what stays"),
    ("profileRevision", "counts the changes of the Profile"),
    ("rolledBack", "what failed, until it is no longer asked for"),
    ("spentAllow", "is spent until the field changes"),
    ("test", "the last tests"),
];

fn has(table: &[(&str, &str)], word: &str) -> bool {
    table.iter().any(|(is, _)| *is == word)
}

/// Returns whether an object is not Ready because of its past.
pub fn is_past(ready: &Condition) -> bool {
    ready.status != "True" && has(&PAST, &ready.reason)
}

/// In what an end state differs from the one that the last spec alone gives. Where a spec cannot be met, the state is
/// that of an earlier one, and only the reasons are compared.
pub fn converged(end: &End, alone: &End) -> Vec<String> {
    let is_new = alone.ready.status != "True" && has(&NEW, &alone.ready.reason);
    let reasons = (end.ready.reason.as_str(), alone.ready.reason.as_str());
    let is_same = SAME.iter().any(|(past, new, _)| (*past, *new) == reasons) && end.ready.status != "True";
    if is_past(&end.ready) || is_new || is_same {
        return Vec::new();
    }
    if !end.ready.is(&alone.ready) {
        return vec![format!("it is {:?}, and with the last spec alone {:?}", end.ready, alone.ready)];
    }
    if end.ready.status != "True" {
        return Vec::new();
    }
    let number = |state: &State, key: &str| state.objects.get(key).map_or(0, Vec::len);
    let stays = |key: &str| {
        let more = number(&end.state, key) > number(&alone.state, key);
        more && STAYS.iter().any(|(begins, _)| key.starts_with(begins))
    };
    let compared = |state: &State| {
        let mut state = state.clone();
        state.objects.retain(|key, _| !stays(key));
        let apps = state.objects.iter_mut().filter(|(key, _)| key.starts_with("ClientApp "));
        for app in apps.flat_map(|(_, apps)| apps) {
            if let Some(status) = app.get_mut("status").and_then(Value::as_object_mut) {
                status.retain(|field, _| !has(&REMEMBERED, field));
            }
        }
        state
    };
    let mut found = differences(&compared(&alone.state), &compared(&end.state));
    if end.rows != alone.rows {
        found.push(format!("the rows are {:?}, and not {:?}", end.rows, alone.rows));
    }
    found
}

#[cfg(test)]
mod tests {
    use clientapp_crd::Reason;
    use serde_json::json;

    use super::*;

    #[test]
    fn every_reason_exists() {
        let same = SAME.iter().flat_map(|(past, new, why)| [(past, why), (new, why)]);
        for (reason, why) in PAST.iter().chain(&NEW).map(|(reason, why)| (reason, why)).chain(same) {
            assert!(Reason::parse(reason).is_some() && !why.is_empty(), "{reason}");
        }
    }

    fn end(status: &str, reason: &str, objects: &[(&str, Value)]) -> End {
        let objects = objects.iter().map(|(key, value)| ((*key).to_owned(), vec![value.clone()])).collect();
        let ready = Condition { status: status.to_owned(), reason: reason.to_owned(), message: String::new() };
        End { state: State { objects, ..State::default() }, ready, ..End::default() }
    }

    #[test]
    fn only_what_the_tables_name_may_differ() {
        let app = |status: Value| ("ClientApp acme", json!({ "status": status }));
        let ready = |objects: &[(&str, Value)]| end("True", "Ready", objects);
        let plain = ready(&[app(json!({"url": "a"}))]);
        let missing = end("False", "SecretMissing", &[]);
        for (what, with_past, alone, holds) in [
            ("the same", ready(&[app(json!({"url": "a", "owned": [1]}))]), &plain, true),
            ("another field", ready(&[app(json!({"url": "b"}))]), &plain, false),
            ("a Secret stays", ready(&[app(json!({"url": "a"})), ("Secret x", json!({}))]), &plain, true),
            ("a Service stays", ready(&[app(json!({"url": "a"})), ("Service x", json!({}))]), &plain, false),
            ("a Secret is lost", ready(&[]), &ready(&[("Secret x", json!({}))]), false),
            ("another Secret", ready(&[("Secret x", json!({"a": 1}))]), &ready(&[("Secret x", json!({}))]), false),
            ("not Ready because of its past", end("False", "StorageShrink", &[]), &plain, true),
            ("not Ready", end("False", "SecretMissing", &[]), &plain, false),
            ("as little Ready", end("False", "SecretMissing", &[("Service x", json!({}))]), &missing, true),
            ("without a pod", end("False", "NotReady", &[]), &end("False", "Provisioning", &[]), true),
            ("Ready without a pod", ready(&[]), &end("False", "Provisioning", &[]), false),
            ("Ready all the same", ready(&[]), &missing, false),
            ("Ready because of its past", ready(&[]), &end("False", "DumpsMissing", &[]), true),
            ("another row", End { rows: vec!["a".to_owned()], ..plain.clone() }, &plain, false),
        ] {
            assert_eq!(converged(&with_past, alone).is_empty(), holds, "{what}");
        }
    }
}
