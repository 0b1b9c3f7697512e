//! What the pods of Percona's clusters do: they start, Patroni makes one the leader, and Jobs of pgBackRest end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use clientapp_crd::percona::CLUSTER_LABEL;
use futures::StreamExt as _;
use futures::stream;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Endpoints, Pod};
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::reflector::Store;
use kube::runtime::{Controller, watcher};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Knobs, MANAGER, Settings};
use crate::background::Background;

const INSTANCE: &str = "postgres-operator.crunchydata.com/instance";
const ROLE: &str = "postgres-operator.crunchydata.com/role";
const PATRONI: &str = "postgres-operator.crunchydata.com/patroni";
/// The purpose of a backup: `replica-create` for the initial one, which no user requests.
const BACKUP: &str = "postgres-operator.crunchydata.com/pgbackrest-backup";
const RESTORE: &str = "postgres-operator.crunchydata.com/pgbackrest-restore";
/// Annotations that kwok obeys.
const RUNS: &str = "clientapp.test/runs";
const ENDS: &str = "clientapp.test/ends";

struct Ctx {
    client: Client,
    settings: watch::Receiver<Settings>,
    pods: Store<Pod>,
    /// The file that `pgbackrest info` prints, with the backups of all clusters.
    file: PathBuf,
    backups: Mutex<Vec<Value>>,
    /// The uid of each cluster's leader, which the store may not show yet.
    leaders: Mutex<BTreeMap<(String, String), String>>,
}

pub(super) fn start(config: &Config, settings: watch::Receiver<Settings>, file: &Path) -> Result<Background> {
    let (config, file) = (config.clone(), file.to_owned());
    // What an earlier one has written stays.
    let backups = fs::read(&file).ok().and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    let backups: Vec<Value> = backups.and_then(|info| info[0]["backup"].as_array().cloned()).unwrap_or_default();
    write(&file, &backups)?;
    Background::spawn("percona", move || run(config, settings, file, backups))
}

async fn run(config: Config, settings: watch::Receiver<Settings>, file: PathBuf, backups: Vec<Value>) {
    // Created here, since a client belongs to the runtime on which it was created.
    let client = Client::try_from(config).expect("the configuration makes a client");
    let labelled = watcher::Config::default().labels(CLUSTER_LABEL);
    let changes = stream::unfold(settings.clone(), |mut settings| async move {
        settings.changed().await.ok().map(|()| ((), settings))
    });
    let controller = Controller::new(Api::<Pod>::all(client.clone()), labelled).reconcile_all_on(changes);
    let ctx = Ctx {
        client,
        settings,
        pods: controller.store(),
        file,
        backups: Mutex::new(backups),
        leaders: Mutex::default(),
    };
    // It retries failed reconciles and reopens broken watches.
    controller.run(reconcile, retry, Arc::new(ctx)).for_each(|_| async {}).await;
}

/// Soon, since the error is a conflict, or a pod that does not exist any more.
fn retry(_: Arc<Pod>, _: &kube::Error, _: Arc<Ctx>) -> Action {
    Action::requeue(Duration::from_millis(200))
}

async fn reconcile(pod: Arc<Pod>, ctx: Arc<Ctx>) -> Result<Action, kube::Error> {
    if pod.metadata.deletion_timestamp.is_none() {
        let key = (pod.namespace().unwrap_or_default(), label(&pod, CLUSTER_LABEL).unwrap_or_default().to_owned());
        let knobs = ctx.settings.borrow().get(&key).cloned().unwrap_or_default();
        let (namespace, cluster) = key;
        let scope = Scope { ctx: &ctx, namespace, cluster };
        match (label(&pod, BACKUP), label(&pod, RESTORE)) {
            (Some("replica-create"), _) => scope.end(&pod, false, false).await?,
            (Some(_), _) => scope.end(&pod, knobs.hold_backups, knobs.fail_backups).await?,
            (None, Some(_)) => scope.end(&pod, knobs.hold_restores, knobs.fail_restores).await?,
            (None, None) => scope.serve(&pod, &knobs).await?,
        }
    }
    Ok(Action::await_change())
}

/// One cluster.
struct Scope<'a> {
    ctx: &'a Ctx,
    namespace: String,
    cluster: String,
}

impl Scope<'_> {
    /// Starts the pod of a Job, and ends it unless it is held.
    async fn end(&self, pod: &Pod, hold: bool, fail: bool) -> Result<(), kube::Error> {
        if pod.annotations().contains_key(ENDS) {
            return Ok(());
        }
        let ends = match (hold, fail) {
            (true, _) => None,
            (false, true) => Some("Failed"),
            (false, false) => Some("Succeeded"),
        };
        if ends == Some("Failed") {
            // As if it had failed six times before: the Job controller takes minutes for that.
            let job = label(pod, "batch.kubernetes.io/job-name").unwrap_or_default();
            let patience = Patch::Merge(json!({"spec": {"backoffLimit": 0}}));
            self.api::<Job>().patch(job, &PatchParams::default(), &patience).await?;
        }
        if ends == Some("Succeeded") && label(pod, BACKUP).is_some() {
            // Before the Job is over: the operator asks for it then.
            self.record(pod);
        }
        if ends.is_some() || !pod.annotations().contains_key(RUNS) {
            self.annotate(pod, json!({RUNS: "true", ENDS: ends})).await?;
        }
        Ok(())
    }

    /// Starts a pod that stays, unless it is held; the first instance that is ready becomes the leader.
    async fn serve(&self, pod: &Pod, knobs: &Knobs) -> Result<(), kube::Error> {
        let unready = knobs.pgbouncer_unready && label(pod, ROLE) == Some("pgbouncer");
        match (knobs.hold || unready, pod.annotations().contains_key(RUNS)) {
            (false, false) => return self.annotate(pod, json!({RUNS: "true"})).await,
            // The next one does not start.
            (true, true) if unready => {
                return self.api::<Pod>().delete(&pod.name_any(), &DeleteParams::default()).await.map(drop);
            }
            _ => {}
        }
        if label(pod, INSTANCE).is_some() && label(pod, ROLE).is_none() && is_ready(pod) {
            self.elect(pod).await?;
        }
        Ok(())
    }

    /// What Patroni writes when an instance has joined its cluster.
    async fn elect(&self, pod: &Pod) -> Result<(), kube::Error> {
        let leader = self.becomes_leader(pod);
        let role = if leader { "primary" } else { "replica" };
        if leader {
            let scope = format!("{}-ha", self.cluster);
            self.endpoints(&format!("{scope}-config"), &scope, json!({"initialize": "7512345678901234567"}), json!([]))
                .await?;
            let address = pod.status.as_ref().and_then(|status| status.pod_ip.clone());
            let subset = json!([{"addresses": [{"ip": address}], "ports": [{"name": "postgres", "port": 5432}]}]);
            self.endpoints(&scope, &scope, json!({"leader": pod.name_any()}), subset).await?;
        }
        let status = json!({"role": role, "state": "running", "version": "4.1.0"}).to_string();
        let patch = Patch::Merge(json!({"metadata": {"labels": {ROLE: role}, "annotations": {"status": status}}}));
        self.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &patch).await.map(drop)
    }

    /// The first instance does, and keeps it until its pod is deleted.
    fn becomes_leader(&self, pod: &Pod) -> bool {
        let mut leaders = self.ctx.leaders.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (self.namespace.clone(), self.cluster.clone());
        let elected = leaders.get(&key);
        let leads = |other: &Arc<Pod>| {
            other.namespace().as_ref() == Some(&self.namespace)
                && label(other, CLUSTER_LABEL) == Some(self.cluster.as_str())
                && (label(other, ROLE) == Some("primary") || elected.is_some() && other.uid().as_ref() == elected)
                && other.metadata.deletion_timestamp.is_none()
                && other.uid() != pod.uid()
        };
        let leader = !self.ctx.pods.state().iter().any(leads);
        if leader {
            leaders.insert(key, pod.uid().unwrap_or_default());
        }
        leader
    }

    async fn endpoints(&self, name: &str, scope: &str, state: Value, subsets: Value) -> Result<(), kube::Error> {
        let object = json!({
            "apiVersion": "v1", "kind": "Endpoints", "subsets": subsets,
            "metadata": {"name": name, "annotations": state, "labels": {CLUSTER_LABEL: self.cluster, PATRONI: scope}},
        });
        let params = PatchParams::apply(MANAGER).force();
        self.api::<Endpoints>().patch(name, &params, &Patch::Apply(object)).await.map(drop)
    }

    /// What pgBackRest knows of the backup of a Job.
    fn record(&self, pod: &Pod) {
        let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
        let options = containers.flat_map(|container| container.env.iter().flatten());
        let options =
            options.filter(|variable| variable.name == "COMMAND_OPTS").find_map(|option| option.value.clone());
        let options = options.unwrap_or_default();
        let job = label(pod, "batch.kubernetes.io/job-name").unwrap_or_default();
        // The name is what the operator adds afterwards, by a command.
        let mut annotations = json!({"percona.com/backup-job-name": job});
        for option in options.split_whitespace().filter_map(|option| option.strip_prefix("--annotation=")) {
            let (key, value) = option.split_once('=').unwrap_or_default();
            annotations[key.trim_matches('"')] = json!(value.trim_matches('"'));
        }
        let mut backups = self.ctx.backups.lock().unwrap_or_else(PoisonError::into_inner);
        if backups.iter().any(|backup| backup["annotation"]["percona.com/backup-job-name"] == job) {
            return;
        }
        let of_cluster = [json!(self.namespace), json!(self.cluster)];
        let full = backups.iter().rev().find(|backup| backup["type"] == "full" && backup["of"] == json!(of_cluster));
        let asked = options.split_whitespace().filter_map(|option| option.strip_prefix("--type=")).next_back();
        let (kind, base) = match (full, asked) {
            // The first backup is full whatever is asked for.
            (None, _) | (_, Some("full")) => ("full", None),
            (Some(full), Some("diff")) => ("diff", full["label"].as_str()),
            (Some(full), _) => ("incr", full["label"].as_str()),
        };
        let now = Timestamp::now();
        let time = now.strftime("%Y%m%d-%H%M%S");
        let label = match base {
            None => format!("{time}F"),
            Some(base) => format!("{base}_{time}{}", if kind == "diff" { 'D' } else { 'I' }),
        };
        backups.push(json!({
            "annotation": annotations, "label": label, "type": kind, "of": of_cluster,
            "timestamp": {"start": now.as_second(), "stop": now.as_second()},
        }));
        write(&self.ctx.file, &backups).expect("the plane's directory can be written");
    }

    async fn annotate(&self, pod: &Pod, annotations: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
        self.api::<Pod>().patch(&pod.name_any(), &PatchParams::default(), &patch).await.map(drop)
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.ctx.client.clone(), &self.namespace)
    }
}

/// The answer of `pgbackrest info`, at once: it may be read meanwhile.
fn write(file: &Path, backups: &[Value]) -> std::io::Result<()> {
    // 2: there are no valid backups.
    let status = json!({"code": if backups.is_empty() { 2 } else { 0 }});
    let written = file.with_extension("new");
    fs::write(&written, json!([{"name": "db", "status": status, "backup": backups}]).to_string())?;
    fs::rename(written, file)
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.labels().get(key).map(String::as_str)
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
