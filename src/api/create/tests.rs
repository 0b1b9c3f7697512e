//! Creating an instance when the API server gives rare answers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::http::Method;
use kube::{Client, core::Status, runtime::watcher};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::*;
use crate::{
    api::{ApiParts, auth::Auth, instances::Instances, reservations::Reservations, shared::Creations},
    config::Config,
    platform::fake,
};

/// An API server that answers by these rules, and records the requests.
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
    fn new(answers: impl IntoIterator<Item = (&'static str, (u16, Value))>) -> Scripted {
        Scripted { answers: Arc::new(answers.into_iter().collect()), asked: Arc::default() }
    }

    fn answer(&self, method: &Method, path: &str, body: Value) -> (u16, Value) {
        let kinds = ["secrets", "clientapps", "profiles", "networkpolicies", "resourcequotas", "namespaces"];
        let kind = kinds.into_iter().find(|kind| path.contains(kind));
        let lists = *method == Method::GET && kind.is_some_and(|kind| path.ends_with(kind));
        let verb = if lists { "LIST" } else { method.as_str() };
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
        fake::client(move |method, path, body| server.answer(method, path, body))
    }

    /// The result of a request, and the requests to the API server.
    async fn create(&self, instance: Value) -> (Result<Creation, Problem>, Vec<String>) {
        self.create_with(instance, None).await
    }

    async fn create_with(
        &self,
        instance: Value,
        stamp: Option<RequestStamp>,
    ) -> (Result<Creation, Problem>, Vec<String>) {
        let instances = Instances::default();
        for event in [watcher::Event::Init, watcher::Event::InitDone] {
            instances.apply(event);
        }
        let shared = ApiState {
            parts: ApiParts {
                client: self.client(),
                watch_client: self.client(),
                config: Arc::new(Config::for_tests()),
                auth: Auth::None,
                namespace: "clientapp-operator".to_owned(),
            },
            instances: Arc::new(instances),
            reservations: Arc::<Reservations>::default(),
            creations: Creations::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let request = Request { instance: serde_json::from_value(instance).unwrap(), stamp };
        let result = match check(&shared, &request).await {
            Ok(profile) => create(&shared, &request, profile).await,
            Err(problem) => Err(problem),
        };
        (result, self.asked.lock().unwrap().clone())
    }
}

fn secret_of(uid: &str) -> (u16, Value) {
    let stamp = json!({"apps.bnerd-operator.local/clientapp-uid": uid});
    // "of-the-cluster"
    let data = json!({"nextcloud-password": "b2YtdGhlLWNsdXN0ZXI="});
    (200, json!({"metadata": {"name": "s", "annotations": stamp}, "data": data}))
}

fn refused_with(result: Result<Creation, Problem>) -> (u16, &'static str) {
    let problem = result.err().expect("it is refused");
    (problem.status().as_u16(), problem.reason)
}

#[tokio::test]
async fn four_requests_make_an_instance() {
    let (result, asked) = Scripted::new([]).create(json!({"hostname": "a.example"})).await;
    let Ok((StatusCode::CREATED, created)) = result else { panic!("it was not made") };
    assert_eq!((created.name.as_str(), created.admin_password.unwrap().len()), (created.namespace.as_str(), 32));
    assert_eq!(asked, ["POST namespaces", "POST networkpolicies", "POST clientapps", "POST secrets"]);
}

#[tokio::test]
async fn a_profile_says_what_its_namespaces_get() {
    let of = |namespace: Value| (200, json!({"metadata": {"name": "gold"}, "spec": {"namespace": namespace}}));
    let made = |more: &[&str]| {
        let all = ["GET profiles", "POST namespaces"].iter().chain(more).chain(&["POST clientapps", "POST secrets"]);
        all.map(|asked| (*asked).to_owned()).collect::<Vec<_>>()
    };
    for (namespace, expected) in [
        (json!({}), made(&["POST networkpolicies"])),
        (
            json!({"quota": {"pods": "20"}}),
            made(&["POST networkpolicies", "POST resourcequotas", "GET resourcequotas"]),
        ),
        (json!({"open": true, "podSecurity": "privileged"}), made(&[])),
    ] {
        let counted = (200, json!({"metadata": {"name": "clientapp-quota"}, "status": {"hard": {"pods": "20"}}}));
        let server = Scripted::new([("GET profiles", of(namespace.clone())), ("GET resourcequotas", counted)]);
        let (result, asked) = server.create(json!({"hostname": "a.example", "profile": "gold"})).await;
        assert!(matches!(result, Ok((StatusCode::CREATED, _))), "{namespace}");
        assert_eq!(asked, expected, "{namespace}");
    }
    // No instance is created without them.
    let server = Scripted::new([("POST networkpolicies", refusal(503, "ServiceUnavailable", "x"))]);
    let (result, asked) = server.create(json!({"hostname": "a.example"})).await;
    assert_eq!((refused_with(result), asked.contains(&"POST clientapps".to_owned())), ((503, "ApiUnavailable"), false));
}

#[tokio::test]
async fn the_password_is_the_controllers_where_that_was_faster() {
    let server = Scripted::new([("POST secrets", taken()), ("GET secrets", secret_of(UID))]);
    let (result, _) = server.create(json!({"hostname": "a.example"})).await;
    let Ok((StatusCode::CREATED, created)) = result else { panic!("it was not made") };
    assert_eq!(created.admin_password.as_deref(), Some("of-the-cluster"));
}

#[tokio::test]
async fn a_generated_name_that_is_taken_is_followed_by_another() {
    let theirs = made_namespace(Value::Null);
    let server = Scripted::new([("POST namespaces 1", taken()), ("GET namespaces", theirs)]);
    let (result, asked) = server.create(json!({"hostname": "a.example"})).await;
    assert!(matches!(result, Ok((StatusCode::CREATED, _))));
    assert_eq!(asked[..4], ["POST namespaces", "GET namespaces", "POST namespaces", "POST networkpolicies"]);
}

/// A namespace that was created for an instance.
fn made_namespace(annotations: Value) -> (u16, Value) {
    let labels = json!({
        "app.kubernetes.io/managed-by": "clientapp-operator", "apps.bnerd-operator.local/instance": "a",
    });
    (200, json!({"metadata": {"name": "a", "uid": UID, "labels": labels, "annotations": annotations}}))
}

/// The kinds of objects that namespaces may contain here.
fn discovery(group: &str, plural: &str, kind: &str) -> (u16, Value) {
    let verbs = ["list", "delete"];
    let resource = json!({"resource": plural, "responseKind": {"kind": kind}, "scope": "Namespaced", "verbs": verbs});
    let versions = [json!({"version": "v1", "resources": [resource]})];
    (200, json!({"items": [{"metadata": {"name": group}, "versions": versions}]}))
}

#[tokio::test]
async fn what_fails_is_undone_if_this_request_has_made_it_and_nothing_is_in_it() {
    let instance = || json!({"hostname": "a.example", "name": "a"});
    let quota = || ("POST clientapps", refusal(403, "Forbidden", "clientapps is forbidden: exceeded quota: few"));
    let surroundings = [
        ("GET namespaces", made_namespace(Value::Null)),
        ("GET /api", discovery("", "secrets", "Secret")),
        ("GET /apis", discovery("apps.bnerd-operator.local", "clientapps", "ClientApp")),
    ];
    let with = |more: Vec<(&'static str, (u16, Value))>| Scripted::new(surroundings.clone().into_iter().chain(more));
    let looked_at =
        ["POST namespaces", "POST networkpolicies", "POST clientapps", "GET namespaces", "GET /api", "GET /apis"];
    let emptied = |asked: &[String]| asked.contains(&"DELETE namespaces".to_owned());

    let (result, asked) = with(vec![quota()]).create(instance()).await;
    assert_eq!((refused_with(result), emptied(&asked)), ((409, "QuotaExceeded"), true), "{asked:?}");
    assert_eq!(asked[..6], looked_at);

    // A user has added an object meanwhile, the namespace was recreated, or its content cannot be listed.
    let list = |name: &str| {
        (200, json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": [{"metadata": {"name": name}}]}))
    };
    for more in [
        ("LIST clientapps", list("b")),
        ("LIST secrets", list("keys")),
        ("LIST secrets", refusal(403, "Forbidden", "secrets is forbidden")),
        ("GET /apis", (200, json!({"kind": "APIGroupList", "groups": []}))),
        ("GET namespaces", {
            let (status, mut namespace) = made_namespace(Value::Null);
            namespace["metadata"]["uid"] = json!("another");
            (status, namespace)
        }),
    ] {
        let (_, asked) = with(vec![quota(), more.clone()]).create(instance()).await;
        assert!(!emptied(&asked), "{more:?} {asked:?}");
    }

    // Without its Secret the instance is undone; its teardown deletes the namespace.
    let unavailable = refusal(503, "ServiceUnavailable", "etcd is gone");
    let server = with(vec![("POST secrets", unavailable), ("LIST clientapps", list("a"))]);
    let (result, asked) = server.create(instance()).await;
    assert_eq!(refused_with(result), (503, "ApiUnavailable"));
    assert_eq!(asked[3..5], ["POST secrets", "DELETE clientapps"]);
    assert!(!emptied(&asked), "{asked:?}");

    let server = with(vec![("POST secrets", taken()), ("GET secrets", secret_of("another"))]);
    let (result, asked) = server.create(instance()).await;
    assert_eq!(refused_with(result), (409, "SecretNotOurs"));
    assert!(asked.contains(&"DELETE clientapps".to_owned()), "{asked:?}");
}

#[tokio::test]
async fn in_a_namespace_that_was_there_nothing_is_made_that_could_be_refused() {
    let stamp = {
        let user = crate::api::auth::User { name: "jo".to_owned(), ..Default::default() };
        let headers = axum::http::HeaderMap::from_iter([("idempotency-key".parse().unwrap(), "k".parse().unwrap())]);
        RequestStamp::of(&headers, &user, &json!({})).unwrap().unwrap()
    };
    let there = || [("POST namespaces", taken()), ("GET namespaces", made_namespace(json!(stamp.annotations())))];
    let retained = || {
        let (status, mut secret) = secret_of("an-earlier-one");
        secret["metadata"]["labels"] = json!({"apps.bnerd-operator.local/retained-from": "a"});
        (status, secret)
    };
    let quota = refusal(403, "Forbidden", "clientapps is forbidden: exceeded quota: few");
    let going = (200, json!({"metadata": {"name": "a", "deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    let plain = json!({"hostname": "a.example", "name": "a"});
    let adopts = json!({"hostname": "a.example", "name": "a", "postgres": {"adopt": true}});
    let of_another_replica = {
        let app = json!({
            "apiVersion": "apps.bnerd-operator.local/v1", "kind": "ClientApp",
            "metadata": {"name": "a", "namespace": "a", "uid": "its", "annotations": stamp.annotations()},
            "spec": {"hostname": "a.example"},
        });
        vec![("GET clientapps", (200, app)), ("GET secrets", secret_of("its"))]
    };
    // The Secret is read before the ClientApp, because another replica creates them in the opposite order.
    let asks = [
        "POST namespaces",
        "GET namespaces",
        "GET secrets",
        "GET clientapps",
        "POST networkpolicies",
        "POST clientapps",
        "POST secrets",
        "GET namespaces",
    ];
    // With adoption, the Secret exists.
    let adopts_asks = [&asks[..6], &asks[7..]].concat();
    for (instance, more, expected, asked_for) in [
        (&plain, vec![], Ok((201, true)), &asks[..]),
        (&plain, of_another_replica, Ok((200, false)), &asks[..4]),
        (&plain, vec![("GET secrets", secret_of("another"))], Err((409, "SecretNotOurs")), &asks[..4]),
        (&plain, vec![("GET secrets", retained())], Err((409, "DataRetained")), &asks[..4]),
        (
            &plain,
            vec![("GET secrets", refusal(503, "ServiceUnavailable", "x"))],
            Err((503, "ApiUnavailable")),
            &asks[..3],
        ),
        // The controller adopts the retained Secret, so no response contains its password.
        (&adopts, vec![("GET secrets", retained())], Ok((201, false)), &adopts_asks),
        (&adopts, vec![], Ok((201, false)), &adopts_asks),
        // The namespace is being deleted, because it was empty when it was checked.
        (&plain, vec![("GET namespaces 2", going)], Err((409, "NamespaceTerminating")), &asks[..]),
        (&adopts, vec![("GET secrets", secret_of("another"))], Err((409, "SecretNotOurs")), &asks[..4]),
        // This request has created neither the namespace nor its content; an earlier attempt has.
        (&plain, vec![("POST clientapps", quota.clone())], Err((409, "QuotaExceeded")), &asks[..6]),
        (&adopts, vec![("POST clientapps", quota.clone())], Err((409, "QuotaExceeded")), &asks[..6]),
    ] {
        let server = Scripted::new(there().into_iter().chain(more));
        let (result, asked) = server.create_with(instance.clone(), Some(stamp.clone())).await;
        let came = match result {
            Ok((status, created)) => Ok((status.as_u16(), created.admin_password.is_some())),
            Err(problem) => Err((problem.status().as_u16(), problem.reason)),
        };
        assert_eq!(came, expected, "{instance} {asked:?}");
        assert_eq!(asked, asked_for, "{instance} {came:?}");
    }
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
        assert_eq!((problem.status().as_u16(), problem.reason), expected, "{rule}");
        assert!(problem.detail.ends_with(&message) || expected.0 == 422, "{rule}: {}", problem.detail);
    }
}
