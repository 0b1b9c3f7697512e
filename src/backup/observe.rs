//! Reads what exists of a backup and of what it backs up. An effect that reads.

use k8s_openapi::{
    NamespaceResourceScope,
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Pod},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta},
};
use serde::de::DeserializeOwned;

use super::{
    archive_job::{self, Volume},
    context::Backups,
    decide::{awaits_dump, waits_for},
    observed::{ArchiveJob, Database, Files, Observed, Subject},
};
use crate::{
    clientapp::{observed::inventory, spec::database},
    crd::{
        BackupSubjectKind, ClientApp, ClientAppBackup, JobSettings, PostgresProvider, Postgresql,
        cloudnativepg::{CloudNativePgBackup, CloudNativePgCluster},
        percona::{PerconaPGBackup, PerconaPGCluster},
    },
    platform::{
        api::ignore_not_found,
        controller::ControllerContext,
        idle_job::newest_warning,
        job::{self, JOB_NAME, failure_line, not_started, progress, termination_message, waits_for_pods_since},
        key::Key,
        pods,
        run_once::{Error, Run, RunContext, running},
        watch::controller_uid,
    },
    profile::{Found, Profiles},
    store::error::UNTOUCHED,
};

/// Returns what exists. Only what the next step depends on is read.
pub(super) async fn observe(
    ctx: &RunContext<Backups>,
    backup: &Run<'_, Backups>,
    object: &ClientAppBackup,
) -> Result<Observed, Error> {
    let spec = &object.spec;
    let (client, namespace, name) = (&ctx.parts.client, &backup.key.namespace, &spec.of.name);
    // One that has begun goes on.
    let restore = match backup.recorded_status.started_at {
        Some(_) => None,
        None => {
            let restores = Api::namespaced(client.clone(), namespace);
            running(restores, |restore| waits_for(object, restore)).await?
        }
    };
    if spec.of.kind == BackupSubjectKind::Postgresql {
        let database = standalone(client, namespace, name).await?;
        let last_dump_of = last_dump_of(ctx, object, &database);
        return Ok(Observed { subject: Subject::Postgresql, database, last_dump_of, restore, ..Observed::default() });
    }
    let Some(app) = app(&ctx.shared, client, namespace, name).await? else { return Ok(Observed::default()) };
    let key = Key::new(namespace, name);
    let postgres = &app.spec.postgres;
    let database = match postgres.provider {
        _ if !postgres.enabled => Database::None,
        PostgresProvider::External => Database::None,
        PostgresProvider::CloudNativePg => {
            let recorded = backup.recorded_status.database.as_ref();
            let made = match recorded {
                Some(recorded) => listed::<CloudNativePgBackup>(client, namespace, &recorded.name).await?,
                None => None,
            };
            let cluster = listed::<CloudNativePgCluster>(client, namespace, &database::name_in_use(&app)).await?;
            Database::CloudNativePg { cluster: cluster.map(Box::new), backup: made.map(Box::new) }
        }
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
    let files = match app.spec.persistence.backup {
        Some(_) => {
            let recorded = backup.recorded_status.files.as_ref();
            files(&ctx.parts, &app, recorded.map(|files| files.job.as_str())).await?
        }
        None => Files::default(),
    };
    let last_dump_of = last_dump_of(ctx, object, &database);
    Ok(Observed { subject: Subject::App(Box::new(app)), database, last_dump_of, files, restore })
}

/// Returns the other ClientAppBackup of the namespace that awaits the last dump of which a Postgresql has a record.
fn last_dump_of(ctx: &RunContext<Backups>, object: &ClientAppBackup, database: &Database) -> Option<String> {
    let Database::Standalone(Some(found)) = database else { return None };
    let request = &found.status.as_ref()?.dump.as_ref()?.request;
    let (namespace, own) = (&object.metadata.namespace, &object.metadata.uid);
    let others = ctx.unfinished(|other| {
        let ObjectMeta { namespace: of_other, uid, .. } = &other.metadata;
        let awaits = || other.status().is_some_and(|status| awaits_dump(&status));
        of_other == namespace && uid != own && uid.as_ref() == Some(request) && awaits()
    });
    others.first().map(|other| other.name_any())
}

/// Returns what archives or restores the files of an app, whose Job is recorded by this name.
pub(crate) async fn files(ctx: &ControllerContext, app: &ClientApp, job: Option<&str>) -> Result<Files, Error> {
    let (client, namespace) = (&ctx.client, app.namespace().unwrap_or_default());
    let mut files = Files { image: ctx.image.clone(), ..Files::default() };
    if let Some(name) = job {
        files.job = made_job(client, &namespace, app.metadata.uid.as_deref(), name).await?;
    }
    if files.job.is_none() {
        files.volumes = volumes(client, app).await?;
    }
    if let Some(volumes) = &files.volumes {
        let pods = Api::<Pod>::namespaced(client.clone(), &namespace).list(&ListParams::default()).await;
        let pods = pods.map_err(Error::api(format!("list the pods of namespace {namespace}")))?.items;
        files.place = archive_job::place(volumes, &pods);
        files.user = archive_job::users(volumes, &pods).next().map(ResourceExt::name_any);
    }
    Ok(files)
}

pub(crate) async fn standalone(client: &Client, namespace: &str, name: &str) -> Result<Database, Error> {
    Ok(Database::Standalone(one::<Postgresql>(client, namespace, name).await?.map(Box::new)))
}

/// Returns the volumes with files of an app. `None`: they are not known, or not all of them exist.
async fn volumes(client: &Client, app: &ClientApp) -> Result<Option<Vec<Volume>>, Error> {
    let namespace = app.namespace().unwrap_or_default();
    let Some(inventory) = app.status.as_ref().and_then(|status| status.inventory.as_ref()) else { return Ok(None) };
    let api = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
    let mut volumes = Vec::new();
    for claim in inventory::claims(inventory, &namespace) {
        let found = api.get_metadata_opt(claim).await;
        let found = found.map_err(Error::api(format!("read PersistentVolumeClaim {namespace}/{claim}")))?;
        let found = found.filter(|found| found.metadata.deletion_timestamp.is_none());
        let Some(uid) = found.and_then(|found| found.uid()) else { return Ok(None) };
        volumes.push(Volume { claim: claim.to_owned(), uid });
    }
    Ok(Some(volumes))
}

/// Returns a Job for the files of an app.
pub(crate) async fn made_job(
    client: &Client,
    namespace: &str,
    app_uid: Option<&str>,
    name: &str,
) -> Result<Option<ArchiveJob>, Error> {
    let Some(job) = one::<Job>(client, namespace, name).await? else { return Ok(None) };
    let of_job = ListParams::default().labels(&format!("{JOB_NAME}={name}"));
    let pods = Api::<Pod>::namespaced(client.clone(), namespace).list(&of_job).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Job {namespace}/{name}")))?.items;
    // Any user can make pods with such a label.
    let pods: Vec<_> = pods.into_iter().filter(|pod| controller_uid(pod) == job.metadata.uid).collect();
    let progress = progress(&job);
    let idle_since = match progress.succeeded {
        None => job::idle_since(waits_for_pods_since(&job), pods.iter().map(pods::idle_since)),
        Some(_) => None,
    };
    let idle_because = match idle_since {
        Some(_) => why_idle(client, namespace, name, &pods).await?,
        None => None,
    };
    Ok(Some(ArchiveJob {
        is_ours: app_uid.is_some() && controller_uid(&job).as_deref() == app_uid,
        progress,
        uid: job.uid().unwrap_or_default(),
        idle_since,
        idle_because,
        not_started: not_started(&job),
        report: pods.iter().find_map(termination_message),
        // Of several pods, one that may have moved files counts.
        failure: pods.iter().filter_map(failure_line).min_by_key(|line| line.starts_with(UNTOUCHED)),
    }))
}

/// Returns why nothing runs in a Job: what its pods say, or else a warning about one of them or, without any, about the Job.
async fn why_idle(client: &Client, namespace: &str, name: &str, pods: &[Pod]) -> Result<Option<String>, Error> {
    if let Some(why) = pods::why(pods, None) {
        return Ok(Some(why));
    }
    let pod = pods.first().map(ResourceExt::name_any);
    let (kind, about) = pod.as_deref().map_or(("Job", name), |pod| ("Pod", pod));
    let warning = newest_warning(client, namespace, kind, about).await;
    let warning = warning.map_err(Error::api(format!("list the events about {kind} {namespace}/{about}")))?;
    Ok(warning.map(|warning| format!("{kind} {about}: {warning}")))
}

/// Reads an app, with the settings of Jobs that it takes from its revision of its Profile. `None`: it does not exist.
pub(crate) async fn app(
    profiles: &Profiles,
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<Option<ClientApp>, Error> {
    let Some(mut app) = one::<ClientApp>(client, namespace, name).await? else { return Ok(None) };
    let Some((profile, backup)) = app.spec.profile.as_ref().zip(app.spec.persistence.backup.as_mut()) else {
        return Ok(Some(app));
    };
    profiles.synced().await;
    let uid = app.metadata.uid.as_deref().unwrap_or_default();
    let has = app.status.as_ref().and_then(|status| status.profile_revision.as_ref());
    // The app itself says what is wrong with its Profile.
    if let Found::Revision(revision) = profiles.revision_for(profile, uid, has)
        && let Ok(spec) = &revision.spec
    {
        let defaults = spec.defaults.jobs.as_ref().filter(|defaults| defaults.problem().is_none());
        backup.jobs = JobSettings::over(backup.jobs.as_ref(), defaults);
    }
    Ok(Some(app))
}

/// Reads an object. `None`: it does not exist.
pub(crate) async fn one<K>(client: &Client, namespace: &str, name: &str) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let found = Api::<K>::namespaced(client.clone(), namespace).get_opt(name).await;
    found.map_err(Error::api(format!("read {} {namespace}/{name}", K::kind(&()))))
}

/// Reads the metadata of an object. `None`: it does not exist.
pub(crate) async fn metadata(
    client: &Client,
    namespace: &str,
    resource: &ApiResource,
    name: &str,
) -> Result<Option<PartialObjectMeta<DynamicObject>>, Error> {
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource);
    let found = api.get_metadata_opt(name).await;
    found.map_err(Error::api(format!("read {} {namespace}/{name}", resource.kind)))
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
