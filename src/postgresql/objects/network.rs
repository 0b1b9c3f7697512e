//! The Services, the ConfigMap with the scripts of the pods, and the witness. Pure.

use serde_json::{Value, json};

use super::object::{Object, object, owner, selector};
use crate::{
    crd::label,
    postgresql::{
        desired::Desired,
        names,
        observed::{Kind, Role},
    },
};

/// The port of every server. It does not depend on the port of the Services, so that a change of that port restarts nothing.
pub(crate) const PORT: i32 = 5432;

const SCRIPTS: [(&str, &str); 14] = [
    ("pg_hba.conf", include_str!("scripts/pg_hba.conf")),
    ("pg_hba-tls.conf", include_str!("scripts/pg_hba-tls.conf")),
    ("closed.conf", include_str!("scripts/closed.conf")),
    ("initialize.sh", include_str!("scripts/initialize.sh")),
    ("names.sh", include_str!("scripts/names.sh")),
    ("session.sh", include_str!("scripts/session.sh")),
    ("restore.sh", include_str!("scripts/restore.sh")),
    ("primary.sh", include_str!("scripts/primary.sh")),
    ("roles.sh", include_str!("scripts/roles.sh")),
    ("standby.sh", include_str!("scripts/standby.sh")),
    ("standby-ready.sh", include_str!("scripts/standby-ready.sh")),
    ("standby-alive.sh", include_str!("scripts/standby-alive.sh")),
    ("dump.sh", include_str!("scripts/dump.sh")),
    ("tables.sql", include_str!("scripts/tables.sql")),
];

/// Builds the ConfigMap with the scripts and configuration files of the pods.
pub(crate) fn scripts(desired: &Desired) -> Object {
    let data: serde_json::Map<String, Value> =
        SCRIPTS.iter().map(|(file, text)| ((*file).to_owned(), json!(text))).collect();
    object(desired, Kind::ConfigMap, names::scripts(&desired.key.name), json!({"data": data}))
}

/// Builds the only object with an ownerReference. If a user deletes a Postgresql with `--cascade=orphan` while the operator is down, the
/// Postgresql itself does not show it later, but the garbage collector has removed the reference from this object.
pub(crate) fn witness(desired: &Desired) -> Object {
    let note = "Without its ownerReference this says that the Postgresql is deleted with --cascade=orphan.";
    let mut witness =
        object(desired, Kind::ConfigMap, names::witness(&desired.key.name), json!({"data": {"note": note}}));
    witness.document["metadata"]["ownerReferences"] = json!([owner(desired)]);
    witness
}

/// Builds the Service that gives the pods their DNS names. A standby has to resolve a primary that is not ready yet as well.
pub(crate) fn headless(desired: &Desired) -> Object {
    let spec = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": {label::POSTGRESQL: desired.key.name},
        "ports": [port(PORT)],
    });
    object(desired, Kind::Service, names::headless(&desired.key.name), json!({"spec": spec}))
}

/// Builds the Service for clients. It selects the primary's pod by name, so that clients do not reach another database when a user scales
/// the StatefulSet up.
pub(crate) fn client(desired: &Desired) -> Object {
    let mut selector = selector(desired, Role::Primary);
    selector["statefulset.kubernetes.io/pod-name"] = json!(names::primary_pod(&desired.key.name));
    service(desired, names::primary(&desired.key.name), &selector)
}

/// Builds the Service for clients that only read.
pub(crate) fn read_only(desired: &Desired) -> Object {
    service(desired, names::read_only(&desired.key.name), &selector(desired, Role::Standby))
}

fn service(desired: &Desired, name: String, selector: &Value) -> Object {
    object(desired, Kind::Service, name, json!({"spec": {"selector": selector, "ports": [port(desired.port)]}}))
}

fn port(port: i32) -> Value {
    json!({"name": "postgresql", "port": port, "protocol": "TCP", "targetPort": "postgresql"})
}
