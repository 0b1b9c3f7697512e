//! Which client created an object, and which deleted it, from the API server's audit log. Reading the log is an
//! **effect**.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::Result;
use jiff::Timestamp;
use serde_json::Value;

use crate::manifests;
use crate::percona;
use crate::tail::Tail;

/// The user agent of a life's requests.
pub const LIFE: &str = "life";

/// The prefix of the names of markers.
pub const MARKER: &str = "life-marker-";

/// The client that sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// A step of the life.
    Life,
    /// The operator itself.
    Operator,
    /// The operator's helm.
    OperatorHelm,
    /// helm, run by another client.
    OtherHelm,
    Percona,
    /// A controller of Kubernetes, or any other client: the user's name.
    Other(String),
}

impl Actor {
    /// The client that sent the request of this line of the log.
    #[must_use]
    pub fn of(line: &Value) -> Actor {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (user, agent) = (word(&line["user"]["username"]), word(&line["userAgent"]));
        match (user == manifests::user(), agent.starts_with("Helm/")) {
            (true, false) => Actor::Operator,
            (true, true) => Actor::OperatorHelm,
            (false, true) => Actor::OtherHelm,
            (false, false) if agent == LIFE => Actor::Life,
            (false, false) if user == percona::USER => Actor::Percona,
            (false, false) => Actor::Other(user),
        }
    }
}

impl std::fmt::Display for Actor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Actor::Life => "a step of this life",
            Actor::Operator => "the operator",
            Actor::OperatorHelm => "the operator's helm",
            Actor::OtherHelm => "another client's helm",
            Actor::Percona => "Percona",
            Actor::Other(user) => user.strip_prefix("system:serviceaccount:kube-system:").unwrap_or(user),
        })
    }
}

/// A request that created an object or deleted it.
#[derive(Clone, Debug)]
pub struct Request {
    /// When it arrived.
    pub at: Timestamp,
    /// `create`, `delete`, `deletecollection`, or the verb of an apply that created it.
    pub verb: String,
    /// Plural of the kind.
    pub resource: String,
    pub namespace: String,
    /// Empty for a collection.
    pub name: String,
    pub actor: Actor,
    /// Whether it created an object.
    pub created: bool,
}

/// The log, as far as it was read.
pub struct Audit {
    tail: Tail,
    /// The markers found so far.
    markers: BTreeSet<String>,
    /// The requests so far, by namespace, in the order of their responses.
    pub requests: BTreeMap<String, Vec<Request>>,
}

impl Audit {
    #[must_use]
    pub fn new(path: PathBuf) -> Audit {
        Audit { tail: Tail::new(path), markers: BTreeSet::new(), requests: BTreeMap::new() }
    }

    /// Reads new entries. Returns whether this marker was found: a request for an object of this name was answered.
    pub fn read_on(&mut self, marker: &str) -> Result<bool> {
        let Audit { tail, markers, requests } = self;
        tail.each(|line| {
            if let Some(found) = line.split('"').find(|word| word.starts_with(MARKER)) {
                markers.insert(found.to_owned());
            }
            // Most lines are reads and updates, and not worth decoding.
            if (line.contains(r#""verb":"delete"#) || line.contains(r#""code":201"#))
                && let Some(request) = serde_json::from_str(line).ok().as_ref().and_then(request)
            {
                requests.entry(request.namespace.clone()).or_default().push(request);
            }
            Ok(())
        })?;
        Ok(self.markers.contains(marker))
    }
}

fn request(line: &Value) -> Option<Request> {
    let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let object = &line["objectRef"];
    let code = line["responseStatus"]["code"].as_u64()?;
    if object["subresource"].is_string() || !(200..300).contains(&code) {
        return None;
    }
    Some(Request {
        at: line["requestReceivedTimestamp"].as_str()?.parse().ok()?,
        verb: word(&line["verb"]),
        resource: word(&object["resource"]),
        namespace: word(&object["namespace"]),
        name: word(&object["name"]),
        actor: Actor::of(line),
        created: code == 201,
    })
}
