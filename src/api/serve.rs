//! The listener of the API: connections, so many and so long at most, with or without TLS.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::{ConnectInfo, Request},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use kube::Client;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};
use tokio_rustls::TlsAcceptor;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service as _;

use super::{
    Parts,
    auth::Auth,
    gate, router,
    settings::{InvalidSettings, Settings, settings},
    tls::{Certificate, TlsError},
};
use crate::config::{ApiArgs, AuthMode};

/// Connections at the same time; more wait to be accepted.
const CONNECTIONS: usize = 512;
/// For the TLS handshake, and then for the head of each request: so long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Bytes of a head at most.
const HEAD: usize = 64 << 10;
/// For requests that are under way when the operator stops. Less than a pod's grace.
const DRAIN_TIME: Duration = Duration::from_secs(10);

/// An API that cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Flags do not go together.
    #[error("{0}")]
    Settings(InvalidSettings),
    /// The certificate cannot be used.
    #[error("{0}")]
    Certificate(TlsError),
    /// The certificate cannot be shown.
    #[error("TLS: {0}")]
    Acceptor(rustls::Error),
    /// The address cannot be opened.
    #[error("--api-listen {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

/// An API that is ready to be served.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    settings: Settings,
    tls: Option<(Certificate, TlsAcceptor)>,
}

impl Server {
    /// Checks the flags and opens the address; `None` when there shall be no API.
    ///
    /// # Errors
    /// When the flags do not go together, or what they name cannot be used.
    pub async fn bind(args: &ApiArgs) -> Result<Option<Server>, ServeError> {
        let Some(settings) = settings(args).map_err(ServeError::Settings)? else { return Ok(None) };
        let certificate = settings.tls.clone().map(Certificate::read).transpose().map_err(ServeError::Certificate)?;
        let acceptor = certificate.as_ref().map(Certificate::acceptor).transpose().map_err(ServeError::Acceptor)?;
        let failed = |source| ServeError::Bind { address: settings.listen, source };
        let listener = TcpListener::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Some(Server { listener, address, settings, tls: certificate.zip(acceptor) }))
    }

    /// Who may use it, as the flags have it.
    pub fn auth(&self, client: Client) -> Auth {
        match self.settings.auth {
            AuthMode::None => Auth::None,
            AuthMode::Token => Auth::by_token(client, self.settings.audience.clone()),
        }
    }

    /// Serves until `stop`, and until everything is complete that was begun. Connections that do not end are cut off.
    pub async fn serve(self, parts: Parts, stop: CancellationToken) {
        let Server { listener, address, settings, tls } = self;
        let scheme = if tls.is_some() { "https" } else { "http" };
        tracing::info!(api = %address, scheme, auth = ?settings.auth, "serving the API");
        let auth = parts.auth.clone();
        let tasks = TaskTracker::new();
        let routes = gate::behind(router(parts, &tasks, &stop), auth);
        let (certificate, acceptor) = tls.unzip();
        let current = async {
            if let Some(certificate) = certificate {
                certificate.keep_current(stop.clone()).await;
            }
        };
        tokio::join!(current, accept(listener, CONNECTIONS, routes, acceptor, &stop));
        tasks.close();
        tasks.wait().await;
    }
}

/// Takes connections until `stop`, so many at a time.
async fn accept(
    mut listener: TcpListener,
    places: usize,
    routes: Router,
    tls: Option<TlsAcceptor>,
    stop: &CancellationToken,
) {
    let (places, connections) = (Arc::new(Semaphore::new(places)), TaskTracker::new());
    loop {
        let next = async {
            let place = places.clone().acquire_owned().await;
            // It waits by itself when the process has no more file descriptors.
            let (stream, peer) = axum::serve::Listener::accept(&mut listener).await;
            (place, stream, peer)
        };
        let (place, stream, peer) = tokio::select! {
            () = stop.cancelled() => break,
            next = next => next,
        };
        let (routes, tls, stop) = (routes.clone(), tls.clone(), stop.clone());
        connections.spawn(async move {
            let _place = place;
            connection(stream, peer, routes, tls, &stop).await;
        });
    }
    drop(listener);
    connections.close();
    if tokio::time::timeout(DRAIN_TIME, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "the API ends in the middle of requests");
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    routes: Router,
    tls: Option<TlsAcceptor>,
    stop: &CancellationToken,
) {
    let started = Instant::now();
    // An answer is one write.
    let _ = stream.set_nodelay(true);
    let ended = match tls {
        None => requests(stream, peer, routes, stop).await.map_err(|error| error.to_string()),
        Some(tls) => match tokio::time::timeout(HEAD_TIME, tls.accept(stream)).await {
            Ok(Ok(stream)) => requests(stream, peer, routes, stop).await.map_err(|error| error.to_string()),
            Ok(Err(error)) => Err(format!("TLS handshake: {error}")),
            Err(_) => Err("TLS handshake: it took too long".to_owned()),
        },
    };
    // Clients come and go as they like.
    if let Err(error) = ended {
        tracing::debug!(%peer, open = ?started.elapsed(), "a connection of the API ended: {error}");
    }
}

async fn requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: SocketAddr,
    routes: Router,
    stop: &CancellationToken,
) -> hyper::Result<()> {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(axum::body::Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        // A Router is always ready.
        routes.clone().call(request)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(HEAD);
    // Who has sent a whole request may hang up, or close its side as netcat does: the request is carried out all the same.
    http.half_close(true);
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        ended = connection.as_mut() => return ended,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    connection.await
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_waits_for_another_to_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.port().to_string() };
        let routes = Router::new().route("/", axum::routing::get(peer));
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move { accept(listener, 1, routes, None, &stop).await }
        });
        let ask = async || {
            let mut connection = TcpStream::connect(address).await.unwrap();
            connection.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
            connection
        };
        let answered = async |connection: &mut TcpStream| {
            let (mut answer, port) = (String::new(), connection.local_addr().unwrap().port().to_string());
            while !answer.ends_with(&format!("\r\n\r\n{port}")) {
                let mut bytes = [0; 1024];
                let read = connection.read(&mut bytes).await.unwrap();
                assert_ne!(read, 0, "{answer}");
                answer += std::str::from_utf8(&bytes[..read]).unwrap();
            }
        };
        let mut first = ask().await;
        answered(&mut first).await;
        let mut second = ask().await;
        // The first is served once more, and the second not yet.
        first.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        answered(&mut first).await;
        assert_eq!(second.try_read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(first);
        answered(&mut second).await;
        stop.cancel();
        serving.await.unwrap();
        // An idle connection is hung up on.
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
    }
}
