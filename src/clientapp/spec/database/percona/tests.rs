use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde_json::{Value, json};

use super::{
    super::{BackupLocation, BackupTargets, DatabaseObject, DatabaseState},
    delete_with_data, read, retain_data, tells_of_volume,
};
use crate::{
    clientapp::{
        fixtures::{app, config, want},
        spec::{
            desired::{Desired, desired},
            values_from::Sources,
        },
    },
    config::Config,
    crd::{annotation, percona::PerconaPGCluster},
};

/// The spec of a ClientApp with these Percona options.
fn spec(percona: Value) -> Value {
    json!({"postgres": {"percona": percona}})
}

fn s3(more: Value) -> Value {
    let mut repository = json!({
        "s3": {"bucket": "backups", "endpoint": "s3.example.com", "region": "eu-central-1"}, "secretName": "acme-s3",
    });
    repository.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    repository
}

/// The desired state of a ClientApp that is stored in a cluster.
fn stored(spec: &Value) -> Desired {
    let mut app = app(spec);
    app.metadata.uid = Some("5f0c7b1e-9d0a-4f7f-8a44-1d3f7a0f6b11".to_owned());
    desired(&app, None, (&Sources::default(), &[]), &config()).unwrap()
}

fn applied(desired: &Desired, found: Option<&BackupTargets>) -> Value {
    let object = desired.database_object().unwrap();
    let found = found.map(with_targets);
    object.document(&object.targets(found.as_ref()).unwrap()).object
}

fn with_targets(targets: &BackupTargets) -> DatabaseObject {
    DatabaseObject { targets: targets.clone(), ..DatabaseObject::default() }
}

/// Returns what the operator reads from an applied document once it is stored.
fn stored_as(document: &Value) -> DatabaseObject {
    read(&serde_json::from_value::<PerconaPGCluster>(document.clone()).unwrap(), DatabaseObject::default())
}

fn place(path: &str) -> Option<BackupLocation> {
    let endpoint = Some("s3.example.com".to_owned());
    Some(BackupLocation { store: "s3://backups".to_owned(), endpoint, path: path.to_owned() })
}

/// As 2.9.0 writes them (percona/controller/pgcluster/status.go; internal/controller/postgrescluster).
#[test]
fn missing_parts_and_last_progress_are_reported() {
    let condition = |kind: &str, status: &str, message: &str, minute: u8| {
        let time = format!("2026-01-01T00:{minute:02}:00Z");
        json!({"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": time})
    };
    let of = |spec: Value, status: Value| {
        let meta = json!({"name": "acme-pg", "creationTimestamp": "2026-01-01T00:01:00Z"});
        let DatabaseObject { state, progressed, .. } =
            stored_as(&json!({"metadata": meta, "spec": spec, "status": status}));
        (state, progressed.map(|at| at.strftime("%M").to_string()))
    };
    let waiting = |words: &str| DatabaseState::Waiting(words.to_owned());
    // No image for pgBackRest: nothing is made.
    let backup = json!({"type": "ReadyForBackup", "status": "False", "reason": "PGBackRestRepoHostReady", "message": "", "lastTransitionTime": "2026-01-01T00:01:02Z"});
    let missing =
        json!({"state": "initializing", "postgres": {"size": 0, "ready": 0}, "pgbouncer": {}, "conditions": [backup]});
    assert_eq!(of(json!({}), missing), (waiting(" is initializing"), Some("01".to_owned())));
    let on_its_way = json!({
        "state": "initializing", "postgres": {"size": 3, "ready": 1}, "pgbouncer": {"size": 1, "ready": 0},
        "conditions": [
            backup,
            condition("PGBackRestRepoHostReady", "False", "pgBackRest dedicated repository host is not ready", 2),
            condition("PGBackRestReplicaCreate", "False", "pgBackRest replica creation is not currently possible", 2),
            condition("PGBackRestReplicaRepoReady", "Unknown", "Status is missing for the replica creation repo", 2),
            condition("ProxyAvailable", "False", "Deployment does not have\nminimum availability.", 7),
            condition("PersistentVolumeResizing", "False", "One or more volumes cannot be resized", 3),
        ],
    });
    let lacks = " is initializing: 1 of 3 instances are ready; 0 of 1 PgBouncers are ready; PGBackRestRepoHostReady: pgBackRest dedicated repository host is not ready; ProxyAvailable: Deployment does not have minimum availability";
    assert_eq!(of(json!({}), on_its_way), (waiting(lacks), Some("07".to_owned())));
    // A pause is somebody's wish, and a large backup takes long.
    assert_eq!(of(json!({}), json!({"state": "paused"})), (waiting(" is paused"), None));
    let restored = json!({"dataSource": {"pgbackrest": {}}});
    assert_eq!(of(restored.clone(), json!({"state": "initializing"})).1, None);
    let done = json!({"state": "initializing", "conditions": [condition("PostgresDataInitialized", "True", "", 5)]});
    assert_eq!(of(restored, done).1, Some("05".to_owned()));
    // Conditions may be incomplete.
    let odd = json!({"state": "initializing", "conditions": [{"type": "New"}, {"type": "Other", "status": "False", "lastTransitionTime": null}]});
    assert_eq!(of(json!({}), odd), (waiting(" is initializing"), Some("01".to_owned())));
}

const OWN: &str = "/tenants/acme-pg/5f0c7b1e";

#[test]
fn backups_in_a_repository() {
    let schedules = json!({"full": "0 3 * * 0", "incremental": "0 * * * *"});
    let document =
        applied(&stored(&spec(json!({"repository": s3(json!({})), "schedules": schedules, "keep": 4}))), None);
    insta::assert_snapshot!(serde_yaml::to_string(&document["spec"]["backups"]).unwrap());
    assert_eq!(stored_as(&document).targets, BackupTargets { volume: false, repository: place(OWN) });
    for (kind, repository) in [
        ("gcs", json!({"gcs": {"bucket": "b"}, "secretName": "s", "path": "/a/b"})),
        ("azure", json!({"azure": {"container": "c"}, "secretName": "s", "path": "/a/b"})),
    ] {
        let document = applied(&want(&spec(json!({"repository": repository}))), None);
        let pgbackrest = &document["spec"]["backups"]["pgbackrest"];
        assert_eq!(pgbackrest["repos"], json!([{"name": "repo1", kind: repository[kind]}]));
        let global = json!({
            "repo1-path": "/a/b", "repo1-retention-full": "2", "archive-push-queue-max": (1 << 28).to_string(),
        });
        assert_eq!(pgbackrest["global"], global);
        assert_eq!(stored_as(&document).targets.repository.unwrap().path, "/a/b");
    }
}

#[test]
fn backups_on_a_volume_from_the_beginning() {
    let desired = want(&spec(json!({"schedules": {"full": "@weekly", "differential": "@daily"}, "keep": 2})));
    let document = applied(&desired, None);
    insta::assert_snapshot!(serde_yaml::to_string(&document["spec"]["backups"]).unwrap());
    assert_eq!(document["metadata"]["annotations"][annotation::BACKUPS], "true");
    for percona in [json!({"keep": 2}), json!({"schedules": {"full": "@weekly"}})] {
        assert_eq!(applied(&want(&spec(percona)), None)["spec"]["backups"]["enabled"], true);
    }
    // The volume with the backups is as large as the data, and a quarter of that may be WAL that is not archived yet.
    let document = applied(&want(&json!({"upgrade": {"backup": true}, "postgres": {"storageSize": "5Gi"}})), None);
    for volume in ["/backups/pgbackrest/repos/0/volume/volumeClaimSpec", "/instances/0/dataVolumeClaimSpec"] {
        let size = format!("/spec{volume}/resources/requests/storage");
        assert_eq!(document.pointer(&size), Some(&json!("5Gi")), "{volume}");
    }
    let global = json!({"archive-push-queue-max": "1342177280", "repo1-retention-full": "2"});
    assert_eq!(document["spec"]["backups"]["pgbackrest"]["global"], global);
}

/// Without the image, Percona 2.9.0 and later never start PostgreSQL; before 2.8.0 the schema refuses it without a repository.
#[test]
fn disabled_backups_name_their_image_where_the_schema_takes_it() {
    let with_image = json!({"enabled": false, "pgbackrest": {"image": "percona/percona-pgbackrest:2.58.0-1"}});
    for (cr_version, backups) in [
        ("2.7.0", json!({"enabled": false})),
        ("2.8.0", with_image.clone()),
        ("2.9.0", with_image.clone()),
        ("3.0.0", with_image),
    ] {
        let config = Config { percona_cr_version: cr_version.to_owned(), ..config() };
        let desired = desired(&app(&spec(json!({}))), None, (&Sources::default(), &[]), &config).unwrap();
        assert_eq!(applied(&desired, None)["spec"]["backups"], backups, "{cr_version}");
    }
}

/// A volume with backups stays next to the repository, which is then the second. WAL goes to both, so backups have to as well.
#[test]
fn backups_in_both() {
    let schedules = json!({"full": "@weekly"});
    let desired = stored(&spec(json!({"repository": s3(json!({})), "schedules": schedules, "keep": 4})));
    let on_volume = BackupTargets { volume: true, repository: None };
    let document = applied(&desired, Some(&on_volume));
    insta::assert_snapshot!(serde_yaml::to_string(&document["spec"]["backups"]).unwrap());
    let both = BackupTargets { volume: true, repository: place(OWN) };
    assert_eq!(stored_as(&document).targets, both);
    assert_eq!(applied(&desired, Some(&both)), document, "it stays as it is");
}

#[test]
fn room_is_never_taken_away_or_moved() {
    let of = |percona: Value, volume: bool, path: Option<&str>| {
        let found = BackupTargets { volume, repository: path.and_then(place) };
        stored(&spec(percona)).database_object().unwrap().targets(Some(&with_targets(&found)))
    };
    let other = json!({"repository": s3(json!({"s3": {"bucket": "b", "endpoint": "e", "region": "r"}}))});
    let elsewhere = json!({"repository": s3(json!({"s3": {"bucket": "backups", "endpoint": "e", "region": "r"}}))});
    let named = |path: &str| json!({"repository": s3(json!({"path": path}))});
    for (what, percona, volume, path, kept) in [
        ("nothing", json!({}), false, None, Ok((false, None))),
        ("a volume that is asked for no more", json!({}), true, None, Ok((true, None))),
        ("one for it", json!({"keep": 1}), false, None, Ok((true, None))),
        (
            "adopted, by an app with another uid",
            json!({"repository": s3(json!({}))}),
            false,
            Some("/a"),
            Ok((false, Some("/a"))),
        ),
        ("by its path", named("/a"), false, Some("/a"), Ok((false, Some("/a")))),
        (
            "by another path",
            named("/b"),
            false,
            Some("/a"),
            Err("names s3://backups/b at s3.example.com: backups do not move"),
        ),
        (
            "the same bucket elsewhere",
            elsewhere,
            false,
            Some("/a"),
            Err(
                "names s3://backups/a at e: backups do not move by themselves, and neither they nor the cluster are changed; name that bucket there, endpoint: s3.example.com, and path: /a",
            ),
        ),
        ("another bucket", other, false, Some("/a"), Err("keeps its backups in s3://backups/a at s3.example.com, and")),
        ("adopted by an app that names none", json!({}), true, Some("/a"), Err("names none: backups do not move")),
    ] {
        match (of(percona, volume, path), kept) {
            (Ok(targets), Ok((volume, path))) => {
                assert_eq!(targets, BackupTargets { volume, repository: path.and_then(place) }, "{what}");
            }
            (Err(problem), Err(words)) => assert!(problem.contains(words), "{what}: {problem}"),
            (targets, _) => panic!("{what}: {targets:?}"),
        }
    }
}

#[test]
fn data_source_of_a_new_cluster() {
    let of = |source: Value| want(&spec(json!({"dataSource": source}))).database_object().unwrap().source().unwrap();
    assert_eq!(
        of(json!({"cluster": "other-pg"})),
        json!({"postgresCluster": {"clusterName": "other-pg", "repoName": "repo1"}})
    );
    assert_eq!(
        of(json!({"cluster": "other-pg", "backup": "20260131-030000F"}))["postgresCluster"]["options"],
        json!(["--type=immediate", "--set=20260131-030000F"])
    );
    let gone = of(json!({"repository": s3(json!({"path": "/old"})), "time": "2026-01-31T12:00:00Z"}));
    insta::assert_snapshot!(serde_yaml::to_string(&gone).unwrap());
}

/// The data source is not part of the digest, and is read back only if this operator set it.
#[test]
fn data_source_is_applied_again_unchanged() {
    let desired = want(&spec(json!({"dataSource": {"cluster": "other-pg"}})));
    let object = desired.database_object().unwrap();
    assert_eq!(
        object.document(&BackupTargets::default()),
        want(&json!({})).database_object().unwrap().document(&BackupTargets::default())
    );
    let mut document = applied(&desired, None);
    assert_eq!(document["spec"].get("dataSource"), None);
    // Percona restores with the image and repository name with which it backs up.
    let pgbackrest = &document["spec"]["backups"]["pgbackrest"];
    assert!(pgbackrest["image"].is_string() && pgbackrest["repos"][0]["name"] == "repo1", "{document}");
    object.provider.set_data_source(&mut document, &object.source().unwrap());
    assert_eq!(stored_as(&document).source, object.source());
    document["metadata"]["annotations"] = json!({});
    assert_eq!(stored_as(&document).source, None);
}

#[test]
fn one_that_is_restored_is_nothing_else() {
    let mut document = applied(&want(&spec(json!({"keep": 1}))), None);
    for (restore, restoring) in
        [(json!(null), false), (json!({"enabled": true}), true), (json!({"enabled": false}), false)]
    {
        document["spec"]["backups"]["pgbackrest"]["restore"] = restore;
        for state in ["ready", "initializing"] {
            document["status"] = json!({"state": state, "pgbouncer": {"ready": 1}});
            let is = matches!(stored_as(&document).state, DatabaseState::Restoring(_));
            assert_eq!(is, restoring, "{document}");
        }
    }
}

/// With Percona's finalizer for backups, pgBackRest deletes everything in every repository, and without a pod it never ends.
#[test]
fn deletion_covers_volumes_and_never_repositories() {
    let mut cluster = ObjectMeta {
        annotations: Some([(annotation::BACKUPS.to_owned(), "true".to_owned())].into()),
        finalizers: Some(vec!["another".to_owned()]),
        resource_version: Some("7".to_owned()),
        ..ObjectMeta::default()
    };
    let asked = delete_with_data(&cluster).unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(asked, json!(["another", "percona.com/delete-pvc", "percona.com/delete-ssl"]));

    let unasked = |cluster: &ObjectMeta| {
        let mut patch = json!({"metadata": {"uid": "1"}});
        retain_data(cluster, &mut patch);
        patch["metadata"].clone()
    };
    assert_eq!(unasked(&cluster), json!({"uid": "1"}));
    cluster.finalizers = serde_json::from_value(asked).unwrap();
    assert_eq!(unasked(&cluster), json!({"uid": "1", "finalizers": ["another"], "resourceVersion": "7"}));
}

#[test]
fn only_backups_on_the_volume_go_with_the_cluster() {
    let cluster: ObjectMeta = serde_json::from_value(json!({"name": "acme-pg"})).unwrap();
    let of = |name: &str| json!({"pgCluster": name, "method": "pgbackrest"});
    for (spec, status, goes) in [
        (of("acme-pg"), json!({"state": "Succeeded", "destination": ""}), true),
        (of("acme-pg"), json!({"state": "Failed"}), true),
        (json!({"pgCluster": "acme-pg"}), json!(null), true),
        (of("acme-pg"), json!({"state": "Succeeded", "destination": "s3://b/a"}), false),
        (json!({"pgCluster": "acme-pg", "method": "volumeSnapshot"}), json!({"state": "Succeeded"}), false),
        (of("another-pg"), json!({"state": "Succeeded"}), false),
    ] {
        let backup = json!({"metadata": {"name": "b"}, "spec": spec, "status": status});
        let backup: DynamicObject = serde_json::from_value(backup).unwrap();
        assert_eq!(tells_of_volume(&backup, &cluster), goes, "{backup:?}");
    }
}
