//! The StatefulSets. Pure.
//!
//! Primary and standbys have a StatefulSet each. With a single one, a script would have to decide by the pod's ordinal whether to
//! create a database or to copy the primary's, with no room for a mistake, and a change of the standbys would restart the primary.
//!
//! Both have the same settings. For some of them (`max_connections` and others that replay depends on), PostgreSQL requires that a
//! standby has at least the primary's value, and the two StatefulSets restart their pods in no particular order. That is recreatable: a
//! standby with a lower value pauses replay until it is restarted itself, and a standby that would start with a lower value than its
//! files require, with which PostgreSQL would always exit, uses the value of its files instead (`standby.sh`).
//!
//! `podManagementPolicy: Parallel` is not for speed: under `OrderedReady`, a StatefulSet does not replace a pod that is not ready, so
//! that a user could correct a setting with which no server starts only by deleting the pod.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    network::PORT,
    object::{Object, labels, object, pod_labels, selector},
    placement,
    pod::{claim_spec, give_resources, pod_spec},
};
use crate::postgresql::{
    desired::Desired,
    names,
    objects::secrets::{AUTHORITY, CERTIFICATE, KEY, PASSWORD},
    observed::{Detail, Kind, ObjectId, ObjectView, Role, SetView},
};

/// The mount path of the volume. Not the image's own path, which differs between its versions.
pub(super) const VOLUME: &str = "/volume";
/// PostgreSQL requires a directory of its own, which the root of a volume is not.
pub(super) const PGDATA: &str = "/volume/data";
const OPEN: &str = "/scripts/pg_hba.conf";
/// Allowed connections if TLS is required.
const ENCRYPTED: &str = "/scripts/pg_hba-tls.conf";
const CLOSED: &str = "/scripts/closed.conf";
/// The mount path of the servers' certificate.
const TLS: &str = "/tls";
pub(super) const REPLICATION_PASSWORD: &str = "/replication/password";
/// How many bytes a ready standby may be behind: two segments of WAL.
const LAG: &str = "33554432";
/// Annotation of a pod: uid of the Secret with the standbys' password.
pub(crate) const REPLICATION_ANNOTATION: &str = "apps.bnerd-operator.local/replication-secret";
/// Annotation of a pod: uid of the Secret with the servers' certificate.
pub(crate) const CERTIFICATE_ANNOTATION: &str = "apps.bnerd-operator.local/certificate-secret";
/// Annotation of a pod: the request whose restored dump has replaced the database.
pub(crate) const REPLACED_ANNOTATION: &str = "apps.bnerd-operator.local/replaced-for";
/// Annotation of the primary's pod: the deletion for whose last dump it refuses clients.
pub(crate) const CLOSED_ANNOTATION: &str = "apps.bnerd-operator.local/closed-for-deletion";
/// Annotation of a StatefulSet, and of the Job that creates the database: generation of the Postgresql for which it was applied. Not
/// part of the digest: by the two of them, the operator tells a user's change from that of another version of itself.
pub(crate) const GENERATION_ANNOTATION: &str = "apps.bnerd-operator.local/generation";

/// Holds what the servers read only when they start: another value restarts them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mounted<'a> {
    /// uid of the Secret with the standbys' password.
    pub replication: &'a str,
    /// uid of the Secret with the servers' certificate; `None`: without TLS.
    pub certificate: Option<&'a str>,
    /// The request whose restored dump replaces the database.
    pub replaced: Option<&'a str>,
}

impl<'a> Mounted<'a> {
    /// Returns the values of the pods' annotations, in the order of [`UserRequest`](super::super::observed::UserRequest).
    pub(crate) fn all(self) -> [Option<&'a str>; 3] {
        let Mounted { replication, certificate, replaced } = self;
        [Some(replication), certificate, replaced]
    }
}

/// Builds the StatefulSet of the primary, open to clients or closed for a deletion.
pub(crate) fn primary(
    desired: &Desired,
    found: &BTreeMap<ObjectId, ObjectView>,
    mounted: Mounted<'_>,
    closed: Option<&str>,
) -> Object {
    let name = &desired.key.name;
    let mut container = json!({
        "name": "postgres",
        "image": desired.image,
        "command": ["sh", "/scripts/primary.sh"],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "HBA_FILE", "value": if closed.is_some() { CLOSED } else { open(desired) }},
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
    if let Some(request) = mounted.replaced {
        push(&mut container["env"], json!({"name": "RESTORED", "value": request}));
    }
    let set = ServerSet {
        name: names::primary(name),
        role: Role::Primary,
        place: placement::primary,
        replicas: 1,
        mounted,
        closed,
    };
    stateful_set(desired, found, &set, container)
}

pub(crate) fn standby(desired: &Desired, found: &BTreeMap<ObjectId, ObjectView>, mounted: Mounted<'_>) -> Object {
    let name = &desired.key.name;
    let mut container = json!({
        "name": "postgres",
        "image": desired.image,
        "command": ["sh", "/scripts/standby.sh"],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "PRIMARY_HOST", "value": format!("{}.{}", names::primary_pod(name), names::headless(name))},
            {"name": "PRIMARY_PORT", "value": PORT.to_string()},
            {"name": "REPLICATION_PASSWORD_FILE", "value": REPLICATION_PASSWORD},
            {"name": "PGPASSFILE", "value": "/tmp/pgpass"},
            {"name": "HBA_FILE", "value": open(desired)},
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
    if mounted.certificate.is_some() {
        // The settings of libpq, of which the server's connection to the primary makes use as well.
        for (name, value) in [("PGSSLMODE", "verify-full".to_owned()), ("PGSSLROOTCERT", format!("{TLS}/{AUTHORITY}"))]
        {
            push(&mut container["env"], json!({"name": name, "value": value}));
        }
    }
    let standbys = desired.standbys;
    let set = ServerSet {
        name: names::standby(name),
        role: Role::Standby,
        place: placement::standby,
        replicas: standbys,
        mounted,
        closed: None,
    };
    stateful_set(desired, found, &set, container)
}

fn push(array: &mut Value, value: Value) {
    array.as_array_mut().expect("the document above has an array here").push(value);
}

struct ServerSet<'a> {
    name: String,
    role: Role,
    place: fn(&Desired, &mut Value),
    replicas: i32,
    mounted: Mounted<'a>,
    closed: Option<&'a str>,
}

fn open(desired: &Desired) -> &'static str {
    if desired.tls.is_some_and(|tls| tls.required) { ENCRYPTED } else { OPEN }
}

/// Returns the size of new volumes. It stays as it was first applied, since the volume templates of a StatefulSet are immutable; a patch of
/// the claim grows an existing volume.
fn storage<'a>(desired: &'a Desired, found: &'a BTreeMap<ObjectId, ObjectView>, set: &str) -> &'a str {
    match found.get(&(Kind::StatefulSet, set.to_owned())).map(|view| &view.detail) {
        Some(Detail::StatefulSet(SetView { storage: Some(storage), .. })) => storage,
        _ => &desired.storage.text,
    }
}

/// Returns each setting as an argument of its own, which no shell parses, so that no value can add another setting. Kubernetes itself
/// expands `$(NAME)` to a variable of the container, and `$$` to `$`.
fn arguments(desired: &Desired, mounted: Mounted<'_>) -> Vec<String> {
    let settings = desired.parameters.iter().map(|(name, value)| format!("{name}={}", value.replace('$', "$$")));
    let tls = mounted.certificate.map(|_| {
        ["ssl=on".to_owned(), format!("ssl_cert_file={TLS}/{CERTIFICATE}"), format!("ssl_key_file={TLS}/{KEY}")]
    });
    settings.chain(tls.into_iter().flatten()).flat_map(|setting| ["-c".to_owned(), setting]).collect()
}

/// Returns the template of the pods.
fn template(desired: &Desired, set: &ServerSet<'_>, mut container: Value) -> Value {
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
    let mut volumes = json!([
        {"name": "scripts", "configMap": {"name": names::scripts(name)}},
        {"name": "replication", "secret": {
            "secretName": names::replication(name),
            "items": [{"key": PASSWORD, "path": PASSWORD}],
        }},
        {"name": "run", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        // The default size of a container's /dev/shm is too small for parallel queries.
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]);
    let mut annotations = json!({REPLICATION_ANNOTATION: set.mounted.replication});
    if let Some(certificate) = set.mounted.certificate {
        annotations[CERTIFICATE_ANNOTATION] = json!(certificate);
        push(&mut container["volumeMounts"], json!({"name": "tls", "mountPath": TLS, "readOnly": true}));
        // PostgreSQL accepts a key of root's only if nobody but its group can read it.
        let secret = json!({"secretName": names::certificate(name), "defaultMode": 0o640});
        push(&mut volumes, json!({"name": "tls", "secret": secret}));
    }
    if let Some(request) = set.mounted.replaced {
        annotations[REPLACED_ANNOTATION] = json!(request);
    }
    if let Some(deletion) = set.closed {
        annotations[CLOSED_ANNOTATION] = json!(deletion);
    }
    give_resources(desired, &mut container);
    let arguments = arguments(desired, set.mounted);
    if !arguments.is_empty() {
        container["args"] = json!(arguments);
    }
    let mut pod = pod_spec(container, volumes);
    (set.place)(desired, &mut pod);
    // A shutdown writes the contents of memory to disk.
    pod["terminationGracePeriodSeconds"] = json!(120);
    json!({"metadata": {"labels": pod_labels(desired, set.role), "annotations": annotations}, "spec": pod})
}

fn stateful_set(
    desired: &Desired,
    found: &BTreeMap<ObjectId, ObjectView>,
    set: &ServerSet<'_>,
    container: Value,
) -> Object {
    let spec = json!({
        "serviceName": names::headless(&desired.key.name),
        "replicas": set.replicas,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": selector(desired, set.role)},
        "template": template(desired, set, container),
        "volumeClaimTemplates": [{
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "labels": labels(desired)},
            "spec": claim_spec(desired, storage(desired, found, &set.name)),
        }],
        // Standbys' volumes are retained as well: after a promotion, one may be the only copy.
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
    });
    let mut object = object(desired, Kind::StatefulSet, set.name.clone(), json!({"spec": spec}));
    object.document["metadata"]["annotations"][GENERATION_ANNOTATION] = json!(desired.generation.to_string());
    object
}
