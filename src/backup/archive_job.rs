//! Builds the Job that archives an app's files, from the CronJob that the operator maintains for `spec.persistence.backup`. Pure.

use k8s_openapi::{
    api::batch::v1::{CronJob, Job},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource as _, ResourceExt as _};

use crate::crd::ClientApp;

/// The maximum length of a Job's name: it becomes a label of its pods.
pub(crate) const LONGEST: usize = 63;

/// Returns the name of a Job of this CronJob, which ends with a word.
pub(crate) fn name(cron_job: &str, word: &str) -> String {
    let head: String = cron_job.chars().take(LONGEST - 1 - word.len()).collect();
    format!("{}-{word}", head.trim_end_matches('-'))
}

/// Builds what `kubectl create job --from=cronjob/…` makes.
pub(crate) fn instance(cron_job: &CronJob, name: &str) -> Job {
    let template = cron_job.spec.as_ref().map(|spec| spec.job_template.clone()).unwrap_or_default();
    let ObjectMeta { labels, annotations, .. } = template.metadata.unwrap_or_default();
    let owner = OwnerReference {
        api_version: CronJob::api_version(&()).into_owned(),
        kind: CronJob::kind(&()).into_owned(),
        name: cron_job.name_any(),
        uid: cron_job.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: cron_job.namespace(),
        labels,
        annotations,
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Job { metadata, spec: template.spec, status: None }
}

/// Builds the Job that archives the files as they are now.
pub(crate) fn archive(cron_job: &CronJob, name: &str) -> Job {
    let mut job = instance(cron_job, name);
    job.annotations_mut().insert("cronjob.kubernetes.io/instantiate".to_owned(), "manual".to_owned());
    job
}

/// Returns true if the CronJob is this ClientApp's, and not of an earlier one of the same name.
pub(crate) fn is_of(cron_job: &CronJob, app: &ClientApp) -> bool {
    let uid = app.metadata.uid.as_deref();
    cron_job.owner_references().iter().any(|owner| {
        owner.controller == Some(true) && owner.kind == ClientApp::kind(&()) && Some(owner.uid.as_str()) == uid
    })
}
