//! Builders of what a `Postgresql` consists of. Pure: from what is desired to documents.

pub(crate) mod backup;
pub(crate) mod bucket;
pub(crate) mod drill;
pub(crate) mod initialize;
pub(crate) mod network;
mod placement;
pub(crate) mod policies;
pub(crate) mod secrets;
pub(crate) mod servers;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::{
    desired::Desired,
    observed::{Id, Kind, Observed, Owner, Role},
};
use crate::{
    crd::{Postgresql, annotation::SPEC_DIGEST, label},
    runtime::key::hex,
};

/// The file whose content becomes the message of a container that has ended.
const REPORT: &str = "/dev/termination-log";
/// Where the volume with the dumps is.
const DUMPS: &str = "/dumps";

/// A document for server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub id: Id,
    /// The document, with its digest in it.
    pub document: Value,
    /// Digest of the document: an object that has it is not applied again.
    pub digest: String,
}

/// Every object, in the order in which they are applied. `replication` is the uid of the Secret with the standbys'
/// password: a new one restarts the servers, since they read it at their start.
pub(crate) fn objects(desired: &Desired, observed: &Observed, replication: &str) -> Vec<Object> {
    let mut objects = vec![
        network::witness(desired),
        network::scripts(desired),
        network::headless(desired),
        network::client(desired),
    ];
    objects.extend(policies::network_policy(desired));
    objects.extend(policies::sealed(desired));
    objects.push(servers::primary(desired, &observed.objects, replication, None));
    objects.extend(policies::disruption(desired));
    if desired.standbys > 0 {
        objects.push(network::read_only(desired));
        objects.push(servers::standby(desired, &observed.objects, replication));
    }
    if let Some(backup) = &desired.backup {
        // A volume is made once; what grows it afterwards is a patch of its size.
        let claim = backup::claim(desired, backup);
        let found = observed.objects.get(&claim.id);
        if found.is_none() {
            objects.push(claim);
        }
        // The dumps of two Postgresqls are not mixed.
        if found.is_none_or(|claim| claim.owner == Owner::Ours) {
            objects.extend(backup::cron_job(desired, backup));
            objects.extend(drill::cron_job(desired, backup));
        }
    }
    objects
}

pub(crate) fn owner(desired: &Desired) -> OwnerReference {
    OwnerReference {
        api_version: Postgresql::api_version(&()).into_owned(),
        kind: Postgresql::kind(&()).into_owned(),
        name: desired.key.name.clone(),
        uid: desired.uid.clone(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn labels(desired: &Desired) -> Value {
    json!({
        label::MANAGED_BY: label::OPERATOR,
        label::POSTGRESQL: desired.key.name,
        label::POSTGRESQL_UID: desired.uid,
    })
}

fn pod_labels(desired: &Desired, role: Role) -> Value {
    let mut labels = labels(desired);
    labels[label::ROLE] = json!(role);
    labels
}

/// What selects the pods of a role.
fn selector(desired: &Desired, role: Role) -> Value {
    json!({label::POSTGRESQL: desired.key.name, label::ROLE: role})
}

/// A document with its metadata. Without ownerReference: the garbage collector would take servers away before the last dump, and
/// from a Postgresql whose finalizer was edited out.
fn object(desired: &Desired, kind: Kind, name: String, mut document: Value) -> Object {
    let resource = kind.resource();
    document["apiVersion"] = json!(resource.api_version);
    document["kind"] = json!(resource.kind);
    document["metadata"] = json!({"name": name, "namespace": desired.key.namespace, "labels": labels(desired)});
    let digest = digest(&document);
    document["metadata"]["annotations"] = json!({SPEC_DIGEST: digest});
    Object { id: (kind, name), document, digest }
}

fn digest(document: &Value) -> String {
    hex(&Sha256::digest(document.to_string().as_bytes())[..16])
}

/// A volume that goes with its pod.
fn scratch(desired: &Desired, storage: &str) -> Value {
    json!({"ephemeral": {"volumeClaimTemplate": {"spec": claim_spec(desired, storage)}}})
}

fn claim_spec(desired: &Desired, storage: &str) -> Value {
    let mut spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": storage}}});
    if let Some(class) = &desired.storage_class {
        spec["storageClassName"] = json!(class);
    }
    spec
}

/// What a container of the database has at hand. Where nothing is said, it stays as it is.
fn give_resources(desired: &Desired, container: &mut Value) {
    if let Some(resources) = &desired.resources {
        container["resources"] = json!(resources);
    }
}

fn from_secret(variable: &str, secret: String, key: &str) -> Value {
    json!({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
}

/// A container that can do nothing beyond what its user may.
fn confined(mut container: Value) -> Value {
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
fn pod_spec(container: Value, volumes: Value) -> Value {
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

#[cfg(test)]
mod tests;
