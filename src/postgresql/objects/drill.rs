//! The drill: restores the latest dump, of the volume or of the bucket, with the script of any other restore, into a scratch volume
//! that is deleted with the pod. Pure.

use jiff::Timestamp;
use serde_json::json;

use super::{
    bucket, initialize,
    object::{Object, object},
    pod::scratch,
};
use crate::{
    crd::{JobSettings, Restore, label},
    postgresql::{
        desired::{Desired, DesiredBackup},
        names,
        observed::{Kind, Role},
    },
};

/// The id of the restore, which need not be unique: a scratch volume is used for one restore only.
const ID: &str = "drill";
/// The Job, its log and the scratch volume are deleted after this time; the status has the result by then.
const KEPT_SECONDS: i64 = 60 * 60;

/// Builds the Job of the drill that is due then. `None` while the operator does not know its own image, which fetches dumps from the
/// bucket.
pub(crate) fn due(desired: &Desired, backup: &DesiredBackup, due: Timestamp) -> Option<Object> {
    let name = &desired.key.name;
    let scratch = scratch(desired, &desired.storage.text);
    let latest = match &backup.drill_store {
        None => Restore::of_claim("latest", names::backup(name)),
        Some(store) => {
            desired.operator_image.as_ref()?;
            Restore::of_store("latest", store.clone())
        }
    };
    let mut spec = json!({
        "backoffLimit": 0,
        "activeDeadlineSeconds": JobSettings::deadline_seconds(backup.jobs.as_ref()),
        "ttlSecondsAfterFinished": KEPT_SECONDS,
        "template": initialize::pod(desired, Role::Drill, scratch, true, ID, Some(&latest)),
    });
    if latest.store.is_some() {
        spec["podFailurePolicy"] = json!({"rules": bucket::failure_rules(bucket::FETCH)});
    }
    let mut job = object(desired, Kind::Job, names::due_drill(name, due), json!({"spec": spec}));
    job.document["metadata"]["labels"][label::ROLE] = json!(Role::Drill);
    Some(job)
}
