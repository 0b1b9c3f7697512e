//! `clientapp-operator store`: the dumps of a `Postgresql` in S3-compatible storage. It runs in the Jobs that dump, next to the
//! volume with the dumps, and needs no access to the cluster.
//!
//! ```text
//! <prefix>/20260101T030000Z-abcde.json                 the entry: lists the files of a complete dump
//! <prefix>/20260101T030000Z-abcde/<folder>/globals.sql a file of the dump; each upload has its own folder
//! ```
//!
//! The entry is written last, so a partial upload is never taken for a dump, and two uploads of one dump do not mix.
//!
//! | module | | |
//! |---|---|---|
//! | [`settings`] | flags and environment, checked once | reads files |
//! | [`dump`] | a dump on a volume | effect, reads only |
//! | [`catalog`] | the dumps in a bucket | pure, except for reading the bucket |
//! | [`mod@keep`] | which dumps are kept | pure |
//! | [`seal`] | encryption | pure |
//! | [`lock`] | locks on directories | effect |
//! | [`volume`] | what restores leave in a volume | effect |
//! | [`bucket`], [`mod@send`], [`mod@receive`] | the storage | effects |
//! | [`mod@push`], [`mod@fetch`], [`mod@list`], [`mod@archive`], [`mod@extract`] | the commands | effects |

pub(crate) mod archive;
pub(crate) mod bucket;
pub(crate) mod catalog;
pub(crate) mod dump;
pub(crate) mod error;
pub(crate) mod extract;
pub(crate) mod fetch;
pub(crate) mod keep;
pub(crate) mod list;
pub(crate) mod lock;
pub(crate) mod push;
pub(crate) mod receive;
pub(crate) mod seal;
pub(crate) mod send;
pub(crate) mod settings;
pub(crate) mod volume;

use std::process::ExitCode;

use self::{
    bucket::Bucket,
    error::Error,
    settings::{Command, StoreArgs},
};
use crate::shutdown;

/// Runs one of the commands. The last line of standard error becomes the termination message of the Job's pod, so an error is a
/// single line there; everything else goes to standard output.
#[must_use]
pub(crate) fn main(args: &StoreArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let ended = runtime.block_on(run(&args.command));
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

async fn run(command: &Command) -> Result<(), Error> {
    // The kernel drops signals that PID 1 of a container has not installed a handler for.
    let stop =
        shutdown::on_signals().map_err(|error| Error::Settings(format!("cannot install signal handlers: {error}")))?;
    match command {
        Command::Push(args) => {
            let (bucket, push) = (Bucket::open(&args.place)?, args.checked());
            push::push(&bucket, &push, &stop).await
        }
        Command::Fetch(args) => {
            let (bucket, fetch) = (Bucket::open(&args.place)?, args.checked()?);
            // Dropping the future removes the partial dump.
            stop.run_until_cancelled(fetch::fetch(&bucket, &fetch)).await.unwrap_or(Err(Error::Stopped))
        }
        Command::Archive(args) => {
            let (bucket, archive) = (Bucket::open(&args.place)?, args.checked()?);
            archive::archive(&bucket, &archive, &stop).await
        }
        Command::Extract(args) => {
            let (bucket, extract) = (Bucket::open(&args.place)?, args.checked()?);
            stop.run_until_cancelled(extract::extract(&bucket, &extract)).await.unwrap_or(Err(Error::Stopped))
        }
        Command::List(args) => {
            let bucket = Bucket::open(&args.place)?;
            stop.run_until_cancelled(list::list(&bucket)).await.unwrap_or(Err(Error::Stopped))
        }
    }
}
