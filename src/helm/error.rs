//! What can go wrong with a helm run, for the caller.

use std::{io, path::PathBuf, time::Duration};

use super::{HelmFailure, ProcessError, Verb};

/// A helm run did not do what it was for. Whatever it did nevertheless, Helm's storage tells.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HelmError {
    #[error("helm {verb} was not started, because of shutdown")]
    NotStarted { verb: Verb },
    #[error("cannot run helm {verb}: {source}")]
    Process { verb: Verb, source: ProcessError },
    #[error("cannot prepare helm {verb}: {source}")]
    Prepare { verb: Verb, source: io::Error },
    #[error("helm {verb} was cancelled")]
    Cancelled { verb: Verb },
    #[error("helm {verb} was stopped, because it took longer than {}", seconds(*deadline))]
    Deadline { verb: Verb, deadline: Duration },
    /// By another process, for example by the kernel for lack of memory.
    #[error("helm {verb} was killed by signal {signal}")]
    Killed { verb: Verb, signal: i32 },
    /// It failed; the text is helm's own, redacted, one paragraph.
    #[error("{message}")]
    Failed { verb: Verb, failure: HelmFailure, message: String },
    #[error("helm pull succeeded, but there is not exactly one file in its destination")]
    NothingPulled,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HelmUnavailable {
    #[error("helm is missing: there is no executable at {}", path.display())]
    Missing { path: PathBuf },
    #[error("helm cannot be executed: {} is not an executable file for this machine", path.display())]
    NotExecutable { path: PathBuf },
    #[error("helm {found} is too old: at least {minimum} is needed")]
    TooOld { found: semver::Version, minimum: semver::Version },
    #[error("{} is not helm: asked for its version, it said {said:?}", path.display())]
    NotHelm { path: PathBuf, said: String },
    #[error("helm does not answer: {} did not tell its version within {}", path.display(), seconds(*deadline))]
    Silent { path: PathBuf, deadline: Duration },
    #[error("helm cannot be asked for its version: {source}")]
    Run { source: Box<HelmError> },
}

#[derive(Debug, thiserror::Error)]
#[error("cannot make a private directory in {}", path.display())]
pub(crate) struct SetupError {
    pub(super) path: PathBuf,
    pub(super) source: io::Error,
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
