//! Which tokens are accepted.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use e2e::proxy::{Fault, Proxy, Rule};
use futures::future::join_all;
use http::StatusCode;
use kube::api::DeleteParams;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;

use super::*;

#[tokio::test]
async fn a_token_has_to_be_one_of_this_cluster_for_this_api_and_of_now() {
    let lab = Lab::shared().await;
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
    let proxy = Proxy::start(&lab.operator_kubeconfig).unwrap();
    let options = Options { kubeconfig: proxy.kubeconfig(), ..lab.options() };
    let api = Served::start(options, &["--api-auth", "token"]).await;

    // While the API server does not answer, no user is let in.
    proxy.set([Rule::new("create", "tokenreviews", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
    for token in [&good, "garbage"] {
        let answer = api.get_as("/instances", token).await;
        answer.refused(503, "ApiUnavailable");
        assert!(answer.headers.contains_key("retry-after"), "{answer:?}");
    }
    proxy.set([]);
    let sentence = api.get("/instances").await.refused(401, "Unauthorized");
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
        let answer = api.get_as("/instances", token).await;
        let sentence = answer.refused(401, "Unauthorized");
        assert!(sentence.contains("does not accept this token"), "{what}: {sentence}");
    }
    let basic = api.request(Method::GET, "/instances").basic_auth("jane", Some(&good));
    send(basic).await.refused(401, "Unauthorized");
    // An authenticated user may still lack rights.
    for token in [&good, &again] {
        assert_ne!(api.get_as("/instances", token).await.status, 401);
    }
    assert_eq!(api.get_as("/nowhere", &good).await.status, 404);
    api.get("/nowhere").await.refused(401, "Unauthorized");
    assert_ne!(api.get("/openapi.json").await.status, 401);

    let log = api.operator.log();
    assert!(log.contains("a token was rejected"), "{log}");
    for token in [&good, &again, &other_audience, &expired, &forged] {
        let signature = token.rsplit('.').next().unwrap();
        assert!(!log.contains(signature), "a token is in the log");
    }

    // A token ends with what it is bound to.
    let secret = serde_json::from_value(json!({"metadata": {"name": "session"}})).unwrap();
    let secret = tenant.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    let bound = token(&tenant, "jane", AUDIENCE, Some(&secret)).await;
    assert_ne!(api.get_as("/instances", &bound).await.status, 401);
    tenant.api::<Secret>().delete("session", &DeleteParams::default()).await.unwrap();
    // As soon as the cached answer has expired.
    let refused = until("the token is refused", async || {
        Some(api.get_as("/instances", &bound).await).filter(|answer| answer.status == 401)
    });
    refused.await.refused(401, "Unauthorized");

    // Two hundred at once are all answered, and cost the API server one review whenever its cached answer has expired.
    let before = proxy.record().len();
    let answers = join_all((0..200).map(|_| api.get_as("/nowhere", &good))).await;
    for answer in &answers {
        let is_told = answer.status == 429 && answer.headers.contains_key("retry-after");
        assert!(answer.status == 404 || is_told, "{answer:?}");
    }
    let reviews = proxy.record()[before..].iter().filter(|asked| asked.contains("tokenreviews")).count();
    assert!(reviews < 20, "{reviews} reviews");
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
