//! The operator of the demonstration: in its [`Home`], out of reach of the terminal's Ctrl-C, because it is still
//! needed to remove what it created.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::home::Home;
use crate::wait::{blocking_within, within};

/// In its log once it leads.
const LEADS: &str = "\"leading\"";
/// For the start, which takes a second.
const TIMEOUT: Duration = Duration::from_secs(60);
/// For the shutdown: twice the time that it gives its helms.
const FAREWELL: Duration = Duration::from_secs(20);
/// The address of its API, unless it is in use.
const API: &str = "127.0.0.1:8090";
/// The number of log lines that show its last actions.
const LAST_LINES: usize = 15;

/// How it reaches its cluster and its charts.
pub(super) struct Surroundings<'a> {
    pub(super) kubeconfig: &'a Path,
    pub(super) helm: &'a Path,
    pub(super) chart_repository: &'a str,
    pub(super) lease_namespace: &'a str,
}

/// A running operator. Dropping it stops it and waits for that.
pub(super) struct Operator {
    child: Child,
    log: PathBuf,
}

impl Operator {
    /// Starts it and waits until it leads.
    pub(super) async fn lead(binary: &Path, home: &Home, surroundings: &Surroundings<'_>) -> Result<Self> {
        let mut operator = Self::start(binary, home, surroundings)?;
        let leads = within(TIMEOUT, "the operator leads", async || match operator.ended() {
            _ if operator.logged().contains(LEADS) => Some(Ok(())),
            Ok(None) => None,
            Ok(Some(status)) => Some(Err(anyhow!("the operator ended ({status})"))),
            Err(error) => Some(Err(error)),
        });
        let leads = leads.await.flatten();
        leads.with_context(|| format!("the end of the operator's log:\n{}", operator.last_words()))?;
        Ok(operator)
    }

    fn start(binary: &Path, home: &Home, surroundings: &Surroundings<'_>) -> Result<Self> {
        let Surroundings { kubeconfig, helm, chart_repository, lease_namespace } = surroundings;
        let log = home.path().join("operator.log");
        let output = File::create(&log)?;
        let temporary = home.path().join("tmp");
        fs::create_dir_all(&temporary)?;
        let mut command = Command::new(binary);
        // The rest is inherited: a kubeconfig's credential plugin may need any of it.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("CLIENTAPP_")) {
            command.env_remove(name);
        }
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .arg("--helm")
            .arg(helm)
            .args(["--chart-repository", chart_repository])
            .arg("--chart-cache")
            .arg(home.path().join("charts"))
            .args(["--lease-namespace", lease_namespace])
            .args(["--health-listen", "127.0.0.1:0"])
            .args(["--api-listen", if TcpListener::bind(API).is_ok() { API } else { "127.0.0.1:0" }])
            .env("TMPDIR", &temporary)
            .process_group(home.group())
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        let child = command.spawn().context("cannot start the operator")?;
        Ok(Self { child, log })
    }

    /// How it ended, if it has.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Host and port of its API.
    pub(super) fn api(&self) -> Option<String> {
        let log = self.logged();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.into_iter().find_map(|line| line["api"].as_str().map(str::to_owned))
    }

    /// Links it as `kubectl clientapp`, and returns the directory for the `PATH`.
    pub(super) fn plugin(binary: &Path, home: &Home) -> Result<PathBuf> {
        let directory = home.path().join("bin");
        fs::create_dir_all(&directory)?;
        std::os::unix::fs::symlink(binary, directory.join("kubectl-clientapp"))?;
        Ok(directory)
    }

    /// The path of its log.
    pub(super) fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of its log.
    pub(super) fn last_words(&self) -> String {
        let log = self.logged();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    fn logged(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // SIGTERM first: the operator releases its Lease, and its helms record their progress.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let ended = blocking_within(FAREWELL, "the operator ends", || !matches!(self.child.try_wait(), Ok(None)));
        if ended.is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
