//! `store archive`: streams the files of volumes into the bucket, each volume as one compressed archive, without a temporary copy.
//! An **effect**.
//!
//! The app may be writing to them. A file that grows is cut off at its earlier length, one that shrinks is padded with zeros, and a
//! file that disappears is left out. Links are not followed.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    io::{self, Read, Write},
    path::{Path, PathBuf},
};

use cap_std::{
    ambient_authority,
    fs::{Dir, DirEntry, Metadata, MetadataExt as _},
};
use flate2::{Compression, write::GzEncoder};
use jiff::Timestamp;
use rand::RngExt as _;
use tar::{EntryType, Header};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::{
    bucket::Bucket,
    catalog::{self, Entry},
    dump::{About, Name},
    error::Error,
    extract::report,
    lock, push,
    seal::Recipient,
    send::{self, Source},
    settings::Archive,
    volume::{is_ours, none_begun, roots},
};
use crate::platform::{clock, key::hex, panic::joined};

/// A volume, with counts taken before it is archived.
#[derive(Clone, Debug)]
struct Volume {
    name: String,
    path: PathBuf,
    files: u64,
    /// Whether any of them is a regular file.
    has_files: bool,
    bytes: u64,
}

pub(super) async fn archive(bucket: &Bucket, args: &Archive, stop: &CancellationToken) -> Result<(), Error> {
    let roots = roots(&args.volumes)?;
    let _locks = roots.iter().map(|root| lock::volume(root, lock::Use::Read)).collect::<Result<Vec<_>, _>>()?;
    let volumes = joined(spawn_blocking(move || volumes(roots))).await?;
    let mut found = catalog::read(bucket).await?;
    let name = name(clock::now(), &args.pod)?;
    let entry = upload(bucket, &name, &volumes, args, stop).await?;
    println!(
        "stored the files of {} volumes as {}: {} files",
        volumes.len(),
        bucket.place(name.as_str()),
        entry.about.tables
    );
    report(args.report.as_deref(), &entry.words())?;
    for entry in push::later(&found, &name) {
        println!(
            "{} is named later than now: it belongs to other volumes, or a node's clock was wrong. It replaces no other archive and is kept",
            bucket.place(entry.name.as_str())
        );
    }
    found.entries.push(entry);
    let Some(keep) = args.keep else { return Ok(()) };
    // Only this archive is known to be good.
    let gone = push::gone(&found, &args.of, keep, &name, &[&name]);
    push::tidy(bucket, &found, &gone).await
}

/// Starts with the time, as the name of a dump does, and ends with the last part of the pod's name.
fn name(now: Timestamp, pod: &str) -> Result<Name, Error> {
    let suffix = pod.rsplit('-').next().unwrap_or_default();
    let name = Name::parse(&format!("{}-{suffix}", now.strftime("%Y%m%dT%H%M%SZ")));
    name.ok_or_else(|| Error::Settings(format!("{pod:?} is not the name of a pod")))
}

/// Counts what is in the volumes, of which none may have a restore that has not ended.
fn volumes(roots: Vec<PathBuf>) -> Result<Vec<Volume>, Error> {
    none_begun(roots.iter().map(PathBuf::as_path))?;
    let mut volumes = Vec::new();
    for path in roots {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (mut files, mut has_files, mut bytes) = (0, false, 0);
        walk(&path, &mut |_, _, _, metadata| {
            files += 1;
            has_files |= metadata.is_file();
            bytes += metadata.len() + 1024;
            Ok(())
        })?;
        volumes.push(Volume { name, path, files, has_files, bytes });
    }
    Ok(volumes)
}

async fn upload(
    bucket: &Bucket,
    name: &Name,
    volumes: &[Volume],
    args: &Archive,
    stop: &CancellationToken,
) -> Result<Entry, Error> {
    let (folder, recipient) = (hex(&rand::rng().random::<[u8; 8]>()), args.recipient.as_ref());
    let file = |volume: &Volume| catalog::archive(&volume.name);
    let key = |volume: &Volume| catalog::file_key(name, &folder, &file(volume), recipient.is_some());
    let stored = async {
        let mut files = Vec::new();
        for volume in volumes {
            let path = volume.path.clone();
            let source =
                Source { name: file(volume), size: volume.bytes, write: move |to: &mut dyn Write| pack(&path, to) };
            files.push(send::send(bucket, &key(volume), source, recipient, stop).await?);
        }
        let count = |of: fn(&Volume) -> u64| volumes.iter().map(of).sum();
        let entry = Entry {
            format: catalog::FORMAT,
            name: name.clone(),
            about: About { system: args.of.clone(), postgres: String::new(), tables: count(|volume| volume.files) },
            bytes: count(|volume| volume.bytes),
            recipient: recipient.map(Recipient::to_string),
            folder: folder.clone(),
            empty_volume: volumes.iter().any(|volume| !volume.has_files),
            files,
        };
        // Where the file system has no locks, a restore may have begun meanwhile.
        none_begun(volumes.iter().map(|volume| volume.path.as_path()))?;
        send::complete(bucket, &entry).await.map(|()| entry)
    };
    let stored = stored.await;
    if stored.as_ref().is_err_and(|error| !matches!(error, Error::Stopped)) {
        let keys: Vec<_> = volumes.iter().map(key).collect();
        send::withdraw(bucket, &catalog::entry_key(name), &keys).await;
    }
    stored
}

/// Visits an entry of a directory: the directory, the entry's path within the volume, the entry, and its metadata.
type Look<'a> = &'a mut dyn FnMut(&Dir, &Path, &DirEntry, &Metadata) -> Result<(), Error>;

/// Visits everything below a directory, each directory before its contents.
fn walk(root: &Path, look: Look<'_>) -> Result<(), Error> {
    let directory = Dir::open_ambient_dir(root, ambient_authority()).map_err(Error::file("read", root))?;
    below(&directory, root, Path::new(""), look)
}

fn below(directory: &Dir, root: &Path, path: &Path, look: Look<'_>) -> Result<(), Error> {
    for (name, entry) in entries(directory).map_err(Error::file("read", &root.join(path)))? {
        if path.as_os_str().is_empty() && is_ours(&name) {
            continue;
        }
        let path = path.join(name);
        let failed = |error| Error::file("read", &root.join(&path))(error);
        let Some(metadata) = unless_gone(entry.metadata()).map_err(failed)? else { continue };
        look(directory, &path, &entry, &metadata)?;
        if metadata.is_dir()
            && let Some(inner) = unless_gone(entry.open_dir()).map_err(failed)?
        {
            below(&inner, root, &path, look)?;
        }
    }
    Ok(())
}

/// The names are read first: some file systems list a file again if it is replaced meanwhile.
fn entries(directory: &Dir) -> io::Result<BTreeMap<OsString, DirEntry>> {
    directory.entries()?.map(|entry| entry.map(|entry| (entry.file_name(), entry))).collect()
}

/// The app may delete a file while the archive is written.
fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes everything below a directory as one archive.
fn pack(root: &Path, to: &mut dyn Write) -> Result<(), Error> {
    let mut archive = tar::Builder::new(GzEncoder::new(to, Compression::fast()));
    walk(root, &mut |directory, path, entry, metadata| {
        let mut header = header(metadata);
        let shown = root.join(path);
        // Writing fails only if the upload has ended, which reports the reason.
        let written = if metadata.is_dir() {
            archive.append_data(&mut header, path, io::empty())
        } else if metadata.is_symlink() {
            let target = directory.read_link_contents(entry.file_name());
            match unless_gone(target).map_err(Error::file("read", &shown))? {
                Some(target) => archive.append_link(&mut header, path, target),
                None => Ok(()),
            }
        } else if metadata.is_file() {
            let Some(file) = unless_gone(entry.open()).map_err(Error::file("read", &shown))? else { return Ok(()) };
            let mut exact = Exact { file, left: metadata.len(), failed: None };
            let written = archive.append_data(&mut header, path, &mut exact);
            match exact.failed.take() {
                Some(error) => return Err(Error::file("read", &shown)(error)),
                None => written,
            }
        } else {
            // Sockets and pipes have no content.
            Ok(())
        };
        written.map_err(|_| Error::Cut)
    })?;
    let compressed = archive.into_inner().map_err(|_| Error::Cut)?;
    compressed.finish().map(|_| ()).map_err(|_| Error::Cut)
}

fn header(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    let (kind, size) = match () {
        () if metadata.is_dir() => (EntryType::Directory, 0),
        () if metadata.is_symlink() => (EntryType::Symlink, 0),
        () => (EntryType::Regular, metadata.len()),
    };
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(metadata.mode() & 0o777);
    header.set_uid(metadata.uid().into());
    header.set_gid(metadata.gid().into());
    header.set_mtime(metadata.mtime().try_into().unwrap_or_default());
    header
}

/// A file that yields exactly as many bytes as its header says.
struct Exact<F> {
    file: F,
    left: u64,
    failed: Option<io::Error>,
}

impl<F: Read> Read for Exact<F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let read = match self.file.read(&mut buffer[..most]) {
            // The file was truncated since.
            Ok(0) => {
                buffer[..most].fill(0);
                most
            }
            Ok(read) => read,
            Err(error) => {
                self.failed = Some(io::Error::new(error.kind(), error.to_string()));
                return Err(error);
            }
        };
        self.left -= read as u64;
        Ok(read)
    }
}
