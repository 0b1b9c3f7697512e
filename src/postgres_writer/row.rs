//! The row that an object stands for, and the tables it may be in. **Pure.**

use sha2::{Digest as _, Sha256};

use super::{error::Error, table::Table};
use crate::{
    crd::{PostgresWriterSpec, Reason, WrittenRow},
    runtime::key::{Key, hex},
};

/// Stands for the object's namespace in an allowed table.
const NAMESPACE: &str = "{namespace}";

/// The tables that objects may name (`PSQL_TABLES`).
#[derive(Clone, Debug)]
pub(super) struct Allowed(Vec<String>);

impl Allowed {
    pub(super) fn parse(text: &str) -> Option<Allowed> {
        let tables: Vec<_> = text.split(',').map(|table| table.trim().to_owned()).collect();
        tables.iter().all(|table| Table::parse(&table.replace(NAMESPACE, "n")).is_some()).then_some(Allowed(tables))
    }

    /// The tables for the objects of a namespace. No namespace has a `_` in its name, so that no two mean the same.
    fn of(&self, namespace: &str) -> Vec<String> {
        let word = namespace.replace('-', "_");
        self.0.iter().map(|table| table.replace(NAMESPACE, &word)).collect()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Primary key: `<namespace>/<name>` of the object.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) age: i32,
    pub(super) country: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) table: Table,
    pub(super) row: Row,
}

impl Row {
    fn digest(&self) -> String {
        let Row { id, name, age, country } = self;
        // JSON, so that no two rows have the same text.
        hex(&Sha256::digest(serde_json::json!([id, name, age, country]).to_string()))
    }
}

impl Wanted {
    pub(super) fn written(&self, at: jiff::Timestamp) -> WrittenRow {
        let (table, id) = (self.table.to_string(), self.row.id.clone());
        WrittenRow { table, id, digest: self.row.digest(), written_at: at.into() }
    }

    /// Whether it is what was written.
    pub(super) fn is(&self, written: &WrittenRow) -> bool {
        let WrittenRow { table, id, digest, written_at: _ } = written;
        *table == self.table.to_string() && *id == self.row.id && *digest == self.row.digest()
    }
}

/// What the spec asks for. The schema refuses most of what is refused here; the stored object may be older than it.
pub(super) fn wanted(key: &Key, spec: &PostgresWriterSpec, allowed: &Allowed) -> Result<Wanted, Error> {
    let PostgresWriterSpec { table, name, age, country } = spec;
    for (field, value) in [("name", name), ("country", country)] {
        if value.contains('\0') {
            let sentence = format!("spec.{field}: must not contain the character NUL, which PostgreSQL cannot store");
            return Err(Error::invalid(sentence));
        }
    }
    if *age < 0 {
        return Err(Error::invalid("spec.age: must be 0 or more".to_owned()));
    }
    let tables = allowed.of(&key.namespace);
    let Some(table) = Table::parse(table).filter(|_| tables.contains(table)) else {
        let sentence = format!(
            "spec.table: {table:?} is none of the tables that objects in namespace {} may name, which are {}: name one of \
             them, or have the cluster admin add it to PSQL_TABLES of the operator",
            key.namespace,
            tables.join(", ")
        );
        return Err(Error::Spec { reason: Reason::TableNotAllowed, sentence });
    };
    Ok(Wanted { table, row: Row { id: key.to_string(), name: name.clone(), age: *age, country: country.clone() } })
}

#[cfg(test)]
pub(super) mod tests;
