//! Server-sent events.

use e2e::lab::TIMEOUT;
use futures::StreamExt as _;
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Http, small, with};

/// The events of a stream, as name and data, until `last`.
async fn told(http: &Http, path: &str, mut last: impl FnMut(&str, &Value) -> bool) -> Vec<(String, Value)> {
    let response = http.request(Method::GET, path).send().await.unwrap();
    assert_eq!(response.status().as_u16(), 200);
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut chunks = response.bytes_stream();
    let (mut text, mut events) = (String::new(), Vec::new());
    tokio::time::timeout(TIMEOUT, async {
        while let Some(chunk) = chunks.next().await {
            text += std::str::from_utf8(&chunk.unwrap()).unwrap();
            while let Some((event, rest)) = text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
                if let (Some(name), Some(data)) = (field("event:"), field("data:")) {
                    events.push((name.to_owned(), serde_json::from_str(data).unwrap()));
                }
                text = rest.to_owned();
                if events.last().is_some_and(|(name, data)| last(name, data)) {
                    return;
                }
            }
        }
    })
    .await
    .unwrap_or_else(|_| panic!("the stream did not end after {events:#?}"));
    events
}

#[tokio::test]
async fn until_it_is_ready_and_until_it_is_gone() {
    let (lab, http) = Http::shared().await;
    let answer = http.post(&small("watched.api.example")).await;
    let (namespace, name) = answer.made();
    let path = format!("/instances/{name}/events?namespace={namespace}");
    // The server ends it.
    let events = told(&http, &path, |_, _| false).await;
    assert_eq!(events[0].0, "status", "{events:#?}");
    assert_eq!(events[0].1["name"], json!(name));
    let (last, instance) = events.last().unwrap();
    assert_eq!((last.as_str(), &instance["ready"]), ("ready", &json!("True")), "{events:#?}");
    assert_eq!(events.iter().filter(|(name, _)| name == "ready").count(), 1);
    let states: Vec<_> = events.iter().filter(|(name, _)| name == "status").map(|(_, instance)| instance).collect();
    assert!(states.windows(2).all(|pair| pair[0] != pair[1]), "{states:#?}");
    let password = answer.word("adminPassword");
    assert!(!format!("{events:?}").contains(&password) && !lab.operator_log().contains(&password));

    // Afterwards the stream repeats the events, once each, before it ends.
    let tenant_events = || told(&http, &path, |_, _| false);
    let events = crate::api::until("its Ready event is sent", async || {
        let events = tenant_events().await;
        events.iter().any(|(name, data)| name == "event" && data["reason"] == "Ready").then_some(events)
    })
    .await;
    let happened: Vec<_> = events.iter().filter(|(name, _)| name == "event").collect();
    assert!(happened.iter().all(|(_, data)| data["type"] == "Normal" && data["time"].is_string()), "{happened:#?}");
    assert_eq!(happened.iter().filter(|(_, data)| data["reason"] == "Ready").count(), 1, "{happened:#?}");
    assert_eq!(events.last().unwrap().0, "ready");

    // It can be followed until it is gone.
    let path = format!("/instances/{name}/events?follow=true");
    let (following, ready) = (std::sync::Mutex::new(false), tokio::sync::Notify::new());
    let follow = told(&http, &path, |name, data| {
        if data["ready"] == "True" {
            *following.lock().unwrap() = true;
            ready.notify_one();
        }
        name == "gone"
    });
    let delete = async {
        ready.notified().await;
        http.delete(&format!("/instances/{name}")).await
    };
    let (events, deleted) = tokio::join!(follow, delete);
    assert!([202, 204].contains(&deleted.status), "{deleted:?}");
    assert!(*following.lock().unwrap());
    let (last, data) = events.last().unwrap();
    assert_eq!((last.as_str(), &data["name"]), ("gone", &json!(name)));
    assert!(events.iter().all(|(name, _)| name != "ready"), "{events:#?}");
    assert!(events.iter().any(|(_, data)| data["deleting"] == true), "{events:#?}");
    http.get(&format!("{path}&fallow=1")).await.is_problem(400, "InvalidParameter", Some("fallow"), "is unknown");
}

#[tokio::test]
async fn one_that_cannot_become_ready_is_told_of_as_long_as_one_listens() {
    let (_, http) = Http::shared().await;
    let body = with(small("never.api.example"), "chartVersion", "9.9.9");
    let (_, name) = http.post(&body).await.made();
    let path = format!("/instances/{name}/events");
    let events = told(&http, &path, |name, data| name == "status" && data["reason"] == "ChartInvalid").await;
    assert!(events.iter().all(|(name, _)| name != "ready"), "{events:#?}");
}
