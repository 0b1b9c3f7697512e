//! What an instance's making comes to where the API server answers as it rarely does.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::http::{Method, Response};
use kube::{Client, client::Body, core::Status, runtime::watcher};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::{
    api::{auth::Auth, instances::Instances, reservations::Reservations},
    config::Config,
};

/// An API server that answers by these rules, and keeps what it was asked.
#[derive(Clone, Default)]
struct Scripted {
    answers: Arc<HashMap<&'static str, (u16, Value)>>,
    asked: Arc<Mutex<Vec<String>>>,
}

const UID: &str = "of-the-app";

fn refusal(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = Status { code, ..Status::failure(message, reason) };
    (code, serde_json::to_value(status).unwrap())
}

fn taken() -> (u16, Value) {
    refusal(409, "AlreadyExists", "already exists")
}

impl Scripted {
    fn new<const N: usize>(answers: [(&'static str, (u16, Value)); N]) -> Scripted {
        Scripted { answers: Arc::new(answers.into()), asked: Arc::default() }
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let kind = ["secrets", "clientapps", "profiles", "namespaces"].into_iter().find(|kind| path.contains(kind));
        let verb = if *method == Method::GET && path.ends_with("clientapps") { "LIST" } else { method.as_str() };
        let asked = format!("{verb} {}", kind.unwrap_or(path));
        self.asked.lock().unwrap().push(asked.clone());
        let nth = self.asked.lock().unwrap().iter().filter(|earlier| **earlier == asked).count();
        let rule = self.answers.get(format!("{asked} {nth}").as_str()).or_else(|| self.answers.get(asked.as_str()));
        if let Some(answer) = rule {
            return answer.clone();
        }
        match verb {
            "POST" => {
                let mut made = body;
                made["metadata"]["uid"] = json!(UID);
                (201, made)
            }
            "LIST" => (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": []})),
            "DELETE" => (200, json!({"apiVersion": "v1", "kind": "Status", "status": "Success"})),
            _ => refusal(404, "NotFound", "not found"),
        }
    }

    fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: axum::http::Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.unwrap_or_default();
                let body = serde_json::from_slice(&body).unwrap_or_default();
                let (status, answer) = server.answer(&parts.method, parts.uri.path(), body);
                let response = Response::builder().status(status).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        Client::new(service, "default")
    }

    /// What becomes of a request, and what was asked for it.
    async fn create(&self, instance: Value) -> (Result<Answer, Problem>, Vec<String>) {
        let instances = Instances::default();
        for event in [watcher::Event::Init, watcher::Event::InitDone] {
            instances.apply(event);
        }
        let shared = Shared {
            client: self.client(),
            watch_client: self.client(),
            config: Arc::new(Config::for_tests()),
            auth: Auth::None,
            namespace: "clientapp-operator".to_owned(),
            instances: Arc::new(instances),
            reservations: Arc::<Reservations>::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let request = Request { instance: serde_json::from_value(instance).unwrap(), stamp: None };
        let result = create(&shared, &request).await;
        (result, self.asked.lock().unwrap().clone())
    }
}

fn secret_of(uid: &str) -> (u16, Value) {
    let stamp = json!({"apps.bnerd-operator.local/clientapp-uid": uid});
    // "of-the-cluster"
    let data = json!({"nextcloud-password": "b2YtdGhlLWNsdXN0ZXI="});
    (200, json!({"metadata": {"name": "s", "annotations": stamp}, "data": data}))
}

fn refused_with(result: Result<Answer, Problem>) -> (u16, &'static str) {
    let problem = result.err().expect("it is refused");
    (problem.status().as_u16(), problem.reason())
}

#[tokio::test]
async fn three_requests_make_an_instance() {
    let (result, asked) = Scripted::new([]).create(json!({"hostname": "a.example"})).await;
    let Ok(Answer::Made(created)) = result else { panic!("it was not made") };
    assert_eq!((created.name.as_str(), created.admin_password.unwrap().len()), (created.namespace.as_str(), 32));
    assert_eq!(asked, ["POST namespaces", "POST clientapps", "POST secrets"]);
}

#[tokio::test]
async fn the_password_is_the_controllers_where_that_was_faster() {
    let server = Scripted::new([("POST secrets", taken()), ("GET secrets", secret_of(UID))]);
    let (result, _) = server.create(json!({"hostname": "a.example"})).await;
    let Ok(Answer::Made(created)) = result else { panic!("it was not made") };
    assert_eq!(created.admin_password.as_deref(), Some("of-the-cluster"));
}

#[tokio::test]
async fn a_generated_name_that_is_taken_is_followed_by_another() {
    let theirs =
        (200, json!({"metadata": {"name": "x", "labels": {"app.kubernetes.io/managed-by": "clientapp-operator"}}}));
    let server = Scripted::new([("POST namespaces 1", taken()), ("GET namespaces", theirs)]);
    let (result, asked) = server.create(json!({"hostname": "a.example"})).await;
    assert!(matches!(result, Ok(Answer::Made(_))));
    let again = ["POST namespaces", "GET namespaces", "POST namespaces", "POST clientapps", "POST secrets"];
    assert_eq!(asked, again);
}

#[tokio::test]
async fn what_fails_is_undone() {
    let quota = || refusal(403, "Forbidden", "clientapps is forbidden: exceeded quota: few");
    let made_for_nothing = ["POST namespaces", "POST clientapps", "LIST clientapps", "DELETE namespaces"];
    let (result, asked) = Scripted::new([("POST clientapps", quota())]).create(json!({"hostname": "a.example"})).await;
    assert_eq!((refused_with(result), asked), ((409, "QuotaExceeded"), made_for_nothing.map(str::to_owned).to_vec()));

    // Somebody has made a ClientApp there meanwhile: it keeps its namespace.
    let list = json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [{"metadata": {"name": "b"}}]});
    let server = Scripted::new([("POST clientapps", quota()), ("LIST clientapps", (200, list))]);
    let (_, asked) = server.create(json!({"hostname": "a.example"})).await;
    assert_eq!(asked, made_for_nothing[..3]);

    // Without its Secret no instance stays; the namespace goes with its ClientApp.
    let unavailable = || refusal(503, "ServiceUnavailable", "etcd is gone");
    let (result, asked) =
        Scripted::new([("POST secrets", unavailable())]).create(json!({"hostname": "a.example"})).await;
    assert_eq!(refused_with(result), (503, "ApiUnavailable"));
    let undone = ["POST namespaces", "POST clientapps", "POST secrets", "DELETE clientapps", "LIST clientapps"];
    assert_eq!(asked[..5], undone);

    let server = Scripted::new([("POST secrets", taken()), ("GET secrets", secret_of("another"))]);
    let (result, asked) = server.create(json!({"hostname": "a.example"})).await;
    assert_eq!(refused_with(result), (409, "SecretNotOurs"));
    assert!(asked.contains(&"DELETE clientapps".to_owned()), "{asked:?}");
}

#[tokio::test]
async fn what_the_api_server_refuses_is_told_in_its_words() {
    for (rule, answer, expected) in [
        ("POST namespaces", refusal(403, "Forbidden", "User \"x\" cannot create resource"), (503, "AccessDenied")),
        ("POST namespaces", refusal(429, "TooManyRequests", "slow down"), (503, "ApiUnavailable")),
        ("POST clientapps", refusal(422, "Invalid", "spec.x is invalid"), (422, "Refused")),
        ("GET profiles", refusal(500, "InternalError", "etcd is gone"), (503, "ApiUnavailable")),
        ("GET profiles", refusal(404, "NotFound", "not found"), (422, "ProfileMissing")),
    ] {
        let message = answer.1["message"].as_str().unwrap().to_owned();
        let mut body = json!({"hostname": "a.example"});
        if rule.ends_with("profiles") {
            body["profile"] = json!("gold");
        }
        let (result, _) = Scripted::new([(rule, answer)]).create(body).await;
        let problem = result.err().expect("it is refused");
        assert_eq!((problem.status().as_u16(), problem.reason()), expected, "{rule}");
        assert!(problem.detail().ends_with(&message) || expected.0 == 422, "{rule}: {}", problem.detail());
    }
}
