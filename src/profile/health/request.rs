//! Asks an app for its health: one request to the address of its Service. An **effect**.

use std::{error::Error, io, net::SocketAddr, time::Duration};

use axum::{
    body::{Body, Bytes, to_bytes},
    http::{Request, Uri, header},
};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client, api::ListParams};
use tokio::time::timeout;

use super::answer::{Outcome, address, content_is_right, status_is_right};
use crate::{
    crd::HealthCheck,
    platform::{error::api_sentence, key::Key},
};

/// An answer must be complete by then.
const WITHIN: Duration = Duration::from_secs(5);
/// Limits the bytes of an answer that are read, and those of its head.
const LIMIT: usize = 64 << 10;

/// Asks an app with this hostname through this Service of its namespace. `instead`: the address that is asked on a plane whose Services
/// have addresses that lead to no pod.
pub(in crate::profile) async fn ask(
    client: &Client,
    (app, hostname, service): (&Key, &str, &str),
    check: &HealthCheck,
    instead: Option<SocketAddr>,
) -> Outcome {
    let services = Api::<Service>::namespaced(client.clone(), &app.namespace);
    let found = services.list(&ListParams::default().fields(&format!("metadata.name={service}"))).await;
    let found = match found {
        Ok(found) => found.items.into_iter().next().ok_or_else(|| format!("there is no Service {service}")),
        Err(error) => return Outcome::Unknown(format!("get Service {service}: {}", api_sentence(&error))),
    };
    let to = match found.and_then(|found| address(&found, check.port.as_ref())) {
        Ok(to) => instead.unwrap_or(to),
        Err(problem) => return Outcome::Wrong(problem),
    };
    answered(to, hostname, check, WITHIN).await.map_or_else(Outcome::Wrong, |()| Outcome::Right)
}

/// Asks at this address.
///
/// # Errors
/// The answer is not as it should be, or there is none.
async fn answered(to: SocketAddr, hostname: &str, check: &HealthCheck, within: Duration) -> Result<(), String> {
    let path = &check.path;
    // By its parts: no path can name another host.
    let uri = Uri::builder().scheme("http").authority(to.to_string()).path_and_query(path.as_str()).build();
    let request = uri.and_then(|uri| {
        Request::get(uri)
            .header(header::HOST, hostname)
            .header(header::USER_AGENT, concat!("clientapp-operator/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "application/json, */*")
            .body(Body::empty())
    });
    let request = request.map_err(|error| format!("{path} cannot be requested: {error}"))?;
    let late = |_| format!("{path} does not answer within {} s (NetworkPolicies?)", within.as_secs());
    match timeout(within, content(request, check)).await.map_err(late)?? {
        Some(content) => content_is_right(check, &content),
        None => Ok(()),
    }
}

/// Returns what an answer with the right status says, if that is asked for.
async fn content(request: Request<Body>, check: &HealthCheck) -> Result<Option<Bytes>, String> {
    let path = &check.path;
    // Each request has a connection of its own, which no environment sends through a proxy.
    let mut client = HttpClient::builder(TokioExecutor::new());
    client.pool_max_idle_per_host(0).retry_canceled_requests(false).set_host(false).http1_max_buf_size(LIMIT);
    let answer = client.build::<_, Body>(HttpConnector::new()).request(request).await;
    let answer = answer.map_err(|error| format!("{path} does not answer: {}", cause(&error)))?;
    status_is_right(check, answer.status().as_u16())?;
    if check.json.is_empty() {
        return Ok(None);
    }
    let content = to_bytes(Body::new(answer.into_body()), LIMIT).await;
    content.map(Some).map_err(|_| format!("{path} answers more than {} KiB, or incompletely", LIMIT >> 10))
}

/// Returns why a connection failed, without what came over it.
fn cause(error: &(dyn Error + 'static)) -> String {
    let mut causes = std::iter::successors(Some(error), |error| (*error).source());
    let io = causes.find_map(|cause| cause.downcast_ref::<io::Error>());
    io.map_or_else(|| "no valid HTTP".to_owned(), |error| error.kind().to_string())
}

#[cfg(test)]
mod tests {
    use std::{future::pending, net::Ipv4Addr};

    use axum::{
        Router,
        http::{HeaderMap, StatusCode},
        routing::get,
    };
    use futures::stream;
    use serde_json::json;
    use tokio::{io::AsyncWriteExt as _, net::TcpListener};

    use super::*;

    fn check(path: &str, has_content: bool) -> HealthCheck {
        let expected = json!([{"pointer": "/maintenance", "value": false}]);
        let expected = if has_content { expected } else { json!([]) };
        serde_json::from_value(json!({"path": path, "json": expected})).unwrap()
    }

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[tokio::test]
    async fn what_an_app_may_answer() {
        let (listener, to) = listener().await;
        let host = |headers: HeaderMap| async move {
            format!("{{\"maintenance\": {}}}", headers["host"] != "acme.example.com")
        };
        let endless = || async {
            let page = Bytes::from_static(&[b' '; 1 << 16]);
            Body::from_stream(stream::repeat_with(move || Ok::<_, io::Error>(page.clone())))
        };
        let elsewhere = || async { (StatusCode::FOUND, [(header::LOCATION, "http://169.254.169.254/latest")]) };
        let here = || async { (StatusCode::PERMANENT_REDIRECT, [(header::LOCATION, "/status.php")]) };
        let broken = || async { (StatusCode::SERVICE_UNAVAILABLE, "") };
        let head = || async { [("x-long", "a".repeat(1 << 17))] };
        let routes = Router::new()
            .route("/status.php", get(host))
            .route("/endless", get(endless))
            .route("/elsewhere", get(elsewhere))
            .route("/here", get(here))
            .route("/broken", get(broken))
            .route("/head", get(head))
            .route("/page", get(|| async { "<html>" }))
            .route("/hangs", get(pending::<()>));
        let serving = tokio::spawn(async { axum::serve(listener, routes).await });
        for (path, has_content, expected) in [
            ("/status.php", true, None),
            ("/status.php?a=b%20c", true, None),
            ("/page", false, None),
            // Nothing of it is read.
            ("/endless", false, None),
            ("/endless", true, Some("/endless answers more than 64 KiB, or incompletely")),
            ("/page", true, Some("/page does not answer JSON")),
            ("/elsewhere", true, Some("/elsewhere answers 302, a redirect, which is not followed")),
            ("/here", true, Some("/here answers 308, a redirect, which is not followed")),
            ("/broken", false, Some("/broken answers 503, expected 200 to 299")),
            ("/none", true, Some("/none answers 404, expected 200 to 299")),
            ("/head", true, Some("/head does not answer: no valid HTTP")),
            // A stored path that the schema would refuse today.
            ("@evil.example.com/", false, Some("cannot be requested")),
            ("/a b", false, Some("cannot be requested")),
        ] {
            let found = answered(to, "acme.example.com", &check(path, has_content), WITHIN).await;
            match expected {
                None => assert_eq!(found, Ok(()), "{path}"),
                Some(problem) => {
                    assert!(found.as_ref().is_err_and(|found| found.contains(problem)), "{path} {found:?}")
                }
            }
        }
        let found = answered(to, "a\r\nHost: b", &check("/status.php", true), WITHIN).await;
        assert!(found.is_err_and(|found| found.contains("cannot be requested")));
        let found = answered(to, "acme.example.com", &check("/hangs", false), Duration::from_millis(50)).await;
        assert!(found.is_err_and(|found| found.contains("/hangs does not answer within")));
        serving.abort();
    }

    #[tokio::test]
    async fn what_does_not_speak_http() {
        let (listener, to) = listener().await;
        let asked = check("/status.php", true);
        let found = answered(to, "acme.example.com", &asked, WITHIN);
        let other = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            connection.write_all(b"220 smtp.example.com ESMTP\r\n").await.unwrap();
            connection
        };
        let (found, _) = tokio::join!(found, other);
        assert_eq!(found, Err("/status.php does not answer: no valid HTTP".to_owned()));
        drop(listener);
        let found = answered(to, "acme.example.com", &asked, WITHIN).await;
        assert_eq!(found, Err("/status.php does not answer: connection refused".to_owned()));
    }
}
