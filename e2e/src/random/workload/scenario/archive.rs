//! Archives of the files of an app by schedule. The store is never reached: a simulated node runs the Job. An **effect**.

use anyhow::Result;
use clientapp_crd::{BackupPhase, ClientApp, ClientAppBackup};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::charts;
use crate::lab::Tenant;
use crate::random::requests::{TIMEOUT, patch, plant, ready};
use crate::wait::within;

const STORE: &str = "s3";

/// Creates the credentials for a bucket, at which no request arrives.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    plant(tenant, STORE, json!({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})).await
}

/// Asks for archives, with another schedule, lets one be due, and asks for none.
pub async fn act(tenant: &Tenant) -> Result<()> {
    for schedule in ["@yearly", "0 0 1 1 *"] {
        patch(tenant, json!({"persistence": {"backup": backup(schedule)}})).await?;
        scheduled(tenant, Some(schedule)).await?;
    }
    let due = Patch::Merge(json!({"status": {"files": {"scheduled": {"next": "2026-01-31T03:30:00Z"}}}}));
    tenant.api::<ClientApp>().patch_status("acme", &PatchParams::default(), &due).await?;
    let is_made = async || {
        let found = tenant.api::<ClientAppBackup>().get_opt("acme-files-202601310330").await;
        let found = found.map_err(|error| error.to_string())?;
        match found.and_then(|found| found.status).and_then(|status| status.phase) {
            Some(BackupPhase::Completed) => Ok(()),
            other => Err(format!("it is {other:?}")),
        }
    };
    within(TIMEOUT, "the ClientAppBackup that is due is complete", is_made).await?;
    patch(tenant, json!({"persistence": {"backup": null}})).await?;
    scheduled(tenant, None).await?;
    ready(tenant, charts::DEFAULT).await
}

/// Waits until this schedule is recorded.
async fn scheduled(tenant: &Tenant, schedule: Option<&str>) -> Result<()> {
    let is_so = async || {
        let app = tenant.api::<ClientApp>().get("acme").await.map_err(|error| error.to_string())?;
        let scheduled = app.status.and_then(|status| status.files?.scheduled).map(|scheduled| scheduled.schedule);
        if scheduled.as_deref() == schedule { Ok(()) } else { Err(format!("it is {scheduled:?}")) }
    };
    within(TIMEOUT, &format!("the schedule is {schedule:?}"), is_so).await
}

fn backup(schedule: &str) -> Value {
    let credentials = json!({"name": STORE});
    let store = json!({"endpoint": "http://127.0.0.1:9", "bucket": "archives", "credentialsSecret": credentials});
    json!({"schedule": schedule, "store": store})
}
