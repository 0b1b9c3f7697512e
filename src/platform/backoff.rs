//! Delays the retry of a failed reconcile, however many events ask for it. **Pure**, except for its lock.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    error::{Disposition, jitter},
    key::Key,
};

/// Identifies what was tried, by uid and generation. A change of the spec and a deletion each bring a new generation.
pub(crate) type AttemptId = (Option<String>, Option<i64>);

/// The objects whose last reconcile failed.
#[derive(Default)]
pub(crate) struct Backoff(Mutex<HashMap<Key, Failing>>);

struct Failing {
    attempt: AttemptId,
    failures: u32,
    until: Option<Instant>,
}

impl Backoff {
    /// Returns how long an attempt still has to wait.
    pub(crate) fn remaining(&self, key: &Key, attempt: &AttemptId, now: Instant) -> Option<Duration> {
        let failing = self.0.lock();
        let failing = failing.get(key).filter(|failing| failing.attempt == *attempt)?;
        failing.until?.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Returns true if an attempt has failed before, without a success since.
    pub(crate) fn has_failed(&self, key: &Key, attempt: &AttemptId) -> bool {
        self.0.lock().get(key).is_some_and(|failing| failing.attempt == *attempt)
    }

    /// Records a failure, and returns when to try again; `None`: at the next change. `unit` is uniform in `[0, 1)`.
    pub(crate) fn failed(
        &self,
        key: &Key,
        attempt: AttemptId,
        disposition: &Disposition,
        now: Instant,
        unit: f64,
    ) -> Option<Duration> {
        let mut failing = self.0.lock();
        let before = failing.get(key).filter(|failing| failing.attempt == attempt);
        let failures = before.map_or(0, |failing| failing.failures) + 1;
        let delay = disposition.retry.delay(failures).map(|delay| jitter(delay, unit));
        failing.insert(key.clone(), Failing { attempt, failures, until: delay.map(|delay| now + delay) });
        delay
    }

    /// Forgets an object that succeeded or is gone.
    pub(crate) fn succeeded(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        crd::{Reason, conditions::State},
        platform::error::{AWAY, MINUTE, RetryPolicy, SECOND},
    };

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    fn attempt(generation: i64) -> AttemptId {
        (Some("uid".to_owned()), Some(generation))
    }

    fn disposition(reason: Reason, retry: RetryPolicy) -> Disposition {
        Disposition { condition: None, state: State::Unknown, reason, stalled: false, retry }
    }

    #[test]
    fn only_another_generation_is_tried_before_its_time() {
        let backoff = Backoff::default();
        let now = Instant::now();
        let refused = disposition(Reason::Refused, RetryPolicy::Doubling(30 * SECOND, 10 * MINUTE));
        for (failure, seconds) in [(1, 30), (2, 60), (3, 120)] {
            let delay = backoff.failed(&key("a"), attempt(1), &refused, now, 0.5);
            assert_eq!(delay, Some(Duration::from_secs(seconds)), "failure {failure}");
            assert_eq!(backoff.remaining(&key("a"), &attempt(1), now), delay);
        }
        assert_eq!([1, 2].map(|generation| backoff.has_failed(&key("a"), &attempt(generation))), [true, false]);
        assert_eq!(backoff.remaining(&key("a"), &attempt(2), now), None);
        assert_eq!(backoff.remaining(&key("b"), &attempt(1), now), None);
        assert_eq!(backoff.remaining(&key("a"), &attempt(1), now + 120 * SECOND), None);
        assert_eq!(backoff.failed(&key("a"), attempt(2), &refused, now, 0.5), Some(30 * SECOND));
        backoff.succeeded(&key("a"));
        assert_eq!(backoff.failed(&key("a"), attempt(2), &refused, now, 0.5), Some(30 * SECOND));
        // A failure that only a change can fix has no delay.
        let invalid = disposition(Reason::InvalidSpec, RetryPolicy::OnChange);
        assert_eq!(backoff.failed(&key("c"), attempt(1), &invalid, now, 0.5), None);
        assert_eq!(backoff.remaining(&key("c"), &attempt(1), now), None);
    }

    #[test]
    fn each_object_waits_for_a_server_that_is_away_for_half_a_minute_at_most() {
        let backoff = Backoff::default();
        let now = Instant::now();
        let away = disposition(Reason::ApiUnavailable, AWAY);
        let delays = [(); 7].map(|()| backoff.failed(&key("a"), attempt(1), &away, now, 0.5).unwrap().as_secs());
        assert_eq!(delays, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(backoff.failed(&key("b"), attempt(1), &away, now, 0.5), Some(SECOND));
        backoff.succeeded(&key("b"));
        assert!(backoff.has_failed(&key("a"), &attempt(1)));
    }
}
