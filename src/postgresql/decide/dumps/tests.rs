use serde_json::{Value, json};

use super::*;
use crate::postgresql::decide::{
    decide,
    tests::{of, reason, settled, steps, view},
};

fn on(request: &str) -> Value {
    json!({"backup": {"request": request, "onDelete": true}})
}

fn recorded(request: &str, state: DumpState) -> Option<DumpRecord> {
    let job = names::dump("acme", request);
    Some(DumpRecord { request: request.to_owned(), job, state, started_at: None, completed_at: None, message: None })
}

fn job(world: &mut World, request: &str, succeeded: Option<bool>) {
    let detail = Detail::Job(JobView { request: Some(request.to_owned()), succeeded, ..JobView::default() });
    world.objects.insert((Kind::Job, names::dump("acme", request)), view(None, detail));
}

/// One row: what is recorded, what is different from a settled world, the steps on the Jobs of these requests, and what is
/// recorded then.
type Row<'a> = (
    &'a str,
    Value,
    Option<(&'a str, DumpState)>,
    fn(&mut World),
    &'a [(&'a str, &'a str)],
    Option<(&'a str, DumpState)>,
);

#[test]
fn a_request_gets_one_dump() {
    use DumpState::{Failed, Running, Succeeded};
    let none = || json!({"backup": {"schedule": "@daily"}});
    let rows: &[Row<'_>] = &[
        ("nothing is asked for", none(), None, |_| {}, &[], None),
        ("a dump is", on("one"), None, |_| {}, &[("apply", "one")], None),
        ("it runs", on("one"), None, |w| job(w, "one", None), &[], Some(("one", Running))),
        ("it goes on", on("one"), Some(("one", Running)), |w| job(w, "one", None), &[], Some(("one", Running))),
        (
            "it succeeds",
            on("one"),
            Some(("one", Running)),
            |w| job(w, "one", Some(true)),
            &[],
            Some(("one", Succeeded)),
        ),
        ("it fails", on("one"), Some(("one", Running)), |w| job(w, "one", Some(false)), &[], Some(("one", Failed))),
        ("the record is lost", on("one"), None, |w| job(w, "one", Some(true)), &[], Some(("one", Succeeded))),
        ("its Job is gone", on("one"), Some(("one", Succeeded)), |_| {}, &[], Some(("one", Succeeded))),
        ("it has failed", on("one"), Some(("one", Failed)), |w| job(w, "one", Some(false)), &[], Some(("one", Failed))),
        (
            "one that failed is tried again once its Job is gone",
            on("one"),
            Some(("one", Failed)),
            |_| {},
            &[("apply", "one")],
            Some(("one", Failed)),
        ),
        (
            "and is another one from then on",
            on("one"),
            Some(("one", Failed)),
            |w| job(w, "one", None),
            &[],
            Some(("one", Running)),
        ),
        (
            "what is recorded stands",
            on("one"),
            Some(("one", Succeeded)),
            |w| job(w, "one", None),
            &[],
            Some(("one", Succeeded)),
        ),
        (
            "its Job is gone before it ended",
            on("one"),
            Some(("one", Running)),
            |_| {},
            &[("apply", "one")],
            Some(("one", Running)),
        ),
        (
            "its Job is on its way out",
            on("one"),
            Some(("one", Running)),
            |w| {
                job(w, "one", None);
                w.objects.values_mut().for_each(|view| view.deleting |= matches!(view.detail, Detail::Job(_)));
            },
            &[],
            Some(("one", Running)),
        ),
        ("there is no primary", on("one"), None, |w| w.pods.clear(), &[], None),
        ("it is not ready", on("one"), None, |w| w.pods[0].waiting = Some("x".to_owned()), &[], None),
        // Dumps take another password than clients.
        (
            "there is no password for clients",
            on("one"),
            None,
            |w| w.credentials.kept = SecretView::Absent,
            &[("apply", "one")],
            None,
        ),
        ("there is none for dumps", on("one"), None, |w| w.replication = SecretView::Absent, &[], None),
        ("the volume goes", on("one"), None, |w| volume(w).deleting = true, &[], None),
        ("the volume is another's", on("one"), None, |w| volume(w).owner = Owner::Other("x".to_owned()), &[], None),
        (
            "another word",
            on("two"),
            Some(("one", Succeeded)),
            |w| job(w, "one", Some(true)),
            &[("apply", "two"), ("delete", "one")],
            Some(("one", Succeeded)),
        ),
        (
            "after a failure",
            on("two"),
            Some(("one", Failed)),
            |w| job(w, "one", Some(false)),
            &[("apply", "two"), ("delete", "one")],
            Some(("one", Failed)),
        ),
        (
            "before the one before has ended",
            on("two"),
            Some(("one", Running)),
            |w| job(w, "one", None),
            &[("apply", "two")],
            Some(("one", Running)),
        ),
        (
            "as it ends",
            on("two"),
            Some(("one", Running)),
            |w| {
                w.pods.clear();
                job(w, "one", Some(true));
            },
            &[],
            Some(("one", Succeeded)),
        ),
        (
            "after it has ended",
            on("two"),
            Some(("two", Running)),
            |w| {
                job(w, "one", Some(true));
                job(w, "two", None);
            },
            &[("delete", "one")],
            Some(("two", Running)),
        ),
        (
            "the word is taken away",
            none(),
            Some(("one", Running)),
            |w| job(w, "one", Some(false)),
            &[],
            Some(("one", Failed)),
        ),
        ("and its Job", none(), Some(("one", Running)), |_| {}, &[], Some(("one", Failed))),
        ("and all dumps", json!({}), Some(("one", Succeeded)), |_| {}, &[], Some(("one", Succeeded))),
        (
            "a dump by schedule has ended",
            on("one"),
            Some(("one", Succeeded)),
            |w| {
                job(w, "one", Some(true));
                let detail = Detail::Job(JobView { succeeded: Some(true), ..JobView::default() });
                w.objects.insert((Kind::Job, "acme-backup-1".to_owned()), view(None, detail));
            },
            &[],
            Some(("one", Succeeded)),
        ),
    ];
    for (what, spec, before, change, expected, after) in rows {
        let desired = of(spec.clone());
        let mut world = settled(&desired);
        world.recorded.dump = before.and_then(|(request, state)| recorded(request, state));
        change(&mut world);
        let plan = decide(&desired, &world);
        let on_jobs: Vec<_> = steps(&plan).into_iter().filter(|step| step.contains(" Job ")).collect();
        let expected: Vec<_> =
            expected.iter().map(|(verb, request)| format!("{verb} Job {}", names::dump("acme", request))).collect();
        assert_eq!(on_jobs, expected, "{what}");
        let dump = record(&desired, &world);
        assert_eq!(dump.as_ref().map(|dump| (dump.request.as_str(), dump.state)), *after, "{what}");
        assert!(dump.is_none_or(|dump| dump.job == names::dump("acme", &dump.request)), "{what}");
    }
}

#[test]
fn how_the_dumps_went() {
    let time = |second: u8| -> Option<k8s_openapi::apimachinery::pkg::apis::meta::v1::Time> {
        serde_json::from_value(json!(format!("2026-01-01T00:00:0{second}Z"))).ok()
    };
    let desired = of(on("one"));
    let mut world = settled(&desired);
    assert_eq!(summary(&desired, &world), None);
    world.recorded.backup =
        Some(BackupSummary { last_success: time(2), last_failure: time(2), failed_job: Some("x".to_owned()) });
    for (job, succeeded, ended) in [
        ("acme-backup-1", Some(true), time(3)),
        ("acme-backup-2", Some(false), time(4)),
        // Older than what is known, not ended, and no dump.
        ("acme-backup-0", Some(false), time(1)),
        ("acme-dump-1", None, None),
        ("acme-init-1", Some(false), time(9)),
    ] {
        let detail = Detail::Job(JobView { succeeded, ended, ..JobView::default() });
        world.objects.insert((Kind::Job, job.to_owned()), view(None, detail));
    }
    let expected =
        BackupSummary { last_success: time(3), last_failure: time(4), failed_job: Some("acme-backup-2".to_owned()) };
    assert_eq!(summary(&desired, &world), Some(expected));
}

fn volume(world: &mut World) -> &mut ObjectView {
    world.objects.get_mut(&(Kind::PersistentVolumeClaim, "acme-backup".to_owned())).unwrap()
}

#[test]
fn a_dump_holds_nothing_up() {
    let desired = of(on("one"));
    let mut world = settled(&desired);
    for succeeded in [None, Some(false), Some(true)] {
        job(&mut world, "one", succeeded);
        assert_eq!(reason(&decide(&desired, &world)), None);
    }
    let name = names::dump("acme", "one");
    world.objects.get_mut(&(Kind::Job, name)).unwrap().owner = Owner::Other("x".to_owned());
    assert_eq!(reason(&decide(&desired, &world)), Some(("NotOurs", true)));
}

#[test]
fn a_failure_says_what_to_do() {
    let desired = of(on("one"));
    let mut world = settled(&desired);
    job(&mut world, "one", Some(false));
    let message = record(&desired, &world).unwrap().message.unwrap();
    assert_eq!(
        message,
        "Job acme-dump-7692c3ad35 has failed: see `kubectl logs -n ns job/acme-dump-7692c3ad35`; delete the Job for another try, or put another word into spec.backup.request"
    );
}
