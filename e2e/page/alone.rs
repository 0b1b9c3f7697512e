//! The page with an API of the test's own, for responses that an operator without authentication or with few instances
//! never gives.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use clientapp_operator::api::page;
use e2e::wait::until;
use jiff::{SignedDuration, Timestamp};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{DESK, fits, open, text, trials, was_quiet};

pub fn trials() -> Vec<Trial> {
    trials![
        a_token_is_asked_for_and_kept_for_the_tab,
        a_long_list_is_shown_part_by_part_and_filtered,
        a_revision_says_when_it_was_deployed,
        an_instance_is_backed_up_and_restored_by_users_who_may,
        what_the_policy_forbids_does_not_happen_and_is_seen,
    ]
}

/// Serves the page with these routes, and returns its address.
async fn serve(api: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, page::routes().merge(api)).await });
    url
}

fn instance(name: &str) -> Value {
    json!({
        "name": name, "namespace": "tenants", "hostname": format!("{name}.example.com"), "chartVersion": "5.5.2",
        "labels": {}, "created": "2026-01-02T03:04:05Z", "deleting": false, "suspended": false, "ready": "True",
        "reason": "Ready", "message": "All is well.", "reconciling": false, "stalled": false, "database": {}, "conditions": [],
    })
}

fn problem(status: StatusCode, detail: &str) -> Response {
    let body = json!({"status": status.as_u16(), "title": "Refused", "detail": detail, "reason": "Refused"});
    (status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
}

async fn a_token_is_asked_for_and_kept_for_the_tab() {
    let list = async |headers: HeaderMap| match headers.get(header::AUTHORIZATION).map(|value| value.as_bytes()) {
        Some(b"Bearer right") => Json(json!({"items": [instance("acme")]})).into_response(),
        Some(_) => problem(StatusCode::UNAUTHORIZED, "The cluster does not know this token."),
        None => problem(StatusCode::UNAUTHORIZED, "A token is needed."),
    };
    let url = serve(Router::new().route("/instances", get(list))).await;
    let tab = open(&format!("{url}/"), DESK).await;

    tab.wait("document.querySelector('#sign-in').open && document.activeElement.id === 'token'").await;
    tab.write("wrong").await;
    tab.press("Enter").await;
    let refusal = tab.wait("document.querySelector('#sign-in .problem').textContent").await;
    assert_eq!(refusal, "The cluster does not know this token.");
    assert_eq!(tab.evaluate("document.querySelector('#token').value").await.unwrap(), "");
    tab.write("right").await;
    tab.press("Enter").await;
    tab.wait("!document.querySelector('#sign-in').open && document.querySelector('#instances tbody tr')").await;

    // It survives a reload, but not the tab; no other tab has it.
    tab.evaluate("location.reload()").await.unwrap();
    tab.wait("document.querySelector('#instances tbody tr') && !document.querySelector('#sign-out').hidden").await;
    assert_eq!(tab.evaluate("[localStorage.length, document.cookie]").await.unwrap(), json!([0, ""]));

    tab.tab_to("#sign-out").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#sign-in').open && !document.querySelector('#instances tbody tr')").await;
    assert_eq!(tab.evaluate("sessionStorage.length").await.unwrap(), 0);
    tab.press("Escape").await;
    assert_eq!(tab.wait("document.querySelector('#problem').textContent").await, "A token is needed.");

    was_quiet(&tab, &url, &["401", "401", "401"]).await;
}

async fn a_long_list_is_shown_part_by_part_and_filtered() {
    let list = async |Query(query): Query<HashMap<String, String>>| {
        let start: usize = query.get("continue").map_or(0, |start| start.parse().unwrap());
        let end = start + query["limit"].parse::<usize>().unwrap();
        let items: Vec<_> = (start..end.min(60)).map(|number| instance(&format!("app-{number:02}"))).collect();
        Json(json!({"items": items, "continue": (end < 60).then(|| end.to_string())}))
    };
    let url = serve(Router::new().route("/instances", get(list))).await;
    let tab = open(&format!("{url}/"), DESK).await;

    let rows = "document.querySelectorAll('#instances tbody tr').length";
    tab.wait(&format!("{rows} === 50")).await;
    assert_eq!(text(&tab, "#count").await, "50 and more");
    tab.tab_to("#more").await;
    tab.press("Enter").await;
    tab.wait(&format!("{rows} === 60 && document.querySelector('#more').hidden")).await;
    assert_eq!(text(&tab, "#count").await, "60 instances");

    tab.evaluate("document.querySelector('#filter').focus()").await.unwrap();
    tab.write("APP-5").await;
    tab.wait(&format!("{rows} === 10")).await;
    assert_eq!(text(&tab, "#count").await, "10 of 60 instances");
    tab.write("x").await;
    tab.wait("!document.querySelector('#nothing').hidden").await;
    assert_eq!(text(&tab, "#nothing").await, "Nothing here matches “APP-5x”.");
    fits(&tab, "an empty list").await;

    was_quiet(&tab, &url, &[]).await;
}

// A time in the future is as good as now, and does not depend on how long the page takes.
async fn a_revision_says_when_it_was_deployed() {
    for (age, said) in [(-3600, "deployed just now"), (2 * 3600 + 60, "deployed 2 h ago")] {
        let deployed = (Timestamp::now() - SignedDuration::from_secs(age)).to_string();
        let mut acme = instance("acme");
        acme["revision"] = json!(1);
        acme["release"] = json!({"revision": 1, "status": "deployed", "deployedAt": deployed});
        let events = format!("event: ready\ndata: {acme}\n\n");
        let (shown, listed) = (acme.clone(), json!({"items": [acme]}));
        let api = Router::new()
            .route("/instances", get(async move || Json(listed)))
            .route("/instances/acme", get(async move || Json(shown)))
            .route(
                "/instances/acme/events",
                get(async move || ([(header::CONTENT_TYPE, "text/event-stream")], events)),
            );
        let tab = open(&format!("{}/#/tenants/acme", serve(api).await), DESK).await;
        tab.wait(&format!("document.querySelector('#facts').textContent.includes('{said}')")).await;
    }
}

/// Routes of one instance whose backups and restores complete once they have been seen, and the bodies of requests for more.
fn with_backups(allow: &'static str) -> (Router, Arc<Mutex<Vec<Value>>>) {
    let requested = Arc::<Mutex<Vec<Value>>>::default();
    let events = format!("event: status\ndata: {}\n\n", instance("acme"));
    let mut api = Router::new()
        .route("/instances/acme", get(async || Json(instance("acme"))))
        .route("/instances/acme/events", get(async move || ([(header::CONTENT_TYPE, "text/event-stream")], events)));
    for kind in ["backup", "restore"] {
        let items = Arc::<Mutex<Vec<Value>>>::default();
        let (all, bodies) = (items.clone(), requested.clone());
        let list = async move || {
            let mut all = all.lock().unwrap();
            let answer = ([(header::ALLOW, allow)], Json(json!({"items": *all})));
            all.iter_mut().for_each(|item| item["phase"] = json!("Completed"));
            answer
        };
        let make = async move |Json(body): Json<Value>| {
            let made = json!({"name": format!("{kind}-1"), "phase": "Running", "message": "It goes on.",
                "created": "2026-01-02T03:04:05Z", "backup": body["backup"]});
            bodies.lock().unwrap().push(body);
            items.lock().unwrap().push(made.clone());
            (StatusCode::CREATED, Json(made))
        };
        api = api.route(&format!("/instances/acme/{kind}s"), get(list).post(make));
    }
    (api, requested)
}

async fn an_instance_is_backed_up_and_restored_by_users_who_may() {
    let (api, requested) = with_backups("GET, HEAD, POST");
    let url = serve(api).await;
    let tab = open(&format!("{url}/#/tenants/acme"), DESK).await;
    tab.wait("!document.querySelector('#back-up').hidden && !document.querySelector('#no-backups').hidden").await;
    tab.tab_to("#back-up").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#backups tbody')?.textContent.includes('Completed')").await;
    fits(&tab, "backups").await;

    // The question names the instance and the backup, and Escape is no.
    tab.tab_to("#backups button").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#restore').open").await;
    assert_eq!(text(&tab, "#restore-title").await, "Restore acme?");
    assert!(text(&tab, "#restore-note").await.contains("those of the backup backup-1"));
    tab.press("Escape").await;
    tab.wait("!document.querySelector('#restore').open && document.activeElement.matches('#backups button')").await;
    tab.press("Enter").await;
    tab.wait("document.querySelector('#restore').open").await;
    tab.tab_to("#restore [type=submit]").await;
    tab.press("Enter").await;
    let restored = "[...document.querySelectorAll('#backups tbody tr')]
        .some((row) => /Restore of backup-1.*Completed/.test(row.textContent))";
    tab.wait(&format!("!document.querySelector('#restore').open && {restored}")).await;
    assert_eq!(*requested.lock().unwrap(), [json!({}), json!({"backup": "backup-1"})]);
    was_quiet(&tab, &url, &[]).await;

    // Users who may only read see no button, and users who may not read see nothing of it.
    let (api, _) = with_backups("GET, HEAD");
    let url = serve(api).await;
    let tab = open(&format!("{url}/#/tenants/acme"), DESK).await;
    tab.wait("!document.querySelector('#backups-section').hidden && document.querySelector('#back-up').hidden").await;
    was_quiet(&tab, &url, &[]).await;
    let refuse = async || problem(StatusCode::FORBIDDEN, "You may not list them.");
    let api = Router::new()
        .route("/instances/acme", get(async || Json(instance("acme"))))
        .route("/instances/acme/{kind}", get(refuse));
    let tab = open(&format!("{}/#/tenants/acme", serve(api).await), DESK).await;
    tab.wait("!document.querySelector('#detail-body').hidden && !document.querySelector('#problem').hidden").await;
    assert_eq!(tab.evaluate("document.querySelector('#backups-section').hidden").await.unwrap(), true);
}

async fn what_the_policy_forbids_does_not_happen_and_is_seen() {
    let list = async || Json(json!({"items": [instance("acme")]}));
    let url = serve(Router::new().route("/instances", get(list))).await;
    let tab = open(&format!("{url}/"), DESK).await;
    tab.wait("document.querySelector('#instances tbody tr')").await;
    was_quiet(&tab, &url, &[]).await;

    // Without this, a test that sees no complaint would prove nothing.
    let markup = "document.body.innerHTML = '<img src=x onerror=alert(1)>'";
    assert!(tab.evaluate(markup).await.unwrap_err().to_string().contains("TrustedHTML"));
    let fetched = tab.evaluate("fetch('http://192.0.2.1/').then(() => 'fetched', () => 'refused')").await.unwrap();
    assert_eq!(fetched, "refused");
    tab.evaluate("console.error('seen')").await.unwrap();
    for expected in ["TrustedHTML", "192.0.2.1", "seen"] {
        let complains = async || {
            let complaints = tab.complaints();
            let found = complaints.iter().any(|complaint| complaint.contains(expected));
            if found { Ok(()) } else { Err(format!("{complaints:#?}")) }
        };
        until(&format!("{expected} is among the complaints"), complains).await;
    }
}
