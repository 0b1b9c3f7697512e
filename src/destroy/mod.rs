//! The one place that destroys: every deletion of a volume, a database, a backup, a namespace, or a Secret that opens data.
//!
//! | | module | |
//! |---|---|---|
//! | whether it may be | [`permit`] | pure |
//! | does it | this one | effect |
//!
//! What is destroyed cannot be recreated. So each step asks anew: the owner is read from the API server, the judgement is
//! made on it and on the target as they are now, the request is bound to the target's uid and version, and it is not sent
//! by a process that does not lead any more: one that was frozen, and wakes up after another process has gone on.
//!
//! No other module calls kube's `delete` (`.clippy.toml`); what loses nothing goes by [`harmless`].

pub(crate) mod harmless;
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

use self::permit::{Kind, Mandate, Owner, Permit, Withheld};
use crate::{
    crd::{
        DeletionPolicy, Guard, Postgresql,
        percona::{self, PerconaPGBackup, PerconaPGCluster},
    },
    lead::Lead,
    runtime::{api::unless_gone, key::Key},
};

/// How the names of Helm's storage Secrets begin (helm.sh/helm/v4/pkg/storage, `HelmStorageType`).
const REVISION: &str = "sh.helm.release.v1.";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{operation}: {}", crate::runtime::error::api_sentence(source))]
    Api { operation: String, source: Box<kube::Error> },
    #[error("{operation}: this process does not lead any more, and deletes nothing")]
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
    /// Asks the API server for an object, and judges whether its data go with it.
    pub(crate) async fn mandate<K: Owner>(&self, key: &Key, uid: &str) -> Result<Result<Mandate<K>, Withheld>, Error> {
        let api: Api<Guard<K>> = Api::namespaced(self.client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await.map_err(Error::api(format!("get {} {key}", K::kind(&()))))?;
        Ok(permit::mandate(found.as_ref(), uid))
    }

    /// Deletes an object, a database with all that it has. One that is gone needs none, and one that is on its way out no
    /// more than that it takes its own along. A conflict: the object has changed since the judgement.
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
            return self.delete_told(kind, &namespace, &target).await;
        }
        self.may(&operation)?;
        let preconditions = Preconditions { uid: target.uid.clone(), resource_version: version };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::background() };
        #[expect(clippy::disallowed_methods, reason = "the one place")]
        let deleted = api.delete(&name, &params).await;
        if unless_gone(deleted).map_err(Error::api(operation))?.is_some() {
            tracing::info!(kind = kind.as_str(), %namespace, %name, "deleted");
        }
        self.delete_told(kind, &namespace, &target).await
    }

    /// Deletes the PerconaPGBackups that tell of backups on the volume of a cluster which is being deleted: they have no owner.
    async fn delete_told(&self, kind: Kind, namespace: &str, cluster: &ObjectMeta) -> Result<(), Error> {
        if kind != Kind::PerconaPGCluster {
            return Ok(());
        }
        let resource = ApiResource::erase::<PerconaPGBackup>(&());
        let backups: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &resource);
        let listed = unless_gone(backups.list(&ListParams::default()).await);
        let listed = listed.map_err(Error::api(format!("list the PerconaPGBackups of namespace {namespace}")))?;
        for backup in listed.into_iter().flatten().filter(|backup| tells_of_volume(backup, cluster)) {
            let name = backup.metadata.name.unwrap_or_default();
            let operation = format!("delete PerconaPGBackup {namespace}/{name}");
            self.may(&operation)?;
            let this = Preconditions { uid: backup.metadata.uid, resource_version: backup.metadata.resource_version };
            let params = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
            #[expect(clippy::disallowed_methods, reason = "the one place")]
            let deleted = backups.delete(&name, &params).await;
            unless_gone(deleted).map_err(Error::api(operation))?;
        }
        Ok(())
    }

    /// Deletes a Secret in which Helm stores a revision. It opens nothing; without it the release cannot be told any more.
    pub(crate) async fn delete_revision(&self, namespace: &str, name: &str, uid: &str) -> Result<(), Error> {
        let operation = format!("delete Secret {namespace}/{name}, in which Helm stores a revision");
        if !name.starts_with(REVISION) {
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

/// A namespace that was made for an app, and in which nothing is that would be missed: said by who has looked at all of it.
pub(crate) struct Vacant<'a>(pub &'a Namespace);

/// Deletes a namespace, unless it has changed since it was looked at; `false`: it is gone. `lead` is that of a controller; the
/// call that has just made the namespace needs none.
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

/// Whether what a PerconaPGBackup tells of is on a volume of a cluster of this name, all of which go with it or are gone; not in a bucket,
/// and no VolumeSnapshot, which might go with what tells of it.
fn tells_of_volume(backup: &DynamicObject, cluster: &ObjectMeta) -> bool {
    let text = |path: &str| backup.data.pointer(path).and_then(Value::as_str).unwrap_or_default();
    text("/spec/pgCluster") == cluster.name.as_deref().unwrap_or_default()
        && text("/status/destination").is_empty()
        && ["", "pgbackrest"].contains(&text("/spec/method"))
        && backup.metadata.deletion_timestamp.is_none()
}

/// Unless asked, a database leaves its volumes and Secrets, and a later one of its name would get them. That is asked for only
/// now, so that a database which is deleted by mistake keeps its data.
fn takes_along(kind: Kind, target: &ObjectMeta) -> Option<Value> {
    let of_target = json!({"uid": target.uid, "resourceVersion": target.resource_version});
    match kind {
        Kind::Volume | Kind::Secret => None,
        // Percona has taken its own off one that is on its way out.
        Kind::PerconaPGCluster if target.deletion_timestamp.is_some() => None,
        Kind::PerconaPGCluster => {
            let mut finalizers = target.finalizers.clone().unwrap_or_default();
            // Not `percona.com/delete-backups`: by that, pgBackRest deletes all that is in each repository of the cluster, also in
            // one that outlives it, and the deletion waits for ever for a pod to do that in. Backups on a volume go with it.
            for finalizer in [percona::DELETE_PVC, percona::DELETE_SSL] {
                if !finalizers.iter().any(|present| present == finalizer) {
                    finalizers.push(finalizer.to_owned());
                }
            }
            let mut metadata = of_target;
            metadata["finalizers"] = json!(finalizers);
            Some(json!({"metadata": metadata}))
        }
        Kind::Postgresql => Some(json!({"metadata": of_target, "spec": {"deletionPolicy": DeletionPolicy::Delete}})),
    }
}

/// Has a database leave its volumes and Secrets again: a deletion that had asked for them may have been cut off, and the database
/// stays now. It goes into a patch of that object.
pub(crate) fn leaves_behind(kind: Kind, target: &ObjectMeta, patch: &mut Value) {
    let asked = [percona::DELETE_PVC, percona::DELETE_SSL];
    match kind {
        Kind::Volume | Kind::Secret => {}
        Kind::PerconaPGCluster => {
            let finalizers = target.finalizers.as_deref().unwrap_or_default();
            let others: Vec<_> = finalizers.iter().filter(|finalizer| !asked.contains(&finalizer.as_str())).collect();
            if others.len() < finalizers.len() {
                patch["metadata"]["finalizers"] = json!(others);
                patch["metadata"]["resourceVersion"] = json!(target.resource_version);
            }
        }
        Kind::Postgresql => patch["spec"] = json!({"deletionPolicy": DeletionPolicy::Retain}),
    }
}

pub(crate) fn api(client: &Client, namespace: &str, kind: Kind) -> Api<DynamicObject> {
    let resource = match kind {
        Kind::Volume => ApiResource::erase::<PersistentVolumeClaim>(&()),
        Kind::Secret => ApiResource::erase::<Secret>(&()),
        Kind::PerconaPGCluster => ApiResource::erase::<PerconaPGCluster>(&()),
        Kind::Postgresql => ApiResource::erase::<Postgresql>(&()),
    };
    Api::namespaced_with(client.clone(), namespace, &resource)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Percona's finalizer for backups has pgBackRest delete all that is in every repository, and without a pod it never ends.
    #[test]
    fn a_cluster_is_asked_for_its_volumes_and_never_for_its_repositories() {
        let target = ObjectMeta {
            annotations: Some([(crate::crd::annotation::BACKUPS.to_owned(), "true".to_owned())].into()),
            finalizers: Some(vec!["another".to_owned()]),
            ..ObjectMeta::default()
        };
        let patch = takes_along(Kind::PerconaPGCluster, &target).unwrap();
        assert_eq!(
            patch["metadata"]["finalizers"],
            json!(["another", "percona.com/delete-pvc", "percona.com/delete-ssl"])
        );
    }

    #[test]
    fn what_tells_of_a_bucket_stays_and_what_is_of_another_cluster() {
        let cluster: ObjectMeta = serde_json::from_value(json!({"name": "acme-pg"})).unwrap();
        let of = |name: &str| json!({"pgCluster": name, "method": "pgbackrest"});
        for (spec, status, goes) in [
            (of("acme-pg"), json!({"state": "Succeeded", "destination": ""}), true),
            (of("acme-pg"), json!({"state": "Failed"}), true),
            (json!({"pgCluster": "acme-pg"}), json!(null), true),
            (of("acme-pg"), json!({"state": "Succeeded", "destination": "s3://b/a"}), false),
            (json!({"pgCluster": "acme-pg", "method": "volumeSnapshot"}), json!({"state": "Succeeded"}), false),
            (of("another-pg"), json!({"state": "Succeeded"}), false),
        ] {
            let backup = json!({"metadata": {"name": "b"}, "spec": spec, "status": status});
            let backup: DynamicObject = serde_json::from_value(backup).unwrap();
            assert_eq!(tells_of_volume(&backup, &cluster), goes, "{backup:?}");
        }
    }
}
