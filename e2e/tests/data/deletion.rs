//! Deletion: what is deleted, what is kept, and that it always finishes.

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, label};
use e2e::charts;
use e2e::lab::{Apart, Lab, TIMEOUT, Tenant, hostname};
use e2e::proxy::{Fault, Rule};
use e2e::scenario::{admin_secret, delete, names, nothing_is_left, operated, secret, small, with};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, ResourceExt as _};
use serde_json::json;

#[tokio::test]
async fn everything_goes_and_the_database_with_its_volumes() {
    let tenant = Lab::shared().await.tenant("delete").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    assert!(names::<PersistentVolumeClaim>(&tenant).await.iter().any(|name| name.starts_with("acme-pg-")));
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;

    // Percona deletes volumes and Secrets only if asked to before its cluster is deleted.
    let requests = tenant.requests().await;
    let clusters: Vec<_> = requests.iter().filter(|request| request.contains("perconapgclusters")).collect();
    let deletion =
        clusters.iter().position(|request| request.as_str() == "operator delete perconapgclusters/").unwrap();
    assert_eq!(clusters[deletion - 1], "operator patch perconapgclusters/", "{clusters:?}");
}

/// The command of the guide, for one namespace.
fn removal() -> Vec<&'static str> {
    const GUIDE: &str = include_str!("../../../manifests/README.md");
    let command = GUIDE.lines().find(|line| line.starts_with("$ kubectl delete clientapps,")).unwrap();
    assert!(command.ends_with(" --all --all-namespaces"), "{command}");
    command.split_whitespace().skip(2).filter(|word| *word != "--all-namespaces").collect()
}

#[tokio::test]
async fn what_the_guide_removes_goes_by_the_policy_of_each_app() {
    let lab = Lab::shared().await;
    let (tenant, retaining) = (lab.tenant("removed").await, lab.tenant("removed-retaining").await);
    let standalone = |tenant: &Tenant, name: &str| json!({"hostname": hostname(tenant, name), "postgres": {"provider": "standalone", "version": "17"}});
    for name in ["acme", "other"] {
        tenant.create(name, standalone(&tenant, name)).await.unwrap();
    }
    let kept = with(standalone(&retaining, "kept"), json!({"deletionPolicy": "Retain"}));
    retaining.create("kept", kept).await.unwrap();
    for (tenant, name) in [(&tenant, "acme"), (&tenant, "other"), (&retaining, "kept")] {
        tenant.ready(name, 1).await;
    }
    for tenant in [&tenant, &retaining] {
        tenant.kubectl(&removal()).unwrap();
    }
    nothing_is_left(&tenant).await;
    let claim = retaining.api::<PersistentVolumeClaim>().get("data-kept-pg-0").await.unwrap();
    let password = retaining.api::<Secret>().get("kept-pg-credentials").await.unwrap().metadata;
    for meta in [claim.metadata, password] {
        assert!(meta.deletion_timestamp.is_none(), "{meta:?}");
        assert_eq!(meta.labels.unwrap()[label::RETAINED_FROM], "kept");
    }
}

/// A user who deletes a database by mistake keeps its data, also if the app goes later; then the app says so.
#[tokio::test]
async fn what_a_deleted_database_has_left_is_named_by_its_app() {
    let tenant = Lab::shared().await.tenant("removed-first").await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "postgres": {"provider": "standalone", "version": "17"}});
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.kubectl(&["delete", "postgresql", "acme-pg"]).unwrap();
    tenant.delete("acme").await;
    tenant.event("acme", "DataKept", "PersistentVolumeClaim data-acme-pg-0 stays: the database was deleted").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["data-acme-pg-0"]);
}

#[tokio::test]
async fn a_successor_does_not_wait_for_the_garbage_collector() {
    let tenant = Lab::shared().await.tenant("again-at-once").await;
    admin_secret(&tenant, "given", "password").await;
    let mut deletions = 0;
    for policy in ["Delete", "Retain"] {
        let spec = json!({"adminSecret": "given", "redis": {"enabled": true}, "deletionPolicy": policy});
        tenant.create("acme", with(small(&tenant, "acme"), spec)).await.unwrap();
        tenant.ready("acme", 1).await;
        tenant.delete("acme").await;
        assert_eq!(tenant.uid::<Secret>("acme-redis-secret").await, None, "{policy}");
        deletions += 1;
        let requests = tenant.requests().await;
        let deleted = requests.iter().filter(|request| request.as_str() == "operator delete secrets/").count();
        assert_eq!(deleted, deletions, "{policy}: {requests:?}");
    }
}

#[tokio::test]
async fn a_foreground_deletion_takes_everything_as_well() {
    let tenant = Lab::shared().await.tenant("delete-foreground").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    nothing_is_left(&tenant).await;
}

/// The database with everything needed to use it stays, without an owner, and can be found.
async fn is_retained(tenant: &Tenant, app: &str, password: &str) {
    let cluster = format!("{app}-pg");
    assert_eq!(secret(tenant, &format!("{cluster}-pguser-clientapp"), "password").await, password);
    let retained = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(label::RETAINED_FROM).map(String::as_str) == Some(app)
    };
    let cluster = tenant.api::<PerconaPGCluster>().get(&cluster).await.unwrap();
    assert!(retained(cluster.labels()) && cluster.owner_references().is_empty(), "{:?}", cluster.metadata);
    assert!(cluster.metadata.deletion_timestamp.is_none());
    let user = tenant.api::<Secret>().get(&format!("{app}-pg-pguser-clientapp")).await.unwrap();
    assert!(retained(user.labels()) && user.owner_references().is_empty(), "{:?}", user.metadata);
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let files = claims.iter().find(|claim| claim.name_any() == format!("{app}-nextcloud-nextcloud")).unwrap();
    assert!(retained(files.labels()) && files.owner_references().is_empty(), "{:?}", files.metadata);
    assert!(claims.iter().any(|claim| claim.name_any().starts_with(&format!("{app}-pg-"))));
    assert!(claims.iter().all(|claim| claim.metadata.deletion_timestamp.is_none()));
}

#[tokio::test]
async fn a_retained_database_stays_and_a_successor_gets_it_only_when_told() {
    let tenant = Lab::shared().await.tenant("retain").await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "deletionPolicy": "Retain"});
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    let admin = secret(&tenant, "acme-admin-secret", "nextcloud-password").await;
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    is_retained(&tenant, "acme", &password).await;

    let labels = tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().labels().clone();
    assert_eq!(labels[label::RETAINED_FROM], "acme");

    tenant.create("acme", spec.clone()).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "DataRetained").await;
    for part in ["PerconaPGCluster acme-pg, PersistentVolumeClaim", "more", "spec.postgres.adopt to true"] {
        assert!(told.contains(part), "{told}");
    }
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.delete("acme").await;
    is_retained(&tenant, "acme", &password).await;

    // Volumes do not shrink, not even for an adoption.
    let adopt = json!({"postgres": {"adopt": true, "storageSize": "512Mi"}, "deletionPolicy": "Delete"});
    tenant.create("acme", with(spec, adopt)).await.unwrap();
    tenant.condition("acme", "Ready", "False", "StorageShrink").await;
    is_retained(&tenant, "acme", &password).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    tenant.patch("acme", json!({"postgres": {"storageSize": "1Gi"}})).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap().uid(), cluster.uid());
    assert_eq!(secret(&tenant, "acme-pg-pguser-clientapp", "password").await, password);
    assert_eq!(secret(&tenant, "acme-admin-secret", "nextcloud-password").await, admin);
    // It belongs to the app again, and is deleted with it.
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_foreground_deletion_retains_as_well_also_when_the_policy_came_late() {
    let tenant = Lab::shared().await.tenant("retain-foreground").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    let app = tenant.patch("acme", json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant
        .status("acme", "retaining", |status| {
            status.observed_generation == app.metadata.generation && e2e::lab::has(status, "Ready", "True", "Ready")
        })
        .await;
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    is_retained(&tenant, "acme", &password).await;
}

#[tokio::test]
async fn an_object_that_does_not_decode_keeps_its_release_and_can_be_deleted() {
    let tenant = Lab::shared().await.tenant("undecodable").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    // The API server stores objects that are nested too deeply for any decoder here.
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    let patch = format!(r#"{{"spec":{{"values":{deep}}}}}"#);
    tenant.kubectl(&["patch", "clientapp", "acme", "--type=merge", "-p", &patch]).unwrap();
    tenant.kubectl(&["wait", "clientapp/acme", "--for=condition=Stalled=True", "--timeout=60s"]).unwrap();
    let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
    let told = tenant.kubectl(&["get", "clientapp", "acme", "-o", ready]).unwrap();
    assert!(told.starts_with("the stored object does not decode: spec.values.a"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");

    tenant.kubectl(&["delete", "clientapp", "acme", "--timeout=90s"]).unwrap();
    assert_eq!(tenant.listed("acme"), None);
    // If the policy cannot be read, the data is kept.
    is_retained(&tenant, "acme", &password).await;
}

#[tokio::test]
async fn an_invalid_object_keeps_its_release_and_can_be_deleted() {
    let tenant = Lab::shared().await.tenant("invalid").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"values": {"redis": {"enabled": true}}})).await.unwrap();
    let told = tenant.condition("acme", "Stalled", "True", "InvalidSpec").await;
    assert!(told.contains("redis.enabled is computed by the operator: set spec.redis.enabled instead"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;

    // And one that was never valid.
    let never = with(small(&tenant, "never"), json!({"values": {"redis": {"enabled": true}}}));
    tenant.create("never", never).await.unwrap();
    tenant.condition("never", "Ready", "False", "InvalidSpec").await;
    tenant.delete("never").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_deletion_ends_the_helm_that_runs() {
    let tenant = Lab::shared().await.tenant("delete-midway").await;
    installing(&tenant).await;
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

/// Creates an app whose helm waits for a hook that does not end.
async fn installing(tenant: &Tenant) {
    let slow =
        with(small(tenant, "acme"), json!({"chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 3600}}));
    tenant.create("acme", slow).await.unwrap();
    let runs = |job: Option<&Job>| (job?.status.as_ref()?.active? > 0).then_some(());
    tenant.wait_for("acme-nextcloud-prepare", "there", runs).await;
}

#[tokio::test]
async fn a_namespace_with_apps_can_be_deleted() {
    let tenant = Lab::shared().await.tenant("whole-namespace").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.create("kept", json!({"hostname": hostname(&tenant, "kept"), "deletionPolicy": "Retain"})).await.unwrap();
    tenant.create("stuck", with(small(&tenant, "stuck"), json!({"adminSecret": "missing"}))).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.ready("kept", 1).await;
    tenant.condition("stuck", "Ready", "False", "AdminSecretMissing").await;

    goes_with_everything(&tenant, || ()).await;
}

/// Deletes the tenant's namespace, and waits until it is gone; `meanwhile` happens once its deletion has begun.
async fn goes_with_everything(tenant: &Tenant, meanwhile: impl FnOnce()) {
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let uid = namespaces.get(&tenant.namespace).await.unwrap().metadata.uid.unwrap();
    namespaces.delete(&tenant.namespace, &DeleteParams::default()).await.unwrap();
    meanwhile();
    let gone = await_condition(namespaces, &tenant.namespace, conditions::is_deleted(&uid));
    tokio::time::timeout(TIMEOUT, gone).await.expect("the namespace goes").unwrap();
}

#[tokio::test]
async fn a_namespace_can_be_deleted_while_helm_installs() {
    let tenant = Lab::shared().await.tenant("whole-installing").await;
    installing(&tenant).await;
    goes_with_everything(&tenant, || ()).await;
}

#[tokio::test]
async fn a_namespace_can_be_deleted_while_helm_uninstalls() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("whole-uninstalling", &[]).await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "services", Fault::Hang)]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    goes_with_everything(&tenant, || proxy.set([])).await;
}

#[tokio::test]
async fn a_percona_that_does_not_delete_its_cluster_is_waited_for_and_named() {
    let tenant = Lab::shared().await.tenant("percona-stuck").await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "persistence": {"enabled": false}});
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let claims = async || {
        let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        let of_database = claims.into_iter().filter(|claim| claim.name_any().starts_with("acme-pg-"));
        of_database.map(|claim| (claim.name_any(), claim.uid(), claim.metadata.deletion_timestamp)).collect::<Vec<_>>()
    };
    let before = claims().await;
    assert!(!before.is_empty());
    tenant.percona_ignores(true).await;
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "DeletingDatabase", &["waiting for Percona to delete PerconaPGCluster acme-pg"]).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap().metadata;
    assert!(cluster.deletion_timestamp.is_some() && cluster.finalizers.is_some(), "{cluster:?}");
    assert_eq!(claims().await, before);
    tenant.percona_ignores(false).await;
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

/// It does so in about half of all deletions: one of its controllers makes the Secret again that the other has deleted.
#[tokio::test]
async fn a_secret_that_percona_leaves_is_named() {
    let tenant = Lab::shared().await.tenant("percona-leaves").await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "persistence": {"enabled": false}});
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.percona_ignores(true).await;
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "DeletingDatabase", &["waiting for Percona to delete PerconaPGCluster acme-pg"]).await;
    let alone = Patch::Merge(json!({"metadata": {"ownerReferences": null, "finalizers": null}}));
    let name = "acme-pg-pguser-clientapp";
    tenant.api::<Secret>().patch(name, &PatchParams::default(), &alone).await.unwrap();
    tenant.api::<PerconaPGCluster>().patch("acme-pg", &PatchParams::default(), &alone).await.unwrap();
    tenant.gone("acme").await;
    tenant.event("acme", "DataKept", &format!("Secret {name} stays: Percona has left it; delete it, or")).await;

    tenant.create("acme", spec).await.unwrap();
    tenant.condition_with("acme", ("Ready", "DataRetained"), &[name]).await;
    tenant.delete("acme").await;
    assert!(tenant.api::<Secret>().get_opt(name).await.unwrap().is_some());
    tenant.percona_ignores(false).await;
}
