//! Every invalid input is refused with a clear message that names the field, and nothing is half done: at once by the
//! API server, or in a condition by the operator.

mod charts_that_fail;
mod neighbours;
mod private_charts;
mod schema;
mod spec;
mod stored;
mod surroundings;

use clientapp_crd::conditions::find;
use clientapp_crd::{ClientApp, ClientAppStatus};
use e2e::charts::{self, Content};
use e2e::lab::{Apart, Lab, Tenant, has, hostname, leading};
use e2e::operator::{Operator, Options};
use e2e::repository::{Fault, Repository};
use e2e::wait::until;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{CustomResourceExt as _, Resource as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

/// The API server's response.
fn refusal<T>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => panic!("the API server did not answer: {error}"),
        Ok(_) => "it was accepted".to_owned(),
    }
}

/// Fails with all rows whose text lacks a required part, at the end of a table.
fn assert_all(rows: impl IntoIterator<Item = (String, String, Vec<String>)>) {
    let silent: Vec<_> = rows
        .into_iter()
        .filter(|(_, said, parts)| !parts.iter().all(|part| said.contains(part)))
        .map(|(input, said, parts)| format!("{input:.120}\n  said: {said:.1000}\n  should say: {parts:?}"))
        .collect();
    assert!(silent.is_empty(), "{} rows:\n{}", silent.len(), silent.join("\n"));
}

/// ClientApps as stored, whatever their content.
fn raw(tenant: &Tenant) -> Api<DynamicObject> {
    Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &ApiResource::erase::<ClientApp>(&()))
}

/// Waits until the check accepts a ClientApp's status, whatever its spec is.
async fn seen(tenant: &Tenant, name: &str, what: &str, check: impl Fn(&ClientAppStatus) -> bool) -> ClientAppStatus {
    /// All that can be decoded of an object that nests more deeply than serde_json reads.
    #[derive(Deserialize)]
    struct Seen {
        status: Option<ClientAppStatus>,
    }
    until(&format!("{name} is {what}"), async || {
        let request = http::Request::get(format!("{}/{name}", ClientApp::url_path(&(), Some(&tenant.namespace))));
        let text = tenant.client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
        let Seen { status } = serde_json::from_str(&text).unwrap();
        let log = || tenant.lab.operator_log();
        status.filter(&check).ok_or_else(|| format!("it is {text:.4000}\nthe operator's log:\n{}", log()))
    })
    .await
}

/// Waits until a ClientApp is refused as `InvalidSpec`, and returns the sentence.
async fn invalid(tenant: &Tenant, name: &str) -> String {
    let what = format!("InvalidSpec of {name}");
    let status = seen(tenant, name, &what, |status| {
        has(status, "Stalled", "True", "InvalidSpec")
            && has(status, "Ready", "False", "InvalidSpec")
            && has(status, "Reconciling", "False", "InvalidSpec")
    });
    find(&status.await.conditions, "Ready").unwrap().message.clone()
}

/// Deletes ClientApps, whatever their spec is, and waits until they are gone.
fn delete(tenant: &Tenant, names: &[&str]) {
    tenant.kubectl(&[&["delete", "clientapp"], names].concat()).unwrap();
}

/// The objects in the namespace, except those of every namespace.
fn made(tenant: &Tenant) -> Vec<String> {
    let mut kinds = "secrets,configmaps,services,deployments,statefulsets,persistentvolumeclaims".to_owned();
    if tenant.lab.percona.is_some() {
        kinds.push_str(",perconapgclusters");
    }
    let list = tenant.kubectl(&["get", &kinds, "--output", "name"]).unwrap();
    list.lines().filter(|name| !name.contains("kube-root-ca.crt")).map(str::to_owned).collect()
}

/// Changes the spec and waits until the operator has seen it. By then the operator has done everything that it does
/// without a further change.
async fn nudge(tenant: &Tenant, name: &str, deletion_policy: &str) -> ClientAppStatus {
    let app = tenant.patch(name, json!({"deletionPolicy": deletion_policy})).await.unwrap();
    let generation = app.metadata.generation;
    tenant.status(name, "nudged", |status| status.observed_generation >= generation).await
}

/// Puts a retry off until [`time_passes`], however long what comes before takes.
async fn time_stands_still(tenant: &Tenant, name: &str) {
    let later = (Timestamp::now() + SignedDuration::from_mins(30)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let patch = Patch::Merge(json!({"status": {"lastAttempt": {"retryAt": later}}}));
    tenant.api::<ClientApp>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Makes a retry due, and leaves the rest to the operator.
async fn time_passes(tenant: &Tenant, name: &str) {
    let patch = Patch::Merge(json!({"status": {"lastAttempt": {"retryAt": "2000-01-01T00:00:00Z"}}}));
    tenant.api::<ClientApp>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// The number of revisions in Helm's storage.
async fn revisions(tenant: &Tenant, release: &str) -> usize {
    let stored = ListParams::default().labels(&format!("owner=helm,name={release}"));
    tenant.api::<Secret>().list_metadata(&stored).await.unwrap().items.len()
}

fn small(tenant: &Tenant, name: &str, version: &str) -> Value {
    json!({
        "hostname": hostname(tenant, name), "chartVersion": version,
        "postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false},
    })
}

/// A lab whose cluster tests may break on purpose, one test at a time. Its operator starts with a cold chart cache.
async fn rough() -> (&'static Lab, MutexGuard<'static, ()>) {
    let (lab, turn) = Lab::to_change().await;
    restart(lab).await;
    (lab, turn)
}

async fn restart(lab: &'static Lab) {
    let start = || lab.start_operator(&lab.options()).expect("the operator starts");
    tokio::task::spawn_blocking(start).await.unwrap();
}

/// A namespace with its own operators and its own chart repository to break.
async fn with_repository(namespace: &str) -> (Apart, Repository) {
    let apart = Lab::unattended().await.apart(namespace).await;
    let repository = Repository::start().unwrap();
    let options = Options { chart_repository: repository.url(), ..apart.options };
    (Apart { options, ..apart }, repository)
}
