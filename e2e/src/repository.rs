//! A chart repository on the loopback interface that serves every version of the test chart, and misbehaves on request.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt as _;
use serde_json::json;
use tokio::net::TcpSocket;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::background::Background;
use crate::charts::{self, Content, VERSIONS};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// Connections are refused.
    Refused,
    /// Every response is 503.
    Unavailable,
    /// Every response is 403.
    Forbidden,
    /// No request is answered while the fault lasts; pending ones are answered when it ends.
    Slow,
    /// Every response is an HTML page with status 200, as from a captive portal.
    Html,
    /// The index is correct, but every archive is such a page.
    HtmlArchives,
    /// The index lists every version, but no archive exists.
    Missing,
    /// Archives have other content than the index says.
    Tampered,
    /// Archives and index agree, but not on the content that the same versions had before.
    Republished,
    /// The index comes at full speed and does not end.
    Endless,
    /// The index comes byte by byte and does not end.
    Trickle,
    /// The index is correct, but every archive is to be found at this address.
    Redirect(SocketAddr),
    /// The index lists archives at this address.
    Elsewhere(SocketAddr),
}

/// Serves until it is dropped.
#[derive(Debug)]
pub struct Repository {
    address: SocketAddr,
    shared: Arc<Shared>,
    server: Mutex<Option<Background>>,
    /// Bound but never listening: reserves the port while connections are to be refused.
    _port: TcpSocket,
}

#[derive(Debug)]
struct Shared {
    fault: watch::Sender<Fault>,
    requests: watch::Sender<BTreeMap<String, usize>>,
    /// The current number of requests in progress, and the highest so far.
    under_way: Mutex<(usize, usize)>,
    /// The value of the header Authorization that is demanded.
    demanded: Mutex<Option<String>>,
    /// Those of all requests with one.
    authorizations: Mutex<Vec<String>>,
    /// Archives in place of those of the same names, and signatures.
    published: Mutex<Stock>,
    genuine: Stock,
    tampered: Stock,
}

/// Archives by file name.
type Stock = BTreeMap<String, Vec<u8>>;

impl Repository {
    /// Packages every version of the test chart and serves them on a free port.
    pub fn start() -> Result<Self> {
        Self::start_on([127, 0, 0, 1])
    }

    /// The same on another host of the loopback network.
    pub fn start_on(host: [u8; 4]) -> Result<Self> {
        let port = bind(SocketAddr::from((host, 0)))?;
        let address = port.local_addr()?;
        let shared = Arc::new(Shared {
            fault: watch::Sender::default(),
            requests: watch::Sender::default(),
            under_way: Mutex::default(),
            demanded: Mutex::default(),
            authorizations: Mutex::default(),
            published: Mutex::default(),
            genuine: stock(Content::Genuine)?,
            tampered: stock(Content::Tampered)?,
        });
        let server = Mutex::new(Some(serve(address, shared.clone())?));
        Ok(Self { address, shared, server, _port: port })
    }

    /// The address for helm's `--repo`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Switches the fault. Every request that arrives after this returns sees it.
    pub fn set(&self, fault: Fault) -> Result<()> {
        self.shared.fault.send_replace(fault);
        let mut server = locked(&self.server);
        if fault == Fault::Refused {
            *server = None;
        } else if server.is_none() {
            *server = Some(serve(self.address, self.shared.clone())?);
        }
        Ok(())
    }

    /// Answers only those who know this password, from now on.
    pub fn demand(&self, username: &str, password: &str) {
        let basic = format!("Basic {}", STANDARD.encode(format!("{username}:{password}")));
        *locked(&self.shared.demanded) = Some(basic);
    }

    /// The headers Authorization of all requests so far that had one.
    pub fn authorizations(&self) -> Vec<String> {
        locked(&self.shared.authorizations).clone()
    }

    /// Publishes the files of a directory: archives, in place of those of the same names, and their signatures.
    pub fn publish(&self, directory: &std::path::Path) -> Result<()> {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            locked(&self.shared.published).insert(name, std::fs::read(path)?);
        }
        Ok(())
    }

    /// For [`Fault::Redirect`] of another repository.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The number of requests so far for this path (`/index.yaml`, `/nextcloud-5.5.2.tgz`), answered or not.
    pub fn requests(&self, path: &str) -> usize {
        self.shared.requests.borrow().get(path).copied().unwrap_or_default()
    }

    /// Waits until a request for this path has arrived, answered or not.
    pub async fn requested(&self, path: &str) {
        let mut requests = self.shared.requests.subscribe();
        // The sender lives in `shared`, so the wait can only end with the request.
        let _ = requests.wait_for(|requests| requests.contains_key(path)).await;
    }

    /// The highest number of requests in progress at the same time.
    pub fn most_at_once(&self) -> usize {
        self.shared.under_way().1
    }

    /// The number of all requests so far, answered or not.
    pub fn all_requests(&self) -> usize {
        self.shared.requests.borrow().values().sum()
    }
}

impl Shared {
    fn under_way(&self) -> MutexGuard<'_, (usize, usize)> {
        locked(&self.under_way)
    }
}

/// A panic of a lock holder leaves the guarded data intact.
fn locked<T>(data: &Mutex<T>) -> MutexGuard<'_, T> {
    data.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request in progress, until this is dropped.
struct UnderWay(Arc<Shared>);

impl UnderWay {
    fn begin(shared: &Arc<Shared>) -> Self {
        let mut count = shared.under_way();
        count.0 += 1;
        count.1 = count.1.max(count.0);
        drop(count);
        UnderWay(shared.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way().0 -= 1;
    }
}

fn stock(content: Content) -> Result<Stock> {
    let archive =
        |version: &charts::Version| Ok((charts::file_name(version.chart), charts::archive(version.chart, content)?));
    VERSIONS.iter().map(archive).collect()
}

fn bind(address: SocketAddr) -> Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// Listens before it returns, so that no later request is refused.
fn serve(address: SocketAddr, shared: Arc<Shared>) -> Result<Background> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let router = Router::new().route("/{*path}", get(answer)).with_state(shared);
    Background::spawn("repository", || async {
        let listener = tokio::net::TcpListener::from_std(listener).expect("a runtime takes a nonblocking listener");
        axum::serve(listener, router).await.expect("axum's accept loop never ends");
    })
}

/// The response of [`Fault::Html`].
pub const PAGE: &str = "<!doctype html><title>Welcome</title><p>Please sign in.</p>";

async fn answer(State(shared): State<Arc<Shared>>, Path(path): Path<String>, headers: HeaderMap) -> Response {
    let _under_way = UnderWay::begin(&shared);
    let authorization = headers.get(AUTHORIZATION).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    locked(&shared.authorizations).extend(authorization.clone());
    if locked(&shared.demanded).as_ref().is_some_and(|demanded| authorization.as_ref() != Some(demanded)) {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    shared.requests.send_modify(|requests| *requests.entry(format!("/{path}")).or_default() += 1);
    let mut faults = shared.fault.subscribe();
    // The sender lives in `shared`, so the wait can only end with another fault.
    let fault = faults.wait_for(|fault| *fault != Fault::Slow).await.map_or(Fault::None, |fault| *fault);
    let is_index = path == "index.yaml";
    let (listed, held) = match fault {
        Fault::Unavailable => return StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Fault::Forbidden => return StatusCode::FORBIDDEN.into_response(),
        Fault::Html => return Html(PAGE).into_response(),
        Fault::HtmlArchives if !is_index => return Html(PAGE).into_response(),
        Fault::Endless if is_index => return endless(1 << 20, Duration::ZERO),
        Fault::Trickle if is_index => return endless(1, Duration::from_millis(100)),
        Fault::Redirect(to) if !is_index => return Redirect::temporary(&format!("http://{to}/{path}")).into_response(),
        Fault::Missing => (&shared.genuine, None),
        Fault::Tampered => (&shared.genuine, Some(&shared.tampered)),
        Fault::Republished => (&shared.tampered, Some(&shared.tampered)),
        Fault::None
        | Fault::Slow
        | Fault::Refused
        | Fault::HtmlArchives
        | Fault::Endless
        | Fault::Trickle
        | Fault::Redirect(_)
        | Fault::Elsewhere(_) => (&shared.genuine, Some(&shared.genuine)),
    };
    let published = locked(&shared.published).clone();
    if is_index {
        let mut listed = listed.clone();
        listed.extend(published);
        let at = if let Fault::Elsewhere(address) = fault { format!("http://{address}/") } else { String::new() };
        return index(&listed, &at).into_response();
    }
    if let Some(file) = published.get(&path) {
        return file.clone().into_response();
    }
    match held.and_then(|held| held.get(&path)) {
        Some(archive) => archive.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// So many spaces at a time, for as long as the client reads.
fn endless(spaces: usize, pause: Duration) -> Response {
    let spaces = Bytes::from(vec![b' '; spaces]);
    let stream = futures::stream::repeat(spaces).then(move |spaces| async move {
        sleep(pause).await;
        Ok::<_, Infallible>(spaces)
    });
    Body::from_stream(stream).into_response()
}

/// The index of archives at this address, which ends with a slash; empty: beside the index. JSON is YAML, and needs no second serialiser.
fn index(archives: &Stock, at: &str) -> String {
    let entry = |version: &charts::Version| {
        let file = charts::file_name(version.chart);
        json!({
            "apiVersion": "v2",
            "name": charts::NAME,
            "version": version.chart,
            "appVersion": version.app,
            "created": "1970-01-01T00:00:00Z",
            "digest": crate::digest::sha256(&archives[&file]),
            "urls": [format!("{at}{file}")],
        })
    };
    let entries: Vec<_> = VERSIONS.iter().map(entry).collect();
    json!({"apiVersion": "v1", "generated": "1970-01-01T00:00:00Z", "entries": {charts::NAME: entries}}).to_string()
}
