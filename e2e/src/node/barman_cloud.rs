//! CloudNativePG's plugin barman-cloud, and an app whose Cluster archives into a bucket: copies of it, its end and its return from there.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::cloudnativepg::{CloudNativePgBackup, CloudNativePgCluster};
use clientapp_crd::{ClientAppBackup, ClientAppRestore};
use jiff::Timestamp;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PostParams};
use serde_json::json;

use super::database::NIGHTLY;
use super::images::{PATH, layer};
use super::scenario::LONG;
use super::steps::Steps;
use super::storage::{self, BUCKET};
use super::tenant::{Tenant, carried_out, outcome};
use crate::charts::DEFAULT;
use crate::image::{Image, Layer};
use crate::plane::certs::Identity;
use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::within;

const PLUGIN: &str = "registry.example.com/barman-cloud/plugin:0.14.0";
const SIDECAR: &str = "registry.example.com/barman-cloud/sidecar:0.14.0";
/// Where CloudNativePG's operator looks for plugins.
const NAMESPACE: &str = "cnpg-system";
const DEPLOYMENT: &str = "barman-cloud";

/// Returns the plugin's two images. `barman`: the root file system with barman's programs.
pub(super) fn images(barman: &Layer) -> Result<[Image; 2]> {
    let manager = Extra::BarmanCloud.ensure(&Progress::hidden())?;
    let program = layer("barman-cloud", |files| files.program("manager", &manager))?;
    let image = |name: &str, user: &str, layers: Vec<Layer>| Image {
        names: vec![name.to_owned()],
        config: json!({"User": user, "Env": [PATH], "Entrypoint": ["/manager"]}),
        layers,
    };
    Ok([image(PLUGIN, "65532:65532", vec![program.clone()]), image(SIDECAR, "26:26", vec![barman.clone(), program])])
}

/// Applies the plugin's own manifest, with these images and, in the place of cert-manager's, certificates that sign themselves.
async fn install(tenant: &Tenant<'_>) -> Result<String> {
    let Tenant { node, client, .. } = tenant;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    for (name, identity) in [
        // A client does not send a certificate of which the server does not name the issuer, and the server knows only this one.
        ("barman-cloud-server-tls", Identity::self_signed(DEPLOYMENT)?),
        ("barman-cloud-client-tls", Identity::self_signed("barman-cloud-client")?),
    ] {
        let secret = json!({
            "metadata": {"name": name}, "type": "kubernetes.io/tls",
            "stringData": {"tls.crt": identity.certificate, "tls.key": identity.key},
        });
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    let mut objects = Extra::BarmanCloud.manifest(&Progress::hidden())?;
    objects
        .retain(|object| !object["apiVersion"].as_str().is_some_and(|version| version.starts_with("cert-manager.io/")));
    for object in &mut objects {
        if object["kind"] == "Secret" {
            object["data"] = json!({"SIDECAR_IMAGE": ByteString(SIDECAR.into())});
        }
        if object["kind"] == "Deployment" {
            let container = &mut object["spec"]["template"]["spec"]["containers"][0];
            container["image"] = json!(PLUGIN);
            container["imagePullPolicy"] = json!("IfNotPresent");
        }
    }
    node.apply(&objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>())?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    within(LONG, "the plugin is ready", async || {
        let status = deployments.get_status(DEPLOYMENT).await.ok()?.status?;
        (status.ready_replicas == Some(1)).then_some(())
    })
    .await?;
    Ok("it is ready".to_owned())
}

/// The Cluster of an app that archives.
struct Archived<'a> {
    tenant: &'a Tenant<'a>,
}

impl Archived<'_> {
    fn name(&self) -> String {
        format!("{}-pg", self.tenant.app)
    }

    async fn cluster(&self) -> Result<CloudNativePgCluster> {
        Ok(self.tenant.api::<CloudNativePgCluster>().get(&self.name()).await?)
    }

    /// Returns the name under which it archives, which only this Cluster has.
    async fn server(&self) -> Result<String> {
        let cluster = self.cluster().await?;
        let archive = cluster.archive().context("the Cluster does not have the plugin")?;
        let uid = cluster.uid().context("it has a uid")?;
        let server = format!("{}-{}", self.name(), uid.split('-').next().unwrap_or_default());
        ensure!(archive.server == server, "it archives as {}", archive.server);
        Ok(server)
    }

    /// Runs a statement as the superuser, and returns its rows.
    fn ask(&self, statement: &str) -> Result<String> {
        let pod = format!("{}-1", self.name());
        let exec = ["exec", "--namespace", self.tenant.namespace, &pod, "--container", "postgres", "--"];
        let psql = ["psql", "-d", "clientapp", "-v", "ON_ERROR_STOP=1", "-qAtc", statement];
        Ok(self.tenant.node.kubectl(&[&exec[..], &psql].concat())?.trim().to_owned())
    }

    /// Returns the rows, one a line.
    fn notes(&self) -> Result<String> {
        self.ask("SELECT text FROM notes ORDER BY id")
    }

    /// Ends the segment of the log that is written, and waits until the bucket has it.
    async fn archive(&self) -> Result<()> {
        let segment = self.ask("SELECT pg_walfile_name(pg_switch_wal())")?;
        within(LONG, &format!("segment {segment} is in the bucket"), async || {
            let archived =
                self.ask("SELECT last_archived_wal FROM pg_stat_archiver").map_err(|error| error.to_string())?;
            if archived >= segment { Ok(()) } else { Err(format!("the last is {archived}")) }
        })
        .await
    }

    /// Waits for a verdict on its backups.
    async fn backed_up(&self, status: &str, reason: &str) -> Result<String> {
        within(LONG, &format!("BackedUp is {status}, {reason}"), async || {
            let app = self.tenant.apps().get(self.tenant.app).await.map_err(|error| error.to_string())?;
            let conditions = app.status.map(|status| status.conditions).unwrap_or_default();
            let found = conditions.into_iter().find(|condition| condition.type_ == "BackedUp").ok_or("none")?;
            let is_it = found.status == status && found.reason == reason;
            let said = format!("BackedUp {}: {}", found.reason, found.message);
            if is_it { Ok(said) } else { Err(said) }
        })
        .await
    }
}

/// Returns the directory of a server in the bucket.
fn directory(namespace: &str, server: &str) -> PathBuf {
    storage::objects().join(BUCKET).join(namespace).join(server)
}

/// Returns the IDs of the complete backups in the bucket.
fn backups(namespace: &str, server: &str) -> Result<BTreeSet<String>> {
    let Ok(entries) = fs::read_dir(directory(namespace, server).join("base")) else { return Ok(BTreeSet::new()) };
    let mut ids = BTreeSet::new();
    for entry in entries {
        let entry = entry?;
        let info = fs::read_to_string(entry.path().join("backup.info")).unwrap_or_default();
        if info.lines().any(|line| line == "status=DONE") {
            ids.insert(entry.file_name().to_string_lossy().into_owned());
        }
    }
    Ok(ids)
}

/// Runs all steps.
pub(super) async fn run(shop: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    steps.step("the plugin barman-cloud", async || install(shop).await).await?;
    super::tenant::make_namespace(&shop.client, shop.namespace, super::tenant::RESTRICTED).await?;
    let mut store = storage::store(&shop.client, shop.namespace, None).await?;
    // The bucket encrypts.
    store.as_object_mut().context("an object")?.remove("passwordSecret");
    let postgres = json!({
        "provider": "cloudnativepg", "storageSize": "1Gi", "backup": {"schedule": NIGHTLY, "store": store},
    });
    let archived = Archived { tenant: shop };
    let namespace = shop.namespace;
    steps
        .step("an app whose Cluster archives into a bucket", async || {
            let said = shop.create_app(DEFAULT, postgres.clone()).await?;
            archived.server().await?;
            has_sidecar(shop, &archived.name()).await?;
            shop.write("first")?;
            shop.says("notes", json!(["first"])).await?;
            let backed_up = archived.backed_up("Unknown", "NoDatabaseBackup").await?;
            Ok(format!("{said}; {backed_up}"))
        })
        .await?;
    let server = archived.server().await?;
    steps
        .step("backed up", async || {
            let said = shop.back_up("full", json!(["Database"])).await?;
            let there = backups(namespace, &server)?;
            ensure!(there.len() == 1, "the bucket has {there:?}");
            let backed_up = archived.backed_up("True", "DatabaseBackedUp").await?;
            Ok(format!("{said}; {backed_up}"))
        })
        .await?;
    shop.write("second")?;
    let copy = Tenant { app: "then", client: shop.client.clone(), ..*shop };
    let into = json!({"name": copy.app, "hostname": "then.example.com"});
    steps
        .step("a second app from that backup, beside the first", async || {
            let said = shop.restore_into("then", "full", into.clone()).await?;
            is_a_copy(&copy, &server, "first").await?;
            Ok(said)
        })
        .await?;
    steps
        .step("and one of a moment after it", async || {
            let moment = Timestamp::now();
            shop.write("third")?;
            archived.archive().await?;
            let spec = json!({"of": {"name": shop.app}, "database": {"time": moment.to_string()}, "into": into});
            let said = carried_out(&shop.api::<ClientAppRestore>(), "moment", spec).await?;
            is_a_copy(&copy, &server, "first\nsecond").await?;
            Ok(said)
        })
        .await?;
    steps.step("a backup by schedule", async || by_schedule(&archived, &server).await).await?;
    steps.step("the bucket is down, and back", async || without_bucket(&archived).await).await?;
    steps
        .step("deleted with policy Delete, and created again from the bucket", async || {
            shop.write("fourth")?;
            // The end of a Cluster does not archive the last segment of its log.
            shop.back_up("last", json!(["Database"])).await?;
            shop.delete().await?;
            shop.volumes_are_gone().await?;
            ensure!(!backups(namespace, &server)?.is_empty(), "the backups are gone");
            let mut postgres = postgres.clone();
            postgres["cloudnativepg"] = json!({"dataSource": {"serverName": server}});
            // Without its files, the app would install itself into a database that has rows.
            let said = shop.create_with(DEFAULT, postgres, json!({"replicas": 0})).await?;
            let rows = archived.notes()?;
            ensure!(rows == "first\nsecond\nthird\nfourth", "it has other rows: {rows}");
            let next = archived.server().await?;
            ensure!(next != server, "it archives into the directory of the former Cluster");
            let backed_up = archived.backed_up("Unknown", "NoDatabaseBackup").await?;
            Ok(format!("{said}; {backed_up}"))
        })
        .await?;
    steps
        .step("deleted", async || {
            shop.delete().await?;
            shop.volumes_are_gone().await
        })
        .await
}

/// Fails unless the plugin runs beside PostgreSQL.
async fn has_sidecar(tenant: &Tenant<'_>, cluster: &str) -> Result<()> {
    let pod = tenant.api::<Pod>().get(&format!("{cluster}-1")).await?;
    let statuses = pod.status.and_then(|status| status.init_container_statuses).unwrap_or_default();
    ensure!(
        statuses.iter().any(|it| it.image.contains("sidecar") && it.ready),
        "the plugin does not run: {statuses:?}"
    );
    Ok(())
}

/// Fails unless a copy has these rows and archives elsewhere; and deletes it. It has no pods: the files of the first, with the address of
/// its database, would be copied before.
async fn is_a_copy(copy: &Tenant<'_>, first: &str, rows: &str) -> Result<()> {
    let archived = Archived { tenant: copy };
    let found = archived.notes()?;
    ensure!(found == rows, "the copy has other rows: {found}");
    ensure!(archived.server().await? != first, "it archives as the first does");
    copy.delete().await?;
    Ok(())
}

/// Waits until a backup by schedule is complete, and counts.
async fn by_schedule(archived: &Archived<'_>, server: &str) -> Result<String> {
    let (shop, before) = (archived.tenant, backups(archived.tenant.namespace, server)?.len());
    shop.change(json!({"postgres": {"backup": {"schedule": "* * * * *"}}})).await?;
    let prefix = format!("{}-", archived.name());
    let last = within(LONG, "a backup by schedule is complete", async || {
        let all =
            shop.api::<CloudNativePgBackup>().list(&ListParams::default()).await.map_err(|error| error.to_string())?;
        let scheduled = |backup: &&CloudNativePgBackup| {
            backup.name_any().starts_with(&prefix) && backup.labels().contains_key("cnpg.io/scheduled-backup")
        };
        let found = all.iter().filter(scheduled).find(|backup| backup.phase() == "completed").cloned();
        found.ok_or_else(|| {
            format!("{:?}", all.iter().map(|backup| (backup.name_any(), backup.phase())).collect::<Vec<_>>())
        })
    })
    .await?;
    shop.change(json!({"postgres": {"backup": {"schedule": NIGHTLY}}})).await?;
    ensure!(backups(shop.namespace, server)?.len() > before, "the bucket has not one more");
    let ended = last.status.and_then(|status| status.stopped_at).context("it has an end")?;
    within(LONG, "BackedUp names it, or a later one", async || {
        let said = archived.backed_up("True", "DatabaseBackedUp").await.map_err(|error| error.to_string())?;
        let at: Option<Timestamp> = said.rsplit(' ').next().and_then(|at| at.parse().ok());
        if at.is_some_and(|at| at >= ended.0) { Ok(said) } else { Err(said) }
    })
    .await
}

/// Takes the bucket away: the app goes on, and says that its database is not backed up any more.
async fn without_bucket(archived: &Archived<'_>) -> Result<String> {
    let shop = archived.tenant;
    let backups = shop.api::<ClientAppBackup>();
    let said = shop
        .node
        .without("versitygw", async || {
            archived.ask("SELECT pg_switch_wal()")?;
            let said = archived.backed_up("False", "DatabaseBackupFailed").await?;
            let ready = shop.ready().await?;
            let late = json!({
                "metadata": {"name": "late"}, "spec": {"of": {"name": shop.app}, "parts": ["Database"]},
            });
            backups.create(&PostParams::default(), &serde_json::from_value(late)?).await?;
            let waits = within(LONG, "the backup waits", async || {
                let status = json!(backups.get("late").await.map_err(|error| error.to_string())?.status).to_string();
                if status.contains("cannot archive WAL") { Ok(()) } else { Err(status) }
            });
            waits.await?;
            Ok(format!("{said}; meanwhile {ready}"))
        })
        .await?;
    storage::answers(shop.node)?;
    let back = archived.backed_up("True", "DatabaseBackedUp").await?;
    let late = within(LONG, "the backup is complete", async || outcome(&json!(backups.get("late").await.ok()?.status)));
    Ok(format!("{said}; {back}; {}", late.await??))
}
