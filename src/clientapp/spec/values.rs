//! The chart's values. Pure: names of Secrets go in, never a password.
//!
//! Layers, the later wins: base values of the chart < what follows from TLS < Profile < `spec.valuesFrom` < `spec.values` < computed
//! keys. Only the computed keys may set a computed key; elsewhere it is rejected with the field to use instead.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::{
    crd::{CertificateIssuer, IssuerKind, ProfileDefaults, ProfileResources, annotation},
    helm::{
        cli::redact::MASK,
        values::{registry_of, unfit},
    },
    platform::key::Key,
};

/// How deep `spec.values` may nest; the chart's own values are far below it.
const MAX_DEPTH: usize = 32;
/// How large `spec.values` may be, together with `spec.valuesFrom`, in bytes of JSON: Helm stores the values in a Secret of at
/// most 1 MiB.
pub(crate) const MAX_BYTES: usize = 256 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct Inputs<'a> {
    pub name: &'a str,
    pub hostname: &'a str,
    pub admin_secret: &'a str,
    pub ingress_class: Option<&'a str>,
    /// Where the certificate of the hostname comes from; `None`: the operator configures no TLS.
    pub tls: Option<&'a TlsSource>,
    pub redis_secret: Option<&'a str>,
    pub database: Option<&'a DatabaseAddress>,
    /// Size and StorageClass of the files' volume; `None`: no volume.
    pub persistence: Option<(&'a str, &'a str)>,
    /// Image in place of the chart's own.
    pub image: Option<Image>,
    pub replicas: Option<i32>,
    /// The domains that the app trusts; none: as the chart has it.
    pub trusted_domains: &'a [Value],
    /// The settings of mail as variables of the image; `None`: as the chart has them.
    pub mail: Option<&'a [Value]>,
    /// Digest of all credentials that the app reads; `None`: they are not known.
    pub credentials: Option<&'a str>,
    pub redis_credentials: Option<&'a str>,
}

/// Where the certificate of the hostname comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TlsSource {
    /// A Secret of the namespace, which the Ingress names.
    Secret {
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatabaseAddress {
    /// The server: a DNS name or an address, followed by `:port` if the port is not 5432.
    pub host: From,
    pub name: From,
    /// Its user, if known without the Secret.
    pub user: Option<String>,
    /// Secret with user and password.
    pub secret: String,
    pub user_key: String,
    pub password_key: String,
}

/// Where a part of a database's address comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// This value.
    Value(String),
    /// The value under this key of the Secret.
    Key(String),
}

impl DatabaseAddress {
    /// Returns the keys of the Secret that the app reads.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let DatabaseAddress { host, name, user: _, secret: _, user_key, password_key } = self;
        let address = [host, name].into_iter().filter_map(|from| match from {
            From::Value(_) => None,
            From::Key(key) => Some(key),
        });
        [user_key, password_key].into_iter().chain(address).map(String::as_str).collect()
    }
}

/// An image as charts need it that join two parts with `:`; [`Chart::values`](crate::helm::Chart::values) makes three of them for
/// those that have its registry apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    /// Everything before the last `:`.
    pub repository: String,
    /// Tag, or the hexadecimal part of a digest.
    pub tag: String,
}

impl Image {
    /// Splits `repository:tag`, `repository@sha256:digest`, or both together. The chart joins both parts with `:`, so the digest's
    /// algorithm stays with the repository.
    pub(crate) fn parse(image: &str) -> Option<Image> {
        let (named, digest) = image.split_once('@').map_or((image, None), |(named, digest)| (named, Some(digest)));
        // A colon before a slash is that of a port.
        let (name, tag) = match named.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (named, None),
        };
        let (host, path) = match name.split_once('/') {
            Some((host, path)) => (host.split_once(':').map_or((host, None), |(host, port)| (host, Some(port))), path),
            None => ((name, None), "a"),
        };
        let fits = [host.0].into_iter().chain(path.split('/')).all(is_component)
            && host.1.is_none_or(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()))
            && (tag.is_some() || digest.is_some())
            && tag.is_none_or(is_tag)
            && digest.is_none_or(is_digest);
        let (repository, tag) = image.rsplit_once(':')?;
        fits.then(|| Image { repository: repository.to_owned(), tag: tag.to_owned() })
    }
}

/// Returns true if this is one component of an image's name, by the grammar of github.com/distribution/reference.
fn is_component(text: &str) -> bool {
    let is_alphanumeric = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
    text.starts_with(is_alphanumeric)
        && text.ends_with(is_alphanumeric)
        && text
            .split(is_alphanumeric)
            .all(|run| matches!(run, "." | "_" | "__") || run.bytes().all(|byte| byte == b'-'))
}

fn is_tag(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.len() <= 128
        && text.bytes().next().is_some_and(is_word)
        && text.bytes().all(|byte| is_word(byte) || b".-".contains(&byte))
}

fn is_digest(text: &str) -> bool {
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    text.strip_prefix("sha256:").is_some_and(|hex| hex.len() == 64 && hex.bytes().all(is_hex))
}

pub(crate) fn computed(inputs: &Inputs<'_>) -> Value {
    let Inputs {
        name,
        hostname,
        admin_secret,
        ingress_class,
        tls,
        redis_secret,
        database,
        persistence,
        image,
        replicas,
        trusted_domains,
        mail,
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
        "ingress": ingress(*ingress_class, *tls, hostname),
        "redis": redis(name, *redis_secret, *redis_credentials),
        "persistence": files_volume(*persistence),
    });
    if let Some(database) = database {
        // The chart's internal database is on by default and takes precedence over every other setting: the app would use SQLite.
        values["internalDatabase"] = json!({"enabled": false});
        values["externalDatabase"] = external_database(database);
    }
    if let Some(Image { repository, tag }) = image {
        // In place of any in the layers below.
        values["image"] = json!({"registry": null, "repository": repository, "tag": tag});
    }
    if let Some(replicas) = replicas {
        values["replicaCount"] = json!(replicas);
    }
    if !trusted_domains.is_empty() {
        values["nextcloud"]["trustedDomains"] = json!(trusted_domains);
    }
    if let Some(variables) = mail {
        values["nextcloud"]["mail"] = json!({"enabled": false});
        values["nextcloud"]["extraEnv"] = json!(variables);
    }
    if let Some(digest) = credentials {
        values["podAnnotations"] = restarting(digest);
    }
    values
}

fn ingress(class: Option<&str>, tls: Option<&TlsSource>, hostname: &str) -> Value {
    let mut values = json!({"enabled": class.is_some()});
    if let Some(class) = class {
        values["className"] = json!(class);
    }
    if let Some(TlsSource::Secret { name, issuer }) = tls {
        values["tls"] = json!([{"secretName": name, "hosts": [hostname]}]);
        if let Some(CertificateIssuer { name, kind }) = issuer {
            values["annotations"] = json!({issuer_annotation(*kind): name});
        }
    }
    values
}

fn redis(release: &str, secret: Option<&str>, credentials: Option<&str>) -> Value {
    let mut values = json!({"enabled": secret.is_some()});
    if let Some(secret) = secret {
        values["auth"] = json!({
            "enabled": true,
            "existingSecret": secret,
            // Without this key, the chart passes the literal password `changeme` to the app.
            "existingSecretPasswordKey": super::secrets::REDIS_PASSWORD,
        });
        // The subchart leaves its own name out in such a release, and the app looks for the Service with it.
        if release.contains("redis") {
            values["fullnameOverride"] = json!(format!("{release}-redis"));
        }
    }
    if let Some(digest) = credentials {
        for node in ["master", "replica"] {
            values[node] = json!({"podAnnotations": restarting(digest)});
        }
    }
    values
}

/// Returns the chart's `persistence`, from size and StorageClass.
fn files_volume(volume: Option<(&str, &str)>) -> Value {
    let mut values = json!({"enabled": volume.is_some()});
    if let Some((size, class)) = volume {
        values["size"] = json!(size);
        if !class.is_empty() {
            values["storageClass"] = json!(class);
        }
    }
    values
}

/// Returns annotations that restart pods when credentials change: pods read them only when they start.
fn restarting(digest: &str) -> Value {
    json!({annotation::CREDENTIALS: digest})
}

/// Sets the chart's own autoscaler aside for an app without pods: with it, the chart has no number of replicas.
pub(crate) fn without_autoscaler(mut values: Value) -> Value {
    if values["replicaCount"] == 0
        && let Some(enabled) = values.pointer_mut("/hpa/enabled")
    {
        *enabled = json!(false);
    }
    values
}

/// Returns the values of an earlier revision, with the annotations for the present credentials: pods that use others have to
/// restart.
pub(crate) fn with_credentials_of(mut earlier: Value, present: &Value) -> Value {
    for component in ["", "/redis/master", "/redis/replica"] {
        let path = format!("{component}/podAnnotations/{}", annotation::CREDENTIALS.replace('/', "~1"));
        if let (Some(digest), Some(present)) = (earlier.pointer_mut(&path), present.pointer(&path)) {
            digest.clone_from(present);
        }
    }
    earlier
}

fn external_database(database: &DatabaseAddress) -> Value {
    let DatabaseAddress { host, name, user, secret, user_key, password_key } = database;
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

/// Keys that only the operator sets, whether or not it sets them now, and the field that controls each. A dot within a key is
/// escaped, as in helm's `--set`.
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
/// Reserved only while the spec names an image: otherwise users may have the chart's own from another registry.
const RESERVED_WITH_IMAGE: &[(&str, &str)] = &[("image.registry", "spec.image")];
/// Reserved only with a Secret in `tls`: otherwise `spec.values` may configure TLS.
const RESERVED_WITH_CERTIFICATE: &[(&str, &str)] = &[("ingress.tls", "spec.tls")];
/// cert-manager refuses an Ingress with both.
const RESERVED_WITH_ISSUER: &[(&str, &str)] = &[
    (r"ingress.annotations.cert-manager\.io/issuer", "spec.tls"),
    (r"ingress.annotations.cert-manager\.io/cluster-issuer", "spec.tls"),
];

/// The parts of the spec that decide which keys are reserved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reserved<'a> {
    pub with_database: bool,
    pub with_image: bool,
    pub tls: Option<&'a TlsSource>,
}

impl Reserved<'_> {
    /// Returns each reserved key, and the field that controls it.
    fn keys(self) -> impl Iterator<Item = &'static (&'static str, &'static str)> {
        let none: &[(&str, &str)] = &[];
        let database = if self.with_database { RESERVED_WITH_DATABASE } else { none };
        let image = if self.with_image { RESERVED_WITH_IMAGE } else { none };
        let (certificate, issuer) = match self.tls {
            None | Some(TlsSource::Elsewhere) => (none, none),
            Some(TlsSource::Secret { issuer: None, .. }) => (RESERVED_WITH_CERTIFICATE, none),
            Some(TlsSource::Secret { issuer: Some(_), .. }) => (RESERVED_WITH_CERTIFICATE, RESERVED_WITH_ISSUER),
        };
        RESERVED.iter().chain(database).chain(image).chain(certificate).chain(issuer)
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
pub(crate) fn check_user_values(values: &Map<String, Value>, reserved: Reserved<'_>) -> Result<(), String> {
    if depth(values) > MAX_DEPTH {
        return Err(format!("values nest deeper than {MAX_DEPTH} levels"));
    }
    let bytes = serde_json::to_vec(values).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_BYTES {
        return Err(format!(
            "values are {bytes} bytes of JSON; at most {MAX_BYTES} fit beside the chart in Helm's release Secret"
        ));
    }
    if let Some(unfit) = unfit(values).or_else(|| unnamed(values)) {
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

/// Returns the domains that the app is to trust, if the values name any: without the hostname it would serve nobody, and
/// without its Service's name no metrics.
pub(crate) fn trusted_domains(values: &Value, key: &Key, chart: &str, hostname: &str) -> Vec<Value> {
    let named = entries(values.pointer("/nextcloud/trustedDomains"));
    if named.is_empty() {
        return Vec::new();
    }
    let Key { namespace, name } = key;
    let service = if name.contains(chart) { name.clone() } else { format!("{name}-{chart}") };
    let mut needed = vec![json!(hostname)];
    if is_true(&values["metrics"]["enabled"]) {
        needed.push(json!(format!("{service}.{namespace}.svc.cluster.local")));
    }
    let others: Vec<_> = named.iter().filter(|domain| !needed.contains(domain)).cloned().collect();
    [needed, others].concat()
}

/// Returns `nextcloud.mail` of the values as the variables of the image that the chart would set, if it names a server: the
/// chart reads that from the administrator's Secret, and a generated one has no such keys. A variable in `nextcloud.extraEnv`
/// stays, so that users can take the password from a Secret of theirs.
///
/// # Errors
/// One sentence, if the sender's address is incomplete.
pub(crate) fn mail(values: &Value) -> Result<Option<Vec<Value>>, String> {
    let mail = &values["nextcloud"]["mail"];
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let smtp = |field: &str| text(&mail["smtp"][field]);
    let Some(host) = smtp("host").filter(|_| is_true(&mail["enabled"])) else { return Ok(None) };
    let (Some(from), Some(domain)) = (text(&mail["fromAddress"]), text(&mail["domain"])) else {
        return Err("nextcloud.mail: set fromAddress and domain, the two halves of the sender's address".to_owned());
    };
    let or = |field: &str, default: &str| Some(smtp(field).unwrap_or_else(|| default.to_owned()));
    let own: BTreeSet<_> = entries(values.pointer(BY_NAME)).iter().filter_map(name_of).collect();
    let variables = [
        ("MAIL_FROM_ADDRESS", Some(from)),
        ("MAIL_DOMAIN", Some(domain)),
        // The chart's defaults.
        ("SMTP_SECURE", or("secure", "ssl")),
        ("SMTP_PORT", or("port", "465")),
        ("SMTP_AUTHTYPE", or("authtype", "LOGIN")),
        ("SMTP_HOST", Some(host)),
        ("SMTP_NAME", smtp("name")),
        ("SMTP_PASSWORD", smtp("password")),
    ];
    let set = variables.into_iter().filter(|(name, _)| !own.contains(name));
    Ok(Some(set.filter_map(|(name, value)| Some(json!({"name": name, "value": value?}))).collect()))
}

/// Returns the keys that the chart reads of the administrator's Secret in addition to name and password.
pub(crate) fn more_admin_keys(values: &Value) -> Vec<&'static str> {
    let mut keys = Vec::new();
    if is_true(&values["nextcloud"]["mail"]["enabled"]) {
        keys.extend(super::secrets::SMTP);
    }
    if is_true(&values["metrics"]["enabled"]) && is_true(&values["metrics"]["token"]) {
        keys.push(super::secrets::METRICS_TOKEN);
    }
    keys
}

/// Returns true if a value is true to a template.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
    }
}

/// Rejects an image whose registry charts would replace.
///
/// # Errors
/// One sentence.
pub(crate) fn check_registry(image: &Image, values: &Value) -> Result<(), String> {
    let (registry, _) = registry_of(&image.repository);
    match values.pointer("/global/image/registry").and_then(Value::as_str) {
        Some(global) if ![registry.as_str(), MASK, ""].contains(&global) => Err(format!(
            "its registry is {registry}, and global.image.registry of the values would replace it with {global}: leave one of them out"
        )),
        _ => Ok(()),
    }
}

/// Returns the first key of [`OF_OTHERS`] that has a value.
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

/// Applies [`check_user_values`] to what a Profile sets.
///
/// # Errors
/// One sentence, which begins with the key.
pub(crate) fn check_profile_values(values: &Map<String, Value>, reserved: Reserved<'_>) -> Result<(), String> {
    // The image of a spec takes precedence over a registry from its Profile.
    check_user_values(values, Reserved { with_image: false, ..reserved }).map_err(|problem| {
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
pub(crate) fn of_tls(tls: Option<&TlsSource>) -> Value {
    tls.map_or_else(|| json!({}), |_| json!({"phpClientHttpsFix": {"enabled": true, "protocol": "https"}}))
}

/// Returns a Profile's defaults as values, except those that a field of the ClientApp can override.
pub(crate) fn of_profile(defaults: &ProfileDefaults) -> Value {
    let ProfileDefaults { replica_count: _, resources, persistence: _, tls: _, jobs: _, apps, chart_version: _ } =
        defaults;
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

/// Returns the number of nested maps and lists in a value; a scalar has none.
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

/// The list that base values and users both have entries in. Its entries are merged by name, in every layer.
const BY_NAME: &str = "/nextcloud/extraEnv";
/// The parts of the base values that the app needs, each a list of [`BY_NAME`] or a map.
const NEEDED: &[&str] = &[BY_NAME, "/nextcloud/hooks"];

/// Merges layers as Helm does: maps key by key, anything else replaced by the later layer, except for [`BY_NAME`].
pub(crate) fn merge<'a>(layers: impl IntoIterator<Item = &'a Value>) -> Value {
    let mut merged = Value::Object(Map::new());
    for layer in layers {
        let entries = layer.pointer(BY_NAME).map(|over| merge_by_name(merged.pointer(BY_NAME), over));
        merge_into(&mut merged, layer);
        if let Some((list, entries)) = merged.pointer_mut(BY_NAME).zip(entries) {
            *list = entries;
        }
    }
    merged
}

/// Returns the entries of both lists; of those of one name, that of the later list in the place of the other.
fn merge_by_name(under: Option<&Value>, over: &Value) -> Value {
    let mut merged: Vec<&Value> = entries(under).iter().collect();
    // The first of each name; a user may write thousands.
    let mut places = BTreeMap::new();
    for (place, entry) in merged.iter().enumerate() {
        name_of(entry).map(|name| places.entry(name).or_insert(place));
    }
    for entry in entries(Some(over)) {
        match name_of(entry).map(|name| *places.entry(name).or_insert(merged.len())) {
            Some(place) if place < merged.len() => merged[place] = entry,
            _ => merged.push(entry),
        }
    }
    Value::Array(merged.into_iter().cloned().collect())
}

fn entries(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns the name of an entry; a masked one says nothing.
fn name_of(entry: &Value) -> Option<&str> {
    entry["name"].as_str().filter(|name| *name != MASK)
}

/// Says what the app needs of the base values and does not get, because other layers replace it.
pub(crate) fn replaced(base: &Value, merged: &Value) -> Vec<String> {
    let mut replaced = Vec::new();
    for path in NEEDED {
        let key = path.replace('/', ".");
        let key = &key[1..];
        let found = merged.pointer(path);
        match base.pointer(path) {
            Some(Value::Object(needed)) => {
                let other = needed.iter().filter(|(key, value)| found.and_then(|found| found.get(key)) != Some(*value));
                replaced.extend(other.map(|(name, _)| replaces(&format!("{key}.{name}"))));
            }
            needed => {
                let other = entries(needed).iter().filter(|needed| !entries(found).contains(needed));
                replaced.extend(other.filter_map(name_of).map(|name| replaces(&format!("{name} in {key}"))));
            }
        }
    }
    replaced
}

fn replaces(part: &str) -> String {
    format!("the values replace {part} of the base values, which the app needs")
}

/// Rejects a list that cannot be merged by name.
fn unnamed(values: &Map<String, Value>) -> Option<String> {
    let key = &BY_NAME.replace('/', ".")[1..];
    let list = match values.get("nextcloud")?.get("extraEnv")? {
        Value::Null => return None,
        Value::Array(list) => list,
        _ => return Some(format!("{key} must be a list: entries of the base values are added to it")),
    };
    let mut names = BTreeSet::new();
    list.iter().find_map(|entry| match entry["name"].as_str() {
        None => Some(format!("{key} has an entry without a name")),
        Some(MASK) => None,
        Some(name) => (!names.insert(name)).then(|| format!("{key} has {name} twice: remove one of them")),
    })
}

/// Lays one tree over another: objects are merged, everything else is replaced, also by `null`.
pub(crate) fn merge_into(under: &mut Value, over: &Value) {
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
