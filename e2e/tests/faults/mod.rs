//! Faults at the wrong moment of a release or a deletion: a late watch, a failing read, a frozen leader.

mod hostile;
mod outage;
mod relists;
mod requests;
mod rotation;
mod runs;
mod statuses;

use std::collections::BTreeMap;
use std::time::Duration;

use axum::http::StatusCode;
use clientapp_crd::{ClientApp, ClientAppStatus, FINALIZER, Phase, Postgresql, conditions, label};
use e2e::charts;
use e2e::lab::{Apart, Lab, Tenant, has, hostname, leading};
use e2e::operator::Options;
use e2e::proxy::{Fault, Proxy, Rule};
use e2e::repository::{self, Repository};
use e2e::scenario::{admin_secret, defined, definition, nothing_is_left, operated, secret, small, with};
use e2e::shim::Shim;
use e2e::wait::until;
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// An app that is Ready at its first revision.
async fn installed(tenant: &Tenant, name: &str) {
    tenant.create(name, small(tenant, name)).await.unwrap();
    tenant.ready(name, 1).await;
}

/// Begins to delete an app.
async fn delete(tenant: &Tenant, name: &str) {
    tenant.api::<ClientApp>().delete(name, &DeleteParams::default()).await.unwrap();
}

/// Checks that no event about the app has this reason.
async fn is_not_told(tenant: &Tenant, name: &str, reason: &str) {
    let told = tenant.events(name).await;
    assert!(told.iter().all(|(found, _)| found != reason), "{told:#?}");
}

/// Tells if a watch ever shows the app Ready, or Ready at this revision.
async fn was_ready(tenant: &Tenant, name: &str, revision: i64, until: impl Future) -> bool {
    let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut versions = Box::pin(watcher(tenant.api::<ClientApp>(), config).applied_objects());
    let ready = async {
        while let Some(app) = versions.next().await {
            let Some(status) = app.ok().and_then(|app| app.status) else { continue };
            let at = status.release.as_ref().map(|release| release.revision);
            if has(&status, "Ready", "True", "Ready") && at == Some(revision) {
                return;
            }
        }
    };
    tokio::select! {
        () = ready => true,
        _ = until => false,
    }
}

/// Waits until the status reports a workload without pods, and checks meanwhile that the app is not Ready.
async fn never_ready(tenant: &Tenant, name: &str, revision: i64) {
    let told = tenant.status(name, "waiting for its pods", |status| {
        let workloads = conditions::find(&status.conditions, "WorkloadsReady");
        let replicas = format!("Deployment {name}-nextcloud: 0 of 1 replicas");
        status.release.as_ref().is_some_and(|release| release.revision == revision)
            && has(status, "Ready", "False", "NotReady")
            && workloads.is_some_and(|found| found.message.contains(&replicas))
    });
    assert!(!was_ready(tenant, name, revision, told).await, "{name} was Ready");
}

/// No new app, none that is upgraded, and none that comes after another: the watch shows the former one's Deployment, which is complete.
#[tokio::test]
async fn a_watch_that_is_late_with_workloads_makes_no_app_ready() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-workloads", &[]).await;
    installed(&tenant, "upgraded").await;
    installed(&tenant, "successor").await;
    proxy.set([Rule::new("watch", "deployments", Fault::Late(Duration::from_secs(10)))]);
    tenant.delete("successor").await;
    tenant.patch("upgraded", json!({"chartVersion": charts::NEVER_READY})).await.unwrap();
    for name in ["new", "successor"] {
        tenant.create(name, with(small(&tenant, name), json!({"chartVersion": charts::NEVER_READY}))).await.unwrap();
    }
    tokio::join!(
        never_ready(&tenant, "upgraded", 2),
        never_ready(&tenant, "new", 1),
        never_ready(&tenant, "successor", 1),
    );
}

/// Neither a deletion nor a retention depends on what a watch shows, and no client is accused of having deleted what none shows.
#[tokio::test]
async fn what_no_watch_shows_is_there_all_the_same() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("unseen", &[]).await;
    proxy.set(["persistentvolumeclaims", "services"].map(|resource| Rule::new("watch", resource, Fault::Hang)));
    for (name, policy) in [("deleted", "Delete"), ("retained", "Retain"), ("recorded", "Retain")] {
        let more = json!({"persistence": {"enabled": true}, "deletionPolicy": policy});
        tenant.create(name, with(small(&tenant, name), more)).await.unwrap();
    }
    tenant.ready("recorded", 1).await;
    for name in ["deleted", "retained"] {
        tenant.ready(name, 1).await;
        assert!(tenant.uid::<PersistentVolumeClaim>(&format!("{name}-nextcloud-nextcloud")).await.is_some());
        tenant.delete(name).await;
    }
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("deleted-nextcloud-nextcloud").await, None);
    let retained = tenant.api::<PersistentVolumeClaim>().get("retained-nextcloud-nextcloud").await.unwrap();
    assert_eq!(retained.labels().get(label::RETAINED_FROM).map(String::as_str), Some("retained"));
    assert!(retained.annotations().contains_key("apps.bnerd-operator.local/installed"));

    let asked =
        async || tenant.requests().await.iter().any(|request| request == "operator get services/").then_some(());
    until("the API server is asked for the Services", asked).await;
    // The operator processes the response before it does anything else for the app.
    tenant.patch("recorded", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("recorded", 2).await;
    is_not_told(&tenant, "recorded", "Drifted").await;
    // The volume is put on record when the watch shows it, although the app was Ready before, and nothing else changes after that.
    proxy.set([]);
    let volume = |status: &ClientAppStatus| status.owned.iter().any(|owned| owned.kind == "PersistentVolumeClaim");
    tenant.status("recorded", "its volume on record", volume).await;
}

/// The watch shows the releases of former apps: one of the same values, and one of more revisions.
#[tokio::test]
async fn a_watch_that_is_late_with_former_releases_makes_no_successor_ready() {
    const APPS: [&str; 2] = ["same", "patched"];
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-releases", &[]).await;
    admin_secret(&tenant, "given", "b").await;
    let made = async || {
        for name in APPS {
            tenant.create(name, with(small(&tenant, name), json!({"adminSecret": "given"}))).await.unwrap();
        }
        for name in APPS {
            tenant.ready(name, 1).await;
            let listed = tenant.listed(name).unwrap();
            assert_eq!((listed.0.as_str(), listed.1.as_str()), ("1", "deployed"), "{name}");
            assert!(tenant.uid::<Deployment>(&format!("{name}-nextcloud")).await.is_some(), "{name}");
        }
    };
    made().await;
    tenant.patch("patched", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("patched", 2).await;
    proxy.set([Rule::new("watch", "secrets", Fault::Late(Duration::from_secs(10)))]);
    for name in APPS {
        tenant.delete(name).await;
    }
    made().await;
    proxy.set([]);
    proxy.delivered().await;
    for name in APPS {
        tenant.patch(name, json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
        tenant.ready(name, 2).await;
        is_not_told(&tenant, name, "ReleaseDrifted").await;
    }
}

#[tokio::test]
async fn many_versions_of_a_slow_repository_are_fetched_two_at_a_time() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("many-versions").await;
    let repository = Repository::start().unwrap();
    repository.set(repository::Fault::Slow).unwrap();
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), chart_repository: repository.url(), ..options };
    let _operator = leading(&options).await;
    let names: Vec<_> = (0..8).map(|number| format!("acme-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        let version = json!({"chartVersion": format!("5.5.{}", 100 + number)});
        tenant.create(name, with(small(&tenant, name), version)).await.unwrap();
    }
    for name in &names {
        tenant.condition(name, "Ready", "False", "FetchingChart").await;
    }
    // None of them has ended.
    let fetching = shim.runs().into_iter().filter(|run| run.arguments.starts_with("repo add")).count();
    assert!((1..=2).contains(&fetching), "{:?}", shim.runs());
    repository.set(repository::Fault::None).unwrap();
    for name in &names {
        tenant.condition(name, "Released", "False", "ChartInvalid").await;
    }
    assert!(repository.most_at_once() <= 2, "{}", repository.most_at_once());
}

/// Creates a Postgresql, and waits until it is up.
async fn database(tenant: &Tenant, name: &str, spec: Value) {
    make_database(tenant, name, spec).await;
    let up = |database: Option<&Postgresql>| (database?.status.as_ref()?.phase == Some(Phase::Up)).then_some(());
    tenant.wait_for(name, "up", up).await;
}

async fn make_database(tenant: &Tenant, name: &str, spec: Value) {
    let object = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    tenant.api::<Postgresql>().create(&PostParams::default(), &object).await.unwrap();
}

async fn delete_database(tenant: &Tenant, name: &str) {
    tenant.api::<Postgresql>().delete(name, &DeleteParams::default()).await.unwrap();
}

/// Waits until so many more requests have met the fault, and for the end of a Postgresql without it.
async fn database_gone(tenant: &Tenant, proxy: &Proxy, name: &str, met: usize) {
    let before = proxy.met();
    until("requests have failed", async || proxy.met() >= before + met).await;
    proxy.set([]);
    tenant.wait_for(name, "gone", |database: Option<&Postgresql>| database.is_none().then_some(())).await;
}

/// The garbage collector's work could not be told from the user's, and the Secrets would be kept, and be in the next database's way.
#[tokio::test]
async fn a_database_that_is_deleted_before_it_is_complete_leaves_nothing() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("early-deletion", &[]).await;
    for (verb, resource) in [("patch", "configmaps"), ("create", "secrets"), ("create", "persistentvolumeclaims")] {
        let met = proxy.met();
        proxy.set([Rule::new(verb, resource, Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
        make_database(&tenant, "db", json!({})).await;
        proxy.met_more_than(met).await;
        delete_database(&tenant, "db").await;
        database_gone(&tenant, &proxy, "db", 0).await;
        nothing_is_left(&tenant).await;
    }
    // The last dump was taken, and only the Postgresql itself is left: a repeated reconcile does not look for a database to dump.
    database(&tenant, "db", json!({"backup": {"onDelete": true}})).await;
    proxy.set([Rule::new("patch", "postgresqls", Fault::Answer(StatusCode::CONFLICT))]);
    delete_database(&tenant, "db").await;
    database_gone(&tenant, &proxy, "db", 3).await;
    tenant.wait_for("db-last-dump", "gone", |job: Option<&Job>| job.is_none().then_some(())).await;
}

/// Installs an app, and deletes it while requests about its Service meet this fault.
async fn deleted_with_fault(tenant: &Tenant, proxy: &Proxy, verb: &'static str, fault: Fault) {
    installed(tenant, "acme").await;
    let met = proxy.met();
    proxy.set([Rule::new(verb, "services", fault)]);
    delete(tenant, "acme").await;
    proxy.met_more_than(met).await;
}

#[tokio::test]
async fn an_uninstall_that_fails_keeps_the_app_and_says_what_is_left() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("failed-uninstall", &[]).await;
    let service = "Service failed-uninstall/acme-nextcloud";
    for (verb, status, words) in [
        // helm exits with 0 although it could not read an object: the deletion removes what it left behind.
        ("get", StatusCode::INTERNAL_SERVER_ERROR, "Service"),
        // helm says only that it failed to delete the release: the operator has to name the object.
        ("delete", StatusCode::FORBIDDEN, service),
    ] {
        deleted_with_fault(&tenant, &proxy, verb, Fault::Answer(status)).await;
        let before = tenant.uid::<Service>("acme-nextcloud").await;
        let told = |app: Option<&ClientApp>| {
            assert_eq!(app?.finalizers(), [FINALIZER]);
            let ready = conditions::find(&app?.status.as_ref()?.conditions, "Ready")?;
            (ready.status != "True" && ready.message.contains(words)).then_some(())
        };
        tenant.wait_for("acme", "told of what is left", told).await;
        assert_eq!(tenant.uid::<Service>("acme-nextcloud").await, before);
        proxy.set([]);
        tenant.gone("acme").await;
        nothing_is_left(&tenant).await;
    }
}

/// helm alone is killed, which leaves the release `uninstalling`: that is no other Helm client's lock.
#[tokio::test]
async fn a_helm_that_is_killed_while_it_uninstalls() {
    let Apart { tenant, proxy, options } = Lab::unattended().await.apart("killed-uninstall").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let _operator = leading(&Options { helm: shim.path(), ..options }).await;
    deleted_with_fault(&tenant, &proxy, "delete", Fault::Hang).await;
    let helm = shim.runs().pop().unwrap();
    assert!(helm.arguments.starts_with("uninstall") && helm.alive(), "{helm:?}");
    kill(Pid::from_raw(helm.pid.cast_signed()), Signal::SIGKILL).unwrap();
    until("helm is dead", async || !helm.alive()).await;
    let revision = tenant.api::<Secret>().get("sh.helm.release.v1.acme.v1").await.unwrap();
    assert_eq!(revision.labels()["status"], "uninstalling");
    proxy.set([]);
    let told = tenant.condition("acme", "Released", "False", "UpgradeFailed").await;
    let killed = "uninstall release killed-uninstall/acme: helm uninstall was killed by signal 9";
    assert!(told.starts_with(killed), "{told}");
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

/// helm cannot uninstall a release with an object of a kind that it does not know.
#[tokio::test]
async fn a_release_of_which_a_kind_is_gone_is_uninstalled_without_it() {
    let (Apart { tenant, proxy: _proxy, .. }, _operator) = operated("kind-gone", &[]).await;
    let kind = defined(&tenant.client, "monitoring.coreos.com", "ServiceMonitor").await;
    let resource = format!("--resource={}", definition(&kind));
    tenant.kubectl(&["create", "role", "monitors", "--verb=*", &resource]).unwrap();
    let deployer = "--serviceaccount=kind-gone:clientapp-deployer";
    tenant.kubectl(&["create", "rolebinding", "monitors", "--role=monitors", deployer]).unwrap();
    let spec = with(small(&tenant, "acme"), json!({"chartVersion": charts::UNKNOWN_KIND}));
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.kubectl(&["delete", "customresourcedefinition", &definition(&kind)]).unwrap();
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    tenant.kubectl(&["delete", "role,rolebinding", "monitors"]).unwrap();
    nothing_is_left(&tenant).await;
}

/// What cannot be read is not taken for gone: nothing is uninstalled before all that is retained has its mark.
#[tokio::test]
async fn a_read_that_fails_while_data_are_retained() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("failed-read", &[]).await;
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "deletionPolicy": "Retain",
        "postgres": {"provider": "standalone"}, "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let claims = ["data-acme-pg-0", "acme-nextcloud-nextcloud"];
    let uids = async || {
        [
            tenant.uid::<PersistentVolumeClaim>(claims[0]).await.unwrap(),
            tenant.uid::<PersistentVolumeClaim>(claims[1]).await.unwrap(),
            tenant.uid::<Postgresql>("acme-pg").await.unwrap(),
            tenant.uid::<Secret>("acme-admin-secret").await.unwrap(),
        ]
    };
    let before = uids().await;
    let fails = |verb, resource| Rule::new(verb, resource, Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR));
    proxy.set([fails("list", "persistentvolumeclaims")]);
    delete(&tenant, "acme").await;
    for (told, next) in [
        ("list the volumes in failed-read", Some(("get", "persistentvolumeclaims"))),
        ("look for PersistentVolumeClaim", Some(("get", "postgresqls"))),
        ("look for Postgresql", None),
    ] {
        tenant.condition_with("acme", ("Ready", "ApiUnavailable"), &[told]).await;
        assert_eq!(tenant.listed("acme").unwrap().1, "deployed", "{told}");
        proxy.set(next.map(|(verb, resource)| fails(verb, resource)));
    }
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    assert_eq!(uids().await, before);
    for claim in claims {
        let claim = tenant.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
        assert_eq!(claim.labels().get(label::RETAINED_FROM).map(String::as_str), Some("acme"));
        assert_eq!(claim.metadata.deletion_timestamp, None);
    }

    // All of it is reported by name nevertheless when it is handed over.
    for (kind, name) in [("persistentvolumeclaims", "one"), ("secrets", "two")] {
        make_database(&tenant, name, json!({"deletionPolicy": "Retain"})).await;
        let holdings = [format!("data-{name}-0"), format!("{name}-app"), format!("{name}-credentials")];
        let on_record = |found: Option<&Postgresql>| {
            let owned = &found?.status.as_ref()?.owned;
            holdings.iter().all(|name| owned.iter().any(|entry| entry.name == *name)).then_some(())
        };
        tenant.wait_for(name, "on record with what is its own", on_record).await;
        proxy.set([fails("patch", kind)]);
        delete_database(&tenant, name).await;
        database_gone(&tenant, &proxy, name, 1).await;
        let told = tenant.events(name).await;
        for holding in holdings {
            let about = |(reason, note): &(String, String)| reason == "Retained" && note.contains(&holding);
            assert!(told.iter().any(about), "{holding}: {told:#?}");
        }
    }
}

/// A leader is frozen in the middle of a deletion, and resumes after its successor has finished it and the app was
/// recreated: nothing of the new app is touched.
#[tokio::test]
async fn a_leader_that_is_frozen_in_the_middle_of_a_deletion() {
    let (Apart { tenant, proxy, options }, frozen) = operated("frozen", &[]).await;
    let spec = with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}));
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let files = "acme-nextcloud-nextcloud";
    let old = tenant.uid::<PersistentVolumeClaim>(files).await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "persistentvolumeclaims", Fault::Hang)]);
    delete(&tenant, "acme").await;
    proxy.met_more_than(met).await;
    frozen.signal(Signal::SIGSTOP);
    let direct = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let successor = leading(&Options { kubeconfig: direct.kubeconfig(), ..options }).await;
    tenant.gone("acme").await;
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let state = async || {
        (
            tenant.uid::<PersistentVolumeClaim>(files).await,
            tenant.uid::<Secret>("acme-admin-secret").await,
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
        )
    };
    let before = state().await;
    assert_ne!(before.0, old);
    // The frozen leader's pending requests arrive only now, and it continues where it was.
    proxy.set([]);
    frozen.signal(Signal::SIGCONT);
    let woken = move || {
        let mut frozen = frozen;
        // Its pending requests exceed their deadline, or are refused, since they concern the old claim.
        frozen.wait_for_log("the lease is lost")
    };
    tokio::task::spawn_blocking(woken).await.unwrap().unwrap();
    let claim = tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap();
    assert_eq!(claim.metadata.deletion_timestamp, None);
    assert_eq!(state().await, before);
    tenant.ready("acme", 1).await;
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    drop(successor);
}
