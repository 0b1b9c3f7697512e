//! Settings with which the operator refuses to start, and those for a cluster.

use std::collections::BTreeMap;
use std::process::Command;

use clap::{Args as _, FromArgMatches as _};
use clientapp_operator::api::settings::settings;
use clientapp_operator::config::{AuthMode, RunArgs};
use e2e::lab::Apart;
use e2e::{manifests, operator};
use k8s_openapi::api::apps::v1::Deployment;

use super::*;

/// Runs the operator, which exits by itself, and returns its output.
fn refused(flags: &[&str]) -> String {
    let mut command = Command::new(operator::binary().unwrap());
    command.env_clear().args(["run", "--health-listen", "127.0.0.1:0"]).args(flags);
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{flags:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn settings_that_would_let_every_client_in_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let made = tls::made();
    let (cert, key) = (put("cert", &made.0), put("key", &made.1));
    let missing = dir.path().join("missing").display().to_string();
    let with_tls = ["--api-tls-cert", &cert, "--api-tls-key", &key];
    let outside = ["--api-listen", "0.0.0.0:0"];
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let cases: &[(&[&str], &str)] = &[
        (
            &[&outside, with_tls.as_slice(), &["--api-auth", "none"]].concat(),
            "--api-auth none is for a loopback address only",
        ),
        (&[outside.as_slice(), &["--api-auth", "none"]].concat(), "--api-auth none is for a loopback address only"),
        (&outside, "tokens would cross the network in the clear"),
        (&["--api-tls-cert", &cert], "must be given together"),
        (&["--api-auth", "token", "--api-audience="], "--api-audience is empty"),
        (&["--api-tls-cert", &missing, "--api-tls-key", &key], "No such file or directory"),
        (&["--api-listen", &taken], "Address already in use"),
        (&["--api-listen", "nowhere"], "expected `off` or an address"),
    ];
    for (flags, sentence) in cases {
        let said = refused(flags);
        assert!(said.contains(sentence), "{flags:?}: {said}");
    }
}

#[tokio::test]
async fn it_can_be_switched_off() {
    let Apart { options, tenant: _tenant, proxy: _proxy } = Lab::unattended().await.apart("api-off").await;
    let arguments = vec!["--api-listen".to_owned(), "off".to_owned()];
    let options = Options { arguments, ..options };
    let run = move || {
        let mut operator = Operator::start(&options).unwrap();
        operator.wait_for_log("waiting for the lease").unwrap();
        operator.wait_for_log("\"leading\"").unwrap();
        assert!(!operator.log().contains("serving the API"));
        assert!(operator.stop().unwrap());
    };
    tokio::task::spawn_blocking(run).await.unwrap();
}

#[tokio::test]
async fn the_component_agrees_with_the_program() {
    let lab = Lab::shared().await;
    let directory = manifests::complete();
    let rendered = manifests::kubectl(&lab.plane, &lab.tools, &["kustomize", directory.to_str().unwrap()]).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&rendered);
    let documents: Vec<Value> = documents.map(|document| serde::Deserialize::deserialize(document).unwrap()).collect();
    let of_kind = |kind: &str| documents.iter().find(|document| document["kind"] == kind).unwrap().clone();
    let deployment: Deployment = serde_json::from_value(of_kind("Deployment")).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let container = pod.containers.into_iter().next().unwrap();

    let command = RunArgs::augment_args(clap::Command::new("run"));
    let given: BTreeMap<_, _> =
        container.env.unwrap().into_iter().filter_map(|env| Some((env.name, env.value?))).collect();
    let flags = command.get_arguments().filter_map(|flag| {
        let value = given.get(flag.get_env()?.to_str()?)?;
        Some(format!("--{}={value}", flag.get_long()?))
    });
    let arguments: Vec<_> = ["run".to_owned()].into_iter().chain(flags).collect();
    let run = RunArgs::from_arg_matches(&command.clone().try_get_matches_from(arguments).unwrap()).unwrap();
    let settings = settings(&run.api).unwrap().unwrap();
    assert_eq!(settings.auth, AuthMode::Token);

    let port = container.ports.unwrap().into_iter().find(|port| port.name.as_deref() == Some("api")).unwrap();
    assert_eq!(i32::from(settings.listen.port()), port.container_port);
    assert!(of_kind("Service")["spec"]["ports"].as_array().unwrap().iter().any(|port| port["targetPort"] == "api"));
    let admitted = &of_kind("NetworkPolicy")["spec"]["ingress"];
    assert!(admitted.as_array().unwrap().iter().any(|rule| rule["ports"][0]["port"] == "api"), "{admitted}");

    let files = settings.tls.unwrap();
    let mount = container.volume_mounts.unwrap().into_iter().find(|mount| mount.name == "api-tls").unwrap();
    for (file, name) in [(files.cert, "tls.crt"), (files.key, "tls.key")] {
        assert_eq!(file, std::path::Path::new(&mount.mount_path).join(name));
        assert_eq!(mount.sub_path, None);
    }
    let volume = pod.volumes.unwrap().into_iter().find(|volume| volume.name == "api-tls").unwrap();
    assert_eq!(volume.secret.unwrap().secret_name.unwrap(), "clientapp-operator-api-tls");
}
