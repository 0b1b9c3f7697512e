//! Streams an object from the bucket: decrypts it if there is a key, and verifies it. An **effect**.

use std::io::{self, Read};

use bytes::{Buf as _, Bytes};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};

use super::{
    bucket::Bucket,
    catalog::{self, Entry, Stored},
    error::Error,
    seal::{self, Closed, Identity},
    settings::Which,
};
use crate::platform::{key::hex, panic::joined};

/// The requested dump, provided that there is a key to read it.
pub(crate) async fn entry(bucket: &Bucket, which: &Which, identity: Option<&Identity>) -> Result<Entry, Error> {
    let (found, which) = match which {
        Which::Named(name) => (catalog::one(bucket, name).await?, name.to_string()),
        Which::Latest => {
            let catalog = catalog::read(bucket).await?;
            for entry in catalog.ahead() {
                println!(
                    "{} is named more than a day ahead of now: it is the latest only if there is no other",
                    bucket.place(entry.name.as_str())
                );
            }
            let latest = catalog.latest().map(|entry| entry.name.clone());
            let found = match latest {
                Some(name) => catalog::one(bucket, &name).await?,
                None => None,
            };
            (found, "at all".to_owned())
        }
    };
    let found = found.ok_or_else(|| Error::NotThere { which, place: bucket.place("") })?;
    match (&found.recipient, identity) {
        (Some(recipient), None) => Err(Error::KeyNeeded { name: found.name, recipient: recipient.clone() }),
        _ => Ok(found),
    }
}

/// Lets `read` consume a file of an entry. The checksum is known only at the end, so anything made from the data counts only once this
/// returns.
pub(crate) async fn receive<F>(
    bucket: &Bucket,
    entry: &Entry,
    file: &Stored,
    identity: Option<&Identity>,
    read: F,
) -> Result<(), Error>
where
    F: FnOnce(&mut dyn Read, &dyn Fn(io::Error) -> Error) -> Result<(), Error> + Send + 'static,
{
    let key = entry.key_of(file);
    let place = bucket.place(&key);
    let damaged = |problem| Error::Damaged { place: place.clone(), problem };
    match bucket.size(&key).await? {
        None => return Err(damaged("it does not exist".to_owned())),
        Some(size) if size != file.size => {
            return Err(damaged(format!("its size is {size} bytes instead of {}", file.size)));
        }
        Some(_) => {}
    }
    let (sender, parts) = mpsc::channel(1);
    let identity = identity.filter(|_| entry.recipient.is_some()).cloned();
    let (stored, at) = (file.clone(), place.clone());
    let done = spawn_blocking(move || checked(&stored, at, identity.as_ref(), parts, read));
    let downloaded = bucket.download(&key, file.size, &sender).await;
    drop(sender);
    let done = joined(done).await;
    match downloaded {
        // The reader reports why it has stopped.
        Ok(()) | Err(Error::Cut) => done,
        Err(error) => Err(error),
    }
}

fn checked<F>(
    stored: &Stored,
    place: String,
    identity: Option<&Identity>,
    parts: mpsc::Receiver<Bytes>,
    read: F,
) -> Result<(), Error>
where
    F: FnOnce(&mut dyn Read, &dyn Fn(io::Error) -> Error) -> Result<(), Error>,
{
    let mut parts = Parts { parts, part: Bytes::new(), sum: Sha256::new() };
    let damaged = |error: io::Error| Error::Damaged { place: place.clone(), problem: error.to_string() };
    let mut plain = seal::open(&mut parts, identity).map_err(|closed| match closed {
        Closed::Key(problem) => Error::WrongKey { place: place.clone(), problem },
        Closed::Read(error) => damaged(error),
    })?;
    read(&mut plain, &damaged)?;
    drop(plain);
    // The rest counts for the checksum.
    io::copy(&mut parts, &mut io::sink()).map_err(damaged)?;
    match hex(&parts.sum.finalize()) == stored.sha256 {
        true => Ok(()),
        false => Err(Error::Damaged { place, problem: "its checksum differs".to_owned() }),
    }
}

/// The parts as one reader.
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
