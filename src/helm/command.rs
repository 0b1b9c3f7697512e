//! The arguments of every helm run (pure).
//!
//! Nothing secret is ever an argument: values travel as standard input and credentials as files, so an argv is safe to
//! log. Nothing that comes from outside can act as a flag: whatever is put into an argv has a type that was checked once,
//! and neither a name nor an absolute path can start with `-`.

use std::{ffi::OsString, fmt, path::Path, path::PathBuf, str::FromStr, time::Duration};

use super::source::ChartSource;
use crate::runtime::{account::AccountName, key::is_label};

/// Labels of Helm's storage Secret: the digest of what was deployed, the operator process that started the run, the run.
pub(crate) const DIGEST_LABEL: &str = "apps.bnerd-operator.local/digest";
pub(crate) const HOLDER_LABEL: &str = "apps.bnerd-operator.local/holder";
pub(crate) const OPERATION_LABEL: &str = "apps.bnerd-operator.local/operation";
/// The label of Helm's storage Secret that holds the revision the run was expected to make.
///
/// Helm hands the labels of a release on to later revisions: `upgrade` merges its own over those of the newest revision,
/// `rollback` copies those of the revision it returns to. So after another Helm client's upgrade or rollback all of our labels
/// are still there, and only this one tells: on a revision of ours it equals Helm's own `version` label.
pub(crate) const REVISION_LABEL: &str = "apps.bnerd-operator.local/revision";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?} is not valid: {rule}")]
pub(crate) struct InvalidArgument {
    what: &'static str,
    text: String,
    rule: &'static str,
}

macro_rules! argument {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $valid:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, derive_more::Display)]
        pub(crate) struct $name(String);

        impl $name {
            #[allow(dead_code, reason = "a label goes out by its Display")]
            pub(crate) fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = InvalidArgument;

            fn from_str(text: &str) -> Result<Self, InvalidArgument> {
                let valid: fn(&str) -> bool = $valid;
                if valid(text) {
                    Ok(Self(text.to_owned()))
                } else {
                    // What is refused may be anything, a megabyte of it included.
                    Err(InvalidArgument { what: $what, text: text.chars().take(100).collect(), rule: $rule })
                }
            }
        }
    };
}

argument!(
    /// A release's name. The rule is Helm's `ValidateReleaseName`.
    ReleaseName,
    "release name",
    "it must be a lower-case DNS name of at most 53 characters",
    |text| text.len() <= 53 && text.split('.').all(is_label)
);

argument!(
    /// A namespace. The rule is Kubernetes' (RFC 1123 label).
    Namespace,
    "namespace",
    "it must be a lower-case DNS label of at most 63 characters",
    is_label
);

argument!(
    /// A chart's name. The rule is Helm's for chart names, with a limit on the length.
    ChartName,
    "chart name",
    "it must consist of letters, digits, '.', '_' and '-', start with a letter or digit, and have at most 100 characters",
    |text| {
        text.len() <= 100
            && text.starts_with(|first: char| first.is_ascii_alphanumeric())
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    }
);

argument!(
    /// A label's value. The rule is Kubernetes', except that it may be neither empty nor `null`, by which
    /// `helm upgrade --labels` removes a label.
    LabelValue,
    "label value",
    "it must consist of letters, digits, '.', '_' and '-', start and end with a letter or digit, have at most 63 \
     characters, and not be null",
    |text| {
        let alphanumeric = |char: char| char.is_ascii_alphanumeric();
        text.len() <= 63
            && text != "null"
            && text.starts_with(alphanumeric)
            && text.ends_with(alphanumeric)
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    }
);

/// What the operator stamps on the storage Secret of a revision it makes.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{DIGEST_LABEL}={digest},{HOLDER_LABEL}={holder},{OPERATION_LABEL}={operation},{REVISION_LABEL}={revision}")]
pub(crate) struct ReleaseLabels {
    /// The digest of chart, values and flags. A whole SHA-256 in hexadecimal is one character too long for a label.
    pub digest: LabelValue,
    pub holder: LabelValue,
    pub operation: LabelValue,
    pub revision: u32,
}

/// It has no `Debug`, and neither has its command, so that nothing prints the values.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Upgrade {
    pub release: ReleaseName,
    /// Its namespace, which must exist.
    pub namespace: Namespace,
    /// The ServiceAccount of that namespace whose rights helm has.
    pub account: AccountName,
    /// The packaged chart, an absolute path.
    pub chart: PathBuf,
    /// The values, one document of JSON, in which nothing has another meaning to a reader of YAML.
    pub values: String,
    pub labels: ReleaseLabels,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uninstall {
    pub release: ReleaseName,
    pub namespace: Namespace,
    /// The ServiceAccount of that namespace whose rights helm has.
    pub account: AccountName,
}

/// What is the same for every run of one operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// How many revisions Helm keeps of a release, at least 1.
    pub history_max: u32,
    /// How long Helm waits for one hook, in whole seconds.
    pub hook_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub(crate) enum Verb {
    Version,
    Upgrade,
    Uninstall,
    Pull,
}

/// The argv of one helm run, and what it reads on standard input.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HelmCommand {
    verb: Verb,
    args: Vec<OsString>,
    stdin: Option<String>,
}

impl HelmCommand {
    pub(crate) fn version() -> Self {
        Self::new(Verb::Version).arg("--template").arg("{{.Version}}")
    }

    /// Installs a release, or upgrades it.
    ///
    /// No `--wait` (readiness is watched), no `--rollback-on-failure` (it uninstalls a failed first install), no `--set`
    /// (it has a syntax of its own), no `--create-namespace` (the namespace is the tenant's, not the release's).
    pub(crate) fn upgrade(request: &Upgrade, flags: Flags) -> Self {
        let Upgrade { release, namespace, account: _, chart, values, labels } = request;
        let mut command = Self::new(Verb::Upgrade)
            .arg("--install")
            .arg(release.as_str())
            .arg(chart)
            .option("--namespace", namespace.as_str())
            // Standard input, so that the values are never on disk: nothing to protect and nothing to clear away.
            .option("--values", "-")
            // Helm keeps the values of the revision before when it is given none. What the spec says is all there is.
            .arg("--reset-values")
            .option("--history-max", flags.history_max.to_string())
            .option("--timeout", go_duration(flags.hook_timeout))
            .option("--labels", labels.to_string())
            // A chart's notes are text for a user at a terminal, and many of them print how to get a password.
            .arg("--hide-notes")
            // That check is more than half of a run's cost, and an API server validates a server-side apply strictly anyway.
            .arg("--disable-openapi-validation")
            // What the chart says is put right, whichever client has changed it since; without, one `kubectl scale` would hold up
            // every later upgrade. It needs server-side apply, also after a revision that another Helm client has made without.
            .arg("--server-side=true")
            .arg("--force-conflicts");
        command.stdin = Some(values.clone());
        command
    }

    /// Uninstalls a release, its history included.
    ///
    /// Without `--ignore-not-found`: with it helm 4.3.1 reports success for *any* failure to read the release's history,
    /// a 403 or a dead API server included (`if u.IgnoreNotFound { return nil, nil }` in `action/uninstall.go`). An absent
    /// release is told by its message instead.
    ///
    /// Background cascade: with foreground the objects linger, terminating, and a new release of the same name would adopt
    /// them just before they vanish.
    pub(crate) fn uninstall(request: &Uninstall, flags: Flags) -> Self {
        let Uninstall { release, namespace, account: _ } = request;
        Self::new(Verb::Uninstall)
            .arg(release.as_str())
            .option("--namespace", namespace.as_str())
            .option("--cascade", "background")
            .option("--timeout", go_duration(flags.hook_timeout))
    }

    /// Pulls a packaged chart into a directory; `None` for a source that needs no helm.
    pub(crate) fn pull(
        source: &ChartSource,
        chart: &ChartName,
        version: &semver::Version,
        into: &Path,
    ) -> Option<Self> {
        let command = Self::new(Verb::Pull);
        let command = match source {
            ChartSource::Repository(url) => command.arg(chart.as_str()).option("--repo", url),
            ChartSource::Registry { url, plain_http } => {
                let command = command.arg(format!("{url}/{chart}"));
                if *plain_http { command.arg("--plain-http") } else { command }
            }
            ChartSource::Directory(_) => return None,
        };
        Some(command.option("--version", version.to_string()).option("--destination", into))
    }

    fn new(verb: Verb) -> Self {
        Self { verb, args: vec![verb.to_string().into()], stdin: None }
    }

    fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    fn option(self, name: &str, value: impl Into<OsString>) -> Self {
        self.arg(name).arg(value)
    }

    pub(crate) fn verb(&self) -> Verb {
        self.verb
    }

    /// The arguments, without helm itself. Safe to log.
    pub(super) fn into_parts(self) -> (Vec<OsString>, Option<Vec<u8>>) {
        (self.args, self.stdin.map(String::into_bytes))
    }
}

/// The command as one would type it, the values left out.
impl fmt::Display for HelmCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("helm")?;
        for arg in self.args.iter().map(|arg| arg.to_string_lossy()) {
            let plain = |char: char| char.is_ascii_alphanumeric() || "-_./:=,+@".contains(char);
            if !arg.is_empty() && arg.chars().all(plain) {
                write!(f, " {arg}")?;
            } else {
                write!(f, " '{}'", arg.replace('\'', r"'\''"))?;
            }
        }
        Ok(())
    }
}

/// Whole seconds, at least one: Helm takes 0 for no time at all.
fn go_duration(duration: Duration) -> String {
    format!("{}s", duration.as_secs().max(1))
}

#[cfg(test)]
mod tests;
