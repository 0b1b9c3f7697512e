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

fn job(observed: &mut Observed, request: &str, succeeded: Option<bool>) {
    let detail = Detail::Job(JobView { request: Some(request.to_owned()), succeeded, ..JobView::default() });
    observed.objects.insert((Kind::Job, names::dump("acme", request)), view(None, detail));
}

fn job_goes(observed: &mut Observed) {
    job(observed, "one", None);
    observed.objects.values_mut().for_each(|view| view.deleting |= matches!(view.detail, Detail::Job(_)));
}

fn scheduled(observed: &mut Observed) {
    job(observed, "one", Some(true));
    let detail = Detail::Job(JobView { succeeded: Some(true), ..JobView::default() });
    observed.objects.insert((Kind::Job, "acme-backup-1".to_owned()), view(None, detail));
}

fn no_password(observed: &mut Observed) {
    observed.credentials.kept = SecretView::Absent;
}

fn ended_alone(observed: &mut Observed) {
    observed.pods.clear();
    job(observed, "one", Some(true));
}

fn both(observed: &mut Observed) {
    job(observed, "one", Some(true));
    job(observed, "two", None);
}

/// One row: what is recorded, what is different from what is settled, the steps on the Jobs of these requests, and what is
/// recorded then.
type Row<'a> = (&'a str, Value, Last<'a>, fn(&mut Observed), &'a [(&'a str, &'a str)], Last<'a>);
type Last<'a> = Option<(&'a str, DumpState)>;

#[test]
fn a_request_gets_one_dump() {
    let [running, succeeded, failed] =
        [DumpState::Running, DumpState::Succeeded, DumpState::Failed].map(|state| Some(("one", state)));
    let none = || json!({"backup": {"schedule": "@daily"}});
    let two_runs = Some(("two", DumpState::Running));
    let in_its_place = [("apply", "two"), ("delete", "one")];
    let rows: &[Row<'_>] = &[
        ("nothing is asked for", none(), None, |_| {}, &[], None),
        ("a dump is", on("one"), None, |_| {}, &[("apply", "one")], None),
        ("it runs", on("one"), None, |w| job(w, "one", None), &[], running),
        ("it goes on", on("one"), running, |w| job(w, "one", None), &[], running),
        ("it succeeds", on("one"), running, |w| job(w, "one", Some(true)), &[], succeeded),
        ("it fails", on("one"), running, |w| job(w, "one", Some(false)), &[], failed),
        ("the record is lost", on("one"), None, |w| job(w, "one", Some(true)), &[], succeeded),
        ("its Job is gone", on("one"), succeeded, |_| {}, &[], succeeded),
        ("it has failed", on("one"), failed, |w| job(w, "one", Some(false)), &[], failed),
        ("a failed one is tried again once its Job is gone", on("one"), failed, |_| {}, &[("apply", "one")], failed),
        ("and is another one from then on", on("one"), failed, |w| job(w, "one", None), &[], running),
        ("what is recorded stands", on("one"), succeeded, |w| job(w, "one", None), &[], succeeded),
        ("its Job is gone before it ended", on("one"), running, |_| {}, &[("apply", "one")], running),
        ("its Job is on its way out", on("one"), running, job_goes, &[], running),
        ("there is no primary", on("one"), None, |w| w.pods.clear(), &[], None),
        ("it is not ready", on("one"), None, |w| w.pods[0].waiting = Some("x".to_owned()), &[], None),
        // Dumps take another password than clients.
        ("there is no password for clients", on("one"), None, no_password, &[("apply", "one")], None),
        ("there is none for dumps", on("one"), None, |w| w.replication = SecretView::Absent, &[], None),
        ("the volume goes", on("one"), None, |w| volume(w).deleting = true, &[], None),
        ("the volume is another's", on("one"), None, |w| volume(w).owner = Owner::Other("x".to_owned()), &[], None),
        ("another word", on("two"), succeeded, |w| job(w, "one", Some(true)), &in_its_place, succeeded),
        ("after a failure", on("two"), failed, |w| job(w, "one", Some(false)), &in_its_place, failed),
        ("before the one before has ended", on("two"), running, |w| job(w, "one", None), &[("apply", "two")], running),
        ("as it ends", on("two"), running, ended_alone, &[], succeeded),
        ("after it has ended", on("two"), two_runs, both, &[("delete", "one")], two_runs),
        ("the word is taken away", none(), running, |w| job(w, "one", Some(false)), &[], failed),
        ("and its Job", none(), running, |_| {}, &[], failed),
        ("and all dumps", json!({}), succeeded, |_| {}, &[], succeeded),
        ("a dump by schedule has ended", on("one"), succeeded, scheduled, &[], succeeded),
    ];
    for (what, spec, before, change, expected, after) in rows {
        let desired = of(spec.clone());
        let mut observed = settled(&desired);
        observed.recorded.dump = before.and_then(|(request, state)| recorded(request, state));
        change(&mut observed);
        let plan = decide(&desired, &observed);
        let on_jobs: Vec<_> = steps(&plan).into_iter().filter(|step| step.contains(" Job ")).collect();
        let expected: Vec<_> =
            expected.iter().map(|(verb, request)| format!("{verb} Job {}", names::dump("acme", request))).collect();
        assert_eq!(on_jobs, expected, "{what}");
        let dump = record(&desired, &observed);
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
    let mut observed = settled(&desired);
    assert_eq!(summary(&desired, &observed), None);
    observed.recorded.backup = Some(BackupSummary {
        last_success: time(2),
        last_failure: time(2),
        failed_job: Some("x".to_owned()),
        failure: Some("y".to_owned()),
    });
    for (job, succeeded, ended) in [
        ("acme-backup-1", Some(true), time(3)),
        ("acme-backup-2", Some(false), time(4)),
        // Older than what is known, not ended, and no dump.
        ("acme-backup-0", Some(false), time(1)),
        ("acme-dump-1", None, None),
        ("acme-init-1", Some(false), time(9)),
    ] {
        let detail = Detail::Job(JobView { succeeded, ended, ..JobView::default() });
        observed.objects.insert((Kind::Job, job.to_owned()), view(None, detail));
    }
    let failed_job = Some("acme-backup-2".to_owned());
    let expected = BackupSummary { last_success: time(3), last_failure: time(4), failed_job, failure: None };
    assert_eq!(summary(&desired, &observed), Some(expected.clone()));
    // What its pod says comes to be known later, and outlives the pod.
    observed.recorded.backup = Some(expected.clone());
    let mut pod = crate::postgresql::decide::tests::pod("acme-backup-2-x", "backup", Some("x"));
    pod.failed = Some(("acme-backup-2".to_owned(), "the storage is full".to_owned()));
    observed.pods.push(pod);
    let told = BackupSummary { failure: Some("the storage is full".to_owned()), ..expected };
    assert_eq!(summary(&desired, &observed), Some(told.clone()));
    observed.recorded.backup = Some(told.clone());
    observed.pods.clear();
    assert_eq!(summary(&desired, &observed), Some(told));
}

fn volume(observed: &mut Observed) -> &mut ObjectView {
    observed.objects.get_mut(&(Kind::PersistentVolumeClaim, "acme-backup".to_owned())).unwrap()
}

#[test]
fn a_dump_holds_nothing_up() {
    let desired = of(on("one"));
    let mut observed = settled(&desired);
    for succeeded in [None, Some(false), Some(true)] {
        job(&mut observed, "one", succeeded);
        assert_eq!(reason(&decide(&desired, &observed)), None);
    }
    let name = names::dump("acme", "one");
    observed.objects.get_mut(&(Kind::Job, name)).unwrap().owner = Owner::Other("x".to_owned());
    assert_eq!(reason(&decide(&desired, &observed)), Some(("NotOurs", true)));
}

#[test]
fn without_its_own_image_the_operator_uploads_nothing_and_says_so() {
    let of = |image: Option<&str>| Desired {
        operator_image: image.map(str::to_owned),
        ..of(crate::postgresql::desired::tests::stored(json!({})))
    };
    for (image, expected) in [(None, Some(("OperatorImageUnknown", true))), (Some("operator:1"), None)] {
        let desired = of(image);
        assert_eq!(reason(&decide(&desired, &settled(&desired))), expected);
    }
}

#[test]
fn a_failure_says_what_to_do() {
    let desired = of(on("one"));
    let mut observed = settled(&desired);
    job(&mut observed, "one", Some(false));
    let message = record(&desired, &observed).unwrap().message.unwrap();
    assert_eq!(
        message,
        "Job acme-dump-7692c3ad35 has failed: see `kubectl logs -n ns job/acme-dump-7692c3ad35`; delete the Job for another try, or put another word into spec.backup.request"
    );
    let mut pod = crate::postgresql::decide::tests::pod("acme-dump-7692c3ad35-x", "backup", Some("x"));
    pod.failed = Some(("acme-dump-7692c3ad35".to_owned(), "the storage is full".to_owned()));
    observed.pods.push(pod);
    let message = record(&desired, &observed).unwrap().message.unwrap();
    assert!(message.starts_with("Job acme-dump-7692c3ad35 has failed: the storage is full: see"), "{message}");
}
