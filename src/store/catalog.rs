//! The dumps in a bucket. Pure, except for [`read`] and [`one`].

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::{
    bucket::{Bucket, Object},
    dump::{self, About, Damaged, LONGEST, Name},
    error::Error,
    keep::Candidate,
};
use crate::platform::clock;

/// The version of the entry format that is written and read.
pub(crate) const FORMAT: u32 = 1;
/// Suffix of an archive's name.
const ARCHIVE: &str = ".tar.gz";
/// How far a name may be ahead of the time, because of a clock that is a little ahead.
const AHEAD: SignedDuration = SignedDuration::from_hours(24);
/// How many entries are read at the same time.
const AT_ONCE: usize = 8;

/// Written once all files of a dump are in the bucket and were read back. Every user with access to the bucket can read it, so it has
/// no names of databases and no checksums of unencrypted data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub format: u32,
    pub name: Name,
    #[serde(flatten)]
    pub about: About,
    /// Of the files as they were dumped.
    pub bytes: u64,
    /// The public key that the files are encrypted for.
    pub recipient: Option<String>,
    /// The folder of this upload.
    pub folder: String,
    /// Whether one of the volumes had no file: it may have been lost, so such an archive replaces only others like it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub empty_volume: bool,
    pub files: Vec<Stored>,
}

/// A file as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stored {
    pub name: String,
    pub size: u64,
    pub sha256: String,
}

impl Entry {
    pub(crate) fn new(dump: &dump::Dump, folder: String, recipient: Option<String>, files: Vec<Stored>) -> Entry {
        let (name, about, bytes) = (dump.name.clone(), dump.about.clone(), dump.bytes());
        Entry { format: FORMAT, name, about, bytes, recipient, folder, empty_volume: false, files }
    }

    /// The key of a file.
    pub(crate) fn key_of(&self, file: &Stored) -> String {
        file_key(&self.name, &self.folder, &file.name, self.recipient.is_some())
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = String> {
        self.files.iter().map(|file| self.key_of(file))
    }

    /// Whether it holds the files of volumes rather than a database.
    pub(crate) fn is_of_files(&self) -> bool {
        !self.files.is_empty() && self.files.iter().all(|file| volume(&file.name).is_some())
    }

    /// The termination message of the pod that has archived or restored it: name, bytes and number of files.
    pub(crate) fn words(&self) -> String {
        format!("{} {} {}", self.name, self.bytes, self.about.tables)
    }

    pub(crate) fn candidate(&self) -> Candidate {
        Candidate { has_data: self.has_data(), ..candidate(&self.name, &self.about) }
    }

    fn has_data(&self) -> bool {
        self.about.tables > 0 && !self.empty_volume
    }

    fn parse(text: &[u8], name: &Name) -> Result<Entry, String> {
        let told = |error: serde_json::Error| error.to_string().chars().take(LONGEST).collect::<String>();
        let entry: Entry = serde_json::from_slice(text).map_err(told)?;
        let About { system, postgres, tables: _ } = &entry.about;
        let words = [system, postgres, &entry.folder, entry.recipient.as_ref().unwrap_or(system)];
        if words.iter().any(|word| word.len() > LONGEST) {
            return Err("it has overlong texts".to_owned());
        }
        let folder = !entry.folder.is_empty() && entry.folder.bytes().all(|c| c.is_ascii_alphanumeric());
        match entry {
            Entry { format, .. } if format != FORMAT => {
                Err(format!("its format is {format}, written by a newer version of the operator"))
            }
            Entry { name: ref said, .. } if said != name => Err(format!("it describes {said} instead")),
            entry if folder && entry.is_of_files() => Ok(entry),
            _ if !folder || !entry.files.iter().all(|file| dump::is_file(&file.name)) => {
                Err("it does not list the files of a dump".to_owned())
            }
            _ if entry.files.iter().all(|file| file.name != dump::SUMS) => {
                Err(format!("it does not list {}", dump::SUMS))
            }
            entry => Ok(entry),
        }
    }
}

pub(crate) fn candidate(name: &Name, about: &About) -> Candidate {
    Candidate { name: name.clone(), system: about.system.clone(), has_data: about.tables > 0 }
}

/// The name of a volume's archive.
pub(crate) fn archive(volume: &str) -> String {
    format!("{volume}{ARCHIVE}")
}

/// The volume of an archive. A bucket's content is not trusted: these names become paths.
pub(crate) fn volume(archive: &str) -> Option<&str> {
    let fits = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_alphanumeric())
            && name.len() <= 253
            && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c))
    };
    archive.strip_suffix(ARCHIVE).filter(fits)
}

/// The key of a dump's entry.
pub(crate) fn entry_key(name: &Name) -> String {
    format!("{name}.json")
}

/// The key of a file. Its suffix helps users who decrypt it without the operator.
pub(crate) fn file_key(name: &Name, folder: &str, file: &str, encrypted: bool) -> String {
    format!("{name}/{folder}/{file}{}", if encrypted { ".age" } else { "" })
}

/// The dumps in the bucket.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    /// Complete dumps, newest first, without their files: any user with write access to the bucket decides how many each has.
    pub entries: Vec<Entry>,
    pub damaged: Vec<Damaged>,
    /// Files of incomplete uploads.
    pub loose: Vec<Object>,
    /// When the bucket was read.
    pub at: Timestamp,
}

impl Catalog {
    /// The newest dump with data or, if none has data, the newest. Those named ahead of time count only if there are no others: a
    /// user with write access to the bucket, or a node whose clock was wrong, has named them.
    pub(crate) fn latest(&self) -> Option<&Entry> {
        let newest = |ahead: bool| {
            let mut its = self.entries.iter().filter(move |entry| self.is_ahead(entry) == ahead);
            its.clone().find(|entry| entry.has_data()).or_else(|| its.next())
        };
        newest(false).or_else(|| newest(true))
    }

    /// Those that are never taken for the latest while there are others.
    pub(crate) fn ahead(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(move |entry| self.is_ahead(entry))
    }

    fn is_ahead(&self, entry: &Entry) -> bool {
        entry.name.time() > self.at + AHEAD
    }
}

/// Reads all entries, a few at a time to save memory.
pub(crate) async fn read(bucket: &Bucket) -> Result<Catalog, Error> {
    let objects = bucket.list().await?;
    let names: Vec<_> = objects.iter().filter_map(|object| Name::parse(object.key.strip_suffix(".json")?)).collect();
    let mut sorting = Sorting::of(objects);
    let read = futures::stream::iter(names).map(async |name| read_one(bucket, name).await);
    let mut read = std::pin::pin!(read.buffer_unordered(AT_ONCE));
    while let Some((name, entry)) = read.try_next().await? {
        sorting.take(name, entry);
    }
    Ok(Catalog { at: clock::now(), ..sorting.done() })
}

async fn read_one(bucket: &Bucket, name: Name) -> Result<(Name, Result<Entry, String>), Error> {
    let text = bucket.get(&entry_key(&name)).await?;
    let parsed = Entry::parse(&text, &name);
    Ok((name, parsed))
}

/// Reads one entry, or `None` if it does not exist.
pub(crate) async fn one(bucket: &Bucket, name: &Name) -> Result<Option<Entry>, Error> {
    let key = entry_key(name);
    let Some(text) = bucket.get_opt(&key).await? else { return Ok(None) };
    let damaged = |problem| Error::Damaged { place: bucket.place(&key), problem };
    Entry::parse(&text, name).map(Some).map_err(damaged)
}

/// Separates complete dumps from entries whose files are missing. **Pure.**
struct Sorting {
    /// Objects that no entry has claimed so far.
    objects: BTreeMap<String, (u64, Timestamp)>,
    catalog: Catalog,
}

impl Sorting {
    fn of(objects: Vec<Object>) -> Sorting {
        let objects = objects.into_iter().map(|Object { key, size, modified }| (key, (size, modified)));
        Sorting { objects: objects.collect(), catalog: Catalog::default() }
    }

    fn take(&mut self, name: Name, entry: Result<Entry, String>) {
        self.objects.remove(&entry_key(&name));
        let mut entry = match entry {
            Ok(entry) => entry,
            Err(problem) => {
                // The entry is unreadable, so its files are kept for the user to examine.
                self.objects.retain(|key, _| !key.starts_with(&format!("{name}/")));
                self.catalog.damaged.push((name, problem));
                return;
            }
        };
        let mut missing = None;
        for file in &entry.files {
            let found = self.objects.remove(&entry.key_of(file)).map(|(size, _)| size);
            if found != Some(file.size) {
                missing.get_or_insert_with(|| match found {
                    None => format!("{} does not exist", entry.key_of(file)),
                    Some(size) => format!("{} has {size} bytes instead of {}", entry.key_of(file), file.size),
                });
            }
        }
        entry.files = Vec::new();
        match missing {
            None => self.catalog.entries.push(entry),
            Some(problem) => self.catalog.damaged.push((name, problem)),
        }
    }

    fn done(self) -> Catalog {
        let Sorting { objects, mut catalog } = self;
        catalog.entries.sort_by(|one, other| other.name.cmp(&one.name));
        catalog.damaged.sort();
        // Objects of users, or of a Postgresql with a longer prefix, are not ours.
        let of_a_dump = |key: &str| key.split('/').next().and_then(Name::parse).is_some();
        let loose = objects.into_iter().filter(|(key, _)| of_a_dump(key));
        catalog.loose = loose.map(|(key, (size, modified))| Object { key, size, modified }).collect();
        catalog
    }
}

#[cfg(test)]
mod tests;
