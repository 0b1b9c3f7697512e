//! Defines the errors of helm runs.

use std::{io, path::PathBuf, time::Duration};

use semver::Version;

use super::{
    command::{ChartName, Verb},
    credentials::InvalidCredentials,
    index::InvalidIndex,
    parse::HelmFailure,
};
use crate::platform::process::ProcessError;

/// A helm run failed. Helm's storage shows what it did nevertheless.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelmError {
    #[error("helm {verb} was not started, because of shutdown")]
    NotStarted { verb: Verb },
    #[error("cannot run helm {verb}: {source}")]
    Process { verb: Verb, source: ProcessError },
    #[error("cannot prepare helm {verb}: {source}")]
    Prepare { verb: Verb, source: io::Error },
    #[error("--chart-repository-credentials or --chart-keyring cannot be used: {source}")]
    Credentials { source: InvalidCredentials },
    #[error("helm {verb} was cancelled")]
    Cancelled { verb: Verb },
    #[error("helm {verb} was stopped, because it took longer than {}", seconds(*deadline))]
    Deadline { verb: Verb, deadline: Duration },
    /// By another process, such as the kernel when memory ran out.
    #[error("helm {verb} was killed by signal {signal}{}", memory(*signal))]
    Killed { verb: Verb, signal: i32 },
    /// The text is helm's own, redacted, in one paragraph.
    #[error("{message}")]
    Failed { verb: Verb, failure: HelmFailure, message: String },
    /// In the words of `helm pull --repo`.
    #[error("chart \"{chart}\" version \"{version}\" not found in {repository} repository")]
    NotListed { chart: ChartName, version: Version, repository: String },
    #[error("{source}")]
    Index { source: InvalidIndex },
    #[error("helm pull succeeded, but its destination does not contain exactly one file")]
    NothingPulled,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HelmUnavailable {
    #[error("helm is missing: there is no executable at {}", path.display())]
    Missing { path: PathBuf },
    #[error("helm cannot be executed: {} is not an executable file for this machine", path.display())]
    NotExecutable { path: PathBuf },
    #[error(
        "helm {found} is too old: at least {minimum} is needed; install it, or name another executable with --helm"
    )]
    TooOld { found: semver::Version, minimum: semver::Version },
    #[error("{} is not helm: asked for its version, it said {said:?}", path.display())]
    NotHelm { path: PathBuf, said: String },
    #[error("helm does not respond: {} did not print its version within {}", path.display(), seconds(*deadline))]
    Silent { path: PathBuf, deadline: Duration },
    #[error("helm's version cannot be determined: {source}")]
    Run { source: Box<HelmError> },
}

#[derive(Debug, thiserror::Error)]
#[error("cannot create a private directory in {}", path.display())]
pub(crate) struct SetupError {
    pub(in crate::helm) path: PathBuf,
    pub(in crate::helm) source: io::Error,
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

/// Names the usual cause of SIGKILL, which the kernel sends a helm when the pod's memory is short.
fn memory(signal: i32) -> &'static str {
    if signal == 9 { ", probably for lack of memory: see the memory limit of the operator's pod" } else { "" }
}
