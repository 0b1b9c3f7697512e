//! Random tests on a real control plane with a real helm: one engine, which composes a workload, a disturbance and oracles. The same
//! seed gives the same cases.
//!
//! | command | workload | disturbance | oracles |
//! |---|---|---|---|
//! | `lives` | random lives of apps and databases | kill and freeze at [moments](disturbance::moments) | nothing is lost or left over |
//! | `faults` | fixed [scenarios](workload::scenario) | a [row](disturbance::row) of the matrix at the nth write | O1 to O6 |
//! | `soak` | lives of apps with a known end | a [schedule](disturbance::schedule) | rest, caches, leaks, orphans |
//! | `specs` | sequences of [specs](workload::specs), [strings](workload::strings) | none | the last spec alone gives the same |

pub mod disturbance;
mod oracle;
pub mod preset;
pub mod report;
mod requests;
mod stage;
pub mod workload;
mod world;

use std::fmt::Display;
use std::pin::pin;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;

pub use self::oracle::state::RELEASE;
use self::oracle::{Oracle, Violation};
pub use self::report::Outcome;
use self::report::Ran;
use self::stage::on_a_thread;
use crate::progress::Progress;

/// The options of all commands.
#[derive(clap::Args, Clone, Debug)]
pub struct Common {
    /// Chooses everything random; that of further cases counts up from it. Default: the current time
    #[arg(long, env = "RANDOM_SEED")]
    pub seed: Option<u64>,
    /// Number of cases at the same time; of a soak test, of apps. Default: as many as suit the command
    #[arg(long, value_name = "N", visible_alias = "apps")]
    pub parallel: Option<usize>,
    /// Print JSON instead of tables
    #[arg(long)]
    pub json: bool,
}

/// The options of commands whose cases are sequences of steps.
#[derive(clap::Args, Clone, Debug)]
pub struct Sequences {
    #[command(flatten)]
    pub common: Common,
    /// Number of lives or sequences, each with a seed of its own
    #[arg(long, default_value_t = 40)]
    pub count: u64,
    /// Look for the fewest steps that still lead to each failure
    #[arg(long)]
    pub shrink: bool,
}

/// A composition of workload, disturbance and oracles.
#[derive(clap::Subcommand, Clone, Debug)]
pub enum Preset {
    /// Run random lives of apps and databases, and check that no data is lost
    Lives(preset::lives::Options),
    /// Run every scenario with every fault at every moment, and check that it ends as without the fault
    Faults(preset::faults::Options),
    /// Run many apps for a long time while everything is disturbed, and check that nothing leaks and nothing is left
    Soak(preset::soak::Options),
    /// Change specs of all kinds at random, and check that objects end as their last spec alone makes them
    Specs(preset::specs::Options),
}

impl Preset {
    /// Returns what it has in common with the others.
    pub fn common(&mut self) -> &mut Common {
        match self {
            Preset::Lives(options) => &mut options.sequences.common,
            Preset::Faults(options) => &mut options.common,
            Preset::Soak(options) => &mut options.common,
            Preset::Specs(options) => &mut options.sequences.common,
        }
    }

    /// Runs it.
    ///
    /// # Errors
    /// If the lab cannot be started, two undisturbed runs differ, or no operator leads any more.
    pub fn run(&mut self, progress: &Progress) -> Result<Outcome> {
        let seed = self.common().seed.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
        progress.note(&format!("seed {seed}"));
        let runtime = tokio::runtime::Runtime::new()?;
        let outcome = runtime.block_on(async {
            match self {
                Preset::Lives(options) => preset::lives::run(options, seed, progress).await,
                Preset::Faults(options) => preset::faults::run(options, seed, progress).await,
                Preset::Soak(options) => preset::soak::run(options, seed, progress).await,
                Preset::Specs(options) => preset::specs::run(options, seed, progress).await,
            }
        });
        // After Ctrl-C, cases are still under way.
        runtime.shutdown_background();
        Ok(Outcome { seed, ..outcome.with_context(|| format!("seed {seed}"))? })
    }
}

/// Cases that are sequences of steps.
trait Workload: Send + Sync + 'static {
    type Step: Clone + Display + Send + Sync + 'static;

    /// Runs the steps of a seed, or these in their place, and judges them.
    async fn run(&self, seed: u64, steps: Option<Vec<Self::Step>>) -> Result<Ran<Self::Step>>;
}

/// Runs cases, so many at a time, and tells the story of each that failed. Ctrl-C ends the run: returns whether it did.
async fn each<C, R>(
    title: &'static str,
    cases: Vec<C>,
    parallel: usize,
    progress: &Progress,
    run: impl AsyncFn(C) -> R,
    failure: impl Fn(&R) -> Option<String>,
) -> (Vec<R>, bool) {
    let task = progress.task(title);
    task.steps(cases.len());
    let mut ran = Vec::new();
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut running = pin!(stream::iter(cases).map(|case| run(case)).buffer_unordered(parallel.max(1)));
    loop {
        let next = tokio::select! {
            biased;
            _ = &mut interrupted => {
                progress.note("interrupted; what follows is of the cases until now");
                return (ran, true);
            }
            next = running.next() => next,
        };
        let Some(next) = next else { break };
        task.step();
        if let Some(failure) = failure(&next) {
            progress.note(&failure);
        }
        ran.push(next);
    }
    task.done();
    (ran, false)
}

/// Runs the sequences of these seeds, in the order of which they are returned.
async fn sequences<W: Workload>(
    workload: &Arc<W>,
    seed: u64,
    count: u64,
    parallel: usize,
    progress: &Progress,
) -> Vec<Ran<W::Step>> {
    let seeds = (0..count).map(|nth| seed.wrapping_add(nth)).collect();
    let run = async |seed| attempt(workload, seed, None).await;
    let (mut ran, _) = each("sequences", seeds, parallel, progress, run, Ran::failure).await;
    ran.sort_by_key(|ran| ran.seed);
    ran
}

/// Runs one sequence on its own thread. One that could not be run has failed.
async fn attempt<W: Workload>(workload: &Arc<W>, seed: u64, steps: Option<Vec<W::Step>>) -> Ran<W::Step> {
    let workload = workload.clone();
    let ran = on_a_thread(async move || workload.run(seed, steps).await).await;
    ran.map_err(anyhow::Error::from).flatten().unwrap_or_else(|error| {
        let violations = vec![Violation::new(Oracle::Run, format!("{error:#}"))];
        Ran { seed, head: "a case that could not be run".to_owned(), violations, ..Ran::default() }
    })
}

/// Returns the stories of the failures, each reduced on request to the steps that it needs: those without which it still happens are
/// left out.
async fn failures<W: Workload>(
    workload: &Arc<W>,
    ran: Vec<Ran<W::Step>>,
    options: &Sequences,
    parallel: usize,
    progress: &Progress,
) -> Vec<String> {
    let mut stories = Vec::new();
    for failure in ran.into_iter().filter(|ran| !ran.violations.is_empty()) {
        let places = |ran: &Ran<W::Step>| ran.violations.iter().map(|v| (v.oracle, v.what.clone())).collect::<Vec<_>>();
        let wanted = places(&failure);
        let (mut least, mut is_least) = (failure, !options.shrink);
        while !is_least {
            progress.note(&format!("shrinking seed {}: {} steps", least.seed, least.done.len()));
            let candidates = (0..least.done.len()).map(|left_out| {
                let kept = least.done.iter().enumerate().filter(|(index, _)| *index != left_out);
                let steps = kept.map(|(_, done)| done.step.clone()).collect();
                attempt(workload, least.seed, Some(steps))
            });
            let tried = stream::iter(candidates).buffered(parallel.max(1)).collect::<Vec<_>>().await;
            let same = |found: &Ran<W::Step>| places(found).iter().any(|place| wanted.contains(place));
            match tried.into_iter().find(same) {
                Some(shorter) => least = shorter,
                None => is_least = true,
            }
        }
        stories.push(least.told());
    }
    stories
}

/// Returns the violations of a run as a whole as a story, if there are any.
fn of_the_run(violations: Vec<Violation>) -> Option<String> {
    Ran::<String> { head: "the run".to_owned(), violations, ..Ran::default() }.failure()
}
