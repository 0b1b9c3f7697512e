//! Reads the clock for the controllers' effects, which pass the time on to the pure stages.

use jiff::{SignedDuration, Timestamp};

#[expect(clippy::disallowed_methods, reason = "the one clock")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Returns true if a time is still to come, but not later than `latest` from now: such a time is from another clock. **Pure.**
pub(crate) fn is_awaited(until: Timestamp, now: Timestamp, latest: SignedDuration) -> bool {
    now < until && until <= now + latest
}
