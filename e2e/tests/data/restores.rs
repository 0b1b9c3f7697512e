//! ClientAppRestores, made with `kubectl apply` alone. The database is simulated, the files and their storage are not.

use axum::http::Method;
use clientapp_crd::{BackupPhase, ClientAppBackup, ClientAppRestore, Postgresql, conditions};
use e2e::lab::{Apart, IMAGE, leading};
use e2e::objects::{Fault, Rule};
use e2e::scenario::operated;
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;

use super::files::{Site, read, write};
use super::*;

const STOPPED_FOR: &str = annotation::STOPPED_FOR;

/// Waits until a restore is in this phase and holds nothing, and returns the message of its condition.
async fn in_phase(site: &Site, name: &str, phase: BackupPhase) -> String {
    let reached = |found: Option<&ClientAppRestore>| {
        let found = found.filter(|found| found.metadata.finalizers.is_none())?;
        let status = found.status.as_ref().filter(|status| status.phase == Some(phase))?;
        Some(conditions::find(&status.conditions, "Ready")?.message.clone())
    };
    site.tenant.wait_for(name, "in its phase", reached).await
}

/// Waits until a restore says so.
async fn says(site: &Site, name: &str, words: &str) {
    let told = |found: Option<&ClientAppRestore>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        ready.message.contains(words).then_some(())
    };
    site.tenant.wait_for(name, words, told).await;
}

/// Backs up the files, and returns the archive.
async fn archived(site: &Site, name: &str) -> String {
    site.apply("ClientAppBackup", name, &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
    let archive = |found: Option<&ClientAppBackup>| {
        let status = found?.status.as_ref().filter(|status| status.phase == Some(BackupPhase::Completed))?;
        status.files.as_ref()?.archive.clone()
    };
    site.tenant.wait_for(name, "complete", archive).await
}

/// Waits until the app has its pods, and nothing of a run is left on it.
async fn runs_again(site: &Site) {
    let runs = |found: Option<&Deployment>| (found?.status.as_ref()?.ready_replicas == Some(1)).then_some(());
    site.tenant.wait_for("acme-nextcloud", "ready again", runs).await;
    let app = site.tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!((app.annotations().get(STOPPED_FOR), app.spec.replicas), (None, None));
}

#[tokio::test]
async fn a_restore_is_an_object() {
    let site = Site::new("restores").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(with(site.spec(), json!({"postgres": {"provider": "standalone"}}))).await;
    let volume = site.files("acme").await;
    write(&volume, "data/a.txt", "before");
    let archive = archived(&site, "first").await;
    write(&volume, "data/a.txt", "after");

    // Files and the database, of a dump in a bucket.
    let path = format!("{}/acme-pg", tenant.namespace);
    let bucket =
        json!({"endpoint": "http://127.0.0.1:9", "bucket": "dumps", "path": path, "credentialsSecret": {"name": "s3"}});
    let both = json!({"of": {"name": "acme"}, "database": {"store": bucket}, "files": {"from": archive}});
    let (uid, data) = (tenant.uid::<Postgresql>("acme-pg").await, volume_of_database(&site).await);
    site.apply("ClientAppRestore", "both", &both).unwrap();
    let message = in_phase(&site, "both", BackupPhase::Completed).await;
    assert!(message.contains("the database from dump latest") && message.contains(&archive), "{message}");
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("before"));
    let former = volume.join(format!(".clientapp-restore.former.{archive}"));
    assert_eq!(read(&former, "data/a.txt").as_deref(), Some("after"));
    runs_again(&site).await;
    // The Postgresql and its volume are the same, and the request is withdrawn.
    let found = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    assert_eq!((found.uid(), volume_of_database(&site).await, found.spec.restore_request), (uid, data, None));
    assert!(found.status.unwrap().restored.unwrap().request.is_some());
    let listed = tenant.kubectl(&["get", "clientapprestores"]).unwrap();
    assert!(listed.contains("KIND") && listed.contains("Completed"), "{listed}");
    tenant.event("both", "RestoreCompleted", "is restored").await;

    // By the name of a backup.
    write(&volume, "data/a.txt", "later");
    site.apply("ClientAppRestore", "by-name", &json!({"of": {"name": "acme"}, "backup": "first"})).unwrap();
    in_phase(&site, "by-name", BackupPhase::Completed).await;
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("before"));

    let refused = site.apply("ClientAppRestore", "both", &json!({"of": {"name": "acme"}, "backup": "b"})).unwrap_err();
    assert!(refused.contains("cannot be changed: create another ClientAppRestore"), "{refused}");
    for (spec, words) in [
        (json!({"of": {"name": "acme"}}), "set either backup"),
        (json!({"of": {"name": "acme"}, "backup": "b", "files": {}}), "set either backup"),
        (json!({"of": {"name": "acme"}, "files": {}, "parts": ["Files"]}), "parts are those of a ClientAppBackup"),
        (json!({"of": {"name": "acme"}, "files": {"from": "x"}}), "must be latest, or the name of an archive"),
        (json!({"of": {"name": "acme"}, "database": {"from": "a/b"}}), "must be latest, or the name of a dump"),
        (
            json!({"of": {"name": "acme"}, "database": {"from": "a", "time": "2026-01-31T00:00:00Z"}}),
            "give from or time, not both",
        ),
        (json!({"of": {"name": "acme"}, "files": {"path": "../other"}}), "must be words of letters"),
    ] {
        let refused = site.apply("ClientAppRestore", "refused", &spec).unwrap_err();
        assert!(refused.contains(words), "{words}: {refused}");
    }
}

/// Returns the uid of the volume with the database.
async fn volume_of_database(site: &Site) -> Option<String> {
    site.tenant.uid::<PersistentVolumeClaim>("data-acme-pg-0").await
}

#[tokio::test]
async fn a_restore_that_fails_leaves_the_app_as_it_was() {
    let site = Site::new("restores-failed").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(site.spec()).await;
    let volume = site.files("acme").await;
    write(&volume, "data/a.txt", "content");
    archived(&site, "first").await;
    let files = |from: &str| json!({"of": {"name": "acme"}, "files": {"from": from}});
    site.apply("ClientAppRestore", "no-such", &files("20250101T000000Z-0123abcd")).unwrap();
    let message = in_phase(&site, "no-such", BackupPhase::Failed).await;
    assert!(message.contains("there is no archive") && message.contains("the files are as they were"), "{message}");
    tenant.event("no-such", "RestoreUnsuccessful", "there is no archive").await;
    runs_again(&site).await;
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("content"));

    // The credentials of a bucket may open what another tenant has there.
    let path = "prod/other/acme.files";
    let theirs = json!({"of": {"name": "acme"}, "files": {"path": path}});
    site.apply("ClientAppRestore", "theirs", &theirs).unwrap();
    let message = in_phase(&site, "theirs", BackupPhase::Failed).await;
    assert!(
        message.contains("kubectl label secret s3 -n restores-failed apps.bnerd-operator.local/restore-to=acme"),
        "{message}"
    );
    tenant.kubectl(&["label", "secret", "s3", "apps.bnerd-operator.local/restore-to=acme"]).unwrap();
    site.apply("ClientAppRestore", "permitted", &theirs).unwrap();
    let message = in_phase(&site, "permitted", BackupPhase::Failed).await;
    assert!(message.contains(path) && message.contains("there is no archive"), "{message}");
    runs_again(&site).await;

    // One that is deleted while it runs gives the app its pods back, once its Job has ended.
    let met = site.objects.met();
    site.objects.set([Rule::new(Method::GET, "/data/", Fault::Hang)]);
    site.apply("ClientAppRestore", "deleted", &files("latest")).unwrap();
    until("the extract asks for the archive", async || site.objects.met() > met).await;
    tenant.kubectl(&["delete", "clientapprestore", "deleted", "--wait=false"]).unwrap();
    let mark = async || tenant.api::<ClientApp>().get("acme").await.unwrap().annotations().get(STOPPED_FOR).cloned();
    assert_eq!(mark().await.as_deref(), Some("ClientAppRestore/deleted"));
    site.objects.set([]);
    tenant.wait_for("deleted", "gone", |found: Option<&ClientAppRestore>| found.is_none().then_some(())).await;
    runs_again(&site).await;
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("content"));

    // One at a time, and a backup waits.
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    site.apply("ClientAppRestore", "one", &files("latest")).unwrap();
    says(&site, "one", "ClientApp acme is suspended").await;
    site.apply("ClientAppRestore", "two", &files("latest")).unwrap();
    says(&site, "two", "another ClientAppRestore of the same object comes first").await;
    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    in_phase(&site, "one", BackupPhase::Completed).await;
    in_phase(&site, "two", BackupPhase::Completed).await;
    runs_again(&site).await;
}

/// Another operator goes on with what the one before has begun.
#[tokio::test]
async fn a_restore_survives_its_operator() {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated("restores-killed", &["--image", IMAGE]).await;
    let site = Site::of(tenant).await;
    site.create_credentials();
    site.install(site.spec()).await;
    let volume = site.files("acme").await;
    write(&volume, "data/a.txt", "before");
    let archive = archived(&site, "first").await;
    write(&volume, "data/a.txt", "after");
    let met = site.objects.met();
    site.objects.set([Rule::new(Method::GET, "/data/", Fault::Hang)]);
    site.apply("ClientAppRestore", "goes-on", &json!({"of": {"name": "acme"}, "files": {"from": archive}})).unwrap();
    until("the extract asks for the archive", async || site.objects.met() > met).await;
    tokio::task::spawn_blocking(move || operator.kill()).await.unwrap().unwrap();
    let _operator = leading(&options).await;
    site.objects.set([]);
    in_phase(&site, "goes-on", BackupPhase::Completed).await;
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("before"));
    runs_again(&site).await;
}

/// The walk "I move an app to another cluster" of crds/data.md, here to another namespace.
#[tokio::test]
async fn an_app_moves_to_another_place() {
    let before = Site::new("moves-from").await;
    before.create_credentials();
    let dumps = before.spec()["persistence"]["backup"]["store"].clone();
    let standalone = json!({"postgres": {"provider": "standalone", "backup": {"schedule": "@yearly", "store": dumps}}});
    before.install(with(before.spec(), standalone.clone())).await;
    write(&before.files("acme").await, "data/a.txt", "moves");
    let replicas = |count: Value| json!({"spec": {"replicas": count}}).to_string();
    let patch = |site: &Site, patch: &str| {
        site.tenant.kubectl(&["patch", "clientapp", "acme", "--type=merge", "-p", patch]).unwrap();
    };
    patch(&before, &replicas(json!(0)));
    before.apply("ClientAppBackup", "last", &json!({"of": {"name": "acme"}})).unwrap();
    let complete = |found: Option<&ClientAppBackup>| {
        let status = found?.status.as_ref().filter(|status| status.phase == Some(BackupPhase::Completed))?;
        Some((status.database.is_some(), status.files.as_ref()?.archive.is_some()))
    };
    assert_eq!(before.tenant.wait_for("last", "complete", complete).await, (true, true));

    let after = Site::new("moves-to").await;
    let tenant = &after.tenant;
    after.create_credentials();
    let administrator = ["--from-literal=nextcloud-username=admin", "--from-literal=nextcloud-password=old"];
    tenant.kubectl(&[&["create", "secret", "generic", "administrator"][..], &administrator].concat()).unwrap();
    let label = |of: &str| {
        let label = format!("apps.bnerd-operator.local/restore-to={of}");
        tenant.kubectl(&["label", "--overwrite", "secret", "s3", &label]).unwrap();
    };
    label("acme-pg");
    let mut from = dumps.clone();
    from.as_object_mut().unwrap().remove("prefix");
    from["path"] = json!("prod/moves-from/acme-pg");
    let mut spec = with(after.spec(), standalone);
    spec["persistence"]["backup"]["store"] = dumps;
    spec["postgres"]["restore"] = json!({"store": from});
    let spec = with(spec, json!({"replicas": 0, "adminSecret": "administrator"}));
    after.apply("ClientApp", "acme", &spec).unwrap();
    tenant.ready("acme", 1).await;
    let restored = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().status.unwrap().restored.unwrap();
    assert!(restored.store.as_deref().is_some_and(|store| store.ends_with("/prod/moves-from/acme-pg")), "{restored:?}");
    label("acme");
    let files = json!({"of": {"name": "acme"}, "files": {"path": "prod/moves-from/acme.files"}});
    after.apply("ClientAppRestore", "moved", &files).unwrap();
    in_phase(&after, "moved", BackupPhase::Completed).await;
    assert_eq!(read(&after.files("acme").await, "data/a.txt").as_deref(), Some("moves"));
    patch(&after, &replicas(json!(null)));
    runs_again(&after).await;

    // What was moved does not depend on the old place.
    before.tenant.delete("acme").await;
    assert_eq!(before.snapshots().len(), 1);
}
