//! The operator as a process: what is started, in which order, and how it ends.
//!
//! Health and the HTTP API are served by every replica; the controllers run on the one that leads.

use std::{fmt::Display, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use kube::{
    Client,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::events::{Recorder, Reporter},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, serve::Server},
    clientapp,
    config::{Config, RunArgs, helm_settings},
    health::{self, Readiness},
    helm::{Access, ChartCache, Helm, HelmApi},
    holder::Holder,
    lease::{self, End, Lease},
    metrics::Metrics,
    postgres_writer, postgresql, shutdown,
};

/// How long to wait before looking for a usable helm again.
const HELM_RECHECK: Duration = Duration::from_secs(10);

/// An answer that takes longer than this does not come any more.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that is silent for longer than this is cut off: the API server sends bookmarks about every minute, and ends
/// each watch after five.
const WATCH_SILENCE: Duration = Duration::from_secs(300);

/// Runs until a signal, or until the lead is lost.
///
/// # Errors
/// When a setting cannot be used, or something that it needs from its surroundings is not there.
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
            let requests = client(&kube_config, REQUEST_TIMEOUT)?;
            let parts = api::Parts {
                auth: server.auth(requests.clone()),
                client: requests,
                watch_client: client(&kube_config, WATCH_SILENCE)?,
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

/// Waits for a helm that can be used, then for the lease, then controls.
async fn lead(
    args: &RunArgs,
    (config, database): (Arc<Config>, Option<postgres_writer::Settings>),
    metrics: Arc<Metrics>,
    (kube_config, access): (kube::Config, Access),
    ready: &watch::Sender<Readiness>,
    stop: &CancellationToken,
) -> Result<()> {
    let helm: Arc<dyn HelmApi> = Arc::new(Helm::new(helm_settings(args), access)?);
    if !usable_helm(helm.as_ref(), ready, stop).await {
        return Ok(());
    }
    let namespace = args.lease_namespace.clone().unwrap_or_else(|| kube_config.default_namespace.clone());
    let requests = client(&kube_config, REQUEST_TIMEOUT)?;
    let watch_client = client(&kube_config, WATCH_SILENCE)?;
    let holder = Holder::current();
    let lease = Lease::new(client(&kube_config, lease::REQUEST_TIMEOUT)?, &namespace, &holder.label())
        .await
        .with_context(|| format!("find or make Lease {namespace}/{}", lease::NAME))?;
    let _ = ready.send_replace(Ok(()));
    tracing::info!(%namespace, "waiting for the lease");
    let Some(lead) = lease.acquire(stop).await else {
        return Ok(());
    };
    tracing::info!("leading");
    metrics.set_leader(true);

    // Everything that acts stops with the lead, and helm with it.
    let leading = stop.child_token();
    let cache = args.chart_cache.clone().map_or_else(default_chart_cache, Ok)?;
    let charts =
        ChartCache::new(helm.clone(), args.chart_repository.clone(), args.chart.chart.clone(), cache, leading.clone());
    let reporter = Reporter { controller: "clientapp-operator".to_owned(), instance: Some(holder.label()) };
    let recorder = Recorder::new(requests.clone(), reporter);
    let writers = database.map(|settings| postgres_writer::Parts {
        client: requests.clone(),
        watch_client: watch_client.clone(),
        settings,
        namespace: namespace.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        lead: lead.clone(),
    });
    let postgresqls = postgresql::Parts {
        client: requests.clone(),
        watch_client: watch_client.clone(),
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        lead: lead.clone(),
    };
    let parts = clientapp::Parts {
        recorder,
        client: requests,
        watch_client,
        config,
        helm,
        charts: Arc::new(charts),
        metrics: metrics.clone(),
        holder,
        lead: lead.clone(),
    };
    let writers = writers.map(|parts| postgres_writer::run(parts, leading.clone()));
    let apps =
        futures::future::join(clientapp::run(parts, leading.clone()), postgresql::run(postgresqls, leading.clone()));
    let mut controller = tokio::spawn(async move {
        match writers {
            None => _ = apps.await,
            Some(writers) => _ = tokio::join!(apps, writers),
        }
    });
    let end = tokio::select! {
        end = lease.keep(stop) => end,
        ended = &mut controller => {
            ended.context("the controller ended")?;
            bail!("the controller ended by itself");
        }
    };
    lead.end();
    leading.cancel();
    metrics.set_leader(false);
    // The lease is released only after the last helm has ended: there are never two of them.
    controller.await.context("the controller ended")?;
    match end {
        End::Stopped => {
            lease.release().await;
            tracing::info!("stopped");
            Ok(())
        }
        End::Lost => bail!("the lease {namespace}/{} is lost; ending, so that another operator leads", lease::NAME),
    }
}

/// A client that gives up on what is silent for longer than this.
fn client(config: &kube::Config, silence: Duration) -> Result<Client> {
    let mut config = config.clone();
    config.read_timeout = Some(silence);
    config.connect_timeout = Some(silence.min(REQUEST_TIMEOUT));
    Ok(Client::try_from(config)?)
}

/// The user's own cache: a directory that others can write to would let them choose what is installed.
fn default_chart_cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    let cache = cache.filter(|cache| cache.is_absolute()).or_else(home);
    let cache = cache.context("there is no home directory to keep charts in: give one with --chart-cache")?;
    Ok(cache.join("clientapp-operator").join("charts"))
}

/// Waits until helm can be used, and says in `/readyz` why it cannot. Returns `false` when `stop` came first.
async fn usable_helm(helm: &dyn HelmApi, ready: &watch::Sender<Readiness>, stop: &CancellationToken) -> bool {
    loop {
        match helm.check().await {
            Ok(version) => {
                tracing::info!(version = %version.0, "helm");
                return true;
            }
            Err(error) => {
                tracing::error!(reason = "HelmUnavailable", "{error}");
                let _ = ready.send_replace(Err(format!("HelmUnavailable: {error}")));
            }
        }
        tokio::select! {
            () = stop.cancelled() => return false,
            () = tokio::time::sleep(HELM_RECHECK) => {}
        }
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
