//! Without authentication: clients on this machine have access, and a page in its browser does not. And requests that are too large,
//! too slow, or in progress when the operator stops.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use nix::sys::signal::Signal;

use super::*;

#[tokio::test]
async fn only_this_machine_is_meant_and_only_its_own_page_may_change_anything() {
    let api = Served::start(Lab::shared().await.options(), &[]).await;
    let port = api.address().rsplit(':').next().unwrap();
    let with = |method: Method, headers: &[(&'static str, String)]| {
        let request = api.request(method, "/instances");
        send(headers.iter().fold(request, |request, (name, value)| request.header(*name, value)))
    };
    for host in [format!("localhost:{port}"), "127.0.0.1".to_owned(), format!("[::1]:{port}")] {
        let answer = with(Method::GET, &[("host", host.clone())]).await;
        assert!(![403, 421].contains(&answer.status), "{host}: {answer:?}");
    }
    for host in ["rebound.example.com", "rebound.example.com:8090", "localhost.example.com", "192.0.2.1"] {
        for method in [Method::GET, Method::POST] {
            let answer = with(method, &[("host", host.to_owned())]).await;
            assert!(answer.refused(421, "WrongHost").contains(host), "{answer:?}");
        }
    }
    let host = || ("host", format!("localhost:{port}"));
    for origin in ["http://rebound.example.com".to_owned(), "null".to_owned(), format!("http://127.0.0.1:{port}")] {
        for method in [Method::POST, Method::DELETE] {
            with(method, &[host(), ("origin", origin.clone())]).await.refused(403, "WrongOrigin");
        }
    }
    let answer = with(Method::POST, &[host(), ("origin", format!("http://localhost:{port}"))]).await;
    assert_ne!(answer.status, 403, "{answer:?}");
}

#[tokio::test]
async fn a_client_that_does_not_go_on_is_hung_up_on() {
    let mut api = Served::start(Lab::shared().await.options(), &[]).await;
    let request = api.request(Method::POST, "/instances").header("content-type", "application/json");
    // More than any instance needs.
    let large = send(request.body(vec![b' '; 2 << 20])).await;
    assert!(large.refused(413, "PayloadTooLarge").contains("64 KiB"), "{large:?}");

    let silent = said(api.address(), "");
    let head = said(api.address(), "GET /instances HTTP/1.1\r\nHost: localhost\r\nX-Slow: ");
    let body = said(api.address(), "POST /instances HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{");
    let (silent, head, body) = tokio::join!(silent, head, body);
    assert_eq!((silent.as_str(), head.as_str()), ("", ""));
    assert!(body.starts_with("HTTP/1.1 408 ") && body.contains("application/problem+json"), "{body}");
    // And the others are served.
    assert_eq!(api.get("/nowhere").await.status, 404);

    // A request that is under way when the operator stops is answered before the end.
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
