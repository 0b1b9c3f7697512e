//! `clientapp-operator store`: the dumps of a `Postgresql` in S3-compatible storage. It runs in the Jobs that dump, beside the
//! volume with the dumps, and reaches no cluster.
//!
//! ```text
//! <prefix>/20260101T030000Z-abcde.json                 says that the dump is complete, and what it consists of
//! <prefix>/20260101T030000Z-abcde/<folder>/globals.sql its files; each upload has a folder of its own
//! ```
//!
//! The first is written last. So half an upload is no dump, and two uploads of one dump do not mix.
//!
//! | module | | |
//! |---|---|---|
//! | [`settings`] | what is asked for, checked once | reads files |
//! | [`dump`] | a dump on a volume | effect, reads only |
//! | [`catalog`] | the dumps in a bucket | pure, and one effect that reads them |
//! | [`mod@keep`] | which ones stay there | pure |
//! | [`seal`] | encryption | pure |
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
pub(crate) mod push;
pub(crate) mod receive;
pub(crate) mod seal;
pub(crate) mod send;
pub(crate) mod settings;

use std::process::ExitCode;

use self::{
    bucket::Bucket,
    error::Error,
    settings::{Command, StoreArgs},
};
use crate::shutdown;

/// Runs one of the commands. What it has to say goes to standard output, and why it failed, in one line, to standard error: that is
/// what the Job's pod says at its end.
#[must_use]
pub(crate) fn main(args: &StoreArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let ended = runtime.block_on(run(&args.command));
    // A thread that waits for a lock, or reads a disk that hangs, is not waited for.
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
    // The first process of a container ignores what it does not ask for.
    let stop = shutdown::on_signals().map_err(|error| Error::Settings(format!("signals cannot be caught: {error}")))?;
    match command {
        Command::Push(args) => {
            let (bucket, push) = (Bucket::open(&args.place)?, args.checked());
            push::push(&bucket, &push, &stop).await
        }
        Command::Fetch(args) => {
            let (bucket, fetch) = (Bucket::open(&args.place)?, args.checked()?);
            // What is dropped half way takes along what it has written.
            stop.run_until_cancelled(fetch::fetch(&bucket, &fetch)).await.unwrap_or(Err(Error::Stopped))
        }
        Command::Archive(args) => {
            let (bucket, archive) = (Bucket::open(&args.place)?, args.checked());
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
