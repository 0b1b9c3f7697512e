//! Makes all that a version is installed from, in one directory: the image as an archive, the operator's chart and manifest with its digest,
//! the kubectl plugin, an SBOM, notes and sums. Needs no daemon, and no network but package registries. Two runs give the same bytes. An
//! **effect**.

mod sbom;
mod verify;

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::SystemTime;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::helm::Helm;
use crate::image::{self, ARCHITECTURE, Image, Layer};
use crate::manifests;
use crate::operator;
use crate::progress::Progress;
use crate::tools::{self, Tools};
pub use verify::{image, verify};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The file that `kubectl apply` takes.
pub const MANIFEST: &str = "clientapp-operator.yaml";
const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
/// No image of this size or more is made, in bytes.
const LIMIT: u64 = 150_000_000;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// The release: a directory that does not exist yet or, with --verify, that does
    pub directory: PathBuf,
    /// Where the image will be pushed; manifest and chart name it with its digest
    #[arg(long, value_name = "REGISTRY/NAME", required_unless_present = "verify", value_parser = repository)]
    pub repository: Option<String>,
    /// Check a release instead of making one
    #[arg(long, conflicts_with = "repository")]
    pub verify: bool,
    /// A private key in PEM, with which openssl signs SHA256SUMS; with --verify, the public key
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
}

/// Reads the name of an image without tag and digest.
fn repository(text: &str) -> Result<String, String> {
    let (registry, path) = text.split_once('/').unwrap_or_default();
    let is_made_of = |text: &str, more: &str| {
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || more.as_bytes().contains(&byte);
        !text.is_empty() && text.bytes().all(is_allowed)
    };
    let is_path = path.split('/').all(|part| is_made_of(part, "-._"));
    (is_made_of(registry, "-.:") && is_path).then(|| text.to_owned()).ok_or_else(|| {
        "must be a registry and a name without a tag, such as registry.example.com/platform/clientapp-operator"
            .to_owned()
    })
}

/// The programs of the image.
#[derive(Clone, Debug)]
pub struct Programs {
    pub operator: PathBuf,
    pub helm: PathBuf,
    pub restic: PathBuf,
}

/// Makes a release or verifies one, and returns what there is to say about it.
///
/// # Errors
/// If something cannot be built, or is not as it was made.
pub fn run(options: &Options, progress: &Progress) -> Result<String> {
    let Options { directory, repository, verify: _, key } = options;
    let Some(repository) = repository else { return verify(directory, key.as_deref()) };
    let tools = Tools::ensure(progress)?;
    let [helm, restic] = tools::of_image(progress)?;
    let task = progress.task("building the operator for its image");
    let operator = operator::image_binary()?;
    task.done();
    let task = progress.task("making the release");
    let said = make(directory, repository, &Programs { operator, helm, restic }, &tools, key.as_deref())?;
    task.done();
    Ok(format!("{said}{}", verify(directory, None)?))
}

/// Writes all files, and returns what each part of the image weighs. Without `key`, nothing is signed.
///
/// # Errors
/// If the directory has files already, or a program fails.
pub fn make(
    directory: &Path,
    repository: &str,
    programs: &Programs,
    tools: &Tools,
    key: Option<&Path>,
) -> Result<String> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    ensure!(fs::read_dir(directory)?.next().is_none(), "{} has files: name an empty directory", directory.display());
    let (image, said) = write_image(directory, repository, programs)?;
    fs::write(directory.join(MANIFEST), manifest(tools, &image)?)?;
    package_chart(directory, &image, tools)?;
    let bill = sbom::document(&image, VERSION, programs)?;
    fs::write(directory.join(named("cdx.json")), serde_json::to_string_pretty(&bill)? + "\n")?;
    let plugin = directory.join(format!("kubectl-clientapp-{VERSION}-linux-{ARCHITECTURE}"));
    fs::copy(&programs.operator, &plugin)?;
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755))?;
    let changelog = fs::read_to_string(manifests::directory().with_file_name("CHANGELOG.md"))?;
    fs::write(directory.join("RELEASE_NOTES.md"), notes(&changelog, &image)?)?;
    fs::write(directory.join(SUMS), verify::sums(directory)?)?;
    if let Some(key) = key {
        openssl("-sign", key, directory)?;
    }
    Ok(said)
}

/// Returns the name of the image's archive.
#[must_use]
pub fn archive() -> String {
    named("oci.tar")
}

fn named(kind: &str) -> String {
    format!("clientapp-operator-{VERSION}-linux-{ARCHITECTURE}.{kind}")
}

/// Returns the image's settings, which are those of the Dockerfile.
#[must_use]
pub fn image_config() -> Value {
    json!({
        "User": "65532:65532", "Env": ["CLIENTAPP_HELM=/helm", "CLIENTAPP_RESTIC=/restic"],
        "ExposedPorts": {"8080/tcp": {}, "8090/tcp": {}}, "Entrypoint": ["/clientapp-operator"], "Cmd": ["run"],
    })
}

/// Writes the archive, and returns the image's name with its digest, and a table of what its parts weigh.
fn write_image(directory: &Path, repository: &str, programs: &Programs) -> Result<(String, String)> {
    let Programs { operator, helm, restic } = programs;
    let scratch = tempfile::tempdir()?;
    let path = |name: &str| scratch.path().join(format!("{name}.tar"));
    let base = Layer::new(&path("base"), |files| {
        for parent in ["etc", "etc/ssl", "etc/ssl/certs"] {
            files.directory(parent, 0o755, 0)?;
        }
        files.file("etc/ssl/certs/ca-certificates.crt", 0o644, authorities().as_bytes())?;
        // Writable even if no volume is mounted.
        files.directory("tmp", 0o755, 65532)
    })?;
    let mut layers = vec![base.compressed()?];
    let mut said = String::new();
    // What changes most often is last; a registry that has the others gets only that.
    for (name, program) in [("helm", helm), ("restic", restic), ("clientapp-operator", operator)] {
        let plain = Layer::new(&path(name), |files| files.program(name, program))?;
        let layer = plain.clone().compressed()?;
        said += &format!("{name}: {}, compressed {}\n", megabytes(plain.size()), megabytes(layer.size()));
        layers.push(layer);
    }
    let weight = layers.iter().map(Layer::size).sum();
    ensure!(weight < LIMIT, "the image has {}: it must have less than {}", megabytes(weight), megabytes(LIMIT));
    said += &format!("image, compressed: {}\n", megabytes(weight));
    let image = Image { names: vec![format!("{repository}:{VERSION}")], config: image_config(), layers };
    let index = image::write(&[image], File::create(directory.join(archive()))?)?;
    let digest = index["manifests"][0]["digest"].as_str().context("the image has a digest")?;
    Ok((format!("{repository}@{digest}"), said))
}

fn megabytes(bytes: u64) -> String {
    let tenths = bytes / 100_000;
    format!("{}.{} MB", tenths / 10, tenths % 10)
}

/// Returns Mozilla's authorities for servers, in PEM.
fn authorities() -> String {
    let encoded = webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().map(|authority| {
        let text = STANDARD.encode(authority);
        let lines: Vec<_> = text.as_bytes().chunks(64).map(String::from_utf8_lossy).collect();
        format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
    });
    encoded.collect()
}

/// Returns the kustomization's objects with this image.
///
/// # Errors
/// If kubectl fails.
pub fn manifest(tools: &Tools, image: &str) -> Result<String> {
    let output = Command::new(&tools.kubectl).arg("kustomize").arg(manifests::directory()).output();
    let output = output.context("cannot run kubectl")?;
    ensure!(output.status.success(), "kubectl kustomize: {}", String::from_utf8_lossy(&output.stderr).trim());
    let objects = String::from_utf8(output.stdout)?;
    replace_once(&objects, &format!("image: clientapp-operator:{VERSION}\n"), &format!("image: {image}\n"))
}

/// Packages the operator's chart so that it installs this image.
fn package_chart(directory: &Path, image: &str, tools: &Tools) -> Result<()> {
    let (repository, digest) = image.split_once('@').context("the image has a digest")?;
    let scratch = tempfile::tempdir()?;
    let chart = scratch.path().join("clientapp-operator");
    copy(&manifests::directory().join("chart"), &chart)?;
    let values = fs::read_to_string(chart.join("values.yaml"))?;
    let values = replace_once(&values, "repository: clientapp-operator\n", &format!("repository: {repository}\n"))?;
    fs::write(chart.join("values.yaml"), replace_once(&values, "digest: \"\"\n", &format!("digest: {digest}\n"))?)?;
    // helm archives the times of files.
    age(&chart)?;
    let [chart, directory] = [chart, std::path::absolute(directory)?].map(|path| path.display().to_string());
    let arguments = ["package", &chart, "--version", VERSION, "--app-version", VERSION, "--destination", &directory];
    let ran = Helm::new(&tools.helm)?.run(&arguments)?;
    ensure!(ran.success, "helm package: {}", ran.stderr.trim());
    Ok(())
}

/// Copies a directory with the files that its links lead to.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return fs::copy(from, to).map(drop).with_context(|| format!("cannot copy {}", from.display()));
    }
    fs::create_dir(to)?;
    fs::read_dir(from)?.try_for_each(|entry| {
        let entry = entry?;
        copy(&entry.path(), &to.join(entry.file_name()))
    })
}

/// Gives all files the oldest time.
fn age(path: &Path) -> Result<()> {
    if path.is_dir() {
        return fs::read_dir(path)?.try_for_each(|entry| age(&entry?.path()));
    }
    Ok(File::options().append(true).open(path)?.set_modified(SystemTime::UNIX_EPOCH)?)
}

fn replace_once(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.matches(from).count() == 1, "{from:?} does not occur once");
    Ok(text.replace(from, to))
}

/// Returns the newest section of the changelog. Pure.
fn notes(changelog: &str, image: &str) -> Result<String> {
    let mut sections = changelog.split("\n## ").skip(1);
    let (name, changes) =
        sections.next().and_then(|section| section.split_once('\n')).context("no section of changes")?;
    let title = if name.starts_with(VERSION) { VERSION.to_owned() } else { format!("{VERSION} ({name})") };
    Ok(format!("# clientapp-operator {title}\n\nImage: `{image}`\n\n{}\n", changes.trim()))
}

/// Signs the sums, or checks their signature.
fn openssl(does: &str, key: &Path, directory: &Path) -> Result<()> {
    let [sums, signature] = [SUMS, SIGNATURE].map(|name| directory.join(name));
    let mut command = Command::new("openssl");
    command.args(["dgst", "-sha256", does]).arg(key);
    command.arg(if does == "-sign" { "-out" } else { "-signature" }).arg(signature).arg(sums);
    // On a terminal it asks for the key's passphrase.
    let output = command.stdin(Stdio::inherit()).output().context("cannot run openssl")?;
    let said = [output.stdout, output.stderr].concat();
    let failed = format!("openssl dgst {does} {}: {}", key.display(), String::from_utf8_lossy(&said).trim());
    ensure!(output.status.success(), "{failed}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_the_newest_section() {
        let changelog = "# Changelog\n\n## Unreleased\n\n### Added\n\n- B\n\n## 0.1.0\n\n- A\n";
        let expected =
            |title: &str, changes: &str| format!("# clientapp-operator {title}\n\nImage: `a@b`\n\n{changes}\n");
        let unreleased = expected(&format!("{VERSION} (Unreleased)"), "### Added\n\n- B");
        assert_eq!(notes(changelog, "a@b").expect("it has a section"), unreleased);
        let released = format!("# Changelog\n\n## {VERSION} - 2026-11-30\n\n- A\n");
        assert_eq!(notes(&released, "a@b").expect("it has a section"), expected(VERSION, "- A"));
        notes("# Changelog\n", "a@b").expect_err("it has none");
    }

    #[test]
    fn a_repository_has_a_registry_and_neither_tag_nor_digest() {
        for good in ["registry.example.com/clientapp-operator", "localhost:5000/a/b_c.d-e"] {
            assert_eq!(repository(good).as_deref(), Ok(good));
        }
        for bad in ["", "a", "a/", "/a", "a/b:1.0", "a/b@sha256:0", "a//b", "A/b", "a/B", "https://a/b", "a/b c"] {
            repository(bad).expect_err(bad);
        }
    }

    #[test]
    fn authorities_are_those_of_mozilla_in_pem() {
        let text = authorities();
        assert!(text.matches("BEGIN CERTIFICATE").count() > 100);
        assert!(text.lines().all(|line| line.len() <= 64));
    }

    #[test]
    fn a_text_that_is_not_there_once_is_not_replaced() {
        assert_eq!(replace_once("a: 1\n", "1", "2").expect("it is there"), "a: 2\n");
        replace_once("a: 11\n", "1", "2").expect_err("it is there twice");
        replace_once("a: 3\n", "1", "2").expect_err("it is not there");
    }
}
