//! The operator as a process: what is started, in which order, and how it ends.
//!
//! Health and the HTTP API are served by every replica; the controllers run on the one that leads.

use std::{fmt::Display, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use kube::{
    Api, Client,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::events::{Recorder, Reporter},
};
use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, serve::Server},
    clientapp,
    config::{Config, GRACE, RunArgs, helm_settings},
    crd::{ClientApp, Guard},
    health::{self, Readiness},
    helm::{Access, ChartCache, ChartName, ChartSource, Helm},
    lease::{Lead, Lease},
    lock_owner::LockOwner,
    metrics::Metrics,
    postgres_writer, postgresql,
    runtime::{client, controller::Parts, error::api_sentence},
    shutdown,
};

/// How long to wait before looking for a usable helm again.
const HELM_RECHECK: Duration = Duration::from_secs(10);
/// The same for the Lease.
const LEASE_RECHECK: Duration = Duration::from_secs(1);
/// The same for the kind ClientApp.
const SERVED_RECHECK: Duration = Duration::from_secs(2);

pub async fn run(args: &RunArgs) -> Result<()> {
    let config = Arc::new(Config::for_run(args)?);
    let database = postgres_writer::Settings::from_env()?;
    let stop = shutdown::on_signals()?;
    let metrics = Arc::new(Metrics::default());
    let (ready, readiness) = watch::channel::<Readiness>(Err("Starting: looking for helm".to_owned()));
    let listener =
        health::bind(args.health_listen).await.with_context(|| format!("--health-listen {}", args.health_listen))?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
    let serving = tokio::spawn(health::serve(listener, readiness, metrics.clone(), stop.clone()));

    let server = Server::bind(&args.api).await?;

    let (kube_config, access) = cluster(args).await?;
    let api = match server {
        Some(server) => {
            let requests = client::requests(&kube_config)?;
            let parts = api::Parts {
                auth: server.auth(requests.clone()),
                client: requests,
                watch_client: client::watches(&kube_config)?,
                config: config.clone(),
                namespace: kube_config.default_namespace.clone(),
            };
            Some(tokio::spawn(server.serve(parts, stop.clone())))
        }
        None => None,
    };
    let led = lead(args, (config, database), metrics, (kube_config, access), &ready, &stop).await;
    stop.cancel();
    if let Some(api) = api {
        api.await.context("the API ended")?;
    }
    serving.await.context("the health server ended")??;
    led
}

/// Waits for a helm that can be used, then for the lease, then controls; and stands by again when the lead is lost.
async fn lead(
    args: &RunArgs,
    (config, database): (Arc<Config>, Option<postgres_writer::Settings>),
    metrics: Arc<Metrics>,
    (kube_config, access): (kube::Config, Access),
    ready: &watch::Sender<Readiness>,
    stop: &CancellationToken,
) -> Result<()> {
    let helm = Helm::new(helm_settings(args), access)?;
    let namespace = args.lease_namespace.clone().unwrap_or_else(|| kube_config.default_namespace.clone());
    let requests = client::requests(&kube_config)?;
    let holder = LockOwner::current();
    let lease = Lease::new(client::requests(&kube_config)?, &namespace, holder.label());
    let usable = async {
        usable_helm(&helm, ready).await;
        reachable(&lease, ready).await;
        served(&requests, ready).await;
    };
    if stop.run_until_cancelled(usable).await.is_none() {
        return Ok(());
    }
    let _ = ready.send_replace(Ok(()));
    let reporter = Reporter { controller: "clientapp-operator".to_owned(), instance: Some(holder.label()) };
    let controllers = Controllers {
        charts: args.chart_cache.clone().map_or_else(default_chart_cache, Ok)?,
        chart: args.chart.chart.clone(),
        repository: args.chart_repository.clone(),
        recorder: Recorder::new(requests.clone(), reporter),
        requests,
        watches: client::watches(&kube_config)?,
        config,
        helm,
        database,
        metrics,
        holder,
    };
    loop {
        tracing::info!(%lease, "waiting for the lease");
        let Some(mut held) = stop.run_until_cancelled(lease.acquire()).await else {
            return Ok(());
        };
        tracing::info!("leading");
        controllers.metrics.leads(held.lead());
        // Everything that acts stops with the lead, and helm with it.
        let leading = stop.child_token();
        let mut running = tokio::spawn(controllers.clone().run(held.lead(), leading.clone()));
        let lost = tokio::select! {
            // In this order: the stop ends the controllers, too, which is no end by themselves.
            biased;
            () = stop.cancelled() => None,
            lost = lease.keep(&mut held) => Some(lost),
            ended = &mut running => {
                ended.context("the controllers ended")?;
                bail!("the controllers ended by themselves");
            }
        };
        leading.cancel();
        let lost = match lost {
            Some(lost) => Some(lost),
            // The lease is kept until the last helm has ended, and only then released: there are never two of them.
            None => tokio::select! {
                lost = lease.keep(&mut held) => Some(lost),
                ended = &mut running => {
                    ended.context("the controllers ended")?;
                    None
                }
            },
        };
        let Some(lost) = lost else {
            lease.release(held).await;
            tracing::info!("stopped");
            return Ok(());
        };
        tracing::error!(%lease, reason = %lost, "the lease is lost: ending all that acts");
        // Another operator leads soon after. What is still at it then waits for an API server that does not answer.
        if timeout(GRACE, &mut running).await.is_err() {
            running.abort();
            let _ = running.await;
        }
    }
}

/// What the controllers are made of, each time this operator comes to lead.
#[derive(Clone)]
struct Controllers {
    config: Arc<Config>,
    helm: Helm,
    charts: PathBuf,
    chart: ChartName,
    repository: ChartSource,
    database: Option<postgres_writer::Settings>,
    requests: Client,
    watches: Client,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    holder: LockOwner,
}

impl Controllers {
    /// Controls until `leading` ends, and returns when the last helm has ended.
    async fn run(self, lead: Lead, leading: CancellationToken) {
        let Controllers { config, helm, charts, chart, repository, database, requests, watches, .. } = self;
        let Controllers { recorder, metrics, holder, .. } = self;
        let charts = ChartCache::new(Arc::new(helm.clone()), repository, chart, charts, leading.clone());
        let parts = Parts { client: requests, watch_client: watches, recorder, metrics, lead };
        let tools = clientapp::Tools { config, helm, charts: Arc::new(charts), holder };
        let writers = postgres_writer::run(parts.clone(), database, leading.clone());
        let apps = clientapp::run(parts.clone(), tools, leading.clone());
        let postgresqls = postgresql::run(parts, leading.clone());
        tokio::join!(apps, postgresqls, writers);
    }
}

/// The user's own cache: a directory that others can write to would let them choose what is installed.
fn default_chart_cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    let cache = cache.filter(|cache| cache.is_absolute()).or_else(home);
    let cache = cache.context("there is no home directory to keep charts in: give one with --chart-cache")?;
    Ok(cache.join("clientapp-operator").join("charts"))
}

/// Waits until helm can be used, and says in `/readyz` why it cannot.
async fn usable_helm(helm: &Helm, ready: &watch::Sender<Readiness>) {
    loop {
        match helm.check().await {
            Ok(version) => {
                tracing::info!(version = %version.0, "helm");
                return;
            }
            Err(error) => {
                tracing::error!(reason = "HelmUnavailable", "{error}");
                let _ = ready.send_replace(Err(format!("HelmUnavailable: {error}")));
            }
        }
        tokio::time::sleep(HELM_RECHECK).await;
    }
}

/// Waits until the Lease can be asked for, and says in `/readyz` why it cannot.
async fn reachable(lease: &Lease, ready: &watch::Sender<Readiness>) {
    while let Err(error) = lease.look().await {
        tracing::error!(reason = "LeaseUnavailable", "{error}");
        let _ = ready.send_replace(Err(format!("LeaseUnavailable: {error}")));
        tokio::time::sleep(LEASE_RECHECK).await;
    }
}

/// Waits until ClientApps can be listed, and says in `/readyz` why they cannot.
async fn served(client: &Client, ready: &watch::Sender<Readiness>) {
    let apps: Api<Guard<ClientApp>> = Api::all(client.clone());
    while let Err(error) = apps.list_metadata(&ListParams::default().limit(1)).await {
        let problem = match &error {
            kube::Error::Api(status) if status.code == 404 => {
                "KindMissing: this cluster does not know the kind ClientApp: apply crds/".to_owned()
            }
            error => format!("ClientAppsUnavailable: {}", api_sentence(error)),
        };
        tracing::error!("{problem}");
        let _ = ready.send_replace(Err(problem));
        tokio::time::sleep(SERVED_RECHECK).await;
    }
}

/// The operator's access to the cluster, and the same for helm.
async fn cluster(args: &RunArgs) -> Result<(kube::Config, Access)> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    if let Some(path) = &args.kubeconfig {
        let file = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
        let config = kube::Config::from_custom_kubeconfig(file, &options)
            .await
            .with_context(|| chosen(path.display(), args.context.as_deref()))?;
        return Ok((config, Access::Kubeconfig { path: Some(path.clone()), context: args.context.clone() }));
    }
    let kubeconfig = Access::Kubeconfig { path: None, context: args.context.clone() };
    if args.context.is_some() {
        let config = kube::Config::from_kubeconfig(&options)
            .await
            .with_context(|| chosen("$KUBECONFIG or ~/.kube/config", args.context.as_deref()))?;
        return Ok((config, kubeconfig));
    }
    match kube::Config::incluster() {
        Ok(config) => Ok((config, Access::InCluster)),
        Err(in_cluster) => match kube::Config::from_kubeconfig(&options).await {
            Ok(config) => Ok((config, kubeconfig)),
            Err(error) => {
                tracing::debug!(%in_cluster, "not in a pod");
                Err(error)
                    .context("no cluster: neither a pod's service account nor a kubeconfig (--kubeconfig, $KUBECONFIG)")
            }
        },
    }
}

/// What was asked for, for an error about it.
fn chosen(kubeconfig: impl Display, context: Option<&str>) -> String {
    match context {
        None => format!("--kubeconfig {kubeconfig}"),
        Some(context) => format!("--context {context} in {kubeconfig}"),
    }
}
