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

/// No further revision, and no report of another Helm client.
#[tokio::test]
async fn a_watch_that_is_late_with_what_helm_wrote() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-watch", &[]).await;
    proxy.set([Rule::new("watch", "secrets", Fault::Late(Duration::from_secs(12)))]);
    installed(&tenant, "acme").await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    tenant.ready("acme", 3).await;
    proxy.set([]);
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "c"}}})).await.unwrap();
    tenant.ready("acme", 4).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "4");
    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(reason, _)| reason != "ReleaseDrifted"), "{told:#?}");
}

/// Whether a watch ever shows the app Ready, or Ready at this revision.
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

#[tokio::test]
async fn a_watch_that_is_late_with_workloads_makes_no_new_app_ready() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-workloads", &[]).await;
    proxy.set([Rule::new("watch", "deployments", Fault::Late(Duration::from_secs(10)))]);
    tenant.create("acme", with(small(&tenant, "acme"), json!({"chartVersion": charts::NEVER_READY}))).await.unwrap();
    never_ready(&tenant, "acme", 1).await;
}

#[tokio::test]
async fn a_watch_that_is_late_with_workloads_makes_no_upgrade_ready() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-upgrade", &[]).await;
    installed(&tenant, "acme").await;
    proxy.set([Rule::new("watch", "deployments", Fault::Late(Duration::from_secs(10)))]);
    tenant.patch("acme", json!({"chartVersion": charts::NEVER_READY})).await.unwrap();
    never_ready(&tenant, "acme", 2).await;
}

/// The watch shows the Deployment of the former app, which is complete.
#[tokio::test]
async fn a_watch_that_is_late_with_workloads_makes_no_successor_ready() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-successor", &[]).await;
    installed(&tenant, "acme").await;
    proxy.set([Rule::new("watch", "deployments", Fault::Late(Duration::from_secs(10)))]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.gone("acme").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"chartVersion": charts::NEVER_READY}))).await.unwrap();
    never_ready(&tenant, "acme", 1).await;
}

/// Neither a deletion nor a retention depends on what a watch shows.
#[tokio::test]
async fn volumes_that_no_watch_shows_are_deleted_or_retained_all_the_same() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("unseen-volumes", &[]).await;
    proxy.set([Rule::new("watch", "persistentvolumeclaims", Fault::Hang)]);
    for (name, policy) in [("deleted", "Delete"), ("retained", "Retain")] {
        let more = json!({"persistence": {"enabled": true}, "deletionPolicy": policy});
        tenant.create(name, with(small(&tenant, name), more)).await.unwrap();
    }
    for name in ["deleted", "retained"] {
        tenant.ready(name, 1).await;
        assert!(tenant.uid::<PersistentVolumeClaim>(&format!("{name}-nextcloud-nextcloud")).await.is_some());
        tenant.api::<ClientApp>().delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["deleted", "retained"] {
        tenant.gone(name).await;
    }
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("deleted-nextcloud-nextcloud").await, None);
    let retained = tenant.api::<PersistentVolumeClaim>().get("retained-nextcloud-nextcloud").await.unwrap();
    assert_eq!(retained.labels().get(label::RETAINED_FROM).map(String::as_str), Some("retained"));
    assert!(retained.annotations().contains_key("apps.bnerd-operator.local/installed"));
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
        tenant.api::<ClientApp>().delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in APPS {
        tenant.gone(name).await;
    }
    made().await;
    proxy.set([]);
    proxy.delivered().await;
    for name in APPS {
        tenant.patch(name, json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
        tenant.ready(name, 2).await;
        let told = tenant.events(name).await;
        assert!(told.iter().all(|(reason, _)| reason != "ReleaseDrifted"), "{told:#?}");
    }
}

/// The app was Ready before, and nothing else changes after that.
#[tokio::test]
async fn a_volume_that_the_watch_shows_late_is_put_on_record() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-volume", &[]).await;
    proxy.set([Rule::new("watch", "persistentvolumeclaims", Fault::Hang)]);
    tenant.create("acme", with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}))).await.unwrap();
    tenant.ready("acme", 1).await;
    proxy.set([]);
    let volume = |status: &ClientAppStatus| status.owned.iter().any(|owned| owned.kind == "PersistentVolumeClaim");
    tenant.status("acme", "its volume on record", volume).await;
}

/// Existing objects are not reported as deleted by another client.
#[tokio::test]
async fn a_watch_that_is_late_with_a_part_of_a_release_accuses_no_client() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-parts", &[]).await;
    proxy.set([Rule::new("watch", "services", Fault::Hang)]);
    installed(&tenant, "acme").await;
    let asked =
        async || tenant.requests().await.iter().any(|request| request == "operator get services/").then_some(());
    until("the API server is asked for the Service", asked).await;
    // The operator processes the response before it does anything else for the app.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(reason, _)| reason != "Drifted"), "{told:#?}");
}

/// The last dump was taken, and only the Postgresql itself is left: a repeated reconcile does not look for a database
/// to dump.
#[tokio::test]
async fn a_deletion_whose_last_step_fails_is_carried_on() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("last-step", &[]).await;
    let spec = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Postgresql",
        "metadata": {"name": "db"}, "spec": {"backup": {"onDelete": true}}});
    let databases = tenant.api::<Postgresql>();
    databases.create(&PostParams::default(), &serde_json::from_value(spec).unwrap()).await.unwrap();
    let up = |database: Option<&Postgresql>| (database?.status.as_ref()?.phase == Some(Phase::Up)).then_some(());
    tenant.wait_for("db", "up", up).await;
    proxy.set([Rule::new("patch", "postgresqls", Fault::Answer(StatusCode::CONFLICT))]);
    databases.delete("db", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(2).await;
    proxy.set([]);
    tenant.wait_for("db", "gone", |database: Option<&Postgresql>| database.is_none().then_some(())).await;
    let ended = |job: Option<&Job>| job.is_none().then_some(());
    tenant.wait_for("db-last-dump", "gone", ended).await;
}

#[tokio::test]
async fn many_versions_of_a_slow_repository_are_fetched_two_at_a_time() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("many-versions").await;
    let repository = Repository::start().unwrap();
    repository.set(repository::Fault::Slow).unwrap();
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), chart_repository: repository.url(), ..options };
    let _operator = leading(&options).await;
    let names: Vec<_> = (0..40).map(|number| format!("acme-{number}")).collect();
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

/// The garbage collector's work could not be told from the user's, and the Secrets would be kept, and be in the next database's way.
#[tokio::test]
async fn a_database_that_is_deleted_before_it_is_complete_leaves_nothing() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("early-deletion", &[]).await;
    let databases = tenant.api::<Postgresql>();
    let database = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Postgresql",
        "metadata": {"name": "db"}, "spec": {}});
    let database = serde_json::from_value(database).unwrap();
    let gone = |database: Option<&Postgresql>| database.is_none().then_some(());
    let up = |database: Option<&Postgresql>| (database?.status.as_ref()?.phase == Some(Phase::Up)).then_some(());
    for (verb, resource) in [("patch", "configmaps"), ("create", "secrets"), ("create", "persistentvolumeclaims")] {
        let met = proxy.met();
        proxy.set([Rule::new(verb, resource, Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
        databases.create(&PostParams::default(), &database).await.unwrap();
        proxy.met_more_than(met).await;
        databases.delete("db", &DeleteParams::default()).await.unwrap();
        proxy.set([]);
        tenant.wait_for("db", "gone", gone).await;
        nothing_is_left(&tenant).await;
    }
    databases.create(&PostParams::default(), &database).await.unwrap();
    tenant.wait_for("db", "up", up).await;
}

/// helm exits with 0 although it could not read an object: the deletion removes what it left behind.
#[tokio::test]
async fn a_look_that_fails_while_helm_uninstalls() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("failed-look", &[]).await;
    installed(&tenant, "acme").await;
    let met = proxy.met();
    proxy.set([Rule::new("get", "services", Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    tenant
        .wait_for("acme", "told of", |app: Option<&ClientApp>| {
            let ready = app?.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == "Ready")?;
            ready.message.contains("Service").then_some(())
        })
        .await;
    proxy.set([]);
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

/// helm alone is killed, which leaves the release `uninstalling`: that is no other Helm client's lock.
#[tokio::test]
async fn a_helm_that_is_killed_while_it_uninstalls() {
    let Apart { tenant, proxy, options } = Lab::unattended().await.apart("killed-uninstall").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let _operator = leading(&Options { helm: shim.path(), ..options }).await;
    installed(&tenant, "acme").await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "services", Fault::Hang)]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
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

/// helm says only that it failed to delete the release: the operator has to name the object.
#[tokio::test]
async fn an_uninstall_that_is_denied_keeps_the_app_and_says_what_is_denied() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("denied-uninstall", &[]).await;
    installed(&tenant, "acme").await;
    let service = tenant.uid::<Service>("acme-nextcloud").await.unwrap();
    proxy.set([Rule::new("delete", "services", Fault::Answer(StatusCode::FORBIDDEN))]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let denied = |app: Option<&ClientApp>| {
        let app = app?;
        assert_eq!(app.finalizers(), [FINALIZER]);
        let ready = conditions::find(&app.status.as_ref()?.conditions, "Ready")?;
        (ready.status != "True" && ready.message.contains("Service denied-uninstall/acme-nextcloud")).then_some(())
    };
    tenant.wait_for("acme", "told of what is denied", denied).await;
    assert_eq!(tenant.uid::<Service>("acme-nextcloud").await.unwrap(), service);
    proxy.set([]);
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
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    tenant.kubectl(&["delete", "role,rolebinding", "monitors"]).unwrap();
    nothing_is_left(&tenant).await;
}

/// What cannot be read is not taken for gone: nothing is uninstalled before all that is retained has its mark.
#[tokio::test]
async fn a_read_that_fails_while_data_are_retained() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("failed-read", &[]).await;
    for (name, verb, resource, told) in [
        ("listed", "list", "persistentvolumeclaims", "list the volumes in failed-read"),
        ("looked-up", "get", "persistentvolumeclaims", "look for PersistentVolumeClaim"),
        ("database", "get", "postgresqls", "look for Postgresql"),
    ] {
        let spec = json!({
            "hostname": hostname(&tenant, name), "deletionPolicy": "Retain",
            "postgres": {"provider": "standalone"}, "redis": {"enabled": false},
        });
        tenant.create(name, spec).await.unwrap();
        tenant.ready(name, 1).await;
        let claims = [format!("data-{name}-pg-0"), format!("{name}-nextcloud-nextcloud")];
        let uids = async || {
            let mut uids = Vec::new();
            for claim in &claims {
                uids.push(tenant.uid::<PersistentVolumeClaim>(claim).await.unwrap());
            }
            uids.push(tenant.uid::<Postgresql>(&format!("{name}-pg")).await.unwrap());
            uids.push(tenant.uid::<Secret>(&format!("{name}-admin-secret")).await.unwrap());
            uids
        };
        let before = uids().await;
        let met = proxy.met();
        proxy.set([Rule::new(verb, resource, Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
        tenant.api::<ClientApp>().delete(name, &DeleteParams::default()).await.unwrap();
        proxy.met_more_than(met).await;
        let said = tenant.condition(name, "Ready", "Unknown", "ApiUnavailable").await;
        assert!(said.contains(told), "{said}");
        assert_eq!(tenant.listed(name).unwrap().1, "deployed");
        proxy.set([]);
        tenant.gone(name).await;
        assert_eq!(tenant.listed(name), None);
        assert_eq!(uids().await, before, "{name}");
        for claim in &claims {
            let claim = tenant.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
            assert_eq!(claim.labels().get(label::RETAINED_FROM).map(String::as_str), Some(name));
            assert_eq!(claim.metadata.deletion_timestamp, None);
        }
    }
}

/// All of it is reported by name nevertheless.
#[tokio::test]
async fn a_request_that_fails_while_what_is_kept_is_handed_over() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("hand-over", &[]).await;
    for (kind, name) in [("persistentvolumeclaims", "one"), ("secrets", "two")] {
        let database = json!({"metadata": {"name": name}, "spec": {"deletionPolicy": "Retain"}});
        let databases = tenant.api::<Postgresql>();
        databases.create(&PostParams::default(), &serde_json::from_value(database).unwrap()).await.unwrap();
        let holdings = [format!("data-{name}-0"), format!("{name}-app"), format!("{name}-credentials")];
        let on_record = |found: Option<&Postgresql>| {
            let owned = &found?.status.as_ref()?.owned;
            holdings.iter().all(|name| owned.iter().any(|entry| entry.name == *name)).then_some(())
        };
        tenant.wait_for(name, "on record with what is its own", on_record).await;
        let met = proxy.met();
        proxy.set([Rule::new("patch", kind, Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
        databases.delete(name, &DeleteParams::default()).await.unwrap();
        proxy.met_more_than(met).await;
        proxy.set([]);
        tenant.wait_for(name, "gone", |found: Option<&Postgresql>| found.is_none().then_some(())).await;
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
    let old = tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap().uid();
    let met = proxy.met();
    proxy.set([Rule::new("delete", "persistentvolumeclaims", Fault::Hang)]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    frozen.signal(Signal::SIGSTOP);
    let direct = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let successor = leading(&Options { kubeconfig: direct.kubeconfig(), ..options }).await;
    tenant.gone("acme").await;
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let before = (
        tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap().uid(),
        tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().uid(),
        secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
    );
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
    let after = (
        claim.uid(),
        tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().uid(),
        secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
    );
    assert_eq!(after, before);
    tenant.ready("acme", 1).await;
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    drop(successor);
}
