//! Compares a release with its sums, and its parts with each other.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use flate2::read::GzDecoder;
use serde_json::Value;

use super::{MANIFEST, SIGNATURE, SUMS, openssl};
use crate::digest::sha256_of;

/// Verifies a release, the signature only with the public key, and returns what was verified.
///
/// # Errors
/// Names each file that is not as the sums say, is missing, or is not listed.
pub fn verify(directory: &Path, key: Option<&Path>) -> Result<String> {
    if let Some(key) = key {
        openssl("-verify", key, directory).with_context(|| format!("{SIGNATURE} is not {SUMS}' by this key"))?;
    }
    let read = |name: &str| {
        fs::read_to_string(directory.join(name))
            .with_context(|| format!("cannot read {name} of {}", directory.display()))
    };
    let (listed, found) = (parse(&read(SUMS)?)?, parse(&sums(directory)?)?);
    let wrong = compare(&listed, &found);
    ensure!(wrong.is_empty(), "{}", wrong.join("; "));

    let only = |suffix: &str| {
        let names: Vec<_> = found.keys().filter(|name| name.ends_with(suffix)).collect();
        let [name] = names[..] else { bail!("the release has {} files *{suffix}, not one", names.len()) };
        Ok((name, File::open(directory.join(name))?))
    };
    let (archive, file) = only(".oci.tar")?;
    let digest = image_digest(file).with_context(|| archive.clone())?;
    let (chart, file) = only(".tgz")?;
    let image = chart_image(file).with_context(|| chart.clone())?;
    ensure!(image.ends_with(&format!("@{digest}")), "{archive} has the image {digest}, and {chart} installs {image}");
    let manifest = read(MANIFEST)?;
    let installed = self::image(&manifest)?;
    ensure!(installed == image, "{MANIFEST} installs {installed}, and {chart} {image}");
    let signature = match (key, found_signature(directory)) {
        (Some(_), _) => "signed by this key",
        (None, true) => "its signature was not checked, which takes --key",
        (None, false) => "unsigned",
    };
    Ok(format!("{}: {} files, {image}, {signature}\n", directory.display(), found.len()))
}

/// Returns the one image that a manifest names. Pure.
///
/// # Errors
/// If it names another number of images.
pub fn image(manifest: &str) -> Result<&str> {
    let images: Vec<_> =
        manifest.lines().filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("image: ")).collect();
    let [image] = images[..] else { bail!("{MANIFEST} names {} images", images.len()) };
    Ok(image)
}

fn found_signature(directory: &Path) -> bool {
    directory.join(SIGNATURE).exists()
}

/// Returns the sums of all files but themselves and their signature, as `sha256sum` prints them.
pub(super) fn sums(directory: &Path) -> Result<String> {
    let mut lines = Vec::new();
    for entry in fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name().into_string().ok().context("a file's name is not UTF-8")?;
        ensure!(entry.file_type()?.is_file(), "{name} is not a file");
        if name != SUMS && name != SIGNATURE {
            lines.push((name, sha256_of(File::open(entry.path())?)?));
        }
    }
    lines.sort();
    Ok(lines.iter().map(|(name, sum)| format!("{sum}  {name}\n")).collect())
}

/// Returns the sums by file. Pure.
fn parse(sums: &str) -> Result<BTreeMap<String, String>> {
    let lines = sums.lines().map(|line| {
        let (sum, name) = line.split_once("  ").with_context(|| format!("{SUMS} has the line {line:?}"))?;
        Ok((name.to_owned(), sum.to_owned()))
    });
    lines.collect()
}

/// Says how the files differ from the list. Pure.
fn compare(listed: &BTreeMap<String, String>, found: &BTreeMap<String, String>) -> Vec<String> {
    let names: BTreeSet<_> = listed.keys().chain(found.keys()).collect();
    let wrong = names.into_iter().filter_map(|name| match (listed.get(name), found.get(name)) {
        (Some(listed), Some(found)) if listed == found => None,
        (Some(_), Some(_)) => Some(format!("{name} is not what {SUMS} says")),
        (_, None) => Some(format!("{name} is missing")),
        (None, _) => Some(format!("{name} is not in {SUMS}")),
    });
    wrong.collect()
}

/// Returns the digest of the archive's one image, of which each blob is there and what its digest says.
fn image_digest(archive: File) -> Result<String> {
    let (mut blobs, mut names) = (BTreeMap::new(), BTreeSet::new());
    let mut index = Value::Null;
    for entry in tar::Archive::new(archive).entries()? {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        ensure!(names.insert(path.clone()), "{path} is in it twice");
        if path == "index.json" {
            index = serde_json::from_reader(&mut entry)?;
        } else if let Some(named) = path.strip_prefix("blobs/sha256/") {
            // Documents are small; layers are not kept.
            let mut start = Vec::new();
            entry.by_ref().take(1 << 16).read_to_end(&mut start)?;
            let digest = sha256_of(start.as_slice().chain(&mut entry))?;
            ensure!(digest == named, "the blob {named} is another one");
            blobs.insert(format!("sha256:{digest}"), start);
        } else {
            ensure!(path == "oci-layout", "{path} does not belong in an image");
        }
    }
    let blob = |descriptor: &Value| {
        let digest = descriptor["digest"].as_str().context("a descriptor has no digest")?;
        blobs.get_key_value(digest).with_context(|| format!("there is no blob {digest}"))
    };
    let [manifest] = index["manifests"].as_array().map(Vec::as_slice).unwrap_or_default() else {
        bail!("it does not have one image");
    };
    let (digest, manifest) = blob(manifest)?;
    let manifest: Value = serde_json::from_slice(manifest)?;
    let layers = manifest["layers"].as_array().context("the image has no layers")?;
    layers.iter().chain([&manifest["config"]]).try_for_each(|descriptor| blob(descriptor).map(drop))?;
    Ok(digest.clone())
}

/// Returns the image that the chart installs.
fn chart_image(chart: File) -> Result<String> {
    for entry in tar::Archive::new(GzDecoder::new(chart)).entries()? {
        let mut entry = entry?;
        if entry.path()?.ends_with("clientapp-operator/values.yaml") {
            let mut text = String::new();
            entry.read_to_string(&mut text)?;
            let values: Value = serde_yaml::from_str(&text)?;
            let field = |name: &str| values["image"][name].as_str().with_context(|| format!("no image.{name}"));
            return Ok(format!("{}@{}", field("repository")?, field("digest")?));
        }
    }
    bail!("it has no values")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_difference_names_its_file() {
        let listed = parse("aa  same\nbb  other\ncc  gone\n").expect("these are sums");
        let found = parse("aa  same\nb0  other\ndd  more\n").expect("these are sums");
        assert_eq!(
            compare(&listed, &found),
            ["gone is missing", "more is not in SHA256SUMS", "other is not what SHA256SUMS says"]
        );
        assert!(compare(&listed, &listed).is_empty());
        parse("aa same\n").expect_err("sha256sum prints two spaces");
    }
}
