//! The Secrets. Pure except for the operating system's randomness.
//!
//! `<name>-credentials` holds the password with which the database was created, and is immutable. `<name>-app`, which clients read
//! and users may damage, is recreated from it. If `<name>-credentials` is lost, it is recreated from `<name>-app`. If both are lost,
//! so is a generated password; the operator does not generate another, as the database would not accept it.
//!
//! `<name>-server-tls` has the certificate of the servers. If it is lost, there is another, and clients get its authority.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::api::ObjectMeta;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::{
    crd::label,
    platform::{key::Key, password::password},
    postgresql::{desired::Desired, names},
};

/// Key of the password in every Secret.
pub(crate) const PASSWORD: &str = "password";

/// Keys of the Secret with the certificate, as in every Secret of the type `kubernetes.io/tls`.
pub(crate) const CERTIFICATE: &str = "tls.crt";
pub(crate) const KEY: &str = "tls.key";
/// Key of the authority's certificate, there and in the Secret for clients.
pub(crate) const AUTHORITY: &str = "ca.crt";

/// Builds the Secret with the password in use. Like every Secret here, it has no ownerReference: the garbage collector must not delete what opens data.
pub(crate) fn credentials(desired: &Desired, in_use: &str) -> Secret {
    let data = [("user", desired.user.clone()), ("dbname", desired.database.clone()), (PASSWORD, in_use.to_owned())];
    Secret { immutable: Some(true), ..secret(desired, names::credentials(&desired.key.name), text(data)) }
}

/// Builds the Secret for clients, with the same keys as the Percona operator's Secrets for users.
pub(crate) fn client(desired: &Desired, in_use: &str, authority: Option<&[u8]>) -> Secret {
    secret(desired, names::client_secret(&desired.key.name), client_data(desired, in_use, authority))
}

/// Returns the data of the Secret for clients. `authority`: the certificate with which clients verify the servers; `None` without TLS.
pub(crate) fn client_data(desired: &Desired, in_use: &str, authority: Option<&[u8]>) -> BTreeMap<String, ByteString> {
    let Desired { key, user, database, port, .. } = desired;
    let host = format!("{}.{}.svc", names::primary(&key.name), key.namespace);
    let mut uri = format!("postgresql://{}:{}@{host}:{port}/{}", encoded(user), encoded(in_use), encoded(database));
    if authority.is_some() {
        uri += "?sslmode=require";
    }
    let mut data = text([
        ("host", host),
        ("port", port.to_string()),
        ("user", user.clone()),
        (PASSWORD, in_use.to_owned()),
        ("dbname", database.clone()),
        ("uri", uri),
    ]);
    data.extend(authority.map(|authority| (AUTHORITY.to_owned(), ByteString(authority.to_owned()))));
    data
}

/// Creates a certificate for the servers, with its authority, which signs this one only: its key is not kept. They do not expire, so that no
/// database stops for it; whoever deletes the Secret gets another.
pub(crate) fn certificate(desired: &Desired) -> Result<Secret, rcgen::Error> {
    let name = &desired.key.name;
    let mut authority = CertificateParams::default();
    authority.distinguished_name = called(format!("{name} authority"));
    authority.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = CertificateParams::new(hosts(desired))?;
    server.distinguished_name = called(name.clone());
    server.use_authority_key_identifier_extension = true;
    server.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let key = KeyPair::generate()?;
    let data = [
        (AUTHORITY, authority.pem()),
        (CERTIFICATE, server.signed_by(&key, &authority)?.pem()),
        (KEY, key.serialize_pem()),
    ];
    Ok(Secret {
        immutable: Some(true),
        type_: Some("kubernetes.io/tls".to_owned()),
        ..secret(desired, names::certificate(name), text(data))
    })
}

fn called(name: String) -> DistinguishedName {
    let mut called = DistinguishedName::new();
    called.push(DnType::CommonName, name);
    called
}

/// Returns all names by which pods reach the servers.
fn hosts(desired: &Desired) -> Vec<String> {
    let Key { namespace, name } = &desired.key;
    let pods = format!("*.{}", names::headless(name));
    let services = [names::primary(name), names::read_only(name), pods];
    let hosts = services.iter().flat_map(|service| {
        ["", &format!(".{namespace}"), &format!(".{namespace}.svc"), &format!(".{namespace}.svc.cluster.local")]
            .map(|domain| format!("{service}{domain}"))
    });
    // Not every client accepts a wildcard in a name of two labels, by which standbys reach the primary.
    let primary = format!("{}.{}", names::primary_pod(name), names::headless(name));
    hosts.chain([primary, "localhost".to_owned()]).collect()
}

/// Creates the password of standbys and dumps. A new one may be generated at any time, since the primary sets it whenever it starts.
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
