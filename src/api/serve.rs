//! The listener of the API: limits the number and the idle time of connections, with or without TLS.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{ConnectInfo, Extension},
};
use axum_server::{Handle, accept::NoDelayAcceptor, tls_rustls::RustlsAcceptor};
use kube::Client;
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::{Layer as _, service_fn};

use super::{
    ApiParts,
    auth::Auth,
    middleware, router,
    settings::{InvalidSettings, Settings, settings},
    tls::{ServingCertificate, TlsError},
};
use crate::{
    config::{ApiArgs, AuthMode},
    listen,
};

/// Maximum number of connections; others wait to be accepted.
const CONNECTIONS: usize = 512;
/// Timeout of the TLS handshake, and then of each request head, which also limits how long a connection may be idle.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// Maximum size of a request head.
const HEAD: usize = 64 << 10;
/// Time for open requests when the operator stops; less than the pod's grace period.
const DRAIN_TIME: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub(crate) enum ServeError {
    #[error("{0}")]
    Settings(InvalidSettings),
    #[error("{0}")]
    ServingCertificate(TlsError),
    #[error("--api-listen {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
}

pub(crate) struct Server {
    listener: TcpListener,
    address: SocketAddr,
    settings: Settings,
    certificate: Option<ServingCertificate>,
}

impl Server {
    /// Checks the flags and opens the address; `None` if the API is off.
    pub(crate) async fn bind(args: &ApiArgs) -> Result<Option<Server>, ServeError> {
        let Some(settings) = settings(args).map_err(ServeError::Settings)? else { return Ok(None) };
        let certificate =
            settings.tls.clone().map(ServingCertificate::read).transpose().map_err(ServeError::ServingCertificate)?;
        let failed = |source| ServeError::Bind { address: settings.listen, source };
        let listener = listen::bind(settings.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Some(Server { listener, address, settings, certificate }))
    }

    pub(crate) fn auth(&self, client: Client) -> Auth {
        match self.settings.auth {
            AuthMode::None => Auth::None,
            AuthMode::Token => Auth::by_token(client, self.settings.audience.clone()),
        }
    }

    /// Serves until `stop`, and until all work in progress is complete. Connections that do not end in time are closed.
    pub(crate) async fn serve(self, parts: ApiParts, stop: CancellationToken) {
        let Server { listener, address, settings, certificate } = self;
        let scheme = if certificate.is_some() { "https" } else { "http" };
        tracing::info!(api = %address, scheme, auth = ?settings.auth, "serving the API");
        let auth = parts.auth.clone();
        let tasks = TaskTracker::new();
        let routes = middleware::behind(router(parts, &tasks, &stop), auth);
        let tls = certificate.as_ref().map(ServingCertificate::acceptor);
        if let Some(certificate) = certificate {
            tasks.spawn(certificate.keep_current(stop.clone()));
        }
        connections(listener, CONNECTIONS, routes, tls, &stop).await;
        tasks.close();
        tasks.wait().await;
    }
}

/// Accepts a limited number of connections until `stop`.
async fn connections(
    listener: TcpListener,
    places: usize,
    routes: Router,
    tls: Option<RustlsAcceptor>,
    stop: &CancellationToken,
) {
    let places = Arc::new(Semaphore::new(places));
    let connection = service_fn(move |peer: SocketAddr| {
        let (places, routes) = (places.clone(), routes.clone());
        async move {
            // The next connection is accepted once this one has a permit, which it holds until it ends.
            let place = Extension(Arc::new(places.acquire_owned().await));
            Ok::<_, Infallible>(place.layer(Extension(ConnectInfo(peer)).layer(routes)))
        }
    });
    let handle = Handle::new();
    let mut server = axum_server::Server::<SocketAddr>::from_listener(listener).handle(handle.clone()).http1_only();
    // A client may close its sending side after a complete request, as netcat does; the request is carried out nevertheless.
    server.http_builder().http1().header_read_timeout(HEAD_TIME).max_buf_size(HEAD).half_close(true);
    let server =
        server.accept_error_handler(|peer, error| tracing::debug!(?peer, "connection to the API failed: {error}"));
    let serving = async {
        // Each response is one write, so Nagle's algorithm would only delay it.
        match tls {
            None => server.acceptor(NoDelayAcceptor).serve(connection).await,
            Some(tls) => {
                let tls = tls.handshake_timeout(HEAD_TIME).acceptor(NoDelayAcceptor);
                server.acceptor(tls).serve(connection).await
            }
        }
    };
    let stopped = async {
        stop.cancelled().await;
        handle.graceful_shutdown(None);
        tokio::time::sleep(DRAIN_TIME).await;
        tracing::warn!(open = handle.connection_count(), "the API stops with requests in progress");
        handle.shutdown();
    };
    tokio::select! {
        served = serving => if let Err(error) = served { tracing::error!("the API ended: {error}") },
        () = stopped => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    use super::*;

    #[tokio::test]
    async fn one_connection_too_many_waits_for_another_to_end() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), CancellationToken::new());
        let peer = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.port().to_string() };
        let routes = Router::new().route("/", axum::routing::get(peer));
        let serving = tokio::spawn({
            let stop = stop.clone();
            async move { connections(listener, 1, routes, None, &stop).await }
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
        // An idle connection is closed.
        assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
    }
}
