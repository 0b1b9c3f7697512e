//! Finalizers of any kind. An **effect**.

use std::fmt::Debug;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{api::unless_gone, key::Key};
use crate::crd::Guard;

pub fn carries(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|found| found == finalizer)
}

/// Adds a finalizer to an object of any kind, or takes it off. It is no failure if the object is gone, but `false`: what
/// would be made for it now would not be taken down.
pub async fn write<K>(client: &Client, key: &Key, meta: &ObjectMeta, finalizer: &str, there: bool) -> kube::Result<bool>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.retain(|found| found != finalizer);
    finalizers.extend(there.then(|| finalizer.to_owned()));
    // The answer is the object, and may be one that does not decode.
    let api: Api<Guard<K>> = Api::namespaced(client.clone(), &key.namespace);
    // With uid and version of the object that was looked at, no other client's finalizer is lost and no successor is touched.
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": finalizers,
    }});
    let written = api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    unless_gone(written).map(|found| found.is_some())
}
