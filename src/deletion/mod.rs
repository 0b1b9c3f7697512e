//! The only place that destroys: every deletion of a volume, a database, a backup, a namespace, or a Secret that opens data.
//!
//! | | module | |
//! |---|---|---|
//! | decides if an object may be destroyed | [`permit`] | pure |
//! | holds back deletions of many objects at once | [`brake`] | memory, and one read |
//! | describes what is deleted with a database, and how | [`database_kind`] | pure |
//! | remembers created objects that no status records yet | [`recently_created`] | memory |
//! | sends the request | [`request`] | effect |
//! | deletes | this one | effect |
//!
//! What is destroyed cannot be recreated. So each step checks again: the owner is read from the API server, the judgement is
//! made on the current owner and target, and the request is bound to the target's uid and version. A process that no longer
//! leads does not send it: it may have been frozen, and wake up after another process has become the leader.
//!
//! No other module calls kube's `delete` (`.clippy.toml`); deletions that lose no data use [`recreatable`].

pub(crate) mod brake;
pub(crate) mod database_kind;
pub(crate) mod permit;
pub(crate) mod recently_created;
pub(crate) mod recreatable;
mod request;

use k8s_openapi::{
    api::{
        apps::v1::ControllerRevision,
        core::v1::{Namespace, PersistentVolumeClaim, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use self::{
    database_kind::{DatabaseKind, UnownedDependents},
    permit::{DataKind, DataOwner, DeletionGrant, GrantDenied, Permit},
    request::request,
};
use crate::{
    crd::{Guard, percona::PerconaPGBackup},
    helm::storage,
    leadership::Leadership,
    platform::{api::ignore_not_found, error::ReconcileFailure, key::Key},
};

pub(crate) struct Destroyer<'a> {
    pub client: &'a Client,
    pub lead: &'a Leadership,
}

impl Destroyer<'_> {
    /// Reads an object from the API server, and grants the deletion of its data if they are deleted with it.
    pub(crate) async fn grant<K: DataOwner>(
        &self,
        key: &Key,
        uid: &str,
    ) -> Result<Result<DeletionGrant<K>, GrantDenied>, ReconcileFailure> {
        Ok(permit::grant(self.owner::<K>(key).await?.as_ref(), uid))
    }

    /// Deletes a Secret that the garbage collector would delete some time after its owner: until then, a new object of the owner's
    /// name would have to wait. Without a proof, it is left to the garbage collector.
    pub(crate) async fn delete_dependent<K: DataOwner>(
        &self,
        key: &Key,
        uid: &str,
        secret: ObjectMeta,
    ) -> Result<(), ReconcileFailure> {
        match permit::dependent(self.owner::<K>(key).await?.as_ref(), uid, secret) {
            Ok(Some(permit)) => self.delete(permit).await,
            Ok(None) | Err(_) => Ok(()),
        }
    }

    async fn owner<K: DataOwner>(&self, key: &Key) -> Result<Option<Guard<K>>, ReconcileFailure> {
        let api: Api<Guard<K>> = Api::namespaced(self.client.clone(), &key.namespace);
        api.get_opt(&key.name).await.map_err(ReconcileFailure::api(format!("get {} {key}", K::kind(&()))))
    }

    /// Deletes an object, and with a database all that belongs to it. Does nothing if the object is gone; a database that is
    /// being deleted is only asked to delete its dependents too. A conflict means that the object has changed since the judgement.
    pub(crate) async fn delete(&self, permit: Permit) -> Result<(), ReconcileFailure> {
        let Permit { kind, namespace, target } = permit;
        let name = target.name.clone().unwrap_or_default();
        let operation = format!("delete {} {namespace}/{name}", kind.as_str());
        let api = api(self.client, &namespace, kind);
        let mut version = target.resource_version.clone();
        if let Some(patch) = delete_with_data(kind, &target) {
            self.check_leading(&operation)?;
            let patched = api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
            match ignore_not_found(patched).map_err(ReconcileFailure::api(&operation))? {
                Some(patched) => version = patched.metadata.resource_version,
                None => return Ok(()),
            }
        }
        if target.deletion_timestamp.is_some() {
            return self.delete_unowned_dependents(kind, &namespace, &target).await;
        }
        self.check_leading(&operation)?;
        let deleted = request(&api, &target, version, DeleteParams::background()).await;
        if deleted.map_err(ReconcileFailure::api(operation))? {
            tracing::info!(kind = kind.as_str(), %namespace, %name, "deleted");
        }
        self.delete_unowned_dependents(kind, &namespace, &target).await
    }

    /// Deletes the objects that must go with a database that is being deleted, although it does not own them.
    async fn delete_unowned_dependents(
        &self,
        kind: DataKind,
        namespace: &str,
        database: &ObjectMeta,
    ) -> Result<(), ReconcileFailure> {
        let DataKind::Database(DatabaseKind {
            unowned_dependents: Some(UnownedDependents { resource, is_deleted_with: goes_with }),
            ..
        }) = kind
        else {
            return Ok(());
        };
        let resource = resource();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let listed = ignore_not_found(api.list(&ListParams::default()).await);
        let listed =
            listed.map_err(ReconcileFailure::api(format!("list the {}s of namespace {namespace}", resource.kind)))?;
        let is_due =
            |object: &DynamicObject| object.metadata.deletion_timestamp.is_none() && goes_with(object, database);
        for DynamicObject { metadata, .. } in listed.into_iter().flatten().filter(is_due) {
            let name = metadata.name.as_deref().unwrap_or_default();
            let operation = format!("delete {} {namespace}/{name}", resource.kind);
            self.check_leading(&operation)?;
            let version = metadata.resource_version.clone();
            request(&api, &metadata, version, DeleteParams::background())
                .await
                .map_err(ReconcileFailure::api(operation))?;
        }
        Ok(())
    }

    /// Deletes a Secret in which Helm stores a revision. It opens no data; without it the release can no longer be recognized.
    pub(crate) async fn delete_revision(&self, namespace: &str, name: &str, uid: &str) -> Result<(), ReconcileFailure> {
        let operation = format!("delete Secret {namespace}/{name}, in which Helm stores a revision");
        if !name.starts_with(storage::PREFIX) {
            return Ok(());
        }
        self.check_leading(&operation)?;
        let meta = ObjectMeta { name: Some(name.to_owned()), uid: Some(uid.to_owned()), ..ObjectMeta::default() };
        let api = api(self.client, namespace, DataKind::Secret);
        request(&api, &meta, None, DeleteParams::default()).await.map_err(ReconcileFailure::api(operation))?;
        Ok(())
    }

    /// Deletes a PerconaPGBackup, which the caller has found to be that of a deleted ClientAppBackup. Its data stay in the repository until
    /// pgBackRest lets them expire.
    pub(crate) async fn delete_backup(&self, namespace: &str, backup: &ObjectMeta) -> Result<(), ReconcileFailure> {
        let resource = ApiResource::erase::<PerconaPGBackup>(&());
        let operation = format!("delete PerconaPGBackup {namespace}/{}", backup.name.as_deref().unwrap_or_default());
        self.check_leading(&operation)?;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let version = backup.resource_version.clone();
        request(&api, backup, version, DeleteParams::background())
            .await
            .map(drop)
            .map_err(ReconcileFailure::api(operation))
    }

    pub(crate) fn check_leading(&self, operation: &str) -> Result<(), ReconcileFailure> {
        match self.lead.is_held() {
            true => Ok(()),
            false => Err(ReconcileFailure::NotLeading { operation: operation.to_owned() }),
        }
    }
}

/// A namespace that was made for an app and holds nothing worth keeping. The caller vouches for that, after looking at everything in it.
pub(crate) struct Vacant<'a>(pub &'a Namespace);

/// Deletes a revision of a Profile that no ClientApp has. Its name tells its content, so a successor of that name is the same one.
pub(crate) async fn profile_revision(client: &Client, namespace: &str, name: &str) -> kube::Result<bool> {
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let meta = ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() };
    request(&api, &meta, None, DeleteParams::default()).await
}

/// Deletes a namespace, unless it has changed since it was read; `false`: it is gone. `lead` is a controller's; the API call that
/// has just created the namespace needs none.
pub(crate) async fn namespace(
    client: &Client,
    lead: Option<&Leadership>,
    Vacant(namespace): Vacant<'_>,
) -> Result<bool, ReconcileFailure> {
    let operation = format!("delete namespace {}", namespace.metadata.name.as_deref().unwrap_or_default());
    if lead.is_some_and(|lead| !lead.is_held()) {
        return Err(ReconcileFailure::NotLeading { operation });
    }
    let (api, version) = (Api::<Namespace>::all(client.clone()), namespace.metadata.resource_version.clone());
    request(&api, &namespace.metadata, version, DeleteParams::default()).await.map_err(ReconcileFailure::api(operation))
}

/// Returns the patch that asks a database to delete its volumes and Secrets too, bound to the object as it was judged.
fn delete_with_data(kind: DataKind, target: &ObjectMeta) -> Option<Value> {
    let DataKind::Database(kind) = kind else { return None };
    let mut patch = (kind.delete_with_data)(target)?;
    patch["metadata"]["uid"] = json!(target.uid);
    patch["metadata"]["resourceVersion"] = json!(target.resource_version);
    Some(patch)
}

/// Makes a patch of a database ask it to retain its volumes and Secrets, because the database now stays.
pub(crate) fn retain_data(kind: DataKind, target: &ObjectMeta, patch: &mut Value) {
    if let DataKind::Database(kind) = kind {
        (kind.retain_data)(target, patch);
    }
}

pub(crate) fn api(client: &Client, namespace: &str, kind: DataKind) -> Api<DynamicObject> {
    let resource = match kind {
        DataKind::Volume => ApiResource::erase::<PersistentVolumeClaim>(&()),
        DataKind::Secret => ApiResource::erase::<Secret>(&()),
        DataKind::Database(kind) => (kind.resource)(),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    static KIND: DatabaseKind = DatabaseKind {
        name: "Database",
        resource: || ApiResource::erase::<Secret>(&()),
        delete_with_data: |target| {
            target.deletion_timestamp.is_none().then(|| json!({"metadata": {"finalizers": ["all"]}}))
        },
        retain_data: |_, patch| patch["metadata"]["finalizers"] = json!([]),
        unowned_dependents: None,
    };

    #[test]
    fn a_database_is_asked_as_it_was_judged() {
        let patch = |meta: Value| delete_with_data(DataKind::Database(&KIND), &serde_json::from_value(meta).unwrap());
        assert_eq!(
            patch(json!({"uid": "1", "resourceVersion": "7"})),
            Some(json!({"metadata": {"finalizers": ["all"], "uid": "1", "resourceVersion": "7"}}))
        );
        assert_eq!(patch(json!({"uid": "1", "deletionTimestamp": "2026-01-01T00:00:00Z"})), None);
    }
}
