//! Repeated requests.

use futures::future::join_all;
use serde_json::json;

use crate::api::{Http, idle, make_namespace, ours, stamp, stored_password, with, with_hostname};

#[tokio::test]
async fn a_request_that_is_repeated_makes_one_instance() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let body = idle("again.api.example");
    let first = http.post_with_key("again", &body).await;
    let (namespace, name) = first.made();
    let password = first.word("adminPassword");
    // Spaces and the order of fields do not matter.
    for body in [body.to_string(), format!(" {body} ")] {
        let request = http.request(reqwest::Method::POST, "/instances").header("Idempotency-Key", "again");
        let again = crate::api::send(request.header("Content-Type", "application/json").body(body)).await;
        assert_eq!((again.status, again.header("idempotency-replayed")), (200, "true"), "{again:?}");
        assert_eq!((again.word("namespace"), again.word("name")), (namespace.clone(), name.clone()));
        assert_eq!(again.word("adminSecret"), format!("{name}-admin-secret"));
        assert!(again.json.get("adminPassword").is_none() && !again.text.contains(&password), "{again:?}");
        assert_eq!(again.header("location"), first.header("location"));
    }
    let other = http.post_with_key("again", &idle("other.again.example")).await;
    other.is_problem(409, "IdempotencyKeyReused", Some("Idempotency-Key"), "use a new key");
    assert!(with_hostname(&client, "other.again.example").await.is_empty());
    // Another key makes it another request.
    http.post_with_key("another", &body).await.is_problem(409, "HostnameConflict", Some("hostname"), "choose another");
    assert_eq!(with_hostname(&client, "again.api.example").await, [name]);
    let answer = http.post_with_key("a b", &body).await;
    answer.is_problem(422, "InvalidIdempotencyKey", Some("Idempotency-Key"), "1 to 255 visible ASCII");

    // The same with a name.
    let body = with(idle("named.again.example"), "name", "api-again");
    http.post_with_key("named", &body).await.made();
    let again = http.post_with_key("named", &body).await;
    assert_eq!((again.status, again.word("name")), (200, "api-again".to_owned()));
    let other = with(idle("other.named.example"), "name", "api-again");
    http.post_with_key("named", &other).await.is_problem(409, "IdempotencyKeyReused", Some("Idempotency-Key"), "key");
    http.post_with_key("unnamed", &other).await.is_problem(409, "NameTaken", Some("name"), "api-again/api-again");
}

#[tokio::test]
async fn at_the_same_moment() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    for round in 0..5 {
        let hostname = format!("moment-{round}.api.example");
        let (body, key) = (idle(&hostname), format!("moment-{round}"));
        let answers = join_all((0..6).map(|_| http.post_with_key(&key, &body))).await;
        let made: Vec<_> = answers.iter().filter(|answer| answer.status == 201).collect();
        assert_eq!(made.len(), 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 201) {
            match answer.status {
                200 => assert_eq!(answer.word("name"), made[0].word("name")),
                _ => answer.is_problem(409, "InProgress", None, "repeat it"),
            }
        }
        assert_eq!(with_hostname(&client, &hostname).await, [made[0].word("name")]);
    }
}

#[tokio::test]
async fn one_that_was_left_half_way_is_completed() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    // The state after an operator was killed right after it created the namespace.
    let body = idle("half-way.api.example");
    let half = stamp("half-way", &body);
    make_namespace(&client, &half.name(0), json!({"labels": ours(), "annotations": half.annotations()})).await;
    let other = http.post_with_key("half-way", &idle("other.half-way.example")).await;
    other.is_problem(409, "IdempotencyKeyReused", Some("Idempotency-Key"), "use a new key");
    let answer = http.post_with_key("half-way", &body).await;
    assert_eq!(answer.made(), (half.name(0), half.name(0)));
    let password = stored_password(&client, &half.name(0), &answer.word("adminSecret")).await;
    assert_eq!(answer.word("adminPassword"), password);

    // A name that another namespace happens to have is skipped, in the same way each time.
    let body = idle("by-chance.api.example");
    let chance = stamp("by-chance", &body);
    make_namespace(&client, &chance.name(0), json!({"labels": ours()})).await;
    assert_eq!(http.post_with_key("by-chance", &body).await.made().1, chance.name(1));
    let again = http.post_with_key("by-chance", &body).await;
    assert_eq!((again.status, again.word("name")), (200, chance.name(1)));
}
