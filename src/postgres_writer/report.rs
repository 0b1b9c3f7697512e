//! The status and the events. [`settled`], [`failed`] and [`transitions`] are **pure** and the only places where
//! conditions are made.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{error::Error, row::Wanted};
use crate::{
    controller::events::Note,
    crd::{
        PostgresWriterStatus, WrittenRow,
        conditions::{Verdict, find, kind},
    },
};

/// The status of an object whose row is as its spec says.
#[must_use]
pub fn settled(
    recorded: &PostgresWriterStatus,
    generation: Option<i64>,
    wanted: &Wanted,
    written: WrittenRow,
    now: Timestamp,
) -> PostgresWriterStatus {
    let Wanted { table, row } = wanted;
    let ready = Verdict::yes("Ready", format!("row {} in table {table} is as the spec says", row.id));
    let stalled = Verdict::no("NotStalled", "nothing has to be changed by hand");
    PostgresWriterStatus { row: Some(written), ..said(recorded, generation, ready, stalled, now) }
}

/// The status after a failure.
#[must_use]
pub fn failed(
    recorded: &PostgresWriterStatus,
    generation: Option<i64>,
    error: &Error,
    now: Timestamp,
) -> PostgresWriterStatus {
    let disposition = error.disposition();
    if disposition.condition.is_none() {
        return recorded.clone();
    }
    let ready = Verdict { state: disposition.state, reason: disposition.reason.into(), message: error.to_string() };
    let stalled = match disposition.stalled {
        true => Verdict::yes(disposition.reason, error.to_string()),
        false => Verdict::no("NotStalled", "nothing has to be changed by hand"),
    };
    said(recorded, generation, ready, stalled, now)
}

fn said(
    recorded: &PostgresWriterStatus,
    generation: Option<i64>,
    ready: Verdict,
    stalled: Verdict,
    now: Timestamp,
) -> PostgresWriterStatus {
    let condition = |type_, verdict: Verdict| verdict.into_condition(type_, &recorded.conditions, generation, now);
    PostgresWriterStatus {
        observed_generation: generation,
        conditions: vec![condition(kind::READY, ready), condition(kind::STALLED, stalled)],
        row: recorded.row.clone(),
    }
}

/// The row as it was written now.
#[must_use]
pub fn written(Wanted { table, row }: &Wanted, now: Timestamp) -> WrittenRow {
    WrittenRow { table: table.to_string(), id: row.id.clone(), digest: row.digest(), written_at: Time(now) }
}

/// The events that a change of status is worth: trouble, and its end. That a row was simply written is in the status; one
/// more write to the API server for each of a thousand new objects would say nothing more.
#[must_use]
pub fn transitions(before: &PostgresWriterStatus, after: &PostgresWriterStatus) -> Vec<Note> {
    let Some(now) = find(&after.conditions, kind::READY) else { return Vec::new() };
    let then = find(&before.conditions, kind::READY);
    let same = then.is_some_and(|then| then.status == now.status && then.reason == now.reason);
    if same || (then.is_none() && now.status == "True") {
        return Vec::new();
    }
    vec![Note {
        action: "Write".to_owned(),
        warning: now.status != "True",
        reason: now.reason.clone(),
        message: now.message.clone(),
    }]
}

/// The event that tells of a row that was put back.
#[must_use]
pub fn put_back(Wanted { table, row }: &Wanted) -> Note {
    let message = format!("row {} in table {table} was changed or deleted by somebody else: put back", row.id);
    Note { action: "PutBack".to_owned(), warning: true, reason: "RowDrifted".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::{super::error::unavailable, *};
    use crate::crd::PostgresWriterSpec;

    fn wanted() -> Wanted {
        let spec = PostgresWriterSpec { table: "people".into(), name: "Ada".into(), age: 36, country: "UK".into() };
        super::super::row::wanted(&crate::controller::key::Key::new("ns", "ada"), &spec).unwrap()
    }

    fn reasons(notes: &[Note]) -> Vec<&str> {
        notes.iter().map(|note| note.reason.as_str()).collect()
    }

    #[test]
    fn what_is_said_twice_is_the_same_and_no_event() {
        let now = Timestamp::UNIX_EPOCH;
        let row = written(&wanted(), now);
        let empty = PostgresWriterStatus::default();
        let first = settled(&empty, Some(1), &wanted(), row.clone(), now);
        assert_eq!(reasons(&transitions(&empty, &first)), [""; 0]);
        let later = now + jiff::SignedDuration::from_secs(60);
        let again = settled(&first, Some(1), &wanted(), row, later);
        assert_eq!(again, first);
        assert_eq!(reasons(&transitions(&first, &again)), [""; 0]);
    }

    #[test]
    fn a_failure_keeps_the_row_and_says_whether_it_goes_away_by_itself() {
        let now = Timestamp::UNIX_EPOCH;
        let before = settled(&PostgresWriterStatus::default(), Some(1), &wanted(), written(&wanted(), now), now);
        let stalled = |status: &PostgresWriterStatus| find(&status.conditions, kind::STALLED).unwrap().status.clone();
        let down = failed(&before, Some(2), &unavailable("database app at db:5432", "gone"), now);
        assert_eq!((down.row.clone(), down.observed_generation), (before.row.clone(), Some(2)));
        assert_eq!(
            (stalled(&down).as_str(), reasons(&transitions(&before, &down))),
            ("False", vec!["DatabaseUnavailable"])
        );
        let refused = failed(&down, Some(2), &Error::Invalid("spec.table: no".into()), now);
        assert_eq!((stalled(&refused).as_str(), reasons(&transitions(&down, &refused))), ("True", vec!["InvalidSpec"]));
        let row = written(&wanted(), now);
        assert_eq!(reasons(&transitions(&refused, &settled(&refused, Some(3), &wanted(), row, now))), ["Ready"]);
    }

    #[test]
    fn a_conflict_changes_nothing() {
        let conflict = kube::core::Status::failure("changed", "Conflict").with_code(409).boxed();
        let error = Error::api("write")(kube::Error::Api(conflict));
        let before = PostgresWriterStatus::default();
        assert_eq!(failed(&before, Some(1), &error, Timestamp::UNIX_EPOCH), before);
    }
}
