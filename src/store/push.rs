//! `store push`: what is on the volume and not in the bucket is uploaded and read back; then the bucket is tidied. An **effect**.

use std::{
    fs,
    io::{Read as _, Write},
    path::Path,
};

use jiff::SignedDuration;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use super::{
    bucket::Bucket,
    catalog::{self, Catalog, Entry},
    dump::{self, Dump, Name},
    error::Error,
    keep::{self, Candidate, Keep},
    seal::Recipient,
    send::{self, Source},
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
pub(super) async fn tidy(bucket: &Bucket, found: &Catalog, server: &str, keep: Keep) -> Result<(), Error> {
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
    let key = |file: &dump::File| catalog::file_key(&dump.name, &folder, &file.name, recipient.is_some());
    let stored = async {
        let mut stored = Vec::new();
        for file in &dump.files {
            let (dump, name, size, whole) = (dump.clone(), file.name.clone(), file.size, file.clone());
            let write = move |to: &mut dyn Write| copy(&dump, &whole, to);
            stored.push(send::send(bucket, &key(file), Source { name, size, write }, recipient, stop).await?);
        }
        let entry = Entry::new(dump, folder.clone(), recipient.map(Recipient::to_string), stored);
        send::complete(bucket, &entry).await.map(|()| entry)
    };
    let stored = stored.await;
    if stored.as_ref().is_err_and(|error| !matches!(error, Error::Stopped)) {
        let keys: Vec<_> = dump.files.iter().map(key).collect();
        send::withdraw(bucket, &catalog::entry_key(&dump.name), &keys).await;
    }
    stored
}

/// Passes a file on, if it is as its sum says.
fn copy(dump: &Dump, file: &dump::File, to: &mut dyn Write) -> Result<(), Error> {
    let path = dump.path.join(&file.name);
    let mut source = fs::File::open(&path).map_err(Error::file("open", &path))?;
    let (mut plain, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match source.read(&mut chunk).map_err(Error::file("read", &path))? {
            0 => break,
            read => {
                plain.update(&chunk[..read]);
                to.write_all(&chunk[..read]).map_err(|_| Error::Cut)?;
            }
        }
    }
    if file.sha256.as_ref().is_some_and(|sum| *sum != hex(&plain.finalize())) {
        let problem = format!("{} has another sum than {} says", file.name, dump::SUMS);
        return Err(Error::DamagedHere { name: dump.name.clone(), path: dump.path.clone(), problem });
    }
    Ok(())
}
