//! What went wrong, and what follows from it: condition, reason, and when to try again. **Pure.**

use std::time::Duration;

use super::table::{LEDGER, Table};
use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    runtime::{
        controller::Failure,
        error::{Disposition, INTERNAL_ERROR, Retry, api_disposition, api_sentence},
        panic::Panic,
    },
};

/// Nothing tells the operator what changes in a database, so that everything is tried again.
const RETRY: Retry = Retry::Doubling(Duration::from_secs(1), Duration::from_secs(300));

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{operation}: {}", api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    /// The database refused, or did not answer, or has something else there.
    #[error("{sentence}")]
    Database { reason: Reason, sentence: String },
    #[error("{sentence}")]
    Spec { reason: Reason, sentence: String },
    #[error(
        "the operator has no database for PostgresWriters: have the cluster admin set its PSQL_HOST and other PSQL_ variables"
    )]
    NotConfigured,
    #[error("this operator does not lead any more")]
    NotLeading,
    #[error(transparent)]
    Panicked(Panic),
}

impl Error {
    pub(super) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }

    pub(super) fn invalid(sentence: String) -> Error {
        Error::Spec { reason: Reason::InvalidSpec, sentence }
    }

    pub(super) fn unavailable(place: &str, problem: &str) -> Error {
        let sentence = format!("{place} cannot be used now: {problem}; tried again");
        Error::Database { reason: Reason::DatabaseUnavailable, sentence }
    }

    pub(super) fn not_ours(table: &Table, id: &str) -> Error {
        let sentence = format!(
            "table {table} has a row {id} that the operator did not write for this cluster, by {LEDGER}: delete the row, or this PostgresWriter"
        );
        Error::Database { reason: Reason::RowNotOurs, sentence }
    }

    pub(super) fn altered(table: &Table, id: &str) -> Error {
        let sentence = format!(
            "a trigger, rule or policy of table {table} does not let row {id} be as this PostgresWriter asks: have the database admin change it"
        );
        Error::Database { reason: Reason::RowRefused, sentence }
    }

    pub(super) fn reason(&self) -> Reason {
        self.disposition().reason
    }
}

impl Failure for Error {
    fn disposition(&self) -> Disposition {
        let (reason, retry) = match self {
            Error::Api { source, .. } => return api_disposition(source),
            Error::Panicked(_) => return INTERNAL_ERROR,
            Error::Database { reason, .. } => (*reason, RETRY),
            Error::Spec { reason, .. } => (*reason, Retry::OnChange),
            Error::NotConfigured => (Reason::DatabaseNotConfigured, Retry::OnChange),
            Error::NotLeading => (Reason::NotLeading, Retry::OnChange),
        };
        let condition = (reason != Reason::NotLeading).then_some(kind::READY);
        Disposition { condition, state: State::False, reason, stalled: reason.stalled(), retry }
    }

    fn panicked(panic: Panic) -> Error {
        Error::Panicked(panic)
    }
}

/// What a statement was about.
#[derive(Clone, Copy, Debug)]
pub(super) enum About<'a> {
    Connection,
    Ledger,
    NewLedger,
    Table(&'a Table),
    Row(&'a Table, &'a str),
}

/// What an SQLSTATE means (PostgreSQL's documentation, appendix A), and what to do about it.
fn classify(sqlstate: &str) -> (Reason, &'static str) {
    match sqlstate {
        // undefined_table, invalid_schema_name
        "42P01" | "3F000" => {
            (Reason::TableMissing, "create it with the columns id (the primary key), name, age and country")
        }
        // undefined_column
        "42703" => (Reason::ColumnMissing, "it needs id, name, age and country"),
        // insufficient_privilege
        "42501" => (Reason::AccessDenied, "grant the operator's user select, insert, update and delete on it"),
        // invalid_password, invalid_authorization_specification
        "28P01" | "28000" => (Reason::CredentialsRefused, "correct PSQL_USER and PSQL_PASSWORD of the operator"),
        // invalid_catalog_name
        "3D000" => (Reason::DatabaseMissing, "create it, or correct PSQL_DBNAME of the operator"),
        // read_only_sql_transaction
        "25006" => (Reason::ReadOnly, "make the database writable, or name the primary in PSQL_HOST of the operator"),
        // Without a unique id there could be two rows.
        "42P10" => (Reason::TableUnfit, "it lets an id occur twice: ALTER TABLE it, ADD PRIMARY KEY (id)"),
        // The columns' types do not take the values, or it is no table.
        "42804" | "42883" | "42809" | "428C9" => {
            (Reason::TableUnfit, "make it a table with id, name and country of type text, and age of type integer")
        }
        // query_canceled, as by the timeout of a statement
        "57014" => (Reason::DatabaseBusy, "tried again"),
        _ => match sqlstate.get(..2) {
            // data_exception
            Some("22") => (Reason::InvalidSpec, "change the value, or the column that it does not fit into"),
            // Locks, transactions that may be repeated, sessions that were not gone on with.
            Some("25" | "40" | "55") => (Reason::DatabaseBusy, "tried again"),
            // Connections, resources, and what an administrator does to a server.
            Some("08" | "53" | "57" | "58" | "XX") => (Reason::DatabaseUnavailable, "tried again"),
            // integrity_constraint_violation, raise_exception, and all else that is about this statement.
            _ => (Reason::RowRefused, "change the spec, or what refuses it"),
        },
    }
}

/// A refusal (SQLSTATE and message) of the database at this place. `ledger` is the SQL that makes a ledger.
pub(super) fn refused(about: About<'_>, (sqlstate, message): (&str, &str), place: &str, ledger: &str) -> Error {
    let made = format!("have the database admin run: {ledger}");
    let (reason, remedy) = match (about, classify(sqlstate)) {
        (About::Ledger, (Reason::TableMissing, _))
        | (About::NewLedger, (Reason::TableMissing | Reason::AccessDenied, _)) => {
            (Reason::LedgerMissing, made.as_str())
        }
        (About::Ledger, (Reason::ColumnMissing | Reason::TableUnfit, _)) => (Reason::LedgerUnfit, made.as_str()),
        (_, class) => class,
    };
    let what = match about {
        About::Connection => String::new(),
        About::Ledger | About::NewLedger => format!("table {LEDGER}, the record of whose each row is, in "),
        About::Table(table) => format!("table {table} in "),
        About::Row(table, id) => format!("row {id} of table {table} in "),
    };
    Error::Database { reason, sentence: format!("{what}{place}: {message} (SQLSTATE {sqlstate}); {remedy}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_its_reason_and_the_sentence_says_what_where_and_what_to_do() {
        let table = &Table::parse("people").unwrap();
        let row = About::Row(table, "ns/ada");
        for (about, sqlstates, reason, words) in [
            (row, &["42P01", "3F000"][..], Reason::TableMissing, "create it"),
            (About::Table(table), &["42703"], Reason::ColumnMissing, "table people in database"),
            (row, &["42501"], Reason::AccessDenied, "grant"),
            (About::Connection, &["28P01", "28000"], Reason::CredentialsRefused, "PSQL_PASSWORD"),
            (About::Connection, &["3D000"], Reason::DatabaseMissing, "PSQL_DBNAME"),
            (row, &["25006"], Reason::ReadOnly, "writable"),
            (row, &["42P10"], Reason::TableUnfit, "PRIMARY KEY (id)"),
            (row, &["42804", "42883", "42809", "428C9"], Reason::TableUnfit, "of type text"),
            (row, &["23502", "23505", "23514", "P0001", "0A000", ""], Reason::RowRefused, "row ns/ada of table people"),
            (row, &["22001", "22003", "22P05"], Reason::InvalidSpec, "row ns/ada of table people"),
            (row, &["40001", "40P01", "55P03", "57014", "25P03"], Reason::DatabaseBusy, "tried again"),
            (row, &["08006", "53300", "57P01", "58030", "XX000"], Reason::DatabaseUnavailable, "tried again"),
            (About::Ledger, &["42P01"], Reason::LedgerMissing, "run: MAKE LEDGER"),
            (About::NewLedger, &["42501", "3F000"], Reason::LedgerMissing, "run: MAKE LEDGER"),
            (About::Ledger, &["42501"], Reason::AccessDenied, LEDGER),
            (About::Ledger, &["42703"], Reason::LedgerUnfit, "run: MAKE LEDGER"),
        ] {
            for sqlstate in sqlstates {
                let error = refused(about, (sqlstate, "said the server"), "database app at db:5432", "MAKE LEDGER");
                let (disposition, sentence) = (error.disposition(), error.to_string());
                assert_eq!((disposition.reason, disposition.retry), (reason, RETRY), "{sentence}");
                let outage = [Reason::DatabaseBusy, Reason::DatabaseUnavailable].contains(&reason);
                assert_eq!(disposition.stalled, !outage, "{sentence}");
                for word in [words, "app at db", "said the server"] {
                    assert!(sentence.contains(word), "{sentence} lacks {word}");
                }
            }
        }
    }
}
