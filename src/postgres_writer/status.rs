//! The status and the events. [`status`] is **pure**; [`write`] is its effect.

use jiff::Timestamp;

use super::{
    context::{Writer, WriterContext},
    error::Error,
};
use crate::{
    crd::{PostgresWriterStatus, Reason, WrittenRow, conditions::Verdict},
    platform::{
        clock,
        controller::ReconcileError as _,
        events::{Note, publish_by, ready_transition},
    },
};

/// Writes the status unless it is unchanged, and publishes what is new. `false`: the object is gone.
pub(super) async fn write(
    ctx: &WriterContext,
    writer: &Writer<'_>,
    outcome: Result<&WrittenRow, &Error>,
) -> Result<bool, Error> {
    let status = status(&writer.recorded_status, writer.meta().generation, outcome, clock::now());
    let written = ctx.statuses.record(&ctx.parts.client, writer, &status).await.map_err(Error::from);
    // If the API server cannot evaluate the schema's rules on the object, an event is the only report.
    let is_told = written.as_ref().map_or_else(|error| error.reason() == Reason::Refused, |exists| *exists);
    if is_told {
        publish_by(&ctx.parts.recorder, &writer.reference(), &notes(&writer.recorded_status, &status)).await;
    }
    written
}

/// Returns the status of an object whose row is as its spec says, or after a failure.
fn status(
    recorded: &PostgresWriterStatus,
    generation: Option<i64>,
    outcome: Result<&WrittenRow, &Error>,
    now: Timestamp,
) -> PostgresWriterStatus {
    let (ready, needs_action, row) = match outcome.map_err(|error| (error, error.disposition())) {
        Ok(row) => {
            let sentence = format!("row {} in table {} is as the spec says", row.id, row.table);
            (Verdict::yes(Reason::Ready, sentence), false, Some(row.clone()))
        }
        Err((_, disposition)) if disposition.condition.is_none() => return recorded.clone(),
        Err((error, disposition)) => (disposition.verdict(error), disposition.stalled, recorded.row.clone()),
    };
    let conditions = ready.ready_and_stalled(needs_action, &recorded.conditions, generation, now);
    PostgresWriterStatus { observed_generation: generation, conditions, row }
}

/// Returns the events about a change of status: trouble, its end, and a row that had to be put back. A row that was simply written
/// is only in the status: an event for each of a thousand new objects would be one more write, and say nothing more.
fn notes(before: &PostgresWriterStatus, after: &PostgresWriterStatus) -> Vec<Note> {
    let again =
        |row: &&WrittenRow| before.row.as_ref().is_some_and(|then| then.generation == row.generation && then != *row);
    let put_back = after.row.as_ref().filter(again).map(|WrittenRow { table, id, .. }| {
        let message =
            format!("row {id} in table {table} was changed or deleted by another user of the database: put back");
        Note::warning("PutBack", Reason::RowDrifted, message)
    });
    let turn = ready_transition("Write", &before.conditions, &after.conditions);
    let turn = turn.filter(|note| note.warning || !before.conditions.is_empty());
    put_back.into_iter().chain(turn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        crd::conditions::{find, kind},
        platform::error::ReconcileFailure,
    };

    #[test]
    fn events_report_each_change_once() {
        let conflict = kube::core::Status::failure("changed", "Conflict").with_code(409).boxed();
        let conflict = Error::api("write")(kube::Error::Api(conflict));
        let not_leading = Error::from(ReconcileFailure::NotLeading { operation: "write".to_owned() });
        let written_at = Timestamp::UNIX_EPOCH.into();
        let ada = WrittenRow { table: "people".into(), id: "ns/ada".into(), generation: 1, written_at };
        let mut before = PostgresWriterStatus::default();
        for (seconds, (error, generation, stalled, event)) in [
            // Neither a conflict nor the end of the lead changes anything.
            (Some(&conflict), None, None, None),
            (None, Some(1), Some("False"), None),
            (Some(&not_leading), Some(1), Some("False"), None),
            (None, Some(1), Some("False"), None),
            (Some(&Error::unavailable("database", "gone")), Some(2), Some("False"), Some("DatabaseUnavailable")),
            (Some(&Error::unavailable("database", "again")), Some(2), Some("False"), None),
            (Some(&Error::NotConfigured), Some(2), Some("True"), Some("DatabaseNotConfigured")),
            (None, Some(3), Some("False"), Some("Ready")),
        ]
        .into_iter()
        .enumerate()
        {
            let now = Timestamp::from_second(seconds as i64).unwrap();
            let after = status(&before, generation, error.map_or(Ok(&ada), Err), now);
            assert_eq!(after.observed_generation, generation, "{seconds}");
            assert_eq!(after.row.is_some(), generation.is_some(), "a failure keeps the row: {seconds}");
            let found = find(&after.conditions, kind::STALLED).map(|stalled| stalled.status.as_str());
            assert_eq!(found, stalled, "{seconds}");
            let notes: Vec<_> = notes(&before, &after).into_iter().map(|note| note.reason).collect();
            assert_eq!(notes, event.as_slice(), "{seconds}");
            before = after;
        }
    }
}
