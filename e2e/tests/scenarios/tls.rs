//! TLS of the hostname: certificates of users. Those of cert-manager are in `refusals/neighbours.rs`.

use std::collections::BTreeMap;

use e2e::lab::{Lab, hostname};
use e2e::scenario::{small, with};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, PostParams};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::json;

/// A Secret of the type `kubernetes.io/tls` with this under its key `tls.crt`.
pub(super) fn secret(certificate: &str) -> Secret {
    let data = [("tls.crt", certificate), ("tls.key", "not read")];
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret {
        metadata: serde_json::from_value(json!({"name": "wildcard"})).unwrap(),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

pub(super) fn certificate(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    change(&mut params);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[tokio::test]
async fn a_users_certificate_is_checked_whenever_it_changes() {
    let tenant = Lab::shared().await.tenant("tls-own").await;
    let name = "*.tls-own.example.com";
    let tls = json!({"ingressClassName": "traefik", "tls": {"secretName": "wildcard"}});
    tenant.create("acme", with(small(&tenant, "acme"), tls)).await.unwrap();
    tenant.held("acme", "CertificateMissing", &["kubectl create secret tls wildcard -n tls-own"]).await;
    let secrets = tenant.api::<Secret>();
    let params = PostParams::default();
    secrets.create(&params, &secret(&certificate(&["*.example.com"], |_| {}))).await.unwrap();
    let host = hostname(&tenant, "acme");
    tenant.held("acme", "CertificateInvalid", &[&format!("is for *.example.com, not for {host}")]).await;
    let expired = certificate(&[name], |params| params.not_after = date_time_ymd(2026, 1, 1));
    for (found, words) in [
        (&*expired, "has expired, on 2026-01-01T00:00:00Z: replace it"),
        ("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "has a certificate that cannot be read"),
        ("not PEM", "Secret wildcard is not a certificate in PEM"),
        ("", "has no value under tls.crt"),
    ] {
        secrets.replace("wildcard", &params, &secret(found)).await.unwrap();
        tenant.held("acme", "CertificateInvalid", &[words]).await;
    }
    secrets.replace("wildcard", &params, &secret(&certificate(&[name], |_| {}))).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.url, Some(format!("https://{host}")));

    // It still serves, and an event tells that this ends soon.
    let soon = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(2 * 24)).as_second();
    let expiring = certificate(&[name], |params| {
        params.not_after = date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(soon.unsigned_abs());
    });
    secrets.replace("wildcard", &params, &secret(&expiring)).await.unwrap();
    let told = tenant.condition("acme", "CertificateReady", "False", "CertificateExpiring").await;
    tenant.events_with("acme", "CertificateExpiring", &told).await;
    assert_eq!(tenant.ready("acme", 1).await.url, Some(format!("https://{host}")));

    secrets.delete("wildcard", &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "CertificateMissing", &["wildcard"]).await;
}
