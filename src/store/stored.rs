//! The snapshots that these commands make in a repository, and how they are told from others. Pure.
//!
//! A snapshot of a dump has the dump's name as the last part of its path, and the dump's time; a snapshot of files is named by its
//! time and the first part of its id.

use jiff::{SignedDuration, Timestamp, tz::TimeZone};

use super::dump::{About, Name};
use crate::restic::output::Snapshot;

/// Limits how far a snapshot may be ahead of the time, because of a clock that is a little ahead.
const AHEAD: SignedDuration = SignedDuration::from_hours(24);
/// Characters of a snapshot's id in a name, as `restic snapshots` prints it.
const SHORT: usize = 8;
/// Tag of a snapshot whose data replace older data.
const DATA: &str = "data";
/// Tag of a snapshot without data: all tables were empty, or one of the volumes, which may have been lost.
const EMPTY: &str = "empty";
/// Tag with the number of tables that are not empty.
const TABLES: &str = "tables=";
/// Tag with the version of PostgreSQL.
const POSTGRES: &str = "postgres=";

/// Tag with the uid of the ClientAppBackup that it is of.
const BACKUP: &str = "backup=";

/// Says what a snapshot has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Dump,
    Files,
}

impl Content {
    fn tag(self) -> &'static str {
        match self {
            Content::Dump => "dump",
            Content::Files => "files",
        }
    }

    /// Returns the tags of snapshots that replace each other.
    pub(crate) fn tags(self, has_data: bool) -> Vec<String> {
        [self.tag(), if has_data { DATA } else { EMPTY }].map(str::to_owned).into()
    }
}

/// Returns the tags of a dump's snapshot.
pub(crate) fn tags_of(dump: &About) -> Vec<String> {
    let mut tags = Content::Dump.tags(dump.tables > 0);
    tags.extend([format!("{TABLES}{}", dump.tables), format!("{POSTGRES}{}", dump.postgres)]);
    tags
}

/// Returns the tag of the snapshots of the ClientAppBackup with this uid.
pub(crate) fn tag_of_backup(uid: &str) -> String {
    format!("{BACKUP}{uid}")
}

/// A snapshot that one of these commands has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    pub name: Name,
    pub content: Content,
    pub time: Timestamp,
    /// restic's id of it.
    pub id: String,
    pub paths: Vec<String>,
    /// Identifies the server or the volumes: nothing else replaces it.
    pub of: String,
    pub has_data: bool,
    pub bytes: u64,
    /// The number of files, or of tables that are not empty.
    pub count: u64,
}

impl Stored {
    /// Interprets a snapshot; `None` if it is a user's own.
    pub(crate) fn of(snapshot: &Snapshot) -> Option<Stored> {
        let Snapshot { id, time, paths, hostname, tags, summary } = snapshot;
        let has = |tag: &str| tags.iter().any(|found| found == tag);
        let content = [Content::Dump, Content::Files].into_iter().find(|content| has(content.tag()))?;
        let (name, count) = match content {
            Content::Dump => {
                let tables = tags.iter().find_map(|tag| tag.strip_prefix(TABLES)?.parse().ok())?;
                (Name::parse(paths.first()?.rsplit('/').next()?)?, tables)
            }
            Content::Files => (name_of(*time, id)?, summary.files),
        };
        Some(Stored {
            name,
            content,
            time: *time,
            id: id.clone(),
            paths: paths.clone(),
            of: hostname.clone(),
            has_data: has(DATA),
            bytes: summary.bytes,
            count,
        })
    }

    /// Returns the termination message of the pod that has made or restored it: name, bytes, and number of files or tables.
    pub(crate) fn words(&self) -> String {
        format!("{} {} {}", self.name, self.bytes, self.count)
    }
}

/// Returns the name of a snapshot of files.
fn name_of(time: Timestamp, id: &str) -> Option<Name> {
    let time = time.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%SZ").to_string();
    Name::parse(&format!("{time}-{}", id.get(..SHORT)?))
}

/// Interprets the snapshots of a repository that hold a dump, or files; newest first.
pub(crate) fn all(snapshots: &[Snapshot], content: Content) -> Vec<Stored> {
    let mut all: Vec<_> = snapshots.iter().filter_map(Stored::of).filter(|stored| stored.content == content).collect();
    all.sort_by(|one, other| (other.time, &other.name).cmp(&(one.time, &one.name)));
    all
}

/// Returns the snapshots of the ClientAppBackup with this uid.
pub(crate) fn of_backup(snapshots: &[Snapshot], content: Content, uid: &str) -> Vec<Stored> {
    let tag = tag_of_backup(uid);
    let made = snapshots.iter().filter(|snapshot| snapshot.tags.contains(&tag)).filter_map(Stored::of);
    made.filter(|stored| stored.content == content).collect()
}

/// Returns the newest with data or, if none has data, the newest. Those ahead of time count only if there are no others: a node whose
/// clock was wrong has made them.
pub(crate) fn latest(all: &[Stored], now: Timestamp) -> Option<&Stored> {
    let newest = |ahead: bool| {
        let mut its = all.iter().filter(move |stored| is_ahead(stored, now) == ahead);
        its.clone().find(|stored| stored.has_data).or_else(|| its.next())
    };
    newest(false).or_else(|| newest(true))
}

/// Returns true if it is never taken for the latest while there are others.
pub(crate) fn is_ahead(stored: &Stored, now: Timestamp) -> bool {
    stored.time > now + AHEAD
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn snapshot(path: &str, time: &str, tags: &[&str]) -> Snapshot {
        serde_json::from_value(json!({
            "id": "20543f14f5a04d866d08e212f9866195", "time": time, "paths": [path], "hostname": "7", "tags": tags,
            "summary": {"total_files_processed": 4, "total_bytes_processed": 9},
        }))
        .unwrap()
    }

    #[test]
    fn what_a_snapshot_is() {
        let dump = "/dumps/20260101T030000Z-a";
        let tags = ["dump", "data", "tables=3", "postgres=17.10"];
        let about = About { system: "7".to_owned(), postgres: "17.10".to_owned(), tables: 3 };
        assert_eq!(tags_of(&about), tags);
        assert_eq!(tags_of(&About { tables: 0, ..about })[..2], ["dump", "empty"]);
        let at = "2026-01-01T03:00:00.25+02:00";
        for (path, tags, expected) in [
            (dump, &tags[..], Some(("20260101T030000Z-a 9 3", Content::Dump, true))),
            (dump, &["dump", "empty", "tables=0"], Some(("20260101T030000Z-a 9 0", Content::Dump, false))),
            ("/volumes/nextcloud", &["files", "data"], Some(("20260101T010000Z-20543f14 9 4", Content::Files, true))),
            ("/volumes/nextcloud", &["files", "empty"], Some(("20260101T010000Z-20543f14 9 4", Content::Files, false))),
            // What users may have backed up there.
            ("/home", &[], None),
            ("/home", &["dump", "data", "tables=3"], None),
            (dump, &["dump", "data"], None),
        ] {
            let found = Stored::of(&snapshot(path, at, tags));
            let found = found.as_ref().map(|stored| (stored.words(), stored.content, stored.has_data));
            let expected = expected.map(|(words, content, has_data)| (words.to_owned(), content, has_data));
            assert_eq!(found, expected, "{path} {tags:?}");
        }
    }

    #[test]
    fn which_is_of_a_backup() {
        let of = |tags: &[&str]| {
            let found = [snapshot("/volumes/nextcloud", "2026-01-01T03:00:00Z", tags)];
            of_backup(&found, Content::Files, "5f0c-1").len()
        };
        assert_eq!(tag_of_backup("5f0c-1"), "backup=5f0c-1");
        for (tags, expected) in [
            (&["files", "data", "backup=5f0c-1"][..], 1),
            (&["files", "empty", "backup=5f0c-1"], 1),
            (&["files", "data", "backup=5f0c-12"], 0),
            (&["files", "data", "5f0c-1"], 0),
            (&["files", "data"], 0),
            // A user's own, and a dump.
            (&["backup=5f0c-1"], 0),
            (&["dump", "data", "tables=3", "backup=5f0c-1"], 0),
        ] {
            assert_eq!(of(tags), expected, "{tags:?}");
        }
    }

    #[test]
    fn which_is_the_latest() {
        let now = "2026-01-03T12:00:00Z".parse().unwrap();
        let [a, b, c] = ["20260101T000000Z-a", "20260102T000000Z-b", "20260103T000000Z-c"];
        let ahead = "99991231T000000Z-x";
        for (names, expected) in [
            (&[(c, "data"), (b, "data"), (a, "data")][..], Some(c)),
            (&[(c, "empty"), (b, "data"), (a, "data")], Some(b)),
            (&[(c, "empty"), (b, "empty")], Some(c)),
            (&[(ahead, "data"), (b, "data")], Some(b)),
            (&[(ahead, "data"), (b, "empty")], Some(b)),
            (&[(ahead, "data")], Some(ahead)),
            (&[], None),
        ] {
            let of = |(name, data): &(&str, &str)| {
                let time = Name::parse(name).unwrap().time().to_string();
                snapshot(&format!("/dumps/{name}"), &time, &["dump", data, "tables=1"])
            };
            let found = all(&names.iter().rev().map(of).collect::<Vec<_>>(), Content::Dump);
            assert_eq!(latest(&found, now).map(|stored| stored.name.as_str()), expected, "{names:?}");
        }
    }
}
