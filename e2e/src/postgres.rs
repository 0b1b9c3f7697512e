//! A real PostgreSQL on the loopback interface.
//!
//! Uses the one on the `PATH` or Debian's. PostgreSQL refuses to run as root; for root it runs as the user `nobody`.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, anyhow, ensure};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::unistd::{Pid, Uid};
use tokio_postgres::{Client, NoTls};

use crate::plane::{free_port, watchdog::Watchdog};
use crate::shim::executable;
use crate::wait::{TIMEOUT, block_on, blocking_within};

/// A user and group without files, in every distribution.
const NOBODY: u32 = 65534;
pub const USER: &str = "postgres";
pub const PASSWORD: &str = "not-a-secret";

/// A server. Dropping it stops it.
pub struct Postgres {
    binaries: PathBuf,
    home: PathBuf,
    watchdog: Watchdog,
    port: u16,
    server: Option<Child>,
}

impl Postgres {
    /// Initialises a database cluster and starts a server for it, which logs every statement.
    pub fn start() -> Result<Postgres> {
        let home = tempfile::tempdir_in(scratch())?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let home = home.keep();
        let binaries = installed()?;
        let password = home.join("password");
        fs::write(&password, PASSWORD)?;
        if Uid::effective().is_root() {
            for path in [&home, &password] {
                chown(path, Some(NOBODY), Some(NOBODY))?;
            }
        }
        let port = free_port()?;
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
            "log_line_prefix=%u %a %d ",
            "max_connections=200",
        ] {
            command.args(["-c", setting]);
        }
        self.server = Some(command.spawn().context("cannot start postgres")?);
        let started = blocking_within(TIMEOUT, "postgres answers", || {
            let ended = self.server.as_mut().and_then(|server| server.try_wait().ok().flatten());
            match ended {
                Some(status) => Some(Err(anyhow!("it has ended with {status}"))),
                None => block_on(async || self.connect("postgres").await).is_ok().then_some(Ok(())),
            }
        });
        started.flatten().with_context(|| format!("postgres does not start:\n{}", self.log()))
    }

    /// Stops the server, and with it all connections.
    pub fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            // SIGINT: a fast shutdown, which does not wait for clients.
            let _ = kill(Pid::from_raw(server.id().cast_signed()), Signal::SIGINT);
            let _ = server.wait();
        }
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of its data and configuration.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.home.join("data")
    }

    /// Writes a file beside its data, readable only by the server.
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
    pub async fn connect(&self, database: &str) -> Result<Client> {
        let config = format!(
            "host=127.0.0.1 port={} user={USER} password={PASSWORD} dbname={database} application_name=test",
            self.port
        );
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    #[must_use]
    pub fn log(&self) -> String {
        fs::read(self.home.join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// An operator's environment for a database and the tables that it may write there.
    #[must_use]
    pub fn environment(&self, database: &str, tables: &str) -> Vec<(String, String)> {
        let port = self.port.to_string();
        let variables = [
            ("PSQL_HOST", "127.0.0.1"),
            ("PSQL_PORT", &port),
            ("PSQL_DBNAME", database),
            ("PSQL_USER", USER),
            ("PSQL_PASSWORD", PASSWORD),
            ("PSQL_TABLES", tables),
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

/// A simulated node for the scripts of a Postgresql's pods. Each runs as in its pod: in its own namespaces as the first
/// process, with only its own environment, as an unprivileged user. Dropping the node ends everything on it.
pub struct Node {
    programs: PathBuf,
    home: PathBuf,
    watchdog: Watchdog,
}

/// A running pod.
pub struct Pod(Child);

impl Node {
    /// A node with these scripts.
    ///
    /// # Errors
    /// If PostgreSQL is not completely installed, or the kernel does not allow the isolation.
    pub fn new(scripts: &Path) -> Result<Node> {
        let programs = installed()?;
        let home = tempfile::tempdir_in(scratch())?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        let node = Node { programs, home: home.keep(), watchdog };
        fs::set_permissions(&node.home, fs::Permissions::from_mode(0o755))?;
        give_away(&node.home)?;
        for directory in ["scripts", "replaced"] {
            node.volume(directory)?;
        }
        for script in fs::read_dir(scripts)? {
            let script = script?;
            fs::copy(script.path(), node.path("scripts").join(script.file_name()))?;
        }
        let isolated = node.command("true").output()?;
        ensure!(isolated.status.success(), "cannot isolate a pod: {}", String::from_utf8_lossy(&isolated.stderr));
        Ok(node)
    }

    /// A path on the node.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.home.join(name)
    }

    /// An empty directory that pods can write to.
    pub fn volume(&self, name: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::create_dir(&path)?;
        give_away(&path)?;
        Ok(path)
    }

    /// A file that pods can read.
    pub fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.path(name);
        fs::write(&path, content)?;
        give_away(&path)?;
        Ok(path)
    }

    /// Replaces a program with a script, for which `$REAL` is the program.
    pub fn replace(&self, program: &str, script: &str) -> Result<()> {
        let real = [&self.programs, Path::new("/usr/bin"), Path::new("/bin")].map(|directory| directory.join(program));
        let real = real.iter().find(|path| path.exists()).context("there is no such program")?;
        let script = format!("#!/bin/sh\nREAL={}\n{script}\n", real.display());
        Ok(executable(&self.path("replaced").join(program), &script, 0o755)?)
    }

    /// Undoes [`Self::replace`].
    pub fn put_back(&self, program: &str) -> Result<()> {
        Ok(fs::remove_file(self.path("replaced").join(program))?)
    }

    /// A pod with a shell script, for which `$SCRIPTS` is the directory of the scripts.
    #[must_use]
    pub fn command(&self, script: &str) -> Command {
        self.prepared(script, "true")
    }

    /// The same, after root has prepared the pod's view of the file system.
    #[must_use]
    pub fn prepared(&self, script: &str, prepare: &str) -> Command {
        let mut command = Command::new("unshare");
        // The other processes die with the first, since it is the first of the pid namespace.
        let end = "setpriv --pdeathsig KILL";
        let drop = match Uid::effective().is_root() {
            true => format!("{end} --reuid={NOBODY} --regid={NOBODY} --clear-groups"),
            false => {
                command.args(["--user", "--map-current-user"]);
                end.to_owned()
            }
        };
        let path = [&self.path("replaced"), &self.programs, Path::new("/usr/bin"), Path::new("/bin")];
        let path: Vec<_> = path.iter().map(|directory| directory.display().to_string()).collect();
        let wrapper = format!("{prepare} && exec {drop} sh -c \"$0\"");
        command
            .args(["--pid", "--ipc", "--mount", "--fork", "--", "sh", "-c", &wrapper, script])
            .process_group(self.watchdog.group())
            .current_dir(&self.home)
            .env_clear()
            .envs([("PATH", path.join(":").as_str()), ("LC_ALL", "C")])
            .envs([("SCRIPTS", self.path("scripts")), ("HOME", self.home.clone())])
            .stdin(Stdio::null());
        command
    }

    /// Starts a pod whose output goes to a file.
    pub fn start(&self, mut command: Command, log: &str) -> Result<Pod> {
        let log = File::options().create(true).append(true).open(self.path(log))?;
        Ok(Pod(command.stdout(log.try_clone()?).stderr(log).spawn()?))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.watchdog.act();
        self.watchdog.wait();
    }
}

impl Pod {
    /// The kubelet's first step: SIGTERM to the first process.
    pub fn terminate(&self) -> Result<()> {
        self.signal(Signal::SIGTERM)
    }

    /// A fast shutdown, as with the image's stop signal.
    pub fn stop(mut self) -> Result<()> {
        self.signal(Signal::SIGINT)?;
        self.0.wait()?;
        Ok(())
    }

    /// Kills everything at once, as when the node is lost.
    pub fn kill(mut self) -> Result<()> {
        // The first process of the pid namespace: the kernel kills the others with it, and unshare ends after it.
        if self.signal(Signal::SIGKILL).is_err() {
            self.0.kill()?;
        }
        self.0.wait()?;
        Ok(())
    }

    /// The exit code, once it has ended.
    pub fn wait(&mut self) -> Result<Option<i32>> {
        Ok(self.0.wait()?.code())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.0.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
        let first = children.split_whitespace().next().context("it has ended")?;
        Ok(kill(Pid::from_raw(first.parse()?), signal)?)
    }
}

/// Where servers keep their files: in memory if there is room, since PostgreSQL syncs each of its thousand files.
fn scratch() -> PathBuf {
    const ROOM: u64 = 4 << 30;
    let memory = Path::new("/dev/shm");
    let suits = statvfs(memory).is_ok_and(|found| {
        // Programs are replaced by scripts in there.
        !found.flags().contains(FsFlags::ST_NOEXEC) && found.blocks_available() * found.fragment_size() >= ROOM
    });
    if suits { memory.to_owned() } else { std::env::temp_dir() }
}

/// Makes it belong to the user of the pods.
fn give_away(path: &Path) -> Result<()> {
    if Uid::effective().is_root() {
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    Ok(())
}

/// Returns the directory of all PostgreSQL programs, including the clients.
fn installed() -> Result<PathBuf> {
    let whole = |directory: &PathBuf| {
        ["initdb", "postgres", "psql", "pg_dump", "pg_dumpall", "pg_restore", "pg_basebackup", "pg_controldata"]
            .iter()
            .all(|program| directory.join(program).exists())
    };
    // The other programs are beside the target of the link.
    let on_path = which::which("postgres").ok().and_then(|found| fs::canonicalize(found).ok());
    let on_path = on_path.and_then(|found| found.parent().map(Path::to_owned));
    let mut debian: Vec<_> = fs::read_dir("/usr/lib/postgresql")
        .map(|versions| versions.filter_map(|version| Some(version.ok()?.path().join("bin"))).collect())
        .unwrap_or_default();
    debian.sort();
    on_path.into_iter().chain(debian.into_iter().rev()).find(whole).context(
        "PostgreSQL with its clients is not installed: this needs the directory of postgres, psql, pg_dump and pg_basebackup on the PATH, or Debian's package postgresql",
    )
}
