//! The operator's account uses exactly the rights that it is granted, role by role, and so do the deployers that it
//! impersonates: every right is used at least once, and no request is refused.

use std::collections::BTreeSet;
use std::fs;

use clientapp_crd::DEPLOYER;
use clientapp_crd::{
    BackupPhase, ClientApp, ClientAppBackup, ClientAppRestore, ClientAppStatus, PostgresWriter, PostgresWriterSpec,
    Postgresql,
    cloudnativepg::{CloudNativePgCluster, CloudNativePgPooler},
    conditions,
};
use e2e::lab::{IMAGE, Lab, TIMEOUT, Tenant, hostname};
use e2e::operator::{Operator, Options};
use e2e::postgres::Postgres;
use e2e::wait::until;
use e2e::{charts, cloudnativepg, manifests, tools};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

/// The only namespaces in which the controllers of Postgresqls and of PostgresWriters work here.
const DATABASES: &str = "rights-postgresql";
const ROWS: &str = "rights-postgres-writer";

/// The pod that the operator takes for its own.
const POD: &str = "operator-itself";

/// Rights whose need no request of this test can show.
const UNSEEN: &[(&str, &str, &str, &str)] = &[
    ("update", "apps.bnerd-operator.local", "clientapps/finalizers", "asked by an admission plugin that is off here"),
    ("update", "apps.bnerd-operator.local", "postgresqls/finalizers", "the same"),
    ("use", "extensions", "podsecuritypolicies", "asked when the reference chart's own Role is written"),
];

/// Before the operator deletes a namespace that the API created, it lists the objects of every kind in it.
const ALL_KINDS: &str = "list */*";
/// That namespace.
const MADE: &str = "made-for-it";

/// The only name that these are granted for. They are not requests of their own: impersonated requests and bindings
/// show that they are used.
const BY_NAME: &[(&str, &str)] = &[("impersonate", "serviceaccounts"), ("bind", "clusterroles")];
const IMPERSONATE: &str = "impersonate /serviceaccounts";
const BIND: &str = "bind rbac.authorization.k8s.io/clusterroles";

/// Rights of the deployers that this test does not use: an API server newer than that of Kubernetes 1.30 can start a watch with the existing
/// objects, and the only hooks are Jobs and Pods.
fn unseen_of_deployers() -> BTreeSet<String> {
    let hooks = [
        "/configmaps",
        "/services",
        "/persistentvolumeclaims",
        "/serviceaccounts",
        "apps/deployments",
        "apps/statefulsets",
        "networking.k8s.io/ingresses",
        "networking.k8s.io/networkpolicies",
        "policy/poddisruptionbudgets",
        "rbac.authorization.k8s.io/roles",
        "rbac.authorization.k8s.io/rolebindings",
    ];
    let waited_for = hooks.iter().flat_map(|kind| ["list", "watch"].map(|verb| format!("{verb} {kind}")));
    let listed = (!tools::is_oldest().unwrap()).then(|| "list batch/jobs".to_owned());
    waited_for.chain(listed).chain(["watch /secrets".to_owned()]).collect()
}

/// Requests that happen only in moments that this test cannot bring about.
const SOMETIMES: &[&str] = &[
    // If the garbage collector starts before Percona is asked to delete its own, and the operator sees it start.
    "delete pgv2.percona.com/perconapgbackups",
    // Once a Profile has had eleven revisions (scenarios/profile.rs).
    "delete apps/controllerrevisions",
    // Once nothing has run in the Job of a backup for 15 minutes.
    "patch batch/jobs",
];

#[tokio::test]
async fn every_verb_that_is_granted_is_used_and_none_is_missing() {
    let lab = Lab::shared().await;
    let start = || {
        let postgres = Postgres::start().unwrap();
        let mut environment = postgres.environment("postgres", "people");
        // The operator learns its image from its pod.
        let spec = json!({
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "operator", "image": IMAGE,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        });
        let restricted = json!({"spec": spec}).to_string();
        let place = ["--namespace", manifests::NAMESPACE, "--image", IMAGE, "--restart=Never"];
        let pod = [&["run", POD][..], &place, &["--overrides", &restricted]].concat();
        manifests::kubectl(&lab.plane, &lab.tools, &pod).unwrap();
        environment.push(("CLIENTAPP_POD_NAME".to_owned(), POD.to_owned()));
        lab.start_operator(&Options { environment, ..lab.options() }).unwrap();
        postgres
    };
    let postgres = tokio::task::spawn_blocking(start).await.unwrap();
    let tenant = lab.tenant("rights").await;
    // On the heap: together they are larger than a test's stack.
    tokio::join!(
        Box::pin(use_clientapps(&tenant)),
        Box::pin(use_the_api(lab, &tenant)),
        Box::pin(use_postgresqls(lab)),
        Box::pin(use_writers(lab, &postgres)),
    );

    let mut apps = granted(&tenant.client, &["clientapp-operator", "clientapp-operator-api"]).await;
    let own = Api::<Role>::namespaced(tenant.client.clone(), manifests::NAMESPACE);
    for role in ["clientapp-operator-lease", "clientapp-operator-pod"] {
        apps.extend(grants(own.get(role).await.unwrap().rules.unwrap()));
    }
    let databases = granted(&tenant.client, &["clientapp-operator-postgresql"]).await;
    let rows = granted(&tenant.client, &["clientapp-operator-postgres-writer"]).await;
    let deployers = granted(&tenant.client, &[DEPLOYER]).await;

    let (mut asked, as_deployers) = asked(lab).into_iter().partition::<Vec<_>, _>(|asked| !asked.as_deployer);
    for asked in &mut asked {
        if asked.namespace.as_deref() == Some(MADE) && asked.what.starts_with("list ") && !apps.contains(&asked.what) {
            asked.what = ALL_KINDS.to_owned();
        }
    }
    let asked = asked;
    let elsewhere = asked.iter().filter(|asked| asked.namespace.as_deref().is_some_and(|place| place != MADE));
    let by_all_kinds: BTreeSet<_> = elsewhere
        .map(|asked| &asked.what)
        .filter(|what| what.starts_with("list ") && ![&apps, &databases, &rows].iter().any(|role| role.contains(*what)))
        .collect();
    assert!(by_all_kinds.is_empty(), "granted with all kinds only: {by_all_kinds:#?}");
    let refused: Vec<_> = asked.iter().filter(|asked| asked.refused).collect();
    assert!(refused.is_empty(), "{refused:#?}");
    // The API server may apply a RoleBinding a moment after it was created. helm is run again then.
    until("what a deployer was refused is granted", async || match denied(&self::asked(lab))[..] {
        [] => Ok(()),
        ref denied => Err(format!("{denied:#?}")),
    })
    .await;
    let unseen: BTreeSet<_> =
        UNSEEN.iter().map(|(verb, group, resource, _)| format!("{verb} {group}/{resource}")).collect();
    // One controller's use of a right does not show that another needs it. Only for requests about all namespaces is
    // the controller unknown.
    let used = |by: &dyn Fn(&str) -> bool| -> BTreeSet<_> {
        let by_it = |asked: &&Asked| asked.namespace.as_deref().is_none_or(by);
        asked.iter().filter(by_it).map(|asked| asked.what.clone()).collect()
    };
    let mut used_by_deployers: BTreeSet<_> = as_deployers.iter().map(|asked| asked.what.clone()).collect();
    for unseen in unseen_of_deployers() {
        assert!(used_by_deployers.insert(unseen.clone()), "used after all: {unseen}");
    }
    for (granted, used) in [
        (&apps, used(&|namespace| ![DATABASES, ROWS].contains(&namespace))),
        (&databases, used(&|namespace| namespace == DATABASES)),
        (&rows, used(&|namespace| namespace == ROWS)),
        (&deployers, used_by_deployers),
    ] {
        let superfluous: Vec<_> = granted
            .difference(&used)
            .filter(|grant| !unseen.contains(*grant) && !SOMETIMES.contains(&grant.as_str()))
            .collect();
        assert!(superfluous.is_empty(), "granted and never used: {superfluous:#?}");
        let stale: Vec<_> = unseen.intersection(&used).collect();
        assert!(stale.is_empty(), "used after all: {stale:#?}");
    }
    let operators = granted(&tenant.client, &["clientapp-operator"]).await;
    for (granted, place) in [(&databases, DATABASES), (&rows, ROWS)] {
        let theirs = asked.iter().filter(|asked| asked.namespace.as_deref() == Some(place));
        let missing: BTreeSet<_> = theirs
            .map(|asked| &asked.what)
            .filter(|what| !granted.contains(*what) && !operators.contains(*what))
            .collect();
        assert!(missing.is_empty(), "granted by another role only: {missing:#?}");
    }
    let all: BTreeSet<_> = [apps, databases, rows, deployers].into_iter().flatten().collect();
    let stale: Vec<_> = unseen.difference(&all).collect();
    assert!(stale.is_empty(), "not granted: {stale:#?}");
}

async fn use_clientapps(tenant: &Tenant) {
    let host = |name: &str| hostname(tenant, name);
    // A volume that is deleted, and others and a database that are kept; a chart with a hook.
    let brief = json!({
        "hostname": host("brief"), "ingressClassName": "traefik", "postgres": {"enabled": false},
        "values": {"redis": {"networkPolicy": {"enabled": true}}},
    });
    tenant.create("brief", brief).await.unwrap();
    let check = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "check", "annotations": {"helm.sh/hook": "test", "clientapp.test/ends": "Succeeded"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "check", "image": "curl"}]},
    });
    let tested = json!({
        "hostname": host("tested"), "postgres": {"enabled": false},
        "test": {"enabled": true}, "values": {"extraManifests": [check]},
    });
    tenant.create("tested", tested).await.unwrap();
    tenant.create("kept", json!({"hostname": host("kept"), "deletionPolicy": "Retain"})).await.unwrap();
    let hook = json!({"hostname": host("hook"), "chartVersion": charts::HOOK_FAILS, "postgres": {"enabled": false}});
    tenant.create("hook", hook).await.unwrap();
    // The operator lists its pods to see why they are not ready.
    let waiting = json!({
        "hostname": host("waiting"), "chartVersion": charts::NEVER_READY, "postgres": {"enabled": false}, "redis": {"enabled": false},
    });
    tenant.create("waiting", waiting).await.unwrap();
    let told = |status: &ClientAppStatus| {
        status.conditions.iter().any(|condition| condition.message.contains("is not scheduled: 0/"))
    };
    tenant.ready("brief", 1).await;
    tenant.ready("tested", 1).await;
    tenant.ready("kept", 1).await;
    tenant.condition("hook", "Released", "False", "UpgradeFailed").await;
    // An upgrade that removes objects, and a mistake that makes Ready true, false and true again: one event with a
    // count.
    tenant.patch("brief", json!({"ingressClassName": null, "redis": {"enabled": false}})).await.unwrap();
    tenant.ready("brief", 2).await;
    tenant.patch("brief", json!({"values": {"nextcloud": {"host": "elsewhere"}}})).await.unwrap();
    tenant.condition("brief", "Ready", "False", "InvalidSpec").await;
    tenant.patch("brief", json!({"values": {"nextcloud": null}})).await.unwrap();
    tenant.ready("brief", 2).await;
    // A helm that died with its operator has left a lock behind.
    let (secrets, revision) = (tenant.api::<Secret>(), "sh.helm.release.v1.kept.v1");
    let holder = secrets.get(revision).await.unwrap().labels()["apps.bnerd-operator.local/holder"].clone();
    let (process, _) = holder.rsplit_once('.').unwrap();
    let labels = json!({"status": "pending-install", "apps.bnerd-operator.local/holder": format!("{process}.1")});
    let pending = Patch::Merge(json!({"metadata": {"labels": labels}}));
    secrets.patch(revision, &PatchParams::default(), &pending).await.unwrap();
    tenant.ready("kept", 2).await;
    // What an autoscaler has set is left to it.
    let by = PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
    let four = Patch::Merge(json!({"spec": {"replicas": 4}}));
    tenant.api::<Deployment>().patch_scale("kept-nextcloud", &by, &four).await.unwrap();
    tenant.patch("kept", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    tenant.ready("kept", 3).await;
    // One of the operator's own databases; and one of Percona's with backups, which are deleted with it although they
    // have no owner.
    let own = json!({
        "hostname": host("own"), "postgres": {"provider": "standalone"}, "redis": {"enabled": false},
        "persistence": {"backup": {"schedule": "@yearly", "store": {
            "endpoint": "https://s3.example.com", "bucket": "archives", "credentialsSecret": {"name": "s3"},
        }}},
        // Its volume is deleted with the release. And a chart may have Secrets of its own.
        "values": {
            "persistence": {"keep": false},
            "extraManifests": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own-extra"}}],
        },
    });
    tenant.create("own", own).await.unwrap();
    let saved = json!({"hostname": host("saved"), "upgrade": {"backup": true}, "redis": {"enabled": false}});
    tenant.create("saved", saved).await.unwrap();
    // And one of CloudNativePG's, which its plugin backs up.
    cloudnativepg::define(&tenant.client).await.unwrap();
    cloudnativepg::define_plugin(&tenant.client).await.unwrap();
    let store = json!({"endpoint": "https://s3.example.com", "bucket": "backups", "credentialsSecret": {"name": "s3"}});
    let postgres = json!({
        "provider": "cloudnativepg", "version": "17", "backup": {"schedule": "@yearly", "store": store},
        "cloudnativepg": {"pooler": {}},
    });
    tenant.create("cluster", json!({"hostname": host("cluster"), "postgres": postgres})).await.unwrap();
    let archives = |found: Option<&CloudNativePgCluster>| found?.archive();
    tenant.wait_for("cluster-pg", "with the plugin", archives).await;
    let played = cloudnativepg::Played { tenant, name: "cluster-pg" };
    played.begin().await.unwrap();
    played.is_healthy().await.unwrap();
    played.pooler_answers(true).await.unwrap();
    tenant.ready("cluster", 1).await;
    tenant.patch("cluster", json!({"postgres": {"cloudnativepg": null}})).await.unwrap();
    let gone = |found: Option<&CloudNativePgPooler>| found.is_none().then_some(());
    tenant.wait_for("cluster-pg-pooler", "gone", gone).await;
    let spec = json!({"of": {"name": "cluster"}, "parts": ["Database"]});
    let backup = serde_json::from_value(json!({"metadata": {"name": "of-pg"}, "spec": spec})).unwrap();
    tenant.api::<ClientAppBackup>().create(&PostParams::default(), &backup).await.unwrap();
    let runs = |found: Option<&ClientAppBackup>| found?.status.as_ref()?.database.as_ref().map(drop);
    tenant.wait_for("of-pg", "running", runs).await;
    tenant.ready("own", 1).await;
    tenant.ready("saved", 1).await;
    let spec = json!({"of": {"name": "own"}, "quiesce": true});
    let backup: ClientAppBackup = serde_json::from_value(json!({"metadata": {"name": "b"}, "spec": spec})).unwrap();
    tenant.api::<ClientAppBackup>().create(&PostParams::default(), &backup).await.unwrap();
    // Its Job is read once it is made.
    let runs = |found: Option<&ClientAppBackup>| {
        let status = found?.status.as_ref()?;
        (status.files.is_some() && status.phase == Some(BackupPhase::Running)).then_some(())
    };
    tenant.wait_for("b", "running", runs).await;
    scheduled_backups(tenant).await;
    // One that is restored by the name of a backup, which is not complete.
    let restore = async |name: &str, spec: Value| {
        let restore = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        tenant.api::<ClientAppRestore>().create(&PostParams::default(), &restore).await.unwrap();
    };
    let ended = async |name: &str, phase: BackupPhase| {
        let ended = |found: Option<&ClientAppRestore>| {
            let found = found.filter(|found| found.metadata.finalizers.is_none())?;
            (found.status.as_ref()?.phase? == phase).then_some(())
        };
        tenant.wait_for(name, "ended", ended).await;
    };
    restore("of-backup", json!({"of": {"name": "saved"}, "backup": "b"})).await;
    ended("of-backup", BackupPhase::Failed).await;
    // Its backups end, since their files are not to be archived any more.
    tenant.patch("own", json!({"persistence": {"backup": null}})).await.unwrap();
    // One that asks its database for a dump holds that until it is deleted.
    let store = json!({
        "endpoint": "https://s3.example.com", "bucket": "dumps", "path": "no/such", "credentialsSecret": {"name": "s3"},
    });
    // Another app, which waits for the permission to read such a dump.
    let into = json!({"name": "beside", "hostname": host("beside")});
    restore("beside", json!({"of": {"name": "own"}, "into": into, "database": {"store": store}})).await;
    let goes_on = |found: Option<&ClientApp>| found.filter(|app| !app.spec.suspend).map(drop);
    tenant.wait_for("beside", "with its administrator", goes_on).await;
    tenant.delete("beside").await;
    tenant.api::<ClientAppRestore>().delete("beside", &DeleteParams::default()).await.unwrap();
    restore("of-dump", json!({"of": {"name": "own"}, "database": {"store": store}})).await;
    let holds = |found: Option<&ClientAppRestore>| found?.metadata.finalizers.as_ref().map(|_| ());
    tenant.wait_for("of-dump", "held", holds).await;
    tenant.api::<ClientAppRestore>().delete("of-dump", &DeleteParams::default()).await.unwrap();
    tenant.wait_for("of-dump", "gone", |found: Option<&ClientAppRestore>| found.is_none().then_some(())).await;
    tenant.patch("saved", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("saved", 2).await;
    // From the backup before the upgrade.
    restore("of-cluster", json!({"of": {"name": "saved"}, "database": {}, "backupFirst": false})).await;
    ended("of-cluster", BackupPhase::Completed).await;
    tenant.api::<ClientApp>().delete("saved", &DeleteParams::foreground()).await.unwrap();
    tenant.gone("saved").await;
    tenant.status("waiting", "told why", told).await;
    for name in ["brief", "tested", "kept", "hook", "own", "waiting", "cluster"] {
        tenant.delete(name).await;
    }
}

/// Lets a backup of files be due, and others by schedule be old.
async fn scheduled_backups(tenant: &Tenant) {
    let scheduled = |status: &ClientAppStatus| status.files.as_ref().is_some_and(|files| files.scheduled.is_some());
    tenant.status("own", "scheduled", scheduled).await;
    let due = Patch::Merge(json!({"status": {"files": {"scheduled": {"next": "2026-01-31T03:30:00Z"}}}}));
    tenant.api::<ClientApp>().patch_status("own", &PatchParams::default(), &due).await.unwrap();
    let made = |found: Option<&ClientAppBackup>| found.map(drop);
    tenant.wait_for("own-files-202601310330", "made", made).await;
    let owner = tenant.api::<ClientApp>().get("saved").await.unwrap().controller_owner_ref(&()).unwrap();
    // None is archived, since the spec does not ask for it: all of them fail.
    for day in 1..=8 {
        let backup = json!({
            "metadata": {"name": format!("saved-files-2026010{day}0330"), "ownerReferences": [owner]},
            "spec": {"of": {"name": "saved"}, "parts": ["Files"]},
        });
        let backup: ClientAppBackup = serde_json::from_value(backup).unwrap();
        tenant.api::<ClientAppBackup>().create(&PostParams::default(), &backup).await.unwrap();
    }
    let gone = |found: Option<&ClientAppBackup>| found.is_none().then_some(());
    tenant.wait_for("saved-files-202601010330", "gone", gone).await;
}

/// Servers with standbys and dumps; one grows and is deleted after a last dump, and the data of another are kept.
async fn use_postgresqls(lab: &'static Lab) {
    let tenant = lab.tenant(DATABASES).await;
    let databases = tenant.api::<Postgresql>();
    let database = |name: &str, spec: Value| -> Postgresql {
        serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap()
    };
    let daily = json!({"replicas": 3, "networkPolicy": {}, "backup": {"schedule": "0 3 * * *", "onDelete": true}});
    databases.create(&PostParams::default(), &database("brief", daily)).await.unwrap();
    databases.create(&PostParams::default(), &database("kept", json!({"deletionPolicy": "Retain"}))).await.unwrap();
    let ready = async |name: &str| {
        let ready = |object: Option<&Postgresql>| {
            let object = object?;
            let status = object.status.as_ref()?;
            let newest = status.observed_generation == object.metadata.generation;
            let ready = conditions::find(&status.conditions, "Ready")?;
            (newest && ready.status == "True").then_some(())
        };
        tenant.wait_for(name, "Ready", ready).await;
    };
    let change = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        databases.patch("brief", &PatchParams::default(), &patch).await.unwrap();
    };
    ready("brief").await;
    ready("kept").await;

    change(json!({"storageSize": "2Gi"})).await;
    let grown = |claim: Option<&PersistentVolumeClaim>| {
        let requests = claim?.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
        (requests["storage"].0 == "2Gi").then_some(())
    };
    tenant.wait_for("data-brief-0", "grown", grown).await;

    // The operator corrects the Secret for clients.
    let secrets = tenant.api::<Secret>();
    let password = |secret: &Secret| secret.data.as_ref().and_then(|data| data.get("password")).cloned();
    let before = password(&secrets.get("brief-app").await.unwrap());
    let edited = Patch::Merge(json!({"stringData": {"password": "another"}}));
    secrets.patch("brief-app", &PatchParams::default(), &edited).await.unwrap();
    let back = |secret: Option<&Secret>| secret.filter(|secret| password(secret) == before).map(|_| ());
    tenant.wait_for("brief-app", "put right", back).await;

    // A mistake that makes Ready true, false and true again: one event with a count.
    change(json!({"backup": {"schedule": "0 3 * foo *"}})).await;
    let refused = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        (ready.reason == "InvalidSpec").then_some(())
    };
    tenant.wait_for("brief", "refused", refused).await;
    change(json!({"backup": {"schedule": "0 4 * * *"}})).await;
    ready("brief").await;

    for name in ["brief", "kept"] {
        databases.delete(name, &DeleteParams::default()).await.unwrap();
    }
    for name in ["brief", "kept"] {
        tenant.wait_for(name, "gone", |object: Option<&Postgresql>| object.is_none().then_some(())).await;
    }
}

/// A row that is created and deleted with its object.
async fn use_writers(lab: &'static Lab, postgres: &Postgres) {
    let tenant = lab.tenant(ROWS).await;
    let sql = postgres.connect("postgres").await.unwrap();
    sql.batch_execute("CREATE TABLE people (id text PRIMARY KEY, name text, age integer, country text)").await.unwrap();
    let writers = tenant.api::<PostgresWriter>();
    let spec = PostgresWriterSpec { table: "people".into(), name: "Ada".into(), age: 36, country: "UK".into() };
    writers.create(&PostParams::default(), &PostgresWriter::new("ada", spec)).await.unwrap();
    let ready = |object: Option<&PostgresWriter>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        (ready.status == "True").then_some(())
    };
    tenant.wait_for("ada", "Ready", ready).await;
    writers.delete("ada", &DeleteParams::default()).await.unwrap();
    tenant.wait_for("ada", "gone", |object: Option<&PostgresWriter>| object.is_none().then_some(())).await;
}

/// An instance in its own namespace, which a user with a token creates, watches and deletes through the API.
async fn use_the_api(lab: &'static Lab, tenant: &Tenant) {
    // A standby serves the API as well, and this one authenticates users.
    let mut options = lab.options();
    options.arguments = ["--api-auth", "token"].map(str::to_owned).to_vec();
    let start = move || {
        let mut operator = Operator::start(&options).unwrap();
        let url = operator.api_url().unwrap();
        (operator, url)
    };
    let (operator, url) = tokio::task::spawn_blocking(start).await.unwrap();
    tenant.kubectl(&["create", "serviceaccount", "portal"]).unwrap();
    let account = format!("{}:portal", tenant.namespace);
    let binding = ["create", "clusterrolebinding", "portal", "--clusterrole", "clientapp-api-user", "--serviceaccount"];
    tenant.kubectl(&[&binding[..], &[&account]].concat()).unwrap();
    let profiles = manifests::samples().join("profiles.yaml");
    tenant.kubectl(&["apply", "-f", profiles.to_str().unwrap()]).unwrap();
    let token = tenant.kubectl(&["create", "token", "portal", "--audience", "clientapp-operator"]).unwrap();
    let http = reqwest::Client::builder().timeout(TIMEOUT).build().unwrap();
    let ask =
        |method: reqwest::Method, path: &str| http.request(method, format!("{url}{path}")).bearer_auth(token.trim());
    let body = json!({
        "hostname": hostname(tenant, "made"), "name": MADE, "profile": "basic", "postgres": {"enabled": false},
    });
    let post = || ask(reqwest::Method::POST, "/instances").json(&body).send();
    until("it is created", async || {
        let status = post().await.unwrap().status().as_u16();
        // The binding is new, and so is the operator.
        assert!(matches!(status, 201 | 403 | 503), "{status}");
        status == 201
    })
    .await;
    // Another request for the same name, which is taken; the hostname is not.
    let mut again = body.clone();
    again["hostname"] = json!(hostname(tenant, "other"));
    let taken = ask(reqwest::Method::POST, "/instances").json(&again).send().await.unwrap();
    assert_eq!(taken.status(), 409, "{:?}", taken.text().await);
    let progress =
        ask(reqwest::Method::GET, "/instances/made-for-it/events").send().await.unwrap().text().await.unwrap();
    assert!(progress.contains("event: ready"), "{progress}");
    // A backup and a restore.
    for (kind, body) in [("backups", json!({})), ("restores", json!({"files": {}}))] {
        let path = format!("/instances/made-for-it/{kind}");
        let made = ask(reqwest::Method::POST, &path).json(&body).send().await.unwrap();
        assert_eq!(made.status(), 201, "{:?}", made.text().await);
        let shown = ask(reqwest::Method::GET, made.headers()["location"].to_str().unwrap()).send().await.unwrap();
        assert_eq!(shown.status(), 200, "{:?}", shown.text().await);
    }
    // And another in its namespace.
    let mut beside = again.clone();
    (beside["name"], beside["namespace"]) = (json!("beside"), json!(MADE));
    let made = ask(reqwest::Method::POST, "/instances").json(&beside).send().await.unwrap();
    assert_eq!(made.status(), 201, "{:?}", made.text().await);
    for name in ["beside", "made-for-it"] {
        let gone = ask(reqwest::Method::DELETE, &format!("/instances/{name}?wait=120")).send().await.unwrap();
        assert_eq!(gone.status(), 204);
    }
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

/// The rights in these roles, each as `verb group/resource`.
async fn granted(client: &Client, roles: &[&str]) -> BTreeSet<String> {
    let mut granted = BTreeSet::new();
    for name in roles {
        granted.extend(grants(Api::<ClusterRole>::all(client.clone()).get(name).await.unwrap().rules.unwrap()));
    }
    granted
}

fn grants(rules: Vec<PolicyRule>) -> BTreeSet<String> {
    let mut granted = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.as_deref().unwrap() {
            for resource in rule.resources.as_deref().unwrap() {
                for verb in &rule.verbs {
                    let any = group == "*" || resource == "*";
                    assert!(!any || format!("{verb} {group}/{resource}") == ALL_KINDS, "{rule:?}");
                    assert!(!["*", "escalate"].contains(&verb.as_str()), "{rule:?}");
                    let named = rule.resource_names.as_deref() == Some(&[DEPLOYER.to_owned()]);
                    let leads_on = ["bind", "impersonate"].contains(&verb.as_str());
                    assert!(!leads_on || named && BY_NAME.contains(&(verb, resource)), "{rule:?}");
                    granted.insert(format!("{verb} {group}/{resource}"));
                }
            }
        }
    }
    granted
}

/// Returns the requests of deployers that were refused, and not granted later in the same namespace.
fn denied(all: &[Asked]) -> Vec<&Asked> {
    let granted = |asked: &Asked, later: &[Asked]| {
        later.iter().any(|later| {
            later.as_deployer && !later.refused && (&later.what, &later.namespace) == (&asked.what, &asked.namespace)
        })
    };
    let all = all
        .iter()
        .enumerate()
        .filter(|(at, asked)| asked.as_deployer && asked.refused && !granted(asked, &all[at + 1..]));
    all.map(|(_, asked)| asked).collect()
}

/// A request of the account.
#[derive(Debug)]
struct Asked {
    /// With the rights of the deployer of the namespace.
    as_deployer: bool,
    /// `verb group/resource`.
    what: String,
    namespace: Option<String>,
    refused: bool,
}

/// The account's requests so far.
fn asked(lab: &Lab) -> Vec<Asked> {
    let log = fs::read_to_string(lab.plane.audit_log().unwrap()).unwrap();
    let mut all = Vec::new();
    // The last line may be incomplete.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let object = &event["objectRef"];
        // A dry run only compares, and what is then put back is a request of its own.
        let dry = event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun"));
        if event["user"]["username"] != manifests::user().as_str() || object.is_null() || dry {
            continue;
        }
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        let what = format!("{}/{}{subresource}", word(&object["apiGroup"]), word(&object["resource"]));
        let as_deployer = match event["impersonatedUser"]["username"].as_str() {
            None => false,
            Some(user) => {
                let own = format!("system:serviceaccount:{}:{DEPLOYER}", word(&object["namespace"]));
                assert_eq!(user, own, "{event:#}");
                let groups = event["impersonatedUser"]["groups"].as_array().unwrap();
                assert!(groups.iter().all(|group| group != "system:masters"), "{event:#}");
                true
            }
        };
        let refused = event["annotations"]["authorization.k8s.io/decision"] == "forbid";
        // An apply that creates an object needs that verb too.
        let made = event["verb"] == "patch" && event["responseStatus"]["code"] == 201;
        for verb in [word(&event["verb"])].into_iter().chain(made.then(|| "create".to_owned())) {
            let namespace = object["namespace"].as_str().map(str::to_owned);
            all.push(Asked { as_deployer, what: format!("{verb} {what}"), namespace, refused });
        }
        let binds = event["verb"] == "create" && object["resource"] == "rolebindings";
        let shown = [as_deployer.then_some(IMPERSONATE), (binds && !as_deployer).then_some(BIND)];
        all.extend(shown.into_iter().flatten().map(|what| Asked {
            as_deployer: false,
            what: what.to_owned(),
            namespace: object["namespace"].as_str().map(str::to_owned),
            refused: false,
        }));
    }
    all
}
