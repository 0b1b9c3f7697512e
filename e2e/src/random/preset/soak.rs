//! A soak test: many apps with random lives for a long time, while the operator and the API server are killed, the
//! Lease is stolen, watches are cut and another Helm client works on the releases. Afterwards nothing is left over, and
//! the operator does not grow with the same work again and again.
//!
//! | | module | |
//! |---|---|---|
//! | what a user does next, and what then has to become of the app | life | pure |
//! | when what is disturbed | schedule | pure |
//! | what has to hold at rest | end | pure |
//! | what a process has in use | measure | effect |
//! | carries out the lives | live | effect |
//! | disturbs them | trouble | effect |

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::future::{join_all, try_join_all};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, ListParams};
use kube::discovery::{Discovery, Scope, verbs};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::block_in_place;
use tokio::time::timeout;

use crate::lab::{Lab, Tenant};
use crate::plane::ControlPlane;
use crate::progress::Progress;
use crate::random::disturbance::schedule::{Blow, schedule};
use crate::random::disturbance::trouble::{Stopped, Tally, Trouble};
use crate::random::oracle::leaks::{Measured, leaks};
use crate::random::oracle::rest::{Found, Key, Releases, is_looked_for, orphans, releases, untrue};
use crate::random::workload::case::on_a_thread;
use crate::random::workload::life::app::{Action, App};
use crate::random::workload::live::{GONE, Life, Shared, follow};
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

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// How long everything is disturbed, in minutes. What precedes and follows comes on top
    #[arg(long, value_name = "M", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    pub minutes: u64,
    /// Number of apps
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub apps: u32,
    /// Chooses what users and disturbances do. Default: the current time
    #[arg(long, env = "SOAK_SEED")]
    pub seed: Option<u64>,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    pub seed: u64,
    pub apps: usize,
    /// What users did while everything was disturbed.
    pub actions: u64,
    pub blows: Tally,
    pub helm_runs: usize,
    /// Of all releases, once everything was at rest.
    pub revisions: i64,
    /// The most memory that an operator had, in KiB.
    pub peak: u64,
    /// What the operator has in use at rest, after each round of the same work, and without apps.
    pub in_use: Vec<(String, Measured)>,
    pub orphans: usize,
    /// A story for each.
    pub violations: Vec<String>,
}

impl Outcome {
    /// The table, and all violations.
    #[must_use]
    pub fn told(&self) -> String {
        let Outcome { seed, apps, actions, blows, helm_runs, revisions, peak, in_use, orphans, violations } = self;
        let struck = |blow: Blow| blows.get(&blow).copied().unwrap_or_default().to_string();
        let mut rows = vec![
            ("apps".to_owned(), apps.to_string()),
            ("actions of users".to_owned(), actions.to_string()),
            ("operator killed".to_owned(), struck(Blow::Kill)),
            ("API server killed".to_owned(), struck(Blow::Outage)),
            ("Lease stolen".to_owned(), struck(Blow::Theft)),
            ("upgrades and uninstalls by another Helm client".to_owned(), struck(Blow::OtherHelm)),
            ("helm runs".to_owned(), helm_runs.to_string()),
            ("revisions at rest".to_owned(), revisions.to_string()),
            ("peak memory of the operator".to_owned(), format!("{:.1} MiB", *peak as f64 / 1024.0)),
        ];
        rows.extend(in_use.iter().map(|(when, measured)| (format!("in use {when}"), measured.to_string())));
        rows.push(("orphans".to_owned(), orphans.to_string()));
        rows.push(("violations".to_owned(), violations.len().to_string()));
        let mut text = format!("| seed | {seed} |\n|---|---|\n");
        rows.iter().for_each(|(what, value)| _ = writeln!(text, "| {what} | {value} |"));
        violations.iter().for_each(|violation| _ = write!(text, "\nseed {seed}: {violation}\n"));
        text
    }
}

/// Runs the test.
///
/// # Errors
/// If the lab cannot be started, or no operator leads any more.
pub fn run(options: &Options, progress: &Progress) -> Result<Outcome> {
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
    progress.note(&format!("soak: {} apps for {} minutes, seed {seed}", options.apps, options.minutes));
    let ran = tokio::runtime::Runtime::new()?.block_on(soak(options, seed, progress));
    ran.with_context(|| format!("seed {seed}"))
}

async fn soak(options: &Options, seed: u64, progress: &Progress) -> Result<Outcome> {
    // Another part of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut random = StdRng::seed_from_u64(seed);
    // For the lifetime of this process: the lab's watchdog ends it.
    let lab: &'static Lab = Box::leak(Box::new(block_in_place(|| Lab::start_on(ControlPlane::builder(), true))?));
    let client = lab.plane.client().await?;
    let (seen, apps) = watch::channel(crate::random::oracle::rest::Apps::new());
    tokio::spawn(follow(client.clone(), seen));
    let shared = Arc::new(Shared { apps, actions: watch::Sender::default() });
    let rest = Rest { client, shared: shared.clone() };
    let mut life = |number: usize, tenant: &Arc<Tenant>| {
        let random = StdRng::seed_from_u64(random.random());
        Life::new(App::new(number), tenant.clone(), format!("app-{number}"), shared.clone(), random)
    };
    let count = usize::try_from(options.apps)?;
    let mut tenants = Vec::new();
    for number in 0..count.div_ceil(IN_NAMESPACE) {
        tenants.push(Arc::new(lab.tenant(&format!("{NAMESPACE}{number}")).await));
    }
    let mut lives: Vec<_> = (0..count).map(|number| life(number, &tenants[number / IN_NAMESPACE])).collect();
    let tenant = Arc::new(lab.tenant(&format!("{NAMESPACE}rounds")).await);
    let mut newcomers: Vec<_> = (0..count.min(NEWCOMERS)).map(|number| life(number, &tenant)).collect();
    let trouble = Trouble::start(lab, tenants, shared.apps.clone(), StdRng::seed_from_u64(random.random())).await?;

    let total = Duration::from_secs(60 * options.minutes);
    let (mut trouble, mut violations) = disturbed(&shared, &mut lives, trouble, total, progress).await?;
    trouble.lull();
    let actions = *shared.actions.borrow();

    let task = progress.task("at rest");
    violations.extend(rest.reached(&lives).await);
    // A broken app is tried again at times, so that nothing is at rest before all are put right.
    for life in &mut lives {
        if let Some(remedy) = life.app.remedy() {
            life.act(remedy).await?;
        }
    }
    violations.extend(rest.reached(&lives).await);
    lives.iter_mut().for_each(|life| life.app = life.app.rested());
    let helms = rest.releases().await?;
    violations.extend(untrue(&shared.apps.borrow(), &helms));
    violations.extend(trouble.stale().await?);
    let before = trouble.measure()?;
    let mut in_use = vec![("at rest".to_owned(), before)];
    task.done();

    let task = progress.task("the same work again");
    let mut rounds = Vec::new();
    for round in 1..=ROUNDS {
        all(&mut newcomers, Action::Create { retain: false }).await?;
        violations.extend(rest.reached(&newcomers).await);
        newcomers.iter_mut().for_each(|life| life.app = life.app.rested());
        trouble.passwords.look().await?;
        all(&mut newcomers, Action::Delete).await?;
        let measured = trouble.calm(rounds.first().unwrap_or(&before)).await?;
        rounds.push(measured);
        in_use.push((format!("after round {round}"), measured));
    }
    violations.extend(leaks(&rounds));
    task.done();

    let task = progress.task("deletion");
    let retaining = lives.iter_mut().filter(|life| life.app.exists && life.app.retain).step_by(2);
    try_join_all(retaining.map(|life| life.act(Action::Retain(false)))).await?;
    let going = lives.iter_mut().filter(|life| life.app.exists);
    let gone = join_all(going.map(|life| async move {
        let gone = life.act(Action::Delete).await;
        gone.map_err(|error| life.story(&format!("{error:#}")))
    }));
    violations.extend(gone.await.into_iter().filter_map(Result::err));
    let kept: BTreeSet<_> = lives.iter().filter(|life| life.app.left).map(Life::key).collect();
    let left = rest.left(&kept).await?;
    let orphans = left.len();
    violations.extend(left);
    violations.extend(trouble.miscounted().await);
    in_use.push(("without apps".to_owned(), trouble.calm(&before).await?));
    let Stopped { tally: blows, peak, helm_runs, violations: found } = trouble.stop().await?;
    violations.extend(found);
    task.done();

    let revisions = helms.values().map(|(revision, _)| revision).sum();
    Ok(Outcome { seed, apps: count, actions, blows, helm_runs, revisions, peak, in_use, orphans, violations })
}

/// Lets the apps live while there is trouble. Returns it with the stories of the lives that could not go on.
async fn disturbed(
    shared: &Shared,
    lives: &mut [Life],
    mut trouble: Trouble,
    total: Duration,
    progress: &Progress,
) -> Result<(Trouble, Vec<String>)> {
    let task = progress.task("soak");
    // An app's next action does not wait for more actions than the others take meanwhile.
    let others = 4 * lives.len() as u64;
    let (stop, stopped) = watch::channel(false);
    let mut struck = on_a_thread(async move || {
        let ran = trouble.run(&schedule(total), total).await;
        (trouble, ran)
    });
    let ended = async {
        let ended = loop {
            match timeout(TOLD, &mut struck).await {
                Ok(ended) => break ended,
                Err(_) => task.message(format!("{} actions", *shared.actions.borrow())),
            }
        };
        stop.send_replace(true);
        ended
    };
    let living = join_all(lives.iter_mut().map(|life| life.live(stopped.clone(), others)));
    let (lived, ended) = futures::join!(living, ended);
    task.done();
    let (trouble, ran) = ended?;
    ran?;
    let failed = lives.iter().zip(lived).filter_map(|(life, lived)| Some(life.story(&format!("{:#}", lived.err()?))));
    Ok((trouble, failed.collect()))
}

/// The same action of each.
async fn all(lives: &mut [Life], action: Action) -> Result<()> {
    try_join_all(lives.iter_mut().map(|life| life.act(action))).await.map(drop)
}

/// Waits until everything is at rest, and looks at it.
struct Rest {
    client: Client,
    shared: Arc<Shared>,
}

impl Rest {
    /// Waits until all apps are as expected. Returns the stories of those that are not in time.
    async fn reached(&self, lives: &[Life]) -> Vec<String> {
        let mut apps = self.shared.apps.clone();
        let reached = apps.wait_for(|apps| lives.iter().all(|life| life.judged(apps).is_ok()));
        _ = timeout(AT_REST, reached).await;
        let apps = self.shared.apps.borrow();
        lives.iter().filter_map(|life| life.judged(&apps).err().map(|why| life.story(&why))).collect()
    }

    /// The releases in Helm's storage.
    async fn releases(&self) -> Result<Releases> {
        let of_helm = ListParams::default().labels("owner=helm");
        let secrets = Api::<Secret>::all(self.client.clone()).list_metadata(&of_helm).await?;
        Ok(releases(secrets.items.iter().map(|secret| &secret.metadata)))
    }

    /// Waits until nothing is left but what `Retain` keeps of these apps. Returns what is left all the same, a sentence
    /// each.
    async fn left(&self, kept: &BTreeSet<Key>) -> Result<Vec<String>> {
        let discovery = Discovery::new(self.client.clone()).run().await?;
        let all = discovery.groups().flat_map(|group| group.recommended_resources());
        let kinds = all.filter(|(kind, able)| {
            able.scope == Scope::Namespaced && able.supports_operation(verbs::LIST) && is_looked_for(&kind.kind)
        });
        let kinds: Vec<_> = kinds.map(|(kind, _)| kind).collect();
        // The garbage collector takes a little longer.
        let nothing = within(GONE, "nothing is left", async || match self.objects(&kinds).await {
            Ok(objects) if orphans(&objects, kept).is_empty() => Ok(()),
            Ok(_) => Err("something is".to_owned()),
            Err(error) => Err(format!("{error:#}")),
        });
        if nothing.await.is_ok() {
            return Ok(Vec::new());
        }
        Ok(orphans(&self.objects(&kinds).await?, kept))
    }

    async fn objects(&self, kinds: &[ApiResource]) -> Result<Vec<Found>> {
        let mut objects = Vec::new();
        for kind in kinds {
            let api: Api<DynamicObject> = Api::all_with(self.client.clone(), kind);
            let listed = api.list_metadata(&ListParams::default()).await?.items.into_iter();
            let found = listed.map(|object| Found { kind: kind.kind.clone(), metadata: object.metadata });
            let is_ours =
                |object: &Found| object.metadata.namespace.as_deref().is_some_and(|it| it.starts_with(NAMESPACE));
            objects.extend(found.filter(is_ours));
        }
        Ok(objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told() {
        let measured = Measured { memory: 51_200, peak: 61_440, descriptors: 40, threads: 6, children: 0, files: 12 };
        let outcome = Outcome {
            seed: 7,
            apps: 12,
            actions: 80,
            blows: Tally::from([(Blow::Kill, 3), (Blow::Outage, 1), (Blow::OtherHelm, 2)]),
            helm_runs: 90,
            revisions: 30,
            peak: 61_440,
            in_use: vec![("at rest".to_owned(), measured)],
            orphans: 1,
            violations: vec!["Pod soak-0/x is left".to_owned()],
        };
        let told = outcome.told();
        for line in [
            "| seed | 7 |\n|---|---|\n| apps | 12 |\n",
            "| operator killed | 3 |",
            "| Lease stolen | 0 |",
            "| peak memory of the operator | 60.0 MiB |",
            "| in use at rest | 50.0 MiB, 40 descriptors, 6 threads, 0 child processes, 12 files |",
            "| violations | 1 |\n\nseed 7: Pod soak-0/x is left\n",
        ] {
            assert!(told.contains(line), "{line} is not in\n{told}");
        }
    }
}
