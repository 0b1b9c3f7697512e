//! What users ask for, and wait for. All of it is asked again after a failure: the API server may be away. An **effect**.

use std::time::Duration;

use anyhow::Result;
use clientapp_crd::{ClientApp, ClientAppStatus, annotation};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use serde::Serialize;
use serde_json::{Value, json};

use crate::lab::{Object, Tenant, has};
use crate::wait::within;

/// Longer than any recovery, and than a deletion with all its requests where each answer is a second late (row 13).
pub const TIMEOUT: Duration = Duration::from_secs(300);
pub const APP: &str = "acme";
pub const GIVEN: &str = "given";
pub const DEPLOYMENT: &str = "acme-nextcloud";
/// The password in the Secret that the user gives.
pub const CANARY: &str = "canary-4b1d-in-secrets-only";

/// Creates the Secret that `spec.adminSecret` names.
pub async fn give(tenant: &Tenant) -> Result<()> {
    plant(tenant, GIVEN, json!({"nextcloud-username": "admin", "nextcloud-password": CANARY})).await
}

/// Creates a Secret of the user.
pub async fn plant(tenant: &Tenant, name: &str, data: Value) -> Result<()> {
    let secret = serde_json::from_value(json!({"metadata": {"name": name}, "stringData": data}))?;
    tenant.api::<Secret>().create(&PostParams::default(), &secret).await?;
    Ok(())
}

/// What the app's pods know of their credentials.
pub async fn credentials(tenant: &Tenant) -> Result<Option<String>> {
    let deployment = tenant.api::<Deployment>().get(DEPLOYMENT).await?;
    let template = deployment.spec.and_then(|spec| spec.template.metadata);
    Ok(template.and_then(|template| template.annotations?.remove(annotation::CREDENTIALS)))
}

pub async fn create(tenant: &Tenant, spec: Value) -> Result<()> {
    let created = async || match tenant.create(APP, spec.clone()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    };
    within(TIMEOUT, "the ClientApp is created", created).await
}

pub async fn patch(tenant: &Tenant, spec: Value) -> Result<()> {
    within(TIMEOUT, "the ClientApp is patched", async || tenant.patch(APP, spec.clone()).await.map(drop)).await
}

/// Deletes an object, and waits until it is gone.
pub async fn delete<K: Object + Serialize>(tenant: &Tenant, name: &str, params: &DeleteParams) -> Result<()> {
    ask_to_delete::<K>(tenant, name, params).await?;
    gone::<K>(tenant, name).await
}

/// Deletes an object that has a finalizer.
pub async fn ask_to_delete<K: Object>(tenant: &Tenant, name: &str, params: &DeleteParams) -> Result<()> {
    let deleted = async || match tenant.api::<K>().delete(name, params).await {
        // An earlier request was applied, and its answer lost.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    };
    within(TIMEOUT, &format!("{} {name} is deleted", K::kind(&())), deleted).await
}

pub async fn gone<K: Object + Serialize>(tenant: &Tenant, name: &str) -> Result<()> {
    let gone = async || match tenant.api::<K>().get_opt(name).await {
        Ok(None) => Ok(()),
        Ok(Some(object)) => Err(told(&object)),
        Err(error) => Err(error.to_string()),
    };
    within(TIMEOUT, &format!("{} {name} is gone", K::kind(&())), gone).await
}

/// Waits until the app is Ready with its current spec, and with this chart.
pub async fn ready(tenant: &Tenant, chart: &str) -> Result<()> {
    ready_from(tenant, chart, 1).await
}

/// The same at this revision or a later one.
pub async fn ready_from(tenant: &Tenant, chart: &str, revision: i64) -> Result<()> {
    let is_ready = |status: &ClientAppStatus| {
        let release = status.release.as_ref();
        let release = release.filter(|found| found.chart_version.as_deref() == Some(chart));
        release.is_some_and(|found| found.revision >= revision) && has(status, "Ready", "True", "Ready")
    };
    told_of(tenant, &format!("the ClientApp is Ready with chart {chart}"), is_ready).await.map(drop)
}

/// Waits until the app is Ready, or another request has deleted it.
pub async fn ready_or_deleted(tenant: &Tenant) -> Result<()> {
    let look = async || {
        let Some(app) = tenant.api::<ClientApp>().get_opt(APP).await.map_err(|error| error.to_string())? else {
            return Ok(());
        };
        let is_ready = app.status.as_ref().is_some_and(|status| has(status, "Ready", "True", "Ready"));
        if is_ready || app.metadata.deletion_timestamp.is_some() { Ok(()) } else { Err(told(&app)) }
    };
    within(TIMEOUT, "the ClientApp is Ready, or deleted", look).await
}

/// Waits until the operator leaves the app alone.
pub async fn suspended(tenant: &Tenant) -> Result<()> {
    let is_suspended = |status: &ClientAppStatus| has(status, "Reconciling", "False", "Suspended");
    told_of(tenant, "the ClientApp is suspended", is_suspended).await.map(drop)
}

/// Waits until the status is of the current spec, and like this.
pub async fn told_of(tenant: &Tenant, what: &str, is: impl Fn(&ClientAppStatus) -> bool) -> Result<ClientAppStatus> {
    let look = async || {
        let app = tenant.api::<ClientApp>().get(APP).await.map_err(|error| error.to_string())?;
        let status = app.status.as_ref().filter(|status| status.observed_generation == app.metadata.generation);
        status.filter(|status| is(status)).cloned().ok_or_else(|| told(&app))
    };
    within(TIMEOUT, what, look).await
}

/// The conditions of an object, for people.
pub fn told(object: &impl Serialize) -> String {
    let object = serde_json::to_value(object).unwrap_or_default();
    let words = object["status"]["conditions"].as_array().into_iter().flatten().map(|told| {
        let [type_, status, reason, message] =
            ["type", "status", "reason", "message"].map(|word| told[word].as_str().unwrap_or_default());
        format!("{type_}={status} {reason}: {message}")
    });
    words.collect::<Vec<_>>().join("; ")
}
