use serde_json::json;

use super::*;
use crate::{
    crd::{ActivePod, Restore, VolumeRecord},
    platform::operator_image::OperatorImage,
    postgresql::{
        decide::{
            PostgresqlHold, PostgresqlStep, decide,
            tests::{acme, add_job, pod, reason, settled, steps, view},
        },
        objects::Object,
        observed::{DumpSource, JobView, PodView},
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

/// One row: the record, the claim, what else exists, the state of the volume, and the new record.
type Row<'a> =
    (&'a str, Option<VolumeRecord>, Option<ObjectView>, fn(&mut ObservedPostgresql), VolumeState, Option<VolumeRecord>);

const OURS: Option<&str> = Some("uid-1");

#[test]
fn a_database_is_created_once() {
    let gone = || VolumeState::Lost("PersistentVolumeClaim data-acme-0 is gone".to_owned());
    let another = || {
        let why = "PersistentVolumeClaim data-acme-0 is not the one with the database: its uid is b, and the uid on record is a";
        VolumeState::Lost(why.to_owned())
    };
    let empty = |uid: &str, allowed| VolumeState::Uninitialized { uid: uid.to_owned(), allowed };
    let set: fn(&mut ObservedPostgresql) =
        |w| drop(w.objects.insert((Kind::StatefulSet, "acme".to_owned()), view(None, Detail::None)));
    let active: fn(&mut ObservedPostgresql) = |w| {
        let (kind, name, uid) = ("Pod".to_owned(), "acme-0".to_owned(), "p".to_owned());
        w.recorded.active = Some(ActivePod { kind, name, uid });
    };
    let phase: fn(&mut ObservedPostgresql) = |w| w.recorded.phase = Some(Phase::Up);
    let job = |succeeded| view(None, Detail::Job(JobView { succeeded, ..JobView::default() }));
    let made = job(Some(true));
    let none: fn(&mut ObservedPostgresql) = |_| {};
    let deleting = || ObjectView { deleting: true, ..claim("a", OURS) };
    let theirs = || ObjectView { owner: Ownership::Other("x".to_owned()), ..claim("a", OURS) };
    let (no, yes) = (|| recorded("a", false), || recorded("a", true));
    let rows: Vec<Row<'_>> = vec![
        ("nothing", None, None, none, VolumeState::Missing, None),
        ("a claim", None, Some(claim("a", OURS)), none, VolumeState::Unrecorded, no()),
        ("on record", no(), Some(claim("a", OURS)), none, empty("a", true), no()),
        // A volume that a cluster admin hands over holds data.
        ("from before", no(), Some(claim("a", Some("old"))), none, empty("a", false), no()),
        ("handed over", no(), Some(claim("a", None)), none, empty("a", false), no()),
        ("gone before it had a database", no(), None, none, VolumeState::Missing, no()),
        ("another before", no(), Some(claim("b", OURS)), none, VolumeState::Unrecorded, recorded("b", false)),
        ("made", yes(), Some(claim("a", OURS)), none, VolumeState::Initialized, yes()),
        ("gone", yes(), None, none, gone(), yes()),
        ("another", yes(), Some(claim("b", None)), none, another(), yes()),
        ("another that says it is ours", yes(), Some(claim("b", OURS)), none, another(), yes()),
        ("on its way out", yes(), Some(deleting()), none, VolumeState::Deleting, yes()),
        ("not ours", yes(), Some(theirs()), none, VolumeState::NotOurs, yes()),
        // From an earlier version of the operator, or after the record was lost: any sign of a database is enough.
        ("a StatefulSet", None, Some(claim("a", None)), set, VolumeState::Unrecorded, yes()),
        ("a StatefulSet and no claim", None, None, set, gone(), None),
        ("it was up", None, Some(claim("a", OURS)), phase, VolumeState::Unrecorded, yes()),
        ("it was active", None, None, active, gone(), None),
        ("a record that says no", no(), Some(claim("a", OURS)), set, VolumeState::Initialized, yes()),
        ("the same, and gone", no(), None, phase, gone(), no()),
        ("the same, and another", no(), Some(claim("b", OURS)), active, another(), no()),
    ];
    for (what, record, claim, change, expected, then) in rows {
        let mut observed = ObservedPostgresql::default();
        observed.recorded.volume = record;
        if let Some(claim) = claim {
            observed.objects.insert(data(), claim);
        }
        change(&mut observed);
        let desired = acme(json!({}));
        assert_eq!((state(&desired, &observed), super::record(&desired, &observed)), (expected, then), "{what}");
    }
    // Only the Job of this volume counts, not that of another.
    for (volume, initialized) in [("a", true), ("b", false)] {
        let mut observed = ObservedPostgresql::default();
        observed.recorded.volume = recorded("a", false);
        observed.objects.insert(data(), claim("a", OURS));
        observed.objects.insert((Kind::Job, names::initialize("acme", volume)), made.clone());
        assert_eq!(super::record(&acme(json!({})), &observed), recorded("a", initialized));
    }
}

#[test]
fn an_accepted_volume_replaces_the_recorded_one() {
    let mut desired = acme(json!({}));
    let mut observed = settled(&desired);
    observed.objects.insert(data(), claim("b", None));
    for (accepted, then) in [("c", "u"), ("b", "b")] {
        desired.accepted_volume = Some(accepted.to_owned());
        assert_eq!(super::record(&desired, &observed), recorded(then, true));
    }
}

/// A change of the settled state, and the reason that follows.
type Loss<'a> = (&'a str, fn(&mut ObservedPostgresql), &'a str);

/// Once there was a database, no step creates another database, volume or server, whatever happens to the volume.
#[test]
fn a_lost_database_is_never_recreated() {
    let desired = acme(json!({"replicas": 2, "backup": {"schedule": "@daily"}}));
    let losses: [Loss<'_>; 4] = [
        ("gone", |w| drop(w.objects.remove(&data())), "VolumeLost"),
        ("another", |w| drop(w.objects.insert(data(), claim("b", OURS))), "VolumeLost"),
        ("empty", |w| w.pods[0].refused = Some(ScriptRefusal::NoDatabase), "VolumeLost"),
        ("other", |w| w.pods[0].refused = Some(ScriptRefusal::OtherVersion), "VersionMismatch"),
    ];
    for (what, change, expected) in losses {
        for without_servers in [false, true] {
            let mut observed = settled(&desired);
            observed.pods[0].waiting = Some("it ended".to_owned());
            change(&mut observed);
            if without_servers {
                observed.objects.retain(|(kind, _), _| *kind != Kind::StatefulSet);
            }
            let plan = decide(&desired, &observed);
            assert_eq!(reason(&plan), Some((expected, true)), "{what}");
            let made = |step: &PostgresqlStep| match step {
                PostgresqlStep::CreateVolume(_) | PostgresqlStep::Initialize(_) => true,
                // A server that refuses an empty volume may exist.
                PostgresqlStep::Apply(Object { id, .. }) => {
                    id.0 == Kind::StatefulSet && ["gone", "another"].contains(&what)
                }
                _ => false,
            };
            assert!(!plan.steps.iter().any(made), "{what}: {:?}", plan.steps);
        }
    }
}

/// A Postgresql whose volume has no database yet, with this Job, and with a pod of the Job that waits.
fn uninitialized(desired: &Desired, job: Option<ObjectView>, pod: PodView) -> ObservedPostgresql {
    let mut observed = settled(desired);
    observed.recorded.volume = recorded("a", false);
    observed.pods.clear();
    observed.objects.remove(&(Kind::StatefulSet, "acme".to_owned()));
    observed.objects.insert(data(), claim("a", OURS));
    if let Some(job) = job {
        let name = names::initialize("acme", "a");
        observed.pods.push(PodView { job: Some(name.clone()), ..pod });
        observed.objects.insert((Kind::Job, name), job);
    }
    observed
}

#[test]
fn the_job_that_creates_the_database() {
    let desired = acme(json!({}));
    let name = names::initialize("acme", "a");
    let waiting = Some(("Provisioning", false));
    let (failed, other) = (Some(Some(false)), Some(ScriptRefusal::OtherVersion));
    let initialize = format!("initialize {name}");
    for (what, job, refused, expected, hold) in [
        ("none yet", None, None, vec![initialize], waiting),
        ("it runs", Some(None), None, vec![], waiting),
        ("it has, and that is not on record yet", Some(Some(true)), None, vec![], waiting),
        ("it has failed", failed, None, vec![], Some(("InitializationFailed", true))),
        ("there is none", failed, Some(ScriptRefusal::NoDatabase), vec![], Some(("VolumeLost", true))),
        ("another version", failed, other, vec![], Some(("VersionMismatch", true))),
    ] {
        let digest = Some(initialize::job(&desired, "a", true).digest);
        let job = job.map(|succeeded| view(digest, Detail::Job(JobView { succeeded, ..JobView::default() })));
        let pod = PodView { refused, ..pod(&format!("{name}-x"), "initialize", Some("y")) };
        let plan = decide(&desired, &uninitialized(&desired, job, pod));
        assert_eq!(steps(&plan), expected, "{what}");
        assert_eq!(reason(&plan), hold, "{what}");
    }
    // An event says why it has no pod; a pod says more.
    let digest = Some(initialize::job(&desired, "a", true).digest);
    let mut observed = uninitialized(&desired, None, pod("x", "initialize", Some("y")));
    observed.objects.insert((Kind::Job, name.clone()), view(digest, Detail::Job(JobView::default())));
    observed.refusals.insert((Kind::Job, name.clone()), "exceeded quota".to_owned());
    let message = |observed: &ObservedPostgresql| decide(&desired, observed).hold.unwrap().message;
    assert_eq!(message(&observed), format!("waiting for Job {name}, which makes the database; exceeded quota"));
    observed.pods.push(PodView { job: Some(name.clone()), ..pod("x", "initialize", Some("y")) });
    assert_eq!(message(&observed), format!("waiting for Job {name}, which makes the database; pod x: y"));
    // Once that is recorded, the Job is no longer needed.
    let mut observed = settled(&desired);
    observed.objects.insert((Kind::Job, name.clone()), view(None, Detail::None));
    assert_eq!(steps(&decide(&desired, &observed)), [format!("delete Job {name}")]);
}

/// A Job of an image that does not exist, or with too little memory, would never end.
#[test]
fn a_job_of_an_outdated_spec_is_replaced() {
    let delete = vec![format!("delete Job {}", names::initialize("acme", "a"))];
    let requested = Some("1".to_owned());
    // The generation of the Job, whether it succeeded, and whether it is being deleted.
    for (what, generation, succeeded, deleting, expected) in [
        ("corrected while it runs", requested.clone(), None, false, delete.clone()),
        ("of an earlier operator", None, None, false, delete.clone()),
        ("corrected after it failed", requested.clone(), Some(false), false, delete.clone()),
        ("on its way out", requested.clone(), None, true, vec![]),
        ("another operator, while it runs", Some("2".to_owned()), None, false, vec![]),
        ("another operator, after it failed", Some("2".to_owned()), Some(false), false, delete),
        ("it has made the database", requested, Some(true), false, vec![]),
    ] {
        let desired = Desired { generation: 2, ..acme(json!({"image": "postgres:17.2"})) };
        let former = initialize::job(&acme(json!({"image": "postgres:no-such-tag"})), "a", true).digest;
        let job = JobView { generation, succeeded, ..JobView::default() };
        let job = ObjectView { deleting, ..view(Some(former), Detail::Job(job)) };
        let observed = uninitialized(&desired, Some(job), pod("x", "initialize", Some("y")));
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan), expected, "{what}");
        let replacing = matches!(plan.hold, Some(PostgresqlHold { reason: Reason::Replacing, .. }));
        assert_eq!(replacing, deleting || !expected.is_empty(), "{what}");
    }
}

/// One row: the dump in `spec.restore`, the uid for which the claim was made, the volume with dumps, the dump and the result of the
/// Job, what its pod refuses, the step on the Job, and the reason and the words of the hold.
type Restoring<'a> = (
    &'a str,
    Option<&'a str>,
    Option<&'a str>,
    DumpSource,
    Option<(&'a str, Option<bool>)>,
    Option<ScriptRefusal>,
    Option<&'a str>,
    (&'a str, &'a str),
);

#[test]
fn a_database_from_a_dump() {
    use DumpSource::{Deleting, Missing, NotAllowed, Usable};
    let name = names::initialize("acme", "a");
    let latest = Some("latest");
    let (runs, failed) = (Some(("latest", None)), Some(("latest", Some(false))));
    let (begin, again) = (Some("initialize"), Some("delete Job"));
    let doing = "which restores dump latest of PersistentVolumeClaim c; pod x: y";
    let label = "`kubectl label pvc c";
    let damaged = ("RestoreFailed", "the dump is damaged; change spec.restore, or delete Job");
    let rows: [Restoring<'_>; 11] = [
        ("it begins", latest, OURS, Usable, None, None, begin, ("Restoring", "restores dump latest")),
        ("no claim", latest, OURS, Missing, None, None, None, ("DumpsMissing", "does not exist")),
        ("it goes", latest, OURS, Deleting, None, None, None, ("DumpsMissing", "being deleted")),
        ("another's", latest, OURS, NotAllowed, None, None, None, ("DumpsMissing", label)),
        ("handed over", latest, None, Usable, None, None, begin, ("Provisioning", "which makes the database")),
        ("it runs", latest, OURS, Usable, runs, None, None, ("Restoring", doing)),
        ("the volume is looked at once", latest, OURS, Missing, runs, None, None, ("Restoring", doing)),
        ("another dump", latest, OURS, Usable, Some(("x", Some(false))), None, again, ("Replacing", "has changed")),
        ("none any more", None, OURS, Usable, Some(("x", None)), None, again, ("Replacing", "has changed")),
        ("refused", latest, OURS, Usable, failed, Some(ScriptRefusal::Dump), None, damaged),
        ("failed", latest, OURS, Usable, failed, None, None, ("RestoreFailed", "delete the Job")),
    ];
    for (what, from, made_for, dump_source, job, refused, step, (reason, words)) in rows {
        let desired = Desired { restore: from.map(|from| Restore::of_claim(from, "c")), ..acme(json!({})) };
        let failed = Some("the dump is damaged".to_owned());
        let pod = PodView { refused, failure_line: failed, ..pod("x", "initialize", Some("y")) };
        let job = job.map(|(from, succeeded)| {
            let restore = Some(Restore::of_claim(from, "c"));
            let current = restore == desired.restore;
            let job = JobView { restore: restore.map(Box::new), succeeded, ..JobView::default() };
            view(current.then(|| initialize::job(&desired, "a", true).digest), Detail::Job(job))
        });
        let mut observed = ObservedPostgresql { dump_source, ..uninitialized(&desired, job, pod) };
        observed.objects.insert(data(), claim("a", made_for));
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan), Vec::from_iter(step.map(|step| format!("{step} {name}"))), "{what}");
        let hold = plan.hold.unwrap();
        assert!(hold.reason.as_str() == reason && hold.message.contains(words), "{what}: {hold:?}");
    }
}

/// Only the operator's image reaches a bucket, with credentials that are allowed for this restore.
#[test]
fn a_database_from_a_bucket() {
    let spec = json!({"restore": {"store": {
        "endpoint": "https://s3.example.com/", "bucket": "dumps", "path": "prod/shop/orders", "credentialsSecret": {"name": "s3"},
    }}});
    let restores = "restores dump latest of https://s3.example.com/dumps/prod/shop/orders";
    let unknown = "spec.restore.store: the operator does not know its own image";
    let label = "`kubectl label secret s3 -n ns apps.bnerd-operator.local/restore-to=acme`";
    let missing = "Secret s3, which spec.restore names, does not exist";
    let known = Some("operator:1");
    for (source, image, expected) in [
        (DumpSource::Usable, known, ("Restoring", restores)),
        (DumpSource::Usable, None, ("OperatorImageUnknown", unknown)),
        (DumpSource::Missing, known, ("DumpsMissing", missing)),
        (DumpSource::NotAllowed, known, ("DumpsMissing", label)),
    ] {
        let desired = Desired { operator_image: image.map(OperatorImage::named), ..acme(spec.clone()) };
        let observed =
            ObservedPostgresql { dump_source: source, ..uninitialized(&desired, None, pod("x", "initialize", None)) };
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan).is_empty(), expected.0 != "Restoring", "{expected:?}");
        let hold = plan.hold.unwrap();
        assert!(hold.reason.as_str() == expected.0 && hold.message.contains(expected.1), "{expected:?}: {hold:?}");
    }
}

#[test]
fn a_restore_is_recorded_with_the_volume() {
    let desired = acme(json!({"restore": {"claim": "c"}}));
    let name = names::initialize("acme", "a");
    for (said, dump, tables) in
        [(Some("20260101T000000Z-x 12"), "20260101T000000Z-x", Some(12)), (None, "latest", None)]
    {
        let mut observed = ObservedPostgresql::default();
        observed.recorded.volume = recorded("a", false);
        observed.objects.insert(data(), claim("a", OURS));
        let job =
            JobView { restore: desired.restore.clone().map(Box::new), succeeded: Some(true), ..JobView::default() };
        add_job(&mut observed, &name, job);
        let said = said.map(str::to_owned);
        observed.pods.push(PodView {
            job: Some(name.clone()),
            termination_message: said,
            ..pod("x", "initialize", None)
        });
        let claim = Some("c".to_owned());
        let expected =
            RestoreRecord { dump: dump.to_owned(), claim, store: None, tables, completed_at: None, request: None };
        assert_eq!(super::restored(&desired, &observed), Some(expected.clone()));
        assert_eq!(super::record(&desired, &observed), recorded("a", true));
        // The pod may show later than the Job, when the volume is on record already.
        let before = RestoreRecord { dump: "latest".to_owned(), tables: None, ..expected.clone() };
        observed.recorded.restored = Some(before);
        observed.recorded.volume = recorded("a", true);
        assert_eq!(super::restored(&desired, &observed), Some(expected.clone()));
        // It stays, whatever happens to the Job.
        observed.recorded.restored = Some(expected.clone());
        observed.objects.remove(&(Kind::Job, name.clone()));
        assert_eq!(super::restored(&desired, &observed), Some(expected));
    }
}
