//! What a ClientApp asks for, in the terms of what a chart renders, from the documented contract and not from the operator's code.
//! **Pure.**

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::release::text;

/// The user of the databases that the operator creates, and their name.
const USER: &str = "clientapp";
/// Size of the files' volume, where a spec has none.
const SIZE: &str = "8Gi";

/// What one ClientApp asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    pub app: Key,
    pub hostname: String,
    pub ingress_class: Option<String>,
    pub image: Option<String>,
    pub replicas: i64,
    pub redis: bool,
    pub database: Database,
    /// Of the files' volume.
    pub size: String,
    /// `None`: the cluster's default class.
    pub storage_class: Option<String>,
    /// `spec.values`: the optional parts of the chart.
    pub values: Value,
    /// The Secrets that the operator or the user makes, with their keys.
    pub secrets: BTreeMap<String, BTreeSet<String>>,
}

/// Namespace and name of a ClientApp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    pub namespace: String,
    pub name: String,
}

/// How the app reaches its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Database {
    pub host: Source,
    pub name: Source,
    pub user: Source,
    pub password: Source,
}

/// Where the value of a variable comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Value(String),
    /// A Secret, and the key in it.
    Secret(String, String),
}

impl Source {
    /// Returns whether an entry of a container's environment has its value from here.
    #[must_use]
    pub fn is_of(&self, entry: &Value) -> bool {
        match self {
            Source::Value(value) => entry["value"] == value.as_str(),
            Source::Secret(name, key) => {
                let reference = &entry["valueFrom"]["secretKeyRef"];
                reference["name"] == name.as_str() && reference["key"] == key.as_str()
            }
        }
    }
}

impl Asked {
    /// Returns what this ClientApp asks for. `values` are those that the operator computes for it: they say how a name that is too long
    /// for a database was shortened. `of_user` are the Secrets that the user made.
    #[must_use]
    pub fn new(app: &Value, values: &Value, of_user: &[(&str, &[&str])]) -> Asked {
        let spec = &app["spec"];
        let word = |field: &str| text(&app["metadata"][field]).to_owned();
        let key = Key { namespace: word("namespace"), name: word("name") };
        let mut secrets: BTreeMap<_, _> = of_user.iter().map(|(name, keys)| made(name, keys)).collect();
        secrets.extend([
            made(&format!("{}-admin-secret", key.name), &["nextcloud-username", "nextcloud-password"]),
            made(&format!("{}-redis-secret", key.name), &["redis-password"]),
        ]);
        let secret = text(&values["externalDatabase"]["existingSecret"]["secretName"]);
        let of_operator = |suffix: &str, service: &str| {
            let plain = format!("{}-pg", key.name);
            let database =
                if plain.len() <= 22 { plain.as_str() } else { secret.strip_suffix(suffix).unwrap_or_default() };
            let secret = format!("{database}{suffix}");
            Database {
                host: Source::Value(format!("{database}{service}.{}.svc.cluster.local", key.namespace)),
                name: Source::Value(USER.to_owned()),
                user: Source::Secret(secret.clone(), "user".to_owned()),
                password: Source::Secret(secret, "password".to_owned()),
            }
        };
        let external = &spec["postgres"]["external"];
        let from = |field: &str, key: &str| match external[field].as_str() {
            Some(value) => Source::Value(value.to_owned()),
            None => Source::Secret(text(&external["secretName"]).to_owned(), key.to_owned()),
        };
        let database = match text(&spec["postgres"]["provider"]) {
            "external" => Database {
                host: from("host", "host"),
                name: from("database", "dbname"),
                user: from("", "user"),
                password: from("", "password"),
            },
            "standalone" => of_operator("-app", ""),
            _ => of_operator("-pguser-clientapp", "-pgbouncer"),
        };
        if let Source::Secret(name, _) = &database.password {
            let (name, keys) = made(name, &["host", "port", "user", "password", "dbname", "uri"]);
            secrets.entry(name).or_insert(keys);
        }
        Asked {
            hostname: text(&spec["hostname"]).to_owned(),
            ingress_class: spec["ingressClassName"].as_str().map(str::to_owned),
            image: spec["image"].as_str().map(str::to_owned),
            replicas: spec["replicas"].as_i64().unwrap_or(1),
            redis: spec["redis"]["enabled"].as_bool().unwrap_or(true),
            database,
            size: spec["persistence"]["size"].as_str().unwrap_or(SIZE).to_owned(),
            storage_class: spec["persistence"]["storageClassName"].as_str().map(str::to_owned),
            values: spec["values"].clone(),
            secrets,
            app: key,
        }
    }

    /// Returns whether a part of the chart is switched on, by its path in the chart's values.
    #[must_use]
    pub fn has(&self, part: &str) -> bool {
        self.values.pointer(&format!("/{part}/enabled")) == Some(&Value::Bool(true))
    }
}

fn made(name: &str, keys: &[&str]) -> (String, BTreeSet<String>) {
    (name.to_owned(), keys.iter().copied().map(str::to_owned).collect())
}
