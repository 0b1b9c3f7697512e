//! A proxy between one operator (with its helms) and the API server. On request it answers in the API server's place,
//! or not at all, and can restrict the operator's view to one namespace. A [`Rule`] is for all requests of a kind while it
//! exists, and a [`Trap`] for one write, at the moment before or after it is forwarded.
//!
//! The operator uses [`Proxy::kubeconfig`]: it connects to the proxy over plain HTTP without credentials, which helm
//! would not send that way, and the proxy forwards each request as the operator's user. All other clients reach the API
//! server directly.

mod trap;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{Html, IntoResponse as _, Response};
use futures::StreamExt as _;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

use self::trap::Writes;
pub use self::trap::{By, Snap, Trap, Write};
use crate::background::Background;
use crate::lab::TIMEOUT;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy answers with this status; the API server does not get the request.
    Answer(StatusCode),
    /// The same, with a different message each time.
    AnswerAnew(StatusCode),
    /// The proxy answers with this status and a Retry-After of this many seconds; the API server does not get the
    /// request.
    RetryAfter(StatusCode, u64),
    /// No response, and no events on a watch, while the rule exists. After that the request continues.
    Hang,
    /// The response is delayed by this time; on a watch, each event is.
    Late(Duration),
    /// A watch is told that its resource version has expired, and ends.
    Expire,
    /// The connection of a watch is cut after this time.
    Cut(Duration),
}

/// Which requests meet a fault.
#[derive(Clone, Debug)]
pub struct Rule {
    verb: &'static str,
    resource: &'static str,
    fault: Fault,
    spares_helm: bool,
}

impl Rule {
    /// A verb and a resource as in a Role, `leases` or `instances/status`; `*` matches any.
    #[must_use]
    pub fn new(verb: &'static str, resource: &'static str, fault: Fault) -> Self {
        Rule { verb, resource, fault, spares_helm: false }
    }

    /// Only for the operator's own requests, not for helm's.
    #[must_use]
    pub fn sparing_helm(self) -> Self {
        Rule { spares_helm: true, ..self }
    }

    fn is_about(&self, asked: &Asked) -> bool {
        let is = |rule: &str, word: &str| rule == "*" || rule == word;
        is(self.verb, asked.verb) && is(self.resource, &asked.resource) && !(self.spares_helm && asked.by_helm)
    }
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    kubeconfig: PathBuf,
    shared: Arc<Shared>,
    _server: Background,
    _directory: tempfile::TempDir,
}

#[derive(Debug)]
struct Shared {
    name: String,
    /// The only namespace that the operator can see.
    namespace: Option<String>,
    rules: watch::Sender<Vec<Rule>>,
    /// The number of requests that met a fault.
    met: watch::Sender<usize>,
    record: Mutex<Vec<String>>,
    writes: watch::Sender<Writes>,
    /// The number of events of watches that have come, and were not let through yet.
    held: watch::Sender<usize>,
}

/// An event that is not let through yet.
struct Held(Arc<Shared>);

impl Held {
    fn new(shared: &Arc<Shared>) -> Held {
        shared.held.send_modify(|held| *held += 1);
        Held(shared.clone())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.send_modify(|held| *held -= 1);
    }
}

impl Proxy {
    /// A proxy to the cluster of this kubeconfig, for its user.
    pub fn start(kubeconfig: &Path) -> Result<Self> {
        Self::to(kubeconfig, None)
    }

    /// Requests for the objects of all namespaces return only those of this namespace, so that several operators can
    /// work side by side on one control plane.
    pub fn confined(kubeconfig: &Path, namespace: &str) -> Result<Self> {
        Self::to(kubeconfig, Some(namespace.to_owned()))
    }

    fn to(kubeconfig: &Path, namespace: Option<String>) -> Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let name = format!("proxy-{}", listener.local_addr()?.port());
        let mut given: serde_json::Value = serde_yaml::from_str(&fs::read_to_string(kubeconfig)?)?;
        let cluster: Kubeconfig = serde_json::from_value(given.clone()).context("cannot parse the kubeconfig")?;
        given["clusters"][0]["cluster"] = json!({"server": format!("http://{}", listener.local_addr()?)});
        given["users"][0]["user"] = json!({});

        let directory = tempfile::tempdir()?;
        let path = directory.path().join("kubeconfig");
        // Helm complains about a kubeconfig that others may read.
        let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        file.write_all(serde_yaml::to_string(&given)?.as_bytes())?;

        let shared = Arc::new(Shared {
            name,
            namespace,
            rules: watch::Sender::default(),
            met: watch::Sender::default(),
            record: Mutex::default(),
            writes: watch::Sender::default(),
            held: watch::Sender::default(),
        });
        let server = Background::spawn("proxy", {
            let shared = shared.clone();
            || async move {
                let options = KubeConfigOptions::default();
                let config = kube::Config::from_custom_kubeconfig(cluster, &options).await;
                let mut config = config.expect("the kubeconfig has one cluster");
                config.default_retry = false;
                config.read_timeout = None;
                let client = Client::try_from(config).expect("the configuration makes a client");
                let router = Router::new().fallback(handle).with_state((shared, client));
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("a runtime takes a nonblocking listener");
                axum::serve(listener, router).await.expect("axum's accept loop never ends");
            }
        })?;
        Ok(Proxy { kubeconfig: path, shared, _server: server, _directory: directory })
    }

    /// For the operator behind this proxy.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig.clone()
    }

    /// In the user agent of every request that it forwards, so that the audit log tells operators apart.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Replaces all rules. The first rule that matches a request counts.
    pub fn set(&self, rules: impl IntoIterator<Item = Rule>) {
        self.shared.rules.send_replace(rules.into_iter().collect());
    }

    /// The number of requests so far that met a fault.
    #[must_use]
    pub fn met(&self) -> usize {
        *self.shared.met.borrow()
    }

    /// All requests so far, in order, each as `operator get secrets` or `helm get secrets`.
    #[must_use]
    pub fn record(&self) -> Vec<String> {
        self.shared.record().clone()
    }

    /// Counts writes anew, and sets a trap for one of them.
    pub fn count_writes(&self, trap: Option<Trap>) {
        self.shared.writes.send_replace(Writes::with(trap));
    }

    /// The writes since the last call of [`Proxy::count_writes`], in order.
    #[must_use]
    pub fn writes(&self) -> Vec<Write> {
        self.shared.writes.borrow().counted().to_vec()
    }

    /// Waits for the write that springs the trap; `None`: the trap was lifted first.
    pub async fn sprung(&self) -> Option<Write> {
        let mut writes = self.shared.writes.subscribe();
        // The sender lives in `shared`.
        writes.wait_for(|writes| writes.sprung().is_some() || !writes.is_set()).await.ok()?.sprung().cloned()
    }

    /// Returns true if the trap has sprung, and holds its write or has let it go.
    #[must_use]
    pub fn has_sprung(&self) -> bool {
        self.shared.writes.borrow().sprung().is_some()
    }

    /// Removes the trap. A write that it holds goes on.
    pub fn lift(&self) {
        self.shared.writes.send_modify(Writes::lift);
    }

    /// Waits until no event of a watch is held back.
    pub async fn delivered(&self) {
        let mut held = self.shared.held.subscribe();
        // The sender lives in `shared`.
        let _ = held.wait_for(|held| *held == 0).await;
    }

    /// Waits until more than this many requests have met a fault.
    pub async fn met_more_than(&self, so_many: usize) {
        let mut met = self.shared.met.subscribe();
        let more = tokio::time::timeout(TIMEOUT, met.wait_for(|met| *met > so_many)).await;
        // The sender lives in `shared`.
        _ = more.unwrap_or_else(|_| panic!("no more than {so_many} requests have met a fault"));
    }
}

/// A request in terms of a Role.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asked {
    verb: &'static str,
    /// With its subresource.
    resource: String,
    /// Empty if the path has none, as for an object to create.
    name: String,
    by_helm: bool,
}

impl Asked {
    fn of(request: &Request) -> Asked {
        let (method, uri) = (request.method(), request.uri());
        let agent = request.headers().get(header::USER_AGENT);
        let by_helm = agent.is_some_and(|agent| agent.as_bytes().starts_with(b"Helm/"));
        let mut path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
        let prefix = if path.first() == Some(&"apis") { 3 } else { 2 };
        path.drain(..prefix.min(path.len()));
        // `namespaces/x` is the namespace itself, and `namespaces/x/status` its subresource.
        if path.first() == Some(&"namespaces") && path.len() > 2 && !["status", "finalize"].contains(&path[2]) {
            path.drain(..2);
        }
        let named = path.len() > 1;
        let watches =
            uri.query().is_some_and(|query| query.split('&').any(|part| ["watch=true", "watch=1"].contains(&part)));
        let verb = match *method {
            Method::GET if watches => "watch",
            Method::GET if named => "get",
            Method::GET => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ => "other",
        };
        let resource = match path[..] {
            [resource, _, part, ..] => format!("{resource}/{part}"),
            [resource, ..] => resource.to_owned(),
            [] => String::new(),
        };
        let name = path.get(1).copied().unwrap_or_default().to_owned();
        Asked { verb, resource, name, by_helm }
    }
}

impl Shared {
    fn record(&self) -> MutexGuard<'_, Vec<String>> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, asked: &Asked) -> Option<Fault> {
        self.rules.borrow().iter().find(|rule| rule.is_about(asked)).map(|rule| rule.fault)
    }

    /// Returns when the rules say that a watch has expired.
    async fn expires(&self, asked: &Asked) {
        let mut rules = self.rules.subscribe();
        while self.fault(asked) != Some(Fault::Expire) {
            // The sender lives in `self`.
            _ = rules.changed().await;
        }
    }

    /// Returns when the rules say that the connection of a watch is cut.
    async fn cut(self: Arc<Self>, asked: Asked) {
        let mut rules = self.rules.subscribe();
        loop {
            if let Some(Fault::Cut(after)) = self.fault(&asked) {
                return sleep(after).await;
            }
            // The sender lives in `self`.
            _ = rules.changed().await;
        }
    }

    /// Counts a write, and returns what the trap does to it.
    fn snapped(&self, asked: &Asked) -> Option<Snap> {
        let write = Write::of(asked)?;
        let mut snap = None;
        self.writes.send_modify(|writes| snap = writes.count(write));
        snap
    }

    /// Waits until the trap is lifted.
    async fn held(&self) {
        // The sender lives in `self`.
        _ = self.writes.subscribe().wait_for(|writes| !writes.is_set()).await;
    }

    /// Waits while the rules hold back the request, and returns the fault that then applies.
    async fn let_through(&self, asked: &Asked) -> Option<Fault> {
        let mut rules = self.rules.subscribe();
        loop {
            match self.fault(asked) {
                // The sender lives in `self`, so the wait can only end with other rules.
                Some(Fault::Hang) => _ = rules.changed().await,
                other => return other,
            }
        }
    }
}

async fn handle(State((shared, client)): State<(Arc<Shared>, Client)>, request: Request) -> Response {
    let asked = Asked::of(&request);
    let watches = asked.verb == "watch";
    let by = if asked.by_helm { "helm" } else { "operator" };
    shared.record().push(format!("{by} {} {}", asked.verb, asked.resource));
    if shared.fault(&asked).is_some() {
        shared.met.send_modify(|met| *met += 1);
    }
    match shared.let_through(&asked).await {
        Some(Fault::Answer(status)) => return refused(status, "the proxy was told to"),
        Some(Fault::AnswerAnew(status)) => {
            return refused(status, &format!("request {} is refused", *shared.met.borrow()));
        }
        Some(Fault::RetryAfter(status, seconds)) => {
            return refused_for(status, seconds);
        }
        Some(Fault::Late(by)) if !watches => sleep(by).await,
        _ => {}
    }
    let snap = shared.snapped(&asked);
    match snap {
        Some(Snap::Answer(status)) => return refused(status, "the proxy was told to"),
        Some(Snap::TooMany(seconds)) => return refused_for(StatusCode::TOO_MANY_REQUESTS, seconds),
        Some(Snap::Page) => return (StatusCode::BAD_GATEWAY, Html(PAGE)).into_response(),
        Some(Snap::Before) => shared.held().await,
        _ => {}
    }
    let answer = match forward(&client, request, &shared).await {
        Ok(answer) => answer,
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    };
    if let Some(snap) = snap {
        return snapped(snap, answer, &shared).await;
    }
    if !watches {
        return answer;
    }
    let (parts, body) = answer.into_parts();
    Response::from_parts(
        parts,
        Body::from_stream(cut_off(shared.clone(), asked.clone(), held_back(shared, asked, body))),
    )
}

const PAGE: &str = "<html><body><h1>502 Bad Gateway</h1></body></html>";

/// What the trap makes of the answer to a write. It is complete: the API server has nothing left to do for it.
async fn snapped(snap: Snap, answer: Response, shared: &Shared) -> Response {
    let (parts, body) = answer.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap_or_default();
    match snap {
        Snap::Lose => return lost(parts.status, Vec::new()),
        Snap::Halve => return lost(parts.status, body[..body.len() / 2].to_vec()),
        Snap::After => {
            shared.writes.send_modify(Writes::spring);
            shared.held().await;
        }
        Snap::Meanwhile => shared.held().await,
        Snap::Answer(_) | Snap::TooMany(_) | Snap::Page | Snap::Before => {}
    }
    Response::from_parts(parts, body.into())
}

/// The connection is cut after these bytes of an answer.
fn lost(status: StatusCode, begun: Vec<u8>) -> Response {
    let begun = (!begun.is_empty()).then(|| Ok(axum::body::Bytes::from(begun)));
    // An error of a body makes the server close the connection.
    let cut = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    let body = Body::from_stream(futures::stream::iter(begun.into_iter().chain([cut])));
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// A watch's events until the rules say that its connection is cut.
fn cut_off(
    shared: Arc<Shared>,
    asked: Asked,
    events: impl futures::Stream<Item = Result<axum::body::Bytes, axum::Error>>,
) -> impl futures::Stream<Item = Result<axum::body::Bytes, axum::Error>> {
    let is_cut = {
        let (shared, asked) = (shared.clone(), asked.clone());
        // The API server ends watches, too, which is no error.
        async move { matches!(shared.fault(&asked), Some(Fault::Cut(_))) }
    };
    let end = futures::stream::once(is_cut).filter_map(async |is_cut| {
        is_cut.then(|| Err(axum::Error::new(std::io::Error::from(std::io::ErrorKind::ConnectionReset))))
    });
    events.take_until(shared.cut(asked)).chain(end)
}

async fn forward(client: &Client, request: Request, shared: &Shared) -> Result<Response> {
    let (mut parts, body) = request.into_parts();
    of_the_connection(&mut parts.headers);
    let agent = parts.headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let mut agent = format!("{agent} {}", shared.name);
    let namespace = shared.namespace.as_deref();
    if let Some(within) = namespace.and_then(|namespace| within(&parts.method, &parts.uri, namespace)) {
        parts.uri = within.parse()?;
        agent = format!("{agent} {OF_ALL}");
    }
    parts.headers.insert(header::USER_AGENT, HeaderValue::from_str(&agent)?);
    let body = axum::body::to_bytes(body, usize::MAX).await?;
    let answer = client.send(Request::from_parts(parts, body.into())).await?;
    let (mut parts, body) = answer.into_parts();
    of_the_connection(&mut parts.headers);
    Ok(Response::from_parts(parts, Body::new(body)))
}

/// Appended to the user agent of a request that asked for all namespaces.
pub const OF_ALL: &str = "(of all namespaces)";

/// The cluster-scoped kinds that an operator requests.
const WITHOUT_NAMESPACE: [&str; 2] = ["namespaces", "customresourcedefinitions"];

/// Rewrites a request for the objects of all namespaces to one namespace, and one for all Profiles to the one of that name, since two
/// operators would both write its status; `None`: the request is of another kind.
fn within(method: &Method, uri: &Uri, namespace: &str) -> Option<String> {
    let path: Vec<&str> = uri.path().split('/').skip(1).collect();
    let (group, resource) = match path[..] {
        ["api", _, resource] | ["apis", _, _, resource] => (&path[..path.len() - 1], resource),
        _ => return None,
    };
    if *method != Method::GET || WITHOUT_NAMESPACE.contains(&resource) {
        return None;
    }
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    if resource == "profiles" {
        let others = query.trim_start_matches('?');
        return Some(format!("/{}/profiles?fieldSelector=metadata.name%3D{namespace}&{others}", group.join("/")));
    }
    Some(format!("/{}/namespaces/{namespace}/{resource}{query}", group.join("/")))
}

/// Removes hop-by-hop headers.
fn of_the_connection(headers: &mut HeaderMap) {
    for name in [header::HOST, header::CONNECTION, header::TRANSFER_ENCODING, header::CONTENT_LENGTH] {
        headers.remove(name);
    }
}

/// A watch's events, each when the rules let it through.
fn held_back(
    shared: Arc<Shared>,
    asked: Asked,
    body: Body,
) -> impl futures::Stream<Item = Result<axum::body::Bytes, axum::Error>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    // A task of its own, so that each event's delay counts from its arrival.
    let reader = {
        let shared = shared.clone();
        async move {
            let mut events = body.into_data_stream();
            while let Some(event) = events.next().await {
                if sender.send((Instant::now(), event, Held::new(&shared))).is_err() {
                    return;
                }
            }
        }
    };
    tokio::spawn(reader);
    futures::stream::unfold((shared, asked, receiver, false), async |(shared, asked, mut receiver, ended)| {
        if ended {
            return None;
        }
        let next = async {
            let (came, event, _held) = receiver.recv().await?;
            if let Some(Fault::Late(by)) = shared.let_through(&asked).await {
                sleep_until(came + by).await;
            }
            Some(event)
        };
        tokio::select! {
            biased;
            () = shared.expires(&asked) => {
                shared.met.send_modify(|met| *met += 1);
                let gone = json!({"type": "ERROR", "object": {
                    "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
                    "reason": "Expired", "message": "too old resource version",
                }});
                Some((Ok(axum::body::Bytes::from(format!("{gone}\n"))), (shared, asked, receiver, true)))
            }
            event = next => Some((event?, (shared, asked, receiver, false))),
        }
    })
}

/// A refusal that asks the client to wait for so many seconds.
fn refused_for(status: StatusCode, seconds: u64) -> Response {
    ([(header::RETRY_AFTER, seconds.to_string())], refused(status, "the proxy was told to")).into_response()
}

/// In the API server's format for refusals.
fn refused(status: StatusCode, message: &str) -> Response {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16(),
        "reason": status.canonical_reason().unwrap_or_default().replace(' ', ""), "message": message,
    });
    (status, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_verb_and_resource() {
        for (method, uri, verb, resource, name) in [
            ("GET", "/api/v1/namespaces/a/secrets/b", "get", "secrets", "b"),
            ("GET", "/api/v1/namespaces/a/secrets?limit=5", "list", "secrets", ""),
            ("GET", "/api/v1/secrets?limit=5&watch=true&x=y", "watch", "secrets", ""),
            ("POST", "/api/v1/namespaces/a/secrets", "create", "secrets", ""),
            ("GET", "/api/v1/namespaces/a", "get", "namespaces", "a"),
            ("POST", "/api/v1/namespaces", "create", "namespaces", ""),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "namespaces/finalize", "a"),
            ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "patch", "leases", "b"),
            ("PATCH", "/apis/g.example.com/v1/namespaces/a/things/b/status", "patch", "things/status", "b"),
            ("DELETE", "/apis/g.example.com/v1/namespaces/a/things", "deletecollection", "things", ""),
            ("DELETE", "/apis/g.example.com/v1/things/b", "delete", "things", "b"),
            ("GET", "/version", "list", "", ""),
            ("GET", "/apis", "list", "", ""),
        ] {
            let request = axum::http::Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            let (resource, name) = (resource.to_owned(), name.to_owned());
            let expected = Asked { verb, resource, name, by_helm: false };
            assert_eq!(Asked::of(&request), expected, "{method} {uri}");
        }
    }

    #[test]
    fn what_is_asked_of_all_namespaces_is_asked_of_one() {
        for (method, uri, expected) in [
            ("GET", "/api/v1/secrets?watch=true", Some("/api/v1/namespaces/a/secrets?watch=true")),
            ("GET", "/apis/apps/v1/deployments", Some("/apis/apps/v1/namespaces/a/deployments")),
            (
                "GET",
                "/apis/g.example.com/v1/profiles?watch=true",
                Some("/apis/g.example.com/v1/profiles?fieldSelector=metadata.name%3Da&watch=true"),
            ),
            ("GET", "/api/v1/namespaces", None),
            ("GET", "/api/v1/namespaces/b/secrets", None),
            ("GET", "/apis/apps/v1", None),
            ("GET", "/version", None),
            ("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", None),
        ] {
            let found = within(&method.parse().unwrap(), &uri.parse().unwrap(), "a");
            assert_eq!(found.as_deref(), expected, "{method} {uri}");
        }
    }
}
