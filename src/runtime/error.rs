//! What follows from a failure: which condition says it, and when to try again. **Pure.**

use std::time::Duration;

use crate::crd::{
    Reason,
    conditions::{State, Verdict, kind},
};

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);

/// The API server's own sentence where there is one: it names verb, resource and user of a refusal.
pub fn api_sentence(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => status.message.clone(),
        other => other.to_string(),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// When something changes; a watch tells.
    OnChange,
    /// After this time, the same every time.
    After(Duration),
    /// After the first time, doubled with every failure in a row up to the second.
    Doubling(Duration, Duration),
}

impl Retry {
    /// The time to wait after this many failures in a row (1 is the first), before jitter.
    pub fn delay(self, failures: u32) -> Option<Duration> {
        match self {
            Retry::OnChange => None,
            Retry::After(delay) => Some(delay),
            Retry::Doubling(first, most) => {
                let factor = 1u32 << failures.saturating_sub(1).min(16);
                Some(first.saturating_mul(factor).min(most))
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disposition {
    /// The condition that says it; `None`: no condition changes.
    pub condition: Option<&'static str>,
    /// Whether that condition is known not to hold, or unknown.
    pub state: State,
    pub reason: Reason,
    /// Nothing goes on until a user or cluster admin changes something.
    pub stalled: bool,
    pub retry: Retry,
}

pub const INTERNAL_ERROR: Disposition = Disposition {
    condition: Some(kind::READY),
    state: State::Unknown,
    reason: Reason::InternalError,
    stalled: true,
    retry: Retry::Doubling(Duration::from_secs(30), Duration::from_secs(600)),
};

impl Disposition {
    /// Of what no condition says.
    pub fn untold(reason: Reason, retry: Retry) -> Disposition {
        Disposition { condition: None, state: State::Unknown, reason, stalled: false, retry }
    }

    /// What the condition says of this failure.
    pub fn verdict(&self, failure: &impl std::fmt::Display) -> Verdict {
        Verdict { state: self.state, reason: self.reason.into(), message: failure.to_string() }
    }
}

/// What follows from a refusal of the API server, whatever was asked of it.
pub fn api_disposition(error: &kube::Error) -> Disposition {
    let often = Retry::Doubling(30 * SECOND, 10 * MINUTE);
    let (reason, stalled, retry) = match error {
        // A server-side apply of a field that another field manager has taken over: its own until one of both gives in.
        kube::Error::Api(status) if status.code == 409 && status.message.contains("Apply failed with") => {
            (Reason::Refused, true, Retry::After(5 * MINUTE))
        }
        kube::Error::Api(status) if [409, 410].contains(&status.code) => {
            return Disposition::untold(Reason::Conflict, Retry::After(SECOND));
        }
        // A namespace on its way out refuses every creation; its deletion ends the app's as well.
        kube::Error::Api(status) if status.code == 403 && status.message.contains("being terminated") => {
            (Reason::NamespaceTerminating, false, Retry::After(30 * SECOND))
        }
        // Forbidden, but not for want of a right: no ClusterRole would help.
        kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota") => {
            (Reason::QuotaExceeded, true, often)
        }
        kube::Error::Api(status) if status.code == 403 => (Reason::AccessDenied, true, Retry::After(5 * MINUTE)),
        // A server-side apply of a field that the kind does not have is answered with 500.
        kube::Error::Api(status)
            if matches!(status.code, 400 | 404 | 413 | 422)
                || status.message.contains("field not declared in schema")
                || status.message.contains("failed to create typed patch object")
                // Of an object that etcd does not take.
                || status.message.contains("request is too large") =>
        {
            (Reason::Refused, true, often)
        }
        _ => (Reason::ApiUnavailable, false, Retry::Doubling(5 * SECOND, 2 * MINUTE)),
    };
    let state = if reason == Reason::ApiUnavailable { State::Unknown } else { State::False };
    Disposition { condition: Some(kind::READY), state, reason, stalled, retry }
}

/// ±20 %, so that a fleet that failed together does not retry together. `unit` is uniform in `[0, 1)`.
pub fn jitter(delay: Duration, unit: f64) -> Duration {
    delay.mul_f64(0.8 + 0.4 * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_is_a_fifth_either_way() {
        assert_eq!(jitter(Duration::from_secs(10), 0.0), Duration::from_secs(8));
        assert_eq!(jitter(Duration::from_secs(10), 0.5), Duration::from_secs(10));
        assert!(jitter(Duration::from_secs(10), 0.999) < Duration::from_secs(12));
    }
}
