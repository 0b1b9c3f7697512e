//! The table of [`decide`], and a property: wherever a run is interrupted, the next ones converge.

use std::sync::Arc;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::prelude::*;
use serde_json::{Value, json};

mod failures;

use super::*;
use super::{
    approval,
    plan::{Apply, UpgradeCause},
    remediation,
};
use crate::{
    clientapp::{
        fixtures::{
            attempt, chart, condition, config, database, deployer, keys, now, object, outdated, own, owned, release,
            rolled_back, settled, stateful_set, want, with,
        },
        hold::SAFETY_NET,
        observed::{
            release::{ReleasePhase, ReleaseView},
            repair_backoff,
            types::{
                Busy, CachedChart, DatabasePods, DatabaseView, DriftedObject, FormerDatabase, LiveState,
                ObservedObjects, PartView, Prerequisites, Retained, SecretView, UnreadyDependency,
            },
        },
        spec::{
            database::{self, BackupLocation, DatabaseObject, DatabaseState, DesiredObject, PartUse, SeenPart},
            deployer::{self, Deployer, DeployerPart},
            desired::{Intent, ReleaseTarget},
        },
    },
    crd::{
        Attempt, ClientAppStatus, Inventory, PostgresProvider, ReadyRevision, Release, ReleaseObject, Tested,
        annotation, conditions::kind,
    },
    deletion::permit::DataKind,
    platform::{
        key::Key,
        pods::StuckPod,
        watch_builder::Availability::{self, Installed, Missing, Refused},
    },
    secrets::RevisionMeta,
};

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

/// A plan in one line: names of steps, then `hold condition/reason`, and `!` if stalled.
fn brief(plan: &Plan) -> String {
    let steps: Vec<String> = plan
        .steps
        .iter()
        .map(|step| match step {
            Step::CreateDeployer { part, again: false } => part.kind().to_owned(),
            Step::CreateDeployer { part, again: true } => format!("{} again", part.kind()),
            Step::CreateAdminSecret => "admin".to_owned(),
            Step::CreateRedisSecret => "redis".to_owned(),
            Step::Adopt(found) => format!("adopt {}", found.len()),
            Step::ApplyDatabase(Apply { targets, source, .. }) => {
                let backups = [(targets.volume, " with backups"), (targets.repository.is_some(), " in a repository")];
                let parts = backups.into_iter().chain([(source.is_some(), " from a backup")]);
                let parts: String = parts.filter_map(|(is, part)| is.then_some(part)).collect();
                format!("postgres{parts}")
            }
            Step::RetainDatabase(former) => format!("retain {}", former.name),
            Step::DeletePart { kind, .. } => format!("delete {kind}"),
            Step::BackUp(record) => format!("back up {}", record.name),
            Step::UnlockRelease { revision, .. } => format!("unlock {revision}"),
            Step::FetchChart => "fetch".to_owned(),
            Step::CancelHelm => "cancel helm".to_owned(),
            Step::Repair(missing) => {
                format!("repair {}", drift::names(missing))
            }
            Step::DeleteStuckPod(pod) => format!("delete pod {}", pod.name),
            Step::RollBack(back) => format!("roll back to {}", back.to.revision),
            Step::CreateRepositoryPassword(secret) => format!("password {}", secret.name),
            Step::WithdrawBackup { name, .. } => format!("withdraw {name}"),
            Step::CreateBackup { name } => format!("create {name}"),
            Step::DeleteBackup { name, .. } => format!("delete {name}"),
            Step::Test => "test".to_owned(),
            Step::HelmUpgrade { revision, cause: None } => format!("helm {revision}"),
            Step::HelmUpgrade { revision, cause: Some(UpgradeCause::ChangedByOthers { revision: theirs }) } => {
                format!("helm {revision} over {theirs}")
            }
            Step::HelmUpgrade { revision, cause: Some(UpgradeCause::Uninstalled { .. }) } => {
                format!("helm {revision} again")
            }
        })
        .collect();
    // The hold of a started helm run is not shown.
    let hold = plan.hold.as_ref().filter(|hold| !(plan.runs_helm() && hold.reason == Reason::Upgrading)).map(|hold| {
        let stalled = if hold.stalled { "!" } else { "" };
        format!("hold {}/{}{stalled}", hold.condition, hold.reason)
    });
    steps.into_iter().chain(hold).collect::<Vec<_>>().join(", ")
}

#[track_caller]
fn row(what: &str, spec: Value, change: impl FnOnce(&mut Observed), plan: &str) {
    let desired = want(&spec);
    let mut observed = settled(&desired);
    change(&mut observed);
    let decided = decide(&desired, &observed, &config(), now());
    assert_eq!(brief(&decided), plan, "{what}: {decided:#?}");
}

const ALL_MADE: &str = "ServiceAccount, RoleBinding, admin, redis, postgres, hold PostgresReady/Provisioning";
const WAIT: &str = "hold PostgresReady/Provisioning";
const OTHERS: &str = "hold PostgresReady/DatabaseNotOurs!";
const NO_KIND: &str = "hold PostgresReady/DependencyMissing!";
const DENIED: &str = "hold PostgresReady/AccessDenied!";
const STUCK: &str = "hold PostgresReady/DatabaseNotProgressing";
const RESTORING: &str = "hold PostgresReady/Restoring";
const BACKUPS: &str = "postgres with backups";
const EXTERNAL: &str = "hold Released/ExternalOperationInProgress";

/// Returns the hold of the settled app with this change.
fn held(spec: &Value, change: impl FnOnce(&mut Observed)) -> Hold {
    let desired = want(spec);
    let mut observed = settled(&desired);
    change(&mut observed);
    decide(&desired, &observed, &config(), now()).hold.unwrap()
}

fn none() -> Value {
    json!({})
}

fn suspend() -> Value {
    json!({"suspend": true})
}

fn no_database() -> Value {
    json!({"postgres": {"enabled": false}})
}

#[test]
fn from_nothing_to_settled() {
    row("everything is as it should be", none(), |_| {}, "");
    row("nothing exists", none(), |w| *w = nothing(), ALL_MADE);
    const MADE: &str = "ServiceAccount, RoleBinding, admin, redis";
    row("nothing exists, and no database", no_database(), |w| *w = nothing(), MADE);
    let little = json!({"postgres": {"enabled": false}, "redis": {"enabled": false}});
    // The Redis Secret distinguishes an orphaning deletion from others.
    row("nothing exists, and little is asked for", little, |w| *w = nothing(), MADE);
    row("all but the release", none(), |w| (w.release, w.recorded.release) = (None, None), "helm 1");
}

fn admin(view: SecretView) -> impl Fn(&mut Observed) {
    move |w| w.prerequisites.admin_secret = view.clone()
}

fn redis(view: SecretView) -> impl Fn(&mut Observed) {
    move |w| w.prerequisites.redis_secret = view.clone()
}

fn existing(w: &mut Observed) -> &mut DatabaseObject {
    w.prerequisites.database.object.as_mut().unwrap()
}

fn away(w: &mut Observed) {
    w.prerequisites.database.reachable = false;
}

fn initializing() -> DatabaseState {
    DatabaseState::Waiting(" is initializing".to_owned())
}

fn taken(w: &mut Observed) {
    w.prerequisites.deployer.binding.as_mut().unwrap().matches = false;
}

fn new_database(w: &mut Observed) {
    (w.prerequisites.database.object, w.prerequisites.database.recorded_uid) = (None, None);
}

fn nothing() -> Observed {
    let database = DatabaseView { kind: Installed, app_uid: "uid".to_owned(), ..DatabaseView::default() };
    let chart = settled(&want(&none())).prerequisites.chart;
    Observed { prerequisites: Prerequisites { chart, database, ..Prerequisites::default() }, ..Observed::default() }
}

#[test]
fn suspension_and_hostname_come_first() {
    row("suspended", suspend(), |w| *w = nothing(), "hold Reconciling/Suspended");
    let other = || Some(Key::new("b", "older"));
    const TAKEN: &str = "hold Released/HostnameConflict!";
    row("hostname taken", none(), |w| w.prerequisites.hostname_holder = other(), TAKEN);
    let no_more = |w: &mut Observed| {
        *w = nothing();
        w.prerequisites.hostname_holder = other();
    };
    row("hostname taken, nothing made yet", none(), no_more, TAKEN);
}

#[test]
fn values_from_elsewhere() {
    let intent =
        |digest: &str| Intent::Spec(ReleaseTarget { digest: digest.to_owned(), ..want(&none()).target().clone() });
    let plan = |reason: Reason, change: fn(&mut Observed)| {
        let mut desired = Desired { intent: intent("incomplete"), ..want(&none()) };
        desired.values.awaits = Some(Hold::new(reason, "x"));
        let mut observed = settled(&desired);
        // As before the values were lost.
        observed.release = Some(release("complete"));
        change(&mut observed);
        brief(&decide(&desired, &observed, &config(), now()))
    };
    const MISSING: &str = "hold Released/ValuesMissing!";
    let no_account = |w: &mut Observed| w.prerequisites.deployer = Deployer::default();
    for (what, reason, change, expected) in [
        ("missing", Reason::ValuesMissing, (|_| {}) as fn(&mut Observed), MISSING),
        ("missing, and no release", Reason::ValuesMissing, |w| w.release = None, MISSING),
        // All else is made meanwhile: the account, without which nothing can be read, among it.
        ("nothing exists", Reason::Pending, |w| *w = nothing(), ALL_MADE),
        ("the account is missing", Reason::Pending, no_account, "ServiceAccount again, RoleBinding again"),
        ("the account is taken", Reason::Pending, taken, "hold Released/DeployerNotOurs!"),
        ("the database is not ready", Reason::ValuesMissing, away, WAIT),
    ] {
        assert_eq!(plan(reason, change), expected, "{what}");
    }
}

#[test]
fn secrets() {
    let given = || json!({"adminSecret": "mine"});
    let no_redis = || json!({"redis": {"enabled": false}});
    let not_ours =
        |is_being_deleted: bool| SecretView::NotOurs { owner: "ClientApp acme".to_owned(), is_being_deleted };
    const NOT_OURS: &str = "hold Released/SecretNotOurs";
    const NO_KEY: &str = "hold Released/AdminSecretKeyMissing!";
    row("a generated Secret is lost", none(), redis(SecretView::Absent), "redis");
    row("a predecessor's Secret", none(), redis(not_ours(false)), NOT_OURS);
    row("a predecessor's Secret, and no Redis", no_redis(), redis(not_ours(false)), "");
    // The Redis Secret shows how the app is deleted: without its own one, a deletion keeps everything.
    row("a predecessor's Secret that goes, and no Redis", no_redis(), redis(not_ours(true)), NOT_OURS);
    for (kept, plan) in [("redis-password", ""), ("password", "hold Released/RedisSecretKeyMissing!")] {
        row("made by a user for Redis", none(), redis(keys(&[kept])), plan);
        row("made by a user, and no Redis", no_redis(), redis(keys(&[kept])), "");
    }
    row("a predecessor's admin Secret", none(), admin(not_ours(false)), NOT_OURS);
    row("given and absent", given(), admin(SecretView::Absent), "hold Released/AdminSecretMissing!");
    row("given without a password", given(), admin(keys(&["nextcloud-username"])), NO_KEY);
    let mail = |more: Value| with(more, &json!({"values": {"nextcloud": {"mail": {"enabled": true}}}}));
    let all = ["nextcloud-username", "nextcloud-password", "smtp-host", "smtp-username", "smtp-password"];
    for count in 2..=5 {
        let plan = if count == 5 { "" } else { NO_KEY };
        row("mail with a given Secret", mail(given()), admin(keys(&all[..count])), plan);
        let read = all[..count].iter().map(|key| (*key).to_owned()).collect();
        let own = SecretView::Own { uid: "admin-uid".to_owned(), keys: read };
        row("mail with the generated Secret", mail(none()), admin(own), plan);
    }
    row("given and whole", given(), admin(keys(&all[..2])), "");
    let made = "ServiceAccount, RoleBinding, redis, postgres, hold PostgresReady/Provisioning";
    row("given and absent does not hold up the database", given(), |w| *w = nothing(), made);
}

#[test]
fn the_account_that_helm_acts_as() {
    let lost = |w: &mut Observed| w.prerequisites.deployer.account = None;
    let unbound = |w: &mut Observed| w.prerequisites.deployer.binding = None;
    row("removed at rest", none(), lost, "ServiceAccount again");
    row("its binding removed at rest", none(), unbound, "RoleBinding again");
    row("removed before an upgrade", none(), |w| (lost(w), outdated(w)).0, "ServiceAccount again");
    row("another binding at rest", none(), taken, "");
    row("another binding", none(), |w| (taken(w), outdated(w)).0, "hold Released/DeployerNotOurs!");
    row(
        "another binding, no account",
        none(),
        |w| (taken(w), lost(w), outdated(w)).0,
        "hold Released/DeployerNotOurs!",
    );
    row("suspended", suspend(), lost, "hold Reconciling/Suspended");

    // The operator neither creates nor checks an account that the spec names.
    let given = json!({"serviceAccountName": "team", "postgres": {"enabled": false}});
    row("another account", given.clone(), |w| (lost(w), outdated(w)).0, "helm 4");
    row("another account, and nothing exists", given, |w| *w = nothing(), "admin, redis");
    let named = json!({"serviceAccountName": "clientapp-deployer"});
    row("the usual one by its name", named, lost, "ServiceAccount again");
}

/// The operator waits after a refusal, unless it is from before every API server knew the account.
#[test]
fn an_account_that_was_too_young_is_tried_again() {
    for (what, reason, made, started, plan) in [
        ("refused for lack of rights", "AccessDenied", 3600, 10, "hold Released/AccessDenied!"),
        ("refused at once", "AccessDenied", 10, 8, "helm 4"),
        ("refused just now", "AccessDenied", 3, 2, "hold Released/AccessDenied!"),
        ("refused before it was put back", "AccessDenied", 10, 60, "helm 4"),
        ("failed for another reason", "UpgradeFailed", 10, 8, "hold Released/UpgradeFailed"),
    ] {
        let change = |w: &mut Observed| {
            w.prerequisites.deployer = deployer(ago(made));
            outdated(w);
            w.recorded.last_attempt = Some(Attempt {
                started_at: Time(ago(started)),
                failures: 1,
                retry_at: Some(Time(now() + SignedDuration::from_mins(5))),
                reason: Some(reason.to_owned()),
                ..attempt(&want(&none()).target().digest)
            });
        };
        row(what, none(), change, plan);
    }
}

fn standalone() -> Value {
    json!({"postgres": {"provider": "standalone"}})
}

fn external() -> Value {
    json!({"postgres": {"provider": "external", "external": {"secretName": "theirs"}}})
}

/// Returns an object beside a database as it should be.
fn part_view(kind: &'static str, desired: &DesiredObject, database: &DatabaseObject) -> PartView {
    PartView {
        kind,
        name: "acme-pg".to_owned(),
        part_use: desired.part_use(kind),
        is_recreatable: kind != "ObjectStore",
        availability: Installed,
        to_install: "install it",
        object: Some(SeenPart {
            uid: format!("{kind}-uid"),
            app: Some("acme".to_owned()),
            owner_uid: Some(database.uid.clone()),
            digest: database.digest.clone(),
        }),
    }
}

/// Returns a user's ObjectStore, which is only read.
fn read_part(availability: Availability, owner_uid: Option<String>) -> PartView {
    PartView {
        kind: "ObjectStore",
        name: "acme-pg".to_owned(),
        part_use: PartUse::Read,
        is_recreatable: false,
        availability,
        to_install: "install it",
        object: Some(SeenPart { uid: "theirs".to_owned(), app: None, owner_uid, digest: None }),
    }
}

/// What backs up a Cluster comes before the plugin in it: with a plugin that it does not know, CloudNativePG does nothing more.
#[test]
fn what_backs_up_a_cluster() {
    let store = json!({"endpoint": "https://s3", "bucket": "b", "credentialsSecret": {"name": "s3"}});
    let spec = json!({"postgres": {
        "provider": "cloudnativepg", "version": "17", "backup": {"schedule": "@daily", "store": store},
    }});
    let desired = want(&spec);
    let with = |change: fn(&mut DatabaseView)| {
        let desired = desired.clone();
        move |observed: &mut Observed| {
            let object = desired.database_object().unwrap();
            let view = &mut observed.prerequisites.database;
            view.secret = keys(&["username", "password"]);
            let existing = view.object.as_mut().unwrap();
            existing.targets = object.targets(Some(existing)).unwrap();
            existing.digest = Some(object.document(&existing.targets).digest);
            view.parts = ["ObjectStore", "ScheduledBackup"].map(|kind| part_view(kind, object, existing)).into();
            change(view);
        }
    };
    const APPLIED: &str = "postgres in a repository";
    const GOES: &str = "hold PostgresReady/Deleting";
    fn store_of(view: &mut DatabaseView) -> &mut SeenPart {
        view.parts[0].object.as_mut().unwrap()
    }
    for (what, change, plan) in [
        ("as it should be", (|_| {}) as fn(&mut DatabaseView), ""),
        ("no plugin", |view| view.parts[0].availability = Missing, NO_KIND),
        ("no plugin, and no Cluster yet", |view| (view.parts[0].availability, view.object) = (Missing, None), NO_KIND),
        ("no right to see stores", |view| view.parts[0].availability = Refused("no".into()), DENIED),
        ("applied without it", |view| view.object.as_mut().unwrap().digest = Some("d".into()), APPLIED),
        ("a store that is gone", |view| view.parts[0].object = None, APPLIED),
        ("a schedule that is gone", |view| view.parts[1].object = None, APPLIED),
        ("a store of an earlier spec", |view| store_of(view).digest = Some("d".into()), APPLIED),
        ("a store that has lost its owner", |view| store_of(view).owner_uid = None, ""),
        ("a user's store", |view| (store_of(view).owner_uid, store_of(view).app) = (None, None), OTHERS),
        ("a former Cluster's store", |view| store_of(view).owner_uid = Some("former".into()), GOES),
        (
            "a store of another Cluster of the user",
            |view| (store_of(view).owner_uid, store_of(view).app) = (Some("theirs".into()), None),
            OTHERS,
        ),
        (
            "a user's schedule, and no Cluster yet",
            |view| {
                view.parts[0].object = None;
                let schedule = view.parts[1].object.as_mut().unwrap();
                (schedule.owner_uid, schedule.app) = (None, None);
                (view.object, view.recorded_uid) = (None, None);
            },
            OTHERS,
        ),
        (
            "a former Cluster's store, and no Cluster yet",
            |view| {
                store_of(view).owner_uid = Some("former".into());
                (view.object, view.recorded_uid) = (None, None);
            },
            GOES,
        ),
    ] {
        row(what, spec.clone(), with(change), plan);
    }
    // It is only read: the user's own, from which the Cluster was created.
    let source = json!({"serverName": "acme-pg-5f0c2c0e", "objectStore": "acme-pg"});
    let reads =
        json!({"postgres": {"provider": "cloudnativepg", "version": "17", "cloudnativepg": {"dataSource": source}}});
    let theirs = |observed: &mut Observed| {
        let view = &mut observed.prerequisites.database;
        view.secret = keys(&["username", "password"]);
        view.parts = vec![read_part(Installed, None)];
    };
    row("a user's store that is read", reads, theirs, "");
}

/// A Pooler is made with the Cluster, awaited, and deleted once no pod of the app uses it.
#[test]
fn a_pooler() {
    let spec = |pooler: Value| json!({"postgres": {"provider": "cloudnativepg", "version": "17", "cloudnativepg": {"pooler": pooler}}});
    let with = |asked: Value, change: fn(&mut Observed)| {
        let desired = want(&spec(asked));
        move |observed: &mut Observed| {
            let object = desired.database_object().unwrap();
            let view = &mut observed.prerequisites.database;
            view.secret = keys(&["username", "password"]);
            let existing = view.object.as_ref().unwrap();
            view.parts = vec![PartView { name: "acme-pg-pooler".to_owned(), ..part_view("Pooler", object, existing) }];
            change(observed);
        }
    };
    fn part(observed: &mut Observed) -> &mut PartView {
        &mut observed.prerequisites.database.parts[0]
    }
    fn seen(observed: &mut Observed) -> &mut SeenPart {
        part(observed).object.as_mut().unwrap()
    }
    for (what, asked, change, plan) in [
        ("as it should be", json!({}), (|_| {}) as fn(&mut Observed), ""),
        ("it is not there", json!({}), |w| part(w).object = None, "postgres"),
        ("it is of an earlier spec", json!({}), |w| seen(w).digest = None, "postgres"),
        ("no pod of it is ready", json!({}), away, WAIT),
        ("a user's", json!({}), |w| (seen(w).owner_uid, seen(w).app) = (None, None), OTHERS),
        ("an old CloudNativePG", json!({}), |w| part(w).availability = Missing, NO_KIND),
        ("no longer asked for", Value::Null, |_| {}, "delete Pooler"),
        ("in use until then", Value::Null, outdated, "helm 4"),
        (
            "not while the database is not",
            Value::Null,
            |w| existing(w).state = DatabaseState::Waiting(" waits".to_owned()),
            WAIT,
        ),
        ("a user's is left alone", Value::Null, |w| seen(w).owner_uid = Some("theirs".to_owned()), ""),
        ("so is one that another app has labelled", Value::Null, |w| seen(w).app = Some("other".to_owned()), ""),
        ("one that has lost its owner proves nothing", Value::Null, |w| seen(w).owner_uid = None, ""),
        ("what holds data is never deleted", Value::Null, |w| part(w).is_recreatable = false, ""),
        ("not needed, not known", Value::Null, |w| part(w).availability = Missing, "delete Pooler"),
    ] {
        row(what, spec(asked.clone()), with(asked, change), plan);
    }
}

/// The same readiness for each provider: Percona, standalone, external.
#[test]
fn the_database_gate() {
    let of = |change: fn(&mut DatabaseObject)| {
        move |w: &mut Observed| w.prerequisites.database.object.as_mut().map(change).unwrap_or_default()
    };
    for (what, change, made) in [
        ("as it should be", (|_| {}) as fn(&mut DatabaseObject), ""),
        ("of an earlier operator, by ownerReference", |s| (s.stamp, s.owner_uid) = (None, Some("uid".into())), ""),
        ("on record by uid, whatever it says", |s| s.stamp = None, ""),
        ("another app's", |s| s.app = None, OTHERS),
        ("labelled as this app's, and not on record", |s| (s.stamp, s.uid) = (None, "other".into()), OTHERS),
        ("a predecessor's", |s| (s.stamp, s.uid) = (Some("old".into()), "other".into()), OTHERS),
        ("retained from an earlier one", |s| s.retained_from = Some("acme".into()), OTHERS),
        ("going", |s| s.deleting = true, "hold PostgresReady/Deleting"),
        ("another major", |s| s.postgres_version = Some(14), "hold PostgresReady/VersionMismatch!"),
        ("a larger volume", |s| s.storage_bytes = Some(1e12), "hold PostgresReady/StorageShrink!"),
        ("of a class that another client has set", |s| s.storage_class = Some("fast".into()), ""),
        ("a smaller volume", |s| (s.storage_bytes, s.digest) = (Some(1e6), None), "postgres"),
        ("silent for long", |s| s.state = DatabaseState::NotReported, "hold PostgresReady/NotReporting"),
        ("new and silent", |s| (s.state, s.created) = (DatabaseState::NotReported, Some(ago(1))), WAIT),
        ("on its way", |s| s.state = initializing(), WAIT),
        ("on its way, not long ago", |s| (s.state, s.progressed) = (initializing(), Some(ago(299))), WAIT),
        ("on its way, and stuck there", |s| (s.state, s.progressed) = (initializing(), Some(ago(300))), STUCK),
        (
            "silent since it was restored",
            |s| (s.state, s.progressed) = (DatabaseState::NotReported, Some(ago(9999))),
            "hold PostgresReady/NotReporting",
        ),
        ("ready, however long nothing has changed", |s| s.progressed = Some(ago(9999)), ""),
        ("stuck", |s| s.state = DatabaseState::Stalled(": no".into()), "hold PostgresReady/DatabaseStalled!"),
        (
            "restored by a user",
            |s| (s.state, s.digest) = (DatabaseState::Restoring(" is restored".into()), None),
            RESTORING,
        ),
        ("targets for backups is never taken away", |s| s.targets.volume = true, BACKUPS),
    ] {
        for spec in [none(), standalone()] {
            // A Postgresql's document has no backup targets.
            let made = if spec == standalone() && made == BACKUPS { "" } else { made };
            row(what, spec, of(change), made);
        }
        row(what, external(), of(change), "");
    }
    let of = |change: fn(&mut DatabaseView)| move |w: &mut Observed| change(&mut w.prerequisites.database);
    for (what, change, made, theirs) in [
        ("not installed", (|d| (d.kind, d.object) = (Missing, None)) as fn(&mut DatabaseView), NO_KIND, ""),
        ("not to be seen", |d| d.kind = Refused("no".into()), DENIED, ""),
        ("nothing there", |d| d.object = None, "postgres, hold PostgresReady/Provisioning", ""),
        ("no address", |d| d.reachable = false, WAIT, ""),
        ("no Secret", |d| d.secret = SecretView::Absent, SECRET_MISSING, "hold PostgresReady/SecretMissing!"),
        ("no password", |d| d.secret = keys(&["user", "host", "dbname"]), NO_KEY, THEIRS_NO_KEY),
        ("no host", |d| d.secret = keys(&["user", "password"]), "", THEIRS_NO_KEY),
    ] {
        for (spec, plan) in [(none(), made), (standalone(), made), (external(), theirs)] {
            row(what, spec, of(change), plan);
        }
    }
    let waiting = |w: &mut Observed| {
        existing(w).state = initializing();
        outdated(w);
    };
    // It had nothing to do while it was ready, and no time that anybody wrote makes the operator stop.
    for (what, status, failed, progressed, expected) in [
        ("it has just failed", "False", ago(10), ago(9999), WAIT),
        ("it failed long ago", "False", ago(301), ago(9999), STUCK),
        ("it failed long ago, and goes on", "False", ago(9999), ago(10), WAIT),
        ("nobody has said so yet", "True", ago(10), ago(9999), STUCK),
        ("a time to come", "False", ago(9999), Timestamp::MAX, WAIT),
        ("a time before all others", "False", Timestamp::MIN, Timestamp::MIN, STUCK),
    ] {
        let stuck = |w: &mut Observed| {
            waiting(w);
            existing(w).progressed = Some(progressed);
            w.recorded.conditions.push(condition(kind::POSTGRES_READY, status, failed));
        };
        row(what, none(), stuck, expected);
    }
    // What was seen last is in the message.
    let since = ago(400);
    let warning = "MissingRequiredImage: Missing image(s): [crunchy-pgbackrest]";
    let hold = held(&none(), |w| {
        waiting(w);
        existing(w).progressed = Some(since);
        w.prerequisites.database.warnings = Some(warning.to_owned());
    });
    let expected = format!(
        "PerconaPGCluster acme-pg is initializing; it has made no progress since {since}: see the Percona operator's log; its operator warns: {warning}"
    );
    assert_eq!((hold.message, hold.until), (expected, Some(now() + SAFETY_NET)));
    row("a change waits for the database", json!({"chartVersion": "5.5.3"}), waiting, WAIT);
    let restored = |w: &mut Observed| {
        existing(w).state = DatabaseState::Restoring(" is restored".to_owned());
        outdated(w);
    };
    let backed_up = json!({"chartVersion": "5.5.3", "upgrade": {"backup": true}});
    row("no backup is requested of one that is being restored", backed_up, restored, RESTORING);
    let unasked = |w: &mut Observed| w.prerequisites.database = DatabaseView::default();
    row("without one Percona is not asked for", no_database(), unasked, "");
}

/// Backups in object storage, and the data source: used once, if there never was a database.
#[test]
fn percona_backup_requests() {
    let s3 = json!({"bucket": "b", "endpoint": "e", "region": "r"});
    let with = |percona: Value| json!({"postgres": {"percona": percona}});
    let repository = || with(json!({"repository": {"s3": s3, "secretName": "s", "path": "/a"}}));
    let source = || with(json!({"dataSource": {"cluster": "other-pg"}}));
    let gone = |w: &mut Observed| w.prerequisites.database.object = None;
    let elsewhere = |w: &mut Observed| {
        let place = BackupLocation { store: "s3://b".to_owned(), endpoint: None, path: "/old".to_owned() };
        existing(w).targets.repository = Some(place);
    };
    const MADE: &str = ", hold PostgresReady/Provisioning";
    const MISMATCH: &str = "hold PostgresReady/RepositoryMismatch!";
    row("a repository", repository(), new_database, &format!("postgres in a repository{MADE}"));
    row("as it should be", repository(), |_| {}, "");
    row("in another", repository(), elsewhere, MISMATCH);
    row("in one that is not named", none(), elsewhere, MISMATCH);
    row("on a volume", with(json!({"keep": 3})), new_database, &format!("postgres with backups{MADE}"));
    row("made from a backup", source(), new_database, &format!("postgres with backups from a backup{MADE}"));
    row("made once", source(), |_| {}, "");
    row("deleted by a user, whose volumes are there still", source(), gone, &format!("postgres with backups{MADE}"));
    let said_again = |w: &mut Observed| {
        let found = existing(w);
        (found.source, found.digest) = (Some(json!({})), None);
    };
    row("said again, whatever the spec says by now", none(), said_again, "postgres from a backup");
}

/// A Cluster of CloudNativePG takes its data along, by whatever client it is deleted.
#[test]
fn a_lost_database_is_not_replaced_by_an_empty_one() {
    let spec = || json!({"postgres": {"provider": "cloudnativepg"}});
    let settle = |w: &mut Observed| w.prerequisites.database.secret = keys(&["username", "password"]);
    let gone = move |w: &mut Observed| {
        settle(w);
        w.prerequisites.database.object = None;
    };
    let claim = |name: &str, owner: Option<&str>| {
        let owners = owner.map(|uid| json!([{"apiVersion": "v1", "kind": "Cluster", "name": "acme-pg", "uid": uid}]));
        let meta = json!({"name": name, "labels": {"cnpg.io/cluster": "acme-pg"}, "ownerReferences": owners});
        Arc::new(serde_json::from_value(meta).unwrap())
    };
    let with = |name: &'static str, owner: Option<&'static str>| {
        move |w: &mut Observed| {
            gone(w);
            w.objects.claims = vec![claim(name, owner)];
        }
    };
    const LOST: &str = "hold PostgresReady/DatabaseLost!";
    const MADE: &str = "postgres, hold PostgresReady/Provisioning";
    row("it is there", spec(), settle, "");
    row("it is gone", spec(), gone, LOST);
    row("its volumes are going", spec(), with("acme-pg-1", Some("pg-uid")), "hold PostgresReady/Deleting");
    row("those of another of its name are going", spec(), with("acme-pg-1", Some("9")), "hold PostgresReady/Deleting");
    row("its volumes have lost their owner, and are taken over", spec(), with("acme-pg-1", None), MADE);
    row("a volume with its log alone", spec(), with("acme-pg-1-wal", None), LOST);
    row("a volume that is not its", spec(), with("copy-of-acme-pg-1", None), LOST);
    let new = move |w: &mut Observed| {
        gone(w);
        w.prerequisites.database.recorded_uid = None;
    };
    row("there was none", spec(), new, MADE);
    let unused = move |w: &mut Observed| {
        gone(w);
        (w.release, w.recorded) = (None, ClientAppStatus::default());
    };
    row("it was never used", spec(), unused, MADE);
    // For example, to have it tried again; it would be an empty one.
    let from_backups = json!({"serverName": "first-pg-5f0c2c0e", "objectStore": "store"});
    let restored = json!({"postgres": {"provider": "cloudnativepg", "cloudnativepg": {"dataSource": from_backups}}});
    row("it was made from backups, and never used", restored, unused, LOST);
    let message = held(&spec(), gone).message;
    assert!(
        message.ends_with(
            "`kubectl annotate clientapp acme -n tenants --overwrite apps.bnerd-operator.local/without-volume=pg-uid`"
        ),
        "{message}"
    );
    let mut desired = want(&spec());
    let mut observed = settled(&desired);
    gone(&mut observed);
    desired.data.without_volumes = ["pg-uid".to_owned()].into();
    assert_eq!(decide(&desired, &observed, &config(), now()).hold.unwrap().reason, Reason::Provisioning);
}

/// CloudNativePG restores into a new Cluster only. The app goes on with the former one until that is ready.
#[test]
fn an_app_moves_to_another_cluster() {
    let source = json!({"serverName": "acme-pg-5f0c2c0e", "objectStore": "store"});
    let options = |options: Value| json!({"postgres": {"provider": "cloudnativepg", "cloudnativepg": options}});
    let named = || options(json!({"cluster": "acme-pg-2"}));
    let restored = || options(json!({"cluster": "acme-pg-2", "dataSource": source}));
    let moving = |w: &mut Observed| {
        outdated(w);
        let view = &mut w.prerequisites.database;
        (view.secret, view.replaces) = (keys(&["username", "password"]), Some("acme-pg".to_owned()));
    };
    let store = |w: &mut Observed| {
        w.prerequisites.database.parts = vec![read_part(Missing, Some("theirs".to_owned()))];
    };
    let absent = move |w: &mut Observed| {
        moving(w);
        new_database(w);
    };
    let claim = |owner: Option<&str>| {
        let owners = owner.map(|uid| json!([{"apiVersion": "v1", "kind": "Cluster", "name": "acme-pg-2", "uid": uid}]));
        let meta =
            json!({"name": "acme-pg-2-1", "labels": {"cnpg.io/cluster": "acme-pg-2"}, "ownerReferences": owners});
        Arc::new(serde_json::from_value(meta).unwrap())
    };
    const MADE: &str = "postgres from a backup, hold PostgresReady/Provisioning";
    row("it is created from a backup", restored(), absent, MADE);
    row("it would be empty", named(), absent, "hold PostgresReady/DataSourceMissing!");
    let deleted = move |w: &mut Observed| {
        moving(w);
        w.prerequisites.database.object = None;
    };
    row("it was deleted before the app used it", restored(), deleted, MADE);
    let left = move |w: &mut Observed| {
        absent(w);
        w.objects.claims = vec![claim(None)];
    };
    row("CloudNativePG would use a volume, and not the backup", restored(), left, "hold PostgresReady/DataRetained!");
    let going = move |w: &mut Observed| {
        deleted(w);
        w.objects.claims = vec![claim(Some("9"))];
    };
    row("the volume of a former one of its name is going", restored(), going, "hold PostgresReady/Deleting");
    row("without the plugin", restored(), |w| (absent(w), store(w)).1, "hold PostgresReady/DependencyMissing!");
    let waits = move |w: &mut Observed| {
        moving(w);
        let object = existing(w);
        object.state = DatabaseState::Waiting(" is not ready: x".to_owned());
    };
    row("it is not ready", restored(), waits, "hold PostgresReady/Provisioning");
    row("it is ready", restored(), moving, "helm 4");
    let theirs = move |w: &mut Observed| {
        moving(w);
        existing(w).app = Some("other".to_owned());
    };
    row("it is another app's", restored(), theirs, "hold PostgresReady/DatabaseNotOurs!");

    let created = held(&restored(), absent).message;
    assert_eq!(created, "Cluster acme-pg-2 is being created; the app stays with acme-pg until then");
    let awaited = held(&restored(), waits).message;
    assert_eq!(awaited, "Cluster acme-pg-2 is not ready: x; the app stays with acme-pg until then");
    let told = held(&restored(), theirs).message;
    assert!(told.starts_with("Cluster acme-pg-2 exists and is ClientApp other's: it is not taken over"), "{told}");
}

/// Its pods may use it until all of them are replaced.
#[test]
fn a_former_database_is_retained_once_no_pod_uses_it() {
    let former = |is_retained: bool| {
        let former = FormerDatabase { name: "acme-pg".to_owned(), uid: "1".to_owned(), is_retained };
        move |w: &mut Observed| {
            let view = &mut w.prerequisites.database;
            (view.secret, view.former) = (keys(&["username", "password"]), vec![former.clone()]);
        }
    };
    let spec = || json!({"postgres": {"provider": "cloudnativepg", "cloudnativepg": {"cluster": "acme-pg-2"}}});
    row("it is left", spec(), former(false), "retain acme-pg");
    row("it is labelled", spec(), former(true), "");
    let starting = move |w: &mut Observed| {
        former(false)(w);
        w.objects.workloads[0].waiting = Some("x".to_owned());
    };
    row("old pods run", spec(), starting, "");
    let failed = move |w: &mut Observed| {
        former(false)(w);
        outdated(w);
    };
    row("no revision uses the other one", spec(), failed, "helm 4");
    let moving = move |w: &mut Observed| {
        former(false)(w);
        w.prerequisites.database.replaces = Some("acme-pg-1".to_owned());
        existing(w).state = DatabaseState::Waiting(" is not ready".to_owned());
    };
    row("the app is about to move again", spec(), moving, "hold PostgresReady/Provisioning");
}

/// The reason that its pods do not run, and when they are listed again.
#[test]
fn what_the_pods_of_a_database_say() {
    let spec = json!({"postgres": {"provider": "cloudnativepg"}});
    let soon = now() + SignedDuration::from_secs(7);
    let hour_ago = now() - SignedDuration::from_secs(3600);
    let waiting = || DatabaseState::Waiting(" is not ready: x".to_owned());
    for (state, progressed, reason, message) in [
        (waiting(), None, Reason::Provisioning, "Cluster acme-pg is not ready: x; pod a waits"),
        (
            waiting(),
            Some(hour_ago),
            Reason::DatabaseNotProgressing,
            "Cluster acme-pg is not ready: x; it has made no progress since 2026-01-01T11:00:00Z: pod a waits",
        ),
        (
            DatabaseState::Stalled(": it is unrecoverable".to_owned()),
            None,
            Reason::DatabaseStalled,
            "Cluster acme-pg: it is unrecoverable; pod a waits",
        ),
    ] {
        let hold = held(&spec, |w| {
            (existing(w).state, existing(w).progressed) = (state, progressed);
            w.prerequisites.database.pods = Some(DatabasePods { why: Some("pod a waits".to_owned()), until: soon });
        });
        assert_eq!((hold.reason, hold.message.as_str(), hold.until), (reason, message, Some(soon)));
    }
}

const SECRET_MISSING: &str = "hold PostgresReady/SecretMissing";
const NO_KEY: &str = "hold PostgresReady/SecretKeyMissing";
const THEIRS_NO_KEY: &str = "hold PostgresReady/SecretKeyMissing!";

#[test]
fn hold_messages() {
    for (spec, change, message) in [
        (
            standalone(),
            (|w| w.prerequisites.database.kind = Missing) as fn(&mut Observed),
            "this cluster has no kind Postgresql: apply the operator's crds/, and acme-pg is created at once",
        ),
        (
            standalone(),
            |w| existing(w).state = DatabaseState::Waiting(": pod acme-pg-0: x".to_owned()),
            "Postgresql acme-pg: pod acme-pg-0: x",
        ),
        (
            none(),
            |w| w.prerequisites.database.secret = SecretView::Absent,
            "PerconaPGCluster acme-pg is ready, but Secret acme-pg-pguser-clientapp does not exist",
        ),
        (
            external(),
            |w| w.prerequisites.database.secret = keys(&["user", "host"]),
            "Secret theirs, named in spec.postgres.external, has no value under password and dbname: it needs the keys user, password, host, dbname",
        ),
        (
            json!({"adminSecret": "mine"}),
            |w| w.prerequisites.admin_secret = keys(&[]),
            "Secret mine, named in spec.adminSecret, has no value under nextcloud-username and nextcloud-password: it needs the keys nextcloud-username and nextcloud-password",
        ),
    ] {
        assert_eq!(held(&spec, change).message, message);
    }
}

#[test]
fn retained_data_of_an_earlier_app() {
    let adopting = |provider: &str| json!({"postgres": {"provider": provider, "adopt": true}});
    let retained = |kind, name: &str| {
        let (name, uid) = (name.to_owned(), "left".to_owned());
        Retained { kind, name, uid, of_database: false, installed: None }
    };
    let percona = database::provider(PostgresProvider::Percona).unwrap().kind();
    let left = |database: bool| {
        move |w: &mut Observed| {
            let found = w.prerequisites.database.object.take();
            *w = nothing();
            w.prerequisites.retained = vec![retained(DataKind::Volume, "acme-nextcloud")];
            if database {
                w.prerequisites.retained.push(retained(percona, "acme-pg"));
                let left =
                    |found| DatabaseObject { app: None, stamp: None, retained_from: Some("acme".into()), ..found };
                w.prerequisites.database.object = found.map(left);
                w.prerequisites.database.secret = keys(&["user", "password"]);
                w.prerequisites.database.reachable = true;
            }
        }
    };
    const LEFT: &str = "hold Released/DataRetained!";
    row("not asked for", none(), left(true), LEFT);
    row("volumes alone", none(), left(false), LEFT);
    row("adopted", adopting("percona"), left(true), "adopt 2");
    row("volumes alone", adopting("percona"), left(false), "adopt 1");
    row("another provider's", adopting("standalone"), left(true), LEFT);
    row("none of its own", json!({"postgres": {"enabled": false, "adopt": true}}), left(true), LEFT);
    let shrunk = |w: &mut Observed| {
        left(true)(w);
        existing(w).storage_bytes = Some(1e12);
    };
    row("a shrink is no adoption", adopting("percona"), shrunk, "hold PostgresReady/StorageShrink!");
    let classed = |w: &mut Observed| {
        left(true)(w);
        existing(w).storage_class = Some("fast".to_owned());
    };
    const CLASS: &str = "hold PostgresReady/StorageClassMismatch!";
    row("another class is no adoption", adopting("percona"), classed, CLASS);
    let asked = json!({"postgres": {"adopt": true, "storageClassName": "fast"}});
    row("its class", asked, classed, "adopt 2");
    row("an app that adopts may find nothing", adopting("percona"), |_| {}, "");
}

#[test]
fn dependencies_are_awaited() {
    let waits = |w: &mut Observed| {
        let sentence = "ClientApp base is not Ready yet".to_owned();
        w.prerequisites.dependencies = vec![UnreadyDependency { sentence, is_watched: true, is_circle: false }];
    };
    const HOLD: &str = "hold Released/DependencyNotReady";
    row("before the installation", none(), |w| (waits(w), w.release = None, w.recorded.release = None).0, HOLD);
    row("before an upgrade", none(), |w| (waits(w), outdated(w)).0, HOLD);
    row("everything is as it should be", none(), waits, "");
    row("all else is made", none(), |w| (*w = nothing(), waits(w)).1, ALL_MADE);
}

#[test]
fn the_release() {
    let of = |change: fn(&mut ReleaseView)| move |w: &mut Observed| change(w.release.as_mut().unwrap());
    const DEAD: &str = "unlock 3, helm 4";
    for (what, change, plan) in [
        ("the spec changed", (|r| *r = release("old")) as fn(&mut ReleaseView), "helm 4"),
        ("failed", |r| r.phase = ReleasePhase::Failed, "helm 4"),
        ("another client's upgrade", |r| r.managed_digest = None, "helm 4 over 3"),
        (
            "another client's failed one",
            |r| (r.managed_digest, r.phase) = (None, ReleasePhase::Failed),
            "helm 4 over 3",
        ),
        ("kept history", |r| (r.managed_digest, r.phase) = (None, ReleasePhase::Uninstalled), "helm 4 again"),
        ("another client at work", |r| (r.managed_digest, r.phase) = (None, ReleasePhase::Pending), EXTERNAL),
        ("another client uninstalling", |r| (r.managed_digest, r.phase) = (None, ReleasePhase::Uninstalling), EXTERNAL),
        ("an operator's lock", |r| r.phase = ReleasePhase::Pending, DEAD),
    ] {
        row(what, none(), of(change), plan);
    }
    row("uninstalled by another client", none(), |w| w.release = None, "helm 1 again");
    let never_ours = |w: &mut Observed| {
        w.recorded.release = None;
        w.release = Some(ReleaseView { managed_digest: None, ever_managed: false, ..release("") });
    };
    row("never ours", none(), never_ours, "hold Released/ReleaseNotOurs!");
    let hour = || json!({"upgrade": {"foreignLockTimeout": "1h"}});
    let locked = |w: &mut Observed| {
        let r = w.release.as_mut().unwrap();
        (r.managed_digest, r.phase, r.created_at) = (None, ReleasePhase::Pending, Some(ago(3600)));
    };
    row("another client's lock, too long", hour(), locked, DEAD);
    let hooked = |since: i64| {
        move |w: &mut Observed| {
            w.objects.hook = Some("migrate".to_owned());
            let release = w.release.as_mut().unwrap();
            (release.phase, release.created_at) = (ReleasePhase::Pending, Some(ago(since)));
        }
    };
    row("a hook that a helm has left running", none(), hooked(429), EXTERNAL);
    row("a hook that runs for too long", none(), hooked(430), DEAD);
    let never_ours_and_locked = |w: &mut Observed| {
        never_ours(w);
        let release = w.release.as_mut().unwrap();
        (release.phase, release.created_at) = (ReleasePhase::Pending, Some(ago(3600)));
    };
    row("never ours, and locked", hour(), never_ours_and_locked, "hold Released/ReleaseNotOurs!");
}

#[test]
fn failures_are_not_repeated_before_their_time() {
    let failed = |failures: u32, retry_in: i64, reason: &'static str, digest: Option<&'static str>| {
        move |w: &mut Observed| {
            let release = w.release.as_mut().unwrap();
            release.phase = ReleasePhase::Failed;
            let digest = digest.map_or_else(|| release.managed_digest.clone().unwrap(), str::to_owned);
            w.recorded.last_attempt = Some(Attempt {
                started_at: Time(ago(60)),
                failures,
                retry_at: Some(Time(now() + SignedDuration::from_secs(retry_in))),
                reason: Some(reason.to_owned()),
                ..attempt(&digest)
            });
        }
    };
    for (what, change, plan) in [
        ("too early", failed(1, 30, "UpgradeFailed", None), "hold Released/UpgradeFailed"),
        ("too early for the fifth time", failed(5, 30, "UpgradeFailed", None), "hold Released/UpgradeFailed!"),
        ("a chart that can never work", failed(1, 30, "ChartInvalid", None), "hold Released/ChartInvalid!"),
        ("time to try again", failed(1, 0, "UpgradeFailed", None), "helm 4"),
        ("by a clock far ahead", failed(1, 86_400, "UpgradeFailed", None), "helm 4"),
        ("another spec failed", failed(9, 30, "UpgradeFailed", Some("old")), "helm 4"),
    ] {
        row(what, none(), change, plan);
    }
    let installing = |phase: ReleasePhase, hooks: &'static [&'static str], digest: Option<&'static str>| {
        let failed = failed(1, 0, "UpgradeFailed", digest);
        move |w: &mut Observed| {
            failed(w);
            let release = w.release.as_mut().unwrap();
            release.phase = phase;
            let install_hooks = hooks.iter().map(|hook| (*hook).to_owned()).collect();
            w.objects.inventory =
                Some(Inventory { secret: release.secret_uid.clone(), install_hooks, ..Inventory::default() });
        }
    };
    const MIGRATE: &[&str] = &["Job migrate"];
    const OWED: &str = "hold Released/UpgradeFailed!";
    let asked_again = |w: &mut Observed| {
        installing(ReleasePhase::Failed, MIGRATE, None)(w);
        w.retry = w.recorded.last_attempt.as_ref().map(annotation::retry_after);
    };
    let was_deployed = |w: &mut Observed| {
        installing(ReleasePhase::Failed, MIGRATE, None)(w);
        w.recorded.installed = Some(chart("5.5.2", None));
    };
    row("an installation with hooks of its own", none(), installing(ReleasePhase::Failed, MIGRATE, None), OWED);
    row("for another spec", none(), installing(ReleasePhase::Failed, MIGRATE, Some("old")), OWED);
    row("asked for again", none(), asked_again, OWED);
    row("one that was cut off", none(), installing(ReleasePhase::Pending, MIGRATE, None), &format!("unlock 3, {OWED}"));
    row("one without such hooks", none(), installing(ReleasePhase::Failed, &[], None), "helm 4");
    row("one that was deployed", none(), installing(ReleasePhase::Deployed, MIGRATE, None), "");
    row("an uninstall of what was deployed", none(), was_deployed, "helm 4");
    // A helm process that was killed each time and left its lock.
    let too_early = failed(3, 30, "UpgradeFailed", None);
    let locked = move |w: &mut Observed| {
        too_early(w);
        let release = w.release.as_mut().unwrap();
        release.phase = ReleasePhase::Pending;
    };
    row("a dead lock is no reason to hurry", none(), locked, "unlock 3, hold Released/UpgradeFailed");
    let asked = |failures: u32, reason: &'static str, since: i64| {
        let change = failed(failures, 1800, reason, None);
        move |w: &mut Observed| {
            change(w);
            // More precise than the stored time, as right after a run.
            w.recorded.last_attempt.as_mut().unwrap().started_at.0 += SignedDuration::from_millis(250);
            w.retry = Some(format!("{}/{failures}", ago(since)));
        }
    };
    let suspended = json!({"suspend": true});
    for (what, spec, change, plan) in [
        ("a user asks for another attempt", none(), asked(5, "UpgradeFailed", 60), "helm 4"),
        ("of a chart that could never work", none(), asked(1, "ChartInvalid", 60), "helm 4"),
        ("a user asked before this attempt", none(), asked(5, "UpgradeFailed", 90), "hold Released/UpgradeFailed!"),
        ("a user names one to come", none(), asked(1, "UpgradeFailed", -600), "hold Released/UpgradeFailed"),
        ("while it is suspended", suspended, asked(5, "UpgradeFailed", 60), "hold Reconciling/Suspended"),
    ] {
        row(what, spec, change, plan);
    }
    row("a user asks, and nothing has failed", none(), |w| w.retry = Some(ago(60).to_string()), "");
}

#[test]
fn lost_generated_secrets() {
    const LOST: &str = "hold Released/AdminSecretLost!";
    row("in use", none(), admin(SecretView::Absent), LOST);
    let (mut attempted, mut handed_out, mut gone) = (nothing(), nothing(), nothing());
    attempted.recorded.last_attempt = Some(attempt(""));
    handed_out.recorded.owned = vec![owned("Secret", "acme-admin-secret", "admin-uid")];
    gone.recorded.installed = Some(chart("5.5.2", None));
    for observed in [attempted, handed_out, gone] {
        row("once in use", none(), |w| *w = observed, LOST);
    }
    row("made by hand, without keys", none(), admin(keys(&[])), "hold Released/AdminSecretKeyMissing!");
    row("made by hand", none(), admin(keys(&["nextcloud-username", "nextcloud-password"])), "");
}

#[test]
fn missing_objects_are_recreated() {
    let policy = |drift: &str| json!({"drift": drift});
    let found = |service: LiveState, ingress: LiveState| {
        move |w: &mut Observed| {
            w.objects.drifted = vec![
                DriftedObject { object: object("Service", "acme"), state: service },
                DriftedObject { object: object("Ingress", "acme"), state: ingress },
            ];
        }
    };
    let missing = |w: &mut Observed| found(LiveState::Absent, LiveState::Unmarked)(w);
    const REPAIR: &str = "repair Service acme, Ingress acme, hold Released/Drifted";
    const HOLD: &str = "hold Released/Drifted";
    row("two objects", none(), missing, REPAIR);
    row("told only", policy("Report"), missing, "hold Released/Drifted!");
    const INGRESS: &str = "repair Ingress acme, hold Released/Drifted";
    row("one is another's", none(), found(LiveState::Foreign, LiveState::Absent), INGRESS);
    row("both are", none(), found(LiveState::Foreign, LiveState::Foreign), "hold Released/Drifted!");
    row("on their way out", none(), found(LiveState::Deleting, LiveState::Deleting), HOLD);
    let unknown = || LiveState::Unknown("forbidden".to_owned());
    row("not to be asked for", none(), found(unknown(), unknown()), HOLD);
    let set = ReleaseObject { takes_claims: true, ..stateful_set("acme", "data") };
    for (state, plan) in [
        (LiveState::Absent, "hold Released/Drifted!"),
        (LiveState::Unmarked, "repair StatefulSet acme, hold Released/Drifted"),
    ] {
        let missing = vec![DriftedObject { object: set.clone(), state }];
        row("a StatefulSet whose claims go with it", none(), |w| w.objects.drifted = missing, plan);
    }
    let made = |parts: std::ops::Range<usize>, seconds: i64| {
        move |w: &mut Observed| {
            missing(w);
            let ObservedObjects { drifted, repairs, .. } = &mut w.objects;
            drifted[parts].iter().for_each(|missing| repairs.tried(&missing.object, None, ago(seconds)));
        }
    };
    row("another client deletes both again", none(), made(0..2, 1), HOLD);
    row("and after a while", none(), made(0..2, 5), REPAIR);
    row("one of them", none(), made(0..1, 1), INGRESS);
    row("by another clock", none(), made(0..2, -3600), REPAIR);
    let refused = |stalled: bool, seconds: i64| {
        move |w: &mut Observed| {
            missing(w);
            let refused = repair_backoff::Refused { sentence: "forbidden".to_owned(), stalled };
            let ObservedObjects { drifted, repairs, .. } = &mut w.objects;
            drifted.iter().for_each(|missing| repairs.tried(&missing.object, Some(refused.clone()), ago(seconds)));
        }
    };
    row("refused", none(), refused(true, 1), "hold Released/Drifted!");
    row("refused for now", none(), refused(false, 1), HOLD);
    row("refused, and tried again", none(), refused(true, 5), &format!("{REPAIR}!"));
    row("told only, and on their way out", policy("Report"), found(LiveState::Deleting, LiveState::Deleting), HOLD);
    let initializing = |w: &mut Observed| (missing(w), away(w)).1;
    let repaired = format!("repair Service acme, Ingress acme, {WAIT}");
    row("while the database is away", none(), initializing, &repaired);
    row("told only, while the database is away", policy("Report"), initializing, WAIT);
    // helm recreates it itself.
    row("with a change of the spec", none(), |w| (missing(w), outdated(w)).0, "helm 4");
    row("suspended", suspend(), missing, "hold Reconciling/Suspended");
    row("without its account", none(), |w| (missing(w), taken(w)).1, "hold Released/DeployerNotOurs!");
}

#[test]
fn what_is_not_watched_is_looked_at_whatever_the_plan_waits_for() {
    let in_seconds = |seconds: i64| Some(now() + SignedDuration::from_secs(seconds));
    let absent = |w: &mut Observed| w.prerequisites.admin_secret = SecretView::Absent;
    let taken = |w: &mut Observed| w.prerequisites.hostname_holder = Some(Key::new("ns", "other"));
    for (spec, change, expected, [edits, pods]) in [
        (none(), (|_| {}) as fn(&mut Observed), "", [3, 10]),
        (json!({"adminSecret": "mine"}), absent, "hold Released/AdminSecretMissing!", [3, 10]),
        (none(), taken, "hold Released/HostnameConflict!", [3, 10]),
        (suspend(), |_| {}, "hold Reconciling/Suspended", [0, 0]),
    ] {
        let desired = want(&spec);
        let mut observed = settled(&desired);
        change(&mut observed);
        for (requeue_at, waiting, seconds) in [(in_seconds(3), None, edits), (None, Some("x".to_owned()), pods)] {
            (observed.requeue_at, observed.objects.workloads[0].waiting) = (requeue_at, waiting);
            let plan = decide(&desired, &observed, &config(), now());
            let expected = (expected.to_owned(), in_seconds(seconds).filter(|_| seconds > 0));
            assert_eq!((brief(&plan), plan.requeue_at), expected);
        }
    }
}

/// Only what does not run is deleted, and only while nothing else changes its StatefulSet.
#[test]
fn pods_of_former_revisions_make_room() {
    let stuck = |w: &mut Observed| {
        let pod = |name: &str, is_idle: bool| StuckPod {
            set: "set-uid".to_owned(),
            name: name.to_owned(),
            uid: "pod-uid".to_owned(),
            version: "7".to_owned(),
            is_idle,
            why: "it does not start".to_owned(),
        };
        w.objects.stuck_pods = vec![pod("redis-0", true), pod("search-0", false)];
    };
    let with = |change: fn(&mut Observed)| move |w: &mut Observed| (stuck(w), change(w)).1;
    row("at rest", none(), stuck, "delete pod redis-0");
    row("while the database is away", none(), with(away), &format!("delete pod redis-0, {WAIT}"));
    row("helm changes the StatefulSet first", none(), with(outdated), "helm 4");
    row("the release has failed", none(), with(|w| w.release.as_mut().unwrap().phase = ReleasePhase::Failed), "helm 4");
    let others = |w: &mut Observed| w.release.as_mut().unwrap().managed_digest = None;
    row("another client's release", none(), with(others), "helm 4 over 3");
    row("suspended", suspend(), stuck, "hold Reconciling/Suspended");
    let at_work = Busy { digest: Some(want(&none()).target().digest.clone()), sentence: "x".to_owned(), until: None };
    row("helm runs", none(), |w| (stuck(w), w.run.busy = Some(at_work)).1, "hold Released/Upgrading");
    // A volume that is being deleted goes with the last pod that uses it.
    let lost = |w: &mut Observed| {
        stuck(w);
        w.objects.inventory =
            Some(Inventory { objects: vec![object("PersistentVolumeClaim", "acme")], ..Inventory::default() });
        w.owned.push(owned("PersistentVolumeClaim", "acme", "1"));
    };
    row("a volume with data is lost", none(), lost, "hold Ready/VolumeLost!");
}

#[test]
fn a_chart_is_fetched_before_helm_runs() {
    let version = want(&none()).target().chart_version.to_string();
    let fetching = |version: &str| HelmRun::FetchingChart(version.parse().unwrap());
    for (what, run, plan) in [
        ("the chart is not at hand", HelmRun::Idle, "fetch, hold Released/FetchingChart"),
        ("it is fetched", fetching(&version), "hold Released/FetchingChart"),
        ("another one is fetched", fetching("1.2.3"), "fetch, hold Released/FetchingChart"),
    ] {
        row(what, none(), |w| (outdated(w), w.prerequisites.chart = None, w.run.state = run).0, plan);
    }
    row("at hand", none(), outdated, "helm 4");
    row("not needed", none(), |w| w.prerequisites.chart = None, "");
}

#[test]
fn nothing_else_is_decided_while_helm_runs() {
    let desired = want(&none());
    let at_work = |digest: &str, until: Option<i64>| Busy {
        digest: Some(digest.to_owned()),
        sentence: "helm runs".to_owned(),
        until: until.map(|seconds| now() + SignedDuration::from_secs(seconds)),
    };
    const RUNS: &str = "hold Released/Upgrading";
    const CANCELLED: &str = "cancel helm, hold Reconciling/Suspended";
    let of_predecessor = Busy { digest: None, ..at_work("", None) };
    for (what, spec, at_work, plan, says) in [
        ("on record", none(), at_work(&desired.target().digest, Some(5)), "", None),
        ("for an older spec", none(), at_work("old", Some(5)), "", None),
        ("for long", none(), at_work(&desired.target().digest, None), RUNS, Some("helm runs")),
        (
            "for long, for an older spec",
            none(),
            at_work("old", None),
            RUNS,
            Some("helm runs; the spec has changed since"),
        ),
        ("for a deleted ClientApp", none(), of_predecessor, RUNS, Some("helm runs")),
        ("suspended", suspend(), at_work(&desired.target().digest, Some(5)), CANCELLED, None),
        ("suspended, for long", suspend(), at_work("old", None), CANCELLED, None),
    ] {
        let desired = want(&spec);
        // Whatever else is to be done.
        let mut observed = nothing();
        observed.run.busy = Some(at_work.clone());
        let decided = decide(&desired, &observed, &config(), now());
        assert_eq!(brief(&decided), plan, "{what}");
        if let Some(says) = says {
            let message = &decided.hold.as_ref().unwrap().message;
            assert!(message.starts_with(says) && (says.contains(';') || message == says), "{what}: {message}");
        }
        let requeue_at = at_work.until.filter(|_| plan.is_empty());
        assert_eq!(decided.requeue_at, requeue_at, "{what}");
        let invalid = Plan { requeue_at: at_work.until, ..Plan::default() };
        assert_eq!(plan_of(None, &observed, &config(), now()), invalid, "{what}, and the spec is invalid");
    }
}

/// A simulated cluster: the effect of steps, and where they may be interrupted.
struct Sim {
    desired: Desired,
    observed: Observed,
    now: Timestamp,
    /// How often each generated Secret was created.
    created: [u32; 2],
    helm_runs: u32,
}

/// Says what happens next.
#[derive(Clone, Debug)]
enum Event {
    /// One reconcile that is killed after this many steps; if that is during a helm run, the lock stays.
    Reconcile { steps: usize, helm: HelmEnd },
    /// Percona makes progress.
    Percona,
    /// Another client upgrades the release.
    ForeignUpgrade,
    /// Another client uninstalls the release.
    ForeignUninstall,
    /// Another client removes the account that helm acts as.
    AccountLost,
    /// Time passes.
    Wait,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum HelmEnd {
    Succeeds,
    Fails,
    Killed,
}

impl Sim {
    fn new() -> Sim {
        Sim { desired: want(&none()), observed: nothing(), now: now(), created: [0, 0], helm_runs: 0 }
    }

    fn plan(&self) -> Plan {
        decide(&self.desired, &self.observed, &config(), self.now)
    }

    fn handle(&mut self, event: &Event) {
        match event {
            Event::Reconcile { steps, helm } => {
                for step in self.plan().steps.into_iter().take(*steps) {
                    self.perform(&step, *helm);
                }
            }
            Event::Percona => {
                let database = &mut self.observed.prerequisites.database;
                if let Some(object) = &mut database.object {
                    object.state = DatabaseState::Ready;
                    database.secret = keys(&["user", "password"]);
                    database.reachable = true;
                }
            }
            Event::ForeignUpgrade => {
                // A lock keeps every client out.
                if let Some(release) =
                    self.observed.release.as_mut().filter(|release| release.phase == ReleasePhase::Deployed)
                {
                    release.revision += 1;
                    release.managed_digest = None;
                }
            }
            Event::ForeignUninstall => self.observed.release = None,
            Event::AccountLost => self.observed.prerequisites.deployer.account = None,
            Event::Wait => self.now += SignedDuration::from_mins(40),
        }
    }

    fn perform(&mut self, step: &Step, helm: HelmEnd) {
        match step {
            Step::CreateDeployer { part, .. } => {
                let made = Some(deployer::DeployerObject {
                    uid: "uid".to_owned(),
                    created: Some(self.now),
                    matches: true,
                    created_by_us: true,
                });
                match part {
                    DeployerPart::ServiceAccount => self.observed.prerequisites.deployer.account = made,
                    DeployerPart::RoleBinding => self.observed.prerequisites.deployer.binding = made,
                }
            }
            Step::CreateAdminSecret => {
                self.created[0] += 1;
                self.observed.prerequisites.admin_secret = own("uid");
            }
            Step::CreateRedisSecret => {
                self.created[1] += 1;
                self.observed.prerequisites.redis_secret = own("uid");
            }
            Step::ApplyDatabase(Apply { targets, .. }) => {
                let made = DatabaseObject { state: DatabaseState::NotReported, ..database(&self.desired).unwrap() };
                let applied = self.desired.database_object().unwrap().document(targets);
                let object = self.observed.prerequisites.database.object.get_or_insert(made);
                object.digest = Some(applied.digest.clone());
            }
            Step::UnlockRelease { revision, .. } => {
                let release = self.observed.release.as_mut().unwrap();
                assert_eq!((release.revision, release.phase), (*revision, ReleasePhase::Pending));
                release.phase = ReleasePhase::Failed;
            }
            Step::HelmUpgrade { revision, .. } => self.helm(*revision, helm),
            other => unreachable!("{other:?}: nothing is left, lost, stuck or asked for beyond a database"),
        }
    }

    fn helm(&mut self, revision: i64, end: HelmEnd) {
        assert!(self.observed.prerequisites.deployer.is_ready(), "it acts without an account");
        let newest = self.observed.release.as_ref().map_or(0, |release| release.revision);
        assert_eq!(revision, newest + 1, "the revision that is stamped is the one helm makes");
        assert!(
            self.observed.release.as_ref().is_none_or(|release| release.phase != ReleasePhase::Pending),
            "two helms"
        );
        self.helm_runs += 1;
        let phase = match end {
            HelmEnd::Succeeds => ReleasePhase::Deployed,
            HelmEnd::Fails => ReleasePhase::Failed,
            HelmEnd::Killed => ReleasePhase::Pending,
        };
        self.observed.release = Some(ReleaseView { revision, phase, ..release(&self.desired.target().digest) });
        self.observed.objects.workloads = settled(&self.desired).objects.workloads;
        let failed = end == HelmEnd::Fails;
        let retry_at = self.now + SignedDuration::from_mins(10);
        self.observed.recorded.last_attempt = (end != HelmEnd::Killed).then(|| Attempt {
            started_at: Time(self.now),
            failures: failed.into(),
            retry_at: failed.then_some(Time(retry_at)),
            ..attempt(&self.desired.target().digest)
        });
        self.observed.recorded.release = Some(Release { revision, ..Release::default() });
    }
}

fn events() -> impl Strategy<Value = Event> {
    let helm = prop_oneof![Just(HelmEnd::Succeeds), Just(HelmEnd::Fails), Just(HelmEnd::Killed)];
    prop_oneof![
        6 => (0usize..8, helm).prop_map(|(steps, helm)| Event::Reconcile { steps, helm }),
        2 => Just(Event::Percona),
        1 => Just(Event::ForeignUpgrade),
        1 => Just(Event::ForeignUninstall),
        1 => Just(Event::AccountLost),
        1 => Just(Event::Wait),
    ]
}

proptest! {
    #[test]
    fn wherever_a_run_stops_the_next_ones_converge(history in prop::collection::vec(events(), 0..30)) {
        let mut sim = Sim::new();
        for event in &history {
            sim.handle(event);
        }
        // From here on, nothing fails.
        let runs = sim.helm_runs;
        for _ in 0..4 {
            sim.handle(&Event::Reconcile { steps: usize::MAX, helm: HelmEnd::Succeeds });
            sim.handle(&Event::Percona);
            sim.handle(&Event::Wait);
        }
        prop_assert_eq!(brief(&sim.plan()), "", "after {:?}", history);
        prop_assert!(sim.helm_runs <= runs + 1, "one helm run is enough");
        prop_assert_eq!(sim.created, [1, 1], "a password was made twice");
        let release = sim.observed.release.clone().unwrap();
        prop_assert_eq!((release.phase, release.managed_digest.unwrap()), (ReleasePhase::Deployed, sim.desired.target().digest.clone()));
    }
}
