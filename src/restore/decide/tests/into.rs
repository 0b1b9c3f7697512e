//! A restore into another app.

use super::*;
use crate::restore::{observed::Copy, permission::needed_by};

const OTHER: &str = "then-uid";

fn into(more: Value) -> Value {
    let into = json!({"name": "then", "hostname": "then.example.com"});
    merged(json!({"of": {"name": "acme"}, "into": into, "database": {"from": DUMP}}), more)
}

/// Returns the app that the restore has created.
fn then(more: Value) -> ClientApp {
    let meta = json!({
        "name": "then", "namespace": "ns", "uid": OTHER, "generation": 1,
        "annotations": {"apps.bnerd-operator.local/created-by-restore": ME.uid},
    });
    let spec = json!({"hostname": "then.example.com", "suspend": true, "postgres": {"provider": "standalone"}});
    of(merged(json!({"metadata": meta, "spec": spec}), more))
}

/// Returns its database.
fn then_pg(more: Value) -> Option<Box<Postgresql>> {
    let meta = json!({
        "name": "then-pg", "namespace": "ns", "uid": "then-pg-uid",
        "annotations": {"apps.bnerd-operator.local/clientapp-uid": OTHER},
    });
    let whole = json!({"metadata": meta, "spec": {"restore": {"claim": "acme-pg-backup", "from": DUMP}}});
    Some(of(merged(whole, more)))
}

fn seen_with(copy: Copy) -> Observed {
    let subject = app(json!({"spec": {"postgres": {"provider": "standalone"}}}));
    Observed { subject, copy: Some(copy), ..observed(postgresql(json!({}))) }
}

fn with_app(app: ClientApp) -> Copy {
    Copy {
        app: Some(Box::new(app)),
        administrator: Some(Some(OTHER.to_owned())),
        has_first_administrator: true,
        has_dumps: true,
        ..Copy::default()
    }
}

/// Returns a restore that has begun.
fn begun(spec: &Value) -> ClientAppRestoreStatus {
    let begun = first(spec, &seen_with(Copy::default()));
    assert!(begun.status.started_at.is_some(), "{begun:?}");
    begun.status
}

#[test]
fn what_it_is_created_from() {
    let create = |from: &str| format!("Running RestoreRunning create then then.example.com Some(0) true from {from}");
    let dump = create(&format!("{DUMP} of PersistentVolumeClaim acme-pg-backup"));
    let standalone = || seen_with(Copy::default());
    let with = |database| Observed { database, ..standalone() };
    let percona = |restored| Database::Percona { seen: seen(restored, &[]), first: None };
    let cluster = |restored| Observed { subject: app(json!({})), ..with(percona(restored)) };
    let no_app = Observed { subject: Subject::Missing, ..standalone() };
    let latest = json!({"database": {"from": "latest"}});
    let label = create(r#"{"backup":"20260130F","cluster":"acme-pg"}"#);
    let left = Copy { left: Some("PersistentVolumeClaim data-then-pg-0".to_owned()), ..Copy::default() };
    let other_app = with_app(then(
        json!({"metadata": {"annotations": {"apps.bnerd-operator.local/created-by-restore": "another"}}}),
    ));
    let host = json!({"into": {"hostname": "acme.example.com"}});
    for (what, more, observed, expected, words) in [
        ("a dump", json!({}), standalone(), &*dump, "creates ClientApp then"),
        ("no such dump", json!({"database": {"from": "20250101T000000Z-a"}}), standalone(), FAILED, "has no dump"),
        ("a backup", json!({"database": {"from": "first"}}), cluster(None), &label, "creates"),
        ("the newest state", latest, cluster(Some("Succeeded")), FAILED, "was restored before"),
        ("without a database", json!({}), with(Database::None), FAILED, "no backup to create"),
        ("none there yet", json!({}), with(Database::Standalone(None)), PENDING, "has no database yet"),
        ("the hostname of the first", host, standalone(), FAILED, "is the hostname of acme"),
        ("data of an earlier one", json!({}), seen_with(left), FAILED, "data-then-pg-0 exists already"),
        ("another's app", json!({}), seen_with(other_app), FAILED, "ClientApp then exists already"),
        ("no app to copy", json!({}), no_app, FAILED, "acme does not exist"),
    ] {
        expect(what, &first(&into(more), &observed), expected, words);
    }
    // What is copied from is on record, and so is the archive.
    let spec = into(json!({"files": {"from": ARCHIVE}}));
    let status = begun(&spec);
    let database = status.database.unwrap();
    assert_eq!(
        (&*database.name, &*database.from, &*status.files.unwrap().job),
        ("then-pg", DUMP, "then-files-r5f0c2c0e8a")
    );
}

#[test]
fn a_backup_is_awaited_and_stays_on_record() {
    let spec = json!({"of": {"name": "acme"}, "into": {"name": "then", "hostname": "then.example.com"}, "backup": "b"});
    let with = |phase: &str| {
        let made = json!({"kind": "Postgresql", "name": "acme-pg", "dump": DUMP});
        let backup = json!({
            "metadata": {"name": "b"}, "spec": {"of": {"name": "acme"}}, "status": {"phase": phase, "database": made},
        });
        let source: ClientAppBackup = of(backup);
        Observed { source: Some(Box::new(source)), ..seen_with(Copy::default()) }
    };
    let waits = first(&spec, &with("Running"));
    expect("running", &waits, PENDING, "ClientAppBackup b is not complete yet");
    expect("failed", &first(&spec, &with("Failed")), FAILED, "b has failed");
    let begun = first(&spec, &with("Completed"));
    let create = format!(
        "Running RestoreRunning create then then.example.com Some(0) true from {DUMP} of PersistentVolumeClaim acme-pg-backup"
    );
    expect("complete", &begun, &create, "creates");
    // Whatever prevents the first try, the next one makes the same.
    expect("again", &last(&spec, &begun.status, &seen_with(Copy::default())), &create, "creates");
}

#[test]
fn each_step_is_taken_once_and_only_for_what_it_has_made() {
    let spec = into(json!({}));
    let created = ClientAppRestoreStatus { into_uid: Some(OTHER.to_owned()), ..begun(&spec) };
    let resumed = |more: Value| then(merged(json!({"metadata": {"generation": 2}, "spec": {"suspend": false}}), more));
    let with_pg = |more: Value| Copy { database: then_pg(more), ..with_app(resumed(json!({}))) };
    let without = |administrator: Option<Option<String>>| Copy { administrator, ..with_app(then(json!({}))) };
    let ready = json!([{
        "type": "PostgresReady", "status": "True", "reason": "Ready", "message": "", "observedGeneration": 2,
        "lastTransitionTime": "2026-01-31T04:00:00Z",
    }]);
    let permit = format!("{RUNNING} permit PersistentVolumeClaim acme-pg-backup to then-pg-uid");
    let other_dump = json!({"spec": {"restore": {"claim": "globex-pg-backup"}}});
    let path = |path: &str| {
        let store =
            json!({"endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "path": path});
        json!({"spec": {"restore": {"claim": null, "store": store}}})
    };
    let own_secret = format!("{RUNNING} permit Secret s3 to then-pg-uid");
    let stranger = json!({"metadata": {"annotations": {"apps.bnerd-operator.local/clientapp-uid": "9"}}});
    let suspended = with_app(resumed(json!({"spec": {"suspend": true}})));
    let no_first = Copy { has_first_administrator: false, ..without(None) };
    let no_administrator = "Secret acme-admin-secret with the administrator of acme does not exist";
    let no_dumps = Copy { has_dumps: false, ..with_pg(json!({})) };
    let permitted = |more: Value| Copy { is_permitted: true, ..with_pg(more) };
    let damaged = permitted(json!({"status": {"conditions": failed_to_restore()}}));
    let needed = Copy { label_needed_by: Some("third-pg".to_owned()), ..with_pg(json!({})) };
    for (what, copy, expected, words) in [
        ("no Secret", without(None), &*format!("{RUNNING} administrator of acme to then"), "creates"),
        ("no administrator to copy", no_first, RUNNING, no_administrator),
        ("no dumps any more", no_dumps, RUNNING, "PersistentVolumeClaim acme-pg-backup does not exist"),
        ("another's Secret", without(Some(Some("9".to_owned()))), FAILED, "then-admin-secret exists already"),
        ("a user's Secret", without(Some(None)), FAILED, "then-admin-secret exists already"),
        ("its Secret", with_app(then(json!({}))), &format!("{RUNNING} resume then"), "creates"),
        ("suspended by a user", suspended, RUNNING, "ClientApp then"),
        ("its database", with_pg(json!({})), &permit, "lets Postgresql then-pg read the dumps"),
        ("permitted", permitted(json!({})), RUNNING, "ClientApp then"),
        ("the label is another's", needed, RUNNING, "is labelled for Postgresql third-pg"),
        ("another app's dump", with_pg(other_dump), RUNNING, "ClientApp then"),
        ("another namespace's dump", with_pg(path("prod/globex/acme-pg")), RUNNING, "ClientApp then"),
        ("its dump in the bucket", with_pg(path("prod/ns/acme-pg")), &own_secret, "lets"),
        ("another's database", with_pg(stranger), RUNNING, "ClientApp then"),
        ("a dump that is damaged", damaged, FAILED, "the dump is damaged. Delete ClientApp then"),
        ("it is gone", Copy::default(), FAILED, "ClientApp then was deleted meanwhile"),
    ] {
        expect(what, &last(&spec, &created, &seen_with(copy)), expected, words);
    }
    let earlier = ClientAppRestoreStatus { into_uid: Some("earlier".to_owned()), ..created.clone() };
    let another = seen_with(with_app(then(json!({}))));
    expect("it is another", &last(&spec, &earlier, &another), FAILED, "was deleted meanwhile");

    // What a user has changed meanwhile is not called restored.
    let empty = json!({"status": {"volume": {"name": "data-then-pg-0", "uid": "v", "initialized": true}}});
    let is_ready = || resumed(json!({"status": {"conditions": ready}}));
    let own =
        Copy { administrator: Some(Some("9".to_owned())), database: then_pg(empty.clone()), ..with_app(is_ready()) };
    for (what, copy) in [
        ("its database is empty", Copy { database: then_pg(empty), ..with_app(is_ready()) }),
        ("its own administrator", own),
    ] {
        expect(what, &last(&spec, &created, &seen_with(copy)), FAILED, "ClientApp then was changed meanwhile");
    }

    // Then its files follow, or it is complete.
    let restored = json!({"status": {"volume": {"name": "data-then-pg-0", "uid": "v", "initialized": true}, "restored": {"dump": DUMP, "claim": "acme-pg-backup"}}});
    let copy = Copy { database: then_pg(restored), ..with_app(resumed(json!({"status": {"conditions": ready}}))) };
    let whole: ClientAppRestoreSpec = of(spec.clone());
    let done = decide(ME, &whole, &created, &seen_with(copy), now());
    assert!(done.status.database.as_ref().unwrap().completed_at.is_some(), "{done:?}");
    let other = Subject::App(Box::new(resumed(json!({}))));
    let complete = last(&spec, &done.status, &Observed { subject: other, ..Observed::default() });
    expect("complete", &complete, COMPLETED, "set dbhost to then-pg");
    assert!(complete.ready.message.contains("copy the files of acme"), "{}", complete.ready.message);
}

#[test]
fn its_files_are_those_of_the_first() {
    let spec = into(json!({"files": {"from": ARCHIVE}}));
    let begun = begun(&spec);
    let database = begun.database.clone().map(|made| DatabaseRestore { completed_at: Some(Time(now())), ..made });
    let recorded = ClientAppRestoreStatus { database, into_uid: Some(OTHER.to_owned()), ..begun };
    let store = json!({"endpoint": "http://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    let other = then(json!({
        "metadata": {"annotations": {"apps.bnerd-operator.local/stopped-for": "ClientAppRestore/back"}},
        "spec": {"suspend": false, "persistence": {"backup": {"store": store}}},
    }));
    let observed =
        |files: Files| Observed { subject: Subject::App(Box::new(other.clone())), files, ..Observed::default() };
    let made = last(&spec, &recorded, &observed(known()));
    expect("its volumes", &made, "Running RestoreRunning job then-files-r5f0c2c0e8a", "replaces the files");
    let Some(Step::CreateJob(created)) = made.step else { panic!("{made:?}") };
    assert!(json!(created).to_string().contains(r#""value":"ns/acme.files""#), "{created:?}");
    let complete = last(&spec, &made.status, &observed(Files { job: job(Some(true), ""), ..known() }));
    let words = format!("the files of archive {ARCHIVE}, the administrator of acme, and no pods");
    expect("complete", &complete, COMPLETED, &words);
}

fn failed_to_restore() -> Value {
    json!([{
        "type": "Ready", "status": "False", "reason": "RestoreFailed", "message": "the dump is damaged",
        "lastTransitionTime": "2026-01-31T04:00:00Z",
    }])
}

#[test]
fn a_label_is_kept_while_its_database_is_not_restored() {
    let postgresql = |name: &str, initialized: bool| -> Postgresql {
        let volume = json!({"name": "data-0", "uid": "v", "initialized": initialized});
        of(json!({"metadata": {"name": name, "uid": format!("{name}-uid")}, "spec": {}, "status": {"volume": volume}}))
    };
    let mut failed = postgresql("failed-pg", false);
    failed.status.as_mut().unwrap().conditions = of(failed_to_restore());
    let all = [postgresql("done-pg", true), postgresql("later-pg", false), failed];
    for (label, expected) in [
        ("done-pg-uid", None),
        ("later-pg-uid", Some("later-pg")),
        ("failed-pg-uid", None),
        ("gone-pg-uid", None),
        // Only the operator sets the label, with a uid.
        ("later-pg", None),
    ] {
        assert_eq!(needed_by(label, &all).as_deref(), expected, "{label}");
    }
}
