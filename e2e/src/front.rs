//! A TLS server in front of one that speaks plain HTTP, such as a [`crate::proxy::Proxy`]. Its certificate can be
//! replaced, as that of an API server is when the cluster gets another certificate authority.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::background::Background;
use crate::plane::certs::{Authority, Identity};

/// Serves until it is dropped.
pub struct Front {
    address: SocketAddr,
    shown: watch::Sender<TlsAcceptor>,
    _server: Background,
}

impl Front {
    /// In front of the server with this address, with a certificate of this authority.
    pub fn start(behind: SocketAddr, authority: &Authority) -> Result<Front> {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0)), behind, authority)
    }

    /// The same at an address.
    pub fn start_at(at: SocketAddr, behind: SocketAddr, authority: &Authority) -> Result<Front> {
        let listener = std::net::TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shown = watch::Sender::new(showing(&certificate(authority, address)?, None)?);
        let certificates = shown.subscribe();
        let server = Background::spawn("front", move || async move {
            let listener = TcpListener::from_std(listener).expect("a runtime takes a nonblocking listener");
            while let Ok((connection, _)) = listener.accept().await {
                let mut certificates = certificates.clone();
                let acceptor = certificates.borrow_and_update().clone();
                tokio::spawn(async move {
                    tokio::select! {
                        _ = certificates.changed() => {}
                        // Either end may hang up at any time.
                        _ = carry(connection, &acceptor, behind) => {}
                    }
                });
            }
        })?;
        Ok(Front { address, shown, _server: server })
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Cuts all connections, and has a certificate of this authority from now on.
    pub fn show(&self, authority: &Authority) -> Result<()> {
        self.shown.send_replace(showing(&certificate(authority, self.address)?, None)?);
        Ok(())
    }

    /// Has a certificate of this authority that has expired.
    pub fn show_expired(&self, authority: &Authority) -> Result<()> {
        let expired = authority.expired_server("front", vec![self.address.ip().to_string()])?;
        self.shown.send_replace(showing(&expired, None)?);
        Ok(())
    }

    /// Has a certificate of this authority, and demands one of it from each client.
    pub fn demand(&self, authority: &Authority) -> Result<()> {
        self.shown.send_replace(showing(&certificate(authority, self.address)?, Some(authority))?);
        Ok(())
    }
}

fn certificate(authority: &Authority, address: SocketAddr) -> Result<Identity> {
    authority.server("front", vec![address.ip().to_string()])
}

fn showing(identity: &Identity, clients: Option<&Authority>) -> Result<TlsAcceptor> {
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let provider = Arc::new(ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let config = match clients {
        None => config.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes())?)?;
            config.with_client_cert_verifier(
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?,
            )
        }
    };
    let config = config.with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// One connection, until either end closes it.
async fn carry(connection: TcpStream, acceptor: &TlsAcceptor, behind: SocketAddr) -> Result<()> {
    let mut connection = acceptor.accept(connection).await?;
    let mut behind = TcpStream::connect(behind).await?;
    copy_bidirectional(&mut connection, &mut behind).await?;
    Ok(())
}
