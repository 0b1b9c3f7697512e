//! Caches charts: pulled once, identified by their digest, verified before each use (effect).
//!
//! When a chart version is first requested, it is pulled, compared with the digest that the repository lists, copied into a cache under
//! its SHA-256, and recorded in an index. From then on the record defines the version: an operator that restarts with the same cache
//! pulls nothing, a file that was tampered with is fetched again, and a version that has changed at its source is refused.
//!
//! ```text
//! <cache>/sha256/<digest>.tgz                           content
//! <cache>/index/<hash of the source>/<chart>-<version>  the digest, one line; `.signed` beside it is the same once its signature was verified
//! ```

use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use moka::future::Cache;
use semver::Version;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tempfile::{NamedTempFile, TempDir};
use tokio::{sync::Semaphore, task};
use tokio_util::sync::CancellationToken;

use super::archive;
use crate::{
    helm::{
        cli::{
            command::{ChartName, archive_name},
            error::HelmError,
            index::is_version,
        },
        source::ChartSource,
        values::with_registry,
    },
    platform::{clock, key::hex, panic::joined},
};

/// Size limit of a packaged chart, in bytes. The reference chart has 100 KiB.
pub(in crate::helm) const MAX_PACKED: u64 = 20 << 20;

const MAX_PULLS: usize = 2;

/// Ends the name of the record of a chart whose signature was verified. The other one is as operators without keyrings know it.
const SIGNED: &str = ".signed";

/// Number of packaged charts to keep, by last use. Others are pulled again when they are next installed.
const MAX_CHARTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Chart {
    pub name: ChartName,
    pub version: Version,
    /// The version of the app in the chart, in the chart's own words.
    pub app_version: Option<String>,
    /// The SHA-256 of the packaged chart, 64 hexadecimal digits.
    pub digest: String,
    pub path: PathBuf,
    /// True if its templates put `image.registry` before `image.repository`.
    pub has_image_registry: bool,
}

impl Chart {
    /// Returns values in the form that this chart reads: with `image.registry` apart from `image.repository`, or in it.
    pub(crate) fn values(&self, values: Value) -> Value {
        if self.has_image_registry { with_registry(values) } else { values }
    }
}

/// Says why a chart version is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChartError {
    #[error("cannot pull chart {chart} {version}: {source}")]
    Pull { chart: ChartName, version: Version, source: Box<HelmError> },
    #[error("chart {} does not exist", path.display())]
    NotFound { path: PathBuf },
    #[error("chart {chart} {version} is larger than {MAX_PACKED} bytes")]
    TooLarge { chart: ChartName, version: Version },
    #[error("chart {chart} {version} is refused: {source}")]
    Invalid { chart: ChartName, version: Version, source: archive::InvalidArchive },
    #[error("requested chart {chart} {version}, but got {found}")]
    WrongChart { chart: ChartName, version: Version, found: String },
    #[error("chart version {version} has changed at its source: its sha256 was {recorded} and is now {found}")]
    DigestChanged { version: Version, recorded: String, found: String },
    #[error(
        "chart {chart} {version} is refused: its archive has sha256 {found}, but the index of the chart repository lists \
         {listed}: nothing is installed; find out who replaced the archive, and restore it, or publish the change under a \
         new version"
    )]
    NotAsListed { chart: ChartName, version: Version, listed: String, found: String },
    #[error("cannot use the chart cache at {}", path.display())]
    Cache { path: PathBuf, source: io::Error },
}

/// A packaged chart in a directory of its own, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub path: PathBuf,
    /// Its SHA-256 according to the index of a chart repository, in lower case: more than one if it lists the version repeatedly, and
    /// none if it lists no digest. `None` for a registry: helm compares each layer with the digest in the manifest (oras' `ReadAll`).
    pub listed: Option<Vec<String>>,
    pub(in crate::helm) _dir: TempDir,
}

/// Pulls packaged charts: helm, or the fake in this module's tests.
pub(crate) trait Pull: Send + Sync {
    /// Pulls a chart. What is verified is its signature at most; [`PullThroughCache`] verifies the rest.
    fn pull(
        &self,
        source: &ChartSource,
        chart: &ChartName,
        version: &Version,
        cancel: &CancellationToken,
    ) -> impl Future<Output = Result<Pulled, HelmError>> + Send;

    /// Returns true if it pulls only charts with a valid signature, also from a directory.
    fn verifies(&self) -> bool;
}

/// Concurrent callers that request the same version share one pull. One of them drives it; if that caller goes away, the next takes
/// over, and without callers the helm process is dropped.
pub(crate) struct PullThroughCache<P> {
    disk: Arc<Disk>,
    helm: P,
    shutdown: CancellationToken,
    ready: Cache<Version, Arc<Chart>>,
    pulls: Semaphore,
}

impl<P: Pull> PullThroughCache<P> {
    /// Makes a cache in a directory, which it creates when it first needs it. Pulls end when `shutdown` is cancelled.
    pub(crate) fn new(
        helm: P,
        source: ChartSource,
        chart: ChartName,
        dir: PathBuf,
        shutdown: CancellationToken,
    ) -> Self {
        let (ready, pulls) = (Cache::builder().build(), Semaphore::new(MAX_PULLS));
        let verifies = helm.verifies();
        Self { disk: Arc::new(Disk { source, chart, dir, verifies }), helm, shutdown, ready, pulls }
    }

    /// Returns the chart in this version, with its content verified.
    ///
    /// It is pulled if necessary; concurrent callers wait for the same pull. Failures are not cached.
    pub(crate) async fn get(&self, version: &Version) -> Result<Arc<Chart>, Arc<ChartError>> {
        if let Some(chart) = self.ready.get(version).await {
            let expected = Arc::clone(&chart);
            if self.with_disk(move |disk| disk.intact(&expected.digest)).await.is_some() {
                return Ok(chart);
            }
            tracing::warn!(chart = %chart.name, %version, "the cached chart is missing or has been changed; fetching it again");
            self.ready.invalidate(version).await;
        }
        self.ready.try_get_with_by_ref(version, async { self.obtain(version).await.map(Arc::new) }).await
    }

    /// Returns a version that was obtained before, for which [`PullThroughCache::get`] only has to verify the content.
    pub(crate) async fn cached(&self, version: &Version) -> Option<Arc<Chart>> {
        self.ready.get(version).await
    }

    /// Forgets a version, so that it is fetched from the source again.
    pub(crate) async fn forget(&self, version: &Version) {
        self.ready.invalidate(version).await;
        let forgotten = version.clone();
        if let Err(error) = self.with_disk(move |disk| fs::remove_file(disk.record(&forgotten))).await
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%version, %error, "cannot remove the record of a chart version");
        }
    }

    async fn obtain(&self, version: &Version) -> Result<Chart, ChartError> {
        let wanted = version.clone();
        if let Some(chart) = self.with_disk(move |disk| disk.recorded_chart(&wanted)).await? {
            return Ok(chart);
        }
        let pulled;
        let (file, listed) = match self.disk.source.file(&archive_name(&self.disk.chart, version)) {
            Some(path) if !self.disk.verifies => (path, None),
            Some(path) if !path.exists() => return Err(ChartError::NotFound { path }),
            _ => {
                // Each pull is a process with the whole index of a repository in memory.
                let _one_of_few = self.pulls.acquire().await;
                let Disk { source, chart, .. } = &*self.disk;
                pulled = self.helm.pull(source, chart, version, &self.shutdown).await.map_err(|source| {
                    let (chart, version) = (chart.clone(), version.clone());
                    ChartError::Pull { chart, version, source: Box::new(source) }
                })?;
                (pulled.path.clone(), pulled.listed.clone())
            }
        };
        let wanted = version.clone();
        self.with_disk(move |disk| disk.admit(&file, &wanted, listed.as_deref())).await
    }

    async fn with_disk<T: Send + 'static>(&self, work: impl FnOnce(&Disk) -> T + Send + 'static) -> T {
        let disk = Arc::clone(&self.disk);
        joined(task::spawn_blocking(move || work(&disk))).await
    }
}

struct Disk {
    source: ChartSource,
    chart: ChartName,
    dir: PathBuf,
    /// Only charts whose signatures were verified are of use.
    verifies: bool,
}

impl Disk {
    fn content(&self, digest: &str) -> PathBuf {
        self.dir.join("sha256").join(format!("{digest}.tgz"))
    }

    /// Returns the path of the record. The source is part of it, because a version identifies a chart only together with its source.
    fn record(&self, version: &Version) -> PathBuf {
        let source = &sha256(self.source.to_string().as_bytes())[..16];
        self.dir.join("index").join(source).join(format!("{}-{version}", self.chart))
    }

    /// Returns the path of the record of a signature.
    fn signature(&self, version: &Version) -> PathBuf {
        let mut path = self.record(version).into_os_string();
        path.push(SIGNED);
        path.into()
    }

    fn recorded(&self, path: PathBuf) -> Result<Option<String>, ChartError> {
        match fs::read_to_string(&path) {
            // After a crash of the machine, the file may contain something other than a digest.
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|digest| is_digest(digest))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cache_error(path, error)),
        }
    }

    /// Reads the content of this digest, unless it is missing or has been changed.
    fn intact(&self, digest: &str) -> Option<Vec<u8>> {
        let path = self.content(digest);
        let content = bounded(&path).ok().flatten().filter(|content| sha256(content) == digest)?;
        // Records the last use. It may fail, because the cache can belong to another user.
        let _ = File::open(path).and_then(|file| file.set_modified(clock::now().into()));
        Some(content)
    }

    fn recorded_chart(&self, version: &Version) -> Result<Option<Chart>, ChartError> {
        let Some(digest) = self.recorded(self.record(version))? else { return Ok(None) };
        // One from the time before there was a keyring is pulled again, with its signature.
        if self.verifies && self.recorded(self.signature(version))?.as_ref() != Some(&digest) {
            return Ok(None);
        }
        self.intact(&digest).map(|content| self.chart(version, digest, &content)).transpose()
    }

    fn admit(&self, file: &Path, version: &Version, listed: Option<&[String]>) -> Result<Chart, ChartError> {
        let content = bounded(file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ChartError::NotFound { path: file.to_owned() },
            _ => cache_error(file.to_owned(), error),
        })?;
        let too_large = || ChartError::TooLarge { chart: self.chart.clone(), version: version.clone() };
        let content = content.ok_or_else(too_large)?;
        let digest = sha256(&content);
        match (self.recorded(self.record(version))?, listed) {
            (Some(recorded), _) if recorded != digest => {
                return Err(ChartError::DigestChanged { version: version.clone(), recorded, found: digest });
            }
            (None, Some([])) => {
                let chart = &self.chart;
                tracing::warn!(%chart, %version, "the chart repository lists no digest: the archive is accepted as it is");
            }
            (None, Some(listed)) if !listed.contains(&digest) => {
                let (chart, version, listed) = (self.chart.clone(), version.clone(), listed.join(" or "));
                return Err(ChartError::NotAsListed { chart, version, listed, found: digest });
            }
            _ => {}
        }
        let chart = self.chart(version, digest, &content)?;
        write(&chart.path, &content)?;
        // Last, because a record promises that the content was verified.
        let record = format!("{}\n", chart.digest);
        write(&self.record(version), record.as_bytes())?;
        if self.verifies {
            write(&self.signature(version), record.as_bytes())?;
        }
        self.prune(&chart.path)
            .unwrap_or_else(|error| tracing::warn!(%error, "cannot remove old charts from the cache"));
        Ok(chart)
    }

    /// Removes the content of all charts except this one and the most recently used. The records of the versions are kept.
    fn prune(&self, new: &Path) -> io::Result<()> {
        let mut files = fs::read_dir(self.dir.join("sha256"))?.collect::<io::Result<Vec<_>>>()?;
        files.sort_by_cached_key(|file| file.metadata().and_then(|metadata| metadata.modified()).ok());
        let mut old = files.iter().rev().map(fs::DirEntry::path).filter(|path| path != new).skip(MAX_CHARTS - 1);
        old.try_for_each(fs::remove_file)
    }

    fn chart(&self, version: &Version, digest: String, content: &[u8]) -> Result<Chart, ChartError> {
        let (chart, version) = (self.chart.clone(), version.clone());
        match archive::inspect(chart.as_str(), content) {
            Err(source) => Err(ChartError::Invalid { chart, version, source }),
            Ok(archive::ChartMetadata { name, version: found, app_version, has_image_registry })
                if name == chart.as_str() && is_version(&found, &version) =>
            {
                let path = self.content(&digest);
                Ok(Chart { name: chart, version, app_version, digest, path, has_image_registry })
            }
            Ok(archive::ChartMetadata { name, version: found, .. }) => {
                let found = format!("{name} {found}").chars().take(200).collect();
                Err(ChartError::WrongChart { chart, version, found })
            }
        }
    }
}

/// Reads a file's content. Returns `None` if it is too large.
fn bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_PACKED + 1).read_to_end(&mut content)?;
    Ok(Some(content).filter(|content| content.len() as u64 <= MAX_PACKED))
}

/// Replaces a file atomically, so that operators can share a cache.
fn write(path: &Path, content: &[u8]) -> Result<(), ChartError> {
    let replace = |dir: &Path| {
        fs::create_dir_all(dir)?;
        let mut file = NamedTempFile::new_in(dir)?;
        file.write_all(content)?;
        file.persist(path).map_err(|error| error.error)
    };
    let dir = path.parent().unwrap_or(path);
    replace(dir).map(drop).map_err(|error| cache_error(path.to_owned(), error))
}

fn cache_error(path: PathBuf, source: io::Error) -> ChartError {
    ChartError::Cache { path, source }
}

fn sha256(content: &[u8]) -> String {
    hex(&Sha256::digest(content))
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests;
