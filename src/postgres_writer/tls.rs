//! libpq's `sslmode`, as tokio-postgres and rustls do it.

use std::{path::Path, sync::Arc};

use deadpool_postgres::Connect;
use futures::{FutureExt as _, future::BoxFuture};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config, config::SslMode as Encryption, error::SqlState};
use tokio_postgres_rustls::MakeRustlsConnect;

/// When a connection is encrypted, and what of the server's certificate is checked: libpq's words and meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, clap::ValueEnum)]
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

/// How connections are made in a mode.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) mode: SslMode,
    tls: MakeRustlsConnect,
}

impl Connector {
    /// `root` is the file with the authorities that are known.
    pub(super) fn new(mode: SslMode, root: Option<&Path>) -> anyhow::Result<Connector> {
        let provider = Arc::new(ring::default_provider());
        let mut verifier = Verifier { mode, authorities: None, algorithms: provider.signature_verification_algorithms };
        if let Some(path) = root {
            let mut roots = RootCertStore::empty();
            for certificate in CertificateDer::pem_file_iter(path)? {
                roots.add(certificate?)?;
            }
            verifier.authorities =
                Some(WebPkiServerVerifier::builder_with_provider(roots.into(), provider.clone()).build()?);
        }
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier)).with_no_client_auth();
        Ok(Connector { mode, tls: MakeRustlsConnect::new(config) })
    }
}

impl Connect for Connector {
    fn connect(&self, config: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        let mut config = config.clone();
        config.ssl_mode(match self.mode {
            SslMode::Disable | SslMode::Allow => Encryption::Disable,
            SslMode::Prefer => Encryption::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => Encryption::Require,
        });
        Box::pin(async move {
            let mut connected = config.connect(self.tls.clone()).await;
            let refused = Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION);
            if self.mode == SslMode::Allow && connected.as_ref().is_err_and(|error| error.code() == refused) {
                // Such as: no pg_hba.conf entry for a connection without encryption.
                connected = config.ssl_mode(Encryption::Require).connect(self.tls.clone()).await;
            }
            let (client, connection) = connected?;
            // Its end is told to those who wait for an answer on it.
            Ok((client, tokio::spawn(connection.map(drop))))
        })
    }
}

/// Checks what the mode asks for, where rustls would check everything.
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
        // As in libpq, a file with authorities makes `require` mean `verify-ca`. Without, it means that no third party listens
        // in, not who the server is.
        let Some(authorities) = self.authorities.as_ref().filter(|_| self.mode >= SslMode::Require) else {
            return Ok(ServerCertVerified::assertion());
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
