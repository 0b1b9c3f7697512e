//! The row that an object stands for. **Pure.**

use kube::api::ObjectMeta;
use serde::Serialize;

use super::{
    error::Error,
    table::{Allowed, Table},
};
use crate::{
    crd::{PostgresWriterSpec, PostgresWriterStatus, Reason, WrittenRow},
    runtime::key::Key,
};

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    #[serde(skip)]
    pub(super) table: Table,
    /// Primary key: `<namespace>/<name>` of the object.
    pub(super) id: String,
    pub(super) name: String,
    pub(super) age: i32,
    pub(super) country: String,
}

impl Row {
    /// What the spec asks for, if its table is allowed. What else could be wrong the schema refuses, or the database.
    pub(super) fn wanted(key: &Key, spec: &PostgresWriterSpec, allowed: &Allowed) -> Result<Row, Error> {
        let PostgresWriterSpec { table, name, age, country } = spec.clone();
        let tables = allowed.of(&key.namespace);
        let Some(table) = Table::parse(&table).filter(|_| tables.contains(&table)) else {
            let sentence = format!(
                "spec.table: {table:?} is none of the tables that objects in namespace {} may name, which are {}: name one \
                 of them, or have the cluster admin add it to PSQL_TABLES of the operator",
                key.namespace,
                tables.join(", ")
            );
            return Err(Error::Spec { reason: Reason::TableNotAllowed, sentence });
        };
        Ok(Row { table, id: key.to_string(), name, age, country })
    }
}

/// The row that was written for the spec as it is.
pub(super) fn written<'a>(meta: &ObjectMeta, status: Option<&'a PostgresWriterStatus>) -> Option<&'a WrittenRow> {
    status?.row.as_ref().filter(|row| meta.generation == Some(row.generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_allowed_by_its_whole_name() {
        let several = "people, {namespace}.people,tenant_{namespace}";
        for (allowed, namespace, table, sentence) in [
            (several, "red", "people", None),
            (several, "red", "red.people", None),
            (several, "red-1", "red_1.people", None),
            (several, "red-1", "tenant_red_1", None),
            (several, "red", "blue.people", Some("which are people, red.people, tenant_red:")),
            (several, "red", "public.people", Some("red.people")),
            (several, "red", "People", Some("\"People\" is none")),
            (several, "red", "{namespace}.people", Some("none of the tables")),
            // Tables that no statement could name.
            (several, "1", "1.people", Some("1.people")),
            // Nor is the ledger one by what a namespace is called.
            ("{namespace}", "clientapp-operator-rows", "clientapp_operator_rows", Some("is none")),
        ] {
            let spec = PostgresWriterSpec { table: table.into(), name: "x".into(), age: 1, country: "NO".into() };
            let row = Row::wanted(&Key::new(namespace, "ada"), &spec, &Allowed::parse(allowed).unwrap());
            match (row, sentence) {
                (Ok(row), None) => assert_eq!((row.table.0.as_str(), row.id), (table, format!("{namespace}/ada"))),
                (Err(error), Some(words)) => {
                    assert_eq!(error.reason(), Reason::TableNotAllowed);
                    assert!(error.to_string().contains(words), "{error}");
                }
                (row, _) => panic!("{namespace} {table}: {row:?}"),
            }
        }
    }
}
