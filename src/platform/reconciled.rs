//! Wraps the object of one reconcile: its recorded status, its finalizers, and reads past the cache. An **effect**.

use std::sync::atomic::{AtomicU64, Ordering};

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Client, Resource as _,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    api::ignore_not_found,
    controller::{ApiScope as _, ReconciledObject},
    error::ReconcileFailure,
    key::Key,
};
use crate::crd::Guard;

pub(crate) fn has_finalizer(meta: &ObjectMeta, finalizer: &str) -> bool {
    meta.finalizers.iter().flatten().any(|found| found == finalizer)
}

fn finalizers_except(meta: &ObjectMeta, finalizer: &str) -> impl Iterator<Item = String> {
    meta.finalizers.iter().flatten().filter(move |found| *found != finalizer).cloned()
}

/// Returns the patch that sets the finalizers of an object. The uid and version make sure that no other client's finalizer is lost, and
/// that no successor of the object is touched.
fn finalizers_of(meta: &ObjectMeta, finalizers: &[String]) -> Value {
    json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}})
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
    pub(crate) async fn add_finalizer(&self, client: &Client, finalizer: &str) -> Result<bool, ReconcileFailure> {
        let operation = format!("add the finalizer to {} {}", K::kind(&()), self.key);
        self.with_finalizer(client, finalizer).await.map_err(ReconcileFailure::api(operation))
    }

    async fn with_finalizer(&self, client: &Client, finalizer: &str) -> kube::Result<bool> {
        let with =
            |meta: &ObjectMeta| finalizers_except(meta, finalizer).chain([finalizer.to_owned()]).collect::<Vec<_>>();
        match self.patch_finalizers(client, with(self.meta())).await {
            // This reconcile may have written the status, or another client has changed the object.
            Err(kube::Error::Api(conflict)) if conflict.code == 409 => {
                let Some(now) = self.patched(client, json!({"metadata": {"uid": self.meta().uid}})).await? else {
                    return Ok(false);
                };
                match now.metadata.deletion_timestamp {
                    None => {
                        let patch = finalizers_of(&now.metadata, &with(&now.metadata));
                        Ok(self.patched(client, patch).await?.is_some())
                    }
                    // None can be added any more.
                    Some(_) => Err(kube::Error::Api(conflict)),
                }
            }
            added => added,
        }
    }

    /// Removes a finalizer from the object. Returns `false` if the object is gone.
    pub(crate) async fn remove_finalizer(&self, client: &Client, finalizer: &str) -> Result<bool, ReconcileFailure> {
        let removed = self.patch_finalizers(client, finalizers_except(self.meta(), finalizer).collect()).await;
        let operation = format!("remove the finalizer from {} {}", K::kind(&()), self.key);
        removed.map_err(ReconcileFailure::api(operation))
    }

    /// Writes the finalizers of the object as the watch has it.
    async fn patch_finalizers(&self, client: &Client, finalizers: Vec<String>) -> kube::Result<bool> {
        let written = self.patched(client, finalizers_of(self.meta(), &finalizers)).await?;
        if let Some(written) = &written {
            self.version.store(version(&written.metadata).unwrap_or_default(), Ordering::Relaxed);
        }
        Ok(written.is_some())
    }

    /// Patches the object; `None`: it is gone. One that only names the uid reads it: the operator may not get every kind that it patches.
    async fn patched(&self, client: &Client, patch: Value) -> kube::Result<Option<Guard<K>>> {
        // The answer is the object, which may not decode.
        let api = K::Scope::api::<Guard<K>>(client.clone(), &self.key.namespace);
        ignore_not_found(api.patch(&self.key.name, &PatchParams::default(), &Patch::Merge(&patch)).await)
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::from_value;

    use super::*;
    use crate::{
        crd::{ClientAppBackup, ClientAppBackupStatus},
        platform::{fake, status::Statuses},
    };

    /// The first write of the status comes before the finalizer, so the watch is late.
    #[tokio::test]
    async fn a_finalizer_is_added_to_the_object_as_it_is_now() {
        let deleted = json!("2026-01-31T00:00:00Z");
        for (what, uid, finalizers, deleted, expected) in [
            ("its status was written", "u", json!(null), json!(null), Ok(Some(json!(["mine"])))),
            ("another client has added one", "u", json!(["theirs"]), json!(null), Ok(Some(json!(["theirs", "mine"])))),
            ("it is being deleted", "u", json!(null), deleted, Err(409)),
            ("it was created anew", "v", json!(null), json!(null), Err(409)),
        ] {
            let now = json!({
                "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientAppBackup",
                "metadata": {
                    "namespace": "ns", "name": "b", "uid": uid, "resourceVersion": "2", "finalizers": finalizers,
                    "deletionTimestamp": deleted,
                },
                "spec": {"of": {"name": "acme"}},
            });
            let written = Arc::new(Mutex::new(None));
            let client = fake::client({
                let (now, written) = (now.clone(), written.clone());
                move |_, _, patch| {
                    let meta = &patch["metadata"];
                    if meta["uid"] != now["metadata"]["uid"]
                        || ![json!(null), json!("2")].contains(&meta["resourceVersion"])
                    {
                        return (
                            409,
                            json!({"kind": "Status", "status": "Failure", "reason": "Conflict", "code": 409}),
                        );
                    }
                    if meta.get("finalizers").is_some() {
                        *written.lock().unwrap() = Some(meta["finalizers"].clone());
                    }
                    (200, now.clone())
                }
            });
            let mut seen = now.clone();
            seen["metadata"] = json!({"namespace": "ns", "name": "b", "uid": "u", "resourceVersion": "1"});
            let (key, guard) = (Key::new("ns", "b"), from_value::<Guard<ClientAppBackup>>(seen).unwrap());
            let object = Statuses::<ClientAppBackupStatus>::default();
            let added = object.reconciled(&key, &guard).with_finalizer(&client, "mine").await;
            let found = match added {
                Ok(is_there) => Ok(written.lock().unwrap().clone().filter(|_| is_there)),
                Err(kube::Error::Api(status)) => Err(status.code),
                Err(other) => panic!("{what}: {other}"),
            };
            assert_eq!(found, expected, "{what}");
        }
    }
}
