use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::clientapp::{
    decide::plan_of,
    fixtures::{config, now, settled, want, with},
    observed::certificate::Read,
};

const HOST: &str = "acme.example.com";

fn certificate(names: &[&str], not_before: &str, not_after: &str) -> Option<Read> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate =
        Certificate { not_before: not_before.parse().unwrap(), not_after: not_after.parse().unwrap(), names };
    Some(Ok(Arc::new(certificate)))
}

fn issued(kind: &str) -> Value {
    json!({"ingressClassName": "traefik", "tls": {"issuer": {"name": "own", "kind": kind}}})
}

fn wildcard() -> Value {
    json!({"ingressClassName": "traefik", "tls": {"secretName": "wildcard"}})
}

/// An app at rest with this certificate.
fn at_rest(spec: &Value, certificate: Option<Read>) -> (Desired, Observed) {
    let desired = want(spec);
    let mut observed = settled(&desired);
    observed.prerequisites.certificate = certificate;
    if let Some(TlsSource::Secret { name, .. }) = &desired.tls {
        observed.recorded.tls_secret_name = Some(name.clone());
    }
    (desired, observed)
}

/// Checks what the condition, the URL and Ready say, at noon of January 1st, 2026.
#[test]
fn certificate_states() {
    let valid = |names: &[&str]| certificate(names, "2025-06-01T00:00:00Z", "2026-06-01T00:00:00Z");
    let describe = "kubectl describe certificate,certificaterequest -n tenants";
    let unreadable = Some(Err("is not a certificate in PEM".to_owned()));
    let issuer = &issued("Issuer");
    for (what, spec, found, reason, words, scheme) in [
        ("valid", issuer, valid(&[HOST]), "CertificateValid", "valid until 2026-06-01T00:00:00Z", "https"),
        ("a wildcard", &wildcard(), valid(&["*.example.com"]), "CertificateValid", "Secret wildcard", "https"),
        ("not issued", issuer, None, "CertificatePending", describe, "http"),
        ("no Secret", &wildcard(), None, "CertificateMissing", "kubectl create secret tls wildcard -n tenants", "http"),
        ("unreadable", issuer, unreadable.clone(), "CertificateInvalid", describe, "http"),
        (
            "unreadable",
            &wildcard(),
            unreadable,
            "CertificateInvalid",
            "wildcard is not a certificate in PEM: replace",
            "http",
        ),
        (
            "for others",
            issuer,
            valid(&["a", "b", "c", "d"]),
            "CertificateInvalid",
            "for a, b, c and 1 more, not for acme",
            "http",
        ),
        ("for nobody", issuer, valid(&[]), "CertificateInvalid", "is for no name, not for acme.example.com", "http"),
        (
            "expired",
            &wildcard(),
            certificate(&[HOST], "2025-01-01T00:00:00Z", "2026-01-01T12:00:00Z"),
            "CertificateInvalid",
            "has expired, on 2026-01-01T12:00:00Z: replace it",
            "http",
        ),
        (
            "from tomorrow on",
            &wildcard(),
            certificate(&[HOST], "2026-01-02T00:00:00Z", "2027-01-01T00:00:00Z"),
            "CertificateInvalid",
            "valid only from 2026-01-02T00:00:00Z",
            "http",
        ),
        (
            "for a week only",
            issuer,
            certificate(&[HOST], "2025-01-01T00:00:00Z", "2026-01-08T12:00:00Z"),
            "CertificateExpiring",
            describe,
            "https",
        ),
        (
            "one that is always valid for a few days only",
            issuer,
            certificate(&[HOST], "2025-12-30T12:00:00Z", "2026-01-05T12:00:00Z"),
            "CertificateValid",
            "valid until",
            "https",
        ),
    ] {
        let (desired, observed) = at_rest(spec, found);
        let verdict = verdict(&desired, &observed, now()).unwrap();
        assert_eq!(verdict.reason, reason, "{what}");
        assert!(verdict.message.contains(words), "{what}: {}", verdict.message);
        assert_eq!(verdict.state == State::True, reason == "CertificateValid", "{what}");
        // The URL is that of users: what can be served is what Ready says.
        assert_eq!(url(&desired, &observed, now()), format!("{scheme}://{HOST}"), "{what}");
        assert_eq!(serves(&verdict), scheme == "https", "{what}");
    }
}

#[test]
fn the_url_without_a_certificate_of_the_operator() {
    let ingress = json!({"ingressClassName": "traefik"});
    let own = json!({"values": {"ingress": {"tls": [{"secretName": "x", "hosts": [HOST]}]}}});
    let none = json!({"values": {"ingress": {"tls": []}}});
    for (spec, scheme) in [
        (json!({}), "http"),
        (ingress.clone(), "http"),
        (json!({"tls": {"terminatedElsewhere": true}}), "https"),
        (with(ingress.clone(), &json!({"tls": {"terminatedElsewhere": true}})), "https"),
        (with(ingress.clone(), &own), "https"),
        (with(ingress, &none), "http"),
        // It renders no Ingress.
        (own, "http"),
    ] {
        let (desired, observed) = at_rest(&spec, None);
        assert_eq!(url(&desired, &observed, now()), format!("{scheme}://{HOST}"), "{spec}");
        assert_eq!(verdict(&desired, &observed, now()), None, "{spec}");
        assert_eq!(requeue_at(&desired, &observed, now()), None, "{spec}");
    }
}

#[test]
fn cert_manager_has_five_minutes_after_its_ingress_exists() {
    let (desired, mut observed) = at_rest(&issued("ClusterIssuer"), None);
    let written = observed.release.as_ref().unwrap().created_at.unwrap();
    let reason = |observed: &Observed, now| verdict(&desired, observed, now).unwrap().reason.into_owned();
    let late = written + ISSUED_WITHIN;
    let just_before = late - SignedDuration::from_millis(1);
    assert_eq!(reason(&observed, just_before), "CertificatePending");
    assert_eq!(requeue_at(&desired, &observed, just_before), Some(late));
    assert_eq!(reason(&observed, late), "CertificateMissing");
    assert_eq!(requeue_at(&desired, &observed, late), None);
    // Not while helm has to run.
    observed.release.as_mut().unwrap().managed_digest = None;
    assert_eq!(reason(&observed, late), "CertificatePending");
    assert_eq!(requeue_at(&desired, &observed, late), None);
}

#[test]
fn an_app_is_looked_at_when_its_certificate_changes_by_itself() {
    let spec = issued("Issuer");
    let found = certificate(&[HOST], "2026-01-02T00:00:00Z", "2026-04-02T00:00:00Z");
    let (desired, mut observed) = at_rest(&spec, found);
    let next = |observed: &Observed, now: &str| {
        let now = now.parse().unwrap();
        let plan = plan_of(Some(&desired), observed, &config(), now);
        assert_eq!(plan.requeue_at, requeue_at(&desired, observed, now), "nothing else is awaited");
        plan.requeue_at.map(|next| next.to_string())
    };
    for (now, expected) in [
        ("2026-01-01T12:00:00Z", Some("2026-01-02T00:00:00Z")),
        ("2026-01-02T00:00:00Z", Some("2026-03-26T00:00:00Z")),
        ("2026-03-26T00:00:00Z", Some("2026-04-02T00:00:00Z")),
        ("2026-04-02T00:00:00Z", None),
    ] {
        assert_eq!(next(&observed, now).as_deref(), expected, "{now}");
    }
    // The first status that names the Secret may come after the Secret.
    observed.recorded.tls_secret_name = None;
    assert_eq!(next(&observed, "2026-01-02T00:00:00Z").as_deref(), Some("2026-01-02T00:00:05Z"));
}

#[test]
fn an_event_tells_once_that_a_certificate_expires_soon() {
    let status = |reason: &str| {
        let condition = json!({
            "type": "CertificateReady", "status": "False", "reason": reason, "message": reason,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value::<ClientAppStatus>(json!({"conditions": [condition]})).unwrap()
    };
    let [soon, missing] = ["CertificateExpiring", "CertificateMissing"].map(status);
    let note = expires(&missing, &soon).unwrap();
    assert!(note.warning && note.reason == "CertificateExpiring" && note.message == "CertificateExpiring");
    assert!(expires(&soon, &soon).is_none() && expires(&soon, &missing).is_none());
}
