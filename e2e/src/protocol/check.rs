//! What has to hold, and the search for a sequence of actions after which it does not.

use stateright::{Checker as _, HasDiscoveries, Model as _, Property};

use super::{Action, App, Protocol, Revision, State, operator::Term, store::Phase};

pub(super) const ONE_WRITER: &str = "at most one helm run of the operators can write";
pub(super) const NOT_STALE: &str = "a helm run does not write after a later one has begun to write";
pub(super) const NOT_MIXED: &str = "helm does not write while another Helm client holds the lock";
pub(super) const OURS: &str = "a release that no operator has installed is not upgraded";
pub(super) const LOCK: &str = "a lock is taken over only when its holder cannot write any more";
pub(super) const PROOF: &str = "data are deleted only if they are on record with an app in deletion";
pub(super) const SETTLES: &str = "once nothing fails any more, the app is as its spec asks, or gone";

/// What the search has found.
#[derive(Debug)]
pub struct Outcome {
    pub states: usize,
    /// Each property that does not hold, with the actions after which it does not.
    pub broken: Vec<(&'static str, Vec<Action>)>,
    /// What should be possible and is not: the model would prove nothing about it.
    pub unreached: Vec<&'static str>,
}

impl Protocol {
    /// Searches all states, breadth first, until one of these properties does not hold. Without any, until one of all.
    #[must_use]
    pub fn check(&self, until: &[&'static str]) -> Outcome {
        let until = match until {
            [] => HasDiscoveries::AnyFailures,
            some => HasDiscoveries::AnyOf(some.iter().copied().collect()),
        };
        let checker = self.clone().checker().finish_when(until).spawn_bfs().join();
        let (mut broken, mut unreached) = (Vec::new(), Vec::new());
        for Property { expectation, name, .. } in properties() {
            match (checker.discovery(name), expectation.discovery_is_failure()) {
                (Some(path), true) => broken.push((name, self.shrunk(name, path.into_actions()))),
                (None, false) => unreached.push(name),
                _ => {}
            }
        }
        Outcome { states: checker.unique_state_count(), broken, unreached }
    }

    /// Leaves out what the breach does not need: stateright keeps the last path that it finds, not the shortest.
    fn shrunk(&self, property: &'static str, mut actions: Vec<Action>) -> Vec<Action> {
        let condition = self.property(property).condition;
        for index in (0..actions.len()).rev() {
            let mut fewer = actions.clone();
            fewer.remove(index);
            if self.replayed(&fewer).is_some_and(|state| !condition(self, &state)) {
                actions = fewer;
            }
        }
        actions
    }

    /// The state after these actions, if they are possible.
    fn replayed(&self, actions: &[Action]) -> Option<State> {
        let begin = self.init_states().pop();
        actions.iter().try_fold(begin?, |state, action| match action {
            Action::Helm(run) | Action::HelmLate(run) | Action::Kill(run) if *run >= state.runs.len() => None,
            _ => self.next_state(&state, *action),
        })
    }
}

pub(super) fn properties() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_WRITER, |protocol: &Protocol, state: &State| {
            state.runs.iter().filter(|run| state.passes(protocol, **run)).count() <= 1
        }),
        Property::always(NOT_STALE, |_, state: &State| state.harm != Some(NOT_STALE)),
        Property::always(NOT_MIXED, |_, state: &State| state.harm != Some(NOT_MIXED)),
        Property::always(OURS, |_, state: &State| state.harm != Some(OURS)),
        Property::always(LOCK, |_, state: &State| state.harm != Some(LOCK)),
        Property::always(PROOF, |_, state: &State| state.harm != Some(PROOF)),
        Property::always(SETTLES, |protocol, state: &State| state.harm.is_some() || settles(protocol, state)),
        Property::sometimes("an edited app is installed", |_, state: &State| {
            state.app.is_some_and(|app| app.spec == 2 && state.is_installed(app))
        }),
        Property::sometimes("a recreated app is installed", |_, state: &State| {
            state.app.is_some_and(|app| app.uid == 2 && state.is_installed(app))
        }),
    ]
}

/// stateright checks `eventually` only where no state is reached twice. This is stronger anyway: from each state, if nobody
/// interferes any more and all that is at work goes on, the end is good.
fn settles(protocol: &Protocol, state: &State) -> bool {
    const LONGEST: usize = 60;
    let mut state = state.clone();
    for _ in 0..LONGEST {
        match calm(&state).into_iter().find_map(|action| protocol.next_state(&state, action)) {
            Some(next) => state = next,
            None => return state.is_settled(),
        }
    }
    false
}

/// What happens without users and faults, first things first.
fn calm(state: &State) -> Vec<Action> {
    let mut actions = vec![Action::Land, Action::Lose, Action::Notice(0), Action::Notice(1)];
    actions.extend((0..state.runs.len()).map(Action::Helm));
    actions.push(Action::OtherEnds);
    match state.operators.iter().position(|operator| operator.term == Term::Leads) {
        Some(op) => actions.extend([Action::SeeApp(op), Action::SeeSecrets(op), Action::Reconcile(op)]),
        None => actions.push(Action::Acquire(0)),
    }
    actions
}

impl State {
    /// The app is as its spec asks, or gone with all that was its own. Or a user has to decide about a release or data of another
    /// owner: the operator says so, and touches neither.
    fn is_settled(&self) -> bool {
        let is_anothers = self.release.is_some() && !self.known;
        match (self.app, self.data) {
            // Data whose creation took effect after the deletion are left, as nothing knows of them.
            (None, data) => (self.release.is_none() || is_anothers) && (data.is_none() || self.left.late == 0),
            (Some(app), _) if app.deleting => false,
            (Some(app), Some(data)) if data.owner == app.uid => is_anothers || self.is_installed(app),
            (Some(_), data) => data.is_some(),
        }
    }

    fn is_installed(&self, app: App) -> bool {
        let is_complete =
            |newest: Revision| newest.phase == Phase::Deployed && newest.stamped && newest.spec == app.spec;
        self.release.is_some_and(is_complete)
            && self.objects == Some(app.spec)
            && self.data.is_some_and(|data| app.owned == Some(data.uid))
    }
}
