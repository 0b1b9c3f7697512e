use serde_json::json;

use super::*;

const READY: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(READY + seconds).unwrap()
}

fn check(given: Value) -> HealthCheck {
    let mut check = json!({"path": "/status.php"});
    check.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
    serde_json::from_value(check).unwrap()
}

fn app(name: &str, revision: i64) -> AppView {
    AppView {
        key: Key::new("ns", name),
        uid: name.to_owned(),
        revision: Some(revision),
        is_canary: false,
        is_out: false,
        health: Health::Ready(at(0)),
        unhealthy: None,
    }
}

/// One app, of a Profile whose soak is a minute.
struct Played {
    checks: Checks,
    check: HealthCheck,
    revision: &'static str,
    ready_since: Timestamp,
    question: Option<Question>,
}

impl Played {
    fn new(check: HealthCheck) -> Played {
        Played { checks: Checks::default(), check, revision: "team-2", ready_since: at(0), question: None }
    }

    /// Returns how the app does at this time, whether it is asked, and when it is to be asked again.
    fn at(&mut self, seconds: i64) -> (Health, bool, Option<i64>) {
        let judged = Judged { revision: (2, self.revision), check: &self.check, soak: SignedDuration::from_mins(1) };
        let mut apps = [AppView { health: Health::Ready(self.ready_since), ..app("acme", 2) }];
        let (mut due, next) = self.checks.judge(("team", "p"), judged, &mut apps, at(seconds));
        let is_asked = !due.is_empty();
        if is_asked {
            self.question = due.pop();
        }
        (apps[0].health, is_asked, next.map(|next| next.as_second() - READY))
    }

    fn answers(&self, outcome: Outcome, seconds: i64) {
        self.checks.record(self.question.as_ref().unwrap(), outcome, at(seconds));
    }
}

fn wrong() -> Outcome {
    Outcome::Wrong("it says no".to_owned())
}

#[test]
fn an_app_is_asked_once_it_is_ready_and_at_the_end_of_its_soak() {
    let mut app = Played::new(check(json!({})));
    assert_eq!(app.at(0), (Health::Waits, true, None));
    // It is being asked.
    assert_eq!(app.at(1), (Health::Waits, false, None));
    app.answers(Outcome::Right, 2);
    assert_eq!(app.at(2), (Health::Ready(at(0)), false, Some(60)));
    assert_eq!(app.at(60), (Health::Waits, true, None));
    app.answers(Outcome::Right, 61);
    assert_eq!(app.at(61), (Health::Ready(at(0)), false, None));
    assert_eq!(app.at(99_999), (Health::Ready(at(0)), false, None));
    app.checks.forget("p");
    // As after a restart.
    assert_eq!(app.at(100_000), (Health::Waits, true, None));
    app.answers(Outcome::Right, 100_001);
    assert_eq!(app.at(100_001), (Health::Ready(at(0)), false, None));
}

#[test]
fn an_app_that_answers_wrongly_waits_and_fails_and_comes_back() {
    let mut app = Played::new(check(json!({"periodSeconds": 20, "failureThreshold": 3})));
    app.at(0);
    for asked in [0, 20, 40] {
        app.answers(wrong(), asked);
        let health = if asked == 40 { Health::Failed } else { Health::Waits };
        assert_eq!(app.at(asked + 1), (health, false, Some(asked + 20)));
        assert_eq!(app.at(asked + 20), (health, true, None));
    }
    // That the API server does not answer is not the app's failure, nor its recovery.
    app.answers(Outcome::Unknown("no".to_owned()), 60);
    assert_eq!(app.at(80), (Health::Failed, true, None));
    app.answers(Outcome::Right, 80);
    // The soak begins anew.
    assert_eq!(app.at(81), (Health::Ready(at(80)), false, Some(140)));
    assert_eq!(app.at(140), (Health::Waits, true, None));
    app.answers(Outcome::Right, 140);
    assert_eq!(app.at(141), (Health::Ready(at(80)), false, None));
}

#[test]
fn an_api_server_that_does_not_answer_fails_no_app() {
    let mut app = Played::new(check(json!({"failureThreshold": 1})));
    app.at(0);
    for asked in [0, 10, 20] {
        app.answers(Outcome::Unknown("no".to_owned()), asked);
        assert_eq!(app.at(asked + 10), (Health::Waits, true, None));
    }
    app.answers(Outcome::Right, 30);
    assert_eq!(app.at(31), (Health::Ready(at(0)), false, Some(60)));
}

#[test]
fn an_answer_says_nothing_about_another_state_of_the_app() {
    let change: [fn(&mut Played); 3] = [
        |app| app.revision = "team-2-of-another-profile",
        |app| app.ready_since = at(5),
        |app| app.check = check(json!({"port": 8080})),
    ];
    for change in change {
        let mut app = Played::new(check(json!({})));
        app.at(0);
        app.answers(Outcome::Right, 1);
        change(&mut app);
        let asked_before = app.question.clone();
        assert_eq!(app.at(6), (Health::Waits, true, None));
        // Nor does an answer that is late.
        app.checks.record(&asked_before.unwrap(), Outcome::Right, at(7));
        assert_eq!(app.at(7), (Health::Waits, false, None));
    }
    let app = Played::new(check(json!({})));
    let question = Question {
        profile: ("team".to_owned(), "p".to_owned()),
        app: Key::new("ns", "gone"),
        uid: "gone".to_owned(),
        subject: Subject { revision: "team-2".to_owned(), ready_since: at(0), check: app.check.clone() },
    };
    app.checks.record(&question, Outcome::Right, at(0));
    assert!(app.checks.0.lock().is_empty());
}

#[test]
fn only_apps_that_are_ready_with_the_revision_and_count_are_asked() {
    let mut apps = [app("a", 2), app("b", 1), app("c", 2), app("d", 2), app("e", 2)];
    apps[2].is_out = true;
    apps[3].health = Health::Waits;
    apps[4].health = Health::Failed;
    let (checks, asked) = (Checks::default(), check(json!({})));
    let judged = Judged { revision: (2, "team-2"), check: &asked, soak: SignedDuration::ZERO };
    let (due, next) = checks.judge(("team", "p"), judged, &mut apps, at(9));
    assert_eq!(due.iter().map(|question| question.uid.as_str()).collect::<Vec<_>>(), ["a"]);
    checks.record(&due[0], wrong(), at(9));
    assert_eq!(next, None);
    apps[0].health = Health::Ready(at(0));
    let (due, next) = checks.judge(("team", "p"), judged, &mut apps, at(9));
    assert_eq!((due.len(), next), (0, Some(at(19))));
    assert_eq!((apps[0].health, apps[0].unhealthy.as_deref()), (Health::Waits, Some("it says no")));
    // Without a soak, one answer is enough.
    let (due, _) = checks.judge(("team", "p"), judged, &mut [app("a", 2)], at(19));
    checks.record(&due[0], Outcome::Right, at(20));
    let mut apps = [app("a", 2)];
    assert_eq!(checks.judge(("team", "p"), judged, &mut apps, at(20)).1, None);
    assert_eq!(apps[0].health, Health::Ready(at(20)));
}

#[test]
fn what_an_answer_must_say() {
    let expected = json!({"json": [
        {"pointer": "/installed", "value": true},
        {"pointer": "/maintenance", "value": false},
        {"pointer": "/versions/0/a~1b", "value": "31"},
    ]});
    let expected = check(expected);
    let right = json!({"installed": true, "maintenance": false, "versions": [{"a/b": "31"}]});
    let with = |pointer: &str, value: Value| {
        let mut answer = right.clone();
        *answer.pointer_mut(pointer).unwrap() = value;
        answer.to_string()
    };
    for (answer, problem) in [
        (right.to_string(), None),
        (with("/maintenance", json!(true)), Some("says /maintenance true, expected false")),
        (with("/installed", json!("true")), Some("says /installed \"true\", expected true")),
        (with("/installed", json!(null)), Some("says /installed null, expected true")),
        (with("/installed", json!(1.5)), Some("says /installed 1.5, expected true")),
        (with("/installed", json!({"secret": "s3cr3t"})), Some("says /installed an object, expected true")),
        (with("/installed", json!(["s3cr3t"])), Some("says /installed a list, expected true")),
        (with("/installed", json!("s".repeat(33))), Some("says /installed a long text, expected true")),
        (with("/installed", json!("a\u{202e}\n")), Some("says /installed a long text, expected true")),
        (with("/versions", json!([])), Some("says nothing about /versions/0/a~1b, expected \"31\"")),
        ("[]".to_owned(), Some("says nothing about /installed, expected true")),
        (String::new(), Some("does not answer JSON")),
        ("<html>".to_owned(), Some("does not answer JSON")),
        (format!("{}{}", "[".repeat(9999), "]".repeat(9999)), Some("does not answer JSON")),
    ] {
        let problem = problem.map_or(Ok(()), |problem| Err(format!("/status.php {problem}")));
        assert_eq!(content_is_right(&expected, answer.as_bytes()), problem, "{answer}");
    }
}

#[test]
fn the_service_of_an_app() {
    let service = |name: &str, objects: Value| {
        let app = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": name, "namespace": "ns"}, "spec": {"hostname": "acme.example.com"},
            "status": {"inventory": {"secret": "uid", "objects": objects}},
        });
        super::service(&serde_json::from_value(app).unwrap(), "nextcloud")
    };
    let object = |api_version: &str, kind: &str, name: &str, namespace: Option<&str>| {
        let mut object = json!({"apiVersion": api_version, "kind": kind, "name": name});
        if let Some(namespace) = namespace {
            object["namespace"] = json!(namespace);
        }
        object
    };
    let of =
        |name: &str| json!([object("v1", "Service", "acme-redis", None), object("v1", "Service", name, Some("ns"))]);
    assert_eq!(service("acme", of("acme-nextcloud")).as_deref(), Ok("acme-nextcloud"));
    assert_eq!(service("my-nextcloud", of("my-nextcloud")).as_deref(), Ok("my-nextcloud"));
    for objects in [
        json!([]),
        json!([object("v1", "ConfigMap", "acme-nextcloud", None)]),
        json!([object("serving.knative.dev/v1", "Service", "acme-nextcloud", None)]),
        json!([object("v1", "Service", "acme-nextcloud", Some("other"))]),
        of("acme-files"),
    ] {
        let missing = Err("its release has no Service acme-nextcloud (nameOverride?)".to_owned());
        assert_eq!(service("acme", objects.clone()), missing, "{objects}");
    }
}

#[test]
fn the_address_of_a_service() {
    let ports = json!([
        {"name": "dns", "port": 53, "protocol": "UDP"}, {"name": "metrics", "port": 9205}, {"name": "http", "port": 8080, "protocol": "TCP"},
    ]);
    let plain = json!({"clusterIP": "10.96.0.7", "selector": {"app": "acme"}, "ports": ports});
    let with = |more: Value| {
        let mut spec = plain.clone();
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        spec
    };
    let (number, text) = (IntOrString::Int, |name: &str| IntOrString::String(name.to_owned()));
    for (spec, port, expected) in [
        (plain.clone(), None, Ok("10.96.0.7:8080")),
        (with(json!({"type": "NodePort", "clusterIP": "fd00::7"})), None, Ok("[fd00::7]:8080")),
        (with(json!({"type": "LoadBalancer", "ports": [{"port": 80}]})), None, Ok("10.96.0.7:80")),
        (plain.clone(), Some(number(9205)), Ok("10.96.0.7:9205")),
        (plain.clone(), Some(text("metrics")), Ok("10.96.0.7:9205")),
        (plain.clone(), Some(number(80)), Err("Service acme has no port 80")),
        (plain.clone(), Some(number(53)), Err("Service acme has no port 53")),
        (plain.clone(), Some(text("dns")), Err("Service acme has no port dns")),
        (with(json!({"ports": []})), None, Err("Service acme has no port")),
        (
            with(json!({"type": "ExternalName", "externalName": "169.254.169.254"})),
            None,
            Err("Service acme is of type ExternalName"),
        ),
        (with(json!({"selector": null})), None, Err("Service acme selects no pods")),
        (with(json!({"selector": {}})), None, Err("Service acme selects no pods")),
        (with(json!({"clusterIP": "None"})), None, Err("Service acme has no address inside the cluster")),
        (with(json!({"clusterIP": ""})), None, Err("Service acme has no address inside the cluster")),
    ] {
        let service = serde_json::from_value(json!({"metadata": {"name": "acme"}, "spec": spec})).unwrap();
        let found = address(&service, port.as_ref()).map(|address| address.to_string());
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{spec} {port:?}");
    }
}
