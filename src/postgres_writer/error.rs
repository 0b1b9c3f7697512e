//! Defines what can go wrong, and what follows from it: condition, reason, and when to try again. **Pure.**

use std::time::Duration;

use super::{
    settings::Settings,
    table::{COLUMNS, LEDGER, Table, quoted},
};
use crate::{
    crd::{
        Reason,
        conditions::{State, kind},
    },
    platform::error::{AWAY, Disposition, ReconcileError, ReconcileFailure, RetryPolicy},
};

/// Nothing notifies the operator of changes in a database, so every failure is retried.
const RETRY: RetryPolicy = RetryPolicy::Doubling(Duration::from_secs(1), Duration::from_secs(300));

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Failed(#[from] ReconcileFailure),
    /// The database refused, did not answer, or holds something else there.
    #[error("{sentence}")]
    Database { reason: Reason, sentence: String },
    #[error("{sentence}")]
    Spec { reason: Reason, sentence: String },
    #[error(
        "the operator has no database for PostgresWriters: have the cluster admin set its PSQL_HOST and other PSQL_ variables"
    )]
    NotConfigured,
}

impl Error {
    pub(super) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| ReconcileFailure::api(operation)(source).into()
    }

    pub(super) fn invalid(sentence: String) -> Error {
        Error::Spec { reason: Reason::InvalidSpec, sentence }
    }

    pub(super) fn unavailable(place: &str, problem: &str) -> Error {
        let sentence = format!("{place} cannot be used now: {problem}; tried again");
        Error::Database { reason: Reason::DatabaseUnavailable, sentence }
    }

    pub(super) fn not_ours(Table(table): &Table, id: &str) -> Error {
        let sentence = format!(
            "row {id} of table {table} is not this cluster's, by {LEDGER}: delete the row and its entry there, or this PostgresWriter"
        );
        Error::Database { reason: Reason::RowNotOurs, sentence }
    }

    pub(super) fn altered(Table(table): &Table, id: &str) -> Error {
        let sentence = format!(
            "a trigger, rule or policy of table {table} keeps row {id} from matching this PostgresWriter: have the database admin change it"
        );
        Error::Database { reason: Reason::RowRefused, sentence }
    }

    pub(super) fn reason(&self) -> Reason {
        self.disposition().reason
    }
}

impl ReconcileError for Error {
    fn disposition(&self) -> Disposition {
        let (reason, retry) = match self {
            Error::Failed(failure) => return failure.disposition(),
            Error::Database { reason: Reason::DatabaseUnavailable, .. } => (Reason::DatabaseUnavailable, AWAY),
            Error::Database { reason, .. } => (*reason, RETRY),
            Error::Spec { reason, .. } => (*reason, RetryPolicy::OnChange),
            Error::NotConfigured => (Reason::DatabaseNotConfigured, RetryPolicy::OnChange),
        };
        Disposition { condition: Some(kind::READY), state: State::False, reason, stalled: reason.stalled(), retry }
    }
}

/// Says what a statement was about: the beginning of the message.
#[derive(Clone, Copy, Debug, derive_more::Display)]
pub(super) enum About<'a> {
    #[display("")]
    Connection,
    #[display("table {LEDGER}, which records the owner of each row, in ")]
    Ledger,
    #[display("table {} in ", _0.0)]
    Table(&'a Table),
    #[display("row {_1} of table {} in ", _0.0)]
    Row(&'a Table, &'a str),
}

/// Returns what an SQLSTATE means (PostgreSQL's documentation, appendix A), and what to do about it.
fn classify(sqlstate: &str) -> (Reason, &'static str) {
    match sqlstate {
        // undefined_table, invalid_schema_name
        "42P01" | "3F000" => (Reason::TableMissing, "create it with columns id (primary key), name, age and country"),
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
        "42P10" => (Reason::TableUnfit, "it lets an id occur twice: ALTER TABLE … ADD PRIMARY KEY (id)"),
        // The columns' types do not accept the values, or it is not a table.
        "42804" | "42883" | "42809" | "428C9" => {
            (Reason::TableUnfit, "make it a table with id, name and country of type text, and age of type integer")
        }
        // query_canceled, for example by the timeout of a statement
        "57014" => (Reason::DatabaseBusy, "tried again"),
        _ => match sqlstate.get(..2) {
            // data_exception
            Some("22") => (Reason::InvalidSpec, "change the value, or the column that it does not fit into"),
            // Locks, transactions that may be repeated, abandoned sessions.
            Some("25" | "40" | "55") => (Reason::DatabaseBusy, "tried again"),
            // Connections, resources, and what an administrator does to a server.
            Some("08" | "53" | "57" | "58" | "XX") => (Reason::DatabaseUnavailable, "tried again"),
            // integrity_constraint_violation, raise_exception, and everything else about this statement.
            _ => (Reason::RowRefused, "change the spec, or what refuses it"),
        },
    }
}

/// Translates the database client's error about a statement, as a message for users.
pub(super) fn refused(about: About<'_>, error: tokio_postgres::Error, settings: &Settings) -> Error {
    let place = &settings.place;
    let Some(refusal) = error.as_db_error() else {
        // With its causes: the client's own words say only what it was doing.
        return Error::unavailable(place, &format!("{:#}", anyhow::Error::new(error)));
    };
    let ledger = format!(
        "have the database admin run: CREATE TABLE {LEDGER} ({COLUMNS}); GRANT SELECT, INSERT, UPDATE, DELETE ON {LEDGER} TO {};",
        quoted(settings.config.get_user().unwrap_or_default())
    );
    let (reason, remedy) = match (about, classify(refusal.code().code())) {
        (About::Ledger, (Reason::TableMissing, _)) => (Reason::LedgerMissing, ledger.as_str()),
        (About::Ledger, (Reason::ColumnMissing | Reason::TableUnfit, _)) => (Reason::LedgerUnfit, ledger.as_str()),
        (_, class) => class,
    };
    let sentence = format!("{about}{place}: {} (SQLSTATE {}); {remedy}", refusal.message(), refusal.code().code());
    Error::Database { reason, sentence }
}
