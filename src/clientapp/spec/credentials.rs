//! The credentials that the app's pods read when they start, so that pods are restarted when one of them changes. **Pure.**
//!
//! The digest of each Secret goes into annotations of the pods, by the values, and into the status: then a restarted operator reads
//! no Secret again that has its recorded version, and a new label, another key of the Secret, or a cluster that was restored from a
//! backup restarts nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::{ByteString, api::core::v1::Secret};

use super::{
    database, names,
    secrets::{ADMIN_PASSWORD, ADMIN_USERNAME, METRICS_TOKEN, REDIS_PASSWORD, SMTP},
    values_from::Salt,
};
use crate::{
    config::Config,
    crd::{ClientApp, Credentials},
    platform::key::{Key, digest, key_of},
};

/// Keys of a Secret, each with a digest of its value; that of none is empty.
pub(crate) type Contents = Arc<BTreeMap<String, String>>;

/// Holds what was read of one version of a Secret.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KnownSecret {
    pub version: String,
    /// The keys that were looked for.
    keys: BTreeSet<String>,
    pub contents: Contents,
}

/// The Secrets that an app reads credentials from.
#[derive(Clone, Debug)]
pub(crate) struct Readable {
    names: BTreeSet<String>,
    /// All keys that it may ask for in one of them.
    keys: BTreeSet<String>,
}

impl Readable {
    /// Returns what is read of the Secrets that are [`used`].
    pub(crate) fn new(used: &[(String, Vec<String>)]) -> Readable {
        let fixed = [ADMIN_USERNAME, ADMIN_PASSWORD, METRICS_TOKEN, REDIS_PASSWORD].into_iter().chain(SMTP);
        let keys = used.iter().flat_map(|(_, keys)| keys.iter().cloned());
        Readable {
            names: used.iter().map(|(name, _)| name.clone()).collect(),
            keys: fixed.map(str::to_owned).chain(keys).collect(),
        }
    }

    /// Reads a Secret. A tenant may have filled it with a hundred thousand keys, so none is kept that no app asks for.
    pub(crate) fn read(&self, salt: &Salt, secret: &Key, mut found: Secret) -> KnownSecret {
        let version = found.metadata.resource_version.take().unwrap_or_default();
        found.data.get_or_insert_default().retain(|key, _| self.keys.contains(key));
        KnownSecret { version, keys: self.keys.clone(), contents: digests(salt, secret, found) }
    }

    /// Returns true if the app still names this Secret, and asks for what was looked for in it.
    pub(crate) fn keeps(&self, name: &str, known: &KnownSecret) -> bool {
        self.names.contains(name) && self.keys == known.keys
    }
}

/// The name of the Secret is part of each digest: otherwise a user could find out what is in a Secret that they may not read, by
/// comparing its digest with those of their own.
fn digests(Salt(salt): &Salt, secret: &Key, found: Secret) -> Contents {
    let name = secret.to_string();
    let digests = found.data.into_iter().flatten().map(|(key, ByteString(value))| {
        let of_value = || digest(&[salt.as_bytes(), name.as_bytes(), key.as_bytes(), &value]);
        let digest = if value.is_empty() { String::new() } else { of_value() };
        (key, digest)
    });
    Arc::new(digests.collect())
}

pub(crate) fn of_keys(contents: &Contents, keys: &[String]) -> String {
    let values: Vec<_> = keys.iter().map(|key| contents.get(key).map_or("", String::as_str)).collect();
    names::digest(&values)
}

/// Returns the Secrets that an app reads credentials from, and the keys that it reads.
pub(crate) fn used(app: &ClientApp, config: &Config) -> Vec<(String, Vec<String>)> {
    let (key, spec) = (key_of(app), &app.spec);
    let admin = spec.admin_secret.clone().unwrap_or_else(|| key.admin_secret());
    let mut keys = vec![ADMIN_USERNAME, ADMIN_PASSWORD];
    let settings = spec.values.get("nextcloud").and_then(|settings| settings.get("mail"));
    if spec.admin_secret.is_some() || settings.is_some() {
        keys.extend(SMTP);
        keys.push(METRICS_TOKEN);
    }
    let mut used = vec![(admin, keys.into_iter().map(str::to_owned).collect())];
    if spec.redis.enabled {
        used.push((key.redis_secret(), vec![REDIS_PASSWORD.to_owned()]));
    }
    // An invalid database is reported with the desired state.
    if let Some(Ok(database)) = spec.postgres.enabled.then(|| database::desired(&key, app, config, (false, None))) {
        let keys = database.address.keys().into_iter().map(str::to_owned).collect();
        used.push((database.address.secret, keys));
    }
    used
}

/// Returns the recorded credentials that an app uses, with placeholders for those that are not known: for a document that is
/// only printed.
pub(crate) fn placeholders(app: &ClientApp, config: &Config) -> Vec<Credentials> {
    let recorded = app.status.iter().flat_map(|status| &status.credentials);
    let known = |(secret, keys): (String, Vec<String>)| {
        let found = recorded.clone().find(|known| known.secret == secret && known.keys == keys);
        found.cloned().unwrap_or_else(|| Credentials {
            secret,
            keys,
            resource_version: String::new(),
            digest: "salted-digest".to_owned(),
        })
    };
    used(app, config).into_iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::fixtures::app;

    fn contents(salt: &str, name: &str, data: Value) -> Contents {
        let secret = serde_json::from_value(json!({"data": data})).unwrap();
        digests(&Salt(salt.into()), &Key::new("tenants", name), secret)
    }

    #[test]
    fn digest_changes_only_with_used_values() {
        let keys = ["user".to_owned(), "password".to_owned()];
        let of = |salt: &str, name: &str, data: Value| of_keys(&contents(salt, name, data), &keys);
        let before = of("salt", "db", json!({"user": "YQ==", "password": "Yg=="}));
        for (same, salt, name, data) in [
            (true, "salt", "db", json!({"user": "YQ==", "password": "Yg==", "more": "Yw=="})),
            (false, "salt", "db", json!({"user": "YQ==", "password": "Yw=="})),
            (false, "salt", "db", json!({"user": "YQ=="})),
            (false, "salt", "db", json!({"user": "YQ==", "password": ""})),
            (false, "salt", "db", json!({"user": "Yg==", "password": "YQ=="})),
            (false, "other", "db", json!({"user": "YQ==", "password": "Yg=="})),
            (false, "salt", "copy", json!({"user": "YQ==", "password": "Yg=="})),
        ] {
            assert_eq!(of(salt, name, data.clone()) == before, same, "{salt} {name} {data}");
        }
    }

    #[test]
    fn only_what_an_app_reads_is_kept_of_the_secrets_that_it_names() {
        let readable = |spec: Value| Readable::new(&used(&app(&spec), &Config::for_tests()));
        let of_admin = |secret: &str| readable(json!({"adminSecret": secret}));
        let data: BTreeMap<_, _> = (0..10_000).map(|key| (format!("k{key}"), ByteString(b"v".to_vec()))).collect();
        let data = data.into_iter().chain([("smtp-host".to_owned(), ByteString(b"v".to_vec()))]);
        let secret = Secret { data: Some(data.collect()), ..Secret::default() };
        let mut known = BTreeMap::new();
        for name in ["first", "second"] {
            let read = of_admin(name).read(&Salt("salt".into()), &Key::new("tenants", name), secret.clone());
            assert_eq!(read.contents.keys().collect::<Vec<_>>(), ["smtp-host"]);
            known.insert(name.to_owned(), read);
        }
        known.retain(|name, known| of_admin("second").keeps(name, known));
        assert_eq!(known.keys().collect::<Vec<_>>(), ["second"]);
        let external =
            json!({"provider": "external", "external": {"secretName": "db", "host": "h", "passwordKey": "pw"}});
        let asks_for_more = readable(json!({"adminSecret": "second", "postgres": external}));
        assert!(!asks_for_more.keeps("second", &known["second"]), "it asks for another key");
    }

    #[test]
    fn the_secrets_that_an_app_reads() {
        let used = |spec: Value| {
            let used = used(&app(&spec), &Config::for_tests());
            used.into_iter().map(|(secret, keys)| format!("{secret}: {}", keys.join(" "))).collect::<Vec<_>>()
        };
        let admin = "acme-admin-secret: nextcloud-username nextcloud-password";
        let external = json!({
            "adminSecret": "mine", "redis": {"enabled": false},
            "postgres": {"provider": "external", "external": {"secretName": "db", "host": "h", "passwordKey": "pw"}},
        });
        assert_eq!(
            used(json!({})),
            [admin, "acme-redis-secret: redis-password", "acme-pg-pguser-clientapp: user password"]
        );
        let more = "smtp-host smtp-username smtp-password nextcloud-token";
        assert_eq!(
            used(external),
            [format!("mine: nextcloud-username nextcloud-password {more}").as_str(), "db: user pw dbname"]
        );
        let mail = json!({"postgres": {"enabled": false}, "values": {"nextcloud": {"mail": {"enabled": true}}}});
        assert_eq!(used(mail), [format!("{admin} {more}").as_str(), "acme-redis-secret: redis-password"]);
        assert_eq!(used(json!({"postgres": {"enabled": false}, "redis": {"enabled": false}})), [admin]);
    }
}
