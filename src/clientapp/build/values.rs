//! The chart's values. Pure: names of Secrets go in, never a password.
//!
//! Layers, the later wins: base values of the chart < what follows from TLS < Profile < `spec.valuesFrom` < `spec.values` < computed
//! keys. Only the computed keys may set a computed key; elsewhere it is rejected with the field to use instead.

use serde_json::{Map, Value, json};

pub use crate::helm::values::document;
use crate::{
    crd::{CertificateIssuer, IssuerKind, ProfileDefaults, ProfileResources, annotation},
    helm::values::unfit,
};

/// How deep `spec.values` may nest; the chart's own values are far below it.
const MAX_DEPTH: usize = 32;
/// How large `spec.values` may be, together with `spec.valuesFrom`, in bytes of JSON: Helm stores the values in a Secret of at most 1 MiB.
pub(crate) const MAX_BYTES: usize = 256 * 1024;

/// The inputs of the computed keys.
#[derive(Clone, Debug)]
pub struct Inputs<'a> {
    /// `spec.hostname`.
    pub hostname: &'a str,
    /// Secret with the administrator's credentials.
    pub admin_secret: &'a str,
    /// `spec.ingressClassName`.
    pub ingress_class: Option<&'a str>,
    /// Where the certificate of the hostname comes from; `None`: the operator configures no TLS.
    pub tls: Option<&'a Tls>,
    /// Secret with the Redis password; `None`: no Redis.
    pub redis_secret: Option<&'a str>,
    /// The database; `None`: no database.
    pub database: Option<&'a Database>,
    /// Size and StorageClass of the files' volume; `None`: no volume.
    pub persistence: Option<(&'a str, &'a str)>,
    /// Image in place of the chart's own.
    pub image: Option<Image>,
    /// `spec.replicas`.
    pub replicas: Option<i32>,
    /// Digest of all credentials that the app reads; `None`: they are not known.
    pub credentials: Option<&'a str>,
    /// Digest of the Redis password.
    pub redis_credentials: Option<&'a str>,
}

/// Where the certificate of the hostname comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tls {
    /// A Secret of the namespace, which the Ingress names.
    Secret {
        /// Its name.
        name: String,
        /// The issuer with which cert-manager fills it; `None`: the user does.
        issuer: Option<CertificateIssuer>,
    },
    /// A proxy in front of the cluster has it.
    Elsewhere,
}

/// Returns cert-manager's annotation of an Ingress for an issuer of this kind.
fn issuer_annotation(kind: IssuerKind) -> &'static str {
    match kind {
        IssuerKind::Issuer => "cert-manager.io/issuer",
        IssuerKind::ClusterIssuer => "cert-manager.io/cluster-issuer",
    }
}

/// How the app reaches its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    /// The server: a DNS name or an address, followed by `:port` if the port is not 5432.
    pub host: From,
    /// The name of the database.
    pub name: From,
    /// Its user, if known without the Secret.
    pub user: Option<String>,
    /// Secret with user and password.
    pub secret: String,
    /// Key of the user's name in it.
    pub user_key: String,
    /// Key of the password in it.
    pub password_key: String,
}

/// Where a part of a database's address comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum From {
    /// This value.
    Value(String),
    /// The value under this key of the Secret.
    Key(String),
}

impl Database {
    /// The keys of the Secret that the app reads.
    #[must_use]
    pub fn keys(&self) -> Vec<&str> {
        let Database { host, name, user: _, secret: _, user_key, password_key } = self;
        let address = [host, name].into_iter().filter_map(|from| match from {
            From::Value(_) => None,
            From::Key(key) => Some(key),
        });
        [user_key, password_key].into_iter().chain(address).map(String::as_str).collect()
    }
}

/// An image as the chart needs it, in two parts that it joins with `:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Everything before the last `:`.
    pub repository: String,
    /// Tag, or the hexadecimal part of a digest.
    pub tag: String,
}

impl Image {
    /// Splits `repository:tag` or `repository@sha256:digest`. The chart joins both parts with `:`, so the digest's algorithm
    /// stays with the repository.
    #[must_use]
    pub fn parse(image: &str) -> Option<Image> {
        let (repository, tag) = image.rsplit_once(':')?;
        let fits = !repository.is_empty() && !tag.is_empty() && !tag.contains('/');
        fits.then(|| Image { repository: repository.to_owned(), tag: tag.to_owned() })
    }
}

/// The keys that the operator computes.
#[must_use]
pub fn computed(inputs: &Inputs<'_>) -> Value {
    let Inputs {
        hostname,
        admin_secret,
        ingress_class,
        tls,
        redis_secret,
        database,
        persistence,
        image,
        replicas,
        credentials,
        redis_credentials,
    } = inputs;
    let mut values = json!({
        "nextcloud": {
            "host": hostname,
            "existingSecret": {
                "enabled": true,
                "secretName": admin_secret,
                "usernameKey": super::secrets::ADMIN_USERNAME,
                "passwordKey": super::secrets::ADMIN_PASSWORD,
            },
        },
        "ingress": {"enabled": ingress_class.is_some()},
        "redis": {"enabled": redis_secret.is_some()},
        "persistence": {"enabled": persistence.is_some()},
    });
    if let Some(class) = ingress_class {
        values["ingress"]["className"] = json!(class);
    }
    if let Some(Tls::Secret { name, issuer }) = tls {
        values["ingress"]["tls"] = json!([{"secretName": name, "hosts": [hostname]}]);
        if let Some(CertificateIssuer { name, kind }) = issuer {
            values["ingress"]["annotations"] = json!({issuer_annotation(*kind): name});
        }
    }
    if let Some(secret) = redis_secret {
        values["redis"]["auth"] = json!({
            "enabled": true,
            "existingSecret": secret,
            // Without this key, the chart passes the literal password `changeme` to the app.
            "existingSecretPasswordKey": super::secrets::REDIS_PASSWORD,
        });
    }
    if let Some(database) = database {
        // The chart's internal database is on by default and takes precedence over every other setting: the app would use SQLite.
        values["internalDatabase"] = json!({"enabled": false});
        values["externalDatabase"] = external_database(database);
    }
    if let Some((size, class)) = persistence {
        values["persistence"]["size"] = json!(size);
        if !class.is_empty() {
            values["persistence"]["storageClass"] = json!(class);
        }
    }
    if let Some(Image { repository, tag }) = image {
        values["image"] = json!({"repository": repository, "tag": tag});
    }
    if let Some(replicas) = replicas {
        values["replicaCount"] = json!(replicas);
    }
    // Pods read credentials only when they start: an annotation that changes restarts them.
    let pods = |digest: &str| json!({annotation::CREDENTIALS: digest});
    if let Some(digest) = credentials {
        values["podAnnotations"] = pods(digest);
    }
    if let Some(digest) = redis_credentials {
        for node in ["master", "replica"] {
            values["redis"][node] = json!({"podAnnotations": pods(digest)});
        }
    }
    values
}

/// Values of an earlier revision, with the annotations for the present credentials: pods that use others have to restart.
pub(crate) fn with_credentials_of(mut earlier: Value, present: &Value) -> Value {
    for of in ["", "/redis/master", "/redis/replica"] {
        let path = format!("{of}/podAnnotations/{}", annotation::CREDENTIALS.replace('/', "~1"));
        if let (Some(digest), Some(present)) = (earlier.pointer_mut(&path), present.pointer(&path)) {
            digest.clone_from(present);
        }
    }
    earlier
}

fn external_database(database: &Database) -> Value {
    let Database { host, name, user, secret, user_key, password_key } = database;
    let mut values = json!({
        "enabled": true,
        "type": "postgresql",
        "existingSecret": {"enabled": true, "secretName": secret, "usernameKey": user_key, "passwordKey": password_key},
    });
    if let Some(user) = user {
        values["user"] = json!(user);
    }
    for (from, field, key) in [(host, "host", "hostKey"), (name, "database", "databaseKey")] {
        match from {
            From::Value(value) => values[field] = json!(value),
            From::Key(name) => values["existingSecret"][key] = json!(name),
        }
    }
    values
}

/// Keys that only the operator sets, whether or not it sets them now, and the field that controls each. A dot within a key is escaped,
/// as in helm's `--set`.
const RESERVED: &[(&str, &str)] = &[
    ("nextcloud.host", "spec.hostname"),
    ("nextcloud.existingSecret", "spec.adminSecret"),
    ("nextcloud.username", "spec.adminSecret"),
    ("nextcloud.password", "spec.adminSecret"),
    ("ingress.enabled", "spec.ingressClassName"),
    ("ingress.className", "spec.ingressClassName"),
    ("redis.enabled", "spec.redis.enabled"),
    ("redis.auth", "spec.redis"),
    ("persistence.enabled", "spec.persistence.enabled"),
    ("persistence.size", "spec.persistence.size"),
    ("persistence.storageClass", "spec.persistence.storageClassName"),
    ("image.repository", "spec.image"),
    ("image.tag", "spec.image"),
    ("replicaCount", "spec.replicas"),
    ("podAnnotations.checksum/clientapp-credentials", "another annotation"),
    ("redis.master.podAnnotations.checksum/clientapp-credentials", "another annotation"),
    ("redis.replica.podAnnotations.checksum/clientapp-credentials", "another annotation"),
];
/// Reserved only while the operator provides the database: otherwise `spec.values` may configure the user's own.
const RESERVED_WITH_DATABASE: &[(&str, &str)] =
    &[("internalDatabase", "spec.postgres"), ("externalDatabase", "spec.postgres")];
/// Reserved only with a Secret in `tls`: otherwise `spec.values` may configure TLS.
const RESERVED_WITH_CERTIFICATE: &[(&str, &str)] = &[("ingress.tls", "spec.tls")];
/// cert-manager refuses an Ingress with both.
const RESERVED_WITH_ISSUER: &[(&str, &str)] = &[
    (r"ingress.annotations.cert-manager\.io/issuer", "spec.tls"),
    (r"ingress.annotations.cert-manager\.io/cluster-issuer", "spec.tls"),
];

/// The parts of the spec that decide which keys are reserved.
#[derive(Clone, Copy, Debug)]
pub struct Reserved<'a> {
    /// Whether the operator provides the database.
    pub with_database: bool,
    /// Where the certificate of the hostname comes from.
    pub tls: Option<&'a Tls>,
}

impl Reserved<'_> {
    /// Returns each reserved key, and the field that controls it.
    fn keys(self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let none: &[(&str, &str)] = &[];
        let database = if self.with_database { RESERVED_WITH_DATABASE } else { none };
        let (certificate, issuer) = match self.tls {
            None | Some(Tls::Elsewhere) => (none, none),
            Some(Tls::Secret { issuer: None, .. }) => (RESERVED_WITH_CERTIFICATE, none),
            Some(Tls::Secret { issuer: Some(_), .. }) => (RESERVED_WITH_CERTIFICATE, RESERVED_WITH_ISSUER),
        };
        RESERVED.iter().chain(database).chain(certificate).chain(issuer)
    }
}

/// Splits a path at its dots, except escaped ones.
fn keys(path: &str) -> Vec<String> {
    path.replace(r"\.", "\0").split('.').map(|key| key.replace('\0', ".")).collect()
}

/// Keys with which charts name their objects, or use existing ones: with them, a release could reach into another release of its
/// namespace. Reserved at any depth, since subcharts have them as well.
const OF_OTHERS: &[&str] = &["fullnameOverride", "namespaceOverride", "existingClaim"];

/// Rejects user values that are too deep or too large, that would not reach the chart unchanged, or that set a key of the
/// operator's.
///
/// # Errors
/// One sentence, which begins with the key.
pub fn check_user_values(values: &Map<String, Value>, reserved: Reserved<'_>) -> Result<(), String> {
    if depth(values) > MAX_DEPTH {
        return Err(format!("values nest deeper than {MAX_DEPTH} levels"));
    }
    let bytes = serde_json::to_vec(values).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_BYTES {
        return Err(format!(
            "values are {bytes} bytes of JSON; at most {MAX_BYTES} fit beside the chart in Helm's release Secret"
        ));
    }
    if let Some(unfit) = unfit(values) {
        return Err(unfit);
    }
    if let Some(path) = of_others(values) {
        return Err(format!(
            "{path} is reserved: with it, the release would name or use another release's objects in its namespace; leave it out"
        ));
    }
    for (path, field) in reserved.keys() {
        let mut node = values;
        let keys = keys(path);
        let mut keys = keys.iter().peekable();
        while let Some(key) = keys.next() {
            match (node.get(key), keys.peek()) {
                (None, _) => break,
                (Some(Value::Object(map)), Some(_)) => node = map,
                // No annotations: the operator's are added.
                (Some(Value::Null), Some(_)) if path.ends_with(annotation::CREDENTIALS) || key == "annotations" => {
                    break;
                }
                (Some(_), Some(_)) => {
                    return Err(format!("{key} must be a map: the operator computes {path} in it"));
                }
                (Some(_), None) => return Err(format!("{path} is computed by the operator: set {field} instead")),
            }
        }
    }
    Ok(())
}

/// The first key of [`OF_OTHERS`] that has a value.
fn of_others(values: &Map<String, Value>) -> Option<String> {
    values.iter().find_map(|(key, value)| match value {
        Value::Null => None,
        Value::String(text) if text.is_empty() => None,
        _ if OF_OTHERS.contains(&key.as_str()) => Some(key.clone()),
        Value::Object(map) => of_others(map).map(|path| format!("{key}.{path}")),
        Value::Array(items) => {
            let found = items.iter().find_map(|item| item.as_object().and_then(of_others));
            found.map(|path| format!("{key}[].{path}"))
        }
        _ => None,
    })
}

/// [`check_user_values`] for what a Profile sets.
///
/// # Errors
/// One sentence, which begins with the key.
pub fn check_profile_values(values: &Map<String, Value>, reserved: Reserved<'_>) -> Result<(), String> {
    check_user_values(values, reserved).map_err(|problem| {
        let instead = [
            ("spec.persistence.enabled", "defaults.persistence.enabled"),
            ("spec.persistence.size", "defaults.persistence.size"),
            ("spec.replicas", "defaults.replicaCount"),
            ("spec.tls", "defaults.tls"),
        ];
        for (field, own) in instead {
            if let Some(sentence) = problem.strip_suffix(&format!(": set {field} instead")) {
                return format!("{sentence}: set {own} instead");
            }
        }
        match problem.strip_suffix(" instead") {
            Some(sentence) => format!("{sentence} of each ClientApp instead"),
            None => problem,
        }
    })
}

/// Returns what follows from TLS and any other layer may override: Nextcloud sees requests without TLS, and would redirect users to
/// `http://`.
#[must_use]
pub fn of_tls(tls: Option<&Tls>) -> Value {
    tls.map_or_else(|| json!({}), |_| json!({"phpClientHttpsFix": {"enabled": true, "protocol": "https"}}))
}

/// A Profile's defaults as values, except those that a field of the ClientApp can override.
#[must_use]
pub fn of_profile(defaults: &ProfileDefaults) -> Value {
    let ProfileDefaults { replica_count: _, resources, persistence: _, tls: _, apps } = defaults;
    let mut values = Map::new();
    for (name, app) in apps {
        values.insert(name.clone(), json!({"enabled": app.enabled}));
    }
    if let Some(ProfileResources { requests, limits }) = resources {
        let mut written = Map::new();
        for (kind, amounts) in [("requests", requests), ("limits", limits)] {
            if !amounts.is_empty() {
                written.insert(kind.to_owned(), json!(amounts));
            }
        }
        values.insert("resources".to_owned(), Value::Object(written));
    }
    Value::Object(values)
}

/// Number of nested maps and lists in a value; a scalar has none.
fn depth(values: &Map<String, Value>) -> usize {
    let mut deepest = 0;
    let mut open: Vec<(&Value, usize)> = values.values().map(|value| (value, 1)).collect();
    while let Some((value, level)) = open.pop() {
        deepest = deepest.max(level);
        match value {
            Value::Object(map) => open.extend(map.values().map(|value| (value, level + 1))),
            Value::Array(list) => open.extend(list.iter().map(|value| (value, level + 1))),
            _ => {}
        }
    }
    deepest
}

/// Merges layers as Helm does: maps key by key, anything else replaced by the later layer.
#[must_use]
pub fn merge<'a>(layers: impl IntoIterator<Item = &'a Value>) -> Value {
    let mut merged = Value::Object(Map::new());
    for layer in layers {
        merge_into(&mut merged, layer);
    }
    merged
}

fn merge_into(under: &mut Value, over: &Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                merge_into(under.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over.clone(),
    }
}

#[cfg(test)]
mod tests;
