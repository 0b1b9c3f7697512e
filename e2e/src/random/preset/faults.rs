//! The matrix: every scenario with every fault at every moment, on a real control plane with a real helm.
//!
//! Moments are found, not written. A scenario runs once undisturbed behind the fault proxy, which counts the writes of the
//! operator and of its helms; then it runs again for each of these writes, and the fault hits just there. After each case the
//! oracles compare it with the undisturbed run.
//!
//! | | module | |
//! |---|---|---|
//! | the faults, and their moments | row | pure |
//! | what users do meanwhile | scenario | effect |
//! | runs a case | case, with operators | effect |
//! | reads the log of all writes | trace | effect |
//! | makes two end states comparable | state | pure |
//! | the oracles | oracle | pure |
//! | the table | table | pure |

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::Value;

use crate::progress::{Progress, Task};
use crate::proxy::{By, Write};
use crate::random::disturbance::row::{Fault, ROWS};
use crate::random::oracle::evidence::{judge, wasted};
use crate::random::report::{Line, Verdict, lines};
use crate::random::workload::case::{Ran, Stage};
use crate::random::workload::scenario::Scenario;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Only this row; can be repeated. Default: all
    #[arg(long = "row", value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    pub rows: Vec<u8>,
    /// Only this scenario; can be repeated. Default: all
    #[arg(long = "scenario", value_name = "NAME", value_enum)]
    pub scenarios: Vec<Scenario>,
    /// Only at the nth write
    #[arg(long, value_name = "N")]
    pub nth: Option<usize>,
    /// How often each case runs, each time beside others
    #[arg(long, value_name = "K", default_value_t = 1)]
    pub seeds: u64,
    /// The first seed; the others count up from it. Default: the current time
    #[arg(long, env = "FAULTS_SEED")]
    pub seed: Option<u64>,
    /// Only so many cases of each row and seed, chosen by the seed
    #[arg(long, value_name = "CASES")]
    pub sample: Option<usize>,
    /// Number of cases at the same time
    #[arg(long, default_value_t = 3)]
    pub parallel: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// List the writes of each scenario, which are the moments, and run no case
    #[arg(long)]
    pub list: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The first seed.
    pub seed: u64,
    pub lines: Vec<Line>,
    /// A story for each case that failed.
    pub failures: Vec<String>,
    /// The writes of each scenario, undisturbed.
    pub moments: Vec<(Scenario, Vec<Write>)>,
}

impl Outcome {
    /// The table, and a line for each failure.
    #[must_use]
    pub fn told(&self) -> String {
        let failures: String = self.failures.iter().map(|failure| format!("\n{failure}")).collect();
        format!("{}{failures}", crate::random::report::table(&self.lines))
    }

    #[must_use]
    pub fn json(&self) -> Value {
        crate::random::report::json(self.seed, &self.lines, &self.failures)
    }

    /// The moments of each scenario, for people.
    #[must_use]
    pub fn listed(&self) -> String {
        let mut text = String::new();
        for (scenario, writes) in &self.moments {
            _ = writeln!(text, "{}:", scenario.name());
            for by in [By::Operator, By::Helm] {
                for (nth, write) in writes.iter().filter(|write| write.by == by).enumerate() {
                    _ = writeln!(text, "{:5}  {write}", nth + 1);
                }
            }
        }
        text
    }
}

/// A case that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Planned {
    row: u8,
    scenario: Scenario,
    fault: Fault,
}

/// Runs the matrix.
///
/// # Errors
/// If the lab cannot be started, or two undisturbed runs of a scenario differ.
pub fn run(options: &Options, progress: &Progress) -> Result<Outcome> {
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(matrix(options, progress));
    // After Ctrl-C, cases are still under way.
    runtime.shutdown_background();
    outcome
}

async fn matrix(options: &Options, progress: &Progress) -> Result<Outcome> {
    let known = |row: &u8| ROWS.iter().any(|known| known.number == *row);
    ensure!(options.rows.iter().all(known), "the rows are {}", ROWS.map(|row| row.number.to_string()).join(", "));
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
    let chosen = |scenario: &Scenario| options.scenarios.is_empty() || options.scenarios.contains(scenario);
    let scenarios: Vec<_> = Scenario::ALL.into_iter().filter(chosen).collect();
    let stage = Arc::new(Stage::start().await?);

    let task = progress.task("undisturbed");
    task.steps(scenarios.len());
    let runs = stream::iter(scenarios).map(async |scenario| {
        let found = undisturbed(&stage, scenario).await;
        task.step();
        found.map(|ran| (scenario, ran))
    });
    let runs: Vec<Result<_>> = runs.buffered(options.parallel.max(1)).collect().await;
    let mut undisturbed: BTreeMap<Scenario, Ran> = BTreeMap::new();
    let mut unfit = Vec::new();
    for run in runs {
        match run {
            Ok((scenario, ran)) => _ = undisturbed.insert(scenario, ran),
            Err(error) => unfit.push(format!("{error:#}")),
        }
    }
    ensure!(unfit.is_empty(), "{}", unfit.join("\n"));
    task.done();
    let moments: Vec<_> = undisturbed.iter().map(|(scenario, ran)| (*scenario, ran.writes.clone())).collect();
    if options.list {
        return Ok(Outcome { seed, lines: Vec::new(), failures: Vec::new(), moments });
    }

    let cases: Vec<Planned> =
        (0..options.seeds).flat_map(|round| planned(options, &moments, seed.wrapping_add(round))).collect();
    progress.note(&format!("faults: {} cases, starting at seed {seed}", cases.len()));
    let task = progress.task("faults");
    task.steps(cases.len());
    // All cases share an API server: those that kill it come last, one by one.
    let (alone, beside): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.fault.is_for_all());
    let undisturbed = Arc::new(undisturbed);
    let mut verdicts = Vec::new();
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    'cases: for (cases, parallel) in [(beside, options.parallel.max(1)), (alone, 1)] {
        let judged = stream::iter(cases).map(|case| judged(&stage, &undisturbed, case));
        let mut judged = judged.buffer_unordered(parallel);
        loop {
            let verdict = tokio::select! {
                biased;
                _ = &mut interrupted => {
                    progress.note("faults: interrupted; what follows is of the cases until now");
                    break 'cases;
                }
                verdict = judged.next() => verdict,
            };
            let Some(verdict) = verdict else { break };
            note(progress, &task, &verdict);
            verdicts.push(verdict);
        }
    }
    task.done();
    let failures = verdicts.iter().filter_map(|verdict| verdict.failure.clone()).collect();
    Ok(Outcome { seed, lines: lines(&verdicts), failures, moments })
}

fn note(progress: &Progress, task: &Task<'_>, verdict: &Verdict) {
    task.step();
    if let Some(failure) = &verdict.failure {
        progress.note(failure);
    }
}

/// The cases of a seed, in its order.
fn planned(options: &Options, moments: &[(Scenario, Vec<Write>)], seed: u64) -> Vec<Planned> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut cases = Vec::new();
    for row in ROWS.iter().filter(|row| options.rows.is_empty() || options.rows.contains(&row.number)) {
        let mut of_row = Vec::new();
        for (scenario, writes) in moments {
            let faults = row.faults(writes).into_iter();
            let faults = faults.filter(|fault| scenario.may_be_cut_short() || !fault.cuts_short());
            let faults =
                faults.filter(|fault| options.nth.is_none() || fault.trap().map(|trap| trap.nth) == options.nth);
            of_row.extend(faults.map(|fault| Planned { row: row.number, scenario: *scenario, fault }));
        }
        of_row.shuffle(&mut random);
        of_row.truncate(options.sample.unwrap_or(usize::MAX));
        cases.extend(of_row);
    }
    cases.shuffle(&mut random);
    cases
}

/// A scenario without a fault, run twice: what the runs differ in would be found in every case.
async fn undisturbed(stage: &Arc<Stage>, scenario: Scenario) -> Result<Ran> {
    let first = attempt(stage, scenario, None, None).await?;
    let state = Arc::new(first.evidence.state.clone());
    let second = attempt(stage, scenario, None, Some(state)).await?;
    let differences: Vec<_> = judge(&first.evidence, &second.evidence).iter().map(ToString::to_string).collect();
    ensure!(
        differences.is_empty(),
        "{}: the second undisturbed run differs from the first, or breaks a rule:\n{}",
        scenario.name(),
        differences.join("\n")
    );
    let longer = first.writes.len() < second.writes.len();
    let writes = if longer { second.writes } else { first.writes };
    Ok(Ran { writes, ..first })
}

/// One run on its own thread, in a namespace that no other run has.
async fn attempt(
    stage: &Arc<Stage>,
    scenario: Scenario,
    fault: Option<Fault>,
    expected: Option<Arc<crate::random::oracle::state::State>>,
) -> Result<Ran> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("fault-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let stage = stage.clone();
    let run = async move || {
        crate::random::workload::case::run(&stage, &namespace, scenario, fault, expected.as_deref()).await
    };
    crate::random::workload::case::on_a_thread(run).await?
}

/// Runs a case and judges it. A case that could not be run has failed.
async fn judged(stage: &Arc<Stage>, undisturbed: &Arc<BTreeMap<Scenario, Ran>>, case: Planned) -> Verdict {
    let Planned { row, scenario, fault } = case;
    let undisturbed = &undisturbed[&scenario].evidence;
    let expected = Some(Arc::new(undisturbed.state.clone()));
    let head = format!("row {row}, {}: {fault}", scenario.name());
    match attempt(stage, scenario, Some(fault), expected).await {
        Err(error) => {
            let failure = Some(format!("{head}\n  {error:#}"));
            Verdict { row, hit: true, recovery: None, wasted: 0, failure }
        }
        Ok(ran) => {
            let violations = judge(undisturbed, &ran.evidence);
            let hit = ran.hit.is_some() || fault.trap().is_none();
            let failure = (!violations.is_empty()).then(|| {
                let write = ran.hit.as_ref().map(|write| format!(" ({write})")).unwrap_or_default();
                violations.iter().fold(format!("{head}{write}"), |story, violation| format!("{story}\n  {violation}"))
            });
            let wasted = wasted(&undisturbed.state, &ran.evidence.state);
            Verdict { row, hit, recovery: ran.recovery, wasted, failure }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_an_order_and_a_sample() {
        let moments = [(Scenario::Install, Write::of_each(&[By::Operator, By::Operator, By::Helm]))];
        let options = Options { rows: vec![1, 22], ..crate::arguments::defaults() };
        let all = planned(&options, &moments, 1);
        assert_eq!(all.len(), 4 + 3);
        assert_eq!(all, planned(&options, &moments, 1));
        let other = planned(&options, &moments, 2);
        assert!(all != other && other.iter().all(|case| all.contains(case)));
        let some = planned(&Options { sample: Some(2), ..options.clone() }, &moments, 1);
        assert!(some.len() == 4 && some.iter().all(|case| all.contains(case)));
        assert_eq!(some.iter().filter(|case| case.row == 22).count(), 2);
        let second = planned(&Options { nth: Some(2), ..options }, &moments, 1);
        assert_eq!(second.len(), 2 + 1);
    }
}
