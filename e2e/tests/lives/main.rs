//! The property: whatever happens, nothing is lost that was not to be deleted. `cargo e2e lives` lives any number of lives.

use e2e::lives::{Options, run};
use e2e::progress::Progress;

/// How many lives: as many as a test run has time for; the verb lives more.
const COUNT: u64 = 6;
/// From which seed on, where `LIVES_SEED` names none: a test run is the same every time.
const SEED: u64 = 7;

#[test]
fn nothing_is_lost() {
    let options = Options::from_environment();
    let options = Options { count: COUNT, seed: options.seed.or(Some(SEED)), ..options };
    let outcome = run(&options, &Progress::stderr()).unwrap();
    let stories: Vec<_> = outcome.failures.iter().map(|failure| failure.story.as_str()).collect();
    assert!(
        stories.is_empty(),
        "{} of {COUNT} lives went wrong; all of them again: LIVES_SEED={} cargo test --test lives\n\n{}",
        stories.len(),
        outcome.seed,
        stories.join("\n")
    );
}
