//! The finalizer that keeps a deleted `ClientApp` until its teardown is verified. An **effect**.
//!
//! kube's own `finalizer()` keeps a finalizer only while the cleanup fails; here a cleanup also waits, which is no
//! failure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{Ctx, error::Error, names::Key};
use crate::crd::{ClientApp, FINALIZER, Guard};

/// Whether the object carries the finalizer.
#[must_use]
pub fn present(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == FINALIZER)
}

/// Adds the finalizer.
///
/// # Errors
/// The API server's refusal; a conflict when the object has changed since.
pub async fn add(ctx: &Ctx, key: &Key, meta: &ObjectMeta) -> Result<(), Error> {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.push(FINALIZER.to_owned());
    write(ctx, key, meta, finalizers, "add the finalizer to").await
}

/// Takes the finalizer off: the object is gone after that.
///
/// # Errors
/// The API server's refusal; a conflict when the object has changed since.
pub async fn remove(ctx: &Ctx, key: &Key, meta: &ObjectMeta) -> Result<(), Error> {
    let mut finalizers = meta.finalizers.clone().unwrap_or_default();
    finalizers.retain(|finalizer| finalizer != FINALIZER);
    write(ctx, key, meta, finalizers, "take the finalizer off").await
}

async fn write(ctx: &Ctx, key: &Key, meta: &ObjectMeta, finalizers: Vec<String>, what: &str) -> Result<(), Error> {
    // The answer is the object, and may be one that does not decode.
    let api: Api<Guard<ClientApp>> = Api::namespaced(ctx.client.clone(), &key.namespace);
    // With uid and version of the object that was looked at, nobody else's finalizer is lost and no successor is touched.
    let patch = json!({"metadata": {
        "uid": meta.uid,
        "resourceVersion": meta.resource_version,
        "finalizers": finalizers,
    }});
    match api.patch(&key.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("{what} ClientApp {key}"))(error)),
        Ok(_) => Ok(()),
    }
}
