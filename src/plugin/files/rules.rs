//! Whether an app's files may be restored, where an interrupted restore resumes, and what the user has to know. **Pure.**
//!
//! An annotation of the ClientApp records the restore in progress. It is written together with `spec.replicas: 0`, and removed together
//! with that.

use indicatif::BinaryBytes;
use jiff::Timestamp;
use k8s_openapi::{api::batch::v1::CronJob, apimachinery::pkg::apis::meta::v1::Time};
use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::text::{BAD, GOOD, UNSURE, age, paint};
use crate::{
    backup::archive_job,
    crd::{ClientApp, FilesBackup, FilesSummary, annotation},
};

/// A restore that has begun and is not complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Begun {
    /// Identifies this restore in the volumes.
    pub(super) id: String,
    /// Name of the archive.
    pub(super) archive: String,
    /// The path in the bucket that it is in.
    pub(super) path: String,
    /// Whether the database is restored as well.
    pub(super) database: bool,
    /// `spec.replicas` before; `None` if it was absent.
    pub(super) replicas: Option<i32>,
    /// What is not done yet.
    pub(super) next: Step,
    /// The object that does it, once there is one: a PerconaPGRestore, or a Job.
    #[serde(default)]
    pub(super) by: Option<String>,
}

/// A step of a restore, in the order in which they are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// Pods of the app still have its volumes.
    Stop,
    /// The database is restored.
    Database,
    /// The present files are archived.
    Archive,
    /// The files are replaced.
    Extract,
}

/// What the user asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// `latest`, or the name of an archive.
    pub(super) archive: &'a str,
    pub(super) path: &'a str,
    /// Whether the database is restored as well.
    pub(super) database: bool,
}

impl Begun {
    pub(super) fn read(app: &ClientApp) -> Result<Option<Begun>, String> {
        let Some(text) = app.annotations().get(annotation::RESTORING_FILES) else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|problem| {
            format!(
                "the annotation {} of {}, which records a restore of its files, cannot be read ({problem}): remove it, and set spec.replicas yourself",
                annotation::RESTORING_FILES,
                app.name_any()
            )
        })
    }

    /// The patch that records it.
    pub(super) fn patch(&self) -> Value {
        let mut patch = json!({"metadata": {"annotations": {annotation::RESTORING_FILES: json!(self).to_string()}}});
        if self.database && self.next == Step::Archive {
            // The database is restored by now.
            patch["metadata"]["annotations"][annotation::RESTORING] = Value::Null;
        }
        patch
    }

    /// The patch that records it and takes the app's pods away.
    pub(super) fn first(&self) -> Value {
        let mut patch = self.patch();
        patch["spec"] = json!({"replicas": 0});
        patch
    }

    /// The patch that lets the app have pods again, and removes the record.
    pub(super) fn last(&self) -> Value {
        json!({"metadata": {"annotations": {annotation::RESTORING_FILES: null}}, "spec": {"replicas": self.replicas}})
    }

    /// How to continue after an interruption, or to go back.
    pub(super) fn ways_out(&self, name: &str, namespace: &str) -> String {
        let Begun { archive, path, database, next, .. } = self;
        let files = if *database { "--files" } else { "--only-files" };
        let careful = match next {
            Step::Stop => "",
            Step::Database => " But the database may be restored halfway by now: rather continue.",
            Step::Archive if *database => " The database stays restored.",
            Step::Archive => "",
            Step::Extract => {
                " But the files may be replaced halfway by now: rather continue, and then bring the former ones back."
            }
        };
        format!(
            "A restore of the files of {name} is in progress, during which {name} has no pods.
To continue: `kubectl clientapp restore {name} -n {namespace} {files}={archive} --files-path {path}`, with the other flags as before.
To go back: `kubectl patch clientapp {name} -n {namespace} --type=merge -p '{}'`.{careful}",
            self.last()
        )
    }
}

/// An app that has no pods while it is backed up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Stopped {
    /// `spec.replicas` before; `None` if it was absent.
    replicas: Option<i32>,
}

impl Stopped {
    pub(super) fn read(app: &ClientApp) -> Option<Stopped> {
        serde_json::from_str(app.annotations().get(annotation::BACKING_UP)?).ok()
    }

    /// The patch that records it and takes the app's pods away.
    pub(super) fn first(&self) -> Value {
        let record = json!(self).to_string();
        json!({"metadata": {"annotations": {annotation::BACKING_UP: record}}, "spec": {"replicas": 0}})
    }

    /// The patch that lets the app have pods again, and removes the record.
    pub(super) fn last(&self) -> Value {
        json!({"metadata": {"annotations": {annotation::BACKING_UP: null}}, "spec": {"replicas": self.replicas}})
    }

    /// What to do after an interruption.
    pub(super) fn way_out(&self, name: &str, namespace: &str) -> String {
        format!(
            "{name} has no pods until its backup is complete. After an interruption, run the same command again, or: `kubectl patch clientapp {name} -n {namespace} --type=merge -p '{}'`",
            self.last()
        )
    }
}

/// What is recorded before an app is stopped for a backup, and whether it is not recorded yet; or why it cannot be stopped.
pub(super) fn stopped(app: &ClientApp) -> Result<(Stopped, bool), String> {
    let name = app.name_any();
    if app.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted: back it up without --stop"));
    }
    if app.spec.suspend {
        return Err(format!("{name} is suspended, so nothing changes: run `kubectl clientapp resume {name}` first"));
    }
    may_archive(app)?;
    match Stopped::read(app).filter(|_| app.spec.replicas == Some(0)) {
        Some(before) => Ok((before, false)),
        None => Ok((Stopped { replicas: app.spec.replicas }, true)),
    }
}

/// The settings of an app's archives, and the CronJob that makes them; or why its files can be neither archived nor restored.
pub(super) fn archived<'a>(
    app: &'a ClientApp,
    cron_job: &str,
    found: Option<CronJob>,
) -> Result<(&'a FilesBackup, CronJob), String> {
    let name = app.name_any();
    let backup = settings(app)?;
    let found = found.ok_or_else(|| {
        format!(
            "CronJob {cron_job} does not exist: the operator creates it once the release of {name} is deployed and has a volume; check the condition FilesBackedUp of {name}"
        )
    })?;
    match archive_job::is_of(&found, app) {
        true => Ok((backup, found)),
        false => Err(format!(
            "CronJob {cron_job} is not the one that the operator has created for {name}: rename or delete it"
        )),
    }
}

/// Identifies a restore that begins now.
pub(super) fn new_id(app: &ClientApp, now: Timestamp) -> String {
    format!("{}-{}", app.metadata.uid.as_deref().unwrap_or_default(), now.strftime("%Y%m%d%H%M%S"))
}

/// Whether the files are whole, and not half restored.
fn may_archive(app: &ClientApp) -> Result<(), String> {
    let name = app.name_any();
    match app.annotations().contains_key(annotation::RESTORING_FILES) {
        true => Err(format!("a restore of the files of {name} is not complete: finish it first, then archive them")),
        false => Ok(()),
    }
}

/// `spec.persistence.backup`.
pub(super) fn settings(app: &ClientApp) -> Result<&FilesBackup, String> {
    let missing = || format!("the files of {} are not archived: spec.persistence.backup is not set", app.name_any());
    app.spec.persistence.backup.as_ref().ok_or_else(missing)
}

/// The restore to resume, if one has begun; or why none may begin.
pub(super) fn resumed(app: &ClientApp, asked: &Asked<'_>) -> Result<Option<Begun>, String> {
    let name = app.name_any();
    if app.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted: nothing is restored"));
    }
    let begun = Begun::read(app)?;
    // While the database is replaced, the app is suspended.
    if app.spec.suspend && begun.as_ref().is_none_or(|begun| begun.next != Step::Database) {
        if app.annotations().contains_key(annotation::RESTORING) {
            return Err(format!("a restore of the database of {name} is not complete: finish it first"));
        }
        return Err(format!("{name} is suspended, so nothing changes: run `kubectl clientapp resume {name}` first"));
    }
    let Some(begun) = begun else {
        return match Stopped::read(app) {
            // It would be taken for an app that never had pods.
            Some(_) => Err(format!("a backup of {name} with --stop is not complete: finish it first")),
            None => Ok(None),
        };
    };
    if app.spec.replicas != Some(0) {
        return Err(format!(
            "another user has let {name} have pods again, while a restore of its files from archive {} is not complete: to continue it, set spec.replicas to 0; to drop it, remove the annotation {}",
            begun.archive,
            annotation::RESTORING_FILES
        ));
    }
    let is_it = begun.path == asked.path
        && begun.database == asked.database
        && ["latest", begun.archive.as_str()].contains(&asked.archive);
    match is_it {
        true => Ok(Some(begun)),
        false => Err(format!(
            "another restore of {name} has begun and is not complete: {} from archive {} in {}; finish or drop it first",
            if begun.database { "of its database and its files" } else { "of its files only" },
            begun.archive,
            begun.path
        )),
    }
}

/// Whether the restore may continue: another user may have changed the app between two steps.
pub(super) fn still_ours(app: &ClientApp, begun: &Begun) -> Result<(), String> {
    let name = app.name_any();
    if app.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted: the restore does not continue"));
    }
    match app.spec.replicas == Some(0) && Begun::read(app)?.as_ref() == Some(begun) {
        true => Ok(()),
        false => Err(format!(
            "another user or another restore has changed {name} in the meantime: check `kubectl get clientapp {name} -o yaml`, and restore again"
        )),
    }
}

/// The directory of a volume that the files are set aside into.
pub(super) fn former(archive: &str) -> String {
    format!(".clientapp-restore.former.{archive}")
}

/// What is lost and what is kept. `place`: where the archive is. `next`: the step that an interrupted restore resumes at.
pub(super) fn consequence(name: &str, archive: &str, place: &str, next: Option<Step>, no_backup: bool) -> String {
    let resumes = match next {
        Some(_) => format!("A restore of the files of {name} was interrupted: this resumes it.\n"),
        None => String::new(),
    };
    let now = match no_backup {
        true => "The present files are not archived first; they",
        false if next == Some(Step::Extract) => "The former files",
        false => "The present files are archived first, and",
    };
    format!(
        "{resumes}This replaces the files of {name} with archive {archive} of {place}. {now} stay in the directory {} of each volume, and take space there until you delete it. During the restore the app has no pods.",
        former(archive)
    )
}

/// A line about the last archive of an app's files, and one about a failure since. Empty if they are not archived.
pub(crate) fn last(app: &ClientApp, now: Timestamp) -> String {
    if app.spec.persistence.backup.is_none() {
        return String::new();
    }
    let summary = app.status.as_ref().and_then(|status| status.files.clone()).unwrap_or_default();
    let FilesSummary { last_success, last_duration: _, archive, bytes, files, last_failure, failed_job, failure } =
        summary;
    let ago = |time: &Time| format!("{} ago", age(Some(time.0), now));
    let mut text = match &last_success {
        Some(time) => {
            let archive = archive.map_or_else(String::new, |archive| format!(" as {archive}"));
            let bytes = bytes.map_or_else(String::new, |bytes| format!(", {}", BinaryBytes(bytes.unsigned_abs())));
            let files = files.map_or_else(String::new, |files| format!(", {files} files and directories"));
            format!("{} the app's files were archived {}{archive}{bytes}{files}\n", paint(GOOD, "archived:"), ago(time))
        }
        None => format!(
            "{} there is no archive of the app's files yet: `kubectl clientapp backup {}` makes one\n",
            paint(UNSURE, "not archived:"),
            app.name_any()
        ),
    };
    let failed_last = last_failure.filter(|failure| last_success.as_ref().is_none_or(|success| success.0 < failure.0));
    if let Some(time) = failed_last {
        let why = failure.map_or_else(String::new, |why| format!(": {why}"));
        let log = failed_job.map_or_else(String::new, |job| format!("; see `kubectl logs job/{job}`"));
        text += &format!("{} the archive {} failed{why}{log}\n", paint(BAD, "not archived:"), ago(&time));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::tests::built;

    const ARCHIVE: &str = "20260131T033000Z-p9d4f";
    const PATH: &str = "prod/ns/acme.files";

    fn begun() -> Begun {
        let (id, archive, path) = ("app-uid-1".to_owned(), ARCHIVE.to_owned(), PATH.to_owned());
        Begun { id, archive, path, database: false, replicas: Some(2), next: Step::Stop, by: None }
    }

    /// An app with archives, and perhaps with a restore in progress.
    fn app(begun: Option<&Begun>, spec: Value, status: Value) -> ClientApp {
        let store = json!({"endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
        let mut app = crate::plugin::tests::app("acme", json!({"persistence": {"backup": {"store": store}}}), status);
        app["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        app["metadata"]["uid"] = json!("app-uid");
        if let Some(begun) = begun {
            app["spec"]["replicas"] = json!(0);
            app["metadata"]["annotations"] = begun.patch()["metadata"]["annotations"].clone();
        }
        built(app)
    }

    fn compare<T: std::fmt::Debug + PartialEq>(what: &str, found: Result<T, String>, expected: Result<T, &str>) {
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{what}"),
            (Err(why), Err(words)) => assert!(why.contains(words), "{what}: {why}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }

    #[test]
    fn what_is_resumed_and_what_is_refused() {
        let none = || app(None, json!({}), json!({}));
        let at = |next: Step| Begun { next, ..begun() };
        let database = Begun { database: true, next: Step::Database, ..begun() };
        let of = |begun: &Begun| app(Some(begun), json!({}), json!({}));
        let suspended = |mut app: ClientApp| {
            app.spec.suspend = true;
            app
        };
        let mut started = of(&begun());
        started.spec.replicas = Some(2);
        let mut broken = none();
        broken.annotations_mut().insert(annotation::RESTORING_FILES.to_owned(), "{".to_owned());
        let mut restoring = none();
        restoring.annotations_mut().insert(annotation::RESTORING.to_owned(), "{}".to_owned());
        let mut backing_up = none();
        backing_up.annotations_mut().insert(annotation::BACKING_UP.to_owned(), r#"{"replicas":2}"#.to_owned());
        let mut going = none();
        going.metadata.deletion_timestamp = Some(Time("2026-01-01T12:00:00Z".parse().unwrap()));
        let files = Asked { archive: ARCHIVE, path: PATH, database: false };
        let both = Asked { database: true, ..files };
        for (what, app, asked, expected) in [
            ("the first run", none(), files, Ok(None)),
            ("stopped for a backup", backing_up, files, Err("with --stop is not complete")),
            ("again", of(&begun()), files, Ok(Some(begun()))),
            ("again, at a later step", of(&at(Step::Extract)), files, Ok(Some(at(Step::Extract)))),
            ("the latest of then", of(&begun()), Asked { archive: "latest", ..files }, Ok(Some(begun()))),
            ("with its database", of(&database), both, Ok(Some(database.clone()))),
            ("suspended for its database", suspended(of(&database)), both, Ok(Some(database.clone()))),
            ("suspended", suspended(none()), files, Err("acme is suspended")),
            ("suspended for its database only", suspended(restoring), files, Err("finish it first")),
            ("suspended meanwhile", suspended(of(&begun())), files, Err("acme is suspended")),
            ("being deleted", going, files, Err("acme is being deleted")),
            ("another archive", of(&begun()), Asked { archive: "20250101T000000Z-a", ..files }, Err(ARCHIVE)),
            ("another path", of(&begun()), Asked { path: "other", ..files }, Err(PATH)),
            ("without its database", of(&database), files, Err("of its database and its files")),
            ("with the database as well", of(&begun()), both, Err("of its files only")),
            ("it was started", started, files, Err("set spec.replicas to 0")),
            ("not ours", broken, files, Err("cannot be read")),
        ] {
            compare(what, resumed(&app, &asked), expected);
        }
    }

    #[test]
    fn what_is_stopped_for_a_backup_is_started_as_it_was() {
        let of = |spec: Value| app(None, spec, json!({}));
        for replicas in [None, Some(2)] {
            let (stopped, is_new) = stopped(&of(json!({"replicas": replicas}))).unwrap();
            assert!(is_new);
            let mut interrupted = of(stopped.first()["spec"].clone());
            let record = stopped.first()["metadata"]["annotations"][annotation::BACKING_UP].clone();
            interrupted
                .annotations_mut()
                .insert(annotation::BACKING_UP.to_owned(), record.as_str().unwrap().to_owned());
            assert_eq!(super::stopped(&interrupted), Ok((stopped.clone(), false)));
            assert_eq!(stopped.last()["spec"]["replicas"], json!(replicas));
            // A user has given it pods again: the record is void.
            interrupted.spec.replicas = Some(5);
            assert_eq!(super::stopped(&interrupted), Ok((Stopped { replicas: Some(5) }, true)));
        }
        compare("suspended", stopped(&of(json!({"suspend": true}))), Err("is suspended"));
        compare("restoring", stopped(&app(Some(&begun()), json!({}), json!({}))), Err("finish it first"));
    }

    #[test]
    fn a_restore_stops_if_another_user_steps_in() {
        let ours = app(Some(&begun()), json!({}), json!({}));
        assert_eq!(still_ours(&ours, &begun()), Ok(()));
        let mut started = ours.clone();
        started.spec.replicas = None;
        let another = Begun { by: Some("acme-files-1".to_owned()), ..begun() };
        for (what, app, begun) in [
            ("it was started", started, begun()),
            ("another run of the command", ours, another),
            ("it was dropped", app(None, json!({"replicas": 0}), json!({})), begun()),
        ] {
            assert!(still_ours(&app, &begun).unwrap_err().contains("has changed acme"), "{what}");
        }
    }

    #[test]
    fn whose_cron_job_it_is() {
        let cron_job = |kind: &str, uid: &str, controller: bool| -> CronJob {
            let owner = json!({"apiVersion": "v", "kind": kind, "name": "acme", "uid": uid, "controller": controller});
            built(json!({"metadata": {"name": "acme-files", "ownerReferences": [owner]}}))
        };
        let with = app(None, json!({}), json!({}));
        let without = app(None, json!({"persistence": {}}), json!({}));
        let found = || Some(cron_job("ClientApp", "app-uid", true));
        for (what, app, found, expected) in [
            ("its own", &with, found(), Ok(())),
            ("no archives", &without, found(), Err("spec.persistence.backup is not set")),
            ("not created yet", &with, None, Err("CronJob acme-files does not exist")),
            ("an earlier app's", &with, Some(cron_job("ClientApp", "earlier", true)), Err("is not the one")),
            ("another kind's", &with, Some(cron_job("Other", "app-uid", true)), Err("is not the one")),
            ("not its controller", &with, Some(cron_job("ClientApp", "app-uid", false)), Err("is not the one")),
        ] {
            compare(what, archived(app, "acme-files", found).map(drop), expected);
        }
    }

    #[test]
    fn the_record() {
        let absent = Begun { replicas: None, ..begun() };
        let record = r#"{"id":"app-uid-1","archive":"20260131T033000Z-p9d4f","database":false,"next":"stop","path":"prod/ns/acme.files","replicas":null,"by":null}"#;
        let record: Begun = serde_json::from_str(record).unwrap();
        assert_eq!(record, absent);
        let first = absent.first();
        assert_eq!(first["spec"], json!({"replicas": 0}));
        assert_eq!(first["metadata"]["annotations"].as_object().unwrap().len(), 1);
        let restored = Begun { database: true, next: Step::Archive, ..begun() };
        assert_eq!(restored.patch()["metadata"]["annotations"].get(annotation::RESTORING), Some(&Value::Null));
        insta::assert_snapshot!(absent.last(), @r#"{"metadata":{"annotations":{"apps.bnerd-operator.local/restoring-files":null}},"spec":{"replicas":null}}"#);
        insta::assert_snapshot!(begun().ways_out("acme", "ns"), @r#"
        A restore of the files of acme is in progress, during which acme has no pods.
        To continue: `kubectl clientapp restore acme -n ns --only-files=20260131T033000Z-p9d4f --files-path prod/ns/acme.files`, with the other flags as before.
        To go back: `kubectl patch clientapp acme -n ns --type=merge -p '{"metadata":{"annotations":{"apps.bnerd-operator.local/restoring-files":null}},"spec":{"replicas":2}}'`.
        "#);
        let last_step = Begun { database: true, next: Step::Extract, ..begun() };
        insta::assert_snapshot!(last_step.ways_out("acme", "ns"), @r#"
        A restore of the files of acme is in progress, during which acme has no pods.
        To continue: `kubectl clientapp restore acme -n ns --files=20260131T033000Z-p9d4f --files-path prod/ns/acme.files`, with the other flags as before.
        To go back: `kubectl patch clientapp acme -n ns --type=merge -p '{"metadata":{"annotations":{"apps.bnerd-operator.local/restoring-files":null}},"spec":{"replicas":2}}'`. But the files may be replaced halfway by now: rather continue, and then bring the former ones back.
        "#);
    }

    #[test]
    fn what_the_user_agrees_to() {
        let text =
            |next: Option<Step>, no_backup: bool| consequence("acme", ARCHIVE, "http://e/dumps/p", next, no_backup);
        insta::assert_snapshot!(text(None, false), @"This replaces the files of acme with archive 20260131T033000Z-p9d4f of http://e/dumps/p. The present files are archived first, and stay in the directory .clientapp-restore.former.20260131T033000Z-p9d4f of each volume, and take space there until you delete it. During the restore the app has no pods.");
        assert!(text(None, true).contains("The present files are not archived first; they stay in the directory"));
        assert!(text(Some(Step::Extract), false).contains("this resumes it.\nThis replaces"));
    }

    #[test]
    fn the_last_archive() {
        let now = "2026-01-31T04:00:00Z".parse().unwrap();
        let line = |files: Value| {
            let line = last(&app(None, json!({}), json!({"files": files})), now);
            anstream::adapter::strip_str(&line).to_string()
        };
        let archived = json!({
            "lastSuccess": "2026-01-31T03:30:00Z", "lastDuration": 60, "archive": ARCHIVE, "bytes": 123_456_789,
            "files": 42, "lastFailure": "2026-01-30T03:30:00Z", "failedJob": "acme-files-1", "failure": "error: why",
        });
        insta::assert_snapshot!(line(archived.clone()), @"archived: the app's files were archived 30m ago as 20260131T033000Z-p9d4f, 117.74 MiB, 42 files and directories");
        let mut failed = archived;
        failed["lastFailure"] = json!("2026-01-31T03:50:00Z");
        insta::assert_snapshot!(line(failed), @r"
        archived: the app's files were archived 30m ago as 20260131T033000Z-p9d4f, 117.74 MiB, 42 files and directories
        not archived: the archive 10m ago failed: error: why; see `kubectl logs job/acme-files-1`
        ");
        insta::assert_snapshot!(line(Value::Null), @"not archived: there is no archive of the app's files yet: `kubectl clientapp backup acme` makes one");
        assert_eq!(last(&app(None, json!({"persistence": {}}), json!({})), now), "");
    }
}
