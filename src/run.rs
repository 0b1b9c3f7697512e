//! The operator process: what it starts, in which order, and how it stops.
//!
//! Every replica serves health and the HTTP API; only the leader runs the controllers.

use std::{fmt::Debug, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::api::{apps::v1::ControllerRevision, core::v1::Pod};
use kube::{
    Api, Client, Resource as _,
    api::ListParams,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use serde::de::DeserializeOwned;
use tokio::{runtime::Handle, sync::watch, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

use crate::{
    api::{self, serve::Server},
    backup::Backups,
    clientapp,
    config::{Config, GRACE, RunArgs, helm_settings},
    crd::{self, ClientApp, Guard, Reason},
    deletion::brake::DeletionBrake,
    health::{self, Readiness},
    helm::{ChartCache, ChartName, ChartSource, Helm, cautions, gateway::Gateway},
    identity,
    leadership::Leadership,
    lease::{Held, Lease},
    listen,
    metrics::Metrics,
    platform::{
        client,
        controller::{ControllerContext, Objects},
        error::api_sentence,
        events::Recorder,
        operator_image::OperatorImage,
        run_once,
    },
    postgres_writer, postgresql,
    profile::{self, Profiles},
    restore::Restores,
    secrets::Secrets,
    shutdown,
};

/// How long the controllers may take to stop. helm gets its own time to record its result within it, and the kubelet waits for longer
/// (`manifests/deployment.yaml`).
const STOPPED_WITHIN: Duration = GRACE.saturating_mul(2);

/// Runs until a signal ends it, on this runtime. The Lease is kept by the thread of another one.
pub(crate) async fn run(args: &RunArgs, lease_runtime: &Handle) -> Result<()> {
    let config = Arc::new(Config::for_run(args)?);
    let database = postgres_writer::Settings::from_env()?;
    let stop = shutdown::on_signals()?;
    let metrics = Arc::new(Metrics::default());
    let (ready, readiness) = watch::channel::<Readiness>(Err("Starting: checking helm".to_owned()));
    let address = args.health_listen;
    let listener = listen::bind(address).await.with_context(|| format!("--health-listen {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "serving /healthz, /readyz and /metrics");
    let serving = tokio::spawn(health::serve(listener, readiness, metrics.clone(), stop.clone()));

    let server = Server::bind(&args.api).await?;

    let kube_config = cluster(args).await?;
    let api = match server {
        Some(server) => {
            let requests = client::requests(&kube_config)?;
            let parts = api::ApiParts {
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
    let led = lead(args, (config, database), metrics, (kube_config, lease_runtime), &ready, &stop).await;
    stop.cancel();
    if let Some(api) = api {
        api.await.context("the API ended")?;
    }
    serving.await.context("the health server ended")??;
    led
}

/// Waits for a usable helm, then for the lease, then runs the controllers; returns to standby when the lead is lost.
async fn lead(
    args: &RunArgs,
    (config, database): (Arc<Config>, Option<postgres_writer::Settings>),
    metrics: Arc<Metrics>,
    (kube_config, lease_runtime): (kube::Config, &Handle),
    ready: &watch::Sender<Readiness>,
    stop: &CancellationToken,
) -> Result<()> {
    let helm = Helm::new(helm_settings(args))?;
    let namespace = args.lease_namespace.clone().unwrap_or_else(|| kube_config.default_namespace.clone());
    let requests = client::requests(&kube_config)?;
    let holder = identity::identity();
    let duration = Duration::from_secs(args.lease_duration);
    let lease = Lease::new(|| client::requests(&kube_config), lease_runtime, &namespace, holder.clone(), duration)?;
    let usable = usable(args, &helm, &lease, (&requests, &kube_config.default_namespace), ready);
    let Some(image) = stop.run_until_cancelled(usable).await.transpose()? else {
        return Ok(());
    };
    let _ = ready.send_replace(Ok(helm.program().to_owned()));
    let forwarding = client::forwarding(&kube_config)?;
    let controllers = Controllers {
        config,
        database,
        chart: (args.install.chart_repository.clone(), args.install.chart.chart.clone()),
        chart_cache: args.chart_cache.clone().map_or_else(default_chart_cache, Ok)?,
        helm,
        metrics: metrics.clone(),
        requests,
        watches: client::watches(&kube_config)?,
        holder,
        namespace,
        image: image.map(|name| Arc::new(OperatorImage { name, proxy: args.proxy() })),
        deletion_brake: args.deletion_brake,
    };
    loop {
        tracing::info!(%lease, "waiting for the lease");
        let Some(held) = stop.run_until_cancelled(lease.acquire()).await else {
            return Ok(());
        };
        tracing::info!("leading");
        metrics.leads(held.lead.clone());
        // Controllers and helm stop with the lead.
        let leading = stop.child_token();
        let gateway = Gateway::open(forwarding.clone(), held.lead.clone())
            .await
            .context("cannot open a port for helm's gateway")?;
        let mut running = controllers.start(held.lead.clone(), gateway, leading.clone());
        let Some(lost) = until_lost(&lease, &held, &mut running, leading, stop).await? else {
            lease.release(held).await;
            tracing::info!("stopped");
            return Ok(());
        };
        tracing::error!(%lease, reason = %lost, "the lease is lost: stopping the controllers and helm");
        // Another operator will lead soon. Whatever is still running waits for an API server that does not respond.
        if timeout(GRACE, &mut running).await.is_err() {
            running.abort();
            let _ = running.await;
        }
    }
}

/// Waits until this process could lead: it can run helm, and the cluster has the Lease and the operator's kinds. Returns the
/// image of this process, if it can be determined.
async fn usable(
    args: &RunArgs,
    helm: &Helm,
    lease: &Lease,
    (client, namespace): (&Client, &str),
    ready: &watch::Sender<Readiness>,
) -> Result<Option<String>> {
    let helm = async || helm.check().await.map_err(|error| (Reason::HelmUnavailable, error.to_string()));
    let version = until(ready, Duration::from_secs(10), helm).await;
    tracing::info!(%version, "helm");
    for caution in cautions(&version) {
        tracing::warn!("{caution}");
    }
    let looked = async || lease.check_readable().await.map_err(|error| (Reason::LeaseUnavailable, error.to_string()));
    until(ready, Duration::from_secs(1), looked).await;
    required(ready, Duration::from_secs(2), client).await?;
    let apps: Api<Guard<ClientApp>> = Api::all(client.clone());
    until(ready, Duration::from_secs(2), async || listed(&apps, Reason::ClientAppsUnavailable).await).await;
    let revisions: Api<ControllerRevision> =
        Api::namespaced(client.clone(), args.lease_namespace.as_deref().unwrap_or(namespace));
    until(ready, Duration::from_secs(2), async || listed(&revisions, Reason::RevisionsUnavailable).await).await;
    let own = async || own_image(args, client, namespace).await;
    Ok(until(ready, Duration::from_secs(2), own).await)
}

/// Holds what the controllers are started with, each time that this process becomes the leader.
struct Controllers {
    config: Arc<Config>,
    /// The database of PostgresWriter; `None`: that kind is not reconciled.
    database: Option<postgres_writer::Settings>,
    helm: Helm,
    /// The chart's repository and name.
    chart: (ChartSource, ChartName),
    chart_cache: PathBuf,
    metrics: Arc<Metrics>,
    requests: Client,
    watches: Client,
    holder: String,
    /// The operator's namespace.
    namespace: String,
    /// The operator's image.
    image: Option<Arc<OperatorImage>>,
    deletion_brake: u16,
}

impl Controllers {
    /// Starts the controllers. They run until `leading` ends, and the task ends with the last helm.
    fn start(&self, lead: Leadership, gateway: Gateway, leading: CancellationToken) -> JoinHandle<()> {
        let (repository, chart) = self.chart.clone();
        let cache = self.chart_cache.clone();
        let charts = ChartCache::new(self.helm.clone(), repository, chart, cache, leading.clone());
        let client = client::led(&self.requests, &lead);
        let secrets = Secrets::default();
        let (profiles, profile_feed) = Objects::new();
        let profiles = Arc::new(Profiles::new(profiles));
        let (clientapps, clientapp_feed) = Objects::new();
        let tools = clientapp::Tools {
            config: self.config.clone(),
            helm: self.helm.clone(),
            gateway,
            charts: Arc::new(charts),
            secrets: secrets.clone(),
            holder: self.holder.clone(),
            namespace: self.namespace.clone(),
            deletion_brake: DeletionBrake::new(self.deletion_brake),
            profiles: profiles.clone(),
        };
        let parts = ControllerContext {
            recorder: Recorder::new(client.clone(), self.holder.clone()),
            client,
            watch_client: self.watches.clone(),
            metrics: self.metrics.clone(),
            lead,
            image: self.image.clone(),
        };
        let apps = clientapp::run(parts.clone(), tools, (clientapps.clone(), clientapp_feed), leading.clone());
        let settings = (self.config.clone(), self.namespace.clone());
        let rollouts =
            profile::run(parts.clone(), settings, clientapps, (profiles.clone(), profile_feed), leading.clone());
        let writers = postgres_writer::run(parts.clone(), self.database.clone(), leading.clone());
        let backups = run_once::run::<Backups>(parts.clone(), profiles.clone(), leading.clone());
        let restores = run_once::run::<Restores>(parts.clone(), profiles.clone(), leading.clone());
        let postgresqls =
            postgresql::run(parts, DeletionBrake::new(self.deletion_brake), secrets.clone(), leading.clone());
        let watches = self.watches.clone();
        let fed = async move { leading.run_until_cancelled(secrets.feed(watches)).await };
        tokio::spawn(async { _ = tokio::join!(apps, rollouts, backups, restores, postgresqls, writers, fed) })
    }
}

/// Keeps the lease while the controllers run, and stops them. Returns why the lease is lost; `None`: all of them have ended because
/// the process is to stop.
async fn until_lost(
    lease: &Lease,
    held: &Held,
    running: &mut JoinHandle<()>,
    leading: CancellationToken,
    stop: &CancellationToken,
) -> Result<Option<String>> {
    let lost = tokio::select! {
        // In this order, because `stop` ends the controllers, too, and that is not a failure.
        biased;
        () = stop.cancelled() => None,
        lost = lease.keep(held) => Some(lost),
        ended = &mut *running => {
            ended.context("the controllers ended")?;
            bail!("the controllers ended unexpectedly");
        }
    };
    leading.cancel();
    if lost.is_some() {
        return Ok(lost);
    }
    // The lease is released only after the last helm has ended, so that two never run at once.
    tokio::select! {
        lost = lease.keep(held) => Ok(Some(lost)),
        ended = timeout(STOPPED_WITHIN, running) => match ended {
            Ok(ended) => {
                ended.context("the controllers ended")?;
                Ok(None)
            }
            // Then helm cannot reach the API server either, and the next operator leads once the lease has expired.
            Err(_) => bail!(
                "the controllers have not stopped within {} s: leaving them behind, and the lease to expire",
                STOPPED_WITHIN.as_secs()
            ),
        },
    }
}

/// The user's own cache: if others could write to the directory, they could choose what is installed.
fn default_chart_cache() -> Result<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::home_dir().map(|home| home.join(".cache"));
    let cache = cache.filter(|cache| cache.is_absolute()).or_else(home);
    let cache = cache.context("there is no home directory for the chart cache: set --chart-cache")?;
    Ok(cache.join("clientapp-operator").join("charts"))
}

/// Repeats a check until it succeeds, and shows the reason of a failure in `/readyz`.
async fn until<T>(
    ready: &watch::Sender<Readiness>,
    pause: Duration,
    ask: impl AsyncFn() -> Result<T, (Reason, String)>,
) -> T {
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err((reason, problem)) => {
                tracing::error!(%reason, "{problem}");
                let _ = ready.send_replace(Err(format!("{reason}: {problem}")));
            }
        }
        tokio::time::sleep(pause).await;
    }
}

/// Fails if the cluster lacks one of this operator's kinds. Looks three times, because an API server that has just started may not
/// serve all of them yet.
async fn required(ready: &watch::Sender<Readiness>, pause: Duration, client: &Client) -> Result<()> {
    for looks_left in (0..3).rev() {
        let missing = until(ready, pause, async || missing(client).await).await;
        if missing.is_empty() {
            return Ok(());
        }
        if looks_left == 0 {
            bail!(
                "this cluster does not have {}: apply this version's manifests (`kubectl apply -k manifests`), or only crds/",
                missing.join(", ")
            );
        }
        tokio::time::sleep(pause).await;
    }
    Ok(())
}

/// Returns the kinds of this operator that the cluster does not serve.
async fn missing(client: &Client) -> Result<Vec<String>, (Reason, String)> {
    let served = match client.list_api_group_resources(&ClientApp::api_version(&())).await {
        Ok(served) => served.resources,
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        Err(error) => return Err((Reason::ClientAppsUnavailable, api_sentence(&error))),
    };
    let names = crd::all().into_iter().map(|definition| definition.spec.names);
    let missing = names.filter(|names| !served.iter().any(|resource| resource.name == names.plural));
    Ok(missing.map(|names| format!("kind {}", names.kind)).collect())
}

/// Checks that objects of a kind can be listed; the reason says that they cannot.
async fn listed<K: Clone + Debug + DeserializeOwned>(api: &Api<K>, reason: Reason) -> Result<(), (Reason, String)> {
    let listed = api.list_metadata(&ListParams::default().limit(1)).await;
    listed.map(drop).map_err(|error| (reason, api_sentence(&error)))
}

/// The image of this process, if it can be determined. It is read from the pod, because kustomize changes `image` fields but not
/// environment variables.
async fn own_image(args: &RunArgs, client: &Client, namespace: &str) -> Result<Option<String>, (Reason, String)> {
    let (None, Some(name)) = (&args.image, &args.pod_name) else { return Ok(args.image.clone()) };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let containers = match pods.get(name).await {
        Ok(pod) => pod.spec.map(|spec| spec.containers).unwrap_or_default(),
        // Only uploads of dumps need the image, and a Postgresql with such uploads reports that it is missing.
        Err(kube::Error::Api(status)) if [403, 404].contains(&status.code) => {
            tracing::warn!(pod = %name, namespace, "the operator cannot read its own pod: {}", status.message);
            return Ok(None);
        }
        Err(error) => return Err((Reason::PodUnavailable, api_sentence(&error))),
    };
    let own = containers.iter().find(|container| container.name == "operator").or(containers.first());
    Ok(own.and_then(|container| container.image.clone()))
}

/// The operator's access to the cluster.
async fn cluster(args: &RunArgs) -> Result<kube::Config> {
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let config = match (&args.kubeconfig, &args.context) {
        (Some(path), context) => {
            let shown = path.display();
            let file = Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {shown}"))?;
            let found = configured(Ok(file), &options).await;
            found.with_context(|| match context {
                None => format!("--kubeconfig {shown}"),
                Some(context) => format!("--context {context} in {shown}"),
            })?
        }
        (None, Some(context)) => {
            let found = configured(Kubeconfig::read(), &options).await;
            found.with_context(|| format!("--context {context} in $KUBECONFIG or ~/.kube/config"))?
        }
        (None, None) => match kube::Config::incluster() {
            Ok(config) => config,
            Err(in_cluster) => configured(Kubeconfig::read(), &options)
                .await
                .inspect_err(|_| tracing::debug!(%in_cluster, "not in a pod"))
                .context("no cluster: neither a pod's service account nor a kubeconfig (--kubeconfig, $KUBECONFIG)")?,
        },
    };
    if let Some(user) = &config.auth_info.impersonate {
        bail!(
            "the kubeconfig impersonates {user}: the operator impersonates service accounts, and Kubernetes does not impersonate twice"
        );
    }
    Ok(config)
}

/// As kube reads a kubeconfig. It also rereads the file of the certificate authority, within a minute, if it knows the file, as in a
/// pod.
async fn configured(
    file: Result<Kubeconfig, KubeconfigError>,
    options: &KubeConfigOptions,
) -> Result<kube::Config, KubeconfigError> {
    let file = file?;
    let authority = authority(&file, options.context.as_deref());
    let mut config = kube::Config::from_custom_kubeconfig(file, options).await?;
    config.root_cert_file = authority;
    Ok(config)
}

/// The certificate authority's file that a kubeconfig names for the cluster of this context, or of the current one. `None`: the
/// kubeconfig contains the authority itself, or has none. **Pure.**
fn authority(kubeconfig: &Kubeconfig, context: Option<&str>) -> Option<PathBuf> {
    let context = context.or(kubeconfig.current_context.as_deref())?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == context)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster)?.cluster.as_ref()?;
    let file = cluster.certificate_authority.as_ref().filter(|_| cluster.certificate_authority_data.is_none());
    file.map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use clap::Parser as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        crd::{PostgresWriter, Postgresql},
        platform::fake::{self, beside_a_panic},
    };

    #[derive(clap::Parser)]
    struct Arguments {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn the_authoritys_file_is_the_one_of_the_context() {
        let context = |name: &str| json!({"name": name, "context": {"cluster": name}});
        let contexts = ["relative", "absolute", "both", "neither", "undefined"].map(context);
        let kubeconfig = json!({
            "current-context": "relative",
            "contexts": contexts,
            "clusters": [
                {"name": "relative", "cluster": {"certificate-authority": "ca.crt"}},
                {"name": "absolute", "cluster": {"certificate-authority": "/etc/ca.crt"}},
                {"name": "both", "cluster": {"certificate-authority": "/ca.crt", "certificate-authority-data": "YQ=="}},
                {"name": "neither", "cluster": {"server": "https://127.0.0.1"}},
            ],
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        std::fs::write(&path, kubeconfig.to_string()).unwrap();
        let kubeconfig = Kubeconfig::read_from(path).unwrap();
        for (context, expected) in [
            (None, Some(dir.path().join("ca.crt"))),
            (Some("absolute"), Some(PathBuf::from("/etc/ca.crt"))),
            (Some("both"), None),
            (Some("neither"), None),
            (Some("undefined"), None),
            (Some("missing"), None),
        ] {
            assert_eq!(authority(&kubeconfig, context), expected, "{context:?}");
        }
        assert_eq!(authority(&Kubeconfig::default(), None), None);
    }

    fn failure(code: u16, message: &str) -> (u16, Value) {
        (code, json!({"kind": "Status", "status": "Failure", "code": code, "message": message}))
    }

    #[tokio::test]
    async fn clientapps_that_cannot_be_listed_are_told_of() {
        let list =
            json!({"kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1", "metadata": {}, "items": []});
        for (answer, expected) in [
            ((200, list), Ok(())),
            (failure(403, "cannot list"), Err("cannot list")),
            (failure(500, "etcd is gone"), Err("etcd is gone")),
        ] {
            let client = fake::client(move |_, path, _| {
                assert_eq!(path, "/apis/apps.bnerd-operator.local/v1alpha1/clientapps");
                answer.clone()
            });
            let expected = expected.map_err(|problem| (Reason::ClientAppsUnavailable, problem.to_owned()));
            let apps: Api<Guard<ClientApp>> = Api::all(client);
            assert_eq!(listed(&apps, Reason::ClientAppsUnavailable).await, expected);
        }
    }

    #[tokio::test]
    async fn a_cluster_without_one_of_the_operators_kinds_ends_the_process() {
        let serving = |kinds: &[&str]| {
            let resource = |plural: &&str| json!({"name": plural, "kind": "", "singularName": "", "namespaced": true, "verbs": []});
            let resources: Vec<_> = kinds.iter().map(resource).collect();
            (200, json!({"kind": "APIResourceList", "groupVersion": "", "resources": resources}))
        };
        let all = [
            "clientapps",
            "clientappbackups",
            "clientapprestores",
            "clientapps/status",
            "postgresqls",
            "postgreswriters",
            "profiles",
        ];
        for (answers, missing) in [
            ([serving(&all), failure(418, ""), failure(418, "")], None),
            // It has just started.
            ([failure(503, "starting"), failure(404, "404 page not found"), serving(&all)], None),
            ([(); 3].map(|()| serving(&all[..3])), Some("kind Profile, kind PostgresWriter, kind Postgresql: apply ")),
            ([(); 3].map(|()| failure(404, "404 page not found")), Some("kind ClientApp, ")),
        ] {
            let answers = Arc::new(Mutex::new(answers.into_iter()));
            let client = fake::client(move |_, path, _| {
                assert_eq!(path, "/apis/apps.bnerd-operator.local/v1alpha1");
                answers.lock().unwrap().next().expect("it is not asked again")
            });
            let (ready, _) = watch::channel::<Readiness>(Err(String::new()));
            let problem = required(&ready, Duration::ZERO, &client).await.map_err(|error| error.to_string());
            match missing {
                None => assert_eq!(problem, Ok(())),
                Some(named) => assert!(problem.as_ref().is_err_and(|problem| problem.contains(named)), "{problem:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_reconcile_of_a_clientapp_that_panics() {
        let run = async |parts: ControllerContext, stop: CancellationToken| {
            let Arguments { run: args } = Arguments::parse_from(["run"]);
            let helm = Helm::new(helm_settings(&args)).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let (repository, chart, cache) =
                (args.install.chart_repository, args.install.chart.chart, directory.path().to_owned());
            let secrets = Secrets::default();
            let (profiles, profile_feed) = Objects::new();
            let profiles = Arc::new(Profiles::new(profiles));
            let (apps, of_apps) = Objects::new();
            let config = Arc::new(Config::for_tests());
            let tools = clientapp::Tools {
                config: config.clone(),
                helm: helm.clone(),
                gateway: Gateway::open(parts.client.clone(), parts.lead.clone()).await.unwrap(),
                charts: Arc::new(ChartCache::new(helm, repository, chart, cache, stop.clone())),
                secrets: secrets.clone(),
                holder: "operator".to_owned(),
                namespace: "operator".to_owned(),
                deletion_brake: DeletionBrake::new(10),
                profiles: profiles.clone(),
            };
            let fed = stop.run_until_cancelled(secrets.feed(parts.watch_client.clone()));
            let settings = (config, "operator".to_owned());
            let classes = profile::run(parts.clone(), settings, apps.clone(), (profiles, profile_feed), stop.clone());
            tokio::join!(clientapp::run(parts, tools, (apps, of_apps), stop.clone()), classes, fed);
        };
        beside_a_panic::<ClientApp>(json!({"hostname": "acme.example.com"}), run).await;
    }

    #[tokio::test]
    async fn a_reconcile_of_a_postgresql_that_panics() {
        let run = async |parts: ControllerContext, stop: CancellationToken| {
            let secrets = Secrets::default();
            let fed = stop.run_until_cancelled(secrets.feed(parts.watch_client.clone()));
            tokio::join!(postgresql::run(parts, DeletionBrake::new(10), secrets.clone(), stop.clone()), fed);
        };
        beside_a_panic::<Postgresql>(json!({}), run).await;
    }

    #[tokio::test]
    async fn a_reconcile_of_a_postgreswriter_that_panics() {
        let given = [("PSQL_HOST", "db"), ("PSQL_DBNAME", "app"), ("PSQL_USER", "writer"), ("PSQL_PASSWORD", "p")];
        let given = given.into_iter().chain([("PSQL_TABLES", "people"), ("PSQL_RESYNC", "0")]);
        let settings = postgres_writer::Settings::new(given.map(|(name, value)| (name, value.to_owned())).collect());
        let run = async |parts: ControllerContext, stop: CancellationToken| {
            postgres_writer::run(parts, settings.unwrap(), stop).await;
        };
        let spec = json!({"table": "people", "name": "Ada", "age": 36, "country": "UK"});
        beside_a_panic::<PostgresWriter>(spec, run).await;
    }
}
