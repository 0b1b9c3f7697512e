//! A trap for one write: the nth since the count began. Pure.

use std::fmt;

use axum::http::StatusCode;

use super::Asked;

/// Whose write it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// The operator itself.
    Operator,
    /// A helm process of the operator, through its gateway.
    Helm,
}

/// What the trap does to the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Snap {
    /// The proxy answers with this status; the API server does not get the request.
    Answer(StatusCode),
    /// The proxy answers 429 with a Retry-After of this many seconds; the API server does not get the request.
    TooMany(u64),
    /// The proxy answers 502 with a web page; the API server does not get the request.
    Page,
    /// It is forwarded, and the connection is cut in place of the answer.
    Lose,
    /// It is forwarded, and the connection is cut after half of the answer.
    Halve,
    /// It is held before it is forwarded, until the trap is lifted.
    Before,
    /// It is forwarded, and the trap springs before it is applied; its answer is held until the trap is lifted.
    Meanwhile,
    /// It is forwarded, and its answer is held until the trap is lifted.
    After,
}

/// For the nth write, counted from 1; it springs once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trap {
    pub by: By,
    pub nth: usize,
    pub snap: Snap,
}

/// A write in terms of a Role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub by: By,
    verb: &'static str,
    /// With its subresource.
    pub resource: String,
    name: String,
}

impl Write {
    /// `None`: it is no write that counts. A Lease's is not part of the work, an event tells only of it, and a review changes
    /// nothing.
    pub(super) fn of(asked: &Asked) -> Option<Write> {
        let writes = ["create", "update", "patch", "delete", "deletecollection"].contains(&asked.verb);
        let spared = ["leases", "events"].contains(&&*asked.resource) || asked.resource.ends_with("reviews");
        (writes && !spared).then(|| Write {
            by: if asked.by_helm { By::Helm } else { By::Operator },
            verb: asked.verb,
            resource: asked.resource.clone(),
            name: asked.name.clone(),
        })
    }

    /// Any writes by these.
    #[cfg(test)]
    pub(crate) fn of_each(by: &[By]) -> Vec<Write> {
        let write = |by: &By| Write { by: *by, verb: "create", resource: "secrets".to_owned(), name: String::new() };
        by.iter().map(write).collect()
    }
}

impl fmt::Display for Write {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = if self.by == By::Helm { "helm" } else { "operator" };
        write!(f, "{by} {} {} {}", self.verb, self.resource, self.name)
    }
}

/// The writes since the count began.
#[derive(Debug, Default)]
pub(super) struct Writes {
    counted: Vec<Write>,
    trap: Option<Trap>,
    caught: Option<Write>,
    has_sprung: bool,
}

impl Writes {
    pub(super) fn with(trap: Option<Trap>) -> Writes {
        Writes { trap, ..Writes::default() }
    }

    /// Counts one more, and returns what the trap does to it.
    pub(super) fn count(&mut self, write: Write) -> Option<Snap> {
        self.counted.push(write.clone());
        let so_many = self.counted.iter().filter(|counted| counted.by == write.by).count();
        let trap = self.trap.filter(|trap| trap.by == write.by && trap.nth == so_many)?;
        self.caught = Some(write);
        // One that is held after it was applied is not applied yet.
        self.has_sprung = trap.snap != Snap::After;
        Some(trap.snap)
    }

    /// The write was applied.
    pub(super) fn spring(&mut self) {
        self.has_sprung = true;
    }

    pub(super) fn counted(&self) -> &[Write] {
        &self.counted
    }

    pub(super) fn sprung(&self) -> Option<&Write> {
        self.caught.as_ref().filter(|_| self.has_sprung)
    }

    pub(super) fn is_set(&self) -> bool {
        self.trap.is_some()
    }

    pub(super) fn lift(&mut self) {
        self.trap = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(verb: &'static str, resource: &str, by_helm: bool) -> Asked {
        Asked { verb, resource: resource.to_owned(), name: "a".to_owned(), by_helm }
    }

    #[test]
    fn what_counts_as_a_write() {
        for (verb, resource, counts) in [
            ("create", "secrets", true),
            ("patch", "clientapps/status", true),
            ("update", "secrets", true),
            ("delete", "persistentvolumeclaims", true),
            ("deletecollection", "pods", true),
            ("get", "secrets", false),
            ("list", "secrets", false),
            ("watch", "secrets", false),
            ("patch", "leases", false),
            ("create", "events", false),
            ("create", "selfsubjectaccessreviews", false),
        ] {
            assert_eq!(Write::of(&asked(verb, resource, false)).is_some(), counts, "{verb} {resource}");
        }
    }

    #[test]
    fn a_trap_is_for_the_nth_write_of_one_of_both_and_springs_once() {
        let trap = Trap { by: By::Helm, nth: 2, snap: Snap::Lose };
        let mut writes = Writes::with(Some(trap));
        let mut count = |resource: &str, by_helm| {
            let snap = writes.count(Write::of(&asked("create", resource, by_helm)).unwrap());
            (snap, writes.sprung().map(|write| write.resource.clone()))
        };
        assert_eq!(count("secrets", true), (None, None));
        assert_eq!(count("configmaps", false), (None, None));
        assert_eq!(count("jobs", false), (None, None));
        assert_eq!(count("services", true), (Some(Snap::Lose), Some("services".to_owned())));
        assert_eq!(count("deployments", true), (None, Some("services".to_owned())));
        assert_eq!(writes.counted().len(), 5);
        writes.lift();
        assert!(!writes.is_set() && writes.sprung().is_some(), "what has sprung is remembered");
    }

    #[test]
    fn a_trap_after_a_write_springs_when_it_is_applied() {
        let mut writes = Writes::with(Some(Trap { by: By::Helm, nth: 1, snap: Snap::After }));
        let write = Write::of(&asked("create", "secrets", true)).unwrap();
        assert_eq!(writes.count(write.clone()), Some(Snap::After));
        assert_eq!(writes.sprung(), None);
        writes.spring();
        assert_eq!(writes.sprung(), Some(&write));
    }
}
