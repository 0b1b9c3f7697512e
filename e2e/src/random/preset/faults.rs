//! The matrix: every scenario with every fault at every moment, on a real control plane with a real helm.
//!
//! Moments are found, not written. A scenario runs once undisturbed behind the fault proxy, which counts the writes of the
//! operator and of its helms; then it runs again for each of these writes, and the fault hits just there. After each case the
//! oracles compare it with the undisturbed run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use clap::ValueEnum as _;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;

use crate::progress::Progress;
use crate::proxy::{By, Write};
use crate::random::disturbance::row::{Fault, ROWS};
use crate::random::oracle::evidence::{judge, wasted};
use crate::random::oracle::state::State;
use crate::random::oracle::{Oracle, Violation};
use crate::random::report::{self, Verdict, lines};
use crate::random::stage::{Stage, on_a_thread};
use crate::random::workload::case::{self, Ran};
use crate::random::workload::scenario::Scenario;
use crate::random::{Common, Outcome, each};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,
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
    /// Only so many cases of each row and seed, chosen by the seed
    #[arg(long, value_name = "CASES")]
    pub sample: Option<usize>,
    /// List the writes of each scenario, which are the moments, and run no case
    #[arg(long)]
    pub list: bool,
}

/// A case that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Planned {
    row: u8,
    scenario: Scenario,
    fault: Fault,
    seed: u64,
}

pub(crate) async fn run(options: &Options, seed: u64, progress: &Progress) -> Result<Outcome> {
    let known = |row: &u8| ROWS.iter().any(|known| known.number == *row);
    ensure!(options.rows.iter().all(known), "the rows are {}", ROWS.map(|row| row.number.to_string()).join(", "));
    let chosen = |scenario: &Scenario| options.scenarios.is_empty() || options.scenarios.contains(scenario);
    let scenarios: Vec<_> = Scenario::value_variants().iter().copied().filter(chosen).collect();
    let parallel = options.common.parallel.unwrap_or(3);
    let stage = Arc::new(Stage::start(true).await?);

    let run = async |scenario| (scenario, undisturbed(&stage, scenario).await);
    let failure = |(_, ran): &(Scenario, Result<Ran>)| ran.as_ref().err().map(|error| format!("{error:#}"));
    let (runs, _) = each("undisturbed", scenarios, parallel, progress, run, failure).await;
    let unfit: Vec<_> = runs.iter().filter_map(failure).collect();
    ensure!(unfit.is_empty(), "{}", unfit.join("\n"));
    let undisturbed: BTreeMap<_, _> =
        runs.into_iter().filter_map(|(scenario, ran)| Some((scenario, ran.ok()?))).collect();
    let moments: Vec<_> = undisturbed.iter().map(|(scenario, ran)| (*scenario, ran.writes.clone())).collect();
    if options.list {
        return Ok(Outcome { listed: Some(listed(&moments)), ..Outcome::default() });
    }

    let cases: Vec<Planned> =
        (0..options.seeds).flat_map(|round| planned(options, &moments, seed.wrapping_add(round))).collect();
    // All cases share an API server: those that kill it come last, one by one.
    let (alone, beside): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.fault.is_for_all());
    let mut verdicts = Vec::new();
    for (cases, parallel) in [(beside, parallel), (alone, 1)] {
        let run = async |case| judged(&stage, &undisturbed, case).await;
        let failure = |verdict: &Verdict| verdict.failure.clone();
        let (judged, is_interrupted) = each("faults", cases, parallel, progress, run, failure).await;
        verdicts.extend(judged);
        if is_interrupted {
            break;
        }
    }
    let failures = verdicts.iter().filter_map(|verdict| verdict.failure.clone()).collect();
    Ok(Outcome { cases: verdicts.len(), lines: lines(&verdicts), failures, ..Outcome::default() })
}

/// Returns the moments of each scenario, for people.
fn listed(moments: &[(Scenario, Vec<Write>)]) -> String {
    let mut text = String::new();
    for (scenario, writes) in moments {
        _ = writeln!(text, "{}:", scenario.name());
        for by in [By::Operator, By::Helm] {
            for (nth, write) in writes.iter().filter(|write| write.by == by).enumerate() {
                _ = writeln!(text, "{:5}  {write}", nth + 1);
            }
        }
    }
    text
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
            of_row.extend(faults.map(|fault| Planned { row: row.number, scenario: *scenario, fault, seed }));
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
    expected: Option<Arc<State>>,
) -> Result<Ran> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("fault-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let stage = stage.clone();
    let run = async move || case::run(&stage, &namespace, scenario, fault, expected.as_deref()).await;
    on_a_thread(run).await?
}

/// Runs a case and judges it. A case that could not be run has failed.
async fn judged(stage: &Arc<Stage>, undisturbed: &BTreeMap<Scenario, Ran>, case: Planned) -> Verdict {
    let Planned { row, scenario, fault, seed } = case;
    let undisturbed = &undisturbed[&scenario].evidence;
    let expected = Some(Arc::new(undisturbed.state.clone()));
    let nth = fault.trap().map(|trap| format!(" --nth {}", trap.nth)).unwrap_or_default();
    let again = format!("faults --row {row} --scenario {}{nth}", scenario.name());
    let story = |what: &str, violations| {
        let head = format!("row {row}, {}: {fault}{what}", scenario.name());
        report::Ran::<String> { seed, head, violations, again, ..report::Ran::default() }.failure()
    };
    match attempt(stage, scenario, Some(fault), expected).await {
        Err(error) => {
            let failure = story("", vec![Violation::new(Oracle::Run, format!("{error:#}"))]);
            Verdict { row, hit: true, recovery: None, wasted: 0, failure }
        }
        Ok(Ran { hit, recovery, evidence, .. }) => {
            let write = hit.as_ref().map(|write| format!(" ({write})")).unwrap_or_default();
            let failure = story(&write, judge(undisturbed, &evidence));
            let wasted = wasted(&undisturbed.state, &evidence.state);
            Verdict { row, hit: hit.is_some() || fault.trap().is_none(), recovery, wasted, failure }
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
        let known = |case: &Planned| all.iter().any(|known| (known.row, known.fault) == (case.row, case.fault));
        assert!(all != other && other.iter().all(known));
        let some = planned(&Options { sample: Some(2), ..options.clone() }, &moments, 1);
        assert!(some.len() == 4 && some.iter().all(|case| all.contains(case)));
        assert_eq!(some.iter().filter(|case| case.row == 22).count(), 2);
        let second = planned(&Options { nth: Some(2), ..options }, &moments, 1);
        assert_eq!(second.len(), 2 + 1);
    }
}
