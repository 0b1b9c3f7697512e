//! Apps that ask for what the node does not have: what they say, and that a corrected spec brings them up.

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::images::{PATH, layer};
use super::steps::Steps;
use super::tenant::{RESTRICTED, Tenant, make_namespace};
use crate::charts::DEFAULT;
use crate::image::{Image, Layer};

/// An image of the app for machines of another kind.
const FOREIGN: &str = "docker.io/library/nextcloud:foreign";
/// The header of a program for s390x, which no machine that runs this has.
const PROGRAM: [u8; 64] = {
    let mut header = [0; 64];
    // 64 bit, big-endian, version 1; a program; of the machine 22.
    let fields = [
        (0, 0x7f),
        (1, b'E'),
        (2, b'L'),
        (3, b'F'),
        (4, 2),
        (5, 2),
        (6, 1),
        (17, 2),
        (19, 22),
        (23, 1),
        (53, 64),
        (55, 56),
    ];
    let mut at = 0;
    while at < fields.len() {
        header[fields[at].0] = fields[at].1;
        at += 1;
    }
    header
};

/// Returns an image whose program is for another machine.
pub(super) fn foreign_image(debian: &Layer) -> Result<Image> {
    let program = layer("foreign", |files| files.file("foreign", 0o755, &PROGRAM))?;
    Ok(Image {
        names: vec![FOREIGN.to_owned()],
        config: json!({"Env": [PATH], "Entrypoint": ["/foreign"], "WorkingDir": "/var/www/html"}),
        layers: vec![debian.clone(), program],
    })
}

/// Runs all steps.
pub(super) async fn run(tenant: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    make_namespace(&tenant.client, tenant.namespace, RESTRICTED).await?;
    steps
        .step("a StorageClass that does not exist; deleted, and created again", async || {
            begin(tenant, json!({"storageClassName": "nowhere"})).await?;
            let said = named(tenant, "the claim is named", "unbound immediate PersistentVolumeClaims").await?;
            tenant.delete().await?;
            tenant.volumes_are_gone().await?;
            Ok(said)
        })
        .await?;
    steps
        .step("more memory for the database than the node has, and back", async || {
            let requests = json!({"requests": {"memory": "900Gi"}});
            begin(tenant, json!({"resources": requests})).await?;
            let said = named(tenant, "the lack of memory is named", "Insufficient memory").await?;
            tenant.change(json!({"postgres": {"resources": null}})).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("an image for another machine, and back", async || {
            tenant.write("first")?;
            tenant.patch(json!({"image": "nextcloud:foreign"})).await?;
            let said = named(tenant, "the way to the log is named", "see `kubectl logs").await?;
            let of_app = ["logs", "--namespace", tenant.namespace, "--selector", "app.kubernetes.io/component=app"];
            let log = tenant.node.kubectl(&of_app)?;
            ensure!(log.contains("exec format error"), "{log}");
            tenant.change(json!({"image": null})).await?;
            tenant.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps.step("deleted", async || tenant.delete().await).await.map(drop)
}

/// Creates the app, with more in `spec.postgres`.
async fn begin(tenant: &Tenant<'_>, more: Value) -> Result<()> {
    let mut postgres = json!({"provider": "standalone", "storageSize": "1Gi"});
    json_patch::merge(&mut postgres, &more);
    tenant.begin_with(DEFAULT, postgres, json!({})).await
}

/// Waits until the app is not ready, and says why with these words.
async fn named(tenant: &Tenant<'_>, what: &str, words: &str) -> Result<String> {
    tenant.follow(what, |ready| ready.status == "False" && ready.message.contains(words)).await
}
