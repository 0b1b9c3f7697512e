//! The control plane is real, and leaves nothing behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;

use e2e::detached::Detached;
use e2e::plane::ControlPlane;
use e2e::progress::Progress;
use e2e::tools::Tools;
use e2e::wait::{TIMEOUT, blocking_until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;

pub(crate) fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| Tools::ensure(&Progress::stderr()).unwrap())
}

/// Never dropped: the end of this process ends it.
pub(crate) fn shared() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::builder().nodes(2).audit_log(true).start(tools()).unwrap())
}

#[test]
fn two_planes_side_by_side_know_nothing_of_each_other_and_leave_nothing() {
    let [one, two] = thread::scope(|scope| {
        let start = || ControlPlane::builder().start(tools()).unwrap();
        [scope.spawn(start), scope.spawn(start)].map(|plane| plane.join().unwrap())
    });
    assert_ne!(one.server_url(), two.server_url());
    assert_ne!(one.directory(), two.directory());

    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let in_one = Api::<Namespace>::all(one.client().await.unwrap());
        let in_two = Api::<Namespace>::all(two.client().await.unwrap());
        in_one.create(&PostParams::default(), &named("only-in-one")).await.unwrap();
        assert!(in_one.get_opt("only-in-one").await.unwrap().is_some());
        assert!(in_two.get_opt("only-in-one").await.unwrap().is_none());
    });

    let directories = [&one, &two].map(|plane| plane.directory().to_owned());
    for directory in &directories {
        assert!(processes(directory).len() >= 5, "the servers are not found by their directory");
    }
    one.stop();
    assert_nothing_left(&directories[0]);
    assert!(directories[1].exists(), "the other plane has stopped too");
    let owner = thread::spawn(move || {
        let _plane = two;
        panic!("on purpose: a test has failed");
    });
    owner.join().unwrap_err();
    assert_nothing_left(&directories[1]);
}

#[tokio::test]
async fn pods_become_ready_and_claims_bound() {
    let client = shared().client().await.unwrap();
    let deployments = Api::default_namespaced(client.clone());
    let labels = json!({"app": "web"});
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{
                        "name": "web", "image": "web", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                        "resources": {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
                    }],
                    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
                },
            },
        },
    }))
    .unwrap();
    let claims = Api::default_namespaced(client);
    let claim: PersistentVolumeClaim = serde_json::from_value(json!({
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }))
    .unwrap();

    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    claims.create(&PostParams::default(), &claim).await.unwrap();
    awaited(deployments.clone(), "web", conditions::is_deployment_completed()).await;
    awaited(claims.clone(), "data", is_bound).await;
    let deployment = deployments.get("web").await.unwrap();
    assert_eq!(deployment.status.unwrap().ready_replicas, Some(2));
}

#[tokio::test]
async fn claims_are_bound_once_and_their_volumes_go_with_them() {
    let client = shared().client().await.unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &named("claims")).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), "claims");
    let names: Vec<_> = (0..30).map(|number| format!("data-{number}")).collect();
    for name in &names {
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"metadata": {"name": name}, "spec": spec});
        claims.create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap();
    }
    let volumes = Api::<PersistentVolume>::all(client.clone());
    let mut bound = Vec::new();
    for name in &names {
        awaited(claims.clone(), name, is_bound).await;
        let volume = claims.get(name).await.unwrap().spec.unwrap().volume_name.unwrap();
        let uid = volumes.get(&volume).await.unwrap().metadata.uid.unwrap();
        bound.push((volume, uid));
    }
    let events = Api::<Event>::namespaced(client, "claims").list(&ListParams::default()).await.unwrap();
    let lost: Vec<_> = events.iter().filter(|event| event.reason.as_deref() == Some("ClaimLost")).collect();
    assert!(lost.is_empty(), "{lost:#?}");
    namespaces.delete("claims", &DeleteParams::default()).await.unwrap();
    for (volume, uid) in bound {
        awaited(volumes.clone(), &volume, conditions::is_deleted(&uid)).await;
    }
}

#[tokio::test]
async fn a_namespace_is_emptied_and_goes() {
    let client = shared().client().await.unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = namespaces.create(&PostParams::default(), &named("brief")).await.unwrap();
    let maps = Api::<ConfigMap>::namespaced(client, "brief");
    maps.create(&PostParams::default(), &named("content")).await.unwrap();
    namespaces.delete("brief", &DeleteParams::default()).await.unwrap();
    awaited(namespaces, "brief", conditions::is_deleted(&namespace.metadata.uid.unwrap())).await;
    assert!(maps.get_opt("content").await.unwrap().is_none());
}

#[tokio::test]
async fn it_has_the_nodes_asked_for_and_logs_requests() {
    let plane = shared();
    let nodes = Api::<Node>::all(plane.client().await.unwrap());
    assert_eq!(nodes.list(&ListParams::default()).await.unwrap().items.len(), 2);
    nodes.get_opt("no-node-of-this-name").await.unwrap();
    // The API server writes the line after the response.
    blocking_until("the request is in the audit log", || {
        let log = fs::read_to_string(plane.audit_log().unwrap()).unwrap();
        log.lines().filter(|line| line.contains("/api/v1/nodes/no-node-of-this-name")).count() == 1
    });
}

#[tokio::test]
async fn the_api_server_comes_back_with_what_it_stored() {
    let plane = ControlPlane::builder().start(tools()).unwrap();
    let client = plane.client().await.unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &named("kept")).await.unwrap();
    plane.kill_apiserver().unwrap();
    namespaces.get("kept").await.unwrap_err();
    plane.start_apiserver().unwrap();
    namespaces.get("kept").await.unwrap();
    plane.restart_apiserver().unwrap();
    namespaces.get("kept").await.unwrap();
    controllers_work(&client).await;
}

#[test]
fn a_server_that_fails_is_quoted() {
    let result = ControlPlane::builder().apiserver_argument("--no-such-flag-exists").start(tools());
    let error = format!("{:#}", result.err().unwrap());
    assert!(error.contains("kube-apiserver ended (exit status: 1)"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag-exists"), "{error}");
}

#[test]
fn nothing_is_left_of_a_plane_whose_owner_was_killed() {
    let cache = Cache::new();
    let (mut owner, plane) = cache.hold();
    kill(Pid::from_raw(plane.process), Signal::SIGKILL).unwrap();
    owner.wait().unwrap();
    blocking_until("the watchdog has done its work", || {
        !plane.directory.exists() && processes(&plane.directory).is_empty()
    });
}

#[test]
fn nothing_is_left_of_a_plane_whose_owner_was_interrupted() {
    let cache = Cache::new();
    let (mut owner, plane) = cache.hold();
    kill(Pid::from_raw(plane.process), Signal::SIGINT).unwrap();
    assert!(owner.wait().unwrap().success());
    assert_nothing_left(&plane.directory);
}

#[test]
fn up_and_down() {
    let cache = Cache::new();
    let down = cache.run("down");
    assert!(down.status.success() && text(&down.stderr).contains("no control plane is running"), "{down:?}");

    let up = cache.run("up");
    assert!(up.status.success(), "{up:?}");
    let exports = text(&up.stdout);
    let kubeconfig = exports.lines().next().unwrap().strip_prefix("export KUBECONFIG=").unwrap();
    let kubeconfig = Path::new(kubeconfig.trim_matches('\''));
    let directory = kubeconfig.parent().unwrap();

    let script = format!("{exports}\nkubectl get nodes --output=name && helm list --all-namespaces --short");
    let shell = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    assert!(shell.status.success(), "{shell:?}");
    assert_eq!(text(&shell.stdout), "node/node-0\n");
    assert_eq!(text(&shell.stderr), "", "helm or kubectl complains");

    let again = cache.run("up");
    assert_eq!(text(&again.stdout), exports);
    assert!(text(&again.stderr).contains("running already"), "{again:?}");

    let down = cache.run("down");
    assert!(down.status.success(), "{down:?}");
    assert_nothing_left(directory);
    assert!(text(&cache.run("down").stderr).contains("no control plane is running"));
}

#[test]
fn without_go_and_without_programs_one_sentence_says_what_to_install() {
    let cache = TempDir::new().unwrap();
    let output = e2e(cache.path(), "up").env_clear().env("CLIENTAPP_E2E_CACHE", cache.path()).output().unwrap();
    assert!(!output.status.success());
    assert_eq!(text(&output.stdout), "");
    let error = text(&output.stderr);
    assert!(error.starts_with("error: Go 1.") && error.contains("install it"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// The command's own cache, with the tools found again, so that a developer's running plane is unaffected.
struct Cache(TempDir);

impl Cache {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        for tool in tools().paths() {
            symlink(tool, directory.path().join(tool.file_name().unwrap())).unwrap();
        }
        Self(directory)
    }

    fn run(&self, verb: &str) -> Output {
        e2e(self.0.path(), verb).output().unwrap()
    }

    /// A process that owns a plane.
    fn hold(&self) -> (Child, Detached) {
        let mut owner = e2e(self.0.path(), "hold").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let plane: Detached = serde_json::from_str(&line).unwrap();
        assert!(processes(&plane.directory).len() >= 5, "the servers are not found by their directory");
        (owner, plane)
    }
}

impl Drop for Cache {
    /// For tests that fail half-way.
    fn drop(&mut self) {
        self.run("down");
    }
}

fn e2e(cache: &Path, verb: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
    command.arg(verb).env("CLIENTAPP_E2E_CACHE", cache).env("KUBEBUILDER_ASSETS", cache).stdin(Stdio::null());
    command
}

fn assert_nothing_left(directory: &Path) {
    assert!(!directory.exists(), "{} is left", directory.display());
    assert_eq!(processes(directory), [""; 0]);
}

/// The command lines that contain the plane's directory, as those of all its servers do.
fn processes(directory: &Path) -> Vec<String> {
    let output = Command::new("ps").args(["-A", "-o", "args="]).output().unwrap();
    let directory = directory.to_str().unwrap();
    text(&output.stdout).lines().filter(|line| line.contains(directory)).map(str::to_owned).collect()
}

async fn awaited<K>(api: Api<K>, name: &str, condition: impl Condition<K>)
where
    K: kube::Resource + Clone + std::fmt::Debug + for<'de> serde::Deserialize<'de> + Send + 'static,
{
    let awaited = tokio::time::timeout(TIMEOUT, await_condition(api, name, condition)).await;
    awaited.unwrap_or_else(|_| panic!("timed out waiting for {name}")).unwrap();
}

/// A new namespace gets its service account, so the controller manager has reconnected.
async fn controllers_work(client: &Client) {
    let namespaces = Api::<Namespace>::all(client.clone());
    namespaces.create(&PostParams::default(), &named("new")).await.unwrap();
    let accounts = Api::<k8s_openapi::api::core::v1::ServiceAccount>::namespaced(client.clone(), "new");
    awaited(accounts, "default", |account: Option<&_>| account.is_some()).await;
}

fn is_bound(claim: Option<&PersistentVolumeClaim>) -> bool {
    claim.and_then(|claim| claim.status.as_ref()?.phase.as_deref()) == Some("Bound")
}

/// An object with nothing but a name.
fn named<K: for<'de> serde::Deserialize<'de>>(name: &str) -> K {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}
