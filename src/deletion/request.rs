//! Sends the deletions that the other modules have decided. An **effect**.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};
use serde::de::DeserializeOwned;

use crate::platform::api::ignore_not_found;

/// Deletes the object with the name and uid of this metadata but no successor of its name, and only in this version if there is one.
/// Returns `false` if the object is gone.
pub(super) async fn request<K: Clone + Debug + DeserializeOwned>(
    api: &Api<K>,
    meta: &ObjectMeta,
    resource_version: Option<String>,
    params: DeleteParams,
) -> kube::Result<bool> {
    let preconditions = Preconditions { uid: meta.uid.clone(), resource_version };
    let params = DeleteParams { preconditions: Some(preconditions), ..params };
    #[expect(clippy::disallowed_methods, reason = "the one place")]
    let deleted = api.delete(meta.name.as_deref().unwrap_or_default(), &params).await;
    Ok(ignore_not_found(deleted)?.is_some())
}
