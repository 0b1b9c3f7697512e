//! The operator's own Helm chart, `manifests/chart`: it has the kustomization's objects, settings have an effect, mistakes are refused, and
//! it can be installed and removed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::Command;

use clap::Args as _;
use clientapp_operator::config::RunArgs;
use e2e::conformance::release::Release;
use e2e::helm::{Helm, Ran};
use e2e::manifests;
use e2e::release::MANIFEST;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ListParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::{Value, json};

use super::plane::shared;
use super::release::{REPOSITORY, release};
use crate::tools;

const NAMESPACE: &str = "clientapp-operator";

fn chart() -> PathBuf {
    manifests::directory().join("chart")
}

fn template(values: &Value) -> Ran {
    let helm = Helm::new(&tools().helm).unwrap();
    let file = helm.home().join("values.yaml");
    std::fs::write(&file, values.to_string()).unwrap();
    let (chart, file) = (chart().display().to_string(), file.display().to_string());
    helm.run(&["template", "clientapp-operator", &chart, "--namespace", NAMESPACE, "--values", &file]).unwrap()
}

fn rendered(values: &Value) -> Release {
    let ran = template(values);
    assert!(ran.success, "{values}: {}", ran.stderr);
    Release::parse(&ran.stdout).unwrap()
}

/// Without the marks of whoever installs it, and with lists of named entries in the order of their names.
fn comparable(mut object: Value) -> Value {
    fn sorted(value: &mut Value) {
        match value {
            Value::Array(entries) => {
                entries.iter_mut().for_each(sorted);
                if entries.iter().all(|entry| entry["name"].is_string()) {
                    entries.sort_by_key(|entry| entry["name"].as_str().map(str::to_owned));
                }
            }
            Value::Object(fields) => fields.values_mut().for_each(sorted),
            _ => {}
        }
    }
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.remove("labels");
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("helm.sh/resource-policy");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    sorted(&mut object);
    object
}

#[test]
fn the_chart_has_the_objects_of_the_kustomization() {
    for (values, kustomization) in [
        (json!({}), manifests::directory()),
        (json!({"api": {"enabled": true}, "dashboard": {"enabled": true}}), manifests::complete()),
    ] {
        let kustomized = Command::new(&tools().kubectl).arg("kustomize").arg(&kustomization).output().unwrap();
        let expected = Release::parse(&Ran::from(kustomized).stdout).unwrap();
        let found = rendered(&values);
        // helm creates it, with --create-namespace.
        assert!(expected.find("Namespace", NAMESPACE).is_some());
        assert_eq!(found.objects.len(), expected.objects.len() - 1, "{values}");
        for object in expected.objects.into_iter().filter(|object| object["kind"] != "Namespace") {
            let [kind, name] =
                [&object["kind"], &object["metadata"]["name"]].map(|word| word.as_str().unwrap().to_owned());
            let rendered = found.find(&kind, &name).unwrap_or_else(|| panic!("{values}: there is no {kind} {name}"));
            assert_eq!(comparable(rendered.clone()), comparable(object), "{values}: {kind} {name}");
        }
    }
}

#[test]
fn values_have_an_effect() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let found = rendered(&json!({
        "image": {"repository": "registry.example.com/operator", "digest": digest, "pullPolicy": "Always"},
        "imagePullSecrets": [{"name": "registry"}],
        "replicas": 3,
        "settings": {"max-concurrent": 5, "cluster-domain": "cluster.example"},
        "env": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com"}],
        "chartRepository": {"credentialsSecret": "charts", "keyringSecret": "publishers"},
        "resources": {"limits": {"memory": "2Gi"}},
        "priorityClassName": "system-cluster-critical",
        "podLabels": {"team": "platform"},
        "percona": {"enabled": false},
        "cloudnativepg": {"enabled": false},
        "networkPolicy": {"enabled": false},
        "crds": {"keep": false},
        "api": {"enabled": true, "tlsSecret": "certificate", "certificate": {"dnsNames": ["api.example.com"]}},
        "serviceMonitor": {"enabled": true},
        "alerts": {"enabled": true},
        "dashboard": {"enabled": true},
    }));
    let get = |kind, name| found.find(kind, name).unwrap();
    let deployment = get("Deployment", "clientapp-operator");
    let template = &deployment["spec"]["template"];
    let container = &template["spec"]["containers"][0];
    let variables: BTreeMap<_, _> = container["env"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["name"].as_str().unwrap(), &entry["value"]))
        .collect();
    let named =
        |list: &'_ Value, name: &str| list.as_array().unwrap().iter().position(|entry| entry["name"] == name).unwrap();
    let volumes = &template["spec"]["volumes"];
    let secret = |name| &volumes[named(volumes, name)]["secret"]["secretName"];
    let mount = |name| &container["volumeMounts"][named(&container["volumeMounts"], name)]["mountPath"];
    for (found, expected) in [
        (&deployment["spec"]["replicas"], json!(3)),
        (&container["image"], json!(format!("registry.example.com/operator@{digest}"))),
        (&container["imagePullPolicy"], json!("Always")),
        (&container["resources"], json!({"limits": {"memory": "2Gi"}})),
        (&template["spec"]["imagePullSecrets"], json!([{"name": "registry"}])),
        (&template["spec"]["priorityClassName"], json!("system-cluster-critical")),
        (&template["metadata"]["labels"], json!({"app.kubernetes.io/name": "clientapp-operator", "team": "platform"})),
        (variables["CLIENTAPP_MAX_CONCURRENT"], json!("5")),
        (variables["CLIENTAPP_CLUSTER_DOMAIN"], json!("cluster.example")),
        (variables["HTTPS_PROXY"], json!("http://proxy.example.com")),
        (variables["CLIENTAPP_API_LISTEN"], json!("[::]:8090")),
        (secret("api-tls"), json!("certificate")),
        (variables["CLIENTAPP_CHART_REPOSITORY_CREDENTIALS"], json!("/etc/chart-credentials")),
        (variables["CLIENTAPP_CHART_KEYRING"], json!("/etc/chart-keyring/keyring.gpg")),
        (mount("chart-credentials"), json!("/etc/chart-credentials")),
        (mount("chart-keyring"), json!("/etc/chart-keyring")),
        (secret("chart-credentials"), json!("charts")),
        (secret("chart-keyring"), json!("publishers")),
        (&get("Certificate", "clientapp-operator-api")["spec"]["secretName"], json!("certificate")),
        (&get("ServiceMonitor", "clientapp-operator")["spec"]["endpoints"][0]["honorLabels"], json!(true)),
        (&get("ConfigMap", "clientapp-operator-dashboard")["metadata"]["labels"]["grafana_dashboard"], json!("1")),
    ] {
        assert_eq!(*found, expected);
    }
    let rules = get("ClusterRole", "clientapp-operator")["rules"].as_array().unwrap();
    let groups: Vec<_> = rules.iter().flat_map(|rule| rule["apiGroups"].as_array().unwrap()).collect();
    let has = |group: &str| groups.iter().any(|found| *found == group);
    assert!(has("apps") && !has("pgv2.percona.com") && !has("postgresql.cnpg.io"), "{groups:?}");
    assert!(!has("barmancloud.cnpg.io"), "{groups:?}");
    let has = |kind| found.of_kind(kind).next().is_some();
    assert!(has("ServiceMonitor") && has("PrometheusRule") && !has("NetworkPolicy"));
    let definition = found.of_kind("CustomResourceDefinition").next().unwrap();
    assert_eq!(definition["metadata"]["annotations"]["helm.sh/resource-policy"], Value::Null);
    let other = rendered(&json!({"crds": {"enabled": false}, "settings": {"chart": "wiki"}}));
    assert!(other.of_kind("CustomResourceDefinition").next().is_none());
    // The pods that it asks for their health.
    let egress = other.find("NetworkPolicy", "clientapp-operator").unwrap()["spec"]["egress"].to_string();
    assert!(egress.contains(r#"{"app.kubernetes.io/name":"wiki"}"#) && !egress.contains("nextcloud"), "{egress}");
}

#[test]
fn mistakes_in_values_are_refused() {
    for (values, words) in [
        (json!({"imge": {}}), "'imge' not allowed"),
        (json!({"image": {"digest": "sha256:0"}}), "/image/digest"),
        (json!({"settings": {"max-concurent": 3}}), "max-concurent"),
        (json!({"replicas": -1}), "/replicas"),
        (json!({"api": true}), "/api"),
        (json!({"chartRepository": {"password": "secret"}}), "'password' not allowed"),
    ] {
        let ran = template(&values);
        assert!(!ran.success && ran.stderr.contains(words), "{values}: {}", ran.stderr);
    }
}

#[test]
fn the_schema_and_the_version_agree_with_the_program() {
    let schema = std::fs::read_to_string(chart().join("values.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    let named = schema["properties"]["settings"]["propertyNames"]["enum"].as_array().unwrap();
    let named: BTreeSet<_> = named.iter().map(|name| name.as_str().unwrap().to_owned()).collect();
    let command = RunArgs::augment_args(clap::Command::new("run"));
    // A hidden one is for test planes only.
    let flags = command.get_arguments().filter(|flag| flag.get_env().is_some() && !flag.is_hide_set());
    assert_eq!(named, flags.filter_map(|flag| flag.get_long().map(str::to_owned)).collect());
    let about: Value = serde_yaml::from_str(&std::fs::read_to_string(chart().join("Chart.yaml")).unwrap()).unwrap();
    assert_eq!(about["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(about["appVersion"], about["version"]);
}

#[tokio::test]
async fn a_release_is_applied_and_taken_over_by_its_chart_whose_removal_leaves_the_definitions() {
    let plane = shared();
    let release = release(None);
    let file = |name: &str| release.path().join("release").join(name).display().to_string();
    manifests::kubectl(plane, tools(), &["apply", "--server-side", "--filename", &file(MANIFEST)]).unwrap();
    let client = plane.client().await.unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), NAMESPACE);
    let installed = async || {
        let ready = await_condition(deployments.clone(), "clientapp-operator", conditions::is_deployment_completed());
        tokio::time::timeout(e2e::lab::TIMEOUT, ready).await.expect("the pods become ready").unwrap();
        let deployment = deployments.get("clientapp-operator").await.unwrap();
        let image = deployment.spec.unwrap().template.spec.unwrap().containers.remove(0).image.unwrap();
        assert!(image.starts_with(&format!("{REPOSITORY}@sha256:")), "{image}");
        image
    };
    let applied = installed().await;
    let helm = Helm::for_cluster(&tools().helm, &plane.kubeconfig()).unwrap();
    let chart = file(&format!("clientapp-operator-{}.tgz", env!("CARGO_PKG_VERSION")));
    let run = |arguments: &[&str]| {
        let ran = helm.run(arguments).unwrap();
        assert!(ran.success, "helm {arguments:?}: {}", ran.stderr);
        ran.stdout
    };
    let told = run(&[
        "install",
        "clientapp-operator",
        &chart,
        "--namespace",
        NAMESPACE,
        "--take-ownership",
        "--wait",
        "--timeout",
        "120s",
    ]);
    // Only the chart of the repository has no image.
    assert!(!told.contains("set image.repository"), "{told}");
    assert_eq!(installed().await, applied);
    run(&["uninstall", "clientapp-operator", "--namespace", NAMESPACE, "--wait", "--timeout", "120s"]);
    assert!(deployments.get_opt("clientapp-operator").await.unwrap().is_none());
    let definitions = Api::<CustomResourceDefinition>::all(client).list_metadata(&ListParams::default()).await.unwrap();
    let ours = definitions.iter().filter_map(|definition| definition.metadata.name.as_deref());
    assert_eq!(ours.filter(|name| name.ends_with(".bnerd-operator.local")).count(), clientapp_crd::all().len());
}
