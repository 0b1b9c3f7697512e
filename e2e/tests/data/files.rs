//! Archives of an app's files, made and restored by the operator's own program, and what users are told about them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use axum::http::{Method, StatusCode};
use clientapp_crd::reason::FILES_BACKED_UP;
use clientapp_crd::{ClientAppStatus, FilesSummary, Postgresql, conditions};
use e2e::lab::Lab;
use e2e::objects::{ACCESS_KEY, BUCKET, Fault, Objects, Rule, SECRET_KEY};
use e2e::operator;
use e2e::scenario::{names, nothing_is_left, small};
use e2e::wait::until;
use e2e::worker::Worker;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;

use super::*;

const CRON_JOB: &str = "acme-files";

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

    /// Creates the app, and waits until it is Ready and its CronJob exists.
    pub(super) async fn install(&self, spec: Value) -> CronJob {
        self.tenant.create("acme", spec).await.unwrap();
        self.tenant.ready("acme", 1).await;
        self.tenant.wait_for(CRON_JOB, "created", |found: Option<&CronJob>| found.cloned()).await
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

    /// Creates a Job from the CronJob, and waits until it has this condition.
    async fn archive(&self, job: &str, condition: &str) {
        self.tenant.kubectl(&["create", "job", job, &format!("--from=cronjob/{CRON_JOB}")]).unwrap();
        let ended = |found: Option<&Job>| {
            let conditions = found?.status.as_ref()?.conditions.as_ref()?;
            conditions.iter().any(|found| found.type_ == condition && found.status == "True").then_some(())
        };
        self.tenant.wait_for(job, condition, ended).await;
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

#[tokio::test]
async fn archives_are_made_and_a_failure_is_told_and_holds_up_nothing() {
    let site = Site::new("files-archived").await;
    let tenant = &site.tenant;
    site.create_credentials();
    let cron_job = site.install(site.spec()).await;
    let owner = cron_job.owner_references()[0].clone();
    assert_eq!((Some(owner.uid), owner.controller), (tenant.uid::<ClientApp>("acme").await, Some(true)));
    let spec = cron_job.spec.unwrap();
    assert_eq!((spec.schedule.as_str(), spec.suspend), ("@yearly", Some(false)));
    tenant.condition("acme", FILES_BACKED_UP, "Unknown", "NoArchive").await;

    write(&site.files("acme").await, "data/a.txt", "content");
    site.archive("first", "Complete").await;
    let files = site.archived().await;
    assert_eq!((files.files, files.bytes), (Some(1), Some(7)), "{files:?}");
    let (archive, snapshots) = (files.archive.unwrap(), site.snapshots());
    let [snapshot] = &snapshots[..] else { panic!("{snapshots:?}") };
    assert!(snapshot.starts_with(archive.rsplit_once('-').unwrap().1), "{archive}: {snapshot}");
    let told = tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    assert!(told.contains(&archive), "{told}");

    site.objects.set(uploads(Fault::Answer(StatusCode::FORBIDDEN)));
    site.archive("second", "Failed").await;
    let words = ["Job second has failed", "Access Denied", "check the credentials", "the last complete archive is of"];
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
    site.archive("third", "Complete").await;
    tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    assert_eq!(site.snapshots().len(), 2);

    // A deletion does not wait for an archive.
    let met = site.objects.met();
    site.objects.set(uploads(Fault::Hang));
    tenant.kubectl(&["create", "job", "fourth", &format!("--from=cronjob/{CRON_JOB}")]).unwrap();
    until("the archive is uploaded", async || site.objects.met() > met).await;
    // It is the user's, and the only object that would stay.
    tenant.kubectl(&["delete", "secret", "s3"]).unwrap();
    tenant.delete("acme").await;
    nothing_is_left(tenant).await;
    assert_eq!(names::<CronJob>(tenant).await, Vec::<String>::new());
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
    let restoring = site.plugin(&["restore", "acme", &only, "--yes", "--wait", "--timeout", "2m"]);
    until("the extract asks for the archive", async || site.objects.met() > met).await;
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let status = deployment.status.unwrap();
    assert_eq!((deployment.spec.unwrap().replicas, status.replicas.unwrap_or_default()), (Some(0), 0));
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
    succeeded(&site.plugin(&["backup", "acme", "--stop", "--wait", "--timeout", "2m"]).await.unwrap());
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
async fn a_users_own_cron_job_is_not_taken_over_and_archives_outlive_the_field() {
    let site = Site::new("files-removed").await;
    let tenant = &site.tenant;
    tenant.kubectl(&["create", "cronjob", CRON_JOB, "--image=theirs", "--schedule=@yearly"]).unwrap();
    let essence = async || {
        let found = tenant.api::<CronJob>().get(CRON_JOB).await.unwrap();
        (found.uid(), found.labels().clone(), found.annotations().clone(), found.owner_references().len(), found.spec)
    };
    let before = essence().await;
    site.install(site.spec()).await;
    tenant.condition_with("acme", (FILES_BACKED_UP, "NotOurs"), &["CronJob acme-files", "not taken over"]).await;
    assert_eq!(essence().await, before);
    // Nor when its owner leaves or is deleted.
    tenant.patch("acme", json!({"persistence": {"backup": null}})).await.unwrap();
    without_archives(tenant).await;
    assert_eq!(essence().await, before);
    tenant.delete("acme").await;
    assert_eq!(essence().await, before);
    // Once it is gone, the operator creates its own.
    tenant.kubectl(&["delete", "cronjob", CRON_JOB]).unwrap();
    let cron_job = site.install(site.spec()).await;
    assert_eq!(cron_job.owner_references()[0].name, "acme");

    // Missing credentials are told.
    write(&site.files("acme").await, "a.txt", "content");
    site.archive("first", "Failed").await;
    let words = ["Job first has failed", "AWS_ACCESS_KEY_ID is not set", "Secret", "there is no earlier archive"];
    tenant.condition_with("acme", (FILES_BACKED_UP, "ArchiveFailed"), &words).await;
    assert_eq!(site.keys(), Vec::<String>::new());
    site.create_credentials();
    site.archive("second", "Complete").await;
    site.archived().await;

    // The API server refuses what the schema cannot tell; the app is no less ready, and a corrected field is tried at once.
    let schedule = |cron: &str| json!({"persistence": {"backup": {"schedule": cron}}});
    tenant.patch("acme", schedule("99 99 * * *")).await.unwrap();
    tenant.condition_with("acme", (FILES_BACKED_UP, "Refused"), &["no archives are made", CRON_JOB, "schedule"]).await;
    tenant.ready("acme", 1).await;
    tenant.patch("acme", schedule("7 3 * * *")).await.unwrap();
    let runs = |found: Option<&CronJob>| {
        let spec = found?.spec.as_ref()?;
        (spec.schedule == "7 3 * * *" && spec.suspend == Some(false)).then_some(())
    };
    tenant.wait_for(CRON_JOB, "with the corrected schedule", runs).await;
    tenant.condition("acme", FILES_BACKED_UP, "True", "Archived").await;
    // A user's edit does not stay.
    let paused = json!({"spec": {"suspend": true}}).to_string();
    tenant.kubectl(&["patch", "cronjob", CRON_JOB, "--type=merge", "-p", &paused]).unwrap();
    tenant.wait_for(CRON_JOB, "suspended no more", runs).await;

    let keys = site.keys();
    assert!(!keys.is_empty());
    tenant.patch("acme", json!({"persistence": {"backup": null}})).await.unwrap();
    tenant.wait_for(CRON_JOB, "gone", |found: Option<&CronJob>| found.is_none().then_some(())).await;
    without_archives(tenant).await;
    until("the Jobs go with the CronJob", async || names::<Job>(tenant).await.is_empty()).await;
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
