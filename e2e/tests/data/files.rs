//! Archives of an app's files, made and restored by the operator's own program, and what users are told about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use axum::http::{Method, StatusCode};
use clientapp_crd::reason::FILES_BACKED_UP;
use clientapp_crd::{BackupPhase, ClientAppBackup, ClientAppStatus, FilesSummary, Postgresql, conditions};
use e2e::lab::Lab;
use e2e::objects::{ACCESS_KEY, BUCKET, Fault, Objects, Rule, SECRET_KEY};
use e2e::operator;
use e2e::scenario::{names, nothing_is_left, small};
use e2e::wait::until;
use e2e::worker::Worker;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;

use super::*;

/// A namespace whose archives go into a bucket, behind a proxy that injects faults.
pub(super) struct Site {
    pub(super) tenant: Tenant,
    pub(super) objects: Objects,
    worker: Worker,
}

impl Site {
    pub(super) async fn new(namespace: &str) -> Site {
        Site::of(Lab::shared().await.tenant(namespace).await).await
    }

    pub(super) async fn of(tenant: Tenant) -> Site {
        let worker = Worker::start(&tenant).await.unwrap();
        Site { tenant, objects: Objects::start().unwrap(), worker }
    }

    pub(super) fn create_credentials(&self) {
        let [key, secret] = [("ACCESS_KEY_ID", ACCESS_KEY), ("SECRET_ACCESS_KEY", SECRET_KEY)]
            .map(|(name, value)| format!("--from-literal=AWS_{name}={value}"));
        self.tenant.kubectl(&["create", "secret", "generic", "s3", &key, &secret]).unwrap();
    }

    /// Without a database and Redis, with archives.
    pub(super) fn spec(&self) -> Value {
        let credentials = json!({"name": "s3"});
        let store = json!({
            "endpoint": self.objects.faulty_url(), "bucket": BUCKET, "prefix": "prod", "credentialsSecret": credentials,
        });
        let backup = json!({"schedule": "@yearly", "store": store});
        with(small(&self.tenant, "acme"), json!({"persistence": {"enabled": true, "backup": backup}}))
    }

    /// Creates the app, and waits until it is Ready.
    pub(super) async fn install(&self, spec: Value) {
        self.tenant.create("acme", spec).await.unwrap();
        self.tenant.ready("acme", 1).await;
    }

    /// The directory with the files of an app.
    pub(super) async fn files(&self, app: &str) -> PathBuf {
        let claim = format!("{app}-nextcloud-nextcloud");
        let uid = self.tenant.uid::<PersistentVolumeClaim>(&claim).await.expect("the app has a claim");
        self.worker.volume(&uid).unwrap()
    }

    /// Applies an object of one of the operator's kinds, as a user does.
    pub(super) fn apply(&self, kind: &str, name: &str, spec: &Value) -> Result<(), String> {
        let version = "apps.bnerd-operator.local/v1alpha1";
        let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(&file, object.to_string()).unwrap();
        let applied = self.tenant.kubectl(&["apply", "-f", file.path().to_str().unwrap()]);
        applied.map(drop).map_err(|error| format!("{error:#}"))
    }

    /// Lets an archive be due at this time, and waits until its ClientAppBackup exists.
    async fn due(&self, time: &str, name: &str) -> ClientAppBackup {
        self.archived_with("scheduled", |files| files.scheduled.is_some()).await;
        let due = Patch::Merge(json!({"status": {"files": {"scheduled": {"next": time}}}}));
        self.tenant.api::<ClientApp>().patch_status("acme", &PatchParams::default(), &due).await.unwrap();
        self.tenant.wait_for(name, "made", |found: Option<&ClientAppBackup>| found.cloned()).await
    }

    /// Archives the files, and waits until the ClientAppBackup is in this phase.
    async fn archive(&self, name: &str, phase: BackupPhase) {
        self.apply("ClientAppBackup", name, &json!({"of": {"name": "acme"}, "parts": ["Files"]})).unwrap();
        self.ended(name, phase).await;
    }

    async fn ended(&self, name: &str, phase: BackupPhase) {
        let ended = |found: Option<&ClientAppBackup>| (found?.status.as_ref()?.phase == Some(phase)).then_some(());
        self.tenant.wait_for(name, &format!("{phase:?}"), ended).await;
    }

    /// Waits until the status tells of an archive.
    async fn archived(&self) -> FilesSummary {
        self.archived_with("archived", |files| files.archive.is_some()).await
    }

    async fn archived_with(&self, what: &str, check: impl Fn(&FilesSummary) -> bool) -> FilesSummary {
        let archived = |found: Option<&ClientApp>| found?.status.as_ref()?.files.clone().filter(&check);
        self.tenant.wait_for("acme", what, archived).await
    }

    /// The keys of all archives.
    fn keys(&self) -> Vec<String> {
        self.objects.keys(&format!("prod/{}/acme.files", self.tenant.namespace))
    }

    /// The ids of all archives' snapshots.
    pub(super) fn snapshots(&self) -> Vec<String> {
        let keys = self.keys();
        keys.iter().filter_map(|key| key.strip_prefix("snapshots/").map(str::to_owned)).collect()
    }

    /// Runs a command of `kubectl clientapp` as cluster admin, on a thread of its own.
    fn plugin(&self, arguments: &[&str]) -> JoinHandle<Output> {
        let mut command = Command::new(operator::binary().unwrap());
        command.arg("kubectl").args(arguments).args(["--namespace", &self.tenant.namespace]);
        command.env_clear().env("HOME", "/nonexistent").env("KUBECONFIG", self.tenant.lab.plane.kubeconfig());
        command.env("CLIENTAPP_RESTIC", operator::restic().unwrap());
        command.stdin(Stdio::null());
        tokio::task::spawn_blocking(move || command.output().unwrap())
    }
}

#[track_caller]
fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}{}", said(&output.stdout), said(&output.stderr));
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn write(volume: &Path, file: &str, content: &str) {
    let path = volume.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

pub(super) fn read(volume: &Path, file: &str) -> Option<String> {
    fs::read_to_string(volume.join(file)).ok()
}

/// What hits every upload.
pub(super) fn uploads(fault: Fault) -> [Rule; 2] {
    [Method::PUT, Method::POST].map(|method| Rule::new(method, "", fault))
}

const FIRST: &str = "acme-files-202601310330";

#[tokio::test]
async fn archives_are_made_and_a_failure_is_told_and_holds_up_nothing() {
    let site = Site::new("files-archived").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(site.spec()).await;
    tenant.condition("acme", FILES_BACKED_UP, "Unknown", "NoArchive").await;

    write(&site.files("acme").await, "data/a.txt", "content");
    let first = site.due("2026-01-31T03:30:00Z", FIRST).await;
    let owner = first.owner_references()[0].clone();
    assert_eq!((Some(owner.uid), owner.controller), (tenant.uid::<ClientApp>("acme").await, Some(true)));
    site.ended(FIRST, BackupPhase::Completed).await;
    let files = site.archived().await;
    assert_eq!((files.files, files.bytes), (Some(1), Some(7)), "{files:?}");
    let (archive, snapshots) = (files.archive.unwrap(), site.snapshots());
    let [snapshot] = &snapshots[..] else { panic!("{snapshots:?}") };
    assert!(snapshot.starts_with(archive.rsplit_once('-').unwrap().1), "{archive}: {snapshot}");
    let told = tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    assert!(told.contains(&archive), "{told}");
    // Another is due at the next New Year.
    let next = files.scheduled.unwrap().next.0;
    assert_eq!(next.strftime("%m-%d %H:%M").to_string(), "01-01 00:00");
    assert!(next.to_string().as_str() > "2026-11", "{next}");

    site.objects.set(uploads(Fault::Answer(StatusCode::FORBIDDEN)));
    site.archive("second", BackupPhase::Failed).await;
    let words = [
        "ClientAppBackup second has failed",
        "Access Denied",
        "check the credentials",
        "the last complete archive is of",
    ];
    let told = tenant.condition_with("acme", (FILES_BACKED_UP, "ArchiveFailed"), &words).await;
    tenant.event("acme", "ArchiveFailed", "Access Denied").await;
    let events = tenant.events("acme").await;
    let password = secret(tenant, "acme-admin-secret", "nextcloud-password").await;
    for canary in [ACCESS_KEY, SECRET_KEY, password.as_str(), "Signature="] {
        assert!(!told.contains(canary) && !format!("{events:?}").contains(canary), "{told}: {events:#?}");
    }
    assert_eq!(site.snapshots(), snapshots);
    // The app is no less ready without archives.
    tenant.ready("acme", 1).await;

    site.objects.set([]);
    site.archive("third", BackupPhase::Completed).await;
    tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    assert_eq!(site.snapshots().len(), 2);

    // A deletion does not wait for an archive.
    let met = site.objects.met();
    site.objects.set(uploads(Fault::Hang));
    site.apply("ClientAppBackup", "fourth", &json!({"of": {"name": "acme"}})).unwrap();
    until("the archive is uploaded", async || site.objects.met() > met).await;
    // It is the user's, and the only object that would stay.
    tenant.kubectl(&["delete", "secret", "s3"]).unwrap();
    tenant.delete("acme").await;
    nothing_is_left(tenant).await;
    until("the Jobs are gone", async || names::<Job>(tenant).await.is_empty()).await;
    // The operator's own goes with the app; what a user has made stays.
    let is_left = async || names::<ClientAppBackup>(tenant).await == ["fourth", "second", "third"];
    until("the ClientAppBackup by schedule is gone", is_left).await;
}

#[tokio::test]
async fn files_come_back_from_an_archive() {
    let site = Site::new("files-restored").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(with(site.spec(), json!({"replicas": 2}))).await;
    let volume = site.files("acme").await;
    write(&volume, "data/a.txt", "before");
    write(&volume, "config/config.php", "<?php");
    succeeded(&site.plugin(&["backup", "acme", "--wait"]).await.unwrap());
    let archive = site.archived().await.archive.unwrap();
    write(&volume, "data/a.txt", "after");
    write(&volume, "data/new.txt", "new");

    let app = async || tenant.api::<ClientApp>().get("acme").await.unwrap();
    let (before, met) = (app().await.spec, site.objects.met());
    // The extract waits for the bucket, and the test looks around meanwhile.
    site.objects.set([Rule::new(Method::GET, "/data/", Fault::Hang)]);
    let only = format!("--only-files={archive}");
    let restoring = site.plugin(&["restore", "acme", &only, "--yes", "--wait"]);
    until("the extract asks for the archive", async || site.objects.met() > met).await;
    // Two controllers, one after the other, write that there is none.
    let stopped = |found: Option<&Deployment>| {
        let found = found?;
        let written = found.status.as_ref()?.replicas.unwrap_or_default();
        (found.spec.as_ref()?.replicas == Some(0) && written == 0).then_some(())
    };
    tenant.wait_for("acme-nextcloud", "without pods", stopped).await;
    let pods = names::<Pod>(tenant).await;
    assert!(pods.iter().all(|pod| !pod.starts_with("acme-nextcloud-")), "{pods:?}");
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("after"));
    site.objects.set([]);
    succeeded(&restoring.await.unwrap());

    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("before"));
    assert_eq!(read(&volume, "config/config.php").as_deref(), Some("<?php"));
    assert_eq!(read(&volume, "data/new.txt"), None);
    let former = volume.join(format!(".clientapp-restore.former.{archive}"));
    assert_eq!(read(&former, "data/a.txt").as_deref(), Some("after"));
    assert_eq!(read(&former, "data/new.txt").as_deref(), Some("new"));
    assert_eq!(app().await.spec, before);
    let runs = |found: Option<&Deployment>| (found?.status.as_ref()?.ready_replicas == Some(2)).then_some(());
    tenant.wait_for("acme-nextcloud", "ready with both replicas", runs).await;
    // What was moved aside is not archived.
    succeeded(&site.plugin(&["backup", "acme", "--wait"]).await.unwrap());
    site.archived_with("archived again", |files| files.files == Some(2)).await;
    tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;

    // A backup of one moment: a revision without pods, and one with them again.
    let count = site.snapshots().len();
    succeeded(&site.plugin(&["backup", "acme", "--stop", "--wait"]).await.unwrap());
    let snapshots = site.snapshots();
    let goes_on = |found: Option<&ClientApp>| {
        found.filter(|app| !app.annotations().contains_key(annotation::STOPPED_FOR)).cloned()
    };
    assert_eq!(tenant.wait_for("acme", "not stopped any more", goes_on).await.spec, before);
    assert!(snapshots.len() > count, "{snapshots:?}");
    tenant.ready("acme", 5).await;
}

const DUMP: &str = "20260131T030000Z-x7k2p";

/// Another app gets the database and the files of the first. The database is simulated, the files are not.
#[tokio::test]
async fn another_app_gets_the_files_with_the_database() {
    let site = Site::new("files-beside").await;
    let tenant = &site.tenant;
    site.create_credentials();
    site.install(with(site.spec(), json!({"postgres": {"provider": "standalone"}}))).await;
    let volume = site.files("acme").await;
    write(&volume, "data/a.txt", "content");
    succeeded(&site.plugin(&["backup", "acme", "--wait"]).await.unwrap());
    site.archived().await;
    // The simulated pod that dumped the database says what the real one does.
    let pods = tenant.api::<Pod>();
    let dumped = ListParams::default().labels("apps.bnerd-operator.local/role=backup");
    for pod in pods.list(&dumped).await.unwrap() {
        let ended = json!({"terminated": {"exitCode": 0, "message": format!("{DUMP} 123456789 42")}});
        let status = json!({"status": {"containerStatuses": [{
            "name": "dump", "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": ended,
        }]}});
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }
    let listed = |found: Option<&Postgresql>| {
        let dumps = &found?.status.as_ref()?.backup.as_ref()?.dumps;
        dumps.iter().any(|dump| dump.name == DUMP).then_some(())
    };
    tenant.wait_for("acme-pg", "with a list of its dumps", listed).await;

    let before = tenant.api::<ClientApp>().get("acme").await.unwrap().spec;
    let then = hostname(tenant, "then");
    let copy = ["restore", "acme", "--to", "then", "--hostname", &then, "--files", "--yes", "--wait"];
    succeeded(&site.plugin(&copy).await.unwrap());
    let copied = site.files("then").await;
    assert_eq!(read(&copied, "data/a.txt").as_deref(), Some("content"));
    // The simulated pod that restored it does not say which dump is the latest.
    let restored = tenant.api::<Postgresql>().get("then-pg").await.unwrap().status.unwrap().restored.unwrap();
    assert_eq!((restored.dump.as_str(), restored.claim.as_deref()), ("latest", Some("acme-pg-backup")));
    assert_ne!(copied, volume);
    assert_eq!(read(&volume, "data/a.txt").as_deref(), Some("content"));
    assert_eq!(tenant.api::<ClientApp>().get("acme").await.unwrap().spec, before);
}

#[tokio::test]
async fn what_prevents_archives_is_told_and_archives_outlive_the_field() {
    let site = Site::new("files-removed").await;
    let tenant = &site.tenant;
    site.install(site.spec()).await;

    // Missing credentials are told.
    write(&site.files("acme").await, "a.txt", "content");
    site.archive("first", BackupPhase::Failed).await;
    let words = ["ClientAppBackup first has failed", "AWS_ACCESS_KEY_ID is not set", "there is no earlier archive"];
    tenant.condition_with("acme", (FILES_BACKED_UP, "ArchiveFailed"), &words).await;
    assert_eq!(site.keys(), Vec::<String>::new());
    site.create_credentials();
    site.archive("second", BackupPhase::Completed).await;
    site.archived().await;

    // A schedule that is none is refused, or told.
    let schedule = |cron: &str| json!({"persistence": {"backup": {"schedule": cron}}});
    let refused = tenant.patch("acme", schedule("99 99 * * *")).await.unwrap_err().to_string();
    assert!(refused.contains("five fields"), "{refused}");
    tenant.patch("acme", schedule("0 3 * foo *")).await.unwrap();
    let words = ["spec.persistence.backup.schedule", "0 3 * foo * is no schedule"];
    tenant.condition_with("acme", ("Ready", "InvalidSpec"), &words).await;
    tenant.patch("acme", schedule("7 3 * * *")).await.unwrap();
    tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    // None for two days.
    let old = json!({"lastSuccess": "2026-01-01T00:00:00Z", "scheduled": {"since": "2026-01-01T00:00:00Z"}});
    let backups = tenant.api::<ClientAppBackup>();
    backups.delete("second", &DeleteParams::default()).await.unwrap();
    until("its record is gone", async || names::<ClientAppBackup>(tenant).await == ["first"]).await;
    let params = PatchParams::default();
    let patch = Patch::Merge(json!({"status": {"files": with(old, json!({"lastFailure": null}))}}));
    // As often as an operator writes it back whose watch still shows the records.
    let told = async |reason: &str, words: &[&str], has_failed: bool| {
        let apps = tenant.api::<ClientApp>();
        until(reason, async || {
            let status = apps.get("acme").await.unwrap().status.unwrap();
            let files = status.files.clone().unwrap_or_default();
            let is_old = files.last_success.as_ref().is_some_and(|at| at.0.to_string() == "2026-01-01T00:00:00Z");
            if !is_old || !has_failed && files.last_failure.is_some() {
                apps.patch_status("acme", &params, &patch).await.unwrap();
                return Err(format!("{files:?}"));
            }
            let told = conditions::find(&status.conditions, FILES_BACKED_UP);
            let is_told = told.is_some_and(|told| {
                told.status == "False" && told.reason == reason && words.iter().all(|word| told.message.contains(word))
            });
            if is_told { Ok(()) } else { Err(format!("{told:?}")) }
        })
        .await;
    };
    told("ArchiveFailed", &["first has failed"], true).await;
    backups.delete("first", &DeleteParams::default()).await.unwrap();
    until("its record is gone", async || names::<ClientAppBackup>(tenant).await.is_empty()).await;
    told("Overdue", &["`7 3 * * *`", "2026-01-01T00:00:00Z"], false).await;
    // The API server refuses one that is due; the app is no less ready.
    tenant.quota("full", json!({"hard": {"count/clientappbackups.apps.bnerd-operator.local": "0"}})).await;
    let due = Patch::Merge(json!({"status": {"files": {"scheduled": {"next": "2026-01-31T03:07:00Z"}}}}));
    tenant.api::<ClientApp>().patch_status("acme", &params, &due).await.unwrap();
    tenant.condition_with("acme", (FILES_BACKED_UP, "Refused"), &["no archives are made", "exceeded quota"]).await;
    tenant.ready("acme", 1).await;

    let keys = site.keys();
    assert!(!keys.is_empty());
    tenant.patch("acme", json!({"persistence": {"backup": null}})).await.unwrap();
    without_archives(tenant).await;
    assert_eq!(site.keys(), keys);
    assert_eq!(read(&site.files("acme").await, "a.txt").as_deref(), Some("content"));
    tenant.ready("acme", 1).await;
}

/// Waits until the status tells nothing about archives.
async fn without_archives(tenant: &Tenant) {
    let untold = |status: &ClientAppStatus| {
        status.files.is_none() && conditions::find(&status.conditions, FILES_BACKED_UP).is_none()
    };
    tenant.status("acme", "without archives", untold).await;
}
