//! The Secrets. Pure except for the operating system's randomness.
//!
//! `<name>-credentials` holds the password with which the database was created, and is immutable. `<name>-app`, which clients read
//! and users may damage, is recreated from it. If `<name>-credentials` is lost, it is recreated from `<name>-app`. If both are lost,
//! so is a generated password; the operator does not generate another, as the database would not accept it.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;

use crate::{
    crd::label,
    postgresql::{desired::Desired, names},
    runtime::password::password,
};

/// Key of the password in every Secret.
pub(crate) const PASSWORD: &str = "password";

/// The password in use. Like every Secret here, it has no ownerReference: the garbage collector must not delete what opens data.
pub(crate) fn credentials(desired: &Desired, in_use: &str) -> Secret {
    let data = [("user", desired.user.clone()), ("dbname", desired.database.clone()), (PASSWORD, in_use.to_owned())];
    Secret { immutable: Some(true), ..secret(desired, names::credentials(&desired.key.name), text(data)) }
}

/// The Secret for clients, with the same keys as the Percona operator's Secrets for users.
pub(crate) fn client(desired: &Desired, in_use: &str) -> Secret {
    secret(desired, names::client_secret(&desired.key.name), client_data(desired, in_use))
}

pub(crate) fn client_data(desired: &Desired, in_use: &str) -> BTreeMap<String, ByteString> {
    let Desired { key, user, database, port, .. } = desired;
    let host = format!("{}.{}.svc", names::primary(&key.name), key.namespace);
    let uri = format!("postgresql://{}:{}@{host}:{port}/{}", encoded(user), encoded(in_use), encoded(database));
    text([
        ("host", host),
        ("port", port.to_string()),
        ("user", user.clone()),
        (PASSWORD, in_use.to_owned()),
        ("dbname", database.clone()),
        ("uri", uri),
    ])
}

/// The password of standbys and dumps. A new one may be generated at any time, since the primary sets it whenever it starts.
pub(crate) fn replication(desired: &Desired) -> Secret {
    let data = BTreeMap::from([(PASSWORD.to_owned(), password())]);
    Secret { immutable: Some(true), ..secret(desired, names::replication(&desired.key.name), data) }
}

pub(crate) fn generated() -> String {
    // Alphanumeric, and so UTF-8.
    String::from_utf8_lossy(&password().0).into_owned()
}

fn text<const N: usize>(data: [(&str, String); N]) -> BTreeMap<String, ByteString> {
    data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into_bytes()))).collect()
}

fn secret(desired: &Desired, name: String, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(desired.key.namespace.clone()),
            labels: Some(BTreeMap::from([
                (label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned()),
                (label::POSTGRESQL.to_owned(), desired.key.name.clone()),
                (label::POSTGRESQL_UID.to_owned(), desired.uid.clone()),
            ])),
            ..ObjectMeta::default()
        },
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}

/// Percent-encodes all characters except those that RFC 3986 calls unreserved.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte.into()),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    #[test]
    fn encoding() {
        for (text, encoded) in [("aZ0-._~", "aZ0-._~"), ("a:b@c/d %", "a%3Ab%40c%2Fd%20%25"), ("ü", "%C3%BC")] {
            assert_eq!(super::encoded(text), encoded);
        }
    }
}
