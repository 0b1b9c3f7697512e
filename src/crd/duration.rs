//! Durations in specs. Pure.

use std::ops::RangeInclusive;

use jiff::SignedDuration;

/// Returns a duration as the schema allows it, of hours, minutes and seconds.
pub fn parse(text: &str, range: RangeInclusive<SignedDuration>) -> Option<SignedDuration> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"hms".contains(&byte));
    text.parse().ok().filter(|duration| plain && range.contains(duration))
}
