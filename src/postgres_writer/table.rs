//! Names of tables, and which of them objects may name. **Pure.**

/// The ledger: for each row its cluster, id and table, and the uid of the object that it was last written for. It is in the
/// connection's default schema.
pub(super) const LEDGER: &str = "clientapp_operator_rows";
pub(super) const COLUMNS: &str =
    "cluster text NOT NULL, id text NOT NULL, relation text NOT NULL, uid text NOT NULL, PRIMARY KEY (cluster, id)";
/// PostgreSQL truncates longer names.
const NAME_BYTES: usize = 63;
/// Stands for the object's namespace in an allowed table.
const NAMESPACE: &str = "{namespace}";

/// A table, with an optional schema: the name as users and cluster admins write it, or as in the ledger. `Display` quotes it,
/// as a statement requires: so it is safe, whatever a database admin has written in the ledger.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq, PartialOrd, Ord)]
#[display("{}", _0.split('.').map(quoted).collect::<Vec<_>>().join("."))]
pub(super) struct Table(pub(super) String);

impl Table {
    pub(super) fn parse(text: &str) -> Option<Table> {
        let word = |word: &&str| {
            word.len() <= NAME_BYTES
                && word.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
                && word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
        };
        let words: Vec<_> = text.split('.').collect();
        // With rows in the ledger, users could forge ownership.
        let right = words.len() <= 2 && words.iter().all(word) && words.last() != Some(&LEDGER);
        right.then(|| Table(text.to_owned()))
    }
}

/// Quotes a name as it stands in a statement.
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

    /// Returns the tables for the objects of a namespace. No namespace has a `_` in its name, so no two namespaces get the same tables.
    pub(super) fn for_namespace(&self, namespace: &str) -> Vec<String> {
        let word = namespace.replace('-', "_");
        self.0.iter().map(|table| table.replace(NAMESPACE, &word)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_names_are_tables() {
        let long = "a".repeat(63);
        for name in ["people", "People", "_p1", "sales.people", &long, &format!("{long}.{long}")] {
            assert_eq!(Table::parse(name), Some(Table(name.to_owned())));
        }
        let (too_long, ledger) = ("a".repeat(64), format!("public.{LEDGER}"));
        let names =
            ["", ".", "a.", ".a", "a.b.c", "1a", "a-b", "a b", "a;b", "a\"b", "\"a\"", "a'b", "ä", "a\0", "a\n", "a--"];
        for name in names.into_iter().chain([too_long.as_str(), &ledger, LEDGER]) {
            assert_eq!(Table::parse(name), None, "{name:?}");
        }
        for text in ["", "people,", "{name}", "a b", LEDGER] {
            assert!(Allowed::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn names_are_quoted() {
        let shown = |name: &str| Table(name.to_owned()).to_string();
        assert_eq!(shown("Sales.order"), r#""Sales"."order""#);
        assert_eq!(shown("people\"; DROP TABLE people; --"), r#""people""; DROP TABLE people; --""#);
    }
}
