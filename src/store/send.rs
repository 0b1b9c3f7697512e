//! One object of a bucket, written as it comes: encrypted if there is a key, in parts, and read back. An **effect**.

use std::io::{self, Write};

use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::spawn_blocking};
use tokio_util::sync::CancellationToken;

use super::{
    bucket::{Bucket, Piece, part_size},
    catalog::{self, Entry, Stored},
    error::Error,
    seal::{self, Recipient, Sealed},
};
use crate::runtime::panic::joined;

/// What is to be written.
pub(crate) struct Source<F> {
    /// Its name, without what says that it is encrypted.
    pub name: String,
    /// How large it becomes; it may be a few hundredths more.
    pub size: u64,
    /// Writes all of it, or says why not: then there is no object.
    pub write: F,
}

/// Writes an object, and reads it back.
pub(crate) async fn send<F>(
    bucket: &Bucket,
    key: &str,
    source: Source<F>,
    recipient: Option<&Recipient>,
    stop: &CancellationToken,
) -> Result<Stored, Error>
where
    F: FnOnce(&mut dyn Write) -> Result<(), Error> + Send + 'static,
{
    let (sender, pieces) = mpsc::channel(1);
    let recipient = recipient.cloned();
    let read = spawn_blocking(move || write(source, recipient.as_ref(), sender));
    let uploaded = bucket.upload(key, pieces, stop).await;
    let read = joined(read).await;
    let sent = match (uploaded, read) {
        (Ok(()), read) | (Err(Error::Cut), read) => read?,
        (Err(error), _) => return Err(error),
    };
    verified(bucket, key, sent).await
}

/// Passes on what is to be stored; what is not whole has no end.
fn write<F>(source: Source<F>, recipient: Option<&Recipient>, to: mpsc::Sender<Piece>) -> Result<Stored, Error>
where
    F: FnOnce(&mut dyn Write) -> Result<(), Error>,
{
    let Source { name, size, write } = source;
    let size = part_size(seal::size(size, recipient)) as usize;
    let mut sealed = Sealed::new(Parts { size, to, part: Vec::new(), sum: Sha256::new(), total: 0 }, recipient)?;
    write(&mut sealed)?;
    let mut parts = sealed.finish().map_err(|_| Error::Cut)?;
    parts.pass_on()?;
    parts.to.blocking_send(Piece::End).map_err(|_| Error::Cut)?;
    Ok(Stored { name, size: parts.total, sha256: crate::runtime::key::hex(&parts.sum.finalize()) })
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

/// Says that all of it is there, as the last thing.
pub(crate) async fn complete(bucket: &Bucket, entry: &Entry) -> Result<(), Error> {
    let key = catalog::entry_key(&entry.name);
    bucket.put(&key, serde_json::to_vec(entry).map_err(|error| Error::Settings(error.to_string()))?).await?;
    match catalog::one(bucket, &entry.name).await? {
        Some(found) if found == *entry => Ok(()),
        _ => Err(Error::NotAsWritten { place: bucket.place(&key), problem: "its text differs" }),
    }
}

/// No more than politeness after a failure: what it cannot take away is no dump, and goes a day later. What says that it is one goes
/// first.
pub(crate) async fn withdraw(bucket: &Bucket, entry_key: &str, keys: &[String]) {
    if bucket.delete(entry_key).await.is_ok() {
        for key in keys {
            let _ = bucket.delete(key).await;
        }
    }
}
