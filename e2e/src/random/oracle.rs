//! The oracles: what has to hold, whatever the workload and the disturbance were.
//!
//! | | module | |
//! |---|---|---|
//! | all writes with their clients, from the API server's audit log | [`audit`] | effect |
//! | O1 to O6: a case compared with the undisturbed run | [`evidence`], [`state`] | pure |
//! | no object is lost, touched, left or orphaned | [`ownership`] | pure |
//! | the last spec alone gives the same | [`convergence`] | pure |
//! | everything is at rest, nothing is left | [`rest`] | pure |
//! | a process does not grow | [`leaks`] | effect |

pub mod audit;
pub mod convergence;
pub mod evidence;
pub mod leaks;
pub mod ownership;
pub mod rest;
pub mod state;

use derive_more::Display;
use serde::Serialize;
use serde_json::Value;

/// Says what was checked.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum Oracle {
    /// The end state equals that of the undisturbed run, but for one wasted revision.
    #[display("O1, the end state")]
    EndState,
    /// Each object is made and deleted as often as in the undisturbed run, and no password changes.
    #[display("O2, what was made and deleted")]
    Objects,
    /// No two helm processes change a release at once, and nothing is written without the Lease.
    #[display("O3, one writer")]
    OneWriter,
    /// A secret is in Secrets only.
    #[display("O4, secrecy")]
    Secrecy,
    /// The status tells the truth.
    #[display("O5, the truth of the status")]
    Truth,
    /// No process or file is left.
    #[display("O6, orphans")]
    Orphans,
    /// An object was lost that had to stay.
    Lost,
    /// A foreign object was changed.
    Touched,
    /// A password was replaced or lost, and no condition or event reports it.
    Untold,
    /// An object had to be deleted, still exists, and is named nowhere.
    Left,
    /// A deletion does not finish, and no message says what a user could do.
    Hangs,
    /// An object exists without the release, the database or the ClientApp that it belongs to.
    Orphaned,
    /// The object is as its user expects once everything is at rest.
    #[display("rest")]
    Rest,
    /// The operator's caches equal the store.
    #[display("caches")]
    Caches,
    /// The operator has no more in use after the same work once more.
    #[display("leaks")]
    Leaks,
    /// The API server accepts what the schema permits, and says why it refuses something.
    #[display("answers")]
    Answers,
    /// The last spec alone gives the same, and the first spec gives what it gave.
    #[display("convergence")]
    Convergence,
    /// The operator neither panics nor sends requests at rest.
    #[display("quiet")]
    Quiet,
    /// The case could be run.
    #[display("not run")]
    Run,
}

/// An oracle that does not hold.
#[derive(Clone, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
#[display("{oracle}: {}{why}", if what.is_empty() { String::new() } else { format!("{what}: ") })]
pub struct Violation {
    pub oracle: Oracle,
    /// Kind and name of the object; empty if it is not about one.
    pub what: String,
    /// One sentence.
    pub why: String,
}

impl Violation {
    pub fn new(oracle: Oracle, why: impl Into<String>) -> Violation {
        Violation { oracle, what: String::new(), why: why.into() }
    }

    /// Returns a violation for each sentence.
    pub fn all(oracle: Oracle, whys: impl IntoIterator<Item = String>) -> impl Iterator<Item = Violation> {
        whys.into_iter().map(move |why| Violation::new(oracle, why))
    }

    /// Returns whether waiting may resolve it.
    pub fn may_pass(&self) -> bool {
        !matches!(self.oracle, Oracle::Lost | Oracle::Touched)
    }
}

/// A condition of an object: status, reason and message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Condition {
    pub status: String,
    pub reason: String,
    pub message: String,
}

impl Condition {
    /// Returns the condition of this type; empty if there is none.
    pub fn of(object: &Value, kind: &str) -> Condition {
        let conditions = object["status"]["conditions"].as_array();
        let found = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == kind));
        let word = |name: &str| found.and_then(|found| found[name].as_str()).unwrap_or_default().to_owned();
        Condition { status: word("status"), reason: word("reason"), message: word("message") }
    }

    pub fn ready(object: &Value) -> Condition {
        Condition::of(object, "Ready")
    }

    pub fn holds(object: &Value, kind: &str) -> bool {
        Condition::of(object, kind).status == "True"
    }

    /// Returns whether another says the same, perhaps in other words.
    pub fn is(&self, other: &Condition) -> bool {
        (&self.status, &self.reason) == (&other.status, &other.reason)
    }
}

/// Returns whether the status is of the current spec.
pub fn is_observed(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"]
}

/// Returns whether the status is of the current spec, and has a Ready condition with a reason.
pub fn is_current(object: &Value) -> bool {
    is_observed(object) && !Condition::ready(object).reason.is_empty()
}

/// Returns the conditions of an object, for people.
pub fn told(object: &impl Serialize) -> String {
    let object = serde_json::to_value(object).unwrap_or_default();
    let words = object["status"]["conditions"].as_array().into_iter().flatten().map(|told| {
        let [type_, status, reason, message] =
            ["type", "status", "reason", "message"].map(|word| told[word].as_str().unwrap_or_default());
        format!("{type_}={status} {reason}: {message}")
    });
    words.collect::<Vec<_>>().join("; ")
}
