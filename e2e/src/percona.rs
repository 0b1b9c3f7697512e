//! A stand-in for the Percona operator. It changes a `PerconaPGCluster` as a client would see the real operator do it, in
//! the same order, runs no PostgreSQL, and misbehaves on request.
//!
//! The behaviour that it reproduces, and that clients easily get wrong:
//! - The users' Secrets come first and prove nothing: PostgreSQL does not run yet.
//! - They have no owner and outlive the cluster, like the volumes, unless the finalizer `percona.com/delete-pvc` is set.
//!   A cluster of the same name then finds the old password and the old volumes.
//! - Without images the operator creates nothing and reports this in an event only.
//! - PgBouncer is created only if its block is present, and zero of zero replicas count as ready.
//! - Enabling or disabling backups on a running cluster restarts PostgreSQL. Enabling them leads to an initial backup with
//!   its own `PerconaPGBackup`, and the cluster is `ReadyForBackup` only after it: a backup requested earlier fails, and
//!   stays failed.
//! - Disabling backups without the annotation that permits it stops all work on the cluster; with it, the volume is
//!   deleted with all backups on it.
//! - A `PerconaPGBackup` belongs to the cluster by name only: it has no owner, and outlives the cluster unless the cluster
//!   has the finalizer `percona.com/delete-backups`. With that finalizer, a cluster without a running pod is never deleted.
//! - A `PerconaPGBackup` writes `spec.backups.pgbackrest.manual` into the cluster, which stays there: a client that then
//!   stops applying `pgbackrest` leaves it without the `repos` that the schema requires.
//! - A failed backup Job gives no reason.
//! - A schedule creates `PerconaPGBackup`s, but no CronJob. Here it is due once.
//! - A `PerconaPGRestore` sets `spec.backups.pgbackrest.restore.enabled` in the cluster while it is in progress, and the
//!   cluster is not ready meanwhile. A second one waits and reports nothing.
//! - `dataSource` applies while there is no database, and the operator does not remove it afterwards.

mod backups;
mod instances;
mod objects;
mod reconcile;
mod repo;
mod restores;
mod spec;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

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
use reconcile::Ctx;
use restores::Restore;
use spec::Cluster;

/// Restores and backups before clusters: a client that finds the definition of clusters can rely on the others.
const CRDS: [&str; 3] = [
    include_str!("../percona/restore-crd.yaml"),
    include_str!("../percona/backup-crd.yaml"),
    include_str!("../percona/crd.yaml"),
];

/// How the stand-in misbehaves. The default is not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Does nothing at all, as if the operator did not watch the namespace: no status, no Secret, no finalizer removed.
    pub ignore: bool,
    /// Stays at `initializing` until [`PerconaStandIn::set_for`] changes this: the Secrets and Services exist and
    /// nothing runs.
    pub hold: bool,
    /// Omits this key from the users' Secrets.
    pub omit_key: Option<String>,
    /// PgBouncer's pods are never scheduled.
    pub pgbouncer_unready: bool,
    /// Leaves a `PerconaPGBackup` at `Running` until [`PerconaStandIn::set_for`] changes this, except the initial
    /// backup.
    pub hold_backups: bool,
    /// The Job of a `PerconaPGBackup` fails: `Failed` without a reason, as with the real operator. Spares the initial
    /// backup.
    pub fail_backups: bool,
    /// Leaves a `PerconaPGRestore` at `Running` until [`PerconaStandIn::set_for`] changes this.
    pub hold_restores: bool,
    /// A `PerconaPGRestore` fails, without a reason.
    pub fail_restores: bool,
}

/// The default knobs, and those of single clusters.
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

/// Runs on its own thread until it is dropped.
#[derive(Debug)]
pub struct PerconaStandIn {
    settings: watch::Sender<Settings>,
    config: Config,
    service: Mutex<Background>,
}

impl PerconaStandIn {
    /// Handles all clusters of all namespaces. The definitions may be installed later.
    pub fn start(config: Config) -> Result<Self> {
        let (settings, changes) = watch::channel(Settings::default());
        let service = Mutex::new(service(&config, changes)?);
        Ok(Self { settings, config, service })
    }

    /// Starts it anew, as Kubernetes does with an operator that has lost its Lease during an outage.
    pub fn restart(&self) -> Result<()> {
        let anew = service(&self.config, self.settings.subscribe())?;
        *self.service.lock().unwrap_or_else(PoisonError::into_inner) = anew;
        Ok(())
    }

    /// Creates the definitions of `PerconaPGRestore`, `PerconaPGBackup` and `PerconaPGCluster` if necessary, and waits
    /// until clusters can be created.
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

    /// Deletes the definitions and with them all clusters, backups and restores, and waits until they are gone. If any
    /// has a finalizer, this needs a stand-in that does not ignore it.
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

    /// Sets the knobs of all clusters without knobs of their own.
    pub fn set(&self, knobs: Knobs) {
        self.settings.send_modify(|settings| settings.all = knobs);
    }

    /// Sets the knobs of one cluster, overriding [`Self::set`].
    pub fn set_for(&self, namespace: &str, cluster: &str, knobs: Knobs) {
        self.settings.send_modify(|settings| {
            settings.one.insert((namespace.to_owned(), cluster.to_owned()), knobs);
        });
    }
}

fn service(config: &Config, settings: watch::Receiver<Settings>) -> Result<Background> {
    let config = config.clone();
    Background::spawn("percona", move || run(config, settings))
}

async fn run(config: Config, settings: watch::Receiver<Settings>) {
    // Created here, since a client belongs to the runtime on which it was created.
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
    let ctx = Arc::new(Ctx::new(client, recorder, settings));
    // The controllers retry failed reconciles and reopen broken watches.
    let for_clusters = for_clusters.run(reconcile::reconcile, reconcile::retry, ctx.clone()).for_each(|_| async {});
    let for_backups = for_backups.run(backups::reconcile, reconcile::retry, ctx.clone()).for_each(|_| async {});
    let for_restores = for_restores.run(restores::reconcile, reconcile::retry, ctx).for_each(|_| async {});
    futures::join!(for_clusters, for_backups, for_restores);
}
