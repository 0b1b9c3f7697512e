//! One operator, and everything that lives see and share. An **effect**.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use http::{HeaderValue, header};
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use kube::api::{Api, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::json;
use tempfile::TempDir;
use tokio::sync::{MutexGuard, RwLock, watch};
use tokio::task::block_in_place;

use super::disturbance::operators::{ApiUrl, Operators};
use super::oracle::audit::USER;
use super::oracle::ownership::history::{Kind, Time};
use super::oracle::ownership::recorder::Recorder;
use super::stage::Stage;
use crate::charts::{self, Content};
use crate::operator::Options;
use crate::proxy::Proxy;

/// Checks at least this often, for changes that no watch shows.
const POLL: Duration = Duration::from_secs(1);

pub struct World {
    // They end before their proxy does.
    operators: tokio::sync::Mutex<Operators>,
    pub proxy: Proxy,
    pub stage: Stage,
    pub recorder: Recorder,
    /// Where the operator serves its HTTP API.
    pub api: ApiUrl,
    pub http: reqwest::Client,
    /// The number of steps that users have taken.
    pub steps: watch::Sender<u64>,
    /// Users share it while their app goes; another Helm client has it for itself: `helm upgrade` would bring a release back whose app
    /// goes meanwhile, and nobody would own it.
    pub deletions: RwLock<()>,
    charts: TempDir,
    noted: Mutex<Vec<(Timestamp, String)>>,
}

impl World {
    /// Starts a control plane with an operator that leads. With its `history`, everything that holds data or gives access to it is
    /// on record in all versions; without, apps and Secrets in their last.
    pub async fn start(history: bool) -> Result<World> {
        let stage = Stage::start(history).await?;
        install_snapshots(&stage.client).await?;
        let proxy = Proxy::start(&stage.lab.operator_kubeconfig)?;
        let options = Options { kubeconfig: proxy.kubeconfig(), ..stage.lab.options() };
        let charts = tempfile::tempdir()?;
        charts::package(charts.path(), charts::DEFAULT, Content::Genuine)?;
        let kinds: &[Kind] = if history { &Kind::ALL } else { &[Kind::App, Kind::Secret] };
        let recorder = Recorder::start(stage.lab.plane.config().await?, kinds, !history)?;
        let operators = block_in_place(|| Operators::start(stage.lab, &options, false))?;
        Ok(World {
            api: operators.api(),
            operators: tokio::sync::Mutex::new(operators),
            proxy,
            stage,
            recorder,
            http: reqwest::Client::new(),
            steps: watch::Sender::default(),
            deletions: RwLock::default(),
            charts,
            noted: Mutex::default(),
        })
    }

    pub async fn operators(&self) -> MutexGuard<'_, Operators> {
        self.operators.lock().await
    }

    /// Returns a client for a user's requests.
    pub async fn client(&self) -> Result<Client> {
        let mut config = self.stage.lab.plane.config().await?;
        config.headers.push((header::USER_AGENT, HeaderValue::from_static(USER)));
        Ok(Client::try_from(config)?)
    }

    /// Asks again after every change, until there is an answer or the time is up.
    pub async fn until<T>(&self, within: Duration, mut ask: impl FnMut(&World) -> Option<T>) -> Option<T> {
        let deadline = Instant::now() + within;
        let mut changes = self.recorder.changes();
        loop {
            changes.borrow_and_update();
            if let Some(found) = ask(self) {
                return Some(found);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            let _ = tokio::time::timeout(left.min(POLL), changes.changed()).await;
        }
    }

    /// Returns the latest resource version seen.
    pub fn now(&self) -> Time {
        *self.recorder.changes().borrow()
    }

    /// Returns the packaged chart, for other Helm clients.
    pub fn chart(&self) -> PathBuf {
        self.charts.path().join(charts::file_name(charts::DEFAULT))
    }

    /// Records an event of the operator for the stories.
    pub fn note(&self, text: String) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).push((Timestamp::now(), text));
    }

    /// Returns what was noted since a time.
    pub fn noted(&self, since: Timestamp) -> Vec<(Timestamp, String)> {
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.iter().filter(|(at, _)| *at >= since).map(|(at, note)| (*at, format!("* {note}"))).collect()
    }

    /// Returns the operators' log entries about a namespace: time and text.
    pub async fn logged(&self, namespace: &str) -> Vec<String> {
        let about = [format!("\"{namespace}/"), format!("\"{namespace}\""), format!(" {namespace}/")];
        let log = self.operators().await.log();
        let lines = log.lines().filter(|line| about.iter().any(|place| line.contains(place)));
        let lines = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines
            .map(|line| {
                let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
                format!("log: {} {} {} {}", text("timestamp"), text("message"), text("reason"), text("error"))
            })
            .collect()
    }
}

/// Installs a kind that holds data and that the operator does not know.
async fn install_snapshots(client: &Client) -> Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let name = "volumesnapshots.snapshot.storage.k8s.io";
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"}},
        "spec": {
            "group": "snapshot.storage.k8s.io", "scope": "Namespaced",
            "names": {"kind": "VolumeSnapshot", "plural": "volumesnapshots", "singular": "volumesnapshot"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    }))?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    api.create(&PostParams::default(), &definition).await?;
    await_condition(api, name, conditions::is_crd_established()).await.context("VolumeSnapshots are established")?;
    Ok(())
}
