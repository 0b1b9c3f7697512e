//! Forty random lives of apps and databases, while the operator is killed and frozen: nothing is lost.

use e2e::arguments::defaults;
use e2e::lives::{self, Options};
use e2e::progress::Progress;

#[test]
fn nothing_is_lost_in_forty_lives() {
    let given: Options = defaults();
    // The same lives in each run; `cargo e2e lives` and LIVES_SEED are for other seeds.
    let options = Options { seed: given.seed.or(Some(7)), ..given };
    let outcome = lives::run(&options, &Progress::hidden()).unwrap();
    let stories: String = outcome.failures.iter().map(|lived| lived.story.as_str()).collect();
    assert!(outcome.failures.is_empty(), "{} of {} lives failed:\n{stories}", outcome.failures.len(), options.count);
}
