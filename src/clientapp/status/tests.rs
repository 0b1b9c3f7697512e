//! The status for each kind of pass.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use std::{fmt::Write as _, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::{conditions::*, events::*};
use crate::{
    clientapp::{
        context::{Invalid, TakenProfile},
        decide::{decide, plan::Plan},
        error::Error,
        fixtures::{
            self, attempt, chart, config, keys, now, object, outdated, owned, release, rolled_back, settled, with,
        },
        observed::{
            certificate::Certificate,
            installed_chart,
            release::{ReleasePhase, ReleaseView},
            repair_backoff::Refused,
            types::{Busy, DatabaseView, DriftedObject, Edit, LiveState, Observed, SecretView, Workload},
        },
        spec::{
            database::{DatabaseObject, DatabaseState},
            desired::Desired,
        },
    },
    crd::{
        Attempt, BackupRecord, BackupState, ClientAppStatus, InstalledChart, ReadyRevision, Reason,
        conditions::{Verdict, find, kind},
        reason,
    },
    helm::Redactor,
    platform::{events::Note, key::Key, watch_builder::Availability},
};

fn want(spec: &Value) -> Desired {
    fixtures::want(&with(json!({"postgres": {"enabled": false}}), spec))
}

fn status(desired: &Desired, observed: &Observed) -> ClientAppStatus {
    built(7, Ok(desired), observed, &decide(desired, observed, &config(), now()), now())
}

/// The status when there is nothing to do.
fn at_rest(desired: &Desired, observed: &Observed) -> ClientAppStatus {
    built(7, Ok(desired), observed, &Plan::default(), now())
}

fn built(
    generation: i64,
    desired: Result<&Desired, &Invalid>,
    observed: &Observed,
    plan: &Plan,
    now: Timestamp,
) -> ClientAppStatus {
    let (key, generation) = (&Key::new("tenants", "acme"), Some(generation));
    // As `observe` returns it.
    let mut observed = observed.clone();
    observed.recorded.installed = installed_chart::installed_now(observed.release.as_ref(), &observed.recorded);
    build_status(&Pass { key, generation, desired, observed: &observed, plan, profile: &TakenProfile::None }, now)
}

fn conditions(status: &ClientAppStatus) -> String {
    status.conditions.iter().fold(String::new(), |mut text, condition| {
        let Condition { type_, status, reason, message, .. } = condition;
        writeln!(text, "  {type_}={status} {reason}: {message}").unwrap();
        text
    })
}

/// Returns what differs from other conditions; a line for each message.
fn changes(status: &ClientAppStatus, other: &ClientAppStatus) -> String {
    let mut lines: Vec<(String, String)> = Vec::new();
    for Condition { type_, status, reason, message, .. } in &status.conditions {
        let is_new =
            |before: &Condition| (&before.status, &before.reason, &before.message) != (status, reason, message);
        if find(&other.conditions, type_).is_none_or(is_new) {
            let words = format!("{reason}: {message}");
            match lines.iter_mut().find(|(_, said)| *said == words) {
                Some((types, _)) => write!(types, " {type_}={status}").unwrap(),
                None => lines.push((format!("{type_}={status}"), words)),
            }
        }
    }
    lines.iter().fold(String::new(), |text, (types, words)| text + &format!("  {types} {words}\n"))
}

/// Which database a deletion deletes, and whose absence is a loss, depends on it.
#[test]
fn the_database_in_use_is_recorded_before_a_revision_uses_another() {
    let desired = want(&json!({"postgres": {"provider": "cloudnativepg", "cloudnativepg": {"cluster": "acme-pg-2"}}}));
    let moving = || {
        let mut observed = settled(&desired);
        let view = &mut observed.prerequisites.database;
        (view.secret, view.replaces) = (keys(&["username", "password"]), Some("acme-pg".to_owned()));
        observed.recorded.postgres_cluster_name = Some("acme-pg".to_owned());
        observed.recorded.last_ready = Some(ReadyRevision::default());
        outdated(&mut observed);
        observed
    };
    let recorded = |change: fn(&mut Observed)| {
        let mut observed = moving();
        change(&mut observed);
        let status = status(&desired, &observed);
        (status.postgres_cluster_name.unwrap(), status.last_ready.is_some())
    };
    let (former, new) = (("acme-pg".to_owned(), true), ("acme-pg-2".to_owned(), false));
    let absent = |w: &mut Observed| w.prerequisites.database.object = None;
    assert_eq!(recorded(absent), former);
    assert_eq!(recorded(|w| w.prerequisites.database.secret = SecretView::Absent), former);
    // helm is about to run. A rollback would go back to the former database.
    assert_eq!(recorded(|_| {}), new);
    // It was about to, and the spec was set back before it had.
    let mut observed = moving();
    observed.release = Some(release(&desired.target().digest));
    observed.recorded.last_ready = None;
    assert_eq!(status(&desired, &observed).postgres_cluster_name, Some(new.0));
}

#[test]
fn the_deployed_revision_has_secret_values_until_another_is_deployed() {
    let plain = want(&json!({}));
    let hidden = Redactor::from_values([&json!("canary")]).unwrap();
    let mut secret = plain.clone();
    secret.values.redactor = hidden;
    let back = rolled_back(&plain);
    for (what, desired, is_installed, recorded, expected) in [
        ("none", &plain, true, Some(true), Some(false)),
        ("none, and another is deployed", &plain, false, Some(true), Some(true)),
        ("none, and none were deployed", &plain, false, Some(false), Some(false)),
        ("none, and it is not known", &plain, false, None, None),
        ("some", &secret, false, Some(false), Some(true)),
        ("rolled back", &back, true, Some(true), Some(true)),
    ] {
        let mut observed = settled(desired);
        observed.recorded.secret_values = recorded;
        if !is_installed {
            outdated(&mut observed);
        }
        assert_eq!(status(desired, &observed).secret_values, expected, "{what}");
    }
}

/// As the Postgresql says it, even if nothing else can be said.
#[test]
fn the_dumps_of_its_database_are_reported() {
    let spec = json!({"postgres": {"enabled": true, "provider": "standalone"}});
    let desired = want(&spec);
    let mut observed = settled(&desired);
    let is_backed_up = |status: &ClientAppStatus| find(&status.conditions, reason::BACKED_UP).cloned();
    assert_eq!(is_backed_up(&status(&desired, &observed)), None);
    let failed = Verdict::no(Reason::DumpFailed, "Postgresql acme-pg: Job x has failed");
    observed.prerequisites.database.object.as_mut().unwrap().backed_up = Some(failed);
    let invalid = Invalid { reason: Reason::InvalidSpec, message: "spec.x: odd".to_owned() };
    for status in [status(&desired, &observed), built(7, Err(&invalid), &observed, &Plan::default(), now())] {
        let condition = is_backed_up(&status).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "DumpFailed"));
    }
    assert!(find(&status(&desired, &observed).conditions, kind::READY).is_some_and(|ready| ready.status == "True"));
}

#[test]
fn ready_waits_for_a_valid_certificate_but_not_for_a_new_one() {
    const HOST: &str = "acme.example.com";
    const HTTP: &str = "http://acme.example.com";
    const HTTPS: &str = "https://acme.example.com";
    let desired = want(&json!({"ingressClassName": "traefik", "tls": {"secretName": "wildcard"}}));
    let valid = |until: &str| {
        let (not_before, not_after) = ("2025-01-01T00:00:00Z".parse().unwrap(), until.parse().unwrap());
        Some(Ok(Arc::new(Certificate { not_before, not_after, names: vec![HOST.to_owned()] })))
    };
    for (certificate, ready, reason, url) in [
        (None, ("False", "CertificateMissing"), "CertificateMissing", HTTP),
        (valid("2026-01-01T00:00:00Z"), ("False", "CertificateInvalid"), "CertificateInvalid", HTTP),
        (valid("2026-01-03T00:00:00Z"), ("True", "Ready"), "CertificateExpiring", HTTPS),
        (valid("2027-01-01T00:00:00Z"), ("True", "Ready"), "CertificateValid", HTTPS),
    ] {
        let mut observed = settled(&desired);
        observed.prerequisites.certificate = certificate;
        let found = at_rest(&desired, &observed);
        let condition = |status: &ClientAppStatus, type_: &str| find(&status.conditions, type_).unwrap().clone();
        let summary = condition(&found, kind::READY);
        assert_eq!((summary.status.as_str(), summary.reason.as_str()), ready, "{reason}");
        assert_eq!(condition(&found, kind::CERTIFICATE_READY).reason, reason);
        assert_eq!((found.url.as_deref(), found.tls_secret_name.as_deref()), (Some(url), Some("wildcard")), "{reason}");
        assert!(ready.0 == "False" || summary.message.ends_with(&format!(", serving {url}")), "{}", summary.message);
        assert_eq!(condition(&found, kind::STALLED).status, "False", "{reason}");
        // What says more comes first, and nothing is said without a valid spec.
        observed.objects.workloads[0].waiting = Some("0 of 1 replicas are available".to_owned());
        assert_eq!(condition(&at_rest(&desired, &observed), kind::READY).reason, "NotReady", "{reason}");
        observed.recorded.conditions = found.conditions;
        let invalid = Invalid { reason: Reason::InvalidSpec, message: "spec.x: odd".to_owned() };
        let invalid = built(8, Err(&invalid), &observed, &Plan::default(), now());
        assert_eq!(condition(&invalid, kind::CERTIFICATE_READY).reason, reason);
    }
    let without = at_rest(&want(&json!({})), &settled(&want(&json!({}))));
    assert!(find(&without.conditions, kind::CERTIFICATE_READY).is_none());
}

#[test]
fn condition_messages() {
    let well = status(&want(&json!({})), &settled(&want(&json!({}))));
    let mut text = format!("everything is well\n{}\n", conditions(&well));
    let mut say = |what: &str, spec: Value, change: &dyn Fn(&mut Observed)| {
        let desired = want(&spec);
        let mut observed = settled(&desired);
        change(&mut observed);
        let status = status(&desired, &observed);
        // What is missing is no change.
        let kinds =
            |status: &ClientAppStatus| status.conditions.iter().map(|found| found.type_.clone()).collect::<Vec<_>>();
        assert!(kinds(&status).starts_with(&kinds(&well)), "{what}: {:?}", kinds(&status));
        writeln!(text, "{what}\n{}", changes(&status, &well)).unwrap();
    };
    let database = json!({"postgres": {"enabled": true}});
    let percona = |state: &str| DatabaseView {
        kind: Availability::Installed,
        app_uid: "uid".to_owned(),
        object: Some(DatabaseObject {
            app: Some("acme".to_owned()),
            stamp: Some("uid".to_owned()),
            postgres_version: Some(15),
            state: DatabaseState::Waiting(format!(" is {state}")),
            ..DatabaseObject::default()
        }),
        ..DatabaseView::default()
    };
    say("nothing exists", json!({}), &|w| *w = Observed::default());
    say("no Percona", database.clone(), &|w| *w = Observed::default());
    say("the database starts", database.clone(), &|w| {
        *w = Observed::default();
        w.prerequisites.database = percona("initializing");
    });
    say("the database fails later", database, &|w| w.prerequisites.database = percona("initializing"));
    say("the spec has changed", json!({}), &|w| w.release = Some(release("old")));
    say("suspended with a change", json!({"suspend": true}), &|w| w.release = Some(release("old")));
    say("suspended without a change", json!({"suspend": true}), &|_| {});
    say("a workload is not ready", json!({}), &|w| {
        w.objects.workloads[0].waiting = Some("0 of 1 replicas are available".to_owned());
    });
    say("a workload makes no progress any more", json!({}), &|w| {
        let why =
            "0 of 1 replicas are available, and no progress within its deadline: pod x is not scheduled: no node fits";
        (w.objects.workloads[0].waiting, w.objects.workloads[0].stuck) = (Some(why.to_owned()), true);
    });
    let service = object("Service", "acme");
    let missing = |state: LiveState| vec![DriftedObject { object: service.clone(), state }];
    for drift in ["Repair", "Report"] {
        say(&format!("a Service is missing: {drift}"), json!({"drift": drift}), &|w| {
            w.objects.drifted = missing(LiveState::Absent)
        });
    }
    let edit = Edit { fields: vec!["spec.ports".to_owned()], by: Some("kubectl-edit".to_owned()), ignored: vec![] };
    for drift in ["Repair", "Report"] {
        say(&format!("a Service is edited: {drift}"), json!({"drift": drift}), &|w| {
            w.objects.drifted = missing(LiveState::Edited(edit.clone()));
        });
    }
    for found in [LiveState::Foreign, LiveState::Deleting, LiveState::Unknown("services is forbidden".to_owned())] {
        say(&format!("a Service is missing: {found:?}"), json!({}), &|w| w.objects.drifted = missing(found.clone()));
    }
    say("a Service cannot be recreated", json!({}), &|w| {
        w.objects.drifted = missing(LiveState::Absent);
        let refused = Refused { sentence: "services is forbidden".to_owned(), stalled: true };
        w.objects.repairs.tried(&service, Some(refused), now());
    });
    say("a Service is deleted again and again", json!({}), &|w| {
        w.objects.drifted = missing(LiveState::Absent);
        (1..=3).for_each(|_| w.objects.repairs.tried(&service, None, now()));
    });
    say("many workloads are not ready", json!({}), &|w| {
        let waiting = Some("0 of 1 replicas are available".to_owned());
        let workload = Workload { kind: "Deployment", waiting, ..Workload::default() };
        w.objects.workloads = (1..=5).map(|n| Workload { name: format!("d{n}"), ..workload.clone() }).collect();
    });
    say("the hostname is taken", json!({}), &|w| {
        *w = Observed::default();
        w.prerequisites.hostname_holder = Some(Key::new("other", "first"));
    });
    say("another Helm client is at work", json!({}), &|w| {
        let release = w.release.as_mut().unwrap();
        (release.phase, release.status, release.managed_digest) =
            (ReleasePhase::Pending, "pending-upgrade".to_owned(), None);
    });
    say("helm failed", json!({}), &|w| {
        let release = w.release.as_mut().unwrap();
        release.phase = ReleasePhase::Failed;
        w.recorded.last_attempt = Some(Attempt {
            failures: 2,
            retry_at: Some(Time(now() + SignedDuration::from_secs(60))),
            reason: Some("ChartInvalid".to_owned()),
            message: Some("values don't meet the specifications of the schema".to_owned()),
            ..attempt(release.managed_digest.as_ref().unwrap())
        });
    });
    insta::assert_snapshot!(text);
}

#[test]
fn a_whole_status() {
    let desired = want(&json!({"ingressClassName": "traefik"}));
    let chart = InstalledChart { digest: "ab".repeat(32), ..chart("5.5.2", Some("29.0.4")) };
    let attempt = Attempt { chart: Some(chart), ..attempt(&desired.target().digest) };
    let recorded = ClientAppStatus { last_attempt: Some(attempt), ..ClientAppStatus::default() };
    insta::assert_yaml_snapshot!(at_rest(&desired, &Observed { recorded, ..settled(&desired) }));
}

#[test]
fn status_does_not_depend_on_the_time() {
    let desired = want(&json!({}));
    let mut observed = settled(&desired);
    let first = status(&desired, &observed);
    observed.recorded = first.clone();
    let plan = decide(&desired, &observed, &config(), now());
    // The status must not depend on the time of observation.
    let later = now() + SignedDuration::from_hours(1);
    assert_eq!(built(7, Ok(&desired), &observed, &plan, later), first);
}

#[test]
fn an_invalid_spec_keeps_what_is_known() {
    let desired = want(&json!({}));
    let mut observed = settled(&desired);
    observed.recorded = status(&desired, &observed);
    let message = "spec.chartVersion: must be one exact version such as 5.5.2".to_owned();
    let invalid = Invalid { reason: Reason::InvalidSpec, message };
    let status = built(8, Err(&invalid), &observed, &Plan::default(), now());
    insta::assert_snapshot!(conditions(&status));
    assert_eq!(status.observed_generation, Some(8));
    assert_eq!(status.release.unwrap().revision, 3);
}

#[test]
fn a_failed_pass_does_not_claim_to_have_seen_the_spec() {
    let desired = want(&json!({}));
    let recorded = status(&desired, &settled(&desired));
    let refused = kube::core::Status {
        code: 403,
        message: "secrets is forbidden: User \"x\" cannot create resource \"secrets\" in API group \"\" in the namespace \"tenants\"".to_owned(),
        ..kube::core::Status::default()
    };
    let error = Error::api("create Secret tenants/acme-admin-secret")(kube::Error::Api(Box::new(refused)));
    let status = failed(&recorded, Some(8), &error, now());
    insta::assert_snapshot!(conditions(&status));
    assert_eq!(status.observed_generation, Some(7));

    let conflict = kube::core::Status { code: 409, ..kube::core::Status::default() };
    let error = Error::api("write the status")(kube::Error::Api(Box::new(conflict)));
    assert_eq!(failed(&recorded, Some(8), &error, now()), recorded, "a conflict is not told");
}

#[test]
fn events_are_for_transitions() {
    let desired = want(&json!({}));
    let well = status(&desired, &settled(&desired));
    let mut observed = settled(&desired);
    observed.objects.workloads[0].waiting = Some("0 of 1 replicas are available".to_owned());
    let waiting = status(&desired, &observed);
    observed.objects.workloads[0].waiting = Some("its controller has not seen it yet".to_owned());
    let waiting_otherwise = status(&desired, &observed);
    let mut observed = settled(&desired);
    observed.release.as_mut().unwrap().revision = 4;
    let upgraded = status(&desired, &observed);
    // The revision is recorded before Ready changes its message, if the next upgrade was requested meanwhile.
    let meanwhile = ClientAppStatus { conditions: well.conditions.clone(), ..upgraded.clone() };

    let reasons = |before: &ClientAppStatus, after: &ClientAppStatus| {
        transitions(before, after).into_iter().map(|note| (note.reason, note.warning)).collect::<Vec<_>>()
    };
    let note = |reason: &str, warning| vec![(reason.to_owned(), warning)];
    assert_eq!(reasons(&ClientAppStatus::default(), &well), note("Ready", false));
    assert_eq!(reasons(&well, &well), []);
    assert_eq!(reasons(&well, &waiting), note("NotReady", false));
    assert_eq!(reasons(&waiting, &waiting_otherwise), []);
    assert_eq!(reasons(&waiting, &well), note("Ready", false));
    assert_eq!(reasons(&well, &upgraded), note("Ready", false));
    assert_eq!(reasons(&well, &meanwhile), []);

    let message = transitions(&well, &waiting).remove(0).message;
    assert_eq!(message, find(&waiting.conditions, kind::READY).unwrap().message, "event and status say the same");
}

#[test]
fn a_backup_counts_for_one_upgrade() {
    let record = |revision| BackupRecord {
        kind: "Postgresql".to_owned(),
        name: "r3-1".to_owned(),
        from: "5.5.1".to_owned(),
        to: "5.5.2".to_owned(),
        state: BackupState::Succeeded,
        at_revision: Some(2),
        as_of: Some(Time(now())),
        revision,
    };
    for (what, asked, installed, revision) in [
        ("on its way", "5.5.2", "5.5.1", None),
        ("installed", "5.5.2", "5.5.2", Some(3)),
        ("withdrawn", "5.5.1", "5.5.1", Some(3)),
        ("another one", "5.5.3", "5.5.1", Some(3)),
    ] {
        let desired = want(&json!({"chartVersion": asked}));
        let mut observed = settled(&desired);
        observed.release.as_mut().unwrap().managed_digest = None;
        let installed = Some(chart(installed, None));
        observed.recorded = ClientAppStatus { installed, backup: Some(record(None)), ..ClientAppStatus::default() };
        assert_eq!(at_rest(&desired, &observed).backup, Some(record(revision)), "{what}");
    }
}

/// The status of an app at this generation that is about to be upgraded.
fn intent(recorded: &ClientAppStatus, generation: i64, revision: i64, now: Timestamp) -> ClientAppStatus {
    let desired = want(&json!({"chartVersion": "5.5.3"}));
    let mut observed = Observed { recorded: recorded.clone(), ..settled(&desired) };
    let digest = recorded.release.as_ref().and_then(|release| release.digest.as_deref());
    observed.release = Some(ReleaseView { revision: revision - 1, ..release(digest.unwrap_or("before")) });
    let plan = decide(&desired, &observed, &config(), now);
    assert!(plan.runs_helm(), "{plan:?}");
    built(generation, Ok(&desired), &observed, &plan, now)
}

#[test]
fn recorded_intent_keeps_a_serving_app_ready() {
    let desired = want(&json!({}));
    let first = intent(&ClientAppStatus::default(), 1, 4, now());
    let ready = find(&first.conditions, kind::READY).unwrap();
    assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", "Upgrading"));
    assert_eq!(first.observed_generation, None);

    // What it waited for before is there by now.
    let mut waited = first.clone();
    for condition in waited.conditions.iter_mut().filter(|condition| condition.type_ != kind::WORKLOADS_READY) {
        (condition.status, condition.reason) = ("False".to_owned(), Reason::Waiting.into());
    }
    let begun = intent(&waited, 1, 4, now());
    let mut failed = waited.clone();
    failed.last_attempt.as_mut().unwrap().failures = 1;
    let again = intent(&failed, 1, 4, now());
    for (begun, type_, expected) in [
        (&begun, kind::POSTGRES_READY, ("True", "Disabled")),
        (&begun, kind::RELEASED, ("False", "Upgrading")),
        (&again, kind::RELEASED, ("False", "Waiting")),
    ] {
        let condition = find(&begun.conditions, type_).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), expected, "{type_}");
    }

    let before = status(&desired, &settled(&desired));
    let serving = intent(&before, 8, 4, now());
    assert_eq!(find(&serving.conditions, kind::READY).unwrap().status, "True");
    assert_eq!(find(&serving.conditions, kind::RECONCILING).unwrap().status, "True");
    let attempt = serving.last_attempt.unwrap();
    assert_eq!((attempt.started_at, attempt.chart.unwrap().version.as_str()), (Time(now()), "5.5.3"));
    assert_eq!((&serving.release, serving.observed_generation), (&before.release, before.observed_generation));

    // The revision after it was cut off together with the operator: Ready does not speak of it.
    let mut observed = settled(&desired);
    observed.recorded = before.clone();
    observed.release = Some(ReleaseView { revision: 4, phase: ReleasePhase::Pending, ..release("cut off") });
    let plan = decide(&desired, &observed, &config(), now());
    assert!(plan.runs_helm(), "{plan:?}");
    let again = built(8, Ok(&desired), &observed, &plan, now());
    assert_eq!(find(&again.conditions, kind::READY).unwrap().status, "True");
    assert_eq!(again.release, before.release);
}

#[test]
fn what_helm_has_made_is_on_record_before_the_next_intent() {
    let made = want(&json!({}));
    let mut before = status(&made, &settled(&made));
    before.last_attempt = Some(Attempt { chart: Some(chart("5.5.2", None)), ..attempt(&made.target().digest) });
    let said = intent(&before, 8, 5, now());
    assert_eq!(said.release.unwrap().revision, 4);
    assert_eq!(said.installed.unwrap().version, "5.5.2");
    assert_eq!(said.last_attempt.unwrap().chart.unwrap().version, "5.5.3");
}

#[test]
fn queued_intent_is_recorded() {
    let desired = want(&json!({}));
    let before = status(&desired, &settled(&desired));
    let later = now() + SignedDuration::from_secs(90);
    let said = intent(&before, 8, 4, now());
    assert_eq!(intent(&said, 8, 4, later), said, "later");
    let failed = Attempt { failures: 1, ..said.last_attempt.clone().unwrap() };
    let failed = ClientAppStatus { last_attempt: Some(failed), ..said.clone() };
    for (what, again) in [
        ("another revision", intent(&said, 8, 5, later)),
        ("another spec", intent(&said, 9, 4, later)),
        ("no intent before", intent(&before, 8, 4, later)),
    ] {
        assert_eq!(again.last_attempt.unwrap().started_at, Time(later), "{what}");
    }
    assert_eq!(intent(&failed, 8, 4, later).last_attempt.unwrap().failures, 1);
}

#[test]
fn granted_slot_is_not_recorded_again() {
    let desired = want(&json!({}));
    let before = status(&desired, &settled(&desired));
    let intent = |recorded: &ClientAppStatus, has_slot: bool| {
        let mut observed = Observed { recorded: recorded.clone(), ..settled(&desired) };
        observed.run.has_slot = has_slot;
        observed.release = Some(release("old"));
        let plan = decide(&desired, &observed, &config(), now());
        built(7, Ok(&desired), &observed, &plan, now())
    };
    let queued = intent(&before, false);
    let said = |status: &ClientAppStatus| find(&status.conditions, kind::RECONCILING).unwrap().message.clone();
    assert!(said(&queued).contains("when its turn comes"), "{}", said(&queued));
    assert_eq!(intent(&queued, true), queued, "it runs now, and that is told if it takes long");
    let runs = intent(&before, true);
    assert!(!said(&runs).contains("turn"), "{}", said(&runs));
    assert_eq!(said(&intent(&runs, false)), said(&queued), "another run, which waits");
}

#[test]
fn a_run_that_takes_long_hides_nothing() {
    let desired = want(&json!({}));
    let before = status(&desired, &settled(&desired));
    let told = |until: Option<Timestamp>, change: &dyn Fn(&mut Observed)| {
        let at_work = Busy { digest: Some(desired.target().digest.clone()), sentence: "helm runs".to_owned(), until };
        let mut observed = Observed { recorded: before.clone(), ..settled(&desired) };
        observed.run.busy = Some(at_work);
        change(&mut observed);
        let plan = decide(&desired, &observed, &config(), now());
        built(7, Ok(&desired), &observed, &plan, now())
    };
    let says = |status: &ClientAppStatus, type_: &str| {
        let condition = find(&status.conditions, type_).unwrap();
        format!("{} {} {}", condition.status, condition.reason, condition.message)
    };
    assert_eq!(told(Some(now()), &|_| ()), before, "on record already");
    let long = told(None, &|_| ());
    assert_eq!(says(&long, kind::RECONCILING), "True Upgrading helm runs");
    assert_eq!(says(&long, kind::READY), says(&before, kind::READY));
    let fails = |observed: &mut Observed| observed.objects.workloads[0].waiting = Some("0 of 1 replicas".to_owned());
    let long = told(None, &fails);
    for type_ in [kind::READY, kind::WORKLOADS_READY] {
        assert_eq!(says(&long, type_), "False NotReady Deployment acme-nextcloud: 0 of 1 replicas");
    }
    assert_eq!(long.release, before.release);

    let at_work = Busy { digest: None, sentence: String::new(), until: Some(now()) };
    let mut observed = Observed { recorded: before.clone(), ..Observed::default() };
    observed.run.busy = Some(at_work);
    let invalid = Invalid { reason: Reason::InvalidSpec, message: "spec.hostname: no".to_owned() };
    let said = built(7, Err(&invalid), &observed, &Plan::default(), now());
    assert_eq!(says(&said, kind::STALLED), "True InvalidSpec spec.hostname: no");
    assert_eq!((&said.release, says(&said, kind::RELEASED)), (&before.release, says(&before, kind::RELEASED)));
}

#[test]
fn an_event_about_drift_names_its_object() {
    let mut observed = Observed::default();
    observed.objects.drifted = vec![DriftedObject { object: object("Service", "acme"), state: LiveState::Absent }];
    let notes = [Reason::Drifted, Reason::NotReady].map(|reason| Note::normal("Reconcile", reason, String::new()));
    let named: Vec<_> = about(notes.to_vec(), &observed, &Key::new("tenants", "acme"))
        .into_iter()
        .map(|note| note.related.and_then(|object| Some((object.kind?, object.namespace?, object.name?))))
        .collect();
    let service = ("Service", "tenants", "acme");
    let service = (service.0.to_owned(), service.1.to_owned(), service.2.to_owned());
    assert_eq!(named, [Some(service), None]);
}

#[test]
fn orphan_note_omits_the_redis_secret() {
    let owned = ["acme-admin-secret", "acme-redis-secret"].map(|name| owned("Secret", name, name));
    let stays = |known| orphaned(&Key::new("a", "acme"), known, &owned).map(|note| note.message);
    assert_eq!(stays(Some(false)), None);
    let both = "all data stay (Secret acme-admin-secret, Secret acme-redis-secret)";
    assert!(stays(Some(true)).unwrap().ends_with(both));
    assert!(stays(None).unwrap().ends_with("all data stay (Secret acme-admin-secret)"));
}
