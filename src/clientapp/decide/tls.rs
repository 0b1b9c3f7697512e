//! Derives what follows from the certificate of the hostname: the URL, the condition CertificateReady, and when to reconcile again. **Pure.**

use jiff::{SignedDuration, Timestamp};

use crate::{
    clientapp::{
        hold::{NAMED, join_limited},
        observed::{certificate::Certificate, repair_backoff::WATCH_LAG, types::Observed},
        spec::{desired::Desired, values::TlsSource},
    },
    crd::{
        ClientAppStatus, Reason,
        conditions::{State, Verdict, find, kind},
    },
    platform::events::Note,
};

/// How long cert-manager may take.
const ISSUED_WITHIN: SignedDuration = SignedDuration::from_mins(5);

/// Returns the app's URL, as far as it is known what serves it.
pub(crate) fn url(desired: &Desired, observed: &Observed, now: Timestamp) -> String {
    let is_secure = match &desired.tls {
        Some(TlsSource::Elsewhere) => true,
        Some(TlsSource::Secret { .. }) => {
            matches!(&observed.prerequisites.certificate, Some(Ok(certificate)) if certificate.is_valid(&desired.hostname, now))
        }
        // The user's own, which is not checked.
        None => {
            let ingress = &desired.values.merged.0["ingress"];
            ingress["enabled"] == true && ingress["tls"].as_array().is_some_and(|tls| !tls.is_empty())
        }
    };
    format!("{}://{}", if is_secure { "https" } else { "http" }, desired.hostname)
}

/// Returns the condition about the certificate; `None`: none is asked for.
pub(crate) fn verdict(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<Verdict> {
    let Some(TlsSource::Secret { name, issuer }) = &desired.tls else { return None };
    let (namespace, host) = (&desired.key.namespace, &desired.hostname);
    let ask = match issuer {
        Some(_) => format!("see `kubectl describe certificate,certificaterequest -n {namespace}`"),
        None => "replace it".to_owned(),
    };
    let invalid = |problem: String| Verdict::no(Reason::CertificateInvalid, problem);
    Some(match &observed.prerequisites.certificate {
        None if issuer.is_some() => {
            let message = format!("cert-manager has not created Secret {name} with a certificate for {host}: {ask}");
            let late = issued_by(desired, observed).is_some_and(|until| until <= now);
            Verdict::no(if late { Reason::CertificateMissing } else { Reason::CertificatePending }, message)
        }
        None => Verdict::no(
            Reason::CertificateMissing,
            format!(
                "Secret {name} with a certificate for {host} does not exist: `kubectl create secret tls {name} -n {namespace} --cert=FILE --key=FILE`"
            ),
        ),
        Some(Err(problem)) => invalid(format!("Secret {name} {problem}: {ask}")),
        Some(Ok(certificate)) => {
            let Certificate { not_before, not_after, names } = certificate.as_ref();
            let of_secret = format!("the certificate in Secret {name}");
            match () {
                () if !certificate.covers(host) => {
                    let names = if names.is_empty() {
                        "no name".to_owned()
                    } else {
                        join_limited(names.iter().cloned(), NAMED)
                    };
                    invalid(format!("{of_secret} is for {names}, not for {host}: {ask}"))
                }
                () if now < *not_before => invalid(format!("{of_secret} is valid only from {not_before}: {ask}")),
                () if *not_after <= now => invalid(format!("{of_secret} has expired, on {not_after}: {ask}")),
                () if certificate.expires_soon_from() <= now => Verdict::no(
                    Reason::CertificateExpiring,
                    format!("{of_secret} expires on {not_after}, and nothing has renewed it: {ask}"),
                ),
                () => Verdict::yes(Reason::CertificateValid, format!("{of_secret} is valid until {not_after}")),
            }
        }
    })
}

/// Returns whether users can be served by it: also if it expires soon.
pub(crate) fn serves(verdict: &Verdict) -> bool {
    verdict.state == State::True || verdict.reason == Reason::CertificateExpiring.as_str()
}

/// Returns when cert-manager should have issued it; `None`: helm has not created its Ingress yet.
fn issued_by(desired: &Desired, observed: &Observed) -> Option<Timestamp> {
    Some(observed.deployed_as(desired)?.created_at? + ISSUED_WITHIN)
}

/// Returns when the verdict changes without a change of the Secret.
pub(crate) fn requeue_at(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    let Some(TlsSource::Secret { name, issuer }) = &desired.tls else { return None };
    // A Secret that changed before the status named it has triggered no reconcile.
    let unnamed = (observed.recorded.tls_secret_name.as_ref() != Some(name)).then(|| now + WATCH_LAG);
    let moments = match &observed.prerequisites.certificate {
        Some(Ok(certificate)) => {
            let Certificate { not_before, not_after, names: _ } = certificate.as_ref();
            vec![*not_before, certificate.expires_soon_from(), *not_after]
        }
        Some(Err(_)) => Vec::new(),
        None => issuer.as_ref().and_then(|_| issued_by(desired, observed)).into_iter().collect(),
    };
    moments.into_iter().filter(|moment| now < *moment).chain(unnamed).min()
}

/// Returns the event about a certificate that expires soon: Ready does not change with it.
pub(crate) fn expires(before: &ClientAppStatus, after: &ClientAppStatus) -> Option<Note> {
    let is_soon = |status: &ClientAppStatus| {
        let condition = find(&status.conditions, kind::CERTIFICATE_READY)?;
        (condition.reason == Reason::CertificateExpiring).then(|| condition.message.clone())
    };
    let message = is_soon(after).filter(|_| is_soon(before).is_none())?;
    Some(Note::warning("Renewing", Reason::CertificateExpiring, message))
}

#[cfg(test)]
mod tests;
