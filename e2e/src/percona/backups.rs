//! Reconciles a `PerconaPGBackup`.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ApiResource, ListParams, Object, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::{Resource as _, ResourceExt as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Knobs;
use super::objects::CLUSTER;
use super::reconcile::{Ctx, MANAGER, Scope};
use super::repo::{self, BACKUP, Kind, PGBACKREST, READY_FOR_BACKUP, REPO};
use super::spec::{Cluster, Repo, of_kind};

/// On a `PerconaPGBackup`: the Job that it was made for.
pub(super) const JOB_NAME: &str = "pgv2.percona.com/pgbackrest-backup-job-name";
/// On a `PerconaPGBackup`: the type of its Job.
const JOB_TYPE: &str = "pgv2.percona.com/pgbackrest-backup-job-type";
/// On a cluster: its `PerconaPGBackup` in progress.
const IN_PROGRESS: &str = "pgv2.percona.com/backup-in-progress";
/// On a `PerconaPGBackup` until it is over.
const FINALIZER: &str = "internal.percona.com/delete-backup";

pub(super) type Backup = Object<BackupSpec, BackupStatus>;

pub(super) fn resource() -> ApiResource {
    of_kind("PerconaPGBackup")
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackupSpec {
    pub(super) pg_cluster: String,
    #[serde(default)]
    repo_name: String,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BackupStatus {
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<State>,
    #[serde(skip_serializing_if = "String::is_empty")]
    error: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    job_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed: Option<Time>,
    #[serde(skip_serializing_if = "String::is_empty")]
    destination: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    backup_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    storage_type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    repo: Option<Repo>,
    #[serde(skip_serializing_if = "String::is_empty")]
    image: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    backup_name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    cr_version: String,
}

/// `None` before the backup has started.
#[derive(Clone, Copy, Debug, Deserialize, Serialize, PartialEq, Eq)]
enum State {
    Starting,
    Running,
    Failed,
    Succeeded,
}

/// A `PerconaPGBackup` for a Job that no `PerconaPGBackup` requested.
pub(super) fn for_job(job: &str, cluster: &str, repo: &str) -> Backup {
    let spec = BackupSpec { pg_cluster: cluster.to_owned(), repo_name: repo.to_owned(), options: Vec::new() };
    let mut backup = Backup::new("", &resource(), spec);
    backup.metadata.name = None;
    backup.metadata.generate_name = Some(format!("{job}-"));
    backup.metadata.annotations = Some([(JOB_NAME.to_owned(), job.to_owned())].into());
    backup
}

/// A `PerconaPGBackup` as a schedule would create it.
pub(super) fn for_schedule(cluster: &str, repo: &str, kind: &str) -> Backup {
    let options = vec![format!("--type={}", short(kind))];
    let spec = BackupSpec { pg_cluster: cluster.to_owned(), repo_name: repo.to_owned(), options };
    let mut backup = Backup::new("", &resource(), spec);
    backup.metadata.name = None;
    backup.metadata.generate_name = Some(scheduled_prefix(cluster, repo, kind));
    backup
}

pub(super) fn scheduled_prefix(cluster: &str, repo: &str, kind: &str) -> String {
    format!("{cluster}-{repo}-{}-", short(kind))
}

/// pgBackRest's name for a type of backup.
fn short(kind: &str) -> &str {
    match kind {
        "differential" => "diff",
        "incremental" => "incr",
        kind => kind,
    }
}

pub(super) async fn reconcile(backup: Arc<Backup>, ctx: Arc<Ctx>) -> Result<Action, kube::Error> {
    let scope = ctx.scope(backup.namespace());
    let knobs = ctx.settings.borrow().of(&scope.namespace, &backup.spec.pg_cluster).clone();
    if !knobs.ignore {
        scope.back_up(&backup, &knobs).await?;
    }
    // The cluster and the Job are watched.
    Ok(Action::await_change())
}

impl Scope<'_> {
    async fn back_up(&self, backup: &Backup, knobs: &Knobs) -> Result<(), kube::Error> {
        let cluster = match self.clusters().get(&backup.spec.pg_cluster).await {
            // By the code: without the definition of clusters the answer has no reason.
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            found => Some(found?),
        };
        let state = backup.status.as_ref().and_then(|status| status.state);
        if backup.metadata.deletion_timestamp.is_some() || state == Some(State::Failed) {
            return self.let_go(backup, cluster.as_ref()).await;
        }
        if state != Some(State::Succeeded) {
            self.hold(backup).await?;
        }
        match (state, cluster) {
            (None, Some(cluster)) => self.begin(backup, &cluster).await,
            (Some(State::Starting), Some(cluster)) => self.start(backup, &cluster, knobs).await,
            (Some(State::Running), cluster) => self.follow(backup, cluster.as_ref(), knobs).await,
            // Without a cluster it waits for one, and reports nothing.
            (None | Some(State::Starting), None) | (Some(State::Failed | State::Succeeded), _) => Ok(()),
        }
    }

    async fn begin(&self, backup: &Backup, cluster: &Cluster) -> Result<(), kube::Error> {
        let backups = &cluster.spec.backups;
        if !backups.are_enabled() {
            let error = "Backups are not enabled in the PerconaPGCluster configuration";
            return self.tell(backup, json!({"state": State::Failed, "error": error})).await;
        }
        if cluster.spec.pause {
            return Ok(());
        }
        if self.job_of(backup).await?.is_none() {
            if cluster.annotations().get(IN_PROGRESS).is_some_and(|other| *other != backup.name_any()) {
                return Ok(());
            }
            let name = backup.name_any();
            let manual = json!({"repoName": backup.spec.repo_name, "options": backup.spec.options});
            let patch = json!({
                "metadata": {
                    "resourceVersion": cluster.resource_version(),
                    "annotations": {IN_PROGRESS: name, BACKUP: name},
                },
                "spec": {"backups": {"pgbackrest": {"manual": manual}}},
            });
            self.clusters().patch(&cluster.name_any(), &as_operator(), &Patch::Merge(patch)).await?;
        }
        let found = backups.repos().iter().find(|repo| repo.name == backup.spec.repo_name);
        let (Some(repo), Some(pgbackrest)) = (found, &backups.pgbackrest) else {
            // It never reports that, and as the backup in progress it keeps all other backups of the cluster from
            // starting.
            return Ok(());
        };
        let status = BackupStatus {
            state: Some(State::Starting),
            destination: repo.destination(&pgbackrest.global),
            storage_type: repo.storage_type().to_owned(),
            repo: Some(repo.clone()),
            image: pgbackrest.image.clone(),
            cr_version: cluster.spec.cr_version.clone(),
            ..BackupStatus::default()
        };
        self.tell(backup, json!(status)).await
    }

    async fn start(&self, backup: &Backup, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let conditions = cluster.status.iter().flat_map(|status| &status.conditions).flatten();
        let ready =
            conditions.into_iter().any(|condition| condition.type_ == READY_FOR_BACKUP && condition.status == "True");
        let job = match self.job_of(backup).await? {
            Some(job) => job,
            None if ready => {
                let name = repo::job_name(&cluster.name_any(), &backup.uid().unwrap_or_default());
                let suspended = knobs.hold_backups || knobs.fail_backups;
                let mut job = repo::job(cluster, &name, Kind::Manual, &backup.spec.repo_name, suspended);
                job.annotations_mut().insert(BACKUP.to_owned(), backup.name_any());
                job.owner_references_mut().extend(backup.controller_owner_ref(&resource()));
                self.api().create(&PostParams::default(), &job).await?
            }
            // The real operator allows two minutes from the cluster's last change, and here they are always over. So a
            // client can only wait for the condition.
            None => return self.tell(backup, json!({"state": State::Failed})).await,
        };
        let kind = job.labels().get(BACKUP);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {JOB_TYPE: kind}}}));
        self.backups().patch(&backup.name_any(), &as_operator(), &patch).await?;
        self.tell(backup, json!({"state": State::Running, "jobName": job.name_any()})).await
    }

    async fn follow(&self, backup: &Backup, cluster: Option<&Cluster>, knobs: &Knobs) -> Result<(), kube::Error> {
        let Some(job) = self.job_of(backup).await? else {
            return self.tell(backup, json!({"state": State::Failed})).await;
        };
        let suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
        if repo::is_over(&job, "Complete") {
            self.let_go(backup, cluster).await?;
            // So that it outlives the repository.
            let labels = Patch::Merge(json!({"metadata": {"labels": {CLUSTER: null, PGBACKREST: null}}}));
            if is_manual(&job) {
                self.api::<Job>().patch(&job.name_any(), &as_operator(), &labels).await?;
            }
            let completed = job.status.as_ref().and_then(|status| status.completion_time.clone());
            let (backup_type, letter) = backup_type(&job, &backup.spec.options);
            let backup_name = completed.as_ref().map(|time| format!("{}{letter}", time.0.strftime("%Y%m%d-%H%M%S")));
            let status = json!({
                "state": State::Succeeded, "completed": completed, "backupType": backup_type,
                "backupName": backup_name,
            });
            self.tell(backup, status).await
        } else if repo::is_over(&job, "Failed") {
            self.let_go(backup, cluster).await?;
            // Without a reason.
            self.tell(backup, json!({"state": State::Failed})).await
        } else if suspended && !knobs.hold_backups && knobs.fail_backups {
            self.fail(&job).await
        } else if suspended && !knobs.hold_backups {
            let patch = Patch::Merge(json!({"spec": {"suspend": false}}));
            self.api::<Job>().patch(&job.name_any(), &as_operator(), &patch).await.map(drop)
        } else {
            Ok(())
        }
    }

    /// Ends a Job as the Job controller does when its pods have failed too often.
    async fn fail(&self, job: &Job) -> Result<(), kube::Error> {
        let now = Time(jiff::Timestamp::now());
        let condition = |kind: &str| {
            json!({
                "type": kind, "status": "True", "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit", "lastTransitionTime": now,
            })
        };
        let conditions = [condition("FailureTarget"), condition("Failed")];
        let status = json!({"startTime": now, "conditions": conditions, "failed": 7});
        let patch = Patch::Merge(json!({"status": status}));
        self.api::<Job>().patch_status(&job.name_any(), &as_operator(), &patch).await.map(drop)
    }

    async fn hold(&self, backup: &Backup) -> Result<(), kube::Error> {
        let mut finalizers = backup.finalizers().to_vec();
        if finalizers.iter().all(|finalizer| finalizer != FINALIZER) {
            finalizers.push(FINALIZER.to_owned());
            self.set_finalizers(backup, &finalizers).await?;
        }
        Ok(())
    }

    /// Allows the cluster's next backup to start, and this one to be deleted.
    async fn let_go(&self, backup: &Backup, cluster: Option<&Cluster>) -> Result<(), kube::Error> {
        let name = backup.name_any();
        if let Some(cluster) = cluster.filter(|cluster| cluster.annotations().get(IN_PROGRESS) == Some(&name)) {
            let patch = json!({"metadata": {"annotations": {IN_PROGRESS: null, BACKUP: null}}});
            self.clusters().patch(&cluster.name_any(), &as_operator(), &Patch::Merge(patch)).await?;
        }
        let mut finalizers = backup.finalizers().to_vec();
        finalizers.retain(|finalizer| finalizer != FINALIZER);
        if finalizers.len() < backup.finalizers().len() {
            self.set_finalizers(backup, &finalizers).await?;
        }
        Ok(())
    }

    async fn set_finalizers(&self, backup: &Backup, finalizers: &[String]) -> Result<(), kube::Error> {
        let metadata = json!({"uid": backup.uid(), "finalizers": finalizers});
        let patch = Patch::Merge(json!({"metadata": metadata}));
        self.backups().patch(&backup.name_any(), &as_operator(), &patch).await.map(drop)
    }

    async fn tell(&self, backup: &Backup, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        self.backups().patch_status(&backup.name_any(), &as_operator(), &patch).await.map(drop)
    }

    async fn job_of(&self, backup: &Backup) -> Result<Option<Job>, kube::Error> {
        let named = backup.annotations().get(JOB_NAME);
        let told = backup.status.as_ref().map(|status| &status.job_name).filter(|name| !name.is_empty());
        if let Some(name) = named.or(told) {
            return self.api::<Job>().get_opt(name).await;
        }
        let manual = format!("{REPO}={},{}={}", backup.spec.repo_name, BACKUP, Kind::Manual.name());
        let jobs = self.api::<Job>().list(&ListParams::default().labels(&manual)).await?;
        // By the owner, since an earlier backup may have had the same name.
        Ok(jobs
            .into_iter()
            .find(|job| job.owner_references().iter().any(|owner| Some(&owner.uid) == backup.metadata.uid.as_ref())))
    }
}

fn as_operator() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}

fn is_manual(job: &Job) -> bool {
    job.labels().get(BACKUP).is_some_and(|kind| kind == Kind::Manual.name())
}

/// The type, and its letter at the end of a backup's name. pgBackRest's default is incremental.
fn backup_type(job: &Job, options: &[String]) -> (&'static str, char) {
    let asked = |kind: &str| options.iter().any(|option| *option == format!("--type={kind}"));
    match (is_manual(job), asked("full"), asked("diff")) {
        (false, ..) | (true, true, _) => ("full", 'F'),
        (true, false, true) => ("differential", 'D'),
        (true, false, false) => ("incremental", 'I'),
    }
}
