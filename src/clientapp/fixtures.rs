//! Fixtures for the tests of several stages.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde_json::{Value, json};

use super::{
    observed::{
        release::{ReleasePhase, ReleaseView},
        types::{
            CachedChart, DatabaseView, Observed, ObservedObjects, ObservedRun, Prerequisites, SecretView, Workload,
        },
    },
    spec::{
        credentials::placeholders,
        database::{DatabaseObject, DatabaseState},
        deployer::{Deployer, DeployerObject},
        desired::{Desired, Intent, desired},
        values_from::Sources,
    },
};
use crate::{
    config::Config,
    crd::{
        Attempt, ClientApp, ClientAppStatus, InstalledChart, Inventory, Owned, ReadyRevision, Release, ReleaseObject,
        RolledBack,
    },
    platform::watch_builder::Availability,
};

/// A revision of another spec is deployed.
pub(super) fn outdated(observed: &mut Observed) {
    observed.release.as_mut().unwrap().managed_digest = Some("before".to_owned());
}

/// Returns the same after a rollback to what is desired.
pub(super) fn rolled_back(desired: &Desired) -> Desired {
    let record = RolledBack { digest: "failed".to_owned(), message: "why".to_owned(), to: ReadyRevision::default() };
    Desired { intent: Intent::RolledBack { to: desired.target().clone(), record }, ..desired.clone() }
}

pub(super) fn now() -> Timestamp {
    "2026-01-01T12:00:00Z".parse().unwrap()
}

/// Returns a configuration with a deadline of 430 s for helm.
pub(super) fn config() -> Config {
    Config::for_tests()
}

/// Returns a map with another's fields merged over its own.
pub(super) fn with(mut base: Value, more: &Value) -> Value {
    base.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    base
}

/// Returns the ClientApp `tenants/acme`, with these fields of its spec.
pub(super) fn app(spec: &Value) -> ClientApp {
    serde_json::from_value(json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1",
        "kind": "ClientApp",
        "metadata": {"name": "acme", "namespace": "tenants"},
        "spec": with(json!({"hostname": "acme.example.com"}), spec),
    }))
    .expect("the spec decodes")
}

pub(super) fn want(spec: &Value) -> Desired {
    let (app, config) = (app(spec), config());
    desired(&app, None, (&Sources::default(), &placeholders(&app, &config)), &config).unwrap()
}

pub(super) fn keys(keys: &[&str]) -> SecretView {
    SecretView::Present { keys: keys.iter().map(|key| (*key).to_owned()).collect() }
}

pub(super) fn own(uid: &str) -> SecretView {
    SecretView::Own { uid: uid.to_owned(), keys: BTreeSet::new() }
}

/// Returns an installed chart, with the app's version.
pub(super) fn chart(version: &str, app: Option<&str>) -> InstalledChart {
    let (name, digest) = ("nextcloud".to_owned(), "sha".to_owned());
    InstalledChart { name, version: version.to_owned(), app_version: app.map(str::to_owned), digest }
}

/// Returns a chart to install.
pub(super) fn target(version: &str, app: Option<&str>) -> CachedChart {
    let InstalledChart { name: chart, version, app_version, digest } = chart(version, app);
    CachedChart { chart, version: version.parse().unwrap(), app_version, digest }
}

/// Returns an object of the release, in the API version of its kind.
pub(super) fn object(kind: &str, name: &str) -> ReleaseObject {
    let api_version = match kind {
        "Deployment" | "StatefulSet" => "apps/v1",
        "Ingress" => "networking.k8s.io/v1",
        "Job" => "batch/v1",
        _ => "v1",
    };
    let [api_version, kind, name] = [api_version, kind, name].map(str::to_owned);
    ReleaseObject { api_version, kind, name, ..ReleaseObject::default() }
}

/// Returns a StatefulSet with this template of claims.
pub(super) fn stateful_set(name: &str, template: &str) -> ReleaseObject {
    ReleaseObject { claim_templates: vec![template.to_owned()], ..object("StatefulSet", name) }
}

pub(super) fn owned(kind: &str, name: &str, uid: &str) -> Owned {
    let [kind, name, uid] = [kind, name, uid].map(str::to_owned);
    Owned { kind, name, uid }
}

/// Returns a condition that has been so since then.
pub(super) fn condition(type_: &str, status: &str, since: Timestamp) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: "Why".to_owned(),
        message: String::new(),
        last_transition_time: Time(since),
        observed_generation: None,
    }
}

pub(super) fn attempt(digest: &str) -> Attempt {
    Attempt {
        digest: digest.to_owned(),
        started_at: Time(now()),
        failures: 0,
        retry_at: None,
        reason: None,
        chart: None,
        message: None,
        without_volumes: Vec::new(),
    }
}

pub(super) fn release(digest: &str) -> ReleaseView {
    ReleaseView {
        revision: 3,
        secret: "sh.helm.release.v1.acme.v3".to_owned(),
        secret_uid: "revision-3".to_owned(),
        phase: ReleasePhase::Deployed,
        status: "deployed".to_owned(),
        managed_digest: Some(digest.to_owned()),
        ever_managed: true,
        created_at: Some(now() - SignedDuration::from_secs(60)),
    }
}

/// Returns the account that helm acts as, created at this time.
pub(super) fn deployer(created: Timestamp) -> Deployer {
    let found = |uid: &str| {
        Some(DeployerObject { uid: uid.to_owned(), created: Some(created), matches: true, created_by_us: true })
    };
    Deployer { account: found("account-uid"), binding: found("binding-uid") }
}

pub(super) fn database(desired: &Desired) -> Option<DatabaseObject> {
    let object = desired.database_object()?;
    let targets = object.targets(None).unwrap();
    Some(DatabaseObject {
        app: Some("acme".to_owned()),
        uid: "pg-uid".to_owned(),
        stamp: Some("uid".to_owned()),
        digest: Some(object.document(&targets).digest),
        postgres_version: Some(object.postgres_version),
        storage_bytes: Some(object.storage_bytes),
        storage_class: object.storage_class().map(str::to_owned),
        targets,
        isolated: true,
        state: DatabaseState::Ready,
        created: Some(now() - SignedDuration::from_secs(600)),
        ..DatabaseObject::default()
    })
}

/// Everything exists and is as desired.
pub(super) fn settled(desired: &Desired) -> Observed {
    let workload = |kind, name: &str| Workload { kind, name: name.to_owned(), ..Workload::default() };
    Observed {
        run: ObservedRun { is_in_cache: true, has_slot: true, has_test_slot: true, ..ObservedRun::default() },
        release: Some(release(&desired.target().digest)),
        last_ready_is_stored: true,
        objects: ObservedObjects {
            inventory: Some(Inventory::default()),
            workloads: vec![workload("Deployment", "acme-nextcloud"), workload("StatefulSet", "acme-redis-master")],
            ..ObservedObjects::default()
        },
        prerequisites: Prerequisites {
            admin_secret: own("admin-uid"),
            redis_secret: own("redis-uid"),
            database: DatabaseView {
                kind: Availability::Installed,
                app_uid: "uid".to_owned(),
                recorded_uid: Some("pg-uid".to_owned()),
                object: database(desired),
                secret: keys(&["user", "password", "host", "dbname"]),
                reachable: true,
                ..DatabaseView::default()
            },
            deployer: deployer(now() - SignedDuration::from_secs(3600)),
            chart: Some(target(&desired.target().chart_version.to_string(), None)),
            ..Prerequisites::default()
        },
        recorded: ClientAppStatus {
            release: Some(Release { revision: 3, ..Release::default() }),
            ..ClientAppStatus::default()
        },
        ..Observed::default()
    }
}
