//! Exit codes and JSON of restic 0.19 (restic.readthedocs.io/en/stable/075_scripting.html). Pure.

use jiff::Timestamp;
use serde::Deserialize;

/// Exit code: of `backup`, a file could not be read, and the snapshot lacks it; of `forget`, a snapshot could not be removed.
pub(crate) const INCOMPLETE: i32 = 3;
/// Exit code: there is no repository.
const NO_REPOSITORY: i32 = 10;
/// Exit code: another process has locked the repository.
const LOCKED: i32 = 11;
/// Exit code: the repository has another password.
const WRONG_PASSWORD: i32 = 12;
/// Says how `restic check` ends if it has found damage.
const DAMAGED: &str = "repository contains errors";
/// Says how the error ends of a file that disappeared between its listing and its reading.
const VANISHED: &str = "no such file or directory";
/// Longest text of restic that a message quotes, in characters.
const LONGEST: usize = 300;

/// Says why a command has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    NoRepository,
    Locked,
    WrongPassword,
    /// The snapshot lacks a file that could not be read.
    Incomplete(String),
    /// `restic check` has found damage.
    Damaged(String),
    /// Anything else, in restic's words.
    Other(String),
}

/// A snapshot in a repository.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Snapshot {
    pub id: String,
    pub time: Timestamp,
    pub paths: Vec<String>,
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub tags: Vec<String>,
    #[serde(default)]
    pub summary: Totals,
}

/// The totals of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Totals {
    #[serde(rename = "total_files_processed")]
    pub files: u64,
    #[serde(rename = "total_bytes_processed")]
    pub bytes: u64,
}

/// The last line of `restic backup`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Summary {
    pub snapshot_id: String,
    #[serde(flatten)]
    pub totals: Totals,
    /// Bytes that the repository grew by.
    #[serde(rename = "data_added_packed")]
    pub added: u64,
}

/// Reads what `restic snapshots` prints.
pub(crate) fn snapshots(stdout: &str) -> Result<Vec<Snapshot>, serde_json::Error> {
    serde_json::from_str(stdout)
}

/// Reads the summary, the last line that `restic backup` prints; `None` if there is none, as after an error.
pub(crate) fn summary(stdout: &str) -> Option<Summary> {
    stdout.lines().rev().find_map(|line| serde_json::from_str(line).ok())
}

/// Reads which snapshots `restic forget --dry-run` would remove.
pub(crate) fn superseded(stdout: &str) -> Result<Vec<Snapshot>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Group {
        remove: Option<Vec<Snapshot>>,
    }
    // Without any snapshot, restic prints nothing.
    let groups: Vec<Group> = if stdout.trim().is_empty() { Vec::new() } else { serde_json::from_str(stdout)? };
    Ok(groups.into_iter().filter_map(|group| group.remove).flatten().collect())
}

/// Interprets how a command has failed; `code` is `None` if a signal has ended it.
pub(crate) fn failure(code: Option<i32>, stderr: &str) -> Failure {
    match code {
        Some(NO_REPOSITORY) => Failure::NoRepository,
        Some(LOCKED) => Failure::Locked,
        Some(WRONG_PASSWORD) => Failure::WrongPassword,
        Some(INCOMPLETE) => Failure::Incomplete(cause(stderr)),
        Some(_) if errors(stderr, "exit_error").any(|error| error.contains(DAMAGED)) => Failure::Damaged(cause(stderr)),
        _ => Failure::Other(cause(stderr)),
    }
}

/// Returns true if a snapshot lacks only files that disappeared meanwhile, as an app's temporary files do.
pub(crate) fn is_complete_but_for_vanished(code: Option<i32>, stderr: &str) -> bool {
    let mut errors = errors(stderr, "error").peekable();
    code == Some(INCOMPLETE) && errors.peek().is_some() && errors.all(|error| error.trim_end().ends_with(VANISHED))
}

/// Returns the messages of all lines of JSON of this type.
fn errors<'a>(stderr: &'a str, of: &'a str) -> impl Iterator<Item = String> + 'a {
    stderr.lines().filter_map(move |line| reported(line.trim(), of))
}

/// Returns why restic tries again and again, from the last line that says so; empty if none does.
pub(crate) fn last_retry(stderr: &str) -> String {
    let retries = stderr.lines().rev().filter(|line| line.contains("retrying after"));
    let cause = retries.filter_map(|line| line.split_once("s: ")).map(|(_, cause)| cause.trim()).next();
    cause.unwrap_or_default().chars().filter(|c| !c.is_control()).take(LONGEST).collect()
}

/// Returns the first error that restic reports, or else what it prints last, as one line without markup.
fn cause(stderr: &str) -> String {
    let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
    let reported = |of: &str| lines().find_map(|line| reported(line, of));
    let cause = reported("error").or_else(|| reported("exit_error"));
    let cause = cause.or_else(|| lines().next_back().map(str::to_owned)).unwrap_or_default();
    let first = cause.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says nothing");
    let plain =
        first.strip_prefix("Fatal: ").unwrap_or(first).trim_end_matches(':').chars().filter(|c| !c.is_control());
    plain.take(LONGEST).collect()
}

/// Returns the message of a line of JSON of this type.
fn reported(line: &str, of: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        message_type: String,
        #[serde(default)]
        message: String,
        error: Option<Inner>,
    }
    #[derive(Deserialize)]
    struct Inner {
        message: String,
    }
    let line: Line = serde_json::from_str(line).ok()?;
    (line.message_type == of).then(|| line.error.map_or(line.message, |error| error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNAPSHOT: &str = r#"{"time":"2026-11-29T10:23:03.725174722Z","tree":"e8e5502e","paths":["/volumes/nextcloud"],
        "hostname":"uid-1","username":"root","tags":["files","data"],"program_version":"restic 0.19.1",
        "summary":{"files_new":1,"data_added_packed":1845,"total_files_processed":2,"total_bytes_processed":3},
        "id":"20543f14f5a04d866d08e212f9866195e1c2eaf4d931c050c42dbc05fa874169","short_id":"20543f14"}"#;

    #[test]
    fn what_restic_says_of_snapshots() {
        let own = r#"{"time":"2026-01-01T00:00:00+01:00","paths":["/x"],"id":"ab"}"#;
        let found = snapshots(&format!("[{SNAPSHOT},{own}]\n")).unwrap();
        assert_eq!((found[0].hostname.as_str(), found[0].tags.join(" ").as_str()), ("uid-1", "files data"));
        assert_eq!(found[0].summary, Totals { files: 2, bytes: 3 });
        assert_eq!((found[1].time.to_string().as_str(), found[1].tags.len()), ("2025-12-31T23:00:00Z", 0));
        assert_eq!(snapshots("[]").unwrap(), []);
        let group = |remove: &str| format!(r#"[{{"tags":null,"host":"","paths":null,"keep":[],"remove":{remove}}}]"#);
        assert_eq!(superseded(&group("null")).unwrap(), []);
        assert_eq!(superseded(&group(&format!("[{SNAPSHOT}]"))).unwrap(), found[..1]);
        assert_eq!(superseded("").unwrap(), []);
    }

    #[test]
    fn what_restic_says_of_a_backup() {
        let stdout = r#"{"message_type":"status","percent_done":0}
{"message_type":"summary","files_new":1,"data_added":2362,"data_added_packed":1845,"total_files_processed":1,"total_bytes_processed":3,"snapshot_id":"20543f14"}
"#;
        let expected =
            Summary { snapshot_id: "20543f14".to_owned(), totals: Totals { files: 1, bytes: 3 }, added: 1845 };
        assert_eq!(summary(stdout), Some(expected));
        assert_eq!(summary(""), None);
    }

    #[test]
    fn why_a_command_has_failed() {
        let exit = |message: &str| format!(r#"{{"message_type":"exit_error","code":1,"message":"{message}"}}"#);
        let unreadable = r#"{"message_type":"error","error":{"message":"open /v/g: permission denied"},"during":"archival","item":"/v/g"}"#;
        let damaged = r#"{"message_type":"error","message":"error for tree 803b51db:\n"}"#;
        let retrying = "Stat(<config/>) returned error, retrying after 961ms: connection refused";
        for (code, stderr, expected) in [
            (Some(10), exit("Fatal: repository does not exist"), Failure::NoRepository),
            (Some(11), exit("Fatal: unable to create lock"), Failure::Locked),
            (Some(12), exit("Fatal: wrong password or no key found"), Failure::WrongPassword),
            (
                Some(3),
                format!("{unreadable}\n{}", exit("Warning: at least one source file could not be read")),
                Failure::Incomplete("open /v/g: permission denied".to_owned()),
            ),
            (
                Some(1),
                format!("{retrying}\n{}", exit(r"Fatal: unable to open config file: Stat: Access Denied.\nIs there")),
                Failure::Other("unable to open config file: Stat: Access Denied.".to_owned()),
            ),
            (Some(1), format!("{damaged}\n"), Failure::Other("error for tree 803b51db".to_owned())),
            (None, format!("{retrying}\n"), Failure::Other(retrying.to_owned())),
            (Some(1), String::new(), Failure::Other("it says nothing".to_owned())),
        ] {
            assert_eq!(failure(code, &stderr), expected, "{code:?} {stderr}");
        }
        assert_eq!(last_retry(&format!("{retrying}\n{}", exit("Fatal: context canceled"))), "connection refused");
        assert_eq!(last_retry(""), "");
        let gone = unreadable.replace("permission denied", "no such file or directory");
        for (code, stderr, expected) in [
            (Some(3), format!("{gone}\n{gone}\n"), true),
            (Some(3), format!("{gone}\n{unreadable}\n"), false),
            (Some(3), String::new(), false),
            (Some(1), gone, false),
        ] {
            assert_eq!(is_complete_but_for_vanished(code, &stderr), expected, "{stderr}");
        }
        let contains = format!("{damaged}\n{}", exit("Fatal: repository contains errors"));
        assert_eq!(failure(Some(1), &contains), Failure::Damaged("error for tree 803b51db".to_owned()));
        let long = failure(Some(1), &"x".repeat(1000));
        assert_eq!(long, Failure::Other("x".repeat(LONGEST)));
    }
}
