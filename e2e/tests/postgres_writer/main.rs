//! PostgresWriters against a real PostgreSQL: one row for each object, nothing more and nothing less, whatever happens to
//! the operator, the database and the rows.

mod claims;

use std::sync::OnceLock;

use clientapp_operator::crd::{PostgresWriter, PostgresWriterStatus, conditions};
use e2e::lab::{Lab, PATIENCE, Tenant};
use e2e::operator::{Operator, Options};
use e2e::postgres::{PASSWORD, Postgres};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};

type Row = (String, String, i32, String);

const PEOPLE: &str =
    "CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, age integer NOT NULL, country text NOT NULL)";

/// A control plane without an operator and a PostgreSQL, for one scenario at a time.
struct Turn {
    lab: &'static Lab,
    postgres: MutexGuard<'static, Postgres>,
}

async fn turn() -> Turn {
    static LAB: OnceLock<(Lab, Mutex<Postgres>)> = OnceLock::new();
    let start = || {
        LAB.get_or_init(|| {
            let lab = Lab::start(false).expect("the lab starts");
            (lab, Mutex::new(Postgres::start().expect("PostgreSQL starts")))
        })
    };
    let (lab, postgres) = tokio::task::spawn_blocking(start).await.expect("the lab starts");
    Turn { lab, postgres: postgres.lock().await }
}

/// A namespace, and a database of its own with an operator for it.
struct Scene {
    // It ends before the next scenario begins.
    operator: Option<Operator>,
    tenant: Tenant,
    database: String,
    sql: tokio_postgres::Client,
    turn: Turn,
}

impl Scene {
    /// With a table of people, and an operator.
    async fn new(name: &str) -> Scene {
        let mut scene = Scene::bare(name).await;
        scene.sql.batch_execute(PEOPLE).await.unwrap();
        scene.start(&[]).await;
        scene
    }

    async fn bare(name: &str) -> Scene {
        let turn = turn().await;
        let tenant = turn.lab.tenant(name).await;
        forget_others(&tenant).await;
        let database = name.replace('-', "_");
        let admin = turn.postgres.connect("postgres").await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        let sql = turn.postgres.connect(&database).await.unwrap();
        Scene { turn, tenant, database, sql, operator: None }
    }

    fn options(&self, more: &[(&str, &str)]) -> Options {
        let mut environment = self.turn.postgres.environment(&self.database);
        environment.push(("PSQL_RESYNC".to_owned(), "1".to_owned()));
        // The last one counts.
        environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Options { environment, ..self.turn.lab.options() }
    }

    /// Starts the operator, in place of the one that runs.
    async fn start(&mut self, more: &[(&str, &str)]) {
        let options = self.options(more);
        let before = self.operator.take();
        let start = move || {
            drop(before);
            Operator::leading(&options)
        };
        self.operator = Some(tokio::task::spawn_blocking(start).await.unwrap().expect("the operator leads"));
    }

    async fn apply(&self, name: &str, spec: Value) -> kube::Result<PostgresWriter> {
        let object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "PostgresWriter",
            "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("test").force();
        self.tenant.api::<PostgresWriter>().patch(name, &params, &Patch::Apply(object)).await
    }

    /// Waits until the object's newest spec is in the database, by its own word.
    async fn ready(&self, name: &str) -> PostgresWriterStatus {
        let check = |object: Option<&PostgresWriter>| {
            let object = object?;
            let status = object.status.as_ref()?;
            let newest = status.observed_generation == object.metadata.generation;
            (newest && condition(status, "Ready")?.0 == "True").then(|| status.clone())
        };
        self.tenant.wait_for(name, &format!("Ready{}", self.log()), check).await
    }

    /// Waits until the object is not Ready for this reason, and returns the sentence.
    async fn not_ready(&self, name: &str, reason: &str) -> String {
        let check = |object: Option<&PostgresWriter>| {
            let object = object?;
            let status = object.status.as_ref()?;
            if status.observed_generation != object.metadata.generation {
                return None;
            }
            let (state, why, message) = condition(status, "Ready")?;
            let stalled = condition(status, "Stalled")?.0 == "True";
            (state == "False" && why == reason).then(|| {
                assert_eq!(stalled, reason != "DatabaseUnavailable", "{status:?}");
                message
            })
        };
        self.tenant.wait_for(name, reason, check).await
    }

    fn log(&self) -> String {
        self.operator.as_ref().map(|operator| format!("\n{}", operator.log())).unwrap_or_default()
    }

    async fn delete(&self, name: &str) {
        self.tenant.api::<PostgresWriter>().delete(name, &DeleteParams::default()).await.unwrap();
    }

    async fn gone(&self, name: &str) {
        let check = |object: Option<&PostgresWriter>| object.is_none().then_some(());
        self.tenant.wait_for(name, "gone", check).await;
    }

    fn id(&self, name: &str) -> String {
        format!("{}/{name}", self.tenant.namespace)
    }

    async fn rows(&self) -> Vec<Row> {
        let rows = self.sql.query("SELECT id, name, age, country FROM people ORDER BY id", &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2), row.get(3))).collect()
    }

    async fn run(&self, statement: &str) {
        self.sql.batch_execute(statement).await.unwrap();
    }

    /// Waits until the rows are these.
    async fn until_rows(&self, expected: &[Row]) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let rows = self.rows().await;
            if rows == expected {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{rows:?} are not {expected:?}{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// How many statements of each kind the operator has sent to this PostgreSQL so far: by how it begins.
    fn statements(&self, word: &str) -> usize {
        let log = self.turn.postgres.log();
        let ours = log.lines().filter(|line| line.contains("postgres clientapp-operator"));
        ours.filter(|line| line.contains(&format!(": {word}"))).count()
    }
}

/// Lets go of what the scenarios before have left: this one's operator would take it into this one's database.
async fn forget_others(tenant: &Tenant) {
    let all = Api::<PostgresWriter>::all(tenant.client.clone());
    for object in all.list(&ListParams::default()).await.unwrap() {
        let api = Api::<PostgresWriter>::namespaced(tenant.client.clone(), &object.namespace().unwrap());
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        api.patch(&object.name_any(), &PatchParams::default(), &free).await.unwrap();
        // It may have been waiting for just that.
        let _ = api.delete(&object.name_any(), &DeleteParams::default()).await;
    }
}

fn condition(status: &PostgresWriterStatus, type_: &str) -> Option<(String, String, String)> {
    let found = conditions::find(&status.conditions, type_)?;
    Some((found.status.clone(), found.reason.clone(), found.message.clone()))
}

fn ada(age: i32) -> Value {
    json!({"table": "people", "name": "Ada", "age": age, "country": "UK"})
}

impl Scene {
    fn ada(&self, age: i32) -> Row {
        (self.id("ada"), "Ada".into(), age, "UK".into())
    }
}

#[tokio::test]
async fn a_row_comes_changes_and_goes_with_its_object() {
    let mut scene = Scene::new("writer-life").await;
    let before = [scene.statements("INSERT"), scene.statements("SELECT (name")];
    scene.apply("ada", ada(36)).await.unwrap();
    let status = scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
    let row = status.row.unwrap();
    assert_eq!((row.table.as_str(), row.id.as_str()), ("people", "writer-life/ada"));
    // One look whether the row is free, once in its life, and one statement.
    assert_eq!([scene.statements("INSERT"), scene.statements("SELECT (name")], before.map(|count| count + 1));

    let listed = scene.tenant.kubectl(&["get", "postgreswriters"]).unwrap();
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "READY", "TABLE", "STATUS", "AGE"]);
    assert_eq!(lines[1][..3], ["ada", "True", "people"]);

    scene.apply("ada", ada(37)).await.unwrap();
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);
    assert_eq!(scene.statements("INSERT"), before[0] + 2);

    // At rest: many comparisons later, a restart later, nothing was written, and the object is the same.
    let version = scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap().resource_version();
    let selects = scene.statements("SELECT wanted.id");
    scene.start(&[]).await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while scene.statements("SELECT wanted.id") < selects + 3 {
        assert!(tokio::time::Instant::now() < deadline, "nobody compares{}", scene.log());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(scene.statements("INSERT"), before[0] + 2);
    assert_eq!(scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap().resource_version(), version);

    scene.delete("ada").await;
    scene.gone("ada").await;
    assert_eq!(scene.rows().await, []);
    // Nothing went wrong, and nothing is told.
    assert_eq!(scene.tenant.events("ada").await, []);
}

#[tokio::test]
async fn a_row_that_others_delete_or_change_is_put_back() {
    let scene = Scene::new("writer-drift").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.apply("bob", json!({"table": "people", "name": "Bob", "age": 1, "country": "NO"})).await.unwrap();
    scene.ready("ada").await;
    scene.ready("bob").await;
    let bob: Row = (scene.id("bob"), "Bob".into(), 1, "NO".into());
    let all = [scene.ada(36), bob];
    let writes = scene.statements("INSERT");
    scene.run("DELETE FROM people WHERE name = 'Ada'").await;
    scene.until_rows(&all).await;
    scene.run("UPDATE people SET age = 99 WHERE name = 'Ada'").await;
    scene.until_rows(&all).await;
    assert_eq!(scene.statements("INSERT"), writes + 2, "Bob's row was not touched");
    let sentence = "row writer-drift/ada in table people was changed or deleted by somebody else: put back";
    scene.tenant.events_with("ada", "RowDrifted", sentence).await;
    // What is nobody's stays.
    scene.run("INSERT INTO people VALUES ('zoe', 'Zoe', 3, 'FR')").await;
    scene.run("DROP TABLE people").await;
    scene.not_ready("ada", "TableMissing").await;
    scene.not_ready("bob", "TableMissing").await;
    scene.run(PEOPLE).await;
    scene.until_rows(&all).await;
}

#[tokio::test]
async fn somebody_elses_row_is_left_alone_and_the_same_row_is_adopted() {
    let scene = Scene::new("writer-not-ours").await;
    scene.run("INSERT INTO people VALUES ('writer-not-ours/ada', 'Ada', 99, 'UK')").await;
    scene.apply("ada", ada(36)).await.unwrap();
    let sentence = scene.not_ready("ada", "RowNotOurs").await;
    assert_eq!(
        sentence,
        "table people has a row writer-not-ours/ada that is not this object's: delete the row, or this PostgresWriter"
    );
    assert_eq!(scene.rows().await, [scene.ada(99)]);
    scene.delete("ada").await;
    scene.gone("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(99)]);

    scene.apply("ada", ada(99)).await.unwrap();
    scene.ready("ada").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);

    // Free again: the object gets its row without a change of its own.
    scene.run("INSERT INTO people VALUES ('writer-not-ours/eve', 'Eva', 1, 'UK')").await;
    let eve = json!({"table": "people", "name": "Eve", "age": 1, "country": "UK"});
    scene.apply("eve", eve).await.unwrap();
    scene.not_ready("eve", "RowNotOurs").await;
    scene.run("DELETE FROM people WHERE name = 'Eva'").await;
    scene.ready("eve").await;
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
            &["no table missing", "create it"][..],
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
            &["ALTER TABLE twice ADD PRIMARY KEY (id)"],
            "ALTER TABLE twice ADD PRIMARY KEY (id)",
        ),
        (
            "strict",
            "CREATE TABLE strict (id text PRIMARY KEY, name text, age integer CONSTRAINT grown_up CHECK (age >= 18), country text)",
            "RowRefused",
            &["constraint grown_up of table strict", "writer-table/strict"],
            "ALTER TABLE strict DROP CONSTRAINT grown_up",
        ),
        (
            "short",
            "CREATE TABLE short (id text PRIMARY KEY, name varchar(2), age integer, country text)",
            "InvalidSpec",
            &["does not fit into table short"],
            "ALTER TABLE short ALTER name TYPE text",
        ),
        (
            "numeric",
            "CREATE TABLE numeric (id text PRIMARY KEY, name integer, age integer, country text)",
            "TableUnfit",
            &["numeric"],
            "ALTER TABLE numeric ALTER name TYPE text",
        ),
    ] {
        scene.run(before).await;
        scene.apply(name, json!({"table": name, "name": "Ada", "age": 1, "country": "UK"})).await.unwrap();
        let sentence = scene.not_ready(name, reason).await;
        for word in words {
            assert!(sentence.contains(word), "{sentence}");
        }
        scene.run(after).await;
    }
    for name in ["missing", "narrow", "twice", "strict", "short", "numeric"] {
        scene.ready(name).await;
        let count = format!("SELECT count(*) FROM {name}");
        assert_eq!(scene.sql.query_one(&count, &[]).await.unwrap().get::<_, i64>(0), 1, "{name}");
    }
    // No table, no row: nothing holds the object up.
    scene.run("DROP TABLE missing").await;
    scene.delete("missing").await;
    scene.gone("missing").await;
}

#[tokio::test]
async fn a_password_a_right_or_a_writable_database_that_is_wanting_is_named() {
    let mut scene = Scene::bare("writer-refused").await;
    scene.run(PEOPLE).await;
    scene.start(&[("PSQL_PASSWORD", "hunter2")]).await;
    scene.apply("ada", ada(36)).await.unwrap();
    let sentence = scene.not_ready("ada", "CredentialsRefused").await;
    assert!(sentence.contains("PSQL_PASSWORD"), "{sentence}");
    // Nowhere is the password itself.
    let object = scene.tenant.kubectl(&["get", "postgreswriter", "ada", "-o", "yaml"]).unwrap();
    let events = format!("{:?}", scene.tenant.events("ada").await);
    for text in [&object, &events, &scene.log()] {
        assert!(!text.contains("hunter2"), "{text}");
    }

    scene.run("CREATE ROLE reader LOGIN PASSWORD 'r'; GRANT SELECT ON people TO reader").await;
    scene.start(&[("PSQL_USER", "reader"), ("PSQL_PASSWORD", "r")]).await;
    let sentence = scene.not_ready("ada", "AccessDenied").await;
    assert!(sentence.contains("grant"), "{sentence}");

    scene.run("ALTER DATABASE writer_refused SET default_transaction_read_only = on").await;
    scene.start(&[]).await;
    let sentence = scene.not_ready("ada", "ReadOnly").await;
    assert!(sentence.contains("read-only"), "{sentence}");
    scene.start(&[("PSQL_DBNAME", "nowhere")]).await;
    scene.not_ready("ada", "DatabaseMissing").await;

    scene.run("SET default_transaction_read_only = off; ALTER DATABASE writer_refused RESET ALL").await;
    scene.start(&[]).await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
}

#[tokio::test]
async fn without_the_database_nothing_is_lost_and_nothing_stays_behind() {
    let mut scene = Scene::new("writer-down").await;
    for name in ["ada", "bob"] {
        scene.apply(name, ada(36)).await.unwrap();
        scene.ready(name).await;
    }
    scene.turn.postgres.stop();
    scene.apply("ada", ada(37)).await.unwrap();
    scene.apply("eve", ada(1)).await.unwrap();
    scene.delete("bob").await;
    for name in ["ada", "eve", "bob"] {
        let sentence = scene.not_ready(name, "DatabaseUnavailable").await;
        assert!(sentence.contains(&format!("127.0.0.1:{}", scene.turn.postgres.port())), "{sentence}");
    }
    // Of one that has no row yet nothing could stay behind.
    scene.delete("eve").await;
    scene.gone("eve").await;

    scene.turn.postgres.resume().unwrap();
    scene.sql = scene.turn.postgres.connect(&scene.database).await.unwrap();
    scene.ready("ada").await;
    scene.gone("bob").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);
}

#[tokio::test]
async fn a_lock_holds_up_and_a_broken_connection_is_replaced() {
    let scene = Scene::new("writer-slow").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.ready("ada").await;
    scene.run("BEGIN; LOCK TABLE people").await;
    scene.apply("ada", ada(37)).await.unwrap();
    let sentence = scene.not_ready("ada", "DatabaseUnavailable").await;
    assert!(sentence.contains("statement timeout"), "{sentence}");
    scene.run("COMMIT").await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);

    for age in 38..41 {
        let ended = scene.sql.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'clientapp-operator'",
            &[],
        );
        assert!(!ended.await.unwrap().is_empty());
        scene.apply("ada", ada(age)).await.unwrap();
        scene.ready("ada").await;
        assert_eq!(scene.rows().await, [scene.ada(age)]);
    }
}

#[tokio::test]
async fn an_operator_that_is_killed_at_any_time_leaves_one_row() {
    let mut scene = Scene::new("writer-killed").await;
    // In the middle of its statement: the row is there when its successor comes, the status says nothing of it.
    scene.run("BEGIN; LOCK TABLE people IN SHARE MODE").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.waits_for_lock("INSERT").await;
    scene.operator.take().unwrap().kill().unwrap();
    scene.run("COMMIT").await;
    scene.until_rows(&[scene.ada(36)]).await;
    // And even if the spec was another one by then.
    scene.apply("ada", ada(37)).await.unwrap();
    scene.start(&[]).await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);

    // The same with an object that is deleted meanwhile.
    scene.run("BEGIN; LOCK TABLE people IN SHARE MODE").await;
    scene.apply("bob", ada(1)).await.unwrap();
    scene.waits_for_lock("INSERT").await;
    scene.operator.take().unwrap().kill().unwrap();
    scene.run("COMMIT").await;
    scene.delete("bob").await;
    scene.start(&[]).await;
    scene.gone("bob").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);
}

#[tokio::test]
async fn an_object_that_goes_before_it_is_claimed_leaves_no_row() {
    let mut scene = Scene::new("writer-fleeting").await;
    // It goes at once while the operator still looks whether its row is free: nobody would ever delete that row.
    scene.run("BEGIN; LOCK TABLE people").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.waits_for_lock("SELECT (name").await;
    scene.delete("ada").await;
    scene.gone("ada").await;
    scene.run("COMMIT").await;
    // The operator ends what it has begun.
    let operator = scene.operator.take();
    tokio::task::spawn_blocking(move || drop(operator)).await.unwrap();
    assert_eq!(scene.rows().await, []);
}

impl Scene {
    /// Waits until the operator waits for a lock with a statement that begins like this.
    async fn waits_for_lock(&self, word: &str) {
        self.until_locks(&format!("NOT granted AND application_name = 'clientapp-operator' AND query LIKE '{word}%'"))
            .await;
    }

    /// Waits until there is such a lock, or such a wait for one.
    async fn until_locks(&self, such: &str) {
        let locks = format!("SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE {such}");
        // Within a transaction, such as the one that has the lock, the view does not change.
        let sql = self.turn.postgres.connect(&self.database).await.unwrap();
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while sql.query(&locks, &[]).await.unwrap().is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "{such}: there is none{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }
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
        scene.apply(&name, json!({"table": "people", "name": value, "age": number, "country": value})).await.unwrap();
        scene.ready(&name).await;
    }
    let rows: Vec<_> = scene.rows().await.into_iter().map(|(_, name, _, country)| (name, country)).collect();
    assert_eq!(rows, values.map(|value| (value.to_owned(), value.to_owned())));

    // What cannot be is refused at once.
    let long = "x".repeat(1 << 20);
    for (field, value, sentence) in [
        ("name", json!("a\0b"), "NUL"),
        ("name", json!(long), "may not be more than 1024"),
        ("name", json!(""), "name"),
        ("country", json!(null), "country"),
        ("age", json!(-1), "age"),
        ("age", json!("36"), "age"),
        ("age", json!(2_147_483_648_u32), "age"),
        ("table", json!("people; DROP TABLE people"), "must be the name of a table"),
        ("table", json!("people\""), "must be the name of a table"),
        ("table", json!("a.b.c"), "must be the name of a table"),
    ] {
        let mut spec = ada(36);
        spec[field] = value;
        let refusal = scene.apply("refused", spec).await.unwrap_err().to_string();
        assert!(refusal.contains(sentence), "{field}: {}", refusal.chars().take(500).collect::<String>());
    }
    let moved = scene.apply("v0", json!({"table": "others", "name": "x", "age": 1, "country": "x"})).await;
    assert!(moved.unwrap_err().to_string().contains("table is immutable"));
}

#[tokio::test]
async fn a_hundred_at_once_are_a_hundred_rows_over_ten_connections() {
    let scene = Scene::new("writer-hundred").await;
    let names: Vec<_> = (0..100).map(|number| format!("p{number:03}")).collect();
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
            let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'clientapp-operator'";
            most = most.max(scene.sql.query_one(count, &[]).await.unwrap().get::<_, i64>(0));
            if scene.rows().await.len() >= names.len() {
                return most;
            }
        }
    };
    let most = tokio::time::timeout(PATIENCE, most);
    let (most, created) = tokio::join!(most, futures::future::try_join_all(created));
    created.unwrap();
    assert!((1..=10).contains(&most.expect("all rows are there")));
    for name in &names {
        scene.ready(name).await;
    }
    let ids: Vec<_> = scene.rows().await.into_iter().map(|row| row.0).collect();
    assert_eq!(ids, names.iter().map(|name| scene.id(name)).collect::<Vec<_>>());
}

#[tokio::test]
async fn settings_that_cannot_work_end_the_operator_with_a_sentence() {
    let scene = Scene::bare("writer-settings").await;
    for (variable, value, sentence) in [
        ("PSQL_PORT", "0", "PSQL_PORT=0: a port from 1 to 65535 is expected"),
        ("PSQL_SSLMODE", "verify-full", "PSQL_SSLROOTCERT is not"),
        ("PSQL_USER", "", "PSQL_USER is not"),
    ] {
        let options = scene.options(&[(variable, value)]);
        let log = tokio::task::spawn_blocking(move || {
            let mut operator = Operator::start(&options).unwrap();
            assert!(!operator.wait().unwrap());
            operator.log()
        });
        let log = log.await.unwrap();
        assert!(log.contains(sentence) && !log.contains(PASSWORD), "{log}");
    }
}

#[tokio::test]
async fn without_settings_or_without_the_kind_there_is_nothing_of_it() {
    let mut scene = Scene::bare("writer-off").await;
    scene.run(PEOPLE).await;
    scene.operator = Some({
        let options = scene.turn.lab.options();
        tokio::task::spawn_blocking(move || Operator::leading(&options)).await.unwrap().unwrap()
    });
    scene.apply("ada", ada(36)).await.unwrap();
    // The same operator has other work to do; when that is seen to be done, this would be.
    let spec = json!({"hostname": e2e::lab::hostname(&scene.tenant, "acme"), "postgres": {"enabled": false}});
    scene.tenant.create("acme", spec).await.unwrap();
    scene.tenant.ready("acme", 1).await;
    assert_eq!(scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap().status, None);
    assert_eq!(scene.rows().await, []);

    // The kind is removed with its objects, which have rows, and installed again.
    scene.start(&[]).await;
    scene.ready("ada").await;
    let lab = scene.turn.lab;
    let kubectl = |arguments: &[&str]| e2e::manifests::kubectl(&lab.plane, &lab.tools, arguments).unwrap();
    kubectl(&["delete", "crd", "postgreswriters.apps.bnerd-operator.local"]);
    scene.until_rows(&[]).await;
    let crds = e2e::manifests::directory().with_file_name("crds");
    kubectl(&["apply", "-k", crds.to_str().unwrap()]);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while scene.apply("bob", ada(36)).await.is_err() {
        assert!(tokio::time::Instant::now() < deadline, "the kind does not come back");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    scene.ready("bob").await;
    scene.operator.as_ref().unwrap().signal(Signal::SIGTERM);
    assert!(scene.operator.as_mut().unwrap().wait().unwrap());
}

#[tokio::test]
async fn connections_are_encrypted_as_sslmode_says() {
    let mut scene = Scene::bare("writer-tls").await;
    scene.run(PEOPLE).await;
    let (root, other) = (authority("authority"), authority("another"));
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &root).unwrap();
    let give = |name: &str, content: &str| scene.turn.postgres.give(name, content).unwrap().display().to_string();
    let (certificate, key) = (give("server.crt", &certificate.pem()), give("server.key", &key.serialize_pem()));
    let (root, other) = (give("root.crt", &root.pem()), give("other.crt", &other.pem()));
    for setting in
        [format!("ssl_cert_file = '{certificate}'"), format!("ssl_key_file = '{key}'"), "ssl = on".to_owned()]
    {
        scene.run(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    let rules = scene.turn.postgres.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("hostnossl writer_tls all all reject\n{before}")).unwrap();
    scene.run("SELECT pg_reload_conf()").await;

    let mut age = 0;
    for (host, mode, root, refusal) in [
        ("127.0.0.1", "disable", None, Some("CredentialsRefused")),
        ("127.0.0.1", "allow", None, None),
        ("127.0.0.1", "prefer", None, None),
        ("127.0.0.1", "require", None, None),
        ("127.0.0.1", "require", Some(&other), Some("DatabaseUnavailable")),
        ("127.0.0.1", "verify-ca", Some(&root), None),
        ("127.0.0.1", "verify-ca", Some(&other), Some("DatabaseUnavailable")),
        ("127.0.0.1", "verify-full", Some(&root), Some("DatabaseUnavailable")),
        ("localhost", "verify-full", Some(&root), None),
    ] {
        let mut variables = vec![("PSQL_HOST", host), ("PSQL_SSLMODE", mode)];
        variables.extend(root.map(|root| ("PSQL_SSLROOTCERT", root.as_str())));
        scene.start(&variables).await;
        age += 1;
        scene.apply("ada", ada(age)).await.unwrap();
        match refusal {
            Some(reason) => _ = scene.not_ready("ada", reason).await,
            None => {
                scene.ready("ada").await;
                let plain = "SELECT 1 FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) \
                             WHERE application_name = 'clientapp-operator' AND NOT ssl";
                assert!(scene.sql.query(plain, &[]).await.unwrap().is_empty(), "{mode}");
            }
        }
    }
    std::fs::write(&rules, before).unwrap();
    scene.run("ALTER SYSTEM RESET ALL").await;
    scene.run("SELECT pg_reload_conf()").await;
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}
