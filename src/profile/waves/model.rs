//! Checks waves exhaustively, as a model around [`decide`]: its leader sees apps late, is replaced, and apps fail and recover at any time.

use std::collections::{BTreeSet, HashSet};

use serde_json::json;

use super::{tests::app, *};

const APPS: usize = 3;
const NOW: Timestamp = Timestamp::UNIX_EPOCH;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Well,
    Starts,
    Badly,
}

/// An app in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Truth {
    has_target: bool,
    doing: Doing,
    /// True if it has been Ready with the target.
    is_proven: bool,
}

/// The cluster, and what the leader has seen of it and allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    apps: [Truth; APPS],
    seen: [Truth; APPS],
    permitted: [bool; APPS],
    passed: Passed,
}

/// A mistake that the leader makes, to prove that the model would find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// It does not wait for one that is not Ready yet.
    IsImpatient,
    /// It counts one that has failed as one that is Ready.
    IgnoresFailures,
}

fn begin() -> World {
    let app = Truth { has_target: false, doing: Doing::Well, is_proven: false };
    World { apps: [app; APPS], seen: [app; APPS], permitted: [false; APPS], passed: Passed::default() }
}

fn name(number: usize) -> String {
    format!("a{number}")
}

/// Lets the leader decide from what it has seen.
fn decided(mut world: World, mistake: Mistake) -> World {
    let spec = serde_json::from_value(json!({"waves": [1, 2], "soak": "0s"})).unwrap();
    let apps: Vec<_> = (0..APPS)
        .map(|number| AppView {
            health: match world.seen[number].doing {
                Doing::Badly if mistake == Mistake::IgnoresFailures => Health::Ready(NOW),
                Doing::Starts if mistake == Mistake::IsImpatient => Health::Ready(NOW),
                Doing::Badly => Health::Failed,
                Doing::Starts => Health::Waits,
                Doing::Well => Health::Ready(NOW),
            },
            ..app(&name(number), if world.seen[number].has_target { 2 } else { 1 })
        })
        .collect();
    let permitted: BTreeSet<_> = (0..APPS).filter(|number| world.permitted[*number]).map(name).collect();
    let (apps, permitted, window, passed) = (&apps[..], &permitted, Window::Open(None), world.passed);
    let decision = decide(&Rollout { current: 1, target: 2, spec: &spec, apps, permitted, passed, window }, NOW);
    world.passed = decision.passed;
    world.permitted = std::array::from_fn(|number| decision.permitted.contains(&name(number)));
    world
}

/// Lets an app take its turn, if it has one.
fn taken(mut world: World, number: usize) -> Option<World> {
    let may = world.permitted[number] && !world.apps[number].has_target;
    world.apps[number] = Truth { has_target: true, doing: Doing::Starts, is_proven: false };
    may.then_some(world)
}

/// Returns what may happen next.
fn next(world: World, mistake: Mistake) -> Vec<World> {
    let mut next = vec![decided(world, mistake)];
    // Another operator leads: it lists all apps, and knows of no turns.
    next.push(World { seen: world.apps, permitted: [false; APPS], passed: Passed::default(), ..world });
    for number in 0..APPS {
        let mut watched = world;
        watched.seen[number] = world.apps[number];
        next.push(watched);
        next.extend(taken(world, number));
        if world.apps[number].has_target {
            for doing in [Doing::Well, Doing::Starts, Doing::Badly] {
                let mut changed = world;
                let app = &mut changed.apps[number];
                app.doing = doing;
                app.is_proven |= doing == Doing::Well;
                next.push(changed);
            }
        }
    }
    next
}

/// Visits every world that can be reached. Returns the number of them, and one where an app has taken the target before all that have it were
/// Ready with it.
fn explore(mistake: Mistake) -> (HashSet<World>, Option<World>) {
    let (mut known, mut left) = (HashSet::from([begin()]), vec![begin()]);
    while let Some(world) = left.pop() {
        let is_unproven = |app: &Truth| app.has_target && !app.is_proven;
        if world.apps.iter().filter(|app| is_unproven(app)).count() > 1 {
            return (known, Some(world));
        }
        left.extend(next(world, mistake).into_iter().filter(|next| known.insert(*next)));
    }
    (known, None)
}

#[test]
fn no_app_overtakes_a_gate_and_every_app_arrives() {
    let (worlds, overtaken) = explore(Mistake::None);
    assert_eq!(overtaken, None);
    assert!(worlds.len() > 1000, "{}", worlds.len());
    for world in worlds {
        let mut end = world;
        for _ in 0..=2 * APPS {
            end.apps.iter_mut().for_each(|app| app.doing = Doing::Well);
            end.seen = end.apps;
            end = decided(end, Mistake::None);
            end = (0..APPS).fold(end, |world, number| taken(world, number).unwrap_or(world));
        }
        assert!(end.apps.iter().all(|app| app.has_target), "{world:?}");
    }
    for mistake in [Mistake::IsImpatient, Mistake::IgnoresFailures] {
        assert!(explore(mistake).1.is_some(), "{mistake:?}");
    }
}
