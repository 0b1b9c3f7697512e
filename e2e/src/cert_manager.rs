//! cert-manager's real controllers beside a control plane, as far as certificates of Ingresses by self-signed issuers need them.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

use crate::lab::Lab;
use crate::manifests;
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
    pub fn start(lab: &Lab) -> Result<CertManager> {
        let program = Extra::CertManager.ensure(&Progress::stderr())?;
        let kubectl = |arguments: &[&str]| manifests::kubectl(&lab.plane, &lab.tools, arguments);
        let definitions = program.with_file_name("crds").display().to_string();
        kubectl(&["apply", "--server-side", "--filename", &definitions])?;
        kubectl(&["wait", "--for", "condition=established", "--timeout", "1m", "--filename", &definitions])?;

        let home = tempfile::tempdir()?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let home = home.keep();
        let log = File::create(home.join("log"))?;
        let server = Command::new(&program)
            .arg(lab.plane.kubeconfig())
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
