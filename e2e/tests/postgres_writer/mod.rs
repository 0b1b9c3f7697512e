//! PostgresWriters with a real PostgreSQL: exactly one row for each object, whatever happens to the operator, the
//! database and the rows.

mod faults;
mod ledger;
mod rows;

use std::ops::Deref;
use std::sync::OnceLock;

use clientapp_crd::{PostgresWriter, PostgresWriterStatus, ROW_FINALIZER, conditions};
use e2e::lab::{Apart, Lab, TIMEOUT, Tenant};
use e2e::manifests;
use e2e::operator::{Operator, Options};
use e2e::postgres::{PASSWORD, Postgres};
use e2e::proxy::Proxy;
use e2e::wait::{Look, until, within};
use futures::future::join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::ApiResource;
use kube::{Api, CustomResourceExt as _, ResourceExt as _};
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::{Value, json};

type Row = (String, String, i32, String);

/// The tables that the operators here may write.
const TABLES: &str = "people, others, missing, narrow, twice, strict, short, numeric, shouted, {namespace}_people";
/// The operator's sessions in this database, among those in `pg_stat_activity`.
const OURS: &str = "application_name = 'clientapp-operator' AND datname = current_database()";
const PEOPLE: &str =
    "CREATE TABLE people (id text PRIMARY KEY, name text NOT NULL, age integer NOT NULL, country text NOT NULL)";

/// The PostgreSQL, which all scenarios share except those that disturb it.
enum Server {
    Shared(&'static Postgres),
    Own(Postgres),
}

impl Server {
    async fn shared() -> Server {
        static POSTGRES: OnceLock<Postgres> = OnceLock::new();
        let start = || Server::Shared(POSTGRES.get_or_init(|| Postgres::start().expect("PostgreSQL starts")));
        tokio::task::spawn_blocking(start).await.expect("PostgreSQL starts")
    }

    async fn own() -> Server {
        let start = || Server::Own(Postgres::start().expect("PostgreSQL starts"));
        tokio::task::spawn_blocking(start).await.expect("PostgreSQL starts")
    }

    fn disturbed(&mut self) -> &mut Postgres {
        match self {
            Server::Shared(_) => panic!("other scenarios use it"),
            Server::Own(postgres) => postgres,
        }
    }
}

impl Deref for Server {
    type Target = Postgres;

    fn deref(&self) -> &Postgres {
        match self {
            Server::Shared(postgres) => postgres,
            Server::Own(postgres) => postgres,
        }
    }
}

/// A namespace, and its own database with an operator for it.
struct Scene {
    // Dropped before its connection to the API server.
    operator: Option<Operator>,
    tenant: Tenant,
    _proxy: Proxy,
    /// Start options for an operator without a database.
    bare: Options,
    database: String,
    sql: tokio_postgres::Client,
    postgres: Server,
}

impl Scene {
    /// With a table of people, and an operator.
    async fn new(name: &str) -> Scene {
        Scene::bare(name).await.served().await
    }

    async fn served(mut self) -> Scene {
        self.sql.batch_execute(PEOPLE).await.unwrap();
        self.start(&[]).await;
        self
    }

    async fn bare(name: &str) -> Scene {
        Scene::with(name, Lab::unattended().await, Server::shared().await).await
    }

    async fn with(name: &str, lab: &'static Lab, postgres: Server) -> Scene {
        let Apart { tenant, proxy, options } = lab.apart(name).await;
        let database = name.replace('-', "_");
        let admin = postgres.connect("postgres").await.unwrap();
        admin.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        let sql = postgres.connect(&database).await.unwrap();
        Scene { operator: None, tenant, _proxy: proxy, bare: options, database, sql, postgres }
    }

    fn options(&self, more: &[(&str, &str)]) -> Options {
        let mut environment = self.postgres.environment(&self.database, TABLES);
        environment.push(("PSQL_RESYNC".to_owned(), "1".to_owned()));
        // The last one takes effect.
        environment.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Options { environment, ..self.bare.clone() }
    }

    /// Starts the operator, replacing the running one.
    async fn start(&mut self, more: &[(&str, &str)]) {
        self.start_with(self.options(more)).await;
    }

    async fn start_with(&mut self, options: Options) {
        let before = self.operator.take();
        let start = move || {
            drop(before);
            Operator::leading(&options)
        };
        self.operator = Some(tokio::task::spawn_blocking(start).await.unwrap().expect("the operator leads"));
    }

    /// Kills the operator. The Lease need not expire.
    async fn kill(&mut self) {
        self.operator.take().unwrap().kill().unwrap();
        self.free_lease().await;
    }

    /// Takes the Lease away from the leader.
    async fn free_lease(&self) {
        let leases = Api::<Lease>::namespaced(self.tenant.client.clone(), &self.bare.lease_namespace);
        leases.delete("clientapp-operator", &DeleteParams::default()).await.unwrap();
    }

    /// Stops the operator after it has finished its current work.
    async fn stop(&mut self) {
        let operator = self.operator.take();
        tokio::task::spawn_blocking(move || drop(operator)).await.unwrap();
    }

    async fn apply(&self, name: &str, spec: Value) -> kube::Result<PostgresWriter> {
        let object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "PostgresWriter",
            "metadata": {"name": name}, "spec": spec,
        });
        let params = PatchParams::apply("test").force();
        self.tenant.api::<PostgresWriter>().patch(name, &params, &Patch::Apply(object)).await
    }

    /// Applies an object, and waits until its row is written.
    async fn write(&self, name: &str, spec: Value) -> PostgresWriterStatus {
        self.apply(name, spec).await.unwrap();
        self.ready(name).await
    }

    /// Applies an object, and waits until it is not Ready for this reason; returns the message.
    async fn fail(&self, name: &str, spec: Value, reason: &str) -> String {
        self.apply(name, spec).await.unwrap();
        self.not_ready(name, reason).await
    }

    /// Waits until the object's status says that its latest spec is in the database.
    async fn ready(&self, name: &str) -> PostgresWriterStatus {
        let check = |object: Option<&PostgresWriter>| {
            let object = object?;
            let status = object.status.as_ref()?;
            let newest = status.observed_generation == object.metadata.generation;
            (newest && condition(status, "Ready")?.0 == "True").then(|| status.clone())
        };
        self.tenant.wait_for(name, &format!("Ready{}", self.log()), check).await
    }

    /// Waits until the object is not Ready for this reason, and returns the message.
    async fn not_ready(&self, name: &str, reason: &str) -> String {
        self.not_ready_with(name, reason, "").await
    }

    /// Does the same until the message has these words: on a busy machine, other causes may have the same reason before.
    async fn not_ready_with(&self, name: &str, reason: &str, words: &str) -> String {
        let check = |object: Option<&PostgresWriter>| {
            let object = object?;
            let status = object.status.as_ref()?;
            if status.observed_generation != object.metadata.generation {
                return None;
            }
            let (state, why, message) = condition(status, "Ready")?;
            let stalled = condition(status, "Stalled")?.0 == "True";
            (state == "False" && why == reason && message.contains(words)).then(|| {
                let mended = ["DatabaseUnavailable", "DatabaseBusy"].contains(&reason);
                assert_eq!(stalled, !mended, "{status:?}");
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

    /// Deletes an object, and waits until it is gone.
    async fn remove(&self, name: &str) {
        self.delete(name).await;
        self.gone(name).await;
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
        self.until(&format!("{expected:?}"), async || self.rows().await == expected).await;
    }

    async fn until<L: Look>(&self, what: &str, look: impl AsyncFn() -> L) -> L::Found {
        match within(TIMEOUT, what, look).await {
            Ok(found) => found,
            Err(late) => panic!("{late}: {:?}{}", self.rows().await, self.log()),
        }
    }

    /// The ledger: id, table and uid.
    async fn ledger(&self) -> Vec<(String, String, String)> {
        let entries = "SELECT id, relation, uid FROM clientapp_operator_rows ORDER BY id";
        let rows = self.sql.query(entries, &[]).await.unwrap();
        rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
    }

    /// An object's entry in the ledger.
    async fn entry(&self, name: &str, table: &str) -> (String, String, String) {
        let object = self.tenant.api::<PostgresWriter>().get(name).await.unwrap();
        (self.id(name), table.to_owned(), object.uid().unwrap())
    }

    /// Deletes an object and its finalizers, like an impatient cluster admin.
    async fn force(&self, name: &str) {
        let api = self.tenant.api::<PostgresWriter>();
        api.delete(name, &DeleteParams::default()).await.unwrap();
        let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        let _ = api.patch(name, &PatchParams::default(), &free).await;
        self.gone(name).await;
    }

    /// The number of statements that begin with this word in the operator's sessions so far.
    fn statements(&self, word: &str) -> usize {
        let log = self.postgres.log();
        let who = format!(" clientapp-operator {} ", self.database);
        let ours = log.lines().filter(|line| line.contains(&who));
        ours.filter(|line| line.contains(&format!(": {word}"))).count()
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
        self.row("ada", age)
    }

    /// The row of an object whose spec is [`ada`].
    fn row(&self, name: &str, age: i32) -> Row {
        (self.id(name), "Ada".into(), age, "UK".into())
    }

    /// Creates an object, and waits until the operator writes its row, in a transaction that a lock holds up until `COMMIT`.
    async fn held_up(&self, name: &str) {
        self.run("BEGIN; LOCK TABLE people IN SHARE MODE").await;
        self.apply(name, ada(36)).await.unwrap();
        self.waits_for_lock("INSERT").await;
    }

    /// Waits until the operator waits for a lock with a statement that begins like this.
    async fn waits_for_lock(&self, word: &str) {
        let waiting = format!(
            "SELECT 1 FROM pg_locks JOIN pg_stat_activity USING (pid) \
             WHERE NOT granted AND {OURS} AND query LIKE '{word}%'"
        );
        // Within a transaction, such as that of the session with the lock, the view does not change.
        let sql = self.postgres.connect(&self.database).await.unwrap();
        self.until(&waiting, async || !sql.query(&waiting, &[]).await.unwrap().is_empty()).await;
    }
}
