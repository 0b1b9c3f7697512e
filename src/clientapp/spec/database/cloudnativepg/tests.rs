use k8s_openapi::api::core::v1::Pod;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{
    super::{BackupTargets, DatabaseObject, DatabaseState, Provider as _},
    CloudNativePg, PartUse, read,
};
use crate::{
    clientapp::{
        fixtures::want,
        observed::types::ScheduledBackups,
        spec::{database::DesiredDatabase, values::From},
    },
    crd::{BackupState, cloudnativepg::CloudNativePgCluster},
    platform::key::Key,
};

fn spec(more: Value) -> Value {
    let mut postgres = json!({"provider": "cloudnativepg", "version": "17"});
    postgres.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"postgres": postgres})
}

fn document(more: Value) -> Value {
    let desired = want(&spec(more));
    let object = desired.database_object().unwrap();
    object.document(&object.targets(None).unwrap()).object
}

/// Returns what the operator reads from a stored object.
fn stored_as(object: &Value) -> DatabaseObject {
    read(&serde_json::from_value::<CloudNativePgCluster>(object.clone()).unwrap(), DatabaseObject::default())
}

#[test]
fn the_document_and_how_the_app_reaches_the_database() {
    let all = json!({
        "instances": 2, "storageSize": "5Gi", "storageClassName": "fast",
        "resources": {"requests": {"memory": "512Mi"}, "limits": {"memory": "1Gi"}},
        "parameters": {"max_connections": "200", "shared_preload_libraries": "pg_stat_statements, auto_explain"},
    });
    let address = want(&spec(json!({}))).database.unwrap().address;
    insta::assert_snapshot!(
        [
            serde_yaml::to_string(&document(json!({}))).unwrap(),
            serde_yaml::to_string(&document(all.clone())["spec"]).unwrap(),
            format!("{address:?}\n"),
        ]
        .join("---\n")
    );
    let seen = stored_as(&document(all));
    assert_eq!((seen.postgres_version, seen.storage_bytes), (Some(17), Some(5.0 * f64::from(1 << 30))));
    assert_eq!((seen.storage_class.as_deref(), seen.source), (Some("fast"), None));
}

/// A cluster with this status, in the words of CloudNativePG 1.30 (`api/v1/cluster_types.go`).
fn cluster(metadata: Value, status: Value) -> Value {
    let mut meta = json!({"name": "acme-pg", "namespace": "tenants", "creationTimestamp": "2026-01-01T00:01:00Z"});
    meta.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
    let spec = json!({"instances": 1, "imageName": "ghcr.io/cloudnative-pg/postgresql:17"});
    json!({"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": meta, "spec": spec, "status": status})
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Value {
    let time = "2026-01-01T00:02:00Z";
    json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": time})
}

#[test]
fn when_a_cluster_can_be_used() {
    let ready = || condition("Ready", "True", "ClusterIsReady", "Cluster is Ready");
    let unready = || condition("Ready", "False", "ClusterIsNotReady", "Cluster Is Not Ready");
    // Untrue: it means that a Job was made.
    let initialized = || condition("Initialized", "True", "BootstrapCompleted", "Cluster has been bootstrapped");
    let archiving =
        || condition("ContinuousArchiving", "True", "ContinuousArchivingSuccess", "Continuous archiving is working");
    let status = |phase: &str, reason: &str, condition: Value, instances: i64, primary: &str| {
        json!({
            "phase": phase, "phaseReason": reason, "conditions": [initialized(), archiving(), condition],
            "readyInstances": instances, "currentPrimary": primary,
        })
    };
    let healthy = "Cluster in healthy state";
    let hibernated = json!({"annotations": {"cnpg.io/hibernation": "on"}});
    let awake = json!({"annotations": {"cnpg.io/hibernation": "off"}});
    let mut sleeping = status(healthy, "", ready(), 0, "acme-pg-1");
    sleeping.as_object_mut().unwrap().remove("readyInstances");
    let mut waking = sleeping.clone();
    waking["conditions"].as_array_mut().unwrap().push(condition("cnpg.io/hibernation", "True", "Hibernated", ""));
    let waiting = |words: &str| DatabaseState::Waiting(words.to_owned());
    let stalled = |words: &str| DatabaseState::Stalled(words.to_owned());
    let creating = "Creating primary instance acme-pg-1";
    let plugin = "Unknown plugin: 'barman-cloud.cloudnative-pg.io'. This may be caused by the plugin not being loaded";
    let failed = "Instance creation failed for the following jobs: badsql-1-initdb. Check the job logs to investigate the cause of the failure.";
    let wakes = " is hibernated; to wake it: `kubectl annotate clusters.postgresql.cnpg.io acme-pg -n tenants cnpg.io/hibernation-`";
    let check = |what: &str, cluster: Value, expected: DatabaseState| {
        assert_eq!(stored_as(&cluster).state, expected, "{what}");
        // As `kubectl clientapp status` shows it.
        let object: DynamicObject = serde_json::from_value(cluster).unwrap();
        assert_eq!(CloudNativePg.summary(&object).is_ready, expected == DatabaseState::Ready, "{what}");
    };
    for (phase, reason, instances, primary) in [
        (
            "Waiting for the instances to become active",
            "Some instances are not yet active. Please wait.",
            0,
            "acme-pg-1",
        ),
        // While the primary serves.
        ("Creating a new replica", "Creating replica acme-pg-2-join", 1, "acme-pg-1"),
        ("Failing over", "Failing over from acme-pg-1 to acme-pg-2", 1, "acme-pg-1"),
        // It cannot be pulled.
        (
            "Primary instance is being restarted without a switchover",
            "the instance is using a different image: a:17 -> b:17",
            0,
            "acme-pg-1",
        ),
        ("Cluster cannot proceed to reconciliation due to an unknown plugin being required", plugin, 0, ""),
    ] {
        let expected = waiting(&format!(" is not ready: {phase}: {}", reason.trim_end_matches('.')));
        check(phase, cluster(json!({}), status(phase, reason, unready(), instances, primary)), expected);
    }
    for (what, metadata, status, expected) in [
        ("no status", json!({}), Value::Null, DatabaseState::NotReported),
        ("no phase", json!({}), json!({}), DatabaseState::NotReported),
        (
            "created",
            json!({}),
            status("Setting up primary", creating, unready(), 0, ""),
            waiting(" is not ready: Setting up primary: Creating primary instance acme-pg-1"),
        ),
        ("ready", json!({}), status(healthy, "", ready(), 1, "acme-pg-1"), DatabaseState::Ready),
        ("not hibernated", awake, status(healthy, "", ready(), 1, "acme-pg-1"), DatabaseState::Ready),
        ("hibernated", hibernated.clone(), sleeping.clone(), stalled(wakes)),
        ("about to", hibernated, status(healthy, "", ready(), 1, "acme-pg-1"), stalled(wakes)),
        ("it wakes", json!({}), waking, waiting(" wakes up from hibernation: Cluster in healthy state")),
        ("no pods", json!({}), sleeping, waiting(" has no ready instance: Cluster in healthy state")),
        (
            "no primary",
            json!({}),
            status(healthy, "", ready(), 1, ""),
            waiting(" has no primary: Cluster in healthy state"),
        ),
        (
            "its Job has failed for good",
            json!({}),
            status("Cluster is unrecoverable and needs manual intervention", failed, unready(), 0, ""),
            stalled(
                ": Cluster is unrecoverable and needs manual intervention: Instance creation failed for the following jobs: badsql-1-initdb. Check the job logs to investigate the cause of the failure",
            ),
        ),
    ] {
        check(what, cluster(metadata, status), expected);
    }
}

#[test]
fn a_summary() {
    let ready = condition("Ready", "True", "ClusterIsReady", "Cluster is Ready");
    let status = json!({
        "phase": "Cluster in healthy state", "conditions": [ready], "readyInstances": 1, "currentPrimary": "acme-pg-1",
        // The data are upgraded after the image was changed.
        "pgDataImageInfo": {"majorVersion": 16},
    });
    let object: DynamicObject = serde_json::from_value(cluster(json!({}), status)).unwrap();
    let summary = CloudNativePg.summary(&object);
    assert_eq!((summary.state.as_deref(), summary.version.as_deref()), (Some("Cluster in healthy state"), Some("16")));
    let parts = [("instances".to_owned(), Some((1, 1))), ("primary acme-pg-1".to_owned(), None)];
    assert_eq!(summary.parts, parts);
}

#[test]
fn a_cluster_that_was_handed_over_keeps_how_it_was_created() {
    let recovery = json!({"recovery": {"source": "backups", "database": "clientapp", "owner": "clientapp"}});
    let mut cluster = cluster(json!({}), json!({"phase": "Setting up primary"}));
    cluster["spec"]["bootstrap"] = recovery.clone();
    let seen = stored_as(&cluster);
    assert_eq!(seen.progressed, None, "a recovery may need long");
    assert_eq!(seen.source, Some(json!({"bootstrap": recovery})));
    let mut document = document(json!({}));
    CloudNativePg.set_data_source(&mut document, &seen.source.unwrap());
    assert_eq!(document["spec"]["bootstrap"], recovery);
    cluster["status"]["currentPrimary"] = json!("acme-pg-1");
    assert!(stored_as(&cluster).progressed.is_some());
    cluster["status"]["phase"] = json!("Creating a new replica");
    assert_eq!(stored_as(&cluster).progressed, None, "so may a copy");
}

fn with_backups(more: Value) -> Value {
    let mut store = json!({
        "endpoint": "https://s3.example.com/", "bucket": "pg", "region": "eu", "prefix": "production",
        "credentialsSecret": {"name": "s3"}, "caSecret": {"name": "ca"}, "keep": {"daily": 30},
    });
    store.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"backup": {"schedule": "0 3 * * *", "store": store}})
}

/// Returns a Cluster with this document and uid, as it is read.
fn stored_with(document: &Value, uid: &str) -> DatabaseObject {
    DatabaseObject { uid: uid.to_owned(), ..stored_as(document) }
}

#[test]
fn backups_in_a_bucket_are_added_to_a_cluster_that_exists() {
    let desired = want(&spec(with_backups(json!({}))));
    let object = desired.database_object().unwrap();
    let targets = object.targets(None).unwrap();
    let created = object.document(&targets);
    assert_eq!((created.object["spec"].get("plugins"), object.parts(&targets, "")), (None, Vec::new()));
    let uses = ["ObjectStore", "ScheduledBackup", "Pooler"].map(|kind| object.part_use(kind));
    assert_eq!(uses, [PartUse::Made, PartUse::Made, PartUse::None]);
    assert_eq!(object.backup_schedules(), ["0 3 * * *"]);

    let uid = "5f0c2c0e-8a53-4d27-9d19-0a6c9b1f3e11";
    let existing = stored_with(&created.object, uid);
    let targets = object.targets(Some(&existing)).unwrap();
    let applied = object.document(&targets);
    assert_ne!(applied.digest, created.digest);
    let parts = object.parts(&targets, uid);
    let [store, mut schedule] = [&parts[0].document, &parts[1].document].map(Value::clone);
    assert_eq!(schedule.as_object_mut().unwrap().remove("metadata").as_ref(), Some(&store["metadata"]));
    let added = json!({"metadata": applied.object["metadata"], "plugins": applied.object["spec"]["plugins"]});
    insta::assert_snapshot!(
        [added, store, schedule].map(|document| serde_yaml::to_string(&document).unwrap()).join("---\n")
    );

    // They stay where they are, whatever becomes of the uid: one that was adopted keeps its archive.
    let found = stored_with(&applied.object, uid);
    assert_eq!(found.targets, targets);
    assert_eq!(object.targets(Some(&found)).unwrap(), targets);
    // The next Cluster of the name has another.
    let next = object.targets(Some(&stored_with(&created.object, "77777777-8a53"))).unwrap();
    assert_eq!(next.repository.unwrap().path, "/production/tenants/acme-pg-77777777");
    let moved = |more: Value| {
        let desired = want(&spec(more));
        desired.database_object().unwrap().targets(Some(&found)).err()
    };
    assert_eq!(moved(with_backups(json!({"region": "us"}))), None);
    for (more, words) in [
        (json!({}), "names none"),
        (with_backups(json!({"bucket": "other"})), "names s3://other/production/tenants/acme-pg-5f0c2c0e"),
        (with_backups(json!({"prefix": "test"})), "names s3://pg/test/tenants/acme-pg-5f0c2c0e"),
    ] {
        let problem = moved(more.clone()).unwrap();
        let there = " keeps its backups in s3://pg/production/tenants/acme-pg-5f0c2c0e at https://s3.example.com, ";
        assert!(problem.starts_with(there) && problem.contains(words), "{more}: {problem}");
    }
    // A record that names another's directory moves nothing there.
    let mut forged = applied.object.clone();
    forged["metadata"]["annotations"]["apps.bnerd-operator.local/backups"] =
        json!("https://s3.example.com s3://pg /production/tenants/victim-pg-1234abcd");
    let seen = stored_with(&forged, uid);
    assert_eq!(seen.targets, BackupTargets::default());
    assert_eq!(object.targets(Some(&seen)).unwrap(), targets);
    // What another client has configured is its own.
    let mut theirs = created.object.clone();
    theirs["spec"]["plugins"] = json!([{"name": "barman-cloud.cloudnative-pg.io", "isWALArchiver": true, "parameters": {"barmanObjectName": "store"}}]);
    assert_eq!(stored_as(&theirs).targets, BackupTargets::default());
}

#[test]
fn schedules_and_windows_in_cloudnativepgs_words() {
    let of = |schedule: &str, keep: Value| {
        let mut more = with_backups(json!({"keep": keep}));
        more["backup"]["schedule"] = json!(schedule);
        let desired = want(&spec(more));
        let object = desired.database_object().unwrap();
        let existing = stored_with(&object.document(&object.targets(None).unwrap()).object, "pg-uid");
        let parts = object.parts(&object.targets(Some(&existing)).unwrap(), "pg-uid");
        let [store, schedule] = &parts[..] else { panic!("{parts:?}") };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        (text(&schedule.document["spec"]["schedule"]), text(&store.document["spec"]["retentionPolicy"]))
    };
    for (schedule, keep, expected) in [
        ("0 3 * * *", json!({"daily": 30}), ("0 0 3 * * *", Some("30d"))),
        ("@daily", json!({"weekly": 4}), ("@daily", Some("4w"))),
        ("*/5 * * * 1-5", json!({"monthly": 12}), ("0 */5 * * * 1-5", Some("12m"))),
        ("@hourly", Value::Null, ("@hourly", None)),
    ] {
        let (schedule, window) = of(schedule, keep);
        assert_eq!((schedule.as_deref(), window.as_deref()), (Some(expected.0), expected.1));
    }
}

#[test]
fn a_cluster_that_is_created_from_backups() {
    let of = |source: Value, more: Value| {
        let mut whole = json!({"cloudnativepg": {"dataSource": source}});
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let desired = want(&spec(whole));
        let object = desired.database_object().unwrap();
        let mut document = object.document(&object.targets(None).unwrap()).object;
        CloudNativePg.set_data_source(&mut document, &object.source().unwrap());
        document
    };
    let plain = json!({"source": "source", "database": "clientapp", "owner": "clientapp"});
    for (source, target) in [
        (json!({}), Value::Null),
        (json!({"backup": "20260131T030000"}), json!({"backupID": "20260131T030000", "targetImmediate": true})),
        (json!({"time": "2026-01-31T12:00:00Z"}), json!({"targetTime": "2026-01-31T12:00:00Z"})),
    ] {
        let mut source = source;
        source["serverName"] = json!("first-pg-5f0c2c0e");
        let document = of(source, with_backups(json!({})));
        let mut recovery = plain.clone();
        if !target.is_null() {
            recovery["recoveryTarget"] = target;
        }
        assert_eq!(document["spec"]["bootstrap"], json!({"recovery": recovery}));
        let parameters = json!({"barmanObjectName": "acme-pg", "serverName": "first-pg-5f0c2c0e"});
        let plugin = json!({"name": "barman-cloud.cloudnative-pg.io", "parameters": parameters});
        assert_eq!(document["spec"]["externalClusters"], json!([{"name": "source", "plugin": plugin}]));
        // It is applied again with what it was created from, whatever a tenant makes of its annotations.
        let mut bare = document.clone();
        bare["metadata"]["annotations"] = json!({});
        let seen = stored_as(&bare);
        let mut again = super::super::request::document(
            &(super::FACTS.kind.resource)(),
            &Key::new("tenants", "acme"),
            "acme-pg",
            json!({}),
        );
        CloudNativePg.set_data_source(&mut again, &seen.source.unwrap());
        for field in ["bootstrap", "externalClusters"] {
            assert_eq!(again["spec"][field], document["spec"][field], "{field}");
        }
    }
    // Those of another client stay its own.
    let mut theirs = of(json!({"serverName": "gone-pg"}), json!({}));
    theirs["spec"]["externalClusters"][0]["name"] = json!("theirs");
    theirs["spec"]["bootstrap"]["recovery"]["source"] = json!("theirs");
    let seen = stored_as(&theirs).source.unwrap();
    assert_eq!(seen, json!({"bootstrap": theirs["spec"]["bootstrap"]}));
    let elsewhere = of(json!({"serverName": "gone-pg", "objectStore": "store"}), json!({}));
    let parameters = &elsewhere["spec"]["externalClusters"][0]["plugin"]["parameters"];
    assert_eq!(*parameters, json!({"barmanObjectName": "store", "serverName": "gone-pg"}));
}

#[test]
fn what_a_cluster_says_of_its_archive() {
    let reason = "rpc error: code = Unknown desc = unexpected failure invoking barman-cloud-wal-archive: exit status 2";
    let plugin = json!([{"name": "barman-cloud.cloudnative-pg.io", "isWALArchiver": true, "parameters": {"barmanObjectName": "acme-pg"}}]);
    let works =
        || condition("ContinuousArchiving", "True", "ContinuousArchivingSuccess", "Continuous archiving is working");
    let fails = || condition("ContinuousArchiving", "False", "ContinuousArchivingFailing", reason);
    for (what, plugins, condition, expected) in [
        ("it archives", plugin.clone(), works(), None),
        ("it does not, and calls itself ready", plugin, fails(), Some(reason)),
        ("nothing archives, which it calls working", json!([]), works(), None),
        ("in-tree, which is not this operator's", json!([]), fails(), None),
    ] {
        let mut cluster = cluster(json!({}), json!({"phase": "Cluster in healthy state", "conditions": [condition]}));
        cluster["spec"]["plugins"] = plugins;
        let verdict = stored_as(&cluster).backed_up;
        let found = verdict.as_ref().map(|verdict| (&*verdict.reason, &*verdict.message));
        assert_eq!(found.is_some(), expected.is_some(), "{what}: {found:?}");
        if let (Some((reason, message)), Some(words)) = (found, expected) {
            assert!(reason == "DatabaseBackupFailed" && message.contains(words), "{what}: {message}");
        }
    }
}

#[test]
fn backups_by_their_phase() {
    let error = "rpc error: code = Unknown desc = exit status 2";
    for (status, state, completed) in [
        (json!({}), BackupState::Running, false),
        (json!({"phase": "pending"}), BackupState::Running, false),
        (json!({"phase": "started"}), BackupState::Running, false),
        (json!({"phase": "completed", "stoppedAt": "2026-01-01T00:01:00Z"}), BackupState::Succeeded, true),
        // It has an end as well.
        (json!({"phase": "failed", "error": error, "stoppedAt": "2026-01-01T00:01:00Z"}), BackupState::Failed, false),
    ] {
        let object = json!({
            "metadata": {"name": "b", "namespace": "tenants"}, "spec": {"cluster": {"name": "acme-pg"}}, "status": status,
        });
        let entry = super::backup(serde_json::from_value(object).unwrap());
        assert_eq!(entry.group, Some(Key::new("tenants", "acme-pg")));
        let seen = entry.value.unwrap();
        let why = (state == BackupState::Failed).then(|| error.to_owned());
        assert_eq!((seen.progress, seen.completed.is_some()), ((state, why), completed), "{status}");
    }
}

#[test]
fn backups_of_a_former_cluster_do_not_count() {
    let database = DatabaseObject {
        uid: "pg-uid".to_owned(),
        created: Some("2026-01-10T00:00:00Z".parse().unwrap()),
        ..DatabaseObject::default()
    };
    let owner =
        |uid: &str| json!([{"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "acme-pg", "uid": uid}]);
    let recorded = |uid: &str| json!({"clusterUID": uid});
    for (what, owners, metadata, created, expected) in [
        ("by schedule", owner("pg-uid"), json!({}), "2026-01-11T00:00:00Z", true),
        ("made by hand, and begun", json!([]), recorded("pg-uid"), "2026-01-11T00:00:00Z", true),
        ("made by hand", json!([]), json!({}), "2026-01-11T00:00:00Z", true),
        ("of a former Cluster", owner("former"), json!({}), "2026-01-11T00:00:00Z", false),
        ("of a former one, recorded", json!([]), recorded("former"), "2026-01-11T00:00:00Z", false),
        (
            "the record is the plugin's, the owner anybody's",
            owner("pg-uid"),
            recorded("former"),
            "2026-01-11T00:00:00Z",
            false,
        ),
        ("older than the Cluster", json!([]), json!({}), "2026-01-09T00:00:00Z", false),
    ] {
        let read = |phase: &str| {
            let object = json!({
                "metadata": {"name": "b", "namespace": "tenants", "creationTimestamp": created, "ownerReferences": owners},
                "spec": {"cluster": {"name": "acme-pg"}},
                "status": {"phase": phase, "stoppedAt": created, "pluginMetadata": metadata},
            });
            let entry = super::backup(serde_json::from_value(object).unwrap());
            [(entry.key, entry.value.unwrap())]
        };
        let of = |phase: &str| ScheduledBackups::of(Some(&database), None, Vec::new(), &read(phase));
        assert_eq!(of("completed").last_success.is_some(), expected, "{what}");
        assert_eq!(of("failed").last_failure.is_some(), expected, "{what}");
    }
    assert_eq!(ScheduledBackups::of(None, None, Vec::new(), &[]), ScheduledBackups::default());
}

#[test]
fn why_its_pods_do_not_run() {
    let database = Key::new("tenants", "acme-pg");
    let pod = |name: &str, owner: Value, status: Value| -> Pod {
        let owners = if owner.is_null() { json!([]) } else { json!([owner]) };
        let labels = json!({"cnpg.io/cluster": "acme-pg"});
        let meta = json!({"name": name, "namespace": "tenants", "labels": labels, "ownerReferences": owners});
        serde_json::from_value(json!({"metadata": meta, "status": status})).unwrap()
    };
    let owner = |kind: &str, name: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": name, "uid": uid, "controller": true});
    let its = || owner("Cluster", "acme-pg", "pg-uid");
    let initdb = || owner("Job", "acme-pg-1-initdb", "job-uid");
    let pulls = || {
        json!({"phase": "Pending", "containerStatuses": [{
            "name": "postgres", "image": "nowhere:17", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff"}},
        }]})
    };
    let failed = || {
        json!({"phase": "Failed", "containerStatuses": [{
            "name": "initdb", "image": "postgresql:17", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 1}},
        }]})
    };
    let cannot_pull = |pod: &str| {
        format!(
            "container postgres of pod {pod} cannot pull image nowhere:17: see `kubectl describe pod -n tenants {pod}`"
        )
    };
    let also = "; if you correct the spec, also `kubectl delete job acme-pg-1-initdb -n tenants`";
    for (what, pods, expected) in [
        ("none", vec![], None),
        ("an instance", vec![pod("acme-pg-1", its(), pulls())], Some(cannot_pull("acme-pg-1"))),
        (
            "a Job, which is never replaced",
            vec![pod("acme-pg-1-initdb-x", initdb(), pulls())],
            Some(cannot_pull("acme-pg-1-initdb-x") + also),
        ),
        (
            "a Job that has failed",
            vec![pod("acme-pg-1-initdb-x", initdb(), failed()), pod("acme-pg-1-initdb-y", initdb(), failed())],
            Some(format!(
                "container initdb of pod acme-pg-1-initdb-x ends with exit code 1: see `kubectl logs -n tenants acme-pg-1-initdb-x -c initdb`{also}"
            )),
        ),
        (
            "a Job that is done",
            vec![pod("acme-pg-1-initdb-x", initdb(), json!({"phase": "Succeeded"})), pod("acme-pg-1", its(), pulls())],
            Some(cannot_pull("acme-pg-1")),
        ),
        ("of a former cluster", vec![pod("acme-pg-1", owner("Cluster", "acme-pg", "former"), pulls())], None),
        ("of another Job", vec![pod("x", owner("Job", "nightly", "job-uid"), pulls())], None),
        ("labelled by a user", vec![pod("x", Value::Null, pulls())], None),
    ] {
        assert_eq!(CloudNativePg.pods_problem(&database, "pg-uid", &pods), expected, "{what}");
    }
}

/// The app reaches its primary through the Pooler, which the Cluster owns.
#[test]
fn an_app_with_a_pooler() {
    let pooler = json!({"instances": 2, "poolMode": "transaction", "parameters": {"max_client_conn": "500"}});
    let desired = want(&spec(json!({"cloudnativepg": {"pooler": pooler}})));
    let object = desired.database_object().unwrap();
    assert_eq!(object.service(), "acme-pg-pooler");
    let Some(DesiredDatabase { address, .. }) = &desired.database else { panic!("it has a database") };
    assert_eq!(address.host, From::Value("acme-pg-pooler.tenants.svc.cluster.local".to_owned()));
    let targets = BackupTargets::default();
    let [part] = &object.parts(&targets, "pg-uid")[..] else { panic!("there is one part") };
    insta::assert_snapshot!(serde_yaml::to_string(&part.document).unwrap());
    let with = |pooler: Value| {
        let desired = want(&spec(json!({"cloudnativepg": {"pooler": pooler}})));
        desired.database_object().unwrap().document(&targets).digest
    };
    assert_ne!(with(json!({})), object.document(&targets).digest, "a change of the Pooler is applied");
    assert_eq!(with(json!(null)), want(&spec(json!({}))).database_object().unwrap().document(&targets).digest);
    let part = |more: Value| {
        let desired = want(&spec(json!({"cloudnativepg": {"pooler": more}})));
        desired.database_object().unwrap().parts(&targets, "pg-uid").remove(0).document["spec"].clone()
    };
    let by_default =
        json!({"cluster": {"name": "acme-pg"}, "type": "rw", "instances": 1, "pgbouncer": {"poolMode": "session"}});
    assert_eq!(part(json!({})), by_default);
}

#[test]
fn why_a_pooler_does_not_run() {
    let database = Key::new("tenants", "acme-pg");
    let pod = |name: &str, owner: Value, labels: Value, reason: &str| -> Pod {
        let waiting = json!({"name": "c", "image": "i:1", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": reason, "message": "not found"}}});
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": labels, "ownerReferences": [owner]},
            "status": {"phase": "Pending", "containerStatuses": [waiting]},
        }))
        .unwrap()
    };
    let set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "acme-pg-pooler-5f", "uid": "r", "controller": true});
    let cluster = json!({"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "acme-pg", "uid": "pg-uid", "controller": true});
    let of_pooler = |name: &str| json!({"cnpg.io/poolerName": name, "pod-template-hash": "5f"});
    let its = pod("acme-pg-pooler-5f-1", set.clone(), of_pooler("acme-pg-pooler"), "ErrImagePull");
    let others = pod("reports-1", set, of_pooler("reports"), "ErrImagePull");
    let instance = pod("acme-pg-1", cluster, json!({}), "ErrImagePull");
    let why = |pods: &[&Pod]| {
        let pods: Vec<_> = pods.iter().copied().cloned().collect();
        CloudNativePg.pods_problem(&database, "pg-uid", &pods).unwrap_or_default()
    };
    assert!(why(&[&its, &others]).contains("of pod acme-pg-pooler-5f-1"), "{}", why(&[&its, &others]));
    assert!(why(&[&its, &instance]).contains("of pod acme-pg-1"), "what the Cluster lacks comes first");
    assert_eq!(why(&[&others]), "", "a Pooler of the user's");
}
