//! The generated Secrets. Pure but for the operating system's randomness.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::api::ObjectMeta;
use rand::rand_core::UnwrapErr;
use rand::{RngExt as _, distr::Alphanumeric, rngs::SysRng};

use crate::{clientapp::names::Key, crd::label};

/// Key of the administrator's name in the admin Secret.
pub const ADMIN_USERNAME: &str = "nextcloud-username";
/// Key of the administrator's password in the admin Secret.
pub const ADMIN_PASSWORD: &str = "nextcloud-password";
/// Key of the password in the Redis Secret.
pub const REDIS_PASSWORD: &str = "redis-password";
/// The generated administrator's name.
const ADMIN_NAME: &str = "admin";
const PASSWORD_LENGTH: usize = 32;

/// 32 characters of `[A-Za-z0-9]`, from the operating system. Alphanumeric because passwords reach URLs and PHP's
/// session path unescaped.
///
/// # Panics
/// When the operating system has no randomness to give: no password is better than a guessable one.
pub fn password() -> ByteString {
    let mut random = UnwrapErr(SysRng);
    ByteString((0..PASSWORD_LENGTH).map(|_| random.sample(Alphanumeric)).collect())
}

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
