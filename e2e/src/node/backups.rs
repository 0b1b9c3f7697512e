//! An app's database and files in a bucket, and back.

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::ClientAppBackup;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::database::NIGHTLY;
use super::scenario::LONG;
use super::steps::Steps;
use super::storage::{self, snapshots};
use super::tenant::{Tenant, outcome};
use crate::charts::DEFAULT;
use crate::wait::within;

/// Runs all steps.
pub(super) async fn run(app: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    let postgres = json!({"provider": "standalone", "storageSize": "1Gi"});
    steps
        .step("an app whose files and database have a bucket", async || {
            let said = app.create(DEFAULT, postgres).await?;
            app.write("first")?;
            app.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    let store = storage::store(&app.client, app.namespace, None).await?;
    let content = |file: &str| app.exec(&["cat", &format!("/var/www/html/data/{file}")]);
    let change = |text: &str| app.exec(&["sh", "-c", &format!("echo {text} >/var/www/html/data/first")]);
    let repositories = ["pg", "files"].map(|part| match part {
        "pg" => format!("{}/{}-pg", app.namespace, app.app),
        _ => format!("{}/{}.files", app.namespace, app.app),
    });
    steps
        .step("database and files backed up to a bucket", async || {
            change("one")?;
            let dumps = json!({"schedule": NIGHTLY, "store": store});
            app.change(json!({"postgres": {"backup": dumps}, "persistence": {"backup": {"store": store}}})).await?;
            let said = app.back_up("both", Value::Null).await?;
            for repository in &repositories {
                ensure!(snapshots(repository) == 1, "{repository} has {} snapshots", snapshots(repository));
            }
            Ok(said)
        })
        .await?;
    steps
        .step("a row and a file changed, both restored from the bucket", async || {
            app.write("second")?;
            change("two")?;
            let said = app.restore("both-back", "both").await?;
            app.ready().await?;
            app.says("notes", json!(["first"])).await?;
            app.says("files", json!(["first"])).await?;
            ensure!(content("first")? == "one\n", "the file has other content: {}", content("first")?);
            Ok(said)
        })
        .await?;
    steps
        .step("files backed up by schedule", async || {
            app.change(json!({"persistence": {"backup": {"schedule": "* * * * *"}}})).await?;
            let backups = app.api::<ClientAppBackup>();
            let prefix = format!("{}-files-", app.app);
            let said = within(LONG, "a backup by schedule is complete", async || {
                let all = backups.list(&ListParams::default()).await.ok()?;
                let mut scheduled = all.into_iter().filter(|backup| backup.name_any().starts_with(&prefix));
                scheduled.find_map(|backup| outcome(&json!(backup)["status"]))
            });
            let said = said.await??;
            app.change(json!({"persistence": {"backup": {"schedule": null}}})).await?;
            ensure!(snapshots(&repositories[1]) >= 2, "the repository has {} snapshots", snapshots(&repositories[1]));
            Ok(said)
        })
        .await?;
    steps
        .step("a second app made from the backup, beside the first", async || {
            let into = json!({"name": "copy", "hostname": "copy.example.com"});
            let said = app.restore_into("copied", "both", into).await?;
            let copy = Tenant { app: "copy", client: app.client.clone(), ..*app };
            // It has no pods until its user lets it have them.
            copy.change(json!({"replicas": null})).await?;
            copy.says("notes", json!(["first"])).await?;
            copy.says("files", json!(["first"])).await?;
            let page = copy.page().await?;
            let domains = page["domains"].as_array().context("a list")?;
            ensure!(domains.contains(&json!("copy.example.com")), "the copy trusts {domains:?}");
            copy.delete().await?;
            Ok(said)
        })
        .await?;
    steps
        .step("deleted", async || {
            app.delete().await?;
            app.volumes_are_gone().await
        })
        .await
}
