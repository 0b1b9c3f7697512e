//! `cargo demo` does what it says, and leaves nothing behind, wherever it is interrupted.

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
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
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
fn interrupted_anywhere_it_leaves_nothing() {
    for (arguments, line) in [
        // While the servers start, while helm runs, and while it waits for Ctrl-C.
        (&[][..], "Starting etcd"),
        (&[], "Upgrading"),
        (&["--keep"], "It stays until you press Ctrl-C"),
    ] {
        let demo = Demo::new();
        let mut child = demo.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = until(&mut child, line);
        kill(pid(&child), Signal::SIGINT).unwrap();
        let mut rest = String::new();
        output.read_to_string(&mut rest).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(if arguments.is_empty() { 130 } else { 0 }), "at {line}: {status}\n{rest}");
        demo.assert_nothing_left();
    }
}

#[test]
fn killed_it_leaves_nothing() {
    let demo = Demo::new();
    let mut child = demo.command(&["--keep"]).stdout(Stdio::piped()).spawn().unwrap();
    let _output = until(&mut child, "It stays until you press Ctrl-C");
    kill(pid(&child), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
    demo.assert_nothing_left();
}

#[test]
fn it_fails_with_what_the_operator_said_last() {
    let demo = Demo::new();
    let mut child = demo.command(&[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = until(&mut child, "kubectl apply");
    let operator = demo.processes().into_iter().find(|(_, line)| line.contains("clientapp-operator run")).unwrap();
    kill(Pid::from_raw(operator.0), Signal::SIGKILL).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{rest}");
    assert!(rest.contains("The end of the operator's log:") && rest.contains("\"leading\""), "{rest}");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(error.contains("error: the operator ended (signal: 9"), "{error}");
    demo.assert_nothing_left();
}

#[tokio::test]
async fn a_cluster_of_the_users_is_left_as_it_was() {
    let plane = cluster();
    let client = plane.client().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let roles: Api<ClusterRole> = Api::all(client);
    let state = || async {
        let namespaces = namespaces.list(&ListParams::default()).await.unwrap().items;
        let definitions = definitions.list(&ListParams::default()).await.unwrap().items;
        let names = namespaces.iter().map(|object| (object.name_any(), object.uid()));
        let names = names.chain(definitions.iter().map(|object| (object.name_any(), object.uid())));
        let roles = roles.list(&ListParams::default()).await.unwrap().items;
        names.chain(roles.iter().map(|object| (object.name_any(), object.uid()))).collect::<Vec<_>>()
    };
    let before = state().await;
    let demo = Demo::new();
    let context = ["--context", "plane"];

    // A complete run.
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

    // Interrupted while helm runs. The operator is not interrupted, since it has to uninstall.
    let mut child = demo.on(plane, &context).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = until(&mut child, "Upgrading");
    kill(pid(&child), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert_eq!(state().await, before, "{rest}");
    demo.assert_nothing_left();

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

/// Reads until a line contains this text; the line may still be growing.
fn until(child: &mut Child, text: &str) -> impl std::io::Read + use<> {
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = Vec::new();
    while !String::from_utf8_lossy(&said).contains(text) {
        let some = output.fill_buf().unwrap().to_vec();
        assert!(!some.is_empty(), "it ended before {text}:\n{}", String::from_utf8_lossy(&said));
        output.consume(some.len());
        said.extend(some);
    }
    output
}

/// Whether the line contains the words, in this order.
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
