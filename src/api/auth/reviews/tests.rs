use std::sync::Mutex;

use axum::http::{Request, Response};
use futures::future::join_all;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::{crd::ClientAppBackup, platform::fake};

const PEER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

/// Path and spec of each review.
type Asked = Arc<Mutex<Vec<(String, Value)>>>;

/// A cluster that answers every review with this status, and records the reviews.
fn cluster(status: Value) -> (Reviews, Asked) {
    let asked = Asked::default();
    let record = asked.clone();
    let client = fake::client(move |_, path, mut review| {
        record.lock().unwrap().push((path.to_owned(), review["spec"].clone()));
        review["status"] = status.clone();
        (201, review)
    });
    (Reviews::new(client, "ours".to_owned()), asked)
}

fn known() -> Value {
    let user = json!({
        "username": "jane", "uid": "7", "groups": ["devs"], "extra": {"scopes": ["read", "write"]},
    });
    json!({"authenticated": true, "audiences": ["other", "ours"], "user": user})
}

fn jane() -> User {
    let extra = [("scopes".to_owned(), vec!["read".to_owned(), "write".to_owned()])].into();
    User { name: "jane".to_owned(), groups: vec!["devs".to_owned()], uid: Some("7".to_owned()), extra }
}

#[tokio::test]
async fn a_token_is_reviewed_for_our_audience_and_once() {
    let (reviews, asked) = cluster(known());
    for _ in 0..3 {
        assert_eq!(reviews.user(Some("abc"), PEER).await, Ok(jane()));
    }
    let asked = asked.lock().unwrap().clone();
    let path = "/apis/authentication.k8s.io/v1/tokenreviews".to_owned();
    assert_eq!(asked, [(path, json!({"token": "abc", "audiences": ["ours"]}))]);
}

#[tokio::test]
async fn a_token_that_the_cluster_does_not_accept_for_us_is_refused() {
    let with = |change: fn(&mut Value)| {
        let mut status = known();
        change(&mut status);
        status
    };
    let cases = [
        ("nothing", Value::Null),
        ("not authenticated", with(|status| status["authenticated"] = json!(false))),
        ("silent about it", with(|status| status["authenticated"] = Value::Null)),
        ("no audience", with(|status| status["audiences"] = Value::Null)),
        ("another audience", with(|status| status["audiences"] = json!(["other"]))),
        ("no user", with(|status| status["user"] = Value::Null)),
        ("an empty user", with(|status| status["user"]["username"] = json!(""))),
    ];
    for (what, status) in cases {
        let (reviews, asked) = cluster(status);
        for times in 1..=2 {
            let problem = reviews.user(Some("abc"), PEER).await.expect_err(what);
            assert_eq!(problem.status(), StatusCode::UNAUTHORIZED, "{what}");
            assert!(problem.detail.contains("kubectl create token"), "{what}: {}", problem.detail);
            assert!(problem.detail.contains("--audience ours"), "{what}: {}", problem.detail);
            assert_eq!(asked.lock().unwrap().len(), times, "{what}: a no is not kept");
        }
    }
}

#[tokio::test]
async fn without_a_token_the_cluster_is_not_asked() {
    let (reviews, asked) = cluster(known());
    assert_eq!(reviews.user(None, PEER).await.unwrap_err().status(), StatusCode::UNAUTHORIZED);
    assert!(asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn guessing_ends_and_those_who_are_known_go_on() {
    let (reviews, asked) = cluster(known());
    reviews.user(Some("right"), PEER).await.unwrap();
    let mut attempts = 0;
    let problem = loop {
        attempts += 1;
        match reviews.user(Some(&attempts.to_string()), PEER).await {
            Ok(_) => {}
            Err(problem) => break problem,
        }
    };
    assert_eq!(problem.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(asked.lock().unwrap().len(), attempts, "what is refused is not asked");
    reviews.user(Some("right"), PEER).await.unwrap();
    reviews.user(Some("new"), IpAddr::from([192, 0, 2, 1])).await.unwrap();
}

#[tokio::test]
async fn a_right_is_asked_for_with_all_that_is_known_of_the_user() {
    let (reviews, asked) = cluster(json!({"allowed": true}));
    for _ in 0..3 {
        assert_eq!(reviews.allow::<ClientApp>(&jane(), "get", Some("tenant"), Some("acme")).await, Ok(()));
    }
    let asked = asked.lock().unwrap().clone();
    let attributes = json!({
        "verb": "get", "group": "apps.bnerd-operator.local", "version": "v1alpha1", "resource": "clientapps",
        "namespace": "tenant", "name": "acme",
    });
    let spec = json!({
        "user": "jane", "uid": "7", "groups": ["devs"], "extra": {"scopes": ["read", "write"]},
        "resourceAttributes": attributes,
    });
    assert_eq!(asked, [("/apis/authorization.k8s.io/v1/subjectaccessreviews".to_owned(), spec)]);
}

#[tokio::test]
async fn a_right_on_one_kind_is_none_on_another() {
    let client = fake::client(|_, _, mut review| {
        let resource = &review["spec"]["resourceAttributes"]["resource"];
        review["status"] = json!({"allowed": resource == "clientapps"});
        (201, review)
    });
    let reviews = Reviews::new(client, "ours".to_owned());
    assert_eq!(reviews.allow::<ClientApp>(&jane(), "create", Some("tenant"), None).await, Ok(()));
    let refused = reviews.allow::<ClientAppBackup>(&jane(), "create", Some("tenant"), None).await.unwrap_err();
    assert!(
        refused.detail.starts_with("clientappbackups.apps.bnerd-operator.local is forbidden"),
        "{}",
        refused.detail
    );
}

#[tokio::test]
async fn only_a_clear_yes_is_one() {
    for status in [json!(null), json!({"allowed": false}), json!({"allowed": true, "denied": true})] {
        let (reviews, asked) = cluster(status);
        let in_namespace = reviews.allow::<ClientApp>(&jane(), "create", Some("tenant"), None).await.unwrap_err();
        assert_eq!(in_namespace.status(), StatusCode::FORBIDDEN);
        assert_eq!(
            in_namespace.detail,
            "clientapps.apps.bnerd-operator.local is forbidden: User \"jane\" cannot create resource \"clientapps\" in \
                 API group \"apps.bnerd-operator.local\" in the namespace \"tenant\""
        );
        let everywhere = reviews.allow::<ClientApp>(&jane(), "list", None, None).await.unwrap_err();
        assert!(everywhere.detail.ends_with("at the cluster scope"), "{}", everywhere.detail);
        let one = reviews.allow::<ClientApp>(&jane(), "get", Some("tenant"), Some("acme")).await.unwrap_err();
        assert!(one.detail.starts_with("clientapps.apps.bnerd-operator.local \"acme\" is"), "{}", one.detail);
        assert_eq!(asked.lock().unwrap().len(), 3);
    }
}

#[tokio::test]
async fn requests_that_ask_the_same_at_the_same_time_have_one_answer() {
    for (status, known) in [(known(), true), (json!(null), false)] {
        let (reviews, asked) = cluster(status);
        // All are sent before the first is answered.
        let answers = join_all((0..20).map(|_| reviews.user(Some("abc"), PEER))).await;
        assert!(answers.iter().all(|answer| answer.is_ok() == known));
        assert_eq!(asked.lock().unwrap().len(), 1);
    }
    let (reviews, asked) = cluster(json!({"allowed": true}));
    let (jane, questions) = (jane(), ["acme", "globex"].repeat(10));
    let answers =
        questions.into_iter().map(|name| reviews.allow::<ClientApp>(&jane, "get", Some("tenant"), Some(name)));
    assert!(join_all(answers).await.iter().all(Result::is_ok));
    assert_eq!(asked.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_yes_is_kept_for_ten_seconds_and_a_refusal_not_at_all() {
    let (reviews, _) = cluster(known());
    for policy in [reviews.users.policy(), reviews.rights.policy()] {
        assert_eq!((policy.time_to_live(), policy.time_to_idle()), (Some(Duration::from_secs(10)), None));
        assert_eq!(policy.max_capacity(), Some(4096));
    }
    reviews.user(Some("abc"), PEER).await.unwrap();
    reviews.allow::<ClientApp>(&jane(), "get", None, None).await.unwrap_err();
    reviews.users.run_pending_tasks().await;
    reviews.rights.run_pending_tasks().await;
    assert_eq!((reviews.users.entry_count(), reviews.rights.entry_count()), (1, 0));
}

#[tokio::test]
async fn a_cluster_that_does_not_answer_lets_no_user_in() {
    let down = tower::service_fn(|_: Request<Body>| async {
        Err::<Response<Body>, _>(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
    });
    let forbidden = json!({"kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": ""});
    for client in [Client::new(down, "default"), fake::client(move |_, _, _| (403, forbidden.clone()))] {
        let reviews = Reviews::new(client, "ours".to_owned());
        let refusals = [
            reviews.user(Some("abc"), PEER).await.unwrap_err(),
            reviews.allow::<ClientApp>(&jane(), "list", None, None).await.unwrap_err(),
        ];
        for problem in refusals {
            assert_eq!(problem.status(), StatusCode::SERVICE_UNAVAILABLE);
        }
    }
}
