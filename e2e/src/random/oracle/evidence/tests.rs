use serde_json::json;

use super::*;
use crate::random::oracle::audit::Actor;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn entry(verb: &str, resource: &str, name: &str, uid: &str, object: Value) -> Entry {
    let created = verb == "create";
    let line = (resource != "secrets").then(|| object.to_string());
    let (verb, resource, name, uid) = (verb.to_owned(), resource.to_owned(), name.to_owned(), uid.to_owned());
    Entry { at: at(0), actor: Actor::Operator, verb, resource, name, uid, created, object, line }
}

fn secret(password: &str) -> Value {
    json!({"type": "Opaque", "data": {"redis-password": BASE64_STANDARD.encode(password), "user": "YWRtaW4="}})
}

fn revision(number: &str, status: &str) -> Entry {
    let object = json!({"type": RELEASE, "metadata": {"labels": {"version": number, "status": status}}});
    entry("update", "secrets", &format!("sh.helm.release.v1.acme.v{number}"), "r", object)
}

fn ready(revision: i64) -> Entry {
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    let object = json!({"status": {"conditions": conditions, "release": {"revision": revision}}});
    entry("patch", "clientapps/status", "acme", "a", object)
}

/// A case in which everything went well.
fn case() -> Evidence {
    let app = json!({
        "metadata": {"name": "acme", "generation": 1},
        "status": {"observedGeneration": 1, "release": {"revision": 1}},
    });
    let uids = ["1", "2", "3", "a"].map(str::to_owned).into();
    let state = State {
        revisions: [("acme".to_owned(), 1)].into(),
        releases: [("acme".to_owned(), "deployed".to_owned())].into(),
        apps: vec![app],
        uids,
        ..State::default()
    };
    let trace = vec![
        entry("create", "secrets", "acme-redis-secret", "1", secret("a long password")),
        entry("create", "persistentvolumeclaims", "data", "2", json!({})),
        entry("create", "pods", "acme-x", "3", json!({})),
        revision("1", "deployed"),
        ready(1),
    ];
    Evidence {
        state,
        trace,
        log: "a log".to_owned(),
        arguments: vec!["upgrade acme".to_owned()],
        ..Evidence::default()
    }
}

#[test]
fn every_oracle_can_fail() {
    use Oracle::{EndState, Objects, OneWriter, Orphans, Secrecy, Truth};
    type Change = fn(&mut Evidence);
    type Case<'a> = (&'a str, Change, &'a [(Oracle, &'a str)]);
    let table: Vec<Case<'_>> = vec![
        ("nothing", |_| {}, &[]),
        ("one revision is wasted", |case| revisions(case, 2), &[]),
        (
            "two are",
            |case| revisions(case, 3),
            &[(EndState, r#"the releases are at revisions {"acme": 3}, and not {"acme": 1}"#)],
        ),
        (
            "the release failed",
            |case| _ = case.state.releases.insert("acme".to_owned(), "failed".to_owned()),
            &[(EndState, r#"the releases are {"acme": "failed"}, and not {"acme": "deployed"}"#)],
        ),
        (
            "a volume is made again",
            |case| {
                case.trace.push(entry("delete", "persistentvolumeclaims", "data", "2", Value::Null));
                case.trace.push(entry("create", "persistentvolumeclaims", "data", "9", json!({})));
                case.state.uids = ["1", "3", "9", "a"].map(str::to_owned).into();
            },
            &[
                (
                    Objects,
                    "persistentvolumeclaims data, which holds or opens data, was made 2 times, and not 1 (deleted by the operator, made by the operator)",
                ),
                (
                    Objects,
                    "persistentvolumeclaims data, which holds or opens data, was deleted 1 times, and not 0 (deleted by the operator, made by the operator)",
                ),
            ],
        ),
        (
            "an object of its own is made and deleted, and asked twice to go",
            |case| {
                for verb in ["create", "delete", "delete"] {
                    case.trace.push(entry(verb, "services", "s", "4", json!({})));
                }
            },
            &[
                (Objects, "services s was made 1 times, and not 0 (deleted by the operator, made by the operator)"),
                (Objects, "services s was deleted 1 times, and not 0 (deleted by the operator, made by the operator)"),
            ],
        ),
        (
            "a client is killed before its creation is logged",
            |case| {
                case.trace.remove(1);
                case.trace.push(entry("patch", "persistentvolumeclaims", "data", "2", json!({})));
            },
            &[],
        ),
        (
            "the leader gives up its lead before its creation is logged, and nothing is written after that",
            |case| {
                case.trace.remove(1);
                let [resource, name, uid] = ["persistentvolumeclaims", "data", "2"].map(str::to_owned);
                case.state.present.push(Present { resource, name, uid });
            },
            &[],
        ),
        (
            "an object is there that the log does not have",
            |case| {
                let [resource, name, uid] = ["services", "s", "4"].map(str::to_owned);
                case.state.uids.insert(uid.clone());
                case.state.present.push(Present { resource, name, uid });
            },
            &[(Objects, "services s was made 1 times, and not 0 ()")],
        ),
        ("a pod is made again", |case| case.trace.push(entry("create", "pods", "acme-y", "5", json!({}))), &[]),
        (
            "a password changes",
            |case| case.trace.push(entry("update", "secrets", "acme-redis-secret", "1", secret("another password"))),
            &[(Objects, "Secret acme-redis-secret had 2 different values of redis-password, and not 1")],
        ),
        (
            "two helms",
            |case| case.overlaps.push("upgrade while helm process 7 is at work".to_owned()),
            &[(OneWriter, "upgrade while helm process 7 is at work")],
        ),
        (
            "a write without the Lease",
            |case| {
                case.usurped = Some((at(-10), at(1)));
                case.trace.truncate(1);
                case.trace.push(entry("create", "persistentvolumeclaims", "data", "2", json!({})));
                case.trace[0].at = at(-6);
            },
            &[(OneWriter, "the operator sent create persistentvolumeclaims data PT10S after the Lease was lost")],
        ),
        (
            "a password in the log",
            |case| case.log.push_str("it is a long password"),
            &[(Secrecy, "a password is in the operator's log")],
        ),
        (
            "a password in a command line, encoded",
            |case| case.arguments.push(format!("--set p={}", BASE64_STANDARD.encode("a long password"))),
            &[(Secrecy, "a password is in helm's command line: --set p=YSBsb25nIHBhc3N3b3Jk")],
        ),
        (
            "a password in an event",
            |case| case.trace.push(entry("patch", "events", "e", "6", json!({"note": "a long password"}))),
            &[(Secrecy, "a password is in events e, written by the operator")],
        ),
        (
            "Ready before there was anything",
            |case| case.trace.swap(3, 4),
            &[(Truth, "acme was told Ready at revision Some(1), which was not deployed")],
        ),
        (
            "Ready with the pods of the former app",
            |case| {
                let deployment = |verb, uid, available: i64| {
                    let metadata = json!({"annotations": {"meta.helm.sh/release-name": "acme"}});
                    let object = json!({"metadata": metadata, "status": {"availableReplicas": available}});
                    let mut entry = entry(verb, "deployments/status", "acme", uid, object);
                    entry.at = at(match (verb, uid) {
                        ("delete", _) => -3,
                        (_, "former") => -5,
                        _ => -1,
                    });
                    entry
                };
                let (former, gone) = (deployment("patch", "former", 1), deployment("delete", "former", 1));
                case.trace.extend([former, gone, deployment("patch", "own", 0)]);
            },
            &[(Truth, "acme was told Ready, and deployments acme never was until then")],
        ),
        (
            "an old status",
            |case| case.state.apps[0]["metadata"]["generation"] = json!(2),
            &[(Truth, "the status of acme is of generation 1, and the spec of 2")],
        ),
        (
            "a status of another revision",
            |case| case.state.apps[0]["status"]["release"]["revision"] = json!(7),
            &[(Truth, "the status of acme tells revision 7, and Helm has 1")],
        ),
        (
            "a file is left",
            |case| case.leftovers.push("the file x is left".to_owned()),
            &[(Orphans, "the file x is left")],
        ),
    ];
    for (what, change, expected) in table {
        let mut changed = case();
        change(&mut changed);
        let found = judge(&case(), &changed);
        let expected: Vec<_> = expected.iter().map(|(oracle, why)| Violation::new(*oracle, *why)).collect();
        assert_eq!(found, expected, "{what}");
    }
}

/// The release is at another revision, and the status says so.
fn revisions(case: &mut Evidence, revision: i64) {
    case.state.revisions.insert("acme".to_owned(), revision);
    case.state.apps[0]["status"]["release"]["revision"] = json!(revision);
}

#[test]
fn a_case_without_secrets_proves_nothing_about_them() {
    let mut blind = case();
    blind.trace.remove(0);
    let found = judge(&blind, &blind);
    assert!(matches!(&found[..], [Violation { oracle: Oracle::Secrecy, .. }]), "{found:?}");
}

#[test]
fn a_log_with_gaps_may_lack_what_was_made_but_not_have_more() {
    let mut gaps = Evidence { has_gaps: true, ..case() };
    gaps.trace.remove(1);
    assert_eq!(judge(&case(), &gaps), []);
    for uid in ["7", "8"] {
        gaps.trace.push(entry("create", "persistentvolumeclaims", "data", uid, json!({})));
    }
    assert_eq!(judge(&case(), &gaps).len(), 2);
}

#[test]
fn a_case_that_is_cut_short_may_make_less_but_not_more() {
    let mut short = Evidence { is_cut_short: true, ..case() };
    short.trace.drain(..2);
    assert_eq!(judge(&case(), &short), []);
    for uid in ["7", "8"] {
        short.trace.push(entry("create", "persistentvolumeclaims", "data", uid, json!({})));
    }
    assert_eq!(judge(&case(), &short).len(), 2);
}

#[test]
fn after_a_request_that_was_undone_an_object_may_be_made_once_more() {
    let mut undone = case();
    undone.trace.push(entry("delete", "clientapps", "acme", "b", json!({})));
    for (uid, password, violations) in [("7", "another password", 0), ("8", "a third password", 3)] {
        for verb in ["create", "delete"] {
            undone.trace.push(entry(verb, "secrets", "acme-redis-secret", uid, secret(password)));
        }
        assert_eq!(judge(&case(), &undone).len(), violations, "{uid}");
    }
}
