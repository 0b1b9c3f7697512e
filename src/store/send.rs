//! Streams an object into the bucket: encrypts it if there is a key, uploads it in parts and reads it back. An **effect**.

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
use crate::platform::panic::joined;

/// The data to be written.
pub(crate) struct Source<F> {
    /// The file's name, without the suffix of encrypted files.
    pub name: String,
    /// Estimated size; it may be exceeded by a few percent.
    pub size: u64,
    /// Writes all of it. If it fails, no object is created.
    pub write: F,
}

/// Writes an object and reads it back.
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

/// Passes on the data; [`Piece::End`] follows only if they are complete.
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
    Ok(Stored { name, size: parts.total, sha256: crate::platform::key::hex(&parts.sum.finalize()) })
}

/// Splits the data into parts of equal size.
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
        None => return Err(differs("it does not exist")),
        Some(size) if size != sent.size => return Err(differs("its size differs")),
        Some(_) => {}
    }
    match bucket.sum(key, sent.size).await? == sent.sha256 {
        true => Ok(sent),
        false => Err(differs("its checksum differs")),
    }
}

/// Marks the upload as complete, as its last step.
pub(crate) async fn complete(bucket: &Bucket, entry: &Entry) -> Result<(), Error> {
    let key = catalog::entry_key(&entry.name);
    bucket.put(&key, serde_json::to_vec(entry).map_err(|error| Error::Settings(error.to_string()))?).await?;
    match catalog::one(bucket, &entry.name).await? {
        Some(found) if found == *entry => Ok(()),
        _ => Err(Error::NotAsWritten { place: bucket.place(&key), problem: "its content differs" }),
    }
}

/// Best-effort cleanup after a failure: leftovers are not taken for a dump, and are removed a day later. The entry goes first, because
/// it declares the dump complete.
pub(crate) async fn withdraw(bucket: &Bucket, entry_key: &str, keys: &[String]) {
    if bucket.delete(entry_key).await.is_ok() {
        for key in keys {
            let _ = bucket.delete(key).await;
        }
    }
}
