//! A helm for tests: it records what it is asked for and answers as scripted.

use futures::{FutureExt, future::BoxFuture};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{
    ChartName, ChartSource, Finished, HelmApi, HelmError, HelmFailure, HelmUnavailable, HelmVersion, Pulled, Uninstall,
    Upgrade, Verb,
};

/// One thing the fake was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// An upgrade.
    Upgrade(Upgrade),
    /// An uninstall.
    Uninstall(Uninstall),
    /// A pull.
    Pull {
        /// The chart.
        chart: ChartName,
        /// Its version.
        version: semver::Version,
    },
}

type Script<Request, Answer> = Box<dyn Fn(&Request) -> Result<Answer, HelmError> + Send + Sync>;
type PullScript = Box<dyn Fn(&ChartSource, &ChartName, &semver::Version) -> Result<Pulled, HelmError> + Send + Sync>;

/// By default it is helm 4.3.1, upgrades and uninstalls succeed at once, and there is no chart to pull.
pub struct FakeHelm {
    calls: watch::Sender<Vec<Call>>,
    check: Box<dyn Fn() -> Result<HelmVersion, HelmUnavailable> + Send + Sync>,
    upgrade: Script<Upgrade, Finished>,
    uninstall: Script<Uninstall, Finished>,
    pull: PullScript,
    hangs: bool,
}

impl Default for FakeHelm {
    fn default() -> Self {
        Self {
            calls: watch::Sender::default(),
            check: Box::new(|| Ok(HelmVersion(semver::Version::new(4, 3, 1)))),
            upgrade: Box::new(|_| Ok(Finished::default())),
            uninstall: Box::new(|_| Ok(Finished::default())),
            pull: Box::new(|_, _, _| {
                let message = "no such chart".to_owned();
                Err(HelmError::Failed { verb: Verb::Pull, failure: HelmFailure::ChartNotFound, message })
            }),
            hangs: false,
        }
    }
}

impl FakeHelm {
    /// Scripts [`HelmApi::check`].
    pub fn checking(self, script: impl Fn() -> Result<HelmVersion, HelmUnavailable> + Send + Sync + 'static) -> Self {
        Self { check: Box::new(script), ..self }
    }

    /// Scripts upgrades. The script is the place for what helm would do to the cluster.
    pub fn upgrading(self, script: impl Fn(&Upgrade) -> Result<Finished, HelmError> + Send + Sync + 'static) -> Self {
        Self { upgrade: Box::new(script), ..self }
    }

    /// Scripts uninstalls.
    pub fn uninstalling(
        self,
        script: impl Fn(&Uninstall) -> Result<Finished, HelmError> + Send + Sync + 'static,
    ) -> Self {
        Self { uninstall: Box::new(script), ..self }
    }

    /// Scripts pulls.
    pub fn pulling(
        self,
        script: impl Fn(&ChartSource, &ChartName, &semver::Version) -> Result<Pulled, HelmError> + Send + Sync + 'static,
    ) -> Self {
        Self { pull: Box::new(script), ..self }
    }

    /// Every run takes until it is cancelled.
    pub fn hanging(self) -> Self {
        Self { hangs: true, ..self }
    }

    /// What it was asked for so far.
    pub fn calls(&self) -> Vec<Call> {
        self.calls.borrow().clone()
    }

    /// Waits until it has been asked for at least this many things.
    pub async fn called(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        // The sender is ours, so the channel stays open.
        let _ = calls.wait_for(|calls| calls.len() >= times).await;
    }

    async fn answer<T>(
        &self,
        verb: Verb,
        call: Call,
        cancel: &CancellationToken,
        script: impl FnOnce() -> Result<T, HelmError>,
    ) -> Result<T, HelmError> {
        if cancel.is_cancelled() {
            return Err(HelmError::NotStarted { verb });
        }
        self.calls.send_modify(|calls| calls.push(call));
        if self.hangs {
            cancel.cancelled().await;
            return Err(HelmError::Cancelled { verb });
        }
        script()
    }
}

impl HelmApi for FakeHelm {
    fn check(&self) -> BoxFuture<'_, Result<HelmVersion, HelmUnavailable>> {
        async { (self.check)() }.boxed()
    }

    fn upgrade<'a>(
        &'a self,
        request: &'a Upgrade,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Finished, HelmError>> {
        self.answer(Verb::Upgrade, Call::Upgrade(request.clone()), cancel, || (self.upgrade)(request)).boxed()
    }

    fn uninstall<'a>(
        &'a self,
        request: &'a Uninstall,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Finished, HelmError>> {
        self.answer(Verb::Uninstall, Call::Uninstall(request.clone()), cancel, || (self.uninstall)(request)).boxed()
    }

    fn pull<'a>(
        &'a self,
        source: &'a ChartSource,
        chart: &'a ChartName,
        version: &'a semver::Version,
        cancel: &'a CancellationToken,
    ) -> BoxFuture<'a, Result<Pulled, HelmError>> {
        let call = Call::Pull { chart: chart.clone(), version: version.clone() };
        self.answer(Verb::Pull, call, cancel, || (self.pull)(source, chart, version)).boxed()
    }
}
