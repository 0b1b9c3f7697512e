//! What the API server holds, and how it answers: one request after the other, each with its preconditions. Also what users and
//! another Helm client do there.

use super::{
    Mechanism, Protocol, Spec, State,
    check::{LOCK, NOT_MIXED, NOT_STALE, OURS, PROOF},
    helm::{Run, Step, Verb},
};

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct App {
    pub uid: u8,
    pub spec: Spec,
    pub deleting: bool,
    /// The uid of the data on record in its status.
    pub owned: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Revision {
    pub number: u8,
    pub spec: Spec,
    pub phase: Phase,
    /// It has an operator's stamp, for this very number.
    pub stamped: bool,
    /// The run that wrote it, which no operator sees; `None`: another Helm client. It also stands for the uid of the Secret.
    pub run: Option<u8>,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Phase {
    Pending,
    Deployed,
    Failed,
    Uninstalling,
}

#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Data {
    pub uid: u8,
    /// The uid of the app in its stamp.
    pub owner: u8,
}

/// A write with its preconditions; `before` is what was read.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) enum Request {
    /// Puts data on record.
    Record {
        before: App,
        data: u8,
    },
    RemoveFinalizer {
        before: App,
    },
    CreateData {
        owner: u8,
    },
    DeleteData {
        uid: u8,
    },
    /// Marks a pending revision as failed.
    Unlock {
        before: Revision,
    },
    /// The next write of this run.
    Helm(Run),
}

/// A request that its sender has given up, and that may still take effect.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(super) struct Late {
    pub by: usize,
    pub request: Request,
}

impl App {
    pub fn new(uid: u8) -> App {
        App { uid, spec: 1, deleting: false, owned: None }
    }
}

impl Late {
    /// The helm run that sent it.
    pub fn run(self) -> Option<Run> {
        if let Request::Helm(run) = self.request { Some(run) } else { None }
    }

    fn run_mut(&mut self) -> Option<&mut Run> {
        if let Request::Helm(run) = &mut self.request { Some(run) } else { None }
    }
}

impl State {
    /// Carries out a request; `false`: it is refused, and changes nothing.
    pub(super) fn land(&mut self, protocol: &Protocol, request: Request) -> bool {
        let is_bound = protocol.has(Mechanism::AppVersion);
        match request {
            Request::Record { before, data } => {
                let app = self.app.as_mut().filter(|app| **app == before || !is_bound);
                app.map(|app| app.owned = Some(data)).is_some()
            }
            // To an app that is not in deletion it is added again.
            Request::RemoveFinalizer { before } => {
                let app = self.app.take_if(|app| *app == before || app.deleting && !is_bound);
                self.gone += u8::from(app.is_some());
                app.is_some()
            }
            Request::CreateData { owner } if self.data.is_none() => {
                self.last_uid += 1;
                self.data = Some(Data { uid: self.last_uid, owner });
                true
            }
            Request::CreateData { .. } => false,
            Request::DeleteData { uid } => self.delete_data(protocol, uid),
            Request::Unlock { before } => self.unlock(protocol, before),
            Request::Helm(run) => self.write(protocol, run),
        }
    }

    pub(super) fn land_late(&mut self, protocol: &Protocol) {
        if let Some(late) = self.late.take() {
            self.land(protocol, late.request);
        }
    }

    fn delete_data(&mut self, protocol: &Protocol, uid: u8) -> bool {
        let data = self.data.take_if(|data| data.uid == uid || !protocol.has(Mechanism::DataUid));
        let proves = |app: App, data: Data| app.deleting && app.owned == Some(data.uid) && app.uid == data.owner;
        if data.is_some_and(|data| !self.app.is_some_and(|app| proves(app, data))) {
            self.harm = Some(PROOF);
        }
        data.is_some()
    }

    fn unlock(&mut self, protocol: &Protocol, before: Revision) -> bool {
        let is_bound = protocol.has(Mechanism::LockVersion);
        let same = |now: &Revision| if is_bound { *now == before } else { now.number == before.number };
        let Some(now) = self.release.filter(same) else { return false };
        let late = self.late.and_then(Late::run).map(|run| run.id);
        let live = self.runs.iter().filter(|run| self.passes(protocol, **run)).map(|run| run.id);
        if now.run.map_or(self.other, |id| live.chain(late).any(|run| run == id)) {
            self.harm = Some(LOCK);
        }
        self.release = Some(Revision { phase: Phase::Failed, ..now });
        true
    }

    /// helm updates its Secrets without a `resourceVersion`: only one that is missing is not updated.
    fn write(&mut self, protocol: &Protocol, run: Run) -> bool {
        let landed = match (run.verb, run.step) {
            (Verb::Upgrade(spec), Step::Counted) => self.create(protocol, run, spec),
            (Verb::Upgrade(_), Step::Applied) => self.update(run.number, Phase::Deployed),
            (Verb::Uninstall, Step::Counted) => self.update(run.number, Phase::Uninstalling),
            (Verb::Uninstall, Step::Applied) => {
                self.known = false;
                self.release.take().is_some()
            }
            (verb, Step::Locked) => {
                self.objects = if let Verb::Upgrade(spec) = verb { Some(spec) } else { None };
                true
            }
        };
        if landed {
            self.judge(run);
        }
        landed
    }

    fn create(&mut self, protocol: &Protocol, run: Run, spec: Spec) -> bool {
        let Run { number, id, .. } = run;
        if self.release.is_some_and(|newest| newest.number >= number) && protocol.has(Mechanism::Conflict) {
            return false;
        }
        if self.release.is_some() && !self.known {
            self.harm = Some(OURS);
        }
        let stamped = number == run.expects;
        self.release = Some(Revision { number, spec, phase: Phase::Pending, stamped, run: Some(id) });
        self.known = true;
        true
    }

    /// A revision that is not the newest may change unseen.
    fn update(&mut self, number: u8, phase: Phase) -> bool {
        if let Some(newest) = self.release.as_mut().filter(|newest| newest.number == number) {
            newest.phase = phase;
        }
        self.release.is_some_and(|newest| newest.number >= number)
    }

    /// Judges a write of helm that has just taken effect.
    fn judge(&mut self, run: Run) {
        if run.stale {
            self.harm = Some(NOT_STALE);
        } else if self.other && run.verb != Verb::Uninstall {
            self.harm = Some(NOT_MIXED);
        }
        if run.step == Step::Counted {
            // It has begun to write; earlier runs must not write any more.
            let late = self.late.as_mut().and_then(Late::run_mut);
            for other in self.runs.iter_mut().chain(late) {
                other.stale |= other.id != run.id;
            }
        }
    }

    pub(super) fn edit(&mut self) {
        if let Some(app) = self.app.as_mut().filter(|app| !app.deleting && take(&mut self.left.edits)) {
            app.spec = 2;
        }
    }

    pub(super) fn delete(&mut self) {
        if let Some(app) = self.app.as_mut().filter(|app| !app.deleting && take(&mut self.left.deletions)) {
            app.deleting = true;
        }
    }

    pub(super) fn recreate(&mut self) {
        if self.app.is_none() && take(&mut self.left.recreations) {
            self.app = Some(App::new(2));
        }
    }

    /// Another Helm client upgrades or installs the release. helm itself respects a lock.
    pub(super) fn other_begins(&mut self) {
        if self.release.is_none_or(|newest| newest.phase != Phase::Pending) {
            self.other_locks(self.release.map_or(1, |newest| newest.number + 1));
        }
    }

    /// An uninstall takes no lock: it would disturb any helm at work, and whoever runs it has to know that none is.
    pub(super) fn other_begins_anew(&mut self) {
        if self.release.is_some() && self.runs.is_empty() && self.late.and_then(Late::run).is_none() {
            self.other_locks(1);
        }
    }

    fn other_locks(&mut self, number: u8) {
        if self.app.is_some_and(|app| !app.deleting) && take(&mut self.left.others) {
            self.release = Some(Revision { number, spec: 0, phase: Phase::Pending, stamped: false, run: None });
            self.other = true;
        }
    }

    pub(super) fn other_ends(&mut self) {
        if let Some(newest) = self.release.as_mut().filter(|newest| self.other && newest.run.is_none()) {
            newest.phase = Phase::Deployed;
            self.objects = Some(0);
        }
        self.other = false;
    }
}

pub(super) fn take(left: &mut u8) -> bool {
    let some = *left > 0;
    *left = left.saturating_sub(1);
    some
}
