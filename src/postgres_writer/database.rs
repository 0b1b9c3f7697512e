//! The database: one pool of connections, and the ledger of whose each row is. An **effect**.
//!
//! A row and its entry in the ledger are written and deleted in one transaction, so that no crash parts them. Its first
//! lock is on the object's name, and then the lead is looked at once more: while the lock is held no successor gets past
//! it, and a leader that is deposed in the middle is ended by the database before it.
//!
//! tokio-postgres with deadpool, and not sqlx, whose last release needs a newer compiler than this crate does.

use std::time::Duration;

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, PoolError, Timeouts};
use futures::future::BoxFuture;
use tokio::{sync::Mutex, task::JoinHandle, time::timeout};
use tokio_postgres::{
    Client, Config, IsolationLevel, Transaction,
    config::SslMode as Encryption,
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::{About, Error, refused},
    row::{Row, Wanted},
    settings::{CONNECT, Settings},
    table::{LEDGER, Table, quoted},
    tls::SslMode,
};
use crate::{crd::Reason, lead::Lead};

const COLUMNS: &str =
    "cluster text NOT NULL, id text NOT NULL, relation text NOT NULL, uid text NOT NULL, PRIMARY KEY (cluster, id)";
/// What the database is told at the beginning of each transaction, as a pooler may give each to another session: to end a
/// statement that takes longer, such as one that waits for a lock, and a transaction that is not gone on with.
const LIMITS: &str = "SET LOCAL statement_timeout = '10s'; SET LOCAL idle_in_transaction_session_timeout = '10s'";
/// After this time nothing comes any more.
const SILENCE: Duration = Duration::from_secs(15);
/// For a connection, while others use them all.
const FREE: Duration = Duration::from_secs(30);

/// Whose a row is.
#[derive(Clone, Copy)]
pub(super) struct Owner<'a> {
    /// The uid of its namespace `kube-system`, as another cluster may have an object of the same name.
    pub(super) cluster: &'a str,
    pub(super) id: &'a str,
    pub(super) uid: &'a str,
}

pub(super) struct Database {
    pool: Pool,
    pub(super) settings: Settings,
    /// Of two that create the same table at once, PostgreSQL refuses one.
    creating: Mutex<()>,
}

impl Database {
    /// A pool of connections, none of which is made before it is needed.
    pub(super) fn new(settings: Settings) -> Database {
        let tls = MakeRustlsConnect::new(settings.tls.clone());
        let connect = Connector { tls, allow: settings.ssl_mode == SslMode::Allow };
        let pool = Pool::builder(Manager::from_connect(settings.config.clone(), connect, ManagerConfig::default()))
            .max_size(settings.pool_size)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .timeouts(Timeouts { wait: Some(FREE), create: Some(CONNECT), recycle: Some(CONNECT) })
            .build()
            // Without a runtime there can be no timeouts; there is one.
            .expect("the pool has a runtime");
        Database { pool, settings, creating: Mutex::default() }
    }

    /// Makes the row be as wanted, and the owner's. `false`: it was already.
    pub(super) async fn put(&self, owner: Owner<'_>, wanted: &Wanted, lead: &Lead) -> Result<bool, Error> {
        match self.try_put(owner, wanted, lead).await {
            Err(error) if error.reason() == Reason::LedgerMissing => {
                self.create_ledger().await?;
                self.try_put(owner, wanted, lead).await
            }
            result => result,
        }
    }

    async fn try_put(&self, owner: Owner<'_>, wanted: &Wanted, lead: &Lead) -> Result<bool, Error> {
        let Wanted { table, row } = wanted;
        let (about, values) = (About::Row(table, owner.id), values(row));
        let put = async |tx: &Transaction<'_>| {
            let recorded = self.recorded(tx, owner).await?;
            let ours = recorded.as_ref().is_some_and(|(before, _)| before == table);
            if let Some((before, _)) = recorded.as_ref().filter(|_| !ours) {
                // First, as two names may mean the same table.
                self.remove(tx, before, owner.id).await?;
            }
            let statement = if ours { table.write() } else { table.insert() };
            let returned = self.ask(tx, about, &statement, &values).await?;
            let written = !returned.is_empty();
            let found = if written { returned } else { self.ask(tx, about, &table.look(), &values).await? };
            match found.first().map(|found| found.get::<_, bool>(0)) {
                Some(true) if written || ours => {}
                Some(_) if !written && !ours => return Err(Error::not_ours(table, owner.id)),
                _ => return Err(Error::altered(table, owner.id)),
            }
            if !ours || recorded.is_some_and(|(_, uid)| uid != owner.uid) {
                let statement = format!(
                    "INSERT INTO {LEDGER} (cluster, id, relation, uid) VALUES ($1, $2, $3, $4) ON CONFLICT (cluster, id) \
                     DO UPDATE SET relation = excluded.relation, uid = excluded.uid"
                );
                let entry = [owner.cluster, owner.id, &table.to_string(), owner.uid];
                self.ask(tx, About::Ledger, &statement, &texts(&entry)).await?;
            }
            Ok(written)
        };
        self.locked(owner, lead, put).await
    }

    /// Deletes the row that the ledger says is the object's, or its predecessor's of the same name, and the entry.
    pub(super) async fn erase(&self, owner: Owner<'_>, lead: &Lead) -> Result<(), Error> {
        let erase = async |tx: &Transaction<'_>| {
            let Some((table, _)) = self.recorded(tx, owner).await? else { return Ok(()) };
            self.remove(tx, &table, owner.id).await?;
            let statement = format!("DELETE FROM {LEDGER} WHERE cluster = $1 AND id = $2");
            self.ask(tx, About::Ledger, &statement, &texts(&[owner.cluster, owner.id])).await.map(|_| ())
        };
        match self.locked(owner, lead, erase).await {
            // Without a ledger no row is the operator's.
            Err(error) if error.reason() == Reason::LedgerMissing => Ok(()),
            result => result,
        }
    }

    /// The ids of those rows that are not there, not like this, or not this cluster's.
    pub(super) async fn differing(&self, cluster: &str, table: &Table, rows: &[&Row]) -> Result<Vec<String>, Error> {
        let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        let ages: Vec<_> = rows.iter().map(|row| row.age).collect();
        let countries: Vec<_> = rows.iter().map(|row| row.country.as_str()).collect();
        let relation = table.to_string();
        let columns: [Value<'_>; 6] = [
            (&ids, Type::TEXT_ARRAY),
            (&names, Type::TEXT_ARRAY),
            (&ages, Type::INT4_ARRAY),
            (&countries, Type::TEXT_ARRAY),
            (&cluster, Type::TEXT),
            (&relation, Type::TEXT),
        ];
        let compare = async |tx: &Transaction<'_>| self.ask(tx, About::Table(table), &table.compare(), &columns).await;
        Ok(self.transaction(compare).await?.iter().map(|row| row.get(0)).collect())
    }

    /// So many ids of the cluster's rows, in their order, after this one.
    pub(super) async fn entries(&self, cluster: &str, after: &str, most: usize) -> Result<Vec<String>, Error> {
        let statement = format!("SELECT id FROM {LEDGER} WHERE cluster = $1 AND id > $2 ORDER BY id LIMIT {most}");
        let after = [cluster, after];
        let after = texts(&after);
        let list = async |tx: &Transaction<'_>| self.ask(tx, About::Ledger, &statement, &after).await;
        Ok(self.transaction(list).await?.iter().map(|row| row.get(0)).collect())
    }

    /// Table and uid of the object's entry in the ledger.
    async fn recorded(&self, tx: &Transaction<'_>, owner: Owner<'_>) -> Result<Option<(Table, String)>, Error> {
        let statement = format!("SELECT relation, uid FROM {LEDGER} WHERE cluster = $1 AND id = $2");
        let found = self.ask(tx, About::Ledger, &statement, &texts(&[owner.cluster, owner.id])).await?;
        Ok(found.first().map(|entry| (Table::recorded(entry.get(0)), entry.get(1))))
    }

    /// Deletes a row. Where there is no table there is none.
    async fn remove(&self, tx: &Transaction<'_>, table: &Table, id: &str) -> Result<(), Error> {
        let about = About::Row(table, id);
        let there =
            self.ask(tx, about, "SELECT 1 WHERE to_regclass($1) IS NOT NULL", &texts(&[&table.quoted()])).await?;
        if there.is_empty() {
            return Ok(());
        }
        self.ask(tx, about, &table.delete(), &texts(&[id])).await?;
        // A trigger may have kept it.
        let left = self.ask(tx, about, &table.find(), &texts(&[id])).await?;
        if left.is_empty() { Ok(()) } else { Err(Error::altered(table, id)) }
    }

    async fn create_ledger(&self) -> Result<(), Error> {
        let _creating = self.creating.lock().await;
        let statement = format!("CREATE TABLE IF NOT EXISTS {LEDGER} ({COLUMNS})");
        self.transaction(async |tx: &Transaction<'_>| self.ask(tx, About::NewLedger, &statement, &[]).await).await?;
        tracing::info!("{} has a table {LEDGER} now", self.settings.place);
        Ok(())
    }

    async fn ask(
        &self,
        tx: &Transaction<'_>,
        about: About<'_>,
        statement: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<tokio_postgres::Row>, Error> {
        tx.query_typed(statement, values).await.map_err(self.refused(about))
    }

    /// A transaction that nothing else is at the same object with, and that a leader has begun.
    async fn locked<T>(
        &self,
        owner: Owner<'_>,
        lead: &Lead,
        work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let locked = async |tx: &Transaction<'_>| {
            let name = format!("{LEDGER} {} {}", owner.cluster, owner.id);
            let lock = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))";
            self.ask(tx, About::Connection, lock, &texts(&[&name])).await?;
            if !lead.holds() {
                return Err(Error::NotLeading);
            }
            work(tx).await
        };
        self.transaction(locked).await
    }

    async fn transaction<T>(&self, work: impl AsyncFnOnce(&Transaction<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let refused = || self.refused(About::Connection);
        let mut client = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => refused()(error),
            PoolError::Timeout(step) => {
                Error::unavailable(&self.settings.place, &format!("no connection in time ({step:?})"))
            }
            other => Error::unavailable(&self.settings.place, &other.to_string()),
        })?;
        let done = timeout(SILENCE, async {
            // Not as the database's default may be: what is read after a lock has to be what was there then.
            let tx = client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
            let tx = tx.start().await.map_err(refused())?;
            tx.batch_execute(LIMITS).await.map_err(refused())?;
            let done = work(&tx).await?;
            tx.commit().await.map_err(refused())?;
            Ok(done)
        });
        match done.await {
            Ok(result) => result,
            Err(_) => {
                // What still runs on it shall not answer the next statement's wait.
                drop(Object::take(client));
                Err(Error::unavailable(&self.settings.place, &format!("no answer within {} s", SILENCE.as_secs())))
            }
        }
    }

    fn refused<'a>(&'a self, about: About<'a>) -> impl FnOnce(tokio_postgres::Error) -> Error + 'a {
        move |error| match error.as_db_error() {
            // With its causes: the client's own words say only what it was doing.
            None => Error::unavailable(&self.settings.place, &format!("{:#}", anyhow::Error::new(error))),
            Some(said) => {
                let ledger = format!(
                    "CREATE TABLE {LEDGER} ({COLUMNS}); GRANT SELECT, INSERT, UPDATE, DELETE ON {LEDGER} TO {};",
                    quoted(self.settings.config.get_user().unwrap_or_default())
                );
                refused(about, (said.code().code(), said.message()), &self.settings.place, &ledger)
            }
        }
    }
}

type Value<'a> = (&'a (dyn ToSql + Sync), Type);

fn values(row: &Row) -> [Value<'_>; 4] {
    [(&row.id, Type::TEXT), (&row.name, Type::TEXT), (&row.age, Type::INT4), (&row.country, Type::TEXT)]
}

fn texts<'a>(values: &'a [&'a str]) -> Vec<Value<'a>> {
    values.iter().map(|value| (value as &(dyn ToSql + Sync), Type::TEXT)).collect()
}

struct Connector {
    tls: MakeRustlsConnect,
    /// Encrypted only where the server wants it.
    allow: bool,
}

impl Connect for Connector {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let mut config = config.clone();
        Box::pin(async move {
            let connected = match config.connect(self.tls.clone()).await {
                // Such as: no pg_hba.conf entry for a connection without encryption.
                Err(error) if self.allow && error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) => {
                    config.ssl_mode(Encryption::Require).connect(self.tls.clone()).await
                }
                connected => connected,
            };
            let (client, connection) = connected?;
            let connection = tokio::spawn(async move {
                // Who waits for an answer on it is told the same.
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to the database");
                }
            });
            Ok((client, connection))
        })
    }
}
