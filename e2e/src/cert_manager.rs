//! cert-manager's real controllers beside a control plane, as far as certificates of Ingresses by self-signed issuers need them.

use std::process::Command;

use anyhow::Result;
use futures::future::try_join_all;
use kube::Api;

use crate::percona::define;
use crate::plane::ControlPlane;
use crate::plane::watchdog::Watched;
use crate::progress::Progress;
use crate::tools::Extra;

/// Dropping it stops the controllers; their objects stay.
pub struct CertManager {
    _server: Watched,
}

impl CertManager {
    /// Installs the definitions, and starts the controllers as cluster admin. Builds them if they are not in the cache.
    pub async fn start(plane: &ControlPlane) -> Result<CertManager> {
        let program = Extra::CertManager.ensure(&Progress::stderr())?;
        let api = Api::all(plane.client().await?);
        let definitions = Extra::CertManager.definitions(&Progress::stderr())?;
        try_join_all(definitions.iter().map(|definition| define(&api, definition))).await?;

        let server = Watched::start("cert-manager", |_| {
            let mut command = Command::new(&program);
            command.arg(plane.kubeconfig());
            Ok(command)
        })?;
        Ok(CertManager { _server: server })
    }
}
