//! Names, hostnames and namespaces that are taken.

use clientapp_crd::ClientApp;
use futures::future::join_all;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use crate::api::{Http, idle, make_namespace, ours, small, standby, until, with, with_hostname};

#[tokio::test]
async fn one_hostname_is_given_once() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let body = idle("once.api.example");
    let answers = join_all((0..10).map(|_| http.post(&body))).await;
    let (made, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(|answer| answer.status == 201);
    assert_eq!(made.len(), 1, "{refused:?}");
    for answer in refused {
        answer.is_problem(409, "HostnameConflict", Some("hostname"), "once.api.example");
    }
    assert_eq!(with_hostname(&client, "once.api.example").await, [made[0].word("name")]);
    http.post(&body).await.is_problem(409, "HostnameConflict", Some("hostname"), "choose another");
    // It is free again once that instance is gone.
    let path = format!("/instances/{}?wait=120", made[0].word("name"));
    assert_eq!(http.delete(&path).await.status, 204);
    http.post(&body).await.made();
}

/// Each replica may make an instance when both are asked at once; then one has the hostname, and the other one says so.
#[tokio::test]
async fn one_hostname_asked_of_two_replicas_at_once() {
    let (lab, here) = Http::shared().await;
    let (second, url) = standby(lab.options()).await;
    let there = Http::at(url).await;
    let client = lab.plane.client().await.unwrap();
    for round in 0..5 {
        let hostname = format!("contended-{round}.api.example");
        let body = small(&hostname);
        let [first, other] = [0, 1].map(|replica| format!("contended-{round}-{replica}"));
        let (one, two) = tokio::join!(here.post_with_key(&first, &body), there.post_with_key(&other, &body));
        let (made, refused): (Vec<_>, Vec<_>) = [one, two].into_iter().partition(|answer| answer.status == 201);
        for answer in refused {
            answer.is_problem(409, "HostnameConflict", Some("hostname"), &hostname);
        }
        let made: Vec<_> = made.iter().map(|answer| answer.made()).collect();
        assert_eq!(with_hostname(&client, &hostname).await.len(), made.len());
        until("one is ready and the other says why it is not", async || {
            let mut reasons = Vec::new();
            for (namespace, name) in &made {
                let app = Api::<ClientApp>::namespaced(client.clone(), namespace).get(name).await.unwrap();
                let conditions = app.status.unwrap_or_default().conditions;
                reasons.extend(conditions.into_iter().find(|found| found.type_ == "Ready").map(|ready| ready.reason));
            }
            reasons.sort();
            let expected = if made.len() == 1 { vec!["Ready"] } else { vec!["HostnameConflict", "Ready"] };
            if reasons == expected { Ok(()) } else { Err(format!("{reasons:?} of {made:?}")) }
        })
        .await;
    }
    assert!(second.stop().unwrap());
}

#[tokio::test]
async fn a_name_that_is_taken_stays_whose_it_is() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let body = with(idle("first.taken.example"), "name", "api-taken");
    http.post(&body).await.made();
    let second = with(idle("second.taken.example"), "name", "api-taken");
    http.post(&second).await.is_problem(409, "NameTaken", Some("name"), "instance api-taken/api-taken already exists");
    let app = Api::<ClientApp>::namespaced(client.clone(), "api-taken").get("api-taken").await.unwrap();
    assert_eq!(app.spec.hostname, "first.taken.example");
    assert!(!crate::api::is_gone(&client, "api-taken").await);
    // Another name in that namespace is free.
    let third = with(with(idle("third.taken.example"), "name", "other"), "namespace", "api-taken");
    http.post(&third).await.made();
}

#[tokio::test]
async fn a_namespace_that_is_not_ours_stays_empty() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    make_namespace(&client, "api-foreign", json!({})).await;
    for body in [
        with(small("foreign.api.example"), "namespace", "api-foreign"),
        with(small("foreign.api.example"), "name", "api-foreign"),
    ] {
        http.post(&body).await.is_problem(409, "NamespaceNotOurs", Some("namespace"), "was not made by this operator");
    }
    assert!(with_hostname(&client, "foreign.api.example").await.is_empty());
    assert!(!crate::api::is_gone(&client, "api-foreign").await);
}

#[tokio::test]
async fn a_secret_in_the_way_is_told_and_nothing_stays() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    make_namespace(&client, "api-secret", json!({"labels": ours()})).await;
    let secret = json!({"metadata": {"name": "acme-admin-secret"}, "stringData": {"nextcloud-password": "not-yours"}});
    let secret: Secret = serde_json::from_value(secret).unwrap();
    let secrets = Api::<Secret>::namespaced(client.clone(), "api-secret");
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    let body = with(with(small("secret.api.example"), "name", "acme"), "namespace", "api-secret");
    let answer = http.post(&body).await;
    answer.is_problem(
        409,
        "SecretNotOurs",
        Some("name"),
        "Secret api-secret/acme-admin-secret belongs to another object",
    );
    assert!(!answer.text.contains("not-yours"), "{answer:?}");
    until("the ClientApp is deleted again", async || {
        with_hostname(&client, "secret.api.example").await.is_empty().then_some(())
    })
    .await;
    assert!(secrets.get_opt("acme-admin-secret").await.unwrap().is_some());
}
