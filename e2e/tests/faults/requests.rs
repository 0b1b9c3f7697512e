//! Requests that the API server refuses, or does not answer: the operator reports that at once, repeats few of them, and goes on as
//! soon as the API server answers again.

use std::time::Instant;

use clientapp_crd::PostgresWriter;
use e2e::lab::Object;
use serde::Serialize;

use super::*;

/// Checks that during an outage few requests are repeated, and few statuses are written. The operator needs the request for
/// an object of this kind, whose `Ready` has the reason `end` after the fault.
async fn is_probed<K: Object + Serialize>(
    Apart { tenant, proxy, .. }: &Apart,
    name: &str,
    [verb, resource]: [&'static str; 2],
    spec: Value,
    end: &str,
) {
    let written = async || {
        let write = format!("operator patch {}/status", K::plural(&()));
        tenant.requests().await.iter().filter(|asked| **asked == write).count()
    };
    let (began, met, before) = (Instant::now(), proxy.met(), written().await);
    proxy.set([Rule::new(verb, resource, Fault::AnswerAnew(StatusCode::INTERNAL_SERVER_ERROR))]);
    let object = json!({"metadata": {"name": name}, "spec": spec});
    let object = serde_json::from_value(object).unwrap();
    tenant.api::<K>().create(&PostParams::default(), &object).await.unwrap();
    let told = async |reason: &str| {
        let ready = |found: Option<&K>| {
            let object = serde_json::to_value(found?).unwrap();
            let mut conditions = object["status"]["conditions"].as_array()?.iter();
            conditions.any(|found| found["type"] == "Ready" && found["reason"] == reason).then_some(())
        };
        tenant.wait_for(name, reason, ready).await;
    };
    told("ApiUnavailable").await;
    proxy.met_more_than(met + 4).await;
    let (requests, writes) = (proxy.met() - met, written().await - before);
    // A storm would make about fifty a second.
    let at_most = 3 + usize::try_from(began.elapsed().as_secs()).unwrap() / 2;
    assert!(requests <= at_most, "{name}: {requests} requests, and not {at_most}");
    assert!(writes <= 2 * at_most + 10, "{name}: {writes} writes, and not {at_most}");
    proxy.set([]);
    told(end).await;
}

#[tokio::test]
async fn an_error_of_an_app_whose_words_vary_is_not_asked_for_over_and_over() {
    let (apart, _operator) = operated("varying", &[]).await;
    let spec = with(small(&apart.tenant, "database"), json!({"postgres": {"provider": "standalone"}}));
    is_probed::<ClientApp>(&apart, "whole", ["patch", "postgresqls"], spec, "Ready").await;
    is_probed::<ClientApp>(&apart, "app", ["create", "secrets"], small(&apart.tenant, "app"), "Ready").await;
}

#[tokio::test]
async fn an_error_of_a_database_whose_words_vary_is_not_asked_for_over_and_over() {
    let mut apart = Lab::unattended().await.apart("varying-database").await;
    // The unreachable database matters only to a row that has its finalizer.
    let variables =
        ["PSQL_HOST=127.0.0.1", "PSQL_PORT=1", "PSQL_DBNAME=a", "PSQL_USER=a", "PSQL_PASSWORD=a", "PSQL_TABLES=a"];
    let variables = variables.into_iter().filter_map(|variable| variable.split_once('='));
    apart.options.environment = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let _operator = leading(&apart.options).await;
    is_probed::<Postgresql>(&apart, "db", ["create", "secrets"], json!({}), "Ready").await;
    let spec = json!({"table": "a", "name": "Ada", "age": 36, "country": "UK"});
    is_probed::<PostgresWriter>(&apart, "row", ["patch", "postgreswriters"], spec, "DatabaseUnavailable").await;
}

/// The operator's renewals of its Lease are the clock, with one tick a second: on a slow machine, both are slow.
#[tokio::test]
async fn an_api_server_that_refuses_or_does_not_answer_is_told_at_once_and_over_at_once() {
    let (apart, _operator) = operated("unanswered", &[]).await;
    told_at_once_and_over_at_once(&apart, "refused", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE)).await;
    told_at_once_and_over_at_once(&apart, "hung", Fault::Hang).await;
}

async fn told_at_once_and_over_at_once(Apart { tenant, proxy, .. }: &Apart, name: &str, fault: Fault) {
    const AT_ONCE: usize = 6;
    let (failing, told) = ("operator create secrets", "operator patch clientapps/status");
    let ticks = |record: &[String]| record.iter().filter(|asked| *asked == "operator patch leases").count();
    let first =
        |record: &[String], what: &str| record.iter().position(|asked| asked == what).expect("it was asked for");
    let before = proxy.record().len();
    proxy.set([Rule::new("create", "secrets", fault)]);
    tenant.create(name, small(tenant, name)).await.unwrap();
    tenant.condition(name, "Ready", "Unknown", "ApiUnavailable").await;
    let record = &proxy.record()[before..];
    let record = &record[first(record, failing) + 1..];
    let record = &record[..first(record, told)];
    assert!(!record.iter().any(|asked| asked == failing), "it was tried again before it was told: {record:?}");
    assert!(ticks(record) <= AT_ONCE, "{record:?}");

    // The fault ends between two attempts.
    proxy.met_more_than(proxy.met()).await;
    let (before, requests) = (proxy.record().len(), tenant.requests().await.len());
    proxy.set([]);
    tenant.ready(name, 1).await;
    let record = &proxy.record()[before..];
    let requests = &tenant.requests().await[requests..];
    // The administrator's, the one for Redis, and the one with the salt, once each.
    let created = requests.iter().filter(|asked| asked.starts_with(failing) && !asked.ends_with(" there")).count();
    assert!(created <= 3, "{requests:?}");
    assert!(ticks(&record[..first(record, told)]) <= AT_ONCE, "{record:?}");
}

/// A long Retry-After of the API server is not obeyed in full. Short ones are row 20 of the matrix.
#[tokio::test]
async fn an_api_server_that_asks_for_ten_minutes_is_asked_again_before() {
    let (Apart { tenant, proxy, .. }, operator) = operated("overloaded", &[]).await;
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS] {
        let fault = Fault::RetryAfter(status, 600);
        let overloaded = Rule::new("*", "*", fault);
        // First while leading, then in the middle of a helm run, and then without the lead.
        let leads = Rule::new("*", "leases", Fault::Late(Duration::ZERO));
        let helm = Rule::new("patch", "services", fault);
        for (when, rules) in
            [("leading", vec![leads, overloaded.clone()]), ("helm", vec![helm]), ("all", vec![overloaded])]
        {
            let name = &format!("{when}-{}", status.as_u16());
            let lost = || operator.log().matches("the lease is lost").count();
            let before = lost();
            proxy.set(rules);
            tenant.create(name, small(&tenant, name)).await.unwrap();
            if when == "all" {
                until("the lease is lost", async || lost() > before).await;
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
}
