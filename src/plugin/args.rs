//! What is typed after `kubectl clientapp`. Pure.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use jiff::SignedDuration;

/// What every command takes, apart from its own.
const GLOBAL: &str = "Global options";

const EXAMPLES: &str = "\
Examples:
  kubectl clientapp create acme --hostname acme.example.com --wait
  kubectl clientapp list -A
  kubectl clientapp status acme
  kubectl clientapp upgrade acme 5.5.3 --wait
  kubectl clientapp password acme

Exit codes:
  0  done    1  failed    2  not understood    3  out of time
  4  stalled: it goes on only after somebody changes something
  5  there is no such ClientApp

Completion: see `kubectl clientapp completion --help`.";

const COMPLETION: &str = "\
Examples:
  # kubectl-clientapp, in this shell
  source <(kubectl clientapp completion bash)

  # `kubectl clientapp <TAB>`, wherever kubectl's own completion works: kubectl asks this name
  ln -s kubectl-clientapp /usr/local/bin/kubectl_complete-clientapp";

/// Makes, watches and changes ClientApps with the rights of your kubeconfig.
#[derive(Parser, Debug)]
#[command(name = "kubectl-clientapp", bin_name = "kubectl clientapp", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Where, and how it is shown.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Namespace; without it the one of the context.
    #[arg(short, long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub namespace: Option<String>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub context: Option<String>,
    /// Kubeconfig; without it $KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE", help_heading = GLOBAL)]
    pub kubeconfig: Option<PathBuf>,
    /// `table` for people; `json` or `yaml` for the objects themselves.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table, help_heading = GLOBAL, hide_possible_values = true)]
    pub output: Output,
    /// Colours: `auto` (on a terminal, unless NO_COLOR is set), `always` or `never`.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN", help_heading = GLOBAL, hide_possible_values = true)]
    pub color: Color,
}

/// How answers are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// The objects.
    Json,
    /// The objects.
    Yaml,
}

/// When there are colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// On a terminal.
    Auto,
    /// In a pipe too.
    Always,
    /// Not even on a terminal.
    Never,
}

/// What to do.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Make a ClientApp.
    #[command(after_help = "\
Examples:
  kubectl clientapp create acme --hostname acme.example.com
  kubectl clientapp create acme -n tenant-acme --create-namespace --hostname acme.example.com --ingress-class traefik --wait
  kubectl clientapp create acme --hostname acme.example.com --values values.yaml --dry-run > acme.yaml")]
    Create(Box<Create>),
    /// List ClientApps.
    #[command(visible_alias = "ls")]
    List(List),
    /// Show a ClientApp with everything that belongs to it, and what it waits for.
    Status(Named),
    /// Wait until a ClientApp is ready, gone, or has a condition.
    #[command(after_help = "\
Examples:
  kubectl clientapp wait acme
  kubectl clientapp wait acme --for deleted --timeout 5m
  kubectl clientapp wait acme --for condition=PostgresReady
  kubectl clientapp wait acme --for condition=Stalled=False

Exit codes:
  0  reached    3  out of time    4  stalled: it goes on only after somebody changes something
  5  there is no such ClientApp")]
    Wait(Wait),
    /// Move a ClientApp to another version of its chart.
    #[command(after_help = "Example:\n  kubectl clientapp upgrade acme 5.5.3 --wait")]
    Upgrade(Upgrade),
    /// List the revisions of a ClientApp's Helm release, by their labels only.
    History(Named),
    /// Have nothing changed for a ClientApp until it is resumed.
    Suspend(Named),
    /// Go on with a suspended ClientApp.
    Resume(Named),
    /// Try again now what failed, without waiting for the next try.
    Retry(Retry),
    /// Have a ClientApp take over the data that an earlier one of its name has left.
    #[command(after_help = "Example:\n  kubectl clientapp adopt acme --wait")]
    Adopt(Adopt),
    /// Print the administrator's password, and nothing else.
    #[command(after_help = "\
Examples:
  kubectl clientapp password acme
  kubectl clientapp password acme --username
  kubectl clientapp password acme -o json")]
    Password(Password),
    /// List the events about a ClientApp, oldest first.
    Events(Events),
    /// Delete a ClientApp, with all that its deletion policy does not keep.
    #[command(after_help = "\
Examples:
  kubectl clientapp delete acme
  kubectl clientapp delete acme --yes --wait=false")]
    Delete(Delete),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETION)]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

/// One ClientApp.
#[derive(Args, Clone, Debug)]
pub struct Named {
    /// Name of the ClientApp.
    pub name: String,
}

/// Whether to wait for the end.
#[derive(Args, Clone, Debug)]
pub struct Patience {
    /// Wait until it is ready.
    #[arg(long)]
    pub wait: bool,
    /// How long to wait, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub timeout: Duration,
}

/// A new ClientApp. What is not said here is as its definition or its Profile says.
#[derive(Args, Clone, Debug)]
pub struct Create {
    /// Name of the ClientApp, and of its Helm release.
    pub name: String,
    /// DNS name that it is served under, unique in the cluster.
    #[arg(long, value_name = "NAME")]
    pub hostname: String,
    /// IngressClass; without it there is no Ingress.
    #[arg(long, value_name = "NAME")]
    pub ingress_class: Option<String>,
    /// Exact version of the chart.
    #[arg(long, value_name = "VERSION")]
    pub chart_version: Option<String>,
    /// Profile whose defaults it takes.
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Image in place of the chart's own.
    #[arg(long)]
    pub image: Option<String>,
    /// Number of app pods.
    #[arg(long, value_name = "NUMBER")]
    pub replicas: Option<i32>,
    /// Without a Redis of its own.
    #[arg(long)]
    pub no_redis: bool,
    /// Without a database of its own.
    #[arg(long, conflicts_with_all = ["postgres_version", "storage", "standalone", "postgres_secret"])]
    pub no_postgres: bool,
    /// With a Postgresql of the operator instead of Percona's.
    #[arg(long, conflicts_with = "postgres_secret")]
    pub standalone: bool,
    /// Secret that opens a database which exists already, with the keys `host`, `user`, `password` and `dbname`.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["postgres_version", "storage"])]
    pub postgres_secret: Option<String>,
    /// Take over the data that an earlier ClientApp of this name has left.
    #[arg(long)]
    pub adopt: bool,
    /// Major version of PostgreSQL.
    #[arg(long, value_name = "MAJOR")]
    pub postgres_version: Option<String>,
    /// Size of the database's volume.
    #[arg(long, value_name = "SIZE")]
    pub storage: Option<String>,
    /// Size of the volume for the app's files.
    #[arg(long)]
    pub size: Option<String>,
    /// What becomes of database and volumes when it is deleted: `Delete` or `Retain`.
    #[arg(long, value_name = "POLICY", ignore_case = true, hide_possible_values = true)]
    pub deletion_policy: Option<Policy>,
    /// YAML file with further values for the chart; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,
    /// Make the namespace too, unless it exists.
    #[arg(long)]
    pub create_namespace: bool,
    /// Print the object instead of making it.
    #[arg(long)]
    pub dry_run: bool,
    /// Whether to wait for it.
    #[command(flatten)]
    pub patience: Patience,
}

/// What becomes of database and volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policy {
    /// They are deleted.
    #[value(name = "Delete")]
    Delete,
    /// They are kept.
    #[value(name = "Retain")]
    Retain,
}

/// Which ClientApps.
#[derive(Args, Clone, Debug)]
pub struct List {
    /// Those of all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Those with these labels, such as `tier=gold`.
    #[arg(short = 'l', long, value_name = "LABELS")]
    pub selector: Option<String>,
    /// Go on with every change.
    #[arg(short, long)]
    pub watch: bool,
}

/// What to wait for.
#[derive(Args, Clone, Debug)]
pub struct Wait {
    /// Name of the ClientApp.
    pub name: String,
    /// `ready`, `deleted` or `condition=TYPE[=STATUS]`.
    #[arg(long = "for", value_parser = target, default_value = "ready", value_name = "WHAT")]
    pub target: Target,
    /// How long to wait, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub timeout: Duration,
}

/// What to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Ready, for the newest spec.
    Ready,
    /// Gone.
    Deleted,
    /// A condition with this status.
    Condition(String, String),
}

/// To which version.
#[derive(Args, Clone, Debug)]
pub struct Upgrade {
    /// Name of the ClientApp.
    pub name: String,
    /// Exact version of the chart.
    // Under another id than --version, which this command has too as a part of the operator's.
    #[arg(id = "to", value_name = "VERSION")]
    pub version: String,
    /// Back the database up first, at this and every later upgrade.
    #[arg(long)]
    pub backup: bool,
    /// Also where the app goes back to an older version, or leaves a major version out; for this one change.
    #[arg(long)]
    pub allow: bool,
    /// Whether to wait for it.
    #[command(flatten)]
    pub patience: Patience,
}

/// Another attempt.
#[derive(Args, Clone, Debug)]
pub struct Retry {
    /// Name of the ClientApp.
    pub name: String,
    /// Whether to wait for it.
    #[command(flatten)]
    pub patience: Patience,
}

/// Who takes over.
#[derive(Args, Clone, Debug)]
pub struct Adopt {
    /// Name of the ClientApp.
    pub name: String,
    /// Whether to wait for it.
    #[command(flatten)]
    pub patience: Patience,
}

/// Whose password.
#[derive(Args, Clone, Debug)]
pub struct Password {
    /// Name of the ClientApp.
    pub name: String,
    /// Print the administrator's name instead.
    #[arg(long)]
    pub username: bool,
}

/// Events about what.
#[derive(Args, Clone, Debug)]
pub struct Events {
    /// Name of the ClientApp.
    pub name: String,
    /// Go on with those to come.
    #[arg(short, long)]
    pub watch: bool,
}

/// What to delete.
#[derive(Args, Clone, Debug)]
pub struct Delete {
    /// Name of the ClientApp.
    pub name: String,
    /// Do not ask.
    #[arg(short, long)]
    pub yes: bool,
    /// Wait until it is gone.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub wait: bool,
    /// How long to wait, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub timeout: Duration,
}

fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "not a time such as 90s, 10m or 1h30m".to_owned())
}

fn target(text: &str) -> Result<Target, String> {
    match text.split('=').collect::<Vec<_>>()[..] {
        ["ready"] => Ok(Target::Ready),
        ["deleted" | "delete"] => Ok(Target::Deleted),
        ["condition", type_] if !type_.is_empty() => Ok(Target::Condition(type_.to_owned(), "True".to_owned())),
        ["condition", type_, status] if !type_.is_empty() && ["True", "False", "Unknown"].contains(&status) => {
            Ok(Target::Condition(type_.to_owned(), status.to_owned()))
        }
        _ => Err("neither ready, deleted nor condition=TYPE[=True|False|Unknown]".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_and_targets() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "10", "-5s", "soon"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        let condition = |type_: &str, status: &str| Ok(Target::Condition(type_.to_owned(), status.to_owned()));
        for (text, parsed) in [
            ("ready", Ok(Target::Ready)),
            ("deleted", Ok(Target::Deleted)),
            ("condition=Released", condition("Released", "True")),
            ("condition=Stalled=False", condition("Stalled", "False")),
        ] {
            assert_eq!(target(text), parsed);
        }
        for wrong in ["Ready", "condition", "condition=", "condition=A=yes", "condition=A=True=b"] {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }
}
