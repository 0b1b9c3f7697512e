//! The operator that all lives share, which can be killed and frozen. An **effect**.

use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::DeleteParams;
use tempfile::TempDir;

use crate::lab::Lab;
use crate::manifests;
use crate::operator::{Frozen, Operator, Options};

/// The operators of a run: one leads, and sometimes another is dead or frozen.
pub struct Fleet {
    lab: &'static Lab,
    options: Options,
    leading: Mutex<Option<Operator>>,
    /// The logs of operators that no longer run.
    logs: Mutex<String>,
    _charts: TempDir,
}

impl Fleet {
    /// Starts the first operator, and waits until it leads.
    pub fn start(lab: &'static Lab) -> Result<Fleet> {
        let charts = tempfile::tempdir()?;
        let options = Options { chart_cache: Some(charts.path().to_owned()), ..lab.options() };
        let leading = Mutex::new(Some(Operator::leading(&options)?));
        Ok(Fleet { lab, options, leading, logs: Mutex::default(), _charts: charts })
    }

    /// The address of the HTTP API.
    pub fn api_url(&self) -> Result<String> {
        self.leading().as_mut().context("no operator runs")?.api_url()
    }

    /// The logs of all operators so far.
    #[must_use]
    pub fn log(&self) -> String {
        let logs = self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone();
        logs + &self.leading().as_ref().map(Operator::log).unwrap_or_default()
    }

    /// Stops the leader.
    pub fn stop(&self) {
        drop(self.leading().take());
    }

    /// Kills the leader, as in a crash, and starts another operator, which leads at once: the dead leader's Lease is
    /// deleted, so that it need not expire.
    pub async fn kill(&self) -> Result<()> {
        let killed = self.leading().take().context("no operator runs")?;
        self.keep_log(&killed);
        tokio::task::block_in_place(|| killed.kill())?;
        let leases: Api<Lease> = Api::namespaced(self.lab.plane.client().await?, manifests::NAMESPACE);
        leases.delete(clientapp_crd::LEASE, &DeleteParams::default()).await?;
        tokio::task::block_in_place(|| self.lead())
    }

    /// Freezes the leader, and starts another operator, which leads when the Lease has expired.
    pub fn freeze(&self) -> Result<Frozen> {
        tokio::task::block_in_place(|| {
            let operator = self.leading().take().context("no operator runs")?;
            let frozen = operator.freeze();
            self.lead().map(|()| frozen)
        })
    }

    /// Resumes a frozen operator, waits until it notices that it no longer leads and stands by, and stops it: as a
    /// standby it would soon lead again.
    pub fn thaw(&self, frozen: Frozen) -> Result<()> {
        let mut operator = frozen.thaw();
        let found_out = tokio::task::block_in_place(|| operator.wait_for_log("the lease is lost"));
        self.keep_log(&operator);
        tokio::task::block_in_place(|| drop(operator));
        found_out
    }

    fn lead(&self) -> Result<()> {
        let mut operator = Operator::start(&self.options)?;
        // Like any standby, it serves its API before it leads.
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
