//! Requests that the API server refuses, or does not answer: the operator reports that at once, repeats few of them, and goes on as
//! soon as the API server answers again.

use std::time::Instant;

use clientapp_crd::PostgresWriter;
use e2e::lab::Object;
use serde::Serialize;

use super::*;

#[tokio::test]
async fn an_error_whose_words_vary_is_not_asked_for_over_and_over() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("varying", &[]).await;
    let began = Instant::now();
    proxy.set([Rule::new("patch", "postgresqls", Fault::AnswerAnew(StatusCode::INTERNAL_SERVER_ERROR))]);
    let spec = with(small(&tenant, "acme"), json!({"postgres": {"provider": "standalone"}}));
    tenant.create("acme", spec).await.unwrap();
    tenant.condition("acme", "Ready", "Unknown", "ApiUnavailable").await;
    installed(&tenant, "other").await;
    no_storm(&tenant, &proxy, "clientapps", began).await;
    proxy.set([]);
    tenant.ready("acme", 1).await;
}

/// Asserts that since then few requests met a fault, and few statuses were written.
async fn no_storm(tenant: &Tenant, proxy: &Proxy, kind: &str, since: Instant) {
    let requests = proxy.met();
    let write = format!("operator patch {kind}/status");
    let writes = tenant.requests().await.iter().filter(|asked| **asked == write).count();
    // A storm would make about fifty a second.
    let at_most = 3 + usize::try_from(since.elapsed().as_secs()).unwrap() / 2;
    assert!(requests <= at_most, "{requests} requests, and not {at_most}");
    assert!(writes <= 2 * at_most + 10, "{writes} writes, and not {at_most}");
}

/// The same for a request that is needed for an object of any kind, whose `Ready` has the reason `end` after the fault.
async fn probed<K: Object + Serialize>(
    Apart { tenant, proxy, .. }: &Apart,
    [verb, resource]: [&'static str; 2],
    spec: Value,
    end: &str,
) {
    let began = Instant::now();
    proxy.set([Rule::new(verb, resource, Fault::AnswerAnew(StatusCode::INTERNAL_SERVER_ERROR))]);
    let object =
        json!({"apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": "acme"}, "spec": spec});
    let object = serde_json::from_value(object).unwrap();
    tenant.api::<K>().create(&PostParams::default(), &object).await.unwrap();
    let told = async |reason: &str| {
        let ready = |found: Option<&K>| {
            let object = serde_json::to_value(found?).unwrap();
            let mut conditions = object["status"]["conditions"].as_array()?.iter();
            conditions.any(|found| found["type"] == "Ready" && found["reason"] == reason).then_some(())
        };
        tenant.wait_for("acme", reason, ready).await;
    };
    told("ApiUnavailable").await;
    proxy.met_more_than(4).await;
    no_storm(tenant, proxy, &K::plural(&()), began).await;
    proxy.set([]);
    told(end).await;
}

#[tokio::test]
async fn a_secret_of_an_app_that_cannot_be_created_is_not_asked_for_over_and_over() {
    let (apart, _operator) = operated("varying-app", &[]).await;
    let spec = small(&apart.tenant, "acme");
    probed::<ClientApp>(&apart, ["create", "secrets"], spec, "Ready").await;
}

#[tokio::test]
async fn a_secret_of_a_database_that_cannot_be_created_is_not_asked_for_over_and_over() {
    let (apart, _operator) = operated("varying-database", &[]).await;
    probed::<Postgresql>(&apart, ["create", "secrets"], json!({}), "Ready").await;
}

#[tokio::test]
async fn a_finalizer_of_a_row_that_cannot_be_written_is_not_asked_for_over_and_over() {
    let mut apart = Lab::unattended().await.apart("varying-row").await;
    // The unreachable database matters only after that.
    let variables =
        ["PSQL_HOST=127.0.0.1", "PSQL_PORT=1", "PSQL_DBNAME=a", "PSQL_USER=a", "PSQL_PASSWORD=a", "PSQL_TABLES=a"];
    let variables = variables.into_iter().filter_map(|variable| variable.split_once('='));
    apart.options.environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let _operator = leading(&apart.options).await;
    let spec = json!({"table": "a", "name": "Ada", "age": 36, "country": "UK"});
    probed::<PostgresWriter>(&apart, ["patch", "postgreswriters"], spec, "DatabaseUnavailable").await;
}

/// The operator's renewals of its Lease are the clock, with one tick a second: on a slow machine, both are slow.
async fn told_at_once_and_over_at_once(namespace: &str, fault: Fault) {
    const AT_ONCE: usize = 6;
    let (Apart { tenant, proxy, .. }, _operator) = operated(namespace, &[]).await;
    let (failing, told) = ("operator create secrets", "operator patch clientapps/status");
    let ticks = |record: &[String]| record.iter().filter(|asked| *asked == "operator patch leases").count();
    let first =
        |record: &[String], what: &str| record.iter().position(|asked| asked == what).expect("it was asked for");
    proxy.set([Rule::new("create", "secrets", fault)]);
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.condition("acme", "Ready", "Unknown", "ApiUnavailable").await;
    let record = proxy.record();
    let record = &record[first(&record, failing) + 1..];
    let record = &record[..first(record, told)];
    assert!(!record.iter().any(|asked| asked == failing), "it was tried again before it was told: {record:?}");
    assert!(ticks(record) <= AT_ONCE, "{record:?}");

    // The fault ends between two attempts.
    proxy.met_more_than(proxy.met()).await;
    let (before, requests) = (proxy.record().len(), tenant.requests().await.len());
    proxy.set([]);
    tenant.ready("acme", 1).await;
    let record = &proxy.record()[before..];
    let requests = &tenant.requests().await[requests..];
    // The administrator's, the one for Redis, and the one with the salt, once each.
    let created = requests.iter().filter(|asked| asked.starts_with(failing) && !asked.ends_with(" there")).count();
    assert!(created <= 3, "{requests:?}");
    assert!(ticks(&record[..first(record, told)]) <= AT_ONCE, "{record:?}");
}

#[tokio::test]
async fn an_api_server_that_refuses_requests_of_a_kind() {
    told_at_once_and_over_at_once("refused", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE)).await;
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_requests_of_a_kind() {
    told_at_once_and_over_at_once("unanswered", Fault::Hang).await;
}

/// A long Retry-After of the API server is not obeyed in full.
async fn is_asked_again_before(namespace: &str, status: StatusCode, seconds: u64) {
    let (Apart { tenant, proxy, .. }, mut operator) = operated(namespace, &[]).await;
    let fault = Fault::RetryAfter(status, seconds);
    let overloaded = Rule::new("*", "*", fault);
    // First while leading, then in the middle of a helm run, and then without the lead.
    let leads = Rule::new("*", "leases", Fault::Late(Duration::ZERO));
    let helm = Rule::new("patch", "services", fault);
    for (name, rules) in [("leading", vec![leads, overloaded.clone()]), ("helm", vec![helm]), ("all", vec![overloaded])]
    {
        proxy.set(rules);
        tenant.create(name, small(&tenant, name)).await.unwrap();
        if name == "all" {
            operator.wait_for_log("the lease is lost").unwrap();
        } else {
            // Each of these that meets a fault is retried.
            for _ in 0..3 {
                proxy.met_more_than(proxy.met()).await;
            }
        }
        proxy.set([]);
        tenant.ready(name, 1).await;
    }
}

#[tokio::test]
async fn an_api_server_that_asks_for_ten_minutes_is_asked_again_before() {
    is_asked_again_before("overloaded", StatusCode::SERVICE_UNAVAILABLE, 600).await;
}

#[tokio::test]
async fn an_api_server_with_too_many_requests_that_asks_for_a_second() {
    is_asked_again_before("too-many-1", StatusCode::TOO_MANY_REQUESTS, 1).await;
}

#[tokio::test]
async fn an_api_server_with_too_many_requests_that_asks_for_a_minute() {
    is_asked_again_before("too-many-60", StatusCode::TOO_MANY_REQUESTS, 60).await;
}

#[tokio::test]
async fn an_api_server_with_too_many_requests_that_asks_for_ten_minutes() {
    is_asked_again_before("too-many-600", StatusCode::TOO_MANY_REQUESTS, 600).await;
}
