//! Databases without Percona: the operator's own Postgresql, and existing ones.

use clientapp_crd::percona::PerconaPGCluster;
use clientapp_crd::{ClientApp, Postgresql, annotation, label};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has, hostname};
use e2e::scenario::{delete, names, nothing_is_left, secret, with};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{EnvVar, PersistentVolumeClaim, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};

/// A spec with a Postgresql.
fn standalone(tenant: &Tenant, name: &str) -> Value {
    json!({"hostname": hostname(tenant, name), "postgres": {"provider": "standalone", "version": "17"}})
}

/// The variables with which the app reaches its database.
async fn variables(tenant: &Tenant, app: &str) -> Vec<EnvVar> {
    let deployment = tenant.api::<Deployment>().get(&format!("{app}-nextcloud")).await.unwrap();
    let containers = deployment.spec.unwrap().template.spec.unwrap().containers;
    let variables = containers[0].env.clone().unwrap_or_default();
    variables.into_iter().filter(|variable| variable.name.starts_with("POSTGRES_")).collect()
}

/// Secret and key of a variable.
fn reference(variables: &[EnvVar], name: &str) -> Option<(String, String)> {
    let variable = variables.iter().find(|variable| variable.name == name).unwrap();
    let selector = variable.value_from.as_ref()?.secret_key_ref.as_ref()?;
    Some((selector.name.clone(), selector.key.clone()))
}

fn value(variables: &[EnvVar], name: &str) -> Option<String> {
    variables.iter().find(|variable| variable.name == name).unwrap().value.clone()
}

#[tokio::test]
async fn a_cluster_without_percona_gets_a_postgresql_and_it_goes_with_the_app() {
    let tenant = Lab::shared().await.tenant("standalone").await;
    let spec = with(standalone(&tenant, "acme"), json!({"redis": {"enabled": false}}));
    tenant.create("acme", spec).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.postgres_cluster_name.as_deref(), Some("acme-pg"));
    let ready = status.conditions.iter().find(|condition| condition.type_ == "PostgresReady").unwrap();
    assert_eq!(ready.message, "Postgresql acme-pg is ready");
    assert_eq!(names::<PerconaPGCluster>(&tenant).await, [""; 0]);

    let database = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (database.annotations().get(annotation::OWNER_UID), database.owner_references()),
        (app.metadata.uid.as_ref(), &[][..])
    );
    assert_eq!((database.spec.version.as_str(), database.spec.name.as_str()), ("17", "clientapp"));

    let variables = variables(&tenant, "acme").await;
    assert_eq!(value(&variables, "POSTGRES_HOST").unwrap(), "acme-pg.standalone.svc.cluster.local");
    assert_eq!(value(&variables, "POSTGRES_DB").unwrap(), secret(&tenant, "acme-pg-app", "dbname").await);
    assert_eq!(reference(&variables, "POSTGRES_USER").unwrap(), ("acme-pg-app".into(), "user".into()));
    assert_eq!(reference(&variables, "POSTGRES_PASSWORD").unwrap(), ("acme-pg-app".into(), "password".into()));

    // No pod of another namespace can connect to it.
    assert!(database.spec.network_policy.unwrap().enabled);
    let policy = tenant.api::<NetworkPolicy>().get("acme-pg-access").await.unwrap().spec.unwrap();
    assert_eq!(json!(policy.ingress), json!([{"from": [{"podSelector": {}}]}]));

    // It grows without helm, and gets its settings.
    let resources = json!({"requests": {"memory": "256Mi"}});
    let more = json!({"storageSize": "2Gi", "parameters": {"max_connections": "50"}, "resources": resources});
    tenant.patch("acme", json!({"postgres": more})).await.unwrap();
    let passed_on = |database: Option<&Postgresql>| {
        let spec = &database?.spec;
        let isolated = spec.network_policy.as_ref().is_some_and(|policy| policy.enabled);
        let settings = json!(spec.parameters) == json!({"max_connections": "50"}) && json!(spec.resources) == resources;
        (spec.storage_size == "2Gi" && settings && isolated).then_some(())
    };
    tenant.wait_for("acme-pg", "as the app says", passed_on).await;
    tenant.ready("acme", 1).await;

    // An open database, as from an earlier version, is not closed: its clients may be anywhere.
    let open = Patch::Merge(json!({"spec": {"networkPolicy": null}}));
    tenant.api::<Postgresql>().patch("acme-pg", &PatchParams::default(), &open).await.unwrap();
    tenant.wait_for("acme-pg-access", "gone", |policy: Option<&NetworkPolicy>| policy.is_none().then_some(())).await;
    tenant.patch("acme", json!({"postgres": {"parameters": null}})).await.unwrap();
    let passed_on = |database: Option<&Postgresql>| {
        let spec = &database?.spec;
        spec.parameters.is_empty().then(|| spec.network_policy.clone())
    };
    assert_eq!(tenant.wait_for("acme-pg", "without settings", passed_on).await, None);
    tenant.ready("acme", 1).await;

    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    assert_eq!(names::<Postgresql>(&tenant).await, [""; 0]);
}

#[tokio::test]
async fn a_postgresql_in_trouble_holds_helm_up_and_says_why() {
    let tenant = Lab::shared().await.tenant("standalone-trouble").await;
    // A Service with the name that the database needs, but of another client.
    tenant.kubectl(&["create", "service", "clusterip", "acme-pg", "--tcp=80"]).unwrap();
    tenant.create("acme", standalone(&tenant, "acme")).await.unwrap();
    let told = tenant.condition("acme", "PostgresReady", "False", "DatabaseStalled").await;
    assert!(told.starts_with("Postgresql acme-pg: Service acme-pg belongs to"), "{told}");
    tenant.condition("acme", "Stalled", "True", "DatabaseStalled").await;
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
    tenant.delete("acme").await;
    tenant.kubectl(&["delete", "service", "acme-pg"]).unwrap();
    nothing_is_left(&tenant).await;
}

/// The objects that `kubectl get -l` finds of a deleted app.
fn retained(tenant: &Tenant, app: &str) -> Vec<String> {
    let selector = format!("{}={app}", label::RETAINED_FROM);
    let kinds = "perconapgcluster,postgresql,pvc,secret";
    let names = tenant.kubectl(&["get", kinds, "--selector", &selector, "--output", "name"]).unwrap();
    let mut names: Vec<_> = names.lines().map(str::to_owned).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_retained_postgresql_is_adopted_when_that_is_asked_for() {
    let tenant = Lab::shared().await.tenant("standalone-retain").await;
    let spec = with(standalone(&tenant, "acme"), json!({"deletionPolicy": "Retain", "redis": {"enabled": false}}));
    let newer = json!({"chartVersion": charts::PATCH});
    tenant.create("acme", with(spec.clone(), newer.clone())).await.unwrap();
    tenant.ready("acme", 1).await;
    let secrets = async || {
        [
            secret(&tenant, "acme-pg-app", "password").await,
            secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
        ]
    };
    let before = secrets().await;
    let database = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    assert_eq!(
        retained(&tenant, "acme"),
        [
            "persistentvolumeclaim/acme-nextcloud-nextcloud",
            "persistentvolumeclaim/data-acme-pg-0",
            "postgresql.apps.bnerd-operator.local/acme-pg",
            "secret/acme-admin-secret",
            "secret/acme-pg-app",
            "secret/acme-pg-credentials",
        ]
    );
    let server = tenant.api::<StatefulSet>().get("acme-pg").await.unwrap();
    assert_eq!(server.status.unwrap().ready_replicas, Some(1), "it keeps running");

    // An app does not get it by name alone, and no other database is created beside it.
    tenant.create("acme", with(spec.clone(), json!({"postgres": {"enabled": false}}))).await.unwrap();
    let words = ["Postgresql acme-pg", "PersistentVolumeClaim acme-nextcloud-nextcloud", "spec.postgres.adopt to true"];
    tenant.held("acme", "DataRetained", &words).await;
    assert_eq!(secrets().await, before);
    tenant.delete("acme").await;
    assert_eq!(retained(&tenant, "acme").len(), 6);

    let adopt = json!({"postgres": {"provider": "standalone", "version": "17", "adopt": true}});
    tenant.create("acme", with(with(spec, adopt), json!({"deletionPolicy": "Delete"}))).await.unwrap();
    // The data is of a newer version of the app than the spec's.
    tenant.held("acme", "DowngradeRefused", &["(chart 5.5.3)"]).await;
    assert_eq!(tenant.listed("acme"), None);
    tenant.patch("acme", newer).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(retained(&tenant, "acme"), [""; 0]);
    assert_eq!(secrets().await, before);
    let adopted = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
    assert_eq!(
        (adopted.uid(), adopted.annotations().get(annotation::OWNER_UID)),
        (database.uid(), app.metadata.uid.as_ref())
    );
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_postgresql_that_is_deleted_by_mistake_keeps_its_data() {
    let tenant = Lab::shared().await.tenant("standalone-mistake").await;
    tenant.create("acme", with(standalone(&tenant, "acme"), json!({"redis": {"enabled": false}}))).await.unwrap();
    tenant.ready("acme", 1).await;
    let claim = tenant.api::<PersistentVolumeClaim>().get("data-acme-pg-0").await.unwrap();
    let password = secret(&tenant, "acme-pg-credentials", "password").await;
    tenant.kubectl(&["delete", "postgresql", "acme-pg", "--timeout=120s"]).unwrap();

    // The recreated Postgresql does not start an empty database in place of the lost one, and says how to hand over the
    // old data.
    let words = ["acme-pg-credentials", "kubectl label"];
    tenant.condition_with("acme", ("PostgresReady", "DatabaseStalled"), &words).await;
    assert_eq!(tenant.api::<PersistentVolumeClaim>().get("data-acme-pg-0").await.unwrap().uid(), claim.uid());
    assert_eq!(secret(&tenant, "acme-pg-credentials", "password").await, password);

    let uid = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().uid().unwrap();
    let hand_over = format!("{}={uid}", label::POSTGRESQL_UID);
    for object in
        ["secret/acme-pg-credentials", "secret/acme-pg-app", "secret/acme-pg-replication", "pvc/data-acme-pg-0"]
    {
        tenant.kubectl(&["label", object, "--overwrite", &hand_over]).unwrap();
    }
    tenant.ready("acme", 1).await;
    assert_eq!(secret(&tenant, "acme-pg-app", "password").await, password);
    // In the foreground the garbage collector deletes as well.
    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    nothing_is_left(&tenant).await;
    assert_eq!(names::<Postgresql>(&tenant).await, [""; 0]);
}

#[tokio::test]
async fn a_database_that_exists_already_is_used_and_left_alone() {
    let tenant = Lab::shared().await.tenant("external").await;
    let external = json!({"secretName": "theirs", "userKey": "login", "databaseKey": "db"});
    let spec = json!({
        "hostname": hostname(&tenant, "acme"),
        "postgres": {"provider": "external", "external": external},
        "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    let told = tenant.condition("acme", "PostgresReady", "False", "SecretMissing").await;
    let missing =
        "Secret theirs, named in spec.postgres.external, does not exist: it needs the keys login, password, host, db";
    assert_eq!(told, missing);
    tenant.condition("acme", "Stalled", "True", "SecretMissing").await;

    let literals = ["--from-literal=login=u", "--from-literal=password=p", "--from-literal=host=db.example.com:6432"];
    tenant.kubectl(&[&["create", "secret", "generic", "theirs"], &literals[..]].concat()).unwrap();
    tenant.condition_with("acme", ("PostgresReady", "SecretKeyMissing"), &["has no value under db:"]).await;
    tenant.kubectl(&["patch", "secret", "theirs", "--patch", r#"{"stringData": {"db": "acme"}}"#]).unwrap();
    let status = tenant.ready("acme", 1).await;
    assert!(has(&status, "PostgresReady", "True", "Ready") && status.postgres_cluster_name.is_none(), "{status:?}");
    assert_eq!((names::<PerconaPGCluster>(&tenant).await, names::<Postgresql>(&tenant).await), (vec![], vec![]));

    let found = variables(&tenant, "acme").await;
    for (variable, key) in [
        ("POSTGRES_HOST", "host"),
        ("POSTGRES_DB", "db"),
        ("POSTGRES_USER", "login"),
        ("POSTGRES_PASSWORD", "password"),
    ] {
        assert_eq!(reference(&found, variable), Some(("theirs".into(), key.into())), "{variable}");
    }
    // Values in the spec need no key.
    let moved = json!({"postgres": {"external": {"host": "other.example.com"}}});
    tenant.patch("acme", moved).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(value(&variables(&tenant, "acme").await, "POSTGRES_HOST").unwrap(), "other.example.com");

    let before = tenant.api::<Secret>().get("theirs").await.unwrap();
    tenant.delete("acme").await;
    assert_eq!(tenant.api::<Secret>().get("theirs").await.unwrap(), before);
    tenant.kubectl(&["delete", "secret", "theirs"]).unwrap();
    nothing_is_left(&tenant).await;
}
