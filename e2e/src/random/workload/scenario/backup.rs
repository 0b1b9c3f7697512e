//! A ClientAppBackup of an app's database, whose dump is simulated. An **effect**.

use anyhow::{Result, bail};
use clientapp_crd::{BackupPhase, ClientAppBackup};
use kube::api::PostParams;
use serde_json::json;

use crate::lab::Tenant;
use crate::random::requests::{APP, TIMEOUT, asked};
use crate::wait::within;

const NAME: &str = "by-hand";

/// Creates it, and waits until it has ended.
pub async fn act(tenant: &Tenant) -> Result<()> {
    let backups = tenant.api::<ClientAppBackup>();
    let backup: ClientAppBackup = serde_json::from_value(
        json!({"metadata": {"name": NAME}, "spec": {"of": {"name": APP}, "parts": ["Database"]}}),
    )?;
    let create = async || backups.create(&PostParams::default(), &backup).await;
    asked("the ClientAppBackup is created", 409, create).await?;
    let ended = async || match backups.get(NAME).await {
        Ok(found) => match found.status.and_then(|status| status.phase) {
            Some(phase) if phase.is_final() => Ok(phase),
            phase => Err(format!("it is {phase:?}")),
        },
        Err(error) => Err(error.to_string()),
    };
    match within(TIMEOUT, "the backup has ended", ended).await? {
        BackupPhase::Completed => Ok(()),
        phase => bail!("the backup is {phase:?}"),
    }
}
