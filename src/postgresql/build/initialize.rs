//! The volume with the database, and the Job that makes the database on it, once. Pure.
//!
//! The servers themselves make none: what a server finds empty is lost, and not new.

use serde_json::json;

use super::{
    Object, claim_spec, object, pod_labels, pod_spec,
    secrets::PASSWORD,
    servers::{PGDATA, REPLICATION_PASSWORD, VOLUME},
};
use crate::postgresql::{desired::Desired, names, observed::Kind};

/// On a claim: uid of the `Postgresql` it was made for. A claim that was handed over has to have a database already.
pub const MADE_FOR: &str = "apps.bnerd-operator.local/made-for";
pub const ROLE: &str = "initialize";
const PASSWORD_FILE: &str = "/credentials/password";
/// The script's exit codes that no other try would change.
const REFUSALS: [i32; 2] = [71, 72];

/// The claim of the primary's pod, which its StatefulSet takes as it finds it.
pub fn claim(desired: &Desired) -> Object {
    let name = names::data(&desired.key.name);
    let spec = json!({"spec": claim_spec(desired, &desired.storage.text)});
    let mut claim = object(desired, Kind::PersistentVolumeClaim, name, spec);
    claim.document["metadata"]["annotations"] = json!({MADE_FOR: desired.uid});
    claim
}

/// The Job for the claim with this uid. Unless `allowed` it only looks whether there is a database that the image can serve.
pub fn job(desired: &Desired, volume: &str, allowed: bool) -> Object {
    let name = &desired.key.name;
    let container = json!({
        "name": "initialize",
        "image": desired.image,
        "command": ["sh", "/scripts/initialize.sh"],
        "env": [
            {"name": "PGDATA", "value": PGDATA},
            {"name": "INITIALIZE", "value": if allowed { "yes" } else { "no" }},
            {"name": "POSTGRES_USER", "value": desired.user},
            {"name": "POSTGRES_DB", "value": desired.database},
            {"name": "PASSWORD_FILE", "value": PASSWORD_FILE},
            {"name": "REPLICATION_PASSWORD_FILE", "value": REPLICATION_PASSWORD},
        ],
        "volumeMounts": [
            {"name": "data", "mountPath": VOLUME},
            {"name": "scripts", "mountPath": "/scripts", "readOnly": true},
            {"name": "credentials", "mountPath": "/credentials", "readOnly": true},
            {"name": "replication", "mountPath": "/replication", "readOnly": true},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    });
    let password = |secret: String| json!({"secretName": secret, "items": [{"key": PASSWORD, "path": PASSWORD}]});
    let volumes = json!([
        {"name": "data", "persistentVolumeClaim": {"claimName": names::data(name)}},
        {"name": "scripts", "configMap": {"name": names::scripts(name)}},
        {"name": "credentials", "secret": password(names::credentials(name))},
        {"name": "replication", "secret": password(names::replication(name))},
        {"name": "tmp", "emptyDir": {}},
    ]);
    let mut pod = pod_spec(container, volumes);
    pod["restartPolicy"] = json!("Never");
    let spec = json!({
        "backoffLimit": 6,
        "podFailurePolicy": {"rules": [{
            "action": "FailJob",
            "onExitCodes": {"containerName": "initialize", "operator": "In", "values": REFUSALS},
        }]},
        "template": {"metadata": {"labels": pod_labels(desired, ROLE)}, "spec": pod},
    });
    object(desired, Kind::Job, names::initialize(name, volume), json!({"spec": spec}))
}
