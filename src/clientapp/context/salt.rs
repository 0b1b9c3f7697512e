//! The salt of digests, an **effect**: a random text in a Secret beside the operator's Lease.
//!
//! The digest of a release is in the status of its ClientApp and on a label of Helm's Secret, where users may read it who may not
//! read Secrets. Without a salt, they could guess a short password: they would compute the digest for each candidate until one
//! fits. The digest covers the values themselves, not the versions of the objects that they come from: then a label on a Secret,
//! another key in it, or a cluster restored from a backup would each give every release a new revision.
//!
//! The Secret is created when the first ClientApp has values from elsewhere. If it is lost, another is created, and each of these
//! releases gets one more revision.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams},
};
use serde_json::json;
use tokio::sync::OnceCell;

use crate::{
    clientapp::{error::Error, spec::values_from::Salt},
    crd::label,
    platform::{api::create_if_absent, password::password},
};

const NAME: &str = "clientapp-operator-salt";
const KEY: &str = "salt";

/// The salt, read once.
pub(crate) struct Salts {
    namespace: String,
    known: OnceCell<Salt>,
}

impl Salts {
    pub(crate) fn new(namespace: String) -> Salts {
        Salts { namespace, known: OnceCell::new() }
    }

    pub(crate) async fn get(&self, client: &Client) -> Result<Salt, Error> {
        self.known.get_or_try_init(|| read(client, &self.namespace)).await.cloned()
    }
}

async fn read(client: &Client, namespace: &str) -> Result<Salt, Error> {
    let api: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let failed = |what: &str| Error::api(format!("{what} Secret {namespace}/{NAME}"));
    let found = match api.get_opt(NAME).await.map_err(failed("read"))? {
        Some(found) => found,
        // Another operator may create it at the same time.
        None => match create_if_absent(&api, None, &secret(namespace)).await.map_err(failed("create"))? {
            Some(made) => made,
            None => api.get(NAME).await.map_err(failed("read"))?,
        },
    };
    let found = match salt(&found) {
        Some(salt) => return Ok(salt),
        // A user has emptied it.
        None => {
            let version = &found.metadata.resource_version;
            let patch = json!({"metadata": {"resourceVersion": version}, "data": {KEY: password()}});
            let params = PatchParams::default();
            api.patch(NAME, &params, &Patch::Merge(patch)).await.map_err(failed("complete"))?
        }
    };
    Ok(salt(&found).unwrap_or_default())
}

fn salt(secret: &Secret) -> Option<Salt> {
    let ByteString(salt) = secret.data.as_ref()?.get(KEY)?;
    (!salt.is_empty()).then(|| Salt(Arc::from(String::from_utf8_lossy(salt))))
}

fn secret(namespace: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([(label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), password())])),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use axum::http::Method;
    use serde_json::Value;

    use super::*;
    use crate::platform::fake;

    /// An API server with this Secret, if any; and whether another operator creates one first.
    fn server(stored: Option<Value>, overtaken: bool) -> Client {
        let stored = Arc::new(Mutex::new(stored));
        fake::client(move |method, _, body| {
            let mut stored = stored.lock().unwrap();
            let failure = |code: u16, reason: &str| {
                (code, json!({"kind": "Status", "status": "Failure", "code": code, "reason": reason}))
            };
            match (method, stored.as_mut()) {
                (&Method::GET, None) => failure(404, "NotFound"),
                (&Method::GET, Some(found)) => (200, found.clone()),
                (&Method::POST, None) if overtaken => {
                    *stored = Some(json!({"metadata": {"name": NAME}, "data": {KEY: "dGhlaXJz"}}));
                    failure(409, "AlreadyExists")
                }
                (&Method::POST, None) => (201, stored.insert(body).clone()),
                (&Method::PATCH, Some(found)) => {
                    found["data"] = body["data"].clone();
                    (200, found.clone())
                }
                (method, found) => panic!("{method} {found:?}"),
            }
        })
    }

    #[tokio::test]
    async fn there_is_one_salt_for_all_operators_and_restarts() {
        let theirs = json!({"metadata": {"name": NAME, "resourceVersion": "1"}, "data": {KEY: "dGhlaXJz"}});
        let emptied = json!({"metadata": {"name": NAME, "resourceVersion": "1"}});
        for (stored, overtaken, expected) in [
            (None, false, None),
            (None, true, Some("theirs")),
            (Some(theirs), false, Some("theirs")),
            (Some(emptied), false, None),
        ] {
            let client = server(stored, overtaken);
            let ask = async || Salts::new("operator".to_owned()).get(&client).await.unwrap().0;
            let (first, second) = (ask().await, ask().await);
            assert_eq!(first, second);
            assert!(expected.map_or(first.len() == 32, |expected| *first == *expected));
        }
    }
}
