//! Handles answers of the API server that look like failures and are not. An **effect**.

use std::fmt::Debug;

use kube::{Api, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

/// Creates an object, with a field manager or the client's default. Returns `None` if an object of that name exists, which stays as it is.
pub(crate) async fn create_if_absent<K: Clone + Debug + DeserializeOwned + Serialize>(
    api: &Api<K>,
    manager: Option<&str>,
    object: &K,
) -> kube::Result<Option<K>> {
    let params = PostParams { field_manager: manager.map(str::to_owned), ..PostParams::default() };
    match api.create(&params, object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns `None` if the object is gone, or if the cluster does not know its kind: then the API server says only "404 page not found".
pub(crate) fn ignore_not_found<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        answer => answer.map(Some),
    }
}
