mod into;

use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::{
    backup::{archive_job::Volume, observed::ArchiveJob},
    crd::ClientAppBackup,
    platform::{
        fake::{merged, of},
        job::JobProgress,
        operator_image::OperatorImage,
    },
};

const ME: Me<'_> = Me { uid: "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11", name: "back" };
const DUMP: &str = "20260131T030000Z-x7k2p";
const ARCHIVE: &str = "20260131T033000Z-20543f14";

const PENDING: &str = "Pending RestorePending";
const RUNNING: &str = "Running RestoreRunning";
const FAILED: &str = "Failed RestoreUnsuccessful";
const COMPLETED: &str = "Completed RestoreCompleted";

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

/// Returns what exists of the app with its database and the volume with its dumps.
fn observed(database: Database) -> Observed {
    let volume_of_dumps = Some("dumps-uid".to_owned());
    Observed { subject: app(json!({})), database, volume_of_dumps, ..Observed::default() }
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

/// The same of a restore that has not begun.
fn first(spec: &Value, observed: &Observed) -> Outcome {
    last(spec, &ClientAppRestoreStatus::default(), observed)
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

/// Returns a Postgresql that uploads its dumps.
fn with_store() -> Value {
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    json!({"spec": {"backup": {"onDelete": true, "store": store}}})
}

fn stopped() -> Value {
    json!({"metadata": {"annotations": {"apps.bnerd-operator.local/stopped-for": "ClientAppRestore/back"}}})
}

#[test]
fn a_dump_replaces_a_database() {
    let ask = |place: &str| format!("{RUNNING} ask acme-pg pg-uid {} for {DUMP} of {place}", ME.uid);
    let (asked, in_store) = (ask("PersistentVolumeClaim acme-pg-backup"), ask("http://s3/dumps/ns/acme-pg"));
    let request = |more: Value| merged(json!({"request": ME.uid, "job": "j"}), more);
    let with = |status: Value| postgresql(json!({"status": {"restore": request(status)}}));
    let damaged = with(json!({"state": "Failed", "message": "it is damaged"}));
    let set_aside = format!("the former one is in former.{} on its volume", ME.uid);
    let stored = postgresql(json!({"spec": with_store()["spec"], "status": {"backup": null}}));
    let no_dump = postgresql(json!({"status": {"backup": null}}));
    let other = postgresql(json!({"spec": {"restoreRequest": {"request": "other", "dump": {"claim": "c"}}}}));
    for (what, database, expected, words) in [
        ("it is asked for", postgresql(json!({})), &*asked, "is asked to restore dump"),
        ("the dump is in the store only", stored, &in_store, ""),
        ("no such dump", no_dump, FAILED, "has no dump, and no backup.store"),
        ("another's", other, RUNNING, "another restore"),
        ("it runs", with(json!({"state": "Running"})), RUNNING, "asked to restore"),
        ("it restarts", with(json!({"state": "Replacing"})), RUNNING, "restarts"),
        ("it has failed", damaged, FAILED, "it is damaged"),
        ("it is done", with(json!({"state": "Succeeded"})), COMPLETED, &set_aside),
        ("none yet", Database::Standalone(None), PENDING, "there is no database yet"),
        ("of CloudNativePG", Database::CloudNativePg(None), FAILED, "set spec.into"),
        ("no database", Database::None, FAILED, "has no database that the operator restores"),
    ] {
        expect(what, &first(&of_database(), &observed(database)), expected, words);
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
    let observed = |more: Value| Observed { subject: app(more), ..observed(postgresql(json!({}))) };
    let gone = json!({"metadata": {"deletionTimestamp": now().to_string()}});
    let backing_up = Observed { backup: Some("b".to_owned()), ..observed(json!({})) };
    for (what, observed, expected, words) in [
        ("missing", Observed::default(), FAILED, "ClientApp acme does not exist"),
        ("going", observed(gone), FAILED, "is being deleted"),
        ("suspended", observed(json!({"spec": {"suspend": true}})), PENDING, "is suspended"),
        ("a backup runs", backing_up, PENDING, "ClientAppBackup b is in progress"),
    ] {
        expect(what, &first(&of_database(), &observed), expected, words);
    }
    // Another app of the name is not the one that was to be restored.
    let recorded = of(json!({"subjectUid": "before"}));
    expect("anew", &last(&of_database(), &recorded, &observed(json!({}))), FAILED, "created anew");
}

#[test]
fn the_files_are_replaced_while_no_pod_has_them() {
    let with = |more: Value, files: Files| Observed { subject: app(more), files, ..Observed::default() };
    let used = Files { user: Some("acme-0".to_owned()), ..known() };
    let other = json!({"metadata": {"annotations": {"apps.bnerd-operator.local/stopped-for": "ClientAppBackup/b"}}});
    let manual = merged(stopped(), json!({"spec": {"approval": "Manual"}}));
    let (stop, create) = (format!("{RUNNING} stop acme"), format!("{RUNNING} job acme-files-r5f0c2c0e8a"));
    let ended = |succeeded, why: &str| with(stopped(), Files { job: job(succeeded, why), ..known() });
    let none = with(stopped(), Files { volumes: None, ..known() });
    let set_aside = format!(".clientapp-restore.former.{ARCHIVE} of each volume");
    let untouched = "no room; see `kubectl logs job/acme-files-r5f0c2c0e8a -n ns`; the files are as they were";
    let permit = "kubectl label secret s3 -n ns apps.bnerd-operator.local/restore-to=acme";
    let not_permitted = Observed { not_permitted: Some("s3".to_owned()), ..with(stopped(), known()) };
    for (what, observed, expected, words) in [
        ("first", with(json!({}), used.clone()), &*stop, "are taken away"),
        ("a backup has stopped it", with(other, known()), RUNNING, "stopped for ClientAppBackup/b"),
        ("a pod is left", with(stopped(), used.clone()), RUNNING, "pod acme-0 still has a volume"),
        ("approval", with(manual, used), RUNNING, "kubectl clientapp approve acme -n ns"),
        ("no pod is left", with(stopped(), known()), &create, "replaces the files"),
        ("no volumes", none, PENDING, "do not exist"),
        ("it runs", ended(None, ""), RUNNING, "replaces the files"),
        ("it is done", ended(Some(true), ""), COMPLETED, &set_aside),
        ("it has failed", ended(Some(false), "no file was moved: no room"), FAILED, untouched),
        ("half of the files", ended(Some(false), "cannot write"), RUNNING, "delete the Job, and another goes on"),
        ("another's archives", not_permitted, FAILED, permit),
    ] {
        expect(what, &first(&of_files(), &observed), expected, words);
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
    let with = |database| Observed { files: known(), ..observed(database) };
    let observed = |source| Observed { source, ..with(postgresql(json!({"status": {"phase": "Up"}}))) };
    let next = |recorded: &ClientAppRestoreStatus, observed: &Observed| {
        decide(ME, &of(spec.clone()), recorded, observed, now())
    };
    let begun = next(&ClientAppRestoreStatus::default(), &observed(backup(json!({}))));
    expect("both", &begun, "Running RestoreRunning stop acme", "");
    let recorded = begun.status;
    assert_eq!(recorded.database.as_ref().map(|made| made.from.as_str()), Some(DUMP));
    assert_eq!(recorded.files.as_ref().map(|made| made.archive.as_str()), Some(ARCHIVE));
    // The backup is not needed any more, and the database comes first.
    let mut then = observed(None);
    then.subject = app(stopped());
    let asked = next(&recorded, &then);
    assert!(short_of(&asked).0.starts_with("Running RestoreRunning ask acme-pg"), "{:?}", short_of(&asked));
    then.database = postgresql(
        json!({"status": {"phase": "Up", "restore": {"request": ME.uid, "job": "j", "state": "Succeeded"}}}),
    );
    // Without the annotation, helm would have to take the pods away again, and it may wait for a backup that waits for this database.
    for (what, database, expected) in [
        ("it is replaced", then.database.clone(), "stop acme"),
        ("it goes on", postgresql(json!({"status": {"phase": "Up"}})), "ask"),
    ] {
        let found = short_of(&next(&asked.status, &with(database))).0;
        assert!(found.starts_with(&format!("Running RestoreRunning {expected}")), "{what}: {found}");
    }
    let files = next(&asked.status, &then);
    assert!(short_of(&files).0.starts_with("Running RestoreRunning job"), "{:?}", short_of(&files));
    assert!(files.status.database.as_ref().unwrap().completed_at.is_some());
    then.files.job = job(Some(false), "no file was moved: no room");
    let words = format!("the database is restored from {DUMP} already");
    expect("the files fail", &next(&files.status, &then), FAILED, &words);

    for status in [json!({"phase": "Running"}), json!(null)] {
        let found = first(&spec, &observed(backup(json!({"status": status}))));
        expect("not complete", &found, PENDING, "ClientAppBackup b is not complete yet");
    }
    let going = backup(json!({"metadata": {"deletionTimestamp": "2026-01-31T00:00:00Z"}}));
    for (what, source, more, words) in [
        ("no such", None, json!({}), "ClientAppBackup b does not exist"),
        ("it has failed", backup(json!({"status": {"phase": "Failed"}})), json!({}), "has failed: restore another"),
        ("it goes", going, json!({}), "ClientAppBackup b is being deleted"),
        ("another's", backup(json!({"spec": {"of": {"name": "other"}}})), json!({}), "is of ClientApp other"),
        ("no such part", backup(json!({"status": {"files": null}})), json!({"parts": ["Files"]}), "has no part Files"),
        ("no name", backup(json!({"status": {"database": {"dump": null}}})), json!({}), "does not say which dump"),
    ] {
        expect(what, &first(&merged(spec.clone(), more), &observed(source)), FAILED, words);
    }
}

#[test]
fn a_cluster_is_backed_up_and_restored() {
    let spec = json!({"of": {"name": "acme"}, "database": {"from": "first"}});
    let with = |seen, first| observed(Database::Percona { seen, first });
    let backup = |state: &str| -> Option<Box<PerconaPGBackup>> {
        Some(of(json!({"metadata": {"name": "b"}, "spec": {"pgCluster": "acme-pg"}, "status": {"state": state}})))
    };
    let begun = first(&spec, &with(seen(None, &[]), None));
    expect("first", &begun, "Running RestoreRunning back up acme-pg-5f0c2c0e8a-before", "");
    let recorded = begun.status;
    let restore = "Running RestoreRunning restore acme-pg-5f0c2c0e8a [\"--type=immediate\", \"--set=20260130F\"]";
    let (after, made) = (format!("{RUNNING} back up acme-pg-5f0c2c0e8a-after"), &["acme-pg-5f0c2c0e8a-after"][..]);
    let former = "the former state is in PerconaPGBackup acme-pg-5f0c2c0e8a-before";
    let (fails, saved) = ("restore another backup with spec.backupFirst false", || backup("Succeeded"));
    for (what, observed, expected, words) in [
        ("it backs up", with(seen(None, &[]), backup("Running")), RUNNING, "backs up the database"),
        ("no backup", with(seen(None, &[]), backup("Failed")), FAILED, "has failed"),
        ("it is backed up", with(seen(None, &[]), saved()), restore, ""),
        ("it restores", with(seen(Some("Running"), &[]), saved()), RUNNING, "restores the database"),
        ("it fails", with(seen(Some("Failed"), &[]), saved()), FAILED, fails),
        ("and what it has restored", with(seen(Some("Succeeded"), &[]), saved()), &after, "backs up the database"),
        ("it is done", with(seen(Some("Succeeded"), made), saved()), COMPLETED, former),
        ("it is gone", with(None, None), FAILED, "the database is gone"),
    ] {
        expect(what, &last(&spec, &recorded, &observed), expected, words);
    }
    let unsaved = merged(spec, json!({"backupFirst": false}));
    let at_once = first(&unsaved, &with(seen(None, &[]), None));
    expect("unsaved", &at_once, restore, "");
    let newest = json!({"of": {"name": "acme"}, "database": {}});
    let refused = first(&newest, &with(seen(None, &[]), None));
    expect("the newest state", &refused, FAILED, "the newest state is the current one");
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
    let observed = observed(postgresql(json!({})));
    let begun = first(&of_database(), &observed).status;
    let later = decide(ME, &of(of_database()), &begun, &observed, now() + SignedDuration::from_mins(1));
    assert_eq!(later.status.started_at, begun.started_at);
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
        ("another came later", other(json!("2026-01-31T03:30:00Z")), FAILED),
        ("another runs", other(json!(null)), FAILED),
        ("it was done before", merged(other(json!("2026-01-31T03:30:00Z")), ours), COMPLETED),
    ] {
        let observed = observed(postgresql(json!({"status": status})));
        expect(what, &last(&of_database(), &recorded(json!({})), &observed), expected, "");
    }
    // An operator that was killed before it asked asks now.
    let before = observed(postgresql(json!({"status": other(json!("2026-01-31T02:00:00Z"))})));
    let (again, _) = short_of(&last(&of_database(), &recorded(json!({})), &before));
    assert!(again.starts_with("Running RestoreRunning ask acme-pg"), "{again}");

    let gone = json!({"kind": "PerconaPGRestore", "name": "acme-pg-5f0c2c0e8a", "from": "first"});
    let observed = observed(Database::Percona { seen: seen(None, &[]), first: None });
    let spec = json!({"of": {"name": "acme"}, "database": {"from": "first"}, "backupFirst": false});
    expect("deleted", &last(&spec, &recorded(gone), &observed), FAILED, "was deleted before");
}

/// Without its database, an app cannot be stopped by helm.
#[test]
fn a_lost_database_comes_back_before_the_files() {
    let spec = json!({"of": {"name": "acme"}, "database": {"from": DUMP}, "files": {"from": ARCHIVE}});
    let files = Files { user: Some("acme-0".to_owned()), ..known() };
    let with =
        |phase: &str| Observed { files: files.clone(), ..observed(postgresql(json!({"status": {"phase": phase}}))) };
    let (lost, _) = short_of(&first(&spec, &with("Failed")));
    assert!(lost.starts_with("Running RestoreRunning ask acme-pg"), "{lost}");
    let (serves, _) = short_of(&first(&spec, &with("Up")));
    assert_eq!(serves, "Running RestoreRunning stop acme");
}

#[test]
fn dumps_whose_volume_is_gone_come_from_the_store() {
    let database = postgresql(merged(with_store(), json!({"status": {"backup": {"volume": "before"}}})));
    let asks = |volume: Option<&str>| {
        let observed = Observed { volume_of_dumps: volume.map(str::to_owned), ..observed(database.clone()) };
        short_of(&first(&of_database(), &observed)).0
    };
    assert!(asks(Some("before")).ends_with("PersistentVolumeClaim acme-pg-backup"), "{}", asks(Some("before")));
    for volume in [None, Some("another")] {
        assert!(asks(volume).ends_with("http://s3/dumps/ns/acme-pg"), "{volume:?}: {}", asks(volume));
    }
}
