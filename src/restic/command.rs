//! Command lines and environment of restic 0.19 (restic.readthedocs.io). Pure.
//!
//! Credentials are in the environment only, because other processes of a machine can read the arguments.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use jiff::Timestamp;

use crate::crd::StoreKeep;

/// Limits how long restic waits for the lock of another process before it gives up.
const LOCK_PATIENCE: &str = "5m";
/// Lists what restic may take from the environment of this process; everything else, such as a user's own `RESTIC_…`, is kept from it.
const INHERITED: [&str; 10] = [
    "PATH",
    "HOME",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
];

/// Lists what tells restic the identity of a pod's ServiceAccount: with a web identity, or with EKS Pod Identity, which clouds inject.
const IDENTITY: [&str; 6] = [
    "AWS_ROLE_ARN",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_SESSION_NAME",
    "AWS_REGION",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
];

/// A credential or a password. It does not print.
#[derive(Clone, derive_more::Debug, PartialEq, Eq)]
#[debug("…")]
pub(crate) struct Secret(pub String);

/// Says what a repository is encrypted with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Password {
    /// Nothing, so a user who may read the bucket may read the data.
    None,
    Given(Secret),
}

/// Says how restic proves to the storage who it is.
#[derive(Clone, Debug)]
pub(crate) enum Access {
    Keys {
        access_key_id: Secret,
        secret_access_key: Secret,
    },
    /// By the identity that a cloud gives to the pod's ServiceAccount: restic finds it by itself.
    Identity,
}

/// Says how restic reaches a repository in S3-compatible storage.
#[derive(Clone, Debug)]
pub(crate) struct Location {
    /// Scheme, host and port.
    pub endpoint: String,
    pub bucket: String,
    /// The path in the bucket.
    pub path: String,
    pub region: String,
    pub access: Access,
    /// File with certificates to trust, in PEM format; `None`: those of the system.
    pub ca_file: Option<PathBuf>,
    pub password: Password,
    /// Where indexes and directories are kept between commands; `None`: nowhere.
    pub cache: Option<PathBuf>,
}

/// Says whether a command takes a lock. Commands that only read do without, so that they need no right to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lock {
    None,
    /// Fails at once if the repository is locked.
    Try,
    /// Waits for five minutes.
    Wait,
}

/// Says what is backed up, and how its snapshot is marked.
#[derive(Clone, Debug)]
pub(crate) struct Backup<'a> {
    pub paths: Vec<&'a Path>,
    pub exclude: Vec<PathBuf>,
    /// Snapshots of different hosts never replace each other.
    pub host: &'a str,
    pub tags: Vec<String>,
    /// When the data were as they are; `None`: now.
    pub time: Option<Timestamp>,
}

impl Location {
    /// Returns the repository's name for restic.
    pub(crate) fn repository(&self) -> String {
        let Location { endpoint, bucket, path, .. } = self;
        format!("s3:{}/{bucket}/{path}", endpoint.trim_end_matches('/'))
    }

    /// Returns the environment of restic: what it may inherit, and the credentials.
    pub(crate) fn environment(&self, inherited: impl Fn(&str) -> Option<OsString>) -> Vec<(&'static str, OsString)> {
        let mut environment: Vec<_> = INHERITED.into_iter().filter_map(|name| Some((name, inherited(name)?))).collect();
        // restic reads and prints local times.
        environment.push(("TZ", "UTC".into()));
        // No user watches its progress, which it would print sixty times a second.
        environment.push(("RESTIC_PROGRESS_FPS", "0.01".into()));
        match &self.access {
            Access::Keys { access_key_id, secret_access_key } => {
                environment.push(("AWS_ACCESS_KEY_ID", access_key_id.0.as_str().into()));
                environment.push(("AWS_SECRET_ACCESS_KEY", secret_access_key.0.as_str().into()));
            }
            Access::Identity => {
                environment.extend(IDENTITY.into_iter().filter_map(|name| Some((name, inherited(name)?))));
            }
        }
        if let Password::Given(password) = &self.password {
            environment.push(("RESTIC_PASSWORD", password.0.as_str().into()));
        }
        environment
    }

    /// Returns the arguments that every command begins with.
    pub(crate) fn global(&self, lock: Lock) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["--repo", &self.repository(), "--json"].map(Into::into).into();
        match &self.cache {
            Some(directory) => arguments.extend(["--cache-dir".into(), directory.into()]),
            None => arguments.push("--no-cache".into()),
        }
        // Every storage supports path-style requests, and a certificate for one host name is enough.
        let options = ["s3.bucket-lookup=path".to_owned(), format!("s3.region={}", self.region)];
        arguments.extend(options.into_iter().flat_map(|option| ["--option".into(), option.into()]));
        match lock {
            Lock::None => arguments.push("--no-lock".into()),
            Lock::Try => {}
            Lock::Wait => arguments.extend(["--retry-lock", LOCK_PATIENCE].map(Into::into)),
        }
        if let Some(file) = &self.ca_file {
            arguments.extend(["--cacert".into(), file.into()]);
        }
        if self.password == Password::None {
            arguments.push("--insecure-no-password".into());
        }
        arguments
    }
}

/// Returns the arguments of `restic backup`.
pub(crate) fn backup(backup: &Backup<'_>) -> Vec<OsString> {
    let Backup { paths, exclude, host, tags, time } = backup;
    let mut arguments: Vec<OsString> = ["backup", "--host", host].map(Into::into).into();
    arguments.extend(tags.iter().flat_map(|tag| ["--tag".into(), tag.into()]));
    arguments.extend(exclude.iter().flat_map(|path| ["--exclude".into(), path.into()]));
    if let Some(time) = time {
        arguments.extend(["--time".into(), time.strftime("%Y-%m-%d %H:%M:%S").to_string().into()]);
    }
    arguments.push("--".into());
    arguments.extend(paths.iter().map(Into::into));
    arguments
}

/// Returns the arguments of `restic restore` of one path of a snapshot, whose content becomes that of the directory `target`.
pub(crate) fn restore(snapshot: &str, path: &str, target: &Path) -> Vec<OsString> {
    vec!["restore".into(), format!("{snapshot}:{path}").into(), "--target".into(), target.into()]
}

/// Returns the arguments of a `restic forget` that only tells which of the snapshots with this host and these tags the rule does not keep.
pub(crate) fn superseded(host: &str, tags: &[String], keep: StoreKeep) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = ["forget", "--dry-run", "--group-by", "", "--host", host].map(Into::into).into();
    // The separator means "and".
    arguments.extend(["--tag".into(), tags.join(",").into()]);
    // The newest is kept, whatever the rule says.
    let keep = StoreKeep { last: keep.last.max(1), ..keep };
    for (period, count) in keep.counts().into_iter().filter(|(_, count)| *count > 0) {
        arguments.extend([format!("--keep-{period}").into(), count.to_string().into()]);
    }
    arguments
}

/// Returns the arguments of `restic forget` of these snapshots. Their data stay: `forget --prune` would remove them even if a snapshot
/// could not be removed.
pub(crate) fn forget(snapshots: &[&str]) -> Vec<OsString> {
    ["forget"].into_iter().chain(snapshots.iter().copied()).map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(password: Password) -> Location {
        Location {
            endpoint: "https://s3.example.com/".to_owned(),
            bucket: "dumps".to_owned(),
            path: "prod/ns/acme-pg".to_owned(),
            region: "eu-central-1".to_owned(),
            access: Access::Keys {
                access_key_id: Secret("canary-id".to_owned()),
                secret_access_key: Secret("canary-key".to_owned()),
            },
            ca_file: None,
            password,
            cache: None,
        }
    }

    fn words(arguments: Vec<OsString>) -> String {
        arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret("canary".to_owned())), "…");
    }

    #[test]
    fn what_every_command_begins_with() {
        let common = "--repo s3:https://s3.example.com/dumps/prod/ns/acme-pg --json --no-cache \
                      --option s3.bucket-lookup=path --option s3.region=eu-central-1";
        for (password, lock, expected) in [
            (Password::None, Lock::None, "--no-lock --insecure-no-password"),
            (Password::Given(Secret("canary".to_owned())), Lock::Wait, "--retry-lock 5m"),
            (Password::Given(Secret("canary".to_owned())), Lock::Try, ""),
        ] {
            let found = words(location(password).global(lock));
            assert_eq!(found, format!("{common} {expected}").trim_end());
            assert!(!found.contains("canary"));
        }
        let cached = Location { cache: Some("/tmp/restic".into()), ..location(Password::None) };
        assert!(words(cached.global(Lock::Wait)).contains("--cache-dir /tmp/restic"));
        let own = Location { ca_file: Some("/ca/ca.crt".into()), ..location(Password::None) };
        assert!(words(own.global(Lock::Wait)).contains("--cacert /ca/ca.crt"));
    }

    #[test]
    fn what_restic_inherits() {
        let users = |name: &str| match name {
            "HOME" => Some("/home/me".into()),
            "AWS_ROLE_ARN" | "AWS_WEB_IDENTITY_TOKEN_FILE" => Some(name.to_lowercase().into()),
            "RESTIC_PASSWORD_COMMAND" | "AWS_PROFILE" => panic!("{name} is not inherited"),
            _ => None,
        };
        let of_pod = Location { access: Access::Identity, ..location(Password::None) };
        let found = of_pod.environment(users);
        let found: Vec<_> = found.iter().map(|(name, value)| (*name, value.to_str().unwrap())).collect();
        assert_eq!(
            found,
            [
                ("HOME", "/home/me"),
                ("TZ", "UTC"),
                ("RESTIC_PROGRESS_FPS", "0.01"),
                ("AWS_ROLE_ARN", "aws_role_arn"),
                ("AWS_WEB_IDENTITY_TOKEN_FILE", "aws_web_identity_token_file")
            ]
        );
        // Keys are all that is used of what there is.
        let found = location(Password::Given(Secret("pw".to_owned()))).environment(users);
        let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            names,
            ["HOME", "TZ", "RESTIC_PROGRESS_FPS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "RESTIC_PASSWORD"]
        );
    }

    #[test]
    fn command_lines() {
        let dump = Backup {
            paths: vec![Path::new("/dumps/20260101T030000Z-a")],
            exclude: vec!["/dumps/lost+found".into()],
            host: "7",
            tags: vec!["dump".to_owned(), "data".to_owned()],
            time: Some("2026-01-01T03:00:00Z".parse().unwrap()),
        };
        assert_eq!(
            words(backup(&dump)),
            "backup --host 7 --tag dump --tag data --exclude /dumps/lost+found --time 2026-01-01 03:00:00 -- \
             /dumps/20260101T030000Z-a"
        );
        assert_eq!(words(restore("abc", "/dumps/x", Path::new("/t"))), "restore abc:/dumps/x --target /t");
        let keep = StoreKeep { daily: 7, monthly: 6, ..StoreKeep::default() };
        assert_eq!(
            words(superseded("7", &dump.tags, keep)),
            "forget --dry-run --group-by  --host 7 --tag dump,data --keep-last 1 --keep-daily 7 --keep-monthly 6"
        );
        assert_eq!(words(forget(&["a", "b"])), "forget a b");
    }
}
