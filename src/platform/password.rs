//! Generates passwords. An **effect**: the operating system's randomness.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::{ObjectReference, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Api, Client};
use rand::rand_core::UnwrapErr;
use rand::{RngExt as _, distr::Alphanumeric, rngs::SysRng};

use super::{
    api::create_if_absent,
    events::{Note, Recorder, publish_by},
};
use crate::crd::{Reason, StorePasswordSecret, conditions::Verdict, label};

const PASSWORD_LENGTH: usize = 32;

/// Generates 32 characters of `[A-Za-z0-9]`, with the operating system's randomness. Alphanumeric because passwords reach URLs and PHP's
/// session path unescaped.
///
/// # Panics
/// When the operating system provides no randomness: no password is better than a guessable one.
pub(crate) fn password() -> ByteString {
    let mut random = UnwrapErr(SysRng);
    ByteString((0..PASSWORD_LENGTH).map(|_| random.sample(Alphanumeric)).collect())
}

/// Creates the Secret with the password of the repository of this object's backups, and tells users to keep a copy. An existing one is
/// never changed.
pub(crate) async fn create_of_repository(
    client: &Client,
    recorder: &Recorder,
    object: &ObjectReference,
    manager: Option<&str>,
    secret: &StorePasswordSecret,
) -> kube::Result<()> {
    let namespace = object.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    if create_if_absent(&secrets, manager, &of_repository(namespace, secret.clone())).await?.is_some() {
        publish_by(recorder, object, &[generated(&secret.name)]).await;
    }
    Ok(())
}

/// Builds the Secret with the password of a restic repository. It has no owner and no label by which it could be deleted: whatever is
/// deleted, the backups may stay.
fn of_repository(namespace: &str, StorePasswordSecret { name, key }: StorePasswordSecret) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            labels: Some(BTreeMap::from([(label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(key, password())])),
        immutable: Some(true),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// Returns the event that tells users to keep a copy of it.
fn generated(secret: &str) -> Note {
    let message = format!(
        "Secret {secret} has the generated password of the repository of backups: keep a copy outside this cluster, nobody can read them without it"
    );
    Note::warning("GeneratePassword", Reason::RepositoryPasswordGenerated, message)
}

/// Judges backups whose Secret with the password is gone. **Pure.**
pub(crate) fn lost(namespace: &str, StorePasswordSecret { name, key }: &StorePasswordSecret) -> Verdict {
    let message = format!(
        "Secret {name} with the repository's password is gone, and no other is generated: create it from your copy, `kubectl create secret generic {name} -n {namespace} --from-literal={key}=…`"
    );
    Verdict::no(Reason::RepositoryPasswordLost, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_alphanumeric_and_differ() {
        let (a, b) = (password().0, password().0);
        assert_eq!(a.len(), 32);
        assert!(a.iter().all(u8::is_ascii_alphanumeric));
        assert_ne!(a, b);
    }
}
