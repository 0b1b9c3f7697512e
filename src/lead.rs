//! Tells whether this process leads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// Says whether this process still leads, by its own clock. Checked before every irreversible step: a process that was frozen (stopped, or
/// on a suspended machine) may wake up after its term, and must notice at its first instruction, before any timer or request fires.
#[derive(Clone, Debug)]
pub(crate) struct Lead {
    /// End of the term, in milliseconds of [`since_boot`].
    ends: Arc<AtomicU64>,
    /// Cancelled if it ends early.
    ended: CancellationToken,
}

impl Lead {
    pub(crate) fn until(end: Duration) -> Lead {
        Lead { ends: Arc::new(AtomicU64::new(millis(end))), ended: CancellationToken::new() }
    }

    /// For work that needs no leader.
    pub(crate) fn assured() -> Lead {
        Lead::until(Duration::MAX)
    }

    /// Returns true if no other process can be leading at this moment.
    pub(crate) fn holds(&self) -> bool {
        millis(since_boot()) < self.ends.load(Ordering::SeqCst)
    }

    pub(crate) fn left(&self) -> Duration {
        Duration::from_millis(self.ends.load(Ordering::SeqCst).saturating_sub(millis(since_boot())))
    }

    /// Returns when the lead is over.
    pub(crate) async fn over(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            // It may have been extended meanwhile. A timer is limited to some years.
            let turn = left.min(Duration::from_secs(60));
            if self.ended.run_until_cancelled(tokio::time::sleep(turn)).await.is_none() {
                return;
            }
        }
    }

    /// Extends the term, and returns whether the lead holds. A lead that has ended stays so, because another process may have led
    /// since.
    pub(crate) fn extend(&self, end: Duration) -> bool {
        let now = millis(since_boot());
        let later = |ends: u64| (now < ends).then_some(ends.max(millis(end)));
        self.ends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).is_ok() && self.holds()
    }

    pub(crate) fn end(&self) {
        self.ends.store(0, Ordering::SeqCst);
        self.ended.cancel();
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The clock of the lead. It is never adjusted, and advances while the process is stopped and while the machine is suspended.
/// `CLOCK_MONOTONIC`, used by `Instant` and all timers, stops while the machine is suspended: afterwards, a term that is long over
/// would seem to have just begun.
pub(crate) fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has this clock").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_ends_by_the_clock_alone_and_for_good() {
        let second = Duration::from_secs(1);
        let now = since_boot();
        assert!(Lead::assured().holds());
        let lead = Lead::until(now + 3600 * second);
        assert!(lead.holds() && lead.clone().holds());
        assert!(lead.extend(now + 1800 * second), "an answer that comes late takes nothing away");
        assert!(lead.left() > 3000 * second);

        let over = Lead::until(now);
        assert!(!over.holds() && over.left().is_zero());
        assert!(!over.extend(now + 3600 * second), "another may have led in between");
        assert!(!over.holds());

        let ended = lead.clone();
        ended.end();
        assert!(!lead.holds() && !lead.extend(now + 3600 * second));
    }
}
