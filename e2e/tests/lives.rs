//! Forty random lives of apps and databases, while the operator is killed and frozen: nothing is lost.

use e2e::lives::{self, Options};
use e2e::progress::Progress;

#[test]
fn nothing_is_lost_in_forty_lives() {
    let given = Options::from_environment();
    // The same lives in each run; other seeds are for `cargo e2e lives`, or LIVES_SEED.
    let options = Options { seed: given.seed.or(Some(7)), ..given };
    let outcome = lives::run(&options, &Progress::hidden()).unwrap();
    let stories: String = outcome.failures.iter().map(|lived| lived.story.as_str()).collect();
    assert!(
        outcome.failures.is_empty(),
        "{} of {} lives went wrong:\n{stories}",
        outcome.failures.len(),
        options.count
    );
}
