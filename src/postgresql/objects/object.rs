//! Documents for server-side apply, and the metadata that all objects of a `Postgresql` have. **Pure.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Resource as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::{
    crd::{Postgresql, annotation::SPEC_DIGEST, label},
    platform::key::hex,
    postgresql::{
        desired::Desired,
        observed::{Kind, ObjectId, Role},
    },
};

/// A document for server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Object {
    pub id: ObjectId,
    /// The document, including its digest.
    pub document: Value,
    /// Digest of the document: an object with this digest is not applied again.
    pub digest: String,
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

pub(super) fn labels(desired: &Desired) -> Value {
    json!({
        label::MANAGED_BY: label::OPERATOR,
        label::POSTGRESQL: desired.key.name,
        label::POSTGRESQL_UID: desired.uid,
    })
}

pub(super) fn pod_labels(desired: &Desired, role: Role) -> Value {
    let mut labels = labels(desired);
    labels[label::ROLE] = json!(role);
    labels
}

/// Builds the selector of the pods of a role.
pub(super) fn selector(desired: &Desired, role: Role) -> Value {
    json!({label::POSTGRESQL: desired.key.name, label::ROLE: role})
}

/// Completes a document with its metadata. Without ownerReference: otherwise the garbage collector would delete servers before the last dump,
/// and when a client removes the finalizer of their Postgresql.
pub(super) fn object(desired: &Desired, kind: Kind, name: String, mut document: Value) -> Object {
    let resource = kind.resource();
    document["apiVersion"] = json!(resource.api_version);
    document["kind"] = json!(resource.kind);
    document["metadata"] = json!({"name": name, "namespace": desired.key.namespace, "labels": labels(desired)});
    let digest = digest(&document);
    document["metadata"]["annotations"] = json!({SPEC_DIGEST: digest});
    Object { id: (kind, name), document, digest }
}

pub(super) fn digest(document: &Value) -> String {
    hex(&Sha256::digest(document.to_string().as_bytes())[..16])
}
