//! Errors of the store commands, worded for the termination message of the pod. Pure.

use std::path::{Path, PathBuf};

use super::{dump::Name, stored::Content};
use crate::restic::{
    output::Failure,
    repository::{Repository, Trouble},
};

/// Every failed upload ends with this.
const LATER: &str = "What is on the volume stays there, and is uploaded with the next one";

/// Begins the message of a restore that has failed before it has moved a file.
pub(crate) const UNTOUCHED: &str = "no file was moved";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{UNTOUCHED}: {0}")]
    Untouched(Box<Error>),
    #[error("{0}")]
    Settings(String),
    #[error("cannot {operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "there is no file {} with the repository's password: in a Job, the Secret named by passwordSecret, or its key, is missing", .0.display()
    )]
    PasswordMissing(PathBuf),
    #[error("cannot {operation} {place}: {}", told(trouble, place))]
    Repository { operation: &'static str, place: String, trouble: Trouble },
    #[error("cannot back up to {place}: {}. {LATER}", told(trouble, place))]
    Upload { place: String, trouble: Trouble },
    #[error("stored, but {place} could not be checked: {}", told(trouble, place))]
    Unchecked { place: String, trouble: Trouble },
    #[error(
        "{place} is damaged ({}): `restic check` says more, and restic's troubleshooting guide how to repair it",
        told(trouble, place)
    )]
    Check { place: String, trouble: Trouble },
    #[error("cannot restore {name} from {place}: {}", told(trouble, place))]
    Restore { name: Name, place: String, trouble: Trouble },
    #[error("dump {name} of {place} is damaged: {problem}. Fetch another")]
    Damaged { name: Name, place: String, problem: String },
    #[error("snapshot {id} is gone from {place}: another process has removed it")]
    Gone { id: String, place: String },
    #[error("there is no complete dump in {}", .0.display())]
    NoDump(PathBuf),
    #[error("there is no {} {which} in {place}: `restic snapshots` lists what is there", of(*content))]
    NotThere { content: Content, which: String, place: String },
    #[error("dump {name} in {} is damaged: {problem}", path.display())]
    DamagedHere { name: Name, path: PathBuf, problem: String },
    #[error("{} exists, but is not the dump of that name ({problem}): move it away", path.display())]
    InTheWay { path: PathBuf, problem: String },
    #[error("archive {archive} contains files of volume {volume}, but there is no such volume here")]
    NoVolume { archive: Name, volume: String },
    #[error("volume {} is not empty: it is left as it is. With --replace, a restore sets such files aside", .0.display())]
    NotEmpty(PathBuf),
    #[error(
        "{} was written during the restore: stop the app, move this away, and restore again, which continues this restore", .0.display()
    )]
    Meanwhile(PathBuf),
    #[error(
        "archive {archive} contains no files of volume {volume}: with --replace, all volumes here are replaced, or none"
    )]
    NotInArchive { archive: Name, volume: String },
    #[error("{} cannot be restored: only a restore or the file system makes files of that name", .0.display())]
    OursInArchive(PathBuf),
    #[error("another process archives or restores volume {}: try again once it has ended", .0.display())]
    InUse(PathBuf),
    #[error(
        "{} belongs to a restore that has not ended, so the volume may lack files: finish that restore, then archive", .0.display()
    )]
    Restoring(PathBuf),
    #[error(
        "{} belongs to restore {id}, which has moved files already: continue that restore, with --id {id} or, if it is not known, move the directories with this id away by hand", path.display()
    )]
    Unfinished { path: PathBuf, id: String },
    #[error(
        "restore {id} has moved files of archive {begun} already: finish it with that archive before you restore {named}"
    )]
    OtherBegun { id: String, begun: Name, named: Name },
    #[error(
        "{} cannot be moved: it belongs to another user, and this one may not write to it. Nothing was moved: change its owner or its mode, then restore again", .0.display()
    )]
    Immovable(PathBuf),
    #[error(
        "what was to be restored to volume {} is gone: another process has changed the volume. Stop that process, then restore again", .0.display()
    )]
    Vanished(PathBuf),
    #[error("another process is using {}", .0.display())]
    Busy(PathBuf),
    #[error("stopped before it was complete. {LATER}")]
    Stopped,
}

impl Error {
    pub(crate) fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { operation, path, source }
    }

    pub(crate) fn read(repository: &Repository, trouble: Trouble) -> Error {
        Error::Repository { operation: "read", place: repository.location.repository(), trouble }
    }

    pub(crate) fn upload(repository: &Repository, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Stopped => Error::Stopped,
            trouble => Error::Upload { place: repository.location.repository(), trouble },
        }
    }

    pub(crate) fn check(repository: &Repository, trouble: Trouble) -> Error {
        match trouble {
            Trouble::Failed(Failure::Damaged(_)) => Error::Check { place: repository.location.repository(), trouble },
            Trouble::Stopped => Error::Stopped,
            trouble => Error::Unchecked { place: repository.location.repository(), trouble },
        }
    }

    pub(crate) fn restore(repository: &Repository, name: &Name, trouble: Trouble) -> Error {
        Error::Restore { name: name.clone(), place: repository.location.repository(), trouble }
    }
}

fn of(content: Content) -> &'static str {
    match content {
        Content::Dump => "complete dump",
        Content::Files => "archive",
    }
}

/// Returns what is wrong with a repository, and what to do about it.
pub(crate) fn told(trouble: &Trouble, place: &str) -> String {
    match trouble {
        Trouble::Stopped => "stopped before it was complete".to_owned(),
        Trouble::Restic(problem) => problem.clone(),
        Trouble::Timeout(timeout, cause) => {
            let cause = if cause.is_empty() { String::new() } else { format!(" ({cause})") };
            format!(
                "the storage did not answer within {} seconds{cause}: check the endpoint, the network and, with https, the certificate",
                timeout.as_secs()
            )
        }
        Trouble::Failed(Failure::NoRepository) => "nothing was ever backed up there".to_owned(),
        Trouble::Failed(Failure::Locked) => {
            format!("another restic has locked it for half an hour: if none is running, `restic --repo {place} unlock`")
        }
        Trouble::Failed(Failure::WrongPassword) => {
            "it is encrypted with another password, or with none: check the Secret named by passwordSecret".to_owned()
        }
        Trouble::Failed(Failure::Incomplete(cause)) => format!("a file could not be read ({cause})"),
        Trouble::Failed(Failure::Damaged(cause)) => cause.clone(),
        Trouble::Failed(Failure::Other(cause)) => format!("{cause}{}", advice(cause)),
    }
}

/// Returns what to do about an error that restic passes on from the storage.
fn advice(cause: &str) -> &'static str {
    let table = [
        ("bucket does not exist", ": check the bucket's name"),
        ("Access Denied", ": check the credentials and their permissions in the bucket"),
        ("access key", ": check the credentials"),
        ("could not be removed", ": check the credentials and their permissions in the bucket"),
        (
            "already contains",
            ": its object config is missing. Restore that from the bucket's versions, and delete nothing; if nothing was ever backed up there, use another prefix",
        ),
        ("signature", ": check the credentials"),
        ("Storage", ": the storage may be full"),
    ];
    let found = table.into_iter().find(|(words, _)| cause.to_lowercase().contains(&words.to_lowercase()));
    found.map(|(_, advice)| advice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_is_wrong_with_a_repository() {
        let place = "s3:http://s3/dumps/ns/db";
        let (failed, other) = (Trouble::Failed, |cause: &str| Trouble::Failed(Failure::Other(cause.to_owned())));
        let denied = "Stat: Access Denied.: check the credentials and their permissions in the bucket";
        let silent = "the storage did not answer within 120 seconds (connection refused): check the endpoint, the network and, with https, the certificate";
        let locked = format!(
            "another restic has locked it for half an hour: if none is running, `restic --repo {place} unlock`"
        );
        let unread = "open /v/g: permission denied".to_owned();
        let no_bucket = "The specified bucket does not exist";
        for (trouble, expected) in [
            (other("Stat: Access Denied."), denied),
            (other(no_bucket), &*format!("{no_bucket}: check the bucket's name")),
            (other("anything"), "anything"),
            (Trouble::Timeout(Duration::from_secs(120), "connection refused".to_owned()), silent),
            (failed(Failure::Locked), &locked),
            (failed(Failure::Incomplete(unread)), "a file could not be read (open /v/g: permission denied)"),
        ] {
            assert_eq!(told(&trouble, place), expected);
        }
    }
}
