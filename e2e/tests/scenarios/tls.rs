//! TLS of the hostname: certificates of cert-manager's real controllers, and those of users.

use std::collections::BTreeMap;

use e2e::cert_manager::CertManager;
use e2e::lab::{Lab, Tenant, has, hostname};
use e2e::scenario::{small, with};
use e2e::wait::until;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DeleteParams, PostParams};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use serde_json::{Value, json};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

/// A lab with cert-manager, and without Percona, which would let it issue the certificates of its clusters.
async fn lab() -> &'static Lab {
    static LAB: OnceCell<(&'static Lab, CertManager)> = OnceCell::const_new();
    let start = || async {
        let lab = Lab::own().await;
        let operator = spawn_blocking(|| lab.start_operator(&lab.options())).await;
        operator.expect("no panic").expect("the operator starts");
        (lab, CertManager::start(&lab.plane).await.expect("cert-manager starts"))
    };
    LAB.get_or_init(start).await.0
}

fn served(tenant: &Tenant, name: &str, tls: Value) -> Value {
    with(small(tenant, name), json!({"ingressClassName": "traefik", "tls": tls}))
}

#[tokio::test]
async fn cert_manager_issues_a_certificate_for_each_app() {
    let tenant = lab().await.tenant("tls-issued").await;
    let spec = served(&tenant, "acme", json!({"issuer": {"name": "own"}}));
    tenant.create("acme", spec).await.unwrap();
    // The issuer does not exist yet.
    let host = hostname(&tenant, "acme");
    let describe = "`kubectl describe certificate,certificaterequest -n tls-issued`";
    tenant.held("acme", "CertificatePending", &["Secret acme-tls", &host, describe]).await;
    let waiting = tenant.status("acme", "served without TLS", |status| status.url.is_some()).await;
    assert_eq!(waiting.url, Some(format!("http://{host}")));
    assert!(
        has(&waiting, "WorkloadsReady", "True", "Ready")
            && has(&waiting, "CertificateReady", "False", "CertificatePending")
    );
    until("the command in the message says why", async || {
        let said = tenant.kubectl(&["describe", "certificate,certificaterequest"]).unwrap();
        if said.contains("\"own\" not found") { Ok(()) } else { Err(said) }
    })
    .await;

    let issuer = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "own"}, "spec": {"selfSigned": {}},
    });
    let path = format!("/apis/cert-manager.io/v1/namespaces/{}/issuers", tenant.namespace);
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
    tenant.client.request::<Value>(request.body(issuer.to_string().into_bytes()).unwrap()).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!((status.url, status.tls_secret_name), (Some(format!("https://{host}")), Some("acme-tls".to_owned())));
    let told = tenant.condition("acme", "CertificateReady", "True", "CertificateValid").await;
    assert!(told.starts_with("the certificate in Secret acme-tls is valid until 2"), "{told}");
    let told = tenant.condition("acme", "Ready", "True", "Ready").await;
    assert!(told.ends_with(&format!("serving https://{host}")), "{told}");
    let ingress = tenant.api::<Ingress>().get("acme-nextcloud").await.unwrap();
    assert_eq!(ingress.metadata.annotations.unwrap()["cert-manager.io/issuer"], "own");

    // Deleted by hand, it is issued again, without another revision.
    tenant.replaced::<Secret>("acme-tls").await;
    tenant.ready("acme", 1).await;
}

/// A Secret of the type `kubernetes.io/tls` with this under its key `tls.crt`.
fn secret(certificate: &str) -> Secret {
    let data = [("tls.crt", certificate), ("tls.key", "not read")];
    let data = data.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec())));
    Secret {
        metadata: serde_json::from_value(json!({"name": "wildcard"})).unwrap(),
        type_: Some("kubernetes.io/tls".to_owned()),
        data: Some(BTreeMap::from(data)),
        ..Secret::default()
    }
}

fn certificate(names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> String {
    let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
    change(&mut params);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[tokio::test]
async fn a_users_certificate_is_checked_whenever_it_changes() {
    let tenant = Lab::shared().await.tenant("tls-own").await;
    let name = "*.tls-own.example.com";
    let spec = served(&tenant, "acme", json!({"secretName": "wildcard"}));
    tenant.create("acme", spec).await.unwrap();
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
