//! Clusters of CloudNativePG, which [`Played`] plays.

use clientapp_crd::cloudnativepg::{
    BarmanObjectStore, CloudNativePgBackup, CloudNativePgCluster, CloudNativePgPooler, CloudNativePgSchedule,
    STORE_CRD_NAME,
};
use clientapp_crd::conditions::{find, kind::POSTGRES_READY};
use clientapp_crd::{BackupPhase, ClientApp, ClientAppBackup, ClientAppRestore, ClientAppStatus, annotation, label};
use e2e::charts;
use e2e::cloudnativepg::{Played, define, define_plugin};
use e2e::lab::{Lab, Tenant, hostname};
use e2e::scenario::{names, nothing_is_left, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

/// A tenant of a cluster that knows CloudNativePG's kind.
async fn tenant(namespace: &str) -> Tenant {
    let tenant = Lab::shared().await.tenant(namespace).await;
    define(&tenant.client).await.unwrap();
    tenant
}

fn spec(tenant: &Tenant, more: Value) -> Value {
    let postgres = json!({"provider": "cloudnativepg", "version": "17"});
    with(json!({"hostname": hostname(tenant, "acme"), "postgres": postgres, "redis": {"enabled": false}}), more)
}

fn played(tenant: &Tenant) -> Played<'_> {
    Played { tenant, name: "acme-pg" }
}

/// Creates an app whose cluster has come up.
async fn running(tenant: &Tenant, more: Value) {
    tenant.create("acme", spec(tenant, more)).await.unwrap();
    played(tenant).begin().await.unwrap();
    played(tenant).is_healthy().await.unwrap();
    tenant.ready("acme", 1).await;
}

/// Runs the command that a message has in backquotes and that begins like this.
fn follow(tenant: &Tenant, message: &str, begin: &str) {
    let command = message.split('`').find(|part| part.starts_with(begin));
    let command = command.unwrap_or_else(|| panic!("{message} has no command {begin}"));
    let words: Vec<_> = command.split(' ').skip(1).collect();
    tenant.kubectl(&words).unwrap();
}

async fn no_helm_yet(tenant: &Tenant) {
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
}

#[tokio::test]
async fn helm_waits_for_a_cluster_of_cloudnativepg_and_for_what_it_does_not_say() {
    let tenant = tenant("cnpg").await;
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    let condition =
        async |reason: &str, words: &[&str]| tenant.condition_with("acme", ("PostgresReady", reason), words).await;
    condition("Provisioning", &["Cluster acme-pg was created and has no status yet"]).await;
    let cluster = tenant.api::<CloudNativePgCluster>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (cluster.annotations().get(annotation::OWNER_UID), cluster.owner_references()),
        (app.metadata.uid.as_ref(), &[][..])
    );
    assert_eq!(cluster.spec.image_name.as_deref(), Some("ghcr.io/cloudnative-pg/postgresql:17"));
    assert_eq!(cluster.spec.bootstrap, Some(json!({"initdb": {"database": "clientapp", "owner": "clientapp"}})));

    // Its Secret exists, and its status says that it is bootstrapped, long before PostgreSQL runs.
    played(&tenant).begin().await.unwrap();
    let starts = "Cluster acme-pg is not ready: Setting up primary: Creating primary instance acme-pg-1";
    condition("Provisioning", &[starts]).await;
    played(&tenant).cannot_pull().await.unwrap();
    let words = ["of pod acme-pg-1-initdb-", "cannot pull image ghcr.io/cloudnative-pg/postgresql:17"];
    let told = condition("Provisioning", &words).await;
    assert!(told.starts_with(starts), "{told}");
    follow(&tenant, &told, "kubectl delete job acme-pg-1-initdb");
    no_helm_yet(&tenant).await;
    played(&tenant).is_healthy().await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("acme-pg"));

    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let variables = deployment.spec.unwrap().template.spec.unwrap().containers[0].env.clone().unwrap();
    let variable = |name: &str| json!(variables.iter().find(|variable| variable.name == name).unwrap());
    let reference = |name: &str, key: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": "acme-pg-app", "key": key}}});
    assert_eq!(variable("POSTGRES_HOST")["value"], "acme-pg-rw.cnpg.svc.cluster.local");
    assert_eq!(variable("POSTGRES_DB")["value"], "clientapp");
    assert_eq!(variable("POSTGRES_USER"), reference("POSTGRES_USER", "username"));
    assert_eq!(variable("POSTGRES_PASSWORD"), reference("POSTGRES_PASSWORD", "password"));

    // A cluster without pods calls itself ready.
    let hibernates = Patch::Merge(json!({"metadata": {"annotations": {"cnpg.io/hibernation": "on"}}}));
    let clusters = tenant.api::<CloudNativePgCluster>();
    clusters.patch("acme-pg", &PatchParams::default(), &hibernates).await.unwrap();
    played(&tenant).is_hibernated().await.unwrap();
    let told = condition("DatabaseStalled", &["Cluster acme-pg is hibernated"]).await;
    follow(&tenant, &told, "kubectl annotate");
    condition("Provisioning", &["Cluster acme-pg has no ready instance: Cluster in healthy state"]).await;
    played(&tenant).is_healthy().await.unwrap();
    tenant.ready("acme", 1).await;

    // It grows without helm.
    tenant.patch("acme", json!({"postgres": {"storageSize": "2Gi", "instances": 2}})).await.unwrap();
    let grown = |cluster: Option<&CloudNativePgCluster>| {
        let spec = &cluster?.spec;
        (spec.instances == 2 && spec.storage.size.as_deref() == Some("2Gi")).then_some(())
    };
    tenant.wait_for("acme-pg", "grown", grown).await;
    tenant.ready("acme", 1).await;

    // Its volume, which the garbage collector deletes after it, is awaited.
    let finalizers = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    let claims = tenant.api::<PersistentVolumeClaim>();
    claims.patch("acme-pg-1", &PatchParams::default(), &finalizers(json!(["clientapp.test/held"]))).await.unwrap();
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let waits = "waiting for PersistentVolumeClaim acme-pg-1 of the deleted Cluster acme-pg to be gone";
    tenant.held("acme", "DeletingVolumes", &[waits]).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    claims.patch("acme-pg-1", &PatchParams::default(), &finalizers(json!(null))).await.unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_retained_cluster_goes_on_running_and_is_adopted() {
    let tenant = tenant("cnpg-retain").await;
    running(&tenant, json!({"deletionPolicy": "Retain"})).await;
    let clusters = tenant.api::<CloudNativePgCluster>();
    let uid = tenant.uid::<CloudNativePgCluster>("acme-pg").await;
    let parts =
        async || (tenant.uid::<Secret>("acme-pg-app").await, tenant.uid::<PersistentVolumeClaim>("acme-pg-1").await);
    let before = parts().await;
    tenant.delete("acme").await;
    let kept = clusters.get("acme-pg").await.unwrap();
    assert_eq!((kept.uid(), parts().await), (uid.clone(), before.clone()));
    assert_eq!(
        (&kept.labels()[label::RETAINED_FROM][..], kept.annotations().get(annotation::OWNER_UID)),
        ("acme", None)
    );

    // Not by name alone.
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DataRetained", &["Cluster acme-pg", "spec.postgres.adopt to true"]).await;
    tenant.delete("acme").await;
    assert_eq!(tenant.uid::<CloudNativePgCluster>("acme-pg").await, uid);
    let adopts = json!({"provider": "cloudnativepg", "version": "17", "adopt": true});
    tenant.create("acme", spec(&tenant, json!({"postgres": adopts}))).await.unwrap();
    tenant.ready("acme", 1).await;
    let (adopted, app) = (clusters.get("acme-pg").await.unwrap(), tenant.api::<ClientApp>().get("acme").await.unwrap());
    assert_eq!((adopted.uid(), parts().await), (uid, before));
    assert_eq!(
        (adopted.labels().get(label::RETAINED_FROM), adopted.annotations().get(annotation::OWNER_UID)),
        (None, app.metadata.uid.as_ref())
    );
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
}

#[tokio::test]
async fn a_cluster_that_is_deleted_is_not_replaced_by_an_empty_one_unnoticed() {
    let tenant = tenant("cnpg-lost").await;
    running(&tenant, json!({})).await;
    let uid = tenant.uid::<CloudNativePgCluster>("acme-pg").await.unwrap();
    tenant.kubectl(&["delete", "clusters.postgresql.cnpg.io", "acme-pg"]).unwrap();
    let words = ["Cluster acme-pg was deleted, and its data with it", uid.as_str()];
    let told = tenant.condition_with("acme", ("PostgresReady", "DatabaseLost"), &words).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    until("its parts are gone", async || {
        let parts = [names::<Secret>(&tenant).await, names::<Service>(&tenant).await, names::<Job>(&tenant).await];
        !parts.concat().iter().any(|part| part.starts_with("acme-pg-"))
    })
    .await;
    follow(&tenant, &told, "kubectl annotate");
    played(&tenant).begin().await.unwrap();
    played(&tenant).is_healthy().await.unwrap();
    tenant.condition("acme", "PostgresReady", "True", "Ready").await;
    assert_ne!(tenant.uid::<CloudNativePgCluster>("acme-pg").await, Some(uid));
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_cluster_or_a_volume_of_another_owner_is_not_taken_over() {
    let tenant = tenant("cnpg-theirs").await;
    let clusters = tenant.api::<CloudNativePgCluster>();
    let meta = json!({"name": "acme-pg", "labels": {label::APP: "acme"}});
    let theirs = json!({
        "apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "metadata": meta,
        "spec": {"instances": 1, "storage": {"size": "1Gi"}},
    });
    let theirs = clusters.create(&PostParams::default(), &serde_json::from_value(theirs).unwrap()).await.unwrap();
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DatabaseNotOurs", &["Cluster acme-pg", "not taken over"]).await;
    no_helm_yet(&tenant).await;
    tenant.delete("acme").await;
    let found = clusters.get("acme-pg").await.unwrap();
    assert_eq!((found.uid(), found.resource_version()), (theirs.uid(), theirs.resource_version()));
    clusters.delete("acme-pg", &DeleteParams::default()).await.unwrap();

    // CloudNativePG would take over a volume with its label and no owner.
    let spec_of_claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim =
        json!({"metadata": {"name": "acme-pg-1", "labels": {"cnpg.io/cluster": "acme-pg"}}, "spec": spec_of_claim});
    let claims = tenant.api::<PersistentVolumeClaim>();
    claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    tenant.create("acme", spec(&tenant, json!({}))).await.unwrap();
    tenant.held("acme", "DataRetained", &["PersistentVolumeClaim acme-pg-1"]).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    tenant.delete("acme").await;
    claims.delete("acme-pg-1", &DeleteParams::default()).await.unwrap();
    nothing_is_left(&tenant).await;
}

fn with_bucket() -> Value {
    let store = json!({
        "endpoint": "https://s3.example.com", "bucket": "backups", "region": "eu", "prefix": "production",
        "credentialsSecret": {"name": "s3"}, "keep": {"daily": 30},
    });
    json!({"provider": "cloudnativepg", "version": "17", "backup": {"schedule": "0 3 * * *", "store": store}})
}

/// Returns a document as it is stored, with all fields, once it is: the status has it before it is made.
async fn stored(tenant: &Tenant, resource: &str, name: &str) -> Value {
    let get = async || tenant.kubectl(&["get", resource, name, "-o", "json"]);
    serde_json::from_str(&until(&format!("{resource} {name} is stored"), get).await).unwrap()
}

async fn back_up(tenant: &Tenant, name: &str) -> String {
    let backup = json!({"metadata": {"name": name}, "spec": {"of": {"name": "acme"}, "parts": ["Database"]}});
    let backup = serde_json::from_value(backup).unwrap();
    let made = tenant.api::<ClientAppBackup>().create(&PostParams::default(), &backup).await.unwrap();
    let short: String = made.uid().unwrap().chars().filter(char::is_ascii_alphanumeric).take(10).collect();
    format!("acme-pg-{short}")
}

async fn backup_is(tenant: &Tenant, name: &str, phase: BackupPhase, words: &str) {
    let is = |found: Option<&ClientAppBackup>| {
        let status = found?.status.as_ref()?;
        let told = status.conditions.iter().any(|condition| condition.message.contains(words));
        (status.phase == Some(phase) && told).then_some(())
    };
    tenant.wait_for(name, words, is).await;
}

/// The plugin archives under a name that no other Cluster has, and backs up on request and before an upgrade.
#[tokio::test]
async fn a_cluster_is_backed_up_by_the_plugin_into_a_directory_of_its_own() {
    let tenant = tenant("cnpg-backups").await;
    define_plugin(&tenant.client).await.unwrap();
    tenant.create("acme", spec(&tenant, json!({"postgres": with_bucket()}))).await.unwrap();
    let archives = |found: Option<&CloudNativePgCluster>| Some((found?.archive()?, found?.uid()?));
    let (archive, uid) = tenant.wait_for("acme-pg", "with the plugin", archives).await;
    let server = format!("acme-pg-{}", uid.split('-').next().unwrap());
    assert_eq!((&*archive.store, &*archive.server), ("acme-pg", &*server));
    let store = stored(&tenant, STORE_CRD_NAME, "acme-pg").await;
    let configuration = &store["spec"]["configuration"];
    assert_eq!(configuration["destinationPath"], "s3://backups/production/cnpg-backups");
    assert_eq!(configuration["s3Credentials"]["accessKeyId"], json!({"name": "s3", "key": "AWS_ACCESS_KEY_ID"}));
    assert_eq!(store["spec"]["retentionPolicy"], "30d");
    let schedule = stored(&tenant, "scheduledbackups.postgresql.cnpg.io", "acme-pg").await;
    assert_eq!(schedule["spec"]["schedule"], "0 0 3 * * *");
    for part in [&store, &schedule] {
        assert_eq!(part["metadata"]["ownerReferences"][0]["uid"], uid);
    }
    played(&tenant).begin().await.unwrap();
    played(&tenant).is_healthy().await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.condition("acme", "BackedUp", "Unknown", "NoDatabaseBackup").await;

    // One that another client deletes is made again.
    tenant.kubectl(&["delete", STORE_CRD_NAME, "acme-pg"]).unwrap();
    tenant.wait_for("acme-pg", "made again", |found: Option<&BarmanObjectStore>| found.map(drop)).await;

    // On request: it waits, and fails or is complete as its phase says, whatever else the Cluster says.
    let backup = back_up(&tenant, "first").await;
    let made = tenant.wait_for(&backup, "made", |found: Option<&CloudNativePgBackup>| found.cloned()).await;
    assert_eq!((&*made.spec.cluster.name, made.spec.method.as_deref()), ("acme-pg", Some("plugin")));
    played(&tenant).backup_is(&backup, json!({"phase": "pending"})).await.unwrap();
    backup_is(&tenant, "first", BackupPhase::Running, "waits until its pod is ready").await;
    let error = "rpc error: code = Unknown desc = exit status 2";
    let failed = json!({"phase": "failed", "error": error, "stoppedAt": "2026-01-31T03:00:00Z"});
    played(&tenant).backup_is(&backup, failed).await.unwrap();
    backup_is(&tenant, "first", BackupPhase::Failed, error).await;
    tenant.condition_with("acme", ("BackedUp", "DatabaseBackupFailed"), &[&*backup, error]).await;
    let backup = back_up(&tenant, "second").await;
    tenant.wait_for(&backup, "made", |found: Option<&CloudNativePgBackup>| found.map(drop)).await;
    played(&tenant).completes(&backup).await.unwrap();
    backup_is(&tenant, "second", BackupPhase::Completed, &format!("Backup {backup}")).await;
    tenant.condition("acme", "BackedUp", "True", "DatabaseBackedUp").await;

    // Before an upgrade.
    let upgrade = json!({"chartVersion": charts::PATCH, "upgrade": {"backup": true}});
    tenant.patch("acme", upgrade).await.unwrap();
    let running = |found: &CloudNativePgBackup| found.phase().is_empty();
    let name = until("the backup before the upgrade", async || {
        let backups = tenant.api::<CloudNativePgBackup>().list(&Default::default()).await.unwrap();
        backups.items.into_iter().find(running).map(|found| found.name_any()).ok_or("there is none")
    })
    .await;
    played(&tenant).completes(&name).await.unwrap();
    tenant.ready("acme", 2).await;

    // The store is down, and the Cluster calls itself ready.
    played(&tenant).cannot_archive().await.unwrap();
    tenant.condition_with("acme", ("BackedUp", "DatabaseBackupFailed"), &["cannot archive WAL", "exit status 2"]).await;
    tenant.patch("acme", json!({"postgres": {"backup": {"store": {"bucket": "other"}}}})).await.unwrap_err();

    // What was made for it goes with it. Nothing deletes what is in the bucket.
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    until("its parts are gone", async || {
        let parts = [
            names::<BarmanObjectStore>(&tenant).await,
            names::<CloudNativePgSchedule>(&tenant).await,
            names::<CloudNativePgBackup>(&tenant).await,
        ];
        if parts.concat().is_empty() { Ok(()) } else { Err(format!("{parts:?}")) }
    })
    .await;
}

/// A Cluster is never restored in place; a copy is created from the directory of the first, and archives into another.
#[tokio::test]
async fn another_app_is_created_from_the_backups_of_a_cluster() {
    let tenant = tenant("cnpg-copy").await;
    define_plugin(&tenant.client).await.unwrap();
    running(&tenant, json!({"postgres": with_bucket()})).await;
    let archive = async |name: &str| {
        tenant.wait_for(name, "with the plugin", |found: Option<&CloudNativePgCluster>| found?.archive()).await
    };
    let first = archive("acme-pg").await;
    let backup = back_up(&tenant, "b").await;
    tenant.wait_for(&backup, "made", |found: Option<&CloudNativePgBackup>| found.map(drop)).await;
    played(&tenant).completes(&backup).await.unwrap();
    backup_is(&tenant, "b", BackupPhase::Completed, &backup).await;

    let restore = async |name: &str, more: Value| {
        let spec = with(json!({"of": {"name": "acme"}, "backup": "b"}), more);
        let restore = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        tenant.api::<ClientAppRestore>().create(&PostParams::default(), &restore).await.unwrap();
    };
    let is = async |name: &str, phase: BackupPhase, words: &str| {
        let is = |found: Option<&ClientAppRestore>| {
            let status = found?.status.as_ref()?;
            let told = status.conditions.iter().any(|condition| condition.message.contains(words));
            (status.phase == Some(phase) && told).then_some(())
        };
        tenant.wait_for(name, words, is).await;
    };
    restore("in-place", json!({})).await;
    is("in-place", BackupPhase::Failed, "set spec.into").await;
    let how = tenant.api::<ClientAppRestore>().get("in-place").await.unwrap().status.unwrap().conditions;
    let how = how.iter().find_map(|condition| condition.message.split("-p '").nth(1)?.split('\'').next()).unwrap();
    let how: Value = serde_json::from_str(how).unwrap();
    let source = json!({"serverName": first.server, "backup": "20260131T030000", "objectStore": null, "time": null});
    let options = json!({"cluster": "acme-pg-2", "dataSource": source});
    assert_eq!(how["spec"]["postgres"], json!({"adopt": false, "cloudnativepg": options}));

    restore("copy", json!({"into": {"name": "then", "hostname": hostname(&tenant, "then")}})).await;
    let recovers = |found: Option<&CloudNativePgCluster>| found?.spec.bootstrap.clone();
    let bootstrap = tenant.wait_for("then-pg", "created", recovers).await;
    let recovery = json!({
        "source": "source", "database": "clientapp", "owner": "clientapp",
        "recoveryTarget": {"backupID": "20260131T030000", "targetImmediate": true},
    });
    assert_eq!(bootstrap, json!({"recovery": recovery}));
    let second = archive("then-pg").await;
    let cluster = stored(&tenant, "clusters.postgresql.cnpg.io", "then-pg").await;
    let parameters = &cluster["spec"]["externalClusters"][0]["plugin"]["parameters"];
    assert_eq!(*parameters, json!({"barmanObjectName": "then-pg", "serverName": first.server}));
    assert_eq!(cluster["spec"]["bootstrap"], bootstrap, "it keeps how it was created");
    assert_ne!(first.server, second.server);
    let path = async |name: &str| stored(&tenant, STORE_CRD_NAME, name).await["spec"]["configuration"].clone();
    assert_eq!(path("then-pg").await["destinationPath"], path("acme-pg").await["destinationPath"]);
    let then = Played { tenant: &tenant, name: "then-pg" };
    then.begin().await.unwrap();
    then.is_healthy().await.unwrap();
    is("copy", BackupPhase::Completed, "set dbhost to then-pg-rw").await;
    tenant.delete("then").await;
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

/// Returns what `spec.postgres` becomes for a move to another Cluster, which is created from a backup.
fn moved(cluster: &str) -> Value {
    let source = json!({"serverName": "acme-pg-5f0c2c0e", "backup": "20260131T030000"});
    json!({"postgres": {"cloudnativepg": {"cluster": cluster, "dataSource": source}}})
}

async fn in_use(tenant: &Tenant) -> Option<String> {
    tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap().postgres_cluster_name
}

async fn host(tenant: &Tenant) -> String {
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let variables = deployment.spec.unwrap().template.spec.unwrap().containers[0].env.clone().unwrap();
    variables.into_iter().find(|variable| variable.name == "POSTGRES_HOST").and_then(|found| found.value).unwrap()
}

/// Waits until the condition that is true names the Cluster that the app has left, and returns its message.
async fn names_former(tenant: &Tenant, cluster: &str) -> String {
    let words = format!("the former Cluster {cluster} goes on running");
    let message = |status: &ClientAppStatus| {
        let ready = find(&status.conditions, POSTGRES_READY).filter(|ready| ready.status == "True")?;
        ready.message.contains(&words).then(|| ready.message.clone())
    };
    message(&tenant.status("acme", &words, |status| message(status).is_some()).await).unwrap()
}

/// An app returns to a backup in a new Cluster, and from there to its former one. No Cluster is deleted but the one in use, with the app.
#[tokio::test]
async fn an_app_moves_to_a_cluster_from_a_backup_and_back() {
    let tenant = tenant("cnpg-move").await;
    define_plugin(&tenant.client).await.unwrap();
    running(&tenant, json!({"postgres": with_bucket()})).await;
    let before = stored(&tenant, "clusters.postgresql.cnpg.io", "acme-pg").await;
    let second = Played { tenant: &tenant, name: "acme-pg-2" };
    let postgres =
        async |reason: &str, words: &[&str]| tenant.condition_with("acme", ("PostgresReady", reason), words).await;

    // Without a backup, it would be an empty one.
    tenant.patch("acme", json!({"postgres": {"cloudnativepg": {"cluster": "acme-pg-0"}}})).await.unwrap();
    postgres("DataSourceMissing", &["Cluster acme-pg-0 does not exist", "the app stays with acme-pg"]).await;
    let late = json!({"postgres": {"cloudnativepg": {"dataSource": {"serverName": "acme-pg-5f0c2c0e"}}}});
    let refused = tenant.patch("acme", late).await.unwrap_err().to_string();
    assert!(refused.contains("name another Cluster in cluster at the same time"), "{refused}");

    // helm waits until it is ready.
    tenant.patch("acme", moved("acme-pg-2")).await.unwrap();
    let bootstrap = |found: Option<&CloudNativePgCluster>| found?.spec.bootstrap.clone();
    let bootstrap = tenant.wait_for("acme-pg-2", "created", bootstrap).await;
    assert_eq!(
        bootstrap["recovery"]["recoveryTarget"],
        json!({"backupID": "20260131T030000", "targetImmediate": true})
    );
    postgres("Provisioning", &["Cluster acme-pg-2", "the app stays with acme-pg until then"]).await;
    second.begin().await.unwrap();
    postgres("Provisioning", &["Setting up primary", "the app stays with acme-pg until then"]).await;
    assert_eq!((in_use(&tenant).await.as_deref(), tenant.listed("acme").unwrap().0.as_str()), (Some("acme-pg"), "1"));
    assert_eq!(host(&tenant).await, "acme-pg-rw.cnpg-move.svc.cluster.local");
    second.is_healthy().await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(in_use(&tenant).await.as_deref(), Some("acme-pg-2"));
    assert_eq!(host(&tenant).await, "acme-pg-2-rw.cnpg-move.svc.cluster.local");

    // The former one is retained, and nothing else of it changes.
    let told = names_former(&tenant, "acme-pg").await;
    tenant.event("acme", "DataKept", "Cluster acme-pg goes on running").await;
    let after = stored(&tenant, "clusters.postgresql.cnpg.io", "acme-pg").await;
    assert_eq!((&after["spec"], &after["metadata"]["uid"]), (&before["spec"], &before["metadata"]["uid"]));
    assert_eq!(after["metadata"]["labels"][label::RETAINED_FROM], "acme");
    assert_eq!(after["metadata"]["annotations"].get(annotation::OWNER_UID), None);

    // It comes back only on request, and as it is.
    follow(&tenant, &told, "kubectl annotate");
    let back = json!({"postgres": {"cloudnativepg": {"cluster": "acme-pg", "dataSource": null}}});
    tenant.patch("acme", back).await.unwrap();
    tenant.held("acme", "DataRetained", &["Cluster acme-pg", "spec.postgres.adopt to true"]).await;
    tenant.patch("acme", json!({"postgres": {"adopt": true}})).await.unwrap();
    let told = postgres("DatabaseStalled", &["Cluster acme-pg is hibernated", "stays with acme-pg-2"]).await;
    follow(&tenant, &told, "kubectl annotate");
    tenant.ready("acme", 3).await;
    assert_eq!(in_use(&tenant).await.as_deref(), Some("acme-pg"));
    names_former(&tenant, "acme-pg-2").await;

    tenant.delete("acme").await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, ["acme-pg-2"]);
    tenant.event("acme", "DataKept", "Cluster acme-pg-2 stays: the ClientApp had moved to another").await;
    tenant.kubectl(&["delete", "clusters.postgresql.cnpg.io", "acme-pg-2"]).unwrap();
    nothing_is_left(&tenant).await;
}

/// A move is the way out of a loss, and is not mistaken for one. While it is under way, both Clusters are the app's.
#[tokio::test]
async fn a_lost_cluster_is_left_and_a_deletion_during_a_move_leaves_none() {
    let tenant = tenant("cnpg-move-lost").await;
    define_plugin(&tenant.client).await.unwrap();
    running(&tenant, json!({"postgres": with_bucket()})).await;

    // No other app gets it.
    let theirs = json!({"hostname": hostname(&tenant, "other"), "postgres": {"cloudnativepg": {"cluster": "acme-pg"}}});
    let theirs = json!({"hostname": theirs["hostname"], "postgres": with(with_bucket(), theirs["postgres"].clone())});
    tenant.create("other", theirs).await.unwrap();
    tenant.held("other", "DatabaseNotOurs", &["Cluster acme-pg exists and is ClientApp acme's"]).await;
    tenant.delete("other").await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, ["acme-pg"]);

    tenant.kubectl(&["delete", "clusters.postgresql.cnpg.io", "acme-pg"]).unwrap();
    let words = ["Cluster acme-pg was deleted", "name another in spec.postgres.cloudnativepg.cluster"];
    tenant.condition_with("acme", ("PostgresReady", "DatabaseLost"), &words).await;
    tenant.patch("acme", moved("acme-pg-2")).await.unwrap();
    let second = Played { tenant: &tenant, name: "acme-pg-2" };
    second.begin().await.unwrap();
    second.is_healthy().await.unwrap();
    let status = tenant.ready("acme", 2).await;
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("acme-pg-2"));
    let recorded = |status: &ClientAppStatus| {
        let clusters = status.owned.iter().filter(|entry| entry.kind == "Cluster");
        clusters.map(|entry| entry.name.clone()).collect::<Vec<_>>()
    };
    tenant.status("acme", "the lost one is forgotten", |status| recorded(status) == ["acme-pg-2"]).await;

    // One that the app only was to move to is not lost, but created again.
    tenant.patch("acme", moved("acme-pg-3")).await.unwrap();
    let third = Played { tenant: &tenant, name: "acme-pg-3" };
    third.begin().await.unwrap();
    tenant.status("acme", "on record", |status| recorded(status) == ["acme-pg-2", "acme-pg-3"]).await;
    let uid = tenant.uid::<CloudNativePgCluster>("acme-pg-3").await;
    tenant.kubectl(&["delete", "clusters.postgresql.cnpg.io", "acme-pg-3"]).unwrap();
    let again = |found: Option<&CloudNativePgCluster>| found.filter(|found| found.uid() != uid).map(drop);
    tenant.wait_for("acme-pg-3", "created again", again).await;

    tenant.delete("acme").await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    nothing_is_left(&tenant).await;
}

/// The app is moved once the Pooler answers, and the Pooler is deleted once the app is back at the Cluster's own Service.
#[tokio::test]
async fn an_app_connects_through_a_pooler_and_goes_back() {
    let tenant = tenant("cnpg-pooler").await;
    running(&tenant, json!({})).await;
    let condition =
        async |reason: &str, words: &[&str]| tenant.condition_with("acme", ("PostgresReady", reason), words).await;
    let with = |pooler: Value| json!({"postgres": {"cloudnativepg": {"pooler": pooler}}});
    for (parameters, words) in [
        (json!({"auth_type": "any"}), "it controls access to the server"),
        (json!({"max_client_conn": "5\nauth_type = any"}), "must not contain line breaks"),
    ] {
        let refused = tenant.patch("acme", with(json!({"parameters": parameters}))).await.unwrap_err().to_string();
        assert!(refused.contains(words), "{refused}");
    }
    let parameters = json!({"max_client_conn": "500"});
    tenant.patch("acme", with(json!({"poolMode": "transaction", "parameters": parameters}))).await.unwrap();
    condition("Provisioning", &["Service acme-pg-pooler has no ready address"]).await;
    let stored = stored(&tenant, "poolers.postgresql.cnpg.io", "acme-pg-pooler").await;
    let expected = json!({
        "cluster": {"name": "acme-pg"}, "type": "rw", "instances": 1,
        "pgbouncer": {"poolMode": "transaction", "parameters": parameters, "paused": false},
    });
    assert_eq!(stored["spec"], expected);
    played(&tenant).pooler_answers(false).await.unwrap();
    condition("Provisioning", &["Service acme-pg-pooler has no ready address"]).await;
    assert_eq!(host(&tenant).await, "acme-pg-rw.cnpg-pooler.svc.cluster.local");
    played(&tenant).pooler_answers(true).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(host(&tenant).await, "acme-pg-pooler.cnpg-pooler.svc.cluster.local");

    // It comes back if a user deletes it.
    let poolers = tenant.api::<CloudNativePgPooler>();
    let uid = poolers.get("acme-pg-pooler").await.unwrap().uid();
    poolers.delete("acme-pg-pooler", &DeleteParams::default()).await.unwrap();
    let is_another = |pooler: Option<&CloudNativePgPooler>| (pooler?.uid() != uid).then_some(());
    tenant.wait_for("acme-pg-pooler", "there again", is_another).await;
    played(&tenant).pooler_answers(true).await.unwrap();
    tenant.ready("acme", 2).await;

    tenant.patch("acme", with(json!(null))).await.unwrap();
    tenant.ready("acme", 3).await;
    assert_eq!(host(&tenant).await, "acme-pg-rw.cnpg-pooler.svc.cluster.local");
    let is_gone = |pooler: Option<&CloudNativePgPooler>| pooler.is_none().then_some(());
    tenant.wait_for("acme-pg-pooler", "gone", is_gone).await;

    // What another has made under its name stays theirs.
    let theirs = json!({
        "apiVersion": "postgresql.cnpg.io/v1", "kind": "Pooler", "metadata": {"name": "acme-pg-pooler"},
        "spec": {"cluster": {"name": "acme-pg"}, "pgbouncer": {"poolMode": "session"}},
    });
    poolers.patch("acme-pg-pooler", &PatchParams::apply("user"), &Patch::Apply(&theirs)).await.unwrap();
    tenant.patch("acme", with(json!({}))).await.unwrap();
    condition("DatabaseNotOurs", &["Pooler acme-pg-pooler exists and is not of Cluster acme-pg"]).await;
    tenant.patch("acme", with(json!(null))).await.unwrap();
    tenant.ready("acme", 3).await;
    tenant.delete("acme").await;
    assert_eq!(names::<CloudNativePgPooler>(&tenant).await, ["acme-pg-pooler"]);
}
