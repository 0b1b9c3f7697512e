//! A question of a plan, its answer, and what it is asked about.

use jiff::Timestamp;

use super::{database::DatabaseReadiness, plan::Step, release::ReleaseState};
use crate::{
    clientapp::{
        hold::Hold,
        observed::types::{CachedChart, Observed},
        spec::desired::Desired,
    },
    config::Config,
};

pub(crate) struct Question {
    /// As `clientapp-operator reasons --order` prints it.
    pub(crate) text: &'static str,
    pub(super) ask: fn(&Case<'_>) -> Answer,
    /// The conditions that nothing is known about while this question holds the plan.
    pub(super) unjudged: &'static [&'static str],
    /// Drift of the deployed revision is repaired meanwhile.
    pub(super) repairs: bool,
}

impl Question {
    pub(super) const fn new(text: &'static str, ask: fn(&Case<'_>) -> Answer) -> Question {
        Question { text, ask, unjudged: &[], repairs: false }
    }

    pub(super) const fn unjudged(self, unjudged: &'static [&'static str]) -> Question {
        Question { unjudged, ..self }
    }

    pub(super) const fn repairs(self) -> Question {
        Question { repairs: true, ..self }
    }
}

#[derive(Default)]
pub(super) struct Answer {
    pub(super) steps: Vec<Step>,
    /// Keeps all else back.
    pub(super) hold: Option<Hold>,
    /// The outcome of the steps decides what comes next, so no further question is asked.
    pub(super) ends: bool,
    /// When to reconcile again for what no watch shows.
    pub(super) requeue_at: Option<Timestamp>,
}

impl Answer {
    pub(super) fn go() -> Answer {
        Answer::default()
    }

    pub(super) fn steps(steps: impl IntoIterator<Item = Step>) -> Answer {
        Answer { steps: steps.into_iter().collect(), ..Answer::default() }
    }

    pub(super) fn hold(hold: Hold) -> Answer {
        Answer { hold: Some(hold), ..Answer::default() }
    }

    pub(super) fn after(self, steps: impl IntoIterator<Item = Step>) -> Answer {
        Answer { steps: steps.into_iter().collect(), ..self }
    }

    pub(super) fn ends(self) -> Answer {
        Answer { ends: true, ..self }
    }

    pub(super) fn requeue_at(self, at: Option<Timestamp>) -> Answer {
        Answer { requeue_at: at, ..self }
    }
}

impl From<Option<Hold>> for Answer {
    fn from(hold: Option<Hold>) -> Answer {
        Answer { hold, ..Answer::default() }
    }
}

pub(super) struct Case<'a> {
    pub(super) desired: &'a Desired,
    pub(super) observed: &'a Observed,
    pub(super) config: &'a Config,
    pub(super) now: Timestamp,
    pub(super) database: DatabaseReadiness,
    pub(super) release: ReleaseState,
}

impl Case<'_> {
    /// Returns the chart in the cache, if an upgrade is due.
    pub(super) fn chart_of_upgrade(&self) -> Option<&CachedChart> {
        self.observed.prerequisites.chart.as_ref().filter(|_| self.release.upgrade().is_some())
    }

    /// Returns whether the account that helm acts as is usable, as far as the operator checks it.
    pub(super) fn account_is_ready(&self) -> bool {
        !self.desired.account.is_deployer() || self.observed.prerequisites.deployer.is_ready()
    }
}
