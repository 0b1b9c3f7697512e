//! The operator of a case: killed, started again, and looked at for what it leaves. An **effect**.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::operator::{Operator, Options};
use crate::shim::Shim;
use crate::wait::blocking_within;

/// Counts the reconciles of all kinds since the operator started.
const RECONCILES: &str = "clientapp_operator_reconcile_seconds_count";
/// For the first reconciles of an operator that leads.
const TIMEOUT: Duration = Duration::from_secs(60);

/// One operator after the other, with one helm, one chart cache and one directory for temporary files, as in a container that
/// restarts.
pub struct Operators {
    options: Options,
    pub(crate) running: Option<Operator>,
    pub(crate) log: String,
    shim: Shim,
    pub(crate) directory: TempDir,
}

impl Operators {
    /// Starts the first, and waits until it leads.
    pub fn start(lab: &Lab, options: &Options) -> Result<Operators> {
        let directory = tempfile::Builder::new().prefix("clientapp-faults-").tempdir()?;
        let (temporary, charts) = (directory.path().join("tmp"), directory.path().join("charts"));
        fs::create_dir(&temporary)?;
        let shim = Shim::around(&lab.tools.helm)?;
        let options = Options {
            helm: shim.path(),
            temporary: Some(temporary),
            chart_cache: Some(charts),
            // What it logs is searched for passwords, and more is logged than by default.
            environment: vec![("RUST_LOG".to_owned(), "info,clientapp_operator=debug".to_owned())],
            ..options.clone()
        };
        let mut operators = Operators { options, running: None, log: String::new(), shim, directory };
        operators.lead()?;
        Ok(operators)
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

    /// Starts another, and waits until it leads.
    pub fn lead(&mut self) -> Result<()> {
        self.running = Some(Operator::leading(&self.options)?);
        Ok(())
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
    pub fn stop(mut self) -> Result<Remains> {
        let mut operator = self.running.take().context("no operator runs")?;
        operator.signal(Signal::SIGTERM);
        let well = operator.wait()?;
        let log = std::mem::take(&mut self.log) + &operator.log();
        ensure!(well, "the operator failed when it was stopped:\n{log}");
        let files = files(&self.directory.path().join("tmp"))?
            .into_iter()
            .map(|file| format!("the file {} is left", file.display()));
        let processes =
            processes(self.directory.path()).into_iter().map(|process| format!("the process {process} is left"));
        Ok(Remains {
            log,
            arguments: self.shim.runs().into_iter().map(|run| run.arguments).collect(),
            overlaps: self.shim.overlaps(),
            leftovers: files.chain(processes).collect(),
        })
    }
}

/// Kills processes. They may have ended already: the kernel kills an orphan of the operator.
fn end(children: Vec<Pid>) {
    children.into_iter().for_each(|child| _ = kill(child, Signal::SIGKILL));
}

/// What the operators of a case have left.
pub struct Remains {
    pub log: String,
    /// Of all helm processes.
    pub arguments: Vec<String>,
    pub overlaps: Vec<String>,
    pub leftovers: Vec<String>,
}

fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect()
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
