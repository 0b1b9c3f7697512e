//! Reads what exists of a backup and of what it backs up. An effect that reads.

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        batch::v1::{CronJob, Job},
        core::v1::Pod,
    },
};
use kube::{Api, Client, Resource, ResourceExt, api::ListParams};
use serde::de::DeserializeOwned;

use super::{
    archive_job,
    context::Backups,
    observed::{ArchiveJob, Database, Files, Observed, Subject},
};
use crate::{
    crd::{
        BackupSubjectKind, ClientApp, ClientAppBackupSpec, ClientAppRestore, PostgresProvider, Postgresql,
        percona::{PerconaPGBackup, PerconaPGCluster},
    },
    platform::{
        api::ignore_not_found,
        job::{JOB_NAME, failure_line, progress, termination_message},
        key::Key,
        run_once::{Error, Run, running},
    },
    store::error::UNTOUCHED,
};

/// Returns what exists. Only what the next step depends on is read.
pub(super) async fn observe(
    client: &Client,
    backup: &Run<'_, Backups>,
    spec: &ClientAppBackupSpec,
) -> Result<Observed, Error> {
    let (namespace, name) = (&backup.key.namespace, &spec.of.name);
    // One that has begun goes on.
    let restore = match backup.recorded_status.started_at {
        Some(_) => None,
        None => running(client, namespace, |restore: &ClientAppRestore| restore.spec.of == spec.of).await?,
    };
    if spec.of.kind == BackupSubjectKind::Postgresql {
        let database = standalone(client, namespace, name).await?;
        return Ok(Observed { subject: Subject::Postgresql, database, files: Files::default(), restore });
    }
    let Some(app) = one::<ClientApp>(client, namespace, name).await? else { return Ok(Observed::default()) };
    let key = Key::new(namespace, name);
    let postgres = &app.spec.postgres;
    let database = match postgres.provider {
        _ if !postgres.enabled => Database::None,
        PostgresProvider::External => Database::None,
        PostgresProvider::Standalone => standalone(client, namespace, &key.database()).await?,
        PostgresProvider::Percona => {
            let recorded = backup.recorded_status.database.as_ref();
            let made = match recorded {
                Some(recorded) => listed::<PerconaPGBackup>(client, namespace, &recorded.name).await?,
                None => None,
            };
            let cluster = listed::<PerconaPGCluster>(client, namespace, &key.database()).await?;
            Database::Percona { cluster: cluster.map(Box::new), backup: made.map(Box::new) }
        }
    };
    let mut files = Files::default();
    if app.spec.persistence.backup.is_some() {
        files.cron_job = one::<CronJob>(client, namespace, &key.files()).await?.map(Box::new);
        if let Some(recorded) = &backup.recorded_status.files {
            files.job = made_job(client, namespace, &recorded.job, files.cron_job.as_deref()).await?;
        }
        if let (Some(cron_job), None) = (&files.cron_job, &files.job) {
            let pods = pods(client, namespace).await?;
            files.place = archive_job::place(cron_job, &pods);
            files.user = archive_job::users(cron_job, &pods).next().map(ResourceExt::name_any);
        }
    }
    Ok(Observed { subject: Subject::App(Box::new(app)), database, files, restore })
}

pub(crate) async fn pods(client: &Client, namespace: &str) -> Result<Vec<Pod>, Error> {
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&ListParams::default()).await;
    pods.map(|pods| pods.items).map_err(Error::api(format!("list the pods of namespace {namespace}")))
}

pub(crate) async fn standalone(client: &Client, namespace: &str, name: &str) -> Result<Database, Error> {
    Ok(Database::Standalone(one::<Postgresql>(client, namespace, name).await?.map(Box::new)))
}

pub(crate) async fn made_job(
    client: &Client,
    namespace: &str,
    name: &str,
    cron_job: Option<&CronJob>,
) -> Result<Option<ArchiveJob>, Error> {
    let Some(job) = one::<Job>(client, namespace, name).await? else { return Ok(None) };
    let of_job = ListParams::default().labels(&format!("{JOB_NAME}={name}"));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&of_job).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Job {namespace}/{name}")))?.items;
    // Any user can make pods with such a label.
    let pods: Vec<_> = pods.into_iter().filter(|pod| controller(pod) == job.metadata.uid).collect();
    Ok(Some(ArchiveJob {
        is_ours: controller(&job).is_some()
            && controller(&job) == cron_job.and_then(|found| found.metadata.uid.clone()),
        progress: progress(&job),
        report: pods.iter().find_map(termination_message),
        // Of several pods, one that may have moved files counts.
        failure: pods.iter().filter_map(failure_line).min_by_key(|line| line.starts_with(UNTOUCHED)),
    }))
}

/// Returns the uid of an object's controller.
fn controller(object: &impl ResourceExt) -> Option<String> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

/// Reads an object. `None`: it does not exist.
pub(crate) async fn one<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await;
    found.map_err(Error::api(format!("read {} {namespace}/{name}", K::kind(&()))))
}

/// Reads an object of a kind that the operator may list, but not get, and that the cluster may not have.
pub(crate) async fn listed<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let named = ListParams::default().fields(&format!("metadata.name={name}"));
    let found = ignore_not_found(Api::<K>::namespaced(client.clone(), namespace).list(&named).await);
    let found = found.map_err(Error::api(format!("read {} {namespace}/{name}", K::kind(&()))))?;
    Ok(found.and_then(|found| found.items.into_iter().next()))
}
