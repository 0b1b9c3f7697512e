//! Metrics, alerts and the dashboard: what they name exists, the alerts fire when they should, and a real Prometheus answers each
//! query with series of a real operator.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use clientapp_crd::Postgresql;
use e2e::helm::Ran;
use e2e::lab::{Apart, leading};
use e2e::manifests;
use e2e::prometheus::{Prometheus, promtool};
use k8s_openapi::api::core::v1::Secret;
use rcgen::date_time_ymd;

use super::profile::{create, patch, reported};
use super::tls::{certificate, secret as tls_secret};
use super::*;

/// The groups of rules, as in a file of Prometheus.
fn rules() -> Value {
    let text = fs::read_to_string(manifests::directory().join("components/alerts/prometheusrule.yaml")).unwrap();
    serde_yaml::from_str::<Value>(&text).unwrap()["spec"].take()
}

/// The alerts by name.
fn alerts() -> BTreeMap<String, Value> {
    let rules = rules()["groups"][0]["rules"].as_array().unwrap().clone();
    rules.into_iter().map(|rule| (rule["alert"].as_str().unwrap().to_owned(), rule)).collect()
}

/// The queries of the dashboard, each with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let text = fs::read_to_string(manifests::directory().join("components/dashboard/dashboard.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().unwrap().to_owned()))
    };
    panels.iter().flat_map(of_panel).collect()
}

/// The operator's metrics that are named in a text.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("clientapp_operator_")).map(str::to_owned).collect()
}

#[test]
fn every_alert_says_what_to_do_in_few_words_and_in_its_own_section() {
    let runbooks = fs::read_to_string(manifests::directory().join("runbooks.md")).unwrap();
    let sections: Vec<_> = runbooks.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let rules = rules()["groups"][0]["rules"].clone();
    let names: Vec<_> = rules.as_array().unwrap().iter().map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!(names, sections);
    for (name, rule) in alerts() {
        let annotation = |key: &str| rule["annotations"][key].as_str().unwrap_or_else(|| panic!("{name} has no {key}"));
        assert_eq!(annotation("runbook_url"), format!("manifests/runbooks.md#{}", name.to_lowercase()));
        for text in [annotation("summary"), annotation("description")] {
            assert!(text.split_whitespace().count() <= 30, "{name}: {text}");
        }
        assert!(["critical", "warning"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{name}");
    }
}

/// `e2e/fixtures/alerts.yaml` has the states.
#[test]
fn each_alert_fires_in_the_states_that_it_is_for_and_in_no_other() {
    let played = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/alerts.yaml")).unwrap();
    for name in alerts().keys() {
        assert!(played.contains(&format!("alertname=\"{name}\"")), "no state is for {name}");
    }
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("rules.yaml"), rules().to_string()).unwrap();
    fs::write(directory.path().join("alerts.yaml"), played).unwrap();
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "alerts.yaml"]] {
        let ran = Command::new(promtool().unwrap()).args(arguments).current_dir(&directory).output().unwrap();
        let ran = Ran::from(ran);
        assert!(ran.success, "promtool {arguments:?}: {}{}", ran.stdout, ran.stderr);
    }
}

#[tokio::test]
async fn prometheus_answers_every_query_with_series_of_the_operator() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("watched").await;
    let mut operator = leading(&options).await;
    let prometheus = Prometheus::start(&operator.health_url().unwrap(), &rules()).unwrap();

    // An app that is Ready, and one that is not because its Profile's revision has failed; everything with a time has one.
    let soon = (jiff::Timestamp::now() + jiff::SignedDuration::from_hours(2 * 24)).as_second();
    let expiring = certificate(&["*.watched.example.com"], |params| {
        params.not_after = date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(soon.unsigned_abs());
    });
    tenant.api::<Secret>().create(&PostParams::default(), &tls_secret(&expiring)).await.unwrap();
    let store = json!({"endpoint": "http://127.0.0.1:1", "bucket": "backups", "prefix": "prod", "credentialsSecret": {"name": "s3"}});
    let backup = json!({"schedule": "@yearly", "store": store});
    let more = json!({
        "profile": "watched", "ingressClassName": "traefik", "tls": {"secretName": "wildcard"},
        "persistence": {"enabled": true, "backup": backup},
    });
    create(&tenant, "watched", json!({"rollout": {"waves": [1], "soak": "0s"}})).await;
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    tenant.create("beta", with(small(&tenant, "beta"), json!({"profile": "watched"}))).await.unwrap();
    let database = json!({"metadata": {"name": "orders"}, "spec": {"backup": {"schedule": "@yearly"}}});
    let database: Postgresql = serde_json::from_value(database).unwrap();
    tenant.api::<Postgresql>().create(&PostParams::default(), &database).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.ready("beta", 1).await;
    patch(&tenant, "watched", json!({"helm": {"values": {"service": {"type": "Nonsense"}}}})).await;
    reported(&tenant, "watched", "False", "RolloutStopped", "watched/acme").await;
    // A reconcile that fails: the generated Secret exceeds a quota.
    tenant.quota("none", json!({"hard": {"secrets": "0"}})).await;
    tenant.create("poor", with(small(&tenant, "poor"), json!({"redis": {"enabled": true}}))).await.unwrap();
    tenant.held("poor", "QuotaExceeded", &[]).await;

    let values = [
        "clientapp_operator_apps_installed{profile='watched', profile_revision='2'} == 1".to_owned(),
        "clientapp_operator_apps_installed{profile='watched', profile_revision='1', chart_version='5.5.2'} == 1"
            .to_owned(),
        "clientapp_operator_rollout_wave{profile='watched'} == 1".to_owned(),
        "clientapp_operator_rollout_waves{profile='watched'} == 2".to_owned(),
        "clientapp_operator_files_last_successful_backup_timestamp_seconds{namespace='watched', name='acme'} == 0"
            .to_owned(),
        format!(
            "clientapp_operator_certificate_not_after_timestamp_seconds{{namespace='watched', name='acme'}} == {soon}"
        ),
    ];
    for (title, query) in queries().into_iter().chain(values.map(|query| ("a value".to_owned(), query))) {
        let query = query.replace("$__rate_interval", "5m");
        until(&format!("Prometheus has an answer to {title}: {query}"), async || {
            let data = prometheus.get("query", &[("query", &query)]).await.map_err(|error| format!("{error:#}"))?;
            let found = data["result"].as_array().is_some_and(|series| !series.is_empty());
            if found { Ok(()) } else { Err("it has none".to_owned()) }
        })
        .await;
    }

    // Prometheus accepts each rule, and all series that it reads exist.
    let told = prometheus.get("rules", &[]).await.unwrap();
    let names = prometheus.get("label/__name__/values", &[]).await.unwrap();
    let names: BTreeSet<String> = serde_json::from_value(names).unwrap();
    for (name, rule) in alerts() {
        let found = told["groups"][0]["rules"].as_array().unwrap().iter().find(|found| found["name"] == *name);
        assert_eq!(found.unwrap_or_else(|| panic!("no rule {name}"))["health"], "ok", "{name}");
        let missing: Vec<_> = metrics(rule["expr"].as_str().unwrap()).difference(&names).cloned().collect();
        assert_eq!(missing, [""; 0], "{name}");
    }
    // Those begin that this state is for, of the app's namespace and not of the operator's.
    let expected = [
        ("ClientAppCertificateExpiring", "watched/acme"),
        ("ClientAppNotReady", "ChartInvalid"),
        ("ClientAppNotReady", "QuotaExceeded"),
        ("ProfileRolloutStopped", "clientapp-operator//watched/RolloutStopped"),
    ];
    let expected = BTreeSet::from(expected.map(|(alert, subject)| (alert.to_owned(), subject.to_owned())));
    until("the alerts begin", async || {
        let active = prometheus.get("alerts", &[]).await.map_err(|error| format!("{error:#}"))?;
        let about = |alert: &Value| {
            let labels = &alert["labels"];
            let named = |label: &str| labels[label].as_str().unwrap_or_default().to_owned();
            let subject = ["namespace", "name", "profile", "reason"].map(named).join("/");
            (named("alertname"), subject.trim_matches('/').to_owned())
        };
        let begun: BTreeSet<_> = active["alerts"].as_array().unwrap().iter().map(about).collect();
        if begun.is_superset(&expected) { Ok(()) } else { Err(format!("{begun:?}")) }
    })
    .await;
}
