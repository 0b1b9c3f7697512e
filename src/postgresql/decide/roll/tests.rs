use serde_json::json;

use super::*;
use crate::{
    crd::Reason,
    platform::key::Key,
    postgresql::{
        build::servers::TURN_ANNOTATION,
        decide::{
            Plan, Step, Turn, decide,
            tests::{of, settled, steps},
        },
    },
};

const BOTH: [&str; 2] = ["acme", "acme-standby"];

fn id(name: &str) -> Id {
    (Kind::StatefulSet, name.to_owned())
}

fn view<'a>(observed: &'a mut Observed, name: &str) -> &'a mut ObjectView {
    observed.objects.get_mut(&id(name)).unwrap()
}

fn its<'a>(observed: &'a mut Observed, name: &str) -> &'a mut SetView {
    match &mut view(observed, name).detail {
        Detail::StatefulSet(set) => set,
        other => panic!("{other:?}"),
    }
}

/// Another version of the operator wants other pods.
fn outdated(observed: &mut Observed, names: &[&str]) {
    for name in names {
        view(observed, name).digest = Some("former".to_owned());
    }
}

/// Both StatefulSets are outdated, and were applied for something else.
fn asked(observed: &mut Observed, change: fn(&mut Asked)) {
    outdated(observed, &BOTH);
    for name in BOTH {
        change(&mut its(observed, name).asked);
    }
}

/// It was applied in its turn. `is_rolled`: all pods are those of the new template.
fn applied(observed: &mut Observed, name: &str, is_rolled: bool) {
    let set = its(observed, name);
    (set.in_turn, set.is_rolled) = (true, is_rolled);
}

fn down(observed: &mut Observed, pod: usize) {
    observed.pods[pod].waiting = Some("CrashLoopBackOff".to_owned());
}

fn others_turn(observed: &mut Observed) {
    observed.turn_of = Some(Key::new("shop", "orders"));
}

fn volume_lost(observed: &mut Observed) {
    observed.objects.remove(&(Kind::PersistentVolumeClaim, "data-acme-0".to_owned())).unwrap();
}

/// The steps; `*`: in turn.
fn shown(plan: &Plan) -> String {
    let mark = |step: &Step| match step {
        Step::Apply(object) if object.document["metadata"]["annotations"][TURN_ANNOTATION].is_string() => "*",
        _ => "",
    };
    let shown = steps(plan).into_iter().zip(&plan.steps).map(|(step, of)| format!("{step}{}", mark(of)));
    shown.collect::<Vec<_>>().join(", ").replace("apply StatefulSet ", "")
}

/// One row: what differs from the settled state of a database with two standbys, which has the turn; the steps, what follows
/// for the turn, and the reason.
type Row<'a> = (&'a str, fn(&mut Observed), &'a str, Turn, Option<Reason>);

#[test]
fn when_servers_restart() {
    let (both, turn) = ("acme, acme-standby", Some(Reason::AwaitingTurn));
    let rows: &[Row<'_>] = &[
        ("as it should be", |_| {}, "", Turn::Over, None),
        // One database after the other.
        (
            "it is another's turn",
            |w| {
                outdated(w, &BOTH);
                others_turn(w);
            },
            "",
            Turn::Awaited,
            turn,
        ),
        // Standbys first, then the primary.
        ("it is its turn", |w| outdated(w, &BOTH), "acme-standby*", Turn::Awaited, turn),
        (
            "the former standbys are still ready",
            |w| {
                outdated(w, &["acme"]);
                applied(w, "acme-standby", false);
            },
            "",
            Turn::Awaited,
            turn,
        ),
        (
            "a standby is not ready again",
            |w| {
                outdated(w, &["acme"]);
                applied(w, "acme-standby", true);
                down(w, 2);
            },
            "",
            Turn::Awaited,
            Some(Reason::StandbysNotReady),
        ),
        (
            "the standbys are ready",
            |w| {
                outdated(w, &["acme"]);
                applied(w, "acme-standby", true);
            },
            "acme*, acme-standby",
            Turn::Lasts,
            None,
        ),
        (
            "there are none yet",
            |w| {
                outdated(w, &["acme"]);
                w.objects.remove(&id("acme-standby")).unwrap();
            },
            "acme*, acme-standby",
            Turn::Lasts,
            None,
        ),
        ("the former primary is still ready", |w| applied(w, "acme", false), "", Turn::Lasts, None),
        (
            "the primary does not come back",
            |w| {
                applied(w, "acme", false);
                down(w, 0);
            },
            "",
            Turn::Lasts,
            Some(Reason::NotReady),
        ),
        ("it is back", |w| applied(w, "acme", true), "acme", Turn::Over, None),
        (
            "a user corrects what does not come back",
            |w| {
                asked(w, |asked| asked.generation = Some("7".to_owned()));
                applied(w, "acme", false);
                down(w, 0);
            },
            "acme*, acme-standby",
            Turn::Lasts,
            Some(Reason::NotReady),
        ),
        // What is down needs no turn, and does not keep it.
        (
            "the primary was down before",
            |w| {
                outdated(w, &BOTH);
                down(w, 0);
                others_turn(w);
            },
            both,
            Turn::Over,
            Some(Reason::NotReady),
        ),
        (
            "the standbys were down before, and it is another's turn",
            |w| {
                outdated(w, &BOTH);
                down(w, 1);
                others_turn(w);
            },
            "acme-standby",
            Turn::Awaited,
            Some(Reason::StandbysNotReady),
        ),
        (
            "the standbys were down before, and it is its turn",
            |w| {
                outdated(w, &BOTH);
                down(w, 1);
            },
            "acme*, acme-standby",
            Turn::Lasts,
            Some(Reason::StandbysNotReady),
        ),
        (
            "the standbys were down before, and still are",
            |w| {
                applied(w, "acme", true);
                down(w, 1);
            },
            "acme",
            Turn::Over,
            Some(Reason::StandbysNotReady),
        ),
        (
            "the volume is lost",
            |w| {
                outdated(w, &BOTH);
                volume_lost(w);
            },
            "",
            Turn::Over,
            Some(Reason::VolumeLost),
        ),
        (
            "another version of PostgreSQL comes first",
            |w| {
                outdated(w, &BOTH);
                w.recorded.version = Some("16".to_owned());
            },
            "",
            Turn::Over,
            Some(Reason::VersionMismatch),
        ),
        (
            "the primary's is being replaced",
            |w| {
                outdated(w, &["acme"]);
                view(w, "acme").deleting = true;
            },
            "",
            Turn::Over,
            Some(Reason::Replacing),
        ),
        (
            "the primary's is another owner's",
            |w| {
                outdated(w, &["acme"]);
                view(w, "acme").owner = Owner::Other("x".to_owned());
            },
            "",
            Turn::Over,
            Some(Reason::NotOurs),
        ),
        // What users ask for comes at once, and in no order.
        (
            "another spec",
            |w| {
                asked(w, |asked| asked.generation = Some("7".to_owned()));
                others_turn(w);
            },
            both,
            Turn::Over,
            None,
        ),
        (
            "another password of the standbys",
            |w| {
                asked(w, |asked| asked.mounted[0] = Some("former".to_owned()));
                others_turn(w);
            },
            both,
            Turn::Over,
            None,
        ),
        (
            "another certificate",
            |w| {
                asked(w, |asked| asked.mounted[1] = Some("former".to_owned()));
                others_turn(w);
            },
            both,
            Turn::Over,
            None,
        ),
        (
            "another certificate, while the standbys restart",
            |w| {
                asked(w, |asked| asked.mounted[1] = Some("former".to_owned()));
                applied(w, "acme-standby", false);
            },
            "acme, acme-standby*",
            Turn::Lasts,
            None,
        ),
        (
            "another spec, of which the standbys have been told",
            |w| {
                outdated(w, &["acme"]);
                its(w, "acme").asked.generation = Some("7".to_owned());
                down(w, 1);
                others_turn(w);
            },
            "acme",
            Turn::Over,
            Some(Reason::StandbysNotReady),
        ),
        (
            "another spec with the same pods",
            |w| its(w, "acme").asked.generation = Some("7".to_owned()),
            "acme",
            Turn::Over,
            None,
        ),
        (
            "a user has scaled the primary",
            |w| {
                outdated(w, &["acme"]);
                its(w, "acme").replicas = 2;
                others_turn(w);
            },
            "acme",
            Turn::Over,
            None,
        ),
        // Of an earlier version of the operator.
        (
            "nothing is recorded",
            |w| {
                asked(w, |asked| asked.generation = None);
                others_turn(w);
            },
            "",
            Turn::Awaited,
            turn,
        ),
        (
            "nothing is recorded, in its turn",
            |w| asked(w, |asked| asked.generation = None),
            "acme-standby*",
            Turn::Awaited,
            turn,
        ),
        (
            "nothing but another certificate",
            |w| {
                asked(w, |asked| {
                    *asked = Asked { generation: None, mounted: [Some("r".to_owned()), Some("c".to_owned())] }
                });
                others_turn(w);
            },
            both,
            Turn::Over,
            None,
        ),
    ];
    let desired = of(json!({"replicas": 3}));
    for (what, change, expected, turn, reason) in rows {
        let mut observed = Observed { turn_of: Some(desired.key.clone()), ..settled(&desired) };
        change(&mut observed);
        let plan = decide(&desired, &observed);
        let found = (shown(&plan), plan.turn, plan.hold.map(|hold| hold.reason));
        assert_eq!(found, ((*expected).to_owned(), *turn, *reason), "{what}");
    }
}

#[test]
fn it_is_said_whose_turn_it_is() {
    let desired = of(json!({}));
    let mut observed = settled(&desired);
    outdated(&mut observed, &["acme"]);
    others_turn(&mut observed);
    let message = decide(&desired, &observed).hold.unwrap().message;
    assert!(
        message.ends_with("one database after the other; now it is the turn of Postgresql shop/orders"),
        "{message}"
    );
}

#[test]
fn what_keeps_the_turn() {
    type Change = fn(&mut Observed);
    let rows: &[(&str, Change, bool)] = &[
        ("as it should be", |_| {}, false),
        ("the standbys restart", |w| applied(w, "acme-standby", false), true),
        ("the primary restarts", |w| applied(w, "acme", false), true),
        ("it is back", |w| applied(w, "acme", true), false),
        (
            "it is not",
            |w| {
                applied(w, "acme", true);
                down(w, 0);
            },
            true,
        ),
        (
            "it has no pod",
            |w| {
                applied(w, "acme", true);
                w.pods.clear();
            },
            true,
        ),
        (
            "nor had it before",
            |w| {
                w.pods.clear();
                its(w, "acme").is_rolled = false;
            },
            false,
        ),
        (
            "its volume is lost",
            |w| {
                applied(w, "acme", false);
                volume_lost(w);
            },
            false,
        ),
        (
            "it has another volume",
            |w| {
                applied(w, "acme", false);
                w.recorded.volume.as_mut().unwrap().uid = "former".to_owned();
            },
            false,
        ),
        (
            "it is an earlier one's",
            |w| {
                applied(w, "acme", false);
                view(w, "acme").owner = Owner::Other("x".to_owned());
            },
            false,
        ),
    ];
    let desired = of(json!({"replicas": 3}));
    for (what, change, expected) in rows {
        let mut observed = settled(&desired);
        change(&mut observed);
        assert_eq!(is_restarting(&observed.recorded, &observed.objects, &observed.pods), *expected, "{what}");
    }
}
