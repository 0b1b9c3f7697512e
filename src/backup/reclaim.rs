//! Deletes what a backup has made, once its object is deleted with `reclaim: Delete`: the PerconaPGBackup that is recorded and has its
//! uid, and the archive whose snapshot has its uid. A decision (pure), and an **effect**.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{batch::v1::Job, core::v1::Namespace};
use kube::{Api, Resource as _, ResourceExt as _};

use super::{
    archive_job,
    context::Backups,
    decide::short,
    observe::{app, listed, made_job},
    observed::ArchiveJob,
};
use crate::{
    crd::{
        BackupSubject, ClientApp, ClientAppBackupStatus, ClientAppRestore, FilesBackup, Reason, conditions::Verdict,
        label, percona::PerconaPGBackup,
    },
    deletion::Destroyer,
    platform::{
        clock,
        operator_image::OperatorImage,
        run_once::{Error, Run, RunContext, create, running},
    },
    postgresql::decide::dumps::NO_IMAGE,
};

/// Holds what exists of a deleted backup.
#[derive(Clone, Debug, Default)]
struct Left<'a> {
    /// The namespace is being deleted: nothing can be created in it.
    is_namespace_leaving: bool,
    /// A ClientAppRestore that is in progress and may need what is to be deleted.
    restore: Option<String>,
    database: Option<PerconaPGBackup>,
    app: Option<ClientApp>,
    archives: Option<ArchiveJob>,
    forgets: Option<ArchiveJob>,
    image: Option<&'a OperatorImage>,
}

/// Tells what follows for a deleted backup.
#[derive(Clone, Debug, PartialEq)]
enum Next {
    Done,
    Waits(String),
    Failed(String),
    DeletePerconaBackup,
    CreateJob(Box<Job>),
}

/// Returns the names of the Job that forgets the archive.
fn job_of(of: &BackupSubject, uid: &str) -> String {
    archive_job::name(&of.name, &format!("f{}", short(uid)))
}

/// Limits how long a restore in another namespace is waited for: whoever has made it must not keep the archive for ever.
const PATIENCE: SignedDuration = SignedDuration::from_hours(24);

/// Returns true if a restore may need what a backup of this object has made: it is of the same app, or reads its archives. **Pure.**
fn needs(restore: &ClientAppRestore, namespace: &str, of: &BackupSubject, now: Timestamp) -> bool {
    let is_of_app = restore.spec.of == *of || restore.spec.subject() == *of;
    // The bucket of another app is not known here: whatever ends alike is waited for.
    let path = restore.spec.files.as_ref().and_then(|files| files.path.as_ref());
    let reads = |path: &String| FilesBackup::is_path_of(path, namespace, &of.name);
    let is_here = restore.namespace().as_deref() == Some(namespace);
    let started = restore.status.as_ref().and_then(|status| status.started_at.as_ref());
    let is_recent = started.is_none_or(|started| now.duration_since(started.0) < PATIENCE);
    is_here && is_of_app || (is_here || is_recent) && path.is_some_and(reads)
}

/// Decides what follows for the deleted backup with this uid. **Pure.**
fn next(uid: &str, of: &BackupSubject, recorded: &ClientAppBackupStatus, left: &Left<'_>) -> Next {
    if left.is_namespace_leaving {
        return Next::Done;
    }
    if let Some(restore) = &left.restore {
        return Next::Waits(format!("ClientAppRestore {restore} is in progress"));
    }
    // One without this label was not made for this backup.
    let is_own = |found: &&PerconaPGBackup| found.labels().get(label::BACKUP_UID).is_some_and(|found| found == uid);
    if let Some(found) = left.database.as_ref().filter(is_own).filter(|found| found.meta().deletion_timestamp.is_none())
    {
        let state = found.status.as_ref().and_then(|status| status.state.as_deref());
        return match state {
            Some("Succeeded" | "Failed") => Next::DeletePerconaBackup,
            _ => Next::Waits(format!(
                "PerconaPGBackup {} is in progress; or set spec.reclaim to Retain",
                found.name_any()
            )),
        };
    }
    match &recorded.files {
        None => Next::Done,
        Some(files) if left.archives.as_ref().is_some_and(|job| job.progress.succeeded.is_none()) => {
            Next::Waits(format!("Job {} archives the files, and has to end first", files.job))
        }
        Some(_) => forgotten(uid, of, recorded.repository.as_deref(), left),
    }
}

/// Decides what follows for the archive.
fn forgotten(uid: &str, of: &BackupSubject, repository: Option<&str>, left: &Left<'_>) -> Next {
    let name = job_of(of, uid);
    let archive = repository.map_or_else(|| "the archive".to_owned(), |place| format!("the archive in {place}"));
    let failed =
        |why: String| Next::Failed(format!("{archive} is not forgotten: {why}; or set spec.reclaim to Retain"));
    if let Some(job) = &left.forgets {
        return match job.progress.succeeded {
            _ if !job.is_ours => failed(format!("Job {name} is not the operator's: delete it")),
            Some(true) => Next::Done,
            None => Next::Waits(format!("Job {name} forgets the archive{}", job.waits())),
            Some(false) => {
                let why = job.failed_because().map_or_else(String::new, |why| format!(" ({why})"));
                failed(format!("Job {name} has failed{why}: delete the Job to try again, which happens daily"))
            }
        };
    }
    let Some(app) = left.app.as_ref().filter(|app| app.metadata.deletion_timestamp.is_none()) else {
        return failed(format!(
            "ClientApp {}, whose settings name the bucket's credentials, is gone or being deleted",
            of.name
        ));
    };
    let settings = match archive_job::settings(app) {
        Ok(settings) => settings,
        Err(why) => return failed(why),
    };
    let present = archive_job::repository(app, settings);
    if repository != Some(present.as_str()) {
        return failed(format!("spec.persistence.backup of {} now names {present}: name the former again", of.name));
    }
    match left.image {
        Some(image) => Next::CreateJob(Box::new(archive_job::forget(app, settings, image, &name, uid))),
        None => Next::Waits(NO_IMAGE.to_owned()),
    }
}

/// Deletes what a deleted backup has made, as far as possible now. `Some`: why its object has to stay.
pub(super) async fn reclaim(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>) -> Result<Option<Verdict>, Error> {
    let of = &backup.decoded().map_err(Error::Invalid)?.spec.of;
    let (client, namespace) = (&ctx.parts.client, backup.key.namespace.as_str());
    let left = left(ctx, backup, of).await?;
    let waits = |why: String| Ok(Some(Verdict::no(Reason::Reclaiming, format!("waiting: {why}"))));
    match next(backup.uid(), of, &backup.recorded_status, &left) {
        Next::Done => Ok(None),
        Next::Waits(why) => waits(why),
        Next::Failed(why) => Ok(Some(Verdict::no(Reason::ReclaimFailed, why))),
        Next::DeletePerconaBackup => {
            let Some(found) = &left.database else { return Ok(None) };
            let destroyer = Destroyer { client, lead: &ctx.parts.lead };
            destroyer.delete_backup(namespace, found.meta()).await?;
            waits(format!("PerconaPGBackup {} is deleted", found.name_any()))
        }
        Next::CreateJob(job) => {
            create(client, namespace, &*job).await?;
            waits(format!("Job {} forgets the archive", job.name_any()))
        }
    }
}

/// Reads what exists of a deleted backup. Only what the next step depends on is read.
async fn left<'a>(
    ctx: &'a RunContext<Backups>,
    backup: &Run<'_, Backups>,
    of: &BackupSubject,
) -> Result<Left<'a>, Error> {
    let (client, namespace, recorded) = (&ctx.parts.client, &backup.key.namespace, &backup.recorded_status);
    let found = Api::<Namespace>::all(client.clone()).get_metadata_opt(namespace).await;
    let found = found.map_err(Error::api(format!("read namespace {namespace}")))?;
    if found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()) {
        tracing::warn!(backup = %backup.key, "the namespace is being deleted: what the backup has made stays");
        return Ok(Left { is_namespace_leaving: true, ..Left::default() });
    }
    // Apps of other namespaces may read the archive, too.
    let restore = running(Api::all(client.clone()), |restore| needs(restore, namespace, of, clock::now())).await?;
    let mut left = Left { restore, ..Left::default() };
    left.image = ctx.parts.image.as_deref();
    if let Some(made) = recorded.database.as_ref().filter(|made| made.kind == PerconaPGBackup::kind(&())) {
        left.database = listed::<PerconaPGBackup>(client, namespace, &made.name).await?;
    }
    if let Some(files) = &recorded.files {
        left.app = app(&ctx.shared, client, namespace, &of.name).await?;
        let owner = left.app.as_ref().and_then(|app| app.uid());
        left.archives = made_job(client, namespace, owner.as_deref(), &files.job).await?;
        left.forgets = made_job(client, namespace, owner.as_deref(), &job_of(of, backup.uid())).await?;
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::platform::{fake::of, job::JobProgress};

    const UID: &str = "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11";
    const PLACE: &str = "s3:http://s3/dumps/ns/acme.files";

    fn app(bucket: &str) -> ClientApp {
        let store = json!({"endpoint": "http://s3/", "bucket": bucket, "credentialsSecret": {"name": "s3"}});
        of(json!({
            "metadata": {"name": "acme", "namespace": "ns", "uid": "app-uid"},
            "spec": {"hostname": "acme.example.com", "persistence": {"backup": {"store": store}}},
        }))
    }

    fn percona(label: &str, state: &str) -> Option<PerconaPGBackup> {
        let labels = json!({label::BACKUP_UID: label});
        Some(of(json!({
            "metadata": {"name": "acme-pg-5f0c2c0e8a", "labels": labels}, "spec": {"pgCluster": "acme-pg"},
            "status": {"state": state},
        })))
    }

    fn job(succeeded: Option<bool>) -> Option<ArchiveJob> {
        let progress = JobProgress { succeeded, ..JobProgress::default() };
        Some(ArchiveJob { is_ours: true, progress, failure: Some("it is locked".to_owned()), ..ArchiveJob::default() })
    }

    #[test]
    fn which_restores_need_an_archive() {
        let reads = |path: &str| json!({"of": {"name": "beta"}, "files": {"path": path}});
        for (what, namespace, spec, expected) in [
            ("of the app", "ns", json!({"of": {"name": "acme"}, "backup": "b"}), true),
            (
                "into another",
                "ns",
                json!({"of": {"name": "acme"}, "backup": "b", "into": {"name": "then", "hostname": "h.example.com"}}),
                true,
            ),
            ("of another", "ns", json!({"of": {"name": "beta"}, "backup": "b"}), false),
            ("of that name elsewhere", "other", json!({"of": {"name": "acme"}, "backup": "b"}), false),
            ("another reads it", "ns", reads("ns/acme.files"), true),
            ("with a prefix", "ns", reads("prod/ns/acme.files"), true),
            ("in another namespace", "other", reads("prod/ns/acme.files"), true),
            ("it reads another's", "ns", reads("prod/ns/gamma.files"), false),
            ("whose name ends alike", "ns", reads("prod/my-ns/acme.files"), false),
        ] {
            let needed = |spec: &Value, started: &str| {
                let status = json!({"phase": "Running", "startedAt": started});
                let restore =
                    of(json!({"metadata": {"name": "r", "namespace": namespace}, "spec": spec, "status": status}));
                let now = "2026-01-31T03:00:00Z".parse().unwrap();
                needs(&restore, "ns", &of(json!({"name": "acme"})), now)
            };
            assert_eq!(needed(&spec, "2026-01-30T03:00:01Z"), expected, "{what}");
            // One that never ends.
            assert_eq!(needed(&spec, "2026-01-30T03:00:00Z"), expected && namespace == "ns", "{what}, for a day");
        }
    }

    #[test]
    fn what_a_deleted_backup_has_made_goes() {
        let image = OperatorImage::named("operator:1");
        let known = || Left { app: Some(app("dumps")), image: Some(&image), ..Left::default() };
        let nothing = json!({});
        let files = json!({"files": {"job": "acme-files-5f0c2c0e8a", "archive": "20260131T040100Z-20543f14"}, "repository": PLACE});
        let unknown = json!({"files": {"job": "acme-files-5f0c2c0e8a"}});
        let forgets = "create acme-files-f5f0c2c0e8a";
        let leaving = |mut app: ClientApp| {
            app.metadata.deletion_timestamp = of(json!("2026-01-31T00:00:00Z"));
            Some(app)
        };
        let foreign = job(Some(true)).map(|job| ArchiveJob { is_ours: false, ..job });
        let archives = |job| Left { archives: job, ..known() };
        let forgetting = |job| Left { forgets: job, ..known() };
        let of_app = |app| Left { app, ..known() };
        let made = |label: &str, state: &str| Left { database: percona(label, state), ..known() };
        let restored = Left { restore: Some("r".to_owned()), ..known() };
        let moved = "failed: spec.persistence.backup of acme now names s3:http://s3/other/ns/acme.files";
        let (gone, no_image) = ("failed: ClientApp acme, whose settings", Left { image: None, ..known() });
        let forget_job = |words: &str| format!("{words} acme-files-f5f0c2c0e8a");
        let (is_forgotten, fails) = (forget_job("waiting: Job") + " forgets", forget_job("failed: Job"));
        for (what, recorded, left, expected) in [
            ("nothing was made", &nothing, known(), "done"),
            ("an archive", &files, known(), forgets),
            ("the namespace goes", &files, Left { is_namespace_leaving: true, ..known() }, "done"),
            ("a restore reads it", &files, restored, "waiting: ClientAppRestore r"),
            ("it is being made", &files, archives(job(None)), "waiting: Job acme-files-5f0c2c0e8a archives"),
            ("it was not made", &files, archives(job(Some(false))), forgets),
            ("it is being forgotten", &files, forgetting(job(None)), &is_forgotten),
            ("it is forgotten", &files, forgetting(job(Some(true))), "done"),
            ("that has failed", &files, forgetting(job(Some(false))), &*format!("{fails} has failed (it is locked)")),
            ("a user's Job", &files, forgetting(foreign), &*format!("{fails} is not the operator's")),
            ("the app is gone", &files, of_app(None), gone),
            ("the app goes", &files, of_app(leaving(app("dumps"))), gone),
            ("another bucket", &files, of_app(Some(app("other"))), moved),
            ("no repository on record", &unknown, known(), "failed: spec.persistence.backup of acme now names"),
            ("no image", &files, no_image, "waiting: the operator does not know its own image"),
            ("Percona's", &nothing, made(UID, "Succeeded"), "delete"),
            ("Percona's, and an archive", &files, made(UID, "Failed"), "delete"),
            ("Percona's runs", &nothing, made(UID, "Running"), "waiting: PerconaPGBackup acme-pg-5f0c2c0e8a"),
            ("of another backup", &nothing, made("x", "Succeeded"), "done"),
        ] {
            let subject = of(json!({"name": "acme"}));
            let found = match next(UID, &subject, &of(recorded.clone()), &left) {
                Next::Done => "done".to_owned(),
                Next::Waits(why) => format!("waiting: {why}"),
                Next::Failed(why) => {
                    assert!(
                        why.starts_with("the archive") && why.ends_with("; or set spec.reclaim to Retain"),
                        "{what}: {why}"
                    );
                    format!("failed: {}", why.split_once(" is not forgotten: ").unwrap().1)
                }
                Next::DeletePerconaBackup => "delete".to_owned(),
                Next::CreateJob(job) => format!("create {}", job.name_any()),
            };
            assert!(found.starts_with(expected), "{what}: {found}");
        }
    }
}
