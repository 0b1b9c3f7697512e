//! libpq's `sslmode`, as rustls does it.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

use super::settings::SettingsError;

/// When a connection is encrypted, and what of the server's certificate is checked: libpq's words and meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SslMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server does not want it otherwise.
    Allow,
    /// Encrypted if the server can.
    Prefer,
    /// Encrypted; the certificate is checked only if there is one to check it with.
    Require,
    /// Encrypted, with a certificate of a known authority.
    VerifyCa,
    /// Encrypted, with a certificate of a known authority for this very host.
    VerifyFull,
}

impl SslMode {
    const ALL: [(&str, SslMode); 6] = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Allow),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];

    /// The mode that libpq calls so.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(known, _)| *known == word).map(|(_, mode)| *mode)
    }

    /// Whether it is nothing without certificates of authorities.
    #[must_use]
    pub fn verifies(self) -> bool {
        matches!(self, SslMode::VerifyCa | SslMode::VerifyFull)
    }
}

/// What rustls checks in this mode, with the authorities in this file.
///
/// # Errors
/// When the file cannot be read or has no certificate that can be used.
pub fn client_config(mode: SslMode, root: Option<&Path>) -> Result<ClientConfig, SettingsError> {
    let provider = Arc::new(ring::default_provider());
    let algorithms = provider.signature_verification_algorithms;
    let lenient = |authorities| Arc::new(Lenient { authorities, algorithms });
    let verifier: Arc<dyn ServerCertVerifier> = match root {
        None => lenient(None),
        Some(path) => {
            let problem = |problem: String| SettingsError::Certificates { path: path.to_owned(), problem };
            let roots = Arc::new(authorities(path).map_err(&problem)?);
            let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            let verifier = verifier.map_err(|error| problem(error.to_string()))?;
            match mode {
                SslMode::VerifyFull => verifier,
                // As in libpq, a file with authorities makes `require` mean `verify-ca`.
                SslMode::Require | SslMode::VerifyCa => lenient(Some(verifier)),
                SslMode::Disable | SslMode::Allow | SslMode::Prefer => lenient(None),
            }
        }
    };
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(SettingsError::Tls)?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn authorities(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|error| error.to_string())? {
        roots.add(certificate.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("there is no certificate in it".to_owned()) } else { Ok(roots) }
}

/// Checks less than rustls does by itself, which looks at the host's name too.
#[derive(Debug)]
struct Lenient {
    /// Of whom the certificate has to be. `None`: of anybody, since what `prefer` and `require` mean is that nobody listens
    /// in, not who the server is.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else { return Ok(ServerCertVerified::assertion()) };
        match authorities.verify_server_cert(certificate, intermediates, host, ocsp, now) {
            // The name is looked at last, when everything else is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
