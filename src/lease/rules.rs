//! Decides when the lock may be taken, and writes its record. **Pure.**

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime};

/// Shortest duration of the lock, which a record that names none is taken to have.
pub(crate) const MIN_DURATION: Duration = Duration::from_secs(7);
/// Longest duration of the lock, and so of a standby's wait, whatever the record says.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(60);

/// Holds a standby's view of the Lease.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Observation {
    /// The record found last; `None` if there is no Lease.
    record: Option<LeaseSpec>,
    /// When it last changed, by the standby's own clock.
    since: Duration,
    /// How long it is respected after that.
    valid: Duration,
}

impl Observation {
    pub(crate) fn observe(self, record: Option<LeaseSpec>, now: Duration) -> Observation {
        if self.record == record {
            return self;
        }
        let valid = match &record {
            // Deleted: its holder may not have noticed yet.
            None => self.valid,
            Some(spec) if holder(Some(spec)).is_none() => Duration::ZERO,
            Some(spec) => validity(spec),
        };
        Observation { record, since: now, valid }
    }

    /// Returns true if the lock may be taken by `identity`.
    pub(crate) fn is_free(&self, identity: &str, now: Duration) -> bool {
        holder(self.record.as_ref()) == Some(identity) || self.since + self.valid <= now
    }
}

/// Returns the validity of a record: other operators may be set to other durations.
fn validity(spec: &LeaseSpec) -> Duration {
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(MIN_DURATION, Duration::from_secs).clamp(MIN_DURATION, MAX_DURATION)
}

pub(crate) fn holder(spec: Option<&LeaseSpec>) -> Option<&str> {
    spec?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

/// Returns the record after `identity` takes or renews the lock for `duration`.
pub(crate) fn acquired_record(
    record: Option<&LeaseSpec>,
    identity: &str,
    duration: Duration,
    now: Timestamp,
) -> LeaseSpec {
    let renewed = holder(record) == Some(identity);
    let acquired = record.filter(|_| renewed).and_then(|spec| spec.acquire_time.clone());
    let transitions = record.and_then(|spec| spec.lease_transitions);
    LeaseSpec {
        holder_identity: Some(identity.to_owned()),
        lease_duration_seconds: Some(duration.as_secs() as i32),
        acquire_time: acquired.or(Some(MicroTime(now))),
        renew_time: Some(MicroTime(now)),
        lease_transitions: Some(match transitions {
            Some(so_far) if renewed => so_far,
            Some(so_far) => so_far.saturating_add(1),
            None => i32::from(record.is_some() && !renewed),
        }),
        ..LeaseSpec::default()
    }
}

/// Returns the record of a released lock.
pub(crate) fn released_record(record: Option<&LeaseSpec>, now: Timestamp) -> LeaseSpec {
    LeaseSpec {
        holder_identity: None,
        lease_duration_seconds: Some(1),
        acquire_time: Some(MicroTime(now)),
        renew_time: Some(MicroTime(now)),
        lease_transitions: record.and_then(|spec| spec.lease_transitions),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(1000 + seconds)
    }

    fn wall(second: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + second).unwrap()
    }

    /// A record that `holder` has renewed at this second of *its* clock.
    fn by(holder: &str, renewed: i64) -> Option<LeaseSpec> {
        Some(acquired_record(None, holder, MIN_DURATION, wall(renewed)))
    }

    #[test]
    fn a_lock_is_taken_when_its_record_has_not_changed_for_its_validity() {
        let released = Some(released_record(by("other", 0).as_ref(), wall(0)));
        let empty = Some(LeaseSpec { holder_identity: Some(String::new()), ..by("other", 0).unwrap() });
        let other = |second: i64| by("other", second);
        let lasting = |seconds: i32| Some(LeaseSpec { lease_duration_seconds: Some(seconds), ..other(0)? });
        type Look = (u64, Option<LeaseSpec>);
        let table: Vec<(&str, Vec<Look>, bool)> = vec![
            ("there is none", vec![(0, None)], true),
            ("it was released", vec![(0, released.clone())], true),
            ("its holder is empty", vec![(0, empty)], true),
            ("it was released before our eyes", vec![(0, other(0)), (1, released)], true),
            ("it is ours already", vec![(0, by("me", 0))], true),
            ("seen for the first time, however old it says it is", vec![(0, other(-100_000))], false),
            ("seen for the first time, from the future", vec![(0, other(100_000))], false),
            ("just not unchanged for long enough", vec![(0, other(0)), (6, other(0))], false),
            ("unchanged for long enough", vec![(0, other(0)), (7, other(0))], true),
            (
                "renewed again and again by a clock that is hours behind",
                (0..60).map(|second| (second, other(second as i64 - 10_000))).collect(),
                false,
            ),
            (
                "renewed once, by a clock that was set back",
                vec![(0, other(100)), (6, other(-100)), (12, other(-100))],
                false,
            ),
            ("another has taken it over since", vec![(0, other(0)), (6, by("third", 6)), (12, by("third", 6))], false),
            ("deleted under its holder", vec![(0, other(0)), (20, None)], false),
            ("deleted, and still not there", vec![(0, other(0)), (20, None), (26, None)], false),
            ("deleted for so long that its holder has ended", vec![(0, other(0)), (20, None), (27, None)], true),
            ("of a version whose locks last longer", vec![(0, lasting(25)), (24, lasting(25))], false),
            ("of a version whose locks last longer, and over", vec![(0, lasting(25)), (25, lasting(25))], true),
            ("shorter than ours is not believed", vec![(0, lasting(1)), (6, lasting(1))], false),
            ("for ever is not believed", vec![(0, lasting(i32::MAX)), (60, lasting(i32::MAX))], true),
        ];
        for (case, looks, free) in table {
            let last = at(looks.last().unwrap().0);
            let observation = looks
                .into_iter()
                .fold(Observation::default(), |seen, (second, record)| seen.observe(record, at(second)));
            assert_eq!(observation.is_free("me", last), free, "{case}");
        }
    }

    #[test]
    fn the_record_says_since_when_and_how_often_it_changed_hands() {
        let record = |record: Option<&LeaseSpec>, holder: &str, second: i64| {
            acquired_record(record, holder, MIN_DURATION, wall(second))
        };
        let first = record(None, "a", 0);
        assert_eq!((holder(Some(&first)), first.lease_transitions), (Some("a"), Some(0)));
        let renewed = record(Some(&first), "a", 9);
        assert_eq!((&renewed.acquire_time, renewed.lease_transitions), (&first.acquire_time, Some(0)));
        assert_eq!(renewed.renew_time, Some(MicroTime(wall(9))));
        let over = record(Some(&renewed), "b", 30);
        assert_eq!((over.acquire_time.clone(), over.lease_transitions), (Some(MicroTime(wall(30))), Some(1)));
        let free = released_record(Some(&over), wall(40));
        assert_eq!((holder(Some(&free)), free.lease_transitions), (None, Some(1)));
        assert_eq!(record(Some(&free), "b", 50).lease_transitions, Some(2));
        assert_eq!(record(Some(&LeaseSpec::default()), "a", 0).lease_transitions, Some(1), "made by a user");
    }
}
