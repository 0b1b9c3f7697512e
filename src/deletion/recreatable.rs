//! Deletes what can be recreated: workloads, addresses, configuration, Jobs. An **effect**.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DeleteParams, TypeMeta},
};
use serde::de::DeserializeOwned;

use super::request::request;
use crate::crd::GROUP;

/// Returns true if deleting an object of a kind loses nothing. Kinds that hold data, open them, or take data along are destroyed only with a
/// permit. Kinds of groups other than Kubernetes' own may hold anything.
pub(crate) fn is_recreatable(object_type: &TypeMeta) -> bool {
    let (group, _) = object_type.api_version.split_once('/').unwrap_or(("", ""));
    match (group, object_type.kind.as_str()) {
        ("", kind) => {
            matches!(kind, "ConfigMap" | "Service" | "ServiceAccount" | "Pod" | "Endpoints" | "ReplicationController")
        }
        (
            "apps"
            | "batch"
            | "networking.k8s.io"
            | "policy"
            | "autoscaling"
            | "rbac.authorization.k8s.io"
            | "discovery.k8s.io",
            _,
        ) => true,
        // What a backup has made outlives its object.
        (GROUP, "ClientAppBackup") => true,
        ("postgresql.cnpg.io", "Pooler") => true,
        _ => false,
    }
}

/// Deletes this object but no successor of its name, and in the background what it owns: otherwise the pods of a Job would stay.
/// `false`: nothing was deleted, because the object is gone or its kind is not recreatable.
pub(crate) async fn delete<K>(api: &Api<K>, object_type: &TypeMeta, meta: &ObjectMeta) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    delete_as(api, object_type, meta, None).await
}

/// Deletes the object like [`delete`], but only in the version that this is the metadata of.
pub(crate) async fn delete_unchanged<K>(api: &Api<K>, object_type: &TypeMeta, meta: &ObjectMeta) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    match delete_as(api, object_type, meta, meta.resource_version.clone()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        deleted => deleted,
    }
}

async fn delete_as<K>(
    api: &Api<K>,
    object_type: &TypeMeta,
    meta: &ObjectMeta,
    resource_version: Option<String>,
) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    if !is_recreatable(object_type) {
        return Ok(false);
    }
    request(api, meta, resource_version, DeleteParams::background()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_data_is_not_harmless() {
        for (api_version, kind, recreatable) in [
            ("v1", "Service", true),
            ("v1", "ConfigMap", true),
            ("apps/v1", "StatefulSet", true),
            ("batch/v1", "Job", true),
            ("networking.k8s.io/v1", "Ingress", true),
            ("v1", "Secret", false),
            ("v1", "PersistentVolumeClaim", false),
            ("v1", "PersistentVolume", false),
            ("v1", "Namespace", false),
            ("snapshot.storage.k8s.io/v1", "VolumeSnapshot", false),
            ("pgv2.percona.com/v2", "PerconaPGCluster", false),
            ("postgresql.cnpg.io/v1", "Pooler", true),
            ("postgresql.cnpg.io/v1", "Cluster", false),
            ("postgresql.cnpg.io/v1", "Backup", false),
            ("barmancloud.cnpg.io/v1", "ObjectStore", false),
            ("apps.bnerd-operator.local/v1alpha1", "Postgresql", false),
            ("apps.bnerd-operator.local/v1alpha1", "ClientApp", false),
        ] {
            let object_type = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
            assert_eq!(is_recreatable(&object_type), recreatable, "{api_version} {kind}");
        }
    }
}
