//! How the database is reached: the `PSQL_*` variables, checked at start-up. Pure but for the file with certificates.
//!
//! They are variables only, no flags: a password on a command line is one that every user of the machine can read.

use std::{collections::BTreeMap, ops::RangeInclusive, path::Path, time::Duration};

use clap::ValueEnum as _;
use tokio_postgres::{Config, config::SslMode as Encryption};

use super::{
    row::Allowed,
    tls::{self, SslMode},
};

/// Without these there is no database.
const REQUIRED: [&str; 5] = ["PSQL_HOST", "PSQL_DBNAME", "PSQL_USER", "PSQL_PASSWORD", "PSQL_TABLES"];
const OPTIONAL: [&str; 5] = ["PSQL_PORT", "PSQL_SSLMODE", "PSQL_SSLROOTCERT", "PSQL_POOL_SIZE", "PSQL_RESYNC"];
/// A server that cannot be connected to within this time cannot be used.
pub(super) const CONNECT: Duration = Duration::from_secs(5);
/// A connection whose server does not acknowledge anything for this time is broken.
const UNACKNOWLEDGED: Duration = Duration::from_secs(15);

/// What [`super::run`] needs to know. It does not print, as a password is in it.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(super) config: Config,
    /// The database, for people.
    pub(super) place: String,
    pub(super) ssl_mode: SslMode,
    pub(super) tls: rustls::ClientConfig,
    pub(super) tables: Allowed,
    pub(super) pool_size: usize,
    /// How often the rows are compared with the objects; `None`: never.
    pub(super) resync: Option<Duration>,
}

/// A variable that cannot be used. The sentences quote no value that could be secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SettingsError {
    #[error("{given} is set, but {missing} is not: PostgresWriters need {}, or none of the PSQL_ variables", REQUIRED.join(", "))]
    Missing { given: String, missing: &'static str },
    #[error("{variable}={value}: {expected}")]
    Invalid { variable: &'static str, value: String, expected: &'static str },
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    #[error("PSQL_SSLROOTCERT {path}: {problem}")]
    Certificates { path: String, problem: String },
}

impl Settings {
    /// Reads the environment; an empty variable is none. `None`: there is no database.
    pub(crate) fn from_env() -> Result<Option<Settings>, SettingsError> {
        let mut given = BTreeMap::new();
        for variable in REQUIRED.into_iter().chain(OPTIONAL) {
            if let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
                given.insert(variable, value.into_string().map_err(|_| SettingsError::NotUtf8(variable))?);
            }
        }
        Self::new(&given)
    }

    fn new(given: &BTreeMap<&'static str, String>) -> Result<Option<Settings>, SettingsError> {
        let Some(first) = given.keys().next() else { return Ok(None) };
        let missing = |missing, given: &str| SettingsError::Missing { given: given.to_owned(), missing };
        if let Some(variable) = REQUIRED.into_iter().find(|variable| !given.contains_key(variable)) {
            return Err(missing(variable, first));
        }
        let [host, dbname, user, password, tables] = REQUIRED.map(|variable| given[variable].as_str());
        let invalid = |variable, expected| {
            let value = given.get(variable).cloned().unwrap_or_default();
            SettingsError::Invalid { variable, value, expected }
        };
        let number = |variable, default: u32, range: RangeInclusive<u32>, expected| {
            let number = given.get(variable).map_or(Some(default), |value| value.parse().ok());
            number.filter(|number| range.contains(number)).ok_or_else(|| invalid(variable, expected))
        };
        let port = number("PSQL_PORT", 5432, 1..=65535, "a port from 1 to 65535 is expected")? as u16;
        let expected = "a number of connections from 1 to 100 is expected";
        let pool_size = number("PSQL_POOL_SIZE", 10, 1..=100, expected)? as usize;
        let resync = number("PSQL_RESYNC", 60, 0..=86400, "seconds up to 86400 are expected, or 0 for never")?;
        let expected = "tables with commas between them are expected, such as people,{namespace}.people";
        let tables = Allowed::parse(tables).ok_or_else(|| invalid("PSQL_TABLES", expected))?;
        let ssl_mode = SslMode::from_str(given.get("PSQL_SSLMODE").map_or("prefer", String::as_str), false);
        let expected = "disable, allow, prefer, require, verify-ca or verify-full is expected";
        let ssl_mode = ssl_mode.map_err(|_| invalid("PSQL_SSLMODE", expected))?;
        let root = given.get("PSQL_SSLROOTCERT");
        let encryption = match ssl_mode {
            SslMode::VerifyCa | SslMode::VerifyFull if root.is_none() => {
                return Err(missing("PSQL_SSLROOTCERT", "PSQL_SSLMODE=verify-…"));
            }
            SslMode::Disable | SslMode::Allow => Encryption::Disable,
            SslMode::Prefer => Encryption::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Encryption::Require,
        };
        let unusable = |problem: anyhow::Error| SettingsError::Certificates {
            path: root.cloned().unwrap_or_default(),
            problem: problem.to_string(),
        };
        let tls = tls::client_config(ssl_mode, root.map(Path::new)).map_err(unusable)?;
        let mut config = Config::new();
        config.host(host).port(port).dbname(dbname).user(user).password(password).ssl_mode(encryption);
        config.application_name("clientapp-operator").connect_timeout(CONNECT).tcp_user_timeout(UNACKNOWLEDGED);
        let place = format!("database {dbname} at {host}:{port}");
        let resync = (resync > 0).then(|| Duration::from_secs(resync.into()));
        Ok(Some(Settings { config, place, ssl_mode, tls, tables, pool_size, resync }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With one variable changed; an empty one is none.
    fn read(variable: &'static str, value: &str) -> Result<Settings, String> {
        let values = ["db", "app", "writer", "hunter2", "people"].map(str::to_owned);
        let mut given: BTreeMap<_, _> = REQUIRED.into_iter().zip(values).collect();
        given.insert(variable, value.to_owned());
        given.retain(|_, value| !value.is_empty());
        Settings::new(&given).map(Option::unwrap).map_err(|problem| problem.to_string())
    }

    #[test]
    fn nothing_is_needed_and_five_are_enough() {
        assert!(Settings::new(&BTreeMap::new()).unwrap().is_none());
        let settings = read("PSQL_PORT", "").ok().unwrap();
        assert_eq!((settings.pool_size, settings.resync), (10, Some(Duration::from_secs(60))));
        assert_eq!((settings.ssl_mode, settings.place.as_str()), (SslMode::Prefer, "database app at db:5432"));
        assert_eq!(read("PSQL_RESYNC", "0").ok().unwrap().resync, None);
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_sentence() {
        for (variable, value, sentence) in [
            ("PSQL_PORT", "0", "PSQL_PORT=0: a port from 1 to 65535 is expected"),
            ("PSQL_PORT", "70000", "PSQL_PORT=70000: a port"),
            ("PSQL_PORT", "x", "PSQL_PORT=x: a port"),
            ("PSQL_POOL_SIZE", "0", "PSQL_POOL_SIZE=0: a number of connections from 1 to 100 is expected"),
            ("PSQL_POOL_SIZE", "101", "PSQL_POOL_SIZE=101: a number"),
            ("PSQL_RESYNC", "-1", "PSQL_RESYNC=-1: seconds up to 86400 are expected, or 0 for never"),
            ("PSQL_TABLES", "people,", "PSQL_TABLES=people,: tables with commas between them are expected"),
            ("PSQL_SSLMODE", "on", "PSQL_SSLMODE=on: disable, allow, prefer, require, verify-ca or"),
            ("PSQL_SSLMODE", "verify-ca", "PSQL_SSLMODE=verify-… is set, but PSQL_SSLROOTCERT is not"),
            ("PSQL_SSLMODE", "verify-full", "PSQL_SSLMODE=verify-… is set, but PSQL_SSLROOTCERT is not"),
            ("PSQL_SSLROOTCERT", "/does/not/exist", "PSQL_SSLROOTCERT /does/not/exist: "),
            (
                "PSQL_HOST",
                "",
                "PSQL_DBNAME is set, but PSQL_HOST is not: PostgresWriters need PSQL_HOST, PSQL_DBNAME, ",
            ),
            ("PSQL_DBNAME", "", "PSQL_HOST is set, but PSQL_DBNAME is not"),
            ("PSQL_USER", "", "PSQL_DBNAME is set, but PSQL_USER is not"),
            ("PSQL_PASSWORD", "", "PSQL_DBNAME is set, but PSQL_PASSWORD is not"),
            ("PSQL_TABLES", "", "PSQL_DBNAME is set, but PSQL_TABLES is not"),
        ] {
            let problem = read(variable, value).err().unwrap();
            assert!(problem.starts_with(sentence) && !problem.contains("hunter2"), "{problem}");
        }
    }
}
