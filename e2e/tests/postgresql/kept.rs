//! What must not be lost: volumes that go missing, deletions of every kind, objects with forged marks.

use super::*;

/// Kind, name and uid of the objects that hold data or give access to data.
async fn data(tenant: &Tenant) -> Vec<(String, Option<String>)> {
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    let secrets = tenant.api::<Secret>().list(&ListParams::default()).await.unwrap();
    let claims = claims.iter().map(|claim| (claim.name_any(), claim.uid()));
    claims.chain(secrets.iter().map(|secret| (secret.name_any(), secret.uid()))).collect()
}

/// Deletes the volume with the database, and waits until the StatefulSet has another one.
async fn lose_volume(tenant: &Tenant, name: &str) -> (String, String) {
    let claim = format!("data-{name}-0");
    let before = tenant.uid::<PersistentVolumeClaim>(&claim).await.unwrap();
    delete::<PersistentVolumeClaim>(tenant, &claim).await;
    held(tenant, name, "VolumeGoing").await;
    delete::<Pod>(tenant, &format!("{name}-0")).await;
    let another = |claim: Option<&PersistentVolumeClaim>| claim?.uid().filter(|uid| *uid != before);
    let after = tenant.wait_for(&claim, "recreated", another).await;
    (before, after)
}

#[tokio::test]
async fn a_volume_that_is_lost_is_said_and_not_taken_for_another() {
    let tenant = Lab::shared().await.tenant("pg-volume-lost").await;
    create(&tenant, "db", json!({})).await.unwrap();
    let recorded = up(&tenant, "db").await.volume.unwrap();
    assert!(recorded.initialized, "{recorded:?}");
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("data-db-0").await, Some(recorded.uid.clone()));
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new(), "the Job that initialised it has completed");

    let (before, after) = lose_volume(&tenant, "db").await;
    assert_eq!(before, recorded.uid);
    let accept =
        format!("kubectl annotate db db -n pg-volume-lost --overwrite apps.bnerd-operator.local/accept-volume={after}");
    let about = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        let words = ["data-db-0", "restore a dump", &accept].iter().all(|part| ready.message.contains(part));
        (ready.reason == "VolumeLost" && words).then_some(())
    };
    tenant.wait_for("db", "on another volume", about).await;
    let lost = tenant.api::<Postgresql>().get("db").await.unwrap().status.unwrap();
    assert_eq!((lost.phase, lost.volume), (Some(Phase::Failed), Some(recorded)));
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new(), "no database is initialised");
    // Even if only the record is left.
    delete::<StatefulSet>(&tenant, "db").await;
    gone::<Pod>(&tenant, "db-0").await;
    delete::<PersistentVolumeClaim>(&tenant, "data-db-0").await;
    gone::<PersistentVolumeClaim>(&tenant, "data-db-0").await;
    let about = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        (ready.reason == "VolumeLost" && ready.message.contains("data-db-0 is gone")).then_some(())
    };
    tenant.wait_for("db", "without a volume", about).await;
    tenant.replaced::<Service>("db").await;
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());

    // An administrator has the data back, as from a snapshot, and says so.
    let claim = json!({
        "metadata": {"name": "data-db-0", "labels": {
            label::POSTGRESQL: "db",
            label::POSTGRESQL_UID: tenant.api::<Postgresql>().get("db").await.unwrap().uid(),
        }},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let restored = tenant.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await.unwrap();
    let uid = restored.uid().unwrap();
    tenant.kubectl(&["annotate", "db", "db", &format!("apps.bnerd-operator.local/accept-volume={uid}")]).unwrap();
    let there = |object: Option<&Postgresql>| {
        let volume = object?.status.as_ref()?.volume.as_ref()?;
        (volume.uid == uid && volume.initialized).then_some(())
    };
    tenant.wait_for("db", "on the volume that was put in its place", there).await;
    up(&tenant, "db").await;

    // The pod itself finds no database.
    let container = json!({
        "name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 1,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 71, "message": "there is no database in /volume/data"}},
    });
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [container],
    }});
    tenant.api::<Pod>().patch_status("db-0", &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    let message = held(&tenant, "db", "VolumeLost").await;
    assert!(message.contains("pod db-0 finds no database on PersistentVolumeClaim data-db-0"), "{message}");
}

/// The walk in crds/postgresql.md, except for PostgreSQL's own part.
#[tokio::test]
async fn a_standbys_volume_takes_the_place_of_the_primarys() {
    let tenant = Lab::shared().await.tenant("pg-promoted").await;
    create(&tenant, "orders", json!({"replicas": 2})).await.unwrap();
    let before = up(&tenant, "orders").await.volume.unwrap();
    tenant.kubectl(&["patch", "db", "orders", "--type=merge", "-p", r#"{"spec": {"replicas": 1}}"#]).unwrap();
    gone::<Pod>(&tenant, "orders-standby-0").await;
    let said = |arguments: &[&str]| tenant.kubectl(arguments).unwrap().trim().to_owned();
    let volume = said(&["get", "pvc", "data-orders-standby-0", "-o", "jsonpath={.spec.volumeName}"]);
    let retain = r#"{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}"#;
    said(&["patch", "pv", &volume, "--type=merge", "-p", retain]);
    said(&["delete", "pvc", "data-orders-0", "--wait=false", "--ignore-not-found"]);
    said(&["delete", "statefulset", "orders"]);
    said(&["wait", "--for=delete", "pvc/data-orders-0", "--timeout=90s"]);
    held(&tenant, "orders", "VolumeLost").await;
    said(&["delete", "pvc", "data-orders-standby-0"]);
    let reserved = r#"{"spec": {"claimRef": {"name": "data-orders-0", "uid": null, "resourceVersion": null}}}"#;
    said(&["patch", "pv", &volume, "--type=merge", "-p", reserved]);
    let claim = json!({
        "metadata": {"name": "data-orders-0", "labels": {
            label::POSTGRESQL: "orders",
            label::POSTGRESQL_UID: said(&["get", "db", "orders", "-o", "jsonpath={.metadata.uid}"]),
        }},
        "spec": {
            "volumeName": volume, "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let claim = tenant.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await.unwrap();
    let uid = claim.uid().unwrap();
    said(&["annotate", "db", "orders", &format!("apps.bnerd-operator.local/accept-volume={uid}")]);
    let there = |object: Option<&Postgresql>| {
        let status = object?.status.as_ref()?;
        let volume = status.volume.as_ref()?;
        (volume.uid == uid && volume.initialized && status.phase == Some(Phase::Up)).then_some(())
    };
    tenant.wait_for("orders", "up on the standby's volume", there).await;
    assert_ne!(before.uid, uid);
    let bound = tenant.api::<PersistentVolumeClaim>().get("data-orders-0").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name, Some(volume));
}

#[tokio::test]
async fn a_volume_that_is_not_on_record_outlives_its_postgresql() {
    let tenant = Lab::shared().await.tenant("pg-not-on-record").await;
    create(&tenant, "db", json!({"backup": {"onDelete": true}})).await.unwrap();
    up(&tenant, "db").await;
    let (_, after) = lose_volume(&tenant, "db").await;
    held(&tenant, "db", "VolumeLost").await;
    // A volume labelled as its own, and its record edited by hand.
    let labels = json!({
        label::POSTGRESQL: "db",
        label::POSTGRESQL_UID: tenant.api::<Postgresql>().get("db").await.unwrap().uid(),
    });
    let claim = json!({
        "metadata": {"name": "precious", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    let precious = tenant.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await.unwrap();
    let owned = json!([{"kind": "PersistentVolumeClaim", "name": "precious", "uid": precious.uid()}]);
    let forged = Patch::Merge(json!({"status": {"owned": owned}}));
    tenant.api::<Postgresql>().patch_status("db", &PatchParams::default(), &forged).await.unwrap();

    delete::<Postgresql>(&tenant, "db").await;
    // There is nothing to dump.
    let nothing = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        let words = ready.message.contains("nothing to dump") && ready.message.contains("spec.backup.onDelete");
        (ready.reason == "VolumeLost" && words).then_some(())
    };
    tenant.wait_for("db", "without a dump", nothing).await;
    patch(&tenant, "db", json!({"backup": null})).await.unwrap();
    gone::<Postgresql>(&tenant, "db").await;
    let claims = tenant.api::<PersistentVolumeClaim>();
    let kept = claims.get("data-db-0").await.unwrap();
    assert_eq!((kept.uid(), kept.labels()[label::RETAINED_FROM].as_str()), (Some(after), "db"));
    assert_eq!(claims.get("precious").await.unwrap().uid(), precious.uid());
    let told = tenant.events("db").await;
    let words = "PersistentVolumeClaim data-db-0 stays: it is not on record in the status of Postgresql db";
    assert!(told.iter().any(|(reason, note)| reason == "Retained" && note.contains(words)), "{told:?}");
    // And the Secrets that open it.
    assert_eq!(names::<Secret>(&tenant).await, ["db-app", "db-credentials", "db-replication"]);
}

#[tokio::test]
async fn a_volume_that_has_lost_its_label_is_kept_with_what_opens_it() {
    let tenant = Lab::shared().await.tenant("pg-unlabelled").await;
    create(&tenant, "db", json!({})).await.unwrap();
    up(&tenant, "db").await;
    let before = tenant.uid::<PersistentVolumeClaim>("data-db-0").await;
    let off = Patch::Merge(json!({"metadata": {"labels": {label::POSTGRESQL: null, label::POSTGRESQL_UID: null}}}));
    tenant.api::<PersistentVolumeClaim>().patch("data-db-0", &PatchParams::default(), &off).await.unwrap();
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("data-db-0").await, before);
    assert_eq!(names::<Secret>(&tenant).await, ["db-app", "db-credentials", "db-replication"]);
    let told = tenant.events("db").await;
    assert!(told.iter().any(|(reason, note)| reason == "Retained" && note.contains("data-db-0 stays")), "{told:?}");
}

#[tokio::test]
async fn a_foreground_deletion_takes_the_last_dump_first() {
    let tenant = Lab::shared().await.tenant("pg-foreground").await;
    create(&tenant, "db", json!({"replicas": 2, "backup": {"onDelete": true}, "resources": requests()})).await.unwrap();
    up(&tenant, "db").await;
    let before = data(&tenant).await;
    no_job_pods(&tenant).await;
    tenant.api::<Postgresql>().delete("db", &DeleteParams::foreground()).await.unwrap();
    held(&tenant, "db", "Dumping").await;
    // The garbage collector has deleted everything that it may.
    gone::<ConfigMap>(&tenant, "db-witness").await;
    assert_eq!(data(&tenant).await, before);
    for set in ["db", "db-standby"] {
        assert!(tenant.api::<StatefulSet>().get(set).await.unwrap().metadata.deletion_timestamp.is_none());
    }
    delete::<ResourceQuota>(&tenant, "no-job-pods").await;
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["db-backup"]);
    assert_eq!(names::<Secret>(&tenant).await, Vec::<String>::new());
}

#[tokio::test]
async fn an_orphan_deletion_leaves_everything() {
    let tenant = Lab::shared().await.tenant("pg-orphan").await;
    create(&tenant, "db", json!({"replicas": 2, "backup": {"schedule": "@daily", "onDelete": true}})).await.unwrap();
    up(&tenant, "db").await;
    let before = data(&tenant).await;
    let set = tenant.uid::<StatefulSet>("db").await;
    tenant.kubectl(&["delete", "db", "db", "--cascade=orphan"]).unwrap();
    assert_eq!((data(&tenant).await, tenant.uid::<StatefulSet>("db").await), (before, set));
    assert!(tenant.uid::<Pod>("db-0").await.is_some() && tenant.uid::<Pod>("db-standby-0").await.is_some());
    for claim in ["data-db-0", "data-db-standby-0", "db-backup"] {
        let claim = tenant.api::<PersistentVolumeClaim>().get(claim).await.unwrap();
        assert_eq!(claim.labels()[label::RETAINED_FROM], "db");
    }
}

#[tokio::test]
async fn without_its_finalizer_nothing_is_lost_nor_taken_over() {
    let tenant = Lab::shared().await.tenant("pg-edited-out").await;
    create(&tenant, "db", json!({"backup": {"onDelete": true}, "resources": requests()})).await.unwrap();
    up(&tenant, "db").await;
    let before = data(&tenant).await;
    no_job_pods(&tenant).await;
    delete::<Postgresql>(&tenant, "db").await;
    held(&tenant, "db", "Dumping").await;
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tenant.api::<Postgresql>().patch("db", &PatchParams::default(), &none).await.unwrap();
    gone::<Postgresql>(&tenant, "db").await;
    // It deleted only the witness.
    gone::<ConfigMap>(&tenant, "db-witness").await;
    assert_eq!(data(&tenant).await, before);

    create(&tenant, "db", json!({})).await.unwrap();
    let message = held(&tenant, "db", "NotOurs").await;
    assert!(message.contains("Secret db-credentials"), "{message}");
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(data(&tenant).await, before);
}

/// Lets the API server store objects that its schema refuses, or no longer.
async fn strict(tenant: &Tenant, strict: bool) {
    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::CustomResourceExt as _;
    let mut definition = serde_json::to_value(Postgresql::crd()).unwrap();
    if !strict {
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    }
    let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    definitions.patch("postgresqls.apps.bnerd-operator.local", &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn what_cannot_be_understood_or_was_not_seen_is_kept() {
    // A plane of its own: its schema changes, and its operator is away for a while.
    let lab = Lab::own().await;
    let start_operator =
        async || tokio::task::spawn_blocking(move || lab.start_operator(&lab.options()).unwrap()).await.unwrap();
    start_operator().await;
    let spec = || json!({"backup": {"schedule": "@daily", "onDelete": true}});

    let tenant = lab.tenant("pg-unclear").await;
    for name in ["invalid", "undecodable"] {
        create(&tenant, name, spec()).await.unwrap();
        up(&tenant, name).await;
    }
    let before = data(&tenant).await;
    strict(&tenant, false).await;
    let kind = ApiResource::erase::<Postgresql>(&());
    let raw: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind);
    for (name, spec) in [("invalid", json!({"version": "13"})), ("undecodable", json!({"port": "many"}))] {
        let patch = Patch::Merge(json!({"spec": spec}));
        until("the loose schema applies", async || raw.patch(name, &PatchParams::default(), &patch).await).await;
        raw.delete(name, &DeleteParams::default()).await.unwrap();
        until("it is gone", async || raw.get_metadata_opt(name).await.unwrap().is_none()).await;
        for claim in [format!("data-{name}-0"), format!("{name}-backup")] {
            let claim = tenant.api::<PersistentVolumeClaim>().get(&claim).await.unwrap();
            assert_eq!(claim.labels()[label::RETAINED_FROM], name);
        }
        let told = tenant.events(name).await;
        let words = format!("PersistentVolumeClaim {name}-backup stays: its spec cannot be understood");
        assert!(told.iter().any(|(reason, note)| reason == "Retained" && note.contains(&words)), "{told:?}");
    }
    assert_eq!(data(&tenant).await, before);
    strict(&tenant, true).await;

    // An orphan deletion that is nearly complete when the operator comes back, and one whose witness is gone.
    let tenant = lab.tenant("pg-away").await;
    for name in ["db", "unclear"] {
        create(&tenant, name, spec()).await.unwrap();
        up(&tenant, name).await;
    }
    let before = data(&tenant).await;
    let operator = lab.operator().take().unwrap();
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
    let orphan =
        DeleteParams { propagation_policy: Some(kube::api::PropagationPolicy::Orphan), ..DeleteParams::default() };
    tenant.kubectl(&["delete", "configmap", "unclear-witness"]).unwrap();
    for name in ["db", "unclear"] {
        tenant.api::<Postgresql>().delete(name, &orphan).await.unwrap();
        let orphaned = |object: Option<&Postgresql>| {
            (!object?.finalizers().iter().any(|finalizer| finalizer == "orphan")).then_some(())
        };
        tenant.wait_for(name, "orphaned", orphaned).await;
    }
    start_operator().await;
    for name in ["db", "unclear"] {
        gone::<Postgresql>(&tenant, name).await;
    }
    assert_eq!(data(&tenant).await, before);
    assert!(tenant.uid::<Pod>("db-0").await.is_some());
    let operator = lab.operator().take().unwrap();
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
}
