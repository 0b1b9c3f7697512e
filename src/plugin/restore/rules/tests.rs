use serde_json::{Value, json};

use super::*;
use crate::plugin::tests::flags;

fn of<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

#[test]
fn what_the_user_agrees_to() {
    let app = |provider: &str| -> ClientApp {
        of(json!({
            "metadata": {"name": "acme"}, "spec": {"hostname": "a.example", "postgres": {"provider": provider}},
        }))
    };
    let told = |provider: &str, mut spec: Value| {
        spec["of"] = json!({"name": "acme"});
        consequence("acme", &of(spec), &app(provider))
    };
    insta::assert_snapshot!(
        [
            told("standalone", json!({"database": {"from": "20260131T030000Z-x7k2p"}})),
            told("standalone", json!({"backup": "before-the-move"})),
            told("standalone", json!({"database": {}, "files": {}})),
            told("percona", json!({"database": {"time": "2026-01-31T10:00:00Z"}})),
            told("percona", json!({"database": {"from": "first"}, "backupFirst": false})),
        ]
        .join("\n\n")
    );
}

#[test]
fn whether_a_dump_is_listed() {
    const DUMP: &str = "20260131T030000Z-x7k2p";
    let database = |status: Value| -> Postgresql { of(json!({"metadata": {}, "spec": {}, "status": status})) };
    let dumps = json!({"backup": {"dumps": [{"name": DUMP, "bytes": 1, "tables": 1}]}});
    for (status, from, expected) in [
        (dumps.clone(), DUMP, true),
        (dumps.clone(), "latest", true),
        (dumps, "20250131T030000Z-a", false),
        (json!({}), "latest", false),
        (json!({"restored": {"dump": DUMP, "claim": "acme-pg-backup"}}), DUMP, true),
    ] {
        let found = listed("acme", &database(status.clone()), &Restore::of_claim(from, "acme-pg-backup"), &flags("ns"));
        assert_eq!(found.is_ok(), expected, "{status} {from}: {found:?}");
    }
}
