use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::crd::{RepositoryPassword, conditions::find, reason::BACKED_UP};
use crate::platform::{fake::of, operator_image::OperatorImage};
use crate::postgresql::decide::{
    decide,
    tests::{acme, add_job, pod, reason, settled, steps},
};
use crate::postgresql::observed::PodView;
use crate::postgresql::status::conditions::build_status;

fn on(request: &str) -> Value {
    json!({"backup": {"request": request, "onDelete": true}})
}

fn recorded(request: &str, state: DumpState) -> Option<DumpRecord> {
    let job = names::dump("acme", request);
    Some(of(json!({"request": request, "job": job, "state": state})))
}

fn job(observed: &mut ObservedPostgresql, request: &str, succeeded: Option<bool>) {
    let view = JobView { request: Some(request.to_owned()), succeeded, ..JobView::default() };
    add_job(observed, &names::dump("acme", request), view);
}

fn job_goes(observed: &mut ObservedPostgresql) {
    job(observed, "one", None);
    observed.objects.values_mut().for_each(|view| view.deleting |= matches!(view.detail, Detail::Job(_)));
}

fn scheduled(observed: &mut ObservedPostgresql) {
    job(observed, "one", Some(true));
    add_job(observed, "acme-backup-1", JobView { succeeded: Some(true), ..JobView::default() });
}

fn no_password(observed: &mut ObservedPostgresql) {
    observed.credentials.kept = SecretState::Absent;
}

fn ended_alone(observed: &mut ObservedPostgresql) {
    observed.pods.clear();
    job(observed, "one", Some(true));
}

fn both(observed: &mut ObservedPostgresql) {
    job(observed, "one", Some(true));
    job(observed, "two", None);
}

/// One row: the record, the difference from the settled state, the steps on the Jobs of these requests, and the new record.
type Row<'a> = (&'a str, Value, Last<'a>, fn(&mut ObservedPostgresql), &'a [(&'a str, &'a str)], Last<'a>);
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
        // Dumps use another password than clients.
        ("there is no password for clients", on("one"), None, no_password, &[("apply", "one")], None),
        ("there is none for dumps", on("one"), None, |w| w.replication = SecretState::Absent, &[], None),
        ("the volume goes", on("one"), None, |w| volume(w).deleting = true, &[], None),
        ("the volume is another's", on("one"), None, |w| volume(w).owner = Ownership::Other("x".to_owned()), &[], None),
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
        let desired = acme(spec.clone());
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
fn a_request_has_the_dump_of_its_own_pod() {
    let desired = acme(on("one"));
    let mut observed = settled(&desired);
    job(&mut observed, "one", Some(true));
    let of = |observed: &ObservedPostgresql| record(&desired, observed).unwrap().dump;
    assert_eq!(of(&observed), None);
    observed.recorded.dump = record(&desired, &observed);
    assert_eq!(of(&observed), None, "its pod has not shown yet");
    let reports = "20260131T040000Z-other 5 2\n20260131T035900Z-x7k2p 5 2\n20260130T030000Z-old 5 2";
    let mut reported = |name: &str, of: &str| {
        let (job, message) = (Some(of.to_owned()), Some(reports.to_owned()));
        observed.pods.push(PodView { job, termination_message: message, ..pod(name, "", None) });
    };
    reported("acme-backup-1-other", "acme-backup-1");
    reported(&format!("{}-x7k2p", names::dump("acme", "one")), &names::dump("acme", "one"));
    let known = of(&observed);
    assert_eq!(known.as_deref(), Some("20260131T035900Z-x7k2p"));
    observed.recorded.dump = record(&desired, &observed);
    observed.pods.clear();
    assert_eq!(of(&observed), known, "it is recorded");
}

#[test]
fn dump_summary() {
    let time = |second: u8| Some(of::<Time>(json!(format!("2026-01-01T00:00:0{second}Z"))));
    let none = BackupSummary::default;
    let desired = acme(on("one"));
    let mut observed = settled(&desired);
    assert_eq!(summary(&desired, &observed), None);
    observed.recorded.backup = Some(BackupSummary {
        last_success: time(2),
        last_failure: time(2),
        failed_job: Some("x".to_owned()),
        failure: Some("y".to_owned()),
        ..none()
    });
    for (job, succeeded, ended) in [
        ("acme-backup-1", Some(true), time(3)),
        ("acme-backup-2", Some(false), time(4)),
        // Older than the record, not ended, and not a dump.
        ("acme-backup-0", Some(false), time(1)),
        ("acme-dump-1", None, None),
        ("acme-init-1", Some(false), time(9)),
    ] {
        add_job(&mut observed, job, JobView { succeeded, started: time(1), ended, ..JobView::default() });
    }
    let expected = BackupSummary {
        last_success: time(3),
        last_duration: Some(2),
        last_failure: time(4),
        failed_job: Some("acme-backup-2".to_owned()),
        ..none()
    };
    assert_eq!(summary(&desired, &observed), Some(expected.clone()));
    // The dumps on the volume, from the message of the newest pod, which may show late.
    let said = "20260102T000000Z-b 1234 7\n20260101T000000Z-a 900 0\nanything else";
    let pod = |job: &str, said: &str| {
        let (job, said) = (Some(job.to_owned()), Some(said.to_owned()));
        PodView { job, termination_message: said, ..pod("acme-x", "backup", None) }
    };
    for (job, dumps) in [("acme-backup-0", 0), ("acme-backup-1", 2)] {
        observed.pods.push(pod(job, said));
        let dumps = &[("20260102T000000Z-b", 1234, 7), ("20260101T000000Z-a", 900, 0)][..dumps];
        let dumps = dumps.iter().map(|&(name, bytes, tables)| Dump { name: name.to_owned(), bytes, tables });
        let dumps: Vec<_> = dumps.collect();
        let volume = (!dumps.is_empty()).then(|| "u".to_owned());
        let expected = BackupSummary { dumps, volume, ..expected.clone() };
        assert_eq!(summary(&desired, &observed), Some(expected), "{job}");
    }
    // The cause of a failure may show later as well, and outlives the pod.
    observed.recorded.backup = Some(expected.clone());
    let failed = Some("the storage is full".to_owned());
    observed.pods = vec![PodView { failure_line: failed, termination_message: None, ..pod("acme-backup-2", "") }];
    let told = BackupSummary { failure: Some("the storage is full".to_owned()), ..expected };
    assert_eq!(summary(&desired, &observed), Some(told.clone()));
    observed.recorded.backup = Some(told.clone());
    observed.pods.clear();
    assert_eq!(summary(&desired, &observed), Some(told));
}

#[test]
fn drill_summary() {
    let time = |second: u8| Some(of::<Time>(json!(format!("2026-01-01T00:00:0{second}Z"))));
    let word = |word: &str| Some(word.to_owned());
    let desired = acme(json!({"backup": {"schedule": "@daily", "drill": "@weekly"}}));
    let mut observed = settled(&desired);
    let restored = Drill { last_success: time(2), dump: word("d"), tables: Some(3), ..Drill::default() };
    let unnamed = Drill { last_success: time(4), ..Drill::default() };
    let why = word("the dump is damaged; see `kubectl logs job/acme-drill-5 -n ns`");
    let failed = Drill { last_failure: time(5), message: why.clone(), ..restored.clone() };
    let unknown = word("the latest dump cannot be restored; see `kubectl logs job/acme-drill-5 -n ns`");
    let unseen = Drill { message: unknown, ..failed.clone() };
    for (what, before, succeeded, ended, said, after) in [
        ("the first", None, true, time(2), Some("d 3"), &restored),
        ("the same", Some(&restored), true, time(2), Some("d 3"), &restored),
        ("an older one", Some(&restored), true, time(1), Some("c 2"), &restored),
        ("its pod is not seen yet", Some(&restored), true, time(4), None, &unnamed),
        ("it fails", Some(&restored), false, time(5), Some("the dump is damaged"), &failed),
        ("it fails, and its pod is not seen", Some(&restored), false, time(5), None, &unseen),
        ("its pod is gone", Some(&failed), false, time(5), None, &failed),
    ] {
        let backup = BackupSummary { drill: before.cloned(), last_success: time(9), ..BackupSummary::default() };
        observed.recorded.backup = Some(backup.clone());
        let job = JobView { succeeded: Some(succeeded), ended, is_drill: true, ..JobView::default() };
        add_job(&mut observed, "acme-drill-5", job);
        let words = said.map(str::to_owned);
        let (said, failed) = if succeeded { (words, None) } else { (None, words) };
        observed.pods = vec![PodView {
            job: word("acme-drill-5"),
            termination_message: said,
            failure_line: failed,
            ..pod("acme-x", "drill", None)
        }];
        let expected = BackupSummary { drill: Some(after.clone()), ..backup };
        assert_eq!(results(&desired, &observed), Some(expected), "{what}");
    }
}

fn volume(observed: &mut ObservedPostgresql) -> &mut ObjectView {
    observed.objects.get_mut(&(Kind::PersistentVolumeClaim, "acme-backup".to_owned())).unwrap()
}

#[test]
fn the_password_of_the_repository_comes_before_the_first_dump() {
    let store = |generate: bool| {
        json!({
            "endpoint": "https://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"},
            "passwordSecret": {"name": "restic"}, "generatePassword": generate,
        })
    };
    let of = |generate: bool| json!({"backup": {"request": "one", "onDelete": true, "store": store(generate)}});
    let mut restored = of(true);
    restored["restore"] = json!({"store": {
        "endpoint": "https://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"},
        "passwordSecret": {"name": "restic"}, "path": "ns/acme",
    }});
    let known = || Some(RepositoryPassword { secret: "restic".to_owned(), uid: "u".to_owned() });
    let dump = format!("apply Job {}", names::dump("acme", "one"));
    let lost = "Secret restic with the repository's password is gone";
    for (what, spec, recorded, uid, expected, message) in [
        ("before the first", of(true), None, None, vec!["password restic"], None),
        ("it is generated", of(true), known(), Some("u"), vec![&*dump], None),
        // The Job says so as well.
        ("it is lost", of(true), known(), None, vec![&*dump], Some(lost)),
        ("a user's is lost", of(false), known(), None, vec![&*dump], Some(lost)),
        ("a user has not created it yet", of(false), None, None, vec![&*dump], None),
        ("the dump to restore has it", restored, None, None, vec![&*dump], None),
    ] {
        let desired = acme(spec);
        let mut observed = settled(&desired);
        observed.recorded.repository_password = recorded;
        observed.repository_password = uid.map(str::to_owned);
        let found = steps(&decide(&desired, &observed));
        let found: Vec<_> = found.iter().filter(|step| step.contains("password") || step.contains(" Job ")).collect();
        assert_eq!(found, expected, "{what}");
        let status = build_status(None, &desired, &observed, (&decide(&desired, &observed), None), observed.now);
        let told = find(&status.conditions, BACKED_UP).filter(|found| found.reason == "RepositoryPasswordLost");
        assert_eq!(told.map(|found| &found.message[..lost.len()]), message, "{what}");
        // What is on record stays there.
        let after = crate::postgresql::status::record::recorded(&desired, &observed).repository_password;
        assert_eq!(after, observed.recorded.repository_password, "{what}");
    }
}

#[test]
fn a_dump_never_holds_the_plan() {
    let desired = acme(on("one"));
    let mut observed = settled(&desired);
    for succeeded in [None, Some(false), Some(true)] {
        job(&mut observed, "one", succeeded);
        assert_eq!(reason(&decide(&desired, &observed)), None);
    }
    let name = names::dump("acme", "one");
    observed.objects.get_mut(&(Kind::Job, name)).unwrap().owner = Ownership::Other("x".to_owned());
    assert_eq!(reason(&decide(&desired, &observed)), Some(("NotOurs", true)));
}

#[test]
fn an_unknown_operator_image_prevents_uploads() {
    use crate::postgresql::desired::tests::{drilled, stored};
    for (spec, drills) in [(stored(json!({})), false), (drilled(json!({})), true)] {
        for (image, expected) in [(None, Some(("OperatorImageUnknown", true))), (Some("operator:1"), None)] {
            let desired = Desired { operator_image: image.map(OperatorImage::named), ..acme(spec.clone()) };
            let plan = decide(&desired, &settled(&desired));
            assert_eq!(reason(&plan), expected);
            let told = plan.hold.is_some_and(|hold| hold.message.contains("only, and there are no drills, since"));
            assert_eq!(told, drills && image.is_none());
        }
    }
}

#[test]
fn a_failed_dump_says_what_to_do() {
    let desired = acme(on("one"));
    let mut observed = settled(&desired);
    job(&mut observed, "one", Some(false));
    observed.recorded.dump = record(&desired, &observed);
    let message = observed.recorded.dump.clone().unwrap().message.unwrap();
    assert_eq!(
        message,
        "Job acme-dump-7692c3ad35 has failed: see `kubectl logs -n ns job/acme-dump-7692c3ad35`; delete the Job for another try, or put another word into spec.backup.request"
    );
    // Without a pod, an event says why.
    let mut refused = observed.clone();
    refused.refusals.insert((Kind::Job, "acme-dump-7692c3ad35".to_owned()), "exceeded quota".to_owned());
    let message = |observed: &ObservedPostgresql| record(&desired, observed).unwrap().message;
    refused.recorded.dump = None;
    assert!(message(&refused).unwrap().starts_with("Job acme-dump-7692c3ad35 has failed: exceeded quota: see"));
    job(&mut refused, "one", None);
    assert_eq!(message(&refused).as_deref(), Some("Job acme-dump-7692c3ad35 has no pod: exceeded quota"));
    let mut pod = crate::postgresql::decide::tests::pod("acme-dump-7692c3ad35-x", "backup", Some("x"));
    pod.job = Some("acme-dump-7692c3ad35".to_owned());
    pod.failure_line = Some("the storage is full".to_owned());
    observed.pods.push(pod);
    let message = record(&desired, &observed).unwrap().message.unwrap();
    assert!(message.starts_with("Job acme-dump-7692c3ad35 has failed: the storage is full: see"), "{message}");
    // The message outlives the pod.
    observed.recorded.dump = record(&desired, &observed);
    observed.pods.pop();
    assert_eq!(record(&desired, &observed).unwrap().message, Some(message));
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

const DUE: &str = "2026-01-02T03:00:00Z";
const DUMP: &str = "acme-dump-202601020300";
const DRILL: &str = "acme-drill-202601020300";

fn ended(observed: &mut ObservedPostgresql, name: &str, is_drill: bool, succeeded: Option<bool>) {
    let ended = succeeded.map(|_| Time(time("2026-01-02T03:01:00Z")));
    add_job(observed, name, JobView { is_drill, succeeded, ended, ..JobView::default() });
}

/// A Job that restores, beside the database or into a new one, is not ended: it may have changed the volume.
#[test]
fn a_dump_or_drill_in_which_nothing_runs_is_ended() {
    let desired = acme(on("one"));
    let start = time(DUE);
    let at = |minutes: i64| start + SignedDuration::from_mins(minutes);
    let waits = |why: &str, since: i64| {
        let why = Some(why);
        vec![PodView { idle_since: Some(at(since)), ..pod("x", "backup", why) }]
    };
    let runs = vec![pod("x", "backup", Some("it is not ready yet"))];
    let ended = || Some("nothing ran for 15 minutes: it has no pod".to_owned());
    let (dump, initialize, restore) =
        (names::dump("acme", "one"), names::initialize("acme", "u"), names::restore("acme", "back"));
    let no_pod = format!("end {dump}: it has no pod");
    let unscheduled = format!("end {dump}: pod x: it is not scheduled");
    let silent = format!("end {dump}: pod x: it is not ready yet (event of x)");
    let drill = format!("end {DRILL}: it has no pod");
    for (what, job, pods, not_started, minutes, expected) in [
        ("it has just begun", &*dump, vec![], None, 14, None),
        ("no pod", &dump, vec![], None, 15, Some(&*no_pod)),
        ("no node", &dump, waits("it is not scheduled", 1), None, 16, Some(&unscheduled)),
        ("no node for the second pod", &dump, waits("it is not scheduled", 10), None, 16, None),
        ("no words", &dump, waits("it is not ready yet", 1), None, 60, Some(&silent)),
        ("it runs", &dump, runs, None, 300, None),
        ("it is ended", &dump, vec![], ended(), 60, None),
        ("a drill", DRILL, vec![], None, 15, Some(&drill)),
        ("it creates the database", &initialize, vec![], None, 60, None),
        ("it restores", &restore, vec![], None, 60, None),
    ] {
        let mut observed = ObservedPostgresql { now: at(minutes), ..settled(&desired) };
        observed.recorded.backup = Some(BackupSummary::default());
        let view = JobView { is_drill: job == DRILL, waits_since: Some(start), not_started, ..JobView::default() };
        add_job(&mut observed, job, view);
        observed.pods.extend(pods.into_iter().map(|pod| PodView { job: Some(job.to_owned()), ..pod }));
        let ends: Vec<_> = steps(&decide(&desired, &observed)).into_iter().filter(|it| it.starts_with("end")).collect();
        assert_eq!(ends, Vec::from_iter(expected.map(str::to_owned)), "{what}");
        let looks = start_deadlines(&desired, &observed).min();
        assert!(expected.is_none() || looks.is_some_and(|looks| looks <= observed.now), "{what}: {looks:?}");
    }
    // The reason outlives the pod.
    let mut observed = settled(&desired);
    let failed = JobView {
        request: Some("one".to_owned()),
        succeeded: Some(false),
        ended: Some(Time(start)),
        not_started: ended(),
        ..JobView::default()
    };
    add_job(&mut observed, &dump, failed);
    let message = record(&desired, &observed).unwrap().message.unwrap();
    assert!(
        message.starts_with(&format!("Job {dump} has failed: nothing ran for 15 minutes: it has no pod")),
        "{message}"
    );
    assert_eq!(results(&desired, &observed).unwrap().failure, ended());
}

#[test]
fn what_is_due_is_made_once_it_can_be() {
    let spec = json!({"backup": {"schedule": "0 3 * * *", "drill": "0 3 * * *"}});
    let desired = acme(spec);
    let since = Time(time("2026-01-01T12:00:00Z"));
    let record =
        |next: &str| Scheduled { schedule: "0 3 * * *".to_owned(), since: since.clone(), next: Time(time(next)) };
    let late = "2026-01-02T03:00:20Z";
    let both: &[&str] = &["create acme-dump-202601020300", "create acme-drill-202601020300"];
    let [dump, drill] = [&both[..1], &both[1..]];
    type Change = fn(&mut ObservedPostgresql);
    type Due<'a> = (&'a str, &'a str, Change, &'a [&'a str], [&'a str; 2]);
    let requested: Change = |w| job(w, "one", None);
    let other: Change = |w| {
        ended(w, DUMP, false, None);
        let other = Ownership::Other("x".to_owned());
        w.objects.get_mut(&(Kind::Job, DUMP.to_owned())).unwrap().owner = other;
    };
    // Now, the difference from the settled state, the Jobs that follow, and when dumps and drills are due next.
    let rows: &[Due<'_>] = &[
        ("not yet", "2026-01-02T02:59:59Z", |_| {}, &[], [DUE, DUE]),
        ("now", DUE, |_| {}, both, [DUE, DUE]),
        ("a week later", "2026-01-09T12:00:00Z", |_| {}, both, [DUE, DUE]),
        ("there is no server", late, |w| w.pods.clear(), drill, [DUE, DUE]),
        ("it is not ready", late, |w| w.pods[0].waiting = Some("x".to_owned()), drill, [DUE, DUE]),
        ("the volume is another's", late, |w| volume(w).owner = Ownership::Other("x".to_owned()), &[], [DUE, DUE]),
        ("a dump on request runs", late, requested, drill, [DUE, DUE]),
        ("a drill runs", late, |w| ended(w, "acme-drill-1", true, None), dump, [DUE, DUE]),
        ("a restore runs", late, |w| ended(w, "acme-restore-1", false, None), both, [DUE, DUE]),
        ("the dump runs", late, |w| ended(w, DUMP, false, None), drill, ["2026-01-03T03:00:00Z", DUE]),
        ("the drill has failed", late, |w| ended(w, DRILL, true, Some(false)), dump, [DUE, "2026-01-03T03:00:00Z"]),
        ("the Job is another's", late, other, both, [DUE, DUE]),
    ];
    for (what, now, change, expected, next) in rows {
        let mut observed = settled(&desired);
        observed.now = time(now);
        let drill = Drill { scheduled: Some(record(DUE)), ..Drill::default() };
        let backup = BackupSummary { scheduled: Some(record(DUE)), drill: Some(drill), ..BackupSummary::default() };
        observed.recorded.backup = Some(backup);
        change(&mut observed);
        let recorded = summary(&desired, &observed).unwrap();
        let scheduled =
            [recorded.scheduled.as_ref(), recorded.drill.as_ref().and_then(|drill| drill.scheduled.as_ref())];
        assert_eq!(scheduled.map(|scheduled| scheduled.unwrap().next.0), next.map(time), "{what}");
        observed.recorded.backup = Some(recorded);
        let plan = decide(&desired, &observed);
        let jobs: Vec<_> = steps(&plan).into_iter().filter(|step| step.starts_with("create ")).collect();
        assert_eq!(jobs, *expected, "{what}");
    }
    // Without a schedule nothing is due, and a new one begins with its next time.
    let none = acme(json!({"backup": {"request": "one"}}));
    let mut observed = settled(&none);
    observed.now = time(late);
    observed.recorded.backup = Some(BackupSummary { scheduled: Some(record(DUE)), ..BackupSummary::default() });
    assert_eq!(summary(&none, &observed).unwrap().scheduled, None);
    let summary = summary(&desired, &ObservedPostgresql { now: time(late), ..ObservedPostgresql::default() }).unwrap();
    assert_eq!(summary.scheduled.unwrap().next.0, time("2026-01-03T03:00:00Z"));
}
