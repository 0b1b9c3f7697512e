//! The CronJob that archives the files of an app. No archive is made: the first would be due on New Year's Day. An **effect**.

use anyhow::Result;
use k8s_openapi::api::batch::v1::CronJob;
use serde_json::{Value, json};

use crate::charts;
use crate::lab::Tenant;
use crate::random::requests::{TIMEOUT, patch, plant, ready};
use crate::wait::within;

const CRON_JOB: &str = "acme-files";
const STORE: &str = "s3";

/// Creates the credentials for a bucket, at which no request arrives.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    plant(tenant, STORE, json!({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"})).await
}

/// Asks for archives, with another schedule, and for none.
pub async fn act(tenant: &Tenant) -> Result<()> {
    for schedule in [Some("@yearly"), Some("0 0 1 1 *"), None] {
        patch(tenant, json!({"persistence": {"backup": schedule.map(backup)}})).await?;
        let is_so = async || {
            let found = tenant.api::<CronJob>().get_opt(CRON_JOB).await.map_err(|error| error.to_string())?;
            let found = found.and_then(|found| found.spec).map(|spec| spec.schedule);
            if found.as_deref() == schedule { Ok(()) } else { Err(format!("it is {found:?}")) }
        };
        within(TIMEOUT, &format!("the schedule of the CronJob is {schedule:?}"), is_so).await?;
    }
    ready(tenant, charts::DEFAULT).await
}

fn backup(schedule: &str) -> Value {
    let credentials = json!({"name": STORE});
    let store = json!({"endpoint": "http://127.0.0.1:9", "bucket": "archives", "credentialsSecret": credentials});
    json!({"schedule": schedule, "store": store})
}
