//! Many simultaneous requests, and an operator that is stopped among them. There is no helm, so that no replica leads
//! and only the API creates anything.

use std::collections::BTreeSet;

use clientapp_crd::ClientApp;
use e2e::lab::Lab;
use futures::StreamExt as _;
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt as _};
use nix::sys::signal::Signal;

use crate::api::{Http, small, standby, until, with_hostname};

/// The operator's namespaces, ClientApps and administrators' Secrets, each as the instance's name.
async fn made(client: &Client) -> [BTreeSet<String>; 3] {
    let ours = ListParams::default().labels("app.kubernetes.io/managed-by=clientapp-operator");
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ours).await.unwrap();
    let namespaces = namespaces.iter().filter(|found| found.metadata.deletion_timestamp.is_none());
    let apps = Api::<ClientApp>::all(client.clone()).list(&ListParams::default()).await.unwrap();
    let secrets = Api::<Secret>::all(client.clone()).list(&ours).await.unwrap();
    let whose = |secret: &Secret| secret.name_any().strip_suffix("-admin-secret").map(str::to_owned);
    [
        namespaces.map(|found| found.name_any()).collect(),
        apps.iter().map(|found| found.name_any()).collect(),
        secrets.iter().filter_map(whose).collect(),
    ]
}

#[tokio::test]
async fn two_hundred_at_once_two_replicas_and_a_stop() {
    let (lab, _ends) = Lab::own().await;
    let options = lab.options();
    let start = async || {
        let (operator, url) = standby(options.clone()).await;
        (operator, Http::at(url).await)
    };
    let client = lab.plane.client().await.unwrap();
    let (operator, http) = start().await;

    let bodies: Vec<_> = (0..200).map(|index| small(&format!("crowd-{index}.api.example"))).collect();
    let answers = join_all(bodies.iter().map(|body| http.post(body))).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    let busy = answers.iter().filter(|answer| answer.status == 503 && answer.word("reason") == "Busy").count();
    assert_eq!(count(201) + count(429) + busy, 200, "{answers:?}");
    assert!(count(201) > 16, "more than are created at a time: {answers:?}");
    let expected: BTreeSet<_> =
        answers.iter().filter(|answer| answer.status == 201).map(|answer| answer.word("name")).collect();
    assert_eq!(expected.len(), count(201));
    let [namespaces, apps, secrets] = made(&client).await;
    assert_eq!((&namespaces, &apps, &secrets), (&expected, &expected, &expected));

    // A restart forgets nothing: taken names stay taken.
    assert!(operator.stop().unwrap());
    let (operator, http) = start().await;
    let taken = answers.iter().find(|answer| answer.status == 201).unwrap().word("hostname");
    let answer = http.post(&small(&taken)).await;
    answer.is_problem(409, "HostnameConflict", Some("hostname"), &taken);

    // Two replicas get the same request at the same moment, and create one instance.
    let (second, there) = start().await;
    for round in 0..10 {
        let (key, hostname) = (format!("replicas-{round}"), format!("replicas-{round}.api.example"));
        let body = small(&hostname);
        let (one, two) = tokio::join!(http.post_with_key(&key, &body), there.post_with_key(&key, &body));
        let (made, other) = if one.status == 201 { (one, two) } else { (two, one) };
        let (_, name) = made.made();
        assert_eq!((other.status, other.json["name"].as_str()), (200, Some(name.as_str())), "{other:?}");
        assert!(other.json.get("adminPassword").is_none(), "{other:?}");
        assert_eq!(with_hostname(&client, &hostname).await, [name]);
    }
    assert!(second.stop().unwrap());

    // It is stopped among many requests: none is left half done.
    let mut requests: FuturesUnordered<_> = (0..60)
        .map(|index| {
            let request = http.request(reqwest::Method::POST, "/instances");
            request.json(&small(&format!("stop-{index}.api.example"))).send()
        })
        .collect();
    let first = requests.next().await.unwrap().unwrap();
    assert!([201, 429].contains(&first.status().as_u16()), "{first:?}");
    let was_created = first.status().as_u16() == 201;
    operator.signal(Signal::SIGTERM);
    let answered = async {
        while let Some(answer) = requests.next().await {
            // Later ones may be refused a connection.
            let Ok(answer) = answer else { continue };
            let status = answer.status().as_u16();
            let said = answer.text().await.unwrap_or_default();
            let is_told = ["Stopping", "Busy"].iter().any(|reason| said.contains(reason));
            assert!([201, 429].contains(&status) || status == 503 && is_told, "{status} {said}");
        }
    };
    let stopped = tokio::task::spawn_blocking(move || operator.stop().unwrap());
    let (stopped, ()) = tokio::join!(stopped, answered);
    assert!(stopped.unwrap());
    let [namespaces, apps, secrets] = made(&client).await;
    assert_eq!((&namespaces, &apps), (&apps, &secrets));
    // Ten are of the rounds above.
    assert!(apps.len() >= expected.len() + 10 + usize::from(was_created), "{apps:?}");
    until("no namespace is left", async || {
        let [namespaces, apps, _] = made(&client).await;
        (namespaces == apps).then_some(())
    })
    .await;
}
