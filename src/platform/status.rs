//! Writes statuses of all kinds, and remembers them until the watch catches up. An **effect**.

use std::sync::{Arc, atomic::AtomicU64};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Client,
    api::{Patch, PatchParams},
    core::{Status, object::HasStatus},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{
    cache::Memo,
    controller::{ApiScope as _, ReconciledObject},
    error::ReconcileFailure,
    key::Key,
    reconciled::{Reconciled, version},
};
use crate::crd::Guard;

const FIELD_MANAGER: &str = "clientapp-operator/status";

/// Remembers the statuses as last written, which count until the watch catches up: otherwise a reconcile right after a write would
/// not know of it, and would repeat the same work.
pub struct Statuses<S>(Memo<Key, Arc<WrittenStatus<S>>>);

struct WrittenStatus<S> {
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
    /// Prepares an object for a reconcile, with its status as the watch has it, or as written since.
    pub fn reconciled<'a, K: HasStatus<Status = S>>(&self, key: &'a Key, guard: &'a Guard<K>) -> Reconciled<'a, K, S>
    where
        S: DeserializeOwned,
    {
        let seen = version(&guard.metadata);
        let is_newer = |written: &WrittenStatus<S>| {
            guard.metadata.uid.as_ref() == Some(&written.uid)
                && seen.zip(written.resource_version).is_some_and(|(seen, then)| seen < then)
        };
        let (before, version) = match self.0.get(key).filter(|written| is_newer(written)) {
            Some(written) => (written.status.clone(), written.resource_version),
            None => (guard.status().unwrap_or_default(), seen),
        };
        Reconciled { key, guard, recorded_status: before, version: AtomicU64::new(version.unwrap_or_default()) }
    }

    /// Returns true if this is exactly the version that came from the last write of the status.
    pub fn is_own_write(&self, meta: &ObjectMeta, key: &Key) -> bool {
        let version = version(meta);
        version.is_some() && self.0.get(key).is_some_and(|written| written.resource_version == version)
    }

    /// Writes the status of an object and remembers it, unless it is unchanged. Returns `false` if the object is gone or was recreated.
    ///
    /// # Errors
    /// The API server's refusal. It is a conflict if another client has written the status since the reconcile read it, for example a
    /// predecessor whose last request was late.
    pub(crate) async fn record<K: ReconciledObject + HasStatus<Status = S>>(
        &self,
        client: &Client,
        object: &Reconciled<'_, K, S>,
        status: &S,
    ) -> Result<bool, ReconcileFailure>
    where
        S: PartialEq + Serialize + DeserializeOwned,
    {
        match self.write(client, object, status).await {
            Err(kube::Error::Api(status)) if [404, 410].contains(&status.code) => {
                tracing::info!(kind = %K::kind(&()), object = %object.key, "its status is not written: {}", status.message);
                Ok(false)
            }
            written => {
                let operation = format!("write the status of {} {}", K::kind(&()), object.key);
                written.map(|()| true).map_err(ReconcileFailure::api(operation))
            }
        }
    }

    /// Does the same, with the API server's own answer about an object that is gone.
    ///
    /// # Errors
    /// As [`Statuses::record`], and if the object is gone or was recreated.
    pub async fn write<K: ReconciledObject + HasStatus<Status = S>>(
        &self,
        client: &Client,
        object: &Reconciled<'_, K, S>,
        status: &S,
    ) -> kube::Result<()>
    where
        S: PartialEq + Serialize + DeserializeOwned,
    {
        if object.recorded_status == *status {
            return Ok(());
        }
        let written = match write_status(client, object, object.version(), status).await {
            // Most often only the spec or the metadata are newer.
            Err(error) if is_failed_test(&error) => {
                let version = current_version(client, object).await?;
                write_status(client, object, Some(version), status).await.map_err(|error| {
                    match is_failed_test(&error) {
                        true => failure(object, "is changed by another client at the same time", 409),
                        false => error,
                    }
                })?
            }
            written => written?,
        };
        let written = WrittenStatus {
            uid: object.uid().to_owned(),
            resource_version: version(&written.metadata),
            // As stored, which may be less exact: a time has whole seconds there.
            status: written.status().unwrap_or_default(),
        };
        self.0.put(object.key.clone(), Arc::new(written));
        Ok(())
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &Key) {
        self.0.take(key);
    }
}

/// Writes the whole status of an object, if this is its version, and returns the object that has it.
///
/// By JSON patch, the only way to make the API server compare the uid: an apply or a merge to a custom resource's status
/// ignores it, and an object that was deleted and recreated in between would get its predecessor's status.
async fn write_status<K: ReconciledObject, S: Serialize>(
    client: &Client,
    object: &Reconciled<'_, K, S>,
    version: Option<u64>,
    status: &S,
) -> kube::Result<Guard<K>> {
    let version = version.map(|version| test("/metadata/resourceVersion", &version.to_string()));
    patch_status(client, object, version.into_iter().chain([json!({"op": "add", "path": "/status", "value": status})]))
        .await
}

fn test(path: &str, value: &str) -> Value {
    json!({"op": "test", "path": path, "value": value})
}

async fn patch_status<K: ReconciledObject, S>(
    client: &Client,
    object: &Reconciled<'_, K, S>,
    operations: impl IntoIterator<Item = Value>,
) -> kube::Result<Guard<K>> {
    let patch: Vec<_> = [test("/metadata/uid", object.uid())].into_iter().chain(operations).collect();
    let patch = Patch::Json::<()>(serde_json::from_value(json!(patch)).map_err(kube::Error::SerdeError)?);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    // The answer is the object, which may not decode.
    let api = K::Scope::api::<Guard<K>>(client.clone(), &object.key.namespace);
    api.patch_status(&object.key.name, &params, &patch).await
}

/// Returns the object's present version, if its status is still the one that this reconcile began with. Read by a patch that only tests the
/// uid and changes nothing: the operator may not get every kind whose status it writes.
async fn current_version<K, S>(client: &Client, object: &Reconciled<'_, K, S>) -> kube::Result<u64>
where
    K: ReconciledObject + HasStatus<Status = S>,
    S: Clone + Default + PartialEq + DeserializeOwned,
{
    let now = patch_status(client, object, []).await.map_err(|error| match is_failed_test(&error) {
        true => failure(object, "was deleted and recreated", 410),
        false => error,
    })?;
    match version(&now.metadata) {
        Some(version) if now.status().unwrap_or_default() == object.recorded_status => Ok(version),
        _ => Err(failure(object, "has another status than this reconcile began with: it is reconciled again", 409)),
    }
}

fn failure<K: ReconciledObject, S>(object: &Reconciled<'_, K, S>, problem: &str, code: u16) -> kube::Error {
    let reason = if code == 410 { "Gone" } else { "Conflict" };
    let sentence = format!("{} {} {problem}", K::kind(&()), object.key);
    kube::Error::Api(Status::failure(&sentence, reason).with_code(code).boxed())
}

/// Returns true if the test of a JSON patch has failed: that is refused without causes, and an invalid object with causes.
fn is_failed_test(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 422 && status.details.as_ref().is_none_or(|details| details.causes.is_empty())
}
