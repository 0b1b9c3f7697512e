//! An operator process: its lead, its caches, and what its reconcile of the app does next.

use super::{
    Lease, Mechanism, Protocol, Spec, State,
    helm::{Run, Verb},
    store::{App, Data, Late, Phase, Request, Revision, take},
};

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) struct Operator {
    pub term: Term,
    /// The app, as its watch shows it.
    app: Option<App>,
    secrets: Secrets,
}

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub(super) enum Term {
    #[default]
    Standby,
    Leads,
    /// It has not noticed yet that its lead is over.
    Over,
}

/// What the watch of Secrets shows.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
struct Secrets {
    release: Option<Revision>,
    known: bool,
    /// How many apps of this name are gone, as their own Secrets show.
    gone: u8,
}

/// The next step of a reconcile.
enum Next {
    Nothing,
    Send(Request),
    /// Start helm for this revision.
    Start(Verb, u8),
}

impl Operator {
    /// Returns true if it leads, by its own clock.
    pub fn holds(&self, protocol: &Protocol) -> bool {
        self.term == Term::Leads || self.term == Term::Over && !protocol.has(Mechanism::Clock)
    }
}

impl State {
    /// Time alone keeps leads apart: a standby waits for longer than a term, unless the Lease was released or is its own.
    pub(super) fn may_acquire(&self, protocol: &Protocol, op: usize) -> bool {
        let at_once = [Lease::Free, Lease::Held(op)].contains(&self.lease);
        let is_quiet = match self.late {
            Some(late) if at_once => late.run().is_none() || !protocol.has(Mechanism::Prompt),
            Some(_) => !protocol.has(Mechanism::Margin),
            None => true,
        };
        self.operators[op].term == Term::Standby && self.operators[1 - op].term != Term::Leads && is_quiet
    }

    /// The lists with which watches begin are complete and current.
    pub(super) fn acquire(&mut self, op: usize) {
        self.lease = Lease::Held(op);
        self.operators[op] = Operator { term: Term::Leads, ..Operator::default() };
        self.see_app(op);
        self.see_secrets(op);
    }

    pub(super) fn end_term(&mut self, protocol: &Protocol, op: usize) {
        self.operators[op].term = Term::Over;
        if !self.operators[op].holds(protocol) {
            // As it does nothing more, it does not matter what it believes.
            self.operators[op] = Operator { term: Term::Over, ..Operator::default() };
        }
    }

    /// Controllers and helm are stopped.
    pub(super) fn stand_by(&mut self, protocol: &Protocol, op: usize) {
        self.operators[op] = Operator::default();
        let own: Vec<Run> = self.runs.extract_if(.., |run| run.by == Some(op)).collect();
        for run in own {
            self.escape(protocol, run);
        }
    }

    pub(super) fn crash(&mut self, protocol: &Protocol, op: usize) {
        if self.lease == Lease::Held(op) {
            self.lease = Lease::Orphaned;
        }
        self.stand_by(protocol, op);
    }

    /// The Lease is released once the last helm has ended.
    pub(super) fn may_release(&self, op: usize) -> bool {
        self.operators[op].term == Term::Leads && !self.has_run(op)
    }

    fn has_run(&self, op: usize) -> bool {
        self.runs.iter().any(|run| run.by == Some(op))
    }

    pub(super) fn see_app(&mut self, op: usize) {
        self.operators[op].app = self.app;
    }

    pub(super) fn see_secrets(&mut self, op: usize) {
        self.operators[op].secrets = Secrets { release: self.release, known: self.known, gone: self.gone };
    }

    pub(super) fn reconcile(&mut self, protocol: &Protocol, op: usize) {
        match self.next(protocol, op) {
            Next::Nothing => {}
            Next::Send(request) => {
                // Its own status counts until the watch catches up.
                if let (Request::Record { data, .. }, Some(app)) = (request, &mut self.operators[op].app) {
                    app.owned = Some(data);
                }
                self.land(protocol, request);
            }
            Next::Start(verb, revision) => self.begin(protocol, op, verb, revision),
        }
    }

    /// A request gets no answer, and the reconcile begins anew.
    pub(super) fn reconcile_late(&mut self, protocol: &Protocol, op: usize) {
        if let Next::Send(request) = self.next(protocol, op)
            && self.late.is_none()
            && take(&mut self.left.late)
        {
            self.late = Some(Late { by: op, request });
        }
    }

    fn next(&self, protocol: &Protocol, op: usize) -> Next {
        let Operator { app: Some(app), secrets, .. } = self.operators[op] else { return Next::Nothing };
        let awaits = self.late.is_some_and(|late| late.by == op && late.run().is_some());
        let is_busy = awaits && protocol.has(Mechanism::Prompt) || self.has_run(op) && protocol.has(Mechanism::OneRun);
        if is_busy || !self.operators[op].holds(protocol) {
            Next::Nothing
        } else if app.deleting {
            self.teardown(protocol, app)
        } else {
            self.bring_up(protocol, app, secrets)
        }
    }

    fn bring_up(&self, protocol: &Protocol, app: App, seen: Secrets) -> Next {
        // A Secret of its predecessor is in the way.
        if protocol.has(Mechanism::OneWatch) && seen.gone + 1 < app.uid {
            return Next::Nothing;
        }
        match self.data {
            // The API server is asked whether the app is still like that: `is_current`.
            None if self.app.is_some_and(|now| App { owned: now.owned, ..app } == now) => {
                Next::Send(Request::CreateData { owner: app.uid })
            }
            Some(data) if data.owner == app.uid => {
                self.record(app, data).unwrap_or_else(|| self.upgrade(protocol, app.spec, seen))
            }
            // Another app's data are not touched.
            _ => Next::Nothing,
        }
    }

    /// Puts data on record, unless they are.
    fn record(&self, app: App, data: Data) -> Option<Next> {
        let is_read = |now: &App| now.uid == app.uid && now.owned == app.owned;
        (app.owned != Some(data.uid)).then(|| match self.app.filter(is_read) {
            Some(before) => Next::Send(Request::Record { before, data: data.uid }),
            None => Next::Nothing,
        })
    }

    /// Decides by the newest revision, as the watch shows it: `release_steps` in `decide.rs`.
    fn upgrade(&self, protocol: &Protocol, spec: Spec, seen: Secrets) -> Next {
        let start = |revision| Next::Start(Verb::Upgrade(spec), revision);
        let Some(newest) = seen.release else { return start(1) };
        let next = newest.number + 1;
        match newest.phase {
            Phase::Pending if is_left(protocol, newest) => {
                // The API server is asked whether this revision is still pending: `unlock` in `release.rs`.
                match self.release.filter(|now| now.number == newest.number && now.phase == Phase::Pending) {
                    Some(now) if protocol.has(Mechanism::LockReadAgain) && !is_left(protocol, now) => Next::Nothing,
                    Some(before) => Next::Send(Request::Unlock { before }),
                    None => start(next),
                }
            }
            Phase::Pending | Phase::Uninstalling => Next::Nothing,
            Phase::Deployed if newest.stamped && newest.spec == spec => Next::Nothing,
            // It was never an operator's.
            _ if !seen.known => Next::Nothing,
            Phase::Deployed | Phase::Failed => start(next),
        }
    }

    /// Everything but the app itself is read from the API server.
    fn teardown(&self, protocol: &Protocol, app: App) -> Next {
        let of_app = self.data.filter(|data| data.owner == app.uid);
        if let Some(record) = of_app.and_then(|data| self.record(app, data)) {
            return record;
        }
        let Some(now) = self.app.filter(|now| now.uid == app.uid && now.deleting) else { return Next::Nothing };
        match self.release.filter(|_| self.known) {
            Some(newest) if newest.phase == Phase::Pending && !is_left(protocol, newest) => return Next::Nothing,
            Some(newest) => return Next::Start(Verb::Uninstall, newest.number),
            None => {}
        }
        let is_proven = |data: &Data| now.owned == Some(data.uid) && now.uid == data.owner;
        match self.data.filter(|data| is_proven(data) || !protocol.has(Mechanism::Proof)) {
            Some(data) => Next::Send(Request::DeleteData { uid: data.uid }),
            None => Next::Send(Request::RemoveFinalizer { before: now }),
        }
    }
}

/// Returns true if a dead helm of an operator has left this lock: `lock.rs`.
fn is_left(protocol: &Protocol, pending: Revision) -> bool {
    pending.stamped || !protocol.has(Mechanism::Lock)
}
