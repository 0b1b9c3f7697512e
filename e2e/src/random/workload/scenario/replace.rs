//! A ClientAppRestore of an app's database, in place or into another app, from a dump in a bucket. The Job that restores it is simulated. An
//! **effect**.

use anyhow::{Result, bail};
use clientapp_crd::{BackupPhase, ClientAppRestore};
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use serde_json::{Value, json};

use crate::lab::Tenant;
use crate::random::requests::{APP, TIMEOUT, asked};
use crate::scenario::with;
use crate::wait::within;

const NAME: &str = "yesterday";
const CREDENTIALS: &str = "bucket";

/// Creates the Secret with the credentials of the bucket.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    let secret: Secret = serde_json::from_value(json!({"metadata": {"name": CREDENTIALS}}))?;
    let secrets = tenant.api::<Secret>();
    let create = async || secrets.create(&PostParams::default(), &secret).await;
    asked("the Secret is created", 409, create).await.map(drop)
}

/// Creates it with more in its spec, and waits until it has ended.
pub async fn act(tenant: &Tenant, more: Value) -> Result<()> {
    let restores = tenant.api::<ClientAppRestore>();
    let path = format!("{}/{APP}-pg", tenant.namespace);
    let store = json!({
        "endpoint": "http://127.0.0.1:9", "bucket": "dumps", "path": path, "credentialsSecret": {"name": CREDENTIALS},
    });
    let spec = with(json!({"of": {"name": APP}, "database": {"store": store}}), more);
    let restore: ClientAppRestore = serde_json::from_value(json!({"metadata": {"name": NAME}, "spec": spec}))?;
    let create = async || restores.create(&PostParams::default(), &restore).await;
    asked("the ClientAppRestore is created", 409, create).await?;
    // Its finalizer goes once it holds nothing any more.
    let ended = async || match restores.get(NAME).await {
        Ok(found) => match found.status.and_then(|status| status.phase) {
            Some(phase) if phase.is_final() && found.metadata.finalizers.is_none() => Ok(phase),
            phase => Err(format!("it is {phase:?}")),
        },
        Err(error) => Err(error.to_string()),
    };
    match within(TIMEOUT, "the restore has ended", ended).await? {
        BackupPhase::Completed => Ok(()),
        phase => bail!("the restore is {phase:?}"),
    }
}
