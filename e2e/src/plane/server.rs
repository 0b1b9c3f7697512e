//! One server process and its log.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, bail};

use crate::wait::{TIMEOUT, within};

/// The number of log lines in an error.
const LAST_LINES: usize = 15;

/// Everything needed to start a server, repeatedly if necessary.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Vec<(&'static str, String)>,
}

/// Waits for a condition that the server `responsible` brings about, and gives up early if any server ends.
pub(crate) async fn wait(
    servers: &Mutex<Vec<Server>>,
    what: &str,
    responsible: &str,
    is_so: impl AsyncFn() -> bool,
) -> Result<()> {
    let looked = within(TIMEOUT, what, async || {
        let run = all(servers).iter_mut().try_for_each(Server::check);
        match run {
            Err(ended) => Some(Err(ended)),
            Ok(()) => is_so().await.then_some(Ok(())),
        }
    });
    looked.await.unwrap_or_else(|late| {
        let servers = all(servers);
        let server = servers.iter().find(|server| server.name() == responsible);
        let words = server.map(Server::last_words).unwrap_or_default();
        Err(late.context(format!("the end of the log of {responsible}:\n{words}")))
    })
}

/// Returns the servers. A panic elsewhere leaves the list intact.
pub(crate) fn all(servers: &Mutex<Vec<Server>>) -> MutexGuard<'_, Vec<Server>> {
    servers.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
pub(crate) struct Server {
    recipe: Recipe,
    log: PathBuf,
    child: Child,
}

impl Server {
    /// Starts a server in `directory`, as a member of the process group `group`.
    pub(crate) fn start(recipe: Recipe, directory: &Path, group: i32) -> Result<Self> {
        let log = directory.join(format!("{}.log", recipe.name));
        let output = File::options().create(true).append(true).open(&log)?;
        let child = Command::new(&recipe.program)
            .args(&recipe.arguments)
            // The servers are small and busy: garbage collection would take a sixth of their time.
            .env("GOGC", "400")
            .envs(recipe.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(directory)
            .process_group(group)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {} ({})", recipe.name, recipe.program.display()))?;
        Ok(Self { recipe, log, child })
    }

    pub(crate) fn name(&self) -> &'static str {
        self.recipe.name
    }

    pub(crate) fn into_recipe(self) -> Recipe {
        self.recipe
    }

    pub(crate) fn start_again(&mut self, directory: &Path, group: i32) -> Result<()> {
        *self = Self::start(self.recipe.clone(), directory, group)?;
        Ok(())
    }

    /// An error with the end of the server's log if it has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}), the end of its log:\n{}", self.recipe.name, self.last_words());
        }
        Ok(())
    }

    /// The last lines of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
    }

    /// Kills it, as in a crash. Succeeds if it has ended already.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.child.kill().with_context(|| format!("cannot kill {}", self.recipe.name))?;
        self.wait();
        Ok(())
    }

    /// Waits until it has ended.
    pub(crate) fn wait(&mut self) {
        let _ = self.child.wait();
    }
}
