//! Judges the backups of a database: by its own report, or by the backups that its operator makes by schedule. **Pure.**

use jiff::Timestamp;

use crate::{
    clientapp::{
        observed::types::{Observed, ScheduledBackups},
        spec::database::BackupWords,
    },
    crd::{
        Reason,
        conditions::{Verdict, find},
        reason::BACKED_UP,
    },
    platform::schedule::second_after,
};

/// Returns the condition; `None`: none are asked for.
pub(crate) fn verdict(observed: &Observed, now: Timestamp) -> Option<Verdict> {
    let view = &observed.prerequisites.database;
    let object = view.object.as_ref()?;
    if object.backed_up.is_some() {
        return object.backed_up.clone();
    }
    let ScheduledBackups { words, schedules, last_success, last_failure } = &view.scheduled;
    let words = words.filter(|_| !schedules.is_empty())?;
    let last = last_success.map_or("none is complete yet".to_owned(), |at| format!("the last complete one is of {at}"));
    if let Some((at, name, why)) = last_failure
        && last_success.is_none_or(|success| success < *at)
    {
        let why = why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let BackupWords { kind, resource, none: _ } = words;
        let message = format!("{kind} {name} has failed{why}; {last}: see `kubectl describe {resource} {name}`");
        return Some(Verdict::no(Reason::DatabaseBackupFailed, message));
    }
    if overdue_at(observed, now).is_some_and(|at| at <= now) {
        let message =
            format!("two backups that were due by `{}` are missing; {last}: {}", schedules.join("`, `"), words.none);
        return Some(Verdict::no(Reason::Overdue, message));
    }
    Some(match last_success {
        Some(at) => Verdict::yes(Reason::DatabaseBackedUp, format!("the last backup was complete at {at}")),
        None => Verdict::unknown(Reason::NoDatabaseBackup, "there is no backup of the database yet"),
    })
}

/// Returns when two backups in a row of one of the schedules are missing.
pub(crate) fn overdue_at(observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    let view = &observed.prerequisites.database;
    let ScheduledBackups { schedules, last_success, .. } = &view.scheduled;
    // Nothing records since when a schedule applies: at first, from now on, and while the condition is not false, from its beginning.
    let since = match find(&observed.recorded.conditions, BACKED_UP) {
        None => Some(now),
        Some(condition) if condition.status == "False" => last_success.or(view.object.as_ref()?.created),
        Some(condition) => Some(condition.last_transition_time.0).max(*last_success),
    }?;
    schedules.iter().filter_map(|schedule| second_after(schedule, since)).min()
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::{
        clientapp::fixtures::{now, settled, want},
        crd::conditions::State,
    };

    #[test]
    fn backups_by_schedule_are_judged() {
        let hours = |hours: i64| now() - SignedDuration::from_hours(hours);
        let schedules = vec!["0 3 * * 0".to_owned(), "0 * * * *".to_owned()];
        let failed = |at: i64| Some((hours(at), "acme-pg-repo1-1".to_owned(), Some("no room".to_owned())));
        // The condition before, since how many hours, the last success and failure, and the reason.
        for (what, before, success, failure, expected) in [
            ("the first look", None, None, None, Some("NoDatabaseBackup")),
            ("the first look at an old cluster", None, Some(500), None, Some("DatabaseBackedUp")),
            ("none yet", Some((State::Unknown, 1)), None, None, Some("NoDatabaseBackup")),
            ("none for hours", Some((State::Unknown, 4)), None, None, Some("Overdue")),
            ("the last is recent", Some((State::True, 400)), Some(1), None, Some("DatabaseBackedUp")),
            ("it is old", Some((State::True, 400)), Some(4), None, Some("Overdue")),
            ("it stays old", Some((State::False, 1)), Some(4), None, Some("Overdue")),
            ("a schedule was added", Some((State::True, 1)), Some(400), None, Some("DatabaseBackedUp")),
            ("it has failed", Some((State::True, 400)), Some(3), failed(2), Some("DatabaseBackupFailed")),
            ("it has succeeded since", Some((State::False, 3)), Some(1), failed(2), Some("DatabaseBackedUp")),
        ] {
            let desired = want(&json!({}));
            let words = desired.database_object().unwrap().provider.info().backups;
            let mut observed = settled(&desired);
            let last_success = success.map(hours);
            observed.prerequisites.database.scheduled =
                ScheduledBackups { words, schedules: schedules.clone(), last_success, last_failure: failure };
            let condition = before.map(|(state, since)| {
                let verdict = Verdict { state, ..Verdict::yes(Reason::Overdue, "") };
                let mut condition = verdict.into_condition(BACKED_UP, &[], None, now());
                condition.last_transition_time = Time(hours(since));
                condition
            });
            observed.recorded.conditions.extend(condition);
            let found = verdict(&observed, now());
            assert_eq!(found.as_ref().map(|verdict| &*verdict.reason), expected, "{what}: {found:?}");
        }
        let mut observed = settled(&want(&json!({})));
        assert_eq!(verdict(&observed, now()), None);
        // Its own report counts.
        let own = Verdict::yes(Reason::Dumped, "the last dump was complete");
        observed.prerequisites.database.object.as_mut().unwrap().backed_up = Some(own.clone());
        assert_eq!(verdict(&observed, now()), Some(own));
    }
}
