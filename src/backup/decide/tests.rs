use serde_json::{Value, json};

use super::*;
use crate::{
    backup::{archive_job::Volume, observed::ArchiveJob},
    crd::{
        BackupPhase, ClientApp,
        conditions::State,
        percona::{PerconaPGBackupSpec, PerconaPGCluster, READY_FOR_BACKUP},
    },
    platform::{
        fake::{merged, of},
        job::JobProgress,
        operator_image::OperatorImage,
    },
};

const UID: &str = "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11";
const ME: Me<'_> = Me { uid: UID, name: "b" };

fn now() -> Timestamp {
    "2026-01-31T04:00:00Z".parse().unwrap()
}

fn app(spec: Value) -> ClientApp {
    let spec = merged(json!({"hostname": "acme.example.com"}), spec);
    of(json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "app-uid"}, "spec": spec}))
}

fn with_files() -> Value {
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    json!({"persistence": {"backup": {"store": store}}})
}

fn standalone() -> Value {
    json!({"postgres": {"provider": "standalone"}})
}

fn postgresql(asked: Value, dump: Value) -> Database {
    // A dump by schedule that was made at the same time.
    let dumps = json!([{"name": "20260131T035959Z-other", "bytes": 1, "tables": 1}]);
    Database::Standalone(Some(of(json!({
        "metadata": {"name": "acme-pg", "namespace": "ns", "uid": "pg-uid"},
        "spec": {"backup": {"request": asked}},
        "status": {"dump": dump, "backup": {"dumps": dumps}},
    }))))
}

fn idle() -> Database {
    postgresql(json!(null), json!(null))
}

fn record(request: &str, state: &str) -> Value {
    let dump = (state == "Succeeded").then_some("20260131T035900Z-own");
    json!({"request": request, "job": "j", "state": state, "dump": dump, "message": "dump: it is full"})
}

fn cluster(repos: bool, ready: bool) -> Box<PerconaPGCluster> {
    let repos = if repos { json!([{"name": "repo1"}, {"name": "repo2"}]) } else { json!([]) };
    of(json!({
        "metadata": {"name": "acme-pg", "namespace": "ns"},
        "spec": {"postgresVersion": 15, "instances": [], "backups": {"pgbackrest": {"repos": repos}}},
        "status": {"conditions": [{"type": READY_FOR_BACKUP, "status": if ready { "True" } else { "False" }}]},
    }))
}

/// Returns a cluster whose second repository Percona does not know yet.
fn with_new_repository() -> Box<PerconaPGCluster> {
    let mut cluster = cluster(true, true);
    cluster.status.as_mut().unwrap().pgbackrest = of(json!({"repos": [{"name": "repo1"}]}));
    cluster
}

fn percona_backup(state: &str) -> Option<Box<PerconaPGBackup>> {
    Some(of(json!({
        "metadata": {"name": "b"}, "spec": {"pgCluster": "acme-pg"}, "status": {"state": state, "error": "no room"},
    })))
}

/// Returns what archives the files of an app whose volumes are known.
fn known() -> Files {
    let volume = Volume { claim: "acme-nextcloud-nextcloud".to_owned(), uid: "v".to_owned() };
    Files { volumes: Some(vec![volume]), image: Some(OperatorImage::named("operator:1")), ..Files::default() }
}

fn job(succeeded: Option<bool>) -> Option<ArchiveJob> {
    Some(ArchiveJob {
        is_ours: true,
        progress: JobProgress { succeeded, ..JobProgress::default() },
        report: Some("20260131T040100Z-20543f14 9 4".to_owned()),
        failure: Some("it is full".to_owned()),
        ..ArchiveJob::default()
    })
}

/// Returns what follows, in short: phase, reason, and the step.
fn short_of(outcome: &Outcome) -> String {
    let step = match &outcome.step {
        None => String::new(),
        Some(Step::Stop(app)) => format!(" -> stop {}", app.name_any()),
        Some(Step::RequestDump { postgresql, uid, request }) => {
            format!(" -> dump {postgresql} {} {request}", uid.as_deref().unwrap_or_default())
        }
        Some(Step::CreatePerconaBackup(backup)) => {
            let PerconaPGBackupSpec { pg_cluster, repo_name, options } = &backup.spec;
            format!(
                " -> {} {pg_cluster} {} {}",
                backup.name_any(),
                repo_name.as_deref().unwrap_or_default(),
                options.join(" ")
            )
        }
        Some(Step::CreateJob(job)) => format!(" -> {}", job.name_any()),
        Some(Step::CreateCloudNativePgBackup(backup)) => format!(" -> create Backup {}", backup.name_any()),
        Some(Step::EndJob { job, uid, why }) => format!(" -> end {job} {uid}: {why}"),
    };
    format!("{:?}{step}", outcome.status.phase.unwrap())
}

/// Returns what exists of an app with its database and files.
fn observed(app: ClientApp, database: Database, files: Files) -> Observed {
    Observed { subject: Subject::App(Box::new(app)), database, files, ..Observed::default() }
}

/// Decides for a backup of the app with this spec beyond its subject.
fn decided(spec: Value, recorded: &Value, observed: &Observed) -> Outcome {
    decide(ME, &of(merged(json!({"of": {"name": "acme"}}), spec)), &of(recorded.clone()), observed, now())
}

fn expect(what: &str, outcome: &Outcome, expected: &str, words: &str) {
    let message = &outcome.ready.message;
    assert_eq!(short_of(outcome), expected, "{what}: {message}");
    assert!(message.contains(words), "{what}: {message}");
    let is_complete = outcome.status.phase == Some(BackupPhase::Completed);
    assert_eq!(outcome.ready.state == State::True, is_complete, "{what}");
    assert_eq!(outcome.status.completed_at.is_some(), is_complete, "{what}");
}

const FILES_JOB: &str = "Running -> acme-files-5f0c2c0e8a";

#[test]
fn a_postgresql_is_dumped() {
    let asked = format!("Running -> dump acme-pg pg-uid {UID}");
    let dump = |request: &str, state: &str| postgresql(json!(request), record(request, state));
    for (what, database, expected, words) in [
        ("asked", idle(), &*asked, "Postgresql acme-pg is asked for a dump"),
        ("is seen", postgresql(json!(UID), json!(null)), "Running", ""),
        ("runs", dump(UID, "Running"), "Running", "Postgresql acme-pg is dumped"),
        ("another runs", dump("x", "Running"), "Pending", "another dump"),
        ("another is asked", postgresql(json!("x"), json!(null)), "Pending", "is requested"),
        ("another was before", dump("x", "Succeeded"), &asked, ""),
        ("fails", dump(UID, "Failed"), "Failed", "it is full"),
        ("is dumped", dump(UID, "Succeeded"), "Completed", ""),
        ("no database yet", Database::Standalone(None), "Pending", "PostgresReady"),
    ] {
        let observed = observed(app(standalone()), database, Files::default());
        expect(what, &decided(json!({}), &json!({}), &observed), expected, words);
    }
    let observed = observed(app(standalone()), dump("x", "Succeeded"), Files::default());
    let observed = Observed { last_dump_of: Some("other".to_owned()), ..observed };
    let words = "ClientAppBackup other has not recorded its dump of Postgresql acme-pg";
    expect("another awaits its dump", &decided(json!({}), &json!({}), &observed), "Pending", words);
}

/// A status of a Postgresql has room for one dump: if it was replaced before it is read, both backups would ask again and again.
#[test]
fn who_awaits_a_dump() {
    let ended = json!({"kind": "Postgresql", "name": "acme-pg", "completedAt": "2026-01-31T03:59:00Z"});
    let asked = merged(ended.clone(), json!({"completedAt": null}));
    for (reason, database, awaits) in [
        (Reason::BackupRunning, asked.clone(), true),
        (Reason::BackupRunning, ended, false),
        (Reason::BackupRunning, json!(null), false),
        (Reason::BackupPending, asked.clone(), false),
        (Reason::AccessDenied, asked, false),
    ] {
        let ready = json!({
            "type": "Ready", "status": "False", "reason": reason.as_str(), "message": "",
            "lastTransitionTime": "2026-01-31T03:58:00Z",
        });
        let status = json!({"database": database, "conditions": [ready]});
        assert_eq!(awaits_dump(&of(status.clone())), awaits, "{status}");
    }
}

#[test]
fn a_percona_cluster_is_backed_up() {
    let percona = |cluster, backup| Database::Percona { cluster: Some(cluster), backup };
    let known = |state: &str| percona(cluster(true, true), percona_backup(state));
    let made = "Running -> acme-pg-5f0c2c0e8a acme-pg repo2 --type=full";
    for (what, database, expected, words) in [
        ("begins", percona(cluster(true, true), None), made, "PerconaPGBackup acme-pg-5f0c2c0e8a"),
        ("is not ready", percona(cluster(true, false), None), "Pending", "not ready"),
        ("new repository", percona(with_new_repository(), None), "Pending", "does not know its new repository"),
        ("keeps none", percona(cluster(false, true), None), "Failed", "keeps no backups"),
        ("works", known("Running"), "Running", ""),
        ("fails", known("Failed"), "Failed", "no room"),
        ("is done", known("Succeeded"), "Completed", ""),
    ] {
        let observed = observed(app(json!({})), database, Files::default());
        expect(what, &decided(json!({}), &json!({}), &observed), expected, words);
    }
}

#[test]
fn files_follow_the_database() {
    let both = || app(merged(with_files(), standalone()));
    let only_files = || app(merged(with_files(), json!({"postgres": {"enabled": false}})));
    let neither = app(json!({"postgres": {"enabled": false}}));
    let files = |job| Files { job, ..known() };
    let dumped = json!({"database": {"kind": "Postgresql", "name": UID, "completedAt": "2026-01-31T03:59:00Z"}});
    let job_made = merged(dumped.clone(), json!({"files": {"job": "acme-files-5f0c2c0e8a"}}));
    let done = postgresql(json!(UID), record(UID, "Succeeded"));
    let complete = "ClientApp acme is backed up: a dump, archive 20260131T040100Z-20543f14";
    let (none, no_image) = (Files { volumes: None, ..known() }, Files { image: None, ..known() });
    for (what, recorded, observed, expected, words) in [
        ("dumped", &json!({}), observed(both(), done, files(None)), FILES_JOB, "Job acme-files-5f0c2c0e8a"),
        ("once more", &dumped, observed(both(), idle(), files(None)), FILES_JOB, ""),
        ("they run", &job_made, observed(both(), idle(), files(job(None))), "Running", ""),
        ("they fail", &job_made, observed(both(), idle(), files(job(Some(false)))), "Failed", "it is full"),
        ("both", &job_made, observed(both(), idle(), files(job(Some(true)))), "Completed", complete),
        ("only they", &json!({}), observed(only_files(), Database::None, files(None)), FILES_JOB, ""),
        ("no volumes", &json!({}), observed(only_files(), Database::None, none), "Pending", "FilesBackedUp"),
        (
            "no image",
            &json!({}),
            observed(only_files(), Database::None, no_image),
            "Pending",
            "does not know its own image",
        ),
        ("nothing", &json!({}), observed(neither, Database::None, Files::default()), "Failed", "has nothing"),
    ] {
        expect(what, &decided(json!({}), recorded, &observed), expected, words);
    }
}

#[test]
fn what_a_backup_has_made_is_recorded() {
    let spec = json!({"parts": ["Database"]});
    let observed = |database| observed(app(standalone()), database, Files::default());
    let began = decided(spec.clone(), &json!({}), &observed(idle())).status;
    assert_eq!(began.started_at, Some(Time(now())));
    assert_eq!(began.database.as_ref().unwrap().name, UID, "before it is made");
    let next = |dump: Value| decided(spec.clone(), &json!(began), &observed(postgresql(json!(UID), dump))).status;
    let ended = next(record(UID, "Succeeded"));
    assert_eq!(ended.database.unwrap().dump.as_deref(), Some("20260131T035900Z-own"));
    // Its pod shows later than its Job, or never.
    for (ended, expected) in
        [("2026-01-31T03:59:56Z", BackupPhase::Running), ("2026-01-31T03:59:55Z", BackupPhase::Completed)]
    {
        let next = next(merged(record(UID, "Succeeded"), json!({"dump": null, "completedAt": ended})));
        assert_eq!((next.phase, next.database.unwrap().dump), (Some(expected), None), "{ended}");
    }

    let files = ArchivedFiles { job: "j".to_owned(), archive: None, bytes: None, files: None, completed_at: None };
    let reported = reported(&files, Some("20260131T040100Z-20543f14 9 4"));
    assert_eq!(
        (reported.archive.as_deref(), reported.bytes, reported.files),
        (Some("20260131T040100Z-20543f14"), Some(9), Some(4))
    );
}

#[test]
fn what_changes_meanwhile_makes_no_backup_complete() {
    let both = || app(merged(with_files(), standalone()));
    let observed = |app, files| observed(app, postgresql(json!(UID), record(UID, "Succeeded")), files);
    let began = decided(json!({}), &json!({}), &observed(both(), known()));
    expect("it begins", &began, FILES_JOB, "");
    let mut anew = both();
    anew.metadata.uid = Some("another".to_owned());
    let theirs = Some(ArchiveJob { is_ours: false, ..job(Some(true)).unwrap() });
    for (what, observed, words) in [
        ("no files any more", observed(app(standalone()), Files::default()), "set spec.persistence.backup"),
        ("another app", observed(anew, known()), "created anew"),
        ("another's Job", observed(both(), Files { job: theirs, ..known() }), "is not the operator's"),
    ] {
        expect(what, &decided(json!({}), &json!(began.status), &observed), "Failed", words);
    }

    // Another cluster's backup of that name is none of this one.
    let mut theirs = percona_backup("Succeeded").unwrap();
    theirs.spec.pg_cluster = "other".to_owned();
    let database = Database::Percona { cluster: Some(cluster(true, true)), backup: Some(theirs) };
    let observed = super::tests::observed(app(json!({})), database, Files::default());
    let outcome = decided(json!({}), &json!({}), &observed);
    assert_eq!(outcome.ready.message, "PerconaPGBackup acme-pg-5f0c2c0e8a is of another cluster: delete it");
}

#[test]
fn a_job_in_which_nothing_runs_is_ended() {
    let recorded = json!({"parts": ["Files"], "files": {"job": "acme-files-1"}});
    let archives = "Job acme-files-1 archives the files";
    let (pulls, idle) = ("container archive of pod x cannot pull image a", "nothing ran for 15 minutes: no node fits");
    let ended = "Running -> end acme-files-1 u:";
    let (pulls_ended, silent_ended) = (format!("{ended} {pulls}"), format!("{ended} its pod does not start"));
    let pulling = format!("{archives}; {pulls}");
    let failed = format!("Job acme-files-1 has failed: {idle}; see `kubectl logs job/acme-files-1 -n ns`");
    for (idle_minutes, because, not_started, succeeded, expected, message) in [
        (None, None, None, None, "Running", archives),
        (Some(14), Some(pulls), None, None, "Running", &*pulling),
        (Some(15), Some(pulls), None, None, &*pulls_ended, &pulling),
        (Some(60), None, None, None, &silent_ended, archives),
        // Its controller has not seen it yet.
        (Some(60), None, Some(idle), None, "Running", archives),
        (None, None, Some(idle), Some(false), "Failed", &failed),
    ] {
        let job = ArchiveJob {
            is_ours: true,
            uid: "u".to_owned(),
            progress: JobProgress { succeeded, ..JobProgress::default() },
            idle_since: idle_minutes.map(|minutes| now() - SignedDuration::from_mins(minutes)),
            idle_because: because.map(str::to_owned),
            not_started: not_started.map(str::to_owned),
            ..ArchiveJob::default()
        };
        let observed = observed(app(with_files()), Database::None, Files { job: Some(job), ..known() });
        let outcome = decided(json!({}), &recorded, &observed);
        assert_eq!((&*short_of(&outcome), &*outcome.ready.message), (expected, message), "{idle_minutes:?}");
    }
}

#[test]
fn files_wait_for_the_password_of_their_repository() {
    let recorded = json!({"repositoryPassword": {"secret": "restic", "uid": "u"}});
    for (is_generated, status, expected) in
        [(true, json!({}), "Pending"), (true, recorded.clone(), FILES_JOB), (false, json!({}), FILES_JOB)]
    {
        let password = json!({"passwordSecret": {"name": "restic"}, "generatePassword": is_generated});
        let mut app = app(merged(with_files(), json!({"persistence": {"backup": {"store": password}}})));
        let what = format!("generated: {is_generated}, status: {status}");
        app.status = of(status);
        let observed = observed(app, Database::None, known());
        expect(&what, &decided(json!({"parts": ["Files"]}), &json!({}), &observed), expected, "");
    }
}

#[test]
fn what_cannot_be_backed_up() {
    let missing = |subject, database| Observed { subject, database, ..Observed::default() };
    let with_database = |app, database| observed(app, database, Files::default());
    let plain = || app(json!({}));
    let mut leaving = plain();
    leaving.metadata.deletion_timestamp = Some(Time(now()));
    let bare = Some(of(json!({"metadata": {"name": "acme-pg"}, "spec": {}})));
    let keeps_none = Database::CloudNativePg { cluster: bare, backup: None };
    let of_plugin = Database::CloudNativePg { cluster: None, backup: None };
    let of_postgresql = json!({"of": {"kind": "Postgresql", "name": "db"}});
    let no_postgresql = missing(Subject::Postgresql, Database::Standalone(None));
    for (what, spec, observed, words) in [
        ("not there", json!({}), Observed::default(), "ClientApp acme does not exist"),
        ("nor this", of_postgresql, no_postgresql, "Postgresql db does not exist"),
        ("it leaves", json!({}), with_database(leaving, Database::None), "is being deleted"),
        (
            "no files",
            json!({"parts": ["Files"]}),
            with_database(plain(), Database::None),
            "set spec.persistence.backup",
        ),
        (
            "a database that it cannot back up, and files that it could",
            json!({}),
            with_database(app(with_files()), keeps_none),
            "Cluster acme-pg keeps no backups: set spec.postgres.backup",
        ),
        (
            "a backup in a bucket that only the plugin deletes from",
            json!({"reclaim": "Delete"}),
            with_database(plain(), of_plugin),
            "set spec.reclaim to Retain",
        ),
        (
            "no database",
            json!({"parts": ["Database"]}),
            with_database(app(with_files()), Database::None),
            "has no database that",
        ),
    ] {
        expect(what, &decided(spec, &json!({}), &observed), "Failed", words);
    }
}

#[test]
fn a_dump_is_not_made_that_would_have_to_be_deleted() {
    let percona = Database::Percona { cluster: Some(cluster(true, true)), backup: None };
    for (what, parts, database, expected) in [
        ("a dump", json!(null), idle(), "Failed"),
        ("files", json!(["Files"]), idle(), FILES_JOB),
        ("Percona's", json!(null), percona, "Running -> acme-pg-5f0c2c0e8a acme-pg repo2 --type=full"),
    ] {
        let observed = observed(app(merged(with_files(), standalone())), database, known());
        let outcome = decided(json!({"parts": parts, "reclaim": "Delete"}), &json!({}), &observed);
        expect(what, &outcome, expected, "");
        // By these it is found again.
        assert_eq!(outcome.status.files.is_some(), outcome.status.repository.is_some(), "{what}");
        if let Some(Step::CreatePerconaBackup(backup)) = outcome.step {
            assert_eq!(backup.labels()[label::BACKUP_UID], UID);
        }
    }
}

#[test]
fn a_backup_of_one_moment() {
    let of_app = |mark: Option<&str>, user: Option<&str>| {
        let mut app = app(merged(with_files(), json!({"postgres": {"enabled": false}})));
        let mark = mark.map(|mark| ("apps.bnerd-operator.local/stopped-for".to_owned(), mark.to_owned()));
        app.metadata.annotations = Some(mark.into_iter().collect());
        observed(app, Database::None, Files { user: user.map(str::to_owned), ..known() })
    };
    let with_database = |mark: Option<&str>, database| {
        let mut observed = Observed { database, ..of_app(mark, None) };
        let Subject::App(app) = &mut observed.subject else { panic!() };
        app.spec.postgres.enabled = true;
        observed
    };
    let own = Some("ClientAppBackup/b");
    for (what, observed, expected, words) in [
        ("pods", of_app(None, Some("acme-0")), "Running -> stop acme", "are taken away"),
        ("a pod is left", of_app(own, Some("acme-0")), "Pending", "pod acme-0 still has a volume"),
        ("none is left", of_app(own, None), FILES_JOB, ""),
        ("another's", of_app(Some("ClientAppRestore/r"), None), "Pending", "is stopped for ClientAppRestore/r"),
    ] {
        expect(what, &decided(json!({"quiesce": true}), &json!({}), &observed), expected, words);
    }
    // helm may wait for the backup before an upgrade, that for this dump, and this one would wait for helm.
    let both = json!({"parts": ["Database", "Files"], "quiesce": true});
    let dumped = json!({"database": {"kind": "Postgresql", "name": UID}});
    let archived = json!({"parts": ["Files"], "files": {"job": "acme-files-5f0c2c0e8a"}});
    for (what, recorded, mark, expected, words) in [
        ("while it is dumped", &dumped, None, "Failed", "acme lost its annotation"),
        ("another's mark", &dumped, Some("ClientAppRestore/r"), "Failed", "back up again"),
        ("while files are archived", &archived, None, "Failed", "so its pods came back"),
        ("as it was", &dumped, own, "Running", "is dumped"),
    ] {
        let observed = with_database(mark, postgresql(json!(UID), record(UID, "Running")));
        expect(what, &decided(both.clone(), recorded, &observed), expected, words);
    }
    // Without files, it is not known which pods matter.
    let only = json!({"parts": ["Database"], "quiesce": true});
    expect("only", &decided(only, &json!({}), &with_database(own, idle())), "Failed", "");
}

#[test]
fn a_restore_comes_first() {
    let observed = observed(app(standalone()), idle(), Files::default());
    let observed = Observed { restore: Some("r".to_owned()), ..observed };
    let outcome = decided(json!({}), &json!({}), &observed);
    expect("a restore", &outcome, "Pending", "ClientAppRestore r is in progress");
    // One that has begun goes on.
    let outcome = decided(json!({}), &json!({"startedAt": "2026-01-31T03:59:00Z"}), &observed);
    expect("begun", &outcome, &format!("Running -> dump acme-pg pg-uid {UID}"), "");
}

#[test]
fn which_restore_a_backup_waits_for() {
    let restore = |of_app: &str, database: Value, files: Value| -> ClientAppRestore {
        let status = json!({"phase": "Running", "database": database, "files": files});
        let spec = json!({"of": {"name": of_app}, "backup": "b"});
        of(json!({"metadata": {"name": "r"}, "spec": spec, "status": status}))
    };
    let backup = |annotations: Value| -> ClientAppBackup {
        let spec = json!({"of": {"name": "acme"}, "parts": ["Database"]});
        of(json!({"metadata": {"name": "b", "annotations": annotations}, "spec": spec}))
    };
    let database = |more: Value| merged(json!({"kind": "Postgresql", "name": "r", "from": "latest"}), more);
    let at = "2026-01-31T03:00:00Z";
    let (files, none) = (json!({"job": "j", "archive": "a"}), json!(null));
    for (what, restore, before_upgrade) in [
        ("its pods have to go, for which helm waits", restore("acme", database(json!({})), files.clone()), false),
        ("a dump replaces", restore("acme", database(json!({"requestedAt": at})), files.clone()), true),
        ("Percona backs up first", restore("acme", database(json!({"backup": "x"})), files.clone()), true),
        ("without files, no pod has to go", restore("acme", database(json!({})), none.clone()), true),
        (
            "the database is restored, and pods may have to go",
            restore("acme", database(json!({"requestedAt": at, "completedAt": at})), files.clone()),
            false,
        ),
        ("of files alone", restore("acme", none.clone(), files), false),
    ] {
        assert!(waits_for(&backup(json!({})), &restore), "{what}");
        assert_eq!(waits_for(&backup(json!({annotation::UPGRADE: "1 -> 2"})), &restore), before_upgrade, "{what}");
    }
    assert!(!waits_for(&backup(json!({})), &restore("other", database(json!({})), none)));
}

#[test]
fn which_backup_of_an_app_waits_for_which() {
    let with = |parts: Value, status: &Value| -> ClientAppBackup {
        let spec = json!({"of": {"name": "acme"}, "parts": parts});
        let annotations = json!({annotation::UPGRADE: "1 -> 2"});
        of(json!({"metadata": {"name": "b", "annotations": annotations}, "spec": spec, "status": status}))
    };
    let backup = |is_for_upgrade: bool, status: &Value| {
        with(if is_for_upgrade { json!(["Database"]) } else { json!(null) }, status)
    };
    let database = |completed: Option<&str>| json!({"kind": "Postgresql", "name": UID, "completedAt": completed});
    let done = database(Some("2026-01-31T03:59:00Z"));
    // The status of the other one, whether it waits for that of an upgrade, and that for it.
    for (what, status, it_waits, upgrade_waits) in [
        ("it has just been created", json!({}), true, false),
        ("it waits for pods to go", json!({"phase": "Running", "startedAt": "2026-01-31T03:00:00Z"}), true, false),
        ("it is dumped", json!({"phase": "Running", "database": database(None)}), false, true),
        ("its files are archived", json!({"phase": "Running", "database": done, "files": {"job": "j"}}), false, false),
        ("it is of files alone", json!({"phase": "Running", "files": {"job": "j"}}), false, false),
    ] {
        let (other, upgrade) = (backup(false, &status), backup(true, &json!({})));
        assert_eq!(waits(&other, &upgrade), Some(it_waits), "{what}");
        assert_eq!(waits(&upgrade, &other), Some(upgrade_waits), "{what}");
        assert!(!(it_waits && upgrade_waits), "{what}");
    }
    let upgrade = backup(true, &json!({}));
    let mut files = with(json!(["Files"]), &json!({}));
    assert_eq!(waits(&files, &upgrade), Some(false), "files are read beside the app");
    files.spec.quiesce = true;
    assert_eq!(waits(&files, &upgrade), Some(true), "its pods have to go");
    // The older one comes first.
    for is_for_upgrade in [false, true] {
        let [one, other] = [json!({}), json!({"phase": "Running"})].map(|status| backup(is_for_upgrade, &status));
        assert_eq!((waits(&one, &other), waits(&other, &one)), (None, None));
    }
}
