//! Arguments of the commands of `cargo e2e`, for tests that run one.

use clap::{Args, Parser};

/// The defaults of a command, with its seed from the environment. **Reads** the environment.
#[must_use]
pub fn defaults<A: Args>() -> A {
    #[derive(Parser)]
    struct Arguments<A: Args> {
        #[command(flatten)]
        options: A,
    }
    Arguments::parse_from(["e2e"]).options
}
