//! Gives helm processes their only access to the API server (effect).
//!
//! helm's kubeconfig names a cluster that does not exist, `http://clientapp-operator`, and the gateway as its proxy, with a password
//! for this run only. Go sends the password as `Proxy-Authorization` with each request and never includes it in an error message,
//! unlike a password in a server's URL. Over plain HTTP, Go sends no other credential.
//!
//! Each request is checked ([`rules`], pure) and forwarded over the operator's own connections, impersonating the app's ServiceAccount;
//! writes are recorded ([`record`]) and preserve the fields that only the cluster knows ([`live_fields`]), and a deletion is bound to the
//! object that exists now ([`deletion`]). A run that was asked to stop may still record its result in Helm's storage. A run that is over may
//! do nothing: no request of it arrives, whatever the process or its descendants still do, and what was under way has been answered.

mod answer;
mod body;
mod deletion;
mod discovery;
mod discovery_cache;
mod forward;
mod live_fields;
pub(crate) mod record;
mod rules;
mod run;

use std::{
    collections::HashMap,
    convert::Infallible,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderMap, Request, StatusCode, header},
    response::Response,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::Client;
use parking_lot::Mutex;
use rand::RngExt as _;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::{net::TcpListener, task::JoinSet, time::timeout};
use tokio_util::{
    sync::CancellationToken,
    task::{AbortOnDropHandle, TaskTracker},
};

pub(super) use self::rules::RunScope;
pub(crate) use self::run::{Claim, Review};
use self::{discovery_cache::DiscoveryCache, record::Recorded, rules::ParsedRequest, run::Run};
use crate::{leadership::Leadership, platform::key::hex};

/// Name of everything in the kubeconfigs, and host name of the cluster that does not exist.
const NAME: &str = "clientapp-operator";

/// Limits the wait for answers to the writes of a run that ends: the default timeout of an admission webhook. An operator that is stopped
/// has to end in time, too.
const WRITE_GRACE: Duration = Duration::from_secs(10);

/// Serves helm processes until it is dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    address: SocketAddr,
    shared: Arc<Shared>,
    _server: AbortOnDropHandle<()>,
}

#[derive(derive_more::Debug)]
struct Shared {
    #[debug(skip)]
    client: Client,
    lead: Leadership,
    #[debug(skip)]
    discovery_cache: DiscoveryCache,
    /// By the value of `Proxy-Authorization`.
    #[debug(skip)]
    runs: Mutex<HashMap<String, Arc<Run>>>,
}

/// A helm process's access to the API server, revoked when dropped.
#[derive(derive_more::Debug)]
pub(super) struct GatewaySession {
    shared: Arc<Shared>,
    #[debug(skip)]
    authorization: String,
    run: Arc<Run>,
    kubeconfig: NamedTempFile,
}

impl GatewaySession {
    pub(super) fn kubeconfig(&self) -> &Path {
        self.kubeconfig.path()
    }

    /// Ends all requests of the run except those that record its result.
    pub(super) fn stopping(&self) -> CancellationToken {
        self.run.stopping.clone()
    }

    /// Revokes the access, waits until the API server has answered all writes that are under way, and returns what the run has
    /// written. The outcome of a write that helm did not wait for is unknown, but it takes effect by then or never.
    pub(super) async fn end(self) -> Recorded {
        self.revoke();
        self.run.writes.close();
        if timeout(WRITE_GRACE, self.run.writes.wait()).await.is_err() {
            let release = &self.run.scope.release;
            tracing::warn!(release, "the API server has not answered a write of a helm run that is over");
        }
        self.run.record.lock().recorded()
    }

    fn revoke(&self) {
        self.shared.runs.lock().remove(&self.authorization);
        self.run.over.cancel();
    }
}

impl Drop for GatewaySession {
    fn drop(&mut self) {
        self.revoke();
    }
}

impl Shared {
    fn run(&self, headers: &HeaderMap) -> Option<Arc<Run>> {
        let authorization = headers.get(header::PROXY_AUTHORIZATION)?.to_str().ok()?;
        self.runs.lock().get(authorization).cloned()
    }
}

impl Gateway {
    /// Opens a gateway on a port of its own. `client` must not retry or time out. Nothing passes once `lead` is over.
    ///
    /// # Errors
    /// If no port on the loopback interface is free.
    pub(crate) async fn open(client: Client, lead: Leadership) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { client, lead, discovery_cache: DiscoveryCache::new(), runs: Mutex::default() });
        let server = tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, _server: AbortOnDropHandle::new(server) })
    }

    /// Admits a run, with a kubeconfig for it in this directory.
    pub(super) fn admit(
        &self,
        dir: &Path,
        scope: RunScope,
        (claim, review): (Claim, Option<Review>),
    ) -> io::Result<GatewaySession> {
        let password = hex(&rand::rng().random::<[u8; 32]>());
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NAME, "cluster": {
                "server": format!("http://{NAME}"), "proxy-url": format!("http://{NAME}:{password}@{}", self.address),
            }}],
            // No namespace: every helm run passes its own.
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": ""}}],
            "current-context": NAME,
        });
        // tempfile creates files with mode 0600. JSON is valid YAML without its pitfalls.
        let mut file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(dir)?;
        file.write_all(kubeconfig.to_string().as_bytes())?;
        let run = Arc::new(Run {
            scope,
            lead: self.shared.lead.clone(),
            claim,
            review,
            stopping: CancellationToken::new(),
            over: CancellationToken::new(),
            record: Mutex::default(),
            writes: TaskTracker::new(),
        });
        let authorization = format!("Basic {}", BASE64_STANDARD.encode(format!("{NAME}:{password}")));
        self.shared.runs.lock().insert(authorization.clone(), run.clone());
        Ok(GatewaySession { shared: self.shared.clone(), authorization, run, kubeconfig: file })
    }
}

/// Accepts connections, which end when this future is dropped.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process is temporarily out of file descriptors.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Otherwise the end of a response is delayed until helm's kernel acknowledges the data before, which takes 40 ms.
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            let shared = shared.clone();
            async move { Ok::<_, Infallible>(handle(&shared, request.map(Body::new)).await) }
        });
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

async fn handle(shared: &Shared, request: Request<Body>) -> Response {
    let Some(run) = shared.run(request.headers()) else {
        return answer::refusal_response(
            StatusCode::PROXY_AUTHENTICATION_REQUIRED,
            "this is not a helm run of the operator",
        );
    };
    let parsed = match ParsedRequest::parse(request.method(), request.uri()) {
        Ok(parsed) => parsed,
        Err(problem) => return answer::refusal_response(StatusCode::BAD_REQUEST, problem),
    };
    tokio::select! {
        biased;
        ended = run.ended() => answer::refusal_response(StatusCode::FORBIDDEN, ended),
        answer = forward::forward((&shared.client, &shared.discovery_cache), &run, parsed, request) => answer,
    }
}

#[cfg(test)]
mod tests;
