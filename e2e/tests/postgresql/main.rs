//! Postgresqls on a real control plane: creation, recovery, refusals, deletion; and their dumps in S3.

mod kept;
mod production;
mod restore;
mod store;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use clientapp_crd::{DumpRecord, DumpState, Phase, Postgresql, PostgresqlStatus, conditions, label};
use e2e::lab::{Apart, Lab, Object, Tenant};
use e2e::operator::Operator;
use e2e::wait::until;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service,
};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

/// Creates a Postgresql as `kubectl create` would: a typed one could not be invalid.
async fn create(tenant: &Tenant, name: &str, spec: Value) -> kube::Result<()> {
    let kind = ApiResource::erase::<Postgresql>(&());
    let object = json!({
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec,
    });
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let api: Api<DynamicObject> = Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind);
    api.create(&PostParams::default(), &object).await.map(|_| ())
}

async fn patch(tenant: &Tenant, name: &str, spec: Value) -> kube::Result<Postgresql> {
    let patch = Patch::Merge(json!({"spec": spec}));
    tenant.api::<Postgresql>().patch(name, &PatchParams::default(), &patch).await
}

async fn refused(result: kube::Result<impl std::fmt::Debug>) -> String {
    result.expect_err("the API server refuses it").to_string()
}

/// Waits until the check accepts its status for its latest spec.
async fn status(
    tenant: &Tenant,
    name: &str,
    what: &str,
    check: impl Fn(&PostgresqlStatus) -> bool,
) -> PostgresqlStatus {
    let current = |object: Option<&Postgresql>| {
        let object = object?;
        let status = object.status.as_ref()?;
        let current = status.observed_generation == object.metadata.generation;
        (current && check(status)).then(|| status.clone())
    };
    tenant.wait_for(name, what, current).await
}

async fn up(tenant: &Tenant, name: &str) -> PostgresqlStatus {
    status(tenant, name, "up", is_settled).await
}

fn is_settled(status: &PostgresqlStatus) -> bool {
    status.phase == Some(Phase::Up)
        && has(status, "Ready", "True", "Ready")
        && has(status, "Reconciling", "False", "Settled")
}

/// Waits until it is up with the pod of the StatefulSet's current revision.
async fn settled(tenant: &Tenant, name: &str) {
    // The simulated node deletes pods by name, and at times a pod's successor with it: no pod's uid stays.
    until(&format!("Postgresql {name} is up with the newest pod of its StatefulSet"), async || {
        let replication = tenant.uid::<Secret>(&format!("{name}-replication")).await;
        let set = tenant.api::<StatefulSet>().get_opt(name).await.unwrap();
        let pod = tenant.api::<Pod>().get_opt(&format!("{name}-0")).await.unwrap();
        let told = tenant.api::<Postgresql>().get(name).await.unwrap().status;
        let is_up = || {
            let set = set.as_ref().filter(|set| set.metadata.deletion_timestamp.is_none())?;
            let (template, of_set) = (&set.spec.as_ref()?.template, set.status.as_ref()?);
            let annotations = template.metadata.as_ref()?.annotations.as_ref()?;
            let mounts = annotations.values().any(|value| Some(value) == replication.as_ref());
            let is_seen = of_set.observed_generation == set.metadata.generation;
            let pod = pod.as_ref().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
            let is_owned = pod.owner_references().iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref());
            let is_newest = pod.labels().get("controller-revision-hash") == of_set.update_revision.as_ref();
            let is_active = told.as_ref()?.active.as_ref().map(|active| &active.uid) == pod.metadata.uid.as_ref();
            (mounts && is_seen && is_owned && is_newest && is_active && is_settled(told.as_ref()?)).then_some(())
        };
        is_up().ok_or_else(|| format!("{:?}\n{:?}\n{told:?}", set.map(|set| set.metadata), pod.map(|pod| pod.metadata)))
    })
    .await;
}

fn has(status: &PostgresqlStatus, type_: &str, state: &str, reason: &str) -> bool {
    conditions::find(&status.conditions, type_)
        .is_some_and(|condition| condition.status == state && condition.reason == reason)
}

/// Waits until it is not Ready for this reason, and returns the message.
async fn held(tenant: &Tenant, name: &str, reason: &str) -> String {
    says(tenant, name, reason, |ready| ready.status == "False" && ready.reason == reason).await
}

/// Waits until the check accepts the condition Ready, and returns its message.
async fn says(tenant: &Tenant, name: &str, what: &str, is: impl Fn(&Condition) -> bool) -> String {
    let told = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        is(ready).then(|| ready.message.clone())
    };
    tenant.wait_for(name, what, told).await
}

/// Requests for the servers of a Postgresql, but not for its Jobs.
fn requests() -> Value {
    json!({"requests": {"cpu": "1m"}})
}

/// No pod for a Job while this quota exists. A server that is recreated meanwhile needs [`requests`]. A quota for all
/// pods would admit a Job's pod while a server's pod is recreated, since usage is counted late.
async fn no_job_pods(tenant: &Tenant) {
    tenant.quota("no-job-pods", json!({"scopes": ["BestEffort"], "hard": {"pods": "0"}})).await;
}

/// Once the status for a newer spec is written, everything before it is done.
async fn looked_at_again(tenant: &Tenant, name: &str, port: i32) -> PostgresqlStatus {
    patch(tenant, name, json!({"port": port})).await.unwrap();
    up(tenant, name).await
}

async fn delete<K: Object>(tenant: &Tenant, name: &str) {
    tenant.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
}

async fn gone<K: Object>(tenant: &Tenant, name: &str) {
    tenant.wait_for(name, "gone", |object: Option<&K>| object.is_none().then_some(())).await;
}

async fn names<K: Object>(tenant: &Tenant) -> Vec<String> {
    let objects = tenant.api::<K>().list(&ListParams::default()).await.unwrap();
    objects.iter().map(|object| object.name_any()).filter(|name| name != "kube-root-ca.crt").collect()
}

fn text(secret: &Secret, key: &str) -> Option<String> {
    Some(String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).unwrap())
}

async fn secret(tenant: &Tenant, name: &str) -> BTreeMap<String, String> {
    let secret = tenant.api::<Secret>().get(name).await.unwrap();
    let data = secret.data.unwrap().into_iter();
    data.map(|(key, value)| (key, String::from_utf8(value.0).unwrap())).collect()
}

/// Waits until the Secret for clients has this password.
async fn told(tenant: &Tenant, name: &str, password: &str) {
    let same = |secret: Option<&Secret>| (text(secret?, "password").as_deref() == Some(password)).then_some(());
    tenant.wait_for(name, "with the password in use", same).await;
}

#[tokio::test]
async fn a_database_that_cannot_be_made_is_made_once_its_spec_is_corrected() {
    let tenant = Lab::shared().await.tenant("pg-corrected").await;
    create(&tenant, "db", json!({"resources": {"requests": {"cpu": "100k"}}})).await.unwrap();
    says(&tenant, "db", "too large for each node", |ready| ready.message.contains("Insufficient cpu")).await;
    patch(&tenant, "db", json!({"resources": requests()})).await.unwrap();
    up(&tenant, "db").await;
}

#[tokio::test]
async fn it_comes_up_comes_back_and_leaves_nothing() {
    let tenant = Lab::shared().await.tenant("pg-life").await;
    create(&tenant, "db", json!({})).await.unwrap();
    let status = up(&tenant, "db").await;
    let pod = tenant.api::<Pod>().get("db-0").await.unwrap();
    let active = status.active.unwrap();
    assert_eq!((active.kind.as_str(), active.name.as_str(), Some(active.uid)), ("Pod", "db-0", pod.uid()));
    assert_eq!((status.version.as_deref(), status.storage_size.as_deref()), (Some("17"), Some("1Gi")));
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
    told(&tenant, "db-app", &password).await;
    let edited = json!({"stringData": {"password": "another", "extra": "mine"}});
    tenant.api::<Secret>().patch("db-app", &PatchParams::default(), &Patch::Merge(&edited)).await.unwrap();
    told(&tenant, "db-app", &password).await;
    assert_eq!(secret(&tenant, "db-app").await["extra"], "mine");
    tenant.replaced::<Secret>("db-credentials").await;
    assert_eq!(secret(&tenant, "db-credentials").await["password"], password);
    looked_at_again(&tenant, "db", 5433).await;

    // From here on only the API server talks to it.
    let before = tenant.requests().await;
    tenant.kubectl(&["annotate", "db", "db", "note=hello"]).unwrap();
    let other = tenant.lab.tenant("pg-life-other").await;
    create(&other, "db", json!({})).await.unwrap();
    up(&other, "db").await;
    let after = tenant.requests().await;
    assert_eq!(before.len(), after.len(), "{:?}", &after[before.len()..]);

    for tenant in [&tenant, &other] {
        delete::<Postgresql>(tenant, "db").await;
        gone::<Postgresql>(tenant, "db").await;
        gone::<Service>(tenant, "db").await;
        gone::<Secret>(tenant, "db-app").await;
        gone::<Secret>(tenant, "db-replication").await;
        gone::<ConfigMap>(tenant, "db-scripts").await;
        gone::<Service>(tenant, "db-headless").await;
        assert_eq!(names::<PersistentVolumeClaim>(tenant).await, Vec::<String>::new());
        assert_eq!(names::<Secret>(tenant).await, Vec::<String>::new());
        assert_eq!(names::<StatefulSet>(tenant).await, Vec::<String>::new());
        // A Job's pod is the garbage collector's.
        until("no pod is left", async || names::<Pod>(tenant).await.is_empty()).await;
    }
}

#[tokio::test]
async fn a_lost_password_is_said_and_handed_over_not_made_up() {
    let tenant = Lab::shared().await.tenant("pg-lost").await;
    create(&tenant, "db", json!({})).await.unwrap();
    up(&tenant, "db").await;
    // The operator sees both deletions at once, since it would recreate the one from the other.
    let held_by = json!({"metadata": {"finalizers": ["example.com/held"]}});
    let api = tenant.api::<Secret>();
    api.patch("db-app", &PatchParams::default(), &Patch::Merge(&held_by)).await.unwrap();
    delete::<Secret>(&tenant, "db-app").await;
    delete::<Secret>(&tenant, "db-credentials").await;
    let told_so = held(&tenant, "db", "SecretLost").await;
    for part in ["Secrets db-credentials and db-app are gone", "kubectl create secret generic db-credentials", "psql"] {
        assert!(told_so.contains(part), "{told_so}");
    }
    let none = json!({"metadata": {"finalizers": null}});
    api.patch("db-app", &PatchParams::default(), &Patch::Merge(&none)).await.unwrap();
    gone::<Secret>(&tenant, "db-app").await;
    // The rest is still reconciled.
    tenant.replaced::<Service>("db").await;
    assert!(api.get_opt("db-credentials").await.unwrap().is_none());

    // As the message says.
    let uid = tenant.api::<Postgresql>().get("db").await.unwrap().uid().unwrap();
    tenant.kubectl(&["create", "secret", "generic", "db-credentials", "--from-literal=password=n&w"]).unwrap();
    tenant.kubectl(&["label", "secret", "db-credentials", &format!("{}={uid}", label::POSTGRESQL_UID)]).unwrap();
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["uri"], "postgresql://app:n%26w@db.pg-lost.svc:5432/app");
}

#[tokio::test]
async fn a_given_password_is_awaited_checked_and_never_told() {
    let tenant = Lab::shared().await.tenant("pg-given").await;
    let canary = "canary:5e2b/81";
    create(&tenant, "db", json!({"passwordSecret": {"name": "mine"}})).await.unwrap();
    let message = held(&tenant, "db", "PasswordSecretMissing").await;
    assert!(message.contains("Secret mine") && message.contains("key password"), "{message}");
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    tenant.kubectl(&["create", "secret", "generic", "mine", "--from-literal=other=x"]).unwrap();
    held(&tenant, "db", "PasswordSecretKeyMissing").await;
    let set = async |password: &str| {
        let patch = Patch::Merge(json!({"stringData": {"password": password}}));
        tenant.api::<Secret>().patch("mine", &PatchParams::default(), &patch).await.unwrap();
    };
    set(&format!("{canary}\n")).await;
    let message = held(&tenant, "db", "PasswordInvalid").await;
    assert!(message.contains("line break"), "{message}");
    set(canary).await;
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["uri"], "postgresql://app:canary%3A5e2b%2F81@db.pg-given.svc:5432/app");

    // A changed password is not the database's.
    set("another").await;
    let message = held(&tenant, "db", "PasswordChanged").await;
    assert!(message.contains("spec.passwordSecret") && message.contains("psql"), "{message}");
    assert_eq!(secret(&tenant, "db-app").await["password"], canary);
    set(canary).await;
    up(&tenant, "db").await;
    // Unchanged, it is known to be the right one.
    delete::<Secret>(&tenant, "db-app").await;
    delete::<Secret>(&tenant, "db-credentials").await;
    told(&tenant, "db-app", canary).await;

    let inline = "inline-canary-77";
    create(&tenant, "inline", json!({"password": inline})).await.unwrap();
    up(&tenant, "inline").await;
    told(&tenant, "inline-app", inline).await;
    // A second time if the operator creates the Secret again before its watch has shown the first one.
    let warned = async || tenant.events("inline").await.iter().filter(|(reason, _)| reason == "InlinePassword").count();
    let before = warned().await;
    assert!(before > 0);
    patch(&tenant, "inline", json!({"port": 5433})).await.unwrap();
    up(&tenant, "inline").await;
    assert_eq!(warned().await, before, "a later pass does not warn again");
    let message = refused(patch(&tenant, "inline", json!({"password": "x"})).await).await;
    assert!(message.contains("ALTER ROLE"), "{message}");

    let statuses = tenant.api::<Postgresql>().list(&ListParams::default()).await.unwrap().items;
    let statuses: Vec<_> = statuses.into_iter().map(|object| object.status).collect();
    let mut places = vec![serde_json::to_string(&statuses).unwrap(), tenant.lab.operator_log()];
    places.push(format!("{:?}{:?}", tenant.events("db").await, tenant.events("inline").await));
    for kind in ["statefulsets", "pods", "configmaps", "services", "jobs", "cronjobs"] {
        places.push(tenant.kubectl(&["get", kind, "-o", "yaml"]).unwrap());
    }
    for place in places {
        assert!(!place.contains(canary) && !place.contains(inline), "{place}");
    }
}

#[tokio::test]
async fn what_cannot_be_is_refused_at_once() {
    let tenant = Lab::shared().await.tenant("pg-refused").await;
    for (name, spec, words) in [
        ("db", json!({"port": 0}), "spec.port"),
        ("db", json!({"port": 70000}), "spec.port"),
        ("db", json!({"storageSize": "0"}), "must be a quantity above zero"),
        ("db", json!({"storageSize": "10GB"}), "not GB"),
        ("db", json!({"password": "a", "passwordSecret": {"name": "b"}}), "not both"),
        ("db", json!({"password": "a\nb"}), "line break"),
        ("db", json!({"version": "13"}), "from \"14\" to \"18\""),
        ("db", json!({"defaultUser": "replicator"}), "which are superusers"),
        ("db", json!({"defaultUser": "postgres"}), "which are superusers"),
        ("db", json!({"restore": {"claim": "../.."}}), "spec.restore.claim"),
        ("db", json!({"passwordSecret": {"name": "../x"}}), "spec.passwordSecret.name"),
        ("db", json!({"storageClassName": "A"}), "spec.storageClassName"),
        ("db", stored(json!({"credentialsSecret": {"name": "a/b"}})), "spec.backup.store.credentialsSecret.name"),
        ("db", json!({"name": "template1"}), "template0 or template1"),
        ("db", json!({"backup": {"keep": 3}}), "set schedule, request or onDelete"),
        (
            "db",
            json!({"backup": {"schedule": "@daily", "drill": "@weekly", "drillStore": {}}}),
            "set drill and store as well",
        ),
        ("db", with(stored(json!({})), json!({"drillStore": {}})), "set drill and store as well"),
        (
            "db",
            with(stored(json!({})), json!({"drill": "@weekly", "drillStore": {"size": "1GB"}})),
            "must be a quantity above zero",
        ),
        (
            "db",
            with(stored(json!({})), json!({"drill": "@weekly", "drillStore": {"identitySecret": {"name": "a/b"}}})),
            "spec.backup.drillStore.identitySecret.name",
        ),
        ("db", json!({"backup": {"request": "Bad Word!"}}), "must be a word of lower-case letters"),
        ("db", json!({"backup": {"request": "r".repeat(64)}}), "spec.backup.request"),
        ("db", json!({"backup": {"schedule": "sometimes"}}), "five fields"),
        ("db", json!({"replicas": 0}), "spec.replicas"),
        ("db", stored(json!({"endpoint": "s3.example.com"})), "must be an http:// or https:// URL"),
        ("db", stored(json!({"endpoint": "https://me:x@s3.example.com"})), "only a host"),
        ("db", stored(json!({"bucket": "Dumps"})), "must be the name of a bucket"),
        ("db", stored(json!({"bucket": "a..b"})), "must be the name of a bucket"),
        ("db", stored(json!({"region": "eu west"})), "must be the name of a region"),
        ("db", stored(json!({"prefix": "/a"})), "must be words"),
        ("db", stored(json!({"prefix": "a/../b"})), "must be words"),
        ("db", stored(json!({"recipient": "AGE-SECRET-KEY-1"})), "must be a public age key"),
        ("db", stored(json!({"keep": {}})), "set the number of dumps to keep"),
        ("db", stored(json!({"keep": {"daily": -1}})), "spec.backup.store.keep.daily"),
        (
            "db",
            stored(json!({"credentialsSecret": {"name": "s3", "accessKeyIdKey": "a b"}})),
            "must be a key of a Secret",
        ),
        ("db", stored(json!({"credentialsSecret": null})), "spec.backup.store.credentialsSecret"),
        ("9db", json!({}), "DNS label"),
        (&"d".repeat(45), json!({}), "at most 44"),
    ] {
        let message = refused(create(&tenant, name, spec.clone()).await).await;
        assert!(message.contains(words), "{spec}: {message}");
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
        let message = refused(patch(&tenant, "db", spec.clone()).await).await;
        assert!(message.contains(words), "{spec}: {message}");
    }
}

/// A spec with these fields of `backup` as well.
fn with(mut spec: Value, more: Value) -> Value {
    for (field, value) in more.as_object().unwrap() {
        spec["backup"][field] = value.clone();
    }
    spec
}

/// A spec with uploaded dumps, plus the given fields of the store.
fn stored(more: Value) -> Value {
    let mut store =
        json!({"endpoint": "https://s3.example.com", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    for (field, value) in more.as_object().unwrap() {
        store[field] = value.clone();
    }
    json!({"backup": {"request": "one", "store": store}})
}

#[tokio::test]
async fn the_operators_own_image_uploads_dumps_and_what_it_says_is_told() {
    let Apart { tenant, proxy: _proxy, mut options } = Lab::unattended().await.apart("pg-store").await;
    // Its pod, with the image that kustomize has set.
    let itself = json!({
        "metadata": {"name": "itself"},
        "spec": {
            "containers": [{
                "name": "operator", "image": "registry.example.com/operator:7",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    let itself: Pod = serde_json::from_value(itself).unwrap();
    let own: Api<Pod> = Api::namespaced(tenant.client.clone(), e2e::manifests::NAMESPACE);
    own.create(&PostParams::default(), &itself).await.unwrap();

    // An operator that does not know its image says so, and dumps onto the volume.
    let operator = e2e::lab::leading(&options).await;
    create(&tenant, "db", stored(json!({}))).await.unwrap();
    let message = held(&tenant, "db", "OperatorImageUnknown").await;
    assert!(message.contains("CLIENTAPP_POD_NAME"), "{message}");
    let one = dump(&tenant, "one", DumpState::Succeeded).await;
    let pod = async |job: &str| tenant.api::<Job>().get(job).await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(pod(&one.job).await.containers[0].name, "dump");
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());

    options.environment.push(("CLIENTAPP_POD_NAME".to_owned(), "itself".to_owned()));
    let mut operator = e2e::lab::leading(&options).await;
    up(&tenant, "db").await;
    patch(&tenant, "db", json!({"backup": {"request": "two", "schedule": "@yearly"}})).await.unwrap();
    let two = dump(&tenant, "two", DumpState::Succeeded).await;
    let made = pod(&two.job).await;
    assert_eq!(made.containers[0].image.as_deref(), Some("registry.example.com/operator:7"));
    assert_eq!(made.containers[0].args, Some(vec!["store".to_owned(), "push".to_owned()]));
    assert!(made.init_containers.unwrap()[0].image.as_ref().unwrap().contains("postgres"));

    let success =
        status(&tenant, "db", "dumped", |status| has(status, "BackedUp", "True", "Dumped")).await.backup.unwrap();
    let metric =
        "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"pg-store\",name=\"db\"}";
    let time = success.last_success.unwrap().0.as_second() as f64;
    until("it is counted", async || operator.counted(metric).is_ok_and(|counted| counted >= time)).await;

    // A failed upload: there is no second pod, and its termination message is reported.
    let pods = tenant.api::<Pod>().list(&ListParams::default()).await.unwrap();
    for done in pods.iter().filter(|pod| pod.labels().contains_key("batch.kubernetes.io/job-name")) {
        delete::<Pod>(&tenant, &done.name_any()).await;
        gone::<Pod>(&tenant, &done.name_any()).await;
    }
    let job = tenant.api::<Job>().get(&two.job).await.unwrap();
    let failed = |name: &str| -> Pod {
        let mut labels = job.spec.clone().unwrap().template.metadata.unwrap().labels.unwrap();
        labels.insert("batch.kubernetes.io/job-name".to_owned(), name.to_owned());
        let spec = json!({"containers": [{"name": "store", "image": "x"}], "nodeSelector": {"none": "such"}});
        serde_json::from_value(json!({"metadata": {"name": "failed", "labels": labels}, "spec": spec})).unwrap()
    };
    tenant.api::<Pod>().create(&PostParams::default(), &failed("not-yet")).await.unwrap();
    no_job_pods(&tenant).await;
    patch(&tenant, "db", json!({"backup": {"request": "three"}})).await.unwrap();
    let three = dump(&tenant, "three", DumpState::Running).await;
    let begun = |job: Option<&Job>| job?.status.as_ref()?.start_time.clone();
    tenant.wait_for(&three.job, "begun", begun).await;
    let labels = json!({"metadata": {"labels": {"batch.kubernetes.io/job-name": three.job}}});
    tenant.api::<Pod>().patch("failed", &PatchParams::default(), &Patch::Merge(&labels)).await.unwrap();
    let words = "stored dump a\nerror: cannot write s3://dumps/x: the storage fails (507 Insufficient Storage)\n";
    let ended = json!({"status": {"phase": "Failed", "containerStatuses": [{
        "name": "store", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "message": words}},
    }]}});
    tenant.api::<Pod>().patch_status("failed", &PatchParams::default(), &Patch::Merge(&ended)).await.unwrap();
    let now = "2026-01-01T00:00:00Z";
    let failed = json!({"status": {"conditions": [
        {"type": "FailureTarget", "status": "True", "reason": "PodFailurePolicy", "message": "x", "lastTransitionTime": now},
        {"type": "Failed", "status": "True", "reason": "PodFailurePolicy", "message": "x", "lastTransitionTime": now},
    ]}});
    tenant.api::<Job>().patch_status(&three.job, &PatchParams::default(), &Patch::Merge(&failed)).await.unwrap();
    let why = "cannot write s3://dumps/x: the storage fails (507 Insufficient Storage)";
    dump(&tenant, "three", DumpState::Failed).await;
    // The watch of pods may be later than that of Jobs.
    let told = |status: &PostgresqlStatus| {
        status.dump.as_ref().and_then(|dump| dump.message.as_ref()).is_some_and(|message| message.contains(why))
            && status.backup.as_ref().and_then(|backup| backup.failure.as_deref()) == Some(why)
    };
    status(&tenant, "db", "said why", told).await;
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
}

#[tokio::test]
async fn a_volume_grows_where_it_can() {
    let tenant = Lab::shared().await.tenant("pg-grow").await;
    create(&tenant, "db", json!({})).await.unwrap();
    up(&tenant, "db").await;
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
    let message = held(&tenant, "rigid", "ExpansionNotAllowed").await;
    assert!(message.contains("data-rigid-0") && message.contains("allowVolumeExpansion"), "{message}");
}

#[tokio::test]
async fn nothing_of_others_is_taken_over() {
    let tenant = Lab::shared().await.tenant("pg-others").await;
    let service = json!({"metadata": {"name": "taken"}, "spec": {"ports": [{"port": 80}], "selector": {"app": "x"}}});
    let service: Service = serde_json::from_value(service).unwrap();
    let before = tenant.api::<Service>().create(&PostParams::default(), &service).await.unwrap();
    create(&tenant, "taken", json!({})).await.unwrap();
    let message = held(&tenant, "taken", "NotOurs").await;
    assert!(message.contains("Service taken"), "{message}");
    let after = tenant.api::<Service>().get("taken").await.unwrap();
    assert_eq!(before.metadata.resource_version, after.metadata.resource_version);

    tenant.kubectl(&["create", "secret", "generic", "named-app", "--from-literal=password=theirs"]).unwrap();
    create(&tenant, "named", json!({})).await.unwrap();
    let message = held(&tenant, "named", "NotOurs").await;
    assert!(message.contains("Secret named-app"), "{message}");
    assert_eq!(secret(&tenant, "named-app").await.len(), 1);

    let claim = json!({
        "metadata": {"name": "data-old-0"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let claim: PersistentVolumeClaim = serde_json::from_value(claim).unwrap();
    tenant.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await.unwrap();
    create(&tenant, "old", json!({})).await.unwrap();
    let message = held(&tenant, "old", "NotOurs").await;
    assert!(message.contains("PersistentVolumeClaim data-old-0 already exists"), "{message}");
    assert!(tenant.api::<StatefulSet>().get_opt("old").await.unwrap().is_none());

    // A Postgresql that never owned them deletes none of them.
    for name in ["taken", "named", "old"] {
        delete::<Postgresql>(&tenant, name).await;
        gone::<Postgresql>(&tenant, name).await;
    }
    assert!(tenant.api::<Service>().get_opt("taken").await.unwrap().is_some());
    assert!(tenant.api::<Secret>().get_opt("named-app").await.unwrap().is_some());
    assert!(tenant.api::<PersistentVolumeClaim>().get_opt("data-old-0").await.unwrap().is_some());
}

#[tokio::test]
async fn standbys_come_and_go_without_the_primary() {
    let tenant = Lab::shared().await.tenant("pg-standbys").await;
    create(&tenant, "db", json!({"replicas": 3})).await.unwrap();
    let status = up(&tenant, "db").await;
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
    // They are deleted with the Postgresql, which has them on record.
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
}

#[tokio::test]
async fn dumps_are_scheduled_and_a_last_one_is_waited_for() {
    let tenant = Lab::shared().await.tenant("pg-dumps").await;
    let spec = json!({"backup": {"schedule": "0 3 * * *", "keep": 2}, "resources": requests()});
    create(&tenant, "db", spec).await.unwrap();
    up(&tenant, "db").await;
    let cron = tenant.api::<CronJob>().get("db-backup").await.unwrap().spec.unwrap();
    assert_eq!(cron.schedule, "0 3 * * *");
    tenant.replaced::<CronJob>("db-backup").await;
    patch(&tenant, "db", json!({"backup": null})).await.unwrap();
    gone::<CronJob>(&tenant, "db-backup").await;
    let claims = tenant.api::<PersistentVolumeClaim>();
    assert!(claims.get_opt("db-backup").await.unwrap().is_some(), "dumps stay");
    // The API server's refusal is reported.
    patch(&tenant, "db", json!({"backup": {"schedule": "0 99 * * *"}})).await.unwrap();
    let refused = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        (ready.reason == "Refused").then(|| ready.message.clone())
    };
    let message = tenant.wait_for("db", "refused", refused).await;
    assert!(message.contains("CronJob"), "{message}");
    patch(&tenant, "db", json!({"backup": {"schedule": null, "onDelete": true}})).await.unwrap();
    up(&tenant, "db").await;

    no_job_pods(&tenant).await;
    delete::<Postgresql>(&tenant, "db").await;
    // Clients are disconnected first.
    let closed = |pod: Option<&Pod>| {
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let file = pod.spec.as_ref()?.containers[0].env.as_ref()?.iter().find(|env| env.name == "HBA_FILE")?;
        (file.value.as_deref() == Some("/scripts/closed.conf")).then(|| pod.uid())
    };
    tenant.wait_for("db-0", "closed", closed).await;
    let message = held(&tenant, "db", "Dumping").await;
    assert!(message.contains("Job db-last-dump") && message.contains("spec.backup.onDelete"), "{message}");
    let made = tenant.api::<Job>().get("db-last-dump").await.unwrap();
    let stamp = tenant.api::<Postgresql>().get("db").await.unwrap().metadata.deletion_timestamp.unwrap().0.to_string();
    assert!(made.annotations().values().any(|value| *value == stamp), "{made:?}");
    let job = |job: Option<&Job>| job?.status.as_ref()?.start_time.clone();
    tenant.wait_for("db-last-dump", "begun", job).await;
    assert!(tenant.api::<StatefulSet>().get("db").await.unwrap().metadata.deletion_timestamp.is_none());

    // It fails: nothing is deleted, and the message says what to do.
    let patch_job = async |conditions: Value| {
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        tenant.api::<Job>().patch_status("db-last-dump", &PatchParams::default(), &patch).await.unwrap();
    };
    let now = "2026-01-01T00:00:00Z";
    patch_job(json!([
        {"type": "FailureTarget", "status": "True", "reason": "x", "message": "x", "lastTransitionTime": now},
        {"type": "Failed", "status": "True", "reason": "x", "message": "x", "lastTransitionTime": now},
    ]))
    .await;
    let message = held(&tenant, "db", "LastDumpFailed").await;
    assert!(message.contains("delete the Job to try again"), "{message}");
    assert!(claims.get("data-db-0").await.unwrap().metadata.deletion_timestamp.is_none());

    delete::<ResourceQuota>(&tenant, "no-job-pods").await;
    delete::<Job>(&tenant, "db-last-dump").await;
    gone::<Postgresql>(&tenant, "db").await;
    gone::<Pod>(&tenant, "db-0").await;
    let kept = "Postgresql db is deleted; PersistentVolumeClaim db-backup stays: the last dump is on it";
    tenant.events_with("db", "Retained", kept).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["db-backup"]);
    assert_eq!(claims.get("db-backup").await.unwrap().labels()[label::RETAINED_FROM], "db");
}

/// Waits until the record of this request is in this state.
async fn dump(tenant: &Tenant, request: &str, state: DumpState) -> DumpRecord {
    let wanted = |dump: &DumpRecord| dump.request == request && dump.state == state;
    let what = format!("{state:?} {request}");
    status(tenant, "db", &what, |status| status.dump.as_ref().is_some_and(wanted)).await.dump.unwrap()
}

#[tokio::test]
async fn a_request_gets_one_dump_whatever_happens_to_its_job() {
    // A plane of its own, since its operator is restarted.
    let lab = Lab::own().await;
    let start_operator =
        async || tokio::task::spawn_blocking(move || lab.start_operator(&lab.options()).unwrap()).await.unwrap();
    start_operator().await;
    let tenant = lab.tenant("pg-requests").await;
    let jobs = async || names::<Job>(&tenant).await;
    let ask = async |request: &str| patch(&tenant, "db", json!({"backup": {"request": request}})).await.unwrap();

    create(&tenant, "db", json!({"backup": {"request": "one"}, "resources": requests()})).await.unwrap();
    let one = dump(&tenant, "one", DumpState::Succeeded).await;
    let job = tenant.api::<Job>().get(&one.job).await.unwrap();
    let progress = job.status.clone().unwrap();
    assert_eq!((&one.started_at, &one.completed_at), (&progress.start_time, &progress.completion_time));
    assert!(one.started_at.is_some() && one.completed_at.is_some() && one.message.is_none(), "{one:?}");
    assert!(job.annotations().values().any(|value| value == "one"), "{job:?}");
    assert_eq!(job.owner_references(), []);
    tenant.events_with("db", "Dumped", &format!("Job {} has dumped the database for request one", one.job)).await;
    assert_eq!(names::<CronJob>(&tenant).await, Vec::<String>::new());

    // The same request, without its Job, and without the operator's memory.
    looked_at_again(&tenant, "db", 5433).await;
    assert_eq!(jobs().await, [one.job.as_str()]);
    delete::<Job>(&tenant, &one.job).await;
    gone::<Job>(&tenant, &one.job).await;
    looked_at_again(&tenant, "db", 5434).await;
    start_operator().await;
    let status = looked_at_again(&tenant, "db", 5435).await;
    assert_eq!((jobs().await, status.dump.as_ref()), (Vec::<String>::new(), Some(&one)));

    // Each new word requests another dump, and deletes the Job of the previous one.
    ask("two").await;
    let two = dump(&tenant, "two", DumpState::Succeeded).await;
    ask("three").await;
    let three = dump(&tenant, "three", DumpState::Succeeded).await;
    gone::<Job>(&tenant, &two.job).await;
    assert_eq!(jobs().await, [three.job.as_str()]);

    // A failed dump; meanwhile the database serves.
    no_job_pods(&tenant).await;
    ask("four").await;
    let four = dump(&tenant, "four", DumpState::Running).await;
    up(&tenant, "db").await;
    let begun = |job: Option<&Job>| job?.status.as_ref()?.start_time.clone();
    tenant.wait_for(&four.job, "begun", begun).await;
    let now = "2026-01-01T00:00:00Z";
    let failed = json!({"status": {"conditions": [
        {"type": "FailureTarget", "status": "True", "reason": "x", "message": "x", "lastTransitionTime": now},
        {"type": "Failed", "status": "True", "reason": "x", "message": "x", "lastTransitionTime": now},
    ]}});
    tenant.api::<Job>().patch_status(&four.job, &PatchParams::default(), &Patch::Merge(&failed)).await.unwrap();
    let four = dump(&tenant, "four", DumpState::Failed).await;
    let sentence = four.message.unwrap();
    let logs = format!("`kubectl logs -n pg-requests job/{}`", four.job);
    assert!(sentence.contains(&logs) && sentence.contains("another word into spec.backup.request"), "{sentence}");
    tenant.events_with("db", "DumpFailed", &sentence).await;
    let status = up(&tenant, "db").await;
    assert_eq!((status.phase, jobs().await), (Some(Phase::Up), vec![four.job.clone()]));

    // Removing the request requests nothing, and the record stays.
    patch(&tenant, "db", json!({"backup": {"request": null, "schedule": "@daily"}})).await.unwrap();
    let status = up(&tenant, "db").await;
    assert_eq!((status.dump.unwrap().request.as_str(), jobs().await), ("four", vec![four.job]));

    // A running dump does not delay a deletion.
    ask("five").await;
    let five = dump(&tenant, "five", DumpState::Running).await;
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    gone::<Job>(&tenant, &five.job).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
    // Each result was reported, and only once.
    let told: Vec<_> = tenant.events("db").await.into_iter().map(|(reason, _)| reason).collect();
    let times = |reason: &str| told.iter().filter(|told| *told == reason).count();
    assert_eq!((times("Dumped"), times("DumpFailed")), (3, 1), "{told:?}");
    let operator = lab.operator().take().unwrap();
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
}

#[tokio::test]
async fn retained_data_stay_with_their_password_and_are_given_to_no_other_by_accident() {
    let tenant = Lab::shared().await.tenant("pg-retain").await;
    create(&tenant, "db", json!({"deletionPolicy": "Retain", "replicas": 2})).await.unwrap();
    up(&tenant, "db").await;
    let password = secret(&tenant, "db-app").await["password"].clone();
    // Even if the garbage collector starts at once with the objects that the Postgresql owns.
    tenant.api::<Postgresql>().delete("db", &DeleteParams::foreground()).await.unwrap();
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["data-db-0", "data-db-standby-0"]);
    assert_eq!(names::<Secret>(&tenant).await, ["db-app", "db-credentials", "db-replication"]);
    let claim = tenant.api::<PersistentVolumeClaim>().get("data-db-0").await.unwrap();
    let kept = tenant.api::<Secret>().get("db-credentials").await.unwrap();
    assert_eq!(
        (claim.labels()[label::RETAINED_FROM].as_str(), kept.labels()[label::RETAINED_FROM].as_str()),
        ("db", "db")
    );
    assert!(claim.owner_references().is_empty() && kept.owner_references().is_empty());

    // A successor waits until they are handed over, and then has the old data and the old password.
    create(&tenant, "db", json!({})).await.unwrap();
    let message = held(&tenant, "db", "NotOurs").await;
    let uid = tenant.api::<Postgresql>().get("db").await.unwrap().uid().unwrap();
    let hand_over = format!("{}={uid}", label::POSTGRESQL_UID);
    let selector = format!("{}=db,{}=Postgresql", label::RETAINED_FROM, label::RETAINED_KIND);
    assert!(message.contains("db-credentials"), "{message}");
    let command = format!("`kubectl label pvc,secret -n pg-retain -l {selector} --overwrite {hand_over}`");
    assert!(message.contains(&command), "{message}");
    // One by one as well: the message names the next object that is needed.
    for secret in ["db-credentials", "db-app", "db-replication"] {
        let named = |object: Option<&Postgresql>| {
            let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
            (ready.reason == "NotOurs" && ready.message.contains(secret)).then_some(())
        };
        tenant.wait_for("db", secret, named).await;
        tenant.kubectl(&["label", "secret", secret, &hand_over]).unwrap();
    }
    let about = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        (ready.reason == "NotOurs" && ready.message.contains("data-db-0")).then(|| ready.message.clone())
    };
    let message = tenant.wait_for("db", "waiting for the volume", about).await;
    assert!(message.contains(&format!("kubectl label pvc data-db-0 -n pg-retain {hand_over}")), "{message}");
    tenant.kubectl(&["label", "pvc", "-l", &selector, &hand_over]).unwrap();
    patch(&tenant, "db", json!({"port": 5433})).await.unwrap();
    up(&tenant, "db").await;
    assert_eq!(secret(&tenant, "db-app").await["password"], password);
    // No label says any more that it was left behind.
    let unsettled = tenant.kubectl(&["get", "secret,pvc", "-l", label::RETAINED_FROM, "-o", "name"]).unwrap();
    assert_eq!(unsettled, "persistentvolumeclaim/data-db-standby-0\n", "there are no standbys yet that could have it");
}

#[tokio::test]
async fn its_definition_is_required_at_the_start_and_may_go_and_come_back_later() {
    // A plane of its own, where the kind is missing at times.
    let lab = Lab::own().await;
    let tenant = lab.tenant("pg-late").await;
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crds").join("postgresqls.yaml");
    tenant.kubectl(&["delete", "crd", "postgresqls.apps.bnerd-operator.local"]).unwrap();
    let refused = move || {
        let mut operator = Operator::start(&lab.options()).unwrap();
        (operator.wait().unwrap(), operator.log())
    };
    let (succeeded, log) = tokio::task::spawn_blocking(refused).await.unwrap();
    assert!(!succeeded && log.contains("this cluster does not have kind Postgresql: apply "), "{log}");
    tenant.kubectl(&["create", "-f", crds.to_str().unwrap()]).unwrap();
    let leading = move || lab.start_operator(&lab.options()).unwrap();
    tokio::task::spawn_blocking(leading).await.unwrap();
    tenant.kubectl(&["delete", "crd", "postgresqls.apps.bnerd-operator.local"]).unwrap();

    for delete_first in [true, false] {
        tenant.kubectl(&["create", "-f", crds.to_str().unwrap()]).unwrap();
        tenant.kubectl(&["wait", "--for=condition=Established", "crd/postgresqls.apps.bnerd-operator.local"]).unwrap();
        create(&tenant, "db", json!({})).await.unwrap();
        up(&tenant, "db").await;
        if delete_first {
            delete::<Postgresql>(&tenant, "db").await;
            gone::<Postgresql>(&tenant, "db").await;
        }
        // Removing the kind removes its objects, and with them what they own.
        tenant.kubectl(&["delete", "crd", "postgresqls.apps.bnerd-operator.local", "--timeout=100s"]).unwrap();
        assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
        gone::<Secret>(&tenant, "db-app").await;
        gone::<Service>(&tenant, "db").await;
    }
    let operator = lab.operator().take().unwrap();
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
}
