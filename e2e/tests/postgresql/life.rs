//! A Postgresql comes up, comes back, grows, and takes nothing over; and its password.

use super::*;

#[tokio::test]
async fn it_comes_up_comes_back_and_leaves_nothing() {
    let tenant = tenant("pg-life").await;
    let status = make(&tenant, "db", json!({})).await;
    let pod = tenant.api::<Pod>().get("db-0").await.unwrap();
    let active = status.active.unwrap();
    assert_eq!((active.kind.as_str(), active.name.as_str(), Some(active.uid)), ("Pod", "db-0", pod.uid()));
    assert_eq!((status.version.as_deref(), status.storage_size.as_deref()), (Some("17"), Some("1Gi")));
    assert_eq!(names::<NetworkPolicy>(&tenant).await, Vec::<String>::new(), "nothing is closed without a request");
    let table = tenant.kubectl(&["get", "db", "-o", "wide"]).unwrap();
    for word in ["PHASE", "REASON", "Up", "17", "1Gi", "PostgreSQL 17 serves at db.pg-life.svc:5432"] {
        assert!(table.contains(word), "{table}");
    }

    let reach = secret(&tenant, "db-app").await;
    let password = reach["password"].clone();
    assert!(password.len() == 32 && password.bytes().all(|c| c.is_ascii_alphanumeric()));
    assert_eq!(reach["uri"], format!("postgresql://app:{password}@db.pg-life.svc:5432/app"));
    let keys: Vec<_> = reach.keys().map(String::as_str).collect();
    assert_eq!(keys, ["dbname", "host", "password", "port", "uri", "user"]);

    // Deleted objects are recreated.
    tenant.replaced::<Pod>("db-0").await;
    tenant.replaced::<Service>("db").await;
    tenant.replaced::<ConfigMap>("db-scripts").await;
    tenant.replaced::<Secret>("db-replication").await;
    tenant.replaced::<StatefulSet>("db").await;
    settled(&tenant, "db").await;

    // And with the password that the database has.
    tenant.replaced::<Secret>("db-app").await;
    told(&tenant, "db-app", "password", &password).await;
    let edited = json!({"stringData": {"password": "another", "extra": "mine"}});
    tenant.api::<Secret>().patch("db-app", &PatchParams::default(), &Patch::Merge(&edited)).await.unwrap();
    told(&tenant, "db-app", "password", &password).await;
    assert_eq!(secret(&tenant, "db-app").await["extra"], "mine");
    tenant.replaced::<Secret>("db-credentials").await;
    assert_eq!(secret(&tenant, "db-credentials").await["password"], password);
    looked_at_again(&tenant, "db", 5433).await;

    // From here on only the API server talks to it.
    let before = tenant.requests().await;
    tenant.kubectl(&["annotate", "db", "db", "note=hello"]).unwrap();
    let other = tenant.lab.tenant("pg-life-other").await;
    make(&other, "db", json!({})).await;
    let after = tenant.requests().await;
    assert_eq!(before.len(), after.len(), "{:?}", &after[before.len()..]);

    remove(&tenant, "db").await;
    for service in ["db", "db-headless"] {
        gone::<Service>(&tenant, service).await;
    }
    gone::<ConfigMap>(&tenant, "db-scripts").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
    assert_eq!(names::<Secret>(&tenant).await, Vec::<String>::new());
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    // A Job's pod is the garbage collector's.
    until("no pod is left", async || names::<Pod>(&tenant).await.is_empty()).await;
}

#[tokio::test]
async fn a_lost_password_is_said_and_handed_over_not_made_up() {
    let tenant = tenant("pg-lost").await;
    make(&tenant, "db", json!({})).await;
    // The operator sees both deletions at once, since it would recreate the one from the other.
    let held_by = json!({"metadata": {"finalizers": ["example.com/held"]}});
    let api = tenant.api::<Secret>();
    api.patch("db-app", &PatchParams::default(), &Patch::Merge(&held_by)).await.unwrap();
    delete::<Secret>(&tenant, "db-app").await;
    delete::<Secret>(&tenant, "db-credentials").await;
    let words = ["Secrets db-credentials and db-app are gone", "kubectl create secret generic db-credentials", "psql"];
    held(&tenant, "db", "SecretLost", &words).await;
    let none = json!({"metadata": {"finalizers": null}});
    api.patch("db-app", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    gone::<Secret>(&tenant, "db-app").await;
    // The rest is still reconciled.
    tenant.replaced::<Service>("db").await;
    assert!(api.get_opt("db-credentials").await.unwrap().is_none());

    // As the message says.
    let uid = tenant.uid::<Postgresql>("db").await.unwrap();
    tenant.kubectl(&["create", "secret", "generic", "db-credentials", "--from-literal=password=n&w"]).unwrap();
    tenant.kubectl(&["label", "secret", "db-credentials", &format!("{}={uid}", label::POSTGRESQL_UID)]).unwrap();
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["uri"], "postgresql://app:n%26w@db.pg-lost.svc:5432/app");
}

#[tokio::test]
async fn a_given_password_is_awaited_checked_and_never_told() {
    let tenant = tenant("pg-given").await;
    let canary = "canary:5e2b/81";
    create(&tenant, "db", json!({"passwordSecret": {"name": "mine"}})).await.unwrap();
    held(&tenant, "db", "PasswordSecretMissing", &["Secret mine", "key password"]).await;
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    tenant.kubectl(&["create", "secret", "generic", "mine", "--from-literal=other=x"]).unwrap();
    held(&tenant, "db", "PasswordSecretKeyMissing", &[]).await;
    let set = async |password: &str| {
        let patch = Patch::Merge(json!({"stringData": {"password": password}}));
        tenant.api::<Secret>().patch("mine", &PatchParams::default(), &patch).await.unwrap();
    };
    set(&format!("{canary}\n")).await;
    held(&tenant, "db", "PasswordInvalid", &["line break"]).await;
    set(canary).await;
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["uri"], "postgresql://app:canary%3A5e2b%2F81@db.pg-given.svc:5432/app");

    // A changed password is not the database's.
    set("another").await;
    held(&tenant, "db", "PasswordChanged", &["spec.passwordSecret", "psql"]).await;
    assert_eq!(secret(&tenant, "db-app").await["password"], canary);
    set(canary).await;
    up(&tenant, "db").await;
    // Unchanged, it is known to be the right one.
    delete::<Secret>(&tenant, "db-app").await;
    delete::<Secret>(&tenant, "db-credentials").await;
    told(&tenant, "db-app", "password", canary).await;

    let inline = "inline-canary-77";
    make(&tenant, "inline", json!({"password": inline})).await;
    told(&tenant, "inline-app", "password", inline).await;
    // A second time if the operator creates the Secret again before its watch has shown the first one.
    let warned = async || tenant.events("inline").await.iter().filter(|(reason, _)| reason == "InlinePassword").count();
    let before = warned().await;
    assert!(before > 0);
    looked_at_again(&tenant, "inline", 5433).await;
    assert_eq!(warned().await, before, "a later pass does not warn again");
    let refused = patch(&tenant, "inline", json!({"password": "x"})).await.unwrap_err().to_string();
    assert!(refused.contains("ALTER ROLE"), "{refused}");

    let statuses = tenant.api::<Postgresql>().list(&ListParams::default()).await.unwrap().items;
    let statuses: Vec<_> = statuses.into_iter().map(|object| object.status).collect();
    let mut places = vec![serde_json::to_string(&statuses).unwrap(), tenant.lab.operator_log()];
    places.push(format!("{:?}{:?}", tenant.events("db").await, tenant.events("inline").await));
    let kinds = "statefulsets,pods,configmaps,services,jobs";
    places.push(tenant.kubectl(&["get", kinds, "-o", "yaml"]).unwrap());
    for place in places {
        assert!(!place.contains(canary) && !place.contains(inline), "{place}");
    }
}

#[tokio::test]
async fn a_volume_grows_where_it_can() {
    let tenant = tenant("pg-grow").await;
    make(&tenant, "db", json!({})).await;
    patch(&tenant, "db", json!({"storageSize": "2Gi"})).await.unwrap();
    let growing = status(&tenant, "db", "growing", |status| has(status, "Reconciling", "True", "Growing")).await;
    assert!(has(&growing, "Ready", "True", "Ready") && growing.phase == Some(Phase::Up), "{growing:?}");
    let claims = tenant.api::<PersistentVolumeClaim>();
    let capacity = json!({"status": {"capacity": {"storage": "2Gi"}}});
    claims.patch_status("data-db-0", &PatchParams::default(), &Patch::Merge(&capacity)).await.unwrap();
    let status = up(&tenant, "db").await;
    assert_eq!(status.storage_size.as_deref(), Some("2Gi"));
    // A volume that a user enlarged beyond that stays so, and the status says so.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}});
    claims.patch("data-db-0", &PatchParams::default(), &Patch::Merge(&larger)).await.unwrap();
    let told = |status: &PostgresqlStatus| {
        let ready = conditions::find(&status.conditions, "Ready");
        has(status, "Stalled", "False", "NotStalled")
            && has(status, "Ready", "True", "Ready")
            && ready.is_some_and(|ready| ready.message.contains("data-db-0 has 3Gi and keeps its size"))
    };
    self::status(&tenant, "db", "told of it", told).await;
    patch(&tenant, "db", json!({"storageSize": "3Gi"})).await.unwrap();

    let rigid: StorageClass =
        serde_json::from_value(json!({"metadata": {"name": "rigid"}, "provisioner": "example.com/none"})).unwrap();
    Api::<StorageClass>::all(tenant.client.clone()).create(&PostParams::default(), &rigid).await.unwrap();
    create(&tenant, "rigid", json!({"storageClassName": "rigid"})).await.unwrap();
    let volume: PersistentVolume = serde_json::from_value(json!({
        "metadata": {"name": "pg-grow-rigid"},
        "spec": {
            "storageClassName": "rigid",
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": tenant.namespace, "name": "data-rigid-0"},
        },
    }))
    .unwrap();
    Api::<PersistentVolume>::all(tenant.client.clone()).create(&PostParams::default(), &volume).await.unwrap();
    up(&tenant, "rigid").await;
    patch(&tenant, "rigid", json!({"storageSize": "2Gi"})).await.unwrap();
    held(&tenant, "rigid", "ExpansionNotAllowed", &["data-rigid-0", "allowVolumeExpansion"]).await;
}

#[tokio::test]
async fn nothing_of_others_is_taken_over() {
    let tenant = tenant("pg-others").await;
    tenant.kubectl(&["create", "service", "clusterip", "taken", "--tcp=80"]).unwrap();
    tenant.kubectl(&["create", "secret", "generic", "named-app", "--from-literal=password=theirs"]).unwrap();
    claim(&tenant, "data-old-0", json!({}), json!({})).await;
    let versions = async || {
        let service = tenant.api::<Service>().get("taken").await.unwrap();
        let secret = tenant.api::<Secret>().get("named-app").await.unwrap();
        [service.metadata.resource_version, secret.metadata.resource_version]
    };
    let before = versions().await;
    for (name, words) in [
        ("taken", "Service taken"),
        ("named", "Secret named-app"),
        ("old", "PersistentVolumeClaim data-old-0 already exists"),
    ] {
        create(&tenant, name, json!({})).await.unwrap();
        held(&tenant, name, "NotOurs", &[words]).await;
        assert_eq!(versions().await, before, "{name}");
    }
    assert!(tenant.api::<StatefulSet>().get_opt("old").await.unwrap().is_none());
    // A Postgresql that never owned them deletes none of them.
    for name in ["taken", "named", "old"] {
        remove(&tenant, name).await;
    }
    assert_eq!(versions().await, before);
    assert!(tenant.api::<PersistentVolumeClaim>().get_opt("data-old-0").await.unwrap().is_some());
}

#[tokio::test]
async fn standbys_come_and_go_without_the_primary_and_only_volumes_on_record_go() {
    let tenant = tenant("pg-standbys").await;
    let status = make(&tenant, "db", json!({"replicas": 3})).await;
    assert_eq!(tenant.api::<StatefulSet>().get("db-standby").await.unwrap().spec.unwrap().replicas, Some(2));
    let read_only = tenant.api::<Service>().get("db-ro").await.unwrap().spec.unwrap();
    assert_eq!(read_only.selector.unwrap()[label::ROLE], "standby");
    // A user scales the primary: a second one would be another database.
    tenant.kubectl(&["scale", "statefulset", "db", "--replicas=2"]).unwrap();
    let one = |set: Option<&StatefulSet>| (set?.spec.as_ref()?.replicas == Some(1)).then_some(());
    tenant.wait_for("db", "one again", one).await;

    patch(&tenant, "db", json!({"replicas": 1})).await.unwrap();
    gone::<StatefulSet>(&tenant, "db-standby").await;
    gone::<Service>(&tenant, "db-ro").await;
    let after = up(&tenant, "db").await;
    assert_eq!(after.active, status.active, "the primary was restarted");
    // One of them may have been promoted, and be all that is left.
    let mut copies = names::<PersistentVolumeClaim>(&tenant).await;
    // The second primary has one if the StatefulSet's controller was faster than the operator.
    copies.retain(|name| name != "data-db-1");
    assert_eq!(copies, ["data-db-0", "data-db-standby-0", "data-db-standby-1"]);
    // They are deleted with the Postgresql, which has them on record. A volume that has lost its label is kept with what opens it.
    let before = tenant.uid::<PersistentVolumeClaim>("data-db-0").await;
    let off = Patch::Merge(json!({"metadata": {"labels": {label::POSTGRESQL: null, label::POSTGRESQL_UID: null}}}));
    tenant.api::<PersistentVolumeClaim>().patch("data-db-0", &PatchParams::default(), &off).await.unwrap();
    remove(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["data-db-0"]);
    assert_eq!(tenant.uid::<PersistentVolumeClaim>("data-db-0").await, before);
    assert_eq!(names::<Secret>(&tenant).await, SECRETS);
    tenant.event("db", "Retained", "data-db-0 stays").await;
}

#[tokio::test]
async fn its_definition_is_required_at_the_start_and_may_go_and_come_back_later() {
    const DEFINITION: &str = "postgresqls.apps.bnerd-operator.local";
    let (lab, _turn) = Lab::to_change().await;
    let tenant = lab.tenant("pg-late").await;
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crds").join("postgresqls.yaml");
    let remove_kind =
        || tenant.kubectl(&["delete", "crd", DEFINITION, "--timeout=100s", "--ignore-not-found"]).unwrap();
    let install_kind = || {
        tenant.kubectl(&["create", "-f", crds.to_str().unwrap()]).unwrap();
        // kubectl fails at once on a definition that has no conditions yet.
        let served = ["wait", "--for=condition=Established", &format!("crd/{DEFINITION}")];
        e2e::wait::blocking_until("the kind is served", || tenant.kubectl(&served).is_ok());
    };
    remove_kind();
    let refused = move || {
        let mut operator = Operator::start(&lab.options()).unwrap();
        (operator.wait().unwrap(), operator.log())
    };
    let (succeeded, log) = tokio::task::spawn_blocking(refused).await.unwrap();
    assert!(!succeeded && log.contains("this cluster does not have kind Postgresql: apply "), "{log}");
    install_kind();
    let operator = leading(&lab.options()).await;
    remove_kind();
    for delete_first in [true, false] {
        install_kind();
        make(&tenant, "db", json!({})).await;
        if delete_first {
            remove(&tenant, "db").await;
        } else {
            // Removing the kind removes its objects, and with them what they own, as soon as a user says so.
            let before = tenant.uid::<PersistentVolumeClaim>("data-db-0").await;
            tenant.kubectl(&["delete", "crd", DEFINITION, "--wait=false"]).unwrap();
            let held = |db: Option<&Postgresql>| {
                let ready = conditions::find(&db?.status.as_ref()?.conditions, "Ready")?;
                (ready.reason == "DeletionHeld").then(|| ready.message.clone())
            };
            let message = tenant.wait_for("db", "held", held).await;
            assert!(message.contains(&format!("definition {DEFINITION} is being deleted")), "{message}");
            assert_eq!(tenant.uid::<PersistentVolumeClaim>("data-db-0").await, before);
            let approve = message.split('`').nth(1).and_then(|command| command.strip_prefix("kubectl ")).unwrap();
            tenant.kubectl(&approve.split(' ').collect::<Vec<_>>()).unwrap();
        }
        remove_kind();
        assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
        gone::<Secret>(&tenant, "db-app").await;
        gone::<Service>(&tenant, "db").await;
    }
    stop(operator).await;
    // For the other tests of this plane.
    install_kind();
}
