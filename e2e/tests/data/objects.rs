//! Only data that was to be deleted is ever lost, and a loss is reported: forged marks, other Helm clients, deletions
//! of every kind, and missing objects.

use std::collections::BTreeMap;

use clientapp_crd::percona::{CLUSTER_LABEL, PerconaPGCluster};
use clientapp_crd::{ClientApp, FINALIZER, Postgresql, annotation, label};
use e2e::charts;
use e2e::lab::{Apart, Lab, Object, Tenant, has, hostname, leading};
use e2e::proxy::{Fault, Rule};
use e2e::scenario::{delete, forge, names, nothing_is_left, operated, secret, small, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy};
use serde_json::{Value, json};

/// Another user's claim, with these marks on it.
async fn foreign_claim(tenant: &Tenant, name: &str, labels: Value, annotations: Value) -> PersistentVolumeClaim {
    let claim = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": labels, "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }));
    tenant.api().create(&PostParams::default(), &claim.unwrap()).await.unwrap()
}

/// The parts of an object that only its owner may change.
fn essence(claim: &PersistentVolumeClaim) -> (Option<String>, BTreeMap<String, String>, BTreeMap<String, String>) {
    let mut annotations = claim.annotations().clone();
    // The volume controllers write their own.
    annotations.retain(|key, _| !key.contains("kubernetes.io/"));
    (claim.uid(), claim.labels().clone(), annotations)
}

async fn is_untouched(tenant: &Tenant, before: &PersistentVolumeClaim) {
    let now = tenant.api::<PersistentVolumeClaim>().get(&before.name_any()).await.unwrap();
    assert_eq!(essence(&now), essence(before));
    assert_eq!(now.metadata.deletion_timestamp, None);
}

fn of_release(name: &str, namespace: &str) -> (Value, Value) {
    let annotations = json!({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace});
    (json!({"app.kubernetes.io/instance": name, "app.kubernetes.io/managed-by": "Helm"}), annotations)
}

#[tokio::test]
async fn look_alikes_of_an_apps_objects_are_neither_deleted_nor_marked() {
    let tenant = Lab::shared().await.tenant("look-alikes").await;
    let (labels, annotations) = of_release("acme", &tenant.namespace);
    let mut planted = vec![
        foreign_claim(&tenant, "kept-by-helm", labels.clone(), annotations.clone()).await,
        foreign_claim(&tenant, "data-of-another-set-0", json!({"app.kubernetes.io/instance": "acme"}), json!({})).await,
        foreign_claim(&tenant, "data-acme-redis-master-7", json!({"app.kubernetes.io/instance": "acme"}), json!({}))
            .await,
        foreign_claim(
            &tenant,
            "by-argo",
            json!({"app.kubernetes.io/instance": "acme", "app.kubernetes.io/managed-by": "argocd"}),
            json!({}),
        )
        .await,
    ];
    for policy in ["Delete", "Retain"] {
        // One that never installs anything, and one that does.
        let never = with(small(&tenant, "acme"), json!({"adminSecret": "missing", "deletionPolicy": policy}));
        tenant.create("acme", never).await.unwrap();
        tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
        tenant.delete("acme").await;
        tenant.create("acme", with(small(&tenant, "acme"), json!({"deletionPolicy": policy}))).await.unwrap();
        tenant.ready("acme", 1).await;
        // Younger than the app, and labelled like the app's own.
        let young = format!("planted-under-{}", policy.to_lowercase());
        planted.push(foreign_claim(&tenant, &young, labels.clone(), annotations.clone()).await);
        delete(&tenant, "acme", PropagationPolicy::Foreground).await;
        for claim in &planted {
            is_untouched(&tenant, claim).await;
        }
    }
    tenant.event("acme", "DataKept", "PersistentVolumeClaim kept-by-helm stays").await;
}

#[tokio::test]
async fn a_status_that_claims_what_is_not_ours_proves_nothing() {
    let tenant = Lab::shared().await.tenant("forged-status").await;
    let theirs = foreign_claim(&tenant, "theirs", json!({}), json!({})).await;
    tenant.kubectl(&["create", "secret", "generic", "their-secret", "--from-literal=password=x"]).unwrap();
    let secret_uid = tenant.uid::<Secret>("their-secret").await.unwrap();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let forged = json!({"status": {
        "owned": [
            {"kind": "PersistentVolumeClaim", "name": "theirs", "uid": theirs.uid()},
            {"kind": "Secret", "name": "acme-admin-secret", "uid": tenant.uid::<Secret>("acme-admin-secret").await.unwrap()},
            {"kind": "Secret", "name": "their-secret", "uid": secret_uid},
        ],
        "inventory": {"secret": "forged", "objects": [
            {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "name": "theirs"},
            {"apiVersion": "v1", "kind": "Secret", "name": "their-secret"},
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "kube-root-ca.crt"},
        ]},
    }});
    // Before and during the deletion: whichever the operator sees.
    let apps = tenant.api::<ClientApp>();
    apps.patch_status("acme", &PatchParams::default(), &Patch::Merge(&forged)).await.unwrap();
    apps.delete("acme", &DeleteParams::default()).await.unwrap();
    let _ = apps.patch_status("acme", &PatchParams::default(), &Patch::Merge(&forged)).await;
    tenant.gone("acme").await;
    is_untouched(&tenant, &theirs).await;
    assert_eq!(tenant.uid::<Secret>("their-secret").await.unwrap(), secret_uid);
    tenant.api::<ConfigMap>().get("kube-root-ca.crt").await.unwrap();
}

#[tokio::test]
async fn a_hand_made_cluster_of_the_apps_name_keeps_what_it_has() {
    let tenant = Lab::shared().await.tenant("hand-made").await;
    let database = json!({"hostname": hostname(&tenant, "acme")});
    // Left behind by a cluster that another user created and deleted.
    let marks = json!({"postgres-operator.crunchydata.com/cluster": "acme-pg"});
    let volume = foreign_claim(&tenant, "acme-pg-instance1-abcd-pgdata", marks.clone(), json!({})).await;
    let opens = json!({"metadata": {"name": "acme-pg-pguser-other", "labels": marks}, "stringData": {"password": "x"}});
    let opens: Secret = serde_json::from_value(opens).unwrap();
    let opens = tenant.api::<Secret>().create(&PostParams::default(), &opens).await.unwrap();
    for propagation in [PropagationPolicy::Foreground, PropagationPolicy::Background] {
        tenant
            .create("acme", with(database.clone(), json!({"adminSecret": "missing", "suspend": true})))
            .await
            .unwrap();
        tenant.condition("acme", "Ready", "False", "Suspended").await;
        tenant
            .patch(
                "acme",
                json!({"hostname": "kube.example", "suspend": false, "values": {"redis": {"enabled": true}}}),
            )
            .await
            .unwrap();
        tenant.condition("acme", "Ready", "False", "InvalidSpec").await;
        delete(&tenant, "acme", propagation).await;
        is_untouched(&tenant, &volume).await;
        assert_eq!(
            tenant.api::<Secret>().get("acme-pg-pguser-other").await.unwrap().metadata.labels,
            opens.metadata.labels
        );
    }
}

#[tokio::test]
async fn what_percona_would_take_along_is_looked_at_before() {
    let tenant = Lab::shared().await.tenant("labelled-for-percona").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    // A copy restored from a snapshot with all its labels.
    let of_cluster = json!({CLUSTER_LABEL: "acme-pg", "postgres-operator.crunchydata.com/role": "pgdata"});
    let copy = foreign_claim(&tenant, "copy", of_cluster, json!({})).await;
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "LabelledForPercona", &["PersistentVolumeClaim copy", CLUSTER_LABEL]).await;
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert_eq!(cluster.metadata.deletion_timestamp, None);
    is_untouched(&tenant, &copy).await;

    let off = Patch::Merge(json!({"metadata": {"labels": {CLUSTER_LABEL: null}}}));
    tenant.api::<PersistentVolumeClaim>().patch("copy", &PatchParams::default(), &off).await.unwrap();
    tenant.gone("acme").await;
    // The database's claims are gone when their own controller releases them.
    until("only the copy is left", async || names::<PersistentVolumeClaim>(&tenant).await == ["copy"]).await;
}

#[tokio::test]
async fn a_database_that_only_carries_our_label_is_not_ours() {
    let tenant = Lab::shared().await.tenant("our-label").await;
    tenant.percona_ignores(true).await;
    let cluster = json!({
        "apiVersion": "pgv2.percona.com/v2", "kind": "PerconaPGCluster",
        "metadata": {"name": "labelled-pg", "labels": {label::APP: "labelled", label::MANAGED_BY: label::OPERATOR}},
        "spec": {
            // Percona, which cannot set it here, would end.
            "crVersion": "2.9.0",
            "postgresVersion": 15,
            "instances": [{"name": "one", "dataVolumeClaimSpec": {
                "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            }}],
            "backups": {"enabled": false},
        },
    });
    let path = tenant.namespace.clone() + ".json";
    let file = std::env::temp_dir().join(path);
    std::fs::write(&file, cluster.to_string()).unwrap();
    tenant.kubectl(&["create", "-f", file.to_str().unwrap()]).unwrap();
    std::fs::remove_file(&file).unwrap();
    let before = tenant.uid::<PerconaPGCluster>("labelled-pg").await.unwrap();
    tenant.create("labelled", json!({"hostname": hostname(&tenant, "labelled")})).await.unwrap();
    let told = tenant.condition("labelled", "Ready", "False", "DatabaseNotOurs").await;
    assert!(told.contains("is not taken over"), "{told}");
    tenant.delete("labelled").await;
    let cluster = tenant.api::<PerconaPGCluster>().get("labelled-pg").await.unwrap();
    assert_eq!((cluster.uid(), cluster.metadata.deletion_timestamp), (Some(before), None));
}

#[tokio::test]
async fn retain_waits_until_no_volume_would_go_with_the_release() {
    let tenant = Lab::shared().await.tenant("retain-unsafe").await;
    let unkept = json!({"persistence": {"annotations": {"helm.sh/resource-policy": "none"}}});
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "postgres": {"enabled": false}, "redis": {"enabled": false},
        "deletionPolicy": "Retain", "values": unkept,
    });
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let files = tenant.uid::<PersistentVolumeClaim>("acme-nextcloud-nextcloud").await.unwrap();
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let told = tenant.condition("acme", "Stalled", "True", "RetainUnsafe").await;
    assert!(told.contains("acme-nextcloud-nextcloud") && told.contains("--cascade=orphan"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("acme-nextcloud-nextcloud").await.unwrap(), files);
    // The remedy: whatever may be deleted is deleted.
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_lost_administrators_password_is_told_and_never_made_up() {
    let tenant = Lab::shared().await.tenant("lost-password").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"redis": {"enabled": true}}))).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = secret(&tenant, "acme-admin-secret", "nextcloud-password").await;
    tenant.kubectl(&["delete", "secret", "acme-admin-secret"]).unwrap();
    let told = tenant.condition("acme", "Stalled", "True", "AdminSecretLost").await;
    assert!(told.contains("kubectl create secret generic acme-admin-secret"), "{told}");
    // Nor by an upgrade.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant
        .status("acme", "still lost", |status| {
            status.observed_generation == Some(2) && has(status, "Ready", "False", "AdminSecretLost")
        })
        .await;
    assert!(tenant.api::<Secret>().get_opt("acme-admin-secret").await.unwrap().is_none());
    let literal = format!("--from-literal=nextcloud-password={password}");
    tenant
        .kubectl(&[
            "create",
            "secret",
            "generic",
            "acme-admin-secret",
            "--from-literal=nextcloud-username=admin",
            &literal,
        ])
        .unwrap();
    tenant.ready("acme", 2).await;

    assert_eq!(tenant.listed("acme").unwrap().0, "2");
    tenant.delete("acme").await;
    // The user's own Secret stays the user's.
    assert_eq!(secret(&tenant, "acme-admin-secret", "nextcloud-password").await, password);
}

/// The data of an immutable Secret cannot change, but its labels, annotations and owners can.
#[tokio::test]
async fn credentials_that_a_user_makes_immutable_hold_nothing_up() {
    let tenant = Lab::shared().await.tenant("immutable").await;
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "deletionPolicy": "Retain", "postgres": {"provider": "standalone"},
    });
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    const SECRETS: [(&str, &str); 4] = [
        ("acme-redis-secret", "redis-password"),
        ("acme-admin-secret", "nextcloud-password"),
        ("acme-pg-app", "password"),
        ("acme-pg-credentials", "password"),
    ];
    for (name, _) in SECRETS {
        let patch = Patch::Merge(json!({"immutable": true}));
        tenant.api::<Secret>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }
    let passwords = async || {
        let mut passwords = Vec::new();
        for (name, key) in SECRETS {
            passwords.push((tenant.uid::<Secret>(name).await, secret(&tenant, name, key).await));
        }
        passwords
    };
    let before = passwords().await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert!(passwords().await == before, "no password has changed");
    tenant.delete("acme").await;
    let adopt = json!({"postgres": {"provider": "standalone", "adopt": true}, "chartVersion": charts::PATCH});
    tenant.create("acme", with(spec, adopt)).await.unwrap();
    tenant.ready("acme", 1).await;
    // The one for Redis goes with the app, and the next has its own.
    assert!(passwords().await[1..] == before[1..], "no password has changed");
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn no_deletion_lets_the_garbage_collector_take_what_is_retained() {
    let (Apart { tenant, proxy: _proxy, .. }, operator) = operated("collected", &[]).await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "deletionPolicy": "Retain"});
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let kept = async || {
        (
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
            tenant.uid::<Secret>("acme-admin-secret").await.unwrap(),
            tenant.uid::<PerconaPGCluster>("acme-pg").await.unwrap(),
            tenant.uid::<PersistentVolumeClaim>("acme-nextcloud-nextcloud").await.unwrap(),
        )
    };
    let before = kept().await;
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    assert_eq!(kept().await, before);

    // Adopted, and its finalizer removed by hand: its data is without an owner, and stays.
    tenant
        .create("acme", with(spec.clone(), json!({"postgres": {"adopt": true}, "deletionPolicy": "Delete"})))
        .await
        .unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(kept().await, before);
    let bare = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let apps = tenant.api::<ClientApp>();
    operator.signal(nix::sys::signal::Signal::SIGSTOP);
    apps.patch("acme", &PatchParams::default(), &bare).await.unwrap();
    apps.delete("acme", &DeleteParams::foreground()).await.unwrap();
    tenant.gone("acme").await;
    operator.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(kept().await, before);
    // The recreated app gets none of it without asking.
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.condition("acme", "Stalled", "True", "DataRetained").await;
    assert_eq!(kept().await, before);
    tenant.patch("acme", json!({"postgres": {"adopt": true}, "deletionPolicy": "Delete"})).await.unwrap();
    tenant.status("acme", "adopted", |status| has(status, "Ready", "True", "Ready")).await;
    assert_eq!(kept().await, before);
    assert!(apps.get("acme").await.unwrap().finalizers().contains(&FINALIZER.to_owned()));
    tenant.delete("acme").await;
    // The volumes of the app whose finalizer was removed do not have this app's mark: they are not provably its own.
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("acme-nextcloud-nextcloud").await.unwrap(), before.3);
    tenant.event("acme", "DataKept", "PersistentVolumeClaim acme-nextcloud-nextcloud stays").await;
    tenant.kubectl(&["delete", "pvc", "-l", "app.kubernetes.io/instance=acme"]).unwrap();
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn an_orphan_deletion_leaves_everything() {
    let tenant = Lab::shared().await.tenant("orphaned").await;
    let spec = json!({"hostname": hostname(&tenant, "acme")});
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = secret(&tenant, "acme-admin-secret", "nextcloud-password").await;
    let database = tenant.uid::<PerconaPGCluster>("acme-pg").await.unwrap();
    tenant.kubectl(&["delete", "clientapp", "acme", "--cascade=orphan"]).unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");
    assert!(names::<Deployment>(&tenant).await.contains(&"acme-nextcloud".to_owned()));
    assert_eq!(tenant.uid::<PerconaPGCluster>("acme-pg").await.unwrap(), database);
    let files = tenant.api::<PersistentVolumeClaim>().get("acme-nextcloud-nextcloud").await.unwrap();
    assert_eq!(files.labels()[label::RETAINED_FROM], "acme");
    // And it is adopted if the spec asks for it.
    tenant.create("acme", with(spec, json!({"postgres": {"adopt": true}}))).await.unwrap();
    tenant.status("acme", "adopted", |status| has(status, "Ready", "True", "Ready")).await;
    assert_eq!(secret(&tenant, "acme-admin-secret", "nextcloud-password").await, password);
    let adopted = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (adopted.uid(), adopted.annotations().get(annotation::OWNER_UID)),
        (Some(database), app.metadata.uid.as_ref())
    );
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

/// The latest storage Secret of a release.
async fn stored(tenant: &Tenant, release: &str, revision: i64) -> Secret {
    tenant.api::<Secret>().get(&format!("sh.helm.release.v1.{release}.v{revision}")).await.unwrap()
}

#[tokio::test]
async fn a_deletion_ends_whatever_helms_storage_says() {
    let tenant = Lab::shared().await.tenant("storage").await;
    let spec = |name: &str| json!({"hostname": hostname(&tenant, name), "postgres": {"enabled": false}});
    let planted = foreign_claim(&tenant, "planted", json!({"app.kubernetes.io/instance": "gone"}), json!({})).await;
    for name in ["gone", "garbled"] {
        tenant.create(name, spec(name)).await.unwrap();
        tenant.ready(name, 1).await;
    }
    let name = stored(&tenant, "gone", 1).await.name_any();
    tenant.kubectl(&["delete", "clientapp", "gone", "--wait=false"]).unwrap();
    let _ = tenant.kubectl(&["delete", "secret", &name]);
    tenant.gone("gone").await;
    let garbled = stored(&tenant, "garbled", 1).await;
    let broken = Patch::Merge(json!({"data": {"release": "bm90IGEgcmVsZWFzZQ=="}}));
    tenant.api::<Secret>().patch(&garbled.name_any(), &PatchParams::default(), &broken).await.unwrap();
    tenant.delete("garbled").await;
    is_untouched(&tenant, &planted).await;
    tenant.kubectl(&["delete", "pvc", "planted"]).unwrap();
    nothing_is_left(&tenant).await;
}

/// helm uninstalls what the newest revision lists, and any user who may write Secrets can write one.
#[tokio::test]
async fn a_forged_revision_takes_nothing_of_another_app_along() {
    let tenant = Lab::shared().await.tenant("forged-newest").await;
    for (app, victim, keep) in [("unkept", "first", false), ("kept", "second", true)] {
        let volume = json!({"persistence": {"enabled": true}, "values": {"persistence": {"keep": keep}}});
        tenant.create(victim, with(small(&tenant, victim), volume)).await.unwrap();
        tenant.create(app, small(&tenant, app)).await.unwrap();
        tenant.ready(victim, 1).await;
        tenant.ready(app, 1).await;
        let claim = format!("{victim}-nextcloud-nextcloud");
        let files = tenant.api::<PersistentVolumeClaim>().get(&claim).await.unwrap();
        let serves = tenant.uid::<Deployment>(&format!("{victim}-nextcloud")).await.unwrap();
        // Suspended, the app puts nothing right before its deletion begins.
        tenant.patch(app, json!({"suspend": true})).await.unwrap();
        tenant.condition(app, "Reconciling", "False", "Suspended").await;
        let forged = forge(&tenant, app, victim, |_| {}).await;
        tenant.api::<ClientApp>().delete(app, &DeleteParams::default()).await.unwrap();
        tenant.patch(app, json!({"suspend": false})).await.unwrap();
        // helm itself leaves what another release owns, but the operator does not rely on that for a volume.
        if !keep {
            tenant.held(app, "RetainUnsafe", &[&format!("PersistentVolumeClaim {claim} is not on record")]).await;
            is_untouched(&tenant, &files).await;
            tenant.kubectl(&["delete", "secret", &forged]).unwrap();
        }
        tenant.gone(app).await;
        assert_eq!(tenant.listed(app), None);
        is_untouched(&tenant, &files).await;
        assert_eq!(tenant.uid::<Deployment>(&format!("{victim}-nextcloud")).await.unwrap(), serves);
        tenant.ready(victim, 1).await;
    }
}

#[tokio::test]
async fn a_release_without_its_workloads_is_not_ready() {
    let tenant = Lab::shared().await.tenant("workload-gone").await;
    let spec = json!({"redis": {"enabled": true}, "drift": "Ignore"});
    tenant.create("acme", with(small(&tenant, "acme"), spec)).await.unwrap();
    tenant.ready("acme", 1).await;
    let set = names::<StatefulSet>(&tenant).await.remove(0);
    tenant.kubectl(&["delete", "deployment", "acme-nextcloud"]).unwrap();
    let told = tenant.condition("acme", "Ready", "False", "NotReady").await;
    assert_eq!(told, "Deployment acme-nextcloud: is not there");
    tenant.kubectl(&["delete", "statefulset", &set]).unwrap();
    let both = format!("Deployment acme-nextcloud: is not there; StatefulSet {set}: is not there");
    tenant.status("acme", "without both", |status| status.conditions.iter().any(|c| c.message == both)).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
}

#[tokio::test]
async fn an_object_of_another_namespace_says_nothing_about_an_app() {
    let lab = Lab::shared().await;
    let (tenant, other) = (lab.tenant("spoken-for").await, lab.tenant("speaker").await);
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let (labels, annotations) = of_release("acme", &tenant.namespace);
    let forged = json!({
        "metadata": {"name": "never-ready", "labels": labels, "annotations": annotations},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"a": "b"}},
            "template": {
                "metadata": {"labels": {"a": "b"}},
                "spec": {"nodeName": "no-such-node", "containers": [{"name": "c", "image": "none"}]},
            },
        },
    });
    let forged: Deployment = serde_json::from_value(forged).unwrap();
    other.api::<Deployment>().create(&PostParams::default(), &forged).await.unwrap();
    // In its own namespace it is not an object of the release either, and holds up no deletion.
    tenant.api::<Deployment>().create(&PostParams::default(), &forged).await.unwrap();
    tenant
        .wait_for("never-ready", "seen by its controller", |deployment: Option<&Deployment>| {
            deployment?.status.as_ref()?.observed_generation
        })
        .await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant
        .status("acme", "upgraded", |status| status.release.as_ref().is_some_and(|release| release.revision == 2))
        .await;
    tenant.delete("acme").await;
    tenant.api::<Deployment>().get("never-ready").await.unwrap();
    other.api::<Deployment>().get("never-ready").await.unwrap();
}

#[tokio::test]
async fn a_revision_of_an_impossible_number_is_none() {
    let tenant = Lab::shared().await.tenant("forged-revision").await;
    let labels = json!({"owner": "helm", "name": "acme", "status": "deployed", "version": i64::MAX.to_string()});
    let forged =
        json!({"metadata": {"name": "sh.helm.release.v1.acme.v9", "labels": labels}, "type": "helm.sh/release.v1"});
    let forged: Secret = serde_json::from_value(forged).unwrap();
    tenant.api::<Secret>().create(&PostParams::default(), &forged).await.unwrap();
    tenant.create("beside", small(&tenant, "beside")).await.unwrap();
    tenant.ready("beside", 1).await;
}

#[tokio::test]
async fn deletions_with_the_operator_away() {
    deleted_with_the_operator_away::<Postgresql>("away", "standalone").await;
}

#[tokio::test]
async fn deletions_with_the_operator_away_and_percona() {
    deleted_with_the_operator_away::<PerconaPGCluster>("away-percona", "percona").await;
}

/// The claims of an app's database, with their uids.
async fn claims_of_database(tenant: &Tenant, app: &str) -> BTreeMap<String, Option<String>> {
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let of_database = claims.into_iter().filter(|claim| claim.name_any().contains(&format!("{app}-pg-")));
    of_database.map(|claim| (claim.name_any(), claim.uid())).collect()
}

/// `K` is the kind of this provider's databases.
async fn deleted_with_the_operator_away<K: Object>(namespace: &str, provider: &str) {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated(namespace, &[]).await;
    let spec = |name: &str, policy: &str| {
        json!({
            "hostname": hostname(&tenant, name), "deletionPolicy": policy,
            "postgres": {"provider": provider}, "redis": {"enabled": !["noredis", "plain"].contains(&name)},
            "persistence": {"enabled": false},
        })
    };
    const APPS: [&str; 7] = ["kept", "gone", "orphan", "noredis", "plain", "remade", "without"];
    // A foreground deletion that the garbage collector has completed looks like an orphan deletion whose witness is gone.
    const ORPHANED: [&str; 6] = ["orphan", "noredis", "remade", "without", "kept", "gone"];
    for name in APPS {
        tenant.create(name, spec(name, if name == "kept" { "Retain" } else { "Delete" })).await.unwrap();
    }
    for name in APPS {
        tenant.ready(name, 1).await;
    }
    let databases = async || {
        let mut uids = BTreeMap::new();
        for name in ORPHANED {
            uids.insert(
                name,
                (
                    tenant.uid::<K>(&format!("{name}-pg")).await.unwrap(),
                    claims_of_database(&tenant, name).await,
                    secret(&tenant, &format!("{name}-admin-secret"), "nextcloud-password").await,
                ),
            );
        }
        uids
    };
    let before = databases().await;
    assert!(before.values().all(|(_, claims, _)| !claims.is_empty()), "each has a volume");
    operator.kill().unwrap();
    for name in ["kept", "gone"] {
        tenant.api::<ClientApp>().delete(name, &DeleteParams::foreground()).await.unwrap();
    }
    tenant.api::<ClientApp>().delete("plain", &DeleteParams::background()).await.unwrap();
    // Another Secret replaces the witness of an orphan deletion.
    tenant.kubectl(&["delete", "secret", "remade-redis-secret"]).unwrap();
    tenant.kubectl(&["create", "secret", "generic", "remade-redis-secret", "--from-literal=redis-password=x"]).unwrap();
    tenant.kubectl(&["delete", "secret", "without-redis-secret"]).unwrap();
    for name in &ORPHANED[..4] {
        tenant
            .api::<ClientApp>()
            .delete(
                name,
                &DeleteParams { propagation_policy: Some(PropagationPolicy::Orphan), ..DeleteParams::default() },
            )
            .await
            .unwrap();
    }
    // The garbage collector has finished.
    for name in APPS {
        tenant
            .wait_for(name, "through with the garbage collector", |app: Option<&ClientApp>| {
                (app?.finalizers() == [FINALIZER]).then_some(())
            })
            .await;
    }
    assert_eq!(databases().await, before);
    let _operator = leading(&options).await;
    for name in APPS {
        tenant.gone(name).await;
    }
    assert_eq!(databases().await, before);
    for name in ORPHANED {
        assert_eq!(tenant.listed(name).unwrap().1, "deployed");
        tenant.event(name, "DataKept", &format!("{name}-admin-secret")).await;
    }
    for name in ["without", "gone"] {
        tenant.event(name, "DataKept", "it is not known whether with --cascade=orphan, since Secret").await;
    }
    // Even without Redis it is known that nothing was to stay.
    assert_eq!(tenant.listed("plain"), None);
    assert!(tenant.uid::<K>("plain-pg").await.is_none());
    if provider == "percona" {
        // Percona does not wait until their own controller releases them.
        until("its volumes are gone", async || claims_of_database(&tenant, "plain").await.is_empty()).await;
    }
    let claims = names::<PersistentVolumeClaim>(&tenant).await;
    let left: Vec<_> = claims.into_iter().filter(|claim| claim.contains("plain")).collect();
    assert!(left.is_empty(), "{left:?}");
}

/// In a foreground deletion the garbage collector is at work as well, and the next operator finds half of the work done.
#[tokio::test]
async fn a_foreground_deletion_whose_operator_is_killed_half_way_retains_everything() {
    let (Apart { tenant, options, proxy }, mut operator) = operated("half-way", &[]).await;
    // While the credentials, the database or the volumes get their marks, and while helm uninstalls.
    for (name, verb, resource) in [
        ("credentials", "patch", "secrets"),
        ("database", "patch", "perconapgclusters"),
        ("volumes", "patch", "persistentvolumeclaims"),
        ("release", "delete", "services"),
    ] {
        let spec = json!({"hostname": hostname(&tenant, name), "deletionPolicy": "Retain"});
        tenant.create(name, spec.clone()).await.unwrap();
        tenant.ready(name, 1).await;
        let kept = async || {
            (
                tenant.uid::<PerconaPGCluster>(&format!("{name}-pg")).await.unwrap(),
                claims_of_database(&tenant, name).await,
                tenant.uid::<PersistentVolumeClaim>(&format!("{name}-nextcloud-nextcloud")).await.unwrap(),
                secret(&tenant, &format!("{name}-pg-pguser-clientapp"), "password").await,
                secret(&tenant, &format!("{name}-admin-secret"), "nextcloud-password").await,
            )
        };
        let before = kept().await;
        let met = proxy.met();
        proxy.set([Rule::new(verb, resource, Fault::Hang)]);
        tenant.api::<ClientApp>().delete(name, &DeleteParams::foreground()).await.unwrap();
        proxy.met_more_than(met).await;
        operator.kill().unwrap();
        // The garbage collector has finished.
        let collected = |app: Option<&ClientApp>| (app?.finalizers() == [FINALIZER]).then_some(());
        tenant.wait_for(name, "through with the garbage collector", collected).await;
        proxy.set([]);
        operator = leading(&options).await;
        tenant.gone(name).await;
        assert_eq!(tenant.listed(name), None);
        assert_eq!(kept().await, before, "{name}");
        tenant.create(name, with(spec, json!({"postgres": {"adopt": true}}))).await.unwrap();
        tenant.ready(name, 1).await;
        assert_eq!(kept().await, before, "{name}");
    }
}

/// Helm deletes objects that a revision no longer has, but volumes among them hold data.
#[tokio::test]
async fn no_edit_takes_a_volume_along() {
    let tenant = Lab::shared().await.tenant("edited-away").await;
    let unkept = json!({"persistence": {"enabled": true}, "values": {"persistence": {"keep": false}}});
    tenant.create("acme", with(small(&tenant, "acme"), unkept)).await.unwrap();
    tenant.ready("acme", 1).await;
    let files = "acme-nextcloud-nextcloud";
    let before = tenant.uid::<PersistentVolumeClaim>(files).await.unwrap();
    tenant.patch("acme", json!({"values": {"nameOverride": "files"}})).await.unwrap();
    tenant.held("acme", "VolumeDropped", &[files]).await;
    let confirm = |uid: &str| {
        let mark = format!("{}={uid}", annotation::WITHOUT_VOLUME);
        tenant.kubectl(&["annotate", "clientapp", "acme", "--overwrite", &mark]).unwrap();
    };
    confirm(&before);
    tenant.ready("acme", 2).await;
    let renamed = tenant.uid::<PersistentVolumeClaim>("acme-files-nextcloud").await.unwrap();
    tenant.patch("acme", json!({"persistence": {"enabled": false}})).await.unwrap();
    tenant.held("acme", "VolumeDropped", &["acme-files-nextcloud"]).await;
    confirm(&renamed);
    tenant.ready("acme", 3).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["acme-files-nextcloud", files]);
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(files).await.unwrap(), before);
    // They are recorded, and deleted with the app.
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn what_another_cluster_of_the_name_has_left_is_not_taken_over_unasked() {
    let tenant = Lab::shared().await.tenant("left-by-a-cluster").await;
    let of_cluster = json!({CLUSTER_LABEL: "acme-pg"});
    let volume = foreign_claim(&tenant, "acme-pg-instance1-abcd-pgdata", of_cluster, json!({})).await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.held("acme", "DataRetained", &["PersistentVolumeClaim acme-pg-instance1-abcd-pgdata"]).await;
    assert_eq!(names::<PerconaPGCluster>(&tenant).await, Vec::<String>::new());
    is_untouched(&tenant, &volume).await;
    // With permission it is adopted.
    tenant.patch("acme", json!({"postgres": {"adopt": true}})).await.unwrap();
    tenant.ready("acme", 1).await;
}

/// Helm deletes all objects of a release that the chart does not ask it to keep, whichever app they were created for.
#[tokio::test]
async fn a_volume_of_another_app_in_the_release_holds_its_end_up() {
    let tenant = Lab::shared().await.tenant("inherited").await;
    // With Redis, the next app is Ready only once it has its own witness of orphan deletions.
    let unkept = json!({
        "persistence": {"enabled": true}, "values": {"persistence": {"keep": false}}, "redis": {"enabled": true},
    });
    let spec = with(small(&tenant, "acme"), unkept);
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let files = "acme-nextcloud-nextcloud";
    let before = tenant.uid::<PersistentVolumeClaim>(files).await.unwrap();
    // Its finalizer is removed by hand while the app is suspended.
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let off = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tenant.api::<ClientApp>().patch("acme", &PatchParams::default(), &off).await.unwrap();
    tenant.gone("acme").await;

    // Creation times are whole seconds: the volume must be older than the next app.
    let created = tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap().metadata.creation_timestamp.unwrap();
    let clock = json!({"metadata": {"generateName": "clock-"}});
    let clock: ConfigMap = serde_json::from_value(clock).unwrap();
    while tenant.api().create(&PostParams::default(), &clock).await.unwrap().metadata.creation_timestamp.unwrap()
        <= created
    {}

    let retain = json!({"deletionPolicy": "Retain", "postgres": {"enabled": false, "adopt": true}});
    tenant.create("acme", with(spec, retain)).await.unwrap();
    // Redis has a new password by now.
    tenant.ready("acme", 2).await;
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    for part in ["spec.deletionPolicy is Retain", "is not on record"] {
        tenant.held("acme", "RetainUnsafe", &[part]).await;
        assert_eq!(tenant.uid::<PersistentVolumeClaim>(files).await.unwrap(), before);
        tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    }
    tenant.api::<PersistentVolumeClaim>().delete(files, &DeleteParams::default()).await.unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme"), None);
}
