//! Tests what must not be lost: volumes that go missing, deletions of every kind, objects with forged marks.

use super::*;

/// Kind, name and uid of the objects that hold data or give access to data.
pub async fn data(tenant: &Tenant) -> Vec<(String, Option<String>)> {
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
    held(tenant, name, "VolumeGoing", &[]).await;
    delete::<Pod>(tenant, &format!("{name}-0")).await;
    let another = |claim: Option<&PersistentVolumeClaim>| claim?.uid().filter(|uid| *uid != before);
    let after = tenant.wait_for(&claim, "recreated", another).await;
    (before, after)
}

#[tokio::test]
async fn a_volume_that_is_lost_is_said_and_not_taken_for_another() {
    let tenant = tenant("pg-volume-lost").await;
    let recorded = make(&tenant, "db", json!({})).await.volume.unwrap();
    assert!(recorded.initialized, "{recorded:?}");
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("data-db-0").await, Some(recorded.uid.clone()));
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new(), "the Job that initialised it has completed");

    let (before, after) = lose_volume(&tenant, "db").await;
    assert_eq!(before, recorded.uid);
    let accept =
        format!("kubectl annotate db db -n pg-volume-lost --overwrite apps.bnerd-operator.local/accept-volume={after}");
    held(&tenant, "db", "VolumeLost", &["data-db-0", "restore a dump", &accept]).await;
    let lost = tenant.api::<Postgresql>().get("db").await.unwrap().status.unwrap();
    assert_eq!((lost.phase, lost.volume), (Some(Phase::Failed), Some(recorded)));
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new(), "no database is initialised");
    // Even if only the record is left.
    delete::<StatefulSet>(&tenant, "db").await;
    gone::<Pod>(&tenant, "db-0").await;
    delete::<PersistentVolumeClaim>(&tenant, "data-db-0").await;
    gone::<PersistentVolumeClaim>(&tenant, "data-db-0").await;
    held(&tenant, "db", "VolumeLost", &["data-db-0 is gone"]).await;
    tenant.replaced::<Service>("db").await;
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());

    // An administrator has the data back, as from a snapshot, and says so.
    let restored = claim(&tenant, "data-db-0", labels(&tenant, "db").await, json!({})).await;
    accepted(&tenant, "db", &restored).await;

    // The pod itself finds no database.
    crash(&tenant, "db-0", 71, "there is no database in /volume/data").await;
    held(&tenant, "db", "VolumeLost", &["pod db-0 finds no database on PersistentVolumeClaim data-db-0"]).await;
}

/// Says that a volume holds the database, and waits until it serves from there.
async fn accepted(tenant: &Tenant, name: &str, claim: &PersistentVolumeClaim) {
    let uid = claim.uid().unwrap();
    tenant.kubectl(&["annotate", "db", name, &format!("apps.bnerd-operator.local/accept-volume={uid}")]).unwrap();
    let there = |object: Option<&Postgresql>| {
        let status = object?.status.as_ref()?;
        let volume = status.volume.as_ref()?;
        (volume.uid == uid && volume.initialized && is_settled(status)).then_some(())
    };
    tenant.wait_for(name, "up on the volume that was put in its place", there).await;
}

/// The walk in crds/postgresql.md, except for PostgreSQL's own part.
#[tokio::test]
async fn a_standbys_volume_takes_the_place_of_the_primarys() {
    let tenant = tenant("pg-promoted").await;
    let before = make(&tenant, "orders", json!({"replicas": 2})).await.volume.unwrap();
    tenant.kubectl(&["patch", "db", "orders", "--type=merge", "-p", r#"{"spec": {"replicas": 1}}"#]).unwrap();
    gone::<Pod>(&tenant, "orders-standby-0").await;
    let said = |arguments: &[&str]| tenant.kubectl(arguments).unwrap().trim().to_owned();
    let volume = said(&["get", "pvc", "data-orders-standby-0", "-o", "jsonpath={.spec.volumeName}"]);
    let retain = r#"{"spec": {"persistentVolumeReclaimPolicy": "Retain"}}"#;
    said(&["patch", "pv", &volume, "--type=merge", "-p", retain]);
    said(&["delete", "pvc", "data-orders-0", "--wait=false", "--ignore-not-found"]);
    said(&["delete", "statefulset", "orders"]);
    said(&["wait", "--for=delete", "pvc/data-orders-0", "--timeout=90s"]);
    held(&tenant, "orders", "VolumeLost", &[]).await;
    said(&["delete", "pvc", "data-orders-standby-0"]);
    let reserved = r#"{"spec": {"claimRef": {"name": "data-orders-0", "uid": null, "resourceVersion": null}}}"#;
    said(&["patch", "pv", &volume, "--type=merge", "-p", reserved]);
    let labels = labels(&tenant, "orders").await;
    let claim = claim(&tenant, "data-orders-0", labels, json!({"volumeName": volume})).await;
    accepted(&tenant, "orders", &claim).await;
    assert_ne!(Some(before.uid), claim.uid());
    let bound = tenant.api::<PersistentVolumeClaim>().get("data-orders-0").await.unwrap();
    assert_eq!(bound.spec.unwrap().volume_name, Some(volume));
}

#[tokio::test]
async fn a_volume_that_is_not_on_record_outlives_its_postgresql() {
    let tenant = tenant("pg-not-on-record").await;
    make(&tenant, "db", json!({"backup": {"onDelete": true}})).await;
    let (_, after) = lose_volume(&tenant, "db").await;
    held(&tenant, "db", "VolumeLost", &[]).await;
    // A volume labelled as its own, and its record edited by hand.
    let precious = claim(&tenant, "precious", labels(&tenant, "db").await, json!({})).await;
    let owned = json!([{"kind": "PersistentVolumeClaim", "name": "precious", "uid": precious.uid()}]);
    let forged = Patch::Merge(json!({"status": {"owned": owned}}));
    tenant.api::<Postgresql>().patch_status("db", &PatchParams::default(), &forged).await.unwrap();

    delete::<Postgresql>(&tenant, "db").await;
    held(&tenant, "db", "VolumeLost", &["nothing to dump", "spec.backup.onDelete"]).await;
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
    assert_eq!(names::<Secret>(&tenant).await, SECRETS);
}

#[tokio::test]
async fn retained_data_stay_with_their_password_and_are_given_to_no_other_by_accident() {
    let tenant = tenant("pg-retain").await;
    make(&tenant, "db", json!({"deletionPolicy": "Retain", "replicas": 2})).await;
    let password = secret(&tenant, "db-app").await["password"].clone();
    // Even if the garbage collector starts at once with the objects that the Postgresql owns.
    tenant.api::<Postgresql>().delete("db", &DeleteParams::foreground()).await.unwrap();
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["data-db-0", "data-db-standby-0"]);
    assert_eq!(names::<Secret>(&tenant).await, SECRETS);
    let claim = tenant.api::<PersistentVolumeClaim>().get("data-db-0").await.unwrap();
    let kept = tenant.api::<Secret>().get("db-credentials").await.unwrap();
    assert_eq!(
        (claim.labels()[label::RETAINED_FROM].as_str(), kept.labels()[label::RETAINED_FROM].as_str()),
        ("db", "db")
    );
    assert!(claim.owner_references().is_empty() && kept.owner_references().is_empty());

    // A successor waits until they are handed over, and then has the old data and the old password.
    create(&tenant, "db", json!({})).await.unwrap();
    let uid = until("it is created", async || tenant.uid::<Postgresql>("db").await).await;
    let hand_over = format!("{}={uid}", label::POSTGRESQL_UID);
    let selector = format!("{}=db,{}=Postgresql", label::RETAINED_FROM, label::RETAINED_KIND);
    let command = format!("`kubectl label pvc,secret -n pg-retain -l {selector} --overwrite {hand_over}`");
    held(&tenant, "db", "NotOurs", &["db-credentials", &command]).await;
    // One by one as well: the message names the next object that is needed.
    for secret in ["db-credentials", "db-app", "db-replication"] {
        held(&tenant, "db", "NotOurs", &[secret]).await;
        tenant.kubectl(&["label", "secret", secret, &hand_over]).unwrap();
    }
    held(&tenant, "db", "NotOurs", &[&format!("kubectl label pvc data-db-0 -n pg-retain {hand_over}")]).await;
    tenant.kubectl(&["label", "pvc", "-l", &selector, &hand_over]).unwrap();
    patch(&tenant, "db", json!({"port": 5433})).await.unwrap();
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["password"], password);
    // No label says any more that it was left behind.
    let unsettled = tenant.kubectl(&["get", "secret,pvc", "-l", label::RETAINED_FROM, "-o", "name"]).unwrap();
    assert_eq!(unsettled, "persistentvolumeclaim/data-db-standby-0\n", "there are no standbys yet that could have it");

    // An orphan deletion leaves everything, whatever the policy is.
    let backup = json!({"schedule": "@daily", "onDelete": true});
    patch(&tenant, "db", json!({"replicas": 2, "backup": backup})).await.unwrap();
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
    let tenant = tenant("pg-edited-out").await;
    make(&tenant, "db", json!({"backup": {"onDelete": true}, "resources": requests()})).await;
    let before = data(&tenant).await;
    no_job_pods(&tenant).await;
    delete::<Postgresql>(&tenant, "db").await;
    held(&tenant, "db", "Dumping", &[]).await;
    let none = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    tenant.api::<Postgresql>().patch("db", &PatchParams::default(), &none).await.unwrap();
    gone::<Postgresql>(&tenant, "db").await;
    // It deleted only the witness.
    gone::<ConfigMap>(&tenant, "db-witness").await;
    assert_eq!(data(&tenant).await, before);

    create(&tenant, "db", json!({})).await.unwrap();
    held(&tenant, "db", "NotOurs", &["Secret db-credentials"]).await;
    remove(&tenant, "db").await;
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
    let (lab, _turn) = Lab::to_change().await;
    let operator = leading(&lab.options()).await;
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
    stop(operator).await;
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
    let operator = leading(&lab.options()).await;
    for name in ["db", "unclear"] {
        gone::<Postgresql>(&tenant, name).await;
    }
    assert_eq!(data(&tenant).await, before);
    assert!(tenant.uid::<Pod>("db-0").await.is_some());
    stop(operator).await;
}
