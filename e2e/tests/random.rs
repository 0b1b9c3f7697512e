//! A small sample of each command of the random engine, the same in each run: their seeds are fixed, and `RANDOM_SEED` chooses others.
//! `cargo e2e nightly` runs them at length.

use clap::Parser as _;
use e2e::progress::Progress;
use e2e::random::disturbance::schedule::PACES;
use e2e::random::{Outcome, Preset};

/// Runs a command with these arguments, and with this seed unless the environment has another.
fn run(arguments: &str, seed: u64) -> Outcome {
    #[derive(clap::Parser)]
    struct Arguments {
        #[command(subcommand)]
        preset: Preset,
    }
    let mut preset = Arguments::parse_from(["e2e"].into_iter().chain(arguments.split(' '))).preset;
    preset.common().seed.get_or_insert(seed);
    let outcome = preset.run(&Progress::hidden()).unwrap();
    assert!(outcome.failures.is_empty(), "{}", outcome.told());
    outcome
}

/// Random lives of apps and databases, while the operator is killed and frozen: nothing is lost.
#[test]
fn nothing_is_lost_in_some_lives() {
    let outcome = run("lives --count 4 --parallel 4", 7);
    assert!(outcome.cases == 4 && outcome.counted("steps") > 12, "{}", outcome.told());
}

/// A sample of the matrix: an app is created while the operator is killed, answers are lost and requests are refused.
#[test]
fn every_oracle_holds_in_a_sample_of_the_matrix() {
    // One of each kind of fault. Not those after which a helm run that failed is repeated, half a minute later.
    let rows = [1, 3, 14, 19, 22, 24, 51, 52, 60].map(|row| format!(" --row {row}")).concat();
    let outcome = run(&format!("faults --scenario install --sample 1 --parallel 4{rows}"), 7);
    let hit: usize = outcome.lines.iter().map(|line| line.cases).sum();
    assert!(hit > 6, "hardly a fault has hit:\n{}", outcome.told());
}

/// A short soak test: nothing is left over, and the operator has no more in use after the same work once more.
#[test]
#[ignore = "waits for most of two minutes: `cargo e2e nightly` runs it at length"]
fn nothing_leaks_and_nothing_is_left() {
    let outcome = run("soak --minutes 0.5 --apps 4", 7);
    assert_eq!(PACES.map(|pace| outcome.counted(pace.title)), [3, 1, 1, 1], "{}", outcome.told());
    // Each app was created, and had time for more.
    assert!(outcome.counted("steps") > 4 && outcome.counted("helm runs") > 4, "{}", outcome.told());
}

/// Random specs and strings: a sequence of each kind, and a string or two for each field.
#[test]
fn specs_end_as_the_last_one_alone_makes_them() {
    let outcome = run("specs --count 4 --parallel 4 --strings 2", 8);
    let [accepted, refused] = ["changes accepted", "changes refused"].map(|what| outcome.counted(what));
    assert!(accepted > 4 && refused > 2, "hardly a change was made:\n{}", outcome.told());
    let [taken, sent] = ["strings accepted", "strings sent"].map(|what| outcome.counted(what));
    assert!(taken > 10 && sent > 250, "hardly a string was sent:\n{}", outcome.told());
}
