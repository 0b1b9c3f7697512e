//! Images as archives in the layout of OCI, made without a daemon: the same files give the same bytes.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Seek as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, EntryType, Header};

use crate::digest::{sha256, sha256_of};

/// The architecture of this machine's images, as OCI names it.
pub const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };

/// An image under one or more names.
pub struct Image {
    pub names: Vec<String>,
    /// `config` of its OCI configuration.
    pub config: Value,
    pub layers: Vec<Layer>,
}

/// A file system that lies over those before it.
#[derive(Clone)]
pub struct Layer {
    path: PathBuf,
    digest: String,
    size: u64,
    /// The digest of the archive that the layer is the compressed form of. `None`: it is not compressed.
    unpacked: Option<String>,
}

impl Layer {
    /// An archive as it is.
    pub fn of(path: &Path) -> Result<Self> {
        let mut file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        let digest = sha256_of(&mut file)?;
        Ok(Self { path: path.to_owned(), digest, size: file.stream_position()?, unpacked: None })
    }

    /// These files, made by `fill`, in an archive at `path`.
    pub fn new(path: &Path, fill: impl FnOnce(&mut Files) -> Result<()>) -> Result<Self> {
        let mut files = Files(Builder::new(File::create(path)?));
        fill(&mut files)?;
        files.0.into_inner()?;
        Self::of(path)
    }

    /// Returns the layer as registries keep it; one that is not compressed would get another digest on its way there.
    pub fn compressed(self) -> Result<Self> {
        let path = self.path.with_extension("tar.gz");
        let mut encoder = GzEncoder::new(File::create(&path)?, Compression::default());
        io::copy(&mut File::open(&self.path)?, &mut encoder)?;
        encoder.finish()?;
        Ok(Self { unpacked: Some(self.digest), ..Self::of(&path)? })
    }

    pub fn size(&self) -> u64 {
        self.size
    }
}

/// The files of a layer.
pub struct Files(Builder<File>);

impl Files {
    /// Adds a directory of this user. `mode`: such as 0o755.
    pub fn directory(&mut self, path: &str, mode: u32, user: u64) -> Result<()> {
        let mut header = header(EntryType::Directory, mode, 0);
        header.set_uid(user);
        header.set_gid(user);
        Ok(self.0.append_data(&mut header, path, io::empty())?)
    }

    /// Adds a file with this content.
    pub fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        Ok(self.0.append_data(&mut header(EntryType::Regular, mode, content.len() as u64), path, content)?)
    }

    /// Adds a program of this machine.
    pub fn program(&mut self, path: &str, program: &Path) -> Result<()> {
        let content = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
        self.file(path, 0o755, &content)
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) -> Result<()> {
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

/// Writes an OCI layout with all images, and returns its index.
pub fn write(images: &[Image], to: impl Write) -> Result<Value> {
    let mut archive = Builder::new(to);
    let mut written = BTreeSet::new();
    let mut index = Vec::new();
    for Image { names, config, layers } in images {
        let mut descriptors = Vec::new();
        for Layer { path, digest, size, unpacked } in layers {
            if written.insert(digest.clone()) {
                let mut header = header(EntryType::Regular, 0o644, *size);
                archive.append_data(&mut header, format!("blobs/sha256/{digest}"), File::open(path)?)?;
            }
            let compression = if unpacked.is_some() { "+gzip" } else { "" };
            descriptors.push(json!({
                "mediaType": format!("application/vnd.oci.image.layer.v1.tar{compression}"),
                "digest": format!("sha256:{digest}"), "size": size,
            }));
        }
        let diff_ids = layers.iter().map(|layer| layer.unpacked.as_ref().unwrap_or(&layer.digest));
        let diff_ids: Vec<_> = diff_ids.map(|digest| format!("sha256:{digest}")).collect();
        let config = json!({
            "architecture": ARCHITECTURE, "os": "linux", "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        let config = blob(&mut archive, &mut written, "application/vnd.oci.image.config.v1+json", &config)?;
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({"schemaVersion": 2, "mediaType": media_type, "config": config, "layers": descriptors});
        let manifest = blob(&mut archive, &mut written, media_type, &manifest)?;
        index.extend(names.iter().map(|name| {
            let mut manifest = manifest.clone();
            let tag = name.rsplit_once(':').map(|(_, tag)| tag);
            manifest["annotations"] =
                json!({"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag});
            manifest
        }));
    }
    let index = json!({"schemaVersion": 2, "manifests": index});
    for (name, text) in
        [("index.json", index.to_string().as_str()), ("oci-layout", r#"{"imageLayoutVersion": "1.0.0"}"#)]
    {
        let mut header = header(EntryType::Regular, 0o644, text.len() as u64);
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    archive.into_inner()?.flush()?;
    Ok(index)
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
        write(&images, &mut bytes).expect("it is written");
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
