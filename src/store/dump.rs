//! A dump on a volume, as `dump.sh` leaves it: read, never changed.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::Read as _,
    path::{Path, PathBuf},
};

use jiff::{
    Timestamp,
    civil::{Date, DateTime},
    tz::TimeZone,
};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::platform::key::hex;

/// The file that lists all others.
pub(crate) const SUMS: &str = "SHA256SUMS";
/// Bytes read from a file at a time.
const CHUNK: usize = 1 << 16;

/// A dump's name: its start time, and a suffix that distinguishes dumps of the same second. Sorted by name is sorted by time.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Name(String);

impl Name {
    pub fn parse(text: &str) -> Option<Name> {
        let (_, suffix) = text.split_once("Z-")?;
        let fits =
            (1..64).contains(&suffix.len()) && suffix.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        let name = Name(text.to_owned());
        // jiff accepts more than `date` writes.
        (fits && name.try_time()?.strftime("%Y%m%dT%H%M%S").to_string() == text[..text.len() - suffix.len() - 2])
            .then_some(name)
    }

    fn try_time(&self) -> Option<DateTime> {
        DateTime::strptime("%Y%m%dT%H%M%S", self.0.split('Z').next()?).ok()
    }

    pub fn date(&self) -> Date {
        self.try_time().map(DateTime::date).unwrap_or_default()
    }

    pub fn time(&self) -> Timestamp {
        let time = self.try_time().and_then(|time| time.to_zoned(TimeZone::UTC).ok());
        // The last days of the year 9999 have no timestamp.
        time.map_or(Timestamp::MAX, |time| time.timestamp())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Name, String> {
        Name::parse(&text).ok_or_else(|| format!("{text:?} is not the name of a dump"))
    }
}

impl From<Name> for String {
    fn from(name: Name) -> String {
        name.0
    }
}

/// The content of a dump's MANIFEST.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct About {
    /// The server's system identifier.
    pub system: String,
    /// Version of PostgreSQL.
    pub postgres: String,
    /// Number of tables that are not empty.
    pub tables: u64,
}

impl About {
    /// The name of a database may contain line breaks. So lines written before the databases are searched from the start, and lines
    /// written after them from the end.
    pub(crate) fn parse(manifest: &str) -> Option<About> {
        let first = |word: &str| manifest.lines().find_map(|line| line.strip_prefix(word)).map(str::to_owned);
        let tables = manifest.lines().rev().find_map(|line| line.strip_prefix("tables "))?;
        Some(About { system: first("system ")?, postgres: first("version ")?, tables: tables.parse().ok()? })
    }
}

/// A dump that is incomplete, and the reason.
pub(crate) type Damaged = (Name, String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dump {
    pub name: Name,
    pub path: PathBuf,
    pub about: About,
    pub files: Vec<File>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct File {
    pub name: String,
    pub size: u64,
    /// `None` for [`SUMS`] itself.
    pub sha256: Option<String>,
}

/// The dumps in a directory, newest first, and the damaged ones with the reason.
pub(crate) fn all(directory: &Path) -> std::io::Result<(Vec<Dump>, Vec<Damaged>)> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().to_str().and_then(Name::parse));
    }
    names.sort();
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for name in names.into_iter().rev() {
        match read(&directory.join(name.as_str()), &name) {
            Ok(dump) => whole.push(dump),
            Err(problem) => damaged.push((name, problem)),
        }
    }
    Ok((whole, damaged))
}

/// A dump that is complete as far as cheap checks can tell, or what is wrong with it.
pub(crate) fn read(path: &Path, name: &Name) -> Result<Dump, String> {
    let text = |file: &str| fs::read_to_string(path.join(file)).map_err(|error| format!("{file}: {error}"));
    let about = About::parse(&text("MANIFEST")?).ok_or("MANIFEST does not say which server it is from")?;
    let sums = sums(&text(SUMS)?)?;
    let size =
        |file: &str| fs::metadata(path.join(file)).map(|found| found.len()).map_err(|error| format!("{file}: {error}"));
    for line in text("SIZES")?.lines() {
        let (expected, file) = line.trim_start().split_once(' ').ok_or("SIZES cannot be read")?;
        if !sums.contains_key(file) || expected.parse() != Ok(size(file)?) {
            return Err(format!("the size of {file} differs from the one in SIZES"));
        }
    }
    let listed = sums.into_iter().map(|(name, sum)| (name, Some(sum))).chain([(SUMS.to_owned(), None)]);
    let files =
        listed.map(|(name, sha256)| Ok(File { size: size(&name)?, name, sha256 })).collect::<Result<_, String>>()?;
    Ok(Dump { name: name.clone(), path: path.to_owned(), about, files })
}

/// Verifies a dump, checksums included.
pub(crate) fn verify(path: &Path, name: &Name) -> Result<Dump, String> {
    let dump = read(path, name)?;
    for file in &dump.files {
        let found = sum_of(&dump.path.join(&file.name)).map_err(|error| format!("{}: {error}", file.name))?;
        if file.sha256.as_ref().is_some_and(|sum| *sum != found) {
            return Err(format!("the checksum of {} differs from the one in {SUMS}", file.name));
        }
    }
    Ok(dump)
}

fn sum_of(path: &Path) -> std::io::Result<String> {
    let (mut file, mut sum, mut chunk) = (fs::File::open(path)?, Sha256::new(), vec![0; CHUNK]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(hex(&sum.finalize())),
            read => sum.update(&chunk[..read]),
        }
    }
}

/// Checksums by file, in the format of `sha256sum`.
fn sums(text: &str) -> Result<BTreeMap<String, String>, String> {
    let sums: Option<BTreeMap<_, _>> = text
        .lines()
        .map(|line| {
            let (sum, file) = line.split_once(' ')?;
            let file = file.strip_prefix([' ', '*'])?;
            let fits = sum.len() == 64 && sum.bytes().all(|c| c.is_ascii_hexdigit()) && is_file(file);
            fits.then(|| (file.to_owned(), sum.to_owned()))
        })
        .collect();
    sums.filter(|sums| ["MANIFEST", "SIZES", "globals.sql"].iter().all(|file| sums.contains_key(*file)))
        .ok_or_else(|| format!("{SUMS} cannot be read, or does not list the files of a dump"))
}

/// Returns true if a dump may contain a file of this name. A bucket's content is not trusted: these names become paths.
pub(crate) fn is_file(name: &str) -> bool {
    let numbered =
        || name.strip_suffix(".dump").is_some_and(|oid| !oid.is_empty() && oid.bytes().all(|c| c.is_ascii_digit()));
    ["MANIFEST", "SIZES", "globals.sql", SUMS].contains(&name) || numbered()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, fits) in [
            ("20260101T030000Z-abcde", true),
            ("20260101T030000Z-1", true),
            ("20260101T030000Z-abcde.partial", false),
            ("20260101T030000Z-", false),
            ("20260101T030000Z", false),
            ("20261301T030000Z-a", false),
            ("2026011T030000Z-a", false),
            ("20260101T030000Z-../x", false),
            ("notes", false),
            ("", false),
        ] {
            assert_eq!(Name::parse(text).is_some(), fits, "{text}");
        }
        let name = Name::parse("20260228T235959Z-a").unwrap();
        assert_eq!(
            (name.date().to_string(), name.time().to_string()),
            ("2026-02-28".into(), "2026-02-28T23:59:59Z".into())
        );
    }

    #[test]
    fn a_database_cannot_say_what_the_dump_is_of() {
        let manifest = "system 7\nversion 17.10\ndatabase 5 postgres\ndatabase 6 x\ntables 0\nsystem 8\ntables 3\n";
        let about = About { system: "7".to_owned(), postgres: "17.10".to_owned(), tables: 3 };
        assert_eq!(About::parse(manifest), Some(about));
        assert_eq!(About::parse("system 7\nversion 17\n"), None);
    }

    #[test]
    fn file_names() {
        for (name, fits) in
            [("16386.dump", true), ("globals.sql", true), (".dump", false), ("../1.dump", false), ("x", false)]
        {
            assert_eq!(is_file(name), fits, "{name}");
        }
    }

    /// Makes a dump of these files, and returns its name.
    fn make(directory: &Path, files: &[(&str, &str)]) -> Name {
        let name = Name::parse("20260101T030000Z-a").unwrap();
        let path = directory.join(name.as_str());
        fs::create_dir(&path).unwrap();
        let manifest = ("MANIFEST", "system 7\nversion 17.10\ntables 1\n");
        let mut files: Vec<_> = files.iter().copied().chain([manifest]).collect();
        let sizes: String = files.iter().map(|(name, text)| format!("{} {name}\n", text.len())).collect();
        files.push(("SIZES", &sizes));
        let sum = |(name, text): &(&str, &str)| format!("{}  {name}\n", hex(&Sha256::digest(text.as_bytes())));
        let sums: String = files.iter().map(sum).collect();
        for (name, text) in files.into_iter().chain([(SUMS, sums.as_str())]) {
            fs::write(path.join(name), text).unwrap();
        }
        name
    }

    #[test]
    fn what_is_whole() {
        let whole = || {
            let directory = tempfile::tempdir().unwrap();
            let name = make(directory.path(), &[("globals.sql", "roles"), ("5.dump", "data")]);
            let path = directory.path().join(name.as_str());
            (directory, path, name)
        };
        let (_directory, path, name) = whole();
        let dump = verify(&path, &name).unwrap();
        assert_eq!((dump.about.tables, dump.files.len()), (1, 5));
        for (what, spoil) in [
            ("a file is gone", (|path| fs::remove_file(path.join("5.dump")).unwrap()) as fn(&Path)),
            ("a file is cut off", |path| fs::write(path.join("5.dump"), "dat").unwrap()),
            ("no sums", |path| fs::write(path.join(SUMS), "").unwrap()),
            ("no manifest", |path| fs::remove_file(path.join("MANIFEST")).unwrap()),
        ] {
            let (_directory, path, name) = whole();
            spoil(&path);
            assert!(read(&path, &name).is_err(), "{what}");
        }
        let (_directory, path, name) = whole();
        fs::write(path.join("5.dump"), "DATA").unwrap();
        assert!(read(&path, &name).is_ok() && verify(&path, &name).is_err());
    }
}
