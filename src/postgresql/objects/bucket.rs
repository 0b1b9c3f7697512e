//! Containers of the operator's own image, which upload dumps to a bucket and fetch them from it. Pure.
//!
//! An image that a tenant chooses never gets the credentials.

use serde_json::{Value, json};

use super::pod::{DUMPS, from_secret};
use crate::{
    crd::{Bucket, DumpStore},
    platform::operator_image::OperatorImage,
    postgresql::desired::DesiredStore,
};

/// The mount path of the store's certificates.
const CA: &str = "/ca";
/// The mount path of the repository's password.
const PASSWORD: &str = "/password";
/// The name of the container that fetches a dump.
pub(crate) const FETCH: &str = "fetch";
/// The name of the container that uploads dumps.
pub(crate) const PUSH: &str = "store";

/// Builds the container that uploads the dumps on the volume.
pub(crate) fn push(store: &DesiredStore, image: &OperatorImage) -> Value {
    let mut env = uploads(store, image);
    env.push(variable("DUMPS", DUMPS));
    let mut mounts = vec![json!({"name": "dumps", "mountPath": DUMPS})];
    mounts.extend(bucket_mounts(&store.bucket));
    json!({"name": PUSH, "image": image.name, "args": ["store", "push"], "env": env, "volumeMounts": mounts})
}

/// Returns the environment of a container that uploads: where to, and what is kept there.
pub(crate) fn uploads(store: &DesiredStore, image: &OperatorImage) -> Vec<Value> {
    let mut env = access(&store.bucket, &store.prefix, image);
    env.extend(store.keep.as_ref().map(|keep| variable("STORE_KEEP", &json!(keep).to_string())));
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

/// Builds the container that fetches a dump into the directory of dumps.
pub(crate) fn fetch(store: &DumpStore, from: &str, image: &OperatorImage) -> Value {
    let mut env = access(&store.bucket, &store.path, image);
    env.extend([variable("DUMPS", DUMPS), variable("STORE_DUMP", from)]);
    let mut mounts = vec![json!({"name": "dumps", "mountPath": DUMPS})];
    mounts.extend(bucket_mounts(&store.bucket));
    json!({"name": FETCH, "image": image.name, "args": ["store", "fetch"], "env": env, "volumeMounts": mounts})
}

/// Builds the volumes that a container needs to reach a bucket: certificates and password. Another, `tmp`, is for its temporary files.
pub(crate) fn bucket_volumes(bucket: &Bucket) -> Vec<Value> {
    let ca = bucket.ca_secret.as_ref().map(|ca| optional_file("ca", &ca.name, &ca.key, "ca.crt"));
    let password = bucket.password_secret.as_ref();
    let password = password.map(|password| optional_file("password", &password.name, &password.key, "password"));
    ca.into_iter().chain(password).collect()
}

/// Builds the mounts of [`bucket_volumes`] and of `tmp`.
pub(crate) fn bucket_mounts(bucket: &Bucket) -> Vec<Value> {
    let mut mounts = vec![json!({"name": "tmp", "mountPath": "/tmp"})];
    mounts.extend(bucket.ca_secret.as_ref().map(|_| json!({"name": "ca", "mountPath": CA, "readOnly": true})));
    let password = json!({"name": "password", "mountPath": PASSWORD, "readOnly": true});
    mounts.extend(bucket.password_secret.as_ref().map(|_| password));
    mounts
}

/// Builds the volume for the temporary files of restic: the root of the file system is read-only.
pub(crate) fn temporary() -> Value {
    json!({"name": "tmp", "emptyDir": {}})
}

/// Builds a volume with one key of a Secret. It is optional: the container reports a missing key, while the kubelet would only wait for it.
fn optional_file(volume: &str, secret: &str, key: &str, file: &str) -> Value {
    json!({"name": volume, "secret": {"secretName": secret, "items": [{"key": key, "path": file}], "optional": true}})
}

/// Returns the environment by which a container of the operator's image reaches the repository at a path of a bucket.
pub(crate) fn access(bucket: &Bucket, prefix: &str, image: &OperatorImage) -> Vec<Value> {
    let Bucket { endpoint, bucket, region, credentials_secret: credentials, ca_secret: ca, password_secret } = bucket;
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
    let password = variable("STORE_PASSWORD_FILE", &format!("{PASSWORD}/password"));
    env.extend(password_secret.as_ref().map(|_| password));
    env.extend(image.proxy.variables().into_iter().map(|(name, value)| variable(name, value)));
    env
}

pub(crate) fn variable(name: &str, value: &str) -> Value {
    json!({"name": name, "value": value})
}
