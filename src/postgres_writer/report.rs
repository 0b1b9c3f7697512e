//! The status and the events. [`status`] is **pure**, and the only place where conditions are made; [`report`] is its effect.

use jiff::Timestamp;

use super::{
    act::Done,
    context::{Ctx, Writer},
    error::Error,
    row::Wanted,
};
use crate::{
    crd::{
        PostgresWriterStatus, Reason, WrittenRow,
        conditions::{Verdict, find, kind},
    },
    runtime::{
        clock,
        controller::Failure as _,
        events::{Note, publish_by},
    },
};

/// Writes the status unless it is what is on record, and publishes what is new.
pub(super) async fn report(
    ctx: &Ctx,
    of: &Writer<'_>,
    drifted: bool,
    done: Result<&Done, &Error>,
) -> Result<(), Error> {
    let (recorded, now) = (&of.before, clock::now());
    let mut notes = Vec::new();
    let outcome = match done {
        Ok(Done::Gone) => return Ok(()),
        Ok(Done::Settled { wanted, written }) => {
            // A row that was compared in the very moment that it was written is looked at once more, and found to be right.
            if drifted {
                ctx.drifted.take(of.key);
                notes.extend(written.then(|| put_back(wanted)));
            }
            let row = recorded.row.clone().filter(|row| !written && wanted.is(row));
            Ok((wanted, row.unwrap_or_else(|| wanted.written(now))))
        }
        Err(error) => Err(error),
    };
    let status = status(recorded, of.meta().generation, outcome, now);
    notes.extend(transitions(recorded, &status));
    if *recorded == status && notes.is_empty() {
        return Ok(());
    }
    ctx.leading()?;
    let said = ctx.statuses.write(&ctx.parts.client, of, &status).await;
    let said = said.map_err(Error::api(format!("write the status of PostgresWriter {}", of.key)));
    // An event is all there is, where the API server cannot evaluate the schema's rules on the object.
    if let Err(error) = &said
        && error.reason() != Reason::Refused
    {
        return said;
    }
    publish_by(&ctx.parts.recorder, &of.reference(), &notes).await;
    said
}

/// The status of an object whose row is as its spec says, and was written then; or after a failure.
pub(super) fn status(
    recorded: &PostgresWriterStatus,
    generation: Option<i64>,
    outcome: Result<(&Wanted, WrittenRow), &Error>,
    now: Timestamp,
) -> PostgresWriterStatus {
    let mended = Verdict::no(Reason::NotStalled, "nothing has to be changed by hand");
    let (ready, stalled, row) = match outcome {
        Ok((Wanted { table, row }, written)) => {
            let sentence = format!("row {} in table {table} is as the spec says", row.id);
            (Verdict::yes(Reason::Ready, sentence), mended, Some(written))
        }
        Err(error) => {
            let disposition = error.disposition();
            if disposition.condition.is_none() {
                return recorded.clone();
            }
            let (reason, message) = (disposition.reason, error.to_string());
            let stalled = if disposition.stalled { Verdict::yes(reason, message.clone()) } else { mended };
            (Verdict { state: disposition.state, reason: reason.into(), message }, stalled, recorded.row.clone())
        }
    };
    let condition = |type_, verdict: Verdict| verdict.into_condition(type_, &recorded.conditions, generation, now);
    let conditions = vec![condition(kind::READY, ready), condition(kind::STALLED, stalled)];
    PostgresWriterStatus { observed_generation: generation, conditions, row }
}

/// The events that a change of status is worth: trouble, and its end. That a row was simply written is in the status; one
/// more write to the API server for each of a thousand new objects would say nothing more.
pub(super) fn transitions(before: &PostgresWriterStatus, after: &PostgresWriterStatus) -> Option<Note> {
    let now = find(&after.conditions, kind::READY)?;
    let then = find(&before.conditions, kind::READY);
    let same = then.is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let (warning, reason, message) = (now.status != "True", now.reason.clone(), now.message.clone());
    let told = !same && (then.is_some() || warning);
    told.then(|| Note { action: "Write".to_owned(), warning, reason, message })
}

pub(super) fn put_back(Wanted { table, row }: &Wanted) -> Note {
    let message =
        format!("row {} in table {table} was changed or deleted by another user of the database: put back", row.id);
    Note::warning("PutBack", Reason::RowDrifted, message)
}

#[cfg(test)]
mod tests {
    use super::{super::row::tests::ada, *};

    #[test]
    fn events_tell_of_trouble_and_its_end_and_of_nothing_twice() {
        let conflict = kube::core::Status::failure("changed", "Conflict").with_code(409).boxed();
        let conflict = Error::api("write")(kube::Error::Api(conflict));
        let ada = ada(36);
        let written = || ada.written(Timestamp::UNIX_EPOCH);
        let mut before = PostgresWriterStatus::default();
        for (seconds, (error, generation, stalled, event)) in [
            // Neither a conflict nor the end of the lead changes anything.
            (Some(&conflict), None, None, None),
            (None, Some(1), Some("False"), None),
            (Some(&Error::NotLeading), Some(1), Some("False"), None),
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
            let after = status(&before, generation, error.map_or_else(|| Ok((&ada, written())), Err), now);
            assert_eq!(after.observed_generation, generation, "{seconds}");
            assert_eq!(after.row.is_some(), generation.is_some(), "a failure keeps the row: {seconds}");
            let found = find(&after.conditions, kind::STALLED).map(|stalled| stalled.status.as_str());
            assert_eq!(found, stalled, "{seconds}");
            assert_eq!(transitions(&before, &after).map(|note| note.reason), event.map(str::to_owned), "{seconds}");
            before = after;
        }
    }
}
