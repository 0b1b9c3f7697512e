use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_000_000;
const OPEN: Window = Window::Open(None);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// An app `name` with a revision, that is Ready since a while.
pub(in crate::profile) fn app(name: &str, revision: i64) -> AppView {
    AppView {
        key: Key::new("ns", name),
        uid: name.to_owned(),
        revision: Some(revision),
        is_canary: false,
        is_out: false,
        health: Health::Ready(at(NOW - 1000)),
        unhealthy: None,
    }
}

fn apps(count: usize, moved: usize) -> Vec<AppView> {
    (0..count).map(|number| app(&format!("a{number:02}"), if number < moved { 2 } else { 1 })).collect()
}

fn spec(spec: Value) -> ProfileRollout {
    serde_json::from_value(spec).unwrap()
}

fn decided(apps: &[AppView], given: Value, permitted: &[&str]) -> Decision {
    decided_after(Passed::default(), apps, given, permitted)
}

fn decided_after(passed: Passed, apps: &[AppView], given: Value, permitted: &[&str]) -> Decision {
    let permitted = permitted.iter().map(|uid| (*uid).to_owned()).collect();
    let rollout =
        Rollout { current: 1, target: 2, spec: &spec(given), apps, permitted: &permitted, passed, window: OPEN };
    decide(&rollout, at(NOW))
}

/// The apps whose turn it is, and what the others wait for.
fn next(apps: &[AppView], given: Value) -> (Vec<String>, Wait) {
    let decision = decided(apps, given, &[]);
    (decision.permitted.into_iter().collect(), decision.wait)
}

#[test]
fn waves_are_cumulative_ascending_and_end_with_all() {
    for (given, count, expected) in [
        (json!({}), 40, vec![1, 4, 40]),
        (json!({}), 5, vec![1, 5]),
        (json!({}), 1, vec![1]),
        (json!({"waves": [2, "50%", 3]}), 10, vec![2, 5, 10]),
        (json!({"waves": ["100%"]}), 10, vec![10]),
        (json!({"waves": [50]}), 10, vec![10]),
        (json!({"waves": ["1%", "34%"]}), 3, vec![1, 2, 3]),
    ] {
        assert_eq!(sizes(&spec(given.clone()), count), expected, "{given} of {count}");
    }
}

#[test]
fn a_wave_begins_once_the_one_before_is_ready_for_the_soak() {
    let first = || (vec!["a00".to_owned()], Wait::Nothing);
    assert_eq!(next(&apps(20, 0), json!({})), first());
    // The second wave has two apps.
    assert_eq!(next(&apps(20, 1), json!({})), (vec!["a01".to_owned()], Wait::Nothing));
    let (turns, wait) = next(&apps(20, 2), json!({}));
    assert_eq!((turns.len(), wait), (18, Wait::Nothing));
    for (health, given, expected) in [
        (Health::Waits, json!({}), Wait::NotReady(1)),
        (Health::Failed, json!({}), Wait::Stopped(1)),
        (Health::Ready(at(NOW - 59)), json!({}), Wait::Soak(at(NOW + 1))),
        (Health::Ready(at(NOW - 59)), json!({"soak": "1h"}), Wait::Soak(at(NOW + 3541))),
        // The clock was set back.
        (Health::Ready(at(NOW + 9999)), json!({}), Wait::Soak(at(NOW + 60))),
        (Health::Ready(at(NOW - 1000)), json!({"paused": true}), Wait::Paused),
    ] {
        let mut apps = apps(20, 2);
        apps[1].health = health;
        assert_eq!(next(&apps, given.clone()), (vec![], expected), "{health:?} {given}");
    }
    let mut apps = apps(20, 2);
    apps[0].health = Health::Ready(at(NOW));
    assert_eq!(next(&apps, json!({"soak": "0s"})).0.len(), 18);
    // As many as may fail hold up none of the others, as long as one is Ready.
    apps[0].health = Health::Failed;
    assert_eq!(next(&apps, json!({"stopAtFailures": 2})).0.len(), 18);
    apps[1].health = Health::Failed;
    assert_eq!(next(&apps, json!({"stopAtFailures": 2})), (vec![], Wait::Stopped(2)));
    assert_eq!(next(&apps, json!({"stopAtFailures": 3})), (vec![], Wait::Stopped(2)));
    assert_eq!(next(&apps[..1], json!({"stopAtFailures": 3})), (vec![], Wait::Nothing), "it is everywhere");
}

#[test]
fn a_wave_that_is_not_full_goes_on_without_its_gate() {
    // Of the four in the second wave, one has been deleted, and another is on its way.
    let mut apps = apps(40, 2);
    apps[1].health = Health::Waits;
    let opened = |opened| Passed { opened, is_through: false };
    let decision = decided_after(opened(4), &apps, json!({}), &["a05"]);
    assert_eq!(decision.permitted.into_iter().collect::<Vec<_>>(), ["a02", "a05"]);
    // An operator that has just begun to lead does not know that the gate was open.
    let decision = decided(&apps, json!({}), &[]);
    assert_eq!((decision.permitted.len(), decision.wait), (0, Wait::NotReady(1)));
    apps[1].health = Health::Ready(at(NOW - 1000));
    let decision = decided(&apps, json!({}), &[]);
    assert_eq!((decision.permitted.len(), decision.passed), (2, opened(4)));
}

#[test]
fn a_wave_that_becomes_smaller_does_not_let_the_next_one_go() {
    let passed = Passed { opened: 3, is_through: false };
    for (health, expected) in
        [(Health::Waits, Wait::NotReady(1)), (Health::Ready(at(NOW - 1)), Wait::Soak(at(NOW + 59)))]
    {
        let mut fleet = apps(21, 3);
        fleet[2].health = health;
        let [mut is_late, mut is_out] = [fleet.clone(), fleet.clone()];
        is_late[20].health = Health::Waits;
        is_out[20].is_out = true;
        let is_gone = fleet[..20].to_vec();
        for fleet in [fleet, is_late, is_out, is_gone] {
            let decision = decided_after(passed, &fleet, json!({}), &[]);
            assert_eq!((decision.permitted.len(), &decision.wait, decision.passed), (0, &expected, passed));
        }
    }
    // And one that becomes larger waits for its gate, too.
    let mut fleet = apps(40, 3);
    fleet[2].health = Health::Waits;
    assert_eq!(decided_after(passed, &fleet, json!({}), &[]).wait, Wait::NotReady(1));
    fleet[2].health = Health::Ready(at(NOW - 1000));
    assert_eq!(decided_after(passed, &fleet, json!({}), &[]).permitted.len(), 1);
}

#[test]
fn if_no_app_is_ready_one_goes_first() {
    for (health, given) in [(Health::Failed, json!({})), (Health::Waits, json!({"maxUnavailable": 1}))] {
        let mut fleet = apps(20, 0);
        fleet.iter_mut().for_each(|app| app.health = health);
        let decision = decided(&fleet, given.clone(), &[]);
        assert_eq!((decision.permitted.len(), decision.passed.is_through), (1, false), "{health:?}");
        // Also after the only one that has it was suspended.
        (fleet[0].revision, fleet[0].is_out) = (Some(2), true);
        assert_eq!(decided(&fleet, given, &[]).permitted.len(), 1, "{health:?}");
        // Once that is Ready, the others follow.
        (fleet[0].is_out, fleet[0].health) = (false, Health::Ready(at(NOW - 1000)));
        assert_eq!(next(&fleet, json!({})).0.len(), 19, "{health:?}");
    }
}

#[test]
fn a_permission_that_nobody_has_taken_counts_and_ends_when_the_rollout_stops() {
    let mut apps = apps(20, 0);
    let decision = decided(&apps, json!({}), &["a07"]);
    assert_eq!((decision.permitted.len(), decision.wait), (1, Wait::NotReady(1)));
    assert_eq!(decision.rollout.unwrap().awaited, ["ns/a07"]);
    apps[0] = AppView { health: Health::Failed, ..app("a00", 2) };
    let decision = decided(&apps, json!({}), &["a07"]);
    assert_eq!((decision.permitted.len(), decision.wait), (0, Wait::Stopped(1)));
    assert_eq!(decision.rollout.unwrap().failed, ["ns/a00"]);
}

#[test]
fn the_order_is_canaries_then_those_moved_before_then_the_ready_and_those_out_last() {
    let mut apps = apps(6, 0);
    apps[0].health = Health::Failed;
    apps[1].is_out = true;
    apps[4].revision = Some(3);
    apps[4].health = Health::Failed;
    apps[5].is_canary = true;
    let order: Vec<_> = (0..6)
        .filter_map(|_| {
            let decision = decided(&apps, json!({"waves": [1, 2, 3, 4], "soak": "0s", "stopAtFailures": 9}), &[]);
            let next = decision.permitted.into_iter().next()?;
            let taken = apps.iter_mut().find(|app| app.uid == next).unwrap();
            (taken.revision, taken.health) = (Some(2), Health::Ready(at(NOW)));
            Some(next)
        })
        .collect();
    assert_eq!(order, ["a05", "a04", "a02", "a03", "a00", "a01"]);
    // One that does not count is listed while the others are on their way, and waits for no more than their soak.
    apps[1].revision = Some(1);
    assert_eq!(next(&apps, json!({})), (vec![], Wait::Soak(at(NOW + 60))));
    let decision = decided(&apps, json!({"soak": "0s"}), &[]);
    assert_eq!((decision.rollout, decision.updated, decision.permitted.len()), (None, 5, 1));
}

#[test]
fn a_new_app_has_the_current_revision_and_is_moved_in_its_turn() {
    let mut apps = apps(3, 2);
    apps[2].revision = None;
    assert_eq!(next(&apps, json!({"waves": [2]})).0, ["a02"]);
    let decision = decide(
        &Rollout {
            current: 2,
            target: 2,
            spec: &spec(json!({})),
            apps: &apps,
            permitted: &BTreeSet::new(),
            passed: Passed::default(),
            window: OPEN,
        },
        at(NOW),
    );
    assert_eq!((decision.rollout, decision.updated), (None, 3));
}

#[test]
fn no_more_are_unavailable_than_may_be() {
    let given = |most: Value| json!({"waves": ["100%"], "maxUnavailable": most});
    let mut apps = apps(10, 0);
    assert_eq!(next(&apps, given(json!(3))).0, ["a00", "a01", "a02"]);
    assert_eq!(next(&apps, given(json!("25%"))).0, ["a00", "a01", "a02"]);
    // One of them for a reason of its own, and one on its way.
    apps[9].health = Health::Failed;
    assert_eq!(decided(&apps, given(json!(3)), &["a00"]).permitted.into_iter().collect::<Vec<_>>(), ["a00", "a01"]);
    // One that is broken by what it has gets the next all the same.
    let mut broken = apps.clone();
    (broken[0].revision, broken[0].health) = (Some(3), Health::Failed);
    assert_eq!(next(&broken, given(json!(1))).0, ["a00"]);
    apps[8].health = Health::Waits;
    apps[7].health = Health::Waits;
    assert_eq!(next(&apps, given(json!(3))), (vec![], Wait::Unavailable(3)));
}

#[test]
fn those_that_were_not_ready_before_come_after_the_waves_and_stop_nothing() {
    let mut apps = apps(20, 17);
    apps[18].health = Health::Failed;
    apps[19].health = Health::Waits;
    assert_eq!(next(&apps, json!({})).0, ["a17"], "the waves are of those that were Ready");
    apps[17].revision = Some(2);
    assert_eq!(next(&apps, json!({})), (vec!["a18".to_owned(), "a19".to_owned()], Wait::Nothing));
    assert!(decided(&apps, json!({}), &[]).passed.is_through);
    // They have it, and one is as it was: not known to an operator that has just begun to lead.
    apps[18].revision = Some(2);
    assert_eq!(next(&apps, json!({})), (vec![], Wait::Stopped(1)));
    let passed = Passed { opened: 18, is_through: true };
    let through = |apps: &[AppView]| decided_after(passed, apps, json!({}), &[]);
    assert_eq!(through(&apps).permitted, BTreeSet::from(["a19".to_owned()]));
    // One that has become Ready meanwhile stops nothing, either.
    apps[19].health = Health::Ready(at(NOW));
    assert_eq!(through(&apps).permitted, BTreeSet::from(["a19".to_owned()]));
    apps[19].revision = Some(2);
    assert_eq!(decided(&apps, json!({}), &[]).rollout, None);
}

#[test]
fn no_gate_opens_because_no_other_app_counts_any_more() {
    for (health, expected) in [
        (Health::Failed, Wait::Stopped(1)),
        (Health::Waits, Wait::NotReady(1)),
        (Health::Ready(at(NOW - 1)), Wait::Soak(at(NOW + 59))),
    ] {
        let mut broken = apps(3, 1);
        broken[0].health = health;
        let mut suspended = broken.clone();
        broken[1..].iter_mut().for_each(|app| app.health = Health::Failed);
        suspended[1..].iter_mut().for_each(|app| app.is_out = true);
        for fleet in [broken, suspended] {
            let decision = decided(&fleet, json!({}), &[]);
            assert_eq!((decision.permitted.len(), &decision.wait), (0, &expected), "{health:?} {fleet:?}");
            assert!(decision.rollout.is_some() && !decision.passed.is_through);
        }
    }
    // One whose turn has come was Ready then.
    let mut broken = apps(3, 0);
    broken.iter_mut().for_each(|app| app.health = Health::Failed);
    let decision = decided(&broken, json!({}), &["a00"]);
    assert_eq!((decision.permitted.len(), decision.wait), (1, Wait::NotReady(1)));
}

#[test]
fn the_way_back_is_one_wave_with_the_broken_first() {
    let back = |apps: &[AppView], current: i64, given: Value| {
        let spec = spec(given);
        let none = BTreeSet::new();
        let window = Window::Closed(at(NOW + 60));
        let rollout =
            Rollout { current, target: 1, spec: &spec, apps, permitted: &none, passed: Passed::default(), window };
        let decision = decide(&rollout, at(NOW));
        (decision.permitted.into_iter().collect::<Vec<_>>(), decision.wait)
    };
    // In the middle of a rollout, and after it; others are in trouble for reasons of their own.
    let mut fleet = apps(6, 3);
    fleet[1].health = Health::Failed;
    fleet[5].health = Health::Failed;
    for current in [1, 2] {
        let (turns, wait) = back(&fleet, current, json!({}));
        assert_eq!(
            (turns, wait),
            (vec!["a00".to_owned(), "a01".to_owned(), "a02".to_owned()], Wait::Nothing),
            "{current}"
        );
    }
    // The broken one makes nothing worse.
    assert_eq!(back(&fleet, 2, json!({"maxUnavailable": 1})).0, ["a01"]);
    assert_eq!(back(&fleet, 2, json!({"paused": true})), (vec![], Wait::Paused));
}

#[test]
fn while_the_window_is_closed_no_other_app_gets_the_revision() {
    let window = Window::Closed(at(NOW + 60));
    let decision = |apps: &[AppView], given: Value| {
        let permitted = BTreeSet::from(["a01".to_owned()]);
        let spec = spec(given);
        let rollout = Rollout {
            current: 1,
            target: 2,
            spec: &spec,
            apps,
            permitted: &permitted,
            passed: Passed::default(),
            window,
        };
        decide(&rollout, at(NOW))
    };
    let mut fleet = apps(20, 1);
    for (given, wait) in [
        (json!({}), Wait::Closed(at(NOW + 60))),
        (json!({"waves": [5]}), Wait::Closed(at(NOW + 60))),
        (json!({"paused": true}), Wait::Paused),
    ] {
        let decision = decision(&fleet, given);
        assert_eq!((decision.permitted.len(), decision.wait, decision.updated), (0, wait, 1));
    }
    fleet[0].health = Health::Failed;
    assert_eq!(decision(&fleet, json!({})).wait, Wait::Stopped(1));
    // Nothing is held once all have it.
    assert_eq!(decision(&apps(20, 20), json!({})).rollout, None);
}

#[test]
fn what_is_paused_or_has_no_window_does_not_end_because_no_app_counts() {
    let mut fleet = apps(2, 0);
    fleet.iter_mut().for_each(|app| app.is_out = true);
    let opens = at(NOW + 60);
    for apps in [&fleet[..], &[]] {
        for (paused, window, wait) in [(true, OPEN, Wait::Paused), (false, Window::Closed(opens), Wait::Closed(opens))]
        {
            let (spec, permitted) = (spec(json!({"paused": paused})), BTreeSet::new());
            let rollout = Rollout {
                current: 1,
                target: 2,
                spec: &spec,
                apps,
                permitted: &permitted,
                passed: Passed::default(),
                window,
            };
            let decision = decide(&rollout, at(NOW));
            assert_eq!((decision.wait, decision.permitted.len()), (wait, 0));
            assert!(decision.rollout.is_some());
        }
    }
}

/// What happens to a fleet between two decisions.
#[derive(Clone, Debug)]
enum Change {
    Added,
    Deleted(prop::sample::Index),
    Falls(prop::sample::Index, Health),
    AllAreReady,
    TurnsAreTaken,
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => Just(Change::Added),
        1 => any::<prop::sample::Index>().prop_map(Change::Deleted),
        1 => (any::<prop::sample::Index>(), prop_oneof![Just(Health::Waits), Just(Health::Failed)])
            .prop_map(|(which, health)| Change::Falls(which, health)),
        1 => Just(Change::AllAreReady),
        2 => Just(Change::TurnsAreTaken),
    ]
}

proptest! {
    /// Only a wave that is full, Ready and soaked makes room for the next one; and once nothing disturbs a rollout, it ends.
    #[test]
    fn a_wave_is_never_overtaken_and_a_rollout_ends(changes in prop::collection::vec((0..40_i64, change()), 1..150)) {
        let given = spec(json!({"waves": [1, 3, "40%"], "soak": "60s", "stopAtFailures": 2}));
        let (mut fleet, mut permitted, mut passed, mut now) = (apps(20, 0), BTreeSet::new(), Passed::default(), NOW);
        let decided = |fleet: &[AppView], permitted: &BTreeSet<String>, passed, now| {
            let rollout =
                Rollout { current: 1, target: 2, spec: &given, apps: fleet, permitted, passed, window: OPEN };
            decide(&rollout, at(now))
        };
        for (number, (seconds, change)) in changes.into_iter().enumerate() {
            now += seconds;
            let reached = |permitted: &BTreeSet<String>| {
                fleet.iter().filter(|app| app.revision == Some(2) || permitted.contains(&app.uid)).count()
            };
            let before = reached(&permitted);
            let is_soaked = |app: &AppView| matches!(app.health, Health::Ready(since) if since <= at(now - 60));
            let moved = || fleet.iter().filter(|app| app.revision == Some(2));
            let is_open = moved().all(|app| is_soaked(app) || app.health == Health::Failed)
                && (moved().next().is_none() || moved().any(is_soaked))
                && fleet.iter().all(|app| app.revision == Some(2) || !permitted.contains(&app.uid));
            let is_stopped = moved().filter(|app| app.health == Health::Failed).count() >= 2;
            let decision = decided(&fleet, &permitted, passed, now);
            permitted = decision.permitted;
            let has_early = fleet.iter().any(|app| app.revision == Some(2) || is_ready(app));
            let is_early =
                |app: &&AppView| !has_early || app.revision == Some(2) || is_ready(app) || permitted.contains(&app.uid);
            let (after, sizes) = (reached(&permitted), sizes(&given, fleet.iter().filter(is_early).count()));
            // Then those that were not Ready before get it, all at once.
            let Passed { is_through, opened } = decision.passed;
            let was_through = passed.is_through;
            prop_assert!(
                !is_through || was_through || is_open && !is_stopped && fleet.iter().all(|app| app.revision == Some(2) || !is_ready(app)),
                "the waves are not through"
            );
            let wave = |count: usize| sizes.iter().position(|size| *size >= count.max(1));
            let allowed = if is_open && sizes.contains(&before) { wave(before + 1) } else { wave(before) };
            let is_allowed = if is_open { wave(after) <= allowed } else { after <= passed.opened.max(sizes[0]) };
            prop_assert!(is_through || after <= before || is_allowed, "{before} became {after} of {sizes:?}");
            prop_assert!(is_through || after <= before || after <= opened, "{before} became {after}, and {opened} may");
            passed = decision.passed;
            match change {
                Change::Added => fleet.push(app(&format!("b{number}"), 1)),
                Change::Deleted(which) if fleet.len() > 5 => _ = fleet.remove(which.index(fleet.len())),
                Change::Deleted(_) => {}
                Change::Falls(which, health) => which.get_mut(&mut fleet[..]).health = health,
                Change::AllAreReady => {
                    fleet.iter_mut().filter(|app| !is_ready(app)).for_each(|app| app.health = Health::Ready(at(now)));
                }
                Change::TurnsAreTaken => {
                    for app in fleet.iter_mut().filter(|app| permitted.contains(&app.uid)) {
                        (app.revision, app.health) = (Some(2), Health::Waits);
                    }
                }
            }
        }
        for _ in 0..10 {
            now += 100;
            for app in &mut fleet {
                app.revision = if permitted.contains(&app.uid) { Some(2) } else { app.revision };
                app.health = Health::Ready(at(now - 61));
            }
            let decision = decided(&fleet, &permitted, passed, now);
            (permitted, passed) = (decision.permitted, decision.passed);
        }
        prop_assert!(fleet.iter().all(|app| app.revision == Some(2)), "{fleet:?}");
    }
}

#[test]
fn what_an_app_lacks_is_shown_while_it_counts() {
    let mut apps = apps(20, 2);
    for (health, wait) in [(Health::Waits, Wait::NotReady(1)), (Health::Failed, Wait::Stopped(1))] {
        apps[1].health = health;
        apps[1].unhealthy = Some("it says no".to_owned());
        let decision = decided(&apps, json!({}), &[]);
        let unhealthy = vec![UnhealthyApp { app: "ns/a01".to_owned(), message: "it says no".to_owned() }];
        assert_eq!((decision.wait, decision.rollout.unwrap().unhealthy), (wait, unhealthy));
    }
}
