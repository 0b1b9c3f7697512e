//! S3-compatible storage on the loopback interface: versitygw on a directory with one file per object, behind a proxy
//! that injects faults.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use futures::StreamExt as _;
use tokio::sync::watch;

use crate::background::Background;
use crate::digest::sha256;
use crate::plane::free_port;
use crate::plane::watchdog::Watched;
use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::{TIMEOUT, blocking_until};

/// The only bucket.
pub const BUCKET: &str = "dumps";
pub const ACCESS_KEY: &str = "access-canary";
pub const SECRET_KEY: &str = "secret-canary/+x";

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The proxy answers with this status; the storage does not get the request.
    Answer(StatusCode),
    /// The connection is lost halfway through the request, or through the response if the request has no body.
    Lose,
    /// No response while the rule exists.
    Hang,
    /// One byte of the response is changed.
    Change,
}

/// Which requests meet a fault.
#[derive(Clone, Debug)]
pub struct Rule {
    method: Method,
    part: String,
    fault: Fault,
    left: usize,
}

impl Rule {
    /// Requests with this method whose `path?query range` contains the text.
    #[must_use]
    pub fn new(method: Method, part: impl Into<String>, fault: Fault) -> Rule {
        Rule { method, part: part.into(), fault, left: usize::MAX }
    }

    /// Limits the rule to this many requests.
    #[must_use]
    pub fn times(self, times: usize) -> Rule {
        Rule { left: times, ..self }
    }
}

/// Dropping it stops the storage.
pub struct Objects {
    versitygw: Watched,
    scheme: &'static str,
    port: u16,
    proxy: u16,
    shared: Arc<Shared>,
    _server: Background,
}

struct Shared {
    rules: Mutex<Vec<Rule>>,
    /// Notified when the rules change.
    changed: watch::Sender<()>,
    met: watch::Sender<usize>,
    http: reqwest::Client,
    port: u16,
    locks: bool,
}

impl Objects {
    /// Starts it with an empty bucket.
    pub fn start() -> Result<Objects> {
        Self::serve(None, false)
    }

    /// The same with Object Lock: nothing that is uploaded can be removed for a day. What is deleted stays as a version.
    pub fn start_with_lock() -> Result<Objects> {
        Self::serve(None, true)
    }

    /// The same with TLS; only [`Self::ca`] vouches for the certificate.
    pub fn start_with_tls() -> Result<Objects> {
        Self::serve(Some(rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()])?), false)
    }

    fn serve(tls: Option<rcgen::CertifiedKey<rcgen::KeyPair>>, locks: bool) -> Result<Objects> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let versitygw = Extra::Versitygw.ensure(&Progress::stderr())?;
        let port = free_port()?;
        let versitygw = Watched::start("versitygw", |home| {
            for directory in ["objects", "attributes", "versions", &format!("objects/{BUCKET}")] {
                fs::create_dir(home.join(directory))?;
            }
            if locks {
                // As versitygw stores what CreateBucket and PutObjectLockConfiguration ask for (backend/posix, backend/meta/sidecar.go).
                let attributes = home.join("attributes").join(BUCKET).join("meta");
                fs::create_dir_all(&attributes)?;
                let retention = serde_json::json!({"Mode": "COMPLIANCE", "Days": 1});
                let lock = serde_json::json!({"Enabled": true, "DefaultRetention": retention});
                fs::write(attributes.join("bucket-lock"), lock.to_string())?;
                fs::write(attributes.join("versioning"), [1])?;
            }
            let mut server = Command::new(&versitygw);
            if let Some(tls) = &tls {
                fs::write(home.join("ca"), tls.cert.pem())?;
                fs::write(home.join("key"), tls.signing_key.serialize_pem())?;
                server.arg("--cert").arg(home.join("ca")).arg("--key").arg(home.join("key"));
            }
            server
                .args(["--port", &format!("127.0.0.1:{port}"), "--keep-alive", "--quiet"])
                // Not every file system has extended attributes.
                .args(["posix", "--sidecar"])
                .arg(home.join("attributes"))
                .args(locks.then(|| [PathBuf::from("--versioning-dir"), home.join("versions")]).into_iter().flatten())
                .arg(home.join("objects"))
                .env_clear()
                .envs([("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)]);
            Ok(server)
        })?;

        let listener = TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let proxy = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            rules: Mutex::default(),
            changed: watch::Sender::default(),
            met: watch::Sender::default(),
            http: reqwest::Client::builder().no_proxy().build()?,
            port,
            locks,
        });
        let background = Background::spawn("objects", {
            let shared = shared.clone();
            || async move {
                let router = Router::new().fallback(handle).with_state(shared);
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.expect("a runtime takes a nonblocking listener");
                axum::serve(listener, router).await.expect("axum's accept loop never ends");
            }
        })?;
        let scheme = if tls.is_some() { "https" } else { "http" };
        let mut objects = Objects { versitygw, scheme, port, proxy, shared, _server: background };
        let ended = blocking_until("versitygw answers", || {
            let answers = std::net::TcpStream::connect(("127.0.0.1", port)).is_ok();
            let ended = objects.versitygw.server.try_wait().ok().flatten().is_some();
            (answers || ended).then_some(ended)
        });
        if ended {
            bail!(
                "versitygw does not start:\n{}",
                fs::read_to_string(objects.versitygw.home.join("log")).unwrap_or_default()
            );
        }
        Ok(objects)
    }

    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://127.0.0.1:{}", self.scheme, self.port)
    }

    /// The file with its certificate.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.versitygw.home.join("ca")
    }

    /// The URL of the proxy, which injects the faults.
    #[must_use]
    pub fn faulty_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.proxy)
    }

    /// The file of an object, or the directory of a key prefix.
    #[must_use]
    pub fn file(&self, key: &str) -> PathBuf {
        self.versitygw.home.join("objects").join(BUCKET).join(key)
    }

    /// The number of former versions that a bucket with Object Lock keeps.
    #[must_use]
    pub fn former_versions(&self) -> usize {
        files(&self.versitygw.home.join("versions")).len()
    }

    /// The keys of all objects under a prefix, without the prefix.
    #[must_use]
    pub fn keys(&self, prefix: &str) -> Vec<String> {
        files(&self.file(prefix))
    }

    /// Replaces all rules. The first rule that matches a request counts.
    pub fn set(&self, rules: impl IntoIterator<Item = Rule>) {
        *self.shared.rules() = rules.into_iter().collect();
        self.shared.changed.send_replace(());
    }

    /// The number of requests so far that met a fault.
    #[must_use]
    pub fn met(&self) -> usize {
        *self.shared.met.borrow()
    }

    /// Waits until more than this many requests have met a fault.
    pub fn met_more_than(&self, so_many: usize) {
        blocking_until("a request meets a fault", || self.met() > so_many);
    }
}

impl Shared {
    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault that the request meets, counting it.
    fn fault(&self, method: &Method, asked: &str) -> Option<Fault> {
        let mut rules = self.rules();
        let fits = |rule: &&mut Rule| rule.left > 0 && rule.method == *method && asked.contains(&rule.part);
        let rule = rules.iter_mut().find(fits)?;
        rule.left -= 1;
        let fault = rule.fault;
        drop(rules);
        self.met.send_modify(|met| *met += 1);
        Some(fault)
    }

    /// Returns when no rule holds back the request any longer.
    async fn hangs(&self, method: &Method, asked: &str) {
        let mut changed = self.changed.subscribe();
        let held = |rule: &Rule| rule.fault == Fault::Hang && rule.method == *method && asked.contains(&rule.part);
        while self.rules().iter().any(held) {
            // The sender lives in `self`.
            _ = changed.changed().await;
        }
    }
}

/// The files below a directory, without its path.
fn files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(directory) = open.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries {
            let path = entry.expect("an entry").path();
            match path.is_dir() {
                true => open.push(path),
                false => files.push(path.strip_prefix(root).expect("it is below the root").display().to_string()),
            }
        }
    }
    files.sort();
    files
}

/// Ends the connection's task, and with it the connection, without output on standard error.
fn lost() -> ! {
    std::panic::resume_unwind(Box::new("the connection is lost"))
}

async fn handle(State(shared): State<Arc<Shared>>, request: Request) -> Response {
    let range = request.headers().get(header::RANGE).and_then(|range| range.to_str().ok()).unwrap_or_default();
    let asked = format!("{} {range}", request.uri());
    let method = request.method().clone();
    let fault = shared.fault(&method, &asked);
    let has_body = [Method::PUT, Method::POST].contains(&method);
    let sums = |name: &str| name == "content-md5" || name.starts_with("x-amz-checksum-");
    if shared.locks && method == Method::PUT && !request.headers().keys().any(|name| sums(name.as_str())) {
        // As Amazon does, and versitygw does not.
        return (StatusCode::BAD_REQUEST, "a checksum is required with Object Lock").into_response();
    }
    match fault {
        Some(Fault::Answer(status)) => {
            // Otherwise the client would be cut off before it reads the response.
            let _ = axum::body::to_bytes(request.into_body(), usize::MAX).await;
            return (status, "").into_response();
        }
        Some(Fault::Hang) => shared.hangs(&method, &asked).await,
        Some(Fault::Lose) if has_body => {
            let length =
                request.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
            let (mut read, half) = (0, length.unwrap_or(0) / 2);
            let mut body = request.into_body().into_data_stream();
            while let Some(Ok(data)) = body.next().await {
                read += data.len();
                if read >= half {
                    break;
                }
            }
            lost()
        }
        _ => {}
    }
    match forward(&shared, request).await {
        Ok((mut parts, body)) => {
            let half = body.slice(..body.len() / 2);
            let body = match fault {
                Some(Fault::Lose) => {
                    let first = futures::stream::iter([Ok::<_, std::io::Error>(half)]);
                    Body::from_stream(first.chain(futures::stream::once(async { lost() })))
                }
                Some(Fault::Change) if !body.is_empty() => {
                    let mut changed = body.to_vec();
                    let middle = changed.len() / 2;
                    changed[middle] ^= 1;
                    Body::from(changed)
                }
                _ => Body::from(body),
            };
            parts.headers.remove(header::TRANSFER_ENCODING);
            Response::from_parts(parts, body)
        }
        Err(error) => (StatusCode::BAD_GATEWAY, format!("{error:#}")).into_response(),
    }
}

/// Forwards all headers, since they are signed.
async fn forward(shared: &Shared, request: Request) -> Result<(axum::http::response::Parts, Bytes)> {
    let (parts, body) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    let url = format!("http://127.0.0.1:{}{path}", shared.port);
    let body = axum::body::to_bytes(body, usize::MAX).await?;
    let answer =
        shared.http.request(parts.method, url).headers(parts.headers).body(body).timeout(TIMEOUT).send().await?;
    let mut answered = Response::builder().status(answer.status());
    *answered.headers_mut().context("a response")? = answer.headers().clone();
    let body = answer.bytes().await?;
    Ok((answered.body(())?.into_parts().0, body))
}

/// Writes a dump onto a volume, in the layout of `dump.sh`.
pub fn make_dump(volume: &Path, name: &str, (system, tables): (&str, u32), data: &[u8]) -> PathBuf {
    let path = volume.join(name);
    fs::create_dir(&path).unwrap();
    let manifest = format!("system {system}\nversion 17.10\ndatabase 16386 orders\ntables {tables}\n");
    let mut files: Vec<(&str, Vec<u8>)> = vec![
        ("16386.dump", data.to_vec()),
        ("MANIFEST", manifest.into()),
        ("globals.sql", b"CREATE ROLE shop;\n".to_vec()),
    ];
    let sizes: String = files.iter().map(|(name, data)| format!("{} {name}\n", data.len())).collect();
    files.push(("SIZES", sizes.into()));
    let sums: String = files.iter().map(|(name, data)| format!("{}  {name}\n", sha256(data))).collect();
    files.push(("SHA256SUMS", sums.into()));
    for (name, data) in files {
        fs::write(path.join(name), data).unwrap();
    }
    path
}
