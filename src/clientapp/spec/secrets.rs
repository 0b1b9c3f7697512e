//! The generated Secrets. Pure, except for the operating system's random numbers.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::api::ObjectMeta;

use crate::{
    crd::{annotation, label},
    platform::{key::Key, password::password},
};

pub(crate) const ADMIN_USERNAME: &str = "nextcloud-username";
pub(crate) const ADMIN_PASSWORD: &str = "nextcloud-password";
/// Keys that the chart reads of the admin Secret with `nextcloud.mail`. A mail server without authentication needs the last two
/// as well, without a value.
pub(crate) const SMTP: [&str; 3] = ["smtp-host", "smtp-username", "smtp-password"];
/// Key that the chart reads of the admin Secret with `metrics.token`.
pub(crate) const METRICS_TOKEN: &str = "nextcloud-token";
pub(crate) const REDIS_PASSWORD: &str = "redis-password";
/// The generated administrator's name.
const ADMIN_NAME: &str = "admin";

/// Returns the Secret with the generated administrator credentials. It has no ownerReference, so that the garbage collector
/// does not delete it: the app's data know no other credentials.
pub(crate) fn admin(key: &Key, uid: &str) -> Secret {
    let data = BTreeMap::from([
        (ADMIN_USERNAME.to_owned(), ByteString(ADMIN_NAME.into())),
        (ADMIN_PASSWORD.to_owned(), password()),
    ]);
    secret(key, key.admin_secret(), uid, data)
}

/// Returns the Secret with the generated Redis password. No data depend on this password alone, so the Secret has an
/// ownerReference, which shows at a deletion whether `--cascade=orphan` was used. Therefore every app has this Secret, with
/// Redis or without.
pub(crate) fn redis(key: &Key, owner: OwnerReference) -> Secret {
    let data = BTreeMap::from([(REDIS_PASSWORD.to_owned(), password())]);
    let mut secret = secret(key, key.redis_secret(), &owner.uid, data);
    secret.metadata.owner_references = Some(vec![owner]);
    secret
}

fn secret(key: &Key, name: String, uid: &str, data: BTreeMap<String, ByteString>) -> Secret {
    Secret {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(key.namespace.clone()),
            labels: Some(BTreeMap::from([
                (label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned()),
                (label::APP.to_owned(), key.name.clone()),
            ])),
            annotations: Some(BTreeMap::from([(annotation::OWNER_UID.to_owned(), uid.to_owned())])),
            ..ObjectMeta::default()
        },
        data: Some(data),
        type_: Some("Opaque".to_owned()),
        ..Secret::default()
    }
}
