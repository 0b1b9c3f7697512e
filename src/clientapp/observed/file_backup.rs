//! Holds what exists of an app's archives. **Pure.**

use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};

use crate::{
    clientapp::spec::file_backup::{Schedule, Volume},
    crd::annotation::SPEC_DIGEST,
    platform::{job::JobProgress, watch::owner},
};

/// Holds what exists of an app's archives, as far as the cluster shows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FilesView {
    /// The operator's own image.
    pub image: Option<String>,
    /// uid of the ClientApp.
    pub app_uid: String,
    /// The release's volumes; `None`: they are not known, or not all of them exist.
    pub volumes: Option<Vec<Volume>>,
    pub cron_job: Option<CronJobView>,
    /// A user restores files: an archive made meanwhile would have half of them.
    pub stopped_for: Option<String>,
    /// Says why the API server has refused the CronJob.
    pub refused: Option<RefusedArchives>,
    /// The Jobs that archive.
    pub archives: Vec<ArchiveView>,
}

/// The CronJob, or another object of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CronJobView {
    pub uid: String,
    /// Digest of the document that was applied.
    pub digest: Option<String>,
    /// Kind, name and uid of its owner.
    pub owner: Option<(String, String, String)>,
    /// Holds what users may edit without the digest; `None`: it is not this operator's.
    pub schedule: Option<Schedule>,
}

/// Says why the API server has refused a CronJob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedArchives {
    /// Digest of the refused document.
    pub digest: String,
    pub message: String,
    /// The next attempt.
    pub until: Timestamp,
}

impl CronJobView {
    /// Reads it from its metadata.
    pub(crate) fn of<K: Resource>(cron_job: &K) -> CronJobView {
        CronJobView {
            uid: cron_job.uid().unwrap_or_default(),
            digest: cron_job.annotations().get(SPEC_DIGEST).cloned(),
            owner: owner(cron_job),
            schedule: None,
        }
    }

    pub(crate) fn is_of(&self, app_uid: &str) -> bool {
        self.owner.as_ref().is_some_and(|(_, _, uid)| uid == app_uid)
    }
}

/// A Job that archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ArchiveView {
    pub job: String,
    /// uid of the CronJob that it belongs to, if any.
    pub cron_job: Option<String>,
    pub progress: JobProgress,
    /// The termination message of its pod, if that succeeded: name, bytes and number of files.
    pub report: Option<String>,
    /// Says why its pod failed.
    pub failed: Option<String>,
}
