//! The files of a node: keys, certificates and the configuration of its servers.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::requirements::NETWORK_PLUGINS;
use crate::plane::certs::{Authority, token_keys};
use crate::plane::kubeconfig::kubeconfig;

/// The node's name.
pub(super) const NAME: &str = "node1";
/// The node's address, which is the API server's as well.
pub const ADDRESS: &str = "10.254.0.1";
/// The API server's Service.
const KUBERNETES_SERVICE: &str = "10.96.0.1";
const DNS_SERVICE: &str = "10.96.0.10";
pub(super) const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/16";
/// Where the state is within the namespaces: a path of the same length everywhere, since those of sockets are limited.
pub const DIRECTORY: &str = "/run/node";
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";
/// The image of the container that holds a pod's namespaces.
pub(super) const PAUSE: &str = "node.local/pause:1";

/// Returns the path of a file of the node.
pub fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}

/// Writes all files, and returns the authority whose certificates the node trusts.
pub(super) fn write(cgroup: &str) -> Result<Authority> {
    for directory in ["log", "cni", "volumes", "layers"] {
        fs::create_dir_all(path(directory))?;
    }
    let authority = Authority::new("node")?;
    file("ca.crt", &authority.pem())?;
    let service = "kubernetes.default.svc.cluster.local";
    let services = service.match_indices('.').map(|(end, _)| &service[..end]);
    let names = services.chain([service, "localhost", "127.0.0.1", KUBERNETES_SERVICE, ADDRESS]).map(str::to_owned);
    for (name, identity) in [
        ("apiserver", authority.server("kube-apiserver", names.collect())?),
        ("kubelet", authority.server(NAME, vec![NAME.to_owned(), ADDRESS.to_owned()])?),
        ("kubelet-client", authority.client("kube-apiserver-kubelet-client", Some("system:masters"))?),
    ] {
        file(&format!("{name}.crt"), &identity.certificate)?;
        file(&format!("{name}.key"), &identity.key)?;
    }
    let (private, public) = token_keys()?;
    file("tokens.key", &private)?;
    file("tokens.pub", &public)?;
    let node = format!("system:node:{NAME}");
    for (name, user, group) in [
        ("admin", "admin", Some("system:masters")),
        ("controller-manager", "system:kube-controller-manager", None),
        ("scheduler", "system:kube-scheduler", None),
        ("kube-proxy", "system:kube-proxy", None),
        ("kubelet", &node, Some("system:nodes")),
    ] {
        let user = authority.client(user, group)?;
        let server = format!("https://{ADDRESS}:6443");
        file(&format!("{name}.kubeconfig"), &kubeconfig(&server, &authority.pem(), &user)?)?;
    }
    file("resolv.conf", "")?;
    file("containerd.toml", &containerd())?;
    file("kubelet.json", &kubelet(cgroup).to_string())?;
    file("kube-proxy.json", &kube_proxy().to_string())?;
    file("cni/10-bridge.conflist", &network().to_string())?;
    Ok(authority)
}

fn containerd() -> String {
    format!(
        r#"version = 2
root = "{DIRECTORY}/containerd"
state = "/run/containerd"
[grpc]
  address = "{CONTAINERD_SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Root may lack CAP_SYS_RESOURCE, without which no process gets a lower score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{NETWORK_PLUGINS}"
    conf_dir = "{DIRECTORY}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
"#
    )
}

fn kubelet(cgroup: &str) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": path("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": path("kubelet.crt"),
        "tlsPrivateKeyFile": path("kubelet.key"),
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{cgroup}"),
        "failCgroupV1": false,
        "enforceNodeAllocatable": [],
        "resolvConf": path("resolv.conf"),
        // What is on the machine's disk is not the node's.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "oomScoreAdj": 0,
        "failSwapOn": false,
    })
}

fn kube_proxy() -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": path("kube-proxy.kubeconfig")},
        "clusterCIDR": PODS,
        "mode": "iptables",
        "oomScoreAdj": 0,
        // Limits of the machine, which it would write otherwise.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "hostnameOverride": NAME,
    })
}

fn network() -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "node",
        "plugins": [
            {
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "subnet": PODS, "routes": [{"dst": "0.0.0.0/0"}],
                    "dataDir": path("networks"),
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}},
        ],
    })
}

fn file(name: &str, content: &str) -> Result<()> {
    let path = path(name);
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
}
