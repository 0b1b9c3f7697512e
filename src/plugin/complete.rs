//! Shell completion of `kubectl clientapp`: kubectl calls the program `kubectl_complete-clientapp`.

use std::ffi::OsString;

use clap::{Arg, Command, CommandFactory as _, Parser as _};
use kube::{ResourceExt, api::ListParams};

use super::{args::Cli, session::Session};

/// Tells kubectl not to complete file names (cobra's `ShellCompDirectiveNoFileComp`).
const NO_FILES: &str = ":4";

/// Answers kubectl: a line for each candidate, then the directive. The last word is the one being typed.
pub(crate) async fn answer(words: &[OsString]) -> String {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let (typed, before) = words.split_last().map_or(("", &[][..]), |(typed, before)| (typed.as_str(), before));
    let commands = Cli::command();
    let chosen = before.iter().find_map(|word| commands.find_subcommand(word));
    let candidates = match chosen {
        None => commands.get_subcommands().map(|command| command.get_name().to_owned()).collect(),
        Some(command) if typed.starts_with('-') => {
            let flags = commands.get_arguments().chain(command.get_arguments());
            flags.filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect()
        }
        Some(command)
            if command.get_positionals().any(|argument| matches!(argument.get_id().as_str(), "name" | "names")) =>
        {
            names(before, &commands).await
        }
        Some(_) => Vec::new(),
    };
    let fitting = candidates.into_iter().filter(|word| word.starts_with(typed)).map(|word| format!("{word}\n"));
    fitting.chain([format!("{NO_FILES}\n")]).collect()
}

/// The names of the ClientApps in the cluster and namespace of the global flags. Empty if the user may not list them.
async fn names(before: &[String], commands: &Command) -> Vec<String> {
    let line = ["kubectl-clientapp", "check"].map(str::to_owned).into_iter().chain(global(before, commands));
    let Ok(cli) = Cli::try_parse_from(line) else { return Vec::new() };
    let Ok(session) = Session::open(&cli.global).await else { return Vec::new() };
    let found = session.apps().list_metadata(&ListParams::default()).await;
    found.map(|found| found.items.iter().map(ResourceExt::name_any).collect()).unwrap_or_default()
}

/// The global flags of a line with their values; the rest of the line may be incomplete. **Pure.**
fn global(line: &[String], commands: &Command) -> Vec<String> {
    let mut found = Vec::new();
    let mut words = line.iter();
    while let Some(word) = words.next() {
        let flag = word.split('=').next().unwrap_or_default();
        let is_called = |argument: &&Arg| match flag.strip_prefix("--") {
            Some(long) => argument.get_long() == Some(long),
            None => argument.get_short().is_some_and(|short| flag.starts_with(&format!("-{short}"))),
        };
        let mut global = commands.get_arguments().filter(|argument| argument.is_global_set());
        let Some(argument) = global.find(is_called) else { continue };
        found.push(word.clone());
        let has_value = word.contains('=') || (!word.starts_with("--") && word.len() > 2);
        if argument.get_action().takes_values() && !has_value {
            found.extend(words.next().cloned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_that_say_where_names_are() {
        for (line, flags) in [
            ("suspend a b", ""),
            ("status -n shop a", "-n shop"),
            ("status -nshop --context=one a", "-nshop --context=one"),
            (
                "wait --for deleted --timeout 5m --as ada --as-group x --insecure-skip-tls-verify a",
                "--as ada --as-group x --insecure-skip-tls-verify",
            ),
            ("delete -y --timeout 3m -s http://a web", "-s http://a"),
            ("status -n", "-n"),
        ] {
            let line: Vec<_> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(global(&line, &Cli::command()).join(" "), flags, "{line:?}");
        }
    }
}
