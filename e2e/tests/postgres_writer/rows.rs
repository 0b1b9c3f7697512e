//! The life of a row, and the permitted tables and values.

use super::*;

#[tokio::test]
async fn a_row_comes_changes_and_goes_with_its_object() {
    let mut scene = Scene::new("writer-life").await;
    let ours = "INSERT INTO \"people\"";
    let status = scene.write("ada", ada(36)).await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
    let row = status.row.unwrap();
    assert_eq!((row.table.as_str(), row.id.as_str()), ("people", "writer-life/ada"));
    assert_eq!(scene.ledger().await, [scene.entry("ada", "people").await]);
    let before = scene.statements(ours);

    let listed = scene.tenant.kubectl(&["get", "postgreswriters"]).unwrap();
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "READY", "TABLE", "REASON", "AGE"]);
    assert_eq!(lines[1][..3], ["ada", "True", "people"]);

    scene.write("ada", ada(37)).await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);
    assert_eq!(scene.statements(ours), before + 1);

    // At rest: many comparisons and a restart later, nothing was written, and the object is the same.
    let version = scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap().resource_version();
    scene.stop().await;
    let (selects, looks) = (scene.statements("SELECT wanted.id"), scene.statements("SELECT relation"));
    scene.start(&[]).await;
    let compared = async || scene.statements("SELECT wanted.id") >= selects + 3;
    scene.until("the rows are compared", compared).await;
    assert_eq!((scene.statements(ours), scene.statements("SELECT relation")), (before + 1, looks));
    assert_eq!(scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap().resource_version(), version);

    scene.remove("ada").await;
    assert_eq!((scene.rows().await, scene.ledger().await), (vec![], vec![]));
    // Nothing went wrong, and nothing is reported.
    assert_eq!(scene.tenant.events("ada").await, []);
}

#[tokio::test]
async fn a_row_that_others_delete_or_change_is_put_back() {
    let mut scene = Scene::new("writer-drift").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.apply("bob", json!({"table": "people", "name": "Bob", "age": 1, "country": "NO"})).await.unwrap();
    scene.ready("ada").await;
    scene.ready("bob").await;
    let bob: Row = (scene.id("bob"), "Bob".into(), 1, "NO".into());
    let all = [scene.ada(36), bob];
    let writes = scene.statements("INSERT INTO \"people\"");
    scene.run("DELETE FROM people WHERE name = 'Ada'").await;
    scene.until_rows(&all).await;
    scene.run("UPDATE people SET age = 99 WHERE name = 'Ada'").await;
    scene.until_rows(&all).await;
    assert_eq!(scene.statements("INSERT INTO \"people\""), writes + 2, "Bob's row was not touched");
    let sentence =
        "row writer-drift/ada in table people was changed or deleted by another user of the database: put back";
    scene.tenant.events_with("ada", "RowDrifted", sentence).await;
    // A row without an object stays.
    scene.run("INSERT INTO people VALUES ('zoe', 'Zoe', 3, 'FR')").await;
    scene.run("DROP TABLE people").await;
    scene.not_ready("ada", "TableMissing").await;
    scene.not_ready("bob", "TableMissing").await;
    assert!(scene.log().contains("\"table people in database writer_drift at 127.0.0.1:"), "{}", scene.log());
    // An operator does not call them Ready just because their rows were written once.
    scene.stop().await;
    let looks = scene.statements("SELECT relation");
    scene.start(&[("PSQL_RESYNC", "0")]).await;
    scene.until("it is reconciled", async || scene.statements("SELECT relation") >= looks + 2).await;
    scene.not_ready("ada", "TableMissing").await;
    scene.start(&[]).await;
    scene.run(PEOPLE).await;
    scene.until_rows(&all).await;
}

#[tokio::test]
async fn what_is_wrong_with_the_table_is_said_and_noticed_when_it_is_put_right() {
    let mut scene = Scene::bare("writer-table").await;
    scene.start(&[]).await;
    for (name, before, reason, words, after) in [
        (
            "missing",
            "SELECT",
            "TableMissing",
            &["\"missing\" does not exist", "create it"][..],
            "CREATE TABLE missing (id text PRIMARY KEY, name text, age integer, country text)",
        ),
        (
            "narrow",
            "CREATE TABLE narrow (id text PRIMARY KEY, name text, age integer)",
            "ColumnMissing",
            &["narrow", "\"country\""],
            "ALTER TABLE narrow ADD country text",
        ),
        (
            "twice",
            "CREATE TABLE twice (id text, name text, age integer, country text)",
            "TableUnfit",
            &["row writer-table/twice of table twice", "ADD PRIMARY KEY (id)"],
            "ALTER TABLE twice ADD PRIMARY KEY (id)",
        ),
        (
            "strict",
            "CREATE TABLE strict (id text PRIMARY KEY, name text, age integer CONSTRAINT grown_up CHECK (age >= 18), country text)",
            "RowRefused",
            &["check constraint \"grown_up\"", "row writer-table/strict of table strict"],
            "ALTER TABLE strict DROP CONSTRAINT grown_up",
        ),
        (
            "short",
            "CREATE TABLE short (id text PRIMARY KEY, name varchar(2), age integer, country text)",
            "InvalidSpec",
            &["row writer-table/short of table short", "too long"],
            "ALTER TABLE short ALTER name TYPE text",
        ),
        (
            "numeric",
            "CREATE TABLE numeric (id text PRIMARY KEY, name integer, age integer, country text)",
            "TableUnfit",
            &["numeric"],
            "ALTER TABLE numeric ALTER name TYPE text",
        ),
        (
            "shouted",
            "CREATE TABLE shouted (id text PRIMARY KEY, name text, age integer, country text);
             CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.name := upper(NEW.name); RETURN NEW; END';
             CREATE TRIGGER shout BEFORE INSERT OR UPDATE ON shouted FOR EACH ROW EXECUTE FUNCTION shout()",
            "RowRefused",
            &["a trigger, rule or policy of table shouted"],
            "DROP TRIGGER shout ON shouted",
        ),
    ] {
        scene.run(before).await;
        let sentence = scene.fail(name, json!({"table": name, "name": "Ada", "age": 1, "country": "UK"}), reason).await;
        for word in words {
            assert!(sentence.contains(word), "{sentence}");
        }
        scene.run(after).await;
    }
    for name in ["missing", "narrow", "twice", "strict", "short", "numeric", "shouted"] {
        scene.ready(name).await;
        let count = format!("SELECT count(*) FROM {name}");
        assert_eq!(scene.sql.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1, "{name}");
    }
    // A row that cannot be deleted holds up its object.
    scene
        .run(
            "CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
             CREATE TRIGGER hold BEFORE DELETE ON short FOR EACH ROW EXECUTE FUNCTION hold()",
        )
        .await;
    scene.delete("short").await;
    scene.not_ready("short", "RowRefused").await;
    scene.run("DROP TRIGGER hold ON short").await;
    scene.gone("short").await;
    // Without the table there is no row: nothing holds up the object.
    scene.run("DROP TABLE missing").await;
    scene.remove("missing").await;
}

#[tokio::test]
async fn every_sqlstate_has_its_reason_and_a_sentence_and_is_tried_again() {
    let scene = Scene::new("writer-sqlstates").await;
    scene
        .run(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               'BEGIN RAISE EXCEPTION USING MESSAGE = ''said the server'', ERRCODE = NEW.country; END';
             CREATE TRIGGER refuse BEFORE INSERT ON people FOR EACH ROW EXECUTE FUNCTION refuse()",
        )
        .await;
    let refusals = [
        (&["42P01", "3F000"][..], "TableMissing", "create it"),
        (&["42703"], "ColumnMissing", "it needs id"),
        (&["42501"], "AccessDenied", "grant"),
        (&["28P01", "28000"], "CredentialsRefused", "PSQL_PASSWORD"),
        (&["3D000"], "DatabaseMissing", "PSQL_DBNAME"),
        (&["25006"], "ReadOnly", "writable"),
        (&["42P10"], "TableUnfit", "PRIMARY KEY (id)"),
        (&["42804", "42883", "42809", "428C9"], "TableUnfit", "of type text"),
        (&["23502", "23505", "23514", "P0001", "0A000"], "RowRefused", "change the spec"),
        (&["22001", "22003", "22P05"], "InvalidSpec", "change the value"),
        (&["40001", "40P01", "55P03", "57014", "25P03"], "DatabaseBusy", "tried again"),
        (&["08006", "53300", "57P01", "58030", "XX000"], "DatabaseUnavailable", "tried again"),
    ];
    let (all, scene) =
        (|| refusals.iter().flat_map(|refusal| refusal.0.iter().map(move |code| (code, refusal))), &scene);
    join_all(all().map(async |(code, (_, reason, remedy))| {
        let name = format!("e{}", code.to_lowercase());
        let spec = json!({"table": "people", "name": "Ada", "age": 1, "country": code});
        let what = format!("row writer-sqlstates/{name} of table people in database writer_sqlstates at 127.0.0.1:");
        let said = format!(": said the server (SQLSTATE {code}); ");
        scene.apply(&name, spec).await.unwrap();
        let sentence = scene.not_ready_with(&name, reason, &said).await;
        assert!(sentence.starts_with(&what) && sentence.contains(remedy), "{sentence}");
    }))
    .await;
    scene.run("DROP TRIGGER refuse ON people").await;
    join_all(all().map(async |(code, _)| scene.ready(&format!("e{}", code.to_lowercase())).await)).await;
}

#[tokio::test]
async fn hostile_values_are_values() {
    let scene = Scene::new("writer-hostile").await;
    let values = [
        "'; DROP TABLE people; --",
        "\"people\"",
        "Robert'); DELETE FROM people; --",
        "$1 %s {} \\' \\\\ \n\t",
        "👩‍👩‍👧‍👦 Žluťoučký كلب",
        "NULL",
        " ",
    ];
    for (number, value) in values.iter().enumerate() {
        let name = format!("v{number}");
        scene.write(&name, json!({"table": "people", "name": value, "age": number, "country": value})).await;
    }
    let rows: Vec<_> = scene.rows().await.into_iter().map(|(_, name, _, country)| (name, country)).collect();
    assert_eq!(rows, values.map(|value| (value.to_owned(), value.to_owned())));

    // An impossible value is refused at once.
    let long = "x".repeat(1 << 20);
    for (field, value, sentence) in [
        ("name", json!("a\0b"), "spec.name"),
        ("country", json!("\0"), "spec.country"),
        ("name", json!(long), "may not be more than 1024"),
        ("name", json!(""), "name"),
        ("country", json!(null), "country"),
        ("age", json!(-1), "age"),
        ("age", json!("36"), "age"),
        ("age", json!(2_147_483_648_u32), "age"),
        ("table", json!("people; DROP TABLE people"), "spec.table"),
        ("table", json!("people\""), "spec.table"),
        ("table", json!("a.b.c"), "spec.table"),
    ] {
        let mut spec = ada(36);
        spec[field] = value;
        let refusal = scene.apply("refused", spec).await.unwrap_err().to_string();
        assert!(refusal.contains(sentence), "{field}: {}", refusal.chars().take(500).collect::<String>());
    }
}

#[tokio::test]
async fn many_at_once_are_as_many_rows_over_ten_connections() {
    let scene = Scene::new("writer-many").await;
    let names: Vec<_> = (0..40).map(|number| format!("p{number:03}")).collect();
    let api = scene.tenant.api::<PostgresWriter>();
    let created = names.iter().map(|name| {
        let spec = serde_json::from_value(ada(1)).unwrap();
        let object = PostgresWriter::new(name, spec);
        let api = api.clone();
        async move { api.create(&PostParams::default(), &object).await.map(|_| ()) }
    });
    let most = async {
        let mut most = 0;
        loop {
            let count = format!("SELECT count(*) FROM pg_stat_activity WHERE {OURS}");
            let is_done = scene.rows().await.len() >= names.len();
            most = most.max(scene.sql.query_one(&count, &[]).await.unwrap().get::<_, i64>(0));
            if is_done {
                return most;
            }
        }
    };
    let most = tokio::time::timeout(TIMEOUT, most);
    let (most, created) = tokio::join!(most, futures::future::try_join_all(created));
    created.unwrap();
    assert!((1..=10).contains(&most.expect("all rows are there")));
    for name in &names {
        scene.ready(name).await;
    }
    let ids: Vec<_> = scene.rows().await.into_iter().map(|row| row.0).collect();
    assert_eq!(ids, names.iter().map(|name| scene.id(name)).collect::<Vec<_>>());
}
