//! The HTTP API as its users see it: a real operator serves it, on a real control plane.

mod adoption;
mod auth;
mod backups;
mod bodies;
mod crowd;
mod idempotency;
mod instances;
mod places;
mod watching;

use clientapp_crd::{ClientApp, Guard};
use clientapp_operator::api::auth::User;
use clientapp_operator::api::idempotency::RequestStamp;
use e2e::lab::{Lab, TIMEOUT};
use e2e::operator::{Operator, Options};
use e2e::wait::until;
use http::HeaderValue;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt as _};
use reqwest::header::HeaderMap;
use reqwest::{Certificate, Method, RequestBuilder};
use serde_json::{Value, json};

/// The API of one operator.
struct Http {
    client: reqwest::Client,
    base: String,
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
    /// Null unless it is JSON.
    json: Value,
}

impl Http {
    /// The API of the operator that all tests share.
    async fn shared() -> (&'static Lab, Http) {
        let lab = Lab::shared().await;
        let base = lab.operator().as_mut().expect("an operator runs").api_url().unwrap();
        (lab, Http::at(base).await)
    }

    /// The API at an address, once the operator knows the instances.
    async fn at(base: String) -> Http {
        let http = Http { client: client(None), base };
        until("the API is in sync", async || (http.get("/instances").await.status == 200).then_some(())).await;
        http
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).timeout(TIMEOUT)
    }

    async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    async fn delete(&self, path: &str) -> Answer {
        send(self.request(Method::DELETE, path)).await
    }

    async fn post(&self, body: &Value) -> Answer {
        self.known(send(self.request(Method::POST, "/instances").json(body)).await).await
    }

    async fn post_with_key(&self, key: &str, body: &Value) -> Answer {
        self.known(send(self.request(Method::POST, "/instances").header("Idempotency-Key", key).json(body)).await).await
    }

    /// Waits until the API knows what it has made: its watch may be late, and the answer comes after two seconds all the same.
    async fn known(&self, answer: Answer) -> Answer {
        if answer.status == 201 {
            let path = answer.header("location").to_owned();
            until("the API knows it", async || self.get(&path).await.status == 200).await;
        }
        answer
    }

    /// Host and port, for requests that no client library would send.
    fn address(&self) -> &str {
        self.base.split_once("://").unwrap().1
    }
}

/// A client that trusts one certificate, or needs none.
fn client(trusted: Option<&str>) -> reqwest::Client {
    // Another test of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let trusted = trusted.map(|pem| Certificate::from_pem(pem.as_bytes()).unwrap());
    // A connection that was idle may be closed just when it is used again.
    let client = reqwest::Client::builder().pool_max_idle_per_host(0);
    client.tls_certs_only(trusted).build().unwrap()
}

async fn send(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    let json = serde_json::from_str(&text).unwrap_or_default();
    Answer { status, headers, text, json }
}

/// Starts an operator that serves its API as a standby, and returns the API's address.
///
/// Without helm it never leads: else the operator of all tests would lose its lease to it on a busy machine.
async fn standby(options: Options) -> (Operator, String) {
    let options = Options { helm: "/nonexistent/helm".into(), ..options };
    let start = move || {
        let mut operator = Operator::start(&options).unwrap();
        let url = operator.api_url().unwrap();
        (operator, url)
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }

    fn word(&self, field: &str) -> String {
        self.json[field].as_str().unwrap_or_else(|| panic!("there is no {field} in {self:?}")).to_owned()
    }

    /// Checks that it is a refusal, in the form of all refusals, and returns its detail.
    #[track_caller]
    fn refused(&self, status: u16, reason: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!((&self.json["status"], &self.json["reason"]), (&json!(status), &json!(reason)), "{self:?}");
        for (name, value) in [
            ("content-type", "application/problem+json"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ] {
            assert_eq!(self.header(name), value, "{self:?}");
        }
        assert_eq!(self.headers.contains_key("www-authenticate"), status == 401, "{self:?}");
        assert!(!self.header("x-request-id").is_empty() && self.json["title"].is_string(), "{self:?}");
        self.word("detail")
    }

    /// The same, with this field, and with this part in its detail.
    #[track_caller]
    fn is_problem(&self, status: u16, reason: &str, field: Option<&str>, sentence: &str) {
        let detail = self.refused(status, reason);
        assert_eq!(self.json["field"].as_str(), field, "{self:?}");
        assert!(detail.contains(sentence), "{sentence:?} is not in {self:?}");
    }

    /// Checks that it is an instance that was just created; returns namespace and name.
    #[track_caller]
    fn made(&self) -> (String, String) {
        assert_eq!(self.status, 201, "{self:?}");
        (self.word("namespace"), self.word("name"))
    }
}

/// A request for an instance that is ready within moments.
fn small(hostname: &str) -> Value {
    json!({"hostname": hostname, "postgres": {"enabled": false}, "redis": {"enabled": false},
        "persistence": {"enabled": false}})
}

/// A request for an instance that helm never installs: there is no such database.
fn idle(hostname: &str) -> Value {
    with(small(hostname), "postgres", json!({"provider": "external", "external": {"secretName": "none"}}))
}

/// A request with another field.
fn with(mut body: Value, field: &str, value: impl Into<Value>) -> Value {
    body[field] = value.into();
    body
}

/// Returns the mark of a request with this key, by which the API knows it when it is repeated.
fn stamp(key: &'static str, body: &Value) -> RequestStamp {
    let headers = HeaderMap::from_iter([("idempotency-key".parse().unwrap(), HeaderValue::from_static(key))]);
    let user = User { name: "anonymous".to_owned(), ..User::default() };
    RequestStamp::of(&headers, &user, body).unwrap().unwrap()
}

/// A namespace, with or without the operator's mark.
async fn make_namespace(client: &Client, name: &str, metadata: Value) {
    let mut object = json!({"metadata": metadata});
    object["metadata"]["name"] = json!(name);
    let object = serde_json::from_value(object).unwrap();
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
}

/// The labels of a namespace that the operator created.
fn ours() -> Value {
    json!({"app.kubernetes.io/managed-by": "clientapp-operator"})
}

/// The administrator's password in the cluster.
async fn stored_password(client: &Client, namespace: &str, secret: &str) -> String {
    let secret = Api::<Secret>::namespaced(client.clone(), namespace).get(secret).await.unwrap();
    String::from_utf8(secret.data.unwrap()["nextcloud-password"].0.clone()).unwrap()
}

async fn is_gone(client: &Client, namespace: &str) -> bool {
    let found = Api::<Namespace>::all(client.clone()).get_opt(namespace).await.unwrap();
    found.is_none_or(|found| found.metadata.deletion_timestamp.is_some())
}

/// The ClientApps with a hostname.
async fn with_hostname(client: &Client, hostname: &str) -> Vec<String> {
    let apps = Api::<Guard<ClientApp>>::all(client.clone()).list(&Default::default()).await.unwrap();
    let has = |app: &Guard<ClientApp>| app.object.as_ref().is_ok_and(|app| app.spec.hostname == hostname);
    apps.iter().filter(|app| has(app)).map(|app| app.name_any()).collect()
}
