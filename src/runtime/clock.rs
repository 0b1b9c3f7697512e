//! The clock of the controllers' effects; the pure stages get their time from there.

use jiff::Timestamp;

#[expect(clippy::disallowed_methods, reason = "the one clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}
