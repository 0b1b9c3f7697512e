//! Tells when something periodic is due. **Pure.**

use std::time::Duration;

use croner::{
    Cron,
    parser::{CronParser, Seconds, Year},
};
use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::crd::{Reason, Scheduled, conditions::Verdict};

/// Limits how long a clock that is set goes unnoticed.
const LONGEST: SignedDuration = SignedDuration::from_hours(1);

/// A schedule in cron notation, as Kubernetes' CronJobs have.
#[derive(Clone, Debug)]
pub(crate) struct Schedule(Cron);

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// It is none.
    pub(crate) fn parse(text: &str) -> Result<Schedule, String> {
        let fields = if text == "@midnight" { "@daily".to_owned() } else { text.replace('?', "*") };
        let parser = CronParser::builder().seconds(Seconds::Disallowed).year(Year::Disallowed).sloppy_ranges(true);
        parser.build().parse(&fields).map(Schedule).map_err(|error| format!("{text} is no schedule: {error}"))
    }

    fn after(&self, time: Timestamp) -> Option<Timestamp> {
        self.after_in(&TimeZone::UTC, time)
    }

    /// Returns the first time after this one at which it is due; `None`: it never is, such as on the 31st of February.
    pub(crate) fn after_in(&self, zone: &TimeZone, time: Timestamp) -> Option<Timestamp> {
        let next = self.0.find_next_occurrence(&time.to_zoned(zone.clone()), false);
        next.ok().map(|next| next.timestamp())
    }
}

/// Returns the record of what is due next by a schedule. `is_made`: true if what was due then has been made. What is missed is made
/// once, however often it was due; a schedule that is new begins with its next time.
pub(crate) fn scheduled(
    schedule: &str,
    recorded: Option<&Scheduled>,
    is_made: impl FnOnce(Timestamp) -> bool,
    now: Timestamp,
) -> Option<Scheduled> {
    let next = Schedule::parse(schedule).ok()?.after(now)?;
    let Some(recorded) = recorded.filter(|recorded| recorded.schedule == schedule) else {
        // In whole seconds, as it is stored.
        let since = Timestamp::from_second(now.as_second()).map_or(Time(now), Time);
        return Some(Scheduled { schedule: schedule.to_owned(), since, next: Time(next) });
    };
    let due = recorded.next.0;
    // The clock may have been set back.
    let next = if is_made(due) { next } else { due.min(next) };
    let since = recorded.since.clone().min(Time(now));
    Some(Scheduled { since, next: Time(next), ..recorded.clone() })
}

/// Returns the time that is due, if it is.
pub(crate) fn due(scheduled: Option<&Scheduled>, now: Timestamp) -> Option<Timestamp> {
    scheduled.map(|scheduled| scheduled.next.0).filter(|due| *due <= now)
}

/// Returns when what is periodic is overdue: at the second due time without a success.
pub(crate) fn overdue_at(scheduled: &Scheduled, last_success: Option<&Time>) -> Option<Timestamp> {
    let since = last_success.map_or(scheduled.since.0, |success| success.0.max(scheduled.since.0));
    second_after(&scheduled.schedule, since)
}

/// Judges what is periodic, such as a dump, and is overdue. `why`: what it waits for.
pub(crate) fn overdue(
    what: &str,
    scheduled: Option<&Scheduled>,
    last_success: Option<&Time>,
    why: &str,
    now: Timestamp,
) -> Option<Verdict> {
    let scheduled = scheduled?;
    overdue_at(scheduled, last_success).filter(|at| *at <= now)?;
    let last = last_success.map_or("none is complete yet".to_owned(), |at| format!("the last is of {}", at.0));
    let message = format!("two {what}s that were due by `{}` are missing, {last}: {why}", scheduled.schedule);
    Some(Verdict::no(Reason::Overdue, message))
}

/// Returns the second time after this one at which a schedule is due.
pub(crate) fn second_after(schedule: &str, since: Timestamp) -> Option<Timestamp> {
    let schedule = Schedule::parse(schedule).ok()?;
    schedule.after(schedule.after(since)?)
}

/// Returns when to look again, as something changes with time alone: something is due, or overdue.
pub(crate) fn look_at(times: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Option<Timestamp> {
    let next = times.into_iter().filter(|time| *time > now).min()?;
    Some(next.min(now + LONGEST))
}

/// Returns in how long that is, and not a moment too early.
pub(crate) fn look_in(times: impl IntoIterator<Item = Timestamp>, now: Timestamp) -> Option<Duration> {
    Some(look_at(times, now)?.duration_since(now).unsigned_abs() + Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn schedules_are_those_of_cron_jobs() {
        for (text, from, next) in [
            ("0 3 * * *", "2026-01-31T03:00:00Z", Some("2026-02-01T03:00:00Z")),
            ("0 3 * * *", "2026-01-31T02:59:59Z", Some("2026-01-31T03:00:00Z")),
            ("*/15 * * * *", "2026-01-31T03:01:00Z", Some("2026-01-31T03:15:00Z")),
            ("5/20 * * * *", "2026-01-31T03:06:00Z", Some("2026-01-31T03:25:00Z")),
            ("0 5 * * 0", "2026-01-31T03:01:00Z", Some("2026-02-01T05:00:00Z")),
            ("0 5 * * 7", "2026-01-31T03:01:00Z", Some("2026-02-01T05:00:00Z")),
            ("0 5 ? * SUN", "2026-01-31T03:01:00Z", Some("2026-02-01T05:00:00Z")),
            // Either day, if both are given.
            ("0 0 13 * 5", "2026-02-07T00:00:00Z", Some("2026-02-13T00:00:00Z")),
            ("0 0 13 * 5", "2026-02-13T00:00:00Z", Some("2026-02-20T00:00:00Z")),
            ("0 0 29 2 *", "2026-01-31T03:01:00Z", Some("2028-02-29T00:00:00Z")),
            ("@hourly", "2026-01-31T03:00:00Z", Some("2026-01-31T04:00:00Z")),
            ("@midnight", "2026-01-31T03:00:00Z", Some("2026-02-01T00:00:00Z")),
            ("@weekly", "2026-01-31T03:00:00Z", Some("2026-02-01T00:00:00Z")),
            ("@annually", "2026-01-31T03:00:00Z", Some("2027-01-01T00:00:00Z")),
            ("? ? 1 ? *", "2026-01-31T03:00:00Z", Some("2026-02-01T00:00:00Z")),
            ("0 0 31 2 *", "2026-01-31T03:00:00Z", None),
            ("0 99 * * *", "2026-01-31T03:00:00Z", None),
            ("0 0 3 * * *", "2026-01-31T03:00:00Z", None),
            ("0 3 * FOO *", "2026-01-31T03:00:00Z", None),
            ("", "2026-01-31T03:00:00Z", None),
        ] {
            let found = Schedule::parse(text).ok().and_then(|schedule| schedule.after(at(from)));
            assert_eq!(found, next.map(at), "{text} after {from}");
        }
    }

    #[test]
    fn what_is_due_is_made_once() {
        let daily = |next: &str| Scheduled {
            schedule: "@daily".to_owned(),
            since: Time(at("2026-01-01T12:00:00Z")),
            next: Time(at(next)),
        };
        let other = Scheduled { schedule: "@hourly".to_owned(), ..daily("2026-01-02T00:00:00Z") };
        // The record, whether what it says is made, now, and what is next.
        for (recorded, is_made, now, next) in [
            (None, false, "2026-01-01T12:00:00Z", "2026-01-02T00:00:00Z"),
            (Some(daily("2026-01-02T00:00:00Z")), false, "2026-01-01T23:59:59Z", "2026-01-02T00:00:00Z"),
            (Some(daily("2026-01-02T00:00:00Z")), false, "2026-01-02T00:00:01Z", "2026-01-02T00:00:00Z"),
            (Some(daily("2026-01-02T00:00:00Z")), true, "2026-01-02T00:00:01Z", "2026-01-03T00:00:00Z"),
            // Nobody made it for a week: once.
            (Some(daily("2026-01-02T00:00:00Z")), false, "2026-01-09T12:00:00Z", "2026-01-02T00:00:00Z"),
            (Some(daily("2026-01-02T00:00:00Z")), true, "2026-01-09T12:00:00Z", "2026-01-10T00:00:00Z"),
            // The clock was a year ahead.
            (Some(daily("2027-01-02T00:00:00Z")), false, "2026-01-09T12:00:00Z", "2026-01-10T00:00:00Z"),
            (Some(other), false, "2026-01-09T12:00:00Z", "2026-01-10T00:00:00Z"),
        ] {
            let found = scheduled("@daily", recorded.as_ref(), |_| is_made, at(now)).unwrap();
            assert_eq!(found.next.0, at(next), "{recorded:?} at {now}");
            let is_due =
                recorded.is_some_and(|recorded| recorded.schedule == "@daily") && !is_made && at(next) <= at(now);
            assert_eq!(due(Some(&found), at(now)), is_due.then(|| at(next)));
        }
        assert_eq!(scheduled("0 0 31 2 *", None, |_| false, at("2026-01-01T12:00:00Z")), None);
        let ahead = Scheduled { since: Time(at("2027-01-01T12:00:00Z")), ..daily("2027-01-02T00:00:00Z") };
        let now = at("2026-01-09T12:00:00Z");
        assert_eq!(scheduled("@daily", Some(&ahead), |_| false, now).unwrap().since.0, now);
    }

    #[test]
    fn what_is_missed_twice_is_overdue() {
        let scheduled = Scheduled {
            schedule: "0 3 * * *".to_owned(),
            since: Time(at("2026-01-10T12:00:00Z")),
            next: Time(at("2026-01-11T03:00:00Z")),
        };
        for (success, overdue) in [
            (None, "2026-01-12T03:00:00Z"),
            (Some("2026-01-11T03:00:20Z"), "2026-01-13T03:00:00Z"),
            // Before there was a schedule.
            (Some("2026-01-01T03:00:20Z"), "2026-01-12T03:00:00Z"),
        ] {
            let success = success.map(|success| Time(at(success)));
            assert_eq!(overdue_at(&scheduled, success.as_ref()), Some(at(overdue)), "{success:?}");
        }
    }

    #[test]
    fn the_next_look_is_at_the_earliest_time() {
        let now = at("2026-01-10T12:00:00Z");
        let [past, soon, late] = ["2026-01-10T11:00:00Z", "2026-01-10T12:00:30Z", "2026-01-12T00:00:00Z"].map(at);
        assert_eq!(look_in([past], now), None);
        assert_eq!(look_in([late, past, soon], now), Some(Duration::from_millis(30_010)));
        assert_eq!(look_in([late], now), Some(Duration::from_millis(3_600_010)));
    }
}
