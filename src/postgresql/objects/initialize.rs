//! The volume with the database, and the Job that creates the database on it, once. Pure.
//!
//! The servers never create a database: to them, an empty volume is a lost one, not a new one.

use serde_json::{Value, json};

use super::{
    bucket,
    object::{Object, digest, object, pod_labels},
    placement,
    pod::{DUMPS, REPORT, claim_spec, confined, give_job_settings, give_resources, pod_spec, scratch},
    secrets::PASSWORD,
    servers::{GENERATION_ANNOTATION, PGDATA, REPLICATION_PASSWORD, VOLUME},
};
use crate::{
    crd::{Restore, RestoreRequest},
    postgresql::{
        desired::Desired,
        names,
        observed::{Kind, Role},
    },
};

/// Annotation of a claim: uid of the `Postgresql` for which it was created. A claim that was handed over must hold a database
/// already.
pub(crate) const MADE_FOR: &str = "apps.bnerd-operator.local/made-for";
/// Annotation of a Job: the `spec.restore` for which it was created.
pub(crate) const RESTORE_ANNOTATION: &str = "apps.bnerd-operator.local/restore";
const PASSWORD_FILE: &str = "/credentials/password";
/// The exit codes of the script after which another try is useless.
const REFUSALS: [i32; 3] = [71, 72, 75];

/// Builds the claim of the primary's pod, which its StatefulSet uses unchanged.
pub(crate) fn claim(desired: &Desired) -> Object {
    let name = names::data(&desired.key.name);
    let spec = json!({"spec": claim_spec(desired, &desired.storage.text)});
    let mut claim = object(desired, Kind::PersistentVolumeClaim, name, spec);
    claim.document["metadata"]["annotations"] = json!({MADE_FOR: desired.uid});
    claim
}

/// Builds the Job for the claim with this uid. Unless `allowed`, it only checks whether there is a database that the image can serve.
pub(crate) fn job(desired: &Desired, volume: &str, allowed: bool) -> Object {
    let name = &desired.key.name;
    let data = json!({"persistentVolumeClaim": {"claimName": names::data(name)}});
    let restore = desired.restore.as_ref().filter(|_| allowed);
    // Tells the database that this spec.restore creates from that of any other.
    let id = restore.map(|restore| format!("{volume}.{}", digest(&json!(restore)))).unwrap_or_default();
    let pod = pod(desired, Role::Initialize, data, allowed, &id, restore);
    let mut rules = vec![json!({
        "action": "FailJob",
        "onExitCodes": {"containerName": "initialize", "operator": "In", "values": REFUSALS},
    })];
    if restore.is_some_and(|restore| restore.store.is_some()) {
        let [evicted, failed] = bucket::failure_rules(bucket::FETCH);
        rules.insert(0, evicted);
        rules.push(failed);
    }
    let spec = json!({"backoffLimit": 6, "podFailurePolicy": {"rules": rules}, "template": pod});
    let mut job = object(desired, Kind::Job, names::initialize(name, volume), json!({"spec": spec}));
    job.document["metadata"]["annotations"][GENERATION_ANNOTATION] = json!(desired.generation.to_string());
    if let Some(restore) = restore {
        job.document["metadata"]["annotations"][RESTORE_ANNOTATION] = json!(json!(restore).to_string());
    }
    job
}

/// Builds the Job that restores a requested dump beside the database of a primary, on the node that has its volume.
pub(crate) fn restore(desired: &Desired, RestoreRequest { request, dump }: &RestoreRequest) -> Object {
    let name = &desired.key.name;
    let data = json!({"persistentVolumeClaim": {"claimName": names::data(name)}});
    let mut pod = pod(desired, Role::Initialize, data, true, request, Some(dump));
    let container = &mut pod["spec"]["containers"][0];
    for variable in container["env"].as_array_mut().expect("the document above has an array here") {
        if variable["name"] == "PGDATA" {
            variable["value"] = json!(format!("{VOLUME}/restored.{request}"));
        }
    }
    container["env"].as_array_mut().expect("as above").push(bucket::variable("BESIDE", PGDATA));
    placement::beside_primary(desired, &mut pod["spec"]);
    let mut rules = bucket::failure_rules("initialize").to_vec();
    rules.extend(dump.store.iter().map(|_| bucket::failure_rules(bucket::FETCH)[1].clone()));
    let spec = json!({
        "backoffLimit": 2,
        "podFailurePolicy": {"rules": rules},
        "template": pod,
    });
    object(desired, Kind::Job, names::restore(name, request), json!({"spec": spec}))
}

/// Builds the template of a pod that creates a database on a volume, empty or from a dump. `id` tells this restore from any other.
pub(super) fn pod(
    desired: &Desired,
    role: Role,
    data: Value,
    allowed: bool,
    id: &str,
    restore: Option<&Restore>,
) -> Value {
    let name = &desired.key.name;
    let mut environment = vec![
        ("PGDATA", PGDATA),
        ("INITIALIZE", if allowed { "yes" } else { "no" }),
        ("POSTGRES_USER", &desired.user),
        ("POSTGRES_DB", &desired.database),
    ];
    let mut mounts = vec![
        json!({"name": "data", "mountPath": VOLUME}),
        json!({"name": "scripts", "mountPath": "/scripts", "readOnly": true}),
        json!({"name": "tmp", "mountPath": "/tmp"}),
    ];
    let mut data = data;
    data["name"] = json!("data");
    let mut volumes = vec![
        data,
        json!({"name": "scripts", "configMap": {"name": names::scripts(name)}}),
        json!({"name": "tmp", "emptyDir": {}}),
    ];
    // A drill's server exists only in its pod, and does not get the passwords of the real servers.
    if role == Role::Initialize {
        environment.extend([("PASSWORD_FILE", PASSWORD_FILE), ("REPLICATION_PASSWORD_FILE", REPLICATION_PASSWORD)]);
        for (volume, secret) in [("credentials", names::credentials(name)), ("replication", names::replication(name))] {
            mounts.push(json!({"name": volume, "mountPath": format!("/{volume}"), "readOnly": true}));
            let items = json!([{"key": PASSWORD, "path": PASSWORD}]);
            volumes.push(json!({"name": volume, "secret": {"secretName": secret, "items": items}}));
        }
    }
    let mut fetch = None;
    if let Some(Restore { from, claim, store }) = restore {
        environment.extend([("RESTORE", from.as_str()), ("RESTORE_ID", id), ("DUMPS", DUMPS), ("REPORT", REPORT)]);
        mounts.push(json!({"name": "dumps", "mountPath": DUMPS, "readOnly": true}));
        let mut dumps = json!({"persistentVolumeClaim": {"claimName": claim}});
        // Without an image, `decide` does not create this Job.
        if let Some((store, image)) = store.as_ref().zip(desired.operator_image.as_ref()) {
            let size = store.size.as_ref().unwrap_or(&desired.storage.text);
            dumps = scratch(desired, size);
            fetch = Some(confined(bucket::fetch(store, from, image)));
            volumes.extend(bucket::bucket_volumes(&store.bucket));
        }
        dumps["name"] = json!("dumps");
        volumes.push(dumps);
    }
    let environment: Vec<_> =
        environment.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let mut container = json!({
        "name": "initialize",
        "image": desired.image,
        "command": ["sh", "/scripts/initialize.sh"],
        "env": environment,
        "volumeMounts": mounts,
    });
    give_resources(desired, &mut container);
    let mut pod = pod_spec(container, json!(volumes));
    if let Some(fetch) = fetch {
        pod["initContainers"] = json!([fetch]);
    }
    // A drill runs beside the servers.
    if role == Role::Initialize {
        placement::primary(desired, &mut pod)
    } else {
        placement::job(desired, &mut pod)
    }
    pod["restartPolicy"] = json!("Never");
    give_job_settings(&mut pod, desired.jobs());
    json!({"metadata": {"labels": pod_labels(desired, role)}, "spec": pod})
}
