//! Creates the first objects in a new plane, and checks when it is usable.

use anyhow::{Context as _, Result};
use axum::http::Request;
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

const STORAGE_CLASS: &str = include_str!("../../kwok/storage-class.yaml");

/// Returns true if the API server says that it is ready.
pub(crate) async fn answers(client: &Client) -> bool {
    let ready = Request::get("/readyz").body(Vec::new()).expect("it is a valid request");
    client.request_text(ready).await.is_ok()
}

/// Creates the nodes and the default storage class.
pub(super) async fn furnish(client: &Client, nodes: usize) -> Result<()> {
    let params = PostParams::default();
    let class: StorageClass = serde_yaml::from_str(STORAGE_CLASS)?;
    Api::all(client.clone()).create(&params, &class).await.context("cannot create the storage class")?;
    let api: Api<Node> = Api::all(client.clone());
    let nodes = (0..nodes).map(node).collect::<Result<Vec<_>>>()?;
    try_join_all(nodes.iter().map(|node| api.create(&params, node))).await.context("cannot create the nodes")?;
    Ok(())
}

pub(crate) async fn nodes_are_ready(client: &Client, nodes: usize) -> bool {
    let api: Api<Node> = Api::all(client.clone());
    api.list(&ListParams::default()).await.is_ok_and(|list| list.iter().filter(is_ready).count() == nodes)
}

/// Without this service account no pod can be created in the namespace `default`.
pub(crate) async fn service_account_exists(client: &Client) -> bool {
    let api: Api<ServiceAccount> = Api::default_namespaced(client.clone());
    api.get("default").await.is_ok()
}

fn node(index: usize) -> Result<Node> {
    let name = format!("node-{index}");
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"},
        },
    }))?)
}

fn is_ready(node: &&Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
