//! PostgresWriters beside a plain client that runs the same statements one after the other over one connection.
//!
//! The database itself says when each row was written: the time from the first to the last is what is compared.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clientapp_operator::crd::{PostgresWriter, PostgresWriterSpec, conditions};
use clientapp_operator::postgres_writer::row::Table;
use futures::{StreamExt as _, TryStreamExt as _};
use kube::Api;
use kube::api::{ListParams, PostParams};
use nix::sys::signal::Signal;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::{Bench, namespace};
use crate::postgres::Postgres;

/// Where the objects are.
const CROWDED: &str = "writers";
/// No machine needs this long.
const PATIENCE: Duration = Duration::from_secs(600);

impl Bench<'_> {
    /// Rows that are new, and rows that are put back.
    pub(super) async fn writer(&self, postgres: &Postgres, rows: usize) -> Result<()> {
        ensure!(rows >= 2, "two rows are the least");
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
        let api: Api<PostgresWriter> = Api::namespaced(client, CROWDED);
        let plain = plain(&sql, rows).await?;

        // The objects are all there before the operator looks, so that their creation is not what is measured.
        self.operator.signal(Signal::SIGSTOP);
        let created = create(&api, rows).await;
        self.operator.signal(Signal::SIGCONT);
        created?;
        until(&sql, rows).await?;
        let new = took(&sql, "ours").await?;
        until_ready(&api, rows).await?;

        sql.batch_execute("DELETE FROM ours").await?;
        until(&sql, rows).await?;
        let back = took(&sql, "ours").await?;

        println!("{rows} rows, {:.2} s from first to last by a plain client over one connection", plain);
        for (what, time) in [("new rows", new), ("rows put back", back)] {
            println!("{what}: {time:.2} s from first to last, rate {:.2} of the plain client's", plain / time);
        }
        Ok(())
    }
}

/// The plain client, which does nothing else.
async fn plain(sql: &Client, rows: usize) -> Result<f64> {
    let statement = "plain".parse::<Table>()?.write();
    for row in 0..rows {
        let id = format!("{CROWDED}/p{row}");
        let values: [(&(dyn ToSql + Sync), Type); 4] =
            [(&id, Type::TEXT), (&"Ada", Type::TEXT), (&36_i32, Type::INT4), (&"UK", Type::TEXT)];
        sql.execute_typed(&statement, &values).await?;
    }
    took(sql, "plain").await
}

async fn create(api: &Api<PostgresWriter>, rows: usize) -> Result<()> {
    let spec = PostgresWriterSpec { table: "ours".into(), name: "Ada".into(), age: 36, country: "UK".into() };
    let created = futures::stream::iter(0..rows).map(|row| {
        let object = PostgresWriter::new(&format!("p{row}"), spec.clone());
        async move { api.create(&PostParams::default(), &object).await.map(|_| ()) }
    });
    Ok(created.buffer_unordered(8).try_collect().await?)
}

/// Waits until there are so many rows.
async fn until(sql: &Client, rows: usize) -> Result<()> {
    let started = Instant::now();
    while sql.query_one("SELECT count(*) FROM ours", &[]).await?.get::<_, i64>(0) < i64::try_from(rows)? {
        ensure!(started.elapsed() < PATIENCE, "the rows do not come");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

/// Waits until every object says that its row is there.
async fn until_ready(api: &Api<PostgresWriter>, rows: usize) -> Result<()> {
    let started = Instant::now();
    let ready = |object: &&PostgresWriter| {
        let conditions = object.status.as_ref().map(|status| status.conditions.as_slice());
        conditions::find(conditions.unwrap_or_default(), "Ready").is_some_and(|ready| ready.status == "True")
    };
    while api.list(&ListParams::default()).await?.items.iter().filter(ready).count() < rows {
        ensure!(started.elapsed() < PATIENCE, "the objects do not become ready");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    Ok(())
}

/// Seconds from the first row to the last.
async fn took(sql: &Client, table: &str) -> Result<f64> {
    let statement = format!("SELECT extract(epoch FROM max(written) - min(written))::float8 FROM {table}");
    Ok(sql.query_one(&statement, &[]).await?.get(0))
}
