//! libpq's `sslmode`, as rustls does it.

use std::{path::Path, sync::Arc};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};

/// When a connection is encrypted, and what of the server's certificate is checked: libpq's words and meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum SslMode {
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

/// What rustls checks in this mode, with the authorities in this file.
pub(super) fn client_config(mode: SslMode, root: Option<&Path>) -> anyhow::Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let mut verifier = Verifier { algorithms: provider.signature_verification_algorithms, authorities: None, mode };
    if let Some(path) = root {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path)? {
            roots.add(certificate?)?;
        }
        verifier.authorities =
            Some(WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build()?);
    }
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth())
}

/// Checks what the mode asks for, where rustls would check everything.
#[derive(Debug)]
struct Verifier {
    mode: SslMode,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        host: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        use CertificateError::{NotValidForName, NotValidForNameContext};
        let authorities = match (self.mode, &self.authorities) {
            // As in libpq, a file with authorities makes `require` mean `verify-ca`. Without, it means that no third party
            // listens in, not who the server is.
            (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, Some(authorities)) => authorities,
            _ => return Ok(ServerCertVerified::assertion()),
        };
        match authorities.verify_server_cert(certificate, intermediates, host, ocsp, now) {
            // The name is looked at last, when everything else is right.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if self.mode != SslMode::VerifyFull =>
            {
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
