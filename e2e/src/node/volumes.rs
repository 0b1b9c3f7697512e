//! Provides volumes: directories of the node, as `local` volumes, whose group the kubelet sets as it does on a disk. Those of the class
//! `memory` are file systems of their own, as small as their claims ask for, which can be full.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;

use super::files::{NAME, path};
use super::inside::run;

/// The classes of `cluster.yaml`: directories that share a disk, and disks of their own.
const SHARED: &str = "node";
pub(super) const MEMORY: &str = "memory";

enum Changed {
    Claim(Box<PersistentVolumeClaim>),
    Volume(Box<PersistentVolume>),
}

/// Makes a volume for each claim, and removes it when its claim is gone, until it is dropped.
pub(super) async fn provide(client: Client) {
    let claims = watcher(Api::all(client.clone()), watcher::Config::default()).default_backoff().applied_objects();
    let volumes = watcher(Api::all(client.clone()), watcher::Config::default()).default_backoff().applied_objects();
    let (claims, volumes) = (
        claims.map_ok(|claim| Changed::Claim(Box::new(claim))),
        volumes.map_ok(|volume| Changed::Volume(Box::new(volume))),
    );
    let mut changes = stream::select(claims.boxed(), volumes.boxed());
    while let Some(change) = changes.next().await {
        let done = match change {
            Ok(Changed::Claim(claim)) => provision(&client, &claim).await,
            Ok(Changed::Volume(volume)) => remove(&client, &volume).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = done {
            eprintln!("volumes: {error:#}");
        }
    }
}

async fn provision(client: &Client, claim: &PersistentVolumeClaim) -> Result<()> {
    let spec = claim.spec.as_ref().context("a claim has a spec")?;
    let class = spec.storage_class_name.as_deref().filter(|class| [SHARED, MEMORY].contains(class));
    let (Some(class), None) = (class, &spec.volume_name) else { return Ok(()) };
    let name = format!("pvc-{}", claim.uid().context("a claim has a uid")?);
    let directory = path("volumes").join(&name);
    let resources = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let is_new = !directory.exists();
    fs::create_dir_all(&directory)?;
    if class == MEMORY && is_new {
        let size = resources.and_then(|resources| resources.get("storage")).context("a claim has a size")?;
        // tmpfs has the same units under other names: m, g.
        let size = format!("size={}", size.0.trim_end_matches('i').to_lowercase());
        run("mount", &["-t", "tmpfs", "-o", &size, "tmpfs", &directory.to_string_lossy()])?;
    }
    // As a new disk has it: the kubelet gives it to the pod's fsGroup.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755))?;
    let volume = json!({
        "metadata": {"name": name},
        "spec": {
            "storageClassName": class,
            "capacity": resources,
            "accessModes": spec.access_modes,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": claim.name_any(),
                "namespace": claim.namespace(), "uid": claim.uid(),
            },
            "local": {"path": directory},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [NAME]}]},
            ]}},
        },
    });
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    match volumes.create(&PostParams::default(), &serde_json::from_value(volume)?).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
        created => created.map(drop).context("cannot create a volume"),
    }
}

async fn remove(client: &Client, volume: &PersistentVolume) -> Result<()> {
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let spec = volume.spec.as_ref().context("a volume has a spec")?;
    let deletes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
    // The controller manager has no plugin that could delete it.
    if !deletes || !matches!(phase, Some("Released" | "Failed")) {
        return Ok(());
    }
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    match volumes.delete(&volume.name_any(), &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => return Ok(()),
        deleted => drop(deleted?),
    }
    let directory = path("volumes").join(volume.name_any());
    if spec.storage_class_name.as_deref() == Some(MEMORY) {
        run("umount", &["--lazy", &directory.to_string_lossy()])?;
    }
    fs::remove_dir_all(directory).or_else(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Ok(()),
        _ => Err(error.into()),
    })
}
