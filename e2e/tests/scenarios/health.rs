//! Shows that what apps answer decides whether a Profile's revision goes on to the next ones. A server on the loopback interface answers for all of
//! them: on a plane, the addresses of Services are no pod's.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Json;
use axum::extract::Request;
use clientapp_crd::{Profile, UnhealthyApp};
use e2e::background::Background;
use e2e::lab::{Apart, leading};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Patch, PatchParams};

use super::profile::{create, patch, reported, revision};
use super::*;

/// Answers as Nextcloud's `/status.php`, for each hostname.
struct Answers {
    state: Arc<Mutex<State>>,
    address: String,
    _server: Background,
}

#[derive(Default)]
struct State {
    /// The hostnames of apps in maintenance.
    in_maintenance: BTreeSet<String>,
    /// The hostname and path of each request so far.
    asked: Vec<(String, String)>,
}

impl Answers {
    fn start() -> Answers {
        let state = Arc::new(Mutex::<State>::default());
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let shared = state.clone();
        let serve = async move || {
            let answer = async move |request: Request| {
                let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let host = request.headers()["host"].to_str().unwrap().to_owned();
                let maintenance = state.in_maintenance.contains(&host);
                state.asked.push((host, request.uri().to_string()));
                Json(
                    json!({"installed": true, "maintenance": maintenance, "needsDbUpgrade": false, "version": "29.0.0.19"}),
                )
            };
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, axum::Router::new().fallback(answer)).await.unwrap();
        };
        Answers { state, address, _server: Background::spawn("answers", serve).unwrap() }
    }

    fn asked(&self) -> Vec<(String, String)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).asked.clone()
    }

    fn maintain(&self, host: &str, is_on: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if is_on {
            state.in_maintenance.insert(host.to_owned())
        } else {
            state.in_maintenance.remove(host)
        };
    }
}

#[tokio::test]
async fn a_revision_goes_on_once_the_apps_that_have_it_answer_as_they_should() {
    let answers = Answers::start();
    let mut apart = Lab::unattended().await.apart("health").await;
    apart.options.arguments = ["--health-checks-to", &answers.address].map(str::to_owned).to_vec();
    let operator = leading(&apart.options).await;
    let Apart { tenant, proxy: _proxy, options } = apart;
    let cpu = |amount: &str| json!({"defaults": {"resources": {"requests": {"cpu": amount}}}});
    let health = json!({
        "path": "/status.php?of=rollout", "port": "http", "periodSeconds": 1, "failureThreshold": 2,
        "json": [{"pointer": "/installed", "value": true}, {"pointer": "/maintenance", "value": false}],
    });
    let rollout = json!({"waves": [1], "soak": "1s", "health": health});
    create(&tenant, "health", with(cpu("100m"), json!({"rollout": rollout}))).await;
    for name in ["a", "b", "c"] {
        // Otherwise the operator would put the Service of the first one back.
        let ignored = if name == "a" { json!([{"kind": "Service", "paths": ["/spec"]}]) } else { json!([]) };
        let more = json!({"profile": "health", "driftIgnore": ignored});
        tenant.create(name, with(small(&tenant, name), more)).await.unwrap();
        tenant.ready(name, 1).await;
    }
    reported(&tenant, "health", "True", "RolledOut", "revision 1 is that of 3 of 3").await;
    assert_eq!(answers.asked(), []);

    patch(&tenant, "health", cpu("200m")).await;
    reported(&tenant, "health", "True", "RolledOut", "revision 2").await;
    let of_first = (hostname(&tenant, "a"), "/status.php?of=rollout".to_owned());
    // Once it was Ready, and once more if its soak was not over by then.
    assert!(answers.asked().contains(&of_first), "{:?}", answers.asked());
    for name in ["a", "b", "c"] {
        tenant.ready(name, 2).await;
    }
    // What was under way when the rollout was over has come. At rest, nobody is asked.
    let asked = answers.asked();
    patch(&tenant, "health", json!({"description": "at rest"})).await;
    tenant.patch("b", json!({"replicas": 2})).await.unwrap();
    tenant.ready("b", 3).await;
    assert_eq!(answers.asked(), asked);

    answers.maintain(&of_first.0, true);
    patch(&tenant, "health", cpu("300m")).await;
    let says = "ClientApp health/a: /status.php?of=rollout says /maintenance true, expected false";
    reported(&tenant, "health", "False", "RolloutStopped", says).await;
    let found =
        Api::<Profile>::all(tenant.client.clone()).get("health").await.unwrap().status.unwrap().rollout.unwrap();
    let message = "/status.php?of=rollout says /maintenance true, expected false".to_owned();
    let unhealthy = vec![UnhealthyApp { app: "health/a".to_owned(), message }];
    assert_eq!((found.failed, found.unhealthy), (vec!["health/a".to_owned()], unhealthy));
    let have = async || [revision(&tenant, "a").await, revision(&tenant, "b").await, revision(&tenant, "c").await];
    assert_eq!(have().await, [Some(3), Some(2), Some(2)]);
    // Its pods are Ready, all the same.
    tenant.condition("a", "Ready", "True", "Ready").await;

    // An operator that has asked nobody yet lets nobody through, either.
    tokio::task::spawn_blocking(|| drop(operator)).await.unwrap();
    let asked = answers.asked().len();
    let _operator = leading(&options).await;
    until("the app is asked again", async || answers.asked().len() > asked + 2).await;
    assert_eq!(have().await, [Some(3), Some(2), Some(2)]);

    // Whoever may write Services cannot let the operator ask another host.
    let services = tenant.api::<Service>();
    let leads = async |spec: Value| {
        let patch = Patch::Merge(json!({"spec": spec}));
        services.patch("a-nextcloud", &PatchParams::default(), &patch).await.unwrap();
    };
    leads(json!({"type": "ExternalName", "externalName": "example.com"})).await;
    let says = "ClientApp health/a: Service a-nextcloud is of type ExternalName: correct it";
    reported(&tenant, "health", "False", "RolloutStopped", says).await;
    let asked = answers.asked();

    answers.maintain(&of_first.0, false);
    leads(json!({"type": "ClusterIP", "externalName": null})).await;
    reported(&tenant, "health", "True", "RolledOut", "revision 3").await;
    assert_eq!(have().await, [Some(3); 3]);
    let more = answers.asked().split_off(asked.len());
    assert!(more.len() >= 2 && more.iter().all(|(_, path)| path == "/status.php?of=rollout"), "{more:?}");
}
