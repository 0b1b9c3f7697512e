//! The database: one pool of connections, four statements. An **effect**.
//!
//! tokio-postgres with deadpool, and not sqlx, whose last release needs a newer compiler than this crate does.

use std::{error::Error as _, future::Future, time::Duration};

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, PoolError, Timeouts};
use futures::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, Config,
    config::SslMode as Encryption,
    error::SqlState,
    types::{ToSql, Type},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    error::{Error, Refusal, refused, unavailable},
    row::{Row, Table, Wanted},
    settings::Settings,
    tls::SslMode,
};

/// A server that cannot be connected to within this time cannot be used.
const CONNECT: Duration = Duration::from_secs(5);
/// The server ends a statement that takes longer, such as one that waits for a lock.
const STATEMENT: Duration = Duration::from_secs(10);
/// After this time nothing comes any more: the server would have ended the statement long ago.
const SILENCE: Duration = Duration::from_secs(15);
/// For a connection, while others use them all. Thousands of rows are written in this time, unless the database hangs.
const FREE: Duration = Duration::from_secs(30);

/// What is under an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing.
    Nothing,
    /// The very row that is wanted.
    Same,
    /// Another row.
    Other,
}

/// The pool.
pub struct Database {
    pool: Pool,
    place: String,
}

impl Database {
    /// A pool of connections, none of which is made before it is needed.
    #[must_use]
    pub fn new(settings: &Settings) -> Database {
        let mut config = Config::new();
        config
            .host(&settings.host)
            .port(settings.port)
            .dbname(&settings.dbname)
            .user(&settings.user)
            .password(settings.password.reveal())
            .application_name("clientapp-operator")
            .connect_timeout(CONNECT)
            .ssl_mode(match settings.ssl_mode {
                SslMode::Disable | SslMode::Allow => Encryption::Disable,
                SslMode::Prefer => Encryption::Prefer,
                SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Encryption::Require,
            });
        let connect = Connector { tls: MakeRustlsConnect::new(settings.tls.clone()), mode: settings.ssl_mode };
        let pool = Pool::builder(Manager::from_connect(config, connect, ManagerConfig::default()))
            .max_size(settings.pool_size.into())
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .timeouts(Timeouts { wait: Some(FREE), create: Some(CONNECT), recycle: Some(CONNECT) })
            .build()
            // Without a runtime there can be no timeouts; there is one.
            .expect("the pool has a runtime");
        Database { pool, place: settings.place() }
    }

    /// Looks what is under the row's id.
    ///
    /// # Errors
    /// The database's refusal.
    pub async fn look(&self, Wanted { table, row }: &Wanted) -> Result<Found, Error> {
        let found =
            self.run(table, Some(&row.id), async |client| client.query_typed(&table.look(), &values(row)).await);
        Ok(match found.await?.first() {
            None => Found::Nothing,
            Some(row) if row.get(0) => Found::Same,
            Some(_) => Found::Other,
        })
    }

    /// Makes the row be as wanted.
    ///
    /// # Errors
    /// The database's refusal.
    pub async fn write(&self, Wanted { table, row }: &Wanted) -> Result<(), Error> {
        let written =
            self.run(table, Some(&row.id), async |client| client.execute_typed(&table.write(), &values(row)).await);
        written.await.map(|_| ())
    }

    /// Deletes the row, if it is there.
    ///
    /// # Errors
    /// The database's refusal.
    pub async fn delete(&self, table: &Table, id: &str) -> Result<(), Error> {
        let deleted =
            self.run(table, Some(id), async |client| client.execute_typed(&table.delete(), &[(&id, Type::TEXT)]).await);
        deleted.await.map(|_| ())
    }

    /// The ids of those rows that are not there, or not like this.
    ///
    /// # Errors
    /// The database's refusal.
    pub async fn differing(&self, table: &Table, rows: &[Row]) -> Result<Vec<String>, Error> {
        let ids: Vec<_> = rows.iter().map(|row| row.id.as_str()).collect();
        let names: Vec<_> = rows.iter().map(|row| row.name.as_str()).collect();
        let ages: Vec<_> = rows.iter().map(|row| row.age).collect();
        let countries: Vec<_> = rows.iter().map(|row| row.country.as_str()).collect();
        let found = self.run(table, None, async |client| {
            let columns: [(&(dyn ToSql + Sync), Type); 4] = [
                (&ids, Type::TEXT_ARRAY),
                (&names, Type::TEXT_ARRAY),
                (&ages, Type::INT4_ARRAY),
                (&countries, Type::TEXT_ARRAY),
            ];
            client.query_typed(&table.compare(), &columns).await
        });
        Ok(found.await?.iter().map(|row| row.get(0)).collect())
    }

    /// Runs a statement on a connection of the pool.
    async fn run<T>(
        &self,
        table: &Table,
        row: Option<&str>,
        statement: impl AsyncFnOnce(&Client) -> Result<T, tokio_postgres::Error>,
    ) -> Result<T, Error> {
        let explain = |error: &tokio_postgres::Error| match error.as_db_error() {
            Some(said) => refused(
                &Refusal { sqlstate: said.code().code(), message: said.message(), constraint: said.constraint() },
                &self.place,
                &table.to_string(),
                row,
            ),
            None => unavailable(&self.place, &chain(error)),
        };
        let client = self.pool.get().await.map_err(|error| match error {
            PoolError::Backend(error) => explain(&error),
            PoolError::Timeout(step) => unavailable(&self.place, &format!("no connection in time ({step:?})")),
            other => unavailable(&self.place, &other.to_string()),
        })?;
        match within(SILENCE, statement(&client)).await {
            Some(result) => result.map_err(|error| explain(&error)),
            None => {
                // What still runs on it shall not answer the next statement's wait.
                drop(Object::take(client));
                Err(unavailable(&self.place, &format!("no answer within {} s", SILENCE.as_secs())))
            }
        }
    }
}

fn values(row: &Row) -> [(&(dyn ToSql + Sync), Type); 4] {
    [(&row.id, Type::TEXT), (&row.name, Type::TEXT), (&row.age, Type::INT4), (&row.country, Type::TEXT)]
}

async fn within<T>(time: Duration, future: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(time, future).await.ok()
}

/// An error with its causes: the client's own words say only what it was doing.
fn chain(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Makes connections.
struct Connector {
    tls: MakeRustlsConnect,
    mode: SslMode,
}

impl Connect for Connector {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let mut config = config.clone();
        Box::pin(async move {
            let connected = match config.connect(self.tls.clone()).await {
                // Such as: no pg_hba.conf entry for a connection without encryption.
                Err(error)
                    if self.mode == SslMode::Allow
                        && error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) =>
                {
                    config.ssl_mode(Encryption::Require).connect(self.tls.clone()).await
                }
                connected => connected,
            };
            let (client, connection) = connected?;
            let connection = tokio::spawn(async move {
                // Whoever waits for an answer on it is told the same.
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "connection to the database");
                }
            });
            // A statement of its own, since poolers refuse what they do not know at the start of a connection.
            client.batch_execute(&format!("SET statement_timeout = '{}s'", STATEMENT.as_secs())).await?;
            Ok((client, connection))
        })
    }
}
