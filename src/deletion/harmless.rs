//! Deletion of what can be recreated: workloads, addresses, configuration, Jobs. An **effect**.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DeleteParams, Preconditions, TypeMeta},
};
use serde::de::DeserializeOwned;

use crate::platform::api::unless_gone;

/// Returns true if deleting an object of a kind loses nothing. Kinds that hold data, open them, or take data along are destroyed only with a
/// permit. Kinds of groups other than Kubernetes' own may hold anything.
fn is_harmless(of: &TypeMeta) -> bool {
    let (group, _) = of.api_version.split_once('/').unwrap_or(("", ""));
    match (group, of.kind.as_str()) {
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
        _ => false,
    }
}

/// Deletes this object but no successor of its name, and in the background what it owns: otherwise the pods of a Job would stay.
/// `false`: nothing was deleted, because the object is gone or its kind is not harmless.
pub(crate) async fn delete<K>(api: &Api<K>, of: &TypeMeta, meta: &ObjectMeta) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    delete_as(api, of, meta, None).await
}

/// The same, if the object is still in the version that this is the metadata of. If it is not, nothing is deleted.
pub(crate) async fn delete_unchanged<K>(api: &Api<K>, of: &TypeMeta, meta: &ObjectMeta) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    match delete_as(api, of, meta, meta.resource_version.clone()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        deleted => deleted,
    }
}

async fn delete_as<K>(
    api: &Api<K>,
    of: &TypeMeta,
    meta: &ObjectMeta,
    resource_version: Option<String>,
) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    if !is_harmless(of) {
        return Ok(false);
    }
    let this = Preconditions { uid: meta.uid.clone(), resource_version };
    let params = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
    #[expect(clippy::disallowed_methods, reason = "nothing is lost by it")]
    let deleted = api.delete(meta.name.as_deref().unwrap_or_default(), &params).await;
    Ok(unless_gone(deleted)?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_data_is_not_harmless() {
        for (api_version, kind, harmless) in [
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
            ("apps.bnerd-operator.local/v1alpha1", "Postgresql", false),
            ("apps.bnerd-operator.local/v1alpha1", "ClientApp", false),
        ] {
            let of = TypeMeta { api_version: api_version.to_owned(), kind: kind.to_owned() };
            assert_eq!(is_harmless(&of), harmless, "{api_version} {kind}");
        }
    }
}
