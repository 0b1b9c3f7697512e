//! The protocol of leader, helm runs, fence and locks, as a model that is checked exhaustively: every order of every step, within
//! [`Bounds`]. **Pure.**
//!
//! | Action | What happens | In the code |
//! |---|---|---|
//! | `Acquire`, `TermEnds`, `Notice`, `Release` | A process begins and ceases to lead | `src/lease.rs`, `src/lead.rs`; `lead` in `src/run.rs` |
//! | `SeeApp`, `SeeSecrets` | A watch catches up | `src/clientapp/context/watches.rs`, `src/secrets.rs` |
//! | `Reconcile` | The next request of a reconcile, or the start of helm: `operator.rs` | `src/clientapp/{decide,act}/`, `src/clientapp/teardown/`, `src/deletion/` |
//! | `Helm` | The next request of helm, through the gateway: `helm.rs` | `src/helm/gateway/{forward,run}.rs` |
//! | `Kill`, `Crash` | helm dies, alone or with its operator | `src/helm/cli/process.rs` |
//! | `ReconcileLate`, `HelmLate` | A request is sent, and its sender gives it up or dies | timeouts in `src/platform/client.rs` |
//! | `Land`, `Lose` | That request takes effect after all, or never | `TERM` and `DURATION` in `src/lease.rs` |
//! | `Edit`, `Delete`, `Recreate` | What a user does, with `deletionPolicy: Delete` | |
//! | `OtherBegins`, `OtherBeginsAnew`, `OtherEnds` | What another Helm client does | |
//!
//! The API server carries out one request after the other (`store.rs`) and knows nothing of leaders. So all that keeps a former
//! leader from writing is in its own process, which checks before each request whether it still leads, and in the preconditions
//! of its requests. A frozen process takes no step for a while, and a late cache does not catch up for a while; neither needs an
//! action. A process that is frozen after that check and before it sends is one whose request is late.
//!
//! A decision and its first request are one step, because a decision that is old when it is carried out is no different from one
//! that was made with a late cache. Left out are times (backoff, deadlines), the queue for helm, its stop on request, hooks,
//! adoption, and all revisions but the newest.
//!
//! Each [`Mechanism`] can be removed: the tests show that the protocol holds with all of them, and what breaks without each.

mod check;
mod helm;
mod operator;
mod store;
#[cfg(test)]
mod tests;

use stateright::{Model, Property};

pub use self::check::Outcome;
use self::{
    helm::Run,
    operator::{Operator, Term},
    store::{App, Data, Late, Revision, take},
};

/// What keeps the protocol safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// helm's access to the API server ends with its run: `Session` in `src/helm/gateway.rs`.
    Pass,
    /// The gateway asks before each request whether the operator leads: `forward`.
    Lead,
    /// A lead ends by a clock that goes on while the process is frozen: `since_boot`.
    Clock,
    /// A Lease that was not released is taken over only when no request of its holder can be under way: `TERM + 2 <= DURATION`.
    Margin,
    /// A request that helm sent just before it ended takes effect before its operator goes on, or never: `Pass::end` waits for the
    /// answer.
    Prompt,
    /// A revision that exists is not created again: the name of Helm's Secret.
    Conflict,
    /// helm creates only the revision that it is stamped for. The gateway refuses any other.
    Number,
    /// Another Helm client's lock is respected: `lock`.
    Lock,
    /// Before a lock is taken over, the operator reads again whose it is. `unlock` compares its uid.
    LockReadAgain,
    /// A lock that has changed since it was read is not taken over: `resourceVersion` in `unlock`.
    LockVersion,
    /// Nothing is started for an app for which helm runs: `helm_runs`.
    OneRun,
    /// Revisions and the app's own Secrets come through one watch, so a recreated app never meets its predecessor's revisions:
    /// `src/secrets.rs`, `secret_step`.
    OneWatch,
    /// Status and finalizer are written only to the app that was read: its uid and `resourceVersion`.
    AppVersion,
    /// Data are deleted by uid: `Preconditions` in `src/deletion/mod.rs`.
    DataUid,
    /// Data are deleted only with a proof: `src/deletion/permit.rs`.
    Proof,
}

#[derive(Clone, Debug)]
pub struct Protocol {
    pub without: Vec<Mechanism>,
    pub bounds: Bounds,
}

/// How often something may happen that would otherwise make the model infinite.
#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
pub struct Bounds {
    /// At most 1.
    pub edits: u8,
    pub deletions: u8,
    /// At most 1.
    pub recreations: u8,
    /// Ends of a lead, crashes, killed helms.
    pub faults: u8,
    /// Late requests.
    pub late: u8,
    /// Runs of another Helm client.
    pub others: u8,
}

/// A version of the spec, which stands for its digest. Another Helm client installs 0.
pub type Spec = u8;

#[derive(Clone, Debug, Default, Hash, PartialEq, Eq)]
pub struct State {
    app: Option<App>,
    /// How many apps of this name are gone.
    gone: u8,
    /// The newest revision in Helm's storage.
    release: Option<Revision>,
    /// An operator has installed the release, as Helm's labels or the app's status say.
    known: bool,
    /// The spec that the release's objects are of.
    objects: Option<Spec>,
    /// The database.
    data: Option<Data>,
    lease: Lease,
    operators: [Operator; 2],
    runs: Vec<Run>,
    /// Another Helm client is at work.
    other: bool,
    late: Option<Late>,
    left: Bounds,
    /// The property that the last request has broken.
    harm: Option<&'static str>,
    last_uid: u8,
    last_run: u8,
}

#[derive(Clone, Copy, Debug, Default, Hash, PartialEq, Eq)]
enum Lease {
    #[default]
    Free,
    Held(usize),
    /// By a process that is gone: its successor has another identity.
    Orphaned,
}

/// The number is that of an operator, or of a run in `State::runs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Acquire(usize),
    /// No renewal was confirmed for too long, for example because the process is frozen.
    TermEnds(usize),
    /// The process notices that, and stops its controllers and helm.
    Notice(usize),
    /// A graceful shutdown.
    Release(usize),
    Crash(usize),
    SeeApp(usize),
    SeeSecrets(usize),
    Reconcile(usize),
    ReconcileLate(usize),
    Helm(usize),
    HelmLate(usize),
    Kill(usize),
    Land,
    Lose,
    Edit,
    Delete,
    Recreate,
    OtherBegins,
    /// It uninstalls the release first.
    OtherBeginsAnew,
    OtherEnds,
}

impl Protocol {
    fn has(&self, mechanism: Mechanism) -> bool {
        !self.without.contains(&mechanism)
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    /// A user has just created an app, and one of the operators leads.
    fn init_states(&self) -> Vec<State> {
        let mut state = State { app: Some(App::new(1)), left: self.bounds, ..State::default() };
        state.acquire(0);
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.harm.is_some() {
            return;
        }
        let of_operator = [Action::Acquire, Action::TermEnds, Action::Notice, Action::Release, Action::Crash];
        let of_reconcile = [Action::SeeApp, Action::SeeSecrets, Action::Reconcile, Action::ReconcileLate];
        for op in 0..state.operators.len() {
            actions.extend(of_operator.into_iter().chain(of_reconcile).map(|action| action(op)));
        }
        for run in 0..state.runs.len() {
            actions.extend([Action::Helm, Action::HelmLate, Action::Kill].map(|action| action(run)));
        }
        actions.extend([Action::Land, Action::Lose, Action::Edit, Action::Delete, Action::Recreate]);
        actions.extend([Action::OtherBegins, Action::OtherBeginsAnew, Action::OtherEnds]);
    }

    /// An action that is not possible changes nothing.
    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        let term = |op: usize| state.operators[op].term;
        match action {
            Action::Acquire(op) if state.may_acquire(self, op) => next.acquire(op),
            Action::TermEnds(op) if term(op) == Term::Leads && take(&mut next.left.faults) => next.end_term(self, op),
            Action::Notice(op) if term(op) == Term::Over => next.stand_by(self, op),
            Action::Release(op) if state.may_release(op) && take(&mut next.left.faults) => {
                next.lease = Lease::Free;
                next.stand_by(self, op);
            }
            Action::Crash(op) if term(op) != Term::Standby && take(&mut next.left.faults) => next.crash(self, op),
            Action::SeeApp(op) if term(op) == Term::Leads => next.see_app(op),
            Action::SeeSecrets(op) if term(op) == Term::Leads => next.see_secrets(op),
            Action::Reconcile(op) => next.reconcile(self, op),
            Action::ReconcileLate(op) => next.reconcile_late(self, op),
            Action::Helm(run) => next.helm(self, run),
            Action::HelmLate(run) => next.helm_late(self, run),
            Action::Kill(run) if state.runs[run].by.is_some() && take(&mut next.left.faults) => next.kill(self, run),
            Action::Land => next.land_late(self),
            Action::Lose => next.late = None,
            Action::Edit => next.edit(),
            Action::Delete => next.delete(),
            Action::Recreate => next.recreate(),
            Action::OtherBegins => next.other_begins(),
            Action::OtherBeginsAnew => next.other_begins_anew(),
            Action::OtherEnds => next.other_ends(),
            _ => return None,
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        check::properties()
    }
}
