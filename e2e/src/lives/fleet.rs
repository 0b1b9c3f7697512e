//! The operator that all lives share, and what befalls it. An **effect**.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::manifests;
use crate::operator::{Operator, Options};

/// The operators of a run: one that leads, and now and then one that is dead or frozen.
pub struct Fleet {
    lab: &'static Lab,
    options: Options,
    leading: Mutex<Option<Operator>>,
    /// What those have logged that run no more.
    logs: Mutex<String>,
    _charts: TempDir,
}

/// An operator that is stopped, with all its children, as a virtual machine is that is paused.
pub struct Frozen {
    // First, since who waits for it below has to let it go on before.
    tree: Tree,
    operator: Operator,
}

/// Processes that are stopped, until this is dropped.
struct Tree(Vec<i32>);

impl Tree {
    fn stop(parent: &Operator) -> Tree {
        parent.signal(Signal::SIGSTOP);
        // Its helms; those have no children.
        let children = children(parent.pid());
        children.iter().for_each(|pid| signal(*pid, Signal::SIGSTOP));
        Tree(children.into_iter().chain([parent.pid().cast_signed()]).collect())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| signal(*pid, Signal::SIGCONT));
    }
}

/// One that has ended meanwhile needs none.
fn signal(pid: i32, signal: Signal) {
    let _ = kill(Pid::from_raw(pid), signal);
}

impl Fleet {
    /// Starts the first one, and waits until it leads.
    ///
    /// # Errors
    /// When it does not.
    pub fn start(lab: &'static Lab) -> Result<Fleet> {
        let charts = tempfile::tempdir()?;
        let options = Options { chart_cache: Some(charts.path().to_owned()), ..lab.options() };
        let leading = Mutex::new(Some(Operator::leading(&options)?));
        Ok(Fleet { lab, options, leading, logs: Mutex::default(), _charts: charts })
    }

    /// Where the HTTP API is served.
    ///
    /// # Errors
    /// While no operator runs.
    pub fn api_url(&self) -> Result<String> {
        self.leading().as_mut().context("no operator runs")?.api_url()
    }

    /// What all of them have logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        logs + &self.leading().as_ref().map(Operator::log).unwrap_or_default()
    }

    /// Stops the one that leads.
    pub fn stop(&self) {
        drop(self.leading().take());
    }

    /// Kills the one that leads, as a crash would, and starts another, which leads at once: the dead one's Lease is taken
    /// away instead of being waited out.
    ///
    /// # Errors
    /// When the other does not lead.
    pub async fn kill(&self) -> Result<()> {
        let killed = self.leading().take().context("no operator runs")?;
        self.keep_log(&killed);
        tokio::task::block_in_place(|| killed.kill())?;
        let leases: Api<Lease> = Api::namespaced(self.lab.plane.client().await?, manifests::NAMESPACE);
        leases.delete(clientapp_operator::lease::NAME, &DeleteParams::default()).await?;
        tokio::task::block_in_place(|| self.lead())
    }

    /// Freezes the one that leads, and starts another, which leads when the Lease has expired.
    ///
    /// # Errors
    /// When the other does not lead.
    pub fn freeze(&self) -> Result<Frozen> {
        tokio::task::block_in_place(|| {
            let operator = self.leading().take().context("no operator runs")?;
            let frozen = Frozen { tree: Tree::stop(&operator), operator };
            self.lead().map(|()| frozen)
        })
    }

    /// Lets a frozen one go on, waits until it has found out that it leads no more and stands by, and stops it: as a
    /// standby it would lead again soon.
    ///
    /// # Errors
    /// When it does not find out.
    pub fn thaw(&self, frozen: Frozen) -> Result<()> {
        let Frozen { tree, mut operator } = frozen;
        drop(tree);
        let found_out = tokio::task::block_in_place(|| operator.wait_for_log("the lease is lost"));
        self.keep_log(&operator);
        tokio::task::block_in_place(|| drop(operator));
        found_out
    }

    fn lead(&self) -> Result<()> {
        let mut operator = Operator::start(&self.options)?;
        // Its API answers before it leads, as that of a standby does.
        operator.api_url()?;
        operator.wait_for_log("\"leading\"")?;
        *self.leading() = Some(operator);
        Ok(())
    }

    fn keep_log(&self, operator: &Operator) {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push_str(&operator.log());
    }

    fn leading(&self) -> MutexGuard<'_, Option<Operator>> {
        self.leading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The processes whose parent this is.
fn children(parent: u32) -> Vec<i32> {
    let tasks = fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}
