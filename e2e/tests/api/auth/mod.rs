//! Access to the HTTP API and its limits: the real binary, and every kind of client that reaches it.
//!
//! Each test has its own operator: standbys serve the API, too.

mod limits;
mod rights;
mod start;
mod tls;
mod tokens;

use std::ops::Deref;

use e2e::lab::{Lab, TIMEOUT, Tenant};
use e2e::operator::{Operator, Options};
use e2e::wait::{blocking_until, until};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::ResourceExt as _;
use kube::api::PostParams;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Answer, Http, client, send, standby};

/// The default audience of tokens for the operator.
const AUDIENCE: &str = "clientapp-operator";

/// An operator that serves its API.
struct Served {
    operator: Operator,
    http: Http,
}

impl Deref for Served {
    type Target = Http;

    fn deref(&self) -> &Http {
        &self.http
    }
}

impl Served {
    /// Starts it with the most verbose log.
    async fn start(options: Options, flags: &[&str]) -> Served {
        let arguments = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let environment = vec![("RUST_LOG".to_owned(), "trace".to_owned())];
        let (operator, base) = standby(Options { arguments, environment, ..options }).await;
        Served { operator, http: Http { client: client(None), base } }
    }

    async fn get_as(&self, path: &str, token: &str) -> Answer {
        send(self.request(Method::GET, path).bearer_auth(token)).await
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
