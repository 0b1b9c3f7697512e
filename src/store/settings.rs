//! Flags and environment, checked once. Credentials come from the environment only, because other processes of a machine can read
//! the arguments.

use std::{
    fmt,
    io::ErrorKind,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{Args, Subcommand};

use super::{
    dump::{LONGEST, Name},
    error::Error,
    keep::Keep,
    seal::{Identity, Recipient},
};

/// Dumps in S3-compatible storage.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand, Clone, Debug)]
pub(super) enum Command {
    /// Upload each dump of a directory that the bucket lacks, and remove from the bucket what is not to be kept.
    Push(PushArgs),
    /// Download a dump into a directory.
    Fetch(FetchArgs),
    /// Print the dumps in the bucket, newest first, as one JSON object a line.
    List(ListArgs),
    /// Upload the files of volumes, each volume as one archive, and remove from the bucket what is not to be kept.
    Archive(ArchiveArgs),
    /// Restore the files of archives into empty volumes or, with --replace, in place of the present files.
    Extract(ExtractArgs),
}

/// Where dumps are stored. The credentials come from the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
#[derive(Args, Clone, Debug)]
pub(super) struct Place {
    /// URL of the storage.
    #[arg(long, env = "STORE_ENDPOINT", value_name = "URL")]
    pub endpoint: Endpoint,
    #[arg(long, env = "STORE_BUCKET")]
    pub bucket: String,
    /// Prefix of the names of all objects.
    #[arg(long, env = "STORE_PREFIX")]
    pub prefix: Prefix,
    #[arg(long, env = "STORE_REGION", default_value = "us-east-1")]
    pub region: String,
    /// PEM file with certificates to trust in addition to the system's.
    #[arg(long, env = "STORE_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// How long to retry a failed request, in seconds.
    #[arg(long, env = "STORE_RETRY_TIMEOUT", default_value = "180", value_parser = seconds, value_name = "SECONDS")]
    pub retry_timeout: Duration,
    /// Timeout of one request, in seconds. No request transfers more than a few MiB.
    #[arg(long, env = "STORE_TIMEOUT", default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub timeout: Duration,
}

#[derive(Args, Clone, Debug)]
pub(super) struct PushArgs {
    #[command(flatten)]
    pub place: Place,
    /// Directory with dumps.
    #[arg(long, env = "DUMPS", value_name = "DIR")]
    dumps: PathBuf,
    /// Public age key to encrypt dumps for.
    #[arg(long, env = "STORE_RECIPIENT", value_name = "KEY")]
    recipient: Option<Recipient>,
    #[command(flatten)]
    keep: KeepArgs,
}

/// What to keep in the bucket. If all are zero, everything is kept and no right to delete is needed.
#[derive(Args, Clone, Debug)]
struct KeepArgs {
    /// Number of newest dumps to keep.
    #[arg(long, env = "STORE_KEEP_LAST", default_value_t = 0, value_name = "N")]
    keep_last: u32,
    /// Number of days to keep the newest dump of.
    #[arg(long, env = "STORE_KEEP_DAILY", default_value_t = 0, value_name = "N")]
    keep_daily: u32,
    /// Number of weeks to keep the newest dump of.
    #[arg(long, env = "STORE_KEEP_WEEKLY", default_value_t = 0, value_name = "N")]
    keep_weekly: u32,
    /// Number of months to keep the newest dump of.
    #[arg(long, env = "STORE_KEEP_MONTHLY", default_value_t = 0, value_name = "N")]
    keep_monthly: u32,
}

#[derive(Args, Clone, Debug)]
pub(super) struct FetchArgs {
    #[command(flatten)]
    pub place: Place,
    /// Name of the dump; `latest` is the newest with data.
    #[arg(value_name = "NAME", default_value = "latest", env = "STORE_DUMP")]
    which: Which,
    /// Directory in which the dump's own directory is created.
    #[arg(long, env = "DUMPS", value_name = "DIR")]
    into: PathBuf,
    /// File with the secret age key, needed if the dump is encrypted.
    #[arg(long, env = "STORE_IDENTITY_FILE", value_name = "FILE")]
    identity_file: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ListArgs {
    #[command(flatten)]
    pub place: Place,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ArchiveArgs {
    #[command(flatten)]
    pub place: Place,
    /// Directory with a directory for each volume.
    #[arg(long, env = "VOLUMES", value_name = "DIR")]
    volumes: PathBuf,
    /// Identifies these volumes: newer archives of other volumes never replace an archive of these.
    #[arg(long, env = "ARCHIVE_OF", value_name = "WORD")]
    of: String,
    /// Name of this pod; its last part becomes part of the archive's name.
    #[arg(long, env = "HOSTNAME", value_name = "NAME")]
    pod: String,
    /// Public age key to encrypt archives for.
    #[arg(long, env = "STORE_RECIPIENT", value_name = "KEY")]
    recipient: Option<Recipient>,
    /// File for the termination message: name, bytes and number of files.
    #[arg(long, env = "REPORT", value_name = "FILE")]
    report: Option<PathBuf>,
    #[command(flatten)]
    keep: KeepArgs,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ExtractArgs {
    #[command(flatten)]
    pub place: Place,
    /// Name of the archive; `latest` is the newest with files.
    #[arg(value_name = "NAME", default_value = "latest", env = "STORE_DUMP")]
    which: Which,
    /// Directory with a directory for each volume, empty unless --replace is given.
    #[arg(long, env = "VOLUMES", value_name = "DIR")]
    volumes: PathBuf,
    /// Identifies this restore: with an id that has restored the archive already, there is nothing to do, and a restore that was
    /// interrupted is continued only with its own id.
    #[arg(long, env = "RESTORE_ID", value_name = "WORD", default_value = "by-hand")]
    id: String,
    /// Set what is in the volumes aside, into the directory `.clientapp-restore.former.<archive>` of each, once everything is
    /// unpacked and verified. Needs an id that no earlier restore had.
    #[arg(long, requires = "id")]
    replace: bool,
    /// File with the secret age key, needed if the archive is encrypted.
    #[arg(long, env = "STORE_IDENTITY_FILE", value_name = "FILE")]
    identity_file: Option<PathBuf>,
    /// File for the termination message: name, bytes and number of files.
    #[arg(long, env = "REPORT", value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Archive {
    pub volumes: PathBuf,
    pub of: String,
    pub pod: String,
    pub recipient: Option<Recipient>,
    pub report: Option<PathBuf>,
    /// `None`: everything is kept.
    pub keep: Option<Keep>,
}

#[derive(Debug)]
pub(super) struct Extract {
    pub which: Which,
    pub volumes: PathBuf,
    pub id: String,
    /// Whether files in the volumes are set aside, instead of refused.
    pub replace: bool,
    pub identity: Option<Identity>,
    pub report: Option<PathBuf>,
}

#[derive(Debug)]
pub(super) struct Push {
    pub dumps: PathBuf,
    pub recipient: Option<Recipient>,
    /// `None`: everything is kept.
    pub keep: Option<Keep>,
}

#[derive(Debug)]
pub(super) struct Fetch {
    pub which: Which,
    pub into: PathBuf,
    pub identity: Option<Identity>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Latest,
    Named(Name),
}

impl KeepArgs {
    fn checked(&self) -> Option<Keep> {
        let KeepArgs { keep_last: last, keep_daily: daily, keep_weekly: weekly, keep_monthly: monthly } = *self;
        let keep = Keep { last, daily, weekly, monthly };
        (keep != Keep::default()).then_some(keep)
    }
}

impl PushArgs {
    pub(super) fn checked(&self) -> Push {
        Push { dumps: self.dumps.clone(), recipient: self.recipient.clone(), keep: self.keep.checked() }
    }
}

impl ArchiveArgs {
    pub(super) fn checked(&self) -> Result<Archive, Error> {
        let ArchiveArgs { place: _, volumes, of, pod, recipient, report, keep } = self.clone();
        match (1..=LONGEST).contains(&of.len()) {
            true => Ok(Archive { volumes, of, pod, recipient, report, keep: keep.checked() }),
            // An entry with a longer text could not be read.
            false => {
                Err(Error::Settings(format!("ARCHIVE_OF (--of) has {} bytes: 1 to {LONGEST} are expected", of.len())))
            }
        }
    }
}

impl ExtractArgs {
    pub(super) fn checked(&self) -> Result<Extract, Error> {
        let ExtractArgs { place: _, which, volumes, id, replace, identity_file, report } = self.clone();
        if !is_id(&id) {
            return Err(Error::Settings(
                "RESTORE_ID (--id): 1 to 64 letters, digits and hyphens are expected".to_owned(),
            ));
        }
        Ok(Extract { which, volumes, id, replace, identity: identity(identity_file.as_deref())?, report })
    }
}

/// Whether a restore can have this id, which becomes part of names of directories.
pub(super) fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}

fn identity(file: Option<&Path>) -> Result<Option<Identity>, Error> {
    let Some(file) = file else { return Ok(None) };
    let text = std::fs::read_to_string(file).map_err(|error| match error.kind() {
        // In a Job, the volume of a missing Secret is empty.
        ErrorKind::NotFound => Error::KeyMissing(file.to_owned()),
        _ => Error::file("read", file)(error),
    })?;
    Identity::parse(&text).map(Some).ok_or_else(|| Error::NoIdentity(file.to_owned()))
}

impl FetchArgs {
    pub(super) fn checked(&self) -> Result<Fetch, Error> {
        let identity = identity(self.identity_file.as_deref())?;
        Ok(Fetch { which: self.which.clone(), into: self.into.clone(), identity })
    }
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Which, Self::Err> {
        match text {
            "latest" => Ok(Which::Latest),
            name => Name::parse(name)
                .map(Which::Named)
                .ok_or("expected `latest` or a name such as 20260101T030000Z-abcde: `store list` prints the names"),
        }
    }
}

/// Scheme, host and port of the storage. Credentials are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint(pub String);

impl FromStr for Endpoint {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Endpoint, Self::Err> {
        let text = text.trim_end_matches('/');
        let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        let fits =
            |host: &str| !host.is_empty() && host.bytes().all(|c| c.is_ascii_alphanumeric() || b".-:[]".contains(&c));
        match host {
            Some(host) if fits(host) => Ok(Endpoint(text.to_owned())),
            _ => Err("an http:// or https:// URL with only a host and a port is expected"),
        }
    }
}

/// Prefix of the names of all objects, without a slash at either end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(pub String);

impl FromStr for Prefix {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Prefix, Self::Err> {
        let fits = |part: &str| {
            !["", ".", ".."].contains(&part) && part.bytes().all(|c| c.is_ascii_alphanumeric() || b"._-".contains(&c))
        };
        match text.split('/').all(fits) {
            true => Ok(Prefix(text.to_owned())),
            false => Err("words of letters, digits, '.', '_' and '-', separated by '/', are expected"),
        }
    }
}

/// A text that never prints.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Hidden(pub String);

impl Hidden {
    /// From the environment; an empty variable counts as unset.
    pub(crate) fn variable(name: &str) -> Result<Hidden, Error> {
        match std::env::var(name) {
            Ok(value) if !value.is_empty() => Ok(Hidden(value)),
            Err(std::env::VarError::NotUnicode(_)) => Err(Error::Settings(format!("{name} is not UTF-8"))),
            _ => Err(Error::Settings(format!(
                "{name} is not set: it is part of the storage's credentials, which come from the Secret that store.credentialsSecret names"
            ))),
        }
    }

    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

fn seconds(text: &str) -> Result<Duration, &'static str> {
    match text.parse() {
        Ok(seconds @ 0..=86400) => Ok(Duration::from_secs(seconds)),
        _ => Err("a number of seconds up to 86400 is expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        for (text, fits) in [
            ("https://s3.example.com", true),
            ("http://minio.storage.svc:9000/", true),
            ("http://[::1]:9000", true),
            ("s3.example.com", false),
            ("ftp://s3.example.com", false),
            ("https://", false),
            ("https://me:secret@s3.example.com", false),
            ("https://s3.example.com/path", false),
            ("https://s3.example.com?x=y", false),
        ] {
            assert_eq!(text.parse::<Endpoint>().is_ok(), fits, "{text}");
        }
    }

    #[test]
    fn prefixes() {
        for (text, fits) in [
            ("ns/db", true),
            ("backups/prod.eu/ns/db", true),
            ("", false),
            ("/ns/db", false),
            ("ns/db/", false),
            ("a//b", false),
            ("a/../b", false),
            ("a b", false),
        ] {
            assert_eq!(text.parse::<Prefix>().is_ok(), fits, "{text}");
        }
    }

    #[test]
    fn which_one() {
        assert_eq!("latest".parse(), Ok(Which::Latest));
        assert!("20260101T030000Z-abcde".parse::<Which>().is_ok());
        assert!("../x".parse::<Which>().is_err());
    }

    #[test]
    fn ids() {
        for (text, fits) in [
            ("by-hand", true),
            ("5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11", true),
            (&"a".repeat(64), true),
            (&"a".repeat(65), false),
            ("", false),
            ("a.b", false),
            ("../a", false),
        ] {
            assert_eq!(is_id(text), fits, "{text}");
        }
    }

    #[test]
    fn what_archives_are_of_fits_into_an_entry() {
        for (length, fits) in [(0, false), (1, true), (256, true), (257, false)] {
            let of = "u".repeat(length);
            let args = ["x", "--endpoint=http://s", "--bucket=b", "--prefix=p", "--volumes=/v", "--pod=x-a"];
            let mut command = ArchiveArgs::augment_args(clap::Command::new("x"));
            let found = command.try_get_matches_from_mut(args.into_iter().chain([&*format!("--of={of}")])).unwrap();
            let args = <ArchiveArgs as clap::FromArgMatches>::from_arg_matches(&found).unwrap();
            assert_eq!(args.checked().is_ok(), fits, "{length}");
        }
    }

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Hidden("canary".to_owned())), "…");
    }
}
