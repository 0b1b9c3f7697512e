use serde_json::{Value, json};

use super::*;
use crate::{
    backup::{archive_job::Volume, observed::ArchiveJob},
    crd::{
        BackupPhase, ClientApp,
        conditions::State,
        percona::{PerconaPGBackupSpec, PerconaPGCluster, READY_FOR_BACKUP},
    },
    platform::{fake::of, job::JobProgress, operator_image::OperatorImage},
};

const UID: &str = "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11";
const ME: Me<'_> = Me { uid: UID, name: "b" };

fn now() -> Timestamp {
    "2026-01-31T04:00:00Z".parse().unwrap()
}

fn app(spec: Value) -> ClientApp {
    let mut whole = json!({"hostname": "acme.example.com"});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    of(json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "app-uid"}, "spec": whole}))
}

fn with_files() -> Value {
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    json!({"persistence": {"backup": {"store": store}}})
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

#[test]
fn a_database_and_then_files() {
    let (standalone, none) = (json!({"postgres": {"provider": "standalone"}}), Files::default());
    let app_of = |spec: &Value| Subject::App(Box::new(app(spec.clone())));
    let files = |job| Files { job, ..known() };
    let both = {
        let mut both = with_files();
        both["postgres"] = standalone["postgres"].clone();
        both
    };
    let only_files = {
        let mut only = with_files();
        only["postgres"] = json!({"enabled": false});
        only
    };
    let percona = |cluster, backup| Database::Percona { cluster: Some(cluster), backup };
    let dumped = json!({"database": {"kind": "Postgresql", "name": UID, "completedAt": "2026-01-31T03:59:00Z"}});
    let job_made = json!({"files": {"job": "acme-files-5f0c2c0e8a"}});
    let dump_job = json!({"database": dumped["database"], "files": job_made["files"]});
    let idle = || postgresql(json!(null), json!(null));
    for (what, spec, recorded, database, files, expected, message) in [
        (
            "asked",
            &standalone,
            json!({}),
            idle(),
            none.clone(),
            &*format!("Running -> dump acme-pg pg-uid {UID}"),
            "Postgresql acme-pg is asked for a dump",
        ),
        ("is seen", &standalone, json!({}), postgresql(json!(UID), json!(null)), none.clone(), "Running", ""),
        (
            "runs",
            &standalone,
            json!({}),
            postgresql(json!(UID), record(UID, "Running")),
            none.clone(),
            "Running",
            "Postgresql acme-pg is dumped",
        ),
        (
            "another runs",
            &standalone,
            json!({}),
            postgresql(json!("x"), record("x", "Running")),
            none.clone(),
            "Pending",
            "another dump",
        ),
        (
            "another is asked",
            &standalone,
            json!({}),
            postgresql(json!("x"), json!(null)),
            none.clone(),
            "Pending",
            "is requested",
        ),
        (
            "another was before",
            &standalone,
            json!({}),
            postgresql(json!("x"), record("x", "Succeeded")),
            none.clone(),
            &*format!("Running -> dump acme-pg pg-uid {UID}"),
            "",
        ),
        (
            "fails",
            &standalone,
            json!({}),
            postgresql(json!(UID), record(UID, "Failed")),
            none.clone(),
            "Failed",
            "it is full",
        ),
        (
            "is dumped",
            &standalone,
            json!({}),
            postgresql(json!(UID), record(UID, "Succeeded")),
            none.clone(),
            "Completed",
            "",
        ),
        (
            "no database yet",
            &standalone,
            json!({}),
            Database::Standalone(None),
            none.clone(),
            "Pending",
            "PostgresReady",
        ),
        (
            "then files",
            &both,
            json!({}),
            postgresql(json!(UID), record(UID, "Succeeded")),
            files(None),
            "Running -> acme-files-5f0c2c0e8a",
            "Job acme-files-5f0c2c0e8a",
        ),
        ("once more", &both, dumped.clone(), idle(), files(None), "Running -> acme-files-5f0c2c0e8a", ""),
        ("files run", &both, dump_job.clone(), idle(), files(job(None)), "Running", ""),
        ("files fail", &both, dump_job.clone(), idle(), files(job(Some(false))), "Failed", "it is full"),
        (
            "both",
            &both,
            dump_job,
            idle(),
            files(job(Some(true))),
            "Completed",
            "ClientApp acme is backed up: a dump, archive 20260131T040100Z-20543f14",
        ),
        ("files only", &only_files, json!({}), Database::None, files(None), "Running -> acme-files-5f0c2c0e8a", ""),
        (
            "no volumes",
            &only_files,
            json!({}),
            Database::None,
            Files { volumes: None, ..known() },
            "Pending",
            "FilesBackedUp",
        ),
        (
            "no image",
            &only_files,
            json!({}),
            Database::None,
            Files { image: None, ..known() },
            "Pending",
            "does not know its own image",
        ),
        (
            "nothing",
            &json!({"postgres": {"enabled": false}}),
            json!({}),
            Database::None,
            none.clone(),
            "Failed",
            "has nothing",
        ),
        (
            "Percona",
            &json!({}),
            json!({}),
            percona(cluster(true, true), None),
            none.clone(),
            "Running -> acme-pg-5f0c2c0e8a acme-pg repo2 --type=full",
            "PerconaPGBackup acme-pg-5f0c2c0e8a",
        ),
        (
            "Percona is not ready",
            &json!({}),
            json!({}),
            percona(cluster(true, false), None),
            none.clone(),
            "Pending",
            "not ready",
        ),
        (
            "Percona does not know the repository",
            &json!({}),
            json!({}),
            percona(with_new_repository(), None),
            none.clone(),
            "Pending",
            "does not know its new repository",
        ),
        (
            "Percona keeps none",
            &json!({}),
            json!({}),
            percona(cluster(false, true), None),
            none.clone(),
            "Failed",
            "keeps no backups",
        ),
        (
            "Percona works",
            &json!({}),
            json!({}),
            percona(cluster(true, true), percona_backup("Running")),
            none.clone(),
            "Running",
            "",
        ),
        (
            "Percona fails",
            &json!({}),
            json!({}),
            percona(cluster(true, true), percona_backup("Failed")),
            none.clone(),
            "Failed",
            "no room",
        ),
        (
            "Percona is done",
            &json!({}),
            json!({}),
            percona(cluster(true, true), percona_backup("Succeeded")),
            none,
            "Completed",
            "",
        ),
    ] {
        let wanted = of(json!({"of": {"name": "acme"}}));
        let observed = Observed { subject: app_of(spec), database, files, restore: None };
        let outcome = decide(ME, &wanted, &of(recorded), &observed, now());
        assert_eq!(short_of(&outcome), expected, "{what}: {}", outcome.ready.message);
        assert!(outcome.ready.message.contains(message), "{what}: {}", outcome.ready.message);
        let is_complete = outcome.status.phase == Some(BackupPhase::Completed);
        assert_eq!(outcome.ready.state == State::True, is_complete, "{what}");
        assert_eq!(outcome.status.completed_at.is_some(), is_complete, "{what}");
    }
}

#[test]
fn what_a_backup_has_made_is_recorded() {
    let spec = of(json!({"of": {"name": "acme"}, "parts": ["Database"]}));
    let standalone = app(json!({"postgres": {"provider": "standalone"}}));
    let observed = |database| Observed {
        subject: Subject::App(Box::new(standalone.clone())),
        database,
        files: Files::default(),
        restore: None,
    };
    let began = decide(ME, &spec, &of(json!({})), &observed(postgresql(json!(null), json!(null))), now());
    assert_eq!(began.status.started_at, Some(Time(now())));
    assert_eq!(began.status.database.as_ref().unwrap().name, UID, "before it is made");
    let ended = decide(ME, &spec, &began.status, &observed(postgresql(json!(UID), record(UID, "Succeeded"))), now());
    assert_eq!(ended.status.database.unwrap().dump.as_deref(), Some("20260131T035900Z-own"));
    // Its pod shows later than its Job, or never.
    for (ended, expected) in
        [("2026-01-31T03:59:56Z", BackupPhase::Running), ("2026-01-31T03:59:55Z", BackupPhase::Completed)]
    {
        let mut unknown = record(UID, "Succeeded");
        (unknown["dump"], unknown["completedAt"]) = (json!(null), json!(ended));
        let next = decide(ME, &spec, &began.status, &observed(postgresql(json!(UID), unknown)), now());
        assert_eq!((next.status.phase, next.status.database.unwrap().dump), (Some(expected), None), "{ended}");
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
    let spec = of(json!({"of": {"name": "acme"}}));
    let mut both = with_files();
    both["postgres"] = json!({"provider": "standalone"});
    let files = known;
    let observed = |app: ClientApp, files: Files| Observed {
        subject: Subject::App(Box::new(app)),
        database: postgresql(json!(UID), record(UID, "Succeeded")),
        files,
        restore: None,
    };
    let began = decide(ME, &spec, &of(json!({})), &observed(app(both.clone()), files()), now());
    assert_eq!(short_of(&began), "Running -> acme-files-5f0c2c0e8a");
    let next = |app: ClientApp, files: Files| {
        let outcome = decide(ME, &spec, &began.status, &observed(app, files), now());
        (outcome.status.phase.unwrap(), outcome.ready.message)
    };
    let (phase, message) = next(app(json!({"postgres": {"provider": "standalone"}})), Files::default());
    assert!(phase == BackupPhase::Failed && message.contains("set spec.persistence.backup"), "{message}");
    let mut anew = app(both.clone());
    anew.metadata.uid = Some("another".to_owned());
    let (phase, message) = next(anew, files());
    assert!(phase == BackupPhase::Failed && message.contains("created anew"), "{message}");
    let theirs = ArchiveJob { is_ours: false, ..job(Some(true)).unwrap() };
    let (phase, message) = next(app(both), Files { job: Some(theirs), ..files() });
    assert!(phase == BackupPhase::Failed && message.contains("is not the operator's"), "{message}");

    // Another cluster's backup of that name is none of this one.
    let mut theirs = percona_backup("Succeeded").unwrap();
    theirs.spec.pg_cluster = "other".to_owned();
    let database = Database::Percona { cluster: Some(cluster(true, true)), backup: Some(theirs) };
    let observed =
        Observed { subject: Subject::App(Box::new(app(json!({})))), database, files: Files::default(), restore: None };
    let outcome = decide(ME, &spec, &of(json!({})), &observed, now());
    assert_eq!(outcome.ready.message, "PerconaPGBackup acme-pg-5f0c2c0e8a is of another cluster: delete it");
}

#[test]
fn a_job_in_which_nothing_runs_is_ended() {
    let spec = of(json!({"of": {"name": "acme"}}));
    let recorded = json!({"parts": ["Files"], "files": {"job": "acme-files-1"}});
    let pulls = || Some("container archive of pod x cannot pull image a".to_owned());
    let ended = || Some("nothing ran for 15 minutes: no node fits".to_owned());
    for (idle_minutes, because, not_started, succeeded, expected, message) in [
        (None, None, None, None, "Running", "Job acme-files-1 archives the files"),
        (
            Some(14),
            pulls(),
            None,
            None,
            "Running",
            "Job acme-files-1 archives the files; container archive of pod x cannot pull image a",
        ),
        (
            Some(15),
            pulls(),
            None,
            None,
            "Running -> end acme-files-1 u: container archive of pod x cannot pull image a",
            "Job acme-files-1 archives the files; container archive of pod x cannot pull image a",
        ),
        (
            Some(60),
            None,
            None,
            None,
            "Running -> end acme-files-1 u: its pod does not start",
            "Job acme-files-1 archives the files",
        ),
        // Its controller has not seen it yet.
        (Some(60), None, ended(), None, "Running", "Job acme-files-1 archives the files"),
        (
            None,
            None,
            ended(),
            Some(false),
            "Failed",
            "Job acme-files-1 has failed: nothing ran for 15 minutes: no node fits; see `kubectl logs job/acme-files-1 -n ns`",
        ),
    ] {
        let job = ArchiveJob {
            is_ours: true,
            uid: "u".to_owned(),
            progress: JobProgress { succeeded, ..JobProgress::default() },
            idle_since: idle_minutes.map(|minutes| now() - SignedDuration::from_mins(minutes)),
            idle_because: because,
            not_started,
            ..ArchiveJob::default()
        };
        let subject = Subject::App(Box::new(app(with_files())));
        let files = Files { job: Some(job), ..known() };
        let observed = Observed { subject, database: Database::None, files, restore: None };
        let outcome = decide(ME, &spec, &of(recorded.clone()), &observed, now());
        assert_eq!((&*short_of(&outcome), &*outcome.ready.message), (expected, message), "{idle_minutes:?}");
    }
}

#[test]
fn files_wait_for_the_password_of_their_repository() {
    let spec = of(json!({"of": {"name": "acme"}, "parts": ["Files"]}));
    let known = json!({"repositoryPassword": {"secret": "restic", "uid": "u"}});
    for (is_generated, status, expected) in [
        (true, json!({}), "Pending"),
        (true, known.clone(), "Running -> acme-files-5f0c2c0e8a"),
        (false, json!({}), "Running -> acme-files-5f0c2c0e8a"),
    ] {
        let mut with_password = with_files();
        with_password["persistence"]["backup"]["store"]["passwordSecret"] = json!({"name": "restic"});
        with_password["persistence"]["backup"]["store"]["generatePassword"] = json!(is_generated);
        let mut app = app(with_password);
        app.status = of(status);
        let subject = Subject::App(Box::new(app));
        let observed = Observed { subject, database: Database::None, files: super::tests::known(), restore: None };
        let outcome = decide(ME, &spec, &of(json!({})), &observed, now());
        assert_eq!(short_of(&outcome), expected, "{is_generated}: {}", outcome.ready.message);
    }
}

#[test]
fn what_cannot_be_backed_up() {
    let subject = |value: Value| Subject::App(Box::new(of(value)));
    let leaving = json!({
        "metadata": {"name": "acme", "deletionTimestamp": "2026-01-31T00:00:00Z"}, "spec": {"hostname": "a.example.com"},
    });
    for (what, spec, subject, database, message) in [
        (
            "it is not there",
            json!({"of": {"name": "acme"}}),
            Subject::Missing,
            Database::None,
            "ClientApp acme does not exist",
        ),
        (
            "nor is this",
            json!({"of": {"kind": "Postgresql", "name": "db"}}),
            Subject::Postgresql,
            Database::Standalone(None),
            "Postgresql db does not exist",
        ),
        ("it leaves", json!({"of": {"name": "acme"}}), subject(leaving), Database::None, "is being deleted"),
        (
            "no files",
            json!({"of": {"name": "acme"}, "parts": ["Files"]}),
            Subject::App(Box::new(app(json!({})))),
            Database::None,
            "set spec.persistence.backup",
        ),
        (
            "a database that it cannot back up, and files that it could",
            json!({"of": {"name": "acme"}}),
            Subject::App(Box::new(app(with_files()))),
            Database::CloudNativePg {
                cluster: Some(of(json!({"metadata": {"name": "acme-pg"}, "spec": {}}))),
                backup: None,
            },
            "Cluster acme-pg keeps no backups: set spec.postgres.backup",
        ),
        (
            "a backup in a bucket that only the plugin deletes from",
            json!({"of": {"name": "acme"}, "reclaim": "Delete"}),
            Subject::App(Box::new(app(json!({})))),
            Database::CloudNativePg { cluster: None, backup: None },
            "set spec.reclaim to Retain",
        ),
        (
            "no database",
            json!({"of": {"name": "acme"}, "parts": ["Database"]}),
            Subject::App(Box::new(app(with_files()))),
            Database::None,
            "has no database that",
        ),
    ] {
        let observed = Observed { subject, database, files: Files::default(), restore: None };
        let outcome = decide(ME, &of(spec), &of(json!({})), &observed, now());
        assert_eq!(outcome.status.phase, Some(BackupPhase::Failed), "{what}");
        assert!(outcome.ready.message.contains(message), "{what}: {}", outcome.ready.message);
    }
}

#[test]
fn a_dump_is_not_made_that_would_have_to_be_deleted() {
    let mut standalone = app(with_files());
    standalone.spec.postgres.provider = crate::crd::PostgresProvider::Standalone;
    let percona = Database::Percona { cluster: Some(cluster(true, true)), backup: None };
    for (what, parts, database, expected) in [
        ("a dump", json!(null), postgresql(json!(null), json!(null)), "Failed"),
        ("files", json!(["Files"]), postgresql(json!(null), json!(null)), "Running -> acme-files-5f0c2c0e8a"),
        ("Percona's", json!(null), percona, "Running -> acme-pg-5f0c2c0e8a acme-pg repo2 --type=full"),
    ] {
        let subject = Subject::App(Box::new(standalone.clone()));
        let observed = Observed { subject, database, files: known(), restore: None };
        let spec = of(json!({"of": {"name": "acme"}, "parts": parts, "reclaim": "Delete"}));
        let outcome = decide(ME, &spec, &of(json!({})), &observed, now());
        assert_eq!(short_of(&outcome), expected, "{what}: {}", outcome.ready.message);
        // By these it is found again.
        assert_eq!(outcome.status.files.is_some(), outcome.status.repository.is_some(), "{what}");
        if let Some(Step::CreatePerconaBackup(backup)) = outcome.step {
            assert_eq!(backup.labels()[label::BACKUP_UID], UID);
        }
    }
}

#[test]
fn a_backup_of_one_moment() {
    let spec: ClientAppBackupSpec = of(json!({"of": {"name": "acme"}, "quiesce": true}));
    let of_app = |mark: Option<&str>, user: Option<&str>| {
        let mut app = app(with_files());
        app.spec.postgres.enabled = false;
        let mark = mark.map(|mark| ("apps.bnerd-operator.local/stopped-for".to_owned(), mark.to_owned()));
        app.metadata.annotations = Some(mark.into_iter().collect());
        let user = user.map(str::to_owned);
        let files = Files { user, ..known() };
        Observed { subject: Subject::App(Box::new(app)), database: Database::None, files, restore: None }
    };
    let own = Some("ClientAppBackup/b");
    for (what, observed, expected, words) in [
        ("pods", of_app(None, Some("acme-0")), "Running -> stop acme", "are taken away"),
        ("a pod is left", of_app(own, Some("acme-0")), "Pending", "pod acme-0 still has a volume"),
        ("none is left", of_app(own, None), "Running -> acme-files-5f0c2c0e8a", ""),
        ("another's", of_app(Some("ClientAppRestore/r"), None), "Pending", "is stopped for ClientAppRestore/r"),
    ] {
        let outcome = decide(ME, &spec, &of(json!({})), &observed, now());
        assert_eq!(short_of(&outcome), expected, "{what}: {}", outcome.ready.message);
        assert!(outcome.ready.message.contains(words), "{what}: {}", outcome.ready.message);
    }
    // helm may wait for the backup before an upgrade, that for this dump, and this one would wait for helm.
    let both: ClientAppBackupSpec =
        of(json!({"of": {"name": "acme"}, "parts": ["Database", "Files"], "quiesce": true}));
    let dumped = json!({"database": {"kind": "Postgresql", "name": UID}});
    let archived = json!({"parts": ["Files"], "files": {"job": "acme-files-5f0c2c0e8a"}});
    for (what, recorded, mark, expected, words) in [
        ("while it is dumped", &dumped, None, "Failed", "acme lost its annotation"),
        ("another's mark", &dumped, Some("ClientAppRestore/r"), "Failed", "back up again"),
        ("while files are archived", &archived, None, "Failed", "so its pods came back"),
        ("as it was", &dumped, own, "Running", "is dumped"),
    ] {
        let mut observed = of_app(mark, None);
        let Subject::App(app) = &mut observed.subject else { panic!() };
        app.spec.postgres.enabled = true;
        observed.database = postgresql(json!(UID), record(UID, "Running"));
        let outcome = decide(ME, &both, &of(recorded.clone()), &observed, now());
        assert_eq!(short_of(&outcome), expected, "{what}: {}", outcome.ready.message);
        assert!(outcome.ready.message.contains(words), "{what}: {}", outcome.ready.message);
    }
    // Without files, it is not known which pods matter.
    let only: ClientAppBackupSpec = of(json!({"of": {"name": "acme"}, "parts": ["Database"], "quiesce": true}));
    let mut observed = of_app(own, None);
    let Subject::App(app) = &mut observed.subject else { panic!() };
    app.spec.postgres.enabled = true;
    observed.database = postgresql(json!(null), json!(null));
    let outcome = decide(ME, &only, &of(json!({})), &observed, now());
    assert_eq!(outcome.status.phase, Some(BackupPhase::Failed), "{}", outcome.ready.message);
}

#[test]
fn a_restore_comes_first() {
    let spec: ClientAppBackupSpec = of(json!({"of": {"name": "acme"}}));
    let mut app = app(json!({}));
    app.spec.postgres.provider = crate::crd::PostgresProvider::Standalone;
    let observed = Observed {
        subject: Subject::App(Box::new(app)),
        database: postgresql(json!(null), json!(null)),
        files: Files::default(),
        restore: Some("r".to_owned()),
    };
    let outcome = decide(ME, &spec, &of(json!({})), &observed, now());
    assert!(outcome.ready.message.contains("ClientAppRestore r is in progress"), "{}", outcome.ready.message);
    // One that has begun goes on.
    let begun = of(json!({"startedAt": "2026-01-31T03:59:00Z"}));
    let outcome = decide(ME, &spec, &begun, &observed, now());
    assert_eq!(short_of(&outcome), format!("Running -> dump acme-pg pg-uid {UID}"));
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
    let database = |more: Value| {
        let mut whole = json!({"kind": "Postgresql", "name": "r", "from": "latest"});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        whole
    };
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
