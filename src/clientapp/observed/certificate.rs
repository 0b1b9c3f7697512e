//! The facts about a certificate that matter, read from its PEM. **Pure.**

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};
use x509_cert::{
    Certificate as X509,
    der::Decode as _,
    ext::pkix::{SubjectAltName, name::GeneralName},
    time::Time,
};

/// The key of a Secret of the type `kubernetes.io/tls` with the certificate and its chain.
pub(crate) const TLS_CERTIFICATE: &str = "tls.crt";
/// The key of its private key.
pub(crate) const TLS_KEY: &str = "tls.key";
/// How many names a certificate may have, and how long one may be (RFC 1035, 2.3.4): they are kept in memory, and shown.
const MOST_NAMES: usize = 100;
const LONGEST_NAME: usize = 253;
/// How long before its end a certificate should be renewed; sooner if it is valid for less than six times as long.
const RENEWED_BEFORE: SignedDuration = SignedDuration::from_hours(7 * 24);

/// A Secret's certificate, or the end of a sentence about why it cannot be read.
pub(crate) type Read = Result<Arc<Certificate>, String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Certificate {
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    /// DNS names, in lower case; a leading `*.` stands for one label.
    pub names: Vec<String>,
}

impl Certificate {
    /// Reads the first certificate of a chain in PEM.
    pub(crate) fn parse(chain: &[u8]) -> Read {
        let der = CertificateDer::from_pem_slice(chain).map_err(|_| "is not a certificate in PEM".to_owned())?;
        let unreadable = |error: x509_cert::der::Error| format!("has a certificate that cannot be read: {error}");
        let X509 { tbs_certificate: found, .. } = X509::from_der(&der).map_err(unreadable)?;
        let names = found.get::<SubjectAltName>().map_err(unreadable)?.map(|(_, names)| names.0).unwrap_or_default();
        let dns = |name: GeneralName| match name {
            GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
            _ => None,
        };
        let names: Vec<_> =
            names.into_iter().filter_map(dns).filter(|name| is_name(name)).take(MOST_NAMES + 1).collect();
        if names.len() > MOST_NAMES {
            return Err(format!("has a certificate with more than {MOST_NAMES} names"));
        }
        let (not_before, not_after) = (timestamp(found.validity.not_before), timestamp(found.validity.not_after));
        Ok(Arc::new(Certificate { not_before, not_after, names }))
    }

    pub(crate) fn covers(&self, hostname: &str) -> bool {
        let parent = hostname.split_once('.').map(|(_, parent)| parent);
        let matches =
            |name: &String| name == hostname || name.strip_prefix("*.").is_some_and(|domain| Some(domain) == parent);
        self.names.iter().any(matches)
    }

    pub(crate) fn is_valid(&self, hostname: &str, now: Timestamp) -> bool {
        self.covers(hostname) && (self.not_before..self.not_after).contains(&now)
    }

    /// Returns when it should have been renewed.
    pub(crate) fn expires_soon_from(&self) -> Timestamp {
        let lifetime = self.not_after.duration_since(self.not_before);
        self.not_after.checked_sub(RENEWED_BEFORE.min(lifetime / 6)).unwrap_or(self.not_before)
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= LONGEST_NAME && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"*-._".contains(&byte))
}

/// Times that do not fit are in the year 9999, which stands for no end.
fn timestamp(time: Time) -> Timestamp {
    let seconds = i64::try_from(time.to_unix_duration().as_secs()).unwrap_or(i64::MAX);
    Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests;
