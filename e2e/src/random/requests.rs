//! Requests of users, and their waits. Each is sent again after a failure: the API server may be away. An **effect**.

use std::fmt::Debug;
use std::time::Duration;

use anyhow::{Result, bail};
use clientapp_crd::{ClientApp, ClientAppStatus, annotation};
use http::{Method, Request, header};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::oracle::told;
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

/// Returns what the app's pods know of their credentials.
pub async fn credentials(tenant: &Tenant) -> Result<Option<String>> {
    let deployment = tenant.api::<Deployment>().get(DEPLOYMENT).await?;
    let template = deployment.spec.and_then(|spec| spec.template.metadata);
    Ok(template.and_then(|template| template.annotations?.remove(annotation::CREDENTIALS)))
}

/// Asks until the answer is good, or is the one to a request that was applied before, and whose answer was lost.
pub async fn asked<T>(what: &str, before: u16, mut ask: impl AsyncFnMut() -> kube::Result<T>) -> Result<()> {
    let asked = async || match ask().await {
        Err(kube::Error::Api(status)) if status.code == before => Ok(()),
        answer => answer.map(drop),
    };
    within(TIMEOUT, what, asked).await
}

pub async fn create(tenant: &Tenant, spec: Value) -> Result<()> {
    asked("the ClientApp is created", 409, async || tenant.create(APP, spec.clone()).await).await
}

pub async fn patch(tenant: &Tenant, spec: Value) -> Result<()> {
    change::<ClientApp>(&tenant.api(), APP, &json!({"spec": spec})).await
}

/// Merges a patch into an object.
pub async fn change<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    patch: &Value,
) -> Result<()> {
    let patch = Patch::Merge(patch);
    let what = format!("{} {name} is changed", K::kind(&()));
    asked(&what, 0, async || api.patch(name, &PatchParams::default(), &patch).await).await
}

/// Deletes an object, and waits until it is gone.
pub async fn delete<K: Object + Serialize>(tenant: &Tenant, name: &str, params: &DeleteParams) -> Result<()> {
    ask_to_delete::<K>(tenant, name, params).await?;
    gone::<K>(tenant, name).await
}

/// Deletes an object that has a finalizer.
pub async fn ask_to_delete<K: Object>(tenant: &Tenant, name: &str, params: &DeleteParams) -> Result<()> {
    let what = format!("{} {name} is deleted", K::kind(&()));
    asked(&what, 404, async || tenant.api::<K>().delete(name, params).await).await
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

/// Of a merge patch, and of a whole object.
pub const MERGE: &str = "application/merge-patch+json";
pub const WHOLE: &str = "application/json";

/// The API server's response to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Accepted(Value),
    Refused { code: u16, message: String },
}

impl Answer {
    /// Returns what is wrong with it: a refusal says why, and is the client's fault.
    pub fn fault(&self) -> Option<String> {
        match self {
            Answer::Refused { code, message } if !(400..500).contains(code) || message.is_empty() => {
                Some(format!("the API server answers {code} {message:.300}"))
            }
            _ => None,
        }
    }

    /// Returns the object, or fails with the refusal.
    pub fn accepted(self) -> Result<Value> {
        match self {
            Answer::Accepted(object) => Ok(object),
            Answer::Refused { code, message } => bail!("the API server answers {code} {message:.1000}"),
        }
    }
}

/// Sends a request without a type that could not be invalid. Fails if there is no answer.
pub async fn ask(client: &Client, method: Method, url: &str, content: &str, body: &Value) -> Result<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    match text(client, method, url, content, body).await {
        Ok(text) => Ok(Answer::Accepted(serde_json::from_str(&text)?)),
        Err(kube::Error::Api(status)) => Ok(Answer::Refused { code: status.code, message: status.message }),
        Err(error) => Err(error.into()),
    }
}

/// Sends text and returns text: stored objects may be nested more deeply than serde_json reads.
pub async fn text(client: &Client, method: Method, url: &str, content: &str, body: String) -> kube::Result<String> {
    let request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, content);
    client.request_text(request.body(body.into_bytes()).map_err(kube::Error::HttpError)?).await
}
