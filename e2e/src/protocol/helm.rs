//! A helm run: it reads Helm's storage once, then writes step by step, each request through its operator's gateway.

use super::{
    Mechanism, Protocol, Spec, State,
    store::{Late, Phase, Request, take},
};

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Run {
    pub id: u8,
    /// The operator whose child it is; `None`: a descendant that has left the run's process group, and goes on after its end.
    pub by: Option<usize>,
    pub verb: Verb,
    pub step: Step,
    /// The revision that it creates or uninstalls, and the one that the operator has stamped it for.
    pub number: u8,
    pub expects: u8,
    /// A later run has begun to write.
    pub stale: bool,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Verb {
    Upgrade(Spec),
    Uninstall,
}

/// How far helm has come.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Step {
    /// It has read Helm's storage.
    Counted,
    /// The revision is pending, or uninstalling.
    Locked,
    /// The objects are applied, or deleted.
    Applied,
}

impl Run {
    /// The run after its next write; `None`: that is the last one.
    fn after(self) -> Option<Run> {
        let step = match self.step {
            Step::Counted => Step::Locked,
            Step::Locked => Step::Applied,
            Step::Applied => return None,
        };
        Some(Run { step, ..self })
    }
}

impl State {
    /// Returns true if the gateway forwards a run's requests.
    pub(super) fn passes(&self, protocol: &Protocol, run: Run) -> bool {
        match run.by {
            _ if !protocol.has(Mechanism::Pass) => true,
            None => false,
            Some(op) => !protocol.has(Mechanism::Lead) || self.operators[op].holds(protocol),
        }
    }

    /// Starts helm, which reads its storage first. An upgrade respects a lock, an uninstall does not.
    pub(super) fn begin(&mut self, protocol: &Protocol, op: usize, verb: Verb, expects: u8) {
        let number = match (verb, self.release) {
            (Verb::Upgrade(_), Some(newest)) if newest.phase == Phase::Pending => return,
            (Verb::Upgrade(_), newest) => newest.map_or(1, |newest| newest.number + 1),
            (Verb::Uninstall, Some(newest)) => newest.number,
            (Verb::Uninstall, None) => return,
        };
        if number == expects || !protocol.has(Mechanism::Number) {
            self.last_run += 1;
            let id = self.last_run;
            self.runs.push(Run { id, by: Some(op), verb, step: Step::Counted, number, expects, stale: false });
        }
    }

    /// Sends the next request of a run. If it is refused, helm fails.
    pub(super) fn helm(&mut self, protocol: &Protocol, index: usize) {
        let run = self.runs.remove(index);
        let landed = self.passes(protocol, run) && self.land(protocol, Request::Helm(run));
        match run.after().filter(|_| landed) {
            Some(run) => self.runs.insert(index, run),
            None => self.ended(run),
        }
    }

    /// After an upgrade, the operator waits until the watch shows what helm wrote, or lists the revisions: `awaits` in `observe.rs`.
    fn ended(&mut self, run: Run) {
        if let Some(op) = run.by.filter(|_| run.step != Step::Counted && run.verb != Verb::Uninstall) {
            self.see_secrets(op);
        }
    }

    pub(super) fn kill(&mut self, protocol: &Protocol, index: usize) {
        let run = self.runs.remove(index);
        self.ended(run);
        self.escape(protocol, run);
    }

    /// A descendant of helm goes on. The gateway refuses all its requests, so there is nothing to follow.
    pub(super) fn escape(&mut self, protocol: &Protocol, run: Run) {
        let escaped = Run { by: None, ..run };
        if self.passes(protocol, escaped) {
            self.runs.push(escaped);
        }
    }

    /// helm is killed when it has just sent its next request.
    pub(super) fn helm_late(&mut self, protocol: &Protocol, index: usize) {
        let run = self.runs[index];
        if let Some(by) = run.by.filter(|_| self.passes(protocol, run) && self.late.is_none())
            && take(&mut self.left.late)
        {
            self.kill(protocol, index);
            self.late = Some(Late { by, request: Request::Helm(run) });
        }
    }
}
