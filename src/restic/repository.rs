//! A repository in S3-compatible storage. An effect.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    command::{self, Backup, Location, Lock},
    output::{self, Failure, Snapshot, Summary},
};
use crate::{
    crd::StoreKeep,
    platform::process::{self, Cause, Finished, Limits, Program},
};

/// Limits how many times a command waits for a lock, for five minutes each: after half an hour without a sign of life from the process that
/// has locked the repository, `restic unlock` removes its lock.
const LOCK_ATTEMPTS: usize = 8;
/// The longest that a command may take; Jobs end far earlier.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
const LIMITS: Limits = Limits {
    deadline: LONGEST,
    // So that it removes its lock.
    grace: Duration::from_secs(20),
    // Listings of 100,000 snapshots need less.
    output: 128 << 20,
    // restic's memory grows with the repository: the container's limit counts.
    memory: u64::MAX,
    file: u64::MAX,
};

/// A restic repository, and the restic that accesses it.
#[derive(Debug)]
pub(crate) struct Repository {
    pub restic: PathBuf,
    pub location: Location,
    /// Limits how long the storage may take for the first answer: restic itself would try for a quarter of an hour.
    pub timeout: Duration,
    /// Ends a running command early.
    pub stop: CancellationToken,
}

/// Says why a command did not succeed.
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

    /// Lists all snapshots, the newest first; none if there is no repository.
    pub(crate) async fn snapshots_if_any(&self) -> Result<Vec<Snapshot>> {
        if self.exists().await? { self.snapshots().await } else { Ok(Vec::new()) }
    }

    /// Backs up. A snapshot that lacks a file which could not be read is forgotten.
    pub(crate) async fn backup(&self, what: &Backup<'_>) -> Result<Summary> {
        let (outcome, stdout) = self.patiently(command::backup(what)).await?;
        let summary = output::summary(&stdout);
        match (outcome, summary) {
            (Ok(()), Some(summary)) => Ok(summary),
            (Ok(()), None) => Err(Trouble::Restic("`restic backup` printed no summary".to_owned())),
            (Err(failure), None) => Err(Trouble::Failed(failure)),
            (Err(failure), Some(summary)) => {
                if let Err(trouble) = self.forget(&[&summary.snapshot_id]).await {
                    println!("snapshot {} is incomplete and could not be removed: {trouble:?}", summary.snapshot_id);
                }
                Err(Trouble::Failed(failure))
            }
        }
    }

    /// Restores the content of one path of a snapshot into a directory. After an error, only part of it may be there.
    pub(crate) async fn restore(&self, snapshot: &str, path: &str, target: &Path) -> Result<()> {
        self.run(command::restore(snapshot, path, target), Lock::None, None).await.map(drop)
    }

    /// Returns which of the snapshots with this host and these tags the rule does not keep.
    pub(crate) async fn superseded(&self, host: &str, tags: &[String], keep: StoreKeep) -> Result<Vec<Snapshot>> {
        let stdout = self.run(command::superseded(host, tags, keep), Lock::None, None).await?;
        output::superseded(&stdout).map_err(not_understood)
    }

    /// Removes snapshots and, once they are gone, the data that no other snapshot needs.
    pub(crate) async fn forget(&self, snapshots: &[&str]) -> Result<()> {
        let cause = match self.patiently(command::forget(snapshots)).await?.0 {
            Ok(()) => String::new(),
            // restic could not remove one of them, which may be gone.
            Err(Failure::Incomplete(cause)) => format!(" ({cause})"),
            Err(failure) => return Err(Trouble::Failed(failure)),
        };
        match self.snapshots().await?.iter().find(|left| snapshots.contains(&left.id.as_str())) {
            Some(left) => {
                Err(Trouble::Failed(Failure::Other(format!("snapshot {} could not be removed{cause}", left.id))))
            }
            None => self.prune().await,
        }
    }

    /// Removes the data that no snapshot needs.
    pub(crate) async fn prune(&self) -> Result<()> {
        succeeded(self.patiently(vec!["prune".into()]).await?)
    }

    /// Checks that all snapshots are complete, without reading the files' contents.
    pub(crate) async fn check(&self) -> Result<()> {
        succeeded(self.patiently(vec!["check".into()]).await?)
    }

    /// Runs a command that locks the repository. Locks of processes that have ended are removed.
    async fn patiently(&self, arguments: Vec<OsString>) -> Result<(std::result::Result<(), Failure>, String)> {
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
    async fn run(&self, arguments: Vec<OsString>, lock: Lock, timeout: Option<Duration>) -> Result<String> {
        let (outcome, stdout) = self.attempt(arguments, lock, timeout).await?;
        outcome.map(|()| stdout).map_err(Trouble::Failed)
    }

    async fn attempt(
        &self,
        arguments: Vec<OsString>,
        lock: Lock,
        timeout: Option<Duration>,
    ) -> Result<(std::result::Result<(), Failure>, String)> {
        let path = which::which(&self.restic).map_err(|error| self.cannot_run(&error))?;
        let environment = self.location.environment(|name| env::var_os(name));
        let program = Program {
            path,
            args: self.location.global(lock).into_iter().chain(arguments).collect(),
            env: environment.into_iter().map(|(name, value)| (name.into(), value)).collect(),
            dir: env::temp_dir(),
            stdin: None,
        };
        let limits = Limits { deadline: timeout.unwrap_or(LONGEST), ..LIMITS };
        let finished = process::run(program, limits, &self.stop, &CancellationToken::new()).await;
        let Finished { cause, status, stdout, stderr, .. } = finished.map_err(|error| self.cannot_run(&error))?;
        match cause {
            Cause::Itself if status.success() => Ok((Ok(()), stdout)),
            Cause::Itself if output::is_complete_but_for_vanished(status.code(), &stderr) => {
                println!("files that disappeared meanwhile are left out");
                Ok((Ok(()), stdout))
            }
            Cause::Itself => Ok((Err(output::failure(status.code(), &stderr)), stdout)),
            Cause::Cancelled => Err(Trouble::Stopped),
            Cause::Deadline => Err(Trouble::Timeout(limits.deadline, output::last_retry(&stderr))),
        }
    }

    fn cannot_run(&self, error: &dyn std::fmt::Display) -> Trouble {
        Trouble::Restic(format!("cannot run {}: {error}", self.restic.display()))
    }
}

fn succeeded((outcome, _): (std::result::Result<(), Failure>, String)) -> Result<()> {
    outcome.map_err(Trouble::Failed)
}

fn not_understood(error: serde_json::Error) -> Trouble {
    Trouble::Restic(format!("cannot read what restic printed: {error}"))
}
