//! The HTTP API and a plain client that creates the same objects, with many instances present.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::{ClientApp, label};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{Bench, namespace};
use crate::wait::within;

/// The number of POSTs and lists, timed one after the other.
const TIMED: usize = 30;
/// The number of simultaneous POSTs.
const CROWD: usize = 200;
/// The namespace of the instances that are merely present.
const CROWDED: &str = "present";

impl Bench<'_> {
    /// The API with this many instances present, all suspended, so that helm is not measured.
    pub(super) async fn api(&self, url: &str, instances: usize) -> Result<()> {
        let client = self.plane.client().await?;
        namespace(&client, CROWDED).await?;
        let made: Vec<Result<()>> =
            futures::stream::iter(0..instances).map(|n| present(&client, n)).buffer_unordered(8).collect().await;
        made.into_iter().collect::<Result<Vec<()>>>()?;
        let api = ApiClient { http: reqwest::Client::new(), url: url.to_owned() };
        api.until_listed(instances).await?;
        println!("{instances} instances present");
        self.posts(&client, &api).await?;
        self.lists(&api).await?;
        self.crowd(&client, &api).await
    }

    /// A POST and the same objects from a plain client, alternating.
    async fn posts(&self, client: &Client, api: &ApiClient) -> Result<()> {
        let (mut posted, mut plain) = (Vec::new(), Vec::new());
        for n in 0..TIMED {
            let started = Instant::now();
            let status = api.post(&format!("post-{n}.example.com")).await?;
            posted.push(started.elapsed());
            ensure!(status == StatusCode::CREATED, "POST was answered with {status}");
            let started = Instant::now();
            by_hand(client, &format!("plain-{n}")).await?;
            plain.push(started.elapsed());
        }
        let (posted, plain) = (median(&mut posted), median(&mut plain));
        let ratio = posted.as_secs_f64() / plain.as_secs_f64();
        println!(
            "POST to 201: median {:.0} ms; the same objects by a plain client {:.0} ms, ratio {ratio:.2}",
            posted.as_secs_f64() * 1e3,
            plain.as_secs_f64() * 1e3
        );
        Ok(())
    }

    /// The list of all instances, and the number of its requests: only those for its own kind, since helm is still
    /// working on the posted instances.
    async fn lists(&self, api: &ApiClient) -> Result<()> {
        let asked = || -> Result<usize> {
            let lists = |event: &&Value| event["verb"] == "list" && event["objectRef"]["resource"] == "clientapps";
            Ok(self.audit()?.iter().filter(lists).count())
        };
        let before = asked()?;
        let (mut times, mut bytes) = (Vec::new(), 0);
        for _ in 0..TIMED {
            let started = Instant::now();
            let answer = api.http.get(format!("{}/instances?limit=1000", api.url)).send().await?.error_for_status()?;
            bytes = answer.bytes().await?.len();
            times.push(started.elapsed());
        }
        let requests = asked()? - before;
        println!(
            "list of 1,000 ({} KiB): median {:.0} ms, {requests} requests to the API server",
            bytes / 1024,
            median(&mut times).as_secs_f64() * 1e3
        );
        Ok(())
    }

    /// Many at once, each created completely or refused.
    async fn crowd(&self, client: &Client, api: &ApiClient) -> Result<()> {
        let hosts = (0..CROWD).map(|n| format!("crowd-{n}.example.com"));
        let started = Instant::now();
        let statuses = futures::future::try_join_all(hosts.map(|host| async move { api.post(&host).await })).await?;
        let took = started.elapsed();
        let count = |status| statuses.iter().filter(|found| **found == status).count();
        let (created, refused) = (count(StatusCode::CREATED), count(StatusCode::TOO_MANY_REQUESTS));
        ensure!(created + refused == CROWD, "{statuses:?}");
        println!("{CROWD} POSTs at once: {created} made, {refused} told 429, in {:.1} s", took.as_secs_f64());
        let apps = Api::<ClientApp>::all(client.clone()).list(&ListParams::default()).await?;
        let crowd = apps.iter().filter(|app| app.spec.hostname.starts_with("crowd-")).count();
        ensure!(crowd == created, "{created} were made and {crowd} ClientApps are there");
        let marked = Api::<Namespace>::all(client.clone()).list(&ListParams::default().labels(label::INSTANCE)).await?;
        for namespace in marked.iter().map(ResourceExt::name_any) {
            ensure!(
                apps.iter().any(|app| app.namespace().as_ref() == Some(&namespace)),
                "{namespace} has no ClientApp"
            );
        }
        Ok(())
    }
}

struct ApiClient {
    http: reqwest::Client,
    url: String,
}

impl ApiClient {
    async fn post(&self, hostname: &str) -> Result<StatusCode> {
        // Keeps the later work of helm the same and small.
        let body = json!({
            "hostname": hostname,
            "redis": {"enabled": false}, "postgres": {"enabled": false}, "persistence": {"enabled": false},
        });
        let answer = self.http.post(format!("{}/instances", self.url)).json(&body).send().await?;
        let status = answer.status();
        answer.bytes().await?;
        Ok(status)
    }

    async fn until_listed(&self, instances: usize) -> Result<()> {
        let url = format!("{}/instances?limit=1000&namespace={CROWDED}", self.url);
        let listed = within(Duration::from_secs(60), "the API lists what is there", async || {
            let answer = self.http.get(&url).send().await?.error_for_status()?;
            let list: Value = answer.json().await?;
            let listed = list["items"].as_array().context("a list has items")?.len();
            ensure!(listed >= instances.min(1000), "it lists {listed}");
            anyhow::Ok(())
        });
        listed.await
    }
}

async fn present(client: &Client, n: usize) -> Result<()> {
    let app = json!({
        "metadata": {"name": format!("app-{n}")},
        "spec": {"hostname": format!("app-{n}.example.com"), "suspend": true, "postgres": {"enabled": false}},
    });
    let api: Api<ClientApp> = Api::namespaced(client.clone(), CROWDED);
    api.create(&PostParams::default(), &serde_json::from_value(app)?).await?;
    Ok(())
}

/// The objects that the API creates: a namespace, a ClientApp and the administrator's Secret.
async fn by_hand(client: &Client, name: &str) -> Result<()> {
    namespace(client, name).await?;
    let app = json!({
        "metadata": {"name": name},
        "spec": {
            "hostname": format!("{name}.example.com"),
            "redis": {"enabled": false}, "postgres": {"enabled": false}, "persistence": {"enabled": false},
        },
    });
    let api: Api<ClientApp> = Api::namespaced(client.clone(), name);
    api.create(&PostParams::default(), &serde_json::from_value(app)?).await?;
    let secret = json!({"metadata": {"name": format!("{name}-plain")}, "stringData": {"a": "b"}});
    let api: Api<Secret> = Api::namespaced(client.clone(), name);
    api.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}
