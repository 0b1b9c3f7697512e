//! Random strings for every string field of every kind at the API server, and random bodies at the operator's HTTP API.
//! An **effect**.

mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clientapp_crd::GROUP;
use futures::{StreamExt as _, stream};
use http::Method;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use nix::sys::signal::Signal;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde_json::{Value, json};

use self::text::{bytes, damaged, hostile};
use super::specs::kind::{self, Kind};
use super::specs::schema::Field;
use crate::operator::{Operator, Options};
use crate::progress::Task;
use crate::proxy::Proxy;
use crate::random::oracle::{Condition, is_current};
use crate::random::requests::{Answer, WHOLE, ask};
use crate::random::stage::{Stage, database, postgres};
use crate::wait::within;

/// Requests at the same time: to the API server, and to the operator.
const IN_FLIGHT: usize = 32;
const POSTS: usize = 8;
/// Of what the API server accepts, so many objects of each kind are created.
const CREATED: usize = 8;
/// How long the operator may take to say something about an object, and to answer a request.
const ANSWERED: Duration = Duration::from_secs(120);
/// How long requests are counted, and how many an object may cause meanwhile: most are not Ready, and tried again.
const QUIET: Duration = Duration::from_secs(3);
const RETRIES: usize = 10;
/// The namespace of all objects, which the audit log leaves out: with ten thousand strings it would have gigabytes.
const NAMESPACE: &str = "unaudited";
/// The string fields of a request, each with a string that it may be.
const FIELDS: [(&str, &str, &str); 10] = [
    ("", "hostname", "acme.example.com"),
    ("", "ingressClassName", "nginx"),
    ("", "name", "acme"),
    ("", "namespace", "acme"),
    ("", "chartVersion", "5.5.2"),
    ("", "profile", "class"),
    ("/postgres", "version", "16"),
    ("/postgres", "storageSize", "1Gi"),
    ("/persistence", "size", "8Gi"),
    ("/persistence", "storageClassName", "kwok-volume"),
];

/// The outcome of sending strings.
#[derive(Debug, Default)]
pub struct Strings {
    pub sent: usize,
    pub accepted: usize,
    pub failures: Vec<String>,
}

/// Sends so many strings for each field.
///
/// # Errors
/// If the operator cannot be started.
pub async fn run(stage: &Stage, seed: u64, number: usize, task: &Task<'_>) -> Result<Strings> {
    let lab = stage.lab;
    let client = lab.tenant(NAMESPACE).await.client;
    let proxy = Proxy::start(&lab.operator_kubeconfig)?;
    let _sql = database("specs_strings", "people, others").await?;
    let environment = postgres()?.environment("specs_strings", "people, others");
    let options = Options { kubeconfig: proxy.kubeconfig(), environment, ..lab.options() };
    let mut operator = Operator::leading(&options)?;
    let mut found = Strings::default();

    let mut created = Vec::new();
    for kind in Kind::ALL {
        task.message(kind.name());
        let mut accepted = at_the_api_server(&client, kind, seed, number, &mut found).await?;
        accepted.shuffle(&mut StdRng::seed_from_u64(seed));
        accepted.truncate(CREATED);
        created.extend(accepted.into_iter().map(|(field, spec)| (kind, field, spec)));
    }
    task.message("the objects that are accepted");
    let objects = created.len();
    create(&client, created, &mut found).await?;
    task.message("the HTTP API");
    at_the_operator(&client, &operator.api_url()?, seed, number, &mut found).await?;

    let health = reqwest::get(format!("{}/healthz", operator.health_url()?)).await?.status();
    if !health.is_success() {
        found.failures.push(format!("after all that, GET /healthz is answered with {health}"));
    }
    let before = proxy.record().len();
    tokio::time::sleep(QUIET).await;
    let since = proxy.record().split_off(before).into_iter().filter(|request| !request.contains(" watch ")).count();
    if since > RETRIES * objects.max(1) {
        found.failures.push(format!("the operator sends {since} requests in {QUIET:?} about {objects} objects"));
    }
    // The objects stay: no other operator sees them.
    operator.signal(Signal::SIGTERM);
    operator.wait()?;
    let log = operator.log();
    found.failures.extend(log.lines().filter(|line| line.contains("panicked")).map(|line| format!("{line:.1000}")));
    Ok(found)
}

/// Sends strings for each field, as a dry run. Returns a spec for each field of which one was accepted.
async fn at_the_api_server(
    client: &Client,
    kind: Kind,
    seed: u64,
    number: usize,
    found: &mut Strings,
) -> Result<Vec<(Field, Value)>> {
    let (schema, url) = (kind.schema(), format!("{}?dryRun=All&fieldValidation=Strict", kind.url(NAMESPACE)));
    let least = kind.least().swap_remove(0);
    let mut taken = Vec::new();
    for (index, field) in (0..).zip(schema.fields().into_iter().filter(Field::is_string)) {
        let (mut random, sample) = (StdRng::seed_from_u64(seed.wrapping_add(index)), field.sample());
        let texts = (0..number).map(move |_| hostile(&sample, &mut random));
        let requests = texts.map(|text| {
            let spec = schema.with(&least, &field, json!(text));
            let (object, url) = (kind.object("strings", &spec), &url);
            async move { (ask(client, Method::POST, url, WHOLE, &object).await, text, spec) }
        });
        let mut answers = stream::iter(requests).buffer_unordered(IN_FLIGHT);
        let mut kept = None;
        while let Some((answer, text, spec)) = answers.next().await {
            found.sent += 1;
            let fault = match &answer {
                Ok(answer) => answer.fault(),
                Err(error) => Some(format!("there is no answer: {error:#}")),
            };
            if let Some(fault) = fault {
                let text = format!("{text:?}");
                found.failures.push(format!("{} {} as {text:.200}: {fault}", kind.name(), field.name()));
            }
            if matches!(answer, Ok(Answer::Accepted(_))) {
                found.accepted += 1;
                kept = kept.or(Some(spec));
            }
        }
        drop(answers);
        taken.extend(kept.map(|spec| (field, spec)));
    }
    Ok(taken)
}

/// Creates objects, and waits until the operator says something about each.
async fn create(client: &Client, objects: Vec<(Kind, Field, Value)>, found: &mut Strings) -> Result<()> {
    let post = async |kind: Kind, name: &str, spec: &Value| {
        ask(client, Method::POST, &kind.url(NAMESPACE), WHOLE, &kind.object(name, spec)).await?.accepted()
    };
    let mut awaited = Vec::new();
    for (number, (kind, field, mut spec)) in objects.into_iter().enumerate() {
        let name = format!("strings-{number}");
        let told = spec.to_string();
        let told = format!("{} with {}: {told:.400}", kind.name(), field.name());
        // Two with one hostname would be refused for that.
        let hostname = json!(format!("{name}.example.com"));
        if kind == Kind::ClientApp && field.name() != "hostname" {
            spec["hostname"] = hostname.clone();
        }
        let mut posted = post(kind, &name, &spec).await;
        let mut subject = kind;
        if kind == Kind::Profile && posted.is_ok() {
            let mut app = kind::app(Some(&name));
            app["hostname"] = hostname;
            subject = Kind::ClientApp;
            posted = post(subject, &name, &app).await;
        }
        match posted {
            Ok(_) => awaited.push((format!("{}/{name}", subject.url(NAMESPACE)), told)),
            Err(error) => found.failures.push(format!("{told} is only accepted as a dry run: {error:#}")),
        }
    }
    for (url, told) in awaited {
        let says = within(ANSWERED, "the operator says something", async || {
            let answer = ask(client, Method::GET, &url, WHOLE, &Value::Null).await;
            let object = answer.and_then(Answer::accepted).map_err(|error| format!("{error:#}"))?;
            if is_current(&object) { Ok(()) } else { Err(format!("{:?}", Condition::ready(&object))) }
        });
        found.failures.extend(says.await.err().map(|error| format!("{told}: {error:#}")));
    }
    Ok(())
}

/// Sends bodies to the HTTP API, with a string in each field, and some that are no JSON. What is refused leaves nothing
/// behind.
async fn at_the_operator(client: &Client, url: &str, seed: u64, number: usize, found: &mut Strings) -> Result<()> {
    let http = &reqwest::Client::new();
    let instances = &format!("{url}/instances");
    let is_in_sync = async || match http.get(instances).send().await {
        Ok(answer) => answer.status().is_success(),
        Err(_) => false,
    };
    within(ANSWERED, "the API is in sync", is_in_sync).await?;
    let before = present(client).await?;
    let mut made = BTreeSet::new();
    // One more row for bodies that are no JSON.
    for (index, row) in (0..).zip(FIELDS.iter().map(Some).chain([None])) {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(index));
        let bodies = (0..number).map(move |nth| body(row, &format!("s{index}-{nth}.example.com"), &mut random));
        let requests = bodies.map(|body| async move {
            let answer = post(http, instances, &body).await;
            (answer, body)
        });
        let mut answers = stream::iter(requests).buffer_unordered(POSTS);
        while let Some((answer, body)) = answers.next().await {
            found.sent += 1;
            let told = |what: String| format!("POST /instances with {:.400}: {what}", String::from_utf8_lossy(&body));
            match answer {
                Ok((200..300, instance)) => {
                    found.accepted += 1;
                    let word = |name: &str| instance[name].as_str().unwrap_or_default().to_owned();
                    let (namespace, name) = (word("namespace"), word("name"));
                    let path = format!("{instances}/{name}?namespace={namespace}");
                    let deleted = http.delete(path).timeout(ANSWERED).send().await.map(|answer| answer.status());
                    if !deleted.as_ref().is_ok_and(|status| !status.is_server_error()) {
                        found.failures.push(told(format!("the instance cannot be deleted again: {deleted:?}")));
                    }
                    made.extend([namespace.clone(), format!("{namespace}/{name}")]);
                }
                Ok((400..500, _)) => {}
                Ok((status, problem)) => found.failures.push(told(format!("{status} {}", problem["detail"]))),
                Err(error) => found.failures.push(told(format!("there is no answer: {error:#}"))),
            }
        }
    }
    let left = async || match present(client).await {
        Ok(now) => {
            let left: Vec<_> =
                now.into_iter().filter(|object| !before.contains(object) && !made.contains(object)).collect();
            let some = left.iter().take(10).collect::<Vec<_>>();
            if left.is_empty() { Ok(()) } else { Err(format!("refused requests have left {}: {some:?}", left.len())) }
        }
        Err(error) => Err(format!("{error:#}")),
    };
    // The operator takes its time to delete the instances of all these requests.
    if let Err(error) = within(ANSWERED, "what was refused has left nothing", left).await {
        found.failures.push(format!("{error:#}"));
    }
    Ok(())
}

/// A request with a string in a field, or bytes that are none. The chart version does not exist: what is accepted costs
/// no helm run.
fn body(field: Option<&(&str, &str, &str)>, hostname: &str, random: &mut StdRng) -> Vec<u8> {
    let off = json!({"enabled": false});
    let mut request = json!({
        "hostname": hostname, "chartVersion": "9.9.9", "redis": off, "postgres": off, "persistence": off,
    });
    let Some((parent, name, sample)) = field else {
        let bytes = bytes(random);
        let damaged = damaged(&request.to_string(), random);
        return if bytes.len().is_multiple_of(2) { bytes } else { damaged };
    };
    if let Some(Value::Object(parent)) = request.pointer_mut(parent) {
        parent.insert((*name).to_owned(), json!(hostile(sample, random)));
    }
    request.to_string().into_bytes()
}

/// The status and the JSON of an answer. A request that came too soon after others is sent again.
async fn post(http: &reqwest::Client, url: &str, body: &[u8]) -> Result<(u16, Value)> {
    within(ANSWERED, "the API takes the request", async || {
        let request = http.post(url).header("Content-Type", "application/json").body(body.to_vec()).timeout(ANSWERED);
        match request.send().await {
            Ok(answer) if answer.status().as_u16() == 429 => Err("429".to_owned()),
            Ok(answer) => {
                let status = answer.status().as_u16();
                Ok(Ok((status, answer.json::<Value>().await.unwrap_or_default())))
            }
            // Final.
            Err(error) => Ok(Err(error)),
        }
    })
    .await?
    .context("the connection was lost")
}

/// All namespaces, and all ClientApps in the cluster. A namespace that was deleted counts as gone: with ten thousand strings,
/// Kubernetes takes hours to remove all of them.
async fn present(client: &Client) -> Result<BTreeSet<String>> {
    let namespaces = Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await?;
    let url = format!("/apis/{GROUP}/v1alpha1/clientapps");
    let apps = ask(client, Method::GET, &url, WHOLE, &Value::Null).await?.accepted()?;
    let word = |app: &Value, name: &str| app["metadata"][name].as_str().unwrap_or_default().to_owned();
    let apps = apps["items"].as_array().into_iter().flatten();
    let apps = apps.map(|app| format!("{}/{}", word(app, "namespace"), word(app, "name")));
    let namespaces = namespaces.iter().filter(|namespace| namespace.metadata.deletion_timestamp.is_none());
    Ok(namespaces.map(|namespace| namespace.name_any()).chain(apps).collect())
}
