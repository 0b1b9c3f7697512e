//! Deletion: what is deleted, what is kept, and that it always finishes.

use clientapp_crd::percona::CLUSTER_LABEL;
use e2e::charts;
use e2e::lab::{Apart, Lab, TIMEOUT, has, leading};
use e2e::proxy::{Fault, Rule};
use e2e::scenario::{admin_secret, names, nothing_is_left, operated, small};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::runtime::wait::{await_condition, conditions};

use super::*;

#[tokio::test]
async fn everything_goes_once_percona_would_take_nothing_else_along() {
    let tenant = Lab::shared().await.tenant("delete").await;
    install(&tenant, "acme", whole(&tenant, "acme")).await;
    assert!(!claims_of_database(&tenant, "acme").await.is_empty());
    // A copy restored from a snapshot with all its labels.
    let of_cluster = json!({CLUSTER_LABEL: "acme-pg", "postgres-operator.crunchydata.com/role": "pgdata"});
    let copy = foreign_claim(&tenant, "copy", of_cluster, json!({})).await;
    begin_deletion(&tenant, "acme", PropagationPolicy::Background).await;
    tenant.held("acme", "LabelledForPercona", &["PersistentVolumeClaim copy", CLUSTER_LABEL]).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert_eq!(cluster.metadata.deletion_timestamp, None);
    is_untouched(&tenant, &copy).await;

    let off = Patch::Merge(json!({"metadata": {"labels": {CLUSTER_LABEL: null}}}));
    tenant.api::<PersistentVolumeClaim>().patch("copy", &PatchParams::default(), &off).await.unwrap();
    tenant.gone("acme").await;
    // The database's claims are gone when their own controller releases them.
    until("only the copy is left", async || names::<PersistentVolumeClaim>(&tenant).await == ["copy"]).await;
    tenant.kubectl(&["delete", "pvc", "copy"]).unwrap();
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
    let standalone = |tenant: &Tenant, name: &str| {
        with(with_database(tenant, name), json!({"postgres": {"provider": "standalone", "version": "17"}}))
    };
    tenant.create("acme", standalone(&tenant, "acme")).await.unwrap();
    let kept = with(standalone(&retaining, "kept"), json!({"deletionPolicy": "Retain"}));
    retaining.create("kept", kept).await.unwrap();
    for (tenant, name) in [(&tenant, "acme"), (&retaining, "kept")] {
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

#[tokio::test]
async fn a_successor_does_not_wait_for_the_garbage_collector() {
    let tenant = Lab::shared().await.tenant("again-at-once").await;
    admin_secret(&tenant, "given", "password").await;
    let mut deletions = 0;
    for policy in ["Delete", "Retain"] {
        let spec = json!({"adminSecret": "given", "redis": {"enabled": true}, "deletionPolicy": policy});
        install(&tenant, "acme", with(small(&tenant, "acme"), spec)).await;
        tenant.delete("acme").await;
        assert_eq!(tenant.uid::<Secret>("acme-redis-secret").await, None, "{policy}");
        deletions += 1;
        let requests = tenant.requests().await;
        let deleted = requests.iter().filter(|request| request.as_str() == "operator delete secrets/").count();
        assert_eq!(deleted, deletions, "{policy}: {requests:?}");
    }
}

#[tokio::test]
async fn a_database_that_stays_is_given_to_a_successor_only_when_told() {
    let tenant = Lab::shared().await.tenant("retain").await;
    install(&tenant, "acme", with_database(&tenant, "acme")).await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    let admin = secret(&tenant, "acme-admin-secret", "nextcloud-password").await;
    let database = tenant.uid::<PerconaPGCluster>("acme-pg").await;

    // An orphan deletion leaves everything, the release too.
    tenant.kubectl(&["delete", "clientapp", "acme", "--cascade=orphan"]).unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");
    assert!(names::<Deployment>(&tenant).await.contains(&"acme-nextcloud".to_owned()));
    is_retained(&tenant, "acme", &password).await;
    let retain = with(with_database(&tenant, "acme"), json!({"deletionPolicy": "Retain"}));
    tenant.create("acme", with(retain.clone(), json!({"postgres": {"adopt": true}}))).await.unwrap();
    tenant.status("acme", "adopted", |status| has(status, "Ready", "True", "Ready")).await;
    let adopted = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (adopted.uid(), adopted.annotations().get(annotation::OWNER_UID)),
        (database.clone(), app.metadata.uid.as_ref())
    );

    // Retained, it is not even taken by an app that is deleted before it was told to.
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    is_retained(&tenant, "acme", &password).await;
    tenant.create("acme", retain.clone()).await.unwrap();
    let words = ["PerconaPGCluster acme-pg, PersistentVolumeClaim", "more", "spec.postgres.adopt to true"];
    tenant.held("acme", "DataRetained", &words).await;
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.delete("acme").await;
    is_retained(&tenant, "acme", &password).await;

    // Volumes do not shrink, not even for an adoption.
    let postgres = json!({"adopt": true, "storageSize": "512Mi", "storageClassName": "fast"});
    tenant.create("acme", with(retain, json!({"postgres": postgres, "deletionPolicy": "Delete"}))).await.unwrap();
    // Nor is their StorageClass another one.
    let words = ["has the default StorageClass", "remove spec.postgres.storageClassName"];
    tenant.condition_with("acme", ("Ready", "StorageClassMismatch"), &words).await;
    tenant.patch("acme", json!({"postgres": {"storageClassName": null}})).await.unwrap();
    tenant.condition("acme", "Ready", "False", "StorageShrink").await;
    is_retained(&tenant, "acme", &password).await;
    tenant.patch("acme", json!({"postgres": {"storageSize": "1Gi"}})).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.uid::<PerconaPGCluster>("acme-pg").await, database);
    assert_eq!(secret(&tenant, "acme-pg-pguser-clientapp", "password").await, password);
    assert_eq!(secret(&tenant, "acme-admin-secret", "nextcloud-password").await, admin);
    // It belongs to the app again, and is deleted with it.
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn an_object_that_does_not_decode_keeps_its_release_and_can_be_deleted() {
    let tenant = Lab::shared().await.tenant("undecodable").await;
    install(&tenant, "acme", with_database(&tenant, "acme")).await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    // The API server stores objects that are nested too deeply for any decoder here.
    let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
    let patch = format!(r#"{{"spec":{{"values":{deep}}}}}"#);
    tenant.kubectl(&["patch", "clientapp", "acme", "--type=merge", "-p", &patch]).unwrap();
    tenant.kubectl(&["wait", "clientapp/acme", "--for=condition=Stalled=True", "--timeout=120s"]).unwrap();
    let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].message}"#;
    let told = tenant.kubectl(&["get", "clientapp", "acme", "-o", ready]).unwrap();
    assert!(told.starts_with("the stored object does not decode: spec.values.a"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");

    tenant.kubectl(&["delete", "clientapp", "acme", "--timeout=120s"]).unwrap();
    assert_eq!(tenant.listed("acme"), None);
    // If the policy cannot be read, the data is kept.
    is_retained(&tenant, "acme", &password).await;
}

#[tokio::test]
async fn an_invalid_object_keeps_its_release_and_can_be_deleted() {
    let tenant = Lab::shared().await.tenant("invalid").await;
    install(&tenant, "acme", small(&tenant, "acme")).await;
    tenant.patch("acme", json!({"values": {"redis": {"enabled": true}}})).await.unwrap();
    let told = tenant.condition("acme", "Stalled", "True", "InvalidSpec").await;
    assert!(told.contains("redis.enabled is computed by the operator: set spec.redis.enabled instead"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

/// Creates an app whose helm waits for a hook that does not end.
pub async fn installing(tenant: &Tenant, name: &str) {
    let slow = json!({"chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 3600}});
    tenant.create(name, with(small(tenant, name), slow)).await.unwrap();
    let runs = |job: Option<&Job>| (job?.status.as_ref()?.active? > 0).then_some(());
    tenant.wait_for(&format!("{name}-nextcloud-prepare"), "there", runs).await;
}

/// A wrong prune: a few apps go, and the others keep serving until a user decides.
#[tokio::test]
async fn of_many_deletions_at_once_a_few_begin_and_the_rest_wait_for_a_user() {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated("brake", &["--deletion-brake", "1"]).await;
    let apps = ["a", "b", "c", "d"];
    let spec = |name: &str| with(small(&tenant, name), json!({"persistence": {"enabled": true}}));
    for name in apps {
        tenant.create(name, spec(name)).await.unwrap();
    }
    for name in apps {
        tenant.ready(name, 1).await;
    }
    let claim = |name: &str| format!("{name}-nextcloud-nextcloud");
    tenant.kubectl(&["delete", "clientapps", "--all", "--wait=false"]).unwrap();
    let mut left = Vec::new();
    until("one is gone", async || {
        left = names::<ClientApp>(&tenant).await;
        left.len() == 3
    })
    .await;
    let mut volumes = Vec::new();
    for name in &left {
        let words = ["1 ClientApps with data were deleted within ten minutes", name, "deletionPolicy to Retain"];
        tenant.held(name, "DeletionHeld", &words).await;
        assert_eq!(tenant.listed(name).unwrap().1, "deployed", "{name} serves");
        volumes.push(volume(&tenant, &claim(name)).await.expect("its volume stays"));
    }

    // Another operator holds them as well, and lets a single deletion pass.
    tokio::task::spawn_blocking(move || operator.stop()).await.unwrap().unwrap();
    let _operator = leading(&options).await;
    tenant.create("e", spec("e")).await.unwrap();
    tenant.ready("e", 1).await;
    tenant.delete("e").await;
    for (name, before) in left.iter().zip(&volumes) {
        assert_eq!(volume(&tenant, &claim(name)).await.as_ref(), Some(before), "{name}");
    }

    // An annotation that a manifest could have approves nothing.
    let [approved, retained, counted] = &left[..] else { panic!("{left:?}") };
    tenant.kubectl(&["annotate", "clientapp", approved, &format!("{}=true", annotation::APPROVED_DELETION)]).unwrap();
    tenant.patch(retained, json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant.gone(retained).await;
    assert_eq!(volume(&tenant, &claim(retained)).await.as_ref(), Some(&volumes[1]));
    let message = tenant.condition_with(approved, ("Ready", "DeletionHeld"), &[]).await;
    let command = message.split('`').nth(1).and_then(|command| command.strip_prefix("kubectl ")).unwrap();
    tenant.kubectl(&command.split(' ').chain(["--overwrite"]).collect::<Vec<_>>()).unwrap();
    tenant.gone(approved).await;
    assert_eq!(volume(&tenant, &claim(approved)).await, None);
    assert_eq!(volume(&tenant, &claim(counted)).await.as_ref(), Some(&volumes[2]));
}

#[tokio::test]
async fn a_namespace_can_be_deleted_whatever_its_apps_are_doing() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("whole-namespace", &["--deletion-brake", "1"]).await;
    tenant.create("acme", with_database(&tenant, "acme")).await.unwrap();
    tenant.create("kept", with(with_database(&tenant, "kept"), json!({"deletionPolicy": "Retain"}))).await.unwrap();
    tenant.create("stuck", with(small(&tenant, "stuck"), json!({"adminSecret": "missing"}))).await.unwrap();
    tenant.create("uninstalling", small(&tenant, "uninstalling")).await.unwrap();
    for name in ["acme", "kept", "uninstalling"] {
        tenant.ready(name, 1).await;
    }
    tenant.condition("stuck", "Ready", "False", "AdminSecretMissing").await;
    installing(&tenant, "installing").await;
    let met = proxy.met();
    proxy.set([Rule::new("delete", "services", Fault::Hang)]);
    begin_deletion(&tenant, "uninstalling", PropagationPolicy::Background).await;
    proxy.met_more_than(met).await;

    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let uid = namespaces.get(&tenant.namespace).await.unwrap().metadata.uid.unwrap();
    namespaces.delete(&tenant.namespace, &DeleteParams::default()).await.unwrap();
    proxy.set([]);
    let gone = await_condition(namespaces, &tenant.namespace, conditions::is_deleted(&uid));
    if tokio::time::timeout(TIMEOUT, gone).await.is_err() {
        panic!("the namespace still has {:?}", names::<ClientApp>(&tenant).await);
    }
}

/// The same for a foreground deletion, with which the garbage collector is at work as well.
#[tokio::test]
async fn a_percona_that_does_not_delete_its_cluster_is_waited_for_and_named() {
    let tenant = Lab::shared().await.tenant("percona-stuck").await;
    install(&tenant, "acme", whole(&tenant, "acme")).await;
    let before = claims_of_database(&tenant, "acme").await;
    assert!(!before.is_empty());
    tenant.percona_ignores(true).await;
    begin_deletion(&tenant, "acme", PropagationPolicy::Foreground).await;
    tenant.held("acme", "DeletingDatabase", &["waiting for Percona to delete PerconaPGCluster acme-pg"]).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap().metadata;
    assert!(cluster.deletion_timestamp.is_some() && cluster.finalizers.is_some(), "{cluster:?}");
    assert_eq!(claims_of_database(&tenant, "acme").await, before);
    for claim in before.keys() {
        assert!(volume(&tenant, claim).await.is_some(), "{claim} is not being deleted");
    }
    tenant.percona_ignores(false).await;
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

/// It does so in about half of all deletions: one of its controllers makes the Secret again that the other has deleted.
#[tokio::test]
async fn a_secret_that_percona_leaves_is_named() {
    let tenant = Lab::shared().await.tenant("percona-leaves").await;
    let spec = with(with_database(&tenant, "acme"), json!({"persistence": {"enabled": false}}));
    install(&tenant, "acme", spec.clone()).await;
    tenant.percona_ignores(true).await;
    begin_deletion(&tenant, "acme", PropagationPolicy::Background).await;
    tenant.held("acme", "DeletingDatabase", &["waiting for Percona to delete PerconaPGCluster acme-pg"]).await;
    let alone = Patch::Merge(json!({"metadata": {"ownerReferences": null, "finalizers": null}}));
    let name = "acme-pg-pguser-clientapp";
    tenant.api::<Secret>().patch(name, &PatchParams::default(), &alone).await.unwrap();
    tenant.api::<PerconaPGCluster>().patch("acme-pg", &PatchParams::default(), &alone).await.unwrap();
    tenant.gone("acme").await;
    tenant.event("acme", "DataKept", &format!("Secret {name} stays: Percona has left it; delete it, or")).await;

    tenant.create("acme", spec).await.unwrap();
    tenant.held("acme", "DataRetained", &[name]).await;
    tenant.delete("acme").await;
    assert!(tenant.api::<Secret>().get_opt(name).await.unwrap().is_some());
    tenant.percona_ignores(false).await;
}
