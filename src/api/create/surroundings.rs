//! The initial objects of a namespace that is created for an instance, before anything runs in it.

use std::time::Duration;

use axum::http::StatusCode;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ResourceQuota},
        networking::v1::NetworkPolicy,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Resource};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use crate::{
    api::{
        idempotency::RequestStamp,
        problem::Problem,
        refusal::{SOON, failed},
        shared::ApiState,
    },
    clientapp::teardown::namespace::{POLICY, QUOTA},
    crd::{ProfileNamespace, label},
    platform::{api::create_if_absent, key::Key},
};

/// Interval and number of checks of a new quota.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 100;

pub(super) fn namespace(stamp: Option<&RequestStamp>, key: &Key, asked: &ProfileNamespace) -> Namespace {
    let labels = [
        (label::MANAGED_BY, label::OPERATOR.to_owned()),
        (label::INSTANCE, key.name.clone()),
        // Keeps pods off the node, whatever a chart renders and spec.values add.
        (label::POD_SECURITY, asked.pod_security.to_string()),
    ];
    let labels = labels.map(|(key, value)| (key.to_owned(), value)).into();
    let annotations = stamp.map(RequestStamp::annotations);
    let name = Some(key.namespace.clone());
    Namespace {
        metadata: ObjectMeta { name, labels: Some(labels), annotations, ..ObjectMeta::default() },
        ..Namespace::default()
    }
}

/// Creates the initial objects that do not exist yet.
pub(super) async fn make(shared: &ApiState, key: &Key, asked: &ProfileNamespace) -> Result<(), Problem> {
    if !asked.open {
        create::<NetworkPolicy>(shared, key, POLICY, isolation(shared.parts.config.chart.as_str())).await?;
    }
    if !asked.quota.is_empty() {
        create::<ResourceQuota>(shared, key, QUOTA, json!({"hard": asked.quota})).await?;
        counted(shared, key).await?;
    }
    Ok(())
}

/// Waits until the quota has been calculated: before that, the API server refuses every object that it limits.
async fn counted(shared: &ApiState, key: &Key) -> Result<(), Problem> {
    let namespace = &key.namespace;
    let quotas = Api::<ResourceQuota>::namespaced(shared.parts.client.clone(), namespace);
    for _ in 0..LOOKS {
        let found = quotas.get(QUOTA).await.map_err(failed(format!("get ResourceQuota {namespace}/{QUOTA}")))?;
        if found.status.and_then(|status| status.hard).is_some() {
            return Ok(());
        }
        tokio::time::sleep(LOOK).await;
    }
    let detail = format!(
        "ResourceQuota {namespace}/{QUOTA} has not been calculated: the ResourceQuota controller of the cluster is not running"
    );
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ApiUnavailable", detail).retry_after(SOON))
}

/// Pods of other instances cannot reach the database or Redis. The app's own pods accept connections from everywhere, because an
/// Ingress controller may connect from a node's address, which no namespace selector matches. Namespaces that belong to no instance
/// may connect too: they run database operators and monitoring.
fn isolation(chart: &str) -> Value {
    let but =
        |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]});
    json!({
        "podSelector": but("app.kubernetes.io/name", chart),
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {}}, {"namespaceSelector": but(label::MANAGED_BY, label::OPERATOR)}]}],
    })
}

async fn create<K>(shared: &ApiState, key: &Key, name: &str, spec: Value) -> Result<(), Problem>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let operation = format!("create {} {}/{name}", K::kind(&()), key.namespace);
    let labels = json!({label::MANAGED_BY: label::OPERATOR});
    let object = serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}, "spec": spec}));
    let object: K = object.map_err(kube::Error::SerdeError).map_err(failed(operation.clone()))?;
    let api = Api::<K>::namespaced(shared.parts.client.clone(), &key.namespace);
    create_if_absent(&api, None, &object).await.map(drop).map_err(failed(operation))
}
