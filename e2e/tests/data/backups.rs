//! ClientAppBackups, made with `kubectl apply` alone. The database is simulated, the files and their storage are not.

use axum::http::{Method, StatusCode};
use clientapp_crd::reason::{BACKED_UP, FILES_BACKED_UP};
use clientapp_crd::{BackupPhase, BackupState, ClientAppBackup, ClientAppStatus, Postgresql, Profile, conditions};
use e2e::charts;
use e2e::lab::{Apart, IMAGE, has, leading};
use e2e::objects::{Fault, Rule};
use e2e::scenario::{names, operated};
use e2e::wait::until;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;

use super::files::{Site, uploads, write};
use super::*;

const KIND: &str = "ClientAppBackup";

/// Waits until a backup is in this phase, and returns it with the message of its condition.
async fn in_phase(site: &Site, name: &str, phase: BackupPhase) -> (ClientAppBackup, String) {
    let reached = |found: Option<&ClientAppBackup>| {
        let status = found?.status.as_ref().filter(|status| status.phase == Some(phase))?;
        let ready = conditions::find(&status.conditions, "Ready")?;
        assert_eq!(ready.status == "True", phase == BackupPhase::Completed, "{ready:?}");
        let stalled = conditions::find(&status.conditions, "Stalled")?;
        assert_eq!(stalled.status == "True", phase == BackupPhase::Failed, "{stalled:?}");
        Some((found?.clone(), ready.message.clone()))
    };
    site.tenant.wait_for(name, "in its phase", reached).await
}

/// The Jobs of backups that are objects: their names end with the beginning of the backup's uid.
async fn jobs_of(site: &Site, backup: &ClientAppBackup) -> Vec<String> {
    let uid: String = backup.uid().unwrap().chars().filter(|c| *c != '-').take(10).collect();
    names::<Job>(&site.tenant).await.into_iter().filter(|name| name.ends_with(&uid)).collect()
}

#[tokio::test]
async fn a_backup_is_an_object() {
    let site = Site::new("backups").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(with(site.spec(), json!({"postgres": {"provider": "standalone"}}))).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    site.apply(KIND, "first", &json!({"of": {"name": "acme"}})).unwrap();
    let (first, message) = in_phase(&site, "first", BackupPhase::Completed).await;
    assert!(message.starts_with("ClientApp acme is backed up: a dump, archive "), "{message}");
    let status = first.status.clone().unwrap();
    let (database, files) = (status.database.unwrap(), status.files.unwrap());
    assert_eq!((database.kind.as_str(), Some(database.name)), ("Postgresql", first.uid()));
    assert_eq!((files.files, files.bytes), (Some(1), Some(7)), "{files:?}");
    let snapshot = site.snapshots();
    assert!(snapshot.len() == 1 && snapshot[0].starts_with(files.archive.unwrap().rsplit_once('-').unwrap().1));
    // The database comes first.
    assert!(database.completed_at.unwrap() <= files.completed_at.unwrap());
    let listed = tenant.kubectl(&["get", "clientappbackups"]).unwrap();
    assert!(listed.contains("KIND") && listed.contains("Completed"), "{listed}");
    tenant.event("first", "BackupCompleted", "is backed up").await;

    // It is what it is, and nothing of it goes with it.
    let refused = site.apply(KIND, "first", &json!({"of": {"name": "another"}})).unwrap_err();
    assert!(refused.contains("cannot be changed: create another ClientAppBackup"), "{refused}");
    for (spec, words) in [
        (json!({"of": {"name": "acme"}, "parts": []}), "should have at least 1 items"),
        (json!({"of": {"name": "acme"}, "parts": ["Files", "Files"]}), "must name each part once"),
        (json!({"of": {"name": "acme"}, "parts": ["Redis"]}), "Unsupported value"),
        (json!({"of": {"kind": "Profile", "name": "acme"}}), "Unsupported value"),
        (json!({"of": {"name": "a/b"}}), "spec.of.name"),
    ] {
        let refused = site.apply(KIND, "refused", &spec).unwrap_err();
        assert!(refused.contains(words), "{words}: {refused}");
    }
    tenant.kubectl(&["delete", "clientappbackup", "first"]).unwrap();
    assert_eq!(site.snapshots(), snapshot);

    // Two at once: one dump after the other, and nothing is made twice.
    site.apply(KIND, "second", &json!({"of": {"name": "acme"}})).unwrap();
    site.apply(KIND, "third", &json!({"of": {"kind": "Postgresql", "name": "acme-pg"}})).unwrap();
    let (second, _) = in_phase(&site, "second", BackupPhase::Completed).await;
    let (third, message) = in_phase(&site, "third", BackupPhase::Completed).await;
    assert_eq!(message, "Postgresql acme-pg is backed up: a dump");
    assert!(third.status.as_ref().unwrap().files.is_none());
    assert_eq!(jobs_of(&site, &second).await.len(), 1);
    let request = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().spec.backup.unwrap().request;
    assert!([second.uid(), third.uid()].contains(&request), "{request:?}");
    assert_eq!(site.snapshots().len(), 2);

    // Of one object, the oldest comes first, and the end of each lets the next begin.
    let order = ["a", "b", "c"];
    for name in order {
        site.apply(KIND, name, &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
    }
    let mut before = None;
    for name in order {
        let status = in_phase(&site, name, BackupPhase::Completed).await.0.status.unwrap();
        assert!(
            before <= status.started_at,
            "{name} began at {:?}, and the one before ended at {before:?}",
            status.started_at
        );
        before = status.completed_at;
    }
}

#[tokio::test]
async fn a_backup_that_fails_says_why() {
    let site = Site::new("backups-failed").await;
    let tenant = &site.tenant;
    site.apply(KIND, "early", &json!({"of": {"name": "acme"}})).unwrap();
    let (_, message) = in_phase(&site, "early", BackupPhase::Failed).await;
    assert_eq!(message, "ClientApp acme does not exist in this namespace");
    site.create_credentials();
    site.install(site.spec()).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    site.apply(KIND, "database", &json!({"of": {"name": "acme"}, "parts": ["Database"]})).unwrap();
    let (_, message) = in_phase(&site, "database", BackupPhase::Failed).await;
    assert!(message.contains("has no database that the operator backs up"), "{message}");

    site.objects.set(uploads(Fault::Answer(StatusCode::FORBIDDEN)));
    site.apply(KIND, "forbidden", &json!({"of": {"name": "acme"}})).unwrap();
    let (forbidden, message) = in_phase(&site, "forbidden", BackupPhase::Failed).await;
    assert!(message.contains("Access Denied") && message.contains("check the credentials"), "{message}");
    tenant.event("forbidden", "BackupUnsuccessful", "Access Denied").await;
    site.objects.set([]);

    // What the API server refuses is told, and made once it is allowed.
    create_quota(tenant, "count/jobs.batch", "1").await;
    site.apply(KIND, "refused", &json!({"of": {"name": "acme"}})).unwrap();
    tenant.wait_for("refused", "told of the quota", |found| says(found, "exceeded quota: none")).await;
    tenant.kubectl(&["delete", "quota", "none"]).unwrap();
    in_phase(&site, "refused", BackupPhase::Completed).await;

    // It is not tried again, and the next one succeeds.
    site.apply(KIND, "next", &json!({"of": {"name": "acme"}})).unwrap();
    in_phase(&site, "next", BackupPhase::Completed).await;
    in_phase(&site, "forbidden", BackupPhase::Failed).await;
    assert_eq!(jobs_of(&site, &forbidden).await.len(), 1);
}

/// Creates the quota `none`, and waits until it counts.
async fn create_quota(tenant: &Tenant, resource: &str, hard: &str) {
    tenant.kubectl(&["create", "quota", "none", &format!("--hard={resource}={hard}")]).unwrap();
    let counts = |found: Option<&ResourceQuota>| {
        let used = found?.status.as_ref()?.used.as_ref()?;
        used.contains_key(resource).then_some(())
    };
    tenant.wait_for("none", "counting", counts).await;
}

fn says(found: Option<&ClientAppBackup>, words: &str) -> Option<()> {
    let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
    ready.message.contains(words).then_some(())
}

/// A quota for memory refuses pods without limits, and a Job without a pod would keep the app's backups waiting.
#[tokio::test]
async fn a_quota_for_memory_admits_jobs_with_resources() {
    let site = Site::new("backups-limits").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(site.spec()).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    create_quota(tenant, "limits.memory", "64Gi").await;
    site.apply(KIND, "without", &json!({"of": {"name": "acme"}})).unwrap();
    tenant.wait_for("without", "told of the quota", |found| says(found, "must specify limits.memory")).await;
    // As the operator ends it after 15 minutes.
    let without = tenant.api::<ClientAppBackup>().get("without").await.unwrap();
    let job = jobs_of(&site, &without).await.remove(0);
    let annotations = json!({"apps.bnerd-operator.local/not-started": "nothing ran for 15 minutes: no memory"});
    let end = json!({"metadata": {"annotations": annotations}, "spec": {"activeDeadlineSeconds": 1}});
    tenant.kubectl(&["patch", "job", &job, "--type=merge", "-p", &end.to_string()]).unwrap();
    let (_, message) = in_phase(&site, "without", BackupPhase::Failed).await;
    assert!(message.starts_with(&format!("Job {job} has failed: nothing ran for 15 minutes: no memory")), "{message}");

    let jobs = json!({"resources": {"limits": {"memory": "1Gi"}}, "timeout": "24h"});
    let patch = json!({"spec": {"persistence": {"backup": {"jobs": jobs}}}});
    tenant.kubectl(&["patch", "clientapp", "acme", "--type=merge", "-p", &patch.to_string()]).unwrap();
    site.apply(KIND, "with", &json!({"of": {"name": "acme"}})).unwrap();
    let (limited, _) = in_phase(&site, "with", BackupPhase::Completed).await;
    let made = tenant.api::<Job>().get(&jobs_of(&site, &limited).await[0]).await.unwrap();
    assert_eq!(made.spec.unwrap().active_deadline_seconds, Some(86400));
    let wrong = json!({"spec": {"persistence": {"backup": {"jobs": {"timeout": "1m"}}}}});
    let refused =
        tenant.kubectl(&["patch", "clientapp", "acme", "--type=merge", "-p", &wrong.to_string()]).unwrap_err();
    assert!(refused.to_string().contains("must be a duration such as 24h"), "{refused}");
}

/// Another operator goes on with what the one before has begun, and begins nothing twice.
#[tokio::test]
async fn a_backup_survives_its_operator() {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated("backups-killed", &["--image", IMAGE]).await;
    let site = Site::of(tenant).await;
    site.create_credentials();
    site.install(with(site.spec(), json!({"postgres": {"provider": "standalone"}}))).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    let met = site.objects.met();
    site.objects.set([Rule::new(Method::PUT, "/data/", Fault::Hang)]);
    site.apply(KIND, "goes-on", &json!({"of": {"name": "acme"}})).unwrap();
    until("the files are uploaded", async || site.objects.met() > met).await;
    tokio::task::spawn_blocking(move || operator.kill()).await.unwrap().unwrap();
    let _operator = leading(&options).await;
    site.objects.set([]);
    let (done, _) = in_phase(&site, "goes-on", BackupPhase::Completed).await;
    assert_eq!((jobs_of(&site, &done).await.len(), site.snapshots().len()), (1, 1));
}

/// A backup with `quiesce` waits for helm, which takes the pods away, and helm for the backup before an upgrade.
#[tokio::test]
async fn a_backup_of_one_moment_and_an_upgrade_do_not_wait_for_each_other() {
    let site = Site::new("backups-upgrade").await;
    let tenant = &site.tenant;
    site.create_credentials();
    let backed_up = json!({"postgres": {"provider": "standalone"}, "upgrade": {"backup": true}});
    site.install(with(site.spec(), backed_up)).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    // It is not over before the upgrade is due.
    site.objects.set([Rule::new(Method::PUT, "/data/", Fault::Hang)]);
    site.apply(KIND, "still", &json!({"of": {"name": "acme"}, "quiesce": true})).unwrap();
    let stopped = |found: Option<&ClientApp>| found?.annotations().get(annotation::STOPPED_FOR).map(drop);
    tenant.wait_for("acme", "stopped", stopped).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    site.objects.set([]);
    in_phase(&site, "still", BackupPhase::Completed).await;
    let is_upgraded = |status: &ClientAppStatus| {
        let release = status.release.as_ref().and_then(|release| release.chart_version.as_deref());
        release == Some(charts::PATCH) && has(status, "Ready", "True", "Ready")
    };
    let record = tenant.status("acme", "upgraded", is_upgraded).await.backup.unwrap();
    assert_eq!((record.kind.as_str(), record.state), (KIND, BackupState::Succeeded));
    in_phase(&site, &record.name, BackupPhase::Completed).await;
    // It gets its pods back at the version that it has by now.
    let runs = |found: Option<&ClientApp>| (!found?.annotations().contains_key(annotation::STOPPED_FOR)).then_some(());
    tenant.wait_for("acme", "no longer stopped", runs).await;
    tenant.status("acme", "with its pods", is_upgraded).await;
}

/// What has not begun goes with the upgrade that asked for it.
#[tokio::test]
async fn the_backup_of_an_upgrade_that_is_withdrawn_goes() {
    let site = Site::new("backups-withdrawn").await;
    let tenant = &site.tenant;
    site.create_credentials();
    let backed_up = json!({"postgres": {"provider": "standalone"}, "upgrade": {"backup": true}});
    site.install(with(site.spec(), backed_up)).await;
    // A dump that has begun comes first.
    create_quota(tenant, "count/jobs.batch", "0").await;
    site.apply(KIND, "stands", &json!({"of": {"name": "acme"}, "parts": ["Database"]})).unwrap();
    let begun = |found: Option<&ClientAppBackup>| found?.status.as_ref()?.database.as_ref().map(drop);
    tenant.wait_for("stands", "begun", begun).await;
    let before = tenant.api::<ClientApp>().get("acme").await.unwrap().spec.chart_version;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let asked = |status: &ClientAppStatus| status.backup.as_ref().is_some_and(|backup| backup.to == charts::PATCH);
    let asked = tenant.status("acme", "backed up first", asked).await.backup.unwrap();
    let (waits, message) = in_phase(&site, &asked.name, BackupPhase::Pending).await;
    assert!(message.contains("another ClientAppBackup of the same object comes first"), "{message}");
    assert!(waits.status.unwrap().started_at.is_none());
    tenant.patch("acme", json!({"chartVersion": before})).await.unwrap();
    let gone = |found: Option<&ClientAppBackup>| found.is_none().then_some(());
    tenant.wait_for(&asked.name, "gone", gone).await;
    // What a user has made goes on.
    tenant.kubectl(&["delete", "quota", "none"]).unwrap();
    in_phase(&site, "stands", BackupPhase::Completed).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let is_upgraded = |status: &ClientAppStatus| {
        let release = status.release.as_ref().and_then(|release| release.chart_version.as_deref());
        release == Some(charts::PATCH)
    };
    let record = tenant.status("acme", "upgraded", is_upgraded).await.backup.unwrap();
    assert!(record.name != asked.name && record.state == BackupState::Succeeded, "{record:?}");
}

/// A password that is lost makes the backups unreadable: another one would hide that.
#[tokio::test]
async fn a_password_is_generated_once_and_kept() {
    let site = Site::new("backups-password").await;
    let tenant = &site.tenant;
    site.create_credentials();
    let profile = json!({"defaults": {"jobs": {"timeout": "24h", "serviceAccountName": "default"}}});
    let profile = Profile::new("backups-password", serde_json::from_value(profile).unwrap());
    let profiles = Api::<Profile>::all(tenant.client.clone());
    profiles.create(&PostParams::default(), &profile).await.unwrap();
    let mut spec = with(site.spec(), json!({"profile": "backups-password", "postgres": {"provider": "standalone"}}));
    let generated = json!({"passwordSecret": {"name": "restic"}, "generatePassword": true});
    let mut unnamed = spec.clone();
    unnamed["persistence"]["backup"]["store"]["generatePassword"] = json!(true);
    let refused = tenant.create("acme", unnamed).await.unwrap_err().to_string();
    assert!(refused.contains("needs passwordSecret, with the name of the Secret to create"), "{refused}");
    let store = with(spec["persistence"]["backup"]["store"].clone(), generated);
    spec["persistence"]["backup"]["store"] = store.clone();
    spec["postgres"]["backup"] = json!({"schedule": "@yearly", "store": store});
    site.install(spec).await;
    let password = secret(tenant, "restic", "password").await;
    assert_eq!(password.len(), 32);
    tenant.event("acme", "RepositoryPasswordGenerated", "keep a copy outside this cluster").await;
    write(&site.files("acme").await, "data/a.txt", "content");
    site.apply(KIND, "first", &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
    let (first, _) = in_phase(&site, "first", BackupPhase::Completed).await;
    let job = tenant.api::<Job>().get(&jobs_of(&site, &first).await[0]).await.unwrap().spec.unwrap();
    assert_eq!(job.active_deadline_seconds, Some(86400), "its Profile says so");
    assert_eq!(job.template.spec.unwrap().service_account_name.as_deref(), Some("default"));
    let database = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    let jobs = database.spec.backup.as_ref().unwrap().jobs.as_ref().unwrap();
    assert_eq!(jobs.timeout.as_deref(), Some("24h"));
    let uid = tenant.uid::<Secret>("restic").await.unwrap();
    assert_eq!(database.status.unwrap().repository_password.map(|known| known.uid), Some(uid.clone()));

    // A change of the Profile that the app does not have yet.
    let change = json!({"spec": {"defaults": {"jobs": {"timeout": "48h"}}, "rollout": {"paused": true}}});
    profiles.patch("backups-password", &PatchParams::default(), &Patch::Merge(change)).await.unwrap();

    // It is lost.
    let kept = tenant.kubectl(&["get", "secret", "restic", "-o", "jsonpath={.data.password}"]).unwrap();
    tenant.kubectl(&["delete", "secret", "restic"]).unwrap();
    let told = tenant.condition("acme", FILES_BACKED_UP, "False", "RepositoryPasswordLost").await;
    assert!(told.contains(&format!("kubectl create secret generic restic -n {}", tenant.namespace)), "{told}");
    tenant.condition("acme", BACKED_UP, "False", "RepositoryPasswordLost").await;
    site.apply(KIND, "without", &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
    let (_, message) = in_phase(&site, "without", BackupPhase::Failed).await;
    assert!(message.contains("the Secret named by passwordSecret, or its key, is missing"), "{message}");
    assert_eq!(tenant.uid::<Secret>("restic").await, None, "no other is generated");

    // The user has a copy.
    let copy =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "restic"}, "data": {"password": kept}});
    let copy: Secret = serde_json::from_value(copy).unwrap();
    tenant.api::<Secret>().create(&PostParams::default(), &copy).await.unwrap();
    tenant.condition("acme", FILES_BACKED_UP, "False", "ArchiveFailed").await;
    site.apply(KIND, "second", &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
    let (second, _) = in_phase(&site, "second", BackupPhase::Completed).await;
    let job = tenant.api::<Job>().get(&jobs_of(&site, &second).await[0]).await.unwrap().spec.unwrap();
    assert_eq!(job.active_deadline_seconds, Some(86400), "the app's own revision of its Profile says so");
    assert_eq!(site.snapshots().len(), 2);

    // The app goes with its data, and the backups stay, with what opens them.
    let uid = tenant.uid::<Secret>("restic").await;
    tenant.delete("acme").await;
    assert!(uid.is_some() && tenant.uid::<Secret>("restic").await == uid);
    profiles.delete("backups-password", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
async fn what_a_backup_has_made_goes_with_it_if_it_says_so() {
    let site = Site::new("backups-reclaimed").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(site.spec()).await;
    write(&site.files("acme").await, "data/a.txt", "content");
    let with_reclaim = |reclaim: &str| json!({"of": {"name": "acme"}, "parts": ["Files"], "reclaim": reclaim});
    site.apply(KIND, "stays", &with_reclaim("Retain")).unwrap();
    in_phase(&site, "stays", BackupPhase::Completed).await;
    let stays = site.snapshots();
    for name in ["goes", "let-go", "with-all"] {
        site.apply(KIND, name, &with_reclaim("Delete")).unwrap();
        in_phase(&site, name, BackupPhase::Completed).await;
    }
    assert_eq!(site.snapshots().len(), 4);
    for (name, spec, words) in [
        ("stays", with_reclaim("Delete"), "can only be changed to Retain"),
        (
            "db",
            json!({"of": {"kind": "Postgresql", "name": "db"}, "reclaim": "Delete"}),
            "Delete is not for a Postgresql",
        ),
    ] {
        let refused = site.apply(KIND, name, &spec).unwrap_err();
        assert!(refused.contains(words), "{refused}");
    }

    // What cannot be deleted keeps its object, which says why.
    let delete = |name: &str| tenant.kubectl(&["delete", "clientappbackup", name, "--wait=false"]).unwrap();
    tenant.kubectl(&["delete", "secret", "s3"]).unwrap();
    for name in ["goes", "let-go"] {
        delete(name);
        let failed = |found: Option<&ClientAppBackup>| {
            let status = found?.status.as_ref()?;
            let stalled = conditions::find(&status.conditions, "Stalled")?;
            (stalled.reason == "ReclaimFailed" && stalled.status == "True").then(|| stalled.message.clone())
        };
        let message = tenant.wait_for(name, "told why", failed).await;
        assert!(message.contains("AWS_ACCESS_KEY_ID is not set"), "{message}");
        assert!(message.ends_with("or set spec.reclaim to Retain"), "{message}");
    }
    assert_eq!(site.snapshots().len(), 4);
    let gone = |found: Option<&ClientAppBackup>| found.is_none().then_some(());
    let retain = json!({"spec": {"reclaim": "Retain"}}).to_string();
    tenant.kubectl(&["patch", "clientappbackup", "let-go", "--type=merge", "-p", &retain]).unwrap();
    tenant.wait_for("let-go", "gone", gone).await;
    assert_eq!(site.snapshots().len(), 4);
    site.create_credentials();
    let uid: String = tenant.uid::<ClientAppBackup>("goes").await.unwrap().replace('-', "");
    tenant.kubectl(&["delete", "job", &format!("acme-files-f{}", &uid[..10])]).unwrap();
    tenant.wait_for("goes", "gone", gone).await;
    let left = site.snapshots();
    assert!(left.len() == 3 && stays.iter().all(|snapshot| left.contains(snapshot)), "{left:?}");

    // The namespace does not wait for it.
    tenant.kubectl(&["delete", "secret", "s3"]).unwrap();
    tenant.kubectl(&["delete", "namespace", &tenant.namespace, "--timeout=10m"]).unwrap();
    assert_eq!(site.snapshots(), left);
}
