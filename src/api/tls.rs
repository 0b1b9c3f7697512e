//! The API's certificate: read from files, and reread when they change, as in a mounted Secret. Open connections keep the certificate
//! they began with.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_util::sync::CancellationToken;

use super::settings::TlsFiles;

/// How often the files are checked. The kubelet takes longer to update them.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    #[error("{flag} {}: {source}", path.display())]
    Read { flag: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{flag} {}: no {what} in PEM format found", path.display())]
    NotPem { flag: &'static str, path: PathBuf, what: &'static str },
    #[error("--api-tls-cert {} and --api-tls-key {}: {source}", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

#[derive(Debug)]
pub(crate) struct ServingCertificate {
    files: TlsFiles,
    /// Holds what was read last, valid or not.
    seen: CertificateFiles,
    shown: RustlsConfig,
}

/// ServingCertificate and key, as in the files.
type CertificateFiles = (Vec<u8>, Vec<u8>);

impl ServingCertificate {
    pub(crate) fn read(files: TlsFiles) -> Result<ServingCertificate, TlsError> {
        let seen = contents(&files)?;
        let shown = RustlsConfig::from_config(Arc::new(config(&files, &seen)?));
        Ok(ServingCertificate { files, seen, shown })
    }

    pub(crate) fn acceptor(&self) -> RustlsAcceptor {
        RustlsAcceptor::new(self.shown.clone())
    }

    /// Checks the files periodically, until `stop`.
    pub(crate) async fn keep_current(mut self, stop: CancellationToken) {
        while stop.run_until_cancelled(tokio::time::sleep(INTERVAL)).await.is_some() {
            let looking = tokio::task::spawn_blocking(move || {
                self.look_again();
                self
            });
            self = match looking.await {
                Ok(certificate) => certificate,
                Err(error) => {
                    return tracing::error!("changes of the API's certificate are no longer picked up: {error}");
                }
            };
        }
    }

    /// Switches to a changed certificate. An invalid one is reported once, and the old one stays in use.
    fn look_again(&mut self) {
        let read = contents(&self.files);
        // A missing file counts as an empty one.
        let now = read.as_ref().map_or_else(|_| CertificateFiles::default(), Clone::clone);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match read.and_then(|contents| config(&self.files, &contents)) {
            Ok(config) => {
                self.shown.reload_from_config(Arc::new(config));
                tracing::info!(cert = %self.files.cert.display(), "the API has a new certificate");
            }
            Err(error) => tracing::error!("the API keeps its old certificate: {error}"),
        }
    }
}

fn contents(TlsFiles { cert, key }: &TlsFiles) -> Result<CertificateFiles, TlsError> {
    let read = |flag, path: &PathBuf| {
        std::fs::read(path).map_err(|source| TlsError::Read { flag, path: path.clone(), source })
    };
    Ok((read("--api-tls-cert", cert)?, read("--api-tls-key", key)?))
}

fn config(files: &TlsFiles, (cert, key): &CertificateFiles) -> Result<ServerConfig, TlsError> {
    let not_pem = |flag, path: &PathBuf, what| TlsError::NotPem { flag, path: path.clone(), what };
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if chain.is_empty() {
        return Err(not_pem("--api-tls-cert", &files.cert, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| not_pem("--api-tls-key", &files.key, "private key"))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|config| config.with_no_client_auth().with_single_cert(chain, key));
    let mut config =
        config.map_err(|source| TlsError::Pair { cert: files.cert.clone(), key: files.key.clone(), source })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustls::{ClientConfig, RootCertStore};
    use tokio_rustls::{TlsAcceptor, TlsConnector};

    use super::*;

    fn made() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn put(dir: &Path, (cert, key): &(impl AsRef<[u8]>, impl AsRef<[u8]>)) -> TlsFiles {
        let files = TlsFiles { cert: dir.join("tls.crt"), key: dir.join("tls.key") };
        std::fs::write(&files.cert, cert).unwrap();
        std::fs::write(&files.key, key).unwrap();
        files
    }

    /// Returns true if a client that trusts only this certificate can connect.
    async fn shows(certificate: &ServingCertificate, (pem, _): &(String, String)) -> bool {
        let mut trusted = RootCertStore::empty();
        trusted.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted)
            .with_no_client_auth();
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let asked = TlsConnector::from(Arc::new(client)).connect("localhost".try_into().unwrap(), theirs);
        tokio::join!(asked, TlsAcceptor::from(certificate.shown.get_inner()).accept(ours)).0.is_ok()
    }

    #[test]
    fn what_is_wrong_is_said_with_the_flag_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (made(), made());
        let cases = [
            ((first.0.as_str(), "rubbish"), "--api-tls-key ", "/tls.key: no private key in PEM format found"),
            (("", first.1.as_str()), "--api-tls-cert ", "/tls.crt: no certificate in PEM format found"),
            ((&first.1, &first.1), "--api-tls-cert ", "/tls.crt: no certificate in PEM format found"),
            ((&first.0, &second.1), "--api-tls-cert ", "keys may not be consistent: KeyMismatch"),
        ];
        for (pair, flag, problem) in cases {
            let error = ServingCertificate::read(put(dir.path(), &pair)).unwrap_err().to_string();
            assert!(error.starts_with(flag) && error.contains(problem), "{error}");
        }
        let files = put(dir.path(), &first);
        std::fs::remove_file(&files.key).unwrap();
        let error = ServingCertificate::read(files).unwrap_err().to_string();
        assert!(error.starts_with("--api-tls-key ") && error.contains("No such file"), "{error}");
    }

    #[tokio::test]
    async fn a_new_pair_is_shown_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (made(), made());
        let mut certificate = ServingCertificate::read(put(dir.path(), &first)).unwrap();
        let before = certificate.shown.get_inner();
        certificate.look_again();
        assert!(Arc::ptr_eq(&certificate.shown.get_inner(), &before), "nothing has changed");
        assert!(shows(&certificate, &first).await && !shows(&certificate, &second).await);

        for broken in [(&second.0, &first.1), (&first.0, &String::new())] {
            put(dir.path(), &broken);
            certificate.look_again();
            assert!(Arc::ptr_eq(&certificate.shown.get_inner(), &before));
        }
        let files = put(dir.path(), &second);
        certificate.look_again();
        assert!(shows(&certificate, &second).await && !shows(&certificate, &first).await);

        std::fs::remove_file(files.cert).unwrap();
        certificate.look_again();
        assert!(shows(&certificate, &second).await);
        put(dir.path(), &first);
        certificate.look_again();
        assert!(shows(&certificate, &first).await);
    }
}
