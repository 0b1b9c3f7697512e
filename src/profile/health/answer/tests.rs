use serde_json::json;

use super::*;

#[test]
fn what_an_answer_must_say() {
    let expected = json!({"path": "/status.php", "json": [
        {"pointer": "/installed", "value": true},
        {"pointer": "/maintenance", "value": false},
        {"pointer": "/versions/0/a~1b", "value": "31"},
    ]});
    let expected = serde_json::from_value(expected).unwrap();
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
