//! The oracle as a property: random lives of apps and databases, many side by side, on a real control plane with a real
//! helm, while the operator is killed and frozen at random moments. After each life, every object that held data or gave
//! access to data still exists, unless a step requested its deletion or a message says why it is gone.
//!
//! | | module | |
//! |---|---|---|
//! | the steps | steps | pure |
//! | carries them out | act | effect |
//! | disturbs the operator | fleet, chaos | effect |
//! | records everything | recorder, audit, history | effect |
//! | decides when a life is over | quiet | pure |
//! | the owners of all objects, and the violations | model, mod@judge | pure |

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, stream};
use http::{HeaderValue, header};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Config};
use serde_json::json;
use tempfile::TempDir;

use crate::charts::{self, Content};
use crate::lab::Lab;
use crate::percona::Percona;
use crate::progress::Progress;
use crate::random::disturbance::fleet::Fleet;
use crate::random::oracle::lives_audit::{Audit, LIFE};
use crate::random::oracle::ownership::history::Time;
use crate::random::oracle::ownership::model::Facts;
use crate::random::oracle::ownership::recorder::Recorder;
use crate::random::oracle::ownership::{Violation, judge};
use crate::random::workload::life::script::{Script, script};
use crate::random::workload::life::step::Move;
use crate::random::workload::life::{Done, ECHO, Life};

/// How long after its last step a life has for everything that takes time: a deletion in progress, a message not
/// written yet.
const TIMEOUT: Duration = Duration::from_secs(90);
/// Checks at least this often, for changes that no watch shows.
const POLL: Duration = Duration::from_secs(1);

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Number of lives
    #[arg(long, default_value_t = 40)]
    pub count: u64,
    /// Seed of the first life; the others count up from it. Default: the current time
    #[arg(long, env = "LIVES_SEED")]
    pub seed: Option<u64>,
    /// Number of lives at the same time
    #[arg(long, default_value_t = 20)]
    pub parallel: usize,
    /// Leave the operator alone
    #[arg(long)]
    pub calm: bool,
    /// Look for the shortest sequence of steps that still leads to each failure, without disturbing the operator
    #[arg(long)]
    pub shrink: bool,
    /// Print every life, not only those that fail
    #[arg(long)]
    pub tell: bool,
}

/// Shared by all lives.
pub struct Stage {
    pub lab: &'static Lab,
    pub recorder: Recorder,
    pub fleet: Fleet,
    /// For the HTTP API.
    pub http: reqwest::Client,
    audit: Mutex<Audit>,
    charts: TempDir,
    noted: Mutex<Vec<(Timestamp, String)>>,
}

impl Stage {
    async fn start() -> Result<Stage> {
        // Another part of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let lab = tokio::task::block_in_place(|| Lab::start(false))?;
        // For the lifetime of this process: the lab's watchdog ends it.
        let lab: &'static Lab = Box::leak(Box::new(lab));
        let client = lab.plane.client().await?;
        Percona::define(&client).await?;
        install_snapshots(&client).await?;
        let percona = Percona::start(&lab.plane).await?;
        Box::leak(Box::new(percona));
        let echo = serde_json::from_value(json!({"metadata": {"name": ECHO}}))?;
        Api::<Namespace>::all(client).create(&PostParams::default(), &echo).await?;
        let charts = tempfile::tempdir()?;
        charts::package(charts.path(), charts::DEFAULT, Content::Genuine)?;
        Ok(Stage {
            lab,
            recorder: Recorder::start(lab.plane.config().await?)?,
            fleet: tokio::task::block_in_place(|| Fleet::start(lab))?,
            http: reqwest::Client::new(),
            audit: Mutex::new(Audit::new(lab.plane.audit_log().context("the plane keeps no audit log")?)),
            charts,
            noted: Mutex::default(),
        })
    }

    /// A client for a life's requests.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(named(self.lab.plane.config().await?, LIFE))?)
    }

    /// Asks again after every change, until there is an answer or the time is up.
    pub async fn until<T>(&self, within: Duration, mut ask: impl FnMut(&Stage) -> Option<T>) -> Option<T> {
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

    /// The latest resource version seen.
    #[must_use]
    pub fn now(&self) -> Time {
        *self.recorder.changes().borrow()
    }

    /// The responses of the API server.
    pub fn audit(&self) -> MutexGuard<'_, Audit> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The packaged chart, for other Helm clients.
    #[must_use]
    pub fn chart(&self) -> PathBuf {
        self.charts.path().join(charts::file_name(charts::DEFAULT))
    }

    /// Records an event of the operator for the stories.
    pub fn note(&self, text: &str) {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).push((Timestamp::now(), text.to_owned()));
    }
}

fn named(mut config: Config, agent: &'static str) -> Config {
    config.headers.push((header::USER_AGENT, HeaderValue::from_static(agent)));
    config
}

/// A kind that holds data and that the operator does not know.
async fn install_snapshots(client: &Client) -> Result<()> {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let name = "volumesnapshots.snapshot.storage.k8s.io";
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": {
            "name": name, "annotations": {"api-approved.kubernetes.io": "unapproved, a stand-in for tests"},
        },
        "spec": {
            "group": "snapshot.storage.k8s.io", "scope": "Namespaced",
            "names": {"kind": "VolumeSnapshot", "plural": "volumesnapshots", "singular": "volumesnapshot"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}],
        },
    }))?;
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    api.create(&PostParams::default(), &definition).await?;
    await_condition(api, name, conditions::is_crd_established()).await?;
    Ok(())
}

/// A life that is over.
#[derive(Clone, Debug)]
pub struct Lived {
    /// Whether it failed, or could not be run.
    pub wrong: bool,
    pub script: Script,
    pub violations: Vec<Violation>,
    /// All of that, for people.
    pub story: String,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed of the first life.
    pub seed: u64,
    /// The lives that failed.
    pub failures: Vec<Lived>,
}

/// Runs the lives.
///
/// # Errors
/// If the lab cannot be started, or no operator leads any more.
pub fn run(options: &Options, progress: &Progress) -> Result<Outcome> {
    tokio::runtime::Runtime::new()?.block_on(live(options, progress))
}

async fn live(options: &Options, progress: &Progress) -> Result<Outcome> {
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
    progress.note(&format!("lives: {}, starting at seed {seed}", options.count));
    let scripts: Vec<Script> = (0..options.count).map(|life| script(seed.wrapping_add(life))).collect();
    let stage = Arc::new(Stage::start().await?);
    let task = progress.task("lives");
    task.steps(scripts.len());
    let trouble = (!options.calm).then(|| {
        let stage = stage.clone();
        tokio::spawn(async move { crate::random::disturbance::moments::trouble(&stage, seed).await })
    });
    let lives = stream::iter(scripts.into_iter().enumerate())
        .map(|(number, script)| spawned(&stage, format!("life-{number}"), script))
        .buffer_unordered(options.parallel.max(1))
        .inspect(|_| task.step())
        .collect::<Vec<_>>();
    let lived = match trouble {
        None => lives.await,
        Some(mut trouble) => tokio::select! {
            lived = lives => {
                trouble.abort();
                // It may be starting an operator.
                let _ = trouble.await;
                lived
            }
            ended = &mut trouble => return Err(ended?.expect_err("trouble has no end")),
        },
    };
    task.done();
    if options.tell {
        lived.iter().for_each(|lived| progress.note(&lived.story));
    }
    let mut failures: Vec<Lived> = lived.into_iter().filter(|lived| lived.wrong).collect();
    failures.sort_by_key(|failure| failure.script.seed);
    if options.shrink {
        for failure in &mut failures {
            *failure = shrink(&stage, failure.clone(), options.parallel, progress).await;
        }
    }
    stage.fleet.stop();
    Ok(Outcome { seed, failures })
}

/// One life, on its own task. A life that could not be run has failed.
async fn spawned(stage: &Arc<Stage>, namespace: String, script: Script) -> Lived {
    let lived = tokio::spawn(one(stage.clone(), namespace.clone(), script.clone())).await;
    lived.map_err(anyhow::Error::from).flatten().unwrap_or_else(|error| {
        let story = format!("{}\n  in namespace {namespace}: {error:#}\n", told(&script));
        Lived { wrong: true, script, violations: Vec::new(), story }
    })
}

async fn one(stage: Arc<Stage>, namespace: String, script: Script) -> Result<Lived> {
    let began = Timestamp::now();
    let mut life = Life::new(stage.clone(), namespace, script.made_namespace).await?;
    for moved in &script.moves {
        life.take(moved).await;
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        life.settled(left).await?;
        life.audit().await?;
        let rest = life.rest().await?;
        let (violations, details) = verdict(&life, &rest);
        if Instant::now() > deadline || !violations.iter().any(Violation::may_pass) {
            let story = story(&stage, &life, &script, began, &violations, &details);
            return Ok(Lived { wrong: !violations.is_empty(), script, violations, story });
        }
        let seen = stage.now();
        stage.until(POLL, |stage| (stage.now() > seen).then_some(())).await;
    }
}

/// The violations, and which client deleted each lost object.
fn verdict(life: &Life, rest: &[crate::random::oracle::ownership::Rest]) -> (Vec<Violation>, Vec<String>) {
    let audit = life.stage.audit();
    let requests = audit.requests.get(&life.namespace).map(Vec::as_slice).unwrap_or_default();
    let record = life.stage.recorder.record();
    let facts = Facts::new(&record, &life.namespace, requests, &life.asked);
    let violations = judge(&facts, rest);
    let lost = facts.objects.iter().filter(|seen| violations.iter().any(|violation| violation.what == seen.what()));
    let details = lost.map(|seen| {
        let maker = facts.maker(seen).map_or("an unknown client".to_owned(), ToString::to_string);
        let mut text = format!("{} uid {} was made by {maker}", seen.what(), seen.uid);
        if let Some(request) = facts.deleter(seen) {
            let _ = write!(text, "; {} by {} at {}", request.verb, request.actor, clock(request.at));
        } else if seen.gone.is_some() {
            text += "; no request for its deletion is on record";
        }
        text
    });
    let details = details.collect();
    (violations, details)
}

/// Reduces a failure to the steps that it needs, leaving out those without which it still happens.
async fn shrink(stage: &Arc<Stage>, failure: Lived, parallel: usize, progress: &Progress) -> Lived {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let same = |found: &Lived| {
        found
            .violations
            .iter()
            .any(|new| failure.violations.iter().any(|old| (old.wrong, &old.what) == (new.wrong, &new.what)))
    };
    let mut least = failure.clone();
    loop {
        let all = &least.script.moves;
        progress.note(&format!("shrinking seed {}: {} steps", failure.script.seed, all.len()));
        let candidates: Vec<Vec<Move>> = (0..all.len())
            .map(|left_out| {
                let kept = all.iter().enumerate().filter(|(index, _)| *index != left_out);
                kept.map(|(_, moved)| moved.clone()).collect()
            })
            .collect();
        let lives = stream::iter(candidates).map(|moves| {
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            spawned(stage, format!("life-less-{number}"), Script { moves, ..least.script.clone() })
        });
        let tried = lives.buffered(parallel.max(1)).collect::<Vec<_>>().await;
        match tried.into_iter().find(same) {
            Some(shorter) => least = shorter,
            None => return least,
        }
    }
}

fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S%.3f").to_string()
}

fn told(script: &Script) -> String {
    let mut text = format!(
        "seed {}{}:",
        script.seed,
        if script.made_namespace { ", in a namespace created for acme" } else { "" }
    );
    for moved in &script.moves {
        let _ = write!(text, "\n  {moved}");
    }
    text
}

/// The operators' log entries about a namespace: time and text.
fn logged(log: &str, namespace: &str) -> Vec<String> {
    let about = [format!("\"{namespace}/"), format!("\"{namespace}\""), format!(" {namespace}/")];
    let lines = log.lines().filter(|line| about.iter().any(|place| line.contains(place)));
    let lines = lines.filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
            format!("{} {} {} {}", text("timestamp"), text("message"), text("reason"), text("error"))
        })
        .collect()
}

/// A failure for people: the steps with times, the violations, the requests behind them, and the operators' log
/// entries.
fn story(
    stage: &Stage,
    life: &Life,
    script: &Script,
    began: Timestamp,
    violations: &[Violation],
    details: &[String],
) -> String {
    let made = if script.made_namespace { ", marked as created for acme" } else { "" };
    let mut text = format!("seed {}, in namespace {}{made}:\n", script.seed, life.namespace);
    let mut lines: Vec<(Timestamp, String)> = life
        .done
        .iter()
        .map(|Done { at, step, outcome }| (*at, format!("{step}\n                   -> {outcome}")))
        .collect();
    let noted = stage.noted.lock().unwrap_or_else(PoisonError::into_inner);
    lines.extend(noted.iter().filter(|(at, _)| *at >= began).map(|(at, note)| (*at, format!("* {note}"))));
    lines.sort();
    for (at, line) in lines {
        let _ = writeln!(text, "  {}  {line}", clock(at));
    }
    for violation in violations {
        let _ = writeln!(text, "  {violation}");
    }
    for detail in details {
        let _ = writeln!(text, "    {detail}");
    }
    for line in logged(&stage.fleet.log(), &life.namespace) {
        let _ = writeln!(text, "    log: {line}");
    }
    let _ = writeln!(text, "  again: cargo e2e lives --seed {} --count 1", script.seed);
    text
}
