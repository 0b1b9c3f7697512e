//! The facts about the Percona operator, which is the real one, that the code relies on and no scenario shows: those of databases run with it, too.

use clientapp_crd::percona::{
    CLUSTER_LABEL, DELETE_PVC, PerconaPGBackup, PerconaPGBackupStatus, PerconaPGCluster, PerconaPGClusterStatus,
    READY_FOR_BACKUP, names_volume,
};
use e2e::lab::{Lab, Tenant};
use e2e::percona::Knobs;
use e2e::wait::until;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

/// Returns the API of one of Percona's kinds, untyped.
fn objects(tenant: &Tenant, kind: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", kind));
    Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &resource)
}

/// Applies an object of one of these kinds, strictly.
async fn apply(tenant: &Tenant, kind: &str, metadata: Value, spec: Value) -> kube::Result<DynamicObject> {
    let name = metadata["name"].as_str().expect("it has a name").to_owned();
    let object = json!({"apiVersion": "pgv2.percona.com/v2", "kind": kind, "metadata": metadata, "spec": spec});
    let strict = PatchParams::apply("test").validation_strict();
    objects(tenant, kind).patch(&name, &strict, &Patch::Apply(object)).await
}

async fn cluster(tenant: &Tenant, name: &str, spec: Value) {
    let metadata = json!({"name": name, "finalizers": [DELETE_PVC]});
    apply(tenant, "PerconaPGCluster", metadata, spec).await.unwrap();
}

async fn merge(tenant: &Tenant, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    tenant.api::<PerconaPGCluster>().patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the check accepts a cluster's status.
async fn status(
    tenant: &Tenant,
    name: &str,
    what: &str,
    is: impl Fn(&PerconaPGClusterStatus) -> bool,
) -> PerconaPGClusterStatus {
    tenant.wait_for(name, what, |found: Option<&PerconaPGCluster>| found?.status.clone().filter(&is)).await
}

async fn in_state(tenant: &Tenant, name: &str, state: &str) -> PerconaPGClusterStatus {
    status(tenant, name, state, |status| status.state.as_deref() == Some(state)).await
}

fn can_back_up(status: &PerconaPGClusterStatus) -> bool {
    status.conditions.iter().any(|condition| condition.kind == READY_FOR_BACKUP && condition.status == "True")
}

async fn back_up(tenant: &Tenant, cluster: &str, name: &str) {
    let spec = json!({"pgCluster": cluster, "repoName": "repo1"});
    apply(tenant, "PerconaPGBackup", json!({"name": name}), spec).await.unwrap();
}

async fn backup_is(tenant: &Tenant, name: &str, state: &str) -> PerconaPGBackupStatus {
    let status =
        |found: Option<&PerconaPGBackup>| found?.status.clone().filter(|it| it.state.as_deref() == Some(state));
    tenant.wait_for(name, state, status).await
}

/// Waits until Percona has seen a backup, and checks that it does not begin.
async fn backup_waits(tenant: &Tenant, name: &str) {
    let state = until("Percona has seen it", async || {
        let found = objects(tenant, "PerconaPGBackup").get(name).await.unwrap();
        let status = &found.data["status"];
        let seen = !found.finalizers().is_empty() || status["conditions"].is_array();
        seen.then(|| status["state"].clone())
    });
    assert_eq!(state.await, Value::Null, "{name}");
}

fn spec() -> Value {
    json!({
        "crVersion": "2.9.0",
        "image": "percona/percona-distribution-postgresql:18.3-2",
        "postgresVersion": 18,
        "users": [{
            "name": "clientapp", "databases": ["clientapp"], "password": {"type": "AlphaNumeric"},
            "grantPublicSchemaAccess": true,
        }],
        "instances": [{"name": "instance1", "replicas": 1, "dataVolumeClaimSpec": claim()}],
        "proxy": {"pgBouncer": {"replicas": 1, "image": "percona/percona-pgbouncer:1.25.1-1"}},
        "backups": {"enabled": false, "pgbackrest": {"image": "percona/percona-pgbackrest:2.58.0-1"}},
    })
}

fn claim() -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}})
}

/// Returns the spec with some fields replaced, or left out where they are null.
fn with(change: Value) -> Value {
    let mut spec = spec();
    let fields = spec.as_object_mut().unwrap();
    fields.extend(change.as_object().unwrap().clone());
    fields.retain(|_, value| !value.is_null());
    spec
}

/// Returns a spec with a volume for backups.
fn backed_up(enabled: bool) -> Value {
    let repos = json!([{"name": "repo1", "volume": {"volumeClaimSpec": claim()}}]);
    let image = "percona/percona-pgbackrest:2.58.0-1";
    with(json!({"backups": {"enabled": enabled, "pgbackrest": {"image": image, "repos": repos}}}))
}

#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn the_users_secret_has_a_password_that_needs_no_quotes_and_no_owner() {
    let tenant = Lab::unattended().await.tenant("percona-ready").await;
    cluster(&tenant, "ready", spec()).await;
    let status = in_state(&tenant, "ready", "ready").await;
    let counts = [status.postgres, status.pgbouncer].map(|count| count.map(|count| (count.size, count.ready)));
    assert_eq!(counts, [Some((1, 1)); 2]);
    let secret = tenant.api::<Secret>().get("ready-pguser-clientapp").await.unwrap();
    assert_eq!(secret.metadata.owner_references, None);
    assert_eq!(secret.labels()["postgres-operator.crunchydata.com/role"], "pguser");
    let value = |key: &str| String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap();
    let password = value("password");
    assert!(password.len() >= 24 && password.chars().all(|letter| letter.is_ascii_alphanumeric()));
    assert_eq!(value("user"), "clientapp");
}

#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn without_a_pgbouncer_zero_of_zero_is_ready() {
    let tenant = Lab::unattended().await.tenant("percona-direct").await;
    cluster(&tenant, "direct", with(json!({"proxy": null}))).await;
    let pgbouncer = in_state(&tenant, "direct", "ready").await.pgbouncer.unwrap_or_default();
    assert_eq!((pgbouncer.size, pgbouncer.ready), (0, 0));
}

#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn without_images_there_is_an_event_and_nothing_else() {
    let tenant = Lab::unattended().await.tenant("percona-imageless").await;
    for (name, change, missing) in [
        ("imageless", json!({"proxy": {"pgBouncer": {"replicas": 1}}}), "crunchy-pgbouncer"),
        // Even where backups are disabled.
        ("unsaveable", json!({"backups": {"enabled": false}}), "crunchy-pgbackrest"),
    ] {
        cluster(&tenant, name, with(change)).await;
        tenant.events_with(name, "MissingRequiredImage", &format!("Missing image(s): [{missing}]")).await;
        let status = in_state(&tenant, name, "initializing").await;
        assert_eq!(status.postgres.unwrap_or_default().size, 0, "{name}");
        assert_eq!(tenant.uid::<Secret>(&format!("{name}-pguser-clientapp")).await, None, "{name}");
    }
}

/// A kind, what is changed in the spec of a cluster, or else the whole spec, and the refusal.
const REFUSED: &str = r#"
Cluster | {"backups": null} | spec.backups: Required value
Cluster | {"postgresVersion": 14} | PostgresVersion must be >= 15 if grantPublicSchemaAccess
Cluster | {"backups": {"pgbackrest": {}}} | At least one repository must be configured
Cluster | {"backups": {"pgbackrest": {"repos": []}}} | At least one repository must be configured
Cluster | {"backups": {"pgbackrest": {"repos": [{"name": "repo5"}]}}} | repos[0].name
Cluster | {"backups": {"pgbackrest": {"repos": [{"name": "repo1", "volume": {}}]}}} | repos[0].volume.volumeClaimSpec: Required value
Cluster | {"backups": {"pgbackrest": {"repos": [{"name": "repo1"}], "retention": 1}}} | .spec.backups.pgbackrest.retention: field not declared
Cluster | {"dataSource": {"pgbackrest": {"repo": {"name": "repo1"}}}} | spec.dataSource.pgbackrest.stanza: Required value
Cluster | {"dataSource": {"postgresCluster": {"clusterName": "a"}}} | spec.dataSource.postgresCluster.repoName: Required value
Cluster | {"dataSource": {"postgresCluster": {"repoName": "repo1", "set": "x"}}} | .postgresCluster.set: field not declared in schema
Backup | {"repoName": "repo1"} | spec.pgCluster: Required value
Backup | {"pgCluster": "a"} | repoName is required when method is 'pgbackrest'
Restore | {"repoName": "repo1"} | spec.pgCluster: Required value
Restore | {"pgCluster": "a"} | either repoName or volumeSnapshotBackupName must be set
Restore | {"pgCluster": "a", "repoName": "repo1", "time": "now"} | .spec.time: field not declared in schema
"#;

#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn what_the_definitions_refuse() {
    let tenant = Lab::unattended().await.tenant("percona-refused").await;
    for row in REFUSED.trim().lines() {
        let [kind, change, complaint] = row.split(" | ").collect::<Vec<_>>().try_into().unwrap();
        let change = serde_json::from_str(change).unwrap();
        let refused = if kind == "Cluster" { with(change) } else { change };
        let refusal = apply(&tenant, &format!("PerconaPG{kind}"), json!({"name": "refused"}), refused).await;
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains(complaint), "{row}: {refusal}");
    }
}

/// It says nothing while another backup runs, and little when it has failed.
#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn what_a_backup_says_and_that_its_cluster_goes_without_it() {
    let tenant = Lab::unattended().await.tenant("percona-kept").await;
    tenant.percona("kept", Knobs { hold_backups: true, ..Knobs::default() });
    cluster(&tenant, "kept", backed_up(true)).await;
    status(&tenant, "kept", "ready for a backup", can_back_up).await;
    let volume = tenant.api::<PersistentVolumeClaim>().get("kept-repo1").await.unwrap();
    assert!(names_volume("kept", "kept-repo1"));
    assert_eq!((volume.labels()[CLUSTER_LABEL].as_str(), volume.owner_references()), ("kept", &[][..]));
    let backups = tenant.api::<PerconaPGBackup>();
    let unasked = backups.list(&ListParams::default()).await.unwrap();
    assert_eq!(unasked.items.len(), 1);
    backup_is(&tenant, &unasked.items[0].name_any(), "Succeeded").await;

    back_up(&tenant, "kept", "first").await;
    assert!(backup_is(&tenant, "first", "Running").await.result.completed.is_none());
    back_up(&tenant, "kept", "second").await;
    backup_waits(&tenant, "second").await;
    tenant.percona("kept", Knobs::default());
    let PerconaPGBackupStatus { error, result, .. } = backup_is(&tenant, "first", "Succeeded").await;
    assert!(result.completed.is_some() && result.backup_name.is_some(), "{result:?}");
    // In pgBackRest's word, and not in one of the definition's.
    assert_eq!((result.backup_type.as_deref(), result.destination, error), (Some("incr"), None, None));
    backup_is(&tenant, "second", "Succeeded").await;
    tenant.percona("kept", Knobs { fail_backups: true, ..Knobs::default() });
    back_up(&tenant, "kept", "third").await;
    let PerconaPGBackupStatus { error, result, .. } = backup_is(&tenant, "third", "Failed").await;
    assert_eq!((error, result.completed), (None, None));

    tenant.api::<PerconaPGCluster>().delete("kept", &DeleteParams::default()).await.unwrap();
    tenant.wait_for("kept", "gone", |found: Option<&PerconaPGCluster>| found.is_none().then_some(())).await;
    tenant.wait_for("kept-repo1", "gone", |found: Option<&PersistentVolumeClaim>| found.is_none().then_some(())).await;
    assert_eq!(backups.list(&ListParams::default()).await.unwrap().items.len(), 4);
}

#[tokio::test]
#[ignore = "only a change of Percona's version breaks it: cargo e2e nightly"]
async fn a_backup_that_comes_too_early_fails_or_waits() {
    let tenant = Lab::unattended().await.tenant("percona-early").await;
    back_up(&tenant, "early", "clusterless").await;
    backup_waits(&tenant, "clusterless").await;
    cluster(&tenant, "early", backed_up(false)).await;
    let error = backup_is(&tenant, "clusterless", "Failed").await.error;
    assert_eq!(error.as_deref(), Some("Backups are not enabled in the PerconaPGCluster configuration"));

    assert!(!can_back_up(&in_state(&tenant, "early", "ready").await));
    tenant.percona("early", Knobs { hold: true, ..Knobs::default() });
    merge(&tenant, "early", json!({"backups": {"enabled": true}})).await;
    back_up(&tenant, "early", "unready").await;
    assert_eq!(backup_is(&tenant, "unready", "Failed").await.error, None);
    tenant.percona("early", Knobs::default());
    status(&tenant, "early", "ready for a backup", can_back_up).await;
    back_up(&tenant, "early", "timely").await;
    backup_is(&tenant, "timely", "Succeeded").await;

    merge(&tenant, "early", json!({"pause": true})).await;
    in_state(&tenant, "early", "paused").await;
    back_up(&tenant, "early", "paused").await;
    backup_waits(&tenant, "paused").await;
    merge(&tenant, "early", json!({"pause": false})).await;
    in_state(&tenant, "early", "ready").await;
}
