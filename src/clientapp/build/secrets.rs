//! The generated Secrets. Pure but for the operating system's randomness.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::api::ObjectMeta;

use crate::{
    controller::{key::Key, password::password},
    crd::label,
};

/// Key of the administrator's name in the admin Secret.
pub const ADMIN_USERNAME: &str = "nextcloud-username";
/// Key of the administrator's password in the admin Secret.
pub const ADMIN_PASSWORD: &str = "nextcloud-password";
/// Key of the password in the Redis Secret.
pub const REDIS_PASSWORD: &str = "redis-password";
/// The generated administrator's name.
const ADMIN_NAME: &str = "admin";

/// The Secret with the administrator's generated credentials.
#[must_use]
pub fn admin(key: &Key, owner: OwnerReference) -> Secret {
    let data = BTreeMap::from([
        (ADMIN_USERNAME.to_owned(), ByteString(ADMIN_NAME.into())),
        (ADMIN_PASSWORD.to_owned(), password()),
    ]);
    secret(key, key.admin_secret(), owner, data)
}

/// The Secret with the generated Redis password.
#[must_use]
pub fn redis(key: &Key, owner: OwnerReference) -> Secret {
    let data = BTreeMap::from([(REDIS_PASSWORD.to_owned(), password())]);
    secret(key, key.redis_secret(), owner, data)
}

fn secret(key: &Key, name: String, owner: OwnerReference, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(key.namespace.clone()),
            labels: Some(BTreeMap::from([
                (label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned()),
                (label::APP.to_owned(), key.name.clone()),
            ])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
