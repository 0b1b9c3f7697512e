//! Wraps the object of one reconcile: its recorded status, its finalizers, and reads past the cache. An **effect**.

use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Client, Resource as _,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{api::ignore_not_found, controller::{ApiScope as _, ReconciledObject}, key::Key};
use crate::crd::Guard;

/// Returns true if an object has this finalizer.
pub(crate) fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|found| found == finalizer)
}

/// Returns the resource version of an object: a number, as Kubernetes guarantees since 1.35.
pub(crate) fn version(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_ref()?.parse().ok()
}

/// An object as one reconcile finds it.
pub struct Reconciled<'a, K, S> {
    pub key: &'a Key,
    pub guard: &'a Guard<K>,
    /// Its status as last recorded.
    pub recorded_status: S,
    /// The newest version of the object that is known to have the recorded status; 0 if unknown.
    pub(super) version: AtomicU64,
}

impl<'a, K: ReconciledObject, S> Reconciled<'a, K, S> {
    pub fn meta(&self) -> &'a ObjectMeta {
        &self.guard.metadata
    }

    /// Returns the value of an annotation of the object.
    pub fn annotation(&self, key: &str) -> Option<&'a String> {
        self.meta().annotations.as_ref()?.get(key)
    }

    pub(super) fn version(&self) -> Option<u64> {
        Some(self.version.load(Ordering::Relaxed)).filter(|version| *version > 0)
    }

    pub fn uid(&self) -> &'a str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// Returns the object, or why the stored one does not decode.
    pub fn object(&self) -> Result<&'a K, &'a str> {
        self.guard.object.as_ref().map_err(String::as_str)
    }

    /// Returns the object, or a sentence that says why the stored one does not decode.
    pub fn decoded(&self) -> Result<&'a K, String> {
        self.object().map_err(|problem| format!("the stored object does not decode: {problem}"))
    }

    pub fn is_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        has_finalizer(self.meta(), finalizer)
    }

    /// Adds a finalizer to the object. Returns `false` if the object is gone, which is not a failure, but then nothing may be created
    /// for it, because no teardown would follow.
    pub async fn add_finalizer(&self, client: &Client, finalizer: &str) -> kube::Result<bool> {
        let others = self.finalizers_except(finalizer);
        self.patch_finalizers(client, others.chain([finalizer]).collect()).await
    }

    /// Removes a finalizer from the object. Returns `false` if the object is gone.
    pub async fn remove_finalizer(&self, client: &Client, finalizer: &str) -> kube::Result<bool> {
        self.patch_finalizers(client, self.finalizers_except(finalizer).collect()).await
    }

    fn finalizers_except(&self, finalizer: &str) -> impl Iterator<Item = &str> {
        let finalizers = self.meta().finalizers.iter().flatten().map(String::as_str);
        finalizers.filter(move |found| *found != finalizer)
    }

    async fn patch_finalizers(&self, client: &Client, finalizers: Vec<&str>) -> kube::Result<bool> {
        let meta = self.meta();
        // The answer is the object, which may not decode.
        let api = K::Scope::api::<Guard<K>>(client.clone(), &self.key.namespace);
        // The uid and version make sure that no other client's finalizer is lost, and that no successor of the object is
        // touched.
        let patch = json!({"metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": finalizers,
        }});
        let written = api.patch(&self.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await;
        let written = ignore_not_found(written)?;
        if let Some(written) = &written {
            self.version.store(version(&written.metadata).unwrap_or_default(), Ordering::Relaxed);
        }
        Ok(written.is_some())
    }

    /// Returns true if the API server says now that it is gone.
    pub async fn is_gone(&self, client: &Client) -> kube::Result<bool> {
        Ok(self.current_metadata(client).await?.is_none())
    }

    /// Returns true if the API server still has it with the same generation, and not in deletion.
    pub async fn is_current(&self, client: &Client) -> kube::Result<bool> {
        let now = self.current_metadata(client).await?;
        let is_same = |now: &ObjectMeta| now.generation == self.meta().generation && now.deletion_timestamp.is_none();
        Ok(now.as_ref().is_some_and(is_same))
    }

    /// Reads the metadata of this same object, by uid, from the API server.
    async fn current_metadata(&self, client: &Client) -> kube::Result<Option<ObjectMeta>> {
        let api = K::Scope::api::<Guard<K>>(client.clone(), &self.key.namespace);
        let object = api.get_metadata_opt(&self.key.name).await?;
        Ok(object.map(|found| found.metadata).filter(|now| now.uid == self.meta().uid))
    }

    /// Returns the reference of the events about it.
    pub fn reference(&self) -> ObjectReference {
        self.guard.object_ref(&())
    }
}
