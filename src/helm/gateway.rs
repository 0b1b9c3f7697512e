//! The only way to the API server that a helm process has (effect).
//!
//! helm gets a kubeconfig that names a cluster which exists in name only, `http://clientapp-operator`, and the gateway as the
//! proxy to it, with a password for this one run. Go sends it as `Proxy-Authorization` with each request and puts it into no
//! error message, which it would not spare a URL; and it sends none at all over plain HTTP that is a credential of the cluster's.
//!
//! What the run asks for is judged ([`rules`], pure), sent on over the operator's own connections in the name of the app's service
//! account, and what it has written is remembered ([`record`]). A run that is asked to stop may still write how far it came, and
//! one that is over nothing: whatever helm does then, and whichever process has become its parent, no request of it arrives.

mod body;
mod discovery;
mod forward;
pub(crate) mod record;
mod rules;
mod run;

use std::{
    collections::HashMap,
    convert::Infallible,
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
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
use rand::RngExt as _;
use serde_json::json;
use tempfile::NamedTempFile;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

pub(crate) use self::run::Claim;
use self::{
    record::Recorded,
    rules::{Asked, Scope},
    run::Run,
};
use super::command::{Namespace, ReleaseName};
use crate::{lead::Lead, runtime::account::AccountName};

/// The one name in the kubeconfigs written here, and the host of the cluster that exists in name only.
const NAME: &str = "clientapp-operator";

/// It serves until it is dropped.
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
    lead: Lead,
    /// By what their requests say in `Proxy-Authorization`.
    #[debug(skip)]
    runs: Mutex<HashMap<String, Arc<Run>>>,
}

/// One helm process's way to the API server, which ends when this is dropped.
#[derive(derive_more::Debug)]
pub(super) struct Pass {
    shared: Arc<Shared>,
    #[debug(skip)]
    authorization: String,
    run: Arc<Run>,
    kubeconfig: NamedTempFile,
}

impl Pass {
    pub(super) fn kubeconfig(&self) -> &Path {
        self.kubeconfig.path()
    }

    /// What ends all of the run's requests but those that say how far it came.
    pub(super) fn stopping(&self) -> CancellationToken {
        self.run.stopping.clone()
    }

    /// Ends the run's access, and returns what it has written. What is under way then is cut off, and not known.
    pub(super) fn end(self) -> Recorded {
        self.revoke();
        self.run.record().recorded()
    }

    fn revoke(&self) {
        self.shared.runs().remove(&self.authorization);
        self.run.over.cancel();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.revoke();
    }
}

impl Shared {
    fn runs(&self) -> MutexGuard<'_, HashMap<String, Arc<Run>>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, headers: &HeaderMap) -> Option<Arc<Run>> {
        let authorization = headers.get(header::PROXY_AUTHORIZATION)?.to_str().ok()?;
        self.runs().get(authorization).cloned()
    }
}

impl Gateway {
    /// Opens one on a port of its own. `client` sends a request once, and waits for as long as the API server may take; nothing
    /// passes any more when `lead` is over.
    ///
    /// # Errors
    /// When there is no port to be had on the loopback.
    pub(crate) async fn open(client: Client, lead: Lead) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { client, lead, runs: Mutex::default() });
        let server = tokio::spawn(serve(listener, shared.clone()));
        Ok(Self { address, shared, _server: AbortOnDropHandle::new(server) })
    }

    /// Admits one run, with a kubeconfig for it in this directory.
    pub(super) fn admit(
        &self,
        dir: &Path,
        (release, namespace, account): (&ReleaseName, &Namespace, &AccountName),
        claim: Claim,
    ) -> io::Result<Pass> {
        let scope = Scope {
            release: release.to_string(),
            namespace: namespace.to_string(),
            user: account.user(namespace.as_str()),
        };
        let password: String = rand::rng().random::<[u8; 32]>().iter().map(|byte| format!("{byte:02x}")).collect();
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NAME, "cluster": {
                "server": format!("http://{NAME}"), "proxy-url": format!("http://{NAME}:{password}@{}", self.address),
            }}],
            // No namespace: every helm run names its own.
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": ""}}],
            "current-context": NAME,
        });
        // tempfile makes files of mode 0600. JSON is YAML without its surprises.
        let mut file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(dir)?;
        file.write_all(kubeconfig.to_string().as_bytes())?;
        let run = Arc::new(Run {
            scope,
            lead: self.shared.lead.clone(),
            claim,
            stopping: CancellationToken::new(),
            over: CancellationToken::new(),
            record: Mutex::default(),
        });
        let authorization = format!("Basic {}", BASE64_STANDARD.encode(format!("{NAME}:{password}")));
        self.shared.runs().insert(authorization.clone(), run.clone());
        Ok(Pass { shared: self.shared.clone(), authorization, run, kubeconfig: file })
    }
}

/// The connections end with it.
async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // The process is out of descriptors for now.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        // Else the end of an answer waits until helm's kernel acknowledges what came before, which takes it 40 ms.
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
        return forward::refused(StatusCode::PROXY_AUTHENTICATION_REQUIRED, "this is no helm run of the operator's");
    };
    let asked = match Asked::of(request.method(), request.uri()) {
        Ok(asked) => asked,
        Err(problem) => return forward::refused(StatusCode::BAD_REQUEST, problem),
    };
    tokio::select! {
        biased;
        ended = run.ended() => forward::refused(StatusCode::FORBIDDEN, ended),
        answer = forward::forward(&shared.client, &run, asked, request) => answer,
    }
}

#[cfg(test)]
mod tests;
