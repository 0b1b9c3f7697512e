//! An instance that is created and deleted through the operator's HTTP API. An **effect**.

use std::time::Duration;

use anyhow::Result;
use clientapp_crd::{ClientApp, label};
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{Patch, PatchParams};
use reqwest::{Client, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::charts;
use crate::lab::Tenant;
use crate::random::disturbance::operators::ApiUrl;
use crate::random::requests::{APP, CANARY, TIMEOUT, gone, plant, ready};
use crate::scenario::with;
use crate::wait::within;

/// How long the user waits for an answer before asking again.
const PATIENCE: Duration = Duration::from_secs(10);

/// Makes the namespace look like one that an earlier attempt of the request has created. It is not deleted with the instance,
/// since a Secret of the user is in it.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    plant(tenant, "kept", json!({"password": CANARY})).await?;
    let labels = json!({label::MANAGED_BY: label::OPERATOR, label::INSTANCE: APP});
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    Api::<Namespace>::all(tenant.client.clone()).patch(&tenant.namespace, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Creates the instance, and deletes it when it is Ready.
pub async fn act(tenant: &Tenant, api: &ApiUrl, spec: Value) -> Result<()> {
    let http = Client::builder().no_proxy().timeout(PATIENCE).build()?;
    let namespace = &tenant.namespace;
    let body = with(spec, json!({"name": APP, "namespace": namespace}));
    let created = async || {
        let request = http.post(format!("{}/instances", api.get()));
        // The request is the same each time, so there is one instance however often it is sent.
        done(request.header("Idempotency-Key", namespace).json(&body)).await
    };
    within(TIMEOUT, "the instance is created", created).await?;
    ready(tenant, charts::DEFAULT).await?;
    let deleted = async || done(http.delete(format!("{}/instances/{APP}?namespace={namespace}", api.get()))).await;
    within(TIMEOUT, "the instance is deleted", deleted).await?;
    gone::<ClientApp>(tenant, APP).await
}

/// Sends a request. A deletion that was asked for before may find nothing any more.
async fn done(request: RequestBuilder) -> Result<(), String> {
    let answer = request.send().await.map_err(|error| error.to_string())?;
    let status = answer.status();
    if status.is_success() || status == StatusCode::NOT_FOUND {
        return Ok(());
    }
    // A refusal, which contains no password.
    Err(format!("{status}: {}", answer.text().await.unwrap_or_default()))
}
