//! Malformed requests and connections.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use clientapp_crd::{ClientApp, Profile};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Http, idle, make_namespace, ours, send, small, until, with, with_hostname};

#[tokio::test]
async fn what_is_no_request_is_refused_and_told_why() {
    let (lab, http) = Http::shared().await;
    let json = "application/json";
    for (content_type, body, status, reason, field, sentence) in [
        (json, "{\"hostname\":\n nope}", 400, "Malformed", None, "line 2 column"),
        ("text/plain", "{}", 415, "UnsupportedMediaType", None, "Content-Type: application/json"),
        (json, r#"{"hostname":["a"]}"#, 422, "InvalidRequest", Some("hostname"), "expected a string"),
    ] {
        let request = http.request(Method::POST, "/instances").header("Content-Type", content_type).body(body);
        send(request).await.is_problem(status, reason, field, sentence);
    }
    let audited = lab.operator_log();
    assert!(audited.lines().any(|line| line.contains("\"audit\"") && line.contains("\"Malformed\"")), "{audited}");

    http.get("/nothing").await.is_problem(404, "NotFound", None, "there is nothing at /nothing");
    let answer = send(http.request(Method::PUT, "/instances")).await;
    answer.is_problem(405, "MethodNotAllowed", None, "PUT");
    assert!(answer.header("allow").contains("POST"), "{answer:?}");
}

#[tokio::test]
async fn what_the_controller_would_refuse_is_refused_at_once_and_nothing_is_made() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let bad_profile = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Profile",
        "metadata": {"name": "api-bad"}, "spec": {"helm": {"values": {"nextcloud": {"host": "mine"}}}}});
    let bad_profile: Profile = serde_json::from_value(bad_profile).unwrap();
    Api::<Profile>::all(client.clone()).create(&PostParams::default(), &bad_profile).await.unwrap();
    let body = |field: &str, value: Value| with(small("refused.api.example"), field, value);
    for (body, reason, field, sentence) in [
        (small("Acme.Example.com"), "InvalidSpec", "hostname", "; write acme.example.com"),
        (small("*.example"), "InvalidSpec", "hostname", "spec.hostname: must be a DNS name"),
        (body("chartVersion", json!("latest")), "InvalidSpec", "chartVersion", "one exact version"),
        (body("postgres", json!({"version": "13"})), "InvalidSpec", "postgres.version", "14 to 18"),
        (body("persistence", json!({"size": "8GB"})), "InvalidSpec", "persistence.size", "8Gi"),
        (body("profile", json!("nobody")), "ProfileMissing", "profile", "spec.profile: there is no Profile nobody"),
        (body("profile", json!("../nobody")), "ProfileMissing", "profile", "there is no Profile ../nobody"),
        (body("profile", json!("api-bad")), "ProfileInvalid", "profile", "helm.values: "),
        (body("tls", json!({})), "InvalidSpec", "tls", "exactly one of issuer, secretName"),
        (body("tls", json!({"terminatedElsewhere": false})), "InvalidSpec", "tls", "can only be true"),
        (body("tls", json!({"secretName": "wildcard"})), "InvalidSpec", "tls", "set ingressClassName as well"),
        (body("name", json!("Acme")), "InvalidSpec", "name", "a DNS label"),
        (body("name", json!("a".repeat(38))), "InvalidSpec", "name", "at most 37 characters"),
        (body("name", json!("a".repeat(54))), "InvalidSpec", "name", "at most 37 characters"),
        (body("name", json!("1a")), "InvalidSpec", "name", "beginning with a letter"),
        (body("namespace", json!("a.b")), "InvalidSpec", "namespace", "a DNS label"),
        (body("namespace", json!("default")), "NamespaceReserved", "namespace", "choose another"),
        (body("namespace", json!("kube-system")), "NamespaceReserved", "namespace", "choose another"),
        (body("namespace", json!("clientapp-operator")), "NamespaceReserved", "namespace", "choose another"),
        (body("name", json!("default")), "NamespaceReserved", "name", "choose another"),
        // Only the schema detects this: by then the namespace exists, and is deleted again.
        (body("ingressClassName", json!("")), "Refused", "ingressClassName", "create ClientApp "),
    ] {
        http.post(&body).await.is_problem(422, reason, Some(field), sentence);
    }
    assert!(with_hostname(&client, "refused.api.example").await.is_empty());
    let name = with(body("ingressClassName", json!("")), "name", "api-taken-away");
    http.post(&name).await.is_problem(422, "Refused", Some("ingressClassName"), "create ClientApp api-taken-away/");
    assert!(crate::api::is_gone(&client, "api-taken-away").await);
    let log = lab.operator_log();
    assert!(
        log.lines().any(|line| line.contains("deleted the namespace that this request had created")
            && line.contains("api-taken-away")),
        "{log}"
    );
}

#[tokio::test]
async fn a_request_of_http_1_0() {
    let (lab, http) = Http::shared().await;
    let body = idle("one-zero.api.example").to_string();
    let request = format!(
        "POST /instances HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let address = http.address().to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        // The server closes the connection, as in HTTP/1.0.
        connection.read_to_string(&mut answer).unwrap();
        answer
    })
    .await
    .unwrap();
    assert!(answer.starts_with("HTTP/1.0 201 "), "{answer}");
    assert!(answer.contains("\"adminPassword\""), "{answer}");
    assert_eq!(with_hostname(&lab.plane.client().await.unwrap(), "one-zero.api.example").await.len(), 1);
}

#[tokio::test]
async fn a_client_that_hangs_up_leaves_a_whole_instance() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    make_namespace(&client, "api-hung-up", json!({"labels": ours()})).await;
    for index in 0..10 {
        let body = idle(&format!("hung-up-{index}.api.example"));
        let body = with(with(body, "name", format!("hung-up-{index}")), "namespace", "api-hung-up").to_string();
        let request = format!(
            "POST /instances HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut connection = TcpStream::connect(http.address()).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
    }
    for index in 0..10 {
        let name = format!("hung-up-{index}");
        until("the instance is complete", async || {
            let app = Api::<ClientApp>::namespaced(client.clone(), "api-hung-up").get_opt(&name).await.unwrap()?;
            let secret = format!("{name}-admin-secret");
            let secret = Api::<Secret>::namespaced(client.clone(), "api-hung-up").get_opt(&secret).await.unwrap()?;
            let owner = secret.metadata.annotations?.remove("apps.bnerd-operator.local/clientapp-uid");
            (owner == app.metadata.uid).then_some(())
        })
        .await;
        let audited = format!("\"clientapp\":\"api-hung-up/{name}\"");
        until("it is audited", async || {
            let log = lab.operator_log();
            log.lines().any(|line| line.contains("\"audit\"") && line.contains(&audited)).then_some(())
        })
        .await;
    }
}
