//! Tests what waits for approval or tests, and what follows a failure.

use super::*;
use crate::clientapp::helm_runs::Upgrading;

fn policy(policy: &str) -> Value {
    json!({"upgrade": {"onFailure": policy, "retries": 1, "timeout": "10m"}})
}

fn gone(observed: &mut Observed) {
    observed.objects.drifted = vec![DriftedObject { object: object("Service", "acme"), state: LiveState::Absent }];
}

#[test]
fn a_revision_is_tested_once_it_is_ready() {
    let tests = || json!({"test": {"enabled": true}});
    const TESTED: &str = "test, hold Tested/Testing";
    row("ready", tests(), |_| {}, TESTED);
    row("not ready", tests(), |w| w.objects.workloads[0].waiting = Some("0 of 1".to_owned()), "");
    row("not deployed", tests(), |w| w.release = None, "helm 1 again");
    let record = |passed: bool, retry: i64, secret: &'static str| {
        move |w: &mut Observed| {
            let retry_at = Some(Time(now() + SignedDuration::from_secs(retry)));
            let secret = secret.to_owned();
            w.recorded.test = Some(Tested { secret, passed, retry_at, failures: 1, ..Tested::default() });
        }
    };
    row("passed", tests(), record(true, 60, "revision-3"), "");
    row("another revision passed", tests(), record(true, 60, "revision-2"), TESTED);
    row("failed a moment ago", tests(), record(false, 60, "revision-3"), "hold Tested/TestFailed");
    row("failed a while ago", tests(), record(false, -1, "revision-3"), TESTED);
    row("failed by a clock that was ahead", tests(), record(false, 90_000, "revision-3"), TESTED);
    let testing = |w: &mut Observed| {
        let of = helm_tests::digest(&want(&tests()));
        w.run.state =
            HelmRun::Testing(Box::new(Upgrading { digest: of, sentence: "being tested".to_owned(), since: now() }));
    };
    row("under way", tests(), testing, "hold Tested/Testing");
    const STOPPED: &str = "cancel helm, hold Tested/Testing";
    row("another timeout", json!({"test": {"enabled": true, "timeout": "1m"}}), testing, STOPPED);
    row("no tests any more", none(), testing, STOPPED);
    row("helm has to run", tests(), |w| (testing(w), outdated(w)).1, STOPPED);
    row("its object is deleted", tests(), |w| (testing(w), gone(w)).1, "repair Service acme, hold Released/Drifted");
    let suspended = with(tests(), &json!({"suspend": true}));
    row("suspended", suspended, testing, "cancel helm, hold Reconciling/Suspended");
    // Its revision was Ready before.
    let desired = want(&tests());
    let desired = rolled_back(&desired);
    assert_eq!(brief(&decide(&desired, &settled(&desired), &config(), now())), "hold Released/RolledBack!");
}

#[test]
fn upgrades_that_need_approval() {
    let manual = |approved: Option<&str>| json!({"approval": "Manual", "approved": approved});
    const AWAITED: &str = "hold Released/AwaitingApproval!";
    row("nothing to do", manual(None), |_| {}, "");
    row("a change", manual(None), outdated, AWAITED);
    row("another plan is approved", manual(Some("another")), outdated, AWAITED);
    let repaired = format!("repair Service acme, {AWAITED}");
    row("an object is deleted meanwhile", manual(None), |w| (outdated(w), gone(w)).1, &repaired);
    row("nothing is to be approved", none(), outdated, "helm 4");
    let mut desired = want(&manual(None));
    let mut observed = settled(&desired);
    outdated(&mut observed);
    let planned = approval::planned(&desired, observed.prerequisites.chart.as_ref().unwrap());
    desired.upgrade.approved = Some(planned.digest.clone());
    let decided = || decide(&desired, &observed, &config(), now());
    assert_eq!(brief(&decided()), "helm 4");
    // The same version with other content is another plan.
    let replaced = CachedChart { digest: "other".to_owned(), ..observed.prerequisites.chart.clone().unwrap() };
    let mut other = observed.clone();
    other.prerequisites.chart = Some(replaced);
    let replaced = other;
    assert_eq!(brief(&decide(&desired, &replaced, &config(), now())), AWAITED);
    let values = want(&with(manual(Some(&planned.digest)), &json!({"values": {"a": 1}})));
    assert_eq!(brief(&decide(&values, &observed, &config(), now())), AWAITED);
    // A rollback goes back to what was approved before.
    let mut back = rolled_back(&desired);
    back.upgrade.approved = None;
    assert_eq!(brief(&decide(&back, &observed, &config(), now())), "helm 4");
}

#[test]
fn remediation_after_a_failure() {
    // A revision failed after this many attempts, and the one before it was ready, with this version of the app.
    let failed = |failures: u32, ready: Option<&'static str>| {
        move |w: &mut Observed| {
            let release = w.release.as_mut().unwrap();
            release.phase = ReleasePhase::Failed;
            let digest = release.managed_digest.clone().unwrap();
            let made = chart("5.5.2", Some("29.0.4"));
            let message = Some("refused".to_owned());
            w.recorded.last_attempt = Some(Attempt { failures, message, chart: Some(made), ..attempt(&digest) });
            w.recorded.last_ready = ready.map(|app| ReadyRevision {
                revision: 2,
                digest: "ready".to_owned(),
                chart_version: "5.5.1".to_owned(),
                app_version: Some(app.to_owned()),
            });
        }
    };
    const BACK: &str = "roll back to 2, hold Released/RollingBack";
    const STOPPED: &str = "hold Released/UpgradeFailed!";
    let same = Some("29.0.4");
    for (what, spec, failures, ready, plan) in [
        ("tried again and again", none(), 9, same, "helm 4"),
        ("tried once more", policy("Stop"), 1, same, "helm 4"),
        ("stopped", policy("Stop"), 2, same, STOPPED),
        ("stopped, never ready", policy("Stop"), 2, None, STOPPED),
        ("tried once more before", policy("Rollback"), 1, same, "helm 4"),
        ("rolled back", policy("Rollback"), 2, same, BACK),
        ("another version of the app", policy("Rollback"), 2, Some("29.0.3"), STOPPED),
        ("an installation", policy("Rollback"), 2, None, "helm 4"),
    ] {
        row(what, spec, failed(failures, ready), plan);
    }
    fn attempted(w: &mut Observed) -> &mut Attempt {
        w.recorded.last_attempt.as_mut().unwrap()
    }
    fn failed_was_ready(w: &mut Observed) {
        let digest = w.release.as_ref().unwrap().managed_digest.clone().unwrap();
        w.recorded.last_ready.as_mut().unwrap().digest = digest;
    }
    let asked = |w: &mut Observed| w.retry = w.recorded.last_attempt.as_ref().map(annotation::retry_after);
    let fetched = |w: &mut Observed| attempted(w).reason = Some(Reason::ChartUnavailable.as_str().to_owned());
    for (what, policy, change, plan) in [
        ("no longer in Helm's history", "Rollback", (|w| w.last_ready_is_stored = false) as fn(&mut Observed), STOPPED),
        ("what failed was ready before", "Rollback", failed_was_ready, "helm 4"),
        ("another attempt waits for its turn", "Stop", |w| attempted(w).message = None, "helm 4"),
        ("helm did not run", "Rollback", fetched, "helm 4"),
        ("asked for", "Rollback", asked, "helm 4"),
    ] {
        row(what, self::policy(policy), |w| (failed(2, same)(w), change(w)).1, plan);
    }

    // Deployed, and its tests fail.
    let tested = |failures: u32, ready: Option<&'static str>| {
        move |w: &mut Observed| {
            failed(0, ready)(w);
            let release = w.release.as_mut().unwrap();
            release.phase = ReleasePhase::Deployed;
            w.recorded.test = Some(Tested {
                secret: release.secret_uid.clone(),
                failures,
                message: "1 of 2 tests failed".to_owned(),
                ..Tested::default()
            });
        }
    };
    let with_tests = |policy: Value| with(policy, &json!({"test": {"enabled": true}}));
    const UNTESTED: &str = "hold Tested/TestFailed!";
    for (what, policy, failures, ready, plan) in [
        ("tested again", "Retry", 9, same, "test, hold Tested/Testing"),
        ("tested once more", "Stop", 1, same, "test, hold Tested/Testing"),
        ("not tested again", "Stop", 2, same, UNTESTED),
        ("tested once more before", "Rollback", 1, same, "test, hold Tested/Testing"),
        ("rolled back after tests", "Rollback", 2, same, BACK),
        ("tested, another version of the app", "Rollback", 2, Some("29.0.3"), UNTESTED),
        ("tests of an installation", "Rollback", 2, None, "test, hold Tested/Testing"),
    ] {
        row(what, with_tests(self::policy(policy)), tested(failures, ready), plan);
    }
    row("tests are not asked for", self::policy("Rollback"), tested(9, same), "");
    let asked = |w: &mut Observed| {
        tested(9, same)(w);
        w.retry = w.recorded.test.as_ref().map(annotation::retest);
    };
    row("tests are asked for", with_tests(self::policy("Rollback")), asked, "test, hold Tested/Testing");

    // Deployed, and not ready.
    let late = |minutes: i64, was: &'static str| {
        move |w: &mut Observed| {
            failed(0, same)(w);
            let release = w.release.as_mut().unwrap();
            release.phase = ReleasePhase::Deployed;
            release.created_at = Some(now() - SignedDuration::from_mins(minutes));
            let digest = release.managed_digest.clone().unwrap();
            if was == "ready" {
                w.recorded.last_ready.as_mut().unwrap().digest = digest;
            }
            w.objects.workloads[0].waiting = (was != "now").then(|| "0 of 1 replicas are available".to_owned());
            let since = Time(now() - SignedDuration::from_mins(minutes));
            w.recorded.last_attempt.as_mut().unwrap().started_at = since.clone();
            w.recorded.conditions = [("PostgresReady", "True"), ("WorkloadsReady", "False")]
                .map(|(type_, status)| condition(type_, status, since.0))
                .into();
        }
    };
    for (what, policy, minutes, was, plan) in [
        ("not late yet", policy("Rollback"), 9, "", ""),
        ("late", policy("Rollback"), 10, "", BACK),
        ("late, and stays", policy("Stop"), 10, "", ""),
        ("it was ready before", policy("Rollback"), 99, "ready", ""),
        ("it is ready", policy("Rollback"), 99, "now", ""),
    ] {
        row(what, policy, late(minutes, was), plan);
    }
    let of_database = |w: &mut Observed| {
        late(99, "")(w);
        w.recorded.conditions[0].last_transition_time = Time(now());
    };
    row("the database was away", policy("Rollback"), of_database, "");
    row("nothing on record", policy("Rollback"), |w| (late(99, "")(w), w.recorded.conditions.clear()).0, "");
    let desired = want(&policy("Rollback"));
    let mut observed = settled(&desired);
    late(9, "")(&mut observed);
    let until = decide(&desired, &observed, &config(), now()).requeue_at.unwrap();
    assert!(until <= now() + SignedDuration::from_mins(1), "{until}");
    late(10, "")(&mut observed);
    let Plan { steps, hold, .. } = decide(&desired, &observed, &config(), now());
    let Step::RollBack(back) = &steps[0] else { panic!("{steps:?}") };
    assert_eq!(
        hold.unwrap().message,
        "revision 3 of release acme has failed: it was not ready within 10m; rolling back to revision 2"
    );
    assert_eq!(
        back.message,
        "revision 3 of release acme has failed: it was not ready within 10m; rolled back to what revision 2 was, with chart version 5.5.1, the last that was Ready: change the spec, or `kubectl clientapp retry acme -n tenants`"
    );

    // The revision that failed does not take the place of the one to go back to.
    let mut status = ClientAppStatus { rolled_back: Some(back.clone()), ..observed.recorded.clone() };
    remediation::record(&mut status, &desired, observed.release.as_ref());
    assert_eq!(status.rolled_back.unwrap().to.revision, 2);

    // What is recorded holds until the spec changes or a user asks for another attempt.
    let recorded = ClientAppStatus { rolled_back: Some(back.clone()), ..observed.recorded.clone() };
    let revision = |number: i64, digest: &str| {
        let (uid, status) = (format!("revision-{number}"), "deployed".to_owned());
        let (stamped, digest) = (Some(number), Some(digest.to_owned()));
        (format!("v{number}"), RevisionMeta { uid, revision: number, status, digest, stamped, written: None })
    };
    let history = [revision(2, "ready"), revision(3, &desired.target().digest)];
    let effect =
        |desired: &Desired, retry: Option<&String>| remediation::in_effect(desired.clone(), retry, &recorded, &history);
    let rolled = effect(&desired, None);
    assert_eq!(
        (rolled.target().digest.as_str(), rolled.target().chart_version.to_string()),
        ("ready", "5.5.1".to_owned())
    );
    let other = want(&with(policy("Rollback"), &json!({"replicas": 2})));
    assert_eq!(effect(&other, None), other);
    assert_eq!(effect(&want(&policy("Stop")), None), want(&policy("Stop")));
    let retry = annotation::retry_after(recorded.last_attempt.as_ref().unwrap());
    // It was asked for before the rollback, for the revision that was not ready.
    assert_eq!(effect(&desired, Some(&retry)), rolled);
    let mut after = recorded.clone();
    after.last_attempt = Some(attempt("ready"));
    let retry = annotation::retry_after(after.last_attempt.as_ref().unwrap());
    assert_eq!(remediation::in_effect(desired.clone(), Some(&retry), &after, &history), desired);
    // Helm's history decides whether there is anything to go back to, and where its values are now.
    for (history, expected) in [
        (vec![], None),
        (vec![revision(3, &desired.target().digest)], None),
        (vec![revision(2, "another"), revision(3, &desired.target().digest)], None),
        (vec![revision(2, "ready"), revision(3, &desired.target().digest), revision(4, "ready")], Some(4)),
        (vec![revision(3, &desired.target().digest), revision(4, "ready")], Some(4)),
    ] {
        let effect = remediation::in_effect(desired.clone(), None, &recorded, &history);
        assert_eq!(effect.rolled_back().map(|back| back.to.revision), expected, "{history:?}");
    }
    let of = |change: &dyn Fn(&mut Observed)| {
        let mut observed = settled(&rolled);
        change(&mut observed);
        brief(&decide(&rolled, &observed, &config(), now()))
    };
    assert_eq!(of(&|w| w.release = Some(release("failed"))), "helm 4");
    let mut status = ClientAppStatus { rolled_back: Some(back.clone()), ..ClientAppStatus::default() };
    remediation::record(&mut status, &rolled, Some(&release("ready")));
    assert_eq!((status.rolled_back.unwrap().to.revision, status.last_ready.unwrap().revision), (3, 3));
    assert_eq!(of(&|_| {}), "hold Released/RolledBack!");
    assert_eq!(of(&gone), "repair Service acme, hold Released/Drifted");
}

#[test]
fn a_revision_that_would_drop_a_volume_is_not_tried_again() {
    let dropped = |digest: &str| {
        let attempt = attempt(digest);
        move |w: &mut Observed| {
            outdated(w);
            let (reason, message) = (Some(Reason::VolumeDropped.into()), Some("why".to_owned()));
            w.recorded.last_attempt = Some(Attempt { failures: 1, reason, message, ..attempt });
        }
    };
    let same = want(&none()).target().digest.clone();
    row("dropped", none(), dropped(&same), "hold Released/VolumeDropped!");
    row("another spec", none(), dropped("another"), "helm 4");
    let again = |w: &mut Observed| {
        dropped(&same)(w);
        w.retry = w.recorded.last_attempt.as_ref().map(annotation::retry_after);
    };
    row("asked for", none(), again, "helm 4");
    // Once it is confirmed it is, and neither a confirmation nor its removal makes another revision.
    let mut app = crate::clientapp::fixtures::app(&none());
    app.metadata.annotations = Some([(annotation::WITHOUT_VOLUME.to_owned(), " 2, 1,".to_owned())].into());
    let sources = crate::clientapp::spec::values_from::Sources::default();
    let credentials = crate::clientapp::spec::credentials::placeholders(&app, &config());
    let confirmed = crate::clientapp::spec::desired::desired(&app, None, (&sources, &credentials), &config()).unwrap();
    assert_eq!(confirmed.data.without_volumes, ["1", "2"].map(str::to_owned).into());
    assert_eq!(confirmed.target().digest, same);
    let mut observed = settled(&confirmed);
    assert_eq!(brief(&decide(&confirmed, &observed, &config(), now())), "");
    dropped(&same)(&mut observed);
    assert_eq!(brief(&decide(&confirmed, &observed, &config(), now())), "helm 4");
    // The same confirmation was not enough for the attempt that was refused.
    observed.recorded.last_attempt =
        Some(crate::clientapp::status::attempt::start(&confirmed, &observed.recorded, None, false, now()));
    let refused = observed.recorded.last_attempt.as_mut().unwrap();
    (refused.reason, refused.message) = (Some(Reason::VolumeDropped.into()), Some("why".to_owned()));
    assert_eq!(brief(&decide(&confirmed, &observed, &config(), now())), "hold Released/VolumeDropped!");
}

#[test]
fn a_volume_that_goes_comes_before_helm_and_repairs() {
    let going = |w: &mut Observed| {
        w.objects.inventory.as_mut().unwrap().objects = vec![object("PersistentVolumeClaim", "acme-files")];
        w.owned = vec![owned("PersistentVolumeClaim", "acme-files", "1")];
    };
    row("gone", none(), going, "hold Ready/VolumeLost!");
    row("helm has to run", none(), |w| (going(w), outdated(w)).1, "hold Ready/VolumeLost!");
    row("an object is deleted", none(), |w| (going(w), gone(w)).1, "hold Ready/VolumeLost!");
    row("the database is away", none(), |w| (going(w), away(w)).1, "hold Ready/VolumeLost!");
    row("suspended", suspend(), going, "hold Reconciling/Suspended");
}
