//! The storage: one bucket, below one prefix. An **effect**.
//!
//! However large an object is, only a few parts of it are in memory. A request covers one part, so a lost connection repeats only
//! that part.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use jiff::Timestamp;
use object_store::{
    BackoffConfig, Certificate, ClientOptions, MultipartUpload, ObjectStore, ObjectStoreExt as _, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::{
    error::Error,
    settings::{Endpoint, Hidden, Place, Prefix},
};
use crate::platform::{key::hex, panic::joined};

/// Smallest part that is sent or read: S3 accepts parts below 5 MiB only at the end.
const PART: u64 = 8 << 20;
/// S3's limit of parts of one object.
const PARTS: u64 = 10_000;
/// How many parts are in flight at the same time.
const AT_ONCE: usize = 3;
const CONNECT: Duration = Duration::from_secs(10);
/// Limit of an entry's size, which is far smaller.
const SMALL: u64 = 1 << 20;
/// Approximate memory limit for a listing; hourly dumps of ten years need half of it.
const LIST: usize = 256 << 20;

#[derive(Debug)]
pub(crate) struct Bucket {
    storage: Arc<AmazonS3>,
    /// For messages.
    name: String,
    prefix: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Object {
    /// Without the prefix.
    pub key: String,
    pub size: u64,
    pub modified: Timestamp,
}

/// The pieces in which an object is written.
pub(crate) enum Piece {
    Part(Vec<u8>),
    /// If it never comes, the object is incomplete and is not written.
    End,
}

/// The part size with which an object of this size stays within S3's limit of parts.
pub(crate) fn part_size(whole: u64) -> u64 {
    PART.max((whole / (PARTS - 1) + 1).next_multiple_of(1 << 20))
}

/// How to reach a bucket.
#[derive(Debug)]
pub(crate) struct Access<'a> {
    pub endpoint: &'a Endpoint,
    pub bucket: &'a str,
    pub prefix: &'a Prefix,
    pub region: &'a str,
    pub access_key_id: Hidden,
    pub secret_access_key: Hidden,
    /// PEM certificates that are trusted in addition to the system's, and where they come from.
    pub certificates: Option<(String, Vec<u8>)>,
    /// How long a failed request is retried.
    pub retry_timeout: Duration,
    /// How long one request may take.
    pub timeout: Duration,
}

impl Bucket {
    /// With the credentials from the environment.
    pub(super) fn open(place: &Place) -> Result<Bucket, Error> {
        let Place { endpoint, bucket, prefix, region, ca_file, retry_timeout, timeout } = place;
        let certificates = match ca_file {
            None => None,
            Some(file) => Some((file.display().to_string(), std::fs::read(file).map_err(Error::file("read", file))?)),
        };
        Bucket::connect(Access {
            endpoint,
            bucket,
            prefix,
            region,
            access_key_id: Hidden::variable("AWS_ACCESS_KEY_ID")?,
            secret_access_key: Hidden::variable("AWS_SECRET_ACCESS_KEY")?,
            certificates,
            retry_timeout: *retry_timeout,
            timeout: *timeout,
        })
    }

    pub(crate) fn connect(access: Access<'_>) -> Result<Bucket, Error> {
        // Dependencies may enable other providers; ring is the one in use.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut options =
            ClientOptions::new().with_allow_http(true).with_timeout(access.timeout).with_connect_timeout(CONNECT);
        if let Some((of, pem)) = &access.certificates {
            let certificates = Certificate::from_pem_bundle(pem).ok().filter(|certificates| !certificates.is_empty());
            let none = || Error::Settings(format!("{of}: a PEM file with certificates is expected"));
            for certificate in certificates.ok_or_else(none)? {
                options = options.with_root_certificate(certificate);
            }
        }
        let retry = RetryConfig {
            backoff: BackoffConfig::default(),
            max_retries: if access.retry_timeout.is_zero() { 0 } else { usize::MAX },
            retry_timeout: access.retry_timeout,
        };
        let storage = AmazonS3Builder::new()
            .with_endpoint(&access.endpoint.0)
            .with_bucket_name(access.bucket)
            .with_region(access.region)
            .with_access_key_id(access.access_key_id.reveal())
            .with_secret_access_key(access.secret_access_key.reveal())
            // Every storage supports path-style requests, and a certificate for one host name is enough.
            .with_virtual_hosted_style_request(false)
            // Not every storage supports bulk deletion.
            .with_disable_bulk_delete(true)
            .with_client_options(options)
            .with_retry(retry)
            .build()
            .map_err(|error| Error::Settings(format!("cannot set up the storage client: {error}")))?;
        Ok(Bucket { storage: Arc::new(storage), name: access.bucket.to_owned(), prefix: access.prefix.0.clone() })
    }

    /// The URL of an object, for messages.
    pub(crate) fn place(&self, key: &str) -> String {
        format!("s3://{}/{}/{key}", self.name, self.prefix)
    }

    fn path(&self, key: &str) -> Path {
        Path::from(format!("{}/{key}", self.prefix))
    }

    fn failed(&self, operation: &'static str, key: &str) -> impl FnOnce(object_store::Error) -> Error + use<> {
        Error::storage(operation, self.place(key))
    }

    pub(crate) async fn list(&self) -> Result<Vec<Object>, Error> {
        let below = format!("{}/", self.prefix);
        let listed = self.storage.list(Some(&Path::from(self.prefix.as_str())));
        let listed = listed.try_filter_map(async |found| {
            let key = found.location.as_ref().strip_prefix(&below).map(str::to_owned);
            let modified = Timestamp::from_second(found.last_modified.timestamp()).unwrap_or_default();
            Ok(key.map(|key| Object { key, size: found.size, modified }))
        });
        let mut listed = std::pin::pin!(listed);
        let (mut objects, mut taken) = (Vec::new(), 0);
        while let Some(object) = listed.try_next().await.map_err(self.failed("list", ""))? {
            taken += size_of::<Object>() + 2 * object.key.len();
            if taken > LIST {
                return Err(Error::TooMany { place: self.place(""), count: objects.len() });
            }
            objects.push(object);
        }
        Ok(objects)
    }

    /// A small object.
    pub(crate) async fn get(&self, key: &str) -> Result<Bytes, Error> {
        self.get_small(key).await.map_err(self.failed("read", key))
    }

    /// A small object, or `None` if it does not exist.
    pub(crate) async fn get_opt(&self, key: &str) -> Result<Option<Bytes>, Error> {
        match self.get_small(key).await {
            Ok(text) => Ok(Some(text)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", key)(error)),
        }
    }

    async fn get_small(&self, key: &str) -> object_store::Result<Bytes> {
        let found = self.storage.get(&self.path(key)).await?;
        // Entries are smaller, so this is something else. An empty text does not parse.
        if found.meta.size > SMALL {
            return Ok(Bytes::new());
        }
        found.bytes().await
    }

    pub(crate) async fn put(&self, key: &str, text: Vec<u8>) -> Result<(), Error> {
        self.storage.put(&self.path(key), text.into()).await.map(|_| ()).map_err(self.failed("write", key))
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<(), Error> {
        match self.storage.delete(&self.path(key)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", key)(error)),
        }
    }

    /// Writes an object from pieces. It exists only once all of them have arrived.
    pub(crate) async fn upload(
        &self,
        key: &str,
        mut pieces: mpsc::Receiver<Piece>,
        stop: &CancellationToken,
    ) -> Result<(), Error> {
        let first = match pieces.recv().await {
            Some(Piece::Part(first)) => first,
            Some(Piece::End) => return self.put(key, Vec::new()).await,
            None => return Err(Error::Cut),
        };
        let second = match pieces.recv().await {
            Some(Piece::Part(second)) => second,
            Some(Piece::End) => return self.put(key, first).await,
            None => return Err(Error::Cut),
        };
        let mut upload = self.storage.put_multipart(&self.path(key)).await.map_err(self.failed("write", key))?;
        let sent = tokio::select! {
            biased;
            () = stop.cancelled() => Err(Error::Stopped),
            sent = self.parts(key, upload.as_mut(), [first, second], pieces) => sent,
        };
        let written = match sent {
            Ok(()) => upload.complete().await.map(|_| ()).map_err(self.failed("write", key)),
            Err(error) => Err(error),
        };
        if written.is_err() {
            // Stored parts cost money. If this fails too, a lifecycle rule of the bucket has to remove them.
            let _ = upload.abort().await;
        }
        written
    }

    async fn parts(
        &self,
        key: &str,
        upload: &mut dyn MultipartUpload,
        first: [Vec<u8>; 2],
        mut pieces: mpsc::Receiver<Piece>,
    ) -> Result<(), Error> {
        let mut in_flight = JoinSet::new();
        for part in first {
            in_flight.spawn(upload.put_part(part.into()));
        }
        let mut ended = false;
        while !ended || !in_flight.is_empty() {
            if ended || in_flight.len() == AT_ONCE {
                match in_flight.join_next().await {
                    Some(Ok(sent)) => sent.map_err(self.failed("write", key))?,
                    Some(Err(panicked)) => std::panic::resume_unwind(panicked.into_panic()),
                    None => {}
                }
                continue;
            }
            match pieces.recv().await.ok_or(Error::Cut)? {
                Piece::Part(part) => _ = in_flight.spawn(upload.put_part(part.into())),
                Piece::End => ended = true,
            }
        }
        Ok(())
    }

    /// The size of an object, or `None` if it does not exist.
    pub(crate) async fn size(&self, key: &str) -> Result<Option<u64>, Error> {
        match self.storage.head(&self.path(key)).await {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.failed("read", key)(error)),
        }
    }

    /// Reads the first `size` bytes of an object, in order.
    pub(crate) async fn download(&self, key: &str, size: u64, to: &mpsc::Sender<Bytes>) -> Result<(), Error> {
        let path = self.path(key);
        let ranges = (0..size).step_by(PART as usize).map(|start| start..size.min(start + PART));
        let parts = ranges.map(|range| self.storage.get_range(&path, range));
        let mut parts = futures::stream::iter(parts).buffered(AT_ONCE);
        while let Some(part) = parts.next().await {
            to.send(part.map_err(self.failed("read", key))?).await.map_err(|_| Error::Cut)?;
        }
        Ok(())
    }

    /// The checksum of the first `size` bytes of an object, as they are read.
    pub(crate) async fn sum(&self, key: &str, size: u64) -> Result<String, Error> {
        let (sender, mut parts) = mpsc::channel::<Bytes>(1);
        let summed = tokio::task::spawn_blocking(move || {
            let mut sum = Sha256::new();
            while let Some(part) = parts.blocking_recv() {
                sum.update(&part);
            }
            hex(&sum.finalize())
        });
        let downloaded = self.download(key, size, &sender).await;
        drop(sender);
        let sum = joined(summed).await;
        downloaded.map(|()| sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_has_no_more_parts_than_s3_takes() {
        for (whole, size) in [(0, PART), (PART, PART), (70 << 30, PART), (100 << 30, 11 << 20), (5 << 40, 525 << 20)] {
            assert_eq!(part_size(whole), size, "{whole}");
            assert!(whole.div_ceil(part_size(whole)) <= PARTS);
        }
    }
}
