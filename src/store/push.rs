//! `store push`: what is on the volume and not in the bucket is uploaded and read back; then the bucket is tidied. An **effect**.

use std::{
    fs,
    io::{self, Read as _, Write},
    path::Path,
};

use jiff::SignedDuration;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::{
    bucket::{Bucket, Piece, part_size},
    catalog::{self, Catalog, Entry, Stored},
    dump::{self, Dump, Name},
    error::Error,
    keep::{self, Candidate, Keep},
    seal::{self, Recipient, Sealed},
    settings::Push,
};
use crate::runtime::{clock, key::hex};

/// What was left of an upload that has not come to its end is that of no upload any more: a Job ends far earlier.
const LEFT: SignedDuration = SignedDuration::from_hours(24);
/// What is read of a file at once: as age encrypts.
const CHUNK: usize = 64 << 10;

pub(super) async fn push(bucket: &Bucket, push: &Push, stop: &CancellationToken) -> Result<(), Error> {
    let _lock = stop.run_until_cancelled(lock(&push.dumps)).await.unwrap_or(Err(Error::Stopped))?;
    let (whole, damaged) = dump::all(&push.dumps).map_err(Error::file("read", &push.dumps))?;
    for (name, problem) in damaged {
        println!("dump {name} is damaged ({problem}), and is not uploaded");
    }
    let newest = whole.first().ok_or_else(|| Error::NoDump(push.dumps.clone()))?;
    let mut found = catalog::read(bucket).await?;
    for (name, problem) in &found.damaged {
        println!("{} is damaged ({problem})", bucket.place(name.as_str()));
    }
    // The newest first: whatever becomes of the others.
    for dump in missing(&found, &whole, push.keep) {
        match upload(bucket, dump, push.recipient.as_ref(), stop).await {
            Ok(entry) => {
                let (files, bytes) = (entry.files.len(), entry.files.iter().map(|file| file.size).sum::<u64>());
                println!(
                    "stored dump {} as {}: {files} files, {bytes} bytes",
                    dump.name,
                    bucket.place(dump.name.as_str())
                );
                found.entries.push(entry);
            }
            Err(Error::DamagedHere { problem, .. }) if dump != newest => {
                println!("dump {} is damaged ({problem}), and is not uploaded", dump.name);
            }
            // Another dump's Job has taken it away.
            Err(_) if dump != newest && !dump.path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    match push.keep {
        Some(keep) => tidy(bucket, &found, &newest.about.system, keep).await,
        None => Ok(()),
    }
}

/// Two that upload the same would do it twice. The lock is the directory's, and ends with the process.
async fn lock(dumps: &Path) -> Result<fs::File, Error> {
    let path = dumps.to_owned();
    let locked = spawn_blocking(move || {
        let directory = fs::File::open(&path).map_err(Error::file("open", &path))?;
        directory.lock().map_err(Error::file("lock", &path))?;
        Ok(directory)
    });
    locked.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

/// The dumps that the bucket lacks, or has damaged, and would keep. **Pure.**
fn missing<'a>(found: &Catalog, whole: &'a [Dump], keep: Option<Keep>) -> Vec<&'a Dump> {
    let there = |name: &Name| found.entries.iter().any(|entry| entry.name == *name);
    let lacking = whole.iter().filter(|dump| !there(&dump.name));
    let mut candidates = candidates(found);
    candidates.extend(lacking.clone().map(|dump| catalog::candidate(&dump.name, &dump.about)));
    let kept = keep.map(|keep| keep::kept(&candidates, keep));
    lacking.filter(|dump| kept.as_ref().is_none_or(|kept| kept.contains(&dump.name))).collect()
}

fn candidates(found: &Catalog) -> Vec<Candidate> {
    found.entries.iter().map(Entry::candidate).collect()
}

/// Takes away what newer dumps in the bucket stand for, and what uploads have left behind.
async fn tidy(bucket: &Bucket, found: &Catalog, server: &str, keep: Keep) -> Result<(), Error> {
    for name in keep::goes(&candidates(found), server, keep) {
        // Half of it is no dump.
        bucket.delete(&catalog::entry_key(&name)).await?;
        for key in found.entries.iter().filter(|entry| entry.name == name).flat_map(Entry::keys) {
            bucket.delete(&key).await?;
        }
        println!("removed {}: newer ones stand for it", bucket.place(name.as_str()));
    }
    let old = clock::now() - LEFT;
    for object in found.loose.iter().filter(|object| object.modified < old) {
        bucket.delete(&object.key).await?;
        println!("removed {}: its upload has not come to an end", bucket.place(&object.key));
    }
    Ok(())
}

async fn upload(
    bucket: &Bucket,
    dump: &Dump,
    recipient: Option<&Recipient>,
    stop: &CancellationToken,
) -> Result<Entry, Error> {
    let folder = hex(&rand::rng().random::<[u8; 8]>());
    let stored = store(bucket, dump, &folder, recipient, stop).await;
    // No more than politeness: what it cannot take away is no dump, and goes a day later. What says that it is one goes first.
    if stored.as_ref().is_err_and(|error| !matches!(error, Error::Stopped))
        && bucket.delete(&catalog::entry_key(&dump.name)).await.is_ok()
    {
        for file in &dump.files {
            let _ = bucket.delete(&catalog::file_key(&dump.name, &folder, &file.name, recipient.is_some())).await;
        }
    }
    stored
}

async fn store(
    bucket: &Bucket,
    dump: &Dump,
    folder: &str,
    recipient: Option<&Recipient>,
    stop: &CancellationToken,
) -> Result<Entry, Error> {
    let mut stored = Vec::new();
    for file in &dump.files {
        let key = catalog::file_key(&dump.name, folder, &file.name, recipient.is_some());
        let sent = send(bucket, &key, dump, file, recipient, stop).await?;
        stored.push(verified(bucket, &key, sent).await?);
    }
    let entry = Entry::new(dump, folder.to_owned(), recipient.map(Recipient::to_string), stored);
    let key = catalog::entry_key(&dump.name);
    bucket.put(&key, serde_json::to_vec(&entry).map_err(|error| Error::Settings(error.to_string()))?).await?;
    match catalog::one(bucket, &dump.name).await? {
        Some(found) if found == entry => Ok(entry),
        _ => Err(Error::NotAsWritten { place: bucket.place(&key), problem: "its text differs" }),
    }
}

/// Sends a file, encrypted if there is a key.
async fn send(
    bucket: &Bucket,
    key: &str,
    dump: &Dump,
    file: &dump::File,
    recipient: Option<&Recipient>,
    stop: &CancellationToken,
) -> Result<Stored, Error> {
    let (sender, pieces) = mpsc::channel(1);
    let (dump, file, recipient) = (dump.clone(), file.clone(), recipient.cloned());
    let read = spawn_blocking(move || read(&dump, &file, recipient.as_ref(), sender));
    let uploaded = bucket.upload(key, pieces, stop).await;
    let read = read.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
    match (uploaded, read) {
        (Ok(()), read) | (Err(Error::Cut), read) => read,
        (Err(error), _) => Err(error),
    }
}

/// Reads a file, and passes on what is to be stored; what is not as its sum says has no end.
fn read(
    dump: &Dump,
    file: &dump::File,
    recipient: Option<&Recipient>,
    to: mpsc::Sender<Piece>,
) -> Result<Stored, Error> {
    let path = dump.path.join(&file.name);
    let size = part_size(seal::size(file.size, recipient)) as usize;
    let mut sealed = Sealed::new(Parts { size, to, part: Vec::new(), sum: Sha256::new(), total: 0 }, recipient)?;
    let mut source = fs::File::open(&path).map_err(Error::file("open", &path))?;
    let (mut plain, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match source.read(&mut chunk).map_err(Error::file("read", &path))? {
            0 => break,
            read => {
                plain.update(&chunk[..read]);
                sealed.write_all(&chunk[..read]).map_err(|_| Error::Cut)?;
            }
        }
    }
    if file.sha256.as_ref().is_some_and(|sum| *sum != hex(&plain.finalize())) {
        let problem = format!("{} has another sum than {} says", file.name, dump::SUMS);
        return Err(Error::DamagedHere { name: dump.name.clone(), path: dump.path.clone(), problem });
    }
    let mut parts = sealed.finish().map_err(|_| Error::Cut)?;
    parts.pass_on()?;
    parts.to.blocking_send(Piece::End).map_err(|_| Error::Cut)?;
    Ok(Stored { name: file.name.clone(), size: parts.total, sha256: hex(&parts.sum.finalize()) })
}

/// What is written becomes parts of one size.
struct Parts {
    size: usize,
    to: mpsc::Sender<Piece>,
    part: Vec<u8>,
    sum: Sha256,
    total: u64,
}

impl Parts {
    fn pass_on(&mut self) -> Result<(), Error> {
        let part = std::mem::take(&mut self.part);
        if part.is_empty() {
            return Ok(());
        }
        self.to.blocking_send(Piece::Part(part)).map_err(|_| Error::Cut)
    }
}

impl Write for Parts {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.part.is_empty() {
            self.part.reserve_exact(self.size);
        }
        let taken = data.len().min(self.size - self.part.len());
        self.part.extend_from_slice(&data[..taken]);
        self.sum.update(&data[..taken]);
        self.total += taken as u64;
        if self.part.len() == self.size {
            self.pass_on().map_err(io::Error::other)?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reads back what was sent.
async fn verified(bucket: &Bucket, key: &str, sent: Stored) -> Result<Stored, Error> {
    let differs = |problem| Error::NotAsWritten { place: bucket.place(key), problem };
    match bucket.size(key).await? {
        None => return Err(differs("it is not there")),
        Some(size) if size != sent.size => return Err(differs("its size differs")),
        Some(_) => {}
    }
    match bucket.sum(key, sent.size).await? == sent.sha256 {
        true => Ok(sent),
        false => Err(differs("its sum differs")),
    }
}
