//! Shared by scenarios: specs, operators of their own, and checks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clientapp_crd::ClientApp;
use clientapp_crd::percona::PerconaPGCluster;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use futures::FutureExt as _;
use k8s_openapi::ByteString;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DeleteParams, GroupVersionKind, ListParams, PostParams, PropagationPolicy};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use crate::lab::{Apart, Lab, Object, TIMEOUT, Tenant, hostname, leading};
use crate::operator::Operator;
use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::until;

/// A namespace with its own operator, which runs with these arguments and sees no other namespace.
pub async fn operated(namespace: &str, arguments: &[&str]) -> (Apart, Operator) {
    let mut apart = Lab::unattended().await.apart(namespace).await;
    apart.options.arguments = arguments.iter().map(ToString::to_string).collect();
    let operator = leading(&apart.options).await;
    (apart, operator)
}

/// The program of the newest helm 3. The first test that asks for it builds it.
pub async fn helm3() -> PathBuf {
    let ensure = || Extra::Helm3.ensure(&Progress::stderr()).expect("helm 3 can be built");
    tokio::task::spawn_blocking(ensure).await.expect("the search does not panic")
}

/// A spec without database, Redis and volume, for scenarios about other things.
#[must_use]
pub fn small(tenant: &Tenant, name: &str) -> Value {
    with(
        json!({"postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false}}),
        json!({"hostname": hostname(tenant, name)}),
    )
}

/// Merges one spec over another.
#[must_use]
pub fn with(mut spec: Value, more: Value) -> Value {
    let (Value::Object(spec_map), Value::Object(more)) = (&mut spec, more) else { panic!("specs are objects") };
    spec_map.extend(more);
    spec
}

/// The names of all objects of a kind in the tenant's namespace.
pub async fn names<K: Object>(tenant: &Tenant) -> Vec<String> {
    selected::<K>(tenant, "").await
}

/// The names of those with these labels; none, if the cluster does not know the kind, such as Percona's.
async fn selected<K: Object>(tenant: &Tenant, labels: &str) -> Vec<String> {
    match tenant.api::<K>().list(&ListParams::default().labels(labels)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
        objects => objects.unwrap().iter().map(|object| object.name_any()).collect(),
    }
}

/// Creates a Secret for `spec.adminSecret`.
pub async fn admin_secret(tenant: &Tenant, name: &str, password: &str) {
    let given = json!({
        "metadata": {"name": name},
        "stringData": {"nextcloud-username": "a", "nextcloud-password": password},
    });
    tenant.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(given).unwrap()).await.unwrap();
}

/// Writes a second revision of one app's release, under the operator's stamp, with what Helm stored as the first revision `of` an app,
/// changed. Returns the name of its Secret.
pub async fn forge(tenant: &Tenant, release: &str, of: &str, change: impl FnOnce(&mut Value)) -> String {
    let first =
        async |release: &str| tenant.api::<Secret>().get(&format!("sh.helm.release.v1.{release}.v1")).await.unwrap();
    let mut forged = first(release).await;
    let payload = first(of).await.data.unwrap().remove("release").unwrap();
    let packed = BASE64_STANDARD.decode(&payload.0).unwrap();
    let mut revision: Value = serde_json::from_reader(GzDecoder::new(&packed[..])).unwrap();
    revision["name"] = json!(release);
    revision["version"] = json!(2);
    change(&mut revision);
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(&mut packed, &revision).unwrap();
    let payload = BASE64_STANDARD.encode(packed.finish().unwrap());

    let name = format!("sh.helm.release.v1.{release}.v2");
    let mut labels = forged.labels().clone();
    for key in ["version", "apps.bnerd-operator.local/revision"] {
        labels.insert(key.to_owned(), "2".to_owned());
    }
    forged.metadata = serde_json::from_value(json!({"name": name, "labels": labels})).unwrap();
    forged.data = Some(BTreeMap::from([("release".to_owned(), ByteString(payload.into_bytes()))]));
    tenant.api::<Secret>().create(&PostParams::default(), &forged).await.unwrap();
    name
}

/// The value of a key in a Secret.
pub async fn secret(tenant: &Tenant, name: &str, key: &str) -> String {
    let secret = tenant.api::<Secret>().get(name).await.unwrap();
    String::from_utf8(secret.data.unwrap()[key].0.clone()).unwrap()
}

/// Percona's Secrets and the Jobs of its backups can outlive their cluster: one of its controllers deletes them while another, which
/// has not heard of the deletion, creates them again, without an owner.
const NOT_OF_PERCONA: &str = "!postgres-operator.crunchydata.com/cluster";
const NO_BACKUP: &str = "!postgres-operator.crunchydata.com/pgbackrest-backup";

/// Waits until nothing of an app is left in its namespace, but for what Percona may leave. The garbage collector takes a little longer.
pub async fn nothing_is_left(tenant: &Tenant) {
    until("nothing is left", async || {
        let kinds = [
            names::<ClientApp>(tenant).boxed(),
            names::<PerconaPGCluster>(tenant).boxed(),
            selected::<Secret>(tenant, NOT_OF_PERCONA).boxed(),
            names::<PersistentVolumeClaim>(tenant).boxed(),
            names::<Deployment>(tenant).boxed(),
            names::<StatefulSet>(tenant).boxed(),
            names::<Service>(tenant).boxed(),
            selected::<Job>(tenant, NO_BACKUP).boxed(),
            selected::<Pod>(tenant, NO_BACKUP).boxed(),
            names::<ConfigMap>(tenant).boxed(),
            names::<Role>(tenant).boxed(),
            names::<RoleBinding>(tenant).boxed(),
            names::<ServiceAccount>(tenant).boxed(),
        ];
        // While one kind is waited for, no other is listed.
        for kind in kinds {
            let mut left = kind.await;
            // In every namespace: the defaults, and the ServiceAccount and RoleBinding that stay behind ClientApps.
            left.retain(|name| !["kube-root-ca.crt", "default", "clientapp-deployer"].contains(&name.as_str()));
            if !left.is_empty() {
                return Err(format!("in {}: {left:?}\n{}", tenant.namespace, tenant.lab.operator_log()));
            }
        }
        Ok(())
    })
    .await;
}

/// Deletes this Deployment of a release, and waits until the operator has put it back.
pub async fn is_put_back(tenant: &Tenant, name: &str) {
    let before = tenant.uid::<Deployment>(name).await.expect("it is there");
    tenant.api::<Deployment>().delete(name, &DeleteParams::default()).await.expect("it can be deleted");
    let again = |found: Option<&Deployment>| found?.uid().filter(|uid| *uid != before);
    tenant.wait_for(name, "recreated", again).await;
}

/// Deletes a ClientApp with this propagation policy, and waits until it is gone.
pub async fn delete(tenant: &Tenant, name: &str, propagation: PropagationPolicy) {
    let params = DeleteParams { propagation_policy: Some(propagation), ..DeleteParams::default() };
    tenant.api::<ClientApp>().delete(name, &params).await.unwrap();
    tenant.gone(name).await;
}

/// Defines a namespaced kind that this operator does not know, and waits until the API server serves it.
pub async fn defined(client: &Client, group: &str, kind: &str) -> ApiResource {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind));
    let definition = json!({
        "metadata": {
            "name": definition(&kind),
            // Required for a group of Kubernetes' own.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"},
        },
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"plural": kind.plural, "singular": kind.kind.to_lowercase(), "kind": kind.kind},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {
                "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
            }}],
        },
    });
    let definitions = Api::<CustomResourceDefinition>::all(client.clone());
    let definition: CustomResourceDefinition = serde_json::from_value(definition).expect("it is one");
    let name = definition.name_any();
    definitions.create(&PostParams::default(), &definition).await.expect("it is a new kind");
    let established = await_condition(definitions, &name, conditions::is_crd_established());
    tokio::time::timeout(TIMEOUT, established).await.expect("the kind is served").expect("it can be read");
    kind
}

/// The name of a kind's definition.
#[must_use]
pub fn definition(kind: &ApiResource) -> String {
    format!("{}.{}", kind.plural, kind.group)
}
