//! The database: one pool of connections, and the ledger, which records the owner of each row. An **effect**.
//!
//! A row and its entry in the ledger are written and deleted in one transaction, so that no crash separates them. It first
//! locks the object's name, and then checks the lead again: no successor gets past a held lock, and if the leader is
//! deposed in the middle, the database ends its transaction before a successor goes on.

use std::{collections::BTreeSet, time::Duration};

use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, Runtime, Timeouts};
use serde_json::json;
use tokio::time::timeout;
use tokio_postgres::{
    IsolationLevel, Row as Found, Transaction,
    types::{ToSql, Type},
};

use super::{
    error::{About, Error, refused},
    row::Row,
    settings::{CONNECT, Settings},
    table::{COLUMNS, LEDGER, Table},
};
use crate::{crd::Reason, leadership::Leadership, platform::error::ReconcileFailure};

type Result<T, E = Error> = std::result::Result<T, E>;

/// Set at the beginning of each transaction, because a pooler may give each to another session. The database then ends a
/// statement that takes longer, for example waiting for a lock, and a transaction that is abandoned.
const LIMITS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";
/// After this time no answer is expected any more.
const SILENCE: Duration = Duration::from_secs(15);
/// How long to wait for a connection while all are in use.
const FREE: Duration = Duration::from_secs(30);
/// This many rows are looked up well within a statement's timeout.
const BATCH: usize = 1000;

pub(super) struct Database {
    pool: Pool,
    settings: Settings,
    lead: Leadership,
    /// The uid of the cluster's namespace `kube-system`, because another cluster may have an object of the same name.
    cluster: String,
}

impl Database {
    /// Creates a pool of connections, which are opened when needed.
    pub(super) fn new(settings: Settings, lead: Leadership, cluster: String) -> Database {
        let Settings { config, tls, .. } = settings.clone();
        let pool = Pool::builder(Manager::from_config(config, tls, ManagerConfig::default()))
            .max_size(settings.pool_size)
            .runtime(Runtime::Tokio1)
            .timeouts(Timeouts { wait: Some(FREE), create: Some(CONNECT), recycle: Some(CONNECT) })
            .build()
            // Only timeouts without a runtime are an error, and there is a runtime.
            .expect("the pool has a runtime");
        Database { pool, settings, lead, cluster }
    }

    /// Writes the row as wanted, and records it for the object with this uid. `false`: the row was already as wanted.
    pub(super) async fn put(&self, row: &Row, uid: &str) -> Result<bool> {
        let missing = match self.try_put(row, uid).await {
            Err(error) if error.reason() == Reason::LedgerMissing => error,
            result => return result,
        };
        let statement = format!("CREATE TABLE IF NOT EXISTS {LEDGER} ({COLUMNS})");
        let create = async |tx: &Transaction<'_>| self.ask(tx, About::Ledger, &statement, &[]).await;
        // If two transactions create the same table at once, PostgreSQL refuses one: so all use one lock.
        match self.locked("", create).await {
            // The error about the missing ledger says how to create it.
            Err(error) if error.reason() == Reason::AccessDenied => return Err(missing),
            created => created?,
        };
        tracing::info!("{} now has a table {LEDGER}", self.settings.place);
        self.try_put(row, uid).await
    }

    async fn try_put(&self, row: &Row, uid: &str) -> Result<bool> {
        let Row { table, id, name, age, country } = row;
        let (about, age) = (About::Row(table, id), age.to_string());
        let values = [id, name, &age, country].map(String::as_str);
        let put = async |tx: &Transaction<'_>| {
            let recorded = self.recorded(tx, id).await?;
            let ours = recorded.as_ref().is_some_and(|(before, _)| before == table);
            if let Some((before, _)) = recorded.as_ref().filter(|_| !ours) {
                // First, because two names may mean the same table.
                self.remove(tx, before, id).await?;
            }
            let look = async || {
                let right = "(name, age, country) IS NOT DISTINCT FROM ($2, $3::integer, $4)";
                let statement = format!("SELECT {right} FROM {table} WHERE id = $1");
                let found = self.ask(tx, about, &statement, &values).await?;
                Ok::<_, Error>(found.first().map(|found| found.get::<_, bool>(0)))
            };
            let settled = ours && look().await? == Some(true);
            if !settled {
                let update = "UPDATE SET name = excluded.name, age = excluded.age, country = excluded.country";
                let or = if ours { update } else { "NOTHING" };
                // This needs a unique `id`, without which there could be two rows.
                let statement = format!(
                    "INSERT INTO {table} (id, name, age, country) VALUES ($1, $2, $3::integer, $4) \
                     ON CONFLICT (id) DO {or} RETURNING true"
                );
                let written = self.ask(tx, about, &statement, &values).await?;
                // Another cluster with an entry for this row would put its own row back.
                let others = format!("SELECT 1 FROM {LEDGER} WHERE cluster <> $1 AND id = $2 AND relation = $3");
                let others = self.ask(tx, About::Ledger, &others, &[&self.cluster, id, &table.0]).await?;
                match look().await? {
                    Some(_) if !(ours || others.is_empty() && written.len() == 1) => {
                        return Err(Error::not_ours(table, id));
                    }
                    Some(true) => {}
                    _ => return Err(Error::altered(table, id)),
                }
            }
            if !ours || recorded.is_some_and(|(_, before)| before != uid) {
                let statement = format!(
                    "INSERT INTO {LEDGER} (cluster, id, relation, uid) VALUES ($1, $2, $3, $4) ON CONFLICT (cluster, id) \
                     DO UPDATE SET relation = excluded.relation, uid = excluded.uid"
                );
                self.ask(tx, About::Ledger, &statement, &[&self.cluster, id, &table.0, uid]).await?;
            }
            Ok(!settled)
        };
        self.locked(id, put).await
    }

    /// Deletes the row that the ledger records for the object, or for a predecessor of its name, and the entry.
    pub(super) async fn erase(&self, id: &str) -> Result<()> {
        let erase = async |tx: &Transaction<'_>| {
            let Some((table, _)) = self.recorded(tx, id).await? else { return Ok(()) };
            self.remove(tx, &table, id).await?;
            let statement = format!("DELETE FROM {LEDGER} WHERE cluster = $1 AND id = $2");
            self.ask(tx, About::Ledger, &statement, &[&self.cluster, id]).await.map(|_| ())
        };
        unless_missing(self.locked(id, erase).await)
    }

    /// Adds the ids of those rows that are missing, different, or not in the ledger for this cluster and table. The database
    /// compares, so that a column's own type and collation decide.
    pub(super) async fn differing(&self, table: &Table, rows: &[Row], differing: &mut BTreeSet<String>) -> Result<()> {
        let statement = format!(
            "SELECT wanted.id FROM json_to_recordset($1::json) AS wanted (id text, name text, age integer, country text) \
             LEFT JOIN {LEDGER} AS entry ON entry.cluster = $2 AND entry.id = wanted.id AND entry.relation = $3 \
             LEFT JOIN {table} AS found ON found.id = wanted.id WHERE entry.id IS NULL OR found.id IS NULL \
             OR (found.name, found.age, found.country) IS DISTINCT FROM (wanted.name, wanted.age, wanted.country)"
        );
        for rows in rows.chunks(BATCH) {
            let wanted = json!(rows).to_string();
            let values = [&wanted, &self.cluster, &table.0].map(String::as_str);
            differing.extend(self.ids(About::Table(table), &statement, &values).await?);
        }
        Ok(())
    }

    /// Returns the ids of the cluster's rows that are not among these.
    pub(super) async fn others(&self, ids: &BTreeSet<String>) -> Result<Vec<String>> {
        let statement = format!(
            "SELECT id FROM {LEDGER} WHERE cluster = $1 AND id NOT IN (SELECT json_array_elements_text($2::json)) ORDER BY id"
        );
        unless_missing(self.ids(About::Ledger, &statement, &[&self.cluster, &json!(ids).to_string()]).await)
    }

    async fn ids(&self, about: About<'_>, statement: &str, values: &[&str]) -> Result<Vec<String>> {
        let found = self.transaction(async |tx: &Transaction<'_>| self.ask(tx, about, statement, values).await).await?;
        Ok(found.iter().map(|row| row.get(0)).collect())
    }

    /// Returns table and uid of the object's entry in the ledger.
    async fn recorded(&self, tx: &Transaction<'_>, id: &str) -> Result<Option<(Table, String)>> {
        let statement = format!("SELECT relation, uid FROM {LEDGER} WHERE cluster = $1 AND id = $2");
        let found = self.ask(tx, About::Ledger, &statement, &[&self.cluster, id]).await?;
        Ok(found.first().map(|entry| (Table(entry.get(0)), entry.get(1))))
    }

    /// Deletes a row. Without the table there is no row.
    async fn remove(&self, tx: &Transaction<'_>, table: &Table, id: &str) -> Result<()> {
        let about = About::Row(table, id);
        let there = "SELECT 1 WHERE to_regclass($1) IS NOT NULL";
        if self.ask(tx, about, there, &[&table.to_string()]).await?.is_empty() {
            return Ok(());
        }
        self.ask(tx, about, &format!("DELETE FROM {table} WHERE id = $1"), &[id]).await?;
        // A trigger may have kept it.
        let left = self.ask(tx, about, &format!("SELECT 1 FROM {table} WHERE id = $1"), &[id]).await?;
        if left.is_empty() { Ok(()) } else { Err(Error::altered(table, id)) }
    }

    /// Runs a statement. Every value is text, and bound as a parameter.
    async fn ask(&self, tx: &Transaction<'_>, about: About<'_>, sql: &str, values: &[&str]) -> Result<Vec<Found>> {
        let values: Vec<_> = values.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT)).collect();
        tx.query_typed(sql, &values).await.map_err(|error| refused(about, error, &self.settings))
    }

    /// Runs a transaction of a leader, with no other at the same time for the same row of the cluster.
    async fn locked<T>(&self, id: &str, work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let locked = async |tx: &Transaction<'_>| {
            let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
            let name = format!("{LEDGER} {} {id}", self.cluster);
            self.ask(tx, About::Connection, lock, &[&name]).await?;
            match self.lead.is_held() {
                true => work(tx).await,
                false => Err(ReconcileFailure::NotLeading { operation: "write to the database".to_owned() }.into()),
            }
        };
        self.transaction(locked).await
    }

    async fn transaction<T>(&self, work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T>) -> Result<T> {
        let place = &self.settings.place;
        let refused = |error| refused(About::Connection, error, &self.settings);
        let mut client = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => refused(error),
            other => Error::unavailable(place, &format!("no connection in time ({other})")),
        })?;
        let done = timeout(SILENCE, async {
            // The database's default may differ, but reads after a lock must see what was committed by then.
            let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
            let tx = tx.start().await.map_err(refused)?;
            tx.batch_execute(LIMITS).await.map_err(refused)?;
            let done = work(&tx).await?;
            tx.commit().await.map_err(refused)?;
            Ok(done)
        });
        done.await.unwrap_or_else(|_| {
            // The connection is dropped, so that no later statement waits for what still runs on it.
            drop(Object::take(client));
            Err(Error::unavailable(place, &format!("no answer within {} s", SILENCE.as_secs())))
        })
    }
}

/// Turns a missing ledger into an empty result: without it the operator owns no row.
fn unless_missing<T: Default>(result: Result<T>) -> Result<T> {
    match result {
        Err(error) if error.reason() == Reason::LedgerMissing => Ok(T::default()),
        result => result,
    }
}
