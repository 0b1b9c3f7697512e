use serde_json::json;

use super::*;
use crate::{
    crd::{ActivePod, VolumeRecord},
    postgresql::{
        build::Object,
        decide::{
            Step, decide,
            tests::{of, pod, reason, settled, steps, view},
        },
        world::{JobView, PodView},
    },
};

fn recorded(uid: &str, initialized: bool) -> Option<VolumeRecord> {
    Some(VolumeRecord { name: "data-acme-0".to_owned(), uid: uid.to_owned(), initialized })
}

fn data() -> (Kind, String) {
    (Kind::PersistentVolumeClaim, "data-acme-0".to_owned())
}

fn claim(uid: &str, made_for: Option<&str>) -> ObjectView {
    let made_for = made_for.map(str::to_owned);
    let detail = Detail::Claim { requested: Some(1.0), capacity: None, made_for };
    ObjectView { uid: uid.to_owned(), ..view(None, detail) }
}

/// One row: what is on record, the claim, what else is there, how far the volume is, and what is put on record.
type Row<'a> = (&'a str, Option<VolumeRecord>, Option<ObjectView>, fn(&mut World), Volume, Option<VolumeRecord>);

const OURS: Option<&str> = Some("uid-1");

#[test]
fn a_database_is_made_once() {
    let gone = || Volume::Lost("PersistentVolumeClaim data-acme-0 is gone".to_owned());
    let another = || {
        let why =
            "PersistentVolumeClaim data-acme-0 is another one now, with the uid b, than the one with the database, a";
        Volume::Lost(why.to_owned())
    };
    let empty = |uid: &str, leave| Volume::Uninitialized { uid: uid.to_owned(), leave };
    let set: fn(&mut World) =
        |w| drop(w.objects.insert((Kind::StatefulSet, "acme".to_owned()), view(None, Detail::None)));
    let active: fn(&mut World) = |w| {
        let (kind, name, uid) = ("Pod".to_owned(), "acme-0".to_owned(), "p".to_owned());
        w.recorded.active = Some(ActivePod { kind, name, uid });
    };
    let phase: fn(&mut World) = |w| w.recorded.phase = Some(Phase::Up);
    let job = |succeeded| view(None, Detail::Job(JobView { succeeded, ..JobView::default() }));
    let made = job(Some(true));
    let none: fn(&mut World) = |_| {};
    let deleting = || ObjectView { deleting: true, ..claim("a", OURS) };
    let theirs = || ObjectView { owner: Owner::Other("x".to_owned()), ..claim("a", OURS) };
    let rows: Vec<Row<'_>> = vec![
        ("nothing", None, None, none, Volume::Missing, None),
        ("a claim", None, Some(claim("a", OURS)), none, Volume::Unrecorded, recorded("a", false)),
        ("on record", recorded("a", false), Some(claim("a", OURS)), none, empty("a", true), recorded("a", false)),
        // A cluster admin who hands a volume over has data on it.
        (
            "from before",
            recorded("a", false),
            Some(claim("a", Some("old"))),
            none,
            empty("a", false),
            recorded("a", false),
        ),
        ("handed over", recorded("a", false), Some(claim("a", None)), none, empty("a", false), recorded("a", false)),
        ("gone before it had a database", recorded("a", false), None, none, Volume::Missing, recorded("a", false)),
        (
            "another before",
            recorded("a", false),
            Some(claim("b", OURS)),
            none,
            Volume::Unrecorded,
            recorded("b", false),
        ),
        ("made", recorded("a", true), Some(claim("a", OURS)), none, Volume::Initialized, recorded("a", true)),
        ("gone", recorded("a", true), None, none, gone(), recorded("a", true)),
        ("another", recorded("a", true), Some(claim("b", None)), none, another(), recorded("a", true)),
        (
            "another that says it is ours",
            recorded("a", true),
            Some(claim("b", OURS)),
            none,
            another(),
            recorded("a", true),
        ),
        ("on its way out", recorded("a", true), Some(deleting()), none, Volume::Going, recorded("a", true)),
        ("not ours", recorded("a", true), Some(theirs()), none, Volume::NotOurs, recorded("a", true)),
        // By an earlier version of the operator, or a record that was lost: whatever shows that there was one is enough.
        ("a StatefulSet", None, Some(claim("a", None)), set, Volume::Unrecorded, recorded("a", true)),
        ("a StatefulSet and no claim", None, None, set, gone(), None),
        ("it was up", None, Some(claim("a", OURS)), phase, Volume::Unrecorded, recorded("a", true)),
        ("it was active", None, None, active, gone(), None),
        (
            "a record that says no",
            recorded("a", false),
            Some(claim("a", OURS)),
            set,
            Volume::Initialized,
            recorded("a", true),
        ),
        ("the same, and gone", recorded("a", false), None, phase, gone(), recorded("a", false)),
        (
            "the same, and another",
            recorded("a", false),
            Some(claim("b", OURS)),
            active,
            another(),
            recorded("a", false),
        ),
    ];
    for (what, record, claim, change, expected, then) in rows {
        let mut world = World::default();
        world.recorded.volume = record;
        if let Some(claim) = claim {
            world.objects.insert(data(), claim);
        }
        change(&mut world);
        let desired = of(json!({}));
        assert_eq!((judge(&desired, &world), super::record(&desired, &world)), (expected, then), "{what}");
    }
    // The Job of this volume has made it; one of another says nothing.
    for (volume, initialized) in [("a", true), ("b", false)] {
        let mut world = World::default();
        world.recorded.volume = recorded("a", false);
        world.objects.insert(data(), claim("a", OURS));
        world.objects.insert((Kind::Job, names::initialize("acme", volume)), made.clone());
        assert_eq!(super::record(&of(json!({})), &world), recorded("a", initialized));
    }
}

#[test]
fn an_administrator_can_put_another_volume_in_its_place() {
    let mut desired = of(json!({}));
    let mut world = settled(&desired);
    world.objects.insert(data(), claim("b", None));
    for (accepted, then) in [("c", "u"), ("b", "b")] {
        desired.accepted_volume = Some(accepted.to_owned());
        assert_eq!(super::record(&desired, &world), recorded(then, true));
    }
}

/// What becomes of a settled world, and the reason that follows.
type Loss<'a> = (&'a str, fn(&mut World), &'a str);

/// Whatever becomes of it, no step makes a database, a volume, or a server once there was a database.
#[test]
fn what_is_lost_stays_lost() {
    let desired = of(json!({"replicas": 2, "backup": {"schedule": "@daily"}}));
    let losses: [Loss<'_>; 4] = [
        ("gone", |w| drop(w.objects.remove(&data())), LOST),
        ("another", |w| drop(w.objects.insert(data(), claim("b", OURS))), LOST),
        ("empty", |w| w.pods[0] = PodView { refused: Some(Refused::NoDatabase), ..w.pods[0].clone() }, LOST),
        (
            "other",
            |w| w.pods[0] = PodView { refused: Some(Refused::OtherVersion), ..w.pods[0].clone() },
            "VersionMismatch",
        ),
    ];
    for (what, change, expected) in losses {
        for without_servers in [false, true] {
            let mut world = settled(&desired);
            world.pods[0].waiting = Some("it ended".to_owned());
            change(&mut world);
            if without_servers {
                world.objects.retain(|(kind, _), _| *kind != Kind::StatefulSet);
            }
            let plan = decide(&desired, &world);
            assert_eq!(reason(&plan), Some((expected, true)), "{what}");
            let made = |step: &Step| match step {
                Step::CreateVolume | Step::Initialize(_) => true,
                // What refuses an empty volume may be there.
                Step::Apply(Object { id, .. }) => id.0 == Kind::StatefulSet && ["gone", "another"].contains(&what),
                _ => false,
            };
            assert!(!plan.steps.iter().any(made), "{what}: {:?}", plan.steps);
        }
    }
}

#[test]
fn the_job_that_makes_the_database() {
    let desired = of(json!({}));
    let name = names::initialize("acme", "a");
    let waiting = Some(("Provisioning", false));
    let initialize = format!("initialize {name}");
    for (what, job, refused, expected, hold) in [
        ("none yet", None, None, vec![initialize], waiting),
        ("it runs", Some(None), None, vec![], waiting),
        ("it has, and that is not on record yet", Some(Some(true)), None, vec![], waiting),
        ("it has failed", Some(Some(false)), None, vec![], Some(("InitializationFailed", true))),
        ("there is none", Some(Some(false)), Some(Refused::NoDatabase), vec![], Some((LOST, true))),
        ("another version", Some(Some(false)), Some(Refused::OtherVersion), vec![], Some(("VersionMismatch", true))),
    ] {
        let mut world = settled(&desired);
        world.recorded.volume = recorded("a", false);
        world.pods.clear();
        world.objects.remove(&(Kind::StatefulSet, "acme".to_owned()));
        world.objects.insert(data(), claim("a", OURS));
        if let Some(succeeded) = job {
            let view = view(None, Detail::Job(JobView { succeeded, ..JobView::default() }));
            world.objects.insert((Kind::Job, name.clone()), view);
            world.pods.push(PodView { refused, ..pod(&format!("{name}-x"), "initialize", Some("y")) });
        }
        let plan = decide(&desired, &world);
        assert_eq!(steps(&plan), expected, "{what}");
        assert_eq!(reason(&plan), hold, "{what}");
    }
    // It is of no more use once that is on record.
    let mut world = settled(&desired);
    world.objects.insert((Kind::Job, name.clone()), view(None, Detail::None));
    assert_eq!(steps(&decide(&desired, &world)), [format!("delete Job {name}")]);
}
