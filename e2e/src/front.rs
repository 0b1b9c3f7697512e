//! A TLS server in front of one that speaks plain HTTP, such as a [`crate::proxy::Proxy`]. Its certificate can be
//! replaced, as that of an API server is when the cluster gets another certificate authority.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::background::Background;
use crate::plane::certs::Authority;

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
        let shown = watch::Sender::new(showing(authority, address)?);
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
        self.shown.send_replace(showing(authority, self.address)?);
        Ok(())
    }
}

fn showing(authority: &Authority, address: SocketAddr) -> Result<TlsAcceptor> {
    let identity = authority.server("front", vec![address.ip().to_string()])?;
    let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes())?];
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// One connection, until either end closes it.
async fn carry(connection: TcpStream, acceptor: &TlsAcceptor, behind: SocketAddr) -> Result<()> {
    let mut connection = acceptor.accept(connection).await?;
    let mut behind = TcpStream::connect(behind).await?;
    copy_bidirectional(&mut connection, &mut behind).await?;
    Ok(())
}
