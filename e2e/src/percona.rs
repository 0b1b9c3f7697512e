//! A stand-in for the Percona operator. It does to a `PerconaPGCluster` what a client can see the real one do, in the
//! same order, runs no PostgreSQL, and misbehaves when told to.
//!
//! What it keeps to, and where a client is easily wrong about it:
//! - The users' Secrets come first and prove nothing: PostgreSQL does not run yet.
//! - They have no owner and outlive the cluster, as the volumes do, unless the finalizer `percona.com/delete-pvc` is set.
//!   A cluster of the same name then finds the old password and the old volumes.
//! - Without images it makes nothing and says so in an event only.
//! - PgBouncer is made only where its block is present, and zero of zero replicas count as ready.

mod instances;
mod objects;
mod reconcile;
mod spec;

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{Controller, watcher};
use kube::{Client, Config, ResourceExt as _};
use tokio::sync::watch;

use crate::background::Background;
use reconcile::World;
use spec::Cluster;

const CRD: &str = include_str!("../percona/crd.yaml");

/// How the stand-in misbehaves. By default it does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Does nothing at all, as if the operator did not watch the namespace: no status, no Secret, no finalizer taken off.
    pub ignore: bool,
    /// Stays at `initializing` until [`PerconaStandIn::release`]: the Secrets and Services are there and nothing runs.
    pub hold: bool,
    /// Leaves this key out of the users' Secrets.
    pub omit_key: Option<String>,
    /// PgBouncer's pods are never scheduled.
    pub pgbouncer_unready: bool,
}

/// The knobs of all clusters, and those of single ones by name.
#[derive(Clone, Debug, Default)]
struct Settings {
    all: Knobs,
    one: BTreeMap<String, Knobs>,
}

impl Settings {
    fn of(&self, cluster: &str) -> &Knobs {
        self.one.get(cluster).unwrap_or(&self.all)
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

    /// Creates the definition of `PerconaPGCluster` if need be, and waits until clusters can be created.
    pub async fn install_crd(client: &Client) -> Result<()> {
        let crd: CustomResourceDefinition = serde_yaml::from_str(CRD)?;
        let name = crd.name_any();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let params = PatchParams::apply(reconcile::MANAGER).force();
        api.patch(&name, &params, &Patch::Apply(crd)).await.context("cannot apply the definition")?;
        await_condition(api, &name, conditions::is_crd_established()).await?;
        Ok(())
    }

    /// Deletes the definition and with it all clusters, and waits until they are gone. Clusters that have a finalizer
    /// need a stand-in for that, and one that does not ignore them.
    pub async fn remove_crd(client: &Client) -> Result<()> {
        let crd: CustomResourceDefinition = serde_yaml::from_str(CRD)?;
        let name = crd.name_any();
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        if let Some(uid) = api.get_opt(&name).await?.and_then(|crd| crd.uid()) {
            api.delete(&name, &DeleteParams::default()).await?;
            await_condition(api, &name, conditions::is_deleted(&uid)).await?;
        }
        Ok(())
    }

    /// Misbehaves in this way to all clusters that have no knobs of their own.
    pub fn set(&self, knobs: Knobs) {
        self.settings.send_modify(|settings| settings.all = knobs);
    }

    /// Misbehaves in this way to the clusters of this name, whatever holds for all.
    pub fn set_for(&self, cluster: &str, knobs: Knobs) {
        self.settings.send_modify(|settings| {
            settings.one.insert(cluster.to_owned(), knobs);
        });
    }

    /// Lets every cluster go on that was held.
    pub fn release(&self) {
        self.settings.send_modify(|settings| {
            settings.all.hold = false;
            settings.one.values_mut().for_each(|knobs| knobs.hold = false);
        });
    }
}

async fn run(config: Config, settings: watch::Receiver<Settings>) {
    // Made here because a client belongs to the runtime that it is made on.
    let client = Client::try_from(config).expect("the configuration makes a client");
    let reporter = Reporter { controller: "postgrescluster-controller".to_owned(), instance: None };
    let recorder = Recorder::new(client.clone(), reporter);
    let changes = stream::unfold(settings.clone(), |mut settings| async move {
        settings.changed().await.ok().map(|()| ((), settings))
    });
    let labelled = watcher::Config::default().labels(objects::CLUSTER);
    let clusters: Api<Cluster> = Api::all_with(client.clone(), &spec::resource());
    Controller::new_with(clusters, watcher::Config::default(), spec::resource())
        .owns(Api::<StatefulSet>::all(client.clone()), labelled.clone())
        .owns(Api::<Deployment>::all(client.clone()), labelled)
        .reconcile_all_on(changes)
        .run(reconcile::reconcile, reconcile::retry, Arc::new(World { client, recorder, settings }))
        // What failed is tried again, and a watch that broke is opened again.
        .for_each(|_| async {})
        .await;
}
