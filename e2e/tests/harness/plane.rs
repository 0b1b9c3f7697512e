//! The control plane is real, and leaves nothing behind.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;

use e2e::plane::ControlPlane;
use e2e::wait::{TIMEOUT, block_on, blocking_until};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{
    ConfigMap, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, ServiceAccount,
};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::wait::{Condition, await_condition, conditions};
use serde_json::json;
use tempfile::TempDir;

use crate::tools;

/// Never dropped: the end of this process ends it.
pub(crate) fn shared() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::builder().nodes(2).audit_log(true).start(tools()).unwrap())
}

#[test]
#[ignore = "only a change of the harness can break it"]
fn two_planes_side_by_side_know_nothing_of_each_other_and_leave_nothing() {
    let [one, two] = thread::scope(|scope| {
        let start = || ControlPlane::builder().start(tools()).unwrap();
        [scope.spawn(start), scope.spawn(start)].map(|plane| plane.join().unwrap())
    });
    assert_ne!(one.server_url(), two.server_url());
    assert_ne!(one.directory(), two.directory());

    block_on(async || {
        let client = one.client().await.unwrap();
        let in_one = Api::<Namespace>::all(client.clone());
        let in_two = Api::<Namespace>::all(two.client().await.unwrap());
        in_one.create(&PostParams::default(), &named("only-in-one")).await.unwrap();
        in_one.get("only-in-one").await.unwrap();
        assert!(in_two.get_opt("only-in-one").await.unwrap().is_none());

        // The API server comes back with what it stored.
        one.kill_apiserver().unwrap();
        in_one.get("only-in-one").await.unwrap_err();
        one.start_apiserver().unwrap();
        in_one.get("only-in-one").await.unwrap();
        one.restart_apiserver().unwrap();
        in_one.get("only-in-one").await.unwrap();
        // A new namespace gets its service account, so the controller manager has reconnected.
        in_one.create(&PostParams::default(), &named("new")).await.unwrap();
        let accounts = Api::<ServiceAccount>::namespaced(client, "new");
        awaited(accounts, "default", |account: Option<&ServiceAccount>| account.is_some()).await;
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
#[ignore = "only a change of the harness can break it"]
async fn pods_become_ready_claims_are_bound_once_and_a_namespace_goes_with_all_of_it() {
    let client = shared().client().await.unwrap();
    let namespaces = Api::<Namespace>::all(client.clone());
    let namespace = namespaces.create(&PostParams::default(), &named("brief")).await.unwrap();
    let deployments = Api::<Deployment>::namespaced(client.clone(), "brief");
    let labels = json!({"app": "web"});
    let pod = json!({
        "containers": [{
            "name": "web", "image": "web", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi", "ephemeral-storage": "1Gi"}},
        }],
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}],
    });
    let template = json!({"metadata": {"labels": labels}, "spec": pod});
    let spec = json!({"replicas": 2, "selector": {"matchLabels": labels}, "template": template});
    let deployment = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
    deployments.create(&PostParams::default(), &deployment).await.unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), "brief");
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
    let events = Api::<Event>::namespaced(client.clone(), "brief").list(&ListParams::default()).await.unwrap();
    let lost: Vec<_> = events.iter().filter(|event| event.reason.as_deref() == Some("ClaimLost")).collect();
    assert!(lost.is_empty(), "{lost:#?}");
    awaited(deployments.clone(), "web", conditions::is_deployment_completed()).await;
    assert_eq!(deployments.get("web").await.unwrap().status.unwrap().ready_replicas, Some(2));

    let maps = Api::<ConfigMap>::namespaced(client, "brief");
    maps.create(&PostParams::default(), &named("content")).await.unwrap();
    namespaces.delete("brief", &DeleteParams::default()).await.unwrap();
    for (volume, uid) in bound {
        awaited(volumes.clone(), &volume, conditions::is_deleted(&uid)).await;
    }
    awaited(namespaces, "brief", conditions::is_deleted(&namespace.metadata.uid.unwrap())).await;
    assert!(maps.get_opt("content").await.unwrap().is_none());
}

#[tokio::test]
#[ignore = "only a change of the harness can break it"]
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

#[test]
#[ignore = "only a change of the harness can break it"]
fn a_server_that_fails_is_quoted() {
    let result = ControlPlane::builder().apiserver_argument("--no-such-flag-exists").start(tools());
    let error = format!("{:#}", result.err().unwrap());
    assert!(error.contains("kube-apiserver ended (exit status: 1)"), "{error}");
    assert!(error.contains("unknown flag: --no-such-flag-exists"), "{error}");
}

#[test]
#[ignore = "only a change of the harness can break it"]
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
