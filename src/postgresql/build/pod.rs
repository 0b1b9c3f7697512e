//! Parts of pods. **Pure.**

use serde_json::{Value, json};

use crate::postgresql::desired::Desired;

/// The file whose content becomes the message of a container that has ended.
pub(super) const REPORT: &str = "/dev/termination-log";
/// Where the volume with the dumps is.
pub(super) const DUMPS: &str = "/dumps";

/// A volume that goes with its pod.
pub(super) fn scratch(desired: &Desired, storage: &str) -> Value {
    json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(desired, storage)}}})
}

pub(super) fn claim_spec(desired: &Desired, storage: &str) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}});
    if let Some(class) = &desired.storage_class {
        spec["storageClassName"] = json!(class);
    }
    spec
}

/// What a container of the database has at hand. Where nothing is said, it stays as it is.
pub(super) fn give_resources(desired: &Desired, container: &mut Value) {
    if let Some(resources) = &desired.resources {
        container["resources"] = json!(resources);
    }
}

pub(super) fn from_secret(variable: &str, secret: String, key: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// A container that can do nothing beyond what its user may.
pub(super) fn confined(mut container: Value) -> Value {
    // What a script says when it refuses is the pod's message.
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
    });
    container
}

/// A pod that runs as the image's `postgres` (999 in the official images since 9.0), with nothing it could do beyond that.
pub(super) fn pod_spec(container: Value, volumes: Value) -> Value {
    let container = confined(container);
    json!({
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": 999,
            "runAsGroup": 999,
            "fsGroup": 999,
            // Or each start would walk the whole volume, and loosen the modes that PostgreSQL insists on.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    })
}
