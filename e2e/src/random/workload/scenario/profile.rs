//! The Profile of an app. Profiles have no namespace: each case has its own. An **effect**.

use anyhow::Result;
use clientapp_crd::Profile;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::charts;
use crate::lab::Tenant;
use crate::random::requests::{change, ready_from};

/// The name of a namespace's Profile: the only one that its operator sees.
pub fn name(namespace: &str) -> String {
    namespace.to_owned()
}

pub async fn prepare(tenant: &Tenant) -> Result<()> {
    let profile = json!({"metadata": {"name": name(&tenant.namespace)}, "spec": requests("200m")});
    profiles(tenant).create(&PostParams::default(), &serde_json::from_value(profile)?).await?;
    Ok(())
}

/// Changes the Profile, and waits until the app has followed.
pub async fn act(tenant: &Tenant) -> Result<()> {
    change(&profiles(tenant), &name(&tenant.namespace), &json!({"spec": requests("300m")})).await?;
    // The app's own generation stays.
    ready_from(tenant, charts::DEFAULT, 2).await
}

/// Deletes the Profile of a case that is over.
pub async fn clean_up(tenant: &Tenant) -> Result<()> {
    profiles(tenant).delete(&name(&tenant.namespace), &DeleteParams::default()).await?;
    Ok(())
}

fn profiles(tenant: &Tenant) -> Api<Profile> {
    Api::all(tenant.client.clone())
}

fn requests(cpu: &str) -> Value {
    json!({"defaults": {"resources": {"requests": {"cpu": cpu}}}})
}
