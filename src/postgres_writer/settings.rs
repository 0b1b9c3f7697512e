//! How the database is reached: the `PSQL_*` variables, checked at start-up. Pure but for the file with certificates.
//!
//! They are variables only, no flags: a password on a command line is one that everybody on the machine can read.

use std::{fmt, path::PathBuf, time::Duration};

use super::tls::{self, SslMode};

/// Every variable, in the order that they are complained about.
const VARIABLES: [&str; 9] = [
    "PSQL_HOST",
    "PSQL_PORT",
    "PSQL_DBNAME",
    "PSQL_USER",
    "PSQL_PASSWORD",
    "PSQL_SSLMODE",
    "PSQL_SSLROOTCERT",
    "PSQL_POOL_SIZE",
    "PSQL_RESYNC",
];

/// What [`super::run`] needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Host name, address, or directory of a Unix socket.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Name of the database.
    pub dbname: String,
    /// Who the operator is there.
    pub user: String,
    /// Its password.
    pub password: Password,
    /// When the connection is encrypted, and what of the server's certificate is checked.
    pub ssl_mode: SslMode,
    /// The same, as rustls takes it.
    pub tls: rustls::ClientConfig,
    /// Connections at the same time, and objects worked on at the same time.
    pub pool_size: u16,
    /// How often the rows are compared with the objects; `None`: never.
    pub resync: Option<Duration>,
}

/// A password. It does not print.
#[derive(Clone)]
pub struct Password(String);

impl Password {
    /// For the connection alone.
    pub(super) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// A variable that cannot be used. The sentences quote no value that could be secret.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Some are given, but not this one.
    #[error(
        "{given} is set, but {missing} is not: PostgresWriters need PSQL_HOST, PSQL_DBNAME, PSQL_USER and PSQL_PASSWORD, or none of the PSQL_ variables"
    )]
    Missing {
        /// One that is set.
        given: &'static str,
        /// One that is not.
        missing: &'static str,
    },
    /// It does not say what it should.
    #[error("{variable}={value}: {expected}")]
    Invalid {
        /// The variable.
        variable: &'static str,
        /// What it says.
        value: String,
        /// What it should say.
        expected: &'static str,
    },
    /// It is not UTF-8.
    #[error("{0} is not UTF-8")]
    NotUtf8(&'static str),
    /// The certificates cannot be used.
    #[error("PSQL_SSLROOTCERT {}: {problem}", path.display())]
    Certificates {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// rustls refuses its settings.
    #[error("TLS for the database: {0}")]
    Tls(rustls::Error),
}

impl Settings {
    /// Reads the environment; an empty variable is none. `None`: there is no database, and no PostgresWriter is served.
    ///
    /// # Errors
    /// What is missing or wrong.
    pub fn from_env() -> Result<Option<Settings>, SettingsError> {
        let mut given = Vec::new();
        for variable in VARIABLES {
            if let Some(value) = std::env::var_os(variable).filter(|value| !value.is_empty()) {
                given.push((variable, value.into_string().map_err(|_| SettingsError::NotUtf8(variable))?));
            }
        }
        Self::new(&given)
    }

    fn new(given: &[(&'static str, String)]) -> Result<Option<Settings>, SettingsError> {
        let Some((first, _)) = given.first() else { return Ok(None) };
        let get = |name: &str| given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.clone());
        let required = |missing: &'static str| get(missing).ok_or(SettingsError::Missing { given: first, missing });
        let (host, dbname, user) = (required("PSQL_HOST")?, required("PSQL_DBNAME")?, required("PSQL_USER")?);
        let password = Password(required("PSQL_PASSWORD")?);
        let number = |variable, default: u32, range: std::ops::RangeInclusive<u32>, expected| {
            let Some(value) = get(variable) else { return Ok(default) };
            let number = value.parse().ok().filter(|number| range.contains(number));
            number.ok_or(SettingsError::Invalid { variable, value, expected })
        };
        let port = number("PSQL_PORT", 5432, 1..=65535, "a port from 1 to 65535 is expected")?;
        let pool_size = number("PSQL_POOL_SIZE", 10, 1..=100, "a number of connections from 1 to 100 is expected")?;
        let resync = number("PSQL_RESYNC", 60, 0..=86400, "seconds up to 86400 are expected, or 0 for never")?;
        let ssl_mode = match get("PSQL_SSLMODE") {
            None => SslMode::Prefer,
            Some(value) => SslMode::from_word(&value).ok_or(SettingsError::Invalid {
                variable: "PSQL_SSLMODE",
                value,
                expected: "disable, allow, prefer, require, verify-ca or verify-full is expected",
            })?,
        };
        let root = get("PSQL_SSLROOTCERT").map(PathBuf::from);
        if ssl_mode.verifies() && root.is_none() {
            return Err(SettingsError::Missing { given: "PSQL_SSLMODE=verify-…", missing: "PSQL_SSLROOTCERT" });
        }
        Ok(Some(Settings {
            host,
            // In range, as was checked.
            port: port.try_into().unwrap_or(u16::MAX),
            dbname,
            user,
            password,
            ssl_mode,
            tls: tls::client_config(ssl_mode, root.as_deref())?,
            pool_size: pool_size.try_into().unwrap_or(u16::MAX),
            resync: (resync > 0).then(|| Duration::from_secs(resync.into())),
        }))
    }

    /// The database, for people.
    #[must_use]
    pub fn place(&self) -> String {
        format!("database {} at {}:{}", self.dbname, self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMPLETE: [(&str, &str); 4] =
        [("PSQL_HOST", "db"), ("PSQL_DBNAME", "app"), ("PSQL_USER", "writer"), ("PSQL_PASSWORD", "hunter2")];

    fn read(more: &[(&'static str, &str)]) -> Result<Option<Settings>, SettingsError> {
        let given = COMPLETE.iter().chain(more).map(|(name, value)| (*name, (*value).to_owned()));
        Settings::new(&given.collect::<Vec<_>>())
    }

    #[test]
    fn nothing_is_needed_and_four_are_enough() {
        assert!(Settings::new(&[]).unwrap().is_none());
        let settings = read(&[]).unwrap().unwrap();
        assert_eq!((settings.port, settings.pool_size, settings.resync), (5432, 10, Some(Duration::from_secs(60))));
        assert_eq!(settings.ssl_mode, SslMode::Prefer);
        assert_eq!(settings.place(), "database app at db:5432");
        assert_eq!(read(&[("PSQL_RESYNC", "0")]).unwrap().unwrap().resync, None);
    }

    #[test]
    fn each_of_the_four_is_missed() {
        for missing in COMPLETE {
            let given = COMPLETE.iter().filter(|given| **given != missing);
            let given: Vec<_> = given.map(|(name, value)| (*name, (*value).to_owned())).collect();
            let problem = Settings::new(&given).unwrap_err().to_string();
            assert!(problem.contains(&format!("is set, but {} is not", missing.0)), "{problem}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_sentence() {
        for (variable, value, sentence) in [
            ("PSQL_PORT", "0", "PSQL_PORT=0: a port from 1 to 65535 is expected"),
            ("PSQL_PORT", "70000", "PSQL_PORT=70000: a port from 1 to 65535 is expected"),
            ("PSQL_PORT", "x", "PSQL_PORT=x: a port from 1 to 65535 is expected"),
            ("PSQL_POOL_SIZE", "0", "PSQL_POOL_SIZE=0: a number of connections from 1 to 100 is expected"),
            ("PSQL_RESYNC", "-1", "PSQL_RESYNC=-1: seconds up to 86400 are expected, or 0 for never"),
            (
                "PSQL_SSLMODE",
                "on",
                "PSQL_SSLMODE=on: disable, allow, prefer, require, verify-ca or verify-full is expected",
            ),
        ] {
            assert_eq!(read(&[(variable, value)]).unwrap_err().to_string(), sentence);
        }
        for mode in ["verify-ca", "verify-full"] {
            let problem = read(&[("PSQL_SSLMODE", mode)]).unwrap_err().to_string();
            assert!(problem.contains("PSQL_SSLROOTCERT is not"), "{problem}");
        }
        let problem = read(&[("PSQL_SSLROOTCERT", "/does/not/exist")]).unwrap_err().to_string();
        assert!(problem.starts_with("PSQL_SSLROOTCERT /does/not/exist: "), "{problem}");
    }

    #[test]
    fn the_password_does_not_print() {
        let settings = read(&[]).unwrap().unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
