//! Types and reasons of conditions, and how `Ready` summarizes the others. Pure.

use std::borrow::Cow;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Types of conditions.
pub mod kind {
    /// Summary of the other conditions.
    pub const READY: &str = "Ready";
    /// The database can be used.
    pub const POSTGRES_READY: &str = "PostgresReady";
    /// The release is deployed as the spec asks.
    pub const RELEASED: &str = "Released";
    /// The release's Deployments and StatefulSets are ready.
    pub const WORKLOADS_READY: &str = "WorkloadsReady";
    /// The release has passed Helm's tests; only if they are asked for.
    pub const TESTED: &str = "Tested";
    /// There is a valid certificate for the hostname, which does not expire soon; only if one is asked for.
    pub const CERTIFICATE_READY: &str = "CertificateReady";
    /// Work is in progress or will be retried.
    pub const RECONCILING: &str = "Reconciling";
    /// Nothing happens until a user or a cluster admin changes something.
    pub const STALLED: &str = "Stalled";
}

/// Status of a condition, as spelled in Kubernetes.
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
    /// The status as written in objects.
    pub fn as_str(self) -> &'static str {
        match self {
            State::True => "True",
            State::False => "False",
            State::Unknown => "Unknown",
        }
    }
}

/// The content of a condition, before times are added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Status of the condition.
    pub state: State,
    /// One CamelCase word.
    pub reason: Cow<'static, str>,
    /// One sentence: what happened, on which object, and what to do.
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
    /// A verdict that is not known.
    pub fn unknown(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Verdict { state: State::Unknown, reason: reason.into(), message: message.into() }
    }

    /// Returns what a condition says.
    pub fn of(condition: &Condition) -> Self {
        let Condition { status, reason, message, .. } = condition;
        let state = [State::True, State::False].into_iter().find(|state| state.as_str() == status);
        Verdict { state: state.unwrap_or(State::Unknown), reason: reason.clone().into(), message: message.clone() }
    }

    /// The same reason and message, with another status.
    pub fn that(&self, holds: bool) -> Self {
        Verdict { state: if holds { State::True } else { State::False }, ..self.clone() }
    }

    /// The condition to store; `lastTransitionTime` changes only with the status, as the API convention requires.
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

/// The condition of this type, if it exists.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}
