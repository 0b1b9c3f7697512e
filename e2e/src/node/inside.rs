//! The node's servers, started within its namespaces.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::Api;

use super::files::{self, ADDRESS, CONTAINERD_SOCKET, DIRECTORY, NAME, SERVICES, path};
use super::images;
use super::{barman_cloud, mistakes, rootfs, volumes, workloads};
use crate::background::Background;
use crate::image::{Image, Layer};
use crate::lab;
use crate::plane::certs::Authority;
use crate::plane::server::{self, Recipe, Server};
use crate::plane::{kubeconfig, ready};
use crate::progress::Progress;
use crate::tools::{Extra, Tools};
use crate::wait::{TIMEOUT, block_on, within};

/// Settings that the kubelet wants of the machine, which keeps its own: files that say so lie over these.
const SYSCTLS: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];
const CLUSTER: &str = include_str!("../../node/cluster.yaml");

/// A running node with its control plane. The end of the namespaces' first process ends it.
pub struct Node {
    pub tools: Tools,
    /// Signs what the node's pods trust by `ca.crt`.
    pub authority: Authority,
    servers: Mutex<Vec<Server>>,
    _volumes: Background,
}

impl Node {
    /// Starts it, with all images, and blocks until pods run. `state`: its directory outside.
    pub(super) fn start(state: &Path, cgroup: &str, progress: &Progress) -> Result<Self> {
        let tools = Tools::ensure(progress)?;
        let kubelet = Extra::Kubelet.ensure(progress)?;
        let coredns = Extra::CoreDns.ensure(progress)?;
        let [root, newer] = [rootfs::ensure(rootfs::DEBIAN, progress)?, rootfs::ensure(rootfs::NEWER, progress)?];
        let task = progress.task("starting the node");
        enter(state)?;
        let authority = files::write(cgroup)?;
        let volumes = Background::spawn("volumes", || async {
            let client = within(TIMEOUT, "the API server is ready", async || {
                let client = client().await.ok()?;
                ready::answers(&client).await.then_some(client)
            });
            match client.await {
                Ok(client) => volumes::provide(client).await,
                Err(error) => eprintln!("volumes: {error:#}"),
            }
        })?;
        let node = Self { tools, authority, servers: Mutex::default(), _volumes: volumes };
        node.serve("containerd", Path::new("containerd"), vec![format!("--config={}", at("containerd.toml"))])?;
        node.serve("etcd", &node.tools.etcd, etcd())?;
        node.serve("kube-apiserver", &node.tools.kube_apiserver, kube_apiserver())?;
        task.message("importing images");
        let (debian, newer) = (Layer::of(&root)?, Layer::of(&newer)?);
        let mut all = workloads::images(&debian, &root, &node.tools)?;
        all.extend(barman_cloud::images(&newer)?);
        all.push(workloads::pgbouncer(&newer)?);
        all.push(mistakes::foreign_image(&debian)?);
        all.push(images::pause(&debian));
        all.push(Image {
            names: vec!["node.local/coredns:1".to_owned()],
            config: serde_json::json!({"Entrypoint": ["/coredns"]}),
            layers: vec![images::layer("coredns", |files| files.program("coredns", &coredns))?],
        });
        node.wait_for("containerd answers", "containerd", async || Path::new(CONTAINERD_SOCKET).exists())?;
        images::import(&all)?;
        task.message("starting the kubelet");
        node.wait_for("the API server is ready", "kube-apiserver", async || {
            let Ok(client) = client().await else { return false };
            ready::answers(&client).await
        })?;
        node.serve("kube-controller-manager", &node.tools.kube_controller_manager, controller_manager())?;
        let scheduler =
            vec![kubeconfig_of("scheduler"), "--leader-elect=false".to_owned(), "--secure-port=0".to_owned()];
        node.serve("kube-scheduler", &node.tools.kube_scheduler, scheduler)?;
        node.serve("kubelet", &kubelet, kubelet_arguments())?;
        let proxy = kubelet.with_file_name("kube-proxy");
        node.serve("kube-proxy", &proxy, vec![format!("--config={}", at("kube-proxy.json"))])?;
        node.apply(CLUSTER)?;
        node.wait_for("the node and its DNS are ready", "kubelet", async || {
            let Ok(client) = client().await else { return false };
            ready::nodes_are_ready(&client, 1).await
                && ready::service_account_exists(&client).await
                && dns_is_ready(&client).await
        })?;
        task.done();
        Ok(node)
    }

    /// Applies these YAML documents as the administrator.
    pub fn apply(&self, documents: &str) -> Result<()> {
        let file = tempfile::Builder::new().suffix(".yaml").tempfile()?;
        fs::write(file.path(), documents)?;
        let file = file.path().to_str().context("the path is UTF-8")?;
        self.kubectl(&["apply", "--server-side", "--filename", file]).map(drop)
    }

    /// Runs kubectl as the administrator and returns its standard output; an error contains its standard error.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        lab::kubectl(&self.tools.kubectl, &admin(), None, arguments)
    }

    /// Kills a server, as in a crash, and starts it again.
    pub fn restart(&self, name: &str) -> Result<()> {
        let mut servers = server::all(&self.servers);
        let server = servers.iter_mut().find(|server| server.name() == name);
        let server = server.with_context(|| format!("the node has no {name}"))?;
        server.kill()?;
        server.start_again(&path("log"), 0)
    }

    /// Kills a server while something runs, and starts it again.
    pub(super) async fn without(
        &self,
        name: &'static str,
        runs: impl AsyncFnOnce() -> Result<String>,
    ) -> Result<String> {
        let stopped = {
            let mut servers = server::all(&self.servers);
            let at = servers.iter().position(|server| server.name() == name);
            let mut stopped = servers.remove(at.with_context(|| format!("the node has no {name}"))?);
            stopped.kill()?;
            stopped
        };
        let said = runs().await;
        self.start_server(stopped.into_recipe())?;
        said
    }

    fn serve(&self, name: &'static str, program: &Path, arguments: Vec<String>) -> Result<()> {
        self.start_server(Recipe { name, program: program.to_owned(), arguments, environment: Vec::new() })
    }

    /// Starts a server beside the node's own.
    pub(super) fn start_server(&self, recipe: Recipe) -> Result<()> {
        let server = Server::start(recipe, &path("log"), 0)?;
        server::all(&self.servers).push(server);
        Ok(())
    }

    /// Waits for what `responsible` brings about; an error has the end of its log.
    pub(super) fn wait_for(
        &self,
        what: &str,
        responsible: &str,
        is_so: impl AsyncFn() -> bool + Send + Sync,
    ) -> Result<()> {
        block_on(async || server::wait(&self.servers, what, responsible, is_so).await)
    }
}

/// The administrator's kubeconfig file.
pub fn admin() -> PathBuf {
    path("admin.kubeconfig")
}

/// A client with all rights, of the current runtime.
pub async fn client() -> Result<Client> {
    Ok(Client::try_from(kubeconfig::config(&admin()).await?)?)
}

/// Makes the mounts and the network of this process's namespaces.
fn enter(state: &Path) -> Result<()> {
    run("mount", &["--make-rshared", "/"])?;
    run("mount", &["-t", "tmpfs", "tmpfs", "/run"])?;
    for directory in ["/run/lock", "/run/containerd", DIRECTORY] {
        fs::create_dir(directory)?;
    }
    bind(&state.to_string_lossy(), DIRECTORY)?;
    for (name, over) in [("pods", "/var/log"), ("cni-cache", "/var/lib/cni")] {
        fs::create_dir_all(path(name))?;
        fs::create_dir_all(over)?;
        bind(&at(name), over)?;
    }
    fs::create_dir_all(path("sysctls"))?;
    for (name, value) in SYSCTLS {
        let file = path("sysctls").join(name.replace('/', "_"));
        fs::write(&file, format!("{value}\n"))?;
        bind(&file.to_string_lossy(), &format!("/proc/sys/{name}"))?;
    }
    run("ip", &["link", "set", "lo", "up"])?;
    // Both ends are here: the node has an address, and nothing is behind it.
    run("ip", &["link", "add", "node0", "type", "veth", "peer", "name", "node0-peer"])?;
    run("ip", &["address", "add", &format!("{ADDRESS}/24"), "dev", "node0"])?;
    run("ip", &["link", "set", "node0", "up"])?;
    run("ip", &["link", "set", "node0-peer", "up"])?;
    run("ip", &["route", "add", "default", "dev", "node0"])?;
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    // Without the module, what goes from pod to pod passes the rules of Services all the same, as long as they are not on one bridge.
    let _ = fs::write("/proc/sys/net/bridge/bridge-nf-call-iptables", "1");
    Ok(())
}

fn bind(from: &str, to: &str) -> Result<()> {
    run("mount", &["--bind", from, to])
}

/// Runs a program to its end; an error contains its standard error.
pub(super) fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program} {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

fn at(name: &str) -> String {
    path(name).display().to_string()
}

fn kubeconfig_of(name: &str) -> String {
    format!("--kubeconfig={}", at(&format!("{name}.kubeconfig")))
}

fn etcd() -> Vec<String> {
    let client = "http://127.0.0.1:2379";
    vec![
        format!("--data-dir={}", at("etcd")),
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        "--listen-peer-urls=http://127.0.0.1:2380".to_owned(),
        "--log-level=warn".to_owned(),
    ]
}

fn kube_apiserver() -> Vec<String> {
    vec![
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        "--secure-port=6443".to_owned(),
        "--bind-address=0.0.0.0".to_owned(),
        format!("--advertise-address={ADDRESS}"),
        format!("--tls-cert-file={}", at("apiserver.crt")),
        format!("--tls-private-key-file={}", at("apiserver.key")),
        format!("--client-ca-file={}", at("ca.crt")),
        format!("--service-account-key-file={}", at("tokens.pub")),
        format!("--service-account-signing-key-file={}", at("tokens.key")),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        format!("--service-cluster-ip-range={SERVICES}"),
        "--allow-privileged=true".to_owned(),
        format!("--kubelet-client-certificate={}", at("kubelet-client.crt")),
        format!("--kubelet-client-key={}", at("kubelet-client.key")),
        format!("--kubelet-certificate-authority={}", at("ca.crt")),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
    ]
}

fn controller_manager() -> Vec<String> {
    vec![
        kubeconfig_of("controller-manager"),
        format!("--service-account-private-key-file={}", at("tokens.key")),
        format!("--root-ca-file={}", at("ca.crt")),
        "--use-service-account-credentials".to_owned(),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ]
}

fn kubelet_arguments() -> Vec<String> {
    vec![
        format!("--config={}", at("kubelet.json")),
        kubeconfig_of("kubelet"),
        format!("--root-dir={}", at("kubelet")),
        format!("--hostname-override={NAME}"),
        format!("--node-ip={ADDRESS}"),
    ]
}

async fn dns_is_ready(client: &Client) -> bool {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "kube-system");
    let Ok(deployment) = deployments.get_status("coredns").await else { return false };
    deployment.status.and_then(|status| status.ready_replicas).is_some_and(|ready| ready > 0)
}
