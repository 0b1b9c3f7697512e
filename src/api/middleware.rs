//! Checks and headers that apply to every request and response.

use std::{
    any::Any,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::to_bytes,
    extract::{ConnectInfo, Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
};
use tower_http::{
    catch_panic::CatchPanicLayer,
    propagate_header::PropagateHeaderLayer,
    set_header::{SetRequestHeaderLayer, SetResponseHeaderLayer},
    trace::TraceLayer,
};
use tracing::Span;

use super::{
    auth::Auth,
    limits::{BODY_TIME, Limit, for_users, with_whole_body},
    origin,
    problem::Problem,
};
use crate::platform::panic::message;

/// From the complete request to the head of the response. Longer than any route takes: a deletion waits up to five minutes. An event
/// stream may continue afterwards.
const REQUEST_TIME: Duration = Duration::from_secs(330);
/// Retry-After in seconds for a request that took too long.
const RETRY: u64 = 30;
/// Maximum length of a plain-text error that is quoted.
const LONGEST_REFUSAL: usize = 4 << 10;
/// In every response, and in the log.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Only browsers evaluate these. The page sets its own policy, and its files their own caching.
const HEADERS: [(HeaderName, &str); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    (header::CACHE_CONTROL, "no-store"),
];

struct Checks {
    auth: Auth,
    users: Limit<String>,
}

/// The routes behind all checks. They get the user as `Extension<User>`.
pub(crate) fn behind(routes: Router, auth: Auth) -> Router {
    let checks = Arc::new(Checks { auth, users: for_users() });
    let span = TraceLayer::new_for_http().make_span_with(|request: &Request| {
        let id = request.headers()[REQUEST_ID].to_str().unwrap_or_default();
        // With the target of the audit log, so that audit lines have the id under every log filter.
        let span = tracing::info_span!(target: "audit", "request", request_id = id, peer = %peer(request));
        tracing::debug!(parent: &span, method = %request.method(), path = request.uri().path(), "request");
        span
    });
    let routes = routes
        .layer(middleware::from_fn_with_state(checks, admit))
        .layer(middleware::map_response(as_problem))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(span.on_request(()).on_response(answered).on_failure(()))
        .layer(PropagateHeaderLayer::new(REQUEST_ID))
        // Overrides the client's value, so that clients cannot choose what the log contains.
        .layer(SetRequestHeaderLayer::overriding(REQUEST_ID, |_: &Request| {
            HeaderValue::try_from(format!("{:016x}", rand::random::<u64>())).ok()
        }));
    HEADERS.into_iter().fold(routes, |routes, (name, value)| {
        routes.layer(SetResponseHeaderLayer::if_not_present(name, HeaderValue::from_static(value)))
    })
}

fn answered(response: &Response, elapsed: Duration, _: &Span) {
    tracing::debug!(status = response.status().as_u16(), ?elapsed, "response");
}

async fn admit(State(checks): State<Arc<Checks>>, request: Request, next: Next) -> Result<Response, Problem> {
    let admitted = checks.admit(request, next).await;
    admitted.inspect_err(|problem| tracing::debug!(reason = problem.reason, "{}", problem.detail))
}

impl Checks {
    async fn admit(&self, request: Request, next: Next) -> Result<Response, Problem> {
        if matches!(self.auth, Auth::None) {
            origin::check(request.method(), request.uri(), request.headers())?;
        }
        // Read before any refusal, because a client that is still sending may miss an early response.
        let mut request = with_whole_body(request, BODY_TIME).await?;
        if !is_public(request.method(), request.uri().path()) {
            let user = self.auth.authenticate(request.headers(), peer(&request)).await?;
            self.users.check(&user.name)?;
            request.extensions_mut().insert(user);
        }
        // From here on nothing can log it.
        request.headers_mut().remove(header::AUTHORIZATION);
        tokio::time::timeout(REQUEST_TIME, next.run(request)).await.map_err(|_| {
            let detail = format!("No answer within {REQUEST_TIME:?}: the cluster is slow. Try again.");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Timeout", detail).retry_after(RETRY)
        })
    }
}

/// The page, which asks for a token, and the description of the API.
fn is_public(method: &Method, path: &str) -> bool {
    matches!(*method, Method::GET | Method::HEAD)
        && (matches!(path, "/" | "/openapi.json") || path.starts_with("/page/"))
}

fn peer(request: &Request) -> IpAddr {
    let connection = request.extensions().get::<ConnectInfo<SocketAddr>>();
    connection.map_or(Ipv4Addr::UNSPECIFIED.into(), |ConnectInfo(address)| address.ip().to_canonical())
}

/// Turns errors that are not problem documents yet, such as axum's own, into such.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_some_and(|kind| kind == "application/problem+json")
        || !(status.is_client_error() || status.is_server_error())
    {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = to_bytes(body, LONGEST_REFUSAL).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let detail = if text.is_empty() { status.canonical_reason().unwrap_or("Refused").into() } else { text };
    let allow = parts.headers.remove(header::ALLOW).map(|allow| [(header::ALLOW, allow)]);
    (allow, Problem::new(status, "Refused", detail)).into_response()
}

/// A panic fails one request, and the operator keeps running.
fn panicked(panic: Box<dyn Any + Send>) -> Response {
    tracing::error!(panic = message(panic.as_ref()), "a request of the API panicked");
    let detail = "The operator failed to handle this request; its log has details under this response's X-Request-Id.";
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", detail).into_response()
}

#[cfg(test)]
mod tests {
    use axum::{Extension, body::Body, http::HeaderMap, routing::get};
    use serde_json::Value;
    use tower::ServiceExt as _;

    use super::*;
    use crate::api::auth::User;

    async fn ask(request: Request) -> (StatusCode, HeaderMap, Value) {
        let headers = |headers: HeaderMap, Extension(user): Extension<User>| async move {
            format!("\"{} {}\"", user.name, headers.contains_key(header::AUTHORIZATION))
        };
        let page = || async { ([(header::CONTENT_SECURITY_POLICY, "default-src 'self'")], "\"page\"") };
        let panic = || async {
            if true {
                panic!("what only the log shall say")
            }
        };
        let text = || async { (StatusCode::IM_A_TEAPOT, "short and stout") };
        let routes = Router::new()
            .route("/", get(page))
            .route("/headers", get(headers).post(headers))
            .route("/panic", get(panic))
            .route("/text", get(text));
        let (parts, body) = behind(routes, Auth::None).oneshot(request).await.unwrap().into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        (parts.status, parts.headers, serde_json::from_slice(&body).unwrap())
    }

    fn request(method: Method, path: &str) -> Request {
        let request = axum::http::Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        let request = request.header(REQUEST_ID, "chosen by the client");
        request.header(header::AUTHORIZATION, "Bearer secret").body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn routes_know_the_user_and_not_the_token() {
        let (status, headers, body) = ask(request(Method::GET, "/headers")).await;
        assert_eq!((status, body), (StatusCode::OK, Value::from("anonymous false")));
        assert_eq!(headers["x-request-id"].len(), 16);
        for (name, value) in HEADERS {
            assert_eq!(headers[name], value);
        }
        let (_, headers, body) = ask(request(Method::GET, "/")).await;
        assert_eq!(body, Value::from("page"));
        assert_eq!(headers[header::CONTENT_SECURITY_POLICY], "default-src 'self'");
    }

    #[tokio::test]
    async fn every_refusal_is_a_problem_document() {
        let mut large = request(Method::POST, "/headers");
        *large.body_mut() = Body::from(vec![b'x'; 1 << 20]);
        let mut elsewhere = request(Method::GET, "/headers");
        elsewhere.headers_mut().insert(header::HOST, HeaderValue::from_static("example.com"));
        let cases = [
            (request(Method::GET, "/panic"), 500, "InternalError"),
            (request(Method::GET, "/text"), 418, "Refused"),
            (request(Method::GET, "/nowhere"), 404, "Refused"),
            (request(Method::DELETE, "/headers"), 405, "Refused"),
            (large, 413, "PayloadTooLarge"),
            (elsewhere, 421, "WrongHost"),
        ];
        for (request, status, reason) in cases {
            let uri = request.uri().clone();
            let (found, headers, problem) = ask(request).await;
            assert_eq!(found, status, "{uri}");
            assert_eq!(headers[header::CONTENT_TYPE], "application/problem+json", "{uri}");
            assert_eq!((&problem["status"], &problem["reason"]), (&status.into(), &reason.into()), "{uri}");
            assert!(!problem["detail"].as_str().unwrap().contains("only the log"), "{problem}");
            assert_eq!(headers[header::X_CONTENT_TYPE_OPTIONS], "nosniff", "{uri}");
            assert_eq!(headers.contains_key(header::ALLOW), status == 405, "{uri}");
        }
    }

    #[tokio::test]
    async fn a_user_who_does_not_stop_is_told_to_wait() {
        let routes = behind(Router::new().route("/headers", get(|| async {})), Auth::None);
        let mut served = 0;
        let refused = loop {
            let answer = routes.clone().oneshot(request(Method::GET, "/headers")).await.unwrap();
            if answer.status() != StatusCode::OK {
                break answer;
            }
            served += 1;
        };
        assert!(served >= 200, "{served}");
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(refused.headers().contains_key(header::RETRY_AFTER));
    }

    #[test]
    fn what_is_public() {
        let public = ["/", "/openapi.json", "/page/style.css"];
        assert!(public.iter().all(|path| is_public(&Method::GET, path) && is_public(&Method::HEAD, path)));
        assert!(!public.iter().any(|path| is_public(&Method::POST, path)));
        for path in ["", "/instances", "/instances/page/x", "/page", "//", "/openapi.json/x"] {
            assert!(!is_public(&Method::GET, path), "{path}");
        }
    }
}
