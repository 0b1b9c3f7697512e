//! A Postgresql of its own, in a namespace whose pods may have no privilege: its dumps in a bucket, who reaches it, and a full disk.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::{ClientAppBackup, Postgresql};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::files::{ADDRESS, path};
use super::inside::Node;
use super::network::Stranger;
use super::rootfs::POSTGRES;
use super::scenario::LONG;
use super::steps::Steps;
use super::storage::{self, snapshots};
use super::tenant::{RESTRICTED, carried_out, follow, make_namespace};
use super::volumes::MEMORY;
use crate::wait::within;

const NAMESPACE: &str = "tenant-ledger";
/// Not while the scenario runs.
pub(super) const NIGHTLY: &str = "0 3 1 1 *";

struct Database<'a> {
    node: &'a Node,
    client: &'a Client,
    name: &'a str,
}

impl Database<'_> {
    /// Creates it, with two servers on small disks of their own, and waits until it is ready.
    async fn create(&self, more: Value) -> Result<String> {
        let mut spec = json!({
            "version": POSTGRES, "replicas": 2, "storageSize": "192Mi", "storageClassName": MEMORY, "networkPolicy": {},
        });
        json_patch::merge(&mut spec, &more);
        let database = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Postgresql",
            "metadata": {"name": self.name}, "spec": spec,
        });
        self.api::<Postgresql>().create(&PostParams::default(), &serde_json::from_value(database)?).await?;
        self.ready().await
    }

    async fn ready(&self) -> Result<String> {
        self.follow("it is ready", |ready| ready.status == "True").await
    }

    async fn follow(&self, what: &str, is_so: impl Fn(&Condition) -> bool) -> Result<String> {
        follow(&self.api::<Postgresql>(), self.name, what, is_so).await
    }

    /// Runs a statement in the primary's pod, and returns its rows.
    fn ask(&self, statement: &str) -> Result<String> {
        self.ask_at(&format!("{}-0", self.name), statement)
    }

    fn ask_at(&self, pod: &str, statement: &str) -> Result<String> {
        let psql = ["psql", "-U", "postgres", "-d", "app", "-v", "ON_ERROR_STOP=1", "-qAtc", statement];
        let exec = ["exec", "--namespace", NAMESPACE, pod, "--"];
        Ok(self.node.kubectl(&[&exec[..], &psql].concat())?.trim().to_owned())
    }

    /// Returns the directory with the primary's volume.
    async fn volume(&self) -> Result<PathBuf> {
        let claim = self.api::<PersistentVolumeClaim>().get(&format!("data-{}-0", self.name)).await?;
        let volume = claim.spec.and_then(|spec| spec.volume_name).context("the claim has no volume")?;
        Ok(path("volumes").join(volume))
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }
}

/// Runs all steps.
pub(super) async fn run(node: &Node, client: &Client, steps: &mut Steps) -> Result<()> {
    make_namespace(client, NAMESPACE, RESTRICTED).await?;
    let store = storage::store(client, NAMESPACE, Some("copy")).await?;
    let ledger = Database { node, client, name: "ledger" };
    steps
        .step("a Postgresql with a standby, where Pod Security is `restricted`", async || {
            is_enforced(node)?;
            let said = ledger.create(json!({"backup": {"schedule": NIGHTLY, "store": store}})).await?;
            ledger.ask(
                "CREATE TABLE notes (id serial PRIMARY KEY, text text); INSERT INTO notes (text) VALUES ('first')",
            )?;
            within(LONG, "the standby has the row", async || {
                ledger.ask_at("ledger-standby-0", "SELECT text FROM notes").is_ok_and(|rows| rows == "first")
            })
            .await?;
            Ok(said)
        })
        .await?;
    steps
        .step("its dump in a bucket", async || {
            let backup = json!({"of": {"kind": "Postgresql", "name": "ledger"}});
            let said = carried_out(&ledger.api::<ClientAppBackup>(), "first", backup).await?;
            let repository = format!("{NAMESPACE}/ledger");
            ensure!(snapshots(&repository) == 1, "{repository} has {} snapshots", snapshots(&repository));
            Ok(said)
        })
        .await?;
    steps
        .step("another Postgresql from that dump", async || {
            let copy = Database { node, client, name: "copy" };
            let mut from = store.clone();
            from["path"] = json!(format!("{NAMESPACE}/ledger"));
            let said = copy.create(json!({"replicas": 1, "restore": {"store": from}})).await?;
            let rows = copy.ask("SELECT text FROM notes")?;
            ensure!(rows == "first", "it has other rows: {rows}");
            copy.api::<Postgresql>().delete("copy", &DeleteParams::default()).await?;
            Ok(said)
        })
        .await?;
    steps.step("a drill of the dump, without a network", async || drill(&ledger).await).await?;
    let stranger = Stranger::start(node, client, "stranger").await?;
    steps
        .step("a pod of another namespace cannot connect, one of its own can", async || {
            let own = Stranger::start(node, client, NAMESPACE).await?;
            let host = format!("ledger.{NAMESPACE}.svc");
            own.reaches(&host, 5432, true).await?;
            stranger.reaches(&host, 5432, false).await?;
            Ok("as its NetworkPolicy has it".to_owned())
        })
        .await?;
    steps.step("its disk is full, and has room again", async || full_disk(&ledger).await).await
}

/// Fails if a pod with a privilege is accepted.
fn is_enforced(node: &Node) -> Result<()> {
    let pod = ["run", "privileged", "--namespace", NAMESPACE, "--image", "none", "--privileged"];
    let refused = node.kubectl(&pod).err().context("the namespace takes a privileged pod")?;
    ensure!(refused.to_string().contains("violates PodSecurity"), "{refused:#}");
    Ok(())
}

/// Waits until the dump is restored by a pod that has no network, as the policy of the drills demands.
async fn drill(ledger: &Database<'_>) -> Result<String> {
    let backup = |drill: Value| Patch::Merge(json!({"spec": {"backup": {"drill": drill}}}));
    let api = ledger.api::<Postgresql>();
    let apply = PatchParams::default();
    api.patch(ledger.name, &apply, &backup(json!("* * * * *"))).await?;
    let tables = within(LONG, "a drill has succeeded", async || {
        let status = json!(api.get(ledger.name).await.map_err(|error| error.to_string())?.status);
        let drill = &status["backup"]["drill"];
        drill["tables"].as_i64().ok_or_else(|| drill.to_string())
    })
    .await?;
    let sealed = Stranger::with_labels(
        ledger.node,
        ledger.client,
        NAMESPACE,
        "sealed",
        json!({
            "apps.bnerd-operator.local/postgresql": ledger.name, "apps.bnerd-operator.local/role": "drill",
        }),
    );
    let sealed = sealed.await?;
    sealed.reaches(&format!("ledger.{NAMESPACE}.svc"), 5432, false).await?;
    sealed.reaches(ADDRESS, 6443, false).await?;
    api.patch(ledger.name, &apply, &backup(Value::Null)).await?;
    ensure!(tables == 1, "{tables} tables have rows");
    Ok(format!(
        "{tables} table with rows; a pod like that of the drill reaches neither the database nor the API server"
    ))
}

/// Fills the primary's disk while rows are written, and makes room again: what was acknowledged is there.
async fn full_disk(ledger: &Database<'_>) -> Result<String> {
    let filler = ledger.volume().await?.join("filler");
    fill(&filler, 4 << 20)?;
    let insert = "INSERT INTO notes (text) SELECT repeat('x', 1000) FROM generate_series(1, 1000)";
    let mut acknowledged = 1;
    let refused = loop {
        match ledger.ask(insert) {
            Ok(_) => acknowledged += 1000,
            Err(error) => break format!("{error:#}"),
        }
        ensure!(acknowledged < 1_000_000, "the disk is not full");
    };
    // PostgreSQL's own words: it goes on with "No space left on device", or with how little it wrote where that was a part of a block.
    ensure!(refused.contains("could not extend file"), "{refused}");
    // It serves readers until the log of its changes needs room as well.
    ensure!(ledger.ask("SELECT count(*) FROM notes")? == acknowledged.to_string(), "a reader sees other rows");
    let noticed = async || {
        while ledger.ask("SELECT pg_logical_emit_message(true, '', repeat('x', 8000000))").is_ok() {}
        ledger.follow("the full disk is named", |ready| ready.message.contains("No space left on device")).await
    };
    let said = noticed().await;
    fs::remove_file(&filler)?;
    let said = said?;
    let ready = ledger.ready().await?;
    let rows = ledger.ask("SELECT count(*) FROM notes")?;
    ensure!(rows == acknowledged.to_string(), "{rows} rows are there of {acknowledged} that were acknowledged");
    Ok(format!("{said}; then {ready}, with all {rows} rows"))
}

/// Writes a file until its disk has only so many bytes of room.
fn fill(file: &Path, room: u64) -> Result<()> {
    let mut file = File::create(file)?;
    let block = vec![0; 1 << 16];
    loop {
        match file.write_all(&block) {
            Err(error) if error.kind() == ErrorKind::StorageFull => break,
            written => written?,
        }
    }
    Ok(file.set_len(file.metadata()?.len() - room)?)
}
