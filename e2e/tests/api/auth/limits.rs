//! Requests that are too large, too slow, too many, or in progress when the operator stops.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use futures::future::join_all;
use nix::sys::signal::Signal;

use super::*;

/// More than any instance needs.
const LARGE: usize = 2 << 20;

#[tokio::test]
async fn a_large_body_is_refused_however_it_comes() {
    let (lab, _turn) = lab().await;
    let api = Served::start(lab, &[]).await;
    let chunks = || futures::stream::iter((0..LARGE >> 10).map(|_| Ok::<_, std::io::Error>(vec![b' '; 1 << 10])));
    let bodies = [reqwest::Body::from(vec![b' '; LARGE]), reqwest::Body::wrap_stream(chunks())];
    for body in bodies {
        let request = api.request(Method::POST, "/instances").header("content-type", "application/json");
        let answer = send(request.body(body)).await;
        assert!(answer.refused(413, "PayloadTooLarge").contains("64 KiB"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_client_that_does_not_go_on_is_hung_up_on() {
    let (lab, _turn) = lab().await;
    let api = Served::start(lab, &[]).await;
    let silent = said(api.address(), "");
    let head = said(api.address(), "GET /instances HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    let body = said(api.address(), "POST /instances HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    let (silent, head, body) = tokio::join!(silent, head, body);
    assert_eq!((silent.as_str(), head.as_str()), ("", ""));
    assert!(body.starts_with("HTTP/1.1 408 ") && body.contains("application/problem+json"), "{body}");
    // And the others are served.
    assert_eq!(api.get("/nowhere", None).await.status, 404);
}

#[tokio::test]
async fn http_1_0_is_answered() {
    let (lab, _turn) = lab().await;
    let api = Served::start(lab, &[]).await;
    let answer = said(api.address(), "GET /nowhere HTTP/1.0\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.0 404 ") && answer.contains("application/problem+json"), "{answer}");
}

#[tokio::test]
async fn two_hundred_at_once_are_all_answered() {
    let (lab, _turn) = lab().await;
    let tenant = lab.tenant("two-hundred").await;
    account(&tenant, "jane").await;
    let token = token(&tenant, "jane", AUDIENCE, None).await;
    let api = Served::start(lab, &["--api-auth", "token"]).await;
    let before = reviews(lab);
    let answers = join_all((0..200).map(|_| api.get("/nowhere", Some(&token)))).await;
    for answer in &answers {
        assert!(
            answer.status == 404 || answer.status == 429 && answer.headers.contains_key("retry-after"),
            "{answer:?}"
        );
    }
    // They did not cost the API server as many reviews: only one whenever the cached answer expired.
    assert!(reviews(lab) - before < 20, "{} reviews", reviews(lab) - before);
}

/// The number of TokenReviews that the operator has requested.
fn reviews(lab: &Lab) -> usize {
    let log = std::fs::read_to_string(lab.plane.audit_log().unwrap()).unwrap();
    let user = e2e::manifests::user();
    log.lines().filter(|line| line.contains("\"tokenreviews\"") && line.contains(&user)).count()
}

#[tokio::test]
async fn a_request_that_is_under_way_is_answered_before_the_end() {
    let (lab, _turn) = lab().await;
    let mut api = Served::start(lab, &[]).await;
    let head = "POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n";
    let address = api.address().to_owned();
    let ended = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(&address).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        connection.write_all(head.as_bytes()).unwrap();
        let mut told = [0; 12];
        connection.read_exact(&mut told).unwrap();
        assert_eq!(&told, b"HTTP/1.1 100");
        api.operator.signal(Signal::SIGTERM);
        api.operator.wait_for_log("SIGTERM: stopping").unwrap();
        // No new connection is accepted.
        blocking_until("the operator no longer listens", || TcpStream::connect(&address).is_err());
        connection.write_all(b"{}").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        assert!(answer.contains("HTTP/1.1 404 "), "{answer}");
        api.operator.wait().unwrap()
    });
    assert!(ended.await.unwrap(), "the operator exits successfully");
}

/// Sends some bytes to the API, and returns the response until the server hangs up.
async fn said(address: &str, words: &'static str) -> String {
    let address = address.to_owned();
    let listen = move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.set_read_timeout(Some(TIMEOUT)).unwrap();
        connection.write_all(words.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it hangs up");
        answer
    };
    tokio::task::spawn_blocking(listen).await.unwrap()
}
