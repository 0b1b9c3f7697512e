//! Answers of the API server that are no failures of the request. An **effect**.

use std::fmt::Debug;

use kube::{Api, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

/// Creates an object for a field manager, or for this client as such. `None`: an object of its name is there already, and is left alone.
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

/// `None`: the object is gone, or the cluster does not know its kind, of which the API server says "404 page not found" and no more.
pub(crate) fn unless_gone<T>(answer: kube::Result<T>) -> kube::Result<Option<T>> {
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        answer => answer.map(Some),
    }
}
