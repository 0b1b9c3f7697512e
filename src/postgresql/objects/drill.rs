//! The drill: restores the latest dump, of the volume or of the bucket, with the script of any other restore, into a scratch volume
//! that is deleted with the pod. Pure.

use serde_json::json;

use super::{
    backup::DEADLINE_SECONDS,
    bucket, initialize,
    object::{Object, labels, object},
    pod::scratch,
};
use crate::{
    crd::{Restore, label},
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

/// Builds the CronJob of drills. `None` also while the operator does not know its own image, which fetches dumps from the bucket.
pub(crate) fn cron_job(desired: &Desired, backup: &DesiredBackup) -> Option<Object> {
    let name = &desired.key.name;
    let scratch = scratch(desired, &desired.storage.text);
    let latest = match &backup.drill_store {
        None => Restore::of_claim("latest", names::backup(name)),
        Some(store) => {
            desired.operator_image.as_ref()?;
            Restore::of_store("latest", store.clone())
        }
    };
    let mut job_labels = labels(desired);
    job_labels[label::ROLE] = json!(Role::Drill);
    let mut spec = json!({
        "schedule": backup.drill.as_ref()?,
        "concurrencyPolicy": "Forbid",
        "startingDeadlineSeconds": 3600,
        "successfulJobsHistoryLimit": 1,
        "failedJobsHistoryLimit": 1,
        "jobTemplate": {
            "metadata": {"labels": job_labels},
            "spec": {
                "backoffLimit": 0,
                "activeDeadlineSeconds": DEADLINE_SECONDS,
                "ttlSecondsAfterFinished": KEPT_SECONDS,
                "template": initialize::pod(desired, Role::Drill, scratch, true, ID, Some(&latest)),
            },
        },
    });
    if latest.store.is_some() {
        spec["jobTemplate"]["spec"]["podFailurePolicy"] = json!({"rules": bucket::failure_rules(bucket::FETCH)});
    }
    Some(object(desired, Kind::CronJob, names::drill(name), json!({"spec": spec})))
}
