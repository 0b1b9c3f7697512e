//! Parts of pods. **Pure.**

use serde_json::{Value, json};

use crate::{crd::JobSettings, postgresql::desired::Desired};

/// The file whose content becomes the message of a container that has ended.
pub(crate) const REPORT: &str = "/dev/termination-log";
/// The mount path of the volume with the dumps.
pub(super) const DUMPS: &str = "/dumps";

/// Builds a volume that is deleted with its pod.
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

/// Gives the settings of Jobs to a pod: the resources to each container that has none.
pub(crate) fn give_job_settings(pod: &mut Value, settings: Option<&JobSettings>) {
    let Some(resources) = settings.and_then(|settings| settings.resources.as_ref()).filter(|it| !it.is_empty()) else {
        return;
    };
    for list in ["initContainers", "containers"] {
        for container in pod.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            if container.get("resources").is_none() {
                container["resources"] = json!(resources);
            }
        }
    }
}

/// Gives the ServiceAccount of Jobs to a pod. Not to one that runs what users of a database wrote: where a cluster gives accounts rights
/// by other means than tokens, that would have them, too.
pub(crate) fn give_account(pod: &mut Value, settings: Option<&JobSettings>) {
    if let Some(account) = settings.and_then(|settings| settings.service_account_name.as_ref()) {
        pod["serviceAccountName"] = json!(account);
    }
}

/// Sets the resources of a database container; without any in the spec, the document has no such field.
pub(super) fn give_resources(desired: &Desired, container: &mut Value) {
    if let Some(resources) = &desired.resources {
        container["resources"] = json!(resources);
    }
}

pub(super) fn from_secret(variable: &str, secret: String, key: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// Completes a container: without privileges beyond those of its user.
pub(crate) fn confined(mut container: Value) -> Value {
    // If a script refuses, its output becomes the pod's message.
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container["securityContext"] = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
    });
    container
}

/// Builds a pod that runs as the image's user `postgres` (999 in the official images since 9.0), without further privileges.
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
            // Otherwise each start would walk the whole volume, and loosen the file modes that PostgreSQL requires.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    })
}
