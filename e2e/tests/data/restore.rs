//! Restores: an app whose database is created from a dump of the previous one.

use clientapp_crd::{Postgresql, conditions};
use e2e::lab::Lab;
use e2e::scenario::{names, small};

use super::*;

fn standalone(more: Value) -> Value {
    json!({"postgres": with(json!({"provider": "standalone"}), more)})
}

#[tokio::test]
async fn an_app_comes_back_from_its_last_dump_and_names_what_its_database_has_left() {
    let tenant = Lab::shared().await.tenant("way-back").await;
    let backup = json!({"backup": {"schedule": "0 3 * * *", "onDelete": true}});
    install(&tenant, "acme", with(small(&tenant, "acme"), standalone(backup.clone()))).await;
    // A dump does not overwrite an existing database, and the app keeps running.
    let restore = json!({"restore": {"claim": "acme-pg-backup"}});
    tenant.patch("acme", standalone(restore.clone())).await.unwrap();
    tenant.held("acme", "Refused", &["only be restored into a new database"]).await;
    tenant.patch("acme", standalone(json!({"restore": null}))).await.unwrap();
    tenant.ready("acme", 1).await;

    tenant.delete("acme").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["acme-pg-backup"]);
    install(&tenant, "acme", with(small(&tenant, "acme"), standalone(restore))).await;
    let restored = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().status.unwrap().restored.unwrap();
    assert_eq!(restored.claim.as_deref(), Some("acme-pg-backup"));

    // Its database object is deleted by mistake, and its leftovers are handed over: it continues with its volume, not
    // with a dump.
    let (before, databases) = (volume(&tenant, "data-acme-pg-0").await, tenant.api::<Postgresql>());
    assert!(before.is_some());
    let uid = databases.get("acme-pg").await.unwrap().metadata.uid;
    databases.delete("acme-pg", &DeleteParams::default()).await.unwrap();
    let told = |found: Option<&Postgresql>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        let (_, command) = ready.message.rsplit_once("all that an earlier one has left at once, use `kubectl ")?;
        (ready.reason == "NotOurs").then(|| command.trim_end_matches('`').to_owned())
    };
    let command = tenant.wait_for("acme-pg", "told how it is handed over", told).await;
    tenant.kubectl(&command.split(' ').collect::<Vec<_>>()).unwrap();
    let again = |found: Option<&Postgresql>| {
        let found = found.filter(|found| found.metadata.uid != uid)?;
        let ready = conditions::find(&found.status.as_ref()?.conditions, "Ready")?;
        (ready.status == "True").then_some(())
    };
    tenant.wait_for("acme-pg", "serving again", again).await;
    assert_eq!(volume(&tenant, "data-acme-pg-0").await, before);

    // Deleted by mistake again, it keeps its data, also if the app goes later; then the app says so.
    tenant.kubectl(&["delete", "postgresql", "acme-pg"]).unwrap();
    tenant.delete("acme").await;
    tenant.event("acme", "DataKept", "PersistentVolumeClaim data-acme-pg-0 stays: the database was deleted").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["acme-pg-backup", "data-acme-pg-0"]);
    assert_eq!(volume(&tenant, "data-acme-pg-0").await, before);
}
