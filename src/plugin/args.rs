//! The command line of `kubectl clientapp`. Pure.

use std::{path::PathBuf, time::Duration};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use jiff::Timestamp;

use super::{
    connection::Connection,
    goal::Goal,
    output::Output,
    text::{duration, new_name},
};
use crate::{
    config::InstallArgs,
    crd::{DeletionPolicy, Reclaim},
};

/// Help heading of the options that every command has.
const GLOBAL: &str = "Global options";

/// Default of `restore --from`, and of an archive without a name.
pub(crate) const LATEST: &str = "latest";

const EXAMPLES: &str = "\
Examples:
  kubectl clientapp create acme --hostname acme.example.com --wait
  kubectl clientapp check
  kubectl clientapp status acme
  kubectl clientapp upgrade acme 5.5.3 --wait
  kubectl clientapp password acme
  kubectl clientapp backup acme --wait

Exit codes:
  0  done    1  failed    2  usage error    3  timed out
  4  stalled: a user or cluster admin has to change something first
  5  there is no such ClientApp
  Of several ClientApps, the worst: 1, then 2, 5, 4, 3.

Completion: see `kubectl clientapp completion --help`.";

const COMPLETION: &str = "\
Examples:
  # kubectl-clientapp, in this shell
  source <(kubectl clientapp completion bash)

  # `kubectl clientapp <TAB>`, wherever kubectl's own completion works: kubectl asks this name
  ln -s kubectl-clientapp /usr/local/bin/kubectl_complete-clientapp";

/// Create, watch and change ClientApps with the rights of your kubeconfig.
#[derive(Parser, Debug)]
#[command(name = "kubectl-clientapp", bin_name = "kubectl clientapp", version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Global {
    /// Namespace; defaults to the one of the context.
    #[arg(short, long, global = true, value_name = "NAME", help_heading = GLOBAL)]
    pub(crate) namespace: Option<String>,
    /// `table` or `wide` for humans, `name`, `json` or `yaml` for scripts, as far as a command has them.
    #[arg(short, long, global = true, value_enum, default_value_t = Output::Table, value_name = "FORM", help_heading = GLOBAL, hide_possible_values = true)]
    pub(crate) output: Output,
    /// Colours: `auto` (on a terminal, unless NO_COLOR is set), `always` or `never`.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN", help_heading = GLOBAL, hide_possible_values = true)]
    pub(crate) color: Color,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Create a ClientApp.
    #[command(after_help = "\
Examples:
  kubectl clientapp create acme --hostname acme.example.com
  kubectl clientapp create acme -n tenant-acme --create-namespace --hostname acme.example.com --ingress-class traefik --wait
  kubectl clientapp create acme --hostname acme.example.com --values values.yaml --dry-run > acme.yaml")]
    Create(Box<Create>),
    /// Show ClientApps, everything that belongs to them, and what they are waiting for.
    Status(Names),
    /// Wait until ClientApps are ready, are gone, or have a condition.
    #[command(after_help = "\
Examples:
  kubectl clientapp wait acme
  kubectl clientapp wait --all --timeout 30m
  kubectl clientapp wait acme --for deleted --timeout 5m
  kubectl clientapp wait acme --for condition=PostgresReady
  kubectl clientapp wait acme --for condition=Stalled=False

Exit codes:
  0  reached    3  timed out    4  stalled: a user or cluster admin has to change something first
  5  there is no such ClientApp")]
    Wait(Wait),
    /// Change the version of a ClientApp's chart.
    #[command(after_help = "Example:\n  kubectl clientapp upgrade acme 5.5.3 --wait")]
    Upgrade(Upgrade),
    /// Show what helm would add, change and remove, with secrets hidden. Changes nothing.
    #[command(after_help = "\
Examples:
  kubectl clientapp plan acme                  # the spec as it is
  kubectl clientapp plan acme 5.5.3            # with another version of the chart
  kubectl clientapp plan acme -f acme.yaml     # with another spec

helm runs on this machine. If the operator does not run with the default settings, give the same ones here, such as --base-values.")]
    Plan(Box<Plan>),
    /// Approve what waits for approval, under `spec.approval: Manual`.
    #[command(after_help = "\
Examples:
  kubectl clientapp plan acme
  kubectl clientapp approve acme 1f0a52c9d7e3b864 --wait")]
    Approve(Approve),
    /// Suspend ClientApps: the operator changes nothing until they are resumed.
    #[command(after_help = "\
Examples:
  kubectl clientapp suspend acme globex
  kubectl clientapp suspend -l tier=gold")]
    Suspend(Targets),
    /// Resume suspended ClientApps.
    Resume(Targets),
    /// Retry now, instead of waiting for the next attempt.
    Retry(Retry),
    /// Adopt the data retained from an earlier ClientApp of the same name.
    #[command(after_help = "Example:\n  kubectl clientapp adopt acme --wait")]
    Adopt(Awaited),
    /// Back up ClientApps now, one after the other: the database, as a dump, a PerconaPGBackup or a Backup of
    /// CloudNativePG, and with `spec.persistence.backup` an archive of the app's files.
    #[command(after_help = "\
Examples:
  kubectl clientapp backup acme --wait
  kubectl clientapp backup acme --stop    # database and files of one moment; the app has no pods meanwhile")]
    Backup(Backup),
    /// List the backups of a ClientApp's database and the results of restore drills or, with --files, the archives of its files.
    Backups(Backups),
    /// Replace a ClientApp's database, its files or both with a backup or, with --to, create another ClientApp from the backup.
    #[command(after_help = "\
Examples:
  kubectl clientapp backups acme
  kubectl clientapp restore acme --from 20260131T030000Z-x7k2p --wait
  kubectl clientapp restore acme --no-backup --wait    # the database is gone: the latest backup
  kubectl clientapp restore acme --store --no-backup --wait    # and so is the volume with the dumps: the latest in the bucket
  kubectl clientapp restore acme --time 2026-01-31T12:00:00Z --wait    # of a PerconaPGCluster
  kubectl clientapp restore acme --from 20260131T030000Z-x7k2p --to acme-then --hostname then.example.com    # acme stays as it is
  kubectl clientapp backups acme --files
  kubectl clientapp restore acme --from 20260131T030000Z-x7k2p --files=20260131T033000Z-p9d4f --wait    # the files as well
  kubectl clientapp restore acme --only-files --no-backup --wait    # the files are gone: the latest archive
  kubectl clientapp restore acme --to acme-then --hostname then.example.com --files    # a copy with its files

The command creates a ClientAppRestore. The operator carries it out, whatever becomes of the command; --wait follows it to its end. What
was there before is set aside or, in a PerconaPGCluster, backed up first.

The app's files are in the archives of spec.persistence.backup. Meanwhile the app has no pods.

With --to, the other ClientApp has the spec and the administrator of the first, and no pods: before you let it have some, copy the
app's files, unless --files does so, and see to dbhost in their config.php. The ClientAppRestore says what to do.")]
    Restore(Restore),
    /// Print the administrator's password, and nothing else.
    #[command(after_help = "\
Examples:
  kubectl clientapp password acme
  kubectl clientapp password acme --username
  kubectl clientapp password acme -o json")]
    Password(Password),
    /// Check that this cluster can run ClientApps: the kinds, the operator, and your rights. Changes nothing.
    Check(Check),
    /// Delete ClientApps, and everything that their deletion policies do not retain.
    #[command(after_help = "\
Examples:
  kubectl clientapp delete acme globex
  kubectl clientapp delete acme --yes --wait=false")]
    Delete(Delete),
    /// Approve the deletions that are held because many ClientApps were deleted at once (`DeletionHeld`).
    #[command(after_help = "\
Those that are not meant to go: set their spec.deletionPolicy to Retain first, which needs no approval and keeps their data.

Examples:
  kubectl clientapp approve-deletions
  kubectl clientapp approve-deletions -A --yes")]
    ApproveDeletions(ApproveDeletions),
    /// Print a completion script for a shell.
    #[command(after_help = COMPLETION)]
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Names {
    /// Names of the ClientApps.
    #[arg(required = true, value_name = "NAME")]
    pub(crate) names: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Targets {
    /// Names of the ClientApps.
    #[arg(value_name = "NAME", required_unless_present_any = ["selector", "all"], conflicts_with_all = ["selector", "all"])]
    pub(crate) names: Vec<String>,
    /// Label selector, such as `tier=gold`, instead of names.
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "all")]
    pub(crate) selector: Option<String>,
    /// All ClientApps of the namespace.
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Waiting {
    /// Wait until it is ready.
    #[arg(long)]
    pub(crate) wait: bool,
    /// How long to wait, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Create {
    /// Name of the ClientApp, and of its Helm release.
    #[arg(value_parser = new_name)]
    pub(crate) name: String,
    /// DNS name that the app is served under, unique in the cluster.
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: String,
    /// IngressClass; without it, no Ingress is created.
    #[arg(long, value_name = "NAME")]
    pub(crate) ingress_class: Option<String>,
    /// cert-manager's Issuer, in this namespace, for the certificate of the hostname.
    #[arg(long, value_name = "NAME", group = "tls", requires = "ingress_class")]
    pub(crate) tls_issuer: Option<String>,
    /// cert-manager's ClusterIssuer for it.
    #[arg(long, value_name = "NAME", group = "tls", requires = "ingress_class")]
    pub(crate) tls_cluster_issuer: Option<String>,
    /// Secret with the certificate, such as a wildcard.
    #[arg(long, value_name = "NAME", group = "tls", requires = "ingress_class")]
    pub(crate) tls_secret: Option<String>,
    /// A load balancer or a proxy has the certificate.
    #[arg(long, group = "tls")]
    pub(crate) tls_elsewhere: bool,
    /// Exact version of the chart.
    #[arg(long, value_name = "VERSION")]
    pub(crate) chart_version: Option<String>,
    /// Profile to take defaults from.
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,
    /// Image to use instead of the chart's own.
    #[arg(long)]
    pub(crate) image: Option<String>,
    /// Number of app pods.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) replicas: Option<i32>,
    /// Do not deploy Redis.
    #[arg(long)]
    pub(crate) no_redis: bool,
    /// Do not create a database.
    #[arg(long, conflicts_with_all = ["postgres_version", "storage", "standalone", "cloudnativepg", "postgres_secret"])]
    pub(crate) no_postgres: bool,
    /// Use a Postgresql of the operator instead of a PerconaPGCluster.
    #[arg(long, conflicts_with_all = ["postgres_secret", "cloudnativepg"])]
    pub(crate) standalone: bool,
    /// Use a Cluster of CloudNativePG instead of a PerconaPGCluster.
    #[arg(long, conflicts_with = "postgres_secret")]
    pub(crate) cloudnativepg: bool,
    /// Secret with the credentials of an existing database: the keys `host`, `user`, `password` and `dbname`.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["postgres_version", "storage"])]
    pub(crate) postgres_secret: Option<String>,
    /// Adopt the data retained from an earlier ClientApp of this name.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// Major version of PostgreSQL.
    #[arg(long, value_name = "MAJOR")]
    pub(crate) postgres_version: Option<String>,
    /// Size of the database's volume.
    #[arg(long, value_name = "SIZE")]
    pub(crate) storage: Option<String>,
    /// Size of the volume for the app's files.
    #[arg(long)]
    pub(crate) size: Option<String>,
    /// What happens to the database and the volumes on deletion: `Delete` or `Retain`.
    #[arg(long, value_name = "POLICY", ignore_case = true, hide_possible_values = true)]
    pub(crate) deletion_policy: Option<DeletionPolicy>,
    /// YAML file with additional values for the chart; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) values: Option<PathBuf>,
    /// Create the namespace if it does not exist.
    #[arg(long)]
    pub(crate) create_namespace: bool,
    /// Print the object, checked by the API server, instead of creating it.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Wait {
    #[command(flatten)]
    pub(crate) targets: Targets,
    /// `ready`, `deleted` or `condition=TYPE[=STATUS]`.
    #[arg(long = "for", default_value = "ready", value_name = "WHAT")]
    pub(crate) goal: Goal,
    /// How long to wait, for all of them together, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub(crate) timeout: Duration,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Upgrade {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// Exact version of the chart.
    // clap's id `version` is taken by --version, which every command inherits.
    #[arg(id = "to", value_name = "VERSION")]
    pub(crate) version: String,
    /// Back up the database before this and every later upgrade.
    #[arg(long)]
    pub(crate) backup: bool,
    /// Allow this one change to go back to an older version, or to skip a major version.
    #[arg(long)]
    pub(crate) allow: bool,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Plan {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// Exact version of the chart, instead of the spec's.
    #[arg(id = "to", value_name = "VERSION", conflicts_with = "file")]
    pub(crate) version: Option<semver::Version>,
    /// File with the ClientApp, instead of the stored one; `-` for standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// File with the ClientApp's Profile, instead of the stored one; `-` for standard input.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    #[command(flatten, next_help_heading = "Settings of the operator")]
    pub(crate) install: InstallArgs,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Approve {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// Digest of the plan, as `plan` and `status.plan` show it. Absent: the command says what waits, and approves nothing.
    pub(crate) digest: Option<String>,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct ApproveDeletions {
    /// Those in all namespaces.
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Awaited {
    /// Name of the ClientApp.
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Retry {
    #[command(flatten)]
    pub(crate) targets: Targets,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) names: Names,
    /// Take the pods of the app away meanwhile, so that its database and its files are of one moment, and wait for both.
    #[arg(long)]
    pub(crate) stop: bool,
    /// What happens to what it has made when the ClientAppBackup is deleted: `Retain` or `Delete`, which is not for dumps.
    #[arg(long, value_name = "POLICY", default_value = "Retain", ignore_case = true, hide_possible_values = true)]
    pub(crate) reclaim: Reclaim,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Backups {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// List the dumps in the bucket of `spec.postgres.backup.store`, with its credentials.
    #[arg(long)]
    pub(crate) store: bool,
    /// List the archives of the app's files in the bucket of `spec.persistence.backup.store`, with its credentials.
    #[arg(long, conflicts_with = "store")]
    pub(crate) files: bool,
}

#[derive(Args, Clone, Debug)]
#[command(group(ArgGroup::new("archives").args(["files", "only_files"])))]
#[command(group(ArgGroup::new("encrypted").args(["store", "files", "only_files"]).multiple(true)))]
pub(crate) struct Restore {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// Name of a ClientAppBackup: restore all that it has.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["from", "time", "store", "files", "only_files", "to"])]
    pub(crate) backup: Option<String>,
    /// Name of a dump, a PerconaPGBackup or, with --to, a Backup of CloudNativePG. `latest` means the newest dump with data, else the
    /// newest archived state.
    #[arg(long, value_name = "BACKUP", default_value = LATEST)]
    pub(crate) from: String,
    /// Take the dump from the bucket of `spec.postgres.backup.store`.
    #[arg(long)]
    pub(crate) store: bool,
    /// Also restore the app's files, after the database: from this archive, or from the latest. It has to be `--files=ARCHIVE`, with
    /// the equals sign.
    #[arg(long, value_name = "ARCHIVE", num_args = 0..=1, require_equals = true, default_missing_value = LATEST)]
    pub(crate) files: Option<String>,
    /// Restore only the app's files, and leave the database as it is.
    #[arg(long, value_name = "ARCHIVE", num_args = 0..=1, require_equals = true, default_missing_value = LATEST, conflicts_with_all = ["from", "time", "store", "to"])]
    pub(crate) only_files: Option<String>,
    /// Path of the archives in the bucket, `<prefix>/<namespace>/<name>.files` of the ClientApp whose files they are; defaults to the
    /// ClientApp's own.
    #[arg(long, value_name = "PATH", requires = "archives")]
    pub(crate) files_path: Option<String>,
    /// Secret with the password of the repository, under the key `password`. Absent: the app's own.
    #[arg(long, value_name = "SECRET", requires = "encrypted")]
    pub(crate) password_secret: Option<String>,
    /// Point in time to restore, of a PerconaPGCluster or, with --to, a Cluster of CloudNativePG, such as 2026-01-31T12:00:00Z.
    #[arg(long, value_name = "TIME", conflicts_with = "from")]
    pub(crate) time: Option<Timestamp>,
    /// Create another ClientApp of this name from the backup, and leave this one as it is.
    #[arg(long, value_name = "OTHER", value_parser = new_name, requires = "hostname", conflicts_with = "no_backup")]
    pub(crate) to: Option<String>,
    /// DNS name that the other ClientApp is served under, unique in the cluster.
    #[arg(long, value_name = "NAME", requires = "to")]
    pub(crate) hostname: Option<String>,
    /// Do not back up a PerconaPGCluster first, whose present content is then lost. Other databases, and files, are set aside on their
    /// volumes in any case.
    #[arg(long)]
    pub(crate) no_backup: bool,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) waiting: Waiting,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Password {
    /// Name of the ClientApp.
    pub(crate) name: String,
    /// Print the administrator's name instead.
    #[arg(long)]
    pub(crate) username: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Check {
    /// Namespace of the operator.
    #[arg(long, value_name = "NAME", default_value = "clientapp-operator")]
    pub(crate) operator_namespace: String,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Delete {
    #[command(flatten)]
    pub(crate) names: Names,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Wait until they are gone.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub(crate) wait: bool,
    /// How long to wait, such as 90s or 10m.
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    pub(crate) timeout: Duration,
}

impl Restore {
    /// The archive to restore the app's files from, if they are to be restored.
    pub(crate) fn archive(&self) -> Option<&str> {
        self.files.as_deref().or(self.only_files.as_deref())
    }
}

impl Command {
    /// The forms of `-o` that the command has: a name and an object can only be printed of what is an object.
    pub(crate) fn outputs(&self) -> &'static [&'static str] {
        match self {
            Command::Status(_) => &["table", "wide", "name", "json", "yaml"],
            Command::Create(_)
            | Command::Wait(_)
            | Command::Upgrade(_)
            | Command::Approve(_)
            | Command::Suspend(_)
            | Command::Resume(_)
            | Command::Retry(_)
            | Command::Adopt(_)
            | Command::Backup(_)
            | Command::Restore(_) => &["table", "name", "json", "yaml"],
            // A dump and a password have no name that kubectl would take.
            Command::Backups(_) | Command::Password(_) => &["table", "json", "yaml"],
            // Afterwards there is no object.
            Command::Delete(_) | Command::ApproveDeletions(_) => &["table", "name"],
            Command::Plan(_) | Command::Check(_) | Command::Completion { .. } => &["table"],
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, error::ErrorKind};

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn which_archive_is_restored() {
        let parsed = |flags: &[&str]| {
            let line = [&["kubectl-clientapp", "restore", "acme"][..], flags].concat();
            match Cli::try_parse_from(line).map(|cli| cli.command) {
                Ok(Command::Restore(args)) => Ok(args.archive().map(str::to_owned)),
                Ok(other) => panic!("{other:?}"),
                Err(error) => Err(error.kind()),
            }
        };
        let named = |archive: &str| Ok(Some(archive.to_owned()));
        let conflict = || Err(ErrorKind::ArgumentConflict);
        let missing = || Err(ErrorKind::MissingRequiredArgument);
        for (flags, expected) in [
            (&[] as &[&str], Ok(None)),
            (&["--files"], named("latest")),
            (&["--files=a", "--store", "--from", "b", "--password-secret", "restic"], named("a")),
            (&["--only-files=a", "--files-path", "prod/ns/acme.files", "--password-secret", "restic"], named("a")),
            (&["--files", "--to", "then", "--hostname", "then.example.com"], named("latest")),
            (&["--files", "--only-files"], conflict()),
            (&["--only-files", "--from", "b"], conflict()),
            (&["--only-files", "--store"], conflict()),
            (&["--only-files", "--time", "2026-01-01T00:00:00Z"], conflict()),
            (&["--only-files", "--to", "then", "--hostname", "then.example.com"], conflict()),
            (&["--files-path", "prod/ns/acme.files"], missing()),
            (&["--password-secret", "restic"], missing()),
        ] {
            assert_eq!(parsed(flags), expected, "{flags:?}");
        }
    }
}
