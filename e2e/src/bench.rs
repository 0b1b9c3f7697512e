//! The benchmark: the operator and bare helm in one interleaved run, on one control plane.
//!
//! Times are those of a shared machine and mean nothing by themselves; ratios within one run do. Counts (requests, helm
//! runs, writes) and memory are exact.

mod api;
mod cpu;
mod take_over;
mod writer;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::ClientApp;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

use self::cpu::Cpu;
use crate::charts::Content;
use crate::helm::Helm;
use crate::lab::block_on;
use crate::operator::{Operator, Options, release_binary};
use crate::plane::ControlPlane;
use crate::postgres::Postgres;
use crate::progress::Progress;
use crate::tools::Tools;
use crate::{charts, manifests};

/// The number of helm processes at the same time, in both arms.
const CONCURRENCY: usize = 3;
/// How long the operator is observed at rest.
const REST: Duration = Duration::from_secs(30);
/// The number of single changes, timed one after the other.
const CHANGES: usize = 15;

#[derive(clap::Subcommand, Clone, Copy, Debug)]
pub enum What {
    /// The operator and bare helm
    Helm {
        /// Number of apps that each of them installs and upgrades
        #[arg(long, default_value_t = 100)]
        apps: usize,
        /// Use a chart of 400 KB, three subcharts and fifteen objects instead of a chart of ten objects
        #[arg(long)]
        large: bool,
    },
    /// The HTTP API and a plain client
    Api {
        /// Number of existing instances
        #[arg(long, default_value_t = 1000)]
        instances: usize,
    },
    /// The time until another operator takes over when the leader is killed
    TakeOver {
        /// Number of leaders to kill, one after the other
        #[arg(long, default_value_t = 20)]
        kills: usize,
    },
    /// PostgresWriters and a plain database client
    Writer {
        /// Number of rows that each of them writes
        #[arg(long, default_value_t = 1000)]
        rows: usize,
    },
}

/// Runs the benchmark, and prints a table.
pub fn run(what: What, progress: &Progress) -> Result<()> {
    let tools = Tools::ensure(progress)?;
    let binary = release_binary()?;
    let plane = ControlPlane::builder().audit_log(true).start(&tools)?;
    let kubeconfig = block_on(async || manifests::install(&plane, &tools).await)?;
    let dir = tempfile::tempdir()?;
    let large = matches!(what, What::Helm { large: true, .. });
    for version in [charts::DEFAULT, charts::PATCH] {
        charts::package(dir.path(), version, if large { Content::Large } else { Content::Genuine })?;
    }
    let postgres = matches!(what, What::Writer { .. }).then(Postgres::start).transpose()?;
    let mut environment = vec![("RUST_LOG".to_owned(), "info,clientapp_operator::helm=debug".to_owned())];
    if let Some(postgres) = &postgres {
        environment.extend(postgres.environment("postgres", "ours"));
        environment.push(("PSQL_RESYNC".to_owned(), "1".to_owned()));
    }
    let options = Options {
        binary: Some(binary.clone()),
        lease_namespace: manifests::NAMESPACE.to_owned(),
        environment,
        ..Options::new(kubeconfig, &tools.helm, dir.path().display().to_string())
    };
    let mut operator = Operator::leading(&options)?;
    let api = operator.api_url()?;
    let bench = Bench { plane: &plane, tools: &tools, charts: dir.path(), binary: &binary, operator: &operator };
    match what {
        What::Helm { apps, .. } => block_on(async || bench.run(apps).await),
        What::TakeOver { kills } => {
            block_on(async || take_over::run(&plane.client().await?, &options, operator, kills).await)
        }
        What::Api { instances } => block_on(async || bench.api(&api, instances).await),
        What::Writer { rows } => {
            block_on(async || bench.writer(postgres.as_ref().context("PostgreSQL was not started")?, rows).await)
        }
    }
}

struct Bench<'a> {
    plane: &'a ControlPlane,
    tools: &'a Tools,
    charts: &'a Path,
    binary: &'a Path,
    operator: &'a Operator,
}

impl Bench<'_> {
    async fn run(&self, apps: usize) -> Result<()> {
        ensure!(apps >= 2, "at least two apps are needed: one for each round");
        let client = self.plane.client().await?;
        let names = |arm: &str| (0..apps).map(|n| format!("{arm}-{n}")).collect::<Vec<_>>();
        let (bare, ours) = (names("bare"), names("ours"));
        for name in bare.iter().chain(&ours) {
            namespace(&client, name).await?;
        }
        // Each arm runs half of its apps in each round, first in one and second in the other: other load on the
        // machine, and work that an arm leaves behind, affects both.
        let half = apps / 2;
        let mut times: BTreeMap<(&str, &str), Vec<f64>> = BTreeMap::new();
        let mut cpus: BTreeMap<(&str, &str), Cpu> = BTreeMap::new();
        for (what, version) in [("install", charts::DEFAULT), ("upgrade", charts::PATCH)] {
            for (round, order) in [(0..half, ["bare helm", "operator"]), (half..apps, ["operator", "bare helm"])] {
                for arm in order {
                    let before = self.cpu()?;
                    let time = match arm {
                        "operator" => self.ours(&ours[round.clone()], version).await?,
                        _ => self.bare(&bare[round.clone()], version)?,
                    };
                    times.entry((what, arm)).or_default().push(time.as_secs_f64());
                    cpus.entry((what, arm)).or_default().add(self.cpu()?.since(&before));
                }
            }
        }
        println!("{apps} apps in each arm, {CONCURRENCY} helm processes at a time, two rounds in turn");
        for what in ["install", "upgrade"] {
            let of = |arm| times[&(what, arm)].iter().sum::<f64>();
            println!("makespan of {what}: ratio {:.2}", of("operator") / of("bare helm"));
            for arm in ["bare helm", "operator"] {
                // Very different rounds were disturbed by other load.
                let rounds: Vec<_> = times[&(what, arm)].iter().map(|time| format!("{time:.1}")).collect();
                let cpu = cpus[&(what, arm)].each(apps);
                println!("  {arm}: {} s; processor time per app, ms: {cpu}", rounds.join(" + "));
            }
        }
        self.requests(&ours)?;
        self.changes(&client, &ours).await?;
        self.rest().await?;
        println!("operator: peak resident set {:.1} MiB", self.peak()?);
        Ok(())
    }

    fn cpu(&self) -> Result<Cpu> {
        Cpu::of(self.plane.directory(), &[("the benchmark", std::process::id()), ("operator", self.operator.pid())])
    }

    /// Bare helm, as `xargs -P` would run it, with the flag that makes it fastest and the values that the operator
    /// would pass: helm has the same work in both arms.
    fn bare(&self, names: &[String], version: &str) -> Result<Duration> {
        let values = self.values(names, version)?;
        let chart = self.charts.join(charts::file_name(version)).display().to_string();
        let queue = Mutex::new(names.iter().zip(&values));
        let started = Instant::now();
        std::thread::scope(|scope| {
            let worker = || -> Result<()> {
                let helm = Helm::for_cluster(&self.tools.helm, &self.plane.kubeconfig())?;
                while let Some((name, values)) = { queue.lock().ok().and_then(|mut queue| queue.next()) } {
                    let values = values.display().to_string();
                    let ran = helm.run(&[
                        "upgrade",
                        "--install",
                        name,
                        &chart,
                        "--namespace",
                        name,
                        "--values",
                        &values,
                        "--disable-openapi-validation",
                    ])?;
                    ensure!(ran.success, "helm: {}", ran.stderr);
                }
                Ok(())
            };
            let workers: Vec<_> = (0..CONCURRENCY).map(|_| scope.spawn(worker)).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
        })?;
        Ok(started.elapsed())
    }

    /// Files with the values that the operator computes for these apps.
    fn values(&self, names: &[String], version: &str) -> Result<Vec<PathBuf>> {
        let apps = self.plane.directory().join("bare-apps.yaml");
        let documents = names.iter().map(|name| Ok(format!("---\n{}", serde_yaml::to_string(&app(name, version))?)));
        std::fs::write(&apps, documents.collect::<Result<String>>()?)?;
        let output = Command::new(self.binary).args(["render", "--file"]).arg(&apps).output()?;
        ensure!(output.status.success(), "render: {}", String::from_utf8_lossy(&output.stderr));
        let rendered = String::from_utf8(output.stdout)?;
        let documents = rendered.split("---\n").skip(1);
        let files = names.iter().zip(documents).map(|(name, document)| {
            let file = self.plane.directory().join(format!("{name}.values.yaml"));
            std::fs::write(&file, document)?;
            Ok(file)
        });
        files.collect()
    }

    /// The operator: all objects at once, then waiting until every status has the release.
    async fn ours(&self, names: &[String], version: &str) -> Result<Duration> {
        // A new client: the connections of the previous round were idle while bare helm ran, long enough for the API
        // server to close them.
        let client = &self.plane.client().await?;
        let watch = watcher(Api::<ClientApp>::all(client.clone()), watcher::Config::default());
        let mut apps = Box::pin(watch.default_backoff().applied_objects());
        let mut open: std::collections::BTreeSet<_> = names.iter().cloned().collect();
        let started = Instant::now();
        futures::future::try_join_all(names.iter().map(|name| apply(client, name, version))).await?;
        while !open.is_empty() {
            let app = apps.next().await.context("the watch ended")??;
            if is_ready(&app, version) {
                open.remove(&app.name_any());
            }
        }
        Ok(started.elapsed())
    }

    /// Requests per app and action, from the audit log.
    fn requests(&self, names: &[String]) -> Result<()> {
        let (mut helm, mut own) = (0, BTreeMap::<String, usize>::new());
        for event in self.audit()? {
            let word = |field: &str| event["objectRef"][field].as_str().unwrap_or_default().to_owned();
            if event["verb"] == "watch" || !names.contains(&word("namespace")) || !is_operators(&event) {
                continue;
            }
            if event["userAgent"].as_str().unwrap_or_default().starts_with("Helm/") {
                helm += 1;
                continue;
            }
            let (verb, part) = (event["verb"].as_str().unwrap_or_default(), word("subresource"));
            let resource = [word("resource"), part].into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>();
            *own.entry(format!("{verb} {}", resource.join("/"))).or_default() += 1;
        }
        let each = |count: usize| count as f64 / (2 * names.len()) as f64;
        let (all, helm) = (each(own.values().sum()), each(helm));
        let own = own.iter().map(|(what, count)| format!("{what} {:.1}", each(*count))).collect::<Vec<_>>().join(", ");
        println!("requests per install or upgrade: helm {helm:.1} in the namespace, operator {all:.1}: {own}");
        Ok(())
    }

    /// A single change, from the patch to helm's start and to the status with the new revision.
    async fn changes(&self, client: &Client, names: &[String]) -> Result<()> {
        let (mut starts, mut ends) = (Vec::new(), Vec::new());
        for n in 0..CHANGES {
            let name = &names[n % names.len()];
            let api: Api<ClientApp> = Api::namespaced(client.clone(), name);
            let seen = self.helm_starts().len();
            let host = format!("{name}-{n}.example.com");
            let clock = jiff::Timestamp::now();
            let patch = Patch::Merge(json!({"spec": {"hostname": host}}));
            let generation = api.patch(name, &PatchParams::default(), &patch).await?.metadata.generation;
            let mut app = Box::pin(watcher::watch_object(api, name));
            loop {
                let Some(Ok(Some(app))) = app.next().await else { continue };
                let status = app.status.as_ref().context("a status")?;
                if status.observed_generation == generation && is_ready(&app, charts::PATCH) {
                    break;
                }
            }
            ends.push(jiff::Timestamp::now().duration_since(clock).as_secs_f64());
            let start = self.helm_starts().get(seen).copied().context("helm was started")?;
            starts.push(start.duration_since(clock).as_secs_f64());
        }
        for (what, times) in [("helm started", &mut starts), ("status with the new revision", &mut ends)] {
            let (median, worst) = median_and_worst(times);
            println!("one change among all, to {what}: median {:.0} ms, worst {:.0} ms", median * 1e3, worst * 1e3);
        }
        Ok(())
    }

    /// The operator's activity at rest.
    async fn rest(&self) -> Result<()> {
        let (requests, runs) = (self.own_requests()?, self.helm_starts().len());
        tokio::time::sleep(REST).await;
        let (requests, runs) = (self.own_requests()? - requests, self.helm_starts().len() - runs);
        println!(
            "at rest for {} s: {requests} requests besides watches and the lease, {runs} helm runs",
            REST.as_secs()
        );
        Ok(())
    }

    fn own_requests(&self) -> Result<usize> {
        let idle = |event: &Value| event["verb"] == "watch" || event["objectRef"]["resource"] == "leases";
        Ok(self.audit()?.iter().filter(|event| is_operators(event) && !idle(event)).count())
    }

    fn audit(&self) -> Result<Vec<Value>> {
        let path = self.plane.audit_log().context("the plane keeps no audit log")?;
        let log = std::fs::read_to_string(path)?;
        let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(events.filter(|event| event["stage"] == "ResponseComplete").collect())
    }

    /// The start times of helm, from the operator's log.
    fn helm_starts(&self) -> Vec<jiff::Timestamp> {
        let log = self.operator.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let starts = lines.filter(|line| line["message"] == "helm starts");
        starts.filter_map(|line| line["timestamp"].as_str()?.parse().ok()).collect()
    }

    fn peak(&self) -> Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.operator.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib / 1024.0)
    }
}

/// Panics without any time.
fn median_and_worst(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], times[times.len() - 1])
}

fn is_operators(event: &Value) -> bool {
    event["user"]["username"] == manifests::user().as_str()
}

fn is_ready(app: &ClientApp, version: &str) -> bool {
    let status = app.status.as_ref();
    let release = status.and_then(|status| status.release.as_ref());
    release.is_some_and(|release| {
        release.chart_version.as_deref() == Some(version) && release.status == "deployed" && release.digest.is_some()
    }) && status.is_some_and(|status| status.observed_generation == app.metadata.generation)
}

/// An app with ten objects (Deployment, StatefulSet, three Services, ConfigMap, Ingress, NetworkPolicy, two
/// PodDisruptionBudgets) without pods, so that only helm is measured.
///
/// No object is of RBAC: when a client other than a cluster admin writes a RoleBinding, it waits up to 100 ms for the
/// API server's check that it grants no more than the client has. The operator is not a cluster admin, and a user of
/// helm may be.
fn app(name: &str, version: &str) -> Value {
    json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {"name": name, "namespace": name},
        "spec": {
            "hostname": format!("{name}.example.com"), "chartVersion": version, "replicas": 0,
            "ingressClassName": "bench", "postgres": {"enabled": false}, "persistence": {"enabled": false},
            "values": {
                "rbac": {"enabled": false},
                "redis": {"master": {"count": 0, "persistence": {"enabled": false}}},
            },
        },
    })
}

async fn apply(client: &Client, name: &str, version: &str) -> Result<()> {
    let api: Api<ClientApp> = Api::namespaced(client.clone(), name);
    api.patch(name, &PatchParams::apply("bench").force(), &Patch::Apply(app(name, version))).await?;
    Ok(())
}

async fn namespace(client: &Client, name: &str) -> Result<()> {
    let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
    Ok(())
}
