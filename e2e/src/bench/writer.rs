//! PostgresWriters and a plain client that inserts the same rows one after the other over one connection.
//!
//! The database records when each row was written: the time from the first to the last is compared. Also reported is
//! the time that a plain client of the API server needs for as many finalizers: new rows wait for theirs, and cannot be
//! faster.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clientapp_crd::{PostgresWriter, PostgresWriterSpec, conditions};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::{Bench, is_operators, namespace};
use crate::postgres::Postgres;
use crate::wait::within;

/// The namespace of the objects.
const CROWDED: &str = "writers";
/// Simultaneous requests of the plain client of the API server: its fastest setting on two processors.
const PARALLEL: usize = 8;
/// No machine needs this long.
const TIMEOUT: Duration = Duration::from_secs(600);

impl Bench<'_> {
    /// New rows, and restored rows.
    pub(super) async fn writer(&self, postgres: &Postgres, rows: usize) -> Result<()> {
        ensure!(rows >= 2, "at least two rows are needed");
        let sql = postgres.connect("postgres").await?;
        for table in ["plain", "ours"] {
            sql.batch_execute(&format!(
                "CREATE TABLE {table} (id text PRIMARY KEY, name text, age integer, country text, \
                 written timestamptz DEFAULT clock_timestamp())"
            ))
            .await?;
        }
        let client = self.plane.client().await?;
        namespace(&client, CROWDED).await?;
        let api: Api<PostgresWriter> = Api::namespaced(client.clone(), CROWDED);
        let plain = plain(&sql, rows).await?;

        // All objects exist before the operator sees them, so that their creation is not measured.
        let before = self.writes()?;
        self.operator.signal(Signal::SIGSTOP);
        let created = create(&api, rows).await;
        let started = Instant::now();
        self.operator.signal(Signal::SIGCONT);
        created?;
        until(&sql, rows).await?;
        let new = took(&sql, "ours").await?;
        until_ready(&api, rows).await?;
        let (ready, writes) = (started.elapsed().as_secs_f64(), self.writes()? - before);

        sql.batch_execute("DELETE FROM ours").await?;
        until(&sql, rows).await?;
        let back = took(&sql, "ours").await?;

        // Pauses the operator.
        self.operator.signal(Signal::SIGSTOP);
        let finalizers = finalizers(&client, rows).await;
        self.operator.signal(Signal::SIGCONT);
        let finalizers = finalizers?;

        println!("{rows} rows, {plain:.2} s from first to last by a plain client over one connection");
        for (what, time) in [("new rows", new), ("restored rows", back)] {
            println!("{what}: {time:.2} s from first to last, rate {:.2} of the plain client's", plain / time);
        }
        println!(
            "{rows} finalizers: {finalizers:.2} s by a plain client of the API server, {PARALLEL} at a time; new rows take {:.2} \
             times that",
            new / finalizers
        );
        println!(
            "new objects: {:.2} writes to the API server each; all are Ready after {ready:.1} s",
            writes as f64 / rows as f64
        );
        Ok(())
    }

    /// The operator's writes for PostgresWriters: objects and events.
    fn writes(&self) -> Result<usize> {
        let ours = |event: &&Value| {
            let resource = event["objectRef"]["resource"].as_str().unwrap_or_default();
            let verb = event["verb"].as_str().unwrap_or_default();
            is_operators(event)
                && matches!(resource, "postgreswriters" | "events")
                && matches!(verb, "create" | "patch")
        };
        Ok(self.audit()?.iter().filter(ours).count())
    }
}

/// Does this for the name of each object.
async fn each<F>(rows: usize, what: impl Fn(String) -> F) -> Result<()>
where
    F: Future<Output = Result<()>>,
{
    futures::stream::iter(0..rows).map(|row| what(format!("p{row}"))).buffer_unordered(PARALLEL).try_collect().await
}

/// The plain client.
async fn plain(sql: &Client, rows: usize) -> Result<f64> {
    let statement = "INSERT INTO plain (id, name, age, country) VALUES ($1, $2, $3, $4)";
    for row in 0..rows {
        let id = format!("{CROWDED}/p{row}");
        let values: [(&(dyn ToSql + Sync), Type); 4] =
            [(&id, Type::TEXT), (&"Ada", Type::TEXT), (&36_i32, Type::INT4), (&"UK", Type::TEXT)];
        sql.execute_typed(statement, &values).await?;
    }
    took(sql, "plain").await
}

/// Seconds that a plain client of the API server needs for as many finalizers, on objects of the same kind.
async fn finalizers(client: &kube::Client, rows: usize) -> Result<f64> {
    namespace(client, "plain").await?;
    let api: &Api<PostgresWriter> = &Api::namespaced(client.clone(), "plain");
    create(api, rows).await?;
    let patch = &Patch::Merge(json!({"metadata": {"finalizers": ["example.com/plain"]}}));
    let started = Instant::now();
    each(rows, |name| async move {
        api.patch(&name, &PatchParams::default(), patch).await?;
        Ok(())
    })
    .await?;
    Ok(started.elapsed().as_secs_f64())
}

async fn create(api: &Api<PostgresWriter>, rows: usize) -> Result<()> {
    let spec = &PostgresWriterSpec { table: "ours".into(), name: "Ada".into(), age: 36, country: "UK".into() };
    each(rows, |name| async move {
        api.create(&PostParams::default(), &PostgresWriter::new(&name, spec.clone())).await?;
        Ok(())
    })
    .await
}

/// Waits until this many rows exist.
async fn until(sql: &Client, rows: usize) -> Result<()> {
    within(TIMEOUT, "the rows are there", async || {
        let there = sql.query_one("SELECT count(*) FROM ours", &[]).await?.get::<_, i64>(0);
        ensure!(there >= i64::try_from(rows)?, "there are {there}");
        anyhow::Ok(())
    })
    .await
}

/// Waits until every object reports that its row exists.
async fn until_ready(api: &Api<PostgresWriter>, rows: usize) -> Result<()> {
    let ready = |object: &&PostgresWriter| {
        let conditions = object.status.as_ref().map(|status| status.conditions.as_slice());
        conditions::find(conditions.unwrap_or_default(), "Ready").is_some_and(|ready| ready.status == "True")
    };
    within(TIMEOUT, "the objects are ready", async || {
        let ready = api.list(&ListParams::default()).await?.items.iter().filter(ready).count();
        ensure!(ready >= rows, "{ready} are");
        anyhow::Ok(())
    })
    .await
}

/// Seconds from the first row to the last.
async fn took(sql: &Client, table: &str) -> Result<f64> {
    let statement = format!("SELECT extract(epoch FROM max(written) - min(written))::float8 FROM {table}");
    Ok(sql.query_one(&statement, &[]).await?.get(0))
}
