//! `cargo demo` does what it says, and leaves nothing behind, wherever it is interrupted.

use std::fmt::Debug;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use e2e::plane::ControlPlane;
use e2e::progress::Progress;
use e2e::tools::Tools;
use e2e::wait::blocking_until;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde_json::json;
use tempfile::TempDir;

/// The user's cluster. Never dropped: the end of this process ends it.
fn cluster() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| {
        let tools = Tools::ensure(&Progress::stderr()).unwrap();
        ControlPlane::builder().start(&tools).unwrap()
    })
}

#[test]
fn it_shows_a_clientapp_from_apply_to_its_end_and_leaves_nothing() {
    let demo = Demo::new();
    let output = demo.command(&[]).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    // As in `kubectl get clientapps` and `helm list`, and the second revision as in `helm history`.
    for words in [
        &["minimal", "True", "1", "5.5.2", "minimal.example.com"][..],
        &["minimal", "clientapp-samples", "1", "deployed", "nextcloud-5.5.2"],
        &["minimal", "True", "2", "5.5.3", "minimal.example.com"],
        &["2", "deployed", "nextcloud-5.5.3", "29.0.5"],
        &["Ready=False", "Provisioning:", "PerconaPGCluster", "minimal-pg"],
        &["Ready=True", "Ready:", "revision", "1"],
    ] {
        assert!(said.lines().any(|line| has(line, words)), "no line has {words:?}:\n{said}");
    }
    assert!(said.contains("the Percona operator, whose pods run no PostgreSQL"), "{said}");
    assert!(!said.contains('\u{1b}'), "colours without a terminal:\n{said}");
    demo.assert_nothing_left();
}

#[test]
#[ignore = "only a change of the demonstration can break it"]
fn interrupted_or_killed_it_leaves_nothing() {
    for (line, signal, code) in [
        // While the servers start, and while helm runs.
        ("Starting etcd", Signal::SIGINT, Some(130)),
        ("Upgrading", Signal::SIGINT, Some(130)),
        ("Upgrading", Signal::SIGKILL, None),
    ] {
        let demo = Demo::new();
        let (ended, rest) = ended_at(demo.command(&[]), line, signal);
        assert_eq!(ended, code, "at {line}: {rest}");
        demo.assert_nothing_left();
    }
}

#[test]
#[ignore = "only a change of the demonstration can break it"]
fn it_fails_with_what_the_operator_said_last() {
    let demo = Demo::new();
    let mut child = demo.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut rest, mut output) = until(&mut child, "kubectl apply");
    let operator = demo.processes().into_iter().find(|(_, line)| line.contains("clientapp-operator run")).unwrap();
    kill(Pid::from_raw(operator.0), Signal::SIGKILL).unwrap();
    output.read_to_string(&mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{rest}");
    assert!(rest.contains("The end of the operator's log:") && rest.contains("\"leading\""), "{rest}");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(error.contains("error: the operator ended (signal: 9"), "{error}");
    demo.assert_nothing_left();
}

/// All objects of a kind, by name and uid.
async fn all<K: Resource + Clone + Debug + DeserializeOwned>(objects: &Api<K>) -> Vec<(String, Option<String>)> {
    let found = objects.list(&ListParams::default()).await.unwrap();
    found.iter().map(|object| (object.name_any(), object.uid())).collect()
}

#[tokio::test]
#[ignore = "only a change of the demonstration can break it"]
async fn a_cluster_of_the_users_is_left_as_it_was() {
    let plane = cluster();
    let client = plane.client().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let roles: Api<ClusterRole> = Api::all(client);
    let state = async || [all(&namespaces).await, all(&definitions).await, all(&roles).await];
    let before = state().await;
    let demo = Demo::new();
    let context = ["--context", "plane"];

    let output = demo.on(plane, &context).output().unwrap();
    let said = said(&output);
    assert!(output.status.success(), "{said}");
    for words in [
        &["demo", "True", "1", "5.5.2", "without-database.example.com"][..],
        &["demo", "clientapp-demo", "1", "deployed", "nextcloud-5.5.2"],
    ] {
        assert!(said.lines().any(|line| has(line, words)), "no line has {words:?}:\n{said}");
    }
    assert_eq!(state().await, before);
    demo.assert_nothing_left();

    // Interrupted while helm runs, and while it waits for Ctrl-C. The operator is not interrupted, since it has to uninstall.
    for (more, line, code) in [(&[][..], "Upgrading", 130), (&["--keep"], "It stays until you press Ctrl-C", 0)] {
        let (ended, said) = ended_at(demo.on(plane, &[&context, more].concat()), line, Signal::SIGINT);
        assert_eq!(ended, Some(code), "at {line}: {said}");
        assert_eq!(state().await, before, "{said}");
        demo.assert_nothing_left();
    }

    // An existing namespace of this name may be in use.
    let namespace = serde_json::from_value(json!({"metadata": {"name": "clientapp-demo"}})).unwrap();
    let namespace: Namespace = namespaces.create(&PostParams::default(), &namespace).await.unwrap();
    let before = state().await;
    let output = demo.on(plane, &context).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("namespace clientapp-demo already exists"), "{error}");
    assert_eq!(state().await, before);
    namespaces.delete(&namespace.name_any(), &DeleteParams::default()).await.unwrap();

    let output = demo.on(plane, &["--context", "no-such"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && error.contains("no-such"), "{error}");
    demo.assert_nothing_left();
}

/// A demonstration whose files are in one directory, which its processes have in their command lines.
struct Demo(TempDir);

impl Demo {
    fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
        command.arg("demo").args(arguments).env("TMPDIR", self.0.path()).env_remove("KUBECONFIG").stdin(Stdio::null());
        command
    }

    fn on(&self, plane: &ControlPlane, arguments: &[&str]) -> Command {
        let mut command = self.command(arguments);
        command.env("KUBECONFIG", plane.kubeconfig());
        command
    }

    fn assert_nothing_left(&self) {
        // The watchdog acts after the end.
        blocking_until("nothing is left", || {
            let files: Vec<_> = self.0.path().read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
            let processes = self.processes();
            let none = files.is_empty() && processes.is_empty();
            if none { Ok(()) } else { Err(format!("{files:?} and {processes:?}")) }
        });
    }

    /// Processes with the directory in their command line.
    fn processes(&self) -> Vec<(i32, String)> {
        let output = Command::new("ps").args(["-A", "-o", "pid=,args="]).output().unwrap();
        let directory = self.0.path().to_str().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text.lines().filter(|line| line.contains(directory));
        let parts = lines.filter_map(|line| line.trim_start().split_once(' '));
        parts.map(|(pid, line)| (pid.parse().unwrap(), line.to_owned())).collect()
    }
}

/// Sends a signal to a demonstration that has printed this text, and returns its exit code and all that it has printed.
fn ended_at(mut command: Command, text: &str, signal: Signal) -> (Option<i32>, String) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let (mut said, mut output) = until(&mut child, text);
    kill(pid(&child), signal).unwrap();
    // After SIGKILL its processes hold the pipe for a moment longer.
    output.read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

/// Reads until a line contains this text; the line may still be growing. Returns what was read.
fn until(child: &mut Child, text: &str) -> (String, impl std::io::Read + use<>) {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(text) {
        let some = output.fill_buf().unwrap().to_vec();
        assert!(!some.is_empty(), "it ended before {text}:\n{}", String::from_utf8_lossy(&said));
        output.consume(some.len());
        said.extend(some);
    }
    (String::from_utf8_lossy(&said).into_owned(), output)
}

/// Returns true if the line contains the words, in this order.
fn has(line: &str, words: &[&str]) -> bool {
    let mut line = line.split_whitespace();
    words.iter().all(|word| line.any(|found| found == *word))
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed())
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}
