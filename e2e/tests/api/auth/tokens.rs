//! Which tokens are accepted.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use super::*;

#[tokio::test]
async fn a_token_has_to_be_one_of_this_cluster_for_this_api_and_of_now() {
    let (lab, _turn) = lab().await;
    let tenant = lab.tenant("tokens").await;
    account(&tenant, "jane").await;
    let good = token(&tenant, "jane", AUDIENCE, None).await;
    let other_audience = token(&tenant, "jane", "https://kubernetes.default.svc.cluster.local", None).await;
    // Signed with the cluster's own key, so that only the times differ.
    let again = with_times(lab, &good, 0);
    let expired = with_times(lab, &good, -24 * 60 * 60);
    // Not every bit of the last letter counts.
    let (signed, signature) = good.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}{}", if signature.starts_with('A') { "B" } else { "A" }, &signature[1..]);
    let api = Served::talkative(lab, &["--api-auth", "token"]).await;

    let sentence = api.get("/instances", None).await.refused(401, "Unauthorized").to_owned();
    assert!(
        sentence.contains("kubectl create token") && sentence.contains("--audience clientapp-operator"),
        "{sentence}"
    );
    for (what, token) in [
        ("garbage", "garbage"),
        ("like a token", "a.b.c"),
        ("another audience", &other_audience),
        ("expired", &expired),
        ("another signature", &forged),
    ] {
        let answer = api.get("/instances", Some(token)).await;
        let sentence = answer.refused(401, "Unauthorized");
        assert!(sentence.contains("does not accept this token"), "{what}: {sentence}");
    }
    let basic = api.request(Method::GET, "/instances").basic_auth("jane", Some(&good));
    send(basic).await.refused(401, "Unauthorized");
    // An authenticated user may still lack rights.
    for token in [&good, &again] {
        assert_ne!(api.get("/instances", Some(token)).await.status, 401);
    }
    assert_eq!(api.get("/nowhere", Some(&good)).await.status, 404);
    api.get("/nowhere", None).await.refused(401, "Unauthorized");
    assert_ne!(api.get("/openapi.json", None).await.status, 401);

    let log = api.operator.log();
    assert!(log.contains("a token was rejected"), "{log}");
    for token in [&good, &again, &other_audience, &expired, &forged] {
        let signature = token.rsplit('.').next().unwrap();
        assert!(!log.contains(signature), "a token is in the log");
    }
}

#[tokio::test]
async fn a_token_ends_with_what_it_is_bound_to() {
    let (lab, _turn) = lab().await;
    let tenant = lab.tenant("bound-tokens").await;
    account(&tenant, "jane").await;
    let secret = serde_json::from_value(json!({"metadata": {"name": "session"}})).unwrap();
    let secret = tenant.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    let token = token(&tenant, "jane", AUDIENCE, Some(&secret)).await;
    let api = Served::start(lab, &["--api-auth", "token"]).await;
    assert_ne!(api.get("/instances", Some(&token)).await.status, 401);
    tenant.api::<Secret>().delete("session", &DeleteParams::default()).await.unwrap();
    // As soon as the cached answer has expired.
    let refused = until("the token is refused", async || {
        Some(api.get("/instances", Some(&token)).await).filter(|answer| answer.status == 401)
    });
    refused.await.refused(401, "Unauthorized");
}

#[tokio::test]
async fn the_audience_is_a_setting() {
    let (lab, _turn) = lab().await;
    let tenant = lab.tenant("audience").await;
    account(&tenant, "jane").await;
    let api = Served::start(lab, &["--api-auth", "token", "--api-audience", "mine"]).await;
    let sentence = api.get("/instances", Some(&token(&tenant, "jane", AUDIENCE, None).await)).await;
    assert!(sentence.refused(401, "Unauthorized").contains("--audience mine"), "{sentence:?}");
    assert_ne!(api.get("/instances", Some(&token(&tenant, "jane", "mine", None).await)).await.status, 401);
}

#[tokio::test]
async fn while_the_api_server_is_down_no_user_is_let_in() {
    let _turn = PLANE.write().await;
    let lab = started().await;
    let tenant = lab.tenant("api-server-down").await;
    account(&tenant, "jane").await;
    let tokens = [token(&tenant, "jane", AUDIENCE, None).await, "garbage".to_owned()];
    // Another operator leads: a replica that loses the Lease ends.
    let options = lab.options();
    let lead = move || Operator::leading(&options).expect("the operator leads");
    let _leader = tokio::task::spawn_blocking(lead).await.unwrap();
    let mut api = Served::start(lab, &["--api-auth", "token"]).await;
    api.operator.wait_for_log("waiting for the lease").unwrap();
    lab.plane.kill_apiserver().unwrap();
    for token in &tokens {
        let answer = api.get("/instances", Some(token)).await;
        answer.refused(503, "ApiUnavailable");
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    lab.plane.start_apiserver().unwrap();
    for (token, accepted) in tokens.iter().zip([true, false]) {
        until("the API server is asked again", async || {
            let status = api.get("/instances", Some(token)).await.status;
            (status != 503 && (status != 401) == accepted).then_some(())
        })
        .await;
    }
}

/// The same token with other times, signed with the cluster's key.
fn with_times(lab: &Lab, token: &str, seconds: i64) -> String {
    let [header, claims, _] = token.split('.').collect::<Vec<_>>().try_into().unwrap();
    let mut claims: Value = serde_json::from_slice(&BASE64.decode(claims).unwrap()).unwrap();
    for time in ["iat", "nbf", "exp"] {
        claims[time] = json!(claims[time].as_i64().unwrap() + seconds);
    }
    claims["jti"] = json!(format!("{seconds}"));
    let signed = format!("{header}.{}", BASE64.encode(claims.to_string()));
    let key = PrivatePkcs8KeyDer::from_pem_file(lab.plane.directory().join("tokens.key")).unwrap();
    let random = SystemRandom::new();
    let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
    let key = EcdsaKeyPair::from_pkcs8(algorithm, key.secret_pkcs8_der(), &random).unwrap();
    let signature = key.sign(&random, signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64.encode(signature))
}
