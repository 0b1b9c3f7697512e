//! Types and reasons of the conditions, and how `Ready` sums the others up. Pure.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Types of conditions.
pub mod kind {
    /// The summary.
    pub const READY: &str = "Ready";
    /// The database can be used.
    pub const POSTGRES_READY: &str = "PostgresReady";
    /// The release is deployed as the spec asks.
    pub const RELEASED: &str = "Released";
    /// The release's Deployments and StatefulSets are ready.
    pub const WORKLOADS_READY: &str = "WorkloadsReady";
    /// Work is under way or will be retried.
    pub const RECONCILING: &str = "Reconciling";
    /// Nothing goes on until a user or a cluster admin changes something.
    pub const STALLED: &str = "Stalled";
}

/// State of a condition, as Kubernetes spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

impl State {
    /// The word in the object.
    pub fn as_str(self) -> &'static str {
        match self {
            State::True => "True",
            State::False => "False",
            State::Unknown => "Unknown",
        }
    }
}

/// A condition before it is stamped with times: what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the condition holds.
    pub state: State,
    /// One CamelCase word.
    pub reason: Cow<'static, str>,
    /// One sentence for people: what, on which object, what to do.
    pub message: String,
}

impl Verdict {
    /// A verdict that holds.
    pub fn yes(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { state: State::True, reason: reason.into(), message: message.into() }
    }
    /// A verdict that does not hold.
    pub fn no(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { state: State::False, reason: reason.into(), message: message.into() }
    }
    /// A verdict that cannot be given.
    pub fn unknown(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { state: State::Unknown, reason: reason.into(), message: message.into() }
    }

    /// The same sentence of a condition that holds, or does not.
    pub fn that(&self, holds: bool) -> Self {
        Verdict { state: if holds { State::True } else { State::False }, ..self.clone() }
    }

    /// The condition as stored; `lastTransitionTime` moves only when the state does, as the API convention asks.
    pub fn into_condition(
        self,
        type_: &str,
        previous: &[Condition],
        generation: Option<i64>,
        now: Timestamp,
    ) -> Condition {
        let status = self.state.as_str();
        let since = previous
            .iter()
            .find(|condition| condition.type_ == type_ && condition.status == status)
            .map_or(Time(now), |condition| condition.last_transition_time.clone());
        Condition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            reason: self.reason.into_owned(),
            message: self.message,
            last_transition_time: since,
            observed_generation: generation,
        }
    }
}

/// The condition of this type, if it is there.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}
