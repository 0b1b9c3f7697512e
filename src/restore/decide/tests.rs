mod into;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::{
    backup::{archive_job::Volume, observed::ArchiveJob},
    crd::ClientAppBackup,
    platform::{fake::of, job::JobProgress, operator_image::OperatorImage},
};

const ME: Me<'_> = Me { uid: "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11", name: "back" };
const DUMP: &str = "20260131T030000Z-x7k2p";
const ARCHIVE: &str = "20260131T033000Z-20543f14";

fn merged(mut whole: Value, more: Value) -> Value {
    merge(&mut whole, more);
    whole
}

/// Merges as a merge patch does.
fn merge(whole: &mut Value, more: Value) {
    let Value::Object(fields) = more else { return *whole = more };
    if !whole.is_object() {
        *whole = json!({});
    }
    for (field, value) in fields {
        match value.is_null() {
            true => _ = whole.as_object_mut().unwrap().remove(&field),
            false => merge(&mut whole[field], value),
        }
    }
}

fn now() -> Timestamp {
    "2026-01-31T04:00:00Z".parse().unwrap()
}

fn app(more: Value) -> Subject {
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    let spec = json!({"hostname": "acme.example.com", "persistence": {"backup": {"store": store}}});
    let whole = json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "app-uid"}, "spec": spec});
    Subject::App(Box::new(of(merged(whole, more))))
}

fn postgresql(more: Value) -> Database {
    let dumps = json!([{"name": DUMP, "bytes": 1, "tables": 1}]);
    let whole = json!({
        "metadata": {"name": "acme-pg", "namespace": "ns", "uid": "pg-uid"}, "spec": {},
        "status": {"backup": {"dumps": dumps}},
    });
    Database::Standalone(Some(of(merged(whole, more))))
}

fn of_database() -> Value {
    json!({"of": {"name": "acme"}, "database": {"from": DUMP}})
}

fn of_files() -> Value {
    json!({"of": {"name": "acme"}, "files": {"from": ARCHIVE}})
}

/// Returns what restores the files of an app whose volumes are known.
fn known() -> Files {
    let volume = Volume { claim: "acme-nextcloud-nextcloud".to_owned(), uid: "v".to_owned() };
    Files { volumes: Some(vec![volume]), image: Some(OperatorImage::named("operator:1")), ..Files::default() }
}

fn job(succeeded: Option<bool>, failure: &str) -> Option<ArchiveJob> {
    Some(ArchiveJob {
        is_ours: true,
        progress: JobProgress { succeeded, ..JobProgress::default() },
        report: Some(format!("{ARCHIVE} 9 4")),
        failure: Some(failure.to_owned()),
        ..ArchiveJob::default()
    })
}

fn seen(state: Option<&str>, more: &[&str]) -> Option<Box<Seen>> {
    let cluster = json!({
        "metadata": {"name": "acme-pg", "namespace": "ns", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"postgresVersion": 17, "instances": [],
            "backups": {"enabled": true, "pgbackrest": {"repos": [{"name": "repo1", "volume": {}}]}}},
        "status": {"state": "ready", "conditions": [{"type": "ReadyForBackup", "status": "True"}]},
    });
    let backup = |name: &str| {
        of(json!({
            "metadata": {"name": name, "creationTimestamp": "2026-01-30T00:00:00Z"},
            "spec": {"pgCluster": "acme-pg", "repoName": "repo1"},
            "status": {"state": "Succeeded", "backupName": "20260130F", "completed": "2026-01-30T00:10:00Z"},
        }))
    };
    let backups = ["first"].iter().chain(more).map(|name| backup(name)).collect();
    let restore = |state: &str| {
        of(json!({
            "metadata": {"name": "acme-pg-5f0c2c0e8a", "creationTimestamp": "2026-01-31T03:59:00Z"},
            "spec": {"pgCluster": "acme-pg"}, "status": {"state": state, "completed": "2026-01-31T03:59:30Z"},
        }))
    };
    Some(Box::new(Seen::of(of(cluster), backups, state.map(restore).into_iter().collect())))
}

/// Decides until nothing more is recorded, as the controller does; what it makes is not there.
fn last(spec: &Value, recorded: &ClientAppRestoreStatus, observed: &Observed) -> Outcome {
    let spec: ClientAppRestoreSpec = of(spec.clone());
    let first = decide(ME, &spec, recorded, observed, now());
    match first.status == *recorded {
        true => first,
        false => decide(ME, &spec, &first.status, observed, now()),
    }
}

/// Returns what follows, in short: phase, reason, the step and the message.
fn short_of(outcome: &Outcome) -> (String, String) {
    let step = match &outcome.step {
        None => String::new(),
        Some(Step::Stop(app)) => format!(" stop {}", app.name_any()),
        Some(Step::RequestRestore { postgresql, uid, request }) => {
            let (from, place) = (&request.dump.from, request.dump.place());
            format!(" ask {postgresql} {} {} for {from} of {place}", uid.clone().unwrap(), request.request)
        }
        Some(Step::CreateBackup(made)) => format!(" back up {}", made.name_any()),
        Some(Step::CreateRestore(made)) => format!(" restore {} {:?}", made.name_any(), made.spec.options),
        Some(Step::CreateJob(made)) => format!(" job {}", made.name_any()),
        Some(Step::CreateApp(made)) => {
            let (spec, marks) = (&made.spec, made.annotations());
            assert_eq!(marks["apps.bnerd-operator.local/created-by-restore"], ME.uid);
            let percona = spec.postgres.percona.as_ref().and_then(|percona| percona.data_source.clone());
            let source = spec.postgres.restore.as_ref().map(|dump| format!("{} of {}", dump.from, dump.place()));
            let source = source.or(percona.map(|source| json!(source).to_string())).unwrap_or_default();
            format!(" create {} {} {:?} {} from {source}", made.name_any(), spec.hostname, spec.replicas, spec.suspend)
        }
        Some(Step::CopyAdministrator { of, to }) => format!(" administrator of {} to {}", of.name_any(), to.name_any()),
        Some(Step::Resume(app)) => format!(" resume {}", app.name_any()),
        Some(Step::Permit(permission)) => {
            format!(" permit {} {} to {}", permission.resource.kind, permission.name, permission.postgresql)
        }
    };
    let phase = format!("{:?}", outcome.status.phase.unwrap());
    (format!("{phase} {}{step}", outcome.ready.reason), outcome.ready.message.clone())
}

fn expect(what: &str, outcome: &Outcome, expected: &str, words: &str) {
    let (found, message) = short_of(outcome);
    assert_eq!(found, expected, "{what}: {message}");
    assert!(message.contains(words), "{what}: {message}");
}

fn stopped() -> Value {
    json!({"metadata": {"annotations": {"apps.bnerd-operator.local/stopped-for": "ClientAppRestore/back"}}})
}

#[test]
fn a_dump_replaces_a_database() {
    let asked = format!(
        "Running RestoreRunning ask acme-pg pg-uid {} for {DUMP} of PersistentVolumeClaim acme-pg-backup",
        ME.uid
    );
    let request = |more: Value| merged(json!({"request": ME.uid, "job": "j"}), more);
    let with = |status: Value| postgresql(json!({"status": {"restore": status}}));
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    let stored =
        postgresql(json!({"spec": {"backup": {"onDelete": true, "store": store}}, "status": {"backup": null}}));
    let in_store =
        format!("Running RestoreRunning ask acme-pg pg-uid {} for {DUMP} of http://s3/dumps/ns/acme-pg", ME.uid);
    let other = json!({"request": "other", "dump": {"claim": "c"}});
    for (what, database, expected, words) in [
        ("it is asked for", postgresql(json!({})), asked.as_str(), "is asked to restore dump"),
        ("the dump is in the store only", stored, &in_store, ""),
        (
            "no such dump",
            postgresql(json!({"status": {"backup": null}})),
            "Failed RestoreUnsuccessful",
            "has no dump, and no backup.store",
        ),
        (
            "another's",
            postgresql(json!({"spec": {"restoreRequest": other}})),
            "Running RestoreRunning",
            "another restore",
        ),
        ("it runs", with(request(json!({"state": "Running"}))), "Running RestoreRunning", "asked to restore"),
        ("it restarts", with(request(json!({"state": "Replacing"}))), "Running RestoreRunning", "restarts"),
        (
            "it has failed",
            with(request(json!({"state": "Failed", "message": "it is damaged"}))),
            "Failed RestoreUnsuccessful",
            "it is damaged",
        ),
        (
            "it is done",
            with(request(json!({"state": "Succeeded"}))),
            "Completed RestoreCompleted",
            "the former one is in former.5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11 on its volume",
        ),
        ("none yet", Database::Standalone(None), "Pending RestorePending", "there is no database yet"),
        ("of CloudNativePG", Database::CloudNativePg(None), "Failed RestoreUnsuccessful", "set spec.into"),
        ("no database", Database::None, "Failed RestoreUnsuccessful", "has no database that the operator restores"),
    ] {
        let volume_of_dumps = Some("dumps-uid".to_owned());
        let observed = Observed { subject: app(json!({})), database, volume_of_dumps, ..Observed::default() };
        expect(what, &last(&of_database(), &ClientAppRestoreStatus::default(), &observed), expected, words);
    }
}

#[test]
fn names_of_the_next_cluster() {
    let long = format!("{}-9", "a".repeat(48));
    for (cluster, next) in [
        ("acme-pg", "acme-pg-2".to_owned()),
        ("acme-pg-2", "acme-pg-3".to_owned()),
        ("acme-9", "acme-10".to_owned()),
        (&*long, format!("{}-10", "a".repeat(47))),
    ] {
        assert_eq!(next_name(cluster), next);
    }
}

#[test]
fn what_it_waits_for_and_what_it_refuses() {
    let observed = |subject: Subject| Observed { subject, database: postgresql(json!({})), ..Observed::default() };
    let backing_up =
        json!({"status": {"backup": {"name": "b", "state": "Running", "before": "x", "startedAt": now().to_string()}}});
    let _ = backing_up;
    let gone = json!({"metadata": {"deletionTimestamp": now().to_string()}});
    for (what, observed, expected, words) in [
        ("missing", Observed::default(), "Failed RestoreUnsuccessful", "ClientApp acme does not exist"),
        ("going", observed(app(gone)), "Failed RestoreUnsuccessful", "is being deleted"),
        ("suspended", observed(app(json!({"spec": {"suspend": true}}))), "Pending RestorePending", "is suspended"),
        (
            "a backup runs",
            Observed { backup: Some("b".to_owned()), ..observed(app(json!({}))) },
            "Pending RestorePending",
            "ClientAppBackup b is in progress",
        ),
    ] {
        expect(what, &last(&of_database(), &ClientAppRestoreStatus::default(), &observed), expected, words);
    }
    // Another app of the name is not the one that was to be restored.
    let recorded =
        ClientAppRestoreStatus { subject_uid: Some("before".to_owned()), ..ClientAppRestoreStatus::default() };
    expect(
        "anew",
        &last(&of_database(), &recorded, &observed(app(json!({})))),
        "Failed RestoreUnsuccessful",
        "created anew",
    );
}

#[test]
fn the_files_are_replaced_while_no_pod_has_them() {
    let status = ClientAppRestoreStatus::default();
    let with = |app: Subject, files: Files| Observed { subject: app, files, ..Observed::default() };
    let used = Files { user: Some("acme-0".to_owned()), ..known() };
    let other = json!({"metadata": {"annotations": {"apps.bnerd-operator.local/stopped-for": "ClientAppBackup/b"}}});
    let manual = merged(stopped(), json!({"spec": {"approval": "Manual"}}));
    let made = "acme-files-r5f0c2c0e8a";
    let create = format!("Running RestoreRunning job {made}");
    let ended = |succeeded, why: &str| Files { job: job(succeeded, why), ..known() };
    for (what, observed, expected, words) in [
        ("first", with(app(json!({})), used.clone()), "Running RestoreRunning stop acme", "are taken away"),
        (
            "a backup has stopped it",
            with(app(other), known()),
            "Running RestoreRunning",
            "stopped for ClientAppBackup/b",
        ),
        (
            "a pod is left",
            with(app(stopped()), used.clone()),
            "Running RestoreRunning",
            "pod acme-0 still has a volume",
        ),
        ("approval", with(app(manual), used), "Running RestoreRunning", "kubectl clientapp approve acme -n ns"),
        ("no pod is left", with(app(stopped()), known()), create.as_str(), "replaces the files"),
        (
            "no volumes",
            with(app(stopped()), Files { volumes: None, ..known() }),
            "Pending RestorePending",
            "do not exist",
        ),
        ("it runs", with(app(stopped()), ended(None, "")), "Running RestoreRunning", "replaces the files"),
        (
            "it is done",
            with(app(stopped()), ended(Some(true), "")),
            "Completed RestoreCompleted",
            ".clientapp-restore.former.20260131T033000Z-20543f14 of each volume",
        ),
        (
            "it has failed",
            with(app(stopped()), ended(Some(false), "no file was moved: no room")),
            "Failed RestoreUnsuccessful",
            "no room; see `kubectl logs job/acme-files-r5f0c2c0e8a -n ns`; the files are as they were",
        ),
        (
            "half of the files are moved",
            with(app(stopped()), ended(Some(false), "cannot write")),
            "Running RestoreRunning",
            "delete the Job, and another goes on",
        ),
        (
            "another's archives",
            with(app(stopped()), Files { not_permitted: Some("s3".to_owned()), ..known() }),
            "Failed RestoreUnsuccessful",
            "kubectl label secret s3 -n ns apps.bnerd-operator.local/restore-to=acme",
        ),
    ] {
        expect(what, &last(&of_files(), &status, &observed), expected, words);
    }
}

#[test]
fn both_parts_of_a_backup() {
    let backup = |more: Value| -> Option<Box<ClientAppBackup>> {
        let whole = json!({
            "metadata": {"name": "b"}, "spec": {"of": {"name": "acme"}},
            "status": {"phase": "Completed", "database": {"kind": "Postgresql", "name": "r", "dump": DUMP},
                "files": {"job": "j", "archive": ARCHIVE}},
        });
        Some(of(merged(whole, more)))
    };
    let spec = json!({"of": {"name": "acme"}, "backup": "b"});
    let observed = |source| Observed {
        subject: app(json!({})),
        database: postgresql(json!({"status": {"phase": "Up"}})),
        volume_of_dumps: Some("dumps-uid".to_owned()),
        files: known(),
        source,
        ..Observed::default()
    };
    let first = decide(ME, &of(spec.clone()), &ClientAppRestoreStatus::default(), &observed(backup(json!({}))), now());
    expect("both", &first, "Running RestoreRunning stop acme", "");
    let recorded = first.status;
    assert_eq!(recorded.database.as_ref().map(|made| made.from.as_str()), Some(DUMP));
    assert_eq!(recorded.files.as_ref().map(|made| made.archive.as_str()), Some(ARCHIVE));
    // The backup is not needed any more, and the database comes first.
    let mut then = observed(None);
    then.subject = app(stopped());
    let asked = decide(ME, &of(spec.clone()), &recorded, &then, now());
    assert!(short_of(&asked).0.starts_with("Running RestoreRunning ask acme-pg"), "{:?}", short_of(&asked));
    then.database = postgresql(
        json!({"status": {"phase": "Up", "restore": {"request": ME.uid, "job": "j", "state": "Succeeded"}}}),
    );
    // Without the annotation, helm would have to take the pods away again, and it may wait for a backup that waits for this database.
    for (what, database, expected) in [
        ("it is replaced", then.database.clone(), "stop acme"),
        ("it goes on", postgresql(json!({"status": {"phase": "Up"}})), "ask"),
    ] {
        let lost = Observed { subject: app(json!({})), database, files: known(), ..Observed::default() };
        let lost = Observed { volume_of_dumps: then.volume_of_dumps.clone(), ..lost };
        let found = short_of(&decide(ME, &of(spec.clone()), &asked.status, &lost, now())).0;
        assert!(found.starts_with(&format!("Running RestoreRunning {expected}")), "{what}: {found}");
    }
    let files = decide(ME, &of(spec.clone()), &asked.status, &then, now());
    assert!(short_of(&files).0.starts_with("Running RestoreRunning job"), "{:?}", short_of(&files));
    assert!(files.status.database.as_ref().unwrap().completed_at.is_some());
    then.files.job = job(Some(false), "no file was moved: no room");
    let failed = decide(ME, &of(spec.clone()), &files.status, &then, now());
    expect(
        "the files fail",
        &failed,
        "Failed RestoreUnsuccessful",
        "the database is restored from 20260131T030000Z-x7k2p already",
    );

    for status in [json!({"phase": "Running"}), json!(null)] {
        let source = backup(json!({"status": status}));
        let found = last(&spec, &ClientAppRestoreStatus::default(), &observed(source));
        expect("not complete", &found, "Pending RestorePending", "ClientAppBackup b is not complete yet");
    }
    for (what, source, more, words) in [
        ("no such", None, json!({}), "ClientAppBackup b does not exist"),
        ("it has failed", backup(json!({"status": {"phase": "Failed"}})), json!({}), "has failed: restore another"),
        (
            "it goes",
            backup(json!({"metadata": {"deletionTimestamp": "2026-01-31T00:00:00Z"}})),
            json!({}),
            "ClientAppBackup b is being deleted",
        ),
        ("another's", backup(json!({"spec": {"of": {"name": "other"}}})), json!({}), "is of ClientApp other"),
        ("no such part", backup(json!({"status": {"files": null}})), json!({"parts": ["Files"]}), "has no part Files"),
        ("no name", backup(json!({"status": {"database": {"dump": null}}})), json!({}), "does not say which dump"),
    ] {
        let spec = merged(spec.clone(), more);
        let found = last(&spec, &ClientAppRestoreStatus::default(), &observed(source));
        expect(what, &found, "Failed RestoreUnsuccessful", words);
    }
}

#[test]
fn a_cluster_is_backed_up_and_restored() {
    let spec = json!({"of": {"name": "acme"}, "database": {"from": "first"}});
    let with = |seen, first| Observed {
        subject: app(json!({})),
        database: Database::Percona { seen, first },
        ..Observed::default()
    };
    let backup = |state: &str| -> Option<Box<PerconaPGBackup>> {
        Some(of(json!({"metadata": {"name": "b"}, "spec": {"pgCluster": "acme-pg"}, "status": {"state": state}})))
    };
    let begun = last(&spec, &ClientAppRestoreStatus::default(), &with(seen(None, &[]), None));
    expect("first", &begun, "Running RestoreRunning back up acme-pg-5f0c2c0e8a-before", "");
    let recorded = begun.status;
    let restore = "Running RestoreRunning restore acme-pg-5f0c2c0e8a [\"--type=immediate\", \"--set=20260130F\"]";
    for (what, observed, expected, words) in [
        ("it backs up", with(seen(None, &[]), backup("Running")), "Running RestoreRunning", "backs up the database"),
        ("no backup", with(seen(None, &[]), backup("Failed")), "Failed RestoreUnsuccessful", "has failed"),
        ("it is backed up", with(seen(None, &[]), backup("Succeeded")), restore, ""),
        (
            "it restores",
            with(seen(Some("Running"), &[]), backup("Succeeded")),
            "Running RestoreRunning",
            "restores the database",
        ),
        (
            "it fails",
            with(seen(Some("Failed"), &[]), backup("Succeeded")),
            "Failed RestoreUnsuccessful",
            "restore another backup with spec.backupFirst false",
        ),
        (
            "and what it has restored",
            with(seen(Some("Succeeded"), &[]), backup("Succeeded")),
            "Running RestoreRunning back up acme-pg-5f0c2c0e8a-after",
            "backs up the database",
        ),
        (
            "it is done",
            with(seen(Some("Succeeded"), &["acme-pg-5f0c2c0e8a-after"]), backup("Succeeded")),
            "Completed RestoreCompleted",
            "the former state is in PerconaPGBackup acme-pg-5f0c2c0e8a-before",
        ),
        ("it is gone", with(None, None), "Failed RestoreUnsuccessful", "the database is gone"),
    ] {
        expect(what, &last(&spec, &recorded, &observed), expected, words);
    }
    let unsaved = merged(spec, json!({"backupFirst": false}));
    let at_once = last(&unsaved, &ClientAppRestoreStatus::default(), &with(seen(None, &[]), None));
    expect("unsaved", &at_once, restore, "");
    let newest = json!({"of": {"name": "acme"}, "database": {}});
    let refused = last(&newest, &ClientAppRestoreStatus::default(), &with(seen(None, &[]), None));
    expect("the newest state", &refused, "Failed RestoreUnsuccessful", "the newest state is the current one");
}

#[test]
fn which_state_of_a_database_is_restored() {
    for (database, from, expected) in [
        (json!({"from": "acme-pg-1"}), "acme-pg-1", "from acme-pg-1"),
        (json!({}), "latest", "from latest"),
        (json!({"time": "2026-01-31T12:00:00Z"}), "latest", "as of 2026-01-31T12:00:00Z"),
        // Of a ClientAppBackup.
        (Value::Null, "acme-pg-1", "from acme-pg-1"),
    ] {
        let spec: ClientAppRestoreSpec = of(json!({"of": {"name": "acme"}, "database": database}));
        assert_eq!(state_of(&spec, from), expected);
    }
}

#[test]
fn one_that_has_begun_keeps_its_time() {
    let observed = Observed { subject: app(json!({})), database: postgresql(json!({})), ..Observed::default() };
    let first = last(&of_database(), &ClientAppRestoreStatus::default(), &observed).status;
    let later = decide(ME, &of(of_database()), &first, &observed, now() + SignedDuration::from_mins(1));
    assert_eq!(later.status.started_at, first.started_at);
}

/// Asks once, whatever happens to the answer.
#[test]
fn a_restore_that_is_over_is_not_repeated() {
    let recorded = |more: Value| -> ClientAppRestoreStatus {
        let made = json!({"kind": "Postgresql", "name": ME.uid, "from": DUMP, "requestedAt": "2026-01-31T03:00:00Z"});
        of(json!({"startedAt": "2026-01-31T02:59:00Z", "database": merged(made, more)}))
    };
    let other =
        |ended: Value| json!({"restore": {"request": "other", "job": "j", "state": "Succeeded", "completedAt": ended}});
    let ours = json!({"restored": {"dump": DUMP, "request": ME.uid}});
    for (what, status, expected) in [
        ("another came later", other(json!("2026-01-31T03:30:00Z")), "Failed RestoreUnsuccessful"),
        ("another runs", other(json!(null)), "Failed RestoreUnsuccessful"),
        ("it was done before", merged(other(json!("2026-01-31T03:30:00Z")), ours), "Completed RestoreCompleted"),
    ] {
        let observed = Observed {
            subject: app(json!({})),
            database: postgresql(json!({"status": status})),
            volume_of_dumps: Some("dumps-uid".to_owned()),
            ..Observed::default()
        };
        expect(what, &last(&of_database(), &recorded(json!({})), &observed), expected, "");
    }
    // An operator that was killed before it asked asks now.
    let database = postgresql(json!({"status": other(json!("2026-01-31T02:00:00Z"))}));
    let volume_of_dumps = Some("dumps-uid".to_owned());
    let observed = Observed { subject: app(json!({})), database, volume_of_dumps, ..Observed::default() };
    let (again, _) = short_of(&last(&of_database(), &recorded(json!({})), &observed));
    assert!(again.starts_with("Running RestoreRunning ask acme-pg"), "{again}");

    let gone = json!({"kind": "PerconaPGRestore", "name": "acme-pg-5f0c2c0e8a", "from": "first"});
    let observed = Observed {
        subject: app(json!({})),
        database: Database::Percona { seen: seen(None, &[]), first: None },
        ..Observed::default()
    };
    let spec = json!({"of": {"name": "acme"}, "database": {"from": "first"}, "backupFirst": false});
    expect("deleted", &last(&spec, &recorded(gone), &observed), "Failed RestoreUnsuccessful", "was deleted before");
}

/// Without its database, an app cannot be stopped by helm.
#[test]
fn a_lost_database_comes_back_before_the_files() {
    let spec = json!({"of": {"name": "acme"}, "database": {"from": DUMP}, "files": {"from": ARCHIVE}});
    let with = |phase: &str| Observed {
        subject: app(json!({})),
        database: postgresql(json!({"status": {"phase": phase}})),
        volume_of_dumps: Some("dumps-uid".to_owned()),
        files: Files { user: Some("acme-0".to_owned()), ..known() },
        ..Observed::default()
    };
    let (lost, _) = short_of(&last(&spec, &ClientAppRestoreStatus::default(), &with("Failed")));
    assert!(lost.starts_with("Running RestoreRunning ask acme-pg"), "{lost}");
    let (serves, _) = short_of(&last(&spec, &ClientAppRestoreStatus::default(), &with("Up")));
    assert_eq!(serves, "Running RestoreRunning stop acme");
}

#[test]
fn dumps_whose_volume_is_gone_come_from_the_store() {
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    let more =
        json!({"spec": {"backup": {"onDelete": true, "store": store}}, "status": {"backup": {"volume": "before"}}});
    let asks = |volume: Option<&str>| {
        let volume_of_dumps = volume.map(str::to_owned);
        let database = postgresql(more.clone());
        let observed = Observed { subject: app(json!({})), database, volume_of_dumps, ..Observed::default() };
        short_of(&last(&of_database(), &ClientAppRestoreStatus::default(), &observed)).0
    };
    assert!(asks(Some("before")).ends_with("PersistentVolumeClaim acme-pg-backup"), "{}", asks(Some("before")));
    for volume in [None, Some("another")] {
        assert!(asks(volume).ends_with("http://s3/dumps/ns/acme-pg"), "{volume:?}: {}", asks(volume));
    }
}
