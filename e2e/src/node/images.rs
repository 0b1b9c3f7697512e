//! The images of the node, made without a registry: most are the root file system with a few more files, under the names that charts and
//! operators ask for.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tar::{Builder, EntryType, Header};

use super::files::{CONTAINERD_SOCKET, PAUSE, path};
use crate::digest::{hex, sha256};

pub(super) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// An image under one or more names.
pub(super) struct Image {
    pub(super) names: Vec<String>,
    /// `config` of its OCI configuration.
    pub(super) config: Value,
    pub(super) layers: Vec<Layer>,
}

/// A file system that lies over those before it.
#[derive(Clone)]
pub(super) struct Layer {
    path: PathBuf,
    digest: String,
    size: u64,
}

impl Layer {
    /// An archive as it is.
    pub(super) fn of(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                read => hash.update(&buffer[..read]),
            }
        }
        Ok(Self { path: path.to_owned(), digest: hex(&hash.finalize()), size: file.stream_position()? })
    }

    /// These files, made by `fill`.
    pub(super) fn new(name: &str, fill: impl FnOnce(&mut Files) -> Result<()>) -> Result<Self> {
        let path = path("layers").join(format!("{name}.tar"));
        let mut files = Files(Builder::new(File::create(&path)?));
        fill(&mut files)?;
        files.0.into_inner()?;
        Self::of(&path)
    }
}

/// The files of a layer.
pub(super) struct Files(Builder<File>);

impl Files {
    /// Adds a directory of this user. `mode`: such as 0o755.
    pub(super) fn directory(&mut self, path: &str, mode: u32, user: u64) -> Result<()> {
        let mut header = header(EntryType::Directory, mode, 0);
        header.set_uid(user);
        header.set_gid(user);
        Ok(self.0.append_data(&mut header, path, io::empty())?)
    }

    /// Adds a file with this content.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        Ok(self.0.append_data(&mut header(EntryType::Regular, mode, content.len() as u64), path, content)?)
    }

    /// Adds a program of this machine.
    pub(super) fn program(&mut self, path: &str, program: &Path) -> Result<()> {
        let content = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        self.file(path, 0o755, &content)
    }

    /// Adds a symbolic link.
    pub(super) fn link(&mut self, path: &str, target: &str) -> Result<()> {
        Ok(self.0.append_link(&mut header(EntryType::Symlink, 0o777, 0), path, target)?)
    }
}

fn header(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header
}

/// The image of the container that holds a pod's namespaces: it sleeps until it is killed.
pub(super) fn pause(debian: &Layer) -> Image {
    Image {
        names: vec![PAUSE.to_owned()],
        config: json!({"Entrypoint": ["/bin/busybox", "sleep", "2147483647"]}),
        layers: vec![debian.clone()],
    }
}

/// Gives all images to containerd in one archive, so that each layer goes there once.
pub(super) fn import(images: &[Image]) -> Result<()> {
    let import = ctr(&["images", "import", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut import = import.context("cannot run ctr")?;
    let stdin = import.stdin.take().context("it is piped")?;
    let written = archive(images, stdin);
    ensure!(import.wait()?.success(), "ctr could not import the images");
    written?;
    for name in images.iter().flat_map(|image| &image.names) {
        // The kubelet neither pulls nor removes them.
        let labels = ["io.cri-containerd.image=managed", "io.cri-containerd.pinned=pinned"];
        let status = ctr(&["images", "label", name]).args(labels).stdout(Stdio::null()).status()?;
        ensure!(status.success(), "ctr could not label the image {name}");
    }
    Ok(())
}

fn ctr(arguments: &[&str]) -> Command {
    let mut command = Command::new("ctr");
    command.args(["--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]).args(arguments);
    command
}

/// Writes an OCI layout with all images.
fn archive(images: &[Image], to: impl Write) -> Result<()> {
    let mut archive = Builder::new(to);
    let mut written = BTreeSet::new();
    let mut index = Vec::new();
    for Image { names, config, layers } in images {
        let mut descriptors = Vec::new();
        for Layer { path, digest, size } in layers {
            if written.insert(digest.clone()) {
                archive.append_path_with_name(path, format!("blobs/sha256/{digest}"))?;
            }
            descriptors.push(json!({
                "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": format!("sha256:{digest}"), "size": size,
            }));
        }
        let diff_ids: Vec<_> = layers.iter().map(|layer| format!("sha256:{}", layer.digest)).collect();
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = blob(&mut archive, &mut written, "application/vnd.oci.image.config.v1+json", &config)?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": descriptors});
        let manifest = blob(&mut archive, &mut written, media_type, &manifest)?;
        index.extend(names.iter().map(|name| {
            let mut manifest = manifest.clone();
            manifest["annotations"] = json!({"io.containerd.image.name": name});
            manifest
        }));
    }
    let index = json!({"schemaVersion": 2, "manifests": index}).to_string();
    for (name, text) in [("index.json", index.as_str()), ("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)] {
        let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    archive.into_inner()?.flush()?;
    Ok(())
}

/// Writes a document and returns its descriptor.
fn blob(
    archive: &mut Builder<impl Write>,
    written: &mut BTreeSet<String>,
    media_type: &str,
    document: &Value,
) -> Result<Value> {
    let text = document.to_string();
    let digest = sha256(&text);
    if written.insert(digest.clone()) {
        let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
        archive.append_data(&mut header, format!("blobs/sha256/{digest}"), text.as_bytes())?;
    }
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": text.len()}))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::Read as _;

    use tempfile::TempDir;

    use super::*;

    fn layer(directory: &TempDir, name: &str) -> Layer {
        let path = directory.path().join(name);
        fs::write(&path, name).expect("it can be written");
        Layer::of(&path).expect("it can be read")
    }

    #[test]
    fn an_archive_has_each_layer_once_and_every_blob_is_what_its_digest_says() {
        let directory = tempfile::tempdir().expect("a directory");
        let (base, more) = (layer(&directory, "base"), layer(&directory, "more"));
        let images = [
            Image { names: vec!["a:1".to_owned(), "a:2".to_owned()], config: json!({}), layers: vec![base.clone()] },
            Image { names: vec!["b:1".to_owned()], config: json!({"User": "1"}), layers: vec![base, more] },
        ];
        let mut bytes = Vec::new();
        archive(&images, &mut bytes).expect("it is written");
        let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().expect("an archive") {
            let mut entry = entry.expect("an entry");
            let name = entry.path().expect("a path").display().to_string();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).expect("its content");
            assert_eq!(files.insert(name, content), None, "a file is there twice");
        }
        let index: Value = serde_json::from_slice(&files["index.json"]).expect("JSON");
        let names = index["manifests"].as_array().expect("a list").iter();
        let names: Vec<_> =
            names.map(|manifest| manifest["annotations"]["io.containerd.image.name"].as_str()).collect();
        assert_eq!(names, [Some("a:1"), Some("a:2"), Some("b:1")]);
        // Two layers, two configurations and two manifests.
        let blobs = files.iter().filter_map(|(name, content)| Some((name.strip_prefix("blobs/sha256/")?, content)));
        let blobs: BTreeMap<_, _> = blobs.collect();
        assert_eq!(blobs.len(), 6);
        for (digest, content) in &blobs {
            assert_eq!(sha256(content), **digest);
        }
        let manifest = index["manifests"][2]["digest"].as_str().expect("a digest").trim_start_matches("sha256:");
        let manifest: Value = serde_json::from_slice(blobs[manifest]).expect("JSON");
        for layer in manifest["layers"].as_array().expect("a list") {
            let digest = layer["digest"].as_str().expect("a digest").trim_start_matches("sha256:");
            assert_eq!(layer["size"], blobs[digest].len());
        }
    }
}
