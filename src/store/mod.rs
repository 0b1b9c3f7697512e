//! `clientapp-operator store`: the dumps of a `Postgresql` and the files of a ClientApp in a restic repository. It runs in Jobs, next
//! to the volumes, and needs no access to the cluster.
//!
//! | module | | |
//! |---|---|---|
//! | [`settings`] | flags and environment, checked once | reads files |
//! | [`dump`] | a dump on a volume | effect, reads only |
//! | [`stored`] | the snapshots of a repository | pure |
//! | [`lock`] | locks on directories | effect |
//! | [`volume`] | what restores leave in a volume | effect |
//! | [`mod@push`], [`mod@fetch`], [`mod@archive`], [`mod@extract`], [`mod@forget`] | the commands | effects |
//! | [`mod@tidy`] | what a command does once its snapshot is made | effect |

pub(crate) mod archive;
pub(crate) mod dump;
pub(crate) mod error;
pub(crate) mod extract;
pub(crate) mod fetch;
pub(crate) mod forget;
pub(crate) mod lock;
pub(crate) mod push;
pub(crate) mod settings;
pub(crate) mod stored;
pub(crate) mod tidy;
pub(crate) mod volume;

use std::process::ExitCode;

use self::{
    error::Error,
    settings::{Command, StoreArgs},
};
use crate::{restic::command::Location, shutdown};

/// Runs one of the commands. The last line of standard error becomes the termination message of the Job's pod, so an error is a
/// single line there; everything else goes to standard output.
#[must_use]
pub(crate) fn main(args: &StoreArgs) -> ExitCode {
    let location = match args.command.prepare() {
        Ok(location) => location,
        Err(error) if matches!(args.command, Command::Extract(_)) => return failed(&Error::Untouched(Box::new(error))),
        Err(error) => return failed(&error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let ended = runtime.block_on(run(&args.command, location));
    // A blocking thread may wait for a lock or for a disk that hangs; waiting for it would delay the exit.
    runtime.shutdown_background();
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(&error),
    }
}

fn failed(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

async fn run(command: &Command, location: Location) -> Result<(), Error> {
    // The kernel drops signals that PID 1 of a container has not installed a handler for.
    let stop =
        shutdown::on_signals().map_err(|error| Error::Settings(format!("cannot install signal handlers: {error}")))?;
    match command {
        Command::Push(args) => push::push(&args.place.repository(location, &stop), args, &stop).await,
        Command::Archive(args) => archive::archive(&args.place.repository(location, &stop), args).await,
        Command::Fetch(args) => fetch::fetch(&args.place.repository(location, &stop), args).await,
        Command::Extract(args) => extract::extract(&args.place.repository(location, &stop), args).await,
        Command::Forget(args) => forget::forget(&args.place.repository(location, &stop), &args.backup).await,
    }
}
