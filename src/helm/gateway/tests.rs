use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::{Method, Uri},
    response::IntoResponse as _,
};
use futures::{StreamExt as _, stream};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::{mpsc, watch},
    time::timeout,
};

use super::{
    record::{Meta, Recorded, WrittenObject},
    rules::RunPhase,
    *,
};
use crate::{
    helm::storage::{self, Stored},
    leadership::since_boot,
    platform::{account::AccountName, client},
};

const TIMEOUT: Duration = Duration::from_secs(60);
const IN_TENANT: &str = "/api/v1/namespaces/tenant";

/// A scripted API server, with a gateway in front of it.
struct Bed {
    gateway: Gateway,
    lead: Leadership,
    /// Method, path and headers of each request that has reached the API server.
    reached: mpsc::UnboundedReceiver<(Method, Uri, HeaderMap)>,
    /// The body of each request that has reached it, if it has one.
    bodies: mpsc::UnboundedReceiver<Value>,
    /// Signals that a request to the API server was dropped.
    given_up: mpsc::UnboundedReceiver<()>,
    /// Lets the API server answer requests that wait.
    release: watch::Sender<bool>,
    dir: tempfile::TempDir,
    _server: AbortOnDropHandle<()>,
}

struct Dropped(mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

async fn api_server(uri: Uri, tagged: bool, dropped: Dropped, mut released: watch::Receiver<bool>) -> Response {
    let object = |uid: &str| {
        let metadata = json!({"name": "x", "uid": uid, "resourceVersion": "7", "generation": 3});
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata}).to_string()
    };
    let named = uri.query().unwrap_or_else(|| uri.path().rsplit('/').next().unwrap());
    match named {
        "hangs" => std::future::pending().await,
        "waits" => {
            released.wait_for(|released| *released).await.unwrap();
            object("waits").into_response()
        }
        "large" => {
            let megabyte = Bytes::from(vec![b'x'; 1 << 20]);
            Body::from_stream(stream::iter(0..100).map(move |_| Ok::<_, Infallible>(megabyte.clone()))).into_response()
        }
        "stops-half-way" => {
            let half = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{\"half\":"))]);
            let body = half.chain(stream::once(async move {
                let _dropped = dropped;
                std::future::pending().await
            }));
            Body::from_stream(body).into_response()
        }
        "api" => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "apis" => {
            let headers = [(header::ETAG, "\"7\""), (header::CACHE_CONTROL, "no-cache, private")];
            if tagged { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, "{}").into_response() }
        }
        "refused" => (StatusCode::CONFLICT, "{}").into_response(),
        "garbage" => "not an object".into_response(),
        "grown" => {
            let spec = json!({"resources": {"requests": {"storage": "20Gi"}}});
            json!({"metadata": {"name": "grown", "uid": "grown"}, "spec": spec}).to_string().into_response()
        }
        "scaled" | "alone" => {
            let scale = json!({
                "manager": "kube-controller-manager", "operation": "Update", "subresource": "scale",
                "fieldsV1": {"f:spec": {"f:replicas": {}}},
            });
            let metadata = json!({"name": named, "uid": named, "managedFields": [scale]});
            json!({"metadata": metadata, "spec": {"replicas": 4}}).to_string().into_response()
        }
        "horizontalpodautoscalers" => {
            let target = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "scaled"});
            let spec = json!({"scaleTargetRef": target, "maxReplicas": 9});
            json!({"items": [{"metadata": {"name": "x"}, "spec": spec}]}).to_string().into_response()
        }
        name => match name.strip_prefix("busy-for-") {
            Some(after) => (StatusCode::SERVICE_UNAVAILABLE, [(header::RETRY_AFTER, after.to_owned())]).into_response(),
            None => object(name).into_response(),
        },
    }
}

impl Bed {
    async fn new() -> Bed {
        let (sender, reached) = mpsc::unbounded_channel();
        let (body_sender, bodies) = mpsc::unbounded_channel();
        let (dropped, given_up) = mpsc::unbounded_channel();
        let (release, released) = watch::channel(false);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().fallback(move |request: Request| {
            let (parts, body) = request.into_parts();
            let tagged = parts.headers.contains_key(header::IF_NONE_MATCH);
            sender.send((parts.method, parts.uri.clone(), parts.headers)).unwrap();
            let (body_sender, answer) =
                (body_sender.clone(), api_server(parts.uri, tagged, Dropped(dropped.clone()), released.clone()));
            async move {
                let body = axum::body::to_bytes(body, 1 << 20).await.unwrap_or_default();
                if let Ok(body) = serde_json::from_slice(&body) {
                    body_sender.send(body).unwrap();
                }
                answer.await
            }
        });
        let server = tokio::spawn(async {
            _ = axum::serve(listener, router).await;
        });
        let config = kube::Config::new(format!("http://{address}/base").parse().unwrap());
        let lead = Leadership::until(since_boot() + TIMEOUT);
        let gateway = Gateway::open(client::forwarding(&config).unwrap(), lead.clone()).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        Bed { gateway, lead, reached, bodies, given_up, release, dir, _server: AbortOnDropHandle::new(server) }
    }

    fn admit(&self) -> GatewaySession {
        self.admit_in("tenant")
    }

    fn admit_in(&self, namespace: &str) -> GatewaySession {
        self.admit_with(namespace, None)
    }

    fn admit_with(&self, namespace: &str, review: Option<Review>) -> GatewaySession {
        let (release, namespace, account) =
            ("app".parse().unwrap(), namespace.parse().unwrap(), AccountName::default());
        let scope = RunScope::new(&release, &namespace, Some(&account), Some(3));
        let claim = |host: &str| match host {
            "taken.example.com" => Err("host taken.example.com belongs to ClientApp other/x".to_owned()),
            _ => Ok(()),
        };
        self.gateway.admit(self.dir.path(), scope, (Box::new(claim), review)).unwrap()
    }

    /// A connection on which the head of a request was sent, with this many bytes of body to follow.
    async fn begun(&self, authorization: &str, (method, path): (&str, &str), more: &str, length: usize) -> TcpStream {
        let mut connection = TcpStream::connect(self.gateway.address).await.unwrap();
        let head = format!(
            "{method} http://clientapp-operator{path} HTTP/1.1\r\nHost: clientapp-operator\r\nConnection: close\r\n\
             Proxy-Authorization: {authorization}\r\n{more}Content-Length: {length}\r\n\r\n"
        );
        connection.write_all(head.as_bytes()).await.unwrap();
        connection
    }

    /// A connection on which a request was sent.
    async fn sent(&self, authorization: &str, method: &str, path: &str, body: &str) -> TcpStream {
        const FORGED: &str = "Authorization: Bearer forged\r\nImpersonate-User: forged\r\n\
            Impersonate-Group: system:masters\r\nX-Remote-User: forged\r\nUser-Agent: Helm/4.3\r\n\
            Content-Type: application/json\r\n";
        let mut connection = self.begun(authorization, (method, path), FORGED, body.len()).await;
        connection.write_all(body.as_bytes()).await.unwrap();
        connection
    }

    async fn ask(&self, authorization: &str, method: &str, path: &str, body: &str) -> (u16, Vec<u8>) {
        let mut answer = Vec::new();
        let mut connection = self.sent(authorization, method, path, body).await;
        timeout(TIMEOUT, connection.read_to_end(&mut answer)).await.unwrap().unwrap();
        let status = std::str::from_utf8(&answer[9..12]).unwrap().parse().unwrap();
        (status, answer)
    }

    async fn get(&self, session: &GatewaySession, path: &str) -> u16 {
        self.ask(&session.authorization, "GET", path, "").await.0
    }

    async fn write(&self, session: &GatewaySession, name: &str) -> u16 {
        self.ask(&session.authorization, "PATCH", &format!("{IN_TENANT}/configmaps/{name}"), "{}").await.0
    }

    fn has_reached(&mut self) -> bool {
        self.reached.try_recv().is_ok()
    }
}

fn scope() -> RunScope {
    RunScope {
        release: "app".to_owned(),
        namespace: "tenant".to_owned(),
        user: Some("system:serviceaccount:tenant:deployer".to_owned()),
        revision: Some(3),
    }
}

#[test]
fn helm_creates_only_the_revision_that_is_expected() {
    let storage = |verb: &'static str, name: &str| {
        let (group, resource, part) = (String::new(), "secrets".to_owned(), String::new());
        ParsedRequest::Object(rules::ObjectRequest {
            verb,
            group,
            resource,
            subresource: part,
            namespace: "tenant".to_owned(),
            name: name.to_owned(),
        })
    };
    for (verb, name, revision, expected) in [
        ("create", "sh.helm.release.v1.app.v3", Some(3), None),
        ("create", "sh.helm.release.v1.app.v4", Some(3), Some("and 3 was expected")),
        ("create", "sh.helm.release.v1.app.v03", Some(3), Some("and 3 was expected")),
        ("create", "sh.helm.release.v1.app.v2", Some(3), Some("delete Secret sh.helm.release.v1.app.v2,")),
        ("create", "sh.helm.release.v1.app.v3", None, Some("this run makes no revision of release app")),
        ("update", "sh.helm.release.v1.app.v4", Some(3), None),
        ("create", "own", Some(3), None),
    ] {
        let refusal = rules::unexpected_revision(&storage(verb, name), &RunScope { revision, ..scope() });
        let fits = |expected: &str| refusal.as_ref().is_some_and(|refusal| refusal.contains(expected));
        assert!(expected.map_or(refusal.is_none(), fits), "{verb} {name}: {refusal:?}");
    }
}

#[test]
fn a_plan_only_reads() {
    let scope = RunScope { user: None, revision: None, ..scope() };
    for (method, uri, may) in [
        ("GET", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.app.v3", true),
        ("GET", "/apis/apps/v1/namespaces/tenant/deployments/x", true),
        ("POST", "/api/v1/namespaces/tenant/configmaps", false),
        ("PUT", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.app.v3", false),
        ("PATCH", "/apis/apps/v1/namespaces/tenant/deployments/x", false),
        ("DELETE", "/apis/apps/v1/namespaces/tenant/deployments/x", false),
    ] {
        let asked = ParsedRequest::parse(&method.parse().unwrap(), &uri.parse().unwrap()).unwrap();
        assert_eq!(rules::authorize(&asked, &scope, RunPhase::Running).is_ok(), may, "{method} {uri}");
    }
}

#[test]
fn what_a_run_may_ask_for() {
    let judged = |phase, method: &str, uri: &str| {
        let asked = ParsedRequest::parse(&method.parse().unwrap(), &uri.parse().unwrap())?;
        rules::authorize(&asked, &scope(), phase)
    };
    let storage = "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.app.v3";
    let deployment = "/apis/apps/v1/namespaces/tenant/deployments/x";
    for (method, uri, running, stopping) in [
        ("GET", "/version", true, true),
        ("GET", "/api", true, true),
        ("GET", "/apis/apps/v1", true, true),
        ("GET", "/openapi/v3/apis/apps/v1", true, true),
        ("POST", "/version", false, false),
        ("GET", deployment, true, true),
        ("GET", "/apis/apps/v1/namespaces/tenant/deployments?watch=true", true, true),
        ("PATCH", deployment, true, false),
        ("POST", "/apis/apps/v1/namespaces/tenant/deployments", true, false),
        ("DELETE", deployment, true, false),
        ("PUT", deployment, true, false),
        ("PUT", storage, true, true),
        // An object of a chart.
        ("PATCH", storage, false, false),
        ("DELETE", storage, true, false),
        // Other releases.
        ("GET", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.other.v3", true, true),
        ("PUT", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.other.v3", false, false),
        ("PUT", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.app.other.v3", false, false),
        ("DELETE", "/api/v1/namespaces/tenant/secrets/sh.helm.release.v1.app.v", false, false),
        // Subresources and collections.
        ("POST", "/api/v1/namespaces/tenant/pods/x/exec", false, false),
        ("GET", "/api/v1/namespaces/tenant/pods/x/exec?command=sh", false, false),
        ("POST", "/api/v1/namespaces/tenant/serviceaccounts/default/token", false, false),
        ("PATCH", "/apis/apps/v1/namespaces/tenant/deployments/x/status", false, false),
        ("DELETE", "/api/v1/namespaces/tenant/persistentvolumeclaims", false, false),
        // Other namespaces.
        ("GET", "/api/v1/namespaces/other/secrets/x", false, false),
        ("PATCH", "/apis/apps/v1/namespaces/other/deployments/x", false, false),
        ("GET", "/api/v1/secrets", false, false),
        ("GET", "/api/v1/namespaces/tenant", true, true),
        ("GET", "/apis/storage.k8s.io/v1/storageclasses/fast", true, true),
        ("DELETE", "/api/v1/namespaces/tenant", false, false),
        ("PUT", "/api/v1/namespaces/tenant/finalize", false, false),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", false, false),
        ("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", false, false),
        // Paths that the API server might interpret differently.
        ("GET", "/api/v1/namespaces/tenant/../other/secrets/x", false, false),
        ("GET", "/api/v1/namespaces/tenant/%2e%2e/other/secrets/x", false, false),
        ("GET", "/api/v1//namespaces/other/secrets/x", false, false),
        ("GET", "/api/v1/watch/namespaces/tenant/secrets", false, false),
        ("GET", "/api/v1/proxy/namespaces/tenant/pods/x", false, false),
        ("GET", "/metrics", false, false),
        ("GET", "/logs/x", false, false),
        ("CONNECT", deployment, false, false),
        ("OPTIONS", deployment, false, false),
    ] {
        for (phase, may) in [(RunPhase::Running, running), (RunPhase::Stopping, stopping)] {
            assert_eq!(judged(phase, method, uri).is_ok(), may, "{phase:?} {method} {uri}");
        }
    }
    let exec = judged(RunPhase::Running, "POST", "/api/v1/namespaces/tenant/pods/x/exec").unwrap_err();
    assert_eq!(
        exec,
        r#"pods "x" is forbidden: User "system:serviceaccount:tenant:deployer" cannot create resource "pods/exec" in API group "" in the namespace "tenant": a release consists of whole objects"#
    );
    let outside = judged(RunPhase::Running, "GET", "/apis/apps/v1/deployments?watch=1").unwrap_err();
    assert_eq!(
        outside,
        r#"deployments is forbidden: User "system:serviceaccount:tenant:deployer" cannot watch resource "deployments" in API group "apps" at the cluster scope: helm acts only in namespace tenant, for release app"#
    );
}

#[tokio::test]
async fn a_request_is_sent_on_without_what_helm_says_of_itself() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    assert_eq!(bed.get(&session, &format!("{IN_TENANT}/configmaps?limit=5")).await, 200);
    let (method, uri, headers) = bed.reached.recv().await.unwrap();
    assert_eq!((method, uri.to_string().as_str()), (Method::GET, "/base/api/v1/namespaces/tenant/configmaps?limit=5"));
    assert_eq!(headers[header::USER_AGENT], "Helm/4.3");
    let printed = format!("{headers:?}");
    assert_eq!(headers["impersonate-user"], "system:serviceaccount:tenant:clientapp-deployer");
    assert!(!printed.contains("forged") && !printed.contains("masters") && !printed.contains("proxy"), "{printed}");
}

#[tokio::test]
async fn only_a_run_that_goes_on_has_a_way() {
    let mut bed = Bed::new().await;
    let (session, other) = (bed.admit(), bed.admit());
    let path = format!("{IN_TENANT}/configmaps/x");
    for forged in ["", "Basic Zm9yZ2VkOmZvcmdlZA==", "Bearer x", &session.authorization[..20]] {
        assert_eq!(bed.ask(forged, "GET", &path, "").await.0, 407, "{forged}");
    }
    let kubeconfig: Value = serde_json::from_slice(&std::fs::read(session.kubeconfig()).unwrap()).unwrap();
    let proxy = kubeconfig["clusters"][0]["cluster"]["proxy-url"].as_str().unwrap();
    let user = proxy.strip_prefix("http://").and_then(|proxy| proxy.split_once('@')).unwrap().0;
    assert_eq!(format!("Basic {}", BASE64_STANDARD.encode(user)), session.authorization);
    assert!(!format!("{:?}", bed.gateway).contains(&session.authorization));
    assert!(!bed.has_reached());

    let (over, file) = (session.authorization.clone(), session.kubeconfig().to_owned());
    assert_eq!(bed.write(&session, "x").await, 200);
    drop(session);
    assert!(!file.exists());
    assert_eq!(bed.ask(&over, "PATCH", &path, "{}").await.0, 407, "of a run that is over");
    assert_eq!(bed.write(&other, "x").await, 200, "another run goes on");
    let elsewhere = bed.admit_in("elsewhere");
    assert_eq!(bed.write(&elsewhere, "x").await, 403, "with the password of a run in another namespace");
    bed.lead.end();
    assert_eq!(bed.write(&other, "x").await, 403, "without the lead");
    assert_eq!((bed.has_reached(), bed.has_reached(), bed.has_reached()), (true, true, false));
}

#[tokio::test]
async fn what_is_read_ends_with_the_run_with_the_lead_and_with_the_client() {
    let path = format!("{IN_TENANT}/configmaps/hangs");
    for end in ["run", "lead", "client"] {
        let mut bed = Bed::new().await;
        let session = bed.admit();
        let mut connection = bed.sent(&session.authorization, "GET", &path, "").await;
        timeout(TIMEOUT, bed.reached.recv()).await.unwrap().unwrap();
        match end {
            "run" => _ = session.end().await,
            "lead" => bed.lead.end(),
            _ => connection.shutdown().await.unwrap(),
        }
        if end != "client" {
            let mut answer = String::new();
            timeout(TIMEOUT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
            assert!(answer.starts_with("HTTP/1.1 403"), "{end}: {answer}");
        }
        drop(connection);
        timeout(TIMEOUT, bed.given_up.recv()).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_run_is_over_once_its_writes_are_answered_or_the_lead_is_over() {
    for (resource, by_answer) in [("configmaps", true), ("configmaps", false), ("secrets", true), ("secrets", false)] {
        let name = if by_answer { "waits" } else { "hangs" };
        let (method, path) = match resource {
            // helm was killed in recording its result, which no record of ours has.
            "secrets" => ("PUT", format!("{IN_TENANT}/secrets/sh.helm.release.v1.app.v3?{name}")),
            _ => ("PATCH", format!("{IN_TENANT}/configmaps/{name}")),
        };
        let mut bed = Bed::new().await;
        let session = bed.admit();
        let connection = bed.sent(&session.authorization, method, &path, "{}").await;
        timeout(TIMEOUT, bed.reached.recv()).await.unwrap().unwrap();
        // helm is killed.
        drop(connection);
        let mut end = std::pin::pin!(session.end());
        let early = futures::poll!(&mut end);
        assert!(early.is_pending(), "{path}: the run is over although the API server may still carry out its write");
        if by_answer {
            bed.release.send_replace(true);
        } else {
            bed.lead.end();
        }
        let recorded = timeout(TIMEOUT, end).await.unwrap();
        assert_eq!(recorded.uncertain, resource != "secrets", "{path}: {recorded:?}");
    }
}

#[tokio::test]
async fn a_run_that_is_asked_to_stop_may_say_how_far_it_came() {
    let bed = Bed::new().await;
    let session = bed.admit();
    session.stopping().cancel();
    let secret = |name: &str| format!("{IN_TENANT}/secrets/{name}");
    assert_eq!(bed.write(&session, "x").await, 403);
    assert_eq!(bed.get(&session, &secret("sh.helm.release.v1.app.v1")).await, 200);
    let put = async |name: &str| bed.ask(&session.authorization, "PUT", &secret(name), "{}").await.0;
    assert_eq!(put("sh.helm.release.v1.app.v1").await, 200);
    assert_eq!(put("sh.helm.release.v1.other.v1").await, 403);
}

#[tokio::test]
async fn what_is_the_same_for_every_run_is_asked_for_once() {
    let mut bed = Bed::new().await;
    let (session, other) = (bed.admit(), bed.admit_in("elsewhere"));
    assert_eq!((bed.get(&session, "/apis").await, bed.get(&other, "/apis").await), (200, 200));
    assert_eq!((bed.has_reached(), bed.has_reached()), (true, false));
    // helm has a copy on disk, and the API server says once that it is up to date.
    let mut answer = String::new();
    for run in [&session, &other] {
        let mut connection = bed.begun(&run.authorization, ("GET", "/apis"), "If-None-Match: \"7\"\r\n", 0).await;
        answer.clear();
        timeout(TIMEOUT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 304") && answer.contains("etag: \"7\""), "{answer}");
        assert!(
            answer.contains("cache-control: no-cache"),
            "helm would not ask again once the clock is set back: {answer}"
        );
        assert!(!answer.contains("content-type"), "helm would take it for its copy's: {answer}");
    }
    assert_eq!((bed.has_reached(), bed.has_reached()), (true, false));
    // Except for a failure, or in another format.
    assert_eq!((bed.get(&session, "/api").await, bed.get(&session, "/api").await), (503, 503));
    let mut connection = bed.begun(&session.authorization, ("GET", "/apis"), "Accept: text/plain\r\n", 0).await;
    timeout(TIMEOUT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert_eq!([(); 4].map(|()| bed.has_reached()), [true, true, true, false]);
    bed.lead.end();
    assert_eq!(bed.get(&session, "/apis").await, 403);
}

#[tokio::test]
async fn the_storage_of_another_release_is_not_created_either() {
    let bed = Bed::new().await;
    let session = bed.admit();
    let path = format!("{IN_TENANT}/secrets");
    let create = async |body: &str| bed.ask(&session.authorization, "POST", &path, body).await.0;
    assert_eq!(create(r#"{"metadata": {"name": "sh.helm.release.v1.app.v3"}}"#).await, 200);
    assert_eq!(create(r#"{"metadata": {"name": "sh.helm.release.v1.app.v4"}}"#).await, 409);
    assert_eq!(create(r#"{"metadata": {"name": "sh.helm.release.v1.other.v1"}}"#).await, 403);
    assert_eq!(create("metadata: {name: sh.helm.release.v1.other.v1}").await, 400);
}

#[tokio::test]
async fn a_large_answer_streams_and_a_large_request_is_refused() {
    let bed = Bed::new().await;
    let session = bed.admit();
    let (status, answer) = bed.ask(&session.authorization, "GET", &format!("{IN_TENANT}/configmaps/large"), "").await;
    assert_eq!(status, 200);
    assert!(answer.len() > 100 << 20);
    let body = "x".repeat((3 << 20) + 1);
    let path = format!("{IN_TENANT}/configmaps/x");
    let mut connection = bed.begun(&session.authorization, ("PATCH", &path), "", body.len()).await;
    // It may be refused before it has arrived completely.
    let _ = connection.write_all(body.as_bytes()).await;
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, connection.read_to_end(&mut answer)).await.unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 413"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn an_answer_that_stops_half_way_ends_with_the_run() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let mut connection =
        bed.sent(&session.authorization, "PATCH", &format!("{IN_TENANT}/configmaps/stops-half-way"), "{}").await;
    let mut answer = vec![0; 12];
    timeout(TIMEOUT, connection.read_exact(&mut answer)).await.unwrap().unwrap();
    assert_eq!(answer, b"HTTP/1.1 200");
    assert!(session.end().await.uncertain);
    timeout(TIMEOUT, bed.given_up.recv()).await.unwrap().unwrap();
    let _ = timeout(TIMEOUT, connection.read_to_end(&mut answer)).await.unwrap();
}

/// helm does as it is told, out of sight: it must not be for long.
#[tokio::test]
async fn an_api_server_that_is_busy_makes_helm_wait_for_seconds_at_most() {
    let bed = Bed::new().await;
    let session = bed.admit();
    for (asked, capped) in [("1", Some("1")), ("600", Some("5")), ("soon", None)] {
        let path = format!("{IN_TENANT}/configmaps/busy-for-{asked}");
        let (status, answer) = bed.ask(&session.authorization, "GET", &path, "").await;
        let answer = String::from_utf8(answer).unwrap();
        let after = answer.lines().find_map(|line| line.strip_prefix("retry-after: "));
        assert_eq!((status, after), (503, capped), "{answer}");
    }
}

#[tokio::test]
async fn what_was_written_is_known() {
    let bed = Bed::new().await;
    let session = bed.admit();
    for (name, status) in [("u1", 200), ("u2", 200), ("refused", 409)] {
        assert_eq!(bed.write(&session, name).await, status);
    }
    assert_eq!(bed.get(&session, &format!("{IN_TENANT}/configmaps/read")).await, 200);
    let deleted = bed.ask(&session.authorization, "DELETE", &format!("{IN_TENANT}/configmaps/u3"), "").await.0;
    assert_eq!(deleted, 200);
    let recorded = session.run.record.lock().recorded();
    assert!(!recorded.uncertain);
    let written =
        recorded.written.iter().map(|WrittenObject { metadata, .. }| (&*metadata.uid, &*metadata.resource_version));
    assert_eq!(written.collect::<Vec<_>>(), [("u1", "7"), ("u2", "7")]);
    assert_eq!(bed.write(&session, "garbage").await, 200);
    assert!(session.end().await.uncertain);
}

#[tokio::test]
async fn what_is_deleted_is_looked_for_first() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let delete = async |name: &str| {
        bed.ask(&session.authorization, "DELETE", &format!("{IN_TENANT}/configmaps/{name}"), "").await.0
    };
    for (name, status) in [("u1", 200), ("refused", 409), ("garbage", 503)] {
        assert_eq!(delete(name).await, status, "{name}");
    }
    for (expected, name) in [("GET", "u1"), ("DELETE", "u1"), ("GET", "refused"), ("GET", "garbage")] {
        let (method, uri, headers) = bed.reached.recv().await.unwrap();
        assert!(method == expected && uri.path().ends_with(name), "{method} {uri}");
        assert!(headers.contains_key(client::IMPERSONATE), "{headers:?}");
    }
    assert!(!bed.has_reached());
}

#[test]
fn a_workload_is_as_it_was_written_last() {
    let written = [("Deployment", "1"), ("ConfigMap", "0"), ("StatefulSet", "5"), ("Deployment", "2")];
    let written = written.map(|(kind, version)| WrittenObject {
        kind: kind.to_owned(),
        metadata: Meta { name: "a".to_owned(), resource_version: version.to_owned(), ..Meta::default() },
        ..WrittenObject::default()
    });
    let workloads = Recorded { written: written.into(), ..Recorded::default() }.workloads();
    let versions: Vec<_> = workloads.iter().map(|object| (&*object.kind, &*object.metadata.resource_version)).collect();
    assert_eq!(versions, [("Deployment", "2"), ("StatefulSet", "5")]);
}

#[tokio::test]
async fn http_2_is_not_spoken() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let mut connection = TcpStream::connect(bed.gateway.address).await.unwrap();
    connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(TIMEOUT, connection.read_to_end(&mut answer)).await.unwrap();
    assert!(!bed.has_reached());
    assert_eq!(bed.get(&session, "/version").await, 200, "and it goes on for others");
}

#[tokio::test]
async fn neither_an_ingress_nor_a_route_takes_a_host_of_another_app() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/tenant/ingresses";
    let named = format!("{ingresses}/x");
    let taken = r#"{"metadata": {"name": "x"}, "spec": {"rules": [{"host": "Taken.example.com"}]}}"#;
    let hook = r#"{"metadata": {"name": "x", "annotations": {"helm.sh/hook": "pre-install"}}}"#;
    let kept = r#"{"metadata": {"name": "x", "annotations": {"helm.sh/resource-policy": "keep"}}}"#;
    let routes = "/apis/gateway.networking.k8s.io/v1/namespaces/tenant/httproutes";
    let route = format!("{routes}/x");
    let taken_route =
        r#"{"kind": "HTTPRoute", "metadata": {"name": "x"}, "spec": {"hostnames": ["Taken.example.com"]}}"#;
    let all_hosts = r#"{"kind": "HTTPRoute", "metadata": {"name": "x"}, "spec": {"rules": []}}"#;
    for (method, path, body) in [
        ("POST", ingresses, hook),
        ("PATCH", &named, kept),
        ("POST", ingresses, taken),
        ("PATCH", &named, taken),
        ("PUT", &named, taken),
        ("PATCH", &named, r#"{"spec": {"tls": [{"hosts": ["taken.example.com"]}]}}"#),
        ("PATCH", &named, r#"[{"op": "add", "path": "/spec/rules/-", "value": {"host": "taken.example.com"}}]"#),
        ("PATCH", &named, "spec: {rules: [{host: taken.example.com}]}"),
        ("PUT", &named, r#"[{"op": "replace", "path": "/metadata/managedFields", "value": []}]"#),
        ("POST", routes, taken_route),
        ("PATCH", &route, taken_route),
        ("PUT", &route, taken_route),
        ("POST", routes, all_hosts),
        ("PATCH", &route, all_hosts),
        ("PATCH", &route, r#"{"spec": {"hostnames": null}}"#),
        ("PATCH", &route, r#"[{"op": "replace", "path": "/spec/hostnames/0", "value": "taken.example.com"}]"#),
    ] {
        let (status, answer) = bed.ask(&session.authorization, method, path, body).await;
        assert_eq!(status, 403, "{method} {body}");
        let resource = if path.starts_with(routes) { "httproutes" } else { "ingresses" };
        let expected = format!("{resource} \\\"x\\\" is forbidden");
        assert!(String::from_utf8_lossy(&answer).contains(&expected), "{method} {body}");
    }
    assert!(!bed.has_reached());
    let free = r#"{"metadata": {"name": "x"}, "spec": {"rules": [{"host": "free.example.com"}]}}"#;
    assert_eq!(bed.ask(&session.authorization, "PATCH", &named, free).await.0, 200);
    let managers = r#"[{"op": "replace", "path": "/metadata/managedFields", "value": []}]"#;
    assert_eq!(bed.ask(&session.authorization, "PATCH", &named, managers).await.0, 200);
    assert_eq!(bed.ask(&session.authorization, "DELETE", &named, "").await.0, 200);
}

#[tokio::test]
async fn a_request_whose_body_comes_after_the_run_was_asked_to_stop_is_not_sent_on() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let path = format!("{IN_TENANT}/configmaps/x");
    let mut connection = bed.begun(&session.authorization, ("PATCH", &path), "Expect: 100-continue\r\n", 2).await;
    // Reading its head asks it for the body.
    let mut asked = vec![0; 25];
    timeout(TIMEOUT, connection.read_exact(&mut asked)).await.unwrap().unwrap();
    assert!(asked.starts_with(b"HTTP/1.1 100"));
    session.stopping().cancel();
    connection.write_all(b"{}").await.unwrap();
    let mut answer = String::new();
    timeout(TIMEOUT, connection.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(!bed.has_reached());
}

#[tokio::test]
async fn a_write_leaves_alone_what_is_right_in_the_cluster() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let (claim, workload) = (
        |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}}),
        |replicas: Value| json!({"spec": {"replicas": replicas}}),
    );
    for (path, asked, expected) in [
        ("/api/v1/namespaces/tenant/persistentvolumeclaims/grown", claim("8Gi"), claim("20Gi")),
        ("/api/v1/namespaces/tenant/persistentvolumeclaims/grown", claim("30Gi"), claim("30Gi")),
        ("/api/v1/namespaces/tenant/persistentvolumeclaims/new", claim("8Gi"), claim("8Gi")),
        ("/api/v1/namespaces/tenant/configmaps/grown", claim("8Gi"), claim("8Gi")),
        ("/apis/apps/v1/namespaces/tenant/deployments/scaled", workload(json!(1)), workload(json!(4))),
        ("/apis/apps/v1/namespaces/tenant/deployments/scaled", workload(json!(0)), workload(json!(0))),
        ("/apis/apps/v1/namespaces/tenant/deployments/scaled", json!({"spec": {}}), json!({"spec": {}})),
        // No autoscaler targets them.
        ("/apis/apps/v1/namespaces/tenant/deployments/alone", workload(json!(1)), workload(json!(1))),
        ("/apis/apps/v1/namespaces/tenant/statefulsets/scaled", workload(json!(1)), workload(json!(1))),
        ("/apis/apps/v1/namespaces/tenant/deployments/x", workload(json!(1)), workload(json!(1))),
    ] {
        let (status, answer) = bed.ask(&session.authorization, "PATCH", path, &asked.to_string()).await;
        assert_eq!(status, 200, "{path}: {}", String::from_utf8_lossy(&answer));
        assert_eq!(bed.bodies.recv().await.unwrap(), expected, "{path}");
    }
    let kept = session.end().await.kept;
    let sizes: Vec<_> = kept.iter().map(|kept| [&kept.claim, &kept.requested, &kept.has]).collect();
    assert_eq!(sizes, [["grown", "8Gi", "20Gi"]]);
}

#[tokio::test]
async fn a_revision_is_reviewed_before_it_is_stored() {
    let mut bed = Bed::new().await;
    let review = |stored: &Stored| match stored.manifest.as_str() {
        "good" => Ok(None),
        "bad" => Ok(Some("it would drop a volume".to_owned())),
        _ => Err("its manifest has no end".to_owned()),
    };
    let session = bed.admit_with("tenant", Some(Box::new(review)));
    let path = format!("{IN_TENANT}/secrets");
    let secret = |payload: Vec<u8>| {
        let data = json!({"release": k8s_openapi::ByteString(payload)});
        json!({"metadata": {"name": "sh.helm.release.v1.app.v3"}, "data": data}).to_string()
    };
    let stored = |manifest: &str| secret(storage::pack(&json!({"manifest": manifest})).unwrap());
    const UNREAD: &str = "what helm is about to store cannot be read: ";
    for (body, code, refusal) in [
        (secret(b"garbage".to_vec()), 400, UNREAD),
        (stored("odd"), 400, "what helm is about to store cannot be read: its manifest has no end"),
        (stored("bad"), 403, "it would drop a volume"),
    ] {
        let (status, answer) = bed.ask(&session.authorization, "POST", &path, &body).await;
        assert_eq!(status, code);
        assert!(String::from_utf8_lossy(&answer).contains(refusal));
        assert!(!bed.has_reached());
        // Only a verdict holds until the spec changes.
        let verdict = (code == 403).then(|| refusal.to_owned());
        assert_eq!(session.run.record.lock().recorded().refused, verdict);
    }
    assert_eq!(bed.ask(&session.authorization, "POST", &path, &stored("good")).await.0, 200);
    assert!(bed.has_reached());
}

#[tokio::test]
async fn a_watch_ends_with_the_lead() {
    let mut bed = Bed::new().await;
    let session = bed.admit();
    let path = format!("{IN_TENANT}/configmaps/stops-half-way?watch=true");
    let mut connection = bed.sent(&session.authorization, "GET", &path, "").await;
    let mut answer = vec![0; 12];
    timeout(TIMEOUT, connection.read_exact(&mut answer)).await.unwrap().unwrap();
    bed.lead.end();
    let _ = timeout(TIMEOUT, connection.read_to_end(&mut answer)).await.unwrap();
    timeout(TIMEOUT, bed.given_up.recv()).await.unwrap().unwrap();
}

#[tokio::test]
async fn the_password_of_a_run_is_in_no_debug_output() {
    let bed = Bed::new().await;
    let session = bed.admit();
    assert!(!format!("{session:?}").contains(&session.authorization));
}
