//! How the database is reached: the `PSQL_*` variables, checked at start-up. Pure, except for reading the file with certificates.
//!
//! There are variables only, no flags: every user of the machine can read a password on a command line.

use std::{collections::BTreeMap, path::Path, str::FromStr, time::Duration};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::ValueEnum as _;
use tokio_postgres::Config;
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{
    table::Allowed,
    tls::{SslMode, connector},
};

type Given = BTreeMap<&'static str, String>;

/// Without these there is no database.
const REQUIRED: [&str; 5] = ["PSQL_HOST", "PSQL_DBNAME", "PSQL_USER", "PSQL_PASSWORD", "PSQL_TABLES"];
const ROOT: &str = "PSQL_SSLROOTCERT";
/// With their defaults.
const OPTIONAL: [(&str, &str); 5] =
    [("PSQL_PORT", "5432"), ("PSQL_SSLMODE", "prefer"), (ROOT, ""), ("PSQL_POOL_SIZE", "10"), ("PSQL_RESYNC", "60")];
/// A server that cannot be connected to within this time cannot be used.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// A connection is broken if the server acknowledges nothing for this long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// Holds what [`super::run`] needs to know. It does not implement `Debug`, because it contains a password.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(super) config: Config,
    /// The database, as messages name it.
    pub(super) place: String,
    pub(super) tls: MakeRustlsConnect,
    pub(super) tables: Allowed,
    pub(super) pool_size: usize,
    /// How often the rows are compared with the objects; `None`: never.
    pub(super) resync: Option<Duration>,
}

impl Settings {
    /// Reads the environment; an empty variable counts as unset. `None`: there is no database.
    ///
    /// # Errors
    /// A variable that cannot be used, in a sentence that quotes no value that could be secret.
    pub(crate) fn from_env() -> Result<Option<Settings>> {
        let mut given = BTreeMap::new();
        for variable in REQUIRED.into_iter().chain(OPTIONAL.map(|(variable, _)| variable)) {
            if let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
                given.insert(variable, value.into_string().map_err(|_| anyhow!("{variable} is not UTF-8"))?);
            }
        }
        Self::new(given)
    }

    pub(crate) fn new(mut given: Given) -> Result<Option<Settings>> {
        let Some(first) = given.keys().next() else { return Ok(None) };
        if let Some(missing) = REQUIRED.into_iter().find(|variable| !given.contains_key(variable)) {
            let required = REQUIRED.join(", ");
            bail!(
                "{first} is set, but {missing} is not: PostgresWriters need {required}, or none of the PSQL_ variables"
            );
        }
        for (variable, default) in OPTIONAL {
            given.entry(variable).or_insert_with(|| default.to_owned());
        }
        let [host, dbname, user, password, _] = REQUIRED.map(|variable| given[variable].as_str());
        let port = read(&given, "PSQL_PORT", "a port from 1 to 65535 is expected", number(1, u16::MAX))?;
        let expected = "a number of connections from 1 to 100 is expected";
        let pool_size = read(&given, "PSQL_POOL_SIZE", expected, number(1, 100))?;
        let expected = "seconds up to 86400 are expected, or 0 for never";
        let resync = read(&given, "PSQL_RESYNC", expected, number(0, 86400))?;
        let expected = "tables with commas between them are expected, such as people,{namespace}.people";
        let tables = read(&given, "PSQL_TABLES", expected, Allowed::parse)?;
        let expected = "disable, prefer, require, verify-ca or verify-full is expected";
        let mode = read(&given, "PSQL_SSLMODE", expected, |mode| SslMode::from_str(mode, false).ok())?;
        let root = Some(given[ROOT].as_str()).filter(|path| !path.is_empty());
        if mode >= SslMode::VerifyCa && root.is_none() {
            bail!("PSQL_SSLMODE=verify-… is set, but {ROOT} is not");
        }
        let tls =
            connector(mode, root.map(Path::new)).with_context(|| format!("{ROOT} {}", root.unwrap_or_default()))?;
        let mut config = Config::new();
        config.host(host).port(port).dbname(dbname).user(user).password(password).ssl_mode(mode.encryption());
        config.application_name("clientapp-operator").connect_timeout(CONNECT).tcp_user_timeout(UNACKNOWLEDGED);
        let place = format!("database {dbname} at {host}:{port}");
        let resync = (resync > 0).then(|| Duration::from_secs(resync));
        Ok(Some(Settings { config, place, tls, tables, pool_size, resync }))
    }
}

fn read<T>(given: &Given, variable: &str, expected: &str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T> {
    let value = &given[variable];
    parse(value).with_context(|| format!("{variable}={value}: {expected}"))
}

fn number<T: FromStr + PartialOrd>(least: T, most: T) -> impl FnOnce(&str) -> Option<T> {
    move |value| value.parse().ok().filter(|number| (least..=most).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Invalid settings are tested with the process, which they end (e2e/tests/postgres_writer/faults.rs).
    #[test]
    fn required_and_default_settings() {
        assert!(Settings::new(BTreeMap::new()).unwrap().is_none());
        let values = ["db", "app", "writer", "hunter2", "people"].map(str::to_owned);
        let mut given: BTreeMap<_, _> = REQUIRED.into_iter().zip(values).collect();
        let settings = Settings::new(given.clone()).unwrap().unwrap();
        assert_eq!((settings.pool_size, settings.resync), (10, Some(Duration::from_secs(60))));
        assert_eq!(settings.place, "database app at db:5432");
        assert_eq!(settings.config.get_ssl_mode(), SslMode::Prefer.encryption());
        given.insert("PSQL_RESYNC", "0".to_owned());
        assert_eq!(Settings::new(given).unwrap().unwrap().resync, None);
    }
}
