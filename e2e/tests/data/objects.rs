//! A loss is reported, and nothing of others is taken: forged marks, other Helm clients, deletions of every kind, and missing
//! objects.

use clientapp_crd::percona::CLUSTER_LABEL;
use clientapp_crd::{FINALIZER, Postgresql};
use e2e::charts;
use e2e::lab::{Apart, Lab, Object, has, leading};
use e2e::proxy::{Fault, Rule};
use e2e::scenario::{admin_secret, delete, forge, names, nothing_is_left, operated, small};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{ApiResource, DynamicObject};

use super::*;

#[tokio::test]
async fn look_alikes_of_an_apps_objects_are_neither_deleted_nor_marked() {
    let tenant = Lab::shared().await.tenant("look-alikes").await;
    let (labels, annotations) = of_release("acme", &tenant.namespace);
    let instance = json!({"app.kubernetes.io/instance": "acme"});
    let by_argo = with(instance.clone(), json!({"app.kubernetes.io/managed-by": "argocd"}));
    let mut planted = Vec::new();
    for (name, labels, annotations) in [
        ("kept-by-helm", labels.clone(), annotations.clone()),
        ("data-of-another-set-0", instance.clone(), json!({})),
        ("data-acme-redis-master-7", instance, json!({})),
        ("by-argo", by_argo, json!({})),
    ] {
        planted.push(foreign_claim(&tenant, name, labels, annotations).await);
    }
    for policy in ["Delete", "Retain"] {
        // One that never installs anything, and one that does.
        let never = with(small(&tenant, "acme"), json!({"adminSecret": "missing", "deletionPolicy": policy}));
        tenant.create("acme", never).await.unwrap();
        tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
        tenant.delete("acme").await;
        install(&tenant, "acme", with(small(&tenant, "acme"), json!({"deletionPolicy": policy}))).await;
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
    install(&tenant, "acme", small(&tenant, "acme")).await;
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
async fn what_a_cluster_of_the_apps_name_has_left_stays_and_is_adopted_only_when_told() {
    let tenant = Lab::shared().await.tenant("hand-made").await;
    // Left behind by a cluster that another user created and deleted.
    let marks = json!({CLUSTER_LABEL: "acme-pg"});
    let volume = foreign_claim(&tenant, "acme-pg-instance1-abcd-pgdata", marks.clone(), json!({})).await;
    let opens = json!({"metadata": {"name": "acme-pg-pguser-other", "labels": marks}, "stringData": {"password": "x"}});
    let opens: Secret = serde_json::from_value(opens).unwrap();
    let opens = tenant.api::<Secret>().create(&PostParams::default(), &opens).await.unwrap();
    // An app that is deleted before its spec was ever valid.
    let invalid = json!({"hostname": "kube.example", "suspend": false, "values": {"redis": {"enabled": true}}});
    for propagation in [PropagationPolicy::Foreground, PropagationPolicy::Background] {
        let suspended = json!({"adminSecret": "missing", "suspend": true});
        tenant.create("acme", with(with_database(&tenant, "acme"), suspended)).await.unwrap();
        tenant.condition("acme", "Ready", "False", "Suspended").await;
        tenant.patch("acme", invalid.clone()).await.unwrap();
        tenant.condition("acme", "Ready", "False", "InvalidSpec").await;
        delete(&tenant, "acme", propagation).await;
        is_untouched(&tenant, &volume).await;
        let now = tenant.api::<Secret>().get("acme-pg-pguser-other").await.unwrap();
        assert_eq!(now.metadata.labels, opens.metadata.labels);
    }
    // An app that would use it.
    tenant.create("acme", with_database(&tenant, "acme")).await.unwrap();
    tenant.held("acme", "DataRetained", &["PersistentVolumeClaim acme-pg-instance1-abcd-pgdata"]).await;
    assert_eq!(names::<PerconaPGCluster>(&tenant).await, Vec::<String>::new());
    is_untouched(&tenant, &volume).await;
    // With permission it is adopted.
    tenant.patch("acme", json!({"postgres": {"adopt": true}})).await.unwrap();
    tenant.ready("acme", 1).await;
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
    let resource = ApiResource::erase::<PerconaPGCluster>(&());
    let clusters: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &resource);
    let cluster = clusters.create(&PostParams::default(), &serde_json::from_value(cluster).unwrap()).await.unwrap();
    tenant.create("labelled", whole(&tenant, "labelled")).await.unwrap();
    tenant.held("labelled", "DatabaseNotOurs", &["is not taken over"]).await;
    tenant.delete("labelled").await;
    assert_eq!(clusters.get("labelled-pg").await.unwrap(), cluster);
}

#[tokio::test]
async fn retain_waits_until_no_volume_would_go_with_the_release() {
    let tenant = Lab::shared().await.tenant("retain-unsafe").await;
    let unkept = json!({"persistence": {"annotations": {"helm.sh/resource-policy": "none"}}});
    let retain = json!({"persistence": {"enabled": true}, "deletionPolicy": "Retain", "values": unkept});
    install(&tenant, "acme", with(small(&tenant, "acme"), retain)).await;
    let files = volume(&tenant, FILES).await;
    assert!(files.is_some());
    begin_deletion(&tenant, "acme", PropagationPolicy::Background).await;
    let told = tenant.condition("acme", "Stalled", "True", "RetainUnsafe").await;
    assert!(told.contains(FILES) && told.contains("--cascade=orphan"), "{told}");
    assert_eq!(tenant.listed("acme").unwrap().1, "deployed");
    assert_eq!(volume(&tenant, FILES).await, files);
    // The remedy: whatever may be deleted is deleted.
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_lost_administrators_password_is_told_and_never_made_up() {
    let tenant = Lab::shared().await.tenant("lost-password").await;
    install(&tenant, "acme", with(small(&tenant, "acme"), json!({"redis": {"enabled": true}}))).await;
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
    admin_secret(&tenant, "acme-admin-secret", &password).await;
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
    let retain = json!({"deletionPolicy": "Retain", "postgres": {"provider": "standalone"}});
    let spec = with(whole(&tenant, "acme"), retain);
    install(&tenant, "acme", spec.clone()).await;
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
    install(&tenant, "acme", with(spec, adopt)).await;
    // The one for Redis goes with the app, and the next has its own.
    assert!(passwords().await[1..] == before[1..], "no password has changed");
    tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn no_deletion_lets_the_garbage_collector_take_what_is_retained() {
    let (Apart { tenant, proxy: _proxy, .. }, operator) = operated("collected", &[]).await;
    let retain = json!({"deletionPolicy": "Retain"});
    let spec = with(with_database(&tenant, "acme"), retain.clone());
    install(&tenant, "acme", with_database(&tenant, "acme")).await;
    let kept = async || {
        (
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
            tenant.uid::<Secret>("acme-admin-secret").await.unwrap(),
            tenant.uid::<PerconaPGCluster>("acme-pg").await.unwrap(),
            tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(),
        )
    };
    let before = kept().await;
    let password = secret(&tenant, "acme-pg-pguser-clientapp", "password").await;
    // A policy that came late counts.
    tenant.patch("acme", retain).await.unwrap();
    tenant.ready("acme", 1).await;
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    is_retained(&tenant, "acme", &password).await;
    assert_eq!(kept().await, before);

    // Adopted, and its finalizer removed by hand: its data is without an owner, and stays.
    install(&tenant, "acme", with(spec.clone(), json!({"postgres": {"adopt": true}, "deletionPolicy": "Delete"})))
        .await;
    assert_eq!(kept().await, before);
    operator.signal(nix::sys::signal::Signal::SIGSTOP);
    free(&tenant, "acme").await;
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    operator.signal(nix::sys::signal::Signal::SIGCONT);
    assert_eq!(kept().await, before);
    // The recreated app gets none of it without asking.
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.condition("acme", "Stalled", "True", "DataRetained").await;
    assert_eq!(kept().await, before);
    tenant.patch("acme", json!({"postgres": {"adopt": true}, "deletionPolicy": "Delete"})).await.unwrap();
    tenant.status("acme", "adopted", |status| has(status, "Ready", "True", "Ready")).await;
    assert_eq!(kept().await, before);
    assert!(tenant.api::<ClientApp>().get("acme").await.unwrap().finalizers().contains(&FINALIZER.to_owned()));
    tenant.delete("acme").await;
    // The volumes of the app whose finalizer was removed do not have this app's mark: they are not provably its own.
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), before.3);
    tenant.event("acme", "DataKept", &format!("PersistentVolumeClaim {FILES} stays")).await;
    tenant.kubectl(&["delete", "pvc", "-l", "app.kubernetes.io/instance=acme"]).unwrap();
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_deletion_ends_whatever_helms_storage_says() {
    let tenant = Lab::shared().await.tenant("storage").await;
    let spec = |name: &str| with(whole(&tenant, name), json!({"postgres": {"enabled": false}}));
    let planted = foreign_claim(&tenant, "planted", json!({"app.kubernetes.io/instance": "gone"}), json!({})).await;
    for name in ["gone", "garbled"] {
        install(&tenant, name, spec(name)).await;
    }
    begin_deletion(&tenant, "gone", PropagationPolicy::Background).await;
    let _ = tenant.kubectl(&["delete", "secret", "sh.helm.release.v1.gone.v1"]);
    tenant.gone("gone").await;
    let broken = Patch::Merge(json!({"data": {"release": "bm90IGEgcmVsZWFzZQ=="}}));
    let record = "sh.helm.release.v1.garbled.v1";
    tenant.api::<Secret>().patch(record, &PatchParams::default(), &broken).await.unwrap();
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
        begin_deletion(&tenant, app, PropagationPolicy::Background).await;
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
async fn an_object_of_another_namespace_says_nothing_about_an_app() {
    let lab = Lab::shared().await;
    let (tenant, other) = (lab.tenant("spoken-for").await, lab.tenant("speaker").await);
    // Nor does a revision of an impossible number of another release.
    let marks = json!({"owner": "helm", "name": "other", "status": "deployed", "version": i64::MAX.to_string()});
    let record =
        json!({"metadata": {"name": "sh.helm.release.v1.other.v9", "labels": marks}, "type": "helm.sh/release.v1"});
    tenant.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(record).unwrap()).await.unwrap();
    install(&tenant, "acme", small(&tenant, "acme")).await;
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
async fn deletions_with_the_operator_away() {
    let apps = ["kept", "gone", "orphan", "plain", "noredis", "remade", "without"];
    deleted_with_the_operator_away::<Postgresql>("away", "standalone", &apps).await;
}

/// What Redis has to do with it is the same for every provider.
#[tokio::test]
async fn deletions_with_the_operator_away_and_percona() {
    let apps = ["kept", "gone", "orphan", "plain"];
    deleted_with_the_operator_away::<PerconaPGCluster>("away-percona", "percona", &apps).await;
}

/// `K` is the kind of this provider's databases.
async fn deleted_with_the_operator_away<K: Object>(namespace: &str, provider: &str, apps: &[&str]) {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated(namespace, &[]).await;
    // Redis's Secret shows whether a deletion orphans; what that means for a database is the same in each case.
    let has_database = |name: &str| ["kept", "gone", "orphan", "plain"].contains(&name);
    for name in apps {
        let spec = json!({
            "deletionPolicy": if *name == "kept" { "Retain" } else { "Delete" },
            "postgres": {"provider": provider, "enabled": has_database(name)},
            "redis": {"enabled": !["noredis", "plain"].contains(name)},
        });
        tenant.create(name, with(small(&tenant, name), spec)).await.unwrap();
    }
    for name in apps {
        tenant.ready(name, 1).await;
    }
    // A foreground deletion that the garbage collector has completed looks like an orphan deletion whose witness is gone.
    let orphaned: Vec<&str> = apps.iter().copied().filter(|name| *name != "plain").collect();
    let data = async || {
        let mut data = BTreeMap::new();
        for name in orphaned.iter().copied() {
            let database = tenant.uid::<K>(&format!("{name}-pg")).await;
            let password = secret(&tenant, &format!("{name}-admin-secret"), "nextcloud-password").await;
            data.insert(name, (database, claims_of_database(&tenant, name).await, password));
        }
        data
    };
    let before = data().await;
    for (name, (database, claims, _)) in &before {
        assert_eq!((database.is_some(), !claims.is_empty()), (has_database(name), has_database(name)), "{name}");
    }
    operator.kill().unwrap();
    for name in apps.iter().copied() {
        let propagation = match name {
            "kept" | "gone" => PropagationPolicy::Foreground,
            "plain" => PropagationPolicy::Background,
            _ => PropagationPolicy::Orphan,
        };
        // Another Secret replaces the witness of an orphan deletion, or none does.
        let witness = format!("{name}-redis-secret");
        if ["remade", "without"].contains(&name) {
            tenant.kubectl(&["delete", "secret", &witness]).unwrap();
        }
        if name == "remade" {
            tenant.kubectl(&["create", "secret", "generic", &witness, "--from-literal=redis-password=x"]).unwrap();
        }
        begin_deletion(&tenant, name, propagation).await;
    }
    for name in apps {
        is_collected(&tenant, name).await;
    }
    assert_eq!(data().await, before);
    let _operator = leading(&options).await;
    for name in apps {
        tenant.gone(name).await;
    }
    assert_eq!(data().await, before);
    for name in orphaned.iter().copied() {
        assert_eq!(tenant.listed(name).unwrap().1, "deployed");
        tenant.event(name, "DataKept", &format!("{name}-admin-secret")).await;
        if ["without", "gone"].contains(&name) {
            tenant.event(name, "DataKept", "it is not known whether with --cascade=orphan, since Secret").await;
        }
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

/// Waits until the garbage collector has done its part of a deletion.
async fn is_collected(tenant: &Tenant, name: &str) {
    let collected = |app: Option<&ClientApp>| (app?.finalizers() == [FINALIZER]).then_some(());
    tenant.wait_for(name, "through with the garbage collector", collected).await;
}

/// In a foreground deletion the garbage collector is at work as well, and the next operator finds half of the work done.
#[tokio::test]
async fn a_foreground_deletion_whose_operator_is_killed_half_way_retains_everything() {
    let (Apart { tenant, options, proxy }, mut operator) = operated("half-way", &[]).await;
    // While the database, the volumes or the credentials get their marks, and while helm uninstalls.
    for (name, verb, resource) in [
        ("database", "patch", "perconapgclusters"),
        ("volumes", "patch", "persistentvolumeclaims"),
        ("release", "delete", "services"),
        ("credentials", "patch", "secrets"),
    ] {
        let spec = with(with_database(&tenant, name), json!({"deletionPolicy": "Retain"}));
        install(&tenant, name, spec.clone()).await;
        let password = secret(&tenant, &format!("{name}-pg-pguser-clientapp"), "password").await;
        let kept = async || {
            (
                tenant.uid::<PerconaPGCluster>(&format!("{name}-pg")).await.unwrap(),
                claims_of_database(&tenant, name).await,
                tenant.uid::<PersistentVolumeClaim>(&format!("{name}-nextcloud-nextcloud")).await.unwrap(),
                secret(&tenant, &format!("{name}-admin-secret"), "nextcloud-password").await,
            )
        };
        let before = kept().await;
        let met = proxy.met();
        proxy.set([Rule::new(verb, resource, Fault::Hang)]);
        begin_deletion(&tenant, name, PropagationPolicy::Foreground).await;
        proxy.met_more_than(met).await;
        operator.kill().unwrap();
        is_collected(&tenant, name).await;
        proxy.set([]);
        operator = leading(&options).await;
        tenant.gone(name).await;
        assert_eq!(tenant.listed(name), None);
        assert_eq!(kept().await, before, "{name}");
        is_retained(&tenant, name, &password).await;
        if name == "credentials" {
            install(&tenant, name, with(spec, json!({"postgres": {"adopt": true}}))).await;
            assert_eq!(kept().await, before, "adopted");
        }
    }
}

/// Helm deletes all objects of a release that the chart does not ask it to keep, whichever app they were created for.
#[tokio::test]
async fn a_volume_of_another_app_in_the_release_holds_its_end_up() {
    let tenant = Lab::shared().await.tenant("inherited").await;
    // With Redis, the next app is Ready only once it has its own witness of orphan deletions.
    let spec = with(with(small(&tenant, "acme"), unkept()), json!({"redis": {"enabled": true}}));
    install(&tenant, "acme", spec.clone()).await;
    let before = tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap();
    // Its finalizer is removed by hand while the app is suspended.
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    begin_deletion(&tenant, "acme", PropagationPolicy::Background).await;
    free(&tenant, "acme").await;
    tenant.gone("acme").await;

    // Creation times are whole seconds: the volume must be older than the next app.
    let created = tenant.api::<PersistentVolumeClaim>().get(FILES).await.unwrap().metadata.creation_timestamp.unwrap();
    let clock = json!({"metadata": {"generateName": "clock-"}});
    let clock: ConfigMap = serde_json::from_value(clock).unwrap();
    while tenant.api().create(&PostParams::default(), &clock).await.unwrap().metadata.creation_timestamp.unwrap()
        <= created
    {}

    let retain = json!({"deletionPolicy": "Retain", "postgres": {"enabled": false, "adopt": true}});
    tenant.create("acme", with(spec, retain)).await.unwrap();
    // Redis has a new password by now.
    tenant.ready("acme", 2).await;
    begin_deletion(&tenant, "acme", PropagationPolicy::Background).await;
    for part in ["spec.deletionPolicy is Retain", "is not on record"] {
        tenant.held("acme", "RetainUnsafe", &[part]).await;
        assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), before);
        tenant.patch("acme", json!({"deletionPolicy": "Delete"})).await.unwrap();
    }
    tenant.api::<PersistentVolumeClaim>().delete(FILES, &DeleteParams::default()).await.unwrap();
    tenant.gone("acme").await;
    assert_eq!(tenant.listed("acme"), None);
}
