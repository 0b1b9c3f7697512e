//! Many apps with random lives for a long time, while the operator and the API server are killed, the Lease is stolen, watches are cut
//! and another Helm client works on the releases. Afterwards nothing is left over, and the operator does not grow with the same work
//! again and again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::Postgresql;
use futures::future::{join_all, try_join_all};
use kube::api::{Api, ListParams};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::{sleep_until, timeout};

use crate::helm::Helm;
use crate::manifests;
use crate::progress::{Progress, Task};
use crate::proxy::{Fault, Rule};
use crate::random::disturbance::blow::{Blow, Side, Target};
use crate::random::disturbance::schedule::{PACES, Pace, schedule};
use crate::random::oracle::evidence::{exposed, passwords_in};
use crate::random::oracle::leaks::{Measured, leaks, lingering, measure};
use crate::random::oracle::ownership::history::Kind;
use crate::random::oracle::rest::{Key, apps, as_expected, is_looked_for, orphans, releases, samples, untrue};
use crate::random::oracle::{Oracle, Violation};
use crate::random::stage::on_a_thread;
use crate::random::workload::life::lasting::{GONE, Lasting};
use crate::random::workload::life::step::{Edit, Policy, Step};
use crate::random::world::World;
use crate::random::{Common, Outcome, of_the_run};
use crate::wait::within;

/// The number of apps that share a namespace.
const IN_NAMESPACE: usize = 10;
/// The prefix of the names of namespaces.
const NAMESPACE: &str = "soak-";
/// How often an undisturbed operator does the same work.
const ROUNDS: usize = 3;
/// The number of apps in that work, at most.
const NEWCOMERS: usize = 20;
/// For everything to come to rest: longer than the longest wait before another attempt of helm.
const AT_REST: Duration = Duration::from_secs(900);
/// How often the progress is told.
const TOLD: Duration = Duration::from_secs(5);
/// After this time each watch is cut.
const WATCHES_CUT: Duration = Duration::from_secs(10);
/// For a release that another Helm client can change.
const OTHER_HELM: Duration = Duration::from_secs(60);
/// For a watch that is late, and for what the operator still has in use just after its work: idle threads end after ten seconds.
const CALM: Duration = Duration::from_secs(20);
/// How long nothing that is in use changes before it is measured after a round.
const STILL: Duration = Duration::from_secs(2);

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
    /// How long everything is disturbed, in minutes. What precedes and follows comes on top
    #[arg(long, value_name = "M", default_value_t = 60.0)]
    pub minutes: f64,
}

pub(crate) async fn run(options: &Options, seed: u64, progress: &Progress) -> Result<Outcome> {
    ensure!(options.minutes >= 0.1, "a soak test takes a tenth of a minute, at least");
    let total = Duration::from_secs_f64(60.0 * options.minutes);
    let mut random = StdRng::seed_from_u64(seed);
    let count = options.common.parallel.unwrap_or(200);
    let world = Arc::new(World::start(false).await?);
    world.proxy.set([Rule::new("watch", "*", Fault::Cut(WATCHES_CUT))]);
    let (mut lives, mut newcomers) = (Vec::new(), Vec::new());
    for number in 0..count {
        let namespace = format!("{NAMESPACE}{}", number / IN_NAMESPACE);
        lives.push(Lasting::new(&world, &namespace, number, random.random()).await?);
    }
    for number in 0..count.min(NEWCOMERS) {
        newcomers.push(Lasting::new(&world, &format!("{NAMESPACE}rounds"), number, random.random()).await?);
    }
    let mut soak = Soak {
        world,
        random,
        outcome: Outcome { cases: count, ..Outcome::default() },
        struck: Vec::new(),
        searched: 0,
        peak: 0,
    };
    soak.disturbed(&mut lives, total, progress).await?;

    let task = progress.task("at rest");
    soak.world.proxy.set([]);
    soak.outcome.count("steps", *soak.world.steps.borrow());
    if !soak.reached(&lives).await {
        return Ok(soak.outcome);
    }
    // A broken app is tried again at times, so that nothing is at rest before all are put right.
    for life in &mut lives {
        if let Some(remedy) = life.app.remedy() {
            life.take(remedy).await?;
        }
    }
    // What follows would wait for the same app again.
    if !soak.reached(&lives).await {
        return Ok(soak.outcome);
    }
    soak.at_rest().await?;
    let before = soak.measure("at rest").await?;
    task.done();

    soak.rounds(&mut newcomers, progress.task("the same work again")).await?;
    let task = progress.task("deletion");
    soak.deleted(&mut lives).await?;
    soak.stopped(&before).await?;
    task.done();
    for Pace { title, .. } in PACES {
        let times = soak.struck.iter().filter(|struck| **struck == title).count();
        soak.outcome.count(title, times);
    }
    soak.outcome.count("peak memory of the operator in KiB", soak.peak);
    Ok(soak.outcome)
}

/// A run, and what it has found so far.
struct Soak {
    world: Arc<World>,
    random: StdRng,
    outcome: Outcome,
    /// Says what was struck, by title.
    struck: Vec<&'static str>,
    /// How many passwords were looked for.
    searched: usize,
    /// The most memory that any operator had, in KiB.
    peak: u64,
}

impl Soak {
    fn violated(&mut self, oracle: Oracle, whys: impl IntoIterator<Item = String>) {
        self.outcome.failures.extend(of_the_run(Violation::all(oracle, whys).collect()));
    }

    /// Lets the apps live while there is trouble.
    async fn disturbed(&mut self, lives: &mut [Lasting], total: Duration, progress: &Progress) -> Result<()> {
        let task = progress.task("soak");
        // An app's next step does not wait for more steps than the others take meanwhile.
        let others = 4 * lives.len() as u64;
        let (stop, stopped) = watch::channel(false);
        let (world, random) = (self.world.clone(), StdRng::seed_from_u64(self.random.random()));
        let mut struck = on_a_thread(async move || trouble(&world, random, total).await);
        let ended = async {
            let ended = loop {
                match timeout(TOLD, &mut struck).await {
                    Ok(ended) => break ended,
                    Err(_) => task.message(format!("{} steps", *self.world.steps.borrow())),
                }
            };
            stop.send_replace(true);
            ended
        };
        let living = join_all(lives.iter_mut().map(|life| life.live(stopped.clone(), others)));
        let (lived, ended) = futures::join!(living, ended);
        task.done();
        let Struck { titles, exposed, searched, peak } = ended??;
        (self.struck, self.searched, self.peak) = (titles, searched, peak);
        self.violated(Oracle::Secrecy, exposed);
        let failed =
            lives.iter().zip(lived).filter_map(|(life, lived)| life.story(format!("{:#}", lived.err()?)).failure());
        self.outcome.failures.extend(failed);
        Ok(())
    }

    /// Waits until all apps are as expected, and tells the stories of those that are not in time. Returns whether all are.
    async fn reached(&mut self, lives: &[Lasting]) -> bool {
        let all = |world: &World| {
            let record = world.recorder.record();
            lives.iter().all(|life| life.judged(&record).is_ok()).then_some(())
        };
        self.world.until(AT_REST, all).await;
        let record = self.world.recorder.record();
        let wrong: Vec<_> = lives.iter().filter_map(|life| life.story(life.judged(&record).err()?).failure()).collect();
        let all = wrong.is_empty();
        self.outcome.failures.extend(wrong);
        all
    }

    /// Judges what the statuses and the caches say with everything at rest: `/metrics` counts as many apps as there are, and a new
    /// operator that finds everything at rest writes nothing.
    async fn at_rest(&mut self) -> Result<()> {
        let untrue = untrue(&self.world.recorder.record());
        self.violated(Oracle::Truth, untrue);
        let revisions: i64 = releases(&self.world.recorder.record()).values().map(|(revision, _)| revision).sum();
        self.outcome.count("revisions at rest", revisions);
        self.counts().await;
        self.world.proxy.count_writes(None);
        let databases = Api::<Postgresql>::all(self.world.stage.client.clone());
        let databases = databases.list_metadata(&ListParams::default()).await?;
        let objects = databases.items.len() + apps(&self.world.recorder.record()).count();
        let mut operators = self.world.operators().await;
        block_in_place(|| {
            operators.terminate(|| {})?;
            operators.lead()?;
            operators.has_reconciled(objects)
        })?;
        drop(operators);
        self.counts().await;
        let writes = self.world.proxy.writes();
        // The Lease's is not one of them.
        self.violated(
            Oracle::Caches,
            writes.iter().map(|write| format!("with all at rest, the operators sent: {write}")),
        );
        Ok(())
    }

    /// Compares what `/metrics` counts with the apps that there are, for as long as a watch may be late.
    async fn counts(&mut self) {
        let counted = within(CALM, "/metrics counts the apps as they are", async || {
            let samples = samples(&self.world.recorder.record());
            let mut operators = self.world.operators().await;
            block_in_place(|| {
                let operator = operators.running.as_mut().ok_or("no operator runs")?;
                for (sample, count) in samples {
                    let counted = operator.counted(&sample).map_err(|error| format!("{error:#}"))?;
                    // Far below the limit up to which such a number is exact.
                    if counted != count as f64 {
                        return Err(format!("{sample} is {counted}, and there are {count} such apps"));
                    }
                }
                Ok::<_, String>(())
            })
        });
        let wrong = counted.await.err().map(|error| format!("{error:#}"));
        self.violated(Oracle::Caches, wrong);
    }

    /// The same work again and again: apps are created and deleted. Measures the operator after each round.
    async fn rounds(&mut self, newcomers: &mut [Lasting], task: Task<'_>) -> Result<()> {
        let mut rounds = Vec::new();
        for round in 1..=ROUNDS {
            try_join_all(newcomers.iter_mut().map(Lasting::create)).await?;
            if !self.reached(newcomers).await {
                return Ok(());
            }
            newcomers.iter_mut().for_each(|life| life.app = life.app.rested());
            try_join_all(newcomers.iter_mut().map(Lasting::delete)).await?;
            self.still().await?;
            rounds.push(self.measure(&format!("after round {round}")).await?);
        }
        self.violated(Oracle::Leaks, leaks(&rounds));
        task.done();
        Ok(())
    }

    /// Waits until what the operator has in use does not change, apart from threads, which stay a while when they are idle.
    async fn still(&self) -> Result<()> {
        let mut last = (Instant::now(), in_use(&self.world).await?);
        _ = within(CALM, "the operator is at rest", async || {
            let now = in_use(&self.world).await?;
            if !now.is_like(&last.1) {
                last = (Instant::now(), now);
            }
            ensure!(last.0.elapsed() >= STILL, "{now}");
            Ok::<_, anyhow::Error>(())
        })
        .await;
        Ok(())
    }

    async fn measure(&mut self, when: &str) -> Result<Measured> {
        let measured = in_use(&self.world).await?;
        self.outcome.counted.push((format!("in use {when}"), measured.to_string()));
        self.peak = self.peak.max(measured.peak);
        Ok(measured)
    }

    /// Deletes all apps: nothing is left but what `Retain` keeps.
    async fn deleted(&mut self, lives: &mut [Lasting]) -> Result<()> {
        let retaining = lives.iter_mut().filter(|life| life.app.exists && life.app.retain).step_by(2);
        let edits = retaining.map(|life| {
            let edit = Step::Edit(life.app.name, Edit::Policy(Policy::Delete));
            life.take(edit)
        });
        try_join_all(edits).await?;
        let going = lives.iter_mut().filter(|life| life.app.exists);
        let gone = join_all(going.map(async |life| {
            let gone = life.delete().await;
            gone.err().and_then(|error| life.story(format!("{error:#}")).failure())
        }));
        self.outcome.failures.extend(gone.await.into_iter().flatten());
        let kept: BTreeSet<Key> = lives.iter().filter(|life| life.app.left).map(Lasting::key).collect();
        let left = async || {
            let mut objects = self.world.stage.listed(None, is_looked_for).await?;
            objects.retain(|object| object.metadata.namespace.as_deref().is_some_and(|it| it.starts_with(NAMESPACE)));
            Ok::<_, anyhow::Error>(orphans(&objects, &kept))
        };
        // The garbage collector takes a little longer.
        let nothing = within(GONE, "nothing is left", async || match left().await {
            Ok(left) if left.is_empty() => Ok(()),
            Ok(_) => Err("something is".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        });
        let left = if nothing.await.is_ok() { Vec::new() } else { left().await? };
        self.outcome.count("orphans", left.len());
        self.violated(Oracle::Left, left);
        self.counts().await;
        Ok(())
    }

    /// Stops the operator, once it has no more in use than before, and judges what it and its predecessors have left.
    async fn stopped(&mut self, before: &Measured) -> Result<()> {
        let calm = async || in_use(&self.world).await.is_ok_and(|now| lingering(before, &now, 1).is_none());
        _ = within(CALM, "the operator has no more threads than before", calm).await;
        let after = self.measure("without apps").await?;
        self.violated(Oracle::Leaks, lingering(before, &after, ROUNDS));
        let world = self.world.clone();
        let mut operators = world.operators().await;
        // Helms of different releases may overlap.
        let remains = block_in_place(|| operators.stop())?;
        self.outcome.count("helm runs", remains.arguments.len());
        self.violated(Oracle::Orphans, remains.leftovers);
        let mut wrong = passwords(&self.world, &remains.log, &remains.arguments, &mut self.searched);
        if self.searched == 0 {
            wrong.push("no Secret with a password was seen, so that nothing was looked for".to_owned());
        }
        self.violated(Oracle::Secrecy, wrong);
        Ok(())
    }
}

async fn in_use(world: &World) -> Result<Measured> {
    let operators = world.operators().await;
    measure(operators.running.as_ref().context("no operator runs")?, &operators.temporary())
}

/// Returns where a password is besides Secrets, of all Secrets that there were since the last call.
fn passwords(world: &World, log: &str, arguments: &[String], searched: &mut usize) -> Vec<String> {
    let mut record = world.recorder.record();
    let canaries: BTreeSet<_> = record.of_kind(Kind::Secret).flat_map(|secret| passwords_in(secret.last())).collect();
    record.forget();
    drop(record);
    *searched += canaries.len();
    exposed(&canaries, log, arguments)
}

/// The outcome of the trouble.
struct Struck {
    titles: Vec<&'static str>,
    /// A sentence for each password outside Secrets.
    exposed: Vec<String>,
    /// How many passwords were looked for.
    searched: usize,
    peak: u64,
}

/// Strikes when it is time, until this time has passed. It blocks its thread now and then.
async fn trouble(world: &World, mut random: StdRng, total: Duration) -> Result<Struck> {
    let lab = world.stage.lab;
    let helm = Helm::for_cluster(&lab.tools.helm, &lab.plane.kubeconfig())?;
    let (began, mut struck) =
        (Instant::now(), Struck { titles: Vec::new(), exposed: Vec::new(), searched: 0, peak: 0 });
    for (at, Pace { blow, title, .. }) in schedule(total) {
        sleep_until((began + at).into()).await;
        let blow = match blow {
            Blow::Kill(_) if random.random_bool(0.5) => Blow::KillTree(Side::Meanwhile),
            blow => blow,
        };
        struck.peak = struck.peak.max(in_use(world).await?.peak);
        // It counts all writes, and nothing asks for so many.
        world.proxy.count_writes(None);
        let leases = world.stage.leases(manifests::NAMESPACE);
        let mut operators = world.operators().await;
        let (proxy, leads_at_once) = (&world.proxy, random.random_bool(0.5));
        let mut target = Target { lab, operators: &mut operators, proxy, leases, leads_at_once };
        // One after the other, so never during an outage, in which helm would leave a lock behind.
        let ran = target.strike(blow, async || change_release(world, &helm, &mut random).await).await;
        ran.with_context(|| format!("{title} after {} s", began.elapsed().as_secs()))?;
        struck.exposed.extend(passwords(world, &operators.take_log(), &[], &mut struck.searched));
        struck.titles.push(title);
    }
    sleep_until((began + total).into()).await;
    Ok(struck)
}

/// Upgrades or uninstalls a release that is at rest, as another Helm client. No app is deleted meanwhile.
async fn change_release(world: &World, helm: &Helm, random: &mut StdRng) -> Result<()> {
    let (uninstalls, chart) = (random.random_bool(0.5), world.chart().display().to_string());
    let _no_deletion = world.deletions.write().await;
    within(OTHER_HELM, "another Helm client has changed a release", async || {
        let at_rest: Vec<Key> = {
            let record = world.recorder.record();
            let ready = apps(&record).filter(|app| {
                as_expected(Some(&["Ready"]), None, Some(app.last())).is_ok() && app.last()["spec"]["suspend"] != true
            });
            ready.map(|app| (app.namespace.clone(), app.name.clone())).collect()
        };
        let Some((namespace, name)) = at_rest.choose(random) else { return Err("no app is Ready".to_owned()) };
        let arguments: &[&str] = match uninstalls {
            true => &["uninstall", name],
            false => &["upgrade", name, &chart, "--reuse-values", "--set", "podAnnotations.by=hand"],
        };
        let ran = helm.run(&[arguments, &["--namespace", namespace]].concat()).map_err(|error| format!("{error:#}"))?;
        if ran.success { Ok(()) } else { Err(ran.stderr) }
    })
    .await
}
