//! Flags and environment, checked once. Credentials come from the environment only, because other processes of a machine can read
//! the arguments.

use std::{io::ErrorKind, path::PathBuf, str::FromStr, time::Duration};

use clap::{Args, Subcommand};

use tokio_util::sync::CancellationToken;

use super::{dump::Name, error::Error};
#[cfg(target_os = "linux")]
use crate::restic::confine::confine;
use crate::{
    crd::StoreKeep,
    platform::origin::origin,
    restic::{
        command::{Access, Location, Password, Secret},
        repository::Repository,
    },
};

/// The variable with the uid of a ClientAppBackup.
pub(crate) const BACKUP_UID: &str = "BACKUP_UID";
/// The variables with the file of a token of the pod's ServiceAccount.
const TOKENS: [&str; 2] = ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"];
/// Longest text that identifies volumes, in bytes: it becomes the host of a snapshot.
pub(crate) const LONGEST: usize = 256;

/// Dumps in S3-compatible storage.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArgs {
    #[command(subcommand)]
    pub(super) command: Command,
}

#[derive(Subcommand, Clone, Debug)]
pub(super) enum Command {
    /// Back up each dump of a directory that the repository lacks, and remove from the repository what is not to be kept.
    Push(PushArgs),
    /// Restore a dump into a directory.
    Fetch(FetchArgs),
    /// Back up the files of volumes in one snapshot, and remove from the repository what is not to be kept.
    Archive(ArchiveArgs),
    /// Restore the files of a snapshot into empty volumes or, with --replace, in place of the present files.
    Extract(ExtractArgs),
    /// Remove the archive of one ClientAppBackup, and the data that no other snapshot needs.
    Forget(ForgetArgs),
}

impl Command {
    fn place(&self) -> &Place {
        match self {
            Command::Push(args) => &args.place,
            Command::Fetch(args) => &args.place,
            Command::Archive(args) => &args.place,
            Command::Extract(args) => &args.place,
            Command::Forget(args) => &args.place,
        }
    }

    /// Prepares the process for the command, before there are other threads: reads what it needs to know, and withholds all files from it
    /// that are none of its task.
    pub(super) fn prepare(&self) -> Result<Location, Error> {
        let location = self.place().location()?;
        #[cfg(target_os = "linux")]
        self.confine()?;
        Ok(location)
    }

    #[cfg(target_os = "linux")]
    fn confine(&self) -> Result<(), Error> {
        let (mut read, write) = match self {
            Command::Push(args) => (vec![&args.dumps], Vec::new()),
            Command::Fetch(args) => (Vec::new(), vec![&args.into]),
            Command::Archive(args) => (vec![&args.volumes], Vec::from_iter(&args.report)),
            Command::Extract(args) => (Vec::new(), [&args.volumes].into_iter().chain(&args.report).collect()),
            Command::Forget(_) => (Vec::new(), Vec::new()),
        };
        let tokens: Vec<_> = TOKENS.into_iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
        // A token is a link within its volume, to a file that is replaced before it expires.
        let volumes: Vec<_> = tokens.iter().filter_map(|token| Some(token.parent()?.to_owned())).collect();
        read.extend(&volumes);
        let Place { restic, ca_file, .. } = self.place();
        let restic = which::which(restic).map_err(|error| {
            Error::Settings(format!("cannot find restic at {} (CLIENTAPP_RESTIC): {error}", restic.display()))
        })?;
        read.extend([Some(&restic), ca_file.as_ref()].into_iter().flatten());
        let paths = |all: Vec<&PathBuf>| all.into_iter().cloned().collect::<Vec<_>>();
        confine(&paths(read), &paths(write))
            .map_err(|error| Error::Settings(format!("cannot confine this process: {error}")))
    }
}

/// A restic repository in S3-compatible storage. The credentials come from the environment: AWS_ACCESS_KEY_ID and
/// AWS_SECRET_ACCESS_KEY, or the identity of the pod's ServiceAccount, which a cloud puts there.
#[derive(Args, Clone, Debug)]
pub(super) struct Place {
    /// URL of the storage.
    #[arg(long, env = "STORE_ENDPOINT", value_parser = origin, value_name = "URL")]
    pub endpoint: String,
    #[arg(long, env = "STORE_BUCKET")]
    pub bucket: String,
    /// Path of the repository in the bucket.
    #[arg(long, env = "STORE_PREFIX")]
    pub prefix: Prefix,
    #[arg(long, env = "STORE_REGION", default_value = "us-east-1")]
    pub region: String,
    /// PEM file with certificates to trust instead of the system's.
    #[arg(long, env = "STORE_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// File with the repository's password. Absent: the repository is not encrypted.
    #[arg(long, env = "STORE_PASSWORD_FILE", value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// How long to wait for the storage's first answer, in seconds.
    #[arg(long, env = "STORE_TIMEOUT", default_value = "120", value_parser = seconds, value_name = "SECONDS")]
    pub timeout: Duration,
    /// The restic to run.
    #[arg(long, env = "CLIENTAPP_RESTIC", default_value = "restic", value_name = "FILE")]
    pub restic: PathBuf,
}

impl Place {
    /// Reads where the repository is, with what it needs.
    fn location(&self) -> Result<Location, Error> {
        if let Some(file) = &self.ca_file {
            std::fs::metadata(file).map_err(Error::file("read", file))?;
        }
        let password = match &self.password_file {
            None => Password::None,
            Some(file) => match std::fs::read_to_string(file) {
                // As restic reads such a file.
                Ok(password) if !password.trim().is_empty() => Password::Given(Secret(password.trim().to_owned())),
                Ok(_) => {
                    return Err(Error::Settings(format!(
                        "{} is empty: it needs the repository's password",
                        file.display()
                    )));
                }
                // In a Job, the volume of a missing Secret is empty.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(Error::PasswordMissing(file.clone()));
                }
                Err(error) => return Err(Error::file("read", file)(error)),
            },
        };
        Ok(Location {
            endpoint: self.endpoint.clone(),
            bucket: self.bucket.clone(),
            path: self.prefix.0.clone(),
            region: self.region.clone(),
            access: access(variable)?,
            ca_file: self.ca_file.clone(),
            password,
            // Of this pod: what the backup has read, the check need not read again.
            cache: Some(std::env::temp_dir().join("restic-cache")),
        })
    }

    /// Returns the repository at this location.
    pub(super) fn repository(&self, location: Location, stop: &CancellationToken) -> Repository {
        Repository { restic: self.restic.clone(), location, timeout: self.timeout, stop: stop.clone() }
    }
}

#[derive(Args, Clone, Debug)]
pub(super) struct PushArgs {
    #[command(flatten)]
    pub place: Place,
    /// Directory with dumps.
    #[arg(long, env = "DUMPS", value_name = "DIR")]
    pub dumps: PathBuf,
    /// What to keep in the repository, such as `{"daily": 7, "monthly": 6}`. Without a number: everything.
    #[arg(long, env = "STORE_KEEP", value_parser = keep, value_name = "JSON")]
    pub keep: Option<StoreKeep>,
}

#[derive(Args, Clone, Debug)]
pub(super) struct FetchArgs {
    #[command(flatten)]
    pub place: Place,
    /// Name of the dump; `latest` is the newest with data.
    #[arg(value_name = "NAME", default_value = "latest", env = "STORE_DUMP")]
    pub which: Which,
    /// Directory in which the dump's own directory is created.
    #[arg(long, env = "DUMPS", value_name = "DIR")]
    pub into: PathBuf,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ArchiveArgs {
    #[command(flatten)]
    pub place: Place,
    /// Directory with a directory for each volume.
    #[arg(long, env = "VOLUMES", value_name = "DIR")]
    pub volumes: PathBuf,
    /// Identifies these volumes: newer archives of other volumes never replace an archive of these.
    #[arg(long, env = "ARCHIVE_OF", value_parser = host, value_name = "WORD")]
    pub of: String,
    /// uid of the ClientAppBackup that this is for: `store forget` finds the archive by it.
    #[arg(long, env = BACKUP_UID, value_parser = uid, value_name = "UID")]
    pub backup: Option<String>,
    /// File for the termination message: name, bytes and number of files.
    #[arg(long, env = "REPORT", value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// What to keep in the repository, such as `{"daily": 7, "monthly": 6}`. Without a number: everything.
    #[arg(long, env = "STORE_KEEP", value_parser = keep, value_name = "JSON")]
    pub keep: Option<StoreKeep>,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ForgetArgs {
    #[command(flatten)]
    pub place: Place,
    /// uid of the ClientAppBackup.
    #[arg(long, env = BACKUP_UID, value_parser = uid, value_name = "UID")]
    pub backup: String,
}

#[derive(Args, Clone, Debug)]
pub(super) struct ExtractArgs {
    #[command(flatten)]
    pub place: Place,
    /// Name of the archive; `latest` is the newest with files.
    #[arg(value_name = "NAME", default_value = "latest", env = "STORE_DUMP")]
    pub which: Which,
    /// Directory with a directory for each volume, empty unless --replace is given.
    #[arg(long, env = "VOLUMES", value_name = "DIR")]
    pub volumes: PathBuf,
    /// Identifies this restore: with an id that has restored the archive already, there is nothing to do, and a restore that was
    /// interrupted is continued only with its own id.
    #[arg(long, env = "RESTORE_ID", value_parser = uid, value_name = "WORD", default_value = "by-hand")]
    pub id: String,
    /// Set what is in the volumes aside, into the directory `.clientapp-restore.former.<archive>` of each, once everything is
    /// unpacked and verified. Needs an id that no earlier restore had.
    #[arg(long, requires = "id")]
    pub replace: bool,
    /// File for the termination message: name, bytes and number of files.
    #[arg(long, env = "REPORT", value_name = "FILE")]
    pub report: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Latest,
    Named(Name),
}

/// Reads a variable of the environment; an empty one counts as unset.
fn variable(name: &str) -> Result<Option<String>, Error> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => Err(Error::Settings(format!("{name} is not UTF-8"))),
    }
}

/// Returns the keys or, if neither is set, the identity of the pod's ServiceAccount, if it has one.
fn access(variable: impl Fn(&str) -> Result<Option<String>, Error>) -> Result<Access, Error> {
    const KEYS: [&str; 2] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let [id, key] = KEYS.map(&variable);
    let missing = match (id?, key?) {
        (Some(id), Some(key)) => {
            return Ok(Access::Keys { access_key_id: Secret(id), secret_access_key: Secret(key) });
        }
        (None, None) if TOKENS.iter().map(|name| variable(name)).any(|token| matches!(token, Ok(Some(_)))) => {
            return Ok(Access::Identity);
        }
        (None, _) => KEYS[0],
        (Some(_), None) => KEYS[1],
    };
    Err(Error::Settings(format!(
        "{missing} is not set: it is part of the storage's credentials, which come from the Secret that store.credentialsSecret names, or from a ServiceAccount with an identity of the cloud in jobs.serviceAccountName"
    )))
}

pub(super) fn is_id(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-')
}

impl FromStr for Which {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Which, Self::Err> {
        match text {
            "latest" => Ok(Which::Latest),
            name => Name::parse(name)
                .map(Which::Named)
                .ok_or("expected `latest` or a name such as 20260101T030000Z-abcde: `restic snapshots` lists them"),
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

/// A part of a tag, or of the name of a directory: restic separates tags by commas.
fn uid(text: &str) -> Result<String, &'static str> {
    match is_id(text) {
        true => Ok(text.to_owned()),
        false => Err("1 to 64 letters, digits and hyphens are expected"),
    }
}

/// Parses `STORE_KEEP`.
fn keep(text: &str) -> Result<StoreKeep, String> {
    let keep: StoreKeep = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match keep.counts().iter().all(|(_, count)| *count >= 0) {
        true => Ok(keep),
        false => Err("counts from 0 on are expected".to_owned()),
    }
}

/// The host of a snapshot.
fn host(text: &str) -> Result<String, String> {
    match (1..=LONGEST).contains(&text.len()) {
        true => Ok(text.to_owned()),
        false => Err(format!("it has {} bytes: 1 to {LONGEST} are expected", text.len())),
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
    fn keys_or_the_identity_of_the_pod() {
        let (id, key) = (("AWS_ACCESS_KEY_ID", "canary"), ("AWS_SECRET_ACCESS_KEY", "canary"));
        let token = ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/secrets/token");
        let pod = ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "/var/run/secrets/token");
        for (environment, expected) in [
            (vec![id, key], "keys"),
            (vec![id, key, token], "keys"),
            (vec![token], "identity"),
            (vec![pod], "identity"),
            (vec![("AWS_ROLE_ARN", "arn:aws:iam::1:role/r")], "AWS_ACCESS_KEY_ID is not set"),
            // Half of the keys is a mistake.
            (vec![id, token], "AWS_SECRET_ACCESS_KEY is not set"),
            (vec![key, token], "AWS_ACCESS_KEY_ID is not set"),
            (vec![], "AWS_ACCESS_KEY_ID is not set"),
        ] {
            let variable = |name: &str| {
                Ok(environment.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
            };
            let found = match access(variable) {
                Ok(Access::Keys { .. }) => "keys".to_owned(),
                Ok(Access::Identity) => "identity".to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(found.starts_with(expected) && !found.contains("canary"), "{environment:?}: {found}");
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
    fn what_identifies_volumes() {
        for (length, fits) in [(0, false), (1, true), (256, true), (257, false)] {
            assert_eq!(host(&"u".repeat(length)).is_ok(), fits, "{length}");
        }
    }
}
