//! The row that an object stands for, the tables it may be in, and the statements about it. **Pure.**
//!
//! Values are bound as parameters, always; names of tables, which cannot be, are checked and quoted.

use sha2::{Digest as _, Sha256};

use super::{database::LEDGER, error::Error};
use crate::{
    crd::{PostgresWriterSpec, Reason, WrittenRow},
    runtime::key::{Key, hex},
};

/// PostgreSQL cuts longer names off.
const NAME_BYTES: usize = 63;
/// Stands for the object's namespace in an allowed table.
const NAMESPACE: &str = "{namespace}";

/// A table, with its schema if need be.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Table(String);

impl Table {
    /// A name as users and cluster admins write it.
    pub(super) fn parse(text: &str) -> Option<Table> {
        let word = |word: &&str| {
            word.len() <= NAME_BYTES
                && word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        let words: Vec<_> = text.split('.').collect();
        // Rows in the ledger would be forged ownership.
        let right = words.len() <= 2 && words.iter().all(word) && words.last() != Some(&LEDGER);
        right.then(|| Table(text.to_owned()))
    }

    /// A name out of the ledger. Quoting makes it safe, whatever a database admin has written there.
    pub(super) fn recorded(text: String) -> Table {
        Table(text)
    }

    /// The name as it stands in a statement.
    pub(super) fn quoted(&self) -> String {
        let words: Vec<_> = self.0.split('.').map(quoted).collect();
        words.join(".")
    }

    /// Finds the row `$1`, and whether it is as `$2`, `$3` and `$4` say.
    pub(super) fn look(&self) -> String {
        format!("SELECT (name, age, country) IS NOT DISTINCT FROM ($2, $3, $4) FROM {} WHERE id = $1", self.quoted())
    }

    /// Makes the row `$1` as `$2`, `$3` and `$4` say, unless there is one; and says whether it is so. It needs a unique
    /// `id`, without which there could be two rows.
    pub(super) fn insert(&self) -> String {
        self.upsert("NOTHING")
    }

    /// The same, and makes the one that is there be so, unless it is.
    pub(super) fn write(&self) -> String {
        self.upsert(
            "UPDATE SET name = excluded.name, age = excluded.age, country = excluded.country \
             WHERE (found.name, found.age, found.country) IS DISTINCT FROM (excluded.name, excluded.age, excluded.country)",
        )
    }

    fn upsert(&self, or: &str) -> String {
        format!(
            "INSERT INTO {} AS found (id, name, age, country) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO {or} \
             RETURNING (found.name, found.age, found.country) IS NOT DISTINCT FROM ($2, $3, $4)",
            self.quoted()
        )
    }

    pub(super) fn delete(&self) -> String {
        format!("DELETE FROM {} WHERE id = $1", self.quoted())
    }

    pub(super) fn find(&self) -> String {
        format!("SELECT 1 FROM {} WHERE id = $1", self.quoted())
    }

    /// The ids, among those in `$1`, whose row is not there, not as `$2`, `$3` and `$4` say, or not in the ledger as the
    /// cluster `$5`'s, in this table `$6`. The database compares, so that a column's own type and collation decide.
    pub(super) fn compare(&self) -> String {
        format!(
            "SELECT wanted.id FROM unnest($1, $2, $3, $4) AS wanted (id, name, age, country) \
             LEFT JOIN {LEDGER} AS entry ON entry.cluster = $5 AND entry.id = wanted.id AND entry.relation = $6 \
             LEFT JOIN {} AS found ON found.id = wanted.id WHERE entry.id IS NULL OR found.id IS NULL \
             OR (found.name, found.age, found.country) IS DISTINCT FROM (wanted.name, wanted.age, wanted.country)",
            self.quoted()
        )
    }
}

/// A name as it stands in a statement.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

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
        *table == self.table.0 && *id == self.row.id && *digest == self.row.digest()
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
