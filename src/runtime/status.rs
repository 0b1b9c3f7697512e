//! Statuses of all kinds: written, and remembered until the watch catches up. An **effect**.

use std::{fmt::Debug, sync::Arc};

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource,
    api::{Patch, PatchParams},
    core::Status,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use super::{cache::Memo, controller::Object, key::Key, subject::Subject};
use crate::crd::Guard;

const FIELD_MANAGER: &str = "clientapp-operator/status";

/// The statuses of objects as last written, which count until the watch catches up: otherwise a reconcile right after a write
/// would not know of it, and repeat the same work.
pub struct Statuses<S>(Memo<Key, Arc<Written<S>>>);

struct Written<S> {
    uid: String,
    resource_version: Option<u64>,
    status: S,
}

impl<S> Default for Statuses<S> {
    fn default() -> Self {
        Statuses(Memo::default())
    }
}

impl<S: Clone + Default> Statuses<S> {
    /// Remembers a status that was written, and the version of the object that has it.
    fn put(&self, key: &Key, uid: &str, resource_version: Option<&str>, status: &S) {
        let resource_version = resource_version.and_then(|version| version.parse().ok());
        self.0.put(key.clone(), Arc::new(Written { uid: uid.to_owned(), resource_version, status: status.clone() }));
    }

    /// The object's status: as the watch has it, or as written since.
    pub fn get(&self, key: &Key, meta: &ObjectMeta, seen: Option<S>) -> S {
        let version = meta.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
        let written = self.0.get(key).filter(|written| meta.uid.as_ref() == Some(&written.uid));
        let late = |written: &Written<S>| version.zip(written.resource_version).is_some_and(|(seen, then)| seen < then);
        match written {
            Some(written) if late(&written) => written.status.clone(),
            _ => seen.unwrap_or_default(),
        }
    }

    /// An object for a reconcile; `seen` is its status as the watch has it.
    pub fn subject<'a, K>(&self, key: &'a Key, guard: &'a Guard<K>, seen: Option<S>) -> Subject<'a, K, S> {
        Subject { key, guard, before: self.get(key, &guard.metadata, seen) }
    }

    /// Whether this is exactly the version that came from the last write of the status.
    pub fn wrote(&self, meta: &ObjectMeta, key: &Key) -> bool {
        let version = meta.resource_version.as_ref().and_then(|version| version.parse().ok());
        version.is_some() && self.0.get(key).is_some_and(|written| written.resource_version == version)
    }

    /// Writes the status of an object and remembers it, unless it is unchanged.
    pub async fn write<K: Object>(&self, client: &Client, of: &Subject<'_, K, S>, status: &S) -> kube::Result<()>
    where
        S: PartialEq + Serialize,
    {
        if of.before != *status {
            let version = write_status::<K, S>(client, of.key, of.uid(), status).await?;
            self.put(of.key, of.uid(), version.as_deref(), status);
        }
        Ok(())
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &Key) {
        self.0.take(key);
    }
}

/// Writes the whole status of an object, and returns the version that has it.
///
/// By JSON patch, the only way to make the API server compare the uid: an apply or a merge to a custom resource's status
/// ignores it, and an object that was deleted and recreated in between would get its predecessor's status.
///
/// # Errors
/// The API server's refusal, for which [`is_gone`] is true if the object is gone or was recreated.
pub async fn write_status<K, S>(client: &Client, key: &Key, uid: &str, status: &S) -> kube::Result<Option<String>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
    S: Serialize,
{
    // The answer is the object, which may not decode.
    let api: Api<Guard<K>> = Api::namespaced(client.clone(), &key.namespace);
    let patch = json!([
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "add", "path": "/status", "value": status},
    ]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).map_err(kube::Error::SerdeError)?);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch_status(&key.name, &params, &patch).await {
        Err(kube::Error::Api(status)) if is_other(&status) => {
            let sentence = format!("{} {key} was deleted and recreated", K::kind(&()));
            Err(kube::Error::Api(Status::failure(&sentence, "Gone").with_code(410).boxed()))
        }
        written => Ok(written?.metadata.resource_version),
    }
}

/// Whether a status could not be written because its object is gone.
pub fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if [404, 410].contains(&status.code))
}

/// A patch that cannot be applied is refused without causes; a patch that would make the object invalid, with causes.
fn is_other(status: &Status) -> bool {
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
