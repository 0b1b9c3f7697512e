//! Containers of the operator's own image, which upload dumps to a bucket and fetch them from it. Pure.
//!
//! An image that a tenant chooses never gets the credentials.

use serde_json::{Value, json};

use super::pod::{DUMPS, from_secret};
use crate::{
    crd::{Bucket, DumpStore},
    postgresql::desired::DesiredStore,
};

/// The mount path of the store's certificates.
const CA: &str = "/ca";
/// The mount path of the secret key that decrypts dumps.
const IDENTITY: &str = "/identity";
/// The name of the container that fetches a dump.
pub(crate) const FETCH: &str = "fetch";
/// The name of the container that uploads dumps.
pub(crate) const PUSH: &str = "store";

/// Builds the container that uploads the dumps on the volume.
pub(crate) fn push(store: &DesiredStore, image: &str) -> Value {
    let mut env = uploads(store);
    env.push(variable("DUMPS", DUMPS));
    let mut mounts = vec![json!({"name": "dumps", "mountPath": DUMPS})];
    mounts.extend(certificates_mount(&store.bucket));
    json!({"name": PUSH, "image": image, "args": ["store", "push"], "env": env, "volumeMounts": mounts})
}

/// Returns the environment of a container that uploads: where to, for whom it encrypts, and what is kept there.
pub(crate) fn uploads(store: &DesiredStore) -> Vec<Value> {
    let mut env = access(&store.bucket, &store.prefix);
    env.extend(store.recipient.as_ref().map(|recipient| variable("STORE_RECIPIENT", recipient)));
    if let Some(keep) = &store.keep {
        let counts = [("LAST", keep.last), ("DAILY", keep.daily), ("WEEKLY", keep.weekly), ("MONTHLY", keep.monthly)];
        env.extend(counts.map(|(age, count)| variable(&format!("STORE_KEEP_{age}"), &count.to_string())));
    }
    env
}

/// Returns the failure rules of a Job: another pod would not help if this container fails, as the container itself retries for minutes. After an
/// eviction, the Job tries again.
pub(crate) fn failure_rules(container: &str) -> [Value; 2] {
    [
        json!({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}),
        json!({"action": "FailJob", "onExitCodes": {"containerName": container, "operator": "NotIn", "values": [0]}}),
    ]
}

/// Builds the container that fetches a dump into the directory of dumps, and the volumes that it needs.
pub(crate) fn fetch(store: &DumpStore, from: &str, image: &str) -> (Value, Vec<Value>) {
    let mut env = access(&store.bucket, &store.path);
    env.extend([variable("DUMPS", DUMPS), variable("STORE_DUMP", from)]);
    let mut mounts = vec![json!({"name": "dumps", "mountPath": DUMPS})];
    mounts.extend(certificates_mount(&store.bucket));
    let mut volumes: Vec<Value> = certificates(&store.bucket).into_iter().collect();
    if let Some(identity) = &store.identity_secret {
        env.push(variable("STORE_IDENTITY_FILE", &format!("{IDENTITY}/key")));
        mounts.push(json!({"name": "identity", "mountPath": IDENTITY, "readOnly": true}));
        volumes.push(optional_file("identity", &identity.name, &identity.key, "key"));
    }
    (json!({"name": FETCH, "image": image, "args": ["store", "fetch"], "env": env, "volumeMounts": mounts}), volumes)
}

/// Builds the volume with the trusted certificates of a bucket.
pub(crate) fn certificates(bucket: &Bucket) -> Option<Value> {
    let ca = bucket.ca_secret.as_ref()?;
    Some(optional_file("ca", &ca.name, &ca.key, "ca.crt"))
}

pub(crate) fn certificates_mount(bucket: &Bucket) -> Option<Value> {
    bucket.ca_secret.as_ref().map(|_| json!({"name": "ca", "mountPath": CA, "readOnly": true}))
}

/// Builds a volume with one key of a Secret. It is optional: the container reports a missing key, while the kubelet would only wait for it.
fn optional_file(volume: &str, secret: &str, key: &str, file: &str) -> Value {
    json!({"name": volume, "secret": {"secretName": secret, "items": [{"key": key, "path": file}], "optional": true}})
}

/// Returns the environment by which a container of the operator's image reaches the objects of a bucket under a prefix.
fn access(bucket: &Bucket, prefix: &str) -> Vec<Value> {
    let Bucket { endpoint, bucket, region, credentials_secret: credentials, ca_secret: ca } = bucket;
    let mut env = vec![
        variable("STORE_ENDPOINT", endpoint),
        variable("STORE_BUCKET", bucket),
        variable("STORE_REGION", region),
        variable("STORE_PREFIX", prefix),
    ];
    let halves = [
        ("AWS_ACCESS_KEY_ID", &credentials.access_key_id_key),
        ("AWS_SECRET_ACCESS_KEY", &credentials.secret_access_key_key),
    ];
    env.extend(halves.map(|(name, key)| {
        let mut half = from_secret(name, credentials.name.clone(), key);
        // The container reports a missing key, while the kubelet would wait for it until the Job's deadline.
        half["valueFrom"]["secretKeyRef"]["optional"] = json!(true);
        half
    }));
    env.extend(ca.as_ref().map(|_| variable("STORE_CA_FILE", &format!("{CA}/ca.crt"))));
    env
}

pub(crate) fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}
