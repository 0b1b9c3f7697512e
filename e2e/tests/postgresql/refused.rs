//! Refusals of the API server at once, and their words.

use clientapp_crd::parameters;

use super::*;

/// A spec with dumps by request, and these fields of `backup`.
fn backup(more: Value) -> Value {
    json!({"backup": with(json!({"request": "one"}), more)})
}

#[tokio::test]
async fn what_cannot_be_is_refused_at_once() {
    let tenant = tenant("pg-refused").await;
    let stored = |more: Value| backup(json!({"store": dumps::store(more)}));
    let drilled = |more: Value| backup(with(json!({"store": dumps::store(json!({})), "drillStore": {}}), more));
    let drill_store = |more: Value| drilled(json!({"drill": "@weekly", "drillStore": more}));
    let restored = |more: Value| json!({"restore": more});
    let bucket = |path: &str| with(dumps::store(json!({})), json!({"path": path, "endpoint": "http://127.0.0.1:9"}));
    let resources = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    let scheduling = |more: Value| json!({"scheduling": more});
    let peer = |peer: Value| json!({"networkPolicy": {"from": [peer]}});
    for (spec, words) in [
        (json!({"port": 0}), "spec.port"),
        (json!({"port": 70000}), "spec.port"),
        (json!({"storageSize": "0"}), "must be a quantity above zero"),
        (json!({"storageSize": "10GB"}), "not GB"),
        (json!({"password": "a", "passwordSecret": {"name": "b"}}), "not both"),
        (json!({"password": "a\nb"}), "line break"),
        (json!({"version": "13"}), "from \"14\" to \"18\""),
        (json!({"defaultUser": "replicator"}), "which are superusers"),
        (json!({"defaultUser": "postgres"}), "which are superusers"),
        (json!({"passwordSecret": {"name": "../x"}}), "spec.passwordSecret.name"),
        (json!({"storageClassName": "A"}), "spec.storageClassName"),
        (json!({"name": "template1"}), "template0 or template1"),
        (json!({"replicas": 0}), "spec.replicas"),
        (json!({"backup": {"keep": 3}}), "set schedule, request or onDelete"),
        (json!({"backup": {"schedule": "sometimes"}}), "five fields"),
        (json!({"backup": {"schedule": "0 99 * * *"}}), "five fields"),
        (json!({"backup": {"schedule": "* * * * * *"}}), "five fields"),
        (backup(json!({"request": "Bad Word!"})), "must be a word of lower-case letters"),
        (backup(json!({"request": "r".repeat(64)})), "spec.backup.request"),
        (
            json!({"backup": {"schedule": "@daily", "drill": "@weekly", "drillStore": {}}}),
            "set drill and store as well",
        ),
        (drilled(json!({})), "set drill and store as well"),
        (drill_store(json!({"size": "1GB"})), "must be a quantity above zero"),
        (backup(json!({"jobs": {"timeout": "1m"}})), "must be a duration such as 24h"),
        (backup(json!({"jobs": {"timeout": "200h"}})), "at most 168h"),
        (backup(json!({"jobs": {"serviceAccountName": "A"}})), "spec.backup.jobs.serviceAccountName"),
        (backup(json!({"jobs": {"resources": {"limits": {"memory": "1GB"}}}})), "must be quantities such as 200m"),
        (
            with(json!({"image": "own:1"}), backup(json!({"jobs": {"serviceAccountName": "puller"}}))),
            "serviceAccountName is for official images",
        ),
        (stored(json!({"endpoint": "s3.example.com"})), "must be an http:// or https:// URL"),
        (stored(json!({"endpoint": "https://me:x@s3.example.com"})), "only a host"),
        (stored(json!({"bucket": "Dumps"})), "must be the name of a bucket"),
        (stored(json!({"bucket": "a..b"})), "must be the name of a bucket"),
        (stored(json!({"region": "eu west"})), "must be the name of a region"),
        (stored(json!({"prefix": "/a"})), "must be words"),
        (stored(json!({"prefix": "a/../b"})), "must be words"),
        (stored(json!({"passwordSecret": {"name": "a/b"}})), "spec.backup.store.passwordSecret.name"),
        (stored(json!({"keep": {}})), "set the number of snapshots to keep"),
        (stored(json!({"keep": {"daily": -1}})), "spec.backup.store.keep.daily"),
        (stored(json!({"credentialsSecret": null})), "spec.backup.store.credentialsSecret"),
        (stored(json!({"credentialsSecret": {"name": "a/b"}})), "spec.backup.store.credentialsSecret.name"),
        (stored(json!({"credentialsSecret": {"name": "s3", "accessKeyIdKey": "a b"}})), "must be a key of a Secret"),
        (restored(json!({"claim": "../.."})), "spec.restore.claim"),
        (restored(json!({"claim": "x", "from": "yesterday"})), "spec.restore"),
        (restored(json!({"claim": "x", "from": "../x"})), "spec.restore"),
        (restored(json!({"from": "latest"})), "spec.restore"),
        (restored(json!({"claim": "x", "store": bucket("a/b")})), "spec.restore"),
        (restored(json!({"store": bucket("../x")})), "spec.restore"),
        (resources(json!({"cpu": "much"}), json!({})), "must be quantities such as 200m or 512Mi"),
        (resources(json!({}), json!({"memory": "-1Gi"})), "must be quantities such as 200m or 512Mi"),
        (resources(json!({"memory": "1Gi"}), json!({"memory": "1G"})), "a request must not be above its limit"),
        (json!({"resources": {"claims": []}}), "unknown field \"spec.resources.claims\""),
        (scheduling(json!({"nodeSelector": {"disk": 1}})), "spec.scheduling.nodeSelector.disk"),
        (scheduling(json!({"tolerations": [{"keys": "x"}]})), "unknown field \"spec.scheduling.tolerations[0].keys\""),
        (scheduling(json!({"affinity": {"podAffinities": {}}})), "unknown field"),
        (peer(json!({})), "must have a podSelector, a namespaceSelector or an ipBlock each"),
        (peer(json!({"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}})), "ipBlock cannot be combined"),
    ] {
        is_refused(create(&tenant, "db", spec.clone()).await, &[words], &spec);
    }
    for (name, words) in [("9db", "DNS label"), (&"d".repeat(45), "at most 44")] {
        is_refused(create(&tenant, name, json!({})).await, &[words], name);
    }
    create(&tenant, "db", json!({"storageSize": "2Gi", "backup": {"onDelete": true, "size": "2Gi"}})).await.unwrap();
    for (spec, words) in [
        (json!({"storageSize": "1Gi"}), "only grow"),
        (json!({"version": "18"}), "pg_restore"),
        (json!({"name": "other"}), "immutable"),
        (json!({"defaultUser": "other"}), "immutable"),
        (json!({"storageClassName": "other"}), "immutable"),
        (json!({"backup": {"size": "1Gi"}}), "only grow"),
    ] {
        is_refused(patch(&tenant, "db", spec.clone()).await, &[words], &spec);
    }
}

#[track_caller]
fn is_refused(answer: kube::Result<impl std::fmt::Debug>, words: &[&str], what: impl std::fmt::Display) {
    let message = answer.expect_err(&format!("{what}: it is refused")).to_string();
    assert!(words.iter().all(|part| message.contains(part)), "{what}: {message}");
}

/// The API server and the operator refuse the same, in the same words.
#[tokio::test]
async fn parameters_are_refused_as_the_operator_would() {
    let tenant = tenant("pg-parameters").await;
    for (name, value) in [
        ("Work_mem", "1"),
        ("a=b", "1"),
        ("a\nb", "1"),
        (&"a".repeat(64), "1"),
        ("work_mem", "4MB\n-c fsync=off"),
        ("listen_addresses", "*"),
        ("hba_file", "/tmp/open"),
        ("unix_socket_directories", ""),
        ("archive_command", "curl example.com"),
        ("restore_command", "x"),
        ("ssl_passphrase_command", "x"),
        ("primary_conninfo", ""),
        ("hot_standby", "off"),
        ("max_wal_senders", "0"),
        ("synchronous_standby_names", "*"),
        ("allow_alter_system", "off"),
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("ignore_checksum_failure", "on"),
        ("ssl", "on"),
        ("password_encryption", "md5"),
        ("session_preload_libraries", "x"),
        ("archive_library", "x"),
        ("wal_level", "minimal"),
        ("max_replication_slots", "9"),
        ("shared_preload_libraries", "pg_stat_statements,evil"),
    ] {
        let settings = [(name.to_owned(), value.to_owned())].into();
        let problem = parameters::problem(&settings).unwrap_or_else(|| panic!("the operator accepts {name}"));
        let problem = problem.rsplit(": ").next().unwrap();
        let answer = create(&tenant, "db", json!({"parameters": settings})).await;
        is_refused(answer, &["spec.parameters", problem], name);
    }
    let many: BTreeMap<_, _> = (0..129).map(|n| (format!("a{n}.b"), "1")).collect();
    is_refused(create(&tenant, "db", json!({"parameters": many})).await, &[], "too many");
    let two = json!({"work_mem": "4MB", "fsync": "off", "ssl": "on"});
    let words = ["data could be lost", "controls access to the server"];
    is_refused(create(&tenant, "db", json!({"parameters": two})).await, &words, "two of three");
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
}
