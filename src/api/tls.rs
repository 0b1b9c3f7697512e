//! The API's certificate: read from files, and again when they change, as a mounted Secret does. Connections that are
//! open keep the one they began with.

use std::{
    fmt::Debug,
    path::PathBuf,
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::settings::TlsFiles;

/// How often the files are looked at. The kubelet takes longer to bring them.
const INTERVAL: Duration = Duration::from_secs(10);

/// A certificate that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{flag} {}: {source}", path.display())]
    Read {
        /// Whose file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{flag} {}: there is no {what} in PEM in it", path.display())]
    NotPem {
        /// Whose file.
        flag: &'static str,
        /// The file.
        path: PathBuf,
        /// What should be in it.
        what: &'static str,
    },
    /// They are not a pair, or of a kind that is not known.
    #[error("--api-tls-cert {} and --api-tls-key {}: {source}", cert.display(), key.display())]
    Pair {
        /// File with the certificate.
        cert: PathBuf,
        /// File with the key.
        key: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// The certificate that is shown, and the files it is from.
#[derive(Debug)]
pub struct Certificate {
    files: TlsFiles,
    /// What was read last, usable or not.
    seen: Contents,
    shown: Arc<Shown>,
}

/// Certificate and key, as in the files.
type Contents = (Vec<u8>, Vec<u8>);

#[derive(Debug)]
struct Shown(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

impl Certificate {
    /// Reads the files.
    ///
    /// # Errors
    /// When they cannot be used.
    pub fn read(files: TlsFiles) -> Result<Certificate, TlsError> {
        let seen = contents(&files)?;
        let shown = Arc::new(Shown(RwLock::new(Arc::new(pair(&files, &seen)?))));
        Ok(Certificate { files, seen, shown })
    }

    /// Takes connections with the certificate as it is at that time.
    ///
    /// # Errors
    /// None that a test would not see: the protocol versions are those of the provider.
    pub fn acceptor(&self) -> Result<TlsAcceptor, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.shown.clone());
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }

    /// Looks at the files from time to time, until `stop`.
    pub async fn keep_current(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
            self = match tokio::task::spawn_blocking(move || {
                self.look_again();
                self
            })
            .await
            {
                Ok(certificate) => certificate,
                Err(error) => return tracing::error!("the API's certificate is not followed any more: {error}"),
            };
        }
    }

    /// Shows a new certificate if there is one. One that is broken is told once, and the old one stays.
    fn look_again(&mut self) {
        let read = contents(&self.files);
        // A file that is missing is seen as an empty one.
        let now = read.as_ref().map_or_else(|_| Contents::default(), Clone::clone);
        if now == self.seen {
            return;
        }
        self.seen = now;
        match read.and_then(|contents| pair(&self.files, &contents)) {
            Ok(pair) => {
                *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(pair);
                tracing::info!(cert = %self.files.cert.display(), "the API has a new certificate");
            }
            Err(error) => tracing::error!("the API keeps its old certificate: {error}"),
        }
    }
}

fn contents(TlsFiles { cert, key }: &TlsFiles) -> Result<Contents, TlsError> {
    let read = |flag, path: &PathBuf| {
        std::fs::read(path).map_err(|source| TlsError::Read { flag, path: path.clone(), source })
    };
    Ok((read("--api-tls-cert", cert)?, read("--api-tls-key", key)?))
}

fn pair(files: &TlsFiles, (cert, key): &Contents) -> Result<CertifiedKey, TlsError> {
    let not_pem = |flag, path: &PathBuf, what| TlsError::NotPem { flag, path: path.clone(), what };
    let chain = CertificateDer::pem_slice_iter(cert).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    if chain.is_empty() {
        return Err(not_pem("--api-tls-cert", &files.cert, "certificate"));
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| not_pem("--api-tls-key", &files.key, "private key"))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|source| TlsError::Pair {
        cert: files.cert.clone(),
        key: files.key.clone(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

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

    fn shown(certificate: &Certificate) -> Arc<CertifiedKey> {
        certificate.shown.0.read().unwrap().clone()
    }

    #[test]
    fn what_is_wrong_is_said_with_the_flag_and_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (made(), made());
        let cases = [
            ((first.0.as_str(), "rubbish"), "--api-tls-key ", "/tls.key: there is no private key in PEM in it"),
            (("", first.1.as_str()), "--api-tls-cert ", "/tls.crt: there is no certificate in PEM in it"),
            ((&first.1, &first.1), "--api-tls-cert ", "/tls.crt: there is no certificate in PEM in it"),
            ((&first.0, &second.1), "--api-tls-cert ", "keys may not be consistent: KeyMismatch"),
        ];
        for (pair, flag, problem) in cases {
            let error = Certificate::read(put(dir.path(), &pair)).unwrap_err().to_string();
            assert!(error.starts_with(flag) && error.contains(problem), "{error}");
        }
        let files = put(dir.path(), &first);
        std::fs::remove_file(&files.key).unwrap();
        let error = Certificate::read(files).unwrap_err().to_string();
        assert!(error.starts_with("--api-tls-key ") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_new_pair_is_shown_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (made(), made());
        let mut certificate = Certificate::read(put(dir.path(), &first)).unwrap();
        let before = shown(&certificate);
        certificate.look_again();
        assert!(Arc::ptr_eq(&shown(&certificate), &before), "nothing has changed");

        for broken in [(&second.0, &first.1), (&first.0, &String::new())] {
            put(dir.path(), &broken);
            certificate.look_again();
            assert!(Arc::ptr_eq(&shown(&certificate), &before));
        }
        let files = put(dir.path(), &second);
        certificate.look_again();
        let after = shown(&certificate);
        assert_ne!(after.cert, before.cert);

        std::fs::remove_file(files.cert).unwrap();
        certificate.look_again();
        assert!(Arc::ptr_eq(&shown(&certificate), &after));
        put(dir.path(), &first);
        certificate.look_again();
        assert_eq!(shown(&certificate).cert, before.cert);
    }
}
