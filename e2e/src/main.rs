//! `cargo e2e`: a local control plane at hand. `cargo demo` is its verb `demo`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::progress::Progress;
use e2e::tools::Tools;
use e2e::{bench, demo, detached, lives};

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
        /// How many nodes it has
        #[arg(long, default_value_t = 1)]
        nodes: usize,
    },
    /// End it, leaving nothing behind
    Down,
    /// Build the programs it is made of, as far as they are not at hand, and print their paths
    Tools,
    /// Show what the operator does, on a control plane of its own, and take everything down again
    Demo(demo::Options),
    /// Measure it beside what it replaces, in one interleaved run
    #[command(subcommand)]
    Bench(bench::What),
    /// Live random lives of apps and databases, and see that nothing is lost
    Lives(lives::Options),
    /// What `up` runs in the background
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

/// Standard output is for what a shell evaluates, standard error for people.
fn run(command: Command) -> Result<ExitCode> {
    let progress = Progress::stderr();
    match command {
        Command::Up { nodes } => println!("{}", detached::up(nodes, &progress)?.exports()),
        Command::Down if detached::down()? => eprintln!("the control plane is gone"),
        Command::Down => eprintln!("no control plane is running"),
        Command::Tools => {
            for path in Tools::ensure(&progress)?.paths() {
                println!("{}", path.display());
            }
        }
        Command::Demo(options) => return demo::run(&options),
        Command::Bench(what) => bench::run(what, &progress)?,
        Command::Lives(options) => {
            let outcome = lives::run(&options, &progress)?;
            outcome.failures.iter().for_each(|failure| println!("{}", failure.story));
            let (wrong, all) = (outcome.failures.len(), options.count);
            eprintln!("{wrong} of {all} lives went wrong, from seed {} on", outcome.seed);
            return Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Hold { nodes } => detached::hold(nodes)?,
    }
    Ok(ExitCode::SUCCESS)
}
