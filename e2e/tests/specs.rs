//! A sample of random specs and strings: two sequences of each kind, and some strings for each field.

use e2e::arguments::defaults;
use e2e::progress::Progress;
use e2e::specs::{self, Options};

#[test]
fn objects_end_as_their_last_spec_alone_makes_them() {
    let given: Options = defaults();
    // The same in each run; `cargo e2e specs` and SPECS_SEED are for other seeds.
    let options = Options { seed: given.seed.or(Some(8)), count: 8, parallel: 8, strings: 4, ..given };
    let outcome = specs::run(&options, &Progress::hidden()).unwrap();
    assert!(outcome.failures.is_empty(), "{}:\n{}", outcome.told(), outcome.failures.join("\n"));
    assert!(outcome.accepted > 9 && outcome.refused > 4, "hardly a change was made: {}", outcome.told());
    assert!(outcome.taken > 20 && outcome.sent > 500, "hardly a string was sent: {}", outcome.told());
}
