//! Values from Secrets and ConfigMaps: they arrive, are followed, awaited and checked, and what comes from a Secret is not told.

use std::collections::BTreeMap;

use clientapp_crd::ClientApp;
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::scenario::{small, with};
use e2e::tools;
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::boundary::permit;

/// A Secret or ConfigMap.
fn api(tenant: &Tenant, kind: &str) -> Api<DynamicObject> {
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", kind));
    Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &kind)
}

/// Creates an object with one key.
async fn put(tenant: &Tenant, kind: &str, name: &str, key: &str, text: &str) {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    let object = serde_json::from_value(json!({"metadata": {"name": name}, field: {key: text}})).unwrap();
    api(tenant, kind).create(&PostParams::default(), &object).await.unwrap();
}

/// Changes a key of an object.
async fn change(tenant: &Tenant, kind: &str, name: &str, key: &str, text: &str) {
    let field = if kind == "Secret" { "stringData" } else { "data" };
    let patch = Patch::Merge(json!({field: {key: text}}));
    api(tenant, kind).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

fn from(kind: &str, name: &str, more: Value) -> Value {
    with(json!({"kind": kind, "name": name}), more)
}

/// The annotations that the chart gives the app's pods.
async fn deployed(tenant: &Tenant) -> Vec<(String, String)> {
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let annotations = deployment.spec.unwrap().template.metadata.unwrap().annotations.unwrap_or_default();
    annotations.into_iter().filter(|(key, _)| key.starts_with("my-")).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// How often the operator has read a kind in the namespace.
async fn read(tenant: &Tenant, kind: &str) -> usize {
    let what = format!("operator get {kind}/");
    tenant.requests().await.iter().filter(|asked| **asked == what).count()
}

/// Waits until the operator has looked at the app again.
async fn looked_at(tenant: &Tenant, deletion_policy: &str) {
    let app = tenant.patch("acme", json!({"deletionPolicy": deletion_policy})).await.unwrap();
    let seen = app.metadata.generation;
    tenant.status("acme", "looked at", |status| status.observed_generation == seen).await;
}

#[tokio::test]
async fn values_from_elsewhere_are_installed_and_followed() {
    let tenant = Lab::shared().await.tenant("values-from").await;
    put(&tenant, "ConfigMap", "settings", "values.yaml", "podAnnotations: {my-colour: blue, my-size: S, my-pin: none}")
        .await;
    put(&tenant, "Secret", "pin", "pin", "0123").await;
    let sources = json!([
        from("ConfigMap", "settings", json!({})),
        from("Secret", "pin", json!({"valuesKey": "pin", "targetPath": "podAnnotations.my-pin"})),
        from("Secret", "absent", json!({"optional": true})),
    ]);
    let more = json!({"valuesFrom": sources, "values": {"podAnnotations": {"my-size": "L"}}});
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(deployed(&tenant).await, pairs(&[("my-colour", "blue"), ("my-pin", "0123"), ("my-size", "L")]));

    change(&tenant, "Secret", "pin", "pin", "4567").await;
    tenant.ready("acme", 2).await;
    change(&tenant, "ConfigMap", "settings", "values.yaml", "podAnnotations: {my-colour: red}").await;
    tenant.ready("acme", 3).await;
    tenant.event("acme", "ValuesChanged", "other values in ConfigMap settings, key values.yaml").await;
    assert_eq!(deployed(&tenant).await, pairs(&[("my-colour", "red"), ("my-pin", "4567"), ("my-size", "L")]));
    put(&tenant, "Secret", "absent", "values.yaml", "podAnnotations: {my-colour: green}").await;
    tenant.ready("acme", 4).await;
    assert_eq!(deployed(&tenant).await[0], ("my-colour".to_owned(), "green".to_owned()));

    // Other changes of the objects are looked at, and change nothing.
    for (kind, name, arguments) in [
        ("secrets", "pin", ["label", "secret", "pin", "a=b"]),
        ("configmaps", "settings", ["annotate", "configmap", "settings", "a=b"]),
    ] {
        let before = read(&tenant, kind).await;
        tenant.kubectl(&arguments).unwrap();
        until(&format!("{name} is read again"), async || read(&tenant, kind).await > before).await;
    }
    looked_at(&tenant, "Retain").await;
    tenant.ready("acme", 4).await;
    // A reconcile without such a change reads nothing, nor does an object that the app does not use.
    let before = (read(&tenant, "secrets").await, read(&tenant, "configmaps").await);
    put(&tenant, "ConfigMap", "other", "values.yaml", "a: 1").await;
    put(&tenant, "Secret", "other", "values.yaml", "a: 1").await;
    looked_at(&tenant, "Delete").await;
    assert_eq!((read(&tenant, "secrets").await, read(&tenant, "configmaps").await), before);
    assert_eq!(tenant.listed("acme").unwrap().0, "4");
}

/// The strategy of an app's Deployment: null in the values removes the chart's default, Recreate.
async fn strategy(tenant: &Tenant, app: &str) -> Option<String> {
    let deployment = tenant.api::<Deployment>().get_opt(&format!("{app}-nextcloud")).await.unwrap()?;
    deployment.spec?.strategy?.type_
}

/// `kubectl apply` leaves null out, of what it creates and of its patches.
#[tokio::test]
async fn a_null_of_a_file_reaches_the_release_by_the_documented_ways() {
    let tenant = Lab::shared().await.tenant("values-null").await;
    let unset = json!({"nextcloud": {"strategy": {"type": null}}});
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let applied = |name: &str, more: &Value, flags: &[&str]| {
        let object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": name},
            "spec": with(small(&tenant, name), more.clone()),
        });
        std::fs::write(file.path(), object.to_string()).unwrap();
        tenant.kubectl(&[&["apply", "-f", path], flags].concat()).unwrap();
    };
    let stored = async |name: &str| tenant.api::<ClientApp>().get(name).await.unwrap().spec.values;
    let strategic = async |name: &str, expected: &str| {
        until(&format!("{name} has the strategy {expected}"), async || {
            strategy(&tenant, name).await.as_deref() == Some(expected)
        })
        .await;
    };

    // The same file, applied for the first time, and again.
    for more in [json!({"values": unset}), json!({}), json!({"values": unset})] {
        applied("acme", &more, &[]);
        // That of Kubernetes 1.30 keeps it in an object that it creates.
        if !tools::is_oldest().unwrap() {
            assert_ne!(json!(stored("acme").await), unset, "kubectl loses it");
        }
    }
    strategic("acme", "Recreate").await;
    applied("acme", &json!({"values": unset}), &["--server-side", "--force-conflicts"]);
    assert_eq!(json!(stored("acme").await), unset);
    strategic("acme", "RollingUpdate").await;

    put(&tenant, "ConfigMap", "settings", "values.yaml", "nextcloud: {strategy: {type: Recreate}}").await;
    let from_map = json!({"valuesFrom": [from("ConfigMap", "settings", json!({}))]});
    applied("from", &from_map, &[]);
    tenant.ready("from", 1).await;
    strategic("from", "Recreate").await;
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"},
        "data": {"values.yaml": "nextcloud: {strategy: {type: null}}"},
    });
    std::fs::write(file.path(), map.to_string()).unwrap();
    tenant.kubectl(&["apply", "-f", path]).unwrap();
    tenant.ready("from", 2).await;
    strategic("from", "RollingUpdate").await;
}

/// The spec in the block of crds/clientapp.md that contains this text.
fn documented(part: &str) -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../crds/clientapp.md");
    let page = std::fs::read_to_string(path).unwrap();
    let mut blocks = page.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let block = blocks.find(|block| block.contains(part)).unwrap_or_else(|| panic!("no block has {part}"));
    serde_yaml::from_str::<Value>(block).unwrap()["spec"].clone()
}

/// The variables of the app's pods, as `value` or `secret/key`. Each is there once, and what it names exists.
async fn variables(tenant: &Tenant, name: &str) -> BTreeMap<String, String> {
    let deployment = tenant.api::<Deployment>().get(&format!("{name}-nextcloud")).await.unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let mut found = BTreeMap::new();
    for variable in pod.containers[0].env.clone().unwrap() {
        let reference = variable.value_from.and_then(|from| from.secret_key_ref);
        if let Some(reference) = &reference {
            let secret = tenant.api::<Secret>().get(&reference.name).await.unwrap();
            assert!(secret.data.unwrap().contains_key(&reference.key), "{} has no {}", reference.name, reference.key);
        }
        let value = reference.map_or(variable.value, |of| Some(format!("{}/{}", of.name, of.key)));
        assert_eq!(found.insert(variable.name.clone(), value.unwrap_or_default()), None, "{} twice", variable.name);
    }
    found
}

#[tokio::test]
async fn the_documented_examples_and_lists_have_an_effect() {
    let tenant = Lab::shared().await.tenant("values-documented").await;
    let expect = async |app: &str, expected: &[(&str, &str)]| {
        tenant.ready(app, 1).await;
        let found = variables(&tenant, app).await;
        for (name, value) in expected {
            assert_eq!(found.get(*name).map(String::as_str), Some(*value), "{name} in {found:?}");
        }
    };
    put(&tenant, "Secret", "smtp", "password", "canary").await;
    tenant.create("acme", with(small(&tenant, "acme"), documented("fromAddress: cloud"))).await.unwrap();
    expect(
        "acme",
        &[
            ("MAIL_FROM_ADDRESS", "cloud"),
            ("MAIL_DOMAIN", "example.com"),
            ("SMTP_HOST", "smtp.example.com"),
            ("SMTP_PORT", "465"),
            ("SMTP_SECURE", "ssl"),
            ("SMTP_NAME", "cloud@example.com"),
            ("SMTP_PASSWORD", "smtp/password"),
            ("PGSSLCERT", "/tmp/postgresql.crt"),
        ],
    )
    .await;
    let mail =
        json!({"enabled": true, "fromAddress": "cloud", "domain": "example.com", "smtp": {"host": "h", "name": "n"}});
    put(&tenant, "ConfigMap", "settings", "values.yaml", &json!({"nextcloud": {"mail": mail}}).to_string()).await;
    tenant.create("beta", with(small(&tenant, "beta"), documented("targetPath"))).await.unwrap();
    expect("beta", &[("SMTP_HOST", "h"), ("SMTP_PASSWORD", "canary")]).await;

    // A variable and a domain more take none of the operator's away. And the image is the spec's, also for a chart with registries.
    let image = "registry.example.com/platform/nextcloud:34.0.1-apache";
    let lists = json!({
        "chartVersion": charts::CURRENT, "image": image,
        "values": {"nextcloud": {"extraEnv": [{"name": "TZ", "value": "UTC"}], "trustedDomains": ["other.example.com"]}},
    });
    tenant.create("lists", with(small(&tenant, "lists"), lists)).await.unwrap();
    let domains = format!("{} other.example.com", hostname(&tenant, "lists"));
    let expected =
        [("TZ", "UTC"), ("PGSSLCERT", "/tmp/postgresql.crt"), ("NEXTCLOUD_TRUSTED_DOMAINS", domains.as_str())];
    expect("lists", &expected).await;
    let deployment = tenant.api::<Deployment>().get("lists-nextcloud").await.unwrap();
    assert_eq!(deployment.spec.unwrap().template.spec.unwrap().containers[0].image.as_deref(), Some(image));

    // Mail waits for the keys that the chart reads.
    let mail = json!({"values": {"nextcloud": {"mail": {"enabled": true, "fromAddress": "a", "domain": "b.example"}}}});
    tenant.create("gamma", with(small(&tenant, "gamma"), mail)).await.unwrap();
    let missing = ["gamma-admin-secret", "smtp-host and smtp-username and smtp-password"];
    tenant.held("gamma", "AdminSecretKeyMissing", &missing).await;
    // A server without authentication.
    for (key, text) in [("smtp-host", "smtp.example.com"), ("smtp-username", ""), ("smtp-password", "")] {
        change(&tenant, "Secret", "gamma-admin-secret", key, text).await;
    }
    expect("gamma", &[("SMTP_PASSWORD", "gamma-admin-secret/smtp-password")]).await;
}

#[tokio::test]
async fn what_is_missing_or_cannot_be_used_is_named_and_awaited() {
    let tenant = Lab::shared().await.tenant("values-missing").await;
    let more = json!({"valuesFrom": [from("Secret", "later", json!({}))]});
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    let told = tenant.condition("acme", "Stalled", "True", "ValuesMissing").await;
    assert!(told.starts_with("Secret later, named in spec.valuesFrom, does not exist"), "{told}");
    assert_eq!(tenant.listed("acme"), None);
    put(&tenant, "Secret", "later", "other", "x").await;
    let has_no_key = &["Secret later, named in spec.valuesFrom, has no key values.yaml"];
    tenant.held("acme", "ValuesMissing", has_no_key).await;
    change(&tenant, "Secret", "later", "values.yaml", "podAnnotations: {my-colour: blue}").await;
    tenant.ready("acme", 1).await;

    // The release stays as it is, and the same values again are no change.
    tenant.kubectl(&["delete", "secret", "later"]).unwrap();
    tenant.held("acme", "ValuesMissing", &["Secret later"]).await;
    assert_eq!(deployed(&tenant).await, pairs(&[("my-colour", "blue")]));
    put(&tenant, "Secret", "later", "values.yaml", "podAnnotations: {my-colour: blue}").await;
    tenant.ready("acme", 1).await;

    for (text, words) in [
        ("canary: b: c", "spec.valuesFrom: Secret later, key values.yaml: line 1: not YAML"),
        ("nextcloud: {host: canary}", "nextcloud.host is computed by the operator: set spec.hostname instead"),
    ] {
        change(&tenant, "Secret", "later", "values.yaml", text).await;
        let told = tenant.condition_with("acme", ("Ready", "ValuesInvalid"), &[words]).await;
        assert!(!told.contains("canary"), "{told}");
    }
    // A computed key is refused wherever the path comes from; and of its own release, each revision could change the values of the next.
    change(&tenant, "Secret", "later", "other", "elsewhere.example.com").await;
    let path = json!({"valuesKey": "other", "targetPath": "nextcloud.host"});
    let record = json!({"valuesKey": "release"});
    for (source, words) in [
        (from("Secret", "later", path), "Secret later, key other: nextcloud.host is computed"),
        (from("ConfigMap", "acme-nextcloud-config", json!({"valuesKey": "x"})), "part of this ClientApp's own release"),
        (from("Secret", "sh.helm.release.v1.acme.v1", record), "a Secret of type helm.sh/release.v1 is not for values"),
    ] {
        tenant.patch("acme", json!({"valuesFrom": [source]})).await.unwrap();
        tenant.held("acme", "ValuesInvalid", &[words]).await;
    }
    assert_eq!(tenant.listed("acme").unwrap().0, "1");

    change(&tenant, "Secret", "later", "values.yaml", "podAnnotations: {my-colour: red}").await;
    tenant.patch("acme", json!({"valuesFrom": [from("Secret", "later", json!({}))]})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(deployed(&tenant).await, pairs(&[("my-colour", "red")]));
    // Neither a deletion nor a missing object holds up the other.
    tenant.kubectl(&["delete", "secret", "later"]).unwrap();
    tenant.held("acme", "ValuesMissing", &["Secret later"]).await;
    tenant.delete("acme").await;
}

#[tokio::test]
async fn no_value_of_a_secret_is_told() {
    let tenant = Lab::shared().await.tenant("values-canary").await;
    // No part of a uid, a digest or a name looks like its first word.
    let canary = "whistling \"9d";
    put(&tenant, "Secret", "mine", "password", canary).await;
    let password = json!({"valuesKey": "password", "targetPath": "smtp.password"});
    let spec = with(small(&tenant, "acme"), json!({"valuesFrom": [from("Secret", "mine", password)]}));
    // A chart that quotes the value in its error, and an API server that does.
    let fails = json!(["{{ fail .Values.smtp.password }}"]);
    tenant.create("acme", with(spec, json!({"values": {"extraManifests": fails}}))).await.unwrap();
    tenant.condition_with("acme", ("Released", "ChartInvalid"), &["***"]).await;
    let service = json!([{
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "quoting"},
        "spec": {"type": "{{ .Values.smtp.password }}", "ports": [{"port": 80}]},
    }]);
    tenant.patch("acme", json!({"values": {"extraManifests": service}})).await.unwrap();
    let told = tenant.condition_with("acme", ("Released", "ChartInvalid"), &["***", "quoting"]).await;
    assert!(told.contains("quoting"), "{told}");

    let everything = ListParams::default();
    let apps = tenant.api::<ClientApp>().list(&everything).await.unwrap().items;
    let events = tenant.api::<Event>().list(&everything).await.unwrap().items;
    assert!(!events.is_empty());
    for (place, text) in [
        ("the log", tenant.lab.operator_log()),
        ("the objects", serde_json::to_string(&apps).unwrap()),
        ("the events", serde_json::to_string(&events).unwrap()),
    ] {
        assert!(!text.contains("whistling"), "the value is in {place}: {text}");
    }
}

#[tokio::test]
async fn values_are_read_with_the_rights_of_the_account() {
    let tenant = Lab::shared().await.tenant("values-account").await;
    permit(&tenant, "team").await;
    tenant.kubectl(&["create", "serviceaccount", "team"]).unwrap();
    put(&tenant, "Secret", "theirs", "values.yaml", "podAnnotations: {my-colour: blue}").await;
    let more = json!({"serviceAccountName": "team", "valuesFrom": [from("Secret", "theirs", json!({}))]});
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    let words =
        ["Secret theirs, named in spec.valuesFrom, cannot be read", "system:serviceaccount:values-account:team"];
    tenant.condition_with("acme", ("Released", "AccessDenied"), &words).await;
    tenant.condition("acme", "Stalled", "True", "AccessDenied").await;
    assert_eq!(tenant.listed("acme"), None);
    let helms = tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count();
    assert_eq!(helms, 0);

    tenant.patch("acme", json!({"serviceAccountName": null, "chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(deployed(&tenant).await, pairs(&[("my-colour", "blue")]));
    assert!(tenant.uid::<Secret>("theirs").await.is_some());
}
