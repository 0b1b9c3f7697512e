//! The clock of the controllers' effects; the pure stages get their time from there.

use jiff::{SignedDuration, Timestamp};

#[expect(clippy::disallowed_methods, reason = "the one clock")]
pub(crate) fn now() -> Timestamp {
    Timestamp::now()
}

/// Whether a time is yet to come. One that is later than any that is ever set, this long from now, is of another clock. **Pure.**
pub(crate) fn is_awaited(until: Timestamp, now: Timestamp, latest: SignedDuration) -> bool {
    now < until && until <= now + latest
}
