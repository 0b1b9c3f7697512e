//! Dumps: their volume, the Jobs that are due or requested, and the Job of the last dump before a deletion. Pure.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    bucket,
    object::{Object, object, pod_labels},
    placement,
    pod::{DUMPS, REPORT, claim_spec, confined, from_secret, give_account, give_job_settings, pod_spec},
};
use crate::{
    crd::JobSettings,
    postgresql::{
        desired::{Desired, DesiredBackup},
        names,
        objects::secrets::PASSWORD,
        observed::{Kind, Role},
    },
};

/// Annotation of a Job: the deletion for which it takes the last dump.
pub(crate) const DELETION_ANNOTATION: &str = "apps.bnerd-operator.local/dump-for-deletion";
/// Annotation of a Job: the request for which it dumps.
pub(crate) const REQUEST_ANNOTATION: &str = "apps.bnerd-operator.local/dump-request";

/// A Job that was due, its log and its pod are deleted after this time; the status has the result by then.
pub(super) const KEPT_SECONDS: i64 = 24 * 60 * 60;

/// How many seconds a dump waits for an answer of the server. It begins only while the server is ready.
const PATIENCE: u32 = 60;
/// The same for the last dump, for which the server has just been closed.
const RESTART_PATIENCE: u32 = 300;

pub(crate) fn claim(desired: &Desired, backup: &DesiredBackup) -> Object {
    let spec = claim_spec(desired, &backup.size.text);
    object(desired, Kind::PersistentVolumeClaim, names::backup(&desired.key.name), json!({"spec": spec}))
}

/// Builds the Job of the dump that is due then.
pub(crate) fn due(desired: &Desired, backup: &DesiredBackup, due: Timestamp) -> Object {
    let mut spec = job_spec(desired, backup, PATIENCE);
    spec["ttlSecondsAfterFinished"] = json!(KEPT_SECONDS);
    object(desired, Kind::Job, names::due_dump(&desired.key.name, due), json!({"spec": spec}))
}

pub(crate) fn last_dump(desired: &Desired, backup: &DesiredBackup, deletion: &str) -> Object {
    let spec = job_spec(desired, backup, RESTART_PATIENCE);
    let mut job = object(desired, Kind::Job, names::last_dump(&desired.key.name), json!({"spec": spec}));
    job.document["metadata"]["annotations"][DELETION_ANNOTATION] = json!(deletion);
    job
}

pub(crate) fn dump(desired: &Desired, backup: &DesiredBackup, request: &str) -> Object {
    let spec = job_spec(desired, backup, PATIENCE);
    let mut job = object(desired, Kind::Job, names::dump(&desired.key.name, request), json!({"spec": spec}));
    job.document["metadata"]["annotations"][REQUEST_ANNOTATION] = json!(request);
    job
}

fn job_spec(desired: &Desired, backup: &DesiredBackup, patience: u32) -> Value {
    let name = &desired.key.name;
    let container = json!({
        "name": "dump",
        "image": desired.image,
        "command": ["sh", "/scripts/dump.sh"],
        "env": [
            {"name": "DUMPS", "value": DUMPS},
            {"name": "KEEP", "value": backup.keep.to_string()},
            {"name": "REPORT", "value": REPORT},
            {"name": "PATIENCE", "value": patience.to_string()},
            {"name": "POSTGRES_DB", "value": desired.database},
            {"name": "PGHOST", "value": names::primary(name)},
            {"name": "PGPORT", "value": desired.port.to_string()},
            {"name": "PGUSER", "value": "replicator"},
            from_secret("PGPASSWORD", names::replication(name), PASSWORD),
        ],
        "volumeMounts": [
            {"name": "dumps", "mountPath": DUMPS},
            {"name": "scripts", "mountPath": "/scripts", "readOnly": true},
        ],
    });
    let mut volumes = vec![
        json!({"name": "dumps", "persistentVolumeClaim": {"claimName": names::backup(name)}}),
        json!({"name": "scripts", "configMap": {"name": names::scripts(name)}}),
    ];
    let upload = backup.store.as_ref().zip(desired.operator_image.as_ref());
    if let Some((store, _)) = upload {
        volumes.push(bucket::temporary());
        volumes.extend(bucket::bucket_volumes(&store.bucket));
    }
    let mut pod = match upload {
        None => pod_spec(container, json!(volumes)),
        Some((store, image)) => {
            let mut pod = pod_spec(bucket::push(store, image), json!(volumes));
            pod["initContainers"] = json!([confined(container)]);
            pod
        }
    };
    pod["restartPolicy"] = json!("Never");
    placement::job(desired, &mut pod);
    give_job_settings(&mut pod, backup.jobs.as_ref());
    give_account(&mut pod, backup.jobs.as_ref());
    let mut spec = json!({
        "backoffLimit": 2,
        "activeDeadlineSeconds": JobSettings::deadline_seconds(backup.jobs.as_ref()),
        "template": {"metadata": {"labels": pod_labels(desired, Role::Backup)}, "spec": pod},
    });
    if upload.is_some() {
        // Another try would dump again and remove older dumps from the volume. The next dump's Job uploads this one as well.
        spec["podFailurePolicy"] = json!({"rules": bucket::failure_rules(bucket::PUSH)});
    }
    spec
}
