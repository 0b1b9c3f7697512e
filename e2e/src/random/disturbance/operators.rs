//! One operator after the other: killed, started again, and looked at for what it leaves. An **effect**.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::operator::{Frozen, Operator, Options};
use crate::shim::Shim;
use crate::wait::blocking_within;

/// Counts the reconciles of all kinds since the operator started.
const RECONCILES: &str = "clientapp_operator_reconcile_seconds_count";
/// For the first reconciles of an operator that leads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The line that an operator logs when another has taken the lead, or it could not renew its own.
const LOST: &str = "the lease is lost";

/// One operator after the other, with one helm, one chart cache and one directory for temporary files, as in a container that
/// restarts.
pub struct Operators {
    options: Options,
    pub(crate) running: Option<Operator>,
    frozen: Option<Frozen>,
    api: ApiUrl,
    log: String,
    helm: PathBuf,
    /// That of the operator which runs comes last. So many pods there were.
    shims: Vec<Shim>,
    directory: TempDir,
}

impl Operators {
    /// Starts the first, and waits until it leads. With a `clock` it has one that can be set.
    pub fn start(lab: &Lab, options: &Options, clock: bool) -> Result<Operators> {
        let directory = tempfile::Builder::new().prefix("clientapp-operators-").tempdir()?;
        let mut options = options.clone();
        // What it logs is searched for passwords, and more is logged than by default.
        options.environment.push(("RUST_LOG".to_owned(), "info,clientapp_operator=debug".to_owned()));
        if clock {
            options.environment.extend(clock::environment(&directory.path().join(CLOCK))?);
        }
        let (helm, api) = (lab.tools.helm.clone(), ApiUrl::default());
        let mut operators = Operators {
            options,
            running: None,
            frozen: None,
            api,
            log: String::new(),
            helm,
            shims: Vec::new(),
            directory,
        };
        operators.pod()?;
        operators.lead()?;
        Ok(operators)
    }

    /// Gives the next operators their own directories and a shim of their own, as in another pod: a helm that is frozen is at work
    /// only once it is thawed.
    fn pod(&mut self) -> Result<()> {
        let shim = Shim::around(&self.helm)?;
        self.shims.push(shim);
        let place = |name: &str| self.directory.path().join(format!("{name}-{}", self.shims.len()));
        (self.options.temporary, self.options.chart_cache) = (Some(place("tmp")), Some(place("charts")));
        self.options.helm = self.shims[self.shims.len() - 1].path();
        Ok(fs::create_dir(self.temporary())?)
    }

    /// Returns the directory for temporary files of the operator that runs.
    pub fn temporary(&self) -> PathBuf {
        self.options.temporary.clone().unwrap_or_default()
    }

    /// Returns what all operators have logged so far.
    pub fn log(&self) -> String {
        self.log.clone() + &self.running.as_ref().map(Operator::log).unwrap_or_default()
    }

    /// Returns what the operators that have ended have logged since the last call.
    pub fn take_log(&mut self) -> String {
        std::mem::take(&mut self.log)
    }

    /// Kills the operator, perhaps with its helms, as in a crash.
    pub fn kill(&mut self, with_helms: bool) -> Result<()> {
        let mut killed = self.running.take().context("no operator runs")?;
        let children = if with_helms { killed.children() } else { Vec::new() };
        killed.signal(Signal::SIGKILL);
        end(children);
        killed.wait()?;
        self.log += &killed.log();
        Ok(())
    }

    /// Kills the operator's helms alone.
    pub fn kill_helms(&mut self) -> Result<()> {
        end(self.running.as_mut().context("no operator runs")?.children());
        Ok(())
    }

    /// Asks the operator to stop, and waits until it has. `meanwhile` runs once it was asked.
    pub fn terminate(&mut self, meanwhile: impl FnOnce()) -> Result<()> {
        let Some(mut stopping) = self.running.take() else { return Ok(()) };
        stopping.signal(Signal::SIGTERM);
        meanwhile();
        let well = stopping.wait()?;
        self.log += &stopping.log();
        ensure!(well, "the operator failed when it was stopped:\n{}", self.log);
        Ok(())
    }

    /// Freezes the operator with its helms.
    pub fn freeze(&mut self) -> Result<()> {
        self.frozen = Some(self.running.take().context("no operator runs")?.freeze());
        self.pod()
    }

    /// Lets the frozen operator go on, if there is one, until it has found out that it no longer leads, and has stopped.
    pub fn thaw(&mut self) -> Result<()> {
        let Some(frozen) = self.frozen.take() else { return Ok(()) };
        let mut thawed = frozen.thaw();
        thawed.wait_for_log(LOST)?;
        thawed.signal(Signal::SIGTERM);
        thawed.wait()?;
        self.log += &thawed.log();
        Ok(())
    }

    /// Lets a frozen operator go on, and starts one if none runs, whatever the last disturbance has come to.
    pub fn resume(&mut self) -> Result<()> {
        self.thaw()?;
        if self.running.is_some() { Ok(()) } else { self.lead() }
    }

    /// Waits until the running operator has lost the lead.
    pub fn has_lost(&mut self) -> Result<()> {
        self.running.as_mut().context("no operator runs")?.wait_for_log(LOST)
    }

    /// Sets the clock of the operators by so many minutes.
    pub fn set_clock(&self, minutes: i8) -> Result<()> {
        clock::set(&self.directory.path().join(CLOCK), minutes)
    }

    /// Starts another, and waits until it leads. Like any standby, it serves its API before.
    pub fn lead(&mut self) -> Result<()> {
        let mut operator = Operator::start(&self.options)?;
        self.api.set(operator.api_url()?);
        operator.wait_for_log("\"leading\"")?;
        self.running = Some(operator);
        Ok(())
    }

    /// Where the HTTP API is served, also after the next start.
    pub fn api(&self) -> ApiUrl {
        self.api.clone()
    }

    /// Waits until the running operator has reconciled so many objects, at least.
    pub fn has_reconciled(&mut self, objects: usize) -> Result<()> {
        let operator = self.running.as_mut().context("no operator runs")?;
        let enough = || match operator.counted(RECONCILES) {
            // Far below the limit up to which such a number is exact.
            Ok(count) if count >= objects as f64 => Ok(()),
            Ok(count) => Err(format!("{count} reconciles")),
            Err(error) => Err(format!("{error:#}")),
        };
        blocking_within(TIMEOUT, &format!("the operator has reconciled {objects} objects"), enough)
    }

    /// Stops the operator, and returns what there is to know of it and of its predecessors.
    pub fn stop(&mut self) -> Result<Remains> {
        self.terminate(|| {})?;
        let mut leftovers = Vec::new();
        for pod in 1..=self.shims.len() {
            for file in fs::read_dir(self.directory.path().join(format!("tmp-{pod}")))? {
                leftovers.push(format!("the file {} is left", file?.path().display()));
            }
        }
        leftovers
            .extend(processes(self.directory.path()).iter().map(|process| format!("the process {process} is left")));
        Ok(Remains {
            log: std::mem::take(&mut self.log),
            arguments: self.shims.iter().flat_map(Shim::runs).map(|run| run.arguments).collect(),
            overlaps: self.shims.iter().flat_map(Shim::overlaps).collect(),
            leftovers,
        })
    }
}

/// The base URL of the newest operator's HTTP API.
#[derive(Clone, Default)]
pub struct ApiUrl(Arc<Mutex<String>>);

impl ApiUrl {
    pub fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, url: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = url;
    }
}

/// The name of the file with the time of the operators.
const CLOCK: &str = "clock";

/// A wall clock that can be set, by the library of Debian's package `faketime`, which is loaded into the operator.
mod clock {
    use std::fs;
    use std::path::{Path, PathBuf};

    use anyhow::{Context as _, Result};

    /// In the directory of a multiarch triplet.
    const LIBRARY: &str = "faketime/libfaketimeMT.so.1";

    /// The environment of an operator whose time is in this file, which is made.
    pub(super) fn environment(file: &Path) -> Result<Vec<(String, String)>> {
        set(file, 0)?;
        let places = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|place| place.path().join(LIBRARY));
        let library: PathBuf = places
            .into_iter()
            .find(|library| library.exists())
            .context("the clock of an operator can only be set with libfaketime: install Debian's package faketime")?;
        let environment = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            // In seconds, until it reads the file again.
            ("FAKETIME_CACHE_DURATION", "1".to_owned()),
            // As of a machine whose clock is set.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ];
        Ok(environment.map(|(name, value)| (name.to_owned(), value)).into())
    }

    pub(super) fn set(file: &Path, minutes: i8) -> Result<()> {
        let made = file.with_extension("new");
        fs::write(&made, format!("{minutes:+}m\n"))?;
        Ok(fs::rename(&made, file)?)
    }
}

/// Kills processes. They may have ended already: the kernel kills an orphan of the operator.
fn end(children: Vec<Pid>) {
    children.into_iter().for_each(|child| _ = kill(child, Signal::SIGKILL));
}

/// The remains of the operators of a case.
pub struct Remains {
    pub log: String,
    /// Of all helm processes.
    pub arguments: Vec<String>,
    pub overlaps: Vec<String>,
    pub leftovers: Vec<String>,
}

/// The processes whose command line or environment names this directory.
fn processes(directory: &Path) -> Vec<String> {
    let directory = directory.display().to_string();
    let all = fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    let told = all.filter_map(|process| {
        // Those of other users cannot be read.
        let read = |file: &str| fs::read(process.join(file)).unwrap_or_default();
        let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let names = command.contains(&directory) || String::from_utf8_lossy(&read("environ")).contains(&directory);
        names.then(|| format!("{} ({})", process.file_name().unwrap_or_default().to_string_lossy(), command.trim()))
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_found_by_its_environment_until_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let mut child = Command::new("cat");
        child.env("HOME", directory.path().join("home")).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = child.spawn().unwrap();
        let found = processes(directory.path());
        assert!(found.len() == 1 && found[0].starts_with(&child.id().to_string()), "{found:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(processes(directory.path()), [""; 0]);
    }
}
