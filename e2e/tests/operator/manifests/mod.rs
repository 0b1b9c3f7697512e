//! A real API server accepts `manifests/`, which grants exactly the rights that the operator and its helm use, and
//! agrees with the program and the Dockerfile.

mod rights;
mod used;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches as _};
use clientapp_crd::ClientApp;
use clientapp_operator::config::{RunArgs, helm_settings};
use e2e::helm::Helm;
use e2e::lab::Lab;
use e2e::manifests;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Container, PodSpec, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use kube::runtime::wait::{await_condition, conditions};
use serde_json::Value;

// The manifests themselves.

#[tokio::test]
async fn applied_again_nothing_changes_and_both_pods_are_ready() {
    let lab = Lab::shared().await;
    let apply = || manifests::apply(&lab.plane, &lab.tools, &manifests::directory()).unwrap();
    apply();
    let deployments = Api::<Deployment>::namespaced(lab.plane.client().await.unwrap(), manifests::NAMESPACE);
    let ready = await_condition(deployments.clone(), "clientapp-operator", conditions::is_deployment_completed());
    tokio::time::timeout(e2e::lab::TIMEOUT, ready).await.expect("the pods become ready").unwrap();
    assert_eq!(deployments.get("clientapp-operator").await.unwrap().status.unwrap().ready_replicas, Some(2));

    let before = versions(lab, &manifests::directory());
    assert!(before.len() >= 13, "{before:?}");
    apply();
    assert_eq!(versions(lab, &manifests::directory()), before);
}

#[tokio::test]
async fn the_samples_become_instances() {
    let lab = Lab::shared().await;
    let apply = || manifests::apply(&lab.plane, &lab.tools, &manifests::samples()).unwrap();
    apply();
    let before = versions(lab, &manifests::samples());
    apply();
    assert_eq!(versions(lab, &manifests::samples()), before);

    let apps = Api::<ClientApp>::namespaced(lab.plane.client().await.unwrap(), "clientapp-samples");
    let names: Vec<_> = apps.list(&ListParams::default()).await.unwrap().iter().map(|app| app.name_any()).collect();
    assert_eq!(names, ["full", "minimal", "standalone", "without-database"]);
    for name in names {
        let is_ready = |app: Option<&ClientApp>| {
            let status = app.and_then(|app| app.status.as_ref());
            status.is_some_and(|status| e2e::lab::has(status, "Ready", "True", "Ready"))
        };
        let ready = tokio::time::timeout(e2e::lab::TIMEOUT, await_condition(apps.clone(), &name, is_ready)).await;
        ready.unwrap_or_else(|_| panic!("{name} is not Ready; {}", lab.operator_log())).unwrap();
    }

    // What the full one shows has an effect.
    let client = lab.plane.client().await.unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), "clientapp-samples");
    let pod = deployments.get("full-nextcloud").await.unwrap().spec.unwrap().template.spec.unwrap();
    let variables = pod.containers[0].env.clone().unwrap();
    let variable = |name: &str| variables.iter().find(|variable| variable.name == name).unwrap().clone();
    assert_eq!(variable("TZ").value.as_deref(), Some("Europe/Berlin"));
    assert_eq!(variable("PGSSLCERT").value.as_deref(), Some("/tmp/postgresql.crt"));
    let secrets = Api::<Secret>::namespaced(client, "clientapp-samples");
    for variable in ["SMTP_HOST", "SMTP_NAME", "SMTP_PASSWORD"].map(variable) {
        let reference = variable.value_from.unwrap().secret_key_ref.unwrap();
        assert_eq!(reference.name, "full-administrator");
        assert!(secrets.get(&reference.name).await.unwrap().data.unwrap().contains_key(&reference.key));
    }
    let helm = Helm::for_cluster(&lab.tools.helm, &lab.plane.kubeconfig()).unwrap();
    let got = helm.run(&["get", "values", "full", "-n", "clientapp-samples", "-o", "json"]).unwrap();
    let values: Value = serde_json::from_str(&got.stdout).unwrap();
    assert_eq!(values["nextcloud"]["hooks"]["post-installation"], "php occ app:enable calendar");
}

/// For every object of a kustomization, a field that only a change to it changes: the generation, or else the resource
/// version.
fn versions(lab: &Lab, directory: &Path) -> BTreeMap<String, String> {
    let arguments = ["get", "--output", "json", "--kustomize", directory.to_str().unwrap()];
    let list: Value = serde_json::from_str(&manifests::kubectl(&lab.plane, &lab.tools, &arguments).unwrap()).unwrap();
    let objects = list["items"].as_array().unwrap().iter().map(|object| {
        let metadata = &object["metadata"];
        let version = metadata.get("generation").unwrap_or(&metadata["resourceVersion"]);
        (format!("{} {}", object["kind"], metadata["name"]), format!("{} {version}", metadata["uid"]))
    });
    objects.collect()
}

// Agreement with the program and the Dockerfile.

#[test]
fn every_definition_is_in_the_kustomization() {
    let directory = root().join("crds");
    let kustomization: Value = parse(&directory.join("kustomization.yaml")).remove(0);
    let listed: BTreeSet<String> = serde_json::from_value(kustomization["resources"].clone()).unwrap();
    let files = fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let is_definition = |file: &String| file.ends_with(".yaml") && file != "kustomization.yaml";
    assert_eq!(listed, files.filter(is_definition).collect());
}

#[test]
fn the_deployment_agrees_with_the_program() {
    let (_, operator) = deployment();
    assert_eq!(operator.image.unwrap(), format!("clientapp-operator:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(operator.args.unwrap(), ["run"]);

    // The environment, as the equivalent flags.
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let environment = operator.env.unwrap().into_iter().filter(|variable| variable.name != "RUST_LOG");
    let flags = environment.map(|variable| {
        let of_variable = |argument: &&clap::Arg| argument.get_env().is_some_and(|name| *name == *variable.name);
        let argument = command.get_arguments().find(of_variable);
        let argument = argument.unwrap_or_else(|| panic!("the operator has no setting {}", variable.name));
        // The kubelet fills these in.
        let value = variable.value.or_else(|| Some(variable.value_from?.field_ref?.field_path));
        format!("--{}={}", argument.get_long().unwrap(), value.unwrap())
    });
    let arguments: Vec<_> = ["run".to_owned()].into_iter().chain(flags).collect();
    let run = RunArgs::from_arg_matches(&command.clone().try_get_matches_from(arguments).unwrap()).unwrap();

    assert_eq!(run.pod_name.as_deref(), Some("metadata.name"));
    let [port] = operator.ports.unwrap().try_into().unwrap();
    assert_eq!(run.health_listen.port(), u16::try_from(port.container_port).unwrap());
    let mounts: Vec<_> = operator.volume_mounts.unwrap().into_iter().map(|mount| mount.mount_path).collect();
    assert!(mounts.contains(&run.chart_cache.unwrap().display().to_string()), "{mounts:?}");
}

#[test]
fn a_pod_has_time_to_end_its_helm() {
    let (pod, _) = deployment();
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let run = RunArgs::from_arg_matches(&command.try_get_matches_from(["run"]).unwrap()).unwrap();
    let grace = helm_settings(&run).grace.as_secs();
    let seconds = pod.termination_grace_period_seconds.unwrap();
    assert!(seconds >= i64::try_from(grace).unwrap() + 10, "{seconds} s with helm's {grace} s");
}

/// The operator's pod and its only container.
fn deployment() -> (PodSpec, Container) {
    let deployment = parse(&manifests::directory().join("deployment.yaml")).remove(0);
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let [container] = <[Container; 1]>::try_from(pod.containers.clone()).unwrap();
    (pod, container)
}

#[test]
fn the_dockerfile_agrees_with_the_pins() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let image = |name: &str| -> [u32; 3] {
        let tag = dockerfile
            .lines()
            .filter(|line| line.starts_with("FROM"))
            .find_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':')));
        let tag = tag.unwrap_or_else(|| panic!("no stage is from {name}"));
        numbers(tag.split('-').next().unwrap()).unwrap_or_else(|| panic!("{name}:{tag} is not one exact version"))
    };
    let directive = |file: &str, key: &str| -> [u32; 3] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim_matches([' ', '=', '"']);
        let padded = if value.matches('.').count() == 1 { format!("{value}.0") } else { value.to_owned() };
        numbers(&padded).unwrap()
    };
    assert!(image("rust") >= directive("Cargo.toml", "rust-version"), "the compiler is too old for Cargo.toml");
    // Of the same minor release, with which the tests' helm is built.
    let (golang, go) = (image("golang"), directive("e2e/tools/helm/go.mod", "go "));
    assert!(golang >= go && golang[..2] == go[..2], "golang {golang:?} for go {go:?}");

    // Files copied from the context exist and are not ignored.
    let ignore = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let let_through: Vec<_> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &let_through {
        assert!(root().join(path).exists(), ".dockerignore includes {path}, which does not exist");
    }
    for line in dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        for source in words[..words.len() - 1].iter().filter(|source| **source != ".") {
            assert!(root().join(source).exists(), "{line}");
            assert!(let_through.iter().any(|path| source.starts_with(path)), "{line}: .dockerignore");
        }
    }
    // The pod's user, and nothing that would need a shell.
    let (pod, _) = deployment();
    let user = pod.security_context.unwrap().run_as_user.unwrap();
    // `cargo e2e release` makes the same.
    let config = e2e::release::image_config();
    assert_eq!(config["User"], format!("{user}:{user}"));
    let words = |list: &Value| -> Vec<_> {
        list.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    };
    let ports: Vec<_> =
        config["ExposedPorts"].as_object().unwrap().keys().map(|port| port.replace("/tcp", "")).collect();
    for line in [
        "FROM scratch".to_owned(),
        format!("ENV RUSTFLAGS={}", e2e::operator::STATIC),
        format!("USER {user}:{user}"),
        format!("ENV {}", words(&config["Env"]).join(" ")),
        format!("EXPOSE {}", ports.join(" ")),
        format!("ENTRYPOINT {}", config["Entrypoint"]),
        format!("CMD {}", config["Cmd"]),
    ] {
        assert!(dockerfile.lines().any(|found| found == line), "the Dockerfile has no {line}");
    }
}

fn numbers(version: &str) -> Option<[u32; 3]> {
    let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

fn parse(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents.map(|document| serde::Deserialize::deserialize(document).unwrap()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
