//! Backups of PerconaPGClusters: their targets, what a restore in place holds up, and the source of a new cluster.

use clientapp_crd::ClientAppBackup;
use clientapp_crd::percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore};
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::percona::Knobs;
use e2e::scenario::{names, nothing_is_left};
use e2e::wait::until;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

fn s3() -> Value {
    json!({"bucket": "backups", "endpoint": "s3.example.com", "region": "eu-central-1"})
}

/// Waits until the check accepts a cluster.
async fn cluster(tenant: &Tenant, name: &str, what: &str, is: impl Fn(&PerconaPGCluster) -> bool) -> PerconaPGCluster {
    let like_this = |found: Option<&PerconaPGCluster>| found.filter(|found| is(found)).cloned();
    tenant.wait_for(name, what, like_this).await
}

/// Waits until the app is upgraded, and returns the name of the PerconaPGBackup before that.
async fn backup_before_upgrade(tenant: &Tenant) -> String {
    let record = tenant.ready("acme", 2).await.backup.unwrap();
    let backup = tenant.api::<ClientAppBackup>().get(&record.name).await.unwrap();
    backup.status.unwrap().database.unwrap().name
}

fn storage(size: &'static str) -> impl Fn(&PerconaPGCluster) -> bool {
    move |cluster| cluster.spec.instances[0].storage() == Some(size)
}

#[tokio::test]
async fn backups_in_a_repository_outlive_their_app() {
    let tenant = Lab::shared().await.tenant("elsewhere").await;
    let percona = json!({
        "repository": {"s3": s3(), "secretName": "acme-s3"}, "schedules": {"full": "0 3 1 1 *"}, "keep": 4,
    });
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "postgres": {"percona": percona}, "upgrade": {"backup": true},
        "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let found = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    let pgbackrest = found.spec.backups.pgbackrest.unwrap();
    let path = pgbackrest["global"]["repo1-path"].as_str().unwrap().to_owned();
    assert!(path.starts_with("/elsewhere/acme-pg/") && path.len() == "/elsewhere/acme-pg/".len() + 8, "{path}");
    assert_eq!(pgbackrest["global"]["repo1-retention-full"], "4");
    assert_eq!(pgbackrest["configuration"], json!([{"secret": {"name": "acme-s3"}}]));
    let repo = json!({"name": "repo1", "s3": s3(), "schedules": {"full": "0 3 1 1 *"}});
    assert_eq!(pgbackrest["repos"], json!([repo]));

    // Before an upgrade, and not on a volume.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let upgraded = backup_before_upgrade(&tenant).await;
    let backup = tenant.api::<PerconaPGBackup>().get(&upgraded).await.unwrap();
    assert_eq!(backup.spec.repo_name.as_deref(), Some("repo1"));
    let result = backup.status.unwrap().result;
    assert_eq!(result.destination, Some(format!("s3://backups{path}")));
    assert_eq!(result.backup_type.as_deref(), Some("full"));
    let volumes = names::<PersistentVolumeClaim>(&tenant).await;
    assert!(!volumes.contains(&"acme-pg-repo1".to_owned()), "{volumes:?}");

    // The app is deleted, and its backups stay.
    tenant.delete("acme").await;
    assert_eq!(names::<PerconaPGCluster>(&tenant).await, [""; 0]);
    until("no claim is left", async || names::<PersistentVolumeClaim>(&tenant).await.is_empty()).await;
    let left = names::<PerconaPGBackup>(&tenant).await;
    assert!(left.contains(&upgraded), "{left:?}");

    // The next app of its name has its own path. It adopts the Secret of the database's user, which Percona leaves at times.
    let again = json!({"repository": {"s3": s3(), "secretName": "acme-s3"}});
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "postgres": {"percona": again, "adopt": true}, "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    let made = cluster(&tenant, "acme-pg", "made", |_| true).await;
    let next = made.spec.backups.destination("repo1").unwrap();
    assert!(next.starts_with("s3://backups/elsewhere/acme-pg/") && !next.ends_with(&path), "{next}");
    tenant.delete("acme").await;
}

#[tokio::test]
async fn a_backup_is_deleted_with_its_object_if_that_says_so() {
    let tenant = Lab::shared().await.tenant("reclaimed").await;
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "postgres": {"percona": {"keep": 2}}, "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let backups = tenant.api::<ClientAppBackup>();
    let made = async |name: &str, reclaim: &str| {
        let spec = json!({"of": {"name": "acme"}, "reclaim": reclaim});
        let backup = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        backups.create(&PostParams::default(), &backup).await.unwrap();
        let complete = |found: Option<&ClientAppBackup>| {
            let status = found?.status.as_ref().filter(|status| status.completed_at.is_some())?;
            Some(status.database.as_ref()?.name.clone())
        };
        tenant.wait_for(name, "complete", complete).await
    };
    let (stays, goes) = (made("stays", "Retain").await, made("goes", "Delete").await);
    for name in ["stays", "goes"] {
        backups.delete(name, &DeleteParams::default()).await.unwrap();
        tenant.wait_for(name, "gone", |found: Option<&ClientAppBackup>| found.is_none().then_some(())).await;
    }
    until("Percona lets it go", async || !names::<PerconaPGBackup>(&tenant).await.contains(&goes)).await;
    assert!(names::<PerconaPGBackup>(&tenant).await.contains(&stays));
    tenant.delete("acme").await;
}

/// Percona would look for ever for a pod to delete backups in, and would do so in every repository, including one that
/// this operator did not set up.
#[tokio::test]
async fn a_database_that_never_ran_is_deleted() {
    let tenant = Lab::shared().await.tenant("never-ran").await;
    tenant.percona("acme-pg", Knobs { hold: true, ..Knobs::default() });
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "postgres": {"percona": {"keep": 2}}, "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    let reported = |found: &PerconaPGCluster| found.status.as_ref().is_some_and(|status| status.state.is_some());
    cluster(&tenant, "acme-pg", "reported", reported).await;
    // Deleted earlier, the cluster would leave what Percona has not created yet.
    for name in ["acme-pg-instance1", "acme-pg-repo1"] {
        until(&format!("there is {name}"), async || {
            let volumes = names::<PersistentVolumeClaim>(&tenant).await;
            volumes.iter().any(|volume| volume.starts_with(name))
        })
        .await;
    }
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn nothing_else_goes_on_during_a_restore_and_a_database_is_made_from_backups_once() {
    let tenant = Lab::shared().await.tenant("restored").await;
    let spec = |name: &str, percona: Value| json!({"hostname": hostname(&tenant, name), "postgres": {"percona": percona}, "redis": {"enabled": false}});
    tenant.create("acme", spec("acme", json!({"keep": 2}))).await.unwrap();
    tenant.ready("acme", 1).await;
    // Percona makes an object for its own first backup as well, whenever it comes to that.
    until("the first backup is complete", async || {
        let all = tenant.api::<PerconaPGBackup>().list(&ListParams::default()).await.unwrap().items;
        all.iter().any(|backup| backup.status.as_ref().is_some_and(|status| status.result.completed.is_some()))
    })
    .await;
    tenant.percona("acme-pg", Knobs { hold_restores: true, ..Knobs::default() });
    let restore: PerconaPGRestore = serde_json::from_value(json!({
        "metadata": {"name": "by-hand"}, "spec": {"pgCluster": "acme-pg", "repoName": "repo1"},
    }))
    .unwrap();
    tenant.api::<PerconaPGRestore>().create(&PostParams::default(), &restore).await.unwrap();
    let told = tenant.condition("acme", "PostgresReady", "False", "Restoring").await;
    assert!(told.starts_with("PerconaPGCluster acme-pg is being restored from a backup: nothing else"), "{told}");
    tenant.condition("acme", "Ready", "False", "Restoring").await;

    let backups = names::<PerconaPGBackup>(&tenant).await;
    let change = json!({
        "chartVersion": charts::PATCH, "upgrade": {"backup": true}, "postgres": {"storageSize": "2Gi"},
    });
    let changed = tenant.patch("acme", change).await.unwrap();
    tenant.status("acme", "looked at", |status| status.observed_generation == changed.metadata.generation).await;
    tenant.condition("acme", "PostgresReady", "False", "Restoring").await;
    let found = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert!(storage("1Gi")(&found), "it was changed during the restore");
    assert_eq!(names::<PerconaPGBackup>(&tenant).await, backups);
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    tenant.percona("acme-pg", Knobs::default());
    tenant.ready("acme", 2).await;
    cluster(&tenant, "acme-pg", "grown", storage("2Gi")).await;
    // Percona's own record of the restore stays.
    let found = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert_eq!(found.spec.backups.pgbackrest.unwrap()["restore"]["enabled"], false);

    // Another database is made from its backups.
    let source = json!({"cluster": "acme-pg", "backup": "20260131-030000F"});
    tenant.create("copy", spec("copy", json!({"dataSource": source}))).await.unwrap();
    tenant.ready("copy", 1).await;
    let said = json!({"postgresCluster": {
        "clusterName": "acme-pg", "repoName": "repo1", "options": ["--type=immediate", "--set=20260131-030000F"],
    }});
    let made = tenant.api::<PerconaPGCluster>().get("copy-pg").await.unwrap();
    assert_eq!(made.spec.data_source.as_ref(), Some(&said));

    // Whatever the spec says by now: a change in the middle of it would make Percona start with an empty database.
    tenant.patch("copy", json!({"postgres": {"storageSize": "2Gi"}})).await.unwrap();
    let grown = cluster(&tenant, "copy-pg", "grown", storage("2Gi")).await;
    assert_eq!(grown.spec.data_source.as_ref(), Some(&said));
    tenant.patch("copy", json!({"postgres": {"percona": {"dataSource": null}, "storageSize": "3Gi"}})).await.unwrap();
    let grown = cluster(&tenant, "copy-pg", "grown again", storage("3Gi")).await;
    assert_eq!((grown.spec.data_source.as_ref(), grown.uid()), (Some(&said), made.uid()));

    // From a cluster that may be gone; and if a user deletes the database, it leaves volumes, over which nothing is
    // restored.
    let repository = json!({"s3": s3(), "secretName": "old", "path": "/old"});
    let source = json!({"repository": repository, "time": "2026-01-31T12:00:00Z"});
    tenant.create("gone", spec("gone", json!({"dataSource": source}))).await.unwrap();
    tenant.ready("gone", 1).await;
    let said = json!({"pgbackrest": {
        "stanza": "db", "configuration": [{"secret": {"name": "old"}}], "global": {"repo1-path": "/old"},
        "repo": {"name": "repo1", "s3": s3()},
        "options": ["--type=time", "--target=\"2026-01-31 12:00:00+00\""],
    }});
    let clusters = tenant.api::<PerconaPGCluster>();
    let first = clusters.get("gone-pg").await.unwrap();
    assert_eq!(first.spec.data_source.as_ref(), Some(&said));
    clusters.delete("gone-pg", &DeleteParams::default()).await.unwrap();
    let another = cluster(&tenant, "gone-pg", "recreated", |found| found.uid() != first.uid()).await;
    assert_eq!(another.spec.data_source, None);
    tenant.ready("gone", 1).await;
    for app in ["acme", "copy", "gone"] {
        tenant.delete(app).await;
    }
    // Backups on a volume go with their database.
    nothing_is_left(&tenant).await;
    until("no backup is left", async || names::<PerconaPGBackup>(&tenant).await.is_empty()).await;
}

#[tokio::test]
async fn backups_stay_where_they_are_whatever_comes_after() {
    let tenant = Lab::shared().await.tenant("both").await;
    let spec = |percona: Value, adopt: bool| {
        json!({
            "hostname": hostname(&tenant, "acme"), "postgres": {"percona": percona, "adopt": adopt},
            "redis": {"enabled": false}, "deletionPolicy": "Retain",
        })
    };
    tenant.create("acme", spec(json!({"keep": 2}), false)).await.unwrap();
    tenant.ready("acme", 1).await;
    let volume = async || tenant.api::<PersistentVolumeClaim>().get("acme-pg-repo1").await.unwrap().uid();
    let before = volume().await;
    let repository = json!({"gcs": {"bucket": "b"}, "secretName": "s", "path": "/a"});
    tenant.patch("acme", json!({"postgres": {"percona": {"repository": repository}}})).await.unwrap();
    let in_both = |found: &PerconaPGCluster| {
        let backups = &found.spec.backups;
        backups.repositories() == ["repo1", "repo2"]
            && backups.destination("repo1").as_deref() == Some("")
            && backups.destination("repo2").as_deref() == Some("gs://b/a")
    };
    cluster(&tenant, "acme-pg", "with both", in_both).await;
    tenant.ready("acme", 1).await;
    let change = json!({"chartVersion": charts::PATCH, "upgrade": {"backup": true}});
    tenant.patch("acme", change).await.unwrap();
    let upgraded = backup_before_upgrade(&tenant).await;
    let backup = tenant.api::<PerconaPGBackup>().get(&upgraded).await.unwrap();
    assert_eq!(backup.spec.repo_name.as_deref(), Some("repo2"));
    assert_eq!(volume().await, before);

    // Retained, and adopted by an app that at first does not name the repository, and then does.
    tenant.delete("acme").await;
    let mut adopting = spec(json!({}), true);
    adopting["chartVersion"] = json!(charts::PATCH);
    tenant.create("acme", adopting).await.unwrap();
    tenant.held("acme", "RepositoryMismatch", &["keeps its backups in gs://b/a", "names none", "path: /a"]).await;
    let repository = json!({"gcs": {"bucket": "b"}, "secretName": "s"});
    tenant.patch("acme", json!({"postgres": {"percona": {"repository": repository}}})).await.unwrap();
    tenant.ready("acme", 1).await;
    cluster(&tenant, "acme-pg", "as it was", in_both).await;
    assert_eq!(volume().await, before);
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.delete("acme").await;
}
