//! The Services, and the ConfigMap with what runs inside the pods. Pure.

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

/// The port that every server listens on, whatever the Services offer: a change of theirs restarts nothing.
pub(crate) const PORT: i32 = 5432;

const SCRIPTS: [(&str, &str); 13] = [
    ("pg_hba.conf", include_str!("scripts/pg_hba.conf")),
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

/// What runs inside the pods.
pub(crate) fn scripts(desired: &Desired) -> Object {
    let data: serde_json::Map<String, Value> =
        SCRIPTS.iter().map(|(file, text)| ((*file).to_owned(), json!(text))).collect();
    object(desired, Kind::ConfigMap, names::scripts(&desired.key.name), json!({"data": data}))
}

/// The one object with an ownerReference. A Postgresql that is deleted with `--cascade=orphan` while the operator is away shows
/// nothing of it later, but the garbage collector has taken the reference off this.
pub(crate) fn witness(desired: &Desired) -> Object {
    let note = "Without its ownerReference this says that the Postgresql is deleted with --cascade=orphan.";
    let mut witness =
        object(desired, Kind::ConfigMap, names::witness(&desired.key.name), json!({"data": {"note": note}}));
    witness.document["metadata"]["ownerReferences"] = json!([owner(desired)]);
    witness
}

/// The pods' DNS names. A standby looks for a primary that is not ready yet, too.
pub(crate) fn headless(desired: &Desired) -> Object {
    let spec = json!({
        "clusterIP": "None",
        "publishNotReadyAddresses": true,
        "selector": {label::POSTGRESQL: desired.key.name},
        "ports": [port(PORT)],
    });
    object(desired, Kind::Service, names::headless(&desired.key.name), json!({"spec": spec}))
}

/// Where clients go: to the primary's one pod, by name, so that a StatefulSet that a user scaled up does not mix another
/// database in.
pub(crate) fn client(desired: &Desired) -> Object {
    let mut selector = selector(desired, Role::Primary);
    selector["statefulset.kubernetes.io/pod-name"] = json!(names::primary_pod(&desired.key.name));
    service(desired, names::primary(&desired.key.name), &selector)
}

/// Where those go who only read.
pub(crate) fn read_only(desired: &Desired) -> Object {
    service(desired, names::read_only(&desired.key.name), &selector(desired, Role::Standby))
}

fn service(desired: &Desired, name: String, selector: &Value) -> Object {
    object(desired, Kind::Service, name, json!({"spec": {"selector": selector, "ports": [port(desired.port)]}}))
}

fn port(port: i32) -> Value {
    json!({"name": "postgresql", "port": port, "protocol": "TCP", "targetPort": "postgresql"})
}
