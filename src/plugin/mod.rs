//! `kubectl clientapp`: this binary under the name `kubectl-clientapp`. It sends plain requests to the API server with the rights of
//! the user's kubeconfig; the operator is not involved.
//!
//! `args` defines the command line, `connection` and `output` its parts that are kubectl's own, `session` the cluster and the terminal,
//! and `several` what a command does with several names; each command has a module with a pure half that renders or decides.

mod adopt;
mod approve_deletions;
pub(crate) mod args;
mod backup;
mod bucket;
mod change;
mod check;
mod cloudnativepg;
mod complete;
mod connection;
mod create;
mod delete;
mod dumps;
mod error;
mod files;
mod goal;
mod output;
mod password;
mod percona;
mod plan;
mod restore;
mod run_once;
mod session;
mod several;
mod status;
mod text;
mod wait;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::{CommandFactory as _, Parser as _};

use self::{
    args::{Cli, Color, Command},
    error::Error,
    output::Output,
    session::{Printer, Session},
};

/// The name under which kubectl finds the plugin.
const NAME: &str = "kubectl-clientapp";
/// The name under which kubectl looks for a program that completes the plugin's command line.
const COMPLETER: &str = "kubectl_complete-clientapp";

/// Runs the plugin, if the binary was called by one of its names.
pub(crate) fn called(mut line: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let program = line.next()?;
    let name = Path::new(&program).file_name()?.to_str()?;
    match name.strip_suffix(".exe").unwrap_or(name) {
        NAME => Some(main(&Cli::parse_from([program].into_iter().chain(line)))),
        COMPLETER => {
            let words: Vec<OsString> = line.collect();
            Some(finish(&mut Printer::new(Output::Table, Color::Never), async |printer| {
                printer.out(&complete::answer(&words).await)
            }))
        }
        _ => None,
    }
}

/// Runs the command, and prints an error for the user if it fails.
pub(crate) fn main(cli: &Cli) -> ExitCode {
    let mut printer = Printer::new(cli.global.output, cli.global.color);
    finish(&mut printer, async |printer| run(cli, printer).await)
}

fn finish(printer: &mut Printer, work: impl AsyncFnOnce(&mut Printer) -> Result<(), Error>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let result = runtime.map_err(|error| Error::Output(error.to_string())).and_then(|runtime| {
        let result = runtime.block_on(work(printer));
        // A DNS lookup may still be running; waiting for it would delay the exit.
        runtime.shutdown_background();
        result
    });
    let Err(error) = result else { return ExitCode::SUCCESS };
    if !matches!(error, Error::Closed | Error::Told { .. }) {
        printer.error(&error);
    }
    ExitCode::from(error.code())
}

async fn run(cli: &Cli, printer: &mut Printer) -> Result<(), Error> {
    cli.global.output.one_of(cli.command.outputs())?;
    if let Command::Completion { shell } = &cli.command {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), NAME, &mut script);
        return printer.out(&String::from_utf8_lossy(&script));
    }
    let session = &Session::open(&cli.global).await?;
    match &cli.command {
        Command::Create(args) => create::run(session, printer, args).await,
        Command::Status(args) => status::run(session, printer, args).await,
        Command::Wait(args) => wait::run(session, printer, args).await,
        Command::Upgrade(args) => change::upgrade(session, printer, args).await,
        Command::Plan(args) => plan::run(session, printer, args).await,
        Command::Approve(args) => change::approve(session, printer, args).await,
        Command::Suspend(args) => change::suspend(session, printer, args, true).await,
        Command::Resume(args) => change::suspend(session, printer, args, false).await,
        Command::Retry(args) => change::retry(session, printer, args).await,
        Command::Password(args) => password::run(session, printer, args).await,
        Command::Check(args) => check::run(session, printer, args).await,
        Command::Adopt(args) => adopt::run(session, printer, args).await,
        Command::Backup(args) => backup::run(session, printer, args).await,
        Command::Backups(args) if args.files => files::list(session, printer, &args.name).await,
        Command::Backups(args) if args.store => bucket::list(session, printer, &args.name).await,
        Command::Backups(args) => backup::list(session, printer, &args.name).await,
        Command::Restore(args) => restore::run(session, printer, args).await,
        Command::Delete(args) => delete::run(session, printer, args).await,
        Command::ApproveDeletions(args) => approve_deletions::run(session, printer, args).await,
        Command::Completion { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests;
