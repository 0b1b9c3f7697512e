//! `kubectl clientapp`: this binary under the name `kubectl-clientapp`. It sends plain requests to the API server with the rights of
//! the user's kubeconfig; the operator is not involved.
//!
//! `args` defines the command line, `session` the cluster and the terminal; each command has a module with a pure half that renders or
//! decides.

mod adopt;
pub(crate) mod args;
mod backup;
mod bucket;
mod change;
mod complete;
mod create;
mod delete;
mod error;
mod events;
mod goal;
mod history;
mod list;
mod password;
mod percona;
mod restore;
mod session;
mod status;
mod text;
mod wait;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::{CommandFactory as _, Parser as _};

use self::{
    args::{Cli, Color, Command, Output},
    error::Error,
    session::{Printer, Session},
    text::{BAD, harmless, paint},
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
    if !matches!(error, Error::Closed) {
        printer.note(&format!("{} {}", paint(BAD, "error:"), harmless(&error.to_string())));
    }
    ExitCode::from(error.code())
}

async fn run(cli: &Cli, printer: &mut Printer) -> Result<(), Error> {
    if let Command::Completion { shell } = &cli.command {
        let mut script = Vec::new();
        clap_complete::generate(*shell, &mut Cli::command(), NAME, &mut script);
        return printer.out(&String::from_utf8_lossy(&script));
    }
    let session = &Session::open(&cli.global).await?;
    match &cli.command {
        Command::Create(args) => create::run(session, printer, args).await,
        Command::List(args) => list::run(session, printer, args).await,
        Command::Status(args) => status::run(session, printer, &args.name).await,
        Command::Wait(args) => wait::run(session, printer, args).await,
        Command::Upgrade(args) => change::upgrade(session, printer, args).await,
        Command::History(args) => history::run(session, printer, &args.name).await,
        Command::Suspend(args) => change::suspend(session, printer, &args.name, true).await,
        Command::Resume(args) => change::suspend(session, printer, &args.name, false).await,
        Command::Retry(args) => change::retry(session, printer, args).await,
        Command::Password(args) => password::run(session, printer, args).await,
        Command::Events(args) => events::run(session, printer, args).await,
        Command::Adopt(args) => adopt::run(session, printer, args).await,
        Command::Backup(args) => backup::run(session, printer, args).await,
        Command::Backups(args) if args.store => bucket::list(session, printer, &args.name).await,
        Command::Backups(args) => backup::list(session, printer, &args.name).await,
        Command::Restore(args) => restore::run(session, printer, args).await,
        Command::Delete(args) => delete::run(session, printer, args).await,
        Command::Completion { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests;
