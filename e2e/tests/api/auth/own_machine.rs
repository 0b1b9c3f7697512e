//! Without authentication: clients on this machine have access, and a page in its browser does not.

use super::*;

#[tokio::test]
async fn only_this_machine_is_meant_and_only_its_own_page_may_change_anything() {
    let (lab, _turn) = lab().await;
    let api = Served::start(lab, &[]).await;
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
