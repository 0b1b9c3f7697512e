//! What can go wrong with a helm run, for the caller.

use std::{io, path::PathBuf, time::Duration};

use super::{AccessError, HelmFailure, ProcessError, Verb};

/// A helm run did not do what it was for. Whatever it did nevertheless, Helm's storage tells.
#[derive(Debug, thiserror::Error)]
pub enum HelmError {
    /// It was cancelled before it began: nothing has happened.
    #[error("helm {verb} was not started, because of shutdown")]
    NotStarted {
        /// The command.
        verb: Verb,
    },
    /// It could not be given access to the cluster: nothing has happened.
    #[error("cannot give helm {verb} access to the cluster: {source}")]
    Access {
        /// The command.
        verb: Verb,
        /// Why.
        source: AccessError,
    },
    /// It could not be started, or not be followed.
    #[error("cannot run helm {verb}: {source}")]
    Process {
        /// The command.
        verb: Verb,
        /// Why.
        source: ProcessError,
    },
    /// A private file or directory could not be made.
    #[error("cannot prepare helm {verb}: {source}")]
    Prepare {
        /// The command.
        verb: Verb,
        /// Why.
        source: io::Error,
    },
    /// It was stopped because the caller's token was cancelled.
    #[error("helm {verb} was cancelled")]
    Cancelled {
        /// The command.
        verb: Verb,
    },
    /// It was stopped at its deadline.
    #[error("helm {verb} was stopped, because it took longer than {}", seconds(*deadline))]
    Deadline {
        /// The command.
        verb: Verb,
        /// The deadline.
        deadline: Duration,
    },
    /// Somebody else killed it, for example the kernel for want of memory.
    #[error("helm {verb} was killed by signal {signal}")]
    Killed {
        /// The command.
        verb: Verb,
        /// The signal's number.
        signal: i32,
    },
    /// It failed; the text is helm's own, redacted, one paragraph.
    #[error("{message}")]
    Failed {
        /// The command.
        verb: Verb,
        /// The class.
        failure: HelmFailure,
        /// Helm's words.
        message: String,
    },
    /// It succeeded, but left no chart where it should.
    #[error("helm pull succeeded, but there is not exactly one file in its destination")]
    NothingPulled,
}

/// There is no helm that can be used.
#[derive(Debug, thiserror::Error)]
pub enum HelmUnavailable {
    /// It is not there.
    #[error("helm is missing: there is no executable at {}", path.display())]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// It cannot be executed.
    #[error("helm cannot be executed: {} is not an executable file for this machine", path.display())]
    NotExecutable {
        /// The file.
        path: PathBuf,
    },
    /// It is too old.
    #[error("helm {found} is too old: at least {minimum} is needed")]
    TooOld {
        /// Its version.
        found: semver::Version,
        /// The oldest that will do.
        minimum: semver::Version,
    },
    /// It is something else.
    #[error("{} is not helm: asked for its version, it said {said:?}", path.display())]
    NotHelm {
        /// The file.
        path: PathBuf,
        /// The beginning of its answer.
        said: String,
    },
    /// It did not answer in time.
    #[error("helm does not answer: {} did not tell its version within {}", path.display(), seconds(*deadline))]
    Silent {
        /// The file.
        path: PathBuf,
        /// How long it had.
        deadline: Duration,
    },
    /// Asking failed otherwise.
    #[error("helm cannot be asked for its version: {source}")]
    Run {
        /// Why.
        source: Box<HelmError>,
    },
}

/// The operator cannot prepare for running helm.
#[derive(Debug, thiserror::Error)]
#[error("cannot make a private directory in {}", path.display())]
pub struct SetupError {
    /// The directory it was to be in.
    pub(super) path: PathBuf,
    /// Why.
    pub(super) source: io::Error,
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}
