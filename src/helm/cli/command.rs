//! Builds the arguments of every helm run (pure).
//!
//! No argument is secret, so an argv can be logged: values are passed on standard input and credentials in files. No input can act as a
//! flag: everything in an argv has a type that was validated, and neither names nor absolute paths start with `-`.

use std::{ffi::OsString, fmt, path::Path, path::PathBuf, str::FromStr, time::Duration};

use super::{credentials::Credentials, redact::Redactor};
use crate::{
    helm::source::ChartSource,
    platform::{account::AccountName, key::is_label},
};

/// Labels of Helm's storage Secret: the digest of what was deployed, the operator process that started the run, and the run.
pub(crate) const DIGEST_LABEL: &str = "apps.bnerd-operator.local/digest";
pub(crate) const HOLDER_LABEL: &str = "apps.bnerd-operator.local/holder";
pub(crate) const OPERATION_LABEL: &str = "apps.bnerd-operator.local/operation";
/// Label of Helm's storage Secret with the revision that the run was expected to create.
///
/// Helm copies labels to later revisions: `upgrade` merges its own into those of the newest revision, and `rollback` copies those of
/// the revision it returns to. So all of our labels are still there after another Helm client's upgrade or rollback. Only on a
/// revision of our own does this label equal Helm's `version` label.
pub(crate) const REVISION_LABEL: &str = "apps.bnerd-operator.local/revision";

/// Helm's name of the chart repository during a pull.
const REPOSITORY: &str = "charts";

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
                    // Rejected text can be of any length.
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
    /// A chart's name. The rule is Helm's, with an additional limit on the length.
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
    /// A label's value. The rule is Kubernetes', except that it may be neither empty nor `null`, with which `helm upgrade --labels`
    /// removes a label.
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

/// The labels on the storage Secret of a revision that the operator creates.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{DIGEST_LABEL}={digest},{HOLDER_LABEL}={holder},{OPERATION_LABEL}={operation},{REVISION_LABEL}={revision}")]
pub(crate) struct ReleaseLabels {
    /// The digest of chart, values and flags, shortened: a SHA-256 in hexadecimal is one character too long for a label.
    pub digest: LabelValue,
    pub holder: LabelValue,
    pub operation: LabelValue,
    pub revision: u32,
}

/// Neither this nor its command implements `Debug`, so that nothing prints the values.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Upgrade {
    pub release: ReleaseName,
    /// Its namespace, which must exist.
    pub namespace: Namespace,
    /// The ServiceAccount of that namespace whose rights helm has.
    pub account: AccountName,
    /// Absolute path of the packaged chart.
    pub chart: PathBuf,
    /// The values: a JSON document that means the same when parsed as YAML.
    pub values: String,
    /// Redacts messages about the run.
    pub redactor: Redactor,
    pub labels: ReleaseLabels,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Uninstall {
    pub release: ReleaseName,
    pub namespace: Namespace,
    /// The ServiceAccount of that namespace whose rights helm has.
    pub account: AccountName,
}

/// Helm's tests of a release.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct TestRequest {
    pub release: ReleaseName,
    pub namespace: Namespace,
    /// The ServiceAccount of that namespace whose rights helm has.
    pub account: AccountName,
    /// How long each test may take, in whole seconds.
    pub timeout: Duration,
    /// Redacts messages about the run.
    pub redactor: Redactor,
}

/// Flags that are the same for every run of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flags {
    /// How many revisions of a release Helm keeps, at least 1.
    pub history_max: u32,
    /// Helm's timeout for each hook, in whole seconds.
    pub hook_timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub(crate) enum Verb {
    Version,
    Upgrade,
    Uninstall,
    Test,
    Pull,
}

/// The argv of a helm run, and its standard input.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct HelmCommand {
    verb: Verb,
    args: Vec<OsString>,
    stdin: Option<String>,
    redactor: Redactor,
}

impl HelmCommand {
    pub(crate) fn version() -> Self {
        Self::new(Verb::Version).arg("--template").arg("{{.Version}}")
    }

    /// Returns what [`HelmCommand::upgrade`] would make of a release, as JSON. Templates look up what is in the cluster, as they do then.
    pub(crate) fn plan(request: &Upgrade, flags: Flags) -> Self {
        Self::upgrade(request, flags).arg("--dry-run=server").option("--output", "json")
    }

    /// Returns true if its output is a whole release.
    pub(in crate::helm) fn prints_release(&self) -> bool {
        self.args.iter().any(|arg| arg == "--output")
    }

    /// Installs or upgrades a release.
    ///
    /// No `--wait` (readiness is watched), no `--rollback-on-failure` (it uninstalls a failed first install), no `--set` (it has its
    /// own syntax), no `--create-namespace` (the namespace belongs to the tenant, not to the release).
    pub(crate) fn upgrade(request: &Upgrade, flags: Flags) -> Self {
        let Upgrade { release, namespace, account: _, chart, values, redactor, labels } = request;
        let mut command = Self::new(Verb::Upgrade)
            .arg("--install")
            .arg(release.as_str())
            .arg(chart)
            .option("--namespace", namespace.as_str())
            // On standard input, so that the values are never written to disk.
            .option("--values", "-")
            // Without values, Helm would reuse those of the previous revision. Only the spec counts.
            .arg("--reset-values")
            .option("--history-max", flags.history_max.to_string())
            .option("--timeout", go_duration(flags.hook_timeout))
            .option("--labels", labels.to_string())
            // Notes are written for a user at a terminal, and many explain how to get a password.
            .arg("--hide-notes")
            // This check takes more than half of a run's time, and the API server validates server-side apply strictly.
            .arg("--disable-openapi-validation")
            // Overwrites changes of other clients; otherwise a single `kubectl scale` would block all later upgrades. This needs
            // server-side apply, even after a revision that another Helm client has created without it.
            .arg("--server-side=true")
            .arg("--force-conflicts");
        command.stdin = Some(values.clone());
        command.redactor = redactor.clone();
        command
    }

    /// Uninstalls a release and its history.
    ///
    /// Without `--ignore-not-found`: with it, helm 4.3.1 reports success for *any* failure to read the release's history, including a
    /// 403 or an unreachable API server (`if u.IgnoreNotFound { return nil, nil }` in `action/uninstall.go`). A missing release is
    /// recognized by helm's message instead.
    ///
    /// Background cascade: with foreground, the objects would linger in deletion, and a new release of the same name would adopt them
    /// just before they vanish.
    pub(crate) fn uninstall(request: &Uninstall, flags: Flags) -> Self {
        let Uninstall { release, namespace, account: _ } = request;
        Self::new(Verb::Uninstall)
            .arg(release.as_str())
            .option("--namespace", namespace.as_str())
            .option("--cascade", "background")
            .option("--timeout", go_duration(flags.hook_timeout))
    }

    /// Runs the tests of the newest revision. Without `--logs`: a log may contain anything, and the users who may read a status are
    /// not those who may read logs.
    pub(crate) fn test(request: &TestRequest) -> Self {
        let TestRequest { release, namespace, account: _, timeout, redactor } = request;
        let command = Self::new(Verb::Test)
            .arg(release.as_str())
            .option("--namespace", namespace.as_str())
            .option("--timeout", go_duration(*timeout));
        Self { redactor: redactor.clone(), ..command }
    }

    /// Fetches the index of a chart repository into the directory of a pull, which is the first half of the pull. helm records the
    /// credentials there for the second half, in a file that only its owner may read, and sends them to no other host.
    pub(crate) fn fetch_index(url: &str, into: &Path, credentials: &Credentials) -> Self {
        let args = vec!["repo".into(), "add".into(), REPOSITORY.into(), url.into()];
        let mut command = Self { args, ..Self::pulling(credentials) }.tls(credentials);
        if let Some((username, password)) = &credentials.login {
            command = command.arg(format!("--username={username}")).arg("--password-stdin");
            // helm removes one newline.
            command.stdin = Some(format!("{password}\n"));
        }
        command.repository(into)
    }

    /// Returns the path of the index that was fetched for a pull.
    pub(crate) fn index(pull: &Path) -> PathBuf {
        pull.join(format!("repository/{REPOSITORY}-index.yaml"))
    }

    /// Names the files of one pull, so that no other changes them. They are in a subdirectory, apart from the chart.
    fn repository(self, pull: &Path) -> Self {
        let dir = pull.join("repository");
        self.option("--repository-config", dir.join("config.yaml")).option("--repository-cache", dir)
    }

    /// Pulls a packaged chart into a directory, from a repository by the index that was fetched into it. What is of a directory of
    /// charts is in the other one already, and is only verified; `None` if there is no keyring for that.
    pub(crate) fn pull(
        source: &ChartSource,
        chart: &ChartName,
        version: &semver::Version,
        into: &Path,
        credentials: &Credentials,
    ) -> Option<Self> {
        let command = Self::pulling(credentials);
        let command = match source {
            ChartSource::Repository(_) => command.arg(format!("{REPOSITORY}/{chart}")).repository(into),
            ChartSource::Registry { url, plain_http } => {
                let command = command.arg(format!("{url}/{chart}")).tls(credentials);
                // With certificates, helm speaks TLS in any case.
                let is_plain = *plain_http && credentials.ca.is_none() && credentials.certificate.is_none();
                let command = if is_plain { command.arg("--plain-http") } else { command };
                match &credentials.registry_config {
                    Some(path) => command.option("--registry-config", path),
                    None => command,
                }
            }
            ChartSource::Directory(_) => {
                let command = Self { args: vec!["verify".into()], ..command };
                let command = command.arg(into.join(archive_name(chart, version)));
                return credentials.keyring.as_ref().map(|keyring| command.option("--keyring", keyring));
            }
        };
        let command = match &credentials.keyring {
            Some(keyring) => command.arg("--verify").option("--keyring", keyring),
            None => command,
        };
        Some(command.option("--version", version.to_string()).option("--destination", into))
    }

    fn pulling(credentials: &Credentials) -> Self {
        Self { redactor: credentials.redactor.clone(), ..Self::new(Verb::Pull) }
    }

    /// Names the authorities of the server's certificate, and the client's own certificate.
    fn tls(self, credentials: &Credentials) -> Self {
        let command = match &credentials.ca {
            Some(path) => self.option("--ca-file", path),
            None => self,
        };
        match &credentials.certificate {
            Some((certificate, key)) => command.option("--cert-file", certificate).option("--key-file", key),
            None => command,
        }
    }

    fn new(verb: Verb) -> Self {
        Self { verb, args: vec![verb.to_string().into()], stdin: None, redactor: Redactor::default() }
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

    /// Returns the arguments without the program, which can be logged, the standard input, and the redactor for messages.
    pub(in crate::helm) fn into_parts(self) -> (Vec<OsString>, Option<Vec<u8>>, Redactor) {
        (self.args, self.stdin.map(String::into_bytes), self.redactor)
    }
}

/// The command as typed in a shell, without the values.
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

/// Returns the file name of a packaged chart.
pub(in crate::helm) fn archive_name(chart: &ChartName, version: &semver::Version) -> String {
    format!("{chart}-{version}.tgz")
}

/// Formats a duration in whole seconds, at least one, because 0 means no timeout to Helm.
fn go_duration(duration: Duration) -> String {
    format!("{}s", duration.as_secs().max(1))
}

#[cfg(test)]
mod tests;
