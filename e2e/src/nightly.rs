//! Runs what takes too long for `cargo test`: the random tests at length, and the tests that are ignored there. Each runs as a command
//! of its own, so that none sees what another has left, and a table at the end says how each went. An **effect**.

use std::fmt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use jiff::Timestamp;

use crate::operator::cargo;
use crate::tools::{KUBERNETES, OLDEST};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Seed of all engines. Default: the current time
    #[arg(long, env = "NIGHTLY_SEED")]
    pub seed: Option<u64>,
    /// Only this part; can be repeated. Default: all
    #[arg(long = "only", value_name = "PART", value_enum)]
    pub parts: Vec<Part>,
}

/// A part of a night, in the order in which they run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// The protocol as a model
    Model,
    /// The tests that `cargo test` ignores: of pinned versions of others' programs, and of the harness and the demonstration
    Ignored,
    /// A plane of the oldest Kubernetes that is supported
    Oldest,
    /// The operator and its databases on a real node; where there can be none, it says why
    Node,
    /// A release that is installed on a real node without a registry, and an app by its operator
    Release,
    Lives,
    Specs,
    Faults,
    Soak,
}

impl Part {
    /// Returns the command: `cargo` and these arguments. Pure.
    fn arguments(self, seed: u64) -> Vec<String> {
        let seed = seed.to_string();
        let arguments: &[&str] = match self {
            Part::Model => &["e2e", "model"],
            // What other binaries ignore is a helper of a test, or a measurement; and one test depends on the machine's resolver.
            Part::Ignored => &[
                "test",
                "--no-fail-fast",
                "--test",
                "demo",
                "--test",
                "harness",
                "--test",
                "cluster",
                "--",
                "--ignored",
                "--skip",
                "pulling_from_nowhere",
            ],
            // What the API server answers there, and what the operator asks of it.
            Part::Oldest => &[
                "test",
                "--no-fail-fast",
                "--test",
                "cluster",
                "--test",
                "operator",
                "--",
                "--skip=cli::",
                "--skip=data::",
                "--skip=databases::",
                "--skip=faults::",
                "--skip=postgres_writer::",
                "--skip=postgresql::",
                "--skip=refusals::",
            ],
            Part::Node => &["e2e", "node"],
            Part::Release => &["e2e", "node", "--release", "--only", "standalone"],
            Part::Lives => &["e2e", "lives", "--count", "80", "--seed", &seed],
            Part::Specs => &["e2e", "specs", "--count", "40", "--seed", &seed],
            // Each row in each scenario would take a day.
            Part::Faults => &["e2e", "faults", "--sample", "10", "--seed", &seed],
            Part::Soak => &["e2e", "soak", "--minutes", "20", "--apps", "60", "--seed", &seed],
        };
        arguments.iter().map(|argument| (*argument).to_owned()).collect()
    }

    /// Returns the variables of the command. Pure.
    fn variables(self) -> Option<(&'static str, &'static str)> {
        (self == Part::Oldest).then_some((KUBERNETES, OLDEST))
    }
}

/// How a part went.
#[derive(Clone, Debug)]
pub struct Ran {
    /// To repeat it.
    pub command: String,
    /// `None`: it could not be started.
    pub status: Option<ExitStatus>,
    pub took: Duration,
}

impl Ran {
    #[must_use]
    pub fn passed(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let result = match self.status {
            Some(status) if status.success() => "passed".to_owned(),
            Some(status) => format!("**failed**, {status}"),
            None => "**did not start**".to_owned(),
        };
        let seconds = self.took.as_secs();
        write!(f, "| `{}` | {result} | {} min {:02} s |", self.command, seconds / 60, seconds % 60)
    }
}

/// Returns the table. Pure.
#[must_use]
pub fn table(night: &[Ran]) -> String {
    let rows: String = night.iter().map(|ran| format!("{ran}\n")).collect();
    format!("| command | result | took |\n|---|---|---|\n{rows}")
}

/// Runs all parts, also after one has failed. Their output goes where this process's goes.
///
/// # Errors
/// If this process has no current directory.
pub fn run(options: &Options) -> Result<Vec<Ran>> {
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_second().unsigned_abs());
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("e2e is in a workspace")?;
    let wanted = |part: &&Part| options.parts.is_empty() || options.parts.contains(part);
    let night = Part::value_variants().iter().filter(wanted).map(|part| {
        let arguments = part.arguments(seed);
        let variables = part.variables();
        let set: String = variables.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        let command = format!("{set}cargo {}", arguments.join(" "));
        eprintln!("\n=== {command}");
        let began = Instant::now();
        let status = cargo().args(&arguments).envs(variables).current_dir(root).status();
        let status = status.inspect_err(|error| eprintln!("cannot run cargo: {error}")).ok();
        Ran { command, status, took: began.elapsed() }
    });
    Ok(night.collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn each_part_is_a_command_that_repeats_it() {
        for part in Part::value_variants() {
            let arguments = part.arguments(7);
            let engine = arguments[0] == "e2e" && !matches!(part, Part::Model | Part::Node | Part::Release);
            assert_eq!(arguments.ends_with(&["--seed".to_owned(), "7".to_owned()]), engine, "{arguments:?}");
        }
    }

    #[test]
    fn what_is_told() {
        let ran = |command: &str, status| Ran { command: command.to_owned(), status, took: Duration::from_secs(125) };
        let night = [
            ran("cargo e2e model", Some(ExitStatus::from_raw(0))),
            ran("cargo e2e lives", Some(ExitStatus::from_raw(256))),
            ran("cargo e2e soak", None),
        ];
        assert_eq!(night.each_ref().map(Ran::passed), [true, false, false]);
        let expected = "\
| command | result | took |
|---|---|---|
| `cargo e2e model` | passed | 2 min 05 s |
| `cargo e2e lives` | **failed**, exit status: 1 | 2 min 05 s |
| `cargo e2e soak` | **did not start** | 2 min 05 s |
";
        assert_eq!(table(&night), expected);
    }
}
