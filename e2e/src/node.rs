//! A real node: kubelet, containerd and runc with a control plane, in namespaces of its own, where images start, scripts run under
//! a kubelet, probes are answered and volumes are directories. It needs root on Linux, and leaves nothing.
//!
//! ```text
//! cargo e2e node          builds programs and images, makes the namespaces, and becomes `unshare`
//! └ sh                    the first process in them: its end is the end of all others
//!   └ cargo e2e node …    starts the servers, imports the images, runs the scenario
//! ```

mod backups;
mod barman_cloud;
mod cgroups;
mod database;
pub mod files;
mod images;
pub mod inside;
mod mistakes;
mod network;
mod operator;
mod policies;
mod requirements;
mod rootfs;
mod scenario;
mod steps;
mod storage;
mod tenant;
mod volumes;
mod workloads;

use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};

use crate::progress::Progress;
use crate::release;
use crate::tools::{Extra, Tools};
use inside::Node;
use steps::Steps;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Start the node alone, and give a shell with kubectl and helm in it; its end ends the node
    #[arg(long)]
    pub keep: bool,
    /// Run the steps of this part only; repeatable
    #[arg(long, value_name = "PART")]
    pub only: Vec<Part>,
    /// Make a release first, and install the operator from it, without a registry; the other steps run its image
    #[arg(long)]
    pub release: bool,
    /// The process in the namespaces: its directory outside
    #[arg(long, hide = true)]
    pub inside: Option<PathBuf>,
}

/// A part of the scenario, which needs no other.
#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// An app with a database of the operator
    Standalone,
    /// Another one, with backups in a bucket
    Bucket,
    /// An instance by the HTTP API, and who reaches it
    Network,
    /// A Postgresql of its own
    Database,
    /// Apps that ask for what the node does not have
    Mistakes,
    /// An app with a database of CloudNativePG
    #[value(name = "cloudnativepg")]
    CloudNativePg,
    /// Another one, archived and backed up by CloudNativePG's plugin barman-cloud
    BarmanCloud,
}

/// Runs the scenario on a node of its own. Does not return where it can: the process is another program then, whose exit code is the
/// scenario's.
///
/// # Errors
/// If something cannot be built or started.
pub fn run(options: &Options, progress: &Progress) -> Result<ExitCode> {
    if let Some(state) = &options.inside {
        return run_inside(options, state, progress);
    }
    if let Some(reason) = requirements::missing() {
        println!("skipped: {reason}");
        return Ok(ExitCode::SUCCESS);
    }
    // The node has no network but its own.
    Tools::ensure(progress)?;
    for extra in
        [Extra::Kubelet, Extra::CoreDns, Extra::CloudNativePg, Extra::BarmanCloud, Extra::Restic, Extra::Versitygw]
    {
        extra.ensure(progress)?;
    }
    for root in [rootfs::DEBIAN, rootfs::NEWER] {
        rootfs::ensure(root, progress)?;
    }
    crate::operator::binary()?;

    let state = tempfile::Builder::new().prefix("clientapp-node-").tempdir()?.keep();
    if options.release {
        let directory = state.join(operator::RELEASE);
        let repository = Some(workloads::OPERATOR.to_owned());
        let release = release::Options { directory, repository, verify: false, key: None };
        print!("{}", release::run(&release, progress)?);
    }
    let process = std::process::id();
    cgroups::remove_after(process, &state, &cgroup(process))?;
    cgroups::create(&cgroup(process))?;
    let executable = std::env::current_exe().context("cannot find this program")?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    // A shell, because the first process inherits all orphans, and has to wait for them.
    command.args(["sh", "-c", r#""$@"; exit "$?""#, "node"]).arg(executable).arg("node").arg("--inside").arg(&state);
    command.args(options.keep.then_some("--keep")).args(options.release.then_some("--release"));
    for part in options.only.iter().filter_map(clap::ValueEnum::to_possible_value) {
        command.arg("--only").arg(part.get_name());
    }
    command.env(cgroups::VARIABLE, cgroup(process));
    Err(command.exec()).context("cannot run unshare")
}

fn cgroup(process: u32) -> String {
    format!("clientapp-node-{process}")
}

fn run_inside(options: &Options, state: &std::path::Path, progress: &Progress) -> Result<ExitCode> {
    let cgroup = std::env::var(cgroups::VARIABLE).context("the node has no cgroup")?;
    let node = Node::start(state, &cgroup, progress)?;
    if options.keep {
        let _surroundings = scenario::Surroundings::start(&node)?;
        return shell(&node);
    }
    let mut steps = Steps::default();
    let ran = tokio::runtime::Runtime::new()?.block_on(scenario::run(&node, &mut steps, options));
    println!("{}", steps.table());
    ran.map(|()| ExitCode::SUCCESS)
}

/// Gives a shell in the node's namespaces until it ends.
fn shell(node: &Node) -> Result<ExitCode> {
    let mut paths: Vec<_> = node.tools.directories().into_iter().map(PathBuf::from).collect();
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let status = Command::new(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()))
        .env("KUBECONFIG", inside::admin())
        .env("PATH", std::env::join_paths(paths)?)
        .status()
        .context("cannot start a shell")?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
