//! The row that an object stands for. **Pure.**

use kube::api::ObjectMeta;
use serde::Serialize;

use super::{
    error::Error,
    table::{Allowed, Table},
};
use crate::{
    crd::{PostgresWriterSpec, PostgresWriterStatus, Reason, WrittenRow},
    platform::key::Key,
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
    /// Returns what the spec asks for. The schema already refuses most of what is refused here, but the stored object may be older than the schema.
    pub(super) fn wanted(key: &Key, spec: &PostgresWriterSpec, allowed: &Allowed) -> Result<Row, Error> {
        let PostgresWriterSpec { table, name, age, country } = spec.clone();
        let nul = |text: &str| text.contains('\0').then_some("must not contain NUL, which PostgreSQL cannot store");
        let negative = (age < 0).then_some("must be 0 or more");
        let problems = [("name", nul(&name)), ("age", negative), ("country", nul(&country))];
        if let Some((field, problem)) = problems.into_iter().find_map(|(field, problem)| Some((field, problem?))) {
            return Err(Error::invalid(format!("spec.{field}: {problem}")));
        }
        let tables = allowed.for_namespace(&key.namespace);
        let Some(table) = Table::parse(&table).filter(|_| tables.contains(&table)) else {
            let (namespace, tables) = (&key.namespace, tables.join(", "));
            let sentence = format!(
                "spec.table: {table:?} is not one of the tables that objects in namespace {namespace} may name, which are \
                 {tables}: name one of them, or have the cluster admin add it to PSQL_TABLES of the operator",
            );
            return Err(Error::Spec { reason: Reason::TableNotAllowed, sentence });
        };
        Ok(Row { table, id: key.to_string(), name, age, country })
    }
}

/// Returns the row that was written for the current spec.
pub(super) fn written<'a>(meta: &ObjectMeta, status: Option<&'a PostgresWriterStatus>) -> Option<&'a WrittenRow> {
    status?.row.as_ref().filter(|row| meta.generation == Some(row.generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(namespace: &str, spec: (&str, &str, i32, &str), allowed: &str) -> Result<Row, Error> {
        let (table, name, age, country) = spec;
        let spec = PostgresWriterSpec { table: table.into(), name: name.into(), age, country: country.into() };
        Row::wanted(&Key::new(namespace, "ada"), &spec, &Allowed::parse(allowed).unwrap())
    }

    #[test]
    fn invalid_specs_are_refused() {
        let hostile = ("people", "'; drop table people --", 0, "\"");
        assert_eq!(wanted("ns", hostile, "people").unwrap().name, hostile.1);
        for (spec, field) in [
            (("a b", "x", 1, "UK"), "spec.table: "),
            (("people", "x\0", 1, "UK"), "spec.name: "),
            (("people", "x", -1, "UK"), "spec.age: "),
            (("people", "x", 1, "\0"), "spec.country: "),
        ] {
            let problem = wanted("ns", spec, "people").unwrap_err().to_string();
            assert!(problem.starts_with(field), "{problem}");
        }
    }

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
            (several, "red", "People", Some("\"People\" is not one")),
            (several, "red", "{namespace}.people", Some("not one of the tables")),
            // Tables that no statement could name.
            (several, "1", "1.people", Some("1.people")),
            // The name of a namespace does not give access to the ledger.
            ("{namespace}", "clientapp-operator-rows", "clientapp_operator_rows", Some("is not one")),
        ] {
            match (wanted(namespace, (table, "x", 1, "NO"), allowed), sentence) {
                (Ok(row), None) => assert_eq!((row.table.0.as_str(), row.id), (table, format!("{namespace}/ada"))),
                (Err(error), Some(words)) => {
                    assert_eq!(error.reason(), Reason::TableNotAllowed);
                    assert!(error.to_string().contains(words), "{error}");
                }
                (wanted, _) => panic!("{namespace} {table}: {wanted:?}"),
            }
        }
    }
}
