//! Charts: pulled once, identified by their digest, checked before each use (effect).
//!
//! A chart version is pulled when it is first asked for, copied into a cache under its SHA-256, and recorded in an index.
//! From then on the record decides what the version *is*: an operator that restarts with the same cache pulls nothing, a
//! file that was tampered with is fetched again, and a version that its source has changed meanwhile is refused.
//!
//! ```text
//! <cache>/sha256/<digest>.tgz                           content
//! <cache>/index/<hash of the source>/<chart>-<version>  the digest, one line
//! ```

use std::{
    collections::HashMap,
    fmt,
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use semver::Version;
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tokio::task;
use tokio_util::sync::CancellationToken;

use super::{ChartName, ChartSource, HelmApi, HelmError, archive};

pub use archive::InvalidArchive;

/// The largest packaged chart, in bytes. The reference chart has 100 KiB.
pub const MAX_PACKED: u64 = 20 << 20;

/// A chart in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chart {
    /// Its name.
    pub name: ChartName,
    /// Its version.
    pub version: Version,
    /// The version of the app it installs, as the chart puts it.
    pub app_version: Option<String>,
    /// The Kubernetes versions it is for, as the chart puts it.
    pub kube_version: Option<String>,
    /// The SHA-256 of the packaged chart, 64 hexadecimal digits.
    pub digest: String,
    /// The packaged chart.
    pub path: PathBuf,
}

/// A chart version cannot be had. It can be cloned because everybody who waits for the same pull gets the same error.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ChartError {
    /// Helm could not pull it.
    #[error("cannot pull chart {chart} {version}: {source}")]
    Pull {
        /// The chart.
        chart: ChartName,
        /// Its version.
        version: Version,
        /// Why.
        source: Arc<HelmError>,
    },
    /// The source, a directory, does not have it.
    #[error("there is no chart {}", path.display())]
    NotFound {
        /// Where it should be.
        path: PathBuf,
    },
    /// The packaged chart is larger than [`MAX_PACKED`].
    #[error("chart {chart} {version} is larger than {MAX_PACKED} bytes")]
    TooLarge {
        /// The chart.
        chart: ChartName,
        /// Its version.
        version: Version,
    },
    /// It is not a packaged chart.
    #[error("chart {chart} {version} is refused: {source}")]
    Invalid {
        /// The chart.
        chart: ChartName,
        /// Its version.
        version: Version,
        /// Why.
        source: Arc<InvalidArchive>,
    },
    /// The archive is another chart, or another version of it.
    #[error("asked for chart {chart} {version}, but got {found}")]
    WrongChart {
        /// The chart.
        chart: ChartName,
        /// Its version.
        version: Version,
        /// The name and version the archive has.
        found: String,
    },
    /// The source has replaced the version by something else since it was first used.
    #[error("chart version {version} has changed at its source: its sha256 was {recorded} and is now {found}")]
    DigestChanged {
        /// The version.
        version: Version,
        /// The digest it had when it was first used.
        recorded: String,
        /// The digest it has now.
        found: String,
    },
    /// The cache cannot be read or written.
    #[error("cannot use the chart cache at {}", path.display())]
    Cache {
        /// The file or directory concerned.
        path: PathBuf,
        /// Why.
        source: Arc<io::Error>,
    },
}

type Fetch = Shared<BoxFuture<'static, Result<Arc<Chart>, ChartError>>>;
type WeakFetch = WeakShared<BoxFuture<'static, Result<Arc<Chart>, ChartError>>>;

/// The versions of one chart.
#[derive(Clone)]
pub struct ChartCache {
    shelf: Arc<Shelf>,
    helm: Arc<dyn HelmApi>,
    shutdown: CancellationToken,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    ready: HashMap<Version, Arc<Chart>>,
    /// Weak, so that a fetch lives exactly as long as somebody waits for it: when all of them are dropped, so is the helm
    /// process behind it, and when it fails, the next to come starts another.
    fetches: HashMap<Version, WeakFetch>,
}

impl fmt::Debug for ChartCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChartCache").field("shelf", &self.shelf).finish_non_exhaustive()
    }
}

impl ChartCache {
    /// A cache in a directory, which is made when it is first needed. Pulls end when `shutdown` is cancelled.
    pub fn new(
        helm: Arc<dyn HelmApi>,
        source: ChartSource,
        chart: ChartName,
        dir: PathBuf,
        shutdown: CancellationToken,
    ) -> Self {
        Self { shelf: Arc::new(Shelf { source, chart, dir }), helm, shutdown, state: Arc::default() }
    }

    /// The chart in a version, its content verified just now.
    ///
    /// It is pulled if it never was; everybody who asks for it meanwhile waits for the same pull. Failures are not kept.
    ///
    /// # Errors
    ///
    /// When the version cannot be pulled, is not what it should be, or cannot be kept.
    pub async fn get(&self, version: &Version) -> Result<Arc<Chart>, ChartError> {
        let ready = self.state().ready.get(version).cloned();
        if let Some(chart) = ready {
            let (shelf, expected) = (Arc::clone(&self.shelf), Arc::clone(&chart));
            if blocking(move || shelf.holds(&expected.digest)).await {
                return Ok(chart);
            }
            tracing::warn!(chart = %chart.name, %version, "the cached chart is missing or has been changed; fetching it again");
            self.state().ready.remove(version);
        }
        let fetch = self.fetch(version);
        fetch.await
    }

    /// Whether a version has been had already, so that [`ChartCache::get`] will hardly take time.
    #[must_use]
    pub fn is_at_hand(&self, version: &Version) -> bool {
        self.state().ready.contains_key(version)
    }

    /// Forgets what a version is, so that the source is asked again.
    pub async fn forget(&self, version: &Version) {
        self.state().ready.remove(version);
        let record = self.shelf.record(version);
        let removed = blocking(move || fs::remove_file(record)).await;
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(%version, %error, "cannot forget what a chart version was");
            }
            _ => {}
        }
    }

    fn fetch(&self, version: &Version) -> Fetch {
        let mut state = self.state();
        if let Some(fetch) = state.fetches.get(version).and_then(WeakShared::upgrade) {
            return fetch;
        }
        let (cache, wanted) = (self.clone(), version.clone());
        let fetch = async move {
            let chart = Arc::new(cache.obtain(&wanted).await?);
            cache.state().ready.insert(wanted, Arc::clone(&chart));
            Ok(chart)
        };
        let fetch = fetch.boxed().shared();
        state.fetches.retain(|_, fetch| fetch.upgrade().is_some());
        state.fetches.extend(fetch.downgrade().map(|weak| (version.clone(), weak)));
        fetch
    }

    async fn obtain(&self, version: &Version) -> Result<Chart, ChartError> {
        let (shelf, wanted) = (Arc::clone(&self.shelf), version.clone());
        if let Some(chart) = blocking(move || shelf.recorded_chart(&wanted)).await? {
            return Ok(chart);
        }
        let pulled;
        let file = match self.shelf.source.file(&format!("{}-{version}.tgz", self.shelf.chart)) {
            Some(path) => path,
            None => {
                let pull = self.helm.pull(&self.shelf.source, &self.shelf.chart, version, &self.shutdown);
                pulled = pull.await.map_err(|source| ChartError::Pull {
                    chart: self.shelf.chart.clone(),
                    version: version.clone(),
                    source: Arc::new(source),
                })?;
                pulled.path.clone()
            }
        };
        let (shelf, wanted) = (Arc::clone(&self.shelf), version.clone());
        blocking(move || shelf.admit(&file, &wanted)).await
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match task::spawn_blocking(work).await {
        Ok(done) => done,
        // It is never aborted, so it panicked.
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    }
}

/// The files of the cache.
#[derive(Debug)]
struct Shelf {
    source: ChartSource,
    chart: ChartName,
    dir: PathBuf,
}

impl Shelf {
    fn content(&self, digest: &str) -> PathBuf {
        self.dir.join("sha256").join(format!("{digest}.tgz"))
    }

    /// A version means something only together with where it is from.
    fn record(&self, version: &Version) -> PathBuf {
        let source = &sha256(self.source.to_string().as_bytes())[..16];
        self.dir.join("index").join(source).join(format!("{}-{version}", self.chart))
    }

    fn recorded(&self, version: &Version) -> Result<Option<String>, ChartError> {
        let path = self.record(version);
        match fs::read_to_string(&path) {
            // Anything but a digest is what a crash of the machine left of one.
            Ok(text) => Ok(Some(text.trim().to_owned()).filter(|digest| is_digest(digest))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(cache_error(path, error)),
        }
    }

    fn holds(&self, digest: &str) -> bool {
        matches!(bounded(&self.content(digest)), Ok(Some(content)) if sha256(&content) == digest)
    }

    /// The chart as it was recorded, if its content is there and intact.
    fn recorded_chart(&self, version: &Version) -> Result<Option<Chart>, ChartError> {
        let Some(digest) = self.recorded(version)? else { return Ok(None) };
        match bounded(&self.content(&digest)) {
            Ok(Some(content)) if sha256(&content) == digest => self.chart(version, digest, &content).map(Some),
            _ => Ok(None),
        }
    }

    /// Checks a packaged chart and puts it on the shelf.
    fn admit(&self, file: &Path, version: &Version) -> Result<Chart, ChartError> {
        let content = bounded(file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ChartError::NotFound { path: file.to_owned() },
            _ => cache_error(file.to_owned(), error),
        })?;
        let content =
            content.ok_or_else(|| ChartError::TooLarge { chart: self.chart.clone(), version: version.clone() })?;
        let found = sha256(&content);
        if let Some(recorded) = self.recorded(version)?.filter(|recorded| *recorded != found) {
            return Err(ChartError::DigestChanged { version: version.clone(), recorded, found });
        }
        let chart = self.chart(version, found, &content)?;
        write(&chart.path, &content)?;
        // Last: a record promises that the content has been checked.
        write(&self.record(version), format!("{}\n", chart.digest).as_bytes())?;
        Ok(chart)
    }

    fn chart(&self, version: &Version, digest: String, content: &[u8]) -> Result<Chart, ChartError> {
        let (chart, version) = (self.chart.clone(), version.clone());
        match archive::inspect(chart.as_str(), content) {
            Err(source) => Err(ChartError::Invalid { chart, version, source: Arc::new(source) }),
            // Some charts write their version with a v, which helm takes for the same version.
            Ok(metadata)
                if metadata.name == chart.as_str()
                    && metadata
                        .version
                        .trim_start_matches('v')
                        .parse()
                        .is_ok_and(|found: Version| found == version) =>
            {
                let path = self.content(&digest);
                let archive::Metadata { name: _, version: _, app_version, kube_version } = metadata;
                Ok(Chart { name: chart, version, app_version, kube_version, digest, path })
            }
            Ok(archive::Metadata { name, version: other, .. }) => {
                let found = format!("{name} {other}").chars().take(200).collect();
                Err(ChartError::WrongChart { chart, version, found })
            }
        }
    }
}

/// A file's content; `None` if that is too large.
fn bounded(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    File::open(path)?.take(MAX_PACKED + 1).read_to_end(&mut content)?;
    Ok(Some(content).filter(|content| content.len() as u64 <= MAX_PACKED))
}

/// Replaces a file in one step, so that two operators may share a cache.
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
    ChartError::Cache { path, source: Arc::new(source) }
}

fn sha256(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;
    use tempfile::TempDir;

    use super::*;
    use crate::helm::{
        HelmFailure, Pulled, Verb,
        archive::tests::{chart, packed},
        fake::{Call, FakeHelm},
    };

    const REPOSITORY: &str = "https://charts.example.com";

    fn version(text: &str) -> Version {
        text.parse().unwrap()
    }

    fn cache(helm: &Arc<FakeHelm>, dir: &TempDir) -> ChartCache {
        from(helm, dir, REPOSITORY)
    }

    fn from(helm: &Arc<FakeHelm>, dir: &TempDir, source: &str) -> ChartCache {
        ChartCache::new(
            helm.clone(),
            source.parse().unwrap(),
            "nextcloud".parse().unwrap(),
            dir.path().join("cache"),
            CancellationToken::new(),
        )
    }

    fn serving(content: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Arc<FakeHelm> {
        Arc::new(FakeHelm::default().pulling(move |_, _, version| {
            let pulled = Pulled::new(&format!("nextcloud-{version}.tgz"), &content(&version.to_string())).unwrap();
            Ok(pulled)
        }))
    }

    fn good() -> Arc<FakeHelm> {
        serving(|version| chart("nextcloud", version))
    }

    #[tokio::test]
    async fn a_version_is_pulled_once_even_by_many_at_a_time_and_across_restarts() {
        let (helm, dir) = (good(), tempfile::tempdir().unwrap());
        let first = cache(&helm, &dir);
        let v = version("5.5.2");
        let charts = join_all((0..20).map(|_| first.get(&v))).await;
        let chart = charts[0].clone().unwrap();
        assert!(charts.iter().all(|other| *other.as_ref().unwrap() == chart));
        assert_eq!((chart.name.as_str(), chart.app_version.as_deref()), ("nextcloud", Some("29.0.4")));
        assert_eq!(sha256(&fs::read(&chart.path).unwrap()), chart.digest);
        first.get(&v).await.unwrap();
        assert_eq!(helm.calls().len(), 1);

        assert_eq!(cache(&helm, &dir).get(&v).await.unwrap(), chart);
        assert_eq!(helm.calls().len(), 1);
        cache(&helm, &dir).get(&version("6.0.0")).await.unwrap();
        assert_eq!(helm.calls().len(), 2);
    }

    #[tokio::test]
    async fn a_version_of_another_source_is_another_chart() {
        let (helm, dir) = (good(), tempfile::tempdir().unwrap());
        from(&helm, &dir, REPOSITORY).get(&version("5.5.2")).await.unwrap();
        from(&helm, &dir, "https://mirror.example.com").get(&version("5.5.2")).await.unwrap();
        assert_eq!(helm.calls().len(), 2);
    }

    #[tokio::test]
    async fn a_failure_is_shared_by_those_who_wait() {
        let helm = Arc::new(FakeHelm::default().hanging());
        let dir = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let cache = ChartCache { shutdown: shutdown.clone(), ..cache(&helm, &dir) };
        let v = version("5.5.2");
        let waiting = join_all((0..5).map(|_| cache.get(&v)));
        // helm is asked while all five wait, and answers after that.
        let ended = async {
            helm.called(1).await;
            shutdown.cancel();
        };
        let (failures, ()) = futures::join!(waiting, ended);
        assert!(failures.iter().all(|failure| matches!(failure, Err(ChartError::Pull { .. }))));
        assert_eq!(helm.calls().len(), 1);
    }

    #[tokio::test]
    async fn a_failure_is_forgotten() {
        let helm = Arc::new(FakeHelm::default().pulling(|_, _, _| {
            Err(HelmError::Failed {
                verb: Verb::Pull,
                failure: HelmFailure::RepositoryUnavailable,
                message: "down".into(),
            })
        }));
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(&helm, &dir);
        let v = version("5.5.2");
        assert_eq!(cache.get(&v).await.unwrap_err().to_string(), "cannot pull chart nextcloud 5.5.2: down");
        cache.get(&v).await.unwrap_err();
        assert_eq!(helm.calls().len(), 2);
    }

    #[tokio::test]
    async fn a_tampered_file_is_never_used() {
        let (helm, dir) = (good(), tempfile::tempdir().unwrap());
        let running = cache(&helm, &dir);
        let intact = running.get(&version("5.5.2")).await.unwrap();
        let content = fs::read(&intact.path).unwrap();
        for restarted in [false, true] {
            fs::write(&intact.path, chart("nextcloud", "5.5.2-evil")).unwrap();
            let cache = if restarted { cache(&helm, &dir) } else { running.clone() };
            assert_eq!(cache.get(&version("5.5.2")).await.unwrap(), intact);
            assert_eq!(fs::read(&intact.path).unwrap(), content);
        }
        assert_eq!(helm.calls().len(), 3);
        fs::remove_file(&intact.path).unwrap();
        assert_eq!(running.get(&version("5.5.2")).await.unwrap(), intact);
    }

    #[tokio::test]
    async fn a_version_that_changed_at_its_source_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let original = cache(&good(), &dir).get(&version("5.5.2")).await.unwrap();
        fs::remove_file(&original.path).unwrap();
        let moved = serving(|version| {
            packed(&[("nextcloud/Chart.yaml", &format!("name: nextcloud\nversion: {version}\ndescription: other\n"))])
        });
        let error = cache(&moved, &dir).get(&version("5.5.2")).await.unwrap_err();
        assert!(matches!(error, ChartError::DigestChanged { recorded, .. } if recorded == original.digest));
        assert!(!original.path.exists());
    }

    #[tokio::test]
    async fn a_chart_must_be_the_one_asked_for() {
        let rows: [(Vec<u8>, &str); 4] = [
            (chart("nextcloud", "5.5.3"), "asked for chart nextcloud 5.5.2, but got nextcloud 5.5.3"),
            (
                packed(&[("nextcloud/Chart.yaml", "name: other\nversion: 5.5.2\n")]),
                "asked for chart nextcloud 5.5.2, but got other 5.5.2",
            ),
            (
                chart("other", "5.5.2"),
                "chart nextcloud 5.5.2 is refused: its entry \"other/Chart.yaml\" is not within nextcloud/",
            ),
            (b"<html>".to_vec(), "chart nextcloud 5.5.2 is refused: it is not a gzipped tar archive"),
        ];
        for (content, message) in rows {
            let dir = tempfile::tempdir().unwrap();
            let error = cache(&serving(move |_| content.clone()), &dir).get(&version("5.5.2")).await.unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(!dir.path().join("cache").exists());
        }
        let huge = serving(|_| vec![0; usize::try_from(MAX_PACKED).unwrap() + 1]);
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(cache(&huge, &dir).get(&version("5.5.2")).await, Err(ChartError::TooLarge { .. })));
        let prefixed = serving(|version| chart("nextcloud", &format!("v{version}")));
        cache(&prefixed, &dir).get(&version("5.5.2")).await.unwrap();
    }

    #[tokio::test]
    async fn a_directory_needs_no_helm() {
        let (helm, dir) = (good(), tempfile::tempdir().unwrap());
        let cache = from(&helm, &dir, dir.path().to_str().unwrap());
        let missing = cache.get(&version("5.5.2")).await.unwrap_err();
        assert!(matches!(missing, ChartError::NotFound { path } if path == dir.path().join("nextcloud-5.5.2.tgz")));
        fs::write(dir.path().join("nextcloud-5.5.2.tgz"), chart("nextcloud", "5.5.2")).unwrap();
        cache.get(&version("5.5.2")).await.unwrap();
        assert_eq!(helm.calls(), Vec::<Call>::new());
    }

    #[tokio::test]
    async fn half_a_record_is_no_record() {
        let (helm, dir) = (good(), tempfile::tempdir().unwrap());
        let first = cache(&helm, &dir);
        first.get(&version("5.5.2")).await.unwrap();
        fs::write(first.shelf.record(&version("5.5.2")), "").unwrap();
        cache(&helm, &dir).get(&version("5.5.2")).await.unwrap();
        assert_eq!(helm.calls().len(), 2);
    }

    #[tokio::test]
    async fn dropping_everybody_who_waits_ends_the_pull() {
        let dir = tempfile::tempdir().unwrap();
        let helm = Arc::new(FakeHelm::default().hanging());
        let cache = cache(&helm, &dir);
        let v = version("5.5.2");
        for pulls in 1..=2 {
            tokio::select! {
                biased;
                result = cache.get(&v) => panic!("{result:?}"),
                () = helm.called(pulls) => {}
            }
        }
    }
}
