use serde_json::{Value, json};

use super::*;
use crate::{
    crd::VolumeRecord,
    platform::fake::{merged, of},
    postgresql::{
        decide::{
            decide,
            tests::{acme, add_job, pod, reason, settled, steps},
        },
        objects::Object,
        observed::{DumpSource, PodView},
        status::record::recorded,
    },
};

fn requested(more: Value) -> Desired {
    acme(merged(json!({"restoreRequest": {"request": "go", "dump": {"claim": "acme-backup"}}}), more))
}

fn job() -> String {
    names::restore("acme", "go")
}

/// A settled database for which the request is on record in this state.
fn in_state(desired: &Desired, state: Option<RestoreState>) -> ObservedPostgresql {
    let mut observed = settled(desired);
    observed.dump_source = DumpSource::Usable;
    observed.recorded.restore = state.map(|state| of(json!({"request": "go", "job": job(), "state": state})));
    observed
}

fn with_job(observed: &mut ObservedPostgresql, succeeded: Option<bool>, said: Option<&str>) {
    add_job(observed, &job(), JobView { succeeded, ..JobView::default() });
    let (ok, bad) = match succeeded {
        Some(false) => (None, said),
        _ => (said, None),
    };
    observed.pods.push(PodView {
        job: Some(job()),
        termination_message: ok.map(str::to_owned),
        failure_line: bad.map(str::to_owned),
        ..pod("acme-restore-x", "initialize", None)
    });
}

/// The next state that is put on record, until nothing changes.
fn next(desired: &Desired, mut observed: ObservedPostgresql) -> ObservedPostgresql {
    loop {
        let now = recorded(desired, &observed);
        if now == observed.recorded {
            return observed;
        }
        observed.recorded = now;
    }
}

fn state(observed: &ObservedPostgresql) -> Option<RestoreState> {
    observed.recorded.restore.as_ref().map(|restore| restore.state)
}

#[test]
fn a_request_is_carried_out_once() {
    let desired = requested(json!({}));
    let observed = next(&desired, in_state(&desired, None));
    assert_eq!(state(&observed), Some(RestoreState::Running));
    let plan = decide(&desired, &observed);
    assert_eq!((steps(&plan), reason(&plan)), (vec![format!("apply Job {}", job())], Some(("Restoring", false))));

    let mut observed = observed;
    with_job(&mut observed, None, None);
    let plan = decide(&desired, &observed);
    assert_eq!((steps(&plan), reason(&plan)), (vec![], Some(("Restoring", false))));

    observed.pods.pop();
    with_job(&mut observed, Some(true), Some("20260131T030000Z-x 12"));
    let mut observed = next(&desired, observed);
    assert_eq!(state(&observed), Some(RestoreState::Replacing));
    let restored = observed.recorded.restored.clone().unwrap();
    assert_eq!((restored.dump.as_str(), restored.tables), ("20260131T030000Z-x", Some(12)));
    assert_eq!(restored.request.as_deref(), Some("go"));
    // The primary restarts at once, whichever Postgresql has the rollout slot.
    observed.slot_holder = None;
    assert_eq!(steps(&decide(&desired, &observed)), ["apply StatefulSet acme"]);

    // Only the restarted pod proves it.
    observed.pods[0] = PodView { replaced: Some("earlier".to_owned()), ..observed.pods[0].clone() };
    let mut observed = next(&desired, observed);
    assert_eq!(state(&observed), Some(RestoreState::Replacing));
    observed.pods[0].replaced = Some("go".to_owned());
    let observed = next(&desired, observed);
    assert_eq!(state(&observed), Some(RestoreState::Succeeded));
    assert_eq!(pending(&desired, &observed.recorded), None);
    // And without the request, nothing changes.
    let without = acme(json!({}));
    assert_eq!(next(&without, observed.clone()).recorded, observed.recorded);
}

#[test]
fn a_failure_leaves_the_database_as_it_was() {
    let desired = requested(json!({}));
    let mut observed = in_state(&desired, Some(RestoreState::Running));
    with_job(&mut observed, Some(false), Some("dump x is damaged"));
    let observed = next(&desired, observed);
    let failed = observed.recorded.restore.clone().unwrap();
    assert_eq!((failed.state, observed.recorded.restored.clone()), (RestoreState::Failed, None));
    let message = failed.message.unwrap();
    assert!(message.contains("dump x is damaged; the database is as it was"), "{message}");
    // Its Job stays for its log, and the database serves.
    assert_eq!((steps(&decide(&desired, &observed)), reason(&decide(&desired, &observed))), (vec![], None));

    // Another word asks again; a request that is removed while it runs ends.
    let again = acme(json!({"restoreRequest": {"request": "again", "dump": {"claim": "acme-backup"}}}));
    let asked = next(&again, observed);
    let steps_then = steps(&decide(&again, &asked));
    assert_eq!(steps_then, [format!("delete Job {}", job()), format!("apply Job {}", names::restore("acme", "again"))]);
    let mut running = in_state(&desired, Some(RestoreState::Running));
    with_job(&mut running, None, None);
    let removed = next(&acme(json!({})), running);
    assert_eq!(state(&removed), Some(RestoreState::Failed));
    let steps_then = steps(&decide(&acme(json!({})), &removed));
    assert!(steps_then.contains(&format!("delete Job {}", job())), "{steps_then:?}");
}

#[test]
fn dumps_that_may_not_be_read_are_not_restored() {
    let desired = requested(json!({}));
    for (source, expected) in [
        (
            DumpSource::Missing,
            "PersistentVolumeClaim acme-backup, which spec.restoreRequest.dump names, does not exist",
        ),
        (DumpSource::NotAllowed, "has no label"),
        (DumpSource::Deleting, "is being deleted"),
    ] {
        let mut observed = in_state(&desired, Some(RestoreState::Running));
        observed.dump_source = source;
        let plan = decide(&desired, &observed);
        assert_eq!((steps(&plan), reason(&plan)), (vec![], Some(("DumpsMissing", true))), "{source:?}");
        let message = plan.hold.unwrap().message;
        assert!(message.contains(expected), "{message}");
    }
}

/// A lost volume is replaced only on request, and what is on the one that has its name now is set aside, not deleted.
#[test]
fn a_lost_database_begins_anew() {
    let data = (Kind::PersistentVolumeClaim, "data-acme-0".to_owned());
    for is_there in [false, true] {
        let desired = requested(json!({}));
        let mut observed = in_state(&desired, Some(RestoreState::Running));
        let before = VolumeRecord { name: "data-acme-0".to_owned(), uid: "before".to_owned(), initialized: true };
        observed.recorded.volume = Some(before.clone());
        let mut claim = observed.objects.remove(&data).unwrap();
        if is_there {
            claim.uid = "now".to_owned();
            observed.objects.insert(data.clone(), claim.clone());
        }
        let lost = decide(&acme(json!({})), &observed);
        assert_eq!(reason(&lost), Some(("VolumeLost", true)));
        if !is_there {
            assert!(steps(&decide(&desired, &observed)).contains(&"create volume".to_owned()));
            observed.objects.insert(data.clone(), ObjectView { uid: "now".to_owned(), ..claim });
        }
        let observed = next(&desired, observed);
        assert_eq!(observed.recorded.volume, Some(VolumeRecord { uid: "now".to_owned(), ..before }), "{is_there}");
        let plan = decide(&desired, &observed);
        assert_eq!((steps(&plan), reason(&plan)), (vec![format!("apply Job {}", job())], Some(("Restoring", false))));
    }
}

#[test]
fn the_job_that_restores_beside() {
    let desired = requested(json!({}));
    let Object { document, .. } = initialize::restore(&desired, desired.restore_request.as_ref().unwrap());
    insta::assert_yaml_snapshot!(document["spec"]);
}
