//! Requests for names with data left by an earlier instance: the data is adopted, or stays untouched.

use std::collections::BTreeMap;

use clientapp_crd::ClientApp;
use clientapp_operator::api::auth::User;
use clientapp_operator::api::idempotency::Stamp;
use e2e::lab::{Lab, Tenant};
use e2e::operator::{Operator, Options};
use e2e::proxy::{By, Fault, Proxy, Rule, Snap, Trap};
use http::{HeaderMap, HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{
    Api, ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use serde_json::{Value, json};

use crate::{Http, make_namespace, ours, small, stored_password, with};

const RETAINED: &str = "apps.bnerd-operator.local/retained-from";

/// A tenant in a namespace where the API creates instances.
async fn tenant(namespace: &str) -> Tenant {
    let tenant = Lab::shared().await.tenant(namespace).await;
    let labels = Patch::Merge(json!({"metadata": {"labels": ours()}}));
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    namespaces.patch(namespace, &PatchParams::default(), &labels).await.unwrap();
    tenant
}

/// An instance with a database and a volume existed, and has left them behind; returns its password.
async fn left(tenant: &Tenant, name: &str) -> String {
    let spec = json!({"hostname": format!("{name}.{}.example", tenant.namespace), "deletionPolicy": "Retain"});
    tenant.create(name, spec).await.unwrap();
    tenant.ready(name, 1).await;
    let password = stored_password(&tenant.client, &tenant.namespace, &format!("{name}-admin-secret")).await;
    tenant.delete(name).await;
    // The garbage collector deletes this one.
    let redis = format!("{name}-redis-secret");
    tenant.wait_for(&redis, "gone", |secret: Option<&Secret>| secret.is_none().then_some(())).await;
    password
}

/// Objects in a namespace that hold data or give access to data, with their uid and the owner they were retained from.
async fn data(tenant: &Tenant) -> BTreeMap<String, (String, Option<String>)> {
    let clusters = ApiResource::from_gvk(&GroupVersionKind::gvk("pgv2.percona.com", "v2", "PerconaPGCluster"));
    let mut found = BTreeMap::new();
    for kind in [ApiResource::erase::<PersistentVolumeClaim>(&()), ApiResource::erase::<Secret>(&()), clusters] {
        let api = Api::<DynamicObject>::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind);
        for object in api.list_metadata(&ListParams::default()).await.unwrap() {
            let retained = object.labels().get(RETAINED).cloned();
            found.insert(format!("{} {}", kind.kind, object.name_any()), (object.uid().unwrap(), retained));
        }
    }
    found
}

fn adopting(hostname: &str, tenant: &Tenant, name: &str) -> Value {
    json!({"hostname": hostname, "name": name, "namespace": tenant.namespace, "postgres": {"adopt": true}})
}

/// The API of a standby that reaches the API server through a proxy.
async fn through_a_proxy(lab: &'static Lab) -> (Operator, Proxy, Http) {
    let proxy = Proxy::start(&lab.operator_kubeconfig).unwrap();
    let options = Options { kubeconfig: proxy.kubeconfig(), ..lab.options() };
    let start = move || {
        let mut operator = Operator::start(&options).unwrap();
        let url = operator.api_url().unwrap();
        (operator, url)
    };
    let (operator, url) = tokio::task::spawn_blocking(start).await.unwrap();
    (operator, proxy, Http::at(url).await)
}

#[tokio::test]
async fn what_was_retained_is_adopted() {
    let (_, http) = Http::shared().await;
    let tenant = tenant("api-adopts").await;
    let password = left(&tenant, "acme").await;
    let before = data(&tenant).await;
    assert!(before.len() >= 4, "{before:#?}");

    let without = with(adopting("acme.adopts.example", &tenant, "acme"), "postgres", json!({}));
    http.post(&without).await.is_problem(409, "DataRetained", Some("name"), "postgres.adopt");
    assert_eq!(data(&tenant).await, before);

    let answer = http.post(&adopting("acme.adopts.example", &tenant, "acme")).await;
    answer.made();
    assert!(answer.json.get("adminPassword").is_none() && !answer.text.contains(&password), "{answer:?}");
    tenant.ready("acme", 1).await;
    let after = data(&tenant).await;
    for (object, (uid, _)) in &before {
        assert_eq!(after.get(object), Some(&(uid.clone(), None)), "{object}");
    }
    assert_eq!(stored_password(&tenant.client, &tenant.namespace, &answer.word("adminSecret")).await, password);
}

#[tokio::test]
async fn a_request_that_fails_leaves_what_was_retained() {
    let (lab, shared) = Http::shared().await;
    let tenant = tenant("api-refused").await;
    left(&tenant, "acme").await;
    let before = data(&tenant).await;
    let (operator, proxy, http) = through_a_proxy(lab).await;
    let adopt = adopting("acme.refused.example", &tenant, "acme");
    let plain = with(adopt.clone(), "postgres", json!({}));

    shared.post(&small("taken.refused.example")).await.made();
    let taken = adopting("taken.refused.example", &tenant, "acme");
    shared.post(&taken).await.is_problem(409, "HostnameConflict", Some("hostname"), "another instance");
    assert_eq!(data(&tenant).await, before);

    let unavailable = Fault::Answer(StatusCode::SERVICE_UNAVAILABLE);
    for (verb, resource) in
        [("create", "namespaces"), ("get", "clientapps"), ("get", "secrets"), ("create", "clientapps")]
    {
        proxy.set([Rule::new(verb, resource, unavailable)]);
        assert_eq!(http.post(&adopt).await.status, 503, "{verb} {resource}");
        assert!(tenant.api::<ClientApp>().get_opt("acme").await.unwrap().is_none(), "{verb} {resource}");
        assert_eq!(data(&tenant).await, before, "{verb} {resource}");
    }

    // An instance is created and deleted again, beside data whose Secret is lost.
    tenant.api::<Secret>().delete("acme-admin-secret", &DeleteParams::default()).await.unwrap();
    let before = data(&tenant).await;
    proxy.set([Rule::new("create", "secrets", unavailable)]);
    assert_eq!(http.post(&plain).await.status, 503);
    tenant.gone("acme").await;
    let after = data(&tenant).await;
    for (object, found) in &before {
        assert_eq!(after.get(object), Some(found), "{object}");
    }
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

/// A write that was carried out and whose answer is lost is a failure for the request, and yet done: what was retained
/// stays as it was, or belongs to a whole instance.
#[tokio::test]
async fn a_request_whose_writes_lose_their_answers_leaves_what_was_retained() {
    let (lab, _) = Http::shared().await;
    let tenant = tenant("api-lost").await;
    let (operator, proxy, http) = through_a_proxy(lab).await;
    // The namespace exists, so its creation is one more write. Without adoption, the password is another.
    for (adopts, writes) in [(true, 2), (false, 3)] {
        for nth in 1..=writes {
            let name = format!("{}-{nth}", if adopts { "adopts" } else { "plain" });
            left(&tenant, &name).await;
            let admin = format!("{name}-admin-secret");
            if !adopts {
                // Otherwise nothing is written beside it.
                tenant.api::<Secret>().delete(&admin, &DeleteParams::default()).await.unwrap();
            }
            let of_name = async || {
                let mut found = data(&tenant).await;
                found.retain(|object, _| object.contains(&format!("{name}-")));
                found
            };
            let before = of_name().await;
            assert!(before.len() >= 3, "{before:#?}");
            let mut body = adopting(&format!("{name}.lost.example"), &tenant, &name);
            body["postgres"] = json!({"adopt": adopts});
            proxy.count_writes(Some(Trap { by: By::Operator, nth, snap: Snap::Lose }));
            let answer = http.post(&body).await;
            assert_eq!(answer.status, 503, "{answer:?}");
            assert_eq!(proxy.writes().len(), nth + usize::from(!adopts && nth == 3), "{:?}", proxy.writes());
            proxy.count_writes(None);

            // The second write is the ClientApp; after a third that fails, the request undoes it.
            match (adopts, nth) {
                (true, 2) => drop(tenant.ready(&name, 1).await),
                (false, 2) => tenant.held(&name, "DataRetained", &["postgres.adopt"]).await,
                _ => tenant.gone(&name).await,
            }
            let is_adopted = adopts && nth == 2;
            let after = of_name().await;
            for (object, (uid, retained)) in &before {
                let retained = retained.clone().filter(|_| !is_adopted);
                assert_eq!(after.get(object), Some(&(uid.clone(), retained)), "{object} of {name}");
            }
        }
    }
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

#[tokio::test]
async fn a_request_that_is_repeated_and_fails_leaves_the_namespace_of_before() {
    let lab = Lab::shared().await;
    let client = lab.plane.client().await.unwrap();
    let (operator, proxy, http) = through_a_proxy(lab).await;
    let body = small("before.repeated.example");
    let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_static("before"))]);
    let stamp = Stamp::of(&headers, &User { name: "anonymous".to_owned(), ..User::default() }, &body);
    let stamp = stamp.unwrap().unwrap();
    let name = stamp.name(0);
    let mut labels = ours();
    labels["apps.bnerd-operator.local/instance"] = json!(name);
    make_namespace(&client, &name, json!({"labels": labels, "annotations": stamp.annotations()})).await;
    let notes = serde_json::from_value(json!({"metadata": {"name": "notes"}})).unwrap();
    let maps = Api::<ConfigMap>::namespaced(client.clone(), &name);
    maps.create(&PostParams::default(), &notes).await.unwrap();

    for resource in ["clientapps", "secrets"] {
        proxy.set([Rule::new("create", resource, Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
        assert_eq!(http.post_with_key("before", &body).await.status, 503, "{resource}");
        let namespace = Api::<Namespace>::all(client.clone()).get(&name).await.unwrap();
        assert!(namespace.metadata.deletion_timestamp.is_none(), "{resource}");
        assert!(maps.get_opt("notes").await.unwrap().is_some(), "{resource}");
    }
    // Everything that this request created is deleted again.
    proxy.set([Rule::new("create", "clientapps", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
    let answer = http.post(&with(small("made.repeated.example"), "name", "made-for-nothing")).await;
    assert_eq!(answer.status, 503, "{answer:?}");
    assert!(crate::is_gone(&client, "made-for-nothing").await);
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}
