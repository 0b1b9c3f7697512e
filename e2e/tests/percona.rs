//! The stand-in for the Percona operator, on a real control plane: what a client sees of it.

use std::fmt::Debug;
use std::future::Future;
use std::sync::OnceLock;
use std::time::Duration;

use e2e::percona::{Knobs, PerconaStandIn};
use e2e::plane::ControlPlane;
use e2e::progress::Progress;
use e2e::tools::Tools;
use futures::TryStreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Event, Namespace, PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// For a machine that is busy with something else; no test waits for so long.
const PATIENCE: Duration = Duration::from_secs(120);

struct World {
    plane: ControlPlane,
    percona: PerconaStandIn,
}

/// One for all tests; each has a namespace and a cluster name of its own.
fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let plane = ControlPlane::builder().start(&Tools::ensure(&Progress::stderr()).unwrap()).unwrap();
        let start = || {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(async {
                PerconaStandIn::install_crd(&plane.client().await.unwrap()).await.unwrap();
                PerconaStandIn::start(plane.config().await.unwrap()).unwrap()
            })
        };
        // The caller may be inside a runtime, where no other can be blocked on.
        let percona = std::thread::scope(|scope| scope.spawn(start).join().unwrap());
        World { plane, percona }
    })
}

/// A namespace with at most one cluster, both of the same name.
struct Tenant {
    client: Client,
    name: &'static str,
    percona: &'static PerconaStandIn,
}

impl Tenant {
    async fn new(name: &'static str) -> Self {
        let World { plane, percona } = tokio::task::spawn_blocking(world).await.unwrap();
        let client = plane.client().await.unwrap();
        let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await.unwrap();
        Self { client, name, percona }
    }

    fn clusters(&self) -> Api<DynamicObject> {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", "PerconaPGCluster"));
        Api::namespaced_with(self.client.clone(), self.name, &resource)
    }

    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), self.name)
    }

    async fn create(&self, finalizers: &[&str], spec: Value) -> DynamicObject {
        self.try_create(finalizers, spec).await.unwrap()
    }

    async fn try_create(&self, finalizers: &[&str], spec: Value) -> kube::Result<DynamicObject> {
        let strict = PatchParams::apply("test").validation_strict();
        let object = json!({
            "apiVersion": "pgv2.percona.com/v2",
            "kind": "PerconaPGCluster",
            "metadata": {"name": self.name, "finalizers": finalizers},
            "spec": spec,
        });
        self.clusters().patch(self.name, &strict, &Patch::Apply(object)).await
    }

    /// Waits until the cluster's status is like this.
    async fn status(&self, is: impl Fn(&Value) -> bool + Send) -> Value {
        let condition = |cluster: Option<&DynamicObject>| cluster.is_some_and(|cluster| is(&cluster.data["status"]));
        let cluster = patient(await_condition(self.clusters(), self.name, condition)).await.unwrap().unwrap();
        cluster.data["status"].clone()
    }

    async fn ready(&self) -> Value {
        self.status(|status| status["state"] == "ready").await
    }

    async fn delete(&self) {
        let cluster = self.clusters().get(self.name).await.unwrap();
        self.clusters().delete(self.name, &DeleteParams::default()).await.unwrap();
        let gone = conditions::is_deleted(cluster.metadata.uid.as_deref().unwrap());
        patient(await_condition(self.clusters(), self.name, gone)).await.unwrap();
    }

    async fn secret(&self) -> Option<Secret> {
        self.api::<Secret>().get_opt(&format!("{}-pguser-clientapp", self.name)).await.unwrap()
    }

    async fn password(&self) -> String {
        value(&self.secret().await.unwrap(), "password")
    }

    async fn names<K>(&self) -> Vec<String>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
    {
        let list = self.api::<K>().list(&ListParams::default()).await.unwrap();
        list.iter().map(ResourceExt::name_any).collect()
    }

    /// Waits until some object of the kind is like this.
    async fn some<K>(&self, is: impl Fn(&K) -> bool) -> K
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let objects = watcher(self.api::<K>(), watcher::Config::default()).applied_objects();
        let mut found = std::pin::pin!(objects.try_filter(|object| std::future::ready(is(object))));
        patient(found.try_next()).await.unwrap().unwrap()
    }
}

async fn patient<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it comes about")
}

fn value(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

fn spec() -> Value {
    json!({
        "crVersion": "3.0.0",
        "image": "percona/percona-distribution-postgresql:18.3-2",
        "postgresVersion": 18,
        "users": [{
            "name": "clientapp", "databases": ["clientapp"], "password": {"type": "AlphaNumeric"},
            "grantPublicSchemaAccess": true,
        }],
        "instances": [{
            "name": "instance1", "replicas": 1,
            "dataVolumeClaimSpec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
        }],
        "proxy": {"pgBouncer": {"replicas": 1, "image": "percona/percona-pgbouncer:1.25.1-1"}},
        "backups": {"enabled": false},
    })
}

fn spec_but(pointer: &str, to: Value) -> Value {
    let mut spec = spec();
    *spec.pointer_mut(pointer).unwrap() = to;
    spec
}

#[tokio::test]
async fn a_cluster_becomes_ready_with_all_that_a_client_needs() {
    let tenant = Tenant::new("ready").await;
    let created = tenant.create(&[], spec()).await;
    let status = tenant.ready().await;
    assert_eq!(status["postgres"]["size"], 1);
    assert_eq!(status["postgres"]["ready"], 1);
    assert_eq!(status["postgres"]["version"], 18);
    assert_eq!(status["pgbouncer"], json!({"size": 1, "ready": 1}));
    assert_eq!(status["host"], "ready-pgbouncer.ready.svc");
    assert_eq!(status["observedGeneration"], json!(created.metadata.generation));

    let secret = tenant.secret().await.unwrap();
    assert_eq!(secret.metadata.owner_references, None);
    assert_eq!(secret.labels()["postgres-operator.crunchydata.com/role"], "pguser");
    let password = value(&secret, "password");
    assert!(password.len() >= 24 && password.chars().all(|letter| letter.is_ascii_alphanumeric()));
    let expected = [
        ("host", "ready-primary.ready.svc".to_owned()),
        ("port", "5432".to_owned()),
        ("user", "clientapp".to_owned()),
        ("dbname", "clientapp".to_owned()),
        ("uri", format!("postgresql://clientapp:{password}@ready-primary.ready.svc:5432/clientapp")),
        ("pgbouncer-host", "ready-pgbouncer.ready.svc".to_owned()),
        ("pgbouncer-port", "5432".to_owned()),
        ("pgbouncer-uri", format!("postgresql://clientapp:{password}@ready-pgbouncer.ready.svc:5432/clientapp")),
        (
            "jdbc-uri",
            format!("jdbc:postgresql://ready-primary.ready.svc:5432/clientapp?password={password}&user=clientapp"),
        ),
        (
            "pgbouncer-jdbc-uri",
            format!(
                "jdbc:postgresql://ready-pgbouncer.ready.svc:5432/clientapp?\
                 password={password}&prepareThreshold=0&user=clientapp"
            ),
        ),
    ];
    for (key, text) in &expected {
        assert_eq!(&value(&secret, key), text, "{key}");
    }
    assert!(value(&secret, "verifier").starts_with("SCRAM-SHA-256$4096:"));
    assert_eq!(secret.data.unwrap().len(), expected.len() + 2);

    let mut services = tenant.names::<Service>().await;
    services.sort();
    assert_eq!(services, ["ready-ha", "ready-pgbouncer", "ready-primary"]);
    tenant
        .some(|slice: &EndpointSlice| {
            let ready = |endpoint: &k8s_openapi::api::discovery::v1::Endpoint| {
                endpoint.conditions.as_ref().is_some_and(|conditions| conditions.ready == Some(true))
            };
            let service = slice.labels().get("kubernetes.io/service-name");
            service.is_some_and(|name| name == "ready-pgbouncer") && slice.endpoints.iter().any(ready)
        })
        .await;
}

#[tokio::test]
async fn a_held_cluster_has_its_secret_and_is_ready_after_the_release() {
    let tenant = Tenant::new("held").await;
    tenant.percona.set_for("held", Knobs { hold: true, ..Knobs::default() });
    tenant.create(&[], spec()).await;
    let status = tenant.status(|status| status["state"] == "initializing").await;
    assert_eq!(status["pgbouncer"], json!({"size": 0, "ready": 0}));
    assert!(tenant.secret().await.is_some());
    assert_eq!(tenant.names::<Pod>().await.len(), 0);
    tenant.percona.release();
    tenant.ready().await;
}

#[tokio::test]
async fn a_key_is_left_out_of_the_secret_until_the_knob_is_turned_back() {
    let tenant = Tenant::new("keyless").await;
    tenant.percona.set_for("keyless", Knobs { omit_key: Some("password".to_owned()), ..Knobs::default() });
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    let data = tenant.secret().await.unwrap().data.unwrap();
    assert!(data.contains_key("user") && !data.contains_key("password"));
    tenant.percona.set_for("keyless", Knobs::default());
    let whole = |secret: &Secret| secret.data.as_ref().is_some_and(|data| data.contains_key("password"));
    tenant.some(whole).await;
}

#[tokio::test]
async fn an_ignored_cluster_gets_nothing() {
    let ignored = Tenant::new("ignored").await;
    ignored.percona.set_for("ignored", Knobs { ignore: true, ..Knobs::default() });
    ignored.create(&[], spec()).await;
    let noticed = Tenant::new("noticed").await;
    noticed.create(&[], spec()).await;
    noticed.ready().await;
    assert_eq!(ignored.clusters().get("ignored").await.unwrap().data.get("status"), None);
    assert!(ignored.secret().await.is_none());
    ignored.percona.set_for("ignored", Knobs::default());
    ignored.ready().await;
}

#[tokio::test]
async fn without_images_there_is_an_event_and_nothing_else() {
    let tenant = Tenant::new("imageless").await;
    tenant.create(&[], spec_but("/proxy/pgBouncer/image", json!(""))).await;
    let event = tenant.some(|event: &Event| event.reason.as_deref() == Some("MissingRequiredImage")).await;
    assert_eq!(event.message.as_deref(), Some("Missing image(s): [crunchy-pgbouncer]"));
    let status = tenant.status(|status| status["state"] == "initializing").await;
    assert_eq!(status["postgres"]["size"], 0);
    assert!(tenant.secret().await.is_none());
}

#[tokio::test]
async fn a_pgbouncer_that_is_never_ready_keeps_the_cluster_from_being_ready() {
    let tenant = Tenant::new("poolless").await;
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    tenant.percona.set_for("poolless", Knobs { pgbouncer_unready: true, ..Knobs::default() });
    let unready = |status: &Value| status["pgbouncer"] == json!({"size": 1, "ready": 0});
    let status = tenant.status(unready).await;
    assert_eq!(status["state"], "initializing");
    assert_eq!(status["postgres"]["ready"], 1);
    tenant.percona.set_for("poolless", Knobs::default());
    tenant.ready().await;
}

#[tokio::test]
async fn without_a_pgbouncer_zero_of_zero_is_ready() {
    let tenant = Tenant::new("direct").await;
    let mut spec = spec();
    spec.as_object_mut().unwrap().remove("proxy");
    tenant.create(&[], spec).await;
    let status = tenant.ready().await;
    assert_eq!(status["pgbouncer"], json!({"size": 0, "ready": 0}));
    assert!(!tenant.secret().await.unwrap().data.unwrap().contains_key("pgbouncer-host"));
}

#[tokio::test]
async fn a_paused_cluster_stops_and_comes_back() {
    let tenant = Tenant::new("paused").await;
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    let pause = |pause: bool| Patch::Merge(json!({"spec": {"pause": pause}}));
    let params = PatchParams::default();
    tenant.clusters().patch("paused", &params, &pause(true)).await.unwrap();
    tenant.status(|status| status["state"] == "paused").await;
    tenant.clusters().patch("paused", &params, &pause(false)).await.unwrap();
    tenant.ready().await;
}

#[tokio::test]
async fn without_finalizers_volumes_and_secrets_outlive_a_cluster_and_the_next_one_adopts_them() {
    let tenant = Tenant::new("adopted").await;
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    let (password, volumes) = (tenant.password().await, tenant.names::<PersistentVolumeClaim>().await);
    tenant.delete().await;
    assert_eq!(tenant.password().await, password);
    assert_eq!(tenant.names::<PersistentVolumeClaim>().await, volumes);
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    assert_eq!(tenant.password().await, password);
    assert_eq!(tenant.names::<PersistentVolumeClaim>().await, volumes);
}

#[tokio::test]
async fn with_finalizers_nothing_is_left() {
    let tenant = Tenant::new("erased").await;
    tenant.create(&["percona.com/delete-pvc", "percona.com/delete-ssl"], spec()).await;
    tenant.ready().await;
    let password = tenant.password().await;
    let volume = tenant.some(|_: &PersistentVolumeClaim| true).await;
    tenant.delete().await;
    let gone = conditions::is_deleted(volume.metadata.uid.as_deref().unwrap());
    patient(await_condition(tenant.api::<PersistentVolumeClaim>(), &volume.name_any(), gone)).await.unwrap();
    assert_eq!(tenant.names::<Secret>().await, [""; 0]);
    tenant.create(&[], spec()).await;
    tenant.ready().await;
    assert_ne!(tenant.password().await, password);
}

#[tokio::test]
async fn a_cluster_with_finalizers_stays_while_it_is_ignored() {
    let tenant = Tenant::new("stuck").await;
    tenant.create(&["percona.com/delete-pvc"], spec()).await;
    tenant.ready().await;
    tenant.percona.set_for("stuck", Knobs { ignore: true, ..Knobs::default() });
    tenant.clusters().delete("stuck", &DeleteParams::default()).await.unwrap();
    let other = Tenant::new("unstuck").await;
    other.create(&["percona.com/delete-pvc"], spec()).await;
    other.ready().await;
    other.delete().await;
    assert!(tenant.clusters().get_opt("stuck").await.unwrap().is_some());
    tenant.percona.set_for("stuck", Knobs::default());
    let gone = |cluster: Option<&DynamicObject>| cluster.is_none();
    patient(await_condition(tenant.clusters(), "stuck", gone)).await.unwrap();
}

#[tokio::test]
async fn the_definition_refuses_what_the_real_one_refuses() {
    let tenant = Tenant::new("refused").await;
    let mut without_backups = spec();
    without_backups.as_object_mut().unwrap().remove("backups");
    let mut unknown = spec();
    unknown["proxy"]["pgbouncer"] = json!({});
    let cases = [
        (unknown, ".spec.proxy.pgbouncer: field not declared in schema"),
        (without_backups, "spec.backups: Required value"),
        (spec_but("/postgresVersion", json!(13)), "spec.postgresVersion"),
        (spec_but("/postgresVersion", json!("15")), "spec.postgresVersion"),
        (spec_but("/postgresVersion", json!(14)), "PostgresVersion must be >= 15 if grantPublicSchemaAccess"),
        (spec_but("/users/0/name", json!("Client_App")), "spec.users[0].name"),
        (spec_but("/instances", json!([])), "spec.instances"),
        (spec_but("/instances/0", json!({"name": "a"})), "dataVolumeClaimSpec: Required value"),
    ];
    for (spec, complaint) in cases {
        let refusal = tenant.try_create(&[], spec).await.unwrap_err().to_string();
        assert!(refusal.contains(complaint), "{refusal}");
    }
}

#[tokio::test]
async fn the_definition_can_be_removed_with_all_clusters() {
    let tools = Tools::ensure(&Progress::stderr()).unwrap();
    let start = move || ControlPlane::builder().start(&tools).unwrap();
    let plane = tokio::task::spawn_blocking(start).await.unwrap();
    let client = plane.client().await.unwrap();
    PerconaStandIn::remove_crd(&client).await.unwrap();
    PerconaStandIn::install_crd(&client).await.unwrap();
    PerconaStandIn::install_crd(&client).await.unwrap();
    let percona = Box::leak(Box::new(PerconaStandIn::start(plane.config().await.unwrap()).unwrap()));
    let tenant = Tenant { client: client.clone(), name: "default", percona };
    tenant.create(&["percona.com/delete-pvc"], spec()).await;
    tenant.ready().await;
    patient(PerconaStandIn::remove_crd(&client)).await.unwrap();
    assert!(tenant.clusters().list(&ListParams::default()).await.is_err());
}
