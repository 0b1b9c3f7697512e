//! `store fetch`: a dump comes back into a directory of its own, and has its name there only when all of it is right. An **effect**.

use std::{
    fs,
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    bucket::Bucket,
    catalog::{self, Entry, Stored},
    dump::{self, Name},
    error::Error,
    seal::{self, Closed, Identity},
    settings::{Fetch, Which},
};
use crate::runtime::key::hex;

/// What is written at once: as age decrypts.
const CHUNK: usize = 64 << 10;

pub(super) async fn fetch(bucket: &Bucket, fetch: &Fetch) -> Result<(), Error> {
    let entry = entry(bucket, &fetch.which).await?;
    if let (Some(recipient), None) = (&entry.recipient, &fetch.identity) {
        return Err(Error::KeyNeeded { name: entry.name, recipient: recipient.clone() });
    }
    let target = fetch.into.join(entry.name.as_str());
    if target.exists() {
        verify(&target, &entry.name).await.map_err(|problem| Error::InTheWay { path: target.clone(), problem })?;
        println!("dump {} is in {} already", entry.name, target.display());
        return Ok(());
    }
    let partial = Partial::new(&fetch.into, &entry.name)?;
    // The smallest first: a wrong key shows at once.
    let mut files: Vec<_> = entry.files.iter().collect();
    files.sort_by_key(|file| file.size);
    for file in files {
        receive(bucket, &entry, file, &partial.path, fetch.identity.as_ref()).await?;
    }
    let place = || bucket.place(&catalog::entry_key(&entry.name));
    let found = verify(&partial.path, &entry.name).await;
    let found = found.map_err(|problem| Error::Damaged { place: place(), problem })?;
    if found.files.len() != entry.files.len() {
        return Err(Error::Damaged {
            place: place(),
            problem: format!("{} does not name all of its files", dump::SUMS),
        });
    }
    partial.complete(&target)?;
    println!("fetched dump {} into {}", entry.name, target.display());
    Ok(())
}

async fn entry(bucket: &Bucket, which: &Which) -> Result<Entry, Error> {
    let (found, which) = match which {
        Which::Named(name) => (catalog::one(bucket, name).await?, name.to_string()),
        Which::Latest => (catalog::read(bucket).await?.latest().cloned(), "at all".to_owned()),
    };
    found.ok_or_else(|| Error::NotThere { which, place: bucket.place("") })
}

async fn verify(path: &Path, name: &Name) -> Result<dump::Dump, String> {
    let (path, name) = (path.to_owned(), name.clone());
    let verified = spawn_blocking(move || dump::verify(&path, &name)).await;
    verified.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

/// The directory until it is complete; dropped before, it is gone. Its lock tells `dump.sh` that it was not left behind.
struct Partial {
    path: PathBuf,
    directory: fs::File,
}

impl Partial {
    fn new(into: &Path, name: &Name) -> Result<Partial, Error> {
        let path = into.join(format!("{name}.partial"));
        if path.exists() {
            // One that was killed has left it, or one is at it.
            let left = fs::File::open(&path).map_err(Error::file("open", &path))?;
            left.try_lock().map_err(|_| Error::Busy(path.clone()))?;
            fs::remove_dir_all(&path).map_err(Error::file("remove", &path))?;
        }
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::file("create", &path))?;
        let directory = fs::File::open(&path).map_err(Error::file("open", &path))?;
        let partial = Partial { path, directory };
        partial.directory.try_lock().map_err(|_| Error::Busy(partial.path.clone()))?;
        Ok(partial)
    }

    fn complete(self, target: &Path) -> Result<(), Error> {
        self.directory.sync_all().map_err(Error::file("write", &self.path))?;
        fs::rename(&self.path, target).map_err(Error::file("rename", &self.path))?;
        let into = target.parent().unwrap_or(Path::new("."));
        fs::File::open(into).and_then(|into| into.sync_all()).map_err(Error::file("write", into))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Of one that is complete there is nothing left of this name.
        let _ = fs::remove_dir_all(&self.path);
    }
}

async fn receive(
    bucket: &Bucket,
    entry: &Entry,
    file: &Stored,
    into: &Path,
    identity: Option<&Identity>,
) -> Result<(), Error> {
    let key = entry.key_of(file);
    let place = bucket.place(&key);
    let damaged = |problem| Error::Damaged { place: place.clone(), problem };
    match bucket.size(&key).await? {
        None => return Err(damaged("it is not there".to_owned())),
        Some(size) if size != file.size => {
            return Err(damaged(format!("it has {size} bytes instead of {}", file.size)));
        }
        Some(_) => {}
    }
    let (sender, parts) = mpsc::channel(1);
    let identity = identity.filter(|_| entry.recipient.is_some()).cloned();
    let (path, stored, at) = (into.join(&file.name), file.clone(), place.clone());
    let written = spawn_blocking(move || write(&path, &stored, at, identity.as_ref(), parts));
    let downloaded = bucket.download(&key, file.size, &sender).await;
    drop(sender);
    let written = written.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    match downloaded {
        // It says why it has not gone on.
        Ok(()) | Err(Error::Cut) => written,
        Err(error) => Err(error),
    }
}

/// Writes a file of what comes.
fn write(
    path: &Path,
    stored: &Stored,
    place: String,
    identity: Option<&Identity>,
    parts: mpsc::Receiver<Bytes>,
) -> Result<(), Error> {
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    let file =
        file.as_mut().map_err(|error| Error::file("create", path)(io::Error::new(error.kind(), error.to_string())))?;
    let mut parts = Parts { parts, part: Bytes::new(), sum: Sha256::new() };
    let damaged = |error: io::Error| Error::Damaged { place: place.clone(), problem: error.to_string() };
    let mut plain = seal::open(&mut parts, identity).map_err(|closed| match closed {
        Closed::Key(problem) => Error::WrongKey { place: place.clone(), problem },
        Closed::Read(error) => damaged(error),
    })?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match plain.read(&mut chunk).map_err(damaged)? {
            0 => break,
            read => file.write_all(&chunk[..read]).map_err(Error::file("write", path))?,
        }
    }
    drop(plain);
    // Whatever is behind the end of what is encrypted.
    io::copy(&mut parts, &mut io::sink()).map_err(damaged)?;
    if hex(&parts.sum.finalize()) != stored.sha256 {
        return Err(Error::Damaged { place: place.clone(), problem: "its sum differs".to_owned() });
    }
    file.sync_all().map_err(Error::file("write", path))
}

/// Parts as one file.
struct Parts {
    parts: mpsc::Receiver<Bytes>,
    part: Bytes,
    sum: Sha256,
}

impl Read for Parts {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.part.is_empty() {
            let Some(part) = self.parts.blocking_recv() else { return Ok(0) };
            self.sum.update(&part);
            self.part = part;
        }
        let read = buffer.len().min(self.part.len());
        self.part.copy_to_slice(&mut buffer[..read]);
        Ok(read)
    }
}
