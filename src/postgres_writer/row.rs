//! The row that an object stands for, and the statements about it. **Pure.**
//!
//! Values are bound as parameters, always; the table's name, which cannot be, is checked and quoted.

use std::{fmt, str::FromStr};

use sha2::{Digest as _, Sha256};

use crate::{
    controller::key::{Key, hex},
    crd::PostgresWriterSpec,
};

/// PostgreSQL cuts longer names off.
const NAME_BYTES: usize = 63;

/// A table, with its schema if need be.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table(String);

/// The name of a table is none that is let through.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "must be the name of a table, with its schema before it if need be: letters, digits and '_', not beginning with a digit, at most 63 characters each"
)]
pub struct InvalidTable;

impl FromStr for Table {
    type Err = InvalidTable;

    fn from_str(text: &str) -> Result<Self, InvalidTable> {
        let word = |word: &str| {
            word.len() <= NAME_BYTES
                && word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        let words: Vec<_> = text.split('.').collect();
        let right = words.len() <= 2 && words.iter().all(|part| word(part));
        right.then(|| Table(text.to_owned())).ok_or(InvalidTable)
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Table {
    /// The name as it stands in a statement.
    fn quoted(&self) -> String {
        let words: Vec<_> = self.0.split('.').map(|word| format!("\"{}\"", word.replace('"', "\"\""))).collect();
        words.join(".")
    }

    /// Finds the row `$1`, and whether it is as `$2`, `$3` and `$4` say.
    #[must_use]
    pub fn look(&self) -> String {
        format!("SELECT (name, age, country) IS NOT DISTINCT FROM ($2, $3, $4) FROM {} WHERE id = $1", self.quoted())
    }

    /// Makes the row `$1` be as `$2`, `$3` and `$4` say. It needs a unique `id`, without which there could be two rows.
    #[must_use]
    pub fn write(&self) -> String {
        format!(
            "INSERT INTO {} (id, name, age, country) VALUES ($1, $2, $3, $4) ON CONFLICT (id) \
             DO UPDATE SET name = excluded.name, age = excluded.age, country = excluded.country",
            self.quoted()
        )
    }

    /// Deletes the row `$1`.
    #[must_use]
    pub fn delete(&self) -> String {
        format!("DELETE FROM {} WHERE id = $1", self.quoted())
    }

    /// The ids, among those in `$1`, whose row is not there or not as `$2`, `$3` and `$4` say. The database compares, so
    /// that a column's own type and collation decide what is equal.
    #[must_use]
    pub fn compare(&self) -> String {
        format!(
            "SELECT wanted.id FROM unnest($1, $2, $3, $4) AS wanted (id, name, age, country) \
             LEFT JOIN {} AS found ON found.id = wanted.id WHERE found.id IS NULL \
             OR (found.name, found.age, found.country) IS DISTINCT FROM (wanted.name, wanted.age, wanted.country)",
            self.quoted()
        )
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `<namespace>/<name>` of the object: unique as long as one cluster writes to the table.
    pub id: String,
    /// The column name.
    pub name: String,
    /// The column age.
    pub age: i32,
    /// The column country.
    pub country: String,
}

impl Row {
    /// Digest of all values.
    #[must_use]
    pub fn digest(&self) -> String {
        let Row { id, name, age, country } = self;
        // JSON, so that no two rows have the same text.
        let text = serde_json::json!([id, name, age, country]).to_string();
        hex(&Sha256::digest(text))
    }
}

/// A row and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The table.
    pub table: Table,
    /// The row.
    pub row: Row,
}

/// The primary key of an object's row.
#[must_use]
pub fn id(Key { namespace, name }: &Key) -> String {
    format!("{namespace}/{name}")
}

/// What the spec asks for. The schema refuses most of what is refused here; it may have been another one's.
///
/// # Errors
/// A sentence that begins with the field.
pub fn wanted(key: &Key, spec: &PostgresWriterSpec) -> Result<Wanted, String> {
    let PostgresWriterSpec { table, name, age, country } = spec;
    let table = table.parse().map_err(|problem: InvalidTable| format!("spec.table: {problem}"))?;
    for (field, value) in [("spec.name", name), ("spec.country", country)] {
        if value.contains('\0') {
            return Err(format!("{field}: must not contain the character NUL, which PostgreSQL cannot store"));
        }
    }
    if *age < 0 {
        return Err("spec.age: must be 0 or more".to_owned());
    }
    Ok(Wanted { table, row: Row { id: id(key), name: name.clone(), age: *age, country: country.clone() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_tables() {
        let long = "a".repeat(63);
        for name in ["people", "People", "_p1", "sales.people", &long, &format!("{long}.{long}")] {
            assert_eq!(name.parse::<Table>().map(|table| table.to_string()), Ok(name.to_owned()));
        }
        let too_long = "a".repeat(64);
        for name in [
            "",
            ".",
            "a.",
            ".a",
            "a.b.c",
            "1a",
            "a-b",
            "a b",
            "a;b",
            "a\"b",
            "\"a\"",
            "a'b",
            "ä",
            "a\0",
            "a\n",
            &too_long,
            "people; drop table people",
            "people--",
        ] {
            assert_eq!(name.parse::<Table>(), Err(InvalidTable), "{name:?}");
        }
    }

    #[test]
    fn names_are_quoted() {
        let table: Table = "Sales.order".parse().unwrap();
        for statement in [table.look(), table.write(), table.delete(), table.compare()] {
            assert!(statement.contains(" \"Sales\".\"order\" "), "{statement}");
        }
    }

    #[test]
    fn different_rows_have_different_digests() {
        let row = |name: &str, age, country: &str| {
            Row { id: "ns/a".into(), name: name.into(), age, country: country.into() }.digest()
        };
        assert_eq!(row("a", 1, "b"), row("a", 1, "b"));
        for (name, age, country) in [("b", 1, "a"), ("a", 2, "b"), ("a\",1,\"b", 1, ""), ("", 1, "ab")] {
            assert_ne!(row("a", 1, "b"), row(name, age, country));
        }
    }

    #[test]
    fn what_the_schema_should_have_refused_is_refused() {
        let spec = |table: &str, name: &str, age| PostgresWriterSpec {
            table: table.into(),
            name: name.into(),
            age,
            country: "NO".into(),
        };
        let key = Key::new("ns", "ada");
        let wanted = |spec| wanted(&key, &spec);
        assert_eq!(wanted(spec("people", "'; drop table people --", 0)).unwrap().row.id, "ns/ada");
        for (spec, field) in [
            (spec("a b", "x", 1), "spec.table: "),
            (spec("a", "x\0", 1), "spec.name: "),
            (spec("a", "x", -1), "spec.age: "),
        ] {
            let problem = wanted(spec).unwrap_err();
            assert!(problem.starts_with(field), "{problem}");
        }
    }
}
