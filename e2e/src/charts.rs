//! Packages the test chart: one source, `charts/nextcloud`, and for each version that is broken or special the few files in
//! `charts/overlays/<version>` that make it so. Their `values.yaml` is merged into the chart's.
//!
//! An archive has the same bytes every time, so that digests can be compared across runs and machines.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};
use serde_json::Value;

use crate::helm::Helm;

pub const NAME: &str = "nextcloud";
const VALUES: &str = "values.yaml";
/// The version that an app gets when it names none.
pub const DEFAULT: &str = "5.5.2";
/// The next patch version, with the same major version of the app.
pub const PATCH: &str = "5.5.3";
/// The next major version of the app.
pub const MAJOR: &str = "6.0.0";
/// Fails to render.
pub const UNRENDERABLE: &str = "5.9.1";
/// Its schema rejects all computed values.
pub const UNSATISFIABLE: &str = "5.9.2";
/// Its `pre-install,pre-upgrade` hook fails after one second, or after the number in the value `hookSeconds`.
pub const HOOK_FAILS: &str = "5.9.3";
/// Installs, but its pods are never scheduled.
pub const NEVER_READY: &str = "5.9.4";
/// Has a misspelt field in its Deployment, which strict validation rejects.
pub const MISSPELT: &str = "5.9.5";
/// Has an object of a kind that the cluster does not have.
pub const UNKNOWN_KIND: &str = "5.9.6";
/// Has what published charts have since: `image.registry`, routes, Jobs for the app's periodic work, and a Redis that refuses other
/// images unless it may have them.
pub const CURRENT: &str = "9.2.4";

/// Its claim has another name.
pub const RENAMES_CLAIM: &str = "5.9.20";
/// Has no `values.yaml`.
pub const WITHOUT_VALUES: &str = "5.9.21";

/// A version of the chart, and the version of the app in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub chart: &'static str,
    pub app: &'static str,
}

/// All versions, oldest first.
pub const VERSIONS: [Version; 12] = [
    Version { chart: DEFAULT, app: "29.0.4" },
    Version { chart: PATCH, app: "29.0.5" },
    Version { chart: UNRENDERABLE, app: "29.0.6" },
    Version { chart: UNSATISFIABLE, app: "29.0.6" },
    Version { chart: HOOK_FAILS, app: "29.0.6" },
    Version { chart: NEVER_READY, app: "29.0.6" },
    Version { chart: MISSPELT, app: "29.0.6" },
    Version { chart: UNKNOWN_KIND, app: "29.0.6" },
    Version { chart: RENAMES_CLAIM, app: "29.0.6" },
    Version { chart: WITHOUT_VALUES, app: "29.0.6" },
    Version { chart: MAJOR, app: "30.0.0" },
    Version { chart: CURRENT, app: "34.0.1" },
];

/// The content of an archive under a version's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Genuine,
    /// The chart with one more ConfigMap: a version that its publisher replaced after publishing it.
    Tampered,
    /// The chart with three subcharts and five more objects, of 400 KB: as much work for helm as the project's real
    /// chart.
    Large,
}

/// The archive of a version.
pub fn archive(version: &str, content: Content) -> Result<Vec<u8>> {
    archive_with(version, content, &[])
}

/// The same with more files, each as its path in the chart and its text.
pub fn archive_with(version: &str, content: Content, more: &[(&str, &str)]) -> Result<Vec<u8>> {
    let known = VERSIONS.iter().find(|known| known.chart == version);
    let version = known.with_context(|| format!("there is no version {version} of the test chart"))?;
    let mut files = BTreeMap::new();
    collect(&root().join(NAME), Path::new(""), &mut files)?;
    let overlay = root().join("overlays").join(version.chart);
    if overlay.exists() {
        let of_chart = files.get(Path::new(VALUES)).cloned().context("the chart has no values.yaml")?;
        collect(&overlay, Path::new(""), &mut files)?;
        if overlay.join(VALUES).exists() {
            let over = &files[Path::new(VALUES)];
            let mut values: Value = serde_yaml::from_slice(&of_chart)?;
            json_patch::merge(&mut values, &serde_yaml::from_slice(over)?);
            files.insert(VALUES.into(), serde_yaml::to_string(&values)?.into_bytes());
        }
    }
    if version.chart == WITHOUT_VALUES {
        files.remove(Path::new(VALUES));
    }
    let metadata = files.get_mut(Path::new("Chart.yaml")).context("the chart has no Chart.yaml")?;
    *metadata = stamp(&String::from_utf8(std::mem::take(metadata))?, version).into_bytes();
    match content {
        Content::Genuine => {}
        Content::Tampered => drop(files.insert("templates/tampered.yaml".into(), TAMPERED.as_bytes().to_vec())),
        Content::Large => files.extend(subcharts()),
    }
    files.extend(more.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec())));
    compress(&files)
}

/// Writes a version's archive into a directory and returns its path.
pub fn package(dir: &Path, version: &str, content: Content) -> Result<PathBuf> {
    let path = dir.join(file_name(version));
    fs::write(&path, archive(version, content)?).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

/// Writes every version's archive into a directory and returns their paths, oldest first.
pub fn package_all(dir: &Path) -> Result<Vec<PathBuf>> {
    VERSIONS.iter().map(|version| package(dir, version.chart, Content::Genuine)).collect()
}

/// The keys of `fixtures/signing`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Signer,
    Other,
}

impl Key {
    fn file(self, extension: &str) -> PathBuf {
        let name = if self == Key::Signer { "signer" } else { "other" };
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/signing/{name}.{extension}"))
    }

    /// The keyring with its public key.
    #[must_use]
    pub fn keyring(self) -> PathBuf {
        self.file("gpg")
    }
}

/// Has helm package a version, and sign it, in a directory. Returns the path of the archive, beside which the signature is.
pub fn package_signed(helm: &Path, dir: &Path, version: &str, key: Key) -> Result<PathBuf> {
    let helm = Helm::new(helm)?;
    tar::Archive::new(GzDecoder::new(archive(version, Content::Genuine)?.as_slice())).unpack(helm.home())?;
    let (keyring, destination) = (key.file("asc"), dir.to_owned());
    let options = [("--key", Path::new("test-")), ("--keyring", &keyring), ("--destination", &destination)];
    let options = options.iter().flat_map(|(option, value)| [Path::new(option), value]);
    let ran = helm.run(&["package", NAME, "--sign"].map(Path::new).into_iter().chain(options).collect::<Vec<_>>())?;
    if !ran.success {
        bail!("signing {version}: {}", ran.stderr);
    }
    Ok(dir.join(file_name(version)))
}

/// The file name of a version's archive.
pub fn file_name(version: &str) -> String {
    format!("{NAME}-{version}.tgz")
}

const TAMPERED: &str = "\
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-tampered
";

/// The files of three subcharts: a library, one that is switched off, and one with five ConfigMaps.
fn subcharts() -> impl Iterator<Item = (PathBuf, Vec<u8>)> {
    [("library", 0), ("off", 0), ("extras", 5)].into_iter().flat_map(|(name, objects)| {
        let parts = || 0..200;
        let values = parts().map(|n| {
            format!("# Whether part {n} of {name} is there, and what is in it; it is off by default, as most of a chart is\npart{n}:\n  enabled: false\n  text: part {n}\n")
        });
        let helpers = parts().map(|n| {
            format!("{{{{- define \"{name}.part{n}\" -}}}}\n{{{{- if .Values.part{n}.enabled }}}}\npart{n}: {{{{ .Values.part{n}.text | quote }}}}\n{{{{- else if eq .Release.Name \"{name}-{n}\" }}}}\npart{n}: {{{{ tpl .Values.part{n}.text . | trunc 63 | trimSuffix \"-\" }}}}\n{{{{- end }}}}\n{{{{- end -}}}}\n")
        });
        let mut files = vec![
            ("Chart.yaml".to_owned(), format!("apiVersion: v2\nname: {name}\nversion: 1.0.0\n")),
            ("values.yaml".to_owned(), values.collect()),
            ("templates/_helpers.tpl".to_owned(), helpers.collect()),
            ("README.md".to_owned(), format!("What {name} has of parts, line by line, for a reader of the chart.\n").repeat(700)),
        ];
        files.extend((0..objects).map(|n| {
            let includes = parts().skip(n * 10).take(10).map(|part| format!("    {{{{ include \"{name}.part{part}\" . }}}}\n"));
            let object = format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {{{{ .Release.Name }}}}-{name}-{n}\ndata:\n  text: |\n");
            (format!("templates/object{n}.yaml"), object + &includes.collect::<String>())
        }));
        files.into_iter().map(move |(file, text)| (PathBuf::from(format!("charts/{name}/{file}")), text.into_bytes()))
    })
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("charts")
}

/// Reads a directory's files, keyed by their path inside it; a later directory's file replaces an earlier one.
fn collect(dir: &Path, inside: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))? {
        let entry = entry?;
        let inside = inside.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), &inside, files)?;
        } else {
            files.insert(inside, fs::read(entry.path())?);
        }
    }
    Ok(())
}

fn stamp(metadata: &str, version: &Version) -> String {
    let line = |line: &str| match line.split_once(": ") {
        Some(("version", _)) => format!("version: {}\n", version.chart),
        Some(("appVersion", _)) => format!("appVersion: {}\n", version.app),
        _ => format!("{line}\n"),
    };
    metadata.lines().map(line).collect()
}

/// Neither header has a time or an owner, so the same files give the same bytes.
fn compress(files: &BTreeMap<PathBuf, Vec<u8>>) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(GzBuilder::new().write(Vec::new(), Compression::default()));
    for (path, content) in files {
        let mut header = tar::Header::new_ustar();
        header.set_size(content.len().try_into()?);
        header.set_mode(0o644);
        header.set_mtime(0);
        tar.append_data(&mut header, Path::new(NAME).join(path), content.as_slice())?;
    }
    Ok(tar.into_inner()?.finish()?)
}
