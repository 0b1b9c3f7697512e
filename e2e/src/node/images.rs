//! The images of the node, made without a registry: most are the root file system with a few more files, under the names that charts and
//! operators ask for.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;

use super::files::{CONTAINERD_SOCKET, PAUSE, path};
use crate::image::{Files, Image, Layer, write};
use crate::release;

pub(super) const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Returns a layer of these files, made by `fill`.
pub(super) fn layer(name: &str, fill: impl FnOnce(&mut Files) -> Result<()>) -> Result<Layer> {
    Layer::new(&path("layers").join(format!("{name}.tar")), fill)
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
    let written = write(images, stdin);
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

/// Imports the archive of a release under the names that its manifest has: the digest, and the tag of this version.
pub(super) fn import_release(directory: &Path, repository: &str) -> Result<()> {
    let archive = directory.join(release::archive()).display().to_string();
    let import = ctr(&["images", "import", "--digests", "--base-name", repository, &archive]).output();
    let output = import.context("cannot run ctr")?;
    ensure!(output.status.success(), "ctr could not import {archive}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn ctr(arguments: &[&str]) -> Command {
    let mut command = Command::new("ctr");
    command.args(["--address", CONTAINERD_SOCKET, "--namespace", "k8s.io"]).args(arguments);
    command
}
