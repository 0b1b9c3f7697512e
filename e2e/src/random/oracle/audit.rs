//! All writes with their clients and the objects as they were stored, from the API server's audit log. Reading the log is an
//! **effect**.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use derive_more::Display;
use jiff::Timestamp;
use serde_json::Value;

use crate::manifests;
use crate::percona;
use crate::tail::Tail;

/// The user agent of a user's requests.
pub const USER: &str = "life";
/// The prefix of the names of markers: objects that do not exist, and are deleted all the same.
pub const MARKER: &str = "audit-marker-";

/// The client that sent a request.
#[derive(Clone, Debug, Display, PartialEq, Eq)]
pub enum Actor {
    #[display("a step of the life")]
    User,
    #[display("the operator")]
    Operator,
    #[display("the operator's helm")]
    OperatorHelm,
    #[display("another client's helm")]
    OtherHelm,
    #[display("Percona")]
    Percona,
    /// A controller of Kubernetes, or any other client: the user's name.
    #[display("{}", _0.strip_prefix("system:serviceaccount:kube-system:").unwrap_or(_0))]
    Other(String),
}

impl Actor {
    /// Returns the client that sent the request of this line of the log.
    fn of(line: &Value) -> Actor {
        let [user, agent] =
            [&line["user"]["username"], &line["userAgent"]].map(|word| word.as_str().unwrap_or_default());
        match (user == manifests::user(), agent.starts_with("Helm/")) {
            (true, false) => Actor::Operator,
            (true, true) => Actor::OperatorHelm,
            (false, true) => Actor::OtherHelm,
            (false, false) if agent == USER => Actor::User,
            (false, false) if user == percona::USER => Actor::Percona,
            (false, false) => Actor::Other(user.to_owned()),
        }
    }
}

/// A successful write.
#[derive(Clone, Debug)]
pub struct Entry {
    /// When it arrived.
    pub at: Timestamp,
    pub actor: Actor,
    pub verb: String,
    /// Plural of the kind, with the subresource.
    pub resource: String,
    pub name: String,
    pub uid: String,
    /// Says whether it created the object.
    pub created: bool,
    /// The object that it left, or `null` where the log does not have it.
    pub object: Value,
    /// The whole line, unless it is about a Secret.
    pub line: Option<String>,
}

impl Entry {
    /// Returns whether it began the deletion of an object, or completed it.
    pub fn deletes(&self) -> bool {
        self.verb.starts_with("delete")
    }

    pub fn by_operator(&self) -> bool {
        matches!(self.actor, Actor::Operator | Actor::OperatorHelm)
    }
}

/// The log, as far as it was read.
pub struct Audit {
    tail: Tail,
    markers: BTreeSet<String>,
    /// By namespace, in the order of the answers.
    entries: BTreeMap<String, Vec<Entry>>,
    /// The namespaces that are over, whose further entries are of no interest.
    closed: BTreeSet<String>,
}

impl Audit {
    pub fn new(path: PathBuf) -> Audit {
        Audit { tail: Tail::new(path), markers: BTreeSet::new(), entries: BTreeMap::new(), closed: BTreeSet::new() }
    }

    /// Returns the writes to a namespace since the last call and up to the one for this marker; `None`: the log does not have
    /// the marker yet.
    pub fn until(&mut self, marker: &str, namespace: &str) -> Result<Option<Vec<Entry>>> {
        self.read_on()?;
        Ok(self.markers.remove(marker).then(|| self.entries.remove(namespace).unwrap_or_default()))
    }

    pub fn close(&mut self, namespace: &str) {
        self.closed.insert(namespace.to_owned());
    }

    fn read_on(&mut self) -> Result<()> {
        let Audit { tail, markers, entries, closed } = self;
        tail.each(|line| {
            // Nearly half of all lines are of Leases and pods, and not worth decoding.
            if line.contains(r#""level":"Metadata""#) {
                return Ok(());
            }
            let decoded: Value = serde_json::from_str(line)?;
            let object = &decoded["objectRef"];
            let (namespace, name) = (object["namespace"].as_str(), object["name"].as_str().unwrap_or_default());
            if name.starts_with(MARKER) {
                markers.insert(name.to_owned());
            } else if let Some(namespace) = namespace.filter(|namespace| !closed.contains(*namespace)) {
                entries.entry(namespace.to_owned()).or_default().extend(self::entries(&decoded, line));
            }
            Ok(())
        })
    }
}

/// Returns what a line tells: nothing if the request failed, and an entry for each object of a collection.
fn entries(decoded: &Value, line: &str) -> Vec<Entry> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let code = decoded["responseStatus"]["code"].as_u64().unwrap_or_default();
    let at = decoded["requestReceivedTimestamp"].as_str().and_then(|at| at.parse().ok());
    let Some(at) = at.filter(|_| (200..300).contains(&code)) else { return Vec::new() };
    let about = &decoded["objectRef"];
    let resource = match about["subresource"].as_str() {
        Some(subresource) => format!("{}/{subresource}", word(&about["resource"])),
        None => word(&about["resource"]),
    };
    let answer = &decoded["responseObject"];
    let entry = |object: &Value| {
        // Of an object that is gone at once, the answer has only the name and the uid.
        let gone = &object["details"];
        let uid = object["metadata"]["uid"].as_str().or(gone["uid"].as_str()).unwrap_or_default();
        let name = about["name"].as_str().or(object["metadata"]["name"].as_str()).unwrap_or_default();
        Entry {
            at,
            actor: Actor::of(decoded),
            verb: word(&decoded["verb"]),
            resource: resource.clone(),
            name: name.to_owned(),
            uid: uid.to_owned(),
            created: code == 201 && about["subresource"].is_null(),
            object: if gone.is_object() { Value::Null } else { object.clone() },
            line: (!resource.starts_with("secrets")).then(|| line.to_owned()),
        }
    };
    match answer["items"].as_array() {
        Some(items) if decoded["verb"] == "deletecollection" => items.iter().map(entry).collect(),
        _ => vec![entry(answer)],
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;

    use serde_json::json;

    use super::*;

    fn line(verb: &str, code: u16, about: Value, answer: Value) -> String {
        let line = json!({
            "level": "RequestResponse", "verb": verb, "objectRef": about, "responseStatus": {"code": code},
            "responseObject": answer, "requestReceivedTimestamp": "2026-01-02T03:04:05.678901Z",
            "user": {"username": crate::manifests::user()}, "userAgent": "Helm/4.3.1",
        });
        format!("{line}\n")
    }

    #[test]
    fn what_was_written_is_known_by_its_object() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let mut log = File::create(&path).unwrap();
        let object = |name: &str, uid: &str| json!({"metadata": {"name": name, "uid": uid}});
        let about = |resource: &str, name: &str| json!({"namespace": "a", "resource": resource, "name": name});
        for line in [
            line("create", 201, json!({"namespace": "a", "resource": "jobs"}), object("j", "1")),
            line("create", 409, about("jobs", "j"), json!({})),
            line("patch", 201, about("services", "s"), object("s", "2")),
            line("delete", 200, about("jobs", "j"), json!({"kind": "Status", "details": {"uid": "1"}})),
            line(
                "deletecollection",
                200,
                json!({"namespace": "a", "resource": "secrets"}),
                json!({"items": [object("x", "3"), object("y", "4")]}),
            ),
            line(
                "patch",
                200,
                json!({"namespace": "b", "resource": "clientapps", "name": "c", "subresource": "status"}),
                object("c", "5"),
            ),
        ] {
            log.write_all(line.as_bytes()).unwrap();
        }
        let mut audit = Audit::new(path);
        assert!(audit.until("audit-marker-1", "a").unwrap().is_none());
        log.write_all(line("delete", 404, about("configmaps", "audit-marker-1"), json!({})).as_bytes()).unwrap();
        let found = audit.until("audit-marker-1", "a").unwrap().unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|entry| {
                (entry.resource.as_str(), entry.name.as_str(), entry.uid.as_str(), entry.created, entry.deletes())
            })
            .collect();
        assert_eq!(
            told,
            [
                ("jobs", "j", "1", true, false),
                ("services", "s", "2", true, false),
                ("jobs", "j", "1", false, true),
                ("secrets", "x", "3", false, true),
                ("secrets", "y", "4", false, true),
            ]
        );
        assert!(found[0].by_operator() && found[0].line.is_some() && found[3].line.is_none());
        assert!(found[2].object.is_null());
        log.write_all(line("delete", 404, about("configmaps", "audit-marker-2"), json!({})).as_bytes()).unwrap();
        let found = audit.until("audit-marker-2", "b").unwrap().unwrap();
        assert_eq!((found.len(), found[0].resource.as_str(), found[0].created), (1, "clientapps/status", false));
    }
}
