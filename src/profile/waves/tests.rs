use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

/// An app `name` with a revision, that is Ready since a while.
fn app(name: &str, revision: i64) -> AppView {
    AppView {
        key: Key::new("ns", name),
        uid: name.to_owned(),
        revision: Some(revision),
        is_canary: false,
        is_out: false,
        health: Health::Ready(at(NOW - 1000)),
    }
}

fn apps(count: usize, moved: usize) -> Vec<AppView> {
    (0..count).map(|number| app(&format!("a{number:02}"), if number < moved { 2 } else { 1 })).collect()
}

fn spec(spec: Value) -> ProfileRollout {
    serde_json::from_value(spec).unwrap()
}

fn decided(apps: &[AppView], given: Value, permitted: &[&str]) -> Decision {
    let permitted = permitted.iter().map(|uid| (*uid).to_owned()).collect();
    decide(&Rollout { current: 1, target: 2, spec: &spec(given), apps, permitted: &permitted }, at(NOW))
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
        (Health::Failed, json!({"stopAtFailures": 2}), Wait::NotReady(1)),
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
}

#[test]
fn a_wave_that_is_not_full_goes_on_without_its_gate() {
    // Of the four in the second wave, one has been deleted, and another is on its way.
    let mut apps = apps(40, 2);
    apps[1].health = Health::Waits;
    let decision = decided(&apps, json!({}), &["a05"]);
    assert_eq!(decision.permitted.into_iter().collect::<Vec<_>>(), ["a02", "a05"]);
}

#[test]
fn a_permission_that_nobody_has_taken_counts_and_ends_when_the_rollout_stops() {
    let mut apps = apps(20, 0);
    let decision = decided(&apps, json!({}), &["a07"]);
    assert_eq!((decision.permitted.len(), decision.wait), (1, Wait::NotReady(1)));
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
    // One that does not count is listed while the others are on their way, and neither keeps the rollout from its end.
    apps[1].revision = Some(1);
    let decision = decided(&apps, json!({}), &[]);
    assert_eq!((decision.rollout, decision.updated, decision.permitted.len()), (None, 5, 1));
}

#[test]
fn a_new_app_has_the_current_revision_and_is_moved_in_its_turn() {
    let mut apps = apps(3, 2);
    apps[2].revision = None;
    assert_eq!(next(&apps, json!({"waves": [2]})).0, ["a02"]);
    let decision = decide(
        &Rollout { current: 2, target: 2, spec: &spec(json!({})), apps: &apps, permitted: &BTreeSet::new() },
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
    apps[8].health = Health::Waits;
    apps[7].health = Health::Waits;
    assert_eq!(next(&apps, given(json!(3))), (vec![], Wait::Unavailable(3)));
}

/// Runs rollouts in which apps take their turn late or never, fail, recover, come and go.
#[test]
fn never_have_more_apps_the_revision_than_the_wave_has_whose_gate_has_opened() {
    for seed in 0..300_u64 {
        let mut state = seed + 1;
        let mut random = |below: usize| {
            // Marsaglia's xorshift.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
        };
        let given = spec(json!({"waves": [1, 3, "40%"], "soak": "60s", "stopAtFailures": 2}));
        let (mut fleet, mut permitted, mut now, mut made) = (apps(20, 0), BTreeSet::new(), NOW, 20);
        // How many apps may have the revision: only an open gate raises it.
        let mut allowed = 1;
        for _ in 0..400 {
            now += i64::try_from(random(40)).unwrap();
            let moved = |fleet: &[AppView]| fleet.iter().filter(|app| app.revision == Some(2)).count();
            let before = fleet.iter().filter(|app| app.revision == Some(2));
            let is_open = before.clone().all(|app| matches!(app.health, Health::Ready(since) if since <= at(now - 60)));
            let decision = decide(
                &Rollout { current: 1, target: 2, spec: &given, apps: &fleet, permitted: &permitted },
                at(now),
            );
            let reach = moved(&fleet) + decision.permitted.len();
            if reach > allowed {
                let sizes = sizes(&given, fleet.len());
                let full = sizes.iter().any(|size| *size == moved(&fleet)) && is_open && permitted.is_empty();
                let within = sizes.iter().find(|size| **size >= moved(&fleet) + permitted.len());
                assert!(full || within.is_some_and(|size| reach <= *size), "seed {seed}: {reach} of {allowed}");
                allowed = reach;
            }
            permitted = decision.permitted;
            match random(8) {
                0 => {
                    made += 1;
                    fleet.push(app(&format!("b{made}"), 1));
                }
                1 if fleet.len() > 5 => drop(fleet.remove(random(fleet.len()))),
                2 => {
                    let which = random(fleet.len());
                    fleet[which].health = if random(3) == 0 { Health::Failed } else { Health::Waits };
                }
                3 | 4 => fleet.iter_mut().filter(|app| !is_ready(app)).for_each(|app| app.health = Health::Ready(at(now))),
                _ => {
                    for app in fleet.iter_mut().filter(|app| permitted.remove(&app.uid)) {
                        (app.revision, app.health) = (Some(2), Health::Waits);
                    }
                }
            }
        }
        // Once nothing disturbs it, it ends.
        for _ in 0..20 {
            now += 100;
            for app in &mut fleet {
                if permitted.remove(&app.uid) {
                    app.revision = Some(2);
                }
                app.health = Health::Ready(at(now - 61));
            }
            permitted = decide(
                &Rollout { current: 1, target: 2, spec: &given, apps: &fleet, permitted: &permitted },
                at(now),
            )
            .permitted;
        }
        assert!(fleet.iter().all(|app| app.revision == Some(2)), "seed {seed}");
    }
}
