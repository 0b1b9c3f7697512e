//! Reconciles a cluster.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

use super::backups::{self, Backup};
use super::instances::instances;
use super::objects::{self, CLUSTER, INSTANCE_SET, ROLE, ROLE_USER};
use super::repo::{self, Kind, Seen};
use super::restores::{self, Restore};
use super::spec::{Cluster, Count, PgBackRestStatus, PostgresStatus, SetStatus, State, Status, resource};
use super::{Knobs, Settings};

pub(super) const MANAGER: &str = "percona-stand-in";

const DELETE_PVC: &str = "percona.com/delete-pvc";
const DELETE_SSL: &str = "percona.com/delete-ssl";
const DELETE_BACKUPS: &str = "percona.com/delete-backups";
/// The operator's own, which exists while backups are enabled, and longer.
const STOP_WATCHERS: &str = "internal.percona.com/stop-watchers";

pub(super) struct Ctx {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) settings: watch::Receiver<Settings>,
    applied: Mutex<BTreeMap<String, Applied>>,
}

/// An object as it was applied, and the API server's response. An unchanged object is not applied again, which would
/// cost the API server ten times as much as a read.
type Applied = (serde_json::Value, Stamp);

/// The uid of an object, and its generation, or its resource version if its kind has no generations.
type Stamp = (Option<String>, Option<String>);

impl Ctx {
    pub(super) fn new(client: Client, recorder: Recorder, settings: watch::Receiver<Settings>) -> Ctx {
        Ctx { client, recorder, settings, applied: Mutex::default() }
    }

    pub(super) fn scope(&self, namespace: Option<String>) -> Scope<'_> {
        Scope { ctx: self, namespace: namespace.unwrap_or_default() }
    }
}

pub(super) struct Scope<'a> {
    ctx: &'a Ctx,
    pub(super) namespace: String,
}

pub(super) async fn reconcile(cluster: Arc<Cluster>, ctx: Arc<Ctx>) -> Result<Action, kube::Error> {
    let scope = ctx.scope(cluster.namespace());
    let knobs = ctx.settings.borrow().of(&scope.namespace, &cluster.name_any()).clone();
    if knobs.ignore {
        return Ok(Action::await_change());
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        return scope.tear_down(&cluster).await;
    }
    if cluster.spec.backups.are_enabled() {
        scope.hold_back(&cluster).await?;
    }
    let missing = cluster.spec.missing_images();
    let host = scope.api::<StatefulSet>().get_opt(&repo::host_name(&cluster.name_any())).await?;
    if repo::waits_for_leave(&cluster, host.is_some()) {
        // Not even a changed password takes effect.
    } else if missing.is_empty() {
        scope.write_secrets(&cluster, &knobs).await?;
        for service in objects::services(&cluster) {
            scope.apply(&service).await?;
        }
        if !knobs.hold {
            scope.run(&cluster, &knobs, host.is_some()).await?;
        }
    } else {
        let event = Event {
            type_: EventType::Warning,
            reason: "MissingRequiredImage".to_owned(),
            note: Some(format!("Missing image(s): [{}]", missing.join(" "))),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        ctx.recorder.publish(&event, &objects::inner_cluster(&cluster)).await?;
    }
    scope.report(&cluster, &knobs).await?;
    Ok(Action::await_change())
}

/// Soon, since the error is a conflict, or a definition or namespace that does not exist yet or any more.
pub(super) fn retry<K>(_: Arc<K>, _: &kube::Error, _: Arc<Ctx>) -> Action {
    Action::requeue(Duration::from_millis(200))
}

impl Scope<'_> {
    async fn write_secrets(&self, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        for user in cluster.spec.users(&name) {
            let existing = self.api::<Secret>().get_opt(&objects::user_secret_name(&name, &user)).await?;
            self.apply(&objects::user_secret(cluster, &user, existing.as_ref(), knobs.omit_key.as_deref())).await?;
        }
        for secret in objects::tls_secrets(&name) {
            self.apply(&objects::tls_secret(cluster, &secret)).await?;
        }
        Ok(())
    }

    async fn run(&self, cluster: &Cluster, knobs: &Knobs, had_backups: bool) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        let volumes = self.api::<PersistentVolumeClaim>().list(&of_cluster(&name)).await?.items;
        for set in &cluster.spec.instances {
            for instance in instances(&name, &cluster.uid().unwrap_or_default(), set, &volumes) {
                self.apply(&objects::volume(cluster, &instance)).await?;
                self.apply(&objects::stateful_set(cluster, &instance)).await?;
            }
        }
        if let Some(pgbouncer) = cluster.spec.pgbouncer() {
            self.apply(&objects::pgbouncer(cluster, pgbouncer, knobs.pgbouncer_unready)).await?;
        }
        match &cluster.spec.backups.pgbackrest {
            Some(pgbackrest) if cluster.spec.backups.are_enabled() => {
                self.apply(&repo::host(cluster, &pgbackrest.image)).await?;
                self.back_up_for_replicas(cluster).await?;
                self.back_up_by_schedule(cluster).await
            }
            _ if had_backups => self.remove_repo(&name).await,
            _ => Ok(()),
        }
    }

    /// Creates the volumes and, as soon as there is something to back up, the initial backup.
    async fn back_up_for_replicas(&self, cluster: &Cluster) -> Result<(), kube::Error> {
        let mut volumes = Vec::new();
        for repo in cluster.spec.backups.repos() {
            let volume = repo.volume.as_ref().map(|volume| repo::volume(cluster, repo, volume));
            volumes.push(match volume {
                Some(volume) => self.apply(&volume).await?.uid(),
                None => cluster.uid(),
            });
        }
        let status = cluster.status.as_ref().and_then(|status| status.pgbackrest.as_ref());
        let due = |status: &PgBackRestStatus| {
            let first = status.repos.first();
            status.repo_host.ready
                && first.is_some_and(|repo| repo.stanza_created && !repo.replica_create_backup_complete)
        };
        let (Some(repo), Some(Some(volume)), true) =
            (cluster.spec.backups.repos().first(), volumes.first(), status.is_some_and(due))
        else {
            return Ok(());
        };
        let name = repo::job_name(&cluster.name_any(), volume);
        let job = match self.api::<Job>().get_opt(&name).await? {
            Some(job) => job,
            None => {
                let job = repo::job(cluster, &name, Kind::ReplicaCreate, &repo.name, false);
                self.api().create(&PostParams::default(), &job).await?
            }
        };
        // It gets its PerconaPGBackup only after it was created.
        if job.owner_references().is_empty() {
            let backup = match self.backup_of(&name).await? {
                Some(backup) => backup,
                None => {
                    let backup = backups::for_job(&name, &cluster.name_any(), &repo.name);
                    self.backups().create(&PostParams::default(), &backup).await?
                }
            };
            let owner = backup.controller_owner_ref(&backups::resource());
            let patch = Patch::Merge(json!({"metadata": {"ownerReferences": [owner]}}));
            self.api::<Job>().patch(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// One backup for each schedule, as soon as one is possible.
    async fn back_up_by_schedule(&self, cluster: &Cluster) -> Result<(), kube::Error> {
        if !is_ready_for_backup(cluster) {
            return Ok(());
        }
        let made = self.backups().list(&ListParams::default()).await?.items;
        for backup in due(cluster, &made) {
            self.backups().create(&PostParams::default(), &backup).await?;
        }
        Ok(())
    }

    async fn backup_of(&self, job: &str) -> Result<Option<Backup>, kube::Error> {
        let backups = self.backups().list(&ListParams::default()).await?;
        Ok(backups
            .into_iter()
            .find(|backup| backup.annotations().get(backups::JOB_NAME).is_some_and(|name| name == job)))
    }

    /// Removes the repository with all backups. The host is last, since its existence shows that there is something to
    /// remove.
    async fn remove_repo(&self, cluster: &str) -> Result<(), kube::Error> {
        let now = DeleteParams::background();
        let listed = ListParams::default().labels(&format!("{CLUSTER}={cluster},{}", repo::PGBACKREST));
        self.api::<PersistentVolumeClaim>().delete_collection(&now, &listed).await?;
        self.api::<Job>().delete_collection(&now, &listed).await?;
        self.api::<StatefulSet>().delete_collection(&now, &listed).await?;
        Ok(())
    }

    /// Adds the operator's own finalizer.
    async fn hold_back(&self, cluster: &Cluster) -> Result<(), kube::Error> {
        let mut finalizers = cluster.finalizers().to_vec();
        if finalizers.iter().all(|finalizer| finalizer != STOP_WATCHERS) {
            finalizers.push(STOP_WATCHERS.to_owned());
            let metadata = json!({"resourceVersion": cluster.resource_version(), "finalizers": finalizers});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            self.clusters().patch(&cluster.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    async fn report(&self, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        let servers = self.api::<StatefulSet>().list(&of_cluster(&name)).await?.items;
        let pgbouncer = self.api::<Deployment>().get_opt(&objects::pgbouncer_name(&name)).await?;
        let mut status = status(cluster, &servers, pgbouncer.as_ref(), knobs.hold);
        let first = Kind::ReplicaCreate.name();
        let first = ListParams::default().labels(&format!("{CLUSTER}={name},{}={first}", repo::BACKUP));
        let first = self.api::<Job>().list(&first).await?;
        if let Some(host) = servers.iter().find(|server| server.name_any() == repo::host_name(&name)) {
            let servers = status
                .postgres
                .as_ref()
                .is_some_and(|postgres| postgres.count.size > 0 && postgres.count.ready == postgres.count.size);
            let seen = Seen { servers, first_backup: first.iter().any(|job| repo::is_over(job, "Complete")) };
            status.pgbackrest = repo::status(cluster, host, seen);
        }
        let host_is_missing = status.pgbackrest.as_ref().is_some_and(|pgbackrest| !pgbackrest.repo_host.ready);
        let away = host_is_missing || cluster.spec.backups.is_restored();
        if away && status.state == Some(State::Ready) {
            status.state = Some(State::Initializing);
        }
        status.conditions = Some(repo::conditions(cluster, status.pgbackrest.as_ref(), Timestamp::now()));
        if cluster.status.as_ref() != Some(&status) {
            let patch = Patch::Merge(json!({"status": status}));
            self.clusters().patch_status(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// First the finalizer that needs a pod, then the workloads, and once these are gone, the remaining finalizers.
    /// Backups have no owner: they stay unless a finalizer says otherwise, and that one fails for ever if no pod runs.
    async fn tear_down(&self, cluster: &Cluster) -> Result<Action, kube::Error> {
        let name = cluster.name_any();
        if cluster.finalizers().iter().any(|finalizer| finalizer == STOP_WATCHERS) {
            return self.let_go_of(cluster, &[STOP_WATCHERS]).await;
        }
        if cluster.finalizers().iter().any(|finalizer| finalizer == DELETE_BACKUPS) {
            let servers = ListParams::default().labels(&format!("{CLUSTER}={name},{INSTANCE_SET}"));
            let servers = self.api::<StatefulSet>().list(&servers).await?;
            if servers.iter().all(|server| count_server(server).ready == 0) {
                // "no pods found", in a log only; retried for ever.
                return Ok(Action::requeue(Duration::from_millis(200)));
            }
            let backups = self.backups().list(&ListParams::default()).await?;
            for backup in backups.into_iter().filter(|backup| backup.spec.pg_cluster == name) {
                self.backups().delete(&backup.name_any(), &DeleteParams::default()).await?;
            }
            return self.let_go_of(cluster, &[DELETE_BACKUPS]).await;
        }
        let foreground = DeleteParams::foreground();
        let listed = of_cluster(&name);
        self.api::<StatefulSet>().delete_collection(&foreground, &listed).await?;
        self.api::<Deployment>().delete_collection(&foreground, &listed).await?;
        self.api::<Service>().delete_collection(&foreground, &listed).await?;
        let servers = self.api::<StatefulSet>().list(&listed).await?.items.len();
        let pgbouncers = self.api::<Deployment>().list(&listed).await?.items.len();
        if servers + pgbouncers > 0 {
            // Their deletion is watched.
            return Ok(Action::await_change());
        }
        let now = DeleteParams::default();
        let asked = |finalizer: &str| cluster.finalizers().iter().any(|present| present == finalizer);
        if asked(DELETE_PVC) {
            self.api::<PersistentVolumeClaim>().delete_collection(&now, &listed).await?;
            let of_users = ListParams::default().labels(&format!("{CLUSTER}={name},{ROLE}={ROLE_USER}"));
            self.api::<Secret>().delete_collection(&now, &of_users).await?;
        }
        if asked(DELETE_SSL) {
            for secret in objects::tls_secrets(&name) {
                match self.api::<Secret>().delete(&secret, &now).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
        }
        self.let_go_of(cluster, &[DELETE_PVC, DELETE_SSL]).await
    }

    /// Removes finalizers.
    async fn let_go_of(&self, cluster: &Cluster, done: &[&str]) -> Result<Action, kube::Error> {
        let mut finalizers = cluster.finalizers().to_vec();
        finalizers.retain(|finalizer| !done.contains(&finalizer.as_str()));
        if finalizers.len() < cluster.finalizers().len() {
            // With the resource version, so that a finalizer which another client adds or removes meanwhile is not
            // undone.
            let metadata = json!({"resourceVersion": cluster.resource_version(), "finalizers": finalizers});
            let patch = Patch::Merge(json!({"metadata": metadata}));
            self.clusters().patch(&cluster.name_any(), &PatchParams::default(), &patch).await?;
        }
        Ok(Action::await_change())
    }

    async fn apply<K>(&self, object: &K) -> Result<K, kube::Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let (api, name) = (self.api::<K>(), object.name_any());
        let key = format!("{} {}/{name}", K::kind(&()), self.namespace);
        let wanted = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        let applied = || self.ctx.applied.lock().unwrap_or_else(PoisonError::into_inner);
        let before = applied().get(&key).filter(|(before, _)| *before == wanted).map(|(_, stamp)| stamp.clone());
        if let Some(before) = before
            && let Some(found) = api.get_opt(&name).await?
            && stamp(&found) == before
        {
            return Ok(found);
        }
        let done = api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(object)).await?;
        applied().insert(key, (wanted, stamp(&done)));
        Ok(done)
    }

    pub(super) fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.ctx.client.clone(), &self.namespace)
    }

    pub(super) fn clusters(&self) -> Api<Cluster> {
        Api::namespaced_with(self.ctx.client.clone(), &self.namespace, &resource())
    }

    pub(super) fn restores(&self) -> Api<Restore> {
        Api::namespaced_with(self.ctx.client.clone(), &self.namespace, &restores::resource())
    }

    pub(super) fn backups(&self) -> Api<Backup> {
        Api::namespaced_with(self.ctx.client.clone(), &self.namespace, &backups::resource())
    }
}

fn stamp<K: Resource>(object: &K) -> Stamp {
    let meta = object.meta();
    let generation = meta.generation.map(|generation| generation.to_string());
    (meta.uid.clone(), generation.or_else(|| meta.resource_version.clone()))
}

fn is_ready_for_backup(cluster: &Cluster) -> bool {
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.any(|condition| condition.type_ == repo::READY_FOR_BACKUP && condition.status == "True")
}

/// The scheduled backups that were not made yet.
fn due(cluster: &Cluster, made: &[Backup]) -> Vec<Backup> {
    let name = cluster.name_any();
    let is_made = |prefix: &str| made.iter().any(|backup| backup.name_any().starts_with(prefix));
    let repos = cluster.spec.backups.repos().iter();
    let schedules = repos.flat_map(|repo| repo.scheduled().into_iter().map(move |kind| (repo.name.as_str(), kind)));
    let due = schedules.filter(|(repo, kind)| !is_made(&backups::scheduled_prefix(&name, repo, kind)));
    due.map(|(repo, kind)| backups::for_schedule(&name, repo, kind)).collect()
}

fn of_cluster(name: &str) -> ListParams {
    ListParams::default().labels(&format!("{CLUSTER}={name}"))
}

fn status(cluster: &Cluster, servers: &[StatefulSet], pgbouncer: Option<&Deployment>, hold: bool) -> Status {
    let name = cluster.name_any();
    let instances: Vec<_> = cluster
        .spec
        .instances
        .iter()
        .map(|set| {
            let of_set = servers.iter().filter(|server| server.labels().get(INSTANCE_SET) == Some(&set.name));
            let count = of_set.fold(Count::default(), |sum, server| sum + count_server(server));
            SetStatus { name: set.name.clone(), count }
        })
        .collect();
    let postgres = instances.iter().fold(Count::default(), |sum, set| sum + set.count);
    let pgbouncer = pgbouncer.map(count_pgbouncer).unwrap_or_default();
    let updated = servers.iter().filter(|server| server.labels().contains_key(INSTANCE_SET)).all(is_updated);
    let all_ready =
        updated && postgres.ready == postgres.size && pgbouncer.ready == pgbouncer.size && postgres.size > 0;
    let state = match (cluster.spec.pause, hold) {
        (true, _) if postgres.ready > 0 => State::Stopping,
        (true, _) => State::Paused,
        (false, false) if all_ready => State::Ready,
        (false, _) => State::Initializing,
    };
    let service = if cluster.spec.proxy.is_some() { "pgbouncer" } else { "primary" };
    Status {
        state: Some(state),
        host: Some(format!("{name}-{service}.{}.svc", cluster.namespace().unwrap_or_default())),
        postgres: Some(PostgresStatus { count: postgres, version: Some(cluster.spec.postgres_version), instances }),
        pgbouncer: Some(pgbouncer),
        pgbackrest: None,
        conditions: None,
        observed_generation: cluster.metadata.generation,
    }
}

/// Whether the pod is of the current revision, and not from before a restart.
fn is_updated(server: &StatefulSet) -> bool {
    let size = server.spec.as_ref().and_then(|spec| spec.replicas);
    let status = server.status.as_ref();
    status.is_some_and(|status| {
        status.observed_generation == server.metadata.generation && status.updated_replicas.or(Some(0)) == size
    })
}

fn count_server(server: &StatefulSet) -> Count {
    let size = server.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    let ready = server.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    Count { size, ready }
}

fn count_pgbouncer(pgbouncer: &Deployment) -> Count {
    let size = pgbouncer.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    let ready = pgbouncer.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    Count { size, ready }
}
