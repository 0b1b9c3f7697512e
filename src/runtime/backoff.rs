//! When a failed reconcile is retried: not before its delay has passed, however many events ask for it. **Pure**, except for its
//! lock.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use super::{
    error::{Disposition, MINUTE, Retry, jitter},
    key::Key,
};
use crate::crd::Reason;

/// During an outage, one of the waiting objects is retried at this interval. When it succeeds, all of them are retried.
const PROBE: Duration = Duration::from_secs(3);
/// After this many failures for one object alone, the API server is not down: an outage would have ended the lead, and this state
/// with it.
const ALONE: u32 = 20;

/// The uid and generation that were tried. A change of the spec and a deletion each bring a new generation.
pub(crate) type Attempt = (Option<String>, Option<i64>);

/// The objects whose last reconcile failed.
#[derive(Default)]
pub(crate) struct Backoff(Mutex<State>);

#[derive(Default)]
struct State {
    failing: HashMap<Key, Failing>,
    /// For each outage, the object whose success shows that it is over.
    probes: HashMap<Reason, Key>,
}

struct Failing {
    attempt: Attempt,
    failures: u32,
    reason: Reason,
    until: Option<Instant>,
}

impl Backoff {
    /// How long an attempt still has to wait.
    pub(crate) fn left(&self, key: &Key, attempt: &Attempt, now: Instant) -> Option<Duration> {
        let state = self.lock();
        let failing = state.failing.get(key).filter(|failing| failing.attempt == *attempt)?;
        failing.until?.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Whether an attempt has failed before, without a success since.
    pub(crate) fn has_failed(&self, key: &Key, attempt: &Attempt) -> bool {
        self.lock().failing.get(key).is_some_and(|failing| failing.attempt == *attempt)
    }

    /// Records a failure, and returns when to try again; `None`: at the next change. `unit` is uniform in `[0, 1)`.
    pub(crate) fn failed(
        &self,
        key: &Key,
        attempt: Attempt,
        disposition: &Disposition,
        now: Instant,
        unit: f64,
    ) -> Option<Duration> {
        let Disposition { reason, retry, .. } = *disposition;
        let mut state = self.lock();
        let before = state.failing.get(key).filter(|failing| failing.attempt == attempt);
        let failures = before.map_or(0, |failing| failing.failures) + 1;
        let mut delay = retry.delay(failures).map(|delay| jitter(delay, unit));
        state.probes.retain(|probed, probe| *probed == reason || probe != key);
        if is_outage(reason) {
            // The object is gone, or has failed alone so often that its delay is long.
            let lapsed = |probe: &Key| {
                let until = state.failing.get(probe).and_then(|failing| failing.until);
                until.is_none_or(|until| until + PROBE < now || now + PROBE < until)
            };
            if state.probes.get(&reason).is_none_or(|probe| probe == key || lapsed(probe)) {
                let alone = !state.failing.iter().any(|(other, failing)| other != key && failing.reason == reason);
                let slower = if alone && reason == Reason::ApiUnavailable { failures.saturating_sub(ALONE) } else { 0 };
                let most = Retry::Doubling(PROBE, 2 * MINUTE).delay(slower + 1);
                state.probes.insert(reason, key.clone());
                delay = delay.min(most);
            }
        }
        let until = delay.map(|delay| now + delay);
        state.failing.insert(key.clone(), Failing { attempt, failures, reason, until });
        delay
    }

    /// Forgets an object that succeeded or is gone. Returns the objects that no longer have to wait.
    pub(crate) fn succeeded(&self, key: &Key) -> Vec<Key> {
        self.lock().failing.remove(key);
        self.went_on(key)
    }

    /// An object was reconciled, and what that has begun may still fail: earlier failures count. Returns the objects that no longer
    /// have to wait.
    pub(crate) fn went_on(&self, key: &Key) -> Vec<Key> {
        let mut state = self.lock();
        let over: Vec<_> = state.probes.iter().filter(|(_, probe)| *probe == key).map(|(reason, _)| *reason).collect();
        state.probes.retain(|_, probe| probe != key);
        let waiting =
            state.failing.iter_mut().filter(|(other, failing)| *other != key && over.contains(&failing.reason));
        waiting
            .map(|(key, failing)| {
                failing.until = None;
                key.clone()
            })
            .collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No panic leaves a change half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure affects all objects alike, and ends for all of them at once.
fn is_outage(reason: Reason) -> bool {
    matches!(reason, Reason::ApiUnavailable | Reason::DatabaseUnavailable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{crd::conditions::State as Holds, runtime::error::SECOND};

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    fn attempt(generation: i64) -> Attempt {
        (Some("uid".to_owned()), Some(generation))
    }

    fn disposition(reason: Reason, retry: Retry) -> Disposition {
        Disposition { condition: None, state: Holds::Unknown, reason, stalled: false, retry }
    }

    #[test]
    fn only_another_generation_is_tried_before_its_time() {
        let backoff = Backoff::default();
        let now = Instant::now();
        let refused = disposition(Reason::Refused, Retry::Doubling(30 * SECOND, 10 * MINUTE));
        for (failure, seconds) in [(1, 30), (2, 60), (3, 120)] {
            let delay = backoff.failed(&key("a"), attempt(1), &refused, now, 0.5);
            assert_eq!(delay, Some(Duration::from_secs(seconds)), "failure {failure}");
            assert_eq!(backoff.left(&key("a"), &attempt(1), now), delay);
        }
        assert_eq!([1, 2].map(|generation| backoff.has_failed(&key("a"), &attempt(generation))), [true, false]);
        assert_eq!(backoff.left(&key("a"), &attempt(2), now), None);
        assert_eq!(backoff.left(&key("b"), &attempt(1), now), None);
        assert_eq!(backoff.left(&key("a"), &attempt(1), now + 120 * SECOND), None);
        assert_eq!(backoff.failed(&key("a"), attempt(2), &refused, now, 0.5), Some(30 * SECOND));
        assert_eq!(backoff.succeeded(&key("a")), []);
        assert_eq!(backoff.failed(&key("a"), attempt(2), &refused, now, 0.5), Some(30 * SECOND));
        // An outage is over, and the next failure is not the first.
        let outage = disposition(Reason::ApiUnavailable, Retry::Doubling(30 * SECOND, 10 * MINUTE));
        let delay = |name: &str| backoff.failed(&key(name), attempt(2), &outage, now, 0.5);
        assert_eq!(["probe", "waits"].map(delay), [Some(PROBE), Some(30 * SECOND)]);
        assert_eq!(backoff.went_on(&key("probe")), [key("waits")]);
        assert_eq!(backoff.failed(&key("probe"), attempt(2), &refused, now, 0.5), Some(60 * SECOND));
        // A failure that only a change can fix has no delay.
        let invalid = disposition(Reason::InvalidSpec, Retry::OnChange);
        assert_eq!(backoff.failed(&key("c"), attempt(1), &invalid, now, 0.5), None);
        assert_eq!(backoff.left(&key("c"), &attempt(1), now), None);
    }

    #[test]
    fn one_object_finds_out_that_an_outage_is_over() {
        let backoff = Backoff::default();
        let now = Instant::now();
        let outage = disposition(Reason::ApiUnavailable, Retry::Doubling(5 * SECOND, 2 * MINUTE));
        let failed = |name, now| backoff.failed(&key(name), attempt(1), &outage, now, 0.5).unwrap();
        for _ in 0..6 {
            assert_eq!(failed("a", now), PROBE);
        }
        assert_eq!((failed("b", now), failed("c", now), failed("c", now)), (5 * SECOND, 5 * SECOND, 10 * SECOND));
        assert_eq!(backoff.succeeded(&key("b")), []);
        assert_eq!(failed("b", now), 5 * SECOND);
        let mut woken = backoff.succeeded(&key("a"));
        woken.sort();
        assert_eq!(woken, [key("b"), key("c")]);
        assert_eq!(backoff.left(&key("c"), &attempt(1), now), None);
        // A probe that is never retried, because its object is gone, is replaced by another.
        assert_eq!((failed("c", now), failed("b", now)), (PROBE, 10 * SECOND));
        assert_eq!(failed("b", now + 10 * SECOND), PROBE);
        // An object that fails for another reason is no longer the probe.
        let refused = disposition(Reason::Refused, Retry::After(MINUTE));
        backoff.failed(&key("b"), attempt(1), &refused, now, 0.5);
        assert_eq!(failed("c", now), PROBE);
    }
    #[test]
    fn what_fails_for_one_object_alone_is_no_outage() {
        let now = Instant::now();
        let failing = |reason| {
            let backoff = Backoff::default();
            let outage = disposition(reason, Retry::Doubling(5 * SECOND, 2 * MINUTE));
            let failed = move |name| backoff.failed(&key(name), attempt(1), &outage, now, 0.5).unwrap();
            (0..ALONE).for_each(|_| assert_eq!(failed("a"), PROBE));
            failed
        };
        let failed = failing(Reason::ApiUnavailable);
        assert_eq!([(); 3].map(|()| failed("a")), [2 * PROBE, 4 * PROBE, 8 * PROBE]);
        // With a second failing object it may be an outage after all, whose end an object with a long delay would notice late.
        assert_eq!((failed("b"), failed("b"), failed("a")), (PROBE, PROBE, 2 * MINUTE));

        let failed = failing(Reason::ApiUnavailable);
        assert_eq!([(); 6].map(|()| failed("a"))[5], 2 * MINUTE);
        // A database may be unavailable for any length of time.
        let failed = failing(Reason::DatabaseUnavailable);
        assert_eq!([(); 6].map(|()| failed("a"))[5], PROBE);
    }
}
