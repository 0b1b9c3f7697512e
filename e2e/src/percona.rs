//! A stand-in for the Percona operator. It does to a `PerconaPGCluster` what a client can see the real one do, in the
//! same order, runs no PostgreSQL, and misbehaves when told to.
//!
//! What it keeps to, and where a client is easily wrong about it:
//! - The users' Secrets come first and prove nothing: PostgreSQL does not run yet.
//! - They have no owner and outlive the cluster, as the volumes do, unless the finalizer `percona.com/delete-pvc` is set.
//!   A cluster of the same name then finds the old password and the old volumes.
//! - Without images it makes nothing and says so in an event only.
//! - PgBouncer is made only where its block is present, and zero of zero replicas count as ready.
//! - Backups that are enabled, or disabled, on a cluster that runs restart PostgreSQL. Enabled ones bring a first backup
//!   with a `PerconaPGBackup` of its own, and the cluster says `ReadyForBackup` only after it: one that is asked for
//!   earlier fails, and stays failed.
//! - Backups that are disabled without an annotation which gives leave stop everything that is done for the cluster; with
//!   it, they take the volume along with all backups on it.
//! - A `PerconaPGBackup` is the cluster's in name only: it has no owner, and outlives the cluster unless the cluster has
//!   the finalizer `percona.com/delete-backups`, and with that a cluster none of whose pods runs is never gone. It writes `spec.backups.pgbackrest.manual` into the cluster, which
//!   stays there: who then no longer applies `pgbackrest` leaves it without the `repos` that the schema requires.
//! - There is no word about why a backup's Job has failed.
//! - A schedule makes `PerconaPGBackup`s, and no CronJob. Here its time comes once.
//! - A `PerconaPGRestore` sets `spec.backups.pgbackrest.restore.enabled` in the cluster for as long as it is at work, and
//!   the cluster is not ready meanwhile. A second one waits without a word.
//! - `dataSource` counts while there is no database, and the operator does not take it off afterwards.

mod backups;
mod instances;
mod objects;
mod reconcile;
mod repo;
mod restores;
mod spec;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, WatchStreamExt as _, watcher};
use kube::{Client, Config, ResourceExt as _};
use tokio::sync::watch;

use crate::background::Background;
use backups::Backup;
use reconcile::World;
use restores::Restore;
use spec::Cluster;

/// Restores and backups, and then clusters: who finds the latter can rely on the former.
const CRDS: [&str; 3] = [
    include_str!("../percona/restore-crd.yaml"),
    include_str!("../percona/backup-crd.yaml"),
    include_str!("../percona/crd.yaml"),
];

/// How the stand-in misbehaves. By default it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Does nothing at all, as if the operator did not watch the namespace: no status, no Secret, no finalizer taken off.
    pub ignore: bool,
    /// Stays at `initializing` until [`PerconaStandIn::set_for`] says otherwise: the Secrets and Services are there and nothing runs.
    pub hold: bool,
    /// Leaves this key out of the users' Secrets.
    pub omit_key: Option<String>,
    /// PgBouncer's pods are never scheduled.
    pub pgbouncer_unready: bool,
    /// Leaves a `PerconaPGBackup` at `Running` until [`PerconaStandIn::set_for`] says otherwise. Not the first backup of all.
    pub hold_backups: bool,
    /// The Job of a `PerconaPGBackup` fails: `Failed` with no word about why, as there. Not that of the first of all.
    pub fail_backups: bool,
    /// Leaves a `PerconaPGRestore` at `Running` until [`PerconaStandIn::set_for`] says otherwise.
    pub hold_restores: bool,
    /// A `PerconaPGRestore` fails, with no word about why.
    pub fail_restores: bool,
}

/// The knobs of all clusters, and those of single ones by name.
#[derive(Clone, Debug, Default)]
struct Settings {
    all: Knobs,
    /// By namespace and name.
    one: BTreeMap<(String, String), Knobs>,
}

impl Settings {
    fn of(&self, namespace: &str, cluster: &str) -> &Knobs {
        self.one.get(&(namespace.to_owned(), cluster.to_owned())).unwrap_or(&self.all)
    }
}

/// The running stand-in. It works, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct PerconaStandIn {
    settings: watch::Sender<Settings>,
    _service: Background,
}

impl PerconaStandIn {
    /// Starts to look after all clusters of all namespaces. The definition may come later.
    pub fn start(config: Config) -> Result<Self> {
        let (settings, changes) = watch::channel(Settings::default());
        let service = Background::spawn("percona", move || run(config, changes))?;
        Ok(Self { settings, _service: service })
    }

    /// Creates the definitions of `PerconaPGRestore`, `PerconaPGBackup` and `PerconaPGCluster` if need be, and waits until clusters can be
    /// created.
    pub async fn install_crd(client: &Client) -> Result<()> {
        for crd in CRDS {
            let crd: CustomResourceDefinition = serde_yaml::from_str(crd)?;
            let name = crd.name_any();
            let api: Api<CustomResourceDefinition> = Api::all(client.clone());
            let params = PatchParams::apply(reconcile::MANAGER).force();
            api.patch(&name, &params, &Patch::Apply(crd)).await.context("cannot apply a definition")?;
            await_condition(api, &name, conditions::is_crd_established()).await?;
        }
        Ok(())
    }

    /// Deletes the definitions and with them all clusters, backups and restores, and waits until they are gone. Those that have a
    /// finalizer need a stand-in for that, and one that does not ignore them.
    pub async fn remove_crd(client: &Client) -> Result<()> {
        for crd in CRDS.into_iter().rev() {
            let crd: CustomResourceDefinition = serde_yaml::from_str(crd)?;
            let name = crd.name_any();
            let api: Api<CustomResourceDefinition> = Api::all(client.clone());
            if let Some(uid) = api.get_opt(&name).await?.and_then(|crd| crd.uid()) {
                api.delete(&name, &DeleteParams::default()).await?;
                await_condition(api, &name, conditions::is_deleted(&uid)).await?;
            }
        }
        Ok(())
    }

    /// Misbehaves in this way to all clusters that have no knobs of their own.
    pub fn set(&self, knobs: Knobs) {
        self.settings.send_modify(|settings| settings.all = knobs);
    }

    /// Misbehaves in this way to one cluster, whatever holds for all.
    pub fn set_for(&self, namespace: &str, cluster: &str, knobs: Knobs) {
        self.settings.send_modify(|settings| {
            settings.one.insert((namespace.to_owned(), cluster.to_owned()), knobs);
        });
    }
}

async fn run(config: Config, settings: watch::Receiver<Settings>) {
    // Made here because a client belongs to the runtime that it is made on.
    let client = Client::try_from(config).expect("the configuration makes a client");
    let reporter = Reporter { controller: "postgrescluster-controller".to_owned(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    let changes = |settings: &watch::Receiver<Settings>| {
        stream::unfold(settings.clone(), |mut settings| async move {
            settings.changed().await.ok().map(|()| ((), settings))
        })
    };
    let labelled = watcher::Config::default().labels(objects::CLUSTER);
    let clusters: Api<Cluster> = Api::all_with(client.clone(), &spec::resource());
    let backups: Api<Backup> = Api::all_with(client.clone(), &backups::resource());
    let restores: Api<Restore> = Api::all_with(client.clone(), &restores::resource());
    let jobs: Api<Job> = Api::all(client.clone());
    let each_cluster = watcher(clusters.clone(), watcher::Config::default()).default_backoff().touched_objects();
    let any_cluster = watcher(clusters.clone(), watcher::Config::default()).default_backoff().touched_objects();
    let cluster_of = |job: Job| {
        let cluster = job.labels().get(objects::CLUSTER).cloned().unwrap_or_default();
        Some(ObjectRef::new_with(&cluster, spec::resource()).within(&job.namespace().unwrap_or_default()))
    };
    let for_clusters = Controller::new_with(clusters, watcher::Config::default(), spec::resource())
        .owns(Api::<StatefulSet>::all(client.clone()), labelled.clone())
        .owns(Api::<Deployment>::all(client.clone()), labelled.clone())
        .watches(jobs.clone(), labelled, cluster_of)
        .reconcile_all_on(changes(&settings));
    let for_backups = Controller::new_with(backups, watcher::Config::default(), backups::resource())
        .owns(jobs, watcher::Config::default().labels(repo::BACKUP))
        .reconcile_all_on(stream::select(changes(&settings), any_cluster.map(|_| ())));
    let for_restores = Controller::new_with(restores, watcher::Config::default(), restores::resource())
        .reconcile_all_on(stream::select(changes(&settings), each_cluster.map(|_| ())));
    let world = Arc::new(World::new(client, recorder, settings));
    // What failed is tried again, and a watch that broke is opened again.
    let for_clusters = for_clusters.run(reconcile::reconcile, reconcile::retry, world.clone()).for_each(|_| async {});
    let for_backups = for_backups.run(backups::reconcile, reconcile::retry, world.clone()).for_each(|_| async {});
    let for_restores = for_restores.run(restores::reconcile, reconcile::retry, world).for_each(|_| async {});
    futures::join!(for_clusters, for_backups, for_restores);
}
