//! API servers for unit tests.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::{Body as Answer, Bytes},
    http::{Method, Request, Response},
};
use futures::stream;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Client, client::Body};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::{sync::mpsc, time::timeout};
use tokio_util::sync::CancellationToken;
use tower::service_fn;

use super::{
    controller::{ControllerContext, ReconciledObject},
    events::Recorder,
};
use crate::{
    crd::conditions::{find, kind},
    leadership::Leadership,
};

/// Reads an object.
pub(crate) fn of<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

/// Merges as a merge patch does.
pub(crate) fn merged(mut whole: Value, more: Value) -> Value {
    let Value::Object(fields) = more else { return more };
    if !whole.is_object() {
        whole = json!({});
    }
    for (field, value) in fields {
        match value.is_null() {
            true => _ = whole.as_object_mut().unwrap().remove(&field),
            false => whole[&field] = merged(whole[&field].take(), value),
        }
    }
    whole
}

/// A client of a server that answers method, path and body of each request with a status and an object.
pub(crate) fn client(answer: impl Fn(&Method, &str, Value) -> (u16, Value) + Clone + Send + 'static) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let (status, object) = answer(&parts.method, parts.uri.path(), body);
            let response = Response::builder().status(status).body(Body::from(object.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}

/// Runs a controller in a cluster with two objects of its kind. Stops it when the status of `ns/panics` reports that its reconcile
/// panicked, and the reconcile of `ns/other` has got to the same point, where it adds the finalizer.
pub(crate) async fn beside_a_panic<K: ReconciledObject>(
    spec: Value,
    run: impl AsyncFnOnce(ControllerContext, CancellationToken),
) {
    let (group, version, plural) = (K::group(&()), K::api_version(&()), K::plural(&()));
    let object = |name: &str| {
        let metadata = json!({"namespace": "ns", "name": name, "uid": name, "resourceVersion": "1", "generation": 1});
        json!({"apiVersion": version, "kind": K::kind(&()), "metadata": metadata, "spec": spec})
    };
    let definition = json!({
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {"group": group, "names": {"kind": "", "plural": plural}, "scope": "Namespaced", "versions": []},
        "status": {"conditions": [{"type": "Established", "status": "True"}]},
    });
    let cluster = json!({"metadata": {"uid": "cluster"}});
    let all = format!("/apis/{version}/{plural}");
    let one = |name: &str| format!("/apis/{version}/namespaces/ns/{plural}/{name}");
    let (panics, status_path, goes_on) = (one("panics"), one("panics/status"), one("other"));
    let answers = Arc::new(json!({
        all: [object("panics"), object("other")],
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions": [definition],
        "/api/v1/namespaces/kube-system": cluster,
    }));

    let (sender, mut patches) = mpsc::unbounded_channel();
    let server = service_fn(move |request: Request<Body>| {
        let (answers, sender, panics) = (answers.clone(), sender.clone(), panics.clone());
        async move {
            let (head, body) = request.into_parts();
            let (path, query) = (head.uri.path(), head.uri.query().unwrap_or_default());
            if query.contains("watch=true") {
                return Ok(Response::new(Answer::from_stream(stream::pending::<Result<Bytes, Infallible>>())));
            }
            let list = |items: &Value| json!({"metadata": {"resourceVersion": "1"}, "items": items});
            let (status, answer) = match answers.get(path) {
                Some(items @ Value::Array(_)) => (200, list(items)),
                Some(object) => (200, object.clone()),
                None if query.contains("limit=") => (200, list(&json!([]))),
                None => (404, json!({"kind": "Status", "status": "Failure", "code": 404})),
            };
            if head.method == Method::PATCH {
                let patch: Value = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap();
                sender.send((path.to_owned(), patch)).unwrap();
                assert_ne!(path, panics, "a bug");
            }
            Ok::<_, Infallible>(Response::builder().status(status).body(Answer::from(answer.to_string())).unwrap())
        }
    });
    let client = Client::new(server, "default");
    let parts = ControllerContext {
        client: client.clone(),
        watch_client: client.clone(),
        recorder: Recorder::new(client, "operator".to_owned()),
        metrics: Arc::default(),
        lead: Leadership::unconditional(),
        image: None,
    };
    let stop = CancellationToken::new();
    let both = async {
        let (mut reported, mut gone_on) = (None, false);
        while reported.is_none() || !gone_on {
            let (path, patch) = patches.recv().await.expect("the client lives as long as the server");
            gone_on |= path == goes_on;
            if path == status_path {
                // The operations before compare the uid and the version.
                let status = patch.as_array().unwrap().iter().find(|operation| operation["path"] == "/status").unwrap();
                let conditions = status["value"]["conditions"].clone();
                reported.get_or_insert(serde_json::from_value::<Vec<Condition>>(conditions).unwrap());
            }
        }
        stop.cancel();
        reported.unwrap()
    };
    let ended = timeout(Duration::from_secs(60), async { tokio::join!(both, run(parts, stop.clone())) });
    let (reported, ()) = ended.await.expect("both objects are reconciled, and then the controller ends");
    for (type_, status) in [(kind::READY, "Unknown"), (kind::STALLED, "True")] {
        let condition = find(&reported, type_).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), (status, "InternalError"));
        assert!(condition.message.contains("a bug"), "{}", condition.message);
    }
}
