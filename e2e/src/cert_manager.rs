//! cert-manager's real controllers beside a control plane, as far as certificates of Ingresses by self-signed issuers need them.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use kube::Api;

use crate::percona::define;
use crate::plane::ControlPlane;
use crate::plane::watchdog::Watchdog;
use crate::progress::Progress;
use crate::tools::Extra;

/// Dropping it stops the controllers; their objects stay.
pub struct CertManager {
    watchdog: Watchdog,
    server: Child,
}

impl CertManager {
    /// Installs the definitions, and starts the controllers as cluster admin. Builds them if they are not in the cache.
    pub async fn start(plane: &ControlPlane) -> Result<CertManager> {
        let program = Extra::CertManager.ensure(&Progress::stderr())?;
        let api = Api::all(plane.client().await?);
        let definitions = Extra::CertManager.definitions(&Progress::stderr())?;
        try_join_all(definitions.iter().map(|definition| define(&api, definition))).await?;

        let home = tempfile::tempdir()?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let home = home.keep();
        let log = File::create(home.join("log"))?;
        let server = Command::new(&program)
            .arg(plane.kubeconfig())
            .process_group(watchdog.group())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start cert-manager")?;
        Ok(CertManager { watchdog, server })
    }
}

impl Drop for CertManager {
    fn drop(&mut self) {
        self.watchdog.act();
        let _ = self.server.wait();
        self.watchdog.wait();
    }
}
