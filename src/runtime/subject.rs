//! The object of one reconcile.

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Client, Resource as _};

use super::{controller::Object, finalizer, key::Key};
use crate::crd::Guard;

/// An object as one reconcile finds it.
pub struct Subject<'a, K, S> {
    pub key: &'a Key,
    pub guard: &'a Guard<K>,
    /// Its status as it is on record.
    pub before: S,
}

impl<'a, K: Object, S> Subject<'a, K, S> {
    pub fn meta(&self) -> &'a ObjectMeta {
        &self.guard.metadata
    }

    pub fn uid(&self) -> &'a str {
        self.meta().uid.as_deref().unwrap_or_default()
    }

    /// The object, or why the stored one does not decode.
    pub fn object(&self) -> Result<&'a K, &'a str> {
        self.guard.object.as_ref().map_err(String::as_str)
    }

    /// The same, with a sentence.
    pub fn decoded(&self) -> Result<&'a K, String> {
        self.object().map_err(|problem| format!("the stored object does not decode: {problem}"))
    }

    pub fn is_deleted(&self) -> bool {
        self.meta().deletion_timestamp.is_some()
    }

    pub fn carries(&self, finalizer: &str) -> bool {
        finalizer::carries(self.meta(), finalizer)
    }

    /// Whether it is gone, as the API server has it now.
    pub async fn is_gone(&self, client: &Client) -> kube::Result<bool> {
        Ok(self.now(client).await?.is_none())
    }

    /// Whether it is as this reconcile finds it, and is to stay, as the API server has it now.
    pub async fn is_current(&self, client: &Client) -> kube::Result<bool> {
        let now = self.now(client).await?;
        let is_same = |now: &ObjectMeta| now.generation == self.meta().generation && now.deletion_timestamp.is_none();
        Ok(now.as_ref().is_some_and(is_same))
    }

    /// This very object, as the API server has it now.
    async fn now(&self, client: &Client) -> kube::Result<Option<ObjectMeta>> {
        let api: Api<Guard<K>> = Api::namespaced(client.clone(), &self.key.namespace);
        let found = api.get_metadata_opt(&self.key.name).await?;
        Ok(found.map(|found| found.metadata).filter(|now| now.uid == self.meta().uid))
    }

    /// Where events about it go.
    pub fn reference(&self) -> ObjectReference {
        self.guard.object_ref(&())
    }
}
