use serde_json::json;

use super::*;
use crate::{
    crd::Reason,
    platform::key::Key,
    postgresql::{
        decide::{
            PostgresqlPlan, PostgresqlStep, Rollout, decide,
            tests::{acme, settled, steps},
        },
        objects::servers::ROLLOUT_ANNOTATION,
    },
};

const BOTH: [&str; 2] = ["acme", "acme-standby"];

fn id(name: &str) -> ObjectId {
    (Kind::StatefulSet, name.to_owned())
}

fn view<'a>(observed: &'a mut ObservedPostgresql, name: &str) -> &'a mut ObjectView {
    observed.objects.get_mut(&id(name)).unwrap()
}

fn its<'a>(observed: &'a mut ObservedPostgresql, name: &str) -> &'a mut SetView {
    match &mut view(observed, name).detail {
        Detail::StatefulSet(set) => set,
        other => panic!("{other:?}"),
    }
}

/// Another version of the operator wants other pods.
fn outdated(observed: &mut ObservedPostgresql, names: &[&str]) {
    for name in names {
        view(observed, name).digest = Some("former".to_owned());
    }
}

/// Both StatefulSets are outdated, and were applied for something else.
fn requested(observed: &mut ObservedPostgresql, change: fn(&mut UserRequest)) {
    outdated(observed, &BOTH);
    for name in BOTH {
        change(&mut its(observed, name).requested);
    }
}

/// It was applied in its turn. `is_rolled`: all pods are those of the new template.
fn applied(observed: &mut ObservedPostgresql, name: &str, is_rolled: bool) {
    let set = its(observed, name);
    (set.in_rollout, set.is_rolled) = (true, is_rolled);
}

fn down(observed: &mut ObservedPostgresql, pod: usize) {
    observed.pods[pod].waiting = Some("CrashLoopBackOff".to_owned());
}

/// The steps; `*`: in turn.
fn shown(plan: &PostgresqlPlan) -> String {
    let mark = |step: &PostgresqlStep| match step {
        PostgresqlStep::Apply(object) if object.document["metadata"]["annotations"][ROLLOUT_ANNOTATION].is_string() => {
            "*"
        }
        _ => "",
    };
    let shown = steps(plan).into_iter().zip(&plan.steps).map(|(short, step)| format!("{short}{}", mark(step)));
    shown.collect::<Vec<_>>().join(", ").replace("apply StatefulSet ", "")
}

/// A difference from the settled state of a database with two standbys.
type Change = fn(&mut ObservedPostgresql);
/// One row: the differences of a database that has the turn; the steps, what follows for the turn, and the reason.
type Row<'a> = (&'a str, &'a [Change], &'a str, Rollout, Option<Reason>);

const ALL_OUTDATED: Change = |w| outdated(w, &BOTH);
const PRIMARY_OUTDATED: Change = |w| outdated(w, &["acme"]);
const STANDBYS_RESTART: Change = |w| applied(w, "acme-standby", false);
const STANDBYS_RESTARTED: Change = |w| applied(w, "acme-standby", true);
const PRIMARY_RESTARTS: Change = |w| applied(w, "acme", false);
const PRIMARY_RESTARTED: Change = |w| applied(w, "acme", true);
const PRIMARY_DOWN: Change = |w| down(w, 0);
const STANDBY_DOWN: Change = |w| down(w, 1);
const OTHERS_TURN: Change = |w| w.slot_holder = Some(Key::new("shop", "orders"));
const NEW_SPEC: Change = |w| requested(w, |requested| requested.generation = Some("7".to_owned()));
const NEW_PASSWORD: Change = |w| requested(w, |requested| requested.mounted[0] = Some("former".to_owned()));
const NEW_CERTIFICATE: Change = |w| requested(w, |requested| requested.mounted[1] = Some("former".to_owned()));
/// Of an earlier version of the operator.
const UNRECORDED: Change = |w| requested(w, |requested| requested.generation = None);
const PRIMARY_DELETED: Change = |w| view(w, "acme").deleting = true;
const PRIMARY_ANOTHERS: Change = |w| view(w, "acme").owner = Ownership::Other("x".to_owned());
const VOLUME_LOST: Change =
    |w| drop(w.objects.remove(&(Kind::PersistentVolumeClaim, "data-acme-0".to_owned())).unwrap());

#[test]
fn rollout_order() {
    use Rollout::{Idle, InProgress, Waiting};
    let (both, in_rollout) = ("acme, acme-standby", "acme*, acme-standby");
    let (turn, not_ready, fewer) = (Some(Reason::AwaitingTurn), Some(Reason::NotReady), Some(Reason::StandbysNotReady));
    let other_version: Change = |w| w.recorded.version = Some("16".to_owned());
    let no_standbys: Change = |w| drop(w.objects.remove(&id("acme-standby")).unwrap());
    let same_pods: Change = |w| its(w, "acme").requested.generation = Some("7".to_owned());
    let scaled: Change = |w| its(w, "acme").replicas = 2;
    let tls: Change = |w| requested(w, |requested| requested.mounted[1] = Some("c".to_owned()));
    let rows: &[Row<'_>] = &[
        ("as it should be", &[], "", Idle, None),
        // One database after the other.
        ("it is another's turn", &[ALL_OUTDATED, OTHERS_TURN], "", Waiting, turn),
        // Standbys first, then the primary.
        ("it is its turn", &[ALL_OUTDATED], "acme-standby*", Waiting, turn),
        ("the former standbys are still ready", &[PRIMARY_OUTDATED, STANDBYS_RESTART], "", Waiting, turn),
        ("one is not yet", &[PRIMARY_OUTDATED, STANDBYS_RESTARTED, |w| down(w, 2)], "", Waiting, fewer),
        ("the standbys are ready", &[PRIMARY_OUTDATED, STANDBYS_RESTARTED], in_rollout, InProgress, None),
        ("there are none yet", &[PRIMARY_OUTDATED, no_standbys], in_rollout, InProgress, None),
        ("the former primary is still ready", &[PRIMARY_RESTARTS], "", InProgress, None),
        ("the primary does not come back", &[PRIMARY_RESTARTS, PRIMARY_DOWN], "", InProgress, not_ready),
        ("it is back", &[PRIMARY_RESTARTED], "acme", Idle, None),
        ("a user corrects it", &[NEW_SPEC, PRIMARY_RESTARTS, PRIMARY_DOWN], in_rollout, InProgress, not_ready),
        // What is down needs no turn, and does not keep it.
        ("the primary was down before", &[ALL_OUTDATED, PRIMARY_DOWN, OTHERS_TURN], both, Idle, not_ready),
        ("a standby was", &[ALL_OUTDATED, STANDBY_DOWN, OTHERS_TURN], "acme-standby", Waiting, fewer),
        ("a standby was, and it is its turn", &[ALL_OUTDATED, STANDBY_DOWN], in_rollout, InProgress, fewer),
        ("a standby was, and still is", &[PRIMARY_RESTARTED, STANDBY_DOWN], "acme", Idle, fewer),
        ("the volume is lost", &[ALL_OUTDATED, VOLUME_LOST], "", Idle, Some(Reason::VolumeLost)),
        ("another version comes first", &[ALL_OUTDATED, other_version], "", Idle, Some(Reason::VersionMismatch)),
        ("the primary's is replaced", &[PRIMARY_OUTDATED, PRIMARY_DELETED], "", Idle, Some(Reason::Replacing)),
        ("the primary's is another's", &[PRIMARY_OUTDATED, PRIMARY_ANOTHERS], "", Idle, Some(Reason::NotOurs)),
        // What users ask for comes at once, and in no order.
        ("another spec", &[NEW_SPEC, OTHERS_TURN], both, Idle, None),
        ("another password of the standbys", &[NEW_PASSWORD, OTHERS_TURN], both, Idle, None),
        ("another certificate", &[NEW_CERTIFICATE, OTHERS_TURN], both, Idle, None),
        ("another, while they restart", &[NEW_CERTIFICATE, STANDBYS_RESTART], "acme, acme-standby*", InProgress, None),
        (
            "another spec, of which the standbys have been told",
            &[PRIMARY_OUTDATED, same_pods, STANDBY_DOWN, OTHERS_TURN],
            "acme",
            Idle,
            fewer,
        ),
        ("another spec with the same pods", &[same_pods], "acme", Idle, None),
        ("a user has scaled the primary", &[PRIMARY_OUTDATED, scaled, OTHERS_TURN], "acme", Idle, None),
        ("nothing is recorded", &[UNRECORDED, OTHERS_TURN], "", Waiting, turn),
        ("nothing is recorded, in its turn", &[UNRECORDED], "acme-standby*", Waiting, turn),
        ("nothing but another certificate", &[UNRECORDED, tls, OTHERS_TURN], both, Idle, None),
    ];
    let desired = acme(json!({"replicas": 3}));
    for (what, changes, expected, turn, reason) in rows {
        let mut observed = ObservedPostgresql { slot_holder: Some(desired.key.clone()), ..settled(&desired) };
        changes.iter().for_each(|change| change(&mut observed));
        let plan = decide(&desired, &observed);
        let found = (shown(&plan), plan.rollout, plan.hold.map(|hold| hold.reason));
        assert_eq!(found, ((*expected).to_owned(), *turn, *reason), "{what}");
    }
}

#[test]
fn the_message_names_the_slot_holder() {
    let desired = acme(json!({}));
    let mut observed = settled(&desired);
    outdated(&mut observed, &["acme"]);
    OTHERS_TURN(&mut observed);
    let message = decide(&desired, &observed).hold.unwrap().message;
    assert!(
        message.ends_with("one database after the other; now it is the turn of Postgresql shop/orders"),
        "{message}"
    );
}

#[test]
fn an_unfinished_rollout_keeps_the_slot() {
    let no_pods: Change = |w| w.pods.clear();
    let not_rolled: Change = |w| its(w, "acme").is_rolled = false;
    let other_volume: Change = |w| w.recorded.volume.as_mut().unwrap().uid = "former".to_owned();
    let rows: &[(&str, &[Change], bool)] = &[
        ("as it should be", &[], false),
        ("the standbys restart", &[STANDBYS_RESTART], true),
        ("the primary restarts", &[PRIMARY_RESTARTS], true),
        ("it is back", &[PRIMARY_RESTARTED], false),
        ("it is not", &[PRIMARY_RESTARTED, PRIMARY_DOWN], true),
        ("it has no pod", &[PRIMARY_RESTARTED, no_pods], true),
        ("nor had it before", &[no_pods, not_rolled], false),
        ("its volume is lost", &[PRIMARY_RESTARTS, VOLUME_LOST], false),
        ("it has another volume", &[PRIMARY_RESTARTS, other_volume], false),
        ("it is an earlier one's", &[PRIMARY_RESTARTS, PRIMARY_ANOTHERS], false),
    ];
    let desired = acme(json!({"replicas": 3}));
    for (what, changes, expected) in rows {
        let mut observed = settled(&desired);
        changes.iter().for_each(|change| change(&mut observed));
        assert_eq!(is_restarting(&observed.recorded, &observed.objects, &observed.pods), *expected, "{what}");
    }
}
