//! The StatefulSets. Pure.
//!
//! Primary and standbys are two: one script that decides by ordinal whether to begin an empty database or to copy another's
//! could be wrong once, and a change of the standbys would restart the primary.
//!
//! Settings are the same for both. PostgreSQL wants some of them (`max_connections` and what else the log's reader needs) on a standby
//! to be at least what the primary has, and the two StatefulSets restart their pods in no order. That does no harm: a standby that has
//! less than what it reads stops replaying until it is restarted itself, and one that starts with less than what it has replayed takes
//! what its files say instead (`standby.sh`), where it would end for good.
//!
//! `podManagementPolicy: Parallel` is not about speed: under `OrderedReady` a StatefulSet does not replace a pod that is not ready, so
//! that a setting with which no server starts could be corrected only by deleting the pod.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    network::PORT,
    object::{Object, labels, object, pod_labels, selector},
    placement,
    pod::{claim_spec, give_resources, pod_spec},
};
use crate::postgresql::{
    build::secrets::PASSWORD,
    desired::Desired,
    names,
    observed::{Detail, Id, Kind, ObjectView, Role},
};

/// Where the volume is. Not the image's own place: that has moved between its versions.
pub(super) const VOLUME: &str = "/volume";
/// PostgreSQL wants a directory for itself, which the root of a volume is not.
pub(super) const PGDATA: &str = "/volume/data";
const OPEN: &str = "/scripts/pg_hba.conf";
const CLOSED: &str = "/scripts/closed.conf";
pub(super) const REPLICATION_PASSWORD: &str = "/replication/password";
/// What a standby may be behind, in bytes, and still be read from: two segments of the log.
const LAG: &str = "33554432";
/// On a pod: uid of the Secret with the standbys' password.
const REPLICATION_ANNOTATION: &str = "apps.bnerd-operator.local/replication-secret";
/// On a pod of the primary: the deletion for whose last dump it lets no client in.
pub(crate) const CLOSED_ANNOTATION: &str = "apps.bnerd-operator.local/closed-for-deletion";

/// The primary, open for clients or closed for a deletion.
pub(crate) fn primary(
    desired: &Desired,
    found: &BTreeMap<Id, ObjectView>,
    replication: &str,
    closed: Option<&str>,
) -> Object {
    let name = &desired.key.name;
    let container = json!({
        "name": "postgres",
        "image": desired.image,
        "command": ["sh", "/scripts/primary.sh"],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "HBA_FILE", "value": if closed.is_some() { CLOSED } else { OPEN }},
            {"name": "POSTGRES_USER", "value": desired.user},
            {"name": "REPLICATION_PASSWORD_FILE", "value": REPLICATION_PASSWORD},
        ],
        "lifecycle": {"postStart": {"exec": {"command": ["sh", "/scripts/roles.sh"]}}},
        "readinessProbe": {
            "exec": {"command": ["pg_isready", "--quiet", "--host=127.0.0.1", format!("--port={PORT}")]},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
    });
    let set = Set {
        name: names::primary(name),
        role: Role::Primary,
        place: placement::primary,
        replicas: 1,
        replication,
        closed,
    };
    stateful_set(desired, found, &set, container)
}

pub(crate) fn standby(desired: &Desired, found: &BTreeMap<Id, ObjectView>, replication: &str) -> Object {
    let name = &desired.key.name;
    let container = json!({
        "name": "postgres",
        "image": desired.image,
        "command": ["sh", "/scripts/standby.sh"],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "PRIMARY_HOST", "value": format!("{}.{}", names::primary_pod(name), names::headless(name))},
            {"name": "PRIMARY_PORT", "value": PORT.to_string()},
            {"name": "REPLICATION_PASSWORD_FILE", "value": REPLICATION_PASSWORD},
            {"name": "PGPASSFILE", "value": "/tmp/pgpass"},
            {"name": "HBA_FILE", "value": OPEN},
            {"name": "LAG", "value": LAG},
        ],
        "readinessProbe": {
            "exec": {"command": ["sh", "/scripts/standby-ready.sh"]},
            "periodSeconds": 5,
            "timeoutSeconds": 5,
        },
        "livenessProbe": {
            "exec": {"command": ["sh", "/scripts/standby-alive.sh"]},
            "periodSeconds": 30,
            "timeoutSeconds": 15,
        },
    });
    let standbys = desired.standbys;
    let set = Set {
        name: names::standby(name),
        role: Role::Standby,
        place: placement::standby,
        replicas: standbys,
        replication,
        closed: None,
    };
    stateful_set(desired, found, &set, container)
}

struct Set<'a> {
    name: String,
    role: Role,
    place: fn(&Desired, &mut Value),
    replicas: i32,
    replication: &'a str,
    closed: Option<&'a str>,
}

/// The size that volumes are made with: those that are there already grow by a patch of their own, since a StatefulSet's template
/// for volumes cannot be changed.
fn storage<'a>(desired: &'a Desired, found: &'a BTreeMap<Id, ObjectView>, set: &str) -> &'a str {
    match found.get(&(Kind::StatefulSet, set.to_owned())).map(|view| &view.detail) {
        Some(Detail::StatefulSet { storage: Some(storage), .. }) => storage,
        _ => &desired.storage.text,
    }
}

/// Each setting as an argument of its own, which no shell reads: whatever a value is, it ends with the argument. Kubernetes itself
/// would put a variable of the container in the place of `$(NAME)`, and takes `$$` for `$`.
fn arguments(desired: &Desired) -> Vec<String> {
    let settings = desired.parameters.iter().map(|(name, value)| format!("{name}={}", value.replace('$', "$$")));
    settings.flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

fn stateful_set(desired: &Desired, found: &BTreeMap<Id, ObjectView>, set: &Set<'_>, mut container: Value) -> Object {
    let name = &desired.key.name;
    container["ports"] = json!([{"name": "postgresql", "containerPort": PORT, "protocol": "TCP"}]);
    container["volumeMounts"] = json!([
        {"name": "data", "mountPath": VOLUME},
        {"name": "scripts", "mountPath": "/scripts", "readOnly": true},
        {"name": "replication", "mountPath": "/replication", "readOnly": true},
        {"name": "run", "mountPath": "/var/run/postgresql"},
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]);
    let volumes = json!([
        {"name": "scripts", "configMap": {"name": names::scripts(name)}},
        {"name": "replication", "secret": {
            "secretName": names::replication(name),
            "items": [{"key": PASSWORD, "path": PASSWORD}],
        }},
        {"name": "run", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        // A container's own is too small for parallel queries.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]);
    give_resources(desired, &mut container);
    if !desired.parameters.is_empty() {
        container["args"] = json!(arguments(desired));
    }
    let mut pod = pod_spec(container, volumes);
    (set.place)(desired, &mut pod);
    // A shutdown writes out what is in memory.
    pod["terminationGracePeriodSeconds"] = json!(120);
    let mut annotations = json!({REPLICATION_ANNOTATION: set.replication});
    if let Some(deletion) = set.closed {
        annotations[CLOSED_ANNOTATION] = json!(deletion);
    }
    let spec = json!({
        "serviceName": names::headless(name),
        "replicas": set.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(desired, set.role)},
        "template": {
            "metadata": {
                "labels": pod_labels(desired, set.role),
                "annotations": annotations,
            },
            "spec": pod,
        },
        "volumeClaimTemplates": [{
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "labels": labels(desired)},
            "spec": claim_spec(desired, storage(desired, found, &set.name)),
        }],
        // Not even a standby's: after a promotion it may be all there is.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    });
    object(desired, Kind::StatefulSet, set.name.clone(), json!({"spec": spec}))
}
