//! Errors of the store commands, worded for the termination message of the pod. Pure.

use std::{
    error::Error as _,
    path::{Path, PathBuf},
};

use object_store::client::{HttpError, HttpErrorKind};

use super::dump::Name;

/// Every failed upload ends with this.
const LATER: &str = "What is on the volume stays there, and is uploaded with the next one";

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{0}")]
    Settings(String),
    #[error("cannot {operation} {}: {source}", path.display())]
    File { operation: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "there is no file {} with the secret age key: in a Job, the Secret named by identitySecret, or its key, is missing", .0.display()
    )]
    KeyMissing(PathBuf),
    #[error("{} is not an age secret key: a line starting with AGE-SECRET-KEY-1 is expected", .0.display())]
    NoIdentity(PathBuf),
    #[error("cannot {operation} {place}: {}", told(source))]
    Storage { operation: &'static str, place: String, source: Box<object_store::Error> },
    #[error(
        "{place} reads back differently from what was written ({problem}): the storage or the network changes data. {LATER}"
    )]
    NotAsWritten { place: String, problem: &'static str },
    #[error(
        "{place} is damaged ({problem}): fetch another dump or, if the bucket is versioned, an earlier version of this object"
    )]
    Damaged { place: String, problem: String },
    #[error("{place} was not encrypted for this key, or its header is damaged: {problem}")]
    WrongKey { place: String, problem: String },
    #[error("dump {name} is encrypted for {recipient}: pass the file with its secret key (--identity-file)")]
    KeyNeeded { name: Name, recipient: String },
    #[error("there is no complete dump in {}", .0.display())]
    NoDump(PathBuf),
    #[error("there is no complete dump {which} in {place}: `store list` prints the available dumps")]
    NotThere { which: String, place: String },
    #[error("dump {name} in {} is damaged: {problem}", path.display())]
    DamagedHere { name: Name, path: PathBuf, problem: String },
    #[error("{} exists, but is not the dump of that name ({problem}): move it away", path.display())]
    InTheWay { path: PathBuf, problem: String },
    #[error("{0} contains no volume files: it is a database dump, which `store fetch` downloads")]
    NoFiles(String),
    #[error("{0} contains volume files, which `store extract` restores")]
    OfFiles(String),
    #[error("{place} contains files of volume {name}, but there is no such volume here")]
    NoVolume { place: String, name: String },
    #[error("volume {} is not empty: it is left as it is. With --replace, a restore sets such files aside", .0.display())]
    NotEmpty(PathBuf),
    #[error(
        "{} was written during the restore: stop the app, move this away, and restore again, which continues this restore", .0.display()
    )]
    Meanwhile(PathBuf),
    #[error("{place} contains no files of volume {name}: with --replace, all volumes here are replaced, or none")]
    NotInArchive { place: String, name: String },
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
    #[error(
        "{place} contains more than {count} objects: remove old ones, with a lifecycle rule of the bucket or with spec.backup.store.keep"
    )]
    TooMany { place: String, count: usize },
    #[error("encryption: {0}")]
    Encrypt(String),
    #[error("stopped before it was complete. {LATER}")]
    Stopped,
    /// The task at the other end of a channel within this process has ended. That task reports the reason.
    #[error("the other side has ended")]
    Cut,
}

impl Error {
    pub(crate) fn file(operation: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_owned();
        move |source| Error::File { operation, path, source }
    }

    pub(crate) fn storage(operation: &'static str, place: String) -> impl FnOnce(object_store::Error) -> Error {
        move |source| Error::Storage { operation, place, source: Box::new(source) }
    }
}

/// What the storage answered, and what to do about it. The library's own message would quote the whole response, which repeats the
/// signed request and the URL.
fn told(error: &object_store::Error) -> String {
    let said = error.to_string();
    let answer = answer(&said);
    match (status(error, &said), transport(error)) {
        (Some(404), _) => format!("not found{answer}: check the bucket's name"),
        (Some(401 | 403), _) => {
            format!("the storage denies access{answer}: check the credentials and their permissions in the bucket")
        }
        (Some(_), _) => format!("the storage fails{answer}: it may be full, overloaded or misconfigured. {LATER}"),
        (None, Some(HttpErrorKind::Timeout)) => format!("the storage did not answer in time. {LATER}"),
        (None, Some(HttpErrorKind::Connect)) => format!(
            "the storage cannot be reached ({}): check the endpoint, the network and, with https, the certificate",
            root(error)
        ),
        (None, Some(_)) => format!("the connection to the storage was lost ({}). {LATER}", root(error)),
        (None, None) => format!("the storage does not behave like S3 ({})", first_line(&root(error))),
    }
}

/// The status of the response. For a list request, the library reports it only in its message.
fn status(error: &object_store::Error, said: &str) -> Option<u16> {
    use object_store::Error as Storage;
    match error {
        Storage::NotFound { .. } => Some(404),
        Storage::PermissionDenied { .. } => Some(403),
        Storage::Unauthenticated { .. } => Some(401),
        _ => said.split_once("status code: ")?.1.split(' ').next()?.parse().ok(),
    }
}

/// Status and error code of the response, to be shown. Nothing else may be, because the rest quotes the request.
fn answer(text: &str) -> String {
    let status = text.split_once("status code: ").map(|(_, rest)| rest.split(':').next().unwrap_or_default());
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    let word = |text: &&str| text.len() < 64 && text.bytes().all(|c| c.is_ascii_alphanumeric() || b" -".contains(&c));
    let parts: Vec<_> = [status, code].into_iter().flatten().filter(word).collect();
    if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
}

fn transport(error: &object_store::Error) -> Option<HttpErrorKind> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<HttpError>() {
            return Some(error.kind());
        }
        source = error.source();
    }
    None
}

/// The innermost cause.
fn root(error: &object_store::Error) -> String {
    let mut innermost: &dyn std::error::Error = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_an_answer_only_status_and_code_are_told() {
        for (text, expected) in [
            ("Server returned non-2xx status code: 507 Insufficient Storage: ", " (507 Insufficient Storage)"),
            (
                "x status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>canary</AWSAccessKeyId>",
                " (403 Forbidden, SignatureDoesNotMatch)",
            ),
            ("x <Code>a <b> c</Code>", ""),
            ("anything else", ""),
        ] {
            assert_eq!(answer(text), expected);
        }
    }
}
