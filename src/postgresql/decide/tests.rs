use serde_json::{Value, json};

use super::*;
pub(in crate::postgresql) use crate::postgresql::desired::tests::acme;
use crate::{
    crd::{SecretRecord, VolumeRecord},
    postgresql::observed::{
        ClientSecret, CredentialsView, GivenPassword, JobView, ObjectId, OwnSecret, SecretState, SetView,
    },
};

pub(in crate::postgresql) fn view(digest: Option<String>, detail: Detail) -> ObjectView {
    ObjectView { owner: Ownership::Ours, uid: "u".to_owned(), digest, deleting: false, detail }
}

fn claim(requested: f64, capacity: Option<&str>) -> ObjectView {
    let made_for = Some("uid-1".to_owned());
    view(None, Detail::Claim { requested: Some(requested), capacity: capacity.map(str::to_owned), made_for })
}

pub(in crate::postgresql) fn pod(name: &str, role: &str, waiting: Option<&str>) -> PodView {
    let (name, uid, waiting) = (name.to_owned(), "p".to_owned(), waiting.map(str::to_owned));
    PodView { name, uid, role: Role::parse(role), waiting, ..PodView::default() }
}

const GI: f64 = 1024.0 * 1024.0 * 1024.0;

fn mounted(desired: &Desired) -> Mounted<'static> {
    Mounted { replication: "r", certificate: desired.tls.map(|_| "c"), replaced: None }
}

/// Everything as it should be.
pub(super) fn settled(desired: &Desired) -> ObservedPostgresql {
    let ours = |uid: &str| SecretState::Ours { uid: uid.to_owned() };
    let mut observed = ObservedPostgresql {
        credentials: CredentialsView { kept: ours("k"), client: ClientSecret::Current, ..CredentialsView::default() },
        replication: ours("r"),
        certificate: ours("c"),
        pods: vec![pod("acme-0", "primary", None)],
        ..ObservedPostgresql::default()
    };
    observed.recorded.volume =
        Some(VolumeRecord { name: "data-acme-0".to_owned(), uid: "u".to_owned(), initialized: true });
    observed.recorded.version = Some(desired.version.clone());
    observed.recorded.secret =
        Some(SecretRecord { name: "acme-app".to_owned(), from: "generated".to_owned(), version: None });
    for object in objects::all(desired, &ObservedPostgresql::default(), mounted(desired)) {
        let detail = match object.id.0 {
            Kind::StatefulSet => Detail::StatefulSet(SetView {
                replicas: i32::try_from(object.document["spec"]["replicas"].as_i64().unwrap()).unwrap(),
                storage: Some(desired.storage.text.clone()),
                is_rolled: true,
                requested: UserRequest::new(desired.generation, mounted(desired).all()),
            }),
            Kind::PersistentVolumeClaim => {
                Detail::Claim { requested: Some(GI), capacity: Some("1Gi".to_owned()), made_for: None }
            }
            Kind::PodDisruptionBudget | Kind::NetworkPolicy => Detail::Spec(object.document["spec"].clone()),
            _ => Detail::None,
        };
        observed.objects.insert(object.id.clone(), view(Some(object.digest), detail));
    }
    observed.objects.insert(claim_id("data-acme-0"), claim(GI, Some("1Gi")));
    for ordinal in 0..desired.standbys {
        observed.pods.push(pod(&format!("acme-standby-{ordinal}"), "standby", None));
    }
    observed
}

pub(super) fn add_job(observed: &mut ObservedPostgresql, name: &str, job: JobView) {
    observed.objects.insert((Kind::Job, name.to_owned()), view(None, Detail::Job(job)));
}

/// A short form of the steps.
pub(super) fn steps(plan: &PostgresqlPlan) -> Vec<String> {
    let short = |step: &PostgresqlStep| match step {
        PostgresqlStep::KeepPassword(origin) => format!("keep {origin:?}"),
        PostgresqlStep::CreateReplication => "replication".to_owned(),
        PostgresqlStep::CreateCertificate => "certificate".to_owned(),
        PostgresqlStep::ApplyClientSecret => "client".to_owned(),
        PostgresqlStep::CreateRepositoryPassword(secret) => format!("password {}", secret.name),
        PostgresqlStep::Settle { secret } => format!("settle {secret}"),
        PostgresqlStep::CreateVolume(_) => "create volume".to_owned(),
        PostgresqlStep::Initialize(job) => format!("initialize {}", job.id.1),
        PostgresqlStep::Grow { claim, to } => format!("grow {claim} {to}"),
        PostgresqlStep::Apply(object) => format!("apply {} {}", object.id.0, object.id.1),
        PostgresqlStep::CreateDue(job) => format!("create {}", job.id.1),
        PostgresqlStep::Delete { id, .. } => format!("delete {} {}", id.0, id.1),
        PostgresqlStep::EndJob { job, why, pod, .. } => {
            format!("end {job}: {why}{}", pod.as_ref().map_or_else(String::new, |pod| format!(" (event of {pod})")))
        }
    };
    plan.steps.iter().map(short).collect()
}

pub(super) fn reason(plan: &PostgresqlPlan) -> Option<(&'static str, bool)> {
    plan.hold.as_ref().map(|hold| (hold.reason.as_str(), hold.reason.stalled()))
}

#[test]
fn a_settled_database_is_left_alone() {
    for spec in [
        json!({}),
        json!({"replicas": 3, "networkPolicy": {}}),
        json!({"backup": {"schedule": "@daily", "onDelete": true}}),
    ] {
        let desired = acme(spec);
        assert_eq!(decide(&desired, &settled(&desired)), PostgresqlPlan::default(), "{desired:?}");
    }
}

#[test]
fn objects_are_created_in_order() {
    let desired = acme(json!({}));
    let mut observed = ObservedPostgresql::default();
    assert_eq!(steps(&decide(&desired, &observed)), ["apply ConfigMap acme-witness", "keep Generated"]);
    observed.credentials.kept = SecretState::Ours { uid: "k".to_owned() };
    assert_eq!(steps(&decide(&desired, &observed)), ["apply ConfigMap acme-witness", "client", "replication"]);
    observed.credentials.client = ClientSecret::Current;
    observed.replication = SecretState::Ours { uid: "r".to_owned() };
    let plan = decide(&desired, &observed);
    // No server before there is a database: see volume/tests.rs.
    let first = ["ConfigMap acme-witness", "ConfigMap acme-scripts", "Service acme-headless", "Service acme"];
    let first = first.map(|object| format!("apply {object}")).into_iter().chain(["create volume".to_owned()]);
    assert_eq!(steps(&plan), first.collect::<Vec<_>>());
    assert_eq!(reason(&plan), Some(("Provisioning", false)));
}

#[test]
fn a_secret_is_taken_from_the_garbage_collector() {
    let desired = acme(json!({}));
    let mut observed = settled(&desired);
    observed.secrets.insert("acme-app".to_owned(), OwnSecret { uid: "s".to_owned(), unsettled: true });
    assert_eq!(steps(&decide(&desired, &observed)), ["settle acme-app"]);
}

/// A difference from the settled state.
type Change = fn(&mut ObservedPostgresql);
/// One row: the difference, and the steps and the reason that follow.
type Row<'a> = (&'a str, Value, Change, &'a [&'a str], Option<(&'static str, bool)>);

#[test]
fn differences_are_repaired_or_reported() {
    let none = || json!({});
    let two = || json!({"storageSize": "2Gi"});
    let closed = || json!({"networkPolicy": {}});
    let standby = || json!({"replicas": 2});
    let dumps = json!({"backup": {"onDelete": true, "size": "2Gi"}});
    let superfluous_policy: Change = |w| drop(w.objects.insert(policy(), view(None, EDITED)));
    let superfluous_budget: Change =
        |w| drop(w.objects.insert((Kind::PodDisruptionBudget, "acme-standby".to_owned()), view(None, EDITED)));
    let of_no_size: Change = |w| {
        let detail = Detail::Claim { requested: None, capacity: None, made_for: None };
        *data(w) = ObjectView { owner: theirs(), detail, ..data(w).clone() };
    };
    let ends: Change = |w| (w.pods[0].waiting, w.pods[0].failure_line) = (Some("x".into()), Some("y".into()));
    let standby_waits: Change = |w| w.pods[1].waiting = Some("x".into());
    let apply_policy = &["apply NetworkPolicy acme-access"];
    let fewer = Some(("StandbysNotReady", false));
    let rows: &[Row<'_>] = &[
        ("a Service is gone", none(), |w| drop(w.objects.remove(&service())), &["apply Service acme"], None),
        ("a StatefulSet was scaled", none(), |w| server(w).detail = SCALED, &["apply StatefulSet acme"], None),
        ("a StatefulSet goes", none(), |w| server(w).deleting = true, &[], Some(("Replacing", false))),
        ("a Service is another's", none(), |w| at(w, service()).owner = theirs(), &[], Some(("NotOurs", true))),
        ("the data's volume is another's", none(), |w| data(w).owner = theirs(), &[], Some(("NotOurs", true))),
        ("and of no size that reads", none(), of_no_size, &[], Some(("NotOurs", true))),
        ("dumps are not", none(), |w| add(w, "acme-backup", Ownership::Ours), &[], None),
        ("the pod is not ready", none(), |w| w.pods[0].waiting = Some("x".into()), &[], Some(("NotReady", false))),
        ("the server ends", none(), ends, &[], Some(("ServerFails", false))),
        ("it has ended once", none(), |w| w.pods[0].failure_line = Some("y".into()), &[], None),
        ("a policy was edited", closed(), |w| at(w, policy()).detail = EDITED, apply_policy, None),
        ("a policy is gone", closed(), |w| drop(w.objects.remove(&policy())), apply_policy, None),
        ("a policy is superfluous", none(), superfluous_policy, &["delete NetworkPolicy acme-access"], None),
        ("so is a budget", standby(), superfluous_budget, &["delete PodDisruptionBudget acme-standby"], None),
        ("there is no pod", none(), |w| w.pods.clear(), &[], Some(("Provisioning", false))),
        ("a claim that only looks like one of its own", none(), |w| add(w, "another", theirs()), &[], None),
        ("a standby is not ready", standby(), standby_waits, &[], fewer),
        ("another version", none(), |w| w.recorded.version = Some("16".into()), &[], Some(("VersionMismatch", true))),
        ("the volume shall grow", two(), |_| {}, &["grow data-acme-0 2Gi"], None),
        ("the volume grows", two(), |w| *data(w) = claim(2.0 * GI, Some("1Gi")), &[], Some(("Growing", false))),
        ("the volume is not bound", two(), |w| *data(w) = claim(GI, None), &[], Some(("Growing", false))),
        ("the volume is larger, and stays so", none(), |w| *data(w) = claim(2.0 * GI, Some("2Gi")), &[], None),
        ("the dumps' volume shall grow", dumps, |_| {}, &["grow acme-backup 2Gi"], None),
    ];
    for (what, spec, change, expected, hold) in rows {
        let desired = acme(spec.clone());
        let mut observed = settled(&desired);
        change(&mut observed);
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan), *expected, "{what}");
        assert_eq!(reason(&plan), *hold, "{what}");
    }
}

#[test]
fn missing_pods_are_explained() {
    let desired = acme(json!({"replicas": 2}));
    let quota = |set: &str| ((Kind::StatefulSet, set.to_owned()), "exceeded quota".to_owned());
    for (set, pods, expected) in [
        ("acme", 0, "waiting for pod acme-0; exceeded quota"),
        ("acme-standby", 0, "waiting for pod acme-0"),
        ("acme-standby", 1, "0 of 1 standbys are ready; exceeded quota"),
        ("acme", 1, "0 of 1 standbys are ready"),
    ] {
        let mut observed = settled(&desired);
        observed.pods.truncate(pods);
        observed.refusals = [quota(set)].into();
        assert_eq!(decide(&desired, &observed).hold.unwrap().message, expected, "{set} {pods}");
    }
}

fn theirs() -> Ownership {
    Ownership::Other("x".to_owned())
}

const EDITED: Detail = Detail::Spec(Value::Null);
const SCALED: Detail = Detail::StatefulSet(SetView {
    replicas: 2,
    storage: None,
    is_rolled: true,
    requested: UserRequest { generation: None, mounted: [None, None, None] },
});

/// A claim of this name.
fn add(observed: &mut ObservedPostgresql, name: &str, owner: Ownership) {
    observed.objects.insert(claim_id(name), ObjectView { owner, ..claim(9.0 * GI, Some("9Gi")) });
}

fn policy() -> ObjectId {
    (Kind::NetworkPolicy, "acme-access".to_owned())
}

fn service() -> ObjectId {
    (Kind::Service, "acme".to_owned())
}

fn claim_id(name: &str) -> ObjectId {
    (Kind::PersistentVolumeClaim, name.to_owned())
}

fn at(observed: &mut ObservedPostgresql, id: ObjectId) -> &mut ObjectView {
    observed.objects.get_mut(&id).unwrap()
}

fn data(observed: &mut ObservedPostgresql) -> &mut ObjectView {
    at(observed, claim_id("data-acme-0"))
}

fn server(observed: &mut ObservedPostgresql) -> &mut ObjectView {
    at(observed, (Kind::StatefulSet, "acme".to_owned()))
}

#[test]
fn passwords() {
    let given = || json!({"passwordSecret": {"name": "mine"}});
    let usable = |version: &str| GivenPassword::Usable(Some(version.to_owned()));
    let recorded = |from: &str, version: Option<&str>| {
        let version = version.map(str::to_owned);
        Some(SecretRecord { name: "acme-app".to_owned(), from: from.to_owned(), version })
    };
    let used = recorded("spec.passwordSecret", Some("7"));
    let in_spec = recorded("spec.password", None);
    let lost = Some(("SecretLost", true));
    let stale = |password| ClientSecret::Stale { password };
    let missing = || GivenPassword::Unusable(Reason::PasswordSecretMissing, "x".to_owned());
    let (nothing, in_the_spec) = (|| GivenPassword::Nothing, || GivenPassword::Usable(None));
    let (inline, absent) = (|| json!({"password": "x"}), || ClientSecret::Absent);
    // The spec, the record, whether there is a volume, the Secret for clients, the password in the spec.
    for (what, spec, record, volume, client, given, expected, hold) in [
        ("nothing yet", json!({}), None, false, absent(), nothing(), &["keep Generated"][..], None),
        ("given", given(), None, false, absent(), usable("7"), &["keep Spec"], None),
        ("inline", inline(), None, false, absent(), in_the_spec(), &["keep Spec"], None),
        ("missing", given(), None, false, absent(), missing(), &[], Some(("PasswordSecretMissing", true))),
        ("another owner's", json!({}), None, false, stale(true), nothing(), &["keep Generated"], None),
        ("kept by clients", json!({}), used.clone(), true, stale(true), nothing(), &["keep ClientSecret"], None),
        ("all gone", json!({}), recorded("generated", None), true, absent(), nothing(), &[], lost),
        ("no record, but data", json!({}), None, true, absent(), nothing(), &[], lost),
        ("spoilt", json!({}), recorded("generated", None), true, stale(false), nothing(), &[], lost),
        ("given as before", given(), used.clone(), true, absent(), usable("7"), &["keep Spec"], None),
        ("given anew", given(), used.clone(), true, absent(), usable("8"), &[], lost),
        ("gone with the given", given(), used, true, absent(), missing(), &[], lost),
        ("inline as before", inline(), in_spec, true, absent(), in_the_spec(), &["keep Spec"], None),
        ("inline anew", inline(), recorded("generated", None), true, absent(), in_the_spec(), &[], lost),
    ] {
        let desired = acme(spec);
        let mut observed = settled(&desired);
        observed.recorded.secret = record;
        observed.credentials = CredentialsView { kept: SecretState::Absent, broken: None, given, client };
        if !volume {
            observed.objects.remove(&claim_id("data-acme-0"));
        }
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan), expected, "{what}");
        assert_eq!(reason(&plan), hold, "{what}");
    }
}

#[test]
fn a_changed_password_does_not_stop_repairs() {
    let desired = acme(json!({"password": "x"}));
    let mut observed = settled(&desired);
    observed.credentials.given = GivenPassword::Differs;
    observed.objects.remove(&service());
    let plan = decide(&desired, &observed);
    assert_eq!((steps(&plan), reason(&plan)), (vec!["apply Service acme".to_owned()], Some(("PasswordChanged", true))));
}

/// Whichever object is missing, carrying out the plans ends with nothing left to do.
#[test]
fn every_lost_object_is_recreated() {
    let desired = acme(json!({"replicas": 3, "networkPolicy": {}, "backup": {"schedule": "@daily"}}));
    let whole = settled(&desired);
    for missing in whole.objects.keys().filter(|(kind, _)| *kind != Kind::PersistentVolumeClaim) {
        let mut observed = whole.clone();
        observed.objects.remove(missing);
        let plan = decide(&desired, &observed);
        assert_eq!(steps(&plan), [format!("apply {} {}", missing.0, missing.1)]);
        for step in plan.steps {
            let PostgresqlStep::Apply(object) = step else { panic!("{step:?}") };
            let detail = whole.objects[&object.id].detail.clone();
            observed.objects.insert(object.id, view(Some(object.digest), detail));
        }
        assert_eq!(decide(&desired, &observed), PostgresqlPlan::default());
    }
}

#[test]
fn the_certificate_is_created_first() {
    let desired = acme(json!({"tls": {}}));
    let mut observed = settled(&desired);
    assert_eq!(decide(&desired, &observed).steps, []);
    observed.certificate = SecretState::Absent;
    assert_eq!(decide(&desired, &observed).steps, [PostgresqlStep::CreateCertificate]);
    observed.certificate = SecretState::NotOurs("Certificate acme".to_owned());
    let plan = decide(&desired, &observed);
    assert_eq!((plan.steps, plan.hold.unwrap().reason), (vec![], Reason::NotOurs));
    // Without TLS it is of no interest.
    let desired = acme(json!({}));
    assert_eq!(
        decide(&desired, &ObservedPostgresql { certificate: observed.certificate, ..settled(&desired) }),
        PostgresqlPlan::default()
    );
}
