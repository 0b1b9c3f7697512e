//! Runs the helm 4 command line (effect, except where a module says that it is pure).
//!
//! `cli` builds the command line, runs it, and interprets what it prints; `gateway` connects it to the API server. `charts` keeps what was
//! pulled from a `source`. `values` prepares the values, `hosts` finds the hosts of what is rendered, `storage` reads Helm's Secrets.
//!
//! An exit code of 0 proves nothing: after `helm upgrade` and `uninstall`, the caller checks Helm's storage.

use std::{
    env,
    ffi::OsString,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::task;
use tokio_util::sync::CancellationToken;

mod charts;
pub(crate) mod cli;
pub(crate) mod gateway;
pub(crate) mod hosts;
pub(crate) mod source;
pub(crate) mod storage;
pub(crate) mod values;

pub(crate) use charts::cache::{Chart, ChartError};
pub(crate) use cli::{
    command::{ChartName, Flags, HelmCommand, ReleaseLabels, TestRequest, Uninstall, Upgrade, Verb},
    credentials::{CredentialFiles, InvalidCredentials},
    error::{HelmError, HelmUnavailable, SetupError},
    parse::{HelmFailure, classify, left_behind},
    redact::Redactor,
    version::cautions,
};
pub(crate) use source::ChartSource;

use crate::platform::process::{self, Limits, Program};
pub(crate) use crate::platform::process::{Cause, Finished, ProcessError};

use charts::cache::{MAX_PACKED, Pull, Pulled};
use cli::{
    command::archive_name,
    credentials::Credentials,
    index, version,
    workdir::{self, WorkDir},
};
use gateway::{Claim, Gateway, GatewaySession, Review, RunScope, record::Recorded};

use crate::platform::panic::joined;

/// Timeout of `helm version`, which normally takes a fraction of a second.
const CHECK_DEADLINE: Duration = Duration::from_secs(30);
/// Time for helm to record that a test took too long.
const TEST_MARGIN: Duration = Duration::from_secs(60);
/// Bytes kept of each output stream.
const OUTPUT: usize = 64 << 10;
/// Bytes kept of an output that is a release: more than Helm can store.
const RELEASE: usize = 32 << 20;
/// The largest file that helm may write, in bytes: a repository's index can be many times larger than the largest chart.
const MAX_FILE: u64 = 256 << 20;

/// Go's runtime in runs for a release. Garbage collection is rare, which saves a quarter of the CPU time and costs some 30 MiB, up to
/// this limit; one processor saves another twentieth, and several runs go on at once. Pulls keep the defaults, because they may have
/// a large index in memory.
const GO: [(&str, &str); 3] = [("GOGC", "400"), ("GOMEMLIMIT", "256MiB"), ("GOMAXPROCS", "1")];

/// Variables that helm inherits from the operator: proxies and trusted certificates, to reach repositories. `HELM_REGISTRY_CONFIG`
/// names the file with the credentials of private registries.
const INHERITED: &[&str] = &[
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HELM_REGISTRY_CONFIG",
];

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelmSettings {
    /// The executable: a path, or a name to look up in `PATH`.
    pub binary: PathBuf,
    /// Parent of the private directory. It should be on an in-memory file system, because kubeconfigs are stored there.
    pub private_dir: PathBuf,
    pub flags: Flags,
    /// Timeout of a run, from its start.
    pub deadline: Duration,
    /// How long a run may take to exit after it was asked to stop.
    pub grace: Duration,
    /// Limit of a run's private memory, in bytes. An ordinary run needs less than 100 MiB.
    pub memory: u64,
    /// Names the files that a pull needs beyond the source.
    pub credentials: CredentialFiles,
}

/// The chart cache, filled by helm.
pub(crate) type ChartCache = charts::cache::PullThroughCache<Helm>;

/// The helm command line. Clones share the private directory, which is removed with the last of them.
///
/// Cancelling its token stops a run gracefully; dropping its future kills it at once.
#[derive(Debug, Clone)]
pub(crate) struct Helm(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    settings: HelmSettings,
    workdir: WorkDir,
    env: Vec<(OsString, OsString)>,
}

impl Helm {
    /// Prepares the private directory. Helm itself is verified by [`Helm::check`].
    pub(crate) fn new(mut settings: HelmSettings) -> Result<Self, SetupError> {
        // Resolved now, because helm gets another PATH. If this fails, `check` reports it.
        settings.binary = which::which(&settings.binary).unwrap_or(settings.binary);
        let setup = |source| SetupError { path: settings.private_dir.clone(), source };
        let workdir = WorkDir::create(&settings.private_dir).map_err(setup)?;
        let env = environment(&workdir, |name| env::var_os(name)).map_err(setup)?;
        Ok(Self(Arc::new(Inner { settings, workdir, env })))
    }

    /// Returns the executable; if it was not found on the `PATH`, the name that was looked for.
    pub(crate) fn program(&self) -> &Path {
        &self.0.settings.binary
    }

    async fn run(
        &self,
        command: HelmCommand,
        session: Option<&GatewaySession>,
        deadline: Duration,
        cancel: &CancellationToken,
    ) -> Result<Finished, HelmError> {
        let Inner { settings, workdir, env } = &*self.0;
        let verb = command.verb();
        if cancel.is_cancelled() {
            return Err(HelmError::NotStarted { verb });
        }
        tracing::debug!(%command, "helm starts");
        let output = if command.prints_release() { RELEASE } else { OUTPUT };
        let (args, stdin, redactor) = command.into_parts();
        let mut env = env.clone();
        if let Some(session) = session {
            env.push(("KUBECONFIG".into(), session.kubeconfig().into()));
            env.extend(GO.map(|(name, value)| (name.into(), value.into())));
        }
        let stopping = session.map(GatewaySession::stopping).unwrap_or_default();
        let program = Program { path: settings.binary.clone(), args, env, dir: workdir.path().to_owned(), stdin };
        let limits = Limits { deadline, grace: settings.grace, output, memory: settings.memory, file: MAX_FILE };
        let mut finished = process::run(program, limits, cancel, &stopping)
            .await
            .map_err(|source| HelmError::Process { verb, source })?;
        // Before it is shortened: half of a text would no longer be recognized.
        finished.stderr = redactor.redact(&finished.stderr);
        tracing::debug!(%verb, cause = ?finished.cause, status = %finished.status, elapsed = ?finished.elapsed, "helm ended");
        check_outcome(verb, deadline, finished)
    }

    /// Runs helm with access to the API server, which ends with the run.
    async fn run_with_gateway(
        &self,
        gateway: &Gateway,
        scope: RunScope,
        checks: (Claim, Option<Review>),
        (command, deadline): (HelmCommand, Duration),
        cancel: &CancellationToken,
    ) -> (Result<Finished, HelmError>, Recorded) {
        let verb = command.verb();
        let session = match gateway.admit(self.0.workdir.path(), scope, checks) {
            Ok(session) => session,
            Err(source) => return (Err(HelmError::Prepare { verb, source }), Recorded::default()),
        };
        let result = self.run(command, Some(&session), deadline, cancel).await;
        (result, session.end().await)
    }

    /// Checks that helm can be used, and returns its version.
    pub(crate) async fn check(&self) -> Result<semver::Version, HelmUnavailable> {
        let path = || self.0.settings.binary.clone();
        let never = CancellationToken::new();
        match self.run(HelmCommand::version(), None, CHECK_DEADLINE, &never).await {
            Ok(finished) => version::usable(&finished.stdout, path()),
            Err(HelmError::Process { source: ProcessError::Missing { path, .. }, .. }) => {
                Err(HelmUnavailable::Missing { path })
            }
            Err(HelmError::Process { source: ProcessError::NotExecutable { path, .. }, .. }) => {
                Err(HelmUnavailable::NotExecutable { path })
            }
            Err(HelmError::Failed { message, .. }) => Err(HelmUnavailable::NotHelm { path: path(), said: message }),
            Err(HelmError::Deadline { deadline, .. }) => Err(HelmUnavailable::Silent { path: path(), deadline }),
            Err(other) => Err(HelmUnavailable::Run { source: Box::new(other) }),
        }
    }

    /// Installs or upgrades a release. Its Ingresses and routes may have the hosts that the claim grants, and the review has to let the
    /// revision pass. The second part of the result is what helm has written, even if the run failed.
    pub(crate) async fn upgrade(
        &self,
        gateway: &Gateway,
        request: &Upgrade,
        checks: (Claim, Option<Review>),
        cancel: &CancellationToken,
    ) -> (Result<Finished, HelmError>, Recorded) {
        let command = (HelmCommand::upgrade(request, self.0.settings.flags), self.0.settings.deadline);
        let Upgrade { release, namespace, account, labels, .. } = request;
        let scope = RunScope::new(release, namespace, Some(account), Some(labels.revision));
        self.run_with_gateway(gateway, scope, checks, command, cancel).await
    }

    /// Returns what [`Helm::upgrade`] would make of a release, as helm prints it. The gateway lets it read with the rights of its own
    /// client, and write nothing.
    pub(crate) async fn plan(
        &self,
        gateway: &Gateway,
        request: &Upgrade,
        cancel: &CancellationToken,
    ) -> Result<Finished, HelmError> {
        let command = (HelmCommand::plan(request, self.0.settings.flags), self.0.settings.deadline);
        let scope = RunScope::new(&request.release, &request.namespace, None, None);
        self.run_with_gateway(gateway, scope, (Box::new(|_| Ok(())), None), command, cancel).await.0
    }

    /// Runs the tests of a release, for as long as they may take and a minute.
    pub(crate) async fn test(
        &self,
        gateway: &Gateway,
        request: &TestRequest,
        claim: Claim,
        cancel: &CancellationToken,
    ) -> Result<Finished, HelmError> {
        let command = (HelmCommand::test(request), request.timeout + TEST_MARGIN);
        let TestRequest { release, namespace, account, .. } = request;
        let scope = RunScope::new(release, namespace, Some(account), None);
        self.run_with_gateway(gateway, scope, (claim, None), command, cancel).await.0
    }

    /// Uninstalls a release; one that does not exist counts as uninstalled.
    ///
    /// Helm's success does not mean that all objects are gone: see [`left_behind`].
    pub(crate) async fn uninstall(
        &self,
        gateway: &Gateway,
        request: &Uninstall,
        claim: Claim,
        cancel: &CancellationToken,
    ) -> Result<Finished, HelmError> {
        let command = (HelmCommand::uninstall(request, self.0.settings.flags), self.0.settings.deadline);
        let Uninstall { release, namespace, account } = request;
        let scope = RunScope::new(release, namespace, Some(account), None);
        match self.run_with_gateway(gateway, scope, (claim, None), command, cancel).await.0 {
            Err(HelmError::Failed { failure: HelmFailure::NotFound, .. }) => Ok(Finished::default()),
            result => result,
        }
    }

    /// Fetches a repository's index for a pull into a directory. Returns the digests that it lists for the chart.
    async fn fetch_digests(
        &self,
        url: &str,
        (chart, version): (&ChartName, &semver::Version),
        (dir, credentials): (&Path, &Credentials),
        cancel: &CancellationToken,
    ) -> Result<Vec<String>, HelmError> {
        self.run(HelmCommand::fetch_index(url, dir, credentials), None, self.0.settings.deadline, cancel).await?;
        let (chart, version) = (chart.clone(), version.clone());
        let not_listed =
            HelmError::NotListed { chart: chart.clone(), version: version.clone(), repository: url.to_owned() };
        let path = HelmCommand::index(dir);
        let read = joined(task::spawn_blocking(move || index::read(&path, &chart, &version))).await;
        read.map_err(|source| HelmError::Index { source })?.ok_or(not_listed)
    }
}

impl Pull for Helm {
    async fn pull(
        &self,
        source: &ChartSource,
        chart: &ChartName,
        version: &semver::Version,
        cancel: &CancellationToken,
    ) -> Result<Pulled, HelmError> {
        let verb = Verb::Pull;
        let prepare = |source| HelmError::Prepare { verb, source };
        let (files, of) = (self.0.settings.credentials.clone(), source.clone());
        let credentials = joined(task::spawn_blocking(move || files.read(&of))).await;
        let credentials = credentials.map_err(|source| HelmError::Credentials { source })?;
        let dir = tempfile::Builder::new().prefix("pull-").tempdir_in(self.0.workdir.path()).map_err(prepare)?;
        let listed = match source {
            ChartSource::Repository(url) => {
                let into = (dir.path(), &credentials);
                Some(self.fetch_digests(url, (chart, version), into, cancel).await?)
            }
            ChartSource::Registry { .. } | ChartSource::Directory(_) => None,
        };
        if let Some(archive) = source.file(&archive_name(chart, version)) {
            let into = dir.path().to_owned();
            let copied = task::spawn_blocking(move || workdir::copy_signed(&archive, &into, MAX_PACKED));
            joined(copied).await.map_err(prepare)?;
        }
        let command = HelmCommand::pull(source, chart, version, dir.path(), &credentials);
        let command = command.ok_or(HelmError::NothingPulled)?;
        // Without access to the API server, which a pull does not need.
        self.run(command, None, self.0.settings.deadline, cancel).await?;
        let path = workdir::only_file(dir.path()).map_err(prepare)?.ok_or(HelmError::NothingPulled)?;
        Ok(Pulled { path, listed, _dir: dir })
    }

    fn verifies(&self) -> bool {
        self.0.settings.credentials.keyring.is_some()
    }
}

/// Returns the environment of every helm process, except for KUBECONFIG.
fn environment(
    workdir: &WorkDir,
    ours: impl Fn(&str) -> Option<OsString>,
) -> std::io::Result<Vec<(OsString, OsString)>> {
    let mut env: Vec<(OsString, OsString)> = [
        ("HELM_DRIVER", "secret"),
        // A plugin would run with everything that helm has.
        ("HELM_NO_PLUGINS", "1"),
        ("NO_COLOR", "1"),
        ("PATH", "/usr/local/bin:/usr/bin:/bin"),
        ("TZ", "UTC"),
    ]
    .map(|(name, value)| (name.into(), value.into()))
    .into();
    for (name, subdir) in [
        ("HOME", "home"),
        ("TMPDIR", "tmp"),
        ("HELM_CACHE_HOME", "cache"),
        ("HELM_REPOSITORY_CACHE", "cache/repository"),
        ("HELM_CONTENT_CACHE", "cache/content"),
        ("HELM_CONFIG_HOME", "config"),
        ("HELM_DATA_HOME", "data"),
    ] {
        env.push((name.into(), workdir.subdir(subdir)?.into()));
    }
    env.extend(INHERITED.iter().filter_map(|name| Some((name.into(), ours(name)?))));
    Ok(env)
}

fn check_outcome(verb: Verb, deadline: Duration, finished: Finished) -> Result<Finished, HelmError> {
    match (finished.cause, finished.status.signal()) {
        // It was asked to stop, but had already succeeded.
        (_, None) if finished.status.success() => Ok(finished),
        (Cause::Cancelled, _) => Err(HelmError::Cancelled { verb }),
        (Cause::Deadline, _) => Err(HelmError::Deadline { verb, deadline }),
        (Cause::Itself, Some(signal)) => Err(HelmError::Killed { verb, signal }),
        (Cause::Itself, None) => {
            let (failure, message) = classify(verb, &finished.stderr);
            Err(HelmError::Failed { verb, failure, message })
        }
    }
}

#[cfg(test)]
mod tests;
