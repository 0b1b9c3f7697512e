//! Requests for names with data left by an earlier instance: the data is adopted, or stays untouched.

use std::collections::BTreeMap;

use clientapp_crd::{ClientApp, Postgresql};
use e2e::lab::{Lab, Tenant};
use e2e::operator::{Operator, Options};
use e2e::proxy::{By, Fault, Proxy, Rule, Snap, Trap};
use http::StatusCode;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};

use crate::api::{Http, make_namespace, ours, small, stamp, standby, stored_password, with};

const RETAINED: &str = "apps.bnerd-operator.local/retained-from";

/// A tenant in a namespace where the API creates instances.
async fn tenant(namespace: &str) -> Tenant {
    let tenant = Lab::shared().await.tenant(namespace).await;
    let labels = Patch::Merge(json!({"metadata": {"labels": ours()}}));
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    namespaces.patch(namespace, &PatchParams::default(), &labels).await.unwrap();
    tenant
}

/// An instance `acme` with a volume and this database existed, and has left them behind; returns its password.
async fn left(tenant: &Tenant, postgres: Value) -> String {
    let hostname = format!("acme.{}.example", tenant.namespace);
    let spec = json!({
        "hostname": hostname, "deletionPolicy": "Retain", "postgres": postgres, "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let password = stored_password(&tenant.client, &tenant.namespace, "acme-admin-secret").await;
    tenant.delete("acme").await;
    password
}

/// Objects that hold data or give access to data, with their uid and the owner they were retained from.
type Data = BTreeMap<String, (String, Option<String>)>;

async fn data(tenant: &Tenant) -> Data {
    let clusters = ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", "PerconaPGCluster"));
    let mut found = BTreeMap::new();
    let claims = ApiResource::erase::<PersistentVolumeClaim>(&());
    for kind in [claims, ApiResource::erase::<Secret>(&()), ApiResource::erase::<Postgresql>(&()), clusters] {
        let api = Api::<DynamicObject>::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind);
        for object in api.list_metadata(&ListParams::default()).await.unwrap() {
            let retained = object.labels().get(RETAINED).cloned();
            found.insert(format!("{} {}", kind.kind, object.name_any()), (object.uid().unwrap(), retained));
        }
    }
    found
}

/// Checks that what was there still is, as it was.
async fn is_left(tenant: &Tenant, before: &Data, when: &str) {
    let after = data(tenant).await;
    for (object, found) in before {
        assert_eq!(after.get(object), Some(found), "{object} {when}");
    }
}

/// Checks that it belongs to an instance again.
async fn is_adopted(tenant: &Tenant, before: &Data) {
    let after = data(tenant).await;
    for (object, (uid, _)) in before {
        assert_eq!(after.get(object), Some(&(uid.clone(), None)), "{object}");
    }
}

/// A request for an instance of that name.
fn body(tenant: &Tenant, hostname: &str, postgres: Value) -> Value {
    let hostname = format!("{hostname}.{}.test", tenant.namespace);
    json!({
        "hostname": hostname, "name": "acme", "namespace": tenant.namespace, "postgres": postgres,
        "redis": {"enabled": false},
    })
}

/// The API of a standby that reaches the API server through a proxy.
async fn through_a_proxy(lab: &'static Lab) -> (Operator, Proxy, Http) {
    let proxy = Proxy::start(&lab.operator_kubeconfig).unwrap();
    let (operator, url) = standby(Options { kubeconfig: proxy.kubeconfig(), ..lab.options() }).await;
    (operator, proxy, Http::at(url).await)
}

/// Sends a request of which the nth write is carried out, and its answer is lost: it fails, and yet that is done. Returns how many
/// writes there were.
async fn lost(http: &Http, proxy: &Proxy, body: &Value, nth: usize) -> usize {
    proxy.count_writes(Some(Trap { by: By::Operator, nth, snap: Snap::Lose }));
    let answer = http.post(body).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    let writes = proxy.writes().len();
    proxy.count_writes(None);
    writes
}

const UNAVAILABLE: Fault = Fault::Answer(StatusCode::SERVICE_UNAVAILABLE);

#[tokio::test]
async fn what_was_retained_is_adopted() {
    let (_, http) = Http::shared().await;
    let tenant = tenant("api-adopts").await;
    let password = left(&tenant, json!({})).await;
    let before = data(&tenant).await;
    assert!(before.len() >= 4, "{before:#?}");

    let plain = body(&tenant, "plain", json!({}));
    http.post(&plain).await.is_problem(409, "DataRetained", Some("name"), "postgres.adopt");
    http.post(&small("taken.adopts.example")).await.made();
    let taken = with(body(&tenant, "", json!({"adopt": true})), "hostname", "taken.adopts.example");
    http.post(&taken).await.is_problem(409, "HostnameConflict", Some("hostname"), "another instance");
    assert_eq!(data(&tenant).await, before);

    let answer = http.post(&body(&tenant, "adopts", json!({"adopt": true}))).await;
    answer.made();
    assert!(answer.json.get("adminPassword").is_none() && !answer.text.contains(&password), "{answer:?}");
    tenant.ready("acme", 1).await;
    is_adopted(&tenant, &before).await;
    assert_eq!(stored_password(&tenant.client, &tenant.namespace, &answer.word("adminSecret")).await, password);
}

#[tokio::test]
async fn a_request_that_fails_leaves_what_was_retained() {
    let (lab, _) = Http::shared().await;
    let tenant = tenant("api-refused").await;
    let standalone = json!({"provider": "standalone"});
    left(&tenant, standalone.clone()).await;
    let before = data(&tenant).await;
    assert!(before.len() >= 4, "{before:#?}");
    let (operator, proxy, http) = through_a_proxy(lab).await;

    let adopting = |hostname: &str| body(&tenant, hostname, with(standalone.clone(), "adopt", true));
    for (verb, resource) in
        [("create", "namespaces"), ("get", "clientapps"), ("get", "secrets"), ("create", "clientapps")]
    {
        proxy.set([Rule::new(verb, resource, UNAVAILABLE)]);
        assert_eq!(http.post(&adopting("unavailable")).await.status, 503, "{verb} {resource}");
        assert!(tenant.api::<ClientApp>().get_opt("acme").await.unwrap().is_none(), "{verb} {resource}");
        assert_eq!(data(&tenant).await, before, "{verb} {resource}");
    }
    // An instance is created and deleted again, beside data whose Secret is lost.
    proxy.set([]);
    let admin = "acme-admin-secret";
    tenant.api::<Secret>().delete(admin, &DeleteParams::default()).await.unwrap();
    let before = data(&tenant).await;
    proxy.set([Rule::new("create", "secrets", UNAVAILABLE)]);
    assert_eq!(http.post(&body(&tenant, "plain", standalone)).await.status, 503);
    tenant.gone("acme").await;
    is_left(&tenant, &before, "after a request that was undone").await;
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

/// What was retained stays as it was, or belongs to a whole instance.
#[tokio::test]
async fn a_request_whose_writes_lose_their_answers_leaves_what_was_retained() {
    let (lab, _) = Http::shared().await;
    let standalone = json!({"provider": "standalone"});
    let (operator, proxy, http) = through_a_proxy(lab).await;

    // The namespace exists, so its creation is one more write. The second is the ClientApp.
    let adopts = tenant("api-lost-adopts").await;
    left(&adopts, standalone.clone()).await;
    let before = data(&adopts).await;
    let adopting = |hostname: &str| body(&adopts, hostname, with(standalone.clone(), "adopt", true));
    assert_eq!(lost(&http, &proxy, &adopting("first"), 1).await, 1);
    adopts.gone("acme").await;
    is_left(&adopts, &before, "after write 1").await;
    assert_eq!(lost(&http, &proxy, &adopting("second"), 2).await, 2);
    adopts.ready("acme", 1).await;
    is_adopted(&adopts, &before).await;

    // Without adoption, the password is a third, where there is none; if that fails, the request undoes the second.
    let plain = tenant("api-lost-plain").await;
    left(&plain, standalone.clone()).await;
    plain.api::<Secret>().delete("acme-admin-secret", &DeleteParams::default()).await.unwrap();
    let before = data(&plain).await;
    for (nth, writes) in [(1, 1), (2, 2), (3, 4)] {
        let body = body(&plain, &format!("plain-{nth}"), standalone.clone());
        assert_eq!(lost(&http, &proxy, &body, nth).await, writes, "{nth}");
        if nth == 2 {
            plain.held("acme", "DataRetained", &["postgres.adopt"]).await;
            is_left(&plain, &before, "beside an instance").await;
            plain.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
        }
        plain.gone("acme").await;
        is_left(&plain, &before, &format!("after write {nth}")).await;
    }
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_request_that_is_repeated_and_fails_leaves_the_namespace_of_before() {
    let lab = Lab::shared().await;
    let client = lab.plane.client().await.unwrap();
    let (operator, proxy, http) = through_a_proxy(lab).await;
    let body = small("before.repeated.example");
    let stamp = stamp("before", &body);
    let name = stamp.name(0);
    let mut labels = ours();
    labels["apps.bnerd-operator.local/instance"] = json!(name);
    make_namespace(&client, &name, json!({"labels": labels, "annotations": stamp.annotations()})).await;
    let notes = serde_json::from_value(json!({"metadata": {"name": "notes"}})).unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &name);
    maps.create(&PostParams::default(), &notes).await.unwrap();

    for resource in ["clientapps", "secrets"] {
        proxy.set([Rule::new("create", resource, UNAVAILABLE)]);
        assert_eq!(http.post_with_key("before", &body).await.status, 503, "{resource}");
        let namespace = Api::<Namespace>::all(client.clone()).get(&name).await.unwrap();
        assert!(namespace.metadata.deletion_timestamp.is_none(), "{resource}");
        assert!(maps.get_opt("notes").await.unwrap().is_some(), "{resource}");
    }
    // Everything that this request created is deleted again.
    proxy.set([Rule::new("create", "clientapps", UNAVAILABLE)]);
    let answer = http.post(&with(small("made.repeated.example"), "name", "made-for-nothing")).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(crate::api::is_gone(&client, "made-for-nothing").await);
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}
