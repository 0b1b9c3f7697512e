//! libpq's `sslmode`, implemented with tokio-postgres and rustls.

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
use tokio_postgres::config::SslMode as Encryption;
use tokio_postgres_rustls::MakeRustlsConnect;

/// When a connection is encrypted, and what of the server's certificate is checked: libpq's words and meanings, except `allow`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, clap::ValueEnum)]
pub(super) enum SslMode {
    Disable,
    /// Encrypted if the server supports it.
    Prefer,
    /// Encrypted; the certificate is checked only if there is one to check it with.
    Require,
    /// Encrypted, with a certificate of a known authority.
    VerifyCa,
    /// Encrypted, with a certificate of a known authority for this very host.
    VerifyFull,
}

impl SslMode {
    /// Returns what is asked of the protocol; the [`Verifier`] does the rest.
    pub(super) fn encryption(self) -> Encryption {
        match self {
            SslMode::Disable => Encryption::Disable,
            SslMode::Prefer => Encryption::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Encryption::Require,
        }
    }
}

/// Returns how connections are made in a mode. `root` is the file with the known authorities.
pub(super) fn connector(mode: SslMode, root: Option<&Path>) -> anyhow::Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let mut verifier = Verifier { mode, authorities: None, algorithms: provider.signature_verification_algorithms };
    if let Some(path) = root {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_file_iter(path)? {
            roots.add(certificate?)?;
        }
        let authorities = WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build()?;
        verifier.authorities = Some(authorities);
    }
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

/// Checks only what the mode asks for; rustls alone would check everything.
#[derive(Debug)]
struct Verifier {
    mode: SslMode,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    algorithms: WebPkiSupportedAlgorithms,
}

type Signed = Result<HandshakeSignatureValid, Error>;

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
        // As in libpq, a file with authorities makes `require` mean `verify-ca`. Without one, `require` keeps third parties
        // from listening in, but does not verify the server.
        let Some(authorities) = self.authorities.as_ref().filter(|_| self.mode >= SslMode::Require) else {
            return Ok(ServerCertVerified::assertion());
        };
        match authorities.verify_server_cert(certificate, intermediates, host, ocsp, now) {
            // The name is checked last, when everything else is right.
            Err(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }))
                if self.mode != SslMode::VerifyFull =>
            {
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(&self, text: &[u8], by: &CertificateDer<'_>, with: &DigitallySignedStruct) -> Signed {
        verify_tls12_signature(text, by, with, &self.algorithms)
    }

    fn verify_tls13_signature(&self, text: &[u8], by: &CertificateDer<'_>, with: &DigitallySignedStruct) -> Signed {
        verify_tls13_signature(text, by, with, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
