//! Packaged charts: from a directory, or from a chart repository.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::Options;
use crate::charts::{NAME, file_name};
use crate::helm::Helm;
use crate::progress::Progress;

/// The oldest version that is supported.
const OLDEST: Version = Version(5, 5, 2);

/// A chart version without a pre-release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64, pub u64, pub u64);

impl Version {
    /// Returns the version that is written like this; `None` also for a pre-release.
    #[must_use]
    pub fn parse(text: &str) -> Option<Version> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        let version = Version(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// A packaged chart.
#[derive(Clone, Debug)]
pub struct Archive {
    pub version: Version,
    pub path: PathBuf,
    /// Major version of the app.
    pub app_major: u64,
    /// The chart's own values.
    values: Value,
}

impl Archive {
    /// Reads an archive.
    ///
    /// # Errors
    /// It is not a packaged chart with values.
    pub fn read(version: Version, path: PathBuf) -> Result<Archive> {
        let file = std::fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let (mut values, mut metadata) = (Value::Null, Value::Null);
        for entry in tar::Archive::new(GzDecoder::new(file)).entries()? {
            let mut entry = entry?;
            let inside = entry.path()?.into_owned();
            let into = match inside.strip_prefix(NAME).unwrap_or(&inside).to_str() {
                Some("values.yaml") => &mut values,
                Some("Chart.yaml") => &mut metadata,
                _ => continue,
            };
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            *into = serde_yaml::from_str(&text).with_context(|| format!("{}: {}", path.display(), inside.display()))?;
        }
        let app = metadata["appVersion"].as_str().and_then(|version| version.split('.').next()?.parse().ok());
        let app_major = app.with_context(|| format!("{}: Chart.yaml has no appVersion", path.display()))?;
        Ok(Archive { version, path, app_major, values })
    }

    #[cfg(test)]
    pub(super) fn for_tests(version: Version, app_major: u64, path: PathBuf) -> Archive {
        Archive { version, path, app_major, values: Value::Null }
    }

    /// Returns whether the chart knows a part, by its path in the values.
    #[must_use]
    pub fn has(&self, part: &str) -> bool {
        self.values.pointer(&format!("/{part}")).is_some()
    }
}

/// Where packaged charts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Directory(PathBuf),
    /// The URL of a chart repository.
    Repository(String),
}

impl Source {
    /// Returns the source that the options name.
    #[must_use]
    pub fn of(options: &Options) -> Option<Source> {
        let repository = options.repository.as_deref().map(|source| source.trim_end_matches('/'));
        match (&options.directory, repository) {
            (Some(directory), _) => Some(Source::Directory(directory.clone())),
            (None, Some(url)) if url.contains("://") => Some(Source::Repository(url.to_owned())),
            (None, Some(directory)) => Some(Source::Directory(directory.into())),
            (None, None) => None,
        }
    }

    /// Returns the archives of the wanted versions, or of all, oldest first. Those of a repository are fetched into a directory.
    ///
    /// # Errors
    /// If there is none, or one is not a packaged chart.
    pub fn archives(&self, versions: &[String], helm: &Path, into: &Path, progress: &Progress) -> Result<Vec<Archive>> {
        let wanted = |version: &Version| {
            let text = version.to_string();
            let fits = |prefix: &String| text == *prefix || text.starts_with(&format!("{prefix}."));
            *version >= OLDEST && (versions.is_empty() || versions.iter().any(fits))
        };
        let mut found = match self {
            Source::Directory(directory) => listed(directory)?,
            Source::Repository(url) => fetched(url, helm, into, wanted, progress)?,
        };
        found.retain(|(version, _)| wanted(version));
        found.sort();
        if found.is_empty() {
            bail!("{self:?}: there is no {NAME}-<version>.tgz of {OLDEST} or later that was asked for");
        }
        found.into_iter().map(|(version, path)| Archive::read(version, path)).collect()
    }
}

fn listed(directory: &Path) -> Result<Vec<(Version, PathBuf)>> {
    let entries = std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = std::path::absolute(entry?.path())?;
        let version = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix(NAME)?.strip_prefix('-')?.strip_suffix(".tgz"));
        found.extend(version.and_then(Version::parse).map(|version| (version, path.clone())));
    }
    Ok(found)
}

fn fetched(
    url: &str,
    helm: &Path,
    into: &Path,
    wanted: impl Fn(&Version) -> bool,
    progress: &Progress,
) -> Result<Vec<(Version, PathBuf)>> {
    if url.starts_with("oci://") {
        bail!("{url}: a registry does not list its versions; pull archives into a directory, and name that");
    }
    let helm = Helm::new(helm)?;
    let run = |arguments: &[&str]| -> Result<String> {
        let ran = helm.run(arguments)?;
        if ran.success { Ok(ran.stdout) } else { bail!("helm {}: {}", arguments.join(" "), ran.stderr.trim()) }
    };
    run(&["repo", "add", "charts", url])?;
    let chart = format!("charts/{NAME}");
    let listed: Vec<Value> =
        serde_json::from_str(&run(&["search", "repo", &chart, "--versions", "--output", "json"])?)?;
    let of_chart = listed.iter().filter(|found| found["name"] == chart.as_str());
    let versions: Vec<_> =
        of_chart.filter_map(|found| Version::parse(found["version"].as_str()?)).filter(wanted).collect();
    let task = progress.task(format!("fetching {} charts", versions.len()));
    let directory = into.to_string_lossy();
    let mut found = Vec::new();
    for version in versions {
        run(&["pull", &chart, "--version", &version.to_string(), "--destination", &directory])?;
        found.push((version, into.join(file_name(&version.to_string()))));
    }
    task.done();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order_and_no_pre_releases() {
        for (text, version) in [
            ("9.2.10", Some(Version(9, 2, 10))),
            ("9.2", None),
            ("9.2.1.1", None),
            ("9.2.1-rc.1", None),
            ("README", None),
        ] {
            assert_eq!(Version::parse(text), version, "{text}");
        }
        assert!(Version(9, 2, 10) > Version(9, 2, 9));
        assert_eq!(Version(8, 9, 1).to_string(), "8.9.1");
    }
}
