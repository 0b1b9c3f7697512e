use rcgen::{CertificateParams, KeyPair, date_time_ymd};

use super::*;
use crate::clientapp::fixtures::now;

const HOST: &str = "acme.example.com";

/// A certificate in PEM that is valid from January 1st of the first year until that of the second.
fn pem(names: &[&str], (from, until): (i32, i32)) -> String {
    let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
    params.not_before = date_time_ymd(from, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn the_facts_about_a_certificate() {
    let read = |text: &str| Certificate::parse(text.as_bytes());
    let (one, other) = (pem(&["Acme.Example.com", "*.example.com"], (2025, 2026)), pem(&["other"], (2000, 2001)));
    // The first is that of the server.
    let found = read(&format!("# comment\n{one}{other}")).unwrap();
    assert_eq!(found.names, ["acme.example.com", "*.example.com"]);
    assert_eq!(found.not_before.to_string(), "2025-01-01T00:00:00Z");
    assert_eq!(found.not_after.to_string(), "2026-01-01T00:00:00Z");
    // It has no end (RFC 5280, 4.1.2.5).
    let mut params = CertificateParams::new(vec![HOST.to_owned()]).unwrap();
    params.not_after = date_time_ymd(9999, 12, 31);
    let endless = params.self_signed(&KeyPair::generate().unwrap()).unwrap().pem();
    assert!(read(&endless).unwrap().not_after > now());
    assert_eq!(read(&pem(&[], (2025, 2026))).unwrap().names, [""; 0]);

    // A user may write a Secret of a megabyte.
    let many: Vec<_> = (0..101).map(|n| format!("{n}.example.com")).collect();
    let many = |most: usize| pem(&many.iter().take(most).map(String::as_str).collect::<Vec<_>>(), (2025, 2026));
    assert_eq!(read(&many(100)).unwrap().names.len(), 100);
    assert_eq!(read(&many(101)).unwrap_err(), "has a certificate with more than 100 names");
    let odd = pem(&[&"x".repeat(254), "a b", HOST], (2025, 2026));
    assert_eq!(read(&odd).unwrap().names, [HOST]);
    let (begin, end) = ("-----BEGIN CERTIFICATE-----\n", "-----END CERTIFICATE-----\n");
    for (text, problem) in [
        (String::new(), "is not a certificate in PEM"),
        ("secret".to_owned(), "is not a certificate in PEM"),
        (KeyPair::generate().unwrap().serialize_pem(), "is not a certificate in PEM"),
        (format!("{begin}{end}"), "has a certificate that cannot be read: "),
        (format!("{begin}c2VjcmV0\n{end}"), "has a certificate that cannot be read: "),
        (format!("{begin}{}\n{end}", "MIIB".repeat(5000)), "has a certificate that cannot be read: "),
        (one.replacen("MII", "AAA", 1), "has a certificate that cannot be read: "),
    ] {
        let found = read(&text).unwrap_err();
        assert!(found.starts_with(problem) && !found.contains("secret"), "{text}: {found}");
    }
}

#[test]
fn the_names_that_a_certificate_covers() {
    for (name, expected) in [
        ("acme.example.com", true),
        ("*.example.com", true),
        ("other.example.com", false),
        ("example.com", false),
        ("*.com", false),
        ("*.acme.example.com", false),
        ("*", false),
        ("*acme.example.com", false),
    ] {
        let certificate =
            Certificate { not_before: Timestamp::MIN, not_after: Timestamp::MAX, names: vec![name.to_owned()] };
        assert_eq!(certificate.covers(HOST), expected, "{name}");
    }
}
