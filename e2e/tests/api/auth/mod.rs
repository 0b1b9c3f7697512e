//! Access to the HTTP API and its limits: the real binary, and every kind of client that reaches it.
//!
//! Each test has its own operator, which replaces any other: standbys serve the API, too.

mod limits;
mod own_machine;
mod rights;
mod start;
mod tls;
mod tokens;

use std::sync::OnceLock;

use e2e::lab::{Lab, TIMEOUT, Tenant};
use e2e::operator::Operator;
use e2e::wait::{blocking_until, until};
use http::HeaderMap;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::PostParams;
use reqwest::{Certificate, Method};
use serde_json::{Value, json};
use tokio::sync::{RwLock, RwLockReadGuard};

/// The default audience of tokens for the operator.
const AUDIENCE: &str = "clientapp-operator";

/// Locked for writing by a test that takes the API server down.
static PLANE: RwLock<()> = RwLock::const_new(());

/// A control plane without an operator.
async fn lab() -> (&'static Lab, RwLockReadGuard<'static, ()>) {
    let turn = PLANE.read().await;
    (started().await, turn)
}

async fn started() -> &'static Lab {
    static LAB: OnceLock<Lab> = OnceLock::new();
    let start = || LAB.get_or_init(|| Lab::start(false).expect("the lab starts"));
    tokio::task::spawn_blocking(start).await.expect("the lab starts")
}

/// An operator that serves its API.
struct Served {
    operator: Operator,
    url: String,
    client: reqwest::Client,
}

/// A response.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: Value,
}

impl Served {
    async fn start(lab: &'static Lab, flags: &[&str]) -> Served {
        Served::logging(lab, flags, "info,clientapp_operator=debug").await
    }

    /// With the most verbose log.
    async fn talkative(lab: &'static Lab, flags: &[&str]) -> Served {
        Served::logging(lab, flags, "trace").await
    }

    async fn logging(lab: &'static Lab, flags: &[&str], filter: &str) -> Served {
        let mut options = lab.options();
        options.arguments = flags.iter().map(|flag| (*flag).to_owned()).collect();
        options.environment = vec![("RUST_LOG".to_owned(), filter.to_owned())];
        let start = move || {
            let mut operator = Operator::start(&options).expect("the operator starts");
            let url = operator.api_url().expect("the API is served");
            (operator, url)
        };
        let (operator, url) = tokio::task::spawn_blocking(start).await.unwrap();
        Served { operator, url, client: client(None) }
    }

    async fn get(&self, path: &str, token: Option<&str>) -> Answer {
        let request = self.client.get(format!("{}{path}", self.url));
        send(token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth)).await
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Host and port.
    fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }
}

/// A client that trusts one certificate, or needs none.
fn client(trusted: Option<&str>) -> reqwest::Client {
    // Unless kube was first, which installs the same one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let trusted = trusted.map(|pem| Certificate::from_pem(pem.as_bytes()).unwrap());
    // A connection that was idle may be closed just when it is used again.
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(TIMEOUT);
    client.tls_certs_only(trusted).build().unwrap()
}

async fn send(request: reqwest::RequestBuilder) -> Answer {
    let response = request.send().await.expect("the API answers");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.expect("the response is complete");
    Answer { status, headers, body: serde_json::from_str(&text).unwrap_or(Value::String(text)) }
}

impl Answer {
    /// Checks that it is a refusal, in the form of all refusals, and returns its detail.
    fn refused(&self, status: u16, reason: &str) -> &str {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        assert_eq!((&self.body["status"], &self.body["reason"]), (&json!(status), &json!(reason)), "{self:?}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
        ] {
            assert_eq!(self.headers[name], value, "{self:?}");
        }
        assert_eq!(self.headers.contains_key("www-authenticate"), status == 401, "{self:?}");
        assert!(!self.headers["x-request-id"].is_empty());
        self.body["detail"].as_str().unwrap()
    }
}

/// Creates a ServiceAccount.
async fn account(tenant: &Tenant, name: &str) {
    let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    tenant.api::<ServiceAccount>().create(&PostParams::default(), &object).await.unwrap();
}

/// As from `kubectl create token`.
async fn token(tenant: &Tenant, account: &str, audience: &str, bound: Option<&Secret>) -> String {
    let bound_object_ref = bound.map(|secret| BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Secret".to_owned()),
        name: secret.metadata.name.clone(),
        uid: secret.uid(),
    });
    let spec = TokenRequestSpec { audiences: vec![audience.to_owned()], bound_object_ref, ..Default::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = tenant.api::<ServiceAccount>();
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await.unwrap();
    answer.status.unwrap().token
}
