//! Tells if this process leads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// Says by this process's own clock if it still leads. It is checked before every irreversible step: a process that was frozen (stopped, or
/// on a suspended machine) may wake up after its term, and must notice at its first instruction, before any timer or request fires.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    /// End of the term, in milliseconds of [`since_boot`].
    ends: Arc<AtomicU64>,
    /// Cancelled if it ends early.
    lost: CancellationToken,
}

impl Leadership {
    pub(crate) fn until(end: Duration) -> Leadership {
        Leadership { ends: Arc::new(AtomicU64::new(millis(end))), lost: CancellationToken::new() }
    }

    /// Returns the leadership of work that needs none.
    pub(crate) fn unconditional() -> Leadership {
        Leadership::until(Duration::MAX)
    }

    /// Returns true if no other process can be leading at this moment.
    pub(crate) fn is_held(&self) -> bool {
        millis(since_boot()) < self.ends.load(Ordering::SeqCst)
    }

    pub(crate) fn remaining(&self) -> Duration {
        Duration::from_millis(self.ends.load(Ordering::SeqCst).saturating_sub(millis(since_boot())))
    }

    /// Returns when leadership is lost.
    pub(crate) async fn lost(&self) {
        loop {
            let left = self.remaining();
            if left.is_zero() {
                return;
            }
            // It may have been extended meanwhile. A timer is limited to some years.
            let turn = left.min(Duration::from_secs(60));
            if self.lost.run_until_cancelled(tokio::time::sleep(turn)).await.is_none() {
                return;
            }
        }
    }

    /// Extends the term, and returns true if leadership is held. Leadership that has ended is never restored, because another process
    /// may have led since.
    pub(crate) fn extend(&self, end: Duration) -> bool {
        let now = millis(since_boot());
        let later = |ends: u64| (now < ends).then_some(ends.max(millis(end)));
        self.ends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).is_ok() && self.is_held()
    }

    pub(crate) fn end(&self) {
        self.ends.store(0, Ordering::SeqCst);
        self.lost.cancel();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Reads the clock of leadership. It is never adjusted, and advances while the process is stopped and while the machine is suspended.
/// `CLOCK_MONOTONIC`, used by `Instant` and all timers, stops while the machine is suspended: afterwards, a term that is long over
/// would seem to have just begun.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has this clock").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leadership_ends_by_the_clock_and_is_never_restored() {
        let second = Duration::from_secs(1);
        let now = since_boot();
        assert!(Leadership::unconditional().is_held());
        let leadership = Leadership::until(now + 3600 * second);
        assert!(leadership.is_held() && leadership.clone().is_held());
        assert!(leadership.extend(now + 1800 * second), "an answer that comes late takes nothing away");
        assert!(leadership.remaining() > 3000 * second);

        let lost = Leadership::until(now);
        assert!(!lost.is_held() && lost.remaining().is_zero());
        assert!(!lost.extend(now + 3600 * second), "another may have led in between");
        assert!(!lost.is_held());

        let ended = leadership.clone();
        ended.end();
        assert!(!leadership.is_held() && !leadership.extend(now + 3600 * second));
    }
}
