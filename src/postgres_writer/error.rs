//! What went wrong, and what follows from it: condition, reason, and when to try again. **Pure.**

use std::time::Duration;

use crate::{
    controller::{
        error::{Disposition, INTERNAL_ERROR, Retry, api_disposition, api_sentence},
        panic::Panic,
    },
    crd::conditions::{State, kind},
};

/// Nobody tells the operator what changes in a database, so that everything is tried again.
pub const RETRY: Retry = Retry::Doubling(Duration::from_secs(5), Duration::from_secs(300));

/// A failure of one reconcile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("{operation}: {}", api_sentence(source))]
    Api {
        /// What was being done, on which object.
        operation: String,
        /// The client's error.
        source: Box<kube::Error>,
    },
    /// The database refused, or did not answer.
    #[error("{sentence}")]
    Database {
        /// What follows.
        class: Class,
        /// What was refused, where, and what to do.
        sentence: String,
    },
    /// There is another row with the id.
    #[error("table {table} has a row {id} that is not this object's: delete the row, or this PostgresWriter")]
    NotOurs {
        /// The table.
        table: String,
        /// The primary key.
        id: String,
    },
    /// The spec cannot be carried out.
    #[error("{0}")]
    Invalid(String),
    /// The reconcile has panicked.
    #[error(transparent)]
    Panicked(Panic),
}

impl Error {
    /// Names the operation that failed.
    pub fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }

    /// What follows.
    #[must_use]
    pub fn disposition(&self) -> Disposition {
        let of = |reason, stalled, retry| Disposition {
            condition: Some(kind::READY),
            state: State::False,
            reason,
            stalled,
            retry,
        };
        match self {
            Error::Api { source, .. } => api_disposition(source),
            Error::Panicked(_) => INTERNAL_ERROR,
            Error::Database { class: Class { reason, stalled }, .. } => of(reason, *stalled, RETRY),
            Error::NotOurs { .. } => of("RowNotOurs", true, RETRY),
            Error::Invalid(_) => of("InvalidSpec", true, Retry::OnChange),
        }
    }
}

/// What a failure of the database is called, and whether somebody has to do something about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// The reason in the condition.
    pub reason: &'static str,
    /// It does not go away by itself.
    pub stalled: bool,
}

/// The database does not answer, or not now.
pub const UNAVAILABLE: Class = Class { reason: "DatabaseUnavailable", stalled: false };

/// What an SQLSTATE means (PostgreSQL's documentation, appendix A).
#[must_use]
pub fn classify(sqlstate: &str) -> Class {
    let reason = match sqlstate {
        // undefined_table, invalid_schema_name
        "42P01" | "3F000" => "TableMissing",
        // undefined_column
        "42703" => "ColumnMissing",
        // insufficient_privilege
        "42501" => "AccessDenied",
        // invalid_password, invalid_authorization_specification
        "28P01" | "28000" => "CredentialsRefused",
        // invalid_catalog_name
        "3D000" => "DatabaseMissing",
        // read_only_sql_transaction
        "25006" => "ReadOnly",
        // Without a unique id there could be two rows; or the columns' types do not take the values; or it is no table.
        "42P10" | "42804" | "42883" | "42809" | "428C9" => "TableUnfit",
        _ => match sqlstate.get(..2) {
            // data_exception
            Some("22") => "InvalidSpec",
            // Connections, transactions that may be repeated, resources, and what an administrator does to a server.
            Some("08" | "40" | "53" | "55" | "57" | "58" | "XX") => return UNAVAILABLE,
            // integrity_constraint_violation, raise_exception, and all else that is about this statement.
            _ => "RowRefused",
        },
    };
    Class { reason, stalled: true }
}

/// What the database said.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    /// SQLSTATE.
    pub sqlstate: &'a str,
    /// Its sentence.
    pub message: &'a str,
    /// The constraint that it names.
    pub constraint: Option<&'a str>,
}

/// A refusal as an error. `place` is the database, `row` what the statement was about, if it was about one.
#[must_use]
pub fn refused(refusal: &Refusal<'_>, place: &str, table: &str, row: Option<&str>) -> Error {
    let Refusal { sqlstate, message, constraint } = refusal;
    let class = classify(sqlstate);
    let row = row.map_or_else(|| "a row".to_owned(), |id| format!("row {id}"));
    let sentence = match class.reason {
        "TableMissing" => format!(
            "{place} has no table {table}: create it with the columns id (the primary key), name, age and country"
        ),
        "ColumnMissing" => {
            format!("table {table} in {place} lacks a column: {message}; it needs id, name, age and country")
        }
        "AccessDenied" => {
            format!("{place}: {message}; grant the operator's user select, insert, update and delete on {table}")
        }
        "CredentialsRefused" => format!(
            "{place} refuses the operator's credentials: {message}; correct PSQL_USER and PSQL_PASSWORD of the operator"
        ),
        "DatabaseMissing" => format!("{place}: {message}; create it, or correct PSQL_DBNAME of the operator"),
        "ReadOnly" => format!("{place} is read-only: {message}; make it writable, or name the primary in PSQL_HOST"),
        "TableUnfit" if *sqlstate == "42P10" => format!(
            "table {table} in {place} lets an id occur twice: give it a primary key, ALTER TABLE {table} ADD PRIMARY KEY (id)"
        ),
        "TableUnfit" => format!(
            "table {table} in {place} is not of the expected kind: {message}; id, name and country are text, age is integer"
        ),
        "InvalidSpec" => format!("{row} does not fit into table {table} in {place}: {message}"),
        "RowRefused" => {
            let by = constraint.map_or_else(String::new, |name| format!(" by constraint {name}"));
            format!("{row} is refused{by} of table {table} in {place}: {message} (SQLSTATE {sqlstate})")
        }
        _ => format!("{place} cannot be used now: {message}; tried again"),
    };
    Error::Database { class, sentence }
}

/// The database did not answer.
#[must_use]
pub fn unavailable(place: &str, problem: &str) -> Error {
    Error::Database { class: UNAVAILABLE, sentence: format!("{place} cannot be used now: {problem}; tried again") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sqlstate_has_its_class() {
        for (sqlstate, reason, stalled) in [
            ("42P01", "TableMissing", true),
            ("3F000", "TableMissing", true),
            ("42703", "ColumnMissing", true),
            ("42501", "AccessDenied", true),
            ("28P01", "CredentialsRefused", true),
            ("28000", "CredentialsRefused", true),
            ("3D000", "DatabaseMissing", true),
            ("25006", "ReadOnly", true),
            ("42P10", "TableUnfit", true),
            ("42804", "TableUnfit", true),
            ("42883", "TableUnfit", true),
            ("42809", "TableUnfit", true),
            ("428C9", "TableUnfit", true),
            ("23502", "RowRefused", true),
            ("23505", "RowRefused", true),
            ("23514", "RowRefused", true),
            ("P0001", "RowRefused", true),
            ("0A000", "RowRefused", true),
            ("", "RowRefused", true),
            ("22001", "InvalidSpec", true),
            ("22003", "InvalidSpec", true),
            ("22P05", "InvalidSpec", true),
            ("08006", "DatabaseUnavailable", false),
            ("40001", "DatabaseUnavailable", false),
            ("40P01", "DatabaseUnavailable", false),
            ("53300", "DatabaseUnavailable", false),
            ("53100", "DatabaseUnavailable", false),
            ("55P03", "DatabaseUnavailable", false),
            ("57014", "DatabaseUnavailable", false),
            ("57P01", "DatabaseUnavailable", false),
            ("57P03", "DatabaseUnavailable", false),
            ("58030", "DatabaseUnavailable", false),
            ("XX000", "DatabaseUnavailable", false),
        ] {
            assert_eq!(classify(sqlstate), Class { reason, stalled }, "{sqlstate}");
        }
    }

    #[test]
    fn the_sentence_says_what_where_and_what_to_do() {
        let say = |sqlstate, constraint| {
            let refusal = Refusal { sqlstate, message: "said the server", constraint };
            refused(&refusal, "database app at db:5432", "people", Some("ns/ada")).to_string()
        };
        for (sqlstate, constraint, words) in [
            ("42P01", None, &["app", "people", "create it"][..]),
            ("42703", None, &["people", "said the server"]),
            ("42501", None, &["people", "grant"]),
            ("28P01", None, &["PSQL_PASSWORD"]),
            ("25006", None, &["read-only"]),
            ("42P10", None, &["ALTER TABLE people ADD PRIMARY KEY (id)"]),
            ("23514", Some("grown_up"), &["ns/ada", "constraint grown_up of table people"]),
            ("22001", None, &["ns/ada", "people", "said the server"]),
            ("57P01", None, &["said the server", "tried again"]),
        ] {
            let sentence = say(sqlstate, constraint);
            for word in words {
                assert!(sentence.contains(word), "{sqlstate}: {sentence} lacks {word}");
            }
        }
    }

    #[test]
    fn all_but_a_bad_spec_is_tried_again() {
        let retry = |error: &Error| error.disposition().retry;
        assert_eq!(retry(&Error::Invalid("spec.table: no".into())), Retry::OnChange);
        assert_eq!(retry(&Error::NotOurs { table: "people".into(), id: "ns/ada".into() }), RETRY);
        assert_eq!(retry(&unavailable("database", "gone")), RETRY);
    }
}
