//! The property: whatever happens, nothing is lost that was not to be deleted. `cargo e2e lives` lives any number of lives.

use e2e::lives::{Options, run};
use e2e::progress::Progress;

/// How many lives.
const COUNT: u64 = 40;

#[test]
fn nothing_is_lost() {
    let options = Options { count: COUNT, ..Options::from_environment() };
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
