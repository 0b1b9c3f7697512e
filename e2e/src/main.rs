//! `cargo e2e`: runs a local control plane. `cargo demo` is its subcommand `demo`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::progress::Progress;
use e2e::protocol::{Bounds, Outcome, Protocol};
use e2e::random::Preset;
use e2e::tools::{Extra, Tools};
use e2e::{bench, conformance, demo, detached, nightly, node, release};

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
    #[command(flatten)]
    Random(Preset),
    /// Render every version of the published chart with the operator's values, check what comes out, and upgrade through all majors
    Charts(conformance::Options),
    /// Run the operator, its databases and an app on a real node, with kubelet and containers, in namespaces of its own; needs root
    Node(node::Options),
    /// Run what takes too long for `cargo test`: all random tests at length, and the tests that are ignored there
    Nightly(nightly::Options),
    /// Make all that a version is installed from, in one directory: image, chart, manifest, plugin, SBOM and sums; --verify checks them
    Release(release::Options),
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
        Command::Random(mut preset) => {
            let outcome = preset.run(&progress)?;
            println!("{}", if preset.common().json { outcome.json().to_string() } else { outcome.told() });
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
        Command::Node(options) => return node::run(&options, &progress),
        Command::Nightly(options) => {
            let night = nightly::run(&options)?;
            print!("\n{}", nightly::table(&night));
            let passed = night.iter().all(nightly::Ran::passed);
            return Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        Command::Release(options) => print!("{}", release::run(&options, &progress)?),
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
