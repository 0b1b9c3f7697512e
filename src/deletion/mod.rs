//! The only place that destroys: every deletion of a volume, a database, a backup, a namespace, or a Secret that opens data.
//!
//! | | module | |
//! |---|---|---|
//! | whether an object may be destroyed | [`permit`] | pure |
//! | what is deleted with a database, and how | [`database_kind`] | pure |
//! | what was created and is not on record yet | [`made`] | memory |
//! | the deletion | this one | effect |
//!
//! What is destroyed cannot be recreated. So each step checks again: the owner is read from the API server, the judgement is
//! made on the current owner and target, and the request is bound to the target's uid and version. A process that no longer
//! leads does not send it: it may have been frozen, and wake up after another process has become the leader.
//!
//! No other module calls kube's `delete` (`.clippy.toml`); deletions that lose no data use [`harmless`].

pub(crate) mod database_kind;
pub(crate) mod harmless;
pub(crate) mod made;
pub(crate) mod permit;

use k8s_openapi::{
    api::core::v1::{Namespace, PersistentVolumeClaim, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
};
use serde_json::{Value, json};

use self::{
    database_kind::{DatabaseKind, Unowned},
    permit::{Kind, Mandate, Owner, Permit, Withheld},
};
use crate::{
    crd::Guard,
    helm::storage,
    lead::Lead,
    platform::{api::unless_gone, key::Key},
};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{operation}: {}", crate::platform::error::api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    #[error("{operation}: this process is no longer the leader, and deletes nothing")]
    NotLeading { operation: String },
}

impl Error {
    fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| Error::Api { operation: operation.into(), source: Box::new(source) }
    }
}

pub(crate) struct Destroyer<'a> {
    pub client: &'a Client,
    pub lead: &'a Lead,
}

impl Destroyer<'_> {
    /// Reads an object from the API server, and judges whether its data are deleted with it.
    pub(crate) async fn mandate<K: Owner>(&self, key: &Key, uid: &str) -> Result<Result<Mandate<K>, Withheld>, Error> {
        Ok(permit::mandate(self.owner::<K>(key).await?.as_ref(), uid))
    }

    /// Deletes a Secret that the garbage collector would delete some time after its owner: until then, a new object of the owner's
    /// name would have to wait. Without a proof, it is left to the garbage collector.
    pub(crate) async fn delete_dependent<K: Owner>(
        &self,
        key: &Key,
        uid: &str,
        secret: ObjectMeta,
    ) -> Result<(), Error> {
        match permit::dependent(self.owner::<K>(key).await?.as_ref(), uid, secret) {
            Ok(Some(permit)) => self.delete(permit).await,
            Ok(None) | Err(_) => Ok(()),
        }
    }

    async fn owner<K: Owner>(&self, key: &Key) -> Result<Option<Guard<K>>, Error> {
        let api: Api<Guard<K>> = Api::namespaced(self.client.clone(), &key.namespace);
        api.get_opt(&key.name).await.map_err(Error::api(format!("get {} {key}", K::kind(&()))))
    }

    /// Deletes an object, and with a database all that belongs to it. Does nothing if the object is gone; a database that is
    /// being deleted is only told to take along what belongs to it. A conflict: the object has changed since the judgement.
    pub(crate) async fn delete(&self, permit: Permit) -> Result<(), Error> {
        let Permit { kind, namespace, target } = permit;
        let name = target.name.clone().unwrap_or_default();
        let operation = format!("delete {} {namespace}/{name}", kind.as_str());
        let api = api(self.client, &namespace, kind);
        let mut version = target.resource_version.clone();
        if let Some(patch) = takes_along(kind, &target) {
            self.may(&operation)?;
            let patched = api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            match unless_gone(patched).map_err(Error::api(&operation))? {
                Some(patched) => version = patched.metadata.resource_version,
                None => return Ok(()),
            }
        }
        if target.deletion_timestamp.is_some() {
            return self.delete_unowned(kind, &namespace, &target).await;
        }
        self.may(&operation)?;
        let preconditions = Preconditions { uid: target.uid.clone(), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        #[expect(clippy::disallowed_methods, reason = "the one place")]
        let deleted = api.delete(&name, &params).await;
        if unless_gone(deleted).map_err(Error::api(operation))?.is_some() {
            tracing::info!(kind = kind.as_str(), %namespace, %name, "deleted");
        }
        self.delete_unowned(kind, &namespace, &target).await
    }

    /// Deletes the objects that must go with a database that is being deleted, although it does not own them.
    async fn delete_unowned(&self, kind: Kind, namespace: &str, database: &ObjectMeta) -> Result<(), Error> {
        let Kind::Database(DatabaseKind { unowned: Some(Unowned { resource, goes_with }), .. }) = kind else {
            return Ok(());
        };
        let resource = resource();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let listed = unless_gone(api.list(&ListParams::default()).await);
        let listed = listed.map_err(Error::api(format!("list the {}s of namespace {namespace}", resource.kind)))?;
        let goes = |object: &DynamicObject| object.metadata.deletion_timestamp.is_none() && goes_with(object, database);
        for DynamicObject { metadata, .. } in listed.into_iter().flatten().filter(goes) {
            let name = metadata.name.unwrap_or_default();
            let operation = format!("delete {} {namespace}/{name}", resource.kind);
            self.may(&operation)?;
            let this = Preconditions { uid: metadata.uid, resource_version: metadata.resource_version };
            let params = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
            #[expect(clippy::disallowed_methods, reason = "the one place")]
            let deleted = api.delete(&name, &params).await;
            unless_gone(deleted).map_err(Error::api(operation))?;
        }
        Ok(())
    }

    /// Deletes a Secret in which Helm stores a revision. It opens no data; without it the release can no longer be recognized.
    pub(crate) async fn delete_revision(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let operation = format!("delete Secret {namespace}/{name}, in which Helm stores a revision");
        if !name.starts_with(storage::PREFIX) {
            return Ok(());
        }
        self.may(&operation)?;
        let this = Preconditions { uid: Some(uid.to_owned()), resource_version: None };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        #[expect(clippy::disallowed_methods, reason = "the one place")]
        let deleted = api(self.client, namespace, Kind::Secret).delete(name, &params).await;
        unless_gone(deleted).map_err(Error::api(operation))?;
        Ok(())
    }

    pub(crate) fn may(&self, operation: &str) -> Result<(), Error> {
        match self.lead.holds() {
            true => Ok(()),
            false => Err(Error::NotLeading { operation: operation.to_owned() }),
        }
    }
}

/// A namespace that was made for an app and holds nothing worth keeping. The caller vouches for that, after looking at everything in it.
pub(crate) struct Vacant<'a>(pub &'a Namespace);

/// Deletes a namespace, unless it has changed since it was read; `false`: it is gone. `lead` is a controller's; the API call that
/// has just created the namespace needs none.
pub(crate) async fn namespace(
    client: &Client,
    lead: Option<&Lead>,
    Vacant(namespace): Vacant<'_>,
) -> Result<bool, Error> {
    let ObjectMeta { name, uid, resource_version, .. } = namespace.metadata.clone();
    let name = name.unwrap_or_default();
    let operation = format!("delete namespace {name}");
    if lead.is_some_and(|lead| !lead.holds()) {
        return Err(Error::NotLeading { operation });
    }
    let params =
        DeleteParams { preconditions: Some(Preconditions { uid, resource_version }), ..DeleteParams::default() };
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let deleted = Api::<Namespace>::all(client.clone()).delete(&name, &params).await;
    Ok(unless_gone(deleted).map_err(Error::api(operation))?.is_some())
}

/// The patch that asks a database to take along what belongs to it, bound to the object as it was judged.
fn takes_along(kind: Kind, target: &ObjectMeta) -> Option<Value> {
    let Kind::Database(kind) = kind else { return None };
    let mut patch = (kind.takes_along)(target)?;
    patch["metadata"]["uid"] = json!(target.uid);
    patch["metadata"]["resourceVersion"] = json!(target.resource_version);
    Some(patch)
}

/// Makes a patch of a database ask it to leave behind what belongs to it, because the database now stays.
pub(crate) fn leaves_behind(kind: Kind, target: &ObjectMeta, patch: &mut Value) {
    if let Kind::Database(kind) = kind {
        (kind.leaves_behind)(target, patch);
    }
}

pub(crate) fn api(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    let resource = match kind {
        Kind::Volume => ApiResource::erase::<PersistentVolumeClaim>(&()),
        Kind::Secret => ApiResource::erase::<Secret>(&()),
        Kind::Database(kind) => (kind.resource)(),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    static KIND: DatabaseKind = DatabaseKind {
        name: "Database",
        resource: || ApiResource::erase::<Secret>(&()),
        takes_along: |target| target.deletion_timestamp.is_none().then(|| json!({"metadata": {"finalizers": ["all"]}})),
        leaves_behind: |_, patch| patch["metadata"]["finalizers"] = json!([]),
        unowned: None,
    };

    #[test]
    fn a_database_is_asked_as_it_was_judged() {
        let of = |meta: Value| takes_along(Kind::Database(&KIND), &serde_json::from_value(meta).unwrap());
        assert_eq!(
            of(json!({"uid": "1", "resourceVersion": "7"})),
            Some(json!({"metadata": {"finalizers": ["all"], "uid": "1", "resourceVersion": "7"}}))
        );
        assert_eq!(of(json!({"uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"})), None);
    }
}
