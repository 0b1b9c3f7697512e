//! The operator's token, or the cluster's certificate authority, is replaced while the operator runs, as the kubelet
//! replaces both files of a pod.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use e2e::front::Front;
use e2e::manifests;
use e2e::plane::certs::Authority;
use k8s_openapi::api::authentication::v1::{
    BoundObjectReference, TokenRequest, TokenRequestSpec, TokenReview, TokenReviewSpec,
};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::{Api, Client};

use super::*;

/// A token of the operator's account that is valid while a Secret of this name exists: the API server issues none that
/// expires in less than ten minutes.
async fn token(client: &Client, secret: &str) -> String {
    let object = serde_json::from_value(json!({"metadata": {"name": secret}})).unwrap();
    let made = secrets(client).create(&PostParams::default(), &object).await.unwrap();
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Secret".to_owned()),
        name: Some(secret.to_owned()),
        uid: made.uid(),
    };
    let spec = TokenRequestSpec { bound_object_ref: Some(bound), ..TokenRequestSpec::default() };
    let request = TokenRequest { spec, ..TokenRequest::default() };
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), manifests::NAMESPACE);
    let made = accounts.create_token_request(manifests::SERVICE_ACCOUNT, &PostParams::default(), &request).await;
    made.unwrap().status.unwrap().token
}

fn secrets(client: &Client) -> Api<Secret> {
    Api::namespaced(client.clone(), manifests::NAMESPACE)
}

/// In one step, as the kubelet does it.
fn replace(file: &Path, content: &str) {
    let made = file.with_extension("new");
    std::fs::write(&made, content).unwrap();
    std::fs::rename(made, file).unwrap();
}

/// The id of a token, which the audit log has of each request.
fn id(token: &str) -> String {
    let claims = BASE64_URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    format!("JTI={}", claims["jti"].as_str().unwrap())
}

/// Deletes the Secret of a token, and waits until the API server no longer accepts the token: it remembers an answer
/// for ten seconds.
async fn expire(client: &Client, secret: &str, token: &str) {
    secrets(client).delete(secret, &DeleteParams::default()).await.unwrap();
    let spec = TokenReviewSpec { token: Some(token.to_owned()), ..TokenReviewSpec::default() };
    let review = TokenReview { spec, ..TokenReview::default() };
    let reviews = Api::<TokenReview>::all(client.clone());
    until("the token is no longer valid", async || {
        let review = reviews.create(&PostParams::default(), &review).await.unwrap();
        review.status.is_some_and(|status| status.authenticated != Some(true))
    })
    .await;
}

/// An operator rereads the file within a minute. `in_time`: the first token is valid until then.
async fn rotated(namespace: &str, in_time: bool) {
    // A plane of its own: a proxy would authenticate with a token of its own.
    let (lab, _ends) = Lab::own().await;
    let tenant = lab.tenant(namespace).await;
    let client = &tenant.client;
    let home = tempfile::tempdir().unwrap();
    let [file, kubeconfig] = ["token", "kubeconfig"].map(|name| home.path().join(name));
    let mut with_file: Value =
        serde_yaml::from_str(&std::fs::read_to_string(&lab.operator_kubeconfig).unwrap()).unwrap();
    with_file["users"][0]["user"] = json!({"tokenFile": file});
    std::fs::write(&kubeconfig, with_file.to_string()).unwrap();
    let first = token(client, "first").await;
    replace(&file, &first);
    let mut operator = leading(&Options { kubeconfig, ..lab.options() }).await;
    installed(&tenant, "acme").await;

    let second = token(client, "second").await;
    if in_time {
        replace(&file, &second);
        let mut log = File::open(lab.plane.audit_log().unwrap()).unwrap();
        log.seek(SeekFrom::End(0)).unwrap();
        let id = id(&second);
        until("the Lease is renewed with the second token", async || {
            let mut since = String::new();
            log.read_to_string(&mut since).unwrap();
            since.lines().any(|line| line.contains("\"leases\"") && line.contains(&id))
        })
        .await;
        expire(client, "first", &first).await;
    } else {
        expire(client, "first", &first).await;
        operator.wait_for_log("the lease is lost").unwrap();
        replace(&file, &second);
    }
    until("it leads", async || operator.counted("clientapp_operator_leader").unwrap() > 0.0).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    installed(&tenant, "other").await;
    assert_eq!(operator.log().contains("the lease is lost"), !in_time, "{}", operator.log());
    // It is the same process.
    assert!(operator.stop().unwrap());
}

#[tokio::test]
async fn a_token_that_is_replaced_in_time_costs_nothing() {
    rotated("token-in-time", true).await;
}

#[tokio::test]
async fn a_token_that_is_replaced_too_late_costs_the_lead_until_it_is_read() {
    rotated("token-too-late", false).await;
}

/// The API server has a certificate of the new authority before the operator's file has the authority.
#[tokio::test]
async fn a_certificate_authority_that_is_replaced_too_late_costs_the_lead_until_it_is_read() {
    let Apart { tenant, proxy, options } = Lab::unattended().await.apart("authority-too-late").await;
    let [first, second] = ["first", "second"].map(|name| Authority::new(name).unwrap());
    let home = tempfile::tempdir().unwrap();
    let [file, kubeconfig] = ["ca.crt", "kubeconfig"].map(|name| home.path().join(name));
    let mut with_file: Value = serde_yaml::from_str(&std::fs::read_to_string(proxy.kubeconfig()).unwrap()).unwrap();
    let cluster = &mut with_file["clusters"][0]["cluster"];
    let behind = cluster["server"].as_str().unwrap().strip_prefix("http://").unwrap();
    let front = Front::start(behind.parse().unwrap(), &first).unwrap();
    // The path is relative to the kubeconfig.
    *cluster = json!({"server": front.url(), "certificate-authority": "ca.crt"});
    std::fs::write(&kubeconfig, with_file.to_string()).unwrap();
    replace(&file, &first.pem());
    let mut operator = leading(&Options { kubeconfig, ..options }).await;
    installed(&tenant, "acme").await;

    front.show(&second).unwrap();
    operator.wait_for_log("the lease is lost").unwrap();
    replace(&file, &second.pem());
    until("it leads", async || operator.counted("clientapp_operator_leader").unwrap() > 0.0).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    // It is the same process.
    assert!(operator.stop().unwrap());
}
