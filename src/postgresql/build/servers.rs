//! The StatefulSets. Pure.
//!
//! Primary and standbys are two: one script that decides by ordinal whether to begin an empty database or to copy another's
//! could be wrong once, and a change of the standbys would restart the primary.

use serde_json::{Value, json};

use super::{Object, claim_spec, from_secret, labels, network::PORT, object, pod_labels, pod_spec, selector};
use crate::postgresql::{build::secrets::PASSWORD, desired::Desired, names, world::Kind};

/// Where the volume is. Not the image's own place: that has moved between its versions.
const VOLUME: &str = "/volume";
/// PostgreSQL wants a directory for itself, which the root of a volume is not.
const PGDATA: &str = "/volume/data";
const HBA: &str = "/scripts/pg_hba.conf";
const REPLICATION_PASSWORD: &str = "/replication/password";
/// What a standby that was away may be behind without having to begin anew.
const WAL_KEPT: &str = "wal_keep_size=128MB";
/// On a pod: uid of the Secret with the standbys' password.
const REPLICATION_ANNOTATION: &str = "apps.bnerd-operator.local/replication-secret";

/// The primary. `storage` is the size its volume is made with: what is there already grows by a patch of its own, since a
/// StatefulSet's template for volumes cannot be changed.
#[must_use]
pub fn primary(desired: &Desired, storage: &str, replication: &str) -> Object {
    let name = &desired.key.name;
    let container = json!({
        "name": "postgres",
        "image": desired.image,
        // The image's entrypoint makes the database where there is none.
        "args": ["postgres", "-c", format!("hba_file={HBA}"), "-c", WAL_KEPT],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "POSTGRES_USER", "value": desired.user},
            {"name": "POSTGRES_DB", "value": desired.database},
            from_secret("POSTGRES_PASSWORD", names::credentials(name), PASSWORD),
            {"name": "POSTGRES_INITDB_ARGS", "value": "--data-checksums"},
            {"name": "REPLICATION_PASSWORD_FILE", "value": REPLICATION_PASSWORD},
        ],
        "lifecycle": {"postStart": {"exec": {"command": ["sh", "/scripts/primary.sh"]}}},
    });
    let set = Set { name: names::primary(name), role: "primary", replicas: 1, storage, replication };
    stateful_set(desired, &set, container)
}

/// The standbys.
#[must_use]
pub fn standby(desired: &Desired, storage: &str, replication: &str) -> Object {
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
            {"name": "HBA_FILE", "value": HBA},
        ],
    });
    let set = Set { name: names::standby(name), role: "standby", replicas: desired.standbys, storage, replication };
    stateful_set(desired, &set, container)
}

struct Set<'a> {
    name: String,
    role: &'static str,
    replicas: i32,
    storage: &'a str,
    replication: &'a str,
}

fn stateful_set(desired: &Desired, set: &Set<'_>, mut container: Value) -> Object {
    let name = &desired.key.name;
    container["ports"] = json!([{"name": "postgresql", "containerPort": PORT, "protocol": "TCP"}]);
    // By TCP: while the image makes the database, a server is there that listens on its socket only.
    container["readinessProbe"] = json!({
        "exec": {"command": ["pg_isready", "--quiet", "--host=127.0.0.1", format!("--port={PORT}")]},
        "periodSeconds": 5,
        "timeoutSeconds": 5,
    });
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
    let mut pod = pod_spec(container, volumes);
    // A shutdown writes out what is in memory.
    pod["terminationGracePeriodSeconds"] = json!(120);
    let mut spec = json!({
        "serviceName": names::headless(name),
        "replicas": set.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(desired, set.role)},
        "template": {
            "metadata": {
                "labels": pod_labels(desired, set.role),
                "annotations": {REPLICATION_ANNOTATION: set.replication},
            },
            "spec": pod,
        },
        "volumeClaimTemplates": [{
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "labels": labels(desired)},
            "spec": claim_spec(desired, set.storage),
        }],
    });
    if set.role == "standby" {
        // Its data are a copy: kept, they would only be out of date when it comes back.
        spec["persistentVolumeClaimRetentionPolicy"] = json!({"whenDeleted": "Delete", "whenScaled": "Delete"});
    }
    object(desired, Kind::StatefulSet, set.name.clone(), json!({"spec": spec}))
}
