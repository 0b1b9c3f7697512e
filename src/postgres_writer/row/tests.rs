use super::{super::table::LEDGER, *};

pub(in super::super) fn ada(age: i32) -> Wanted {
    let row = Row { id: "ns/ada".into(), name: "Ada".into(), age, country: "UK".into() };
    Wanted { table: Table::parse("people").unwrap(), row }
}

fn spec(table: &str, name: &str, age: i32) -> PostgresWriterSpec {
    PostgresWriterSpec { table: table.into(), name: name.into(), age, country: "NO".into() }
}

#[test]
fn only_plain_names_are_tables() {
    let long = "a".repeat(63);
    for name in ["people", "People", "_p1", "sales.people", &long, &format!("{long}.{long}")] {
        assert_eq!(Table::parse(name), Some(Table::recorded(name.to_owned())));
    }
    let (too_long, ledger) = ("a".repeat(64), format!("public.{LEDGER}"));
    let names =
        ["", ".", "a.", ".a", "a.b.c", "1a", "a-b", "a b", "a;b", "a\"b", "\"a\"", "a'b", "ä", "a\0", "a\n", "a--"];
    for name in names.into_iter().chain([too_long.as_str(), &ledger, LEDGER]) {
        assert_eq!(Table::parse(name), None, "{name:?}");
    }
}

#[test]
fn names_are_quoted() {
    let table = Table::parse("Sales.order").unwrap();
    for statement in [table.look(), table.insert(), table.write(), table.delete(), table.compare()] {
        assert!(statement.contains(" \"Sales\".\"order\" "), "{statement}");
    }
    let hostile = Table::recorded("people\"; DROP TABLE people; --".into());
    assert_eq!(hostile.delete(), "DELETE FROM \"people\"\"; DROP TABLE people; --\" WHERE id = $1");
}

#[test]
fn a_table_is_allowed_by_its_whole_name() {
    let allowed = Allowed::parse("people, {namespace}.people,tenant_{namespace}").unwrap();
    for (namespace, table, sentence) in [
        ("red", "people", None),
        ("red", "red.people", None),
        ("red-1", "red_1.people", None),
        ("red-1", "tenant_red_1", None),
        ("red", "blue.people", Some("which are people, red.people, tenant_red:")),
        ("red", "public.people", Some("red.people")),
        ("red", "People", Some("\"People\" is none")),
        ("red", "{namespace}.people", Some("none of the tables")),
        // A table that no statement could name.
        ("1", "1.people", Some("1.people")),
    ] {
        let wanted = wanted(&Key::new(namespace, "ada"), &spec(table, "x", 1), &allowed);
        match sentence {
            None => assert_eq!(wanted.unwrap().table.to_string(), table),
            Some(words) => {
                let error = wanted.unwrap_err();
                assert_eq!(error.reason(), Reason::TableNotAllowed);
                assert!(error.to_string().contains(words), "{error}");
            }
        }
    }
    for text in ["", "people,", "{name}", "a b", LEDGER] {
        assert!(Allowed::parse(text).is_none(), "{text}");
    }
    // Nor by what a namespace is called.
    let any = Allowed::parse("{namespace}").unwrap();
    assert!(wanted(&Key::new("clientapp-operator-rows", "ada"), &spec(LEDGER, "x", 1), &any).is_err());
}

#[test]
fn different_rows_have_different_digests() {
    let digest = |name: &str, age, country: &str| {
        Row { id: "ns/a".into(), name: name.into(), age, country: country.into() }.digest()
    };
    assert_eq!(digest("a", 1, "b"), digest("a", 1, "b"));
    for (name, age, country) in [("b", 1, "a"), ("a", 2, "b"), ("a\",1,\"b", 1, ""), ("", 1, "ab")] {
        assert_ne!(digest("a", 1, "b"), digest(name, age, country));
    }
}

#[test]
fn what_the_schema_should_have_refused_is_refused() {
    let wanted = |spec| wanted(&Key::new("ns", "ada"), &spec, &Allowed::parse("people").unwrap());
    assert_eq!(wanted(spec("people", "'; drop table people --", 0)).unwrap().row.id, "ns/ada");
    for (spec, field) in [
        (spec("a b", "x", 1), "spec.table: "),
        (spec("people", "x\0", 1), "spec.name: "),
        (spec("people", "x", -1), "spec.age: "),
    ] {
        let problem = wanted(spec).unwrap_err().to_string();
        assert!(problem.starts_with(field), "{problem}");
    }
}
