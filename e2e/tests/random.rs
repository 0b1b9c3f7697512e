//! A small sample of each random engine, the same in each run: their seeds are fixed, and `<ENGINE>_SEED` chooses others. `cargo e2e
//! nightly` runs them at length.

use e2e::arguments::defaults;
use e2e::progress::Progress;
use e2e::random::disturbance::row::ROWS;
use e2e::random::disturbance::schedule::Blow;
use e2e::random::preset::{faults, lives, soak, specs};
use e2e::random::workload::scenario::Scenario;

/// Random lives of apps and databases, while the operator is killed and frozen: nothing is lost.
#[test]
fn nothing_is_lost_in_some_lives() {
    let given: lives::Options = defaults();
    let options = lives::Options { seed: given.seed.or(Some(7)), count: 8, parallel: 8, ..given };
    let outcome = lives::run(&options, &Progress::hidden()).unwrap();
    let stories: String = outcome.failures.iter().map(|lived| lived.story.as_str()).collect();
    assert!(outcome.failures.is_empty(), "{} of {} lives failed:\n{stories}", outcome.failures.len(), options.count);
}

/// A sample of the matrix: an app is created while the operator is killed, answers are lost and requests are refused.
#[test]
fn every_oracle_holds_in_a_sample_of_the_matrix() {
    let given: faults::Options = defaults();
    let seed = given.seed.or(Some(7));
    // Without row 12, whose cases can only run one by one, and row 26, which needs a library.
    let rows = ROWS.map(|row| row.number).into_iter().filter(|row| ![12, 26].contains(row)).step_by(2).collect();
    let options =
        faults::Options { seed, rows, scenarios: vec![Scenario::Install], sample: Some(1), parallel: 4, ..given };
    let outcome = faults::run(&options, &Progress::hidden()).unwrap();
    let hit: usize = outcome.lines.iter().map(|line| line.cases).sum();
    assert!(outcome.failures.is_empty(), "seed {}:\n{}", outcome.seed, outcome.told());
    assert!(hit > 6, "seed {}: hardly a fault has hit:\n{}", outcome.seed, outcome.told());
}

/// A short soak test: nothing is left over, and the operator has no more in use after the same work once more.
#[test]
fn nothing_leaks_and_nothing_is_left() {
    let given: soak::Options = defaults();
    let options = soak::Options { minutes: 1, apps: 4, seed: given.seed.or(Some(7)) };
    let outcome = soak::run(&options, &Progress::hidden()).unwrap();
    assert!(outcome.violations.is_empty(), "{}", outcome.told());
    let disturbed =
        [Blow::Kill, Blow::Outage, Blow::Theft, Blow::OtherHelm].map(|blow| outcome.blows.get(&blow).copied());
    assert_eq!(disturbed, [Some(3), Some(1), Some(1), Some(1)], "{}", outcome.told());
    // Each app was created, and had time for more.
    assert!(outcome.actions > 8 && outcome.helm_runs > 4, "{}", outcome.told());
}

/// Random specs and strings: a sequence of each kind, and a string or two for each field.
#[test]
fn specs_end_as_the_last_one_alone_makes_them() {
    let given: specs::Options = defaults();
    let options = specs::Options { seed: given.seed.or(Some(8)), count: 4, parallel: 4, strings: 2, ..given };
    let outcome = specs::run(&options, &Progress::hidden()).unwrap();
    assert!(outcome.failures.is_empty(), "{}:\n{}", outcome.told(), outcome.failures.join("\n"));
    assert!(outcome.accepted > 4 && outcome.refused > 2, "hardly a change was made: {}", outcome.told());
    assert!(outcome.taken > 10 && outcome.sent > 250, "hardly a string was sent: {}", outcome.told());
}
