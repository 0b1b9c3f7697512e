//! Finalizers of any kind. An **effect**.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{api::unless_gone, controller::Object, subject::Subject};
use crate::crd::Guard;

pub fn carries(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|found| found == finalizer)
}

impl<K: Object, S> Subject<'_, K, S> {
    /// Puts a finalizer on the object, or takes it off. It is no failure if the object is gone, but `false`: what would be
    /// made for it now would not be taken down.
    pub async fn seal(&self, client: &Client, finalizer: &str, on: bool) -> kube::Result<bool> {
        let meta = self.meta();
        let mut finalizers = meta.finalizers.clone().unwrap_or_default();
        finalizers.retain(|found| found != finalizer);
        finalizers.extend(on.then(|| finalizer.to_owned()));
        // The answer is the object, and may be one that does not decode.
        let api: Api<Guard<K>> = Api::namespaced(client.clone(), &self.key.namespace);
        // With uid and version of the object that was looked at, no other client's finalizer is lost and no successor is
        // touched.
        let patch = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        let written = api.patch(&self.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        unless_gone(written).map(|found| found.is_some())
    }
}
