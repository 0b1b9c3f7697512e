use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::{
    crd::{PostgresqlRollout, Reason},
    platform::key::Key,
    postgresql::decide::{
        PostgresqlPlan, decide,
        tests::{acme, settled, steps},
    },
};

const BOTH: [&str; 2] = ["acme", "acme-standby"];
const BEGAN: &str = "2026-01-01T00:00:00Z";

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

/// Its rollout is on record.
fn record(observed: &mut ObservedPostgresql, name: &str) {
    let rollout = PostgresqlRollout { stateful_sets: vec![name.to_owned()], started_at: Time(BEGAN.parse().unwrap()) };
    observed.recorded.rollout = Some(rollout);
}

/// It was applied in its turn. `is_rolled`: all pods are those of the new template.
fn applied(observed: &mut ObservedPostgresql, name: &str, is_rolled: bool) {
    record(observed, name);
    its(observed, name).is_rolled = is_rolled;
}

fn down(observed: &mut ObservedPostgresql, pod: usize) {
    observed.pods[pod].waiting = Some("CrashLoopBackOff".to_owned());
}

fn shown(plan: &PostgresqlPlan) -> String {
    steps(plan).join(", ").replace("apply StatefulSet ", "")
}

/// Returns the StatefulSets in the rollout, and `waits` if one waits for its turn.
fn turn(plan: &PostgresqlPlan) -> String {
    let sets = plan.rollout.iter().flat_map(|rollout| rollout.stateful_sets.iter().map(String::as_str));
    sets.chain(plan.awaits_turn.then_some("waits")).collect::<Vec<_>>().join(", ")
}

/// A difference from the settled state of a database with two standbys.
type Change = fn(&mut ObservedPostgresql);
/// One row: the differences of a database that has the turn; the steps, what is in its rollout, and the reason.
type Row<'a> = (&'a str, &'a [Change], &'a str, &'a str, Option<Reason>);

const ALL_OUTDATED: Change = |w| outdated(w, &BOTH);
const PRIMARY_OUTDATED: Change = |w| outdated(w, &["acme"]);
const STANDBYS_RECORDED: Change = |w| record(w, "acme-standby");
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
    let both = "acme, acme-standby";
    let (await_turn, not_ready, fewer) =
        (Some(Reason::AwaitingTurn), Some(Reason::NotReady), Some(Reason::StandbysNotReady));
    let other_version: Change = |w| w.recorded.version = Some("16".to_owned());
    let no_standbys: Change = |w| drop(w.objects.remove(&id("acme-standby")).unwrap());
    let no_primary: Change = |w| drop(w.objects.remove(&id("acme")).unwrap());
    let same_pods: Change = |w| its(w, "acme").requested.generation = Some("7".to_owned());
    let scaled: Change = |w| its(w, "acme").replicas = 2;
    let tls: Change = |w| requested(w, |requested| requested.mounted[1] = Some("c".to_owned()));
    let rows: &[Row<'_>] = &[
        ("as it should be", &[], "", "", None),
        // One database after the other.
        ("it is another's turn", &[ALL_OUTDATED, OTHERS_TURN], "", "waits", await_turn),
        ("so it is again", &[ALL_OUTDATED, OTHERS_TURN, STANDBYS_RECORDED], "", "waits", await_turn),
        // Standbys first, then the primary.
        ("it is its turn", &[ALL_OUTDATED], "acme-standby", "acme-standby, waits", await_turn),
        ("that is recorded", &[ALL_OUTDATED, STANDBYS_RECORDED], "acme-standby", "acme-standby, waits", await_turn),
        (
            "the former standbys are still ready",
            &[PRIMARY_OUTDATED, STANDBYS_RESTART],
            "",
            "acme-standby, waits",
            await_turn,
        ),
        ("one is not yet", &[PRIMARY_OUTDATED, STANDBYS_RESTARTED, |w| down(w, 2)], "", "acme-standby, waits", fewer),
        ("the standbys are ready", &[PRIMARY_OUTDATED, STANDBYS_RESTARTED], "acme", "acme", None),
        ("there are none yet", &[PRIMARY_OUTDATED, no_standbys], both, "acme", None),
        ("the former primary is still ready", &[PRIMARY_RESTARTS], "", "acme", None),
        ("the primary does not come back", &[PRIMARY_RESTARTS, PRIMARY_DOWN], "", "acme", not_ready),
        ("it is back", &[PRIMARY_RESTARTED], "", "", None),
        ("one more version", &[PRIMARY_RESTARTS, PRIMARY_DOWN, ALL_OUTDATED], both, "acme", not_ready),
        ("a dump is requested", &[PRIMARY_RESTARTS, PRIMARY_DOWN, same_pods], "acme", "acme", not_ready),
        ("a user deletes it", &[PRIMARY_RESTARTS, PRIMARY_DOWN, no_primary], "acme", "acme", not_ready),
        ("a user corrects it", &[NEW_SPEC, PRIMARY_RESTARTS, PRIMARY_DOWN], both, "", not_ready),
        // What is down needs no turn, and does not keep it.
        ("the primary was down before", &[ALL_OUTDATED, PRIMARY_DOWN, OTHERS_TURN], both, "", not_ready),
        ("a standby was", &[ALL_OUTDATED, STANDBY_DOWN, OTHERS_TURN], "acme-standby", "waits", fewer),
        ("a standby was, and it is its turn", &[ALL_OUTDATED, STANDBY_DOWN], both, "acme", fewer),
        ("a standby was, and still is", &[PRIMARY_RESTARTED, STANDBY_DOWN], "", "", fewer),
        ("the volume is lost", &[ALL_OUTDATED, VOLUME_LOST], "", "", Some(Reason::VolumeLost)),
        ("and it restarts", &[PRIMARY_RESTARTS, VOLUME_LOST], "", "", Some(Reason::VolumeLost)),
        ("another version comes first", &[ALL_OUTDATED, other_version], "", "", Some(Reason::VersionMismatch)),
        ("and it restarts", &[PRIMARY_RESTARTS, other_version], "", "acme", Some(Reason::VersionMismatch)),
        ("the primary's is replaced", &[PRIMARY_OUTDATED, PRIMARY_DELETED], "", "", Some(Reason::Replacing)),
        ("the primary's is another's", &[PRIMARY_OUTDATED, PRIMARY_ANOTHERS], "", "", Some(Reason::NotOurs)),
        // What users ask for comes at once, and in no order.
        ("another spec", &[NEW_SPEC, OTHERS_TURN], both, "", None),
        ("another password of the standbys", &[NEW_PASSWORD, OTHERS_TURN], both, "", None),
        ("another certificate", &[NEW_CERTIFICATE, OTHERS_TURN], both, "", None),
        ("another, while they restart", &[NEW_CERTIFICATE, STANDBYS_RESTART], both, "", None),
        (
            "another spec, of which the standbys have been told",
            &[PRIMARY_OUTDATED, same_pods, STANDBY_DOWN, OTHERS_TURN],
            "acme",
            "",
            fewer,
        ),
        ("another spec with the same pods", &[same_pods], "acme", "", None),
        ("a user has scaled the primary", &[PRIMARY_OUTDATED, scaled, OTHERS_TURN], "acme", "", None),
        ("nothing is recorded", &[UNRECORDED, OTHERS_TURN], "", "waits", await_turn),
        ("nothing is recorded, in its turn", &[UNRECORDED], "acme-standby", "acme-standby, waits", await_turn),
        ("nothing but another certificate", &[UNRECORDED, tls, OTHERS_TURN], both, "", None),
    ];
    let desired = acme(json!({"replicas": 3}));
    for (what, changes, expected, rollout, reason) in rows {
        let mut observed = ObservedPostgresql { slot_holder: Some(desired.key.clone()), ..settled(&desired) };
        changes.iter().for_each(|change| change(&mut observed));
        let plan = decide(&desired, &observed);
        let found = (shown(&plan), turn(&plan), plan.hold.map(|hold| hold.reason));
        assert_eq!(found, ((*expected).to_owned(), (*rollout).to_owned(), *reason), "{what}");
    }
}

#[test]
fn messages_name_the_slot_holder() {
    let desired = acme(json!({}));
    let message = |changes: &[Change]| {
        let mut observed = settled(&desired);
        changes.iter().for_each(|change| change(&mut observed));
        decide(&desired, &observed).hold.unwrap().message
    };
    let waits = message(&[PRIMARY_OUTDATED, OTHERS_TURN]);
    assert!(waits.ends_with("one database after the other; now it is the turn of Postgresql shop/orders"), "{waits}");
    assert_eq!(
        message(&[PRIMARY_RESTARTS, PRIMARY_DOWN]),
        format!(
            "pod acme-0: CrashLoopBackOff; this Postgresql has had the turn since {BEGAN}: others wait until its servers are ready"
        ),
    );
}

/// The time of the first record stays.
#[test]
fn since_when_it_has_the_turn() {
    let desired = acme(json!({"replicas": 3}));
    let now = "2026-02-02T00:00:00Z".parse().unwrap();
    for (changes, expected) in
        [(&[PRIMARY_OUTDATED][..], now), (&[PRIMARY_OUTDATED, STANDBYS_RESTARTED], BEGAN.parse().unwrap())]
    {
        let mut observed = ObservedPostgresql { now, slot_holder: Some(desired.key.clone()), ..settled(&desired) };
        changes.iter().for_each(|change| change(&mut observed));
        assert_eq!(decide(&desired, &observed).rollout.unwrap().started_at.0, expected);
    }
}

#[test]
fn an_unfinished_rollout_keeps_the_slot() {
    let no_pods: Change = |w| w.pods.clear();
    let no_standbys: Change = |w| drop(w.objects.remove(&id("acme-standby")).unwrap());
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
        ("it was never applied", &[STANDBYS_RECORDED], false),
        ("it is gone", &[STANDBYS_RESTARTED, no_standbys], true),
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
