//! A repository in S3-compatible storage. An effect.

use std::{env, path::PathBuf, process::Stdio, time::Duration};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{io::AsyncReadExt as _, process::Command};
use tokio_util::sync::CancellationToken;

use super::{
    command::{self, Backup, Keep, Location, Lock},
    output::{self, Failure, Snapshot, Summary},
};

/// How many times a command waits for a lock, for five minutes each: after half an hour without a sign of life from the process that
/// has locked the repository, `restic unlock` removes its lock.
const LOCK_ATTEMPTS: usize = 8;
/// How long restic may take to end once it is told to, and to remove its own lock.
const GRACE: Duration = Duration::from_secs(20);
/// Most bytes read of what restic reports; listings of 100,000 snapshots need less.
const OUTPUT: u64 = 64 << 20;

/// A restic repository, and the restic that accesses it.
#[derive(Debug)]
pub(crate) struct Repository {
    pub restic: PathBuf,
    pub location: Location,
    /// How long the storage may take for the first answer: restic itself would try for a quarter of an hour.
    pub timeout: Duration,
    /// Ends a running command early.
    pub stop: CancellationToken,
}

/// Why a command did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Failed(Failure),
    /// restic could not be run, or was not understood.
    Restic(String),
    /// No answer in time, and why restic has tried again, if it says so.
    Timeout(Duration, String),
    Stopped,
}

type Result<T> = std::result::Result<T, Trouble>;

impl Repository {
    /// Returns whether there is a repository. Any other problem with it, such as a wrong password, is an error.
    pub(crate) async fn exists(&self) -> Result<bool> {
        let arguments = ["cat", "config"].map(Into::into).into();
        match self.run(arguments, Lock::None, Some(self.timeout)).await {
            Ok(_) => Ok(true),
            Err(Trouble::Failed(Failure::NoRepository)) => Ok(false),
            Err(trouble) => Err(trouble),
        }
    }

    /// Creates the repository unless there is one.
    pub(crate) async fn create(&self) -> Result<()> {
        if self.exists().await? {
            return Ok(());
        }
        match self.run(vec!["init".into()], Lock::Try, None).await {
            Ok(_) => Ok(()),
            // Another process may have created it meanwhile.
            Err(trouble) => match self.exists().await {
                Ok(true) => Ok(()),
                _ => Err(trouble),
            },
        }
    }

    /// Lists all snapshots, the newest first.
    pub(crate) async fn snapshots(&self) -> Result<Vec<Snapshot>> {
        let stdout = self.run(vec!["snapshots".into()], Lock::None, None).await?;
        let mut snapshots = output::snapshots(&stdout).map_err(not_understood)?;
        snapshots.sort_by(|one, other| (other.time, &other.id).cmp(&(one.time, &one.id)));
        Ok(snapshots)
    }

    /// Backs up, completely or not at all: a snapshot that lacks a file is forgotten.
    pub(crate) async fn backup(&self, what: &Backup<'_>) -> Result<Summary> {
        let (outcome, stdout) = self.patiently(command::backup(what)).await?;
        let summary = output::summary(&stdout);
        match (outcome, summary) {
            (Ok(()), Some(summary)) => Ok(summary),
            (Ok(()), None) => Err(Trouble::Restic("`restic backup` printed no summary".to_owned())),
            (Err(failure), None) => Err(Trouble::Failed(failure)),
            (Err(failure), Some(summary)) => {
                self.forget(&[&summary.snapshot_id]).await?;
                Err(Trouble::Failed(failure))
            }
        }
    }

    /// Restores the content of one path of a snapshot into a directory. After an error, only part of it may be there.
    pub(crate) async fn restore(&self, snapshot: &str, path: &str, target: &std::path::Path) -> Result<()> {
        self.run(command::restore(snapshot, path, target), Lock::None, None).await.map(drop)
    }

    /// Returns which of the snapshots with this host and these tags the rule does not keep.
    pub(crate) async fn superseded(&self, host: &str, tags: &[String], keep: Keep) -> Result<Vec<Snapshot>> {
        let stdout = self.run(command::superseded(host, tags, keep), Lock::None, None).await?;
        output::superseded(&stdout).map_err(not_understood)
    }

    /// Removes snapshots and, once they are gone, the data that no other snapshot needs.
    pub(crate) async fn forget(&self, snapshots: &[&str]) -> Result<()> {
        succeeded(self.patiently(command::forget(snapshots)).await?)?;
        // restic may only warn.
        match self.snapshots().await?.iter().find(|left| snapshots.contains(&left.id.as_str())) {
            Some(left) => Err(Trouble::Failed(Failure::Other(format!("snapshot {} could not be removed", left.id)))),
            None => succeeded(self.patiently(vec!["prune".into()]).await?),
        }
    }

    /// Checks that all snapshots are complete, without reading the files' contents.
    pub(crate) async fn check(&self) -> Result<()> {
        succeeded(self.patiently(vec!["check".into()]).await?)
    }

    /// Runs a command that locks the repository. Locks of processes that have ended are removed.
    async fn patiently(
        &self,
        arguments: Vec<std::ffi::OsString>,
    ) -> Result<(std::result::Result<(), Failure>, String)> {
        let mut lock = Lock::Try;
        for _ in 0..LOCK_ATTEMPTS {
            match self.attempt(arguments.clone(), lock, None).await? {
                (Err(Failure::Locked), _) => {
                    println!("another process has locked the repository: waiting for it");
                    self.run(vec!["unlock".into()], Lock::Try, None).await?;
                    lock = Lock::Wait;
                }
                ended => return Ok(ended),
            }
        }
        Err(Trouble::Failed(Failure::Locked))
    }

    /// Runs a command, and returns what it prints.
    async fn run(&self, arguments: Vec<std::ffi::OsString>, lock: Lock, timeout: Option<Duration>) -> Result<String> {
        let (outcome, stdout) = self.attempt(arguments, lock, timeout).await?;
        outcome.map(|()| stdout).map_err(Trouble::Failed)
    }

    async fn attempt(
        &self,
        arguments: Vec<std::ffi::OsString>,
        lock: Lock,
        timeout: Option<Duration>,
    ) -> Result<(std::result::Result<(), Failure>, String)> {
        let mut command = Command::new(&self.restic);
        command.env_clear().envs(self.location.environment(|name| env::var_os(name)));
        command.args(self.location.global(lock)).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let cannot = |error: std::io::Error| Trouble::Restic(format!("cannot run {}: {error}", self.restic.display()));
        let mut child = command.spawn().map_err(cannot)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let printed = async {
            let (mut out, mut err) = (Vec::new(), Vec::new());
            let read = tokio::try_join!(
                async { stdout.expect("it is piped").take(OUTPUT).read_to_end(&mut out).await },
                async { stderr.expect("it is piped").take(OUTPUT).read_to_end(&mut err).await },
            );
            read.map(|_| [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
        };
        let mut printed = std::pin::pin!(printed);
        let expired = tokio::time::sleep(timeout.unwrap_or(Duration::MAX));
        let told = tokio::select! {
            read = &mut printed => Ok(read.map_err(cannot)?),
            () = self.stop.cancelled() => Err(None),
            () = expired => Err(timeout),
        };
        let [out, err] = match told {
            Ok(printed) => printed,
            Err(reason) => {
                // So that it removes its lock.
                if let Some(id) = child.id().and_then(|id| i32::try_from(id).ok()) {
                    let _ = kill(Pid::from_raw(id), Signal::SIGTERM);
                }
                let words = tokio::time::timeout(GRACE, printed).await;
                let stderr = words.ok().and_then(std::result::Result::ok).map(|[_, stderr]| stderr).unwrap_or_default();
                return Err(match reason {
                    Some(timeout) => Trouble::Timeout(timeout, output::last_retry(&stderr)),
                    None => Trouble::Stopped,
                });
            }
        };
        let status = child.wait().await.map_err(cannot)?;
        let outcome = if status.success() { Ok(()) } else { Err(output::failure(status.code(), &err)) };
        Ok((outcome, out))
    }
}

fn succeeded((outcome, _): (std::result::Result<(), Failure>, String)) -> Result<()> {
    outcome.map_err(Trouble::Failed)
}

fn not_understood(error: serde_json::Error) -> Trouble {
    Trouble::Restic(format!("cannot read what restic printed: {error}"))
}
