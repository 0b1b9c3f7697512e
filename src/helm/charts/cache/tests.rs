use futures::future::join_all;
use tempfile::TempDir;
use tokio::sync::watch;

use super::*;
use crate::helm::{
    HelmFailure, Verb,
    charts::archive::tests::{chart, packed},
};

type Script = Box<dyn Fn(&Version) -> Result<Pulled, HelmError> + Send + Sync>;

/// Counts the pulls, and responds as scripted; without a script, a pull runs until it is cancelled.
#[derive(Default)]
struct FakeHelm {
    pulls: watch::Sender<usize>,
    script: Option<Script>,
    verifies: bool,
}

impl FakeHelm {
    fn new(script: impl Fn(&Version) -> Result<Pulled, HelmError> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Some(Box::new(script)), ..Self::default() })
    }

    fn pulls(&self) -> usize {
        *self.pulls.borrow()
    }

    async fn pulled(&self, times: usize) {
        let mut pulls = self.pulls.subscribe();
        // The sender is ours, so the channel stays open.
        let _ = pulls.wait_for(|pulls| *pulls >= times).await;
    }
}

impl Pull for Arc<FakeHelm> {
    async fn pull(
        &self,
        _: &ChartSource,
        _: &ChartName,
        version: &Version,
        cancel: &CancellationToken,
    ) -> Result<Pulled, HelmError> {
        self.pulls.send_modify(|pulls| *pulls += 1);
        match &self.script {
            Some(script) => script(version),
            None => {
                cancel.cancelled().await;
                Err(HelmError::Cancelled { verb: Verb::Pull })
            }
        }
    }

    fn verifies(&self) -> bool {
        self.verifies
    }
}

#[test]
fn values_are_in_the_form_that_the_chart_reads() {
    let image_values = |has_image_registry, image: serde_json::Value| {
        let chart = Chart {
            name: "nextcloud".parse().unwrap(),
            version: version("9.2.4"),
            app_version: None,
            digest: String::new(),
            path: PathBuf::new(),
            has_image_registry,
        };
        chart.values(serde_json::json!({"image": image, "a": 1}))["image"].clone()
    };
    let joined = serde_json::json!({"registry": null, "repository": "r.example:5000/team/app@sha256", "tag": "ab"});
    let apart = serde_json::json!({"registry": "r.example:5000", "repository": "team/app@sha256", "tag": "ab"});
    assert_eq!(image_values(false, joined.clone()), joined);
    assert_eq!(image_values(true, joined), apart);
    // A revision that was installed so, and users who only name a registry.
    for other in [apart, serde_json::json!({"registry": "mirror.example"}), serde_json::json!({"pullPolicy": "Always"})]
    {
        assert_eq!(image_values(true, other.clone()), other);
    }
}

const REPOSITORY: &str = "https://charts.example.com";

fn version(text: &str) -> Version {
    text.parse().unwrap()
}

fn cache(helm: &Arc<FakeHelm>, dir: &TempDir) -> PullThroughCache<Arc<FakeHelm>> {
    from(helm, dir, REPOSITORY)
}

fn from(helm: &Arc<FakeHelm>, dir: &TempDir, source: &str) -> PullThroughCache<Arc<FakeHelm>> {
    PullThroughCache::new(
        helm.clone(),
        source.parse().unwrap(),
        "nextcloud".parse().unwrap(),
        dir.path().join("cache"),
        CancellationToken::new(),
    )
}

fn serving(content: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Arc<FakeHelm> {
    listing(None, content)
}

/// A repository whose index lists these digests for each archive.
fn listing(digests: Option<&[&str]>, content: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Arc<FakeHelm> {
    let listed = digests.map(|digests| digests.iter().map(|digest| (*digest).to_owned()).collect::<Vec<_>>());
    FakeHelm::new(move |version| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(format!("nextcloud-{version}.tgz"));
        fs::write(&path, content(&version.to_string())).unwrap();
        Ok(Pulled { path, listed: listed.clone(), _dir: dir })
    })
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
    assert_eq!(helm.pulls(), 1);

    assert_eq!(cache(&helm, &dir).get(&v).await.unwrap(), chart);
    assert_eq!(helm.pulls(), 1);
    cache(&helm, &dir).get(&version("6.0.0")).await.unwrap();
    assert_eq!(helm.pulls(), 2);
    // From another source, it is another chart.
    from(&helm, &dir, "https://mirror.example.com").get(&v).await.unwrap();
    assert_eq!(helm.pulls(), 3);
}

#[tokio::test]
async fn a_failure_is_shared_by_waiting_callers() {
    let helm = Arc::new(FakeHelm::default());
    let dir = tempfile::tempdir().unwrap();
    let shutdown = CancellationToken::new();
    let cache = PullThroughCache { shutdown: shutdown.clone(), ..cache(&helm, &dir) };
    let v = version("5.5.2");
    let waiting = join_all((0..5).map(|_| cache.get(&v)));
    // All five wait before the pull is answered.
    let ended = async {
        helm.pulled(1).await;
        shutdown.cancel();
    };
    let (failures, ()) = futures::join!(waiting, ended);
    assert!(
        failures.iter().all(|failure| failure.as_ref().is_err_and(|error| matches!(**error, ChartError::Pull { .. })))
    );
    assert_eq!(helm.pulls(), 1);
}

#[tokio::test]
async fn a_failure_is_forgotten() {
    let helm = FakeHelm::new(|_| {
        Err(HelmError::Failed { verb: Verb::Pull, failure: HelmFailure::RepositoryUnavailable, message: "down".into() })
    });
    let dir = tempfile::tempdir().unwrap();
    let cache = cache(&helm, &dir);
    let v = version("5.5.2");
    assert_eq!(cache.get(&v).await.unwrap_err().to_string(), "cannot pull chart nextcloud 5.5.2: down");
    cache.get(&v).await.unwrap_err();
    assert_eq!(helm.pulls(), 2);
}

#[tokio::test]
async fn what_was_tampered_with_is_never_used() {
    let (helm, dir) = (good(), tempfile::tempdir().unwrap());
    let running = cache(&helm, &dir);
    let intact = running.get(&version("5.5.2")).await.unwrap();
    let content = fs::read(&intact.path).unwrap();
    for restarted in [false, true] {
        fs::write(&intact.path, chart("nextcloud", "5.5.2-evil")).unwrap();
        let fresh = cache(&helm, &dir);
        let cache = if restarted { &fresh } else { &running };
        assert_eq!(cache.get(&version("5.5.2")).await.unwrap(), intact);
        assert_eq!(fs::read(&intact.path).unwrap(), content);
    }
    assert_eq!(helm.pulls(), 3);
    fs::remove_file(&intact.path).unwrap();
    assert_eq!(running.get(&version("5.5.2")).await.unwrap(), intact);
    assert_eq!(helm.pulls(), 4);
    // A partial record does not count.
    fs::write(running.disk.record(&version("5.5.2")), "").unwrap();
    cache(&helm, &dir).get(&version("5.5.2")).await.unwrap();
    assert_eq!(helm.pulls(), 5);
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
    assert!(matches!(&*error, ChartError::DigestChanged { recorded, .. } if *recorded == original.digest));
    assert!(!original.path.exists());
}

#[tokio::test]
async fn an_archive_must_be_the_one_in_the_index() {
    let (genuine, other) = (sha256(&chart("nextcloud", "5.5.2")), "0".repeat(64));
    let v = version("5.5.2");
    let served = |digests: &[&str]| listing(Some(digests), |version| chart("nextcloud", version));
    for accepted in [&[][..], &[genuine.as_str()], &[other.as_str(), genuine.as_str()]] {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(cache(&served(accepted), &dir).get(&v).await.unwrap().digest, genuine, "{accepted:?}");
    }
    let dir = tempfile::tempdir().unwrap();
    let error = cache(&served(&[other.as_str(), "short"]), &dir).get(&v).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "chart nextcloud 5.5.2 is refused: its archive has sha256 {genuine}, but the index of the chart repository \
             lists {other} or short: nothing is installed; find out who replaced the archive, and restore it, or publish \
             the change under a new version"
        )
    );
    assert!(!dir.path().join("cache").exists());

    // What was pulled before is identified by its record.
    let recorded = cache(&good(), &dir).get(&v).await.unwrap();
    fs::remove_file(&recorded.path).unwrap();
    assert_eq!(cache(&served(&[other.as_str()]), &dir).get(&v).await.unwrap(), recorded);
}

#[tokio::test]
async fn a_chart_must_be_the_one_asked_for() {
    let rows: [(Vec<u8>, &str); 4] = [
        (chart("nextcloud", "5.5.3"), "requested chart nextcloud 5.5.2, but got nextcloud 5.5.3"),
        (
            packed(&[("nextcloud/Chart.yaml", "name: other\nversion: 5.5.2\n")]),
            "requested chart nextcloud 5.5.2, but got other 5.5.2",
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
    assert!(matches!(*cache(&huge, &dir).get(&version("5.5.2")).await.unwrap_err(), ChartError::TooLarge { .. }));
    let prefixed = serving(|version| chart("nextcloud", &format!("v{version}")));
    cache(&prefixed, &dir).get(&version("5.5.2")).await.unwrap();
}

#[tokio::test]
async fn a_directory_needs_no_helm() {
    let (helm, dir) = (good(), tempfile::tempdir().unwrap());
    let cache = from(&helm, &dir, dir.path().to_str().unwrap());
    let missing = cache.get(&version("5.5.2")).await.unwrap_err();
    assert!(matches!(&*missing, ChartError::NotFound { path } if *path == dir.path().join("nextcloud-5.5.2.tgz")));
    fs::write(dir.path().join("nextcloud-5.5.2.tgz"), chart("nextcloud", "5.5.2")).unwrap();
    cache.get(&version("5.5.2")).await.unwrap();
    assert_eq!(helm.pulls(), 0);
}

#[tokio::test]
async fn with_a_keyring_only_charts_with_a_verified_signature_are_used() {
    let verifying = |script: fn(&Version) -> Result<Pulled, HelmError>| {
        Arc::new(FakeHelm { script: Some(Box::new(script)), verifies: true, ..FakeHelm::default() })
    };
    let signed = || {
        verifying(|version| {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(format!("nextcloud-{version}.tgz"));
            fs::write(&path, chart("nextcloud", &version.to_string())).unwrap();
            Ok(Pulled { path, listed: None, _dir: dir })
        })
    };
    let (dir, v) = (tempfile::tempdir().unwrap(), version("5.5.2"));
    let before = cache(&good(), &dir).get(&v).await.unwrap();
    let unsigned = verifying(|_| {
        let (verb, failure) = (Verb::Pull, HelmFailure::SignatureInvalid);
        Err(HelmError::Failed { verb, failure, message: "signature block not found".into() })
    });
    // What was cached without a keyring has to be signed, too.
    let error = cache(&unsigned, &dir).get(&v).await.unwrap_err();
    assert!(matches!(*error, ChartError::Pull { .. }), "{error}");
    let helm = signed();
    assert_eq!(cache(&helm, &dir).get(&v).await.unwrap(), before);
    assert_eq!(cache(&helm, &dir).get(&v).await.unwrap(), before);
    assert_eq!(helm.pulls(), 1);
    // An operator without a keyring uses it as well.
    let helm = good();
    assert_eq!(cache(&helm, &dir).get(&v).await.unwrap(), before);
    assert_eq!(helm.pulls(), 0);

    // A directory's charts are verified by helm.
    let (helm, dir) = (signed(), tempfile::tempdir().unwrap());
    let cache = from(&helm, &dir, dir.path().to_str().unwrap());
    assert!(matches!(&*cache.get(&v).await.unwrap_err(), ChartError::NotFound { .. }));
    fs::write(dir.path().join("nextcloud-5.5.2.tgz"), "not what was verified").unwrap();
    assert_eq!(cache.get(&v).await.unwrap().digest, before.digest);
    assert_eq!(helm.pulls(), 1);
}

#[tokio::test]
async fn the_oldest_charts_are_dropped_and_pulled_again() {
    let (helm, dir) = (good(), tempfile::tempdir().unwrap());
    let cache = cache(&helm, &dir);
    let first = cache.get(&version("1.0.0")).await.unwrap();
    File::open(&first.path).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    for patch in 1..=MAX_CHARTS as u64 {
        assert!(first.path.exists(), "{patch}");
        cache.get(&Version::new(1, 0, patch)).await.unwrap();
    }
    assert!(!first.path.exists());
    assert_eq!(fs::read_dir(first.path.parent().unwrap()).unwrap().count(), MAX_CHARTS);
    let pulls = helm.pulls();
    assert_eq!(cache.get(&version("1.0.0")).await.unwrap(), first);
    assert_eq!(helm.pulls(), pulls + 1);
}

#[tokio::test]
async fn dropping_all_waiting_callers_ends_the_pull() {
    let dir = tempfile::tempdir().unwrap();
    let helm = Arc::new(FakeHelm::default());
    let cache = cache(&helm, &dir);
    let v = version("5.5.2");
    for pulls in 1..=2 {
        tokio::select! {
            biased;
            result = cache.get(&v) => panic!("{result:?}"),
            () = helm.pulled(pulls) => {}
        }
    }
}
