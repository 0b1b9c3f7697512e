//! A sample of the matrix: an app is created, deleted, or deleted and created anew, while the operator is killed,
//! answers are lost and requests are refused.

use e2e::arguments::defaults;
use e2e::faults::row::ROWS;
use e2e::faults::scenario::Scenario;
use e2e::faults::{self, Options};
use e2e::progress::Progress;

#[test]
fn every_oracle_holds_in_a_sample_of_the_matrix() {
    let given: Options = defaults();
    // The same cases in each run; `cargo e2e faults` runs all of them, and FAULTS_SEED chooses others.
    let seed = given.seed.or(Some(7));
    // Without row 12, whose cases can only run one by one, and row 26, which needs a library.
    let rows = ROWS.map(|row| row.number).into_iter().filter(|row| ![12, 26].contains(row)).collect();
    let scenarios = vec![Scenario::Install, Scenario::Brief, Scenario::Again];
    let options = Options { seed, rows, scenarios, sample: Some(1), parallel: 4, ..given };
    let outcome = faults::run(&options, &Progress::hidden()).unwrap();
    let hit: usize = outcome.lines.iter().map(|line| line.cases).sum();
    assert!(outcome.failures.is_empty(), "seed {}:\n{}", outcome.seed, outcome.told());
    assert!(hit > 9, "seed {}: hardly a fault has hit:\n{}", outcome.seed, outcome.told());
}
