use serde_json::{Value, json};

use super::*;
use crate::platform::fake::of;

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
