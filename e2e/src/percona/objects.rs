//! The stand-in's objects, as pure functions of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Secret, Service};
use kube::{Resource as _, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::instances::Instance;
use super::spec::{Cluster, PgBouncer, User, resource};
use crate::charts::digest;

pub(super) const CLUSTER: &str = "postgres-operator.crunchydata.com/cluster";
pub(super) const INSTANCE: &str = "postgres-operator.crunchydata.com/instance";
pub(super) const INSTANCE_SET: &str = "postgres-operator.crunchydata.com/instance-set";
pub(super) const ROLE: &str = "postgres-operator.crunchydata.com/role";
const USER: &str = "postgres-operator.crunchydata.com/pguser";

/// The role of a user's Secret.
pub(super) const ROLE_USER: &str = "pguser";
const ROLE_PGBOUNCER: &str = "pgbouncer";

/// The names of the Secrets that `percona.com/delete-ssl` deletes.
pub(super) fn tls_secrets(cluster: &str) -> [String; 2] {
    [format!("{cluster}-cluster-cert"), format!("{cluster}-pgbouncer")]
}

/// A Secret that has certificates in reality. No owner.
pub(super) fn tls_secret(cluster: &Cluster, name: &str) -> Secret {
    built(json!({
        "metadata": {"name": name, "labels": labels(cluster, &[])},
        "stringData": {"ca.crt": "none"},
    }))
}

pub(super) fn user_secret_name(cluster: &str, user: &User) -> String {
    user.secret_name.clone().unwrap_or_else(|| format!("{cluster}-pguser-{}", user.name))
}

/// A user's Secret, with the password of the existing one. No owner.
pub(super) fn user_secret(cluster: &Cluster, user: &User, existing: Option<&Secret>, omit: Option<&str>) -> Secret {
    let name = cluster.name_any();
    let namespace = cluster.namespace().unwrap_or_default();
    let kept = |key: &str| existing?.data.as_ref()?.get(key).and_then(|value| String::from_utf8(value.0.clone()).ok());
    let password = kept("password").unwrap_or_else(|| new_password(cluster, user));
    // Nothing here checks the verifier, so it only has the right form.
    let verifier = kept("verifier").unwrap_or_else(|| format!("SCRAM-SHA-256$4096:{}", digest(password.as_bytes())));

    let mut data =
        BTreeMap::from([("user", user.name.clone()), ("password", password.clone()), ("verifier", verifier)]);
    let primary = ("host", "port", "uri", "jdbc-uri", format!("{name}-primary"), cluster.spec.port, "");
    let pooled = cluster.spec.pgbouncer().map(|pgbouncer| {
        let keys = ("pgbouncer-host", "pgbouncer-port", "pgbouncer-uri", "pgbouncer-jdbc-uri");
        (keys.0, keys.1, keys.2, keys.3, format!("{name}-pgbouncer"), pgbouncer.port, "&prepareThreshold=0")
    });
    for (host, port, uri, jdbc_uri, service, number, more) in [Some(primary), pooled].into_iter().flatten() {
        let address = format!("{service}.{namespace}.svc");
        if let Some(database) = user.databases.first() {
            let (name, password) = (&user.name, encode(&password));
            data.insert("dbname", database.clone());
            data.insert(uri, format!("postgresql://{name}:{password}@{address}:{number}/{database}"));
            let query = format!("password={password}{more}&user={name}");
            data.insert(jdbc_uri, format!("jdbc:postgresql://{address}:{number}/{database}?{query}"));
        }
        data.insert(host, address);
        data.insert(port, number.to_string());
    }
    data.retain(|key, _| omit != Some(key));

    let mut secret: Secret = built(json!({
        "metadata": {
            "name": user_secret_name(&name, user),
            "labels": labels(cluster, &[(ROLE, ROLE_USER), (USER, &user.name)]),
        },
    }));
    let bytes = |(key, value): (&str, String)| (key.to_owned(), ByteString(value.into_bytes()));
    secret.data = Some(data.into_iter().map(bytes).collect());
    secret
}

/// Unique to this cluster, and alphanumeric only on request: ASCII is the default.
fn new_password(cluster: &Cluster, user: &User) -> String {
    let seed = format!("{}/{}", cluster.uid().unwrap_or_default(), user.name);
    let alphanumeric = digest(seed.as_bytes())[..24].to_owned();
    match &user.password {
        Some(password) if password.kind == "AlphaNumeric" => alphanumeric,
        _ => format!("{alphanumeric}:/?#@<%"),
    }
}

/// PostgreSQL's Services select no pods: the real operator writes their endpoints itself.
pub(super) fn services(cluster: &Cluster) -> Vec<Service> {
    let name = cluster.name_any();
    let port = |name: &str, number: i32| json!([{"name": name, "port": number, "targetPort": name}]);
    let service = |suffix: &str, labels: Value, spec: Value| {
        let metadata = json!({"name": format!("{name}-{suffix}"), "labels": labels, "ownerReferences": owner(cluster)});
        built(json!({"metadata": metadata, "spec": spec}))
    };
    let postgres = port("postgres", cluster.spec.port);
    let primary = labels(cluster, &[(ROLE, "primary")]);
    let mut services = vec![
        service("ha", labels(cluster, &[]), json!({"ports": postgres})),
        service("primary", primary, json!({"clusterIP": "None", "ports": postgres})),
    ];
    if let Some(pgbouncer) = cluster.spec.pgbouncer() {
        let labels = labels(cluster, &[(ROLE, ROLE_PGBOUNCER)]);
        let spec = json!({"selector": labels, "ports": port("pgbouncer", pgbouncer.port)});
        services.push(service("pgbouncer", labels, spec));
    }
    services
}

pub(super) fn pgbouncer_name(cluster: &str) -> String {
    format!("{cluster}-pgbouncer")
}

/// PgBouncer, on a node that does not exist if it is never to be ready.
pub(super) fn pgbouncer(cluster: &Cluster, pgbouncer: &PgBouncer, unready: bool) -> Deployment {
    let labels = labels(cluster, &[(ROLE, ROLE_PGBOUNCER)]);
    built(json!({
        "metadata": {
            "name": pgbouncer_name(&cluster.name_any()),
            "labels": labels,
            "ownerReferences": owner(cluster),
        },
        "spec": {
            "replicas": if cluster.spec.pause { 0 } else { pgbouncer.replicas },
            "selector": {"matchLabels": labels},
            // With a rolling update the ready pod would stay when the next one is never to be ready.
            "strategy": {"type": "Recreate"},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "nodeSelector": if unready { json!({"clientapp.test/no-such-node": "true"}) } else { json!({}) },
                    "containers": [{
                        "name": "pgbouncer",
                        "image": pgbouncer.image,
                        "ports": [{"name": "pgbouncer", "containerPort": pgbouncer.port}],
                    }],
                },
            },
        },
    }))
}

/// The volume of an instance. No owner.
pub(super) fn volume(cluster: &Cluster, instance: &Instance<'_>) -> PersistentVolumeClaim {
    let role = [(INSTANCE, instance.name.as_str()), (INSTANCE_SET, &instance.set.name), (ROLE, "pgdata")];
    built(json!({
        "metadata": {"name": format!("{}-pgdata", instance.name), "labels": labels(cluster, &role)},
        "spec": instance.set.data_volume_claim_spec,
    }))
}

/// An instance: one pod.
pub(super) fn stateful_set(cluster: &Cluster, instance: &Instance<'_>) -> StatefulSet {
    let labels = labels(cluster, &[(INSTANCE, &instance.name), (INSTANCE_SET, &instance.set.name)]);
    let mut containers = vec![json!({
        "name": "database",
        "image": cluster.spec.image,
        "ports": [{"name": "postgres", "containerPort": cluster.spec.port}],
        "volumeMounts": [{"name": "pgdata", "mountPath": "/pgdata"}],
    })];
    // Servers archive the WAL, so enabling or disabling backups restarts PostgreSQL.
    if let Some(pgbackrest) = cluster.spec.backups.pgbackrest.as_ref().filter(|_| cluster.spec.backups.are_enabled()) {
        let sidecar = |name: &str| json!({"name": name, "image": pgbackrest.image});
        containers.extend([sidecar("pgbackrest"), sidecar("pgbackrest-config")]);
    }
    built(json!({
        "metadata": {"name": instance.name, "labels": labels, "ownerReferences": owner(cluster)},
        "spec": {
            "replicas": if cluster.spec.pause { 0 } else { 1 },
            "serviceName": format!("{}-pods", cluster.name_any()),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": containers,
                    "volumes": [{
                        "name": "pgdata",
                        "persistentVolumeClaim": {"claimName": format!("{}-pgdata", instance.name)},
                    }],
                },
            },
        },
    }))
}

/// The subject of the event about missing images: the object that the real operator derives from the cluster.
pub(super) fn inner_cluster(cluster: &Cluster) -> ObjectReference {
    ObjectReference {
        api_version: Some("postgres-operator.crunchydata.com/v1beta1".to_owned()),
        kind: Some("PostgresCluster".to_owned()),
        name: Some(cluster.name_any()),
        namespace: cluster.namespace(),
        ..ObjectReference::default()
    }
}

pub(super) fn labels(cluster: &Cluster, more: &[(&str, &str)]) -> Value {
    let mut labels = json!({CLUSTER: cluster.name_any()});
    for (key, value) in more {
        labels[key] = json!(value);
    }
    labels
}

pub(super) fn owner(cluster: &Cluster) -> Value {
    json!([cluster.controller_owner_ref(&resource())])
}

pub(super) fn built<T: DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("what is built here is of its type")
}

/// Percent-encodes a password for a URL.
fn encode(text: &str) -> String {
    let byte = |byte: u8| match byte {
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
