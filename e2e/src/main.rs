//! `cargo e2e`: runs a local control plane. `cargo demo` is its subcommand `demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::progress::Progress;
use e2e::protocol::{Bounds, Outcome, Protocol};
use e2e::random::preset::{faults, lives, soak, specs};
use e2e::tools::{Extra, Tools};
use e2e::{bench, conformance, demo, detached, nightly};

/// A real local control plane, without containers: etcd, the Kubernetes servers, fake nodes.
#[derive(Parser)]
#[command(name = "e2e", bin_name = "cargo e2e")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Start a control plane in the background and print how to reach it: eval "$(cargo e2e up)"
    Up {
        /// Number of nodes
        #[arg(long, default_value_t = 1)]
        nodes: usize,
    },
    /// Stop it, leaving nothing behind
    Down,
    /// Build the programs of the control plane that are missing, and print their paths
    Tools {
        /// Also those that only some tests start: the Percona operator, helm 3, an OCI registry, S3-compatible storage
        #[arg(long)]
        all: bool,
    },
    /// Show what the operator does, on its own control plane, and remove everything again
    Demo(demo::Options),
    /// Benchmark the operator against what it replaces, interleaved in one run
    #[command(subcommand)]
    Bench(bench::What),
    /// Run random lives of apps and databases, and check that no data is lost
    Lives(lives::Options),
    /// Run every scenario with every fault at every moment, and check that it ends as without the fault
    Faults(faults::Options),
    /// Run many apps for a long time while everything is disturbed, and check that nothing leaks and nothing is left
    Soak(soak::Options),
    /// Change specs of all kinds at random, and check that objects end as their last spec alone makes them
    Specs(specs::Options),
    /// Render every version of the published chart with the operator's values, check what comes out, and upgrade through all majors
    Charts(conformance::Options),
    /// Run what takes too long for `cargo test`: all random engines at length, and the tests that are ignored there
    Nightly(nightly::Options),
    /// Check the protocol of leaders, helm runs, fence and locks exhaustively, as a model
    Model,
    /// The process that `up` starts in the background
    #[command(hide = true)]
    Hold {
        #[arg(long, default_value_t = 1)]
        nodes: usize,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Standard output is for a shell to evaluate, standard error for people.
fn run(command: Command) -> Result<ExitCode> {
    let progress = Progress::stderr();
    match command {
        Command::Up { nodes } => println!("{}", detached::up(nodes, &progress)?.exports()),
        Command::Down if detached::down()? => eprintln!("the control plane has stopped"),
        Command::Down => eprintln!("no control plane is running"),
        Command::Tools { all } => {
            let tools = Tools::ensure(&progress)?;
            let extras = if all { &Extra::ALL[..] } else { &[] };
            let extras = extras.iter().map(|extra| extra.ensure(&progress)).collect::<Result<Vec<_>>>()?;
            for path in tools.paths().into_iter().chain(extras.iter().map(PathBuf::as_path)) {
                println!("{}", path.display());
            }
        }
        Command::Demo(options) => return demo::run(&options),
        Command::Bench(what) => bench::run(what, &progress)?,
        Command::Lives(options) => {
            let outcome = lives::run(&options, &progress)?;
            outcome.failures.iter().for_each(|failure| println!("{}", failure.story));
            let (wrong, all) = (outcome.failures.len(), options.count);
            eprintln!("{wrong} of {all} lives failed, starting at seed {}", outcome.seed);
            return Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Faults(options) => {
            let outcome = faults::run(&options, &progress)?;
            match (options.list, options.json) {
                (true, _) => print!("{}", outcome.listed()),
                (false, true) => println!("{}", outcome.json()),
                (false, false) => println!("{}", outcome.told()),
            }
            eprintln!("{} cases failed, starting at seed {}", outcome.failures.len(), outcome.seed);
            return Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Soak(options) => {
            let outcome = soak::run(&options, &progress)?;
            println!("{}", outcome.told());
            eprintln!("{} violations, seed {}", outcome.violations.len(), outcome.seed);
            return Ok(if outcome.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Specs(options) => {
            let outcome = specs::run(&options, &progress)?;
            outcome.failures.iter().for_each(|failure| println!("{failure}"));
            eprintln!("{}", outcome.told());
            return Ok(if outcome.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Charts(options) => {
            let Some(outcome) = conformance::run(&options, &progress)? else {
                println!(
                    "skipped: no charts; name a directory of archives, cargo e2e charts DIR, or a chart repository, --repository URL"
                );
                return Ok(ExitCode::SUCCESS);
            };
            print!("{}", outcome.told(options.all_rows));
            eprintln!("{} violations in {} versions", outcome.count(), outcome.table.rows.len());
            return Ok(if outcome.count() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Nightly(options) => {
            let night = nightly::run(&options)?;
            print!("\n{}", nightly::table(&night));
            let passed = night.iter().all(nightly::Ran::passed);
            return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Model => {
            let bounds = Bounds { edits: 1, deletions: 1, recreations: 1, faults: 1, late: 1, others: 1 };
            let Outcome { states, broken, .. } = Protocol { without: Vec::new(), bounds }.check(&[]);
            println!("{states} states");
            for (property, after) in &broken {
                println!("it does not hold that {property}, after {after:?}");
            }
            return Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Hold { nodes } => detached::hold(nodes)?,
    }
    Ok(ExitCode::SUCCESS)
}
