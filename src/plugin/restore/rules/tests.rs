use serde::de::DeserializeOwned;

use super::*;

fn of<K: DeserializeOwned>(metadata: &Value, spec: Value, status: Value) -> K {
    let mut object = json!({"metadata": {"name": "acme"}, "spec": spec, "status": status});
    for (field, value) in metadata.as_object().unwrap() {
        object["metadata"][field] = value.clone();
    }
    serde_json::from_value(object).unwrap()
}

const C: &str = "20260103T000000Z-c";
const B: &str = "20260102T000000Z-b";
const A: &str = "20260101T000000Z-a";

fn database(spec: Value, status: Value) -> Option<Postgresql> {
    let mut made = json!({"volume": {"name": "x", "uid": "x", "initialized": true}});
    for (field, value) in status.as_object().unwrap() {
        made[field] = value.clone();
    }
    Some(of(&json!({"uid": "old"}), spec, made))
}

fn dumps() -> Value {
    let dumps = [C, B, A].map(|name| json!({"name": name, "bytes": 1, "tables": 1}));
    json!({"dumps": dumps})
}

fn serving(keep: i32) -> Option<Postgresql> {
    database(json!({"backup": {"keep": keep, "schedule": "@daily"}}), json!({"phase": "Up", "backup": dumps()}))
}

fn begun(from: &str) -> Begun {
    Begun {
        wanted: Restore::of_claim(from, "acme-backup"),
        postgresql: "old".to_owned(),
        claims: [("data-acme-0".to_owned(), "u".to_owned())].into(),
        made: None,
    }
}

#[test]
fn whether_it_can_begin_or_go_on() {
    let app = |metadata: Value, suspend: bool, status: Value| -> ClientApp {
        of(
            &metadata,
            json!({"hostname": "a.example", "suspend": suspend, "postgres": {"provider": "standalone"}}),
            status,
        )
    };
    let plain = || app(json!({}), false, json!(null));
    let suspended = || app(json!({}), true, json!(null));
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z", "uid": "old"});
    let going: Option<Postgresql> = Some(of(&deleted, json!({}), json!({"phase": "Up"})));
    let new: Option<Postgresql> = Some(of(&json!({"uid": "new"}), json!({}), json!({"phase": "Pending"})));
    let unlisted = |dump: &str| {
        let restored = json!({"dump": dump, "claim": "acme-backup"});
        database(json!({}), json!({"phase": "Up", "restored": restored}))
    };
    let lost = || database(json!({}), json!({"phase": "Failed", "backup": dumps()}));
    let by_default = database(
        json!({}),
        json!({"phase": "Up", "backup": {"dumps":
        (1..=9).rev().map(|day| json!({"name": format!("2026010{day}T000000Z-a"), "bytes": 1, "tables": 1})).collect::<Vec<_>>()}}),
    );
    let backing_up = json!({"backup": {"kind": "Postgresql", "name": "x", "from": "1", "to": "2", "state": "Running"}});
    let restored = |uid: &str, dump: &str| {
        let mut made = database(json!({}), json!({"phase": "Up", "restored": {"dump": dump, "claim": "acme-backup"}}));
        made.as_mut().unwrap().metadata.uid = Some(uid.to_owned());
        made
    };
    let told = |from: &str| Begun { made: Some("new".to_owned()), ..begun(from) };
    let (replace, go_on, make) = (Ok(Way::Replace), Ok(Way::GoOn), Ok(Way::Make));
    type Row<'a> = (&'a str, ClientApp, Option<Postgresql>, Option<Begun>, &'a str, bool, Result<Way, &'a str>);
    let rows: Vec<Row<'_>> = vec![
        ("a dump", plain(), serving(7), None, C, false, replace),
        ("one that would go", plain(), serving(3), None, B, false, Err("3 dumps are kept")),
        ("one that would go for the last one", plain(), serving(3), None, C, true, replace),
        ("the default of keep counts", plain(), by_default, None, A, false, Err("7 dumps are kept")),
        ("another", plain(), serving(7), None, "20250101T000000Z-a", false, Err("has no dump 20250101T000000Z-a")),
        ("of now", plain(), serving(7), None, "latest", false, Err("would be one of the current content")),
        ("it is lost", plain(), lost(), None, C, false, Err("with --no-backup it is lost")),
        ("and is given up", plain(), lost(), None, "latest", true, replace),
        ("no dumps", plain(), database(json!({}), json!({"phase": "Up"})), None, "latest", true, Err("has no dump")),
        ("back to the dump that it is from", plain(), unlisted(C), None, C, true, replace),
        ("not to another", plain(), unlisted(C), None, B, true, Err("has no dump")),
        (
            "a deletion is held up",
            app(deleted.clone(), true, json!(null)),
            serving(7),
            None,
            C,
            false,
            Err("is being deleted"),
        ),
        ("a user has suspended it", suspended(), serving(7), None, C, false, Err("is suspended")),
        ("an upgrade", app(json!({}), false, backing_up), serving(7), None, C, false, Err("before an upgrade")),
        ("a user deletes it", plain(), going.clone(), None, C, false, Err("is being deleted")),
        ("there is none", plain(), None, None, C, false, Err("has no Postgresql")),
        ("none is made yet", plain(), new.clone(), None, C, false, make),
        ("cut off before it was deleted", suspended(), serving(7), Some(begun(C)), C, false, replace),
        ("while it is deleted", suspended(), going, Some(begun(C)), C, false, go_on),
        ("after that", suspended(), None, Some(begun(C)), C, false, go_on),
        ("by another dump", suspended(), None, Some(begun(C)), B, false, go_on),
        ("before it was handed over", plain(), new.clone(), Some(begun(C)), B, false, go_on),
        ("after that", plain(), new, Some(told(C)), C, false, go_on),
        ("it has come to its end", plain(), restored("new", C), Some(told(C)), C, true, Ok(Way::Done)),
        ("and was not told", plain(), restored("new", C), Some(begun(C)), C, true, Ok(Way::Done)),
        ("another database", plain(), restored("newer", C), Some(told(C)), C, true, replace),
        ("the one before is from that dump, too", plain(), restored("old", C), Some(begun(C)), C, true, replace),
    ];
    for (what, app, database, begun, from, no_backup, expected) in rows {
        let wanted = Restore::of_claim(from, "acme-backup");
        match (way(&app, database.as_ref(), begun.as_ref(), &wanted, no_backup), expected) {
            (Ok(way), Ok(expected)) => assert_eq!(way, expected, "{what}"),
            (Err(why), Err(words)) => assert!(why.contains(words), "{what}: {why}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

#[test]
fn only_what_was_put_down_is_gone_on_with() {
    let begun = begun(C);
    let with = |begun: &Begun, metadata: Value| -> ClientApp {
        let patch = begun.patch(true);
        let mut spec = patch["spec"].clone();
        spec["hostname"] = json!("a.example");
        let mut metadata = metadata;
        metadata["annotations"] = patch["metadata"]["annotations"].clone();
        of(&metadata, spec, json!(null))
    };
    assert_eq!(still_ours(&with(&begun, json!({})), &begun), Ok(()));
    let other = Begun { wanted: Restore::of_claim(B, "acme-backup"), ..begun.clone() };
    assert!(still_ours(&with(&other, json!({})), &begun).is_err());
    let deleted = json!({"deletionTimestamp": "2026-01-01T00:00:00Z"});
    assert!(still_ours(&with(&begun, deleted), &begun).is_err());

    let made = |uid: &str, from: &str| -> Postgresql {
        of(&json!({"uid": uid}), json!({"restore": {"from": from, "claim": "acme-backup"}}), json!(null))
    };
    for (uid, from, expected) in [("new", C, true), ("old", C, false), ("new", B, false)] {
        assert_eq!(is_made_for(&made(uid, from), &begun), expected, "{uid} {from}");
    }
    for (dump, claim, expected) in [(C, "acme-backup", true), (B, "acme-backup", false), (C, "another", false)] {
        let made = database(json!({}), json!({"restored": {"dump": dump, "claim": claim}})).unwrap();
        assert_eq!(is_from(&made, &begun.wanted).is_ok(), expected, "{dump} {claim}");
    }
    assert!(is_from(&database(json!({}), json!({})).unwrap(), &begun.wanted).is_err());
}

#[test]
fn what_was_dumped_meanwhile_counts() {
    let with = |keep: i32, dumps: &[&str], began: &str| -> Postgresql {
        let dumps: Vec<_> = dumps.iter().map(|name| json!({"name": name, "bytes": 1, "tables": 1})).collect();
        let dump = json!({"request": "x", "job": "y", "state": "Succeeded", "startedAt": began});
        database(json!({"backup": {"keep": keep}}), json!({"backup": {"dumps": dumps}, "dump": dump})).unwrap()
    };
    let (before, after) = ("2026-01-01T12:00:00Z", "2026-01-09T00:00:00Z");
    for (what, keep, dumps, began, words) in [
        ("one more is to come", 3, &[C, B][..], before, None),
        ("which takes it away", 2, &[C, B], before, Some("2 dumps are kept")),
        ("and the one of now is not listed yet", 3, &[C, B], after, Some("3 dumps are kept")),
        ("it is gone", 7, &[C], before, Some("no longer exists")),
        ("nothing is known", 7, &[], before, None),
    ] {
        match (still_stays(&with(keep, dumps, began), &Restore::of_claim(B, "acme-backup")), words) {
            (Ok(()), None) => {}
            (Err(why), Some(words)) => assert!(why.contains(words), "{what}: {why}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

#[test]
fn a_merge_leaves_nothing_of_an_earlier_restore() {
    let store =
        json!({"endpoint": "https://s3", "bucket": "dumps", "path": "a/b", "credentialsSecret": {"name": "s3"}});
    let store = Restore::of_store(C, serde_json::from_value(store).unwrap());
    assert_eq!(in_place_of_any(&store)["claim"], Value::Null);
    assert_eq!(in_place_of_any(&store)["store"]["identitySecret"], Value::Null);
    assert!(in_place_of_any(&store)["store"].as_object().unwrap().contains_key("size"));
    assert_eq!(in_place_of_any(&Restore::of_claim(C, "c")), json!({"from": C, "claim": "c", "store": null}));
}
