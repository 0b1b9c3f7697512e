//! A short soak test: nothing is left over, and the operator has no more in use after the same work once more.

use e2e::arguments::defaults;
use e2e::progress::Progress;
use e2e::soak::schedule::Blow;
use e2e::soak::{self, Options};

#[test]
fn nothing_leaks_and_nothing_is_left() {
    let given: Options = defaults();
    // The same choices in each run; `cargo e2e soak` and SOAK_SEED are for others.
    let options = Options { minutes: 1, apps: 12, seed: given.seed.or(Some(7)) };
    let outcome = soak::run(&options, &Progress::hidden()).unwrap();
    assert!(outcome.violations.is_empty(), "{}", outcome.told());
    let disturbed =
        [Blow::Kill, Blow::Outage, Blow::Theft, Blow::OtherHelm].map(|blow| outcome.blows.get(&blow).copied());
    assert_eq!(disturbed, [Some(3), Some(1), Some(1), Some(1)], "{}", outcome.told());
    // Each app was created, and had time for more.
    assert!(outcome.actions > 24 && outcome.helm_runs > 12, "{}", outcome.told());
}
