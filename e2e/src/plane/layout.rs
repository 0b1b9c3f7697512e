//! The files of a plane and the command lines of its servers.

use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::Builder;
use super::certs::{Authority, token_keys};
use super::kubeconfig::kubeconfig;
use super::server::Recipe;
use crate::shim::executable;
use crate::tools::Tools;

/// The user that the Percona operator is to the API server.
pub const PERCONA_USER: &str = "percona";
/// Namespace and name of the pod that the Percona operator takes for its own.
pub(crate) const PERCONA_POD: [&str; 2] = ["percona", "percona-operator"];

/// Make nodes ready, run pods, and provision volumes, which the controller manager binds; from kwok's
/// `kustomize/stage`. And which commands pods answer.
const STAGES: &[(&str, &str)] = &[
    ("node-initialize", include_str!("../../kwok/node-initialize.yaml")),
    ("node-heartbeat-with-lease", include_str!("../../kwok/node-heartbeat-with-lease.yaml")),
    ("pod-ready", include_str!("../../kwok/pod-ready.yaml")),
    ("pod-complete", include_str!("../../kwok/pod-complete.yaml")),
    ("pod-ends", include_str!("../../kwok/pod-ends.yaml")),
    ("exec", include_str!("../../kwok/exec.yaml")),
    ("pod-delete", include_str!("../../kwok/pod-delete.yaml")),
    ("pv-delete", include_str!("../../kwok/pv-delete.yaml")),
    ("pvc-provision", include_str!("../../kwok/pvc-provision.yaml")),
];

/// Answers commands that are sent into the containers of Percona's pods, in which nothing runs. kwok finds programs only here.
const COMMANDS: &[(&str, &str)] = &[
    ("bash", include_str!("../../kwok/exec/bash")),
    ("patronictl", include_str!("../../kwok/exec/patronictl")),
    ("pgbackrest", include_str!("../../kwok/exec/pgbackrest")),
    ("psql", include_str!("../../kwok/exec/bash")),
];

/// Every request of the operator and its helms once, when it has been answered, without bodies; and reads of single pods and nodes, as which
/// tests leave their marks.
const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [
    {"level": "Metadata", "userGroups": ["system:serviceaccounts:clientapp-operator"]},
    {"level": "Metadata", "verbs": ["get"], "resources": [{"group": "", "resources": ["pods", "nodes"]}]},
    {"level": "None"}
  ]
}"#;

/// Every write, with the object as it was sent and as it was stored; of what controllers of Kubernetes derive from other
/// objects, and of Leases, without it. Nothing of the namespace `unaudited`, which is for millions of requests.
const AUDIT_POLICY_WITH_BODIES: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived", "ResponseStarted"],
  "omitManagedFields": true,
  "rules": [
    {"level": "None", "verbs": ["get", "list", "watch"]},
    {"level": "None", "namespaces": ["unaudited"]},
    {"level": "Metadata", "resources": [
      {"group": "", "resources": ["pods", "pods/binding", "pods/status", "nodes", "nodes/status", "persistentvolumes", "persistentvolumes/status"]},
      {"group": "apps", "resources": ["controllerrevisions", "replicasets", "replicasets/status"]},
      {"group": "discovery.k8s.io", "resources": ["endpointslices"]},
      {"group": "coordination.k8s.io", "resources": ["leases"]}
    ]},
    {"level": "RequestResponse"}
  ]
}"#;

/// The addresses of a plane, all of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    /// Where the API server and the nodes listen.
    loopback: IpAddr,
    /// The range of Services. A few hundred apps would exhaust a /24.
    services: &'static str,
    /// The range of pods: outside that of Services, and large enough for any number of pods.
    pods: &'static str,
}

pub(super) const IPV4: Addresses =
    Addresses { loopback: IpAddr::V4(Ipv4Addr::LOCALHOST), services: "10.0.0.0/12", pods: "10.128.0.0/9" };

pub(super) const IPV6: Addresses =
    Addresses { loopback: IpAddr::V6(Ipv6Addr::LOCALHOST), services: "fd00:10::/108", pods: "fd00:128::/64" };

/// The files of one plane, all in its directory.
pub(super) struct Layout {
    directory: PathBuf,
    addresses: Addresses,
    port: u16,
    kubelet_port: u16,
}

impl Layout {
    /// The files of a plane whose API server and whose nodes have these addresses and ports.
    pub(super) fn new(directory: &Path, addresses: Addresses, [port, kubelet_port]: [u16; 2]) -> Self {
        Self { directory: directory.to_owned(), addresses, port, kubelet_port }
    }

    /// Writes keys, certificates and configuration files.
    pub(super) fn write(&self, audit_bodies: bool) -> Result<()> {
        let authority = Authority::new("plane")?;
        self.file("ca.crt", &authority.pem())?;
        let serving = authority.apiserver()?;
        self.file("apiserver.crt", &serving.certificate)?;
        self.file("apiserver.key", &serving.key)?;
        let (private, public) = token_keys()?;
        self.file("tokens.key", &private)?;
        self.file("tokens.pub", &public)?;
        for (file, user, group) in [
            ("kubeconfig", "admin", Some("system:masters")),
            ("controller-manager.kubeconfig", "system:kube-controller-manager", None),
            ("scheduler.kubeconfig", "system:kube-scheduler", None),
            ("kwok.kubeconfig", "kwok", Some("system:masters")),
            ("percona.kubeconfig", PERCONA_USER, Some("system:masters")),
        ] {
            let user = authority.client(user, group)?;
            self.file(file, &kubeconfig(&self.server_url(), &authority.pem(), &user)?)?;
        }
        self.file("audit-policy.json", if audit_bodies { AUDIT_POLICY_WITH_BODIES } else { AUDIT_POLICY })?;
        for (name, stage) in STAGES {
            self.file(&format!("{name}.yaml"), stage)?;
        }
        fs::create_dir(self.directory.join("exec"))?;
        for (name, script) in COMMANDS {
            executable(&self.directory.join("exec").join(name), script, 0o755)?;
        }
        Ok(())
    }

    pub(super) fn server_url(&self) -> String {
        format!("https://{}", SocketAddr::new(self.addresses.loopback, self.port))
    }

    pub(super) fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    pub(super) fn audit_log(&self) -> PathBuf {
        self.directory.join("audit.log")
    }

    /// The servers that the others are clients of.
    pub(super) fn api(&self, options: &Builder, tools: &Tools) -> [Recipe; 2] {
        [
            recipe("etcd", &tools.etcd, self.etcd(options)),
            recipe("kube-apiserver", &tools.kube_apiserver, self.kube_apiserver(options)),
        ]
    }

    /// The clients of the API server.
    pub(super) fn controllers(&self, tools: &Tools) -> [Recipe; 3] {
        [
            recipe("kube-controller-manager", &tools.kube_controller_manager, self.kube_controller_manager()),
            recipe("kube-scheduler", &tools.kube_scheduler, self.kube_scheduler()),
            Recipe { environment: vec![("PATH", self.path("exec"))], ..recipe("kwok", &tools.kwok, self.kwok()) },
        ]
    }

    /// The Percona operator, for all namespaces. It makes no connection but to the API server.
    pub(super) fn percona(&self, program: &Path) -> Recipe {
        let environment = vec![
            ("KUBECONFIG", self.path("percona.kubeconfig")),
            ("WATCH_NAMESPACE", String::new()),
            // Where it looks for the pod with its own image.
            ("OPERATOR_NAMESPACE", PERCONA_POD[0].to_owned()),
            ("HOSTNAME", PERCONA_POD[1].to_owned()),
            ("DISABLE_TELEMETRY", "true".to_owned()),
            ("PGO_CONTROLLER_LEADER_ELECTION_ENABLED", "false".to_owned()),
            ("PGO_WORKERS", "4".to_owned()),
        ];
        Recipe { environment, ..recipe("percona", program, Vec::new()) }
    }

    /// etcd listens on Unix sockets in the private directory: no port can collide, and no other user can read the
    /// store. Their paths are relative, because such a path may have only about 100 bytes. The advertised address must
    /// look like a network address, but no client uses it, since this is the only member.
    fn etcd(&self, options: &Builder) -> Vec<String> {
        let mut arguments = vec![
            "--name=plane".into(),
            format!("--data-dir={}", self.path("etcd")),
            "--listen-client-urls=unix://etcd.sock".into(),
            "--advertise-client-urls=http://localhost:2379".into(),
            "--listen-peer-urls=unix://etcd-peer.sock".into(),
            "--initial-advertise-peer-urls=http://localhost:2380".into(),
            "--initial-cluster=plane=http://localhost:2380".into(),
            "--log-level=warn".into(),
        ];
        if !options.fsync {
            arguments.push("--unsafe-no-fsync".into());
        }
        arguments
    }

    fn kube_apiserver(&self, options: &Builder) -> Vec<String> {
        let mut arguments = vec![
            "--etcd-servers=unix://etcd.sock".into(),
            format!("--bind-address={}", self.addresses.loopback),
            format!("--advertise-address={}", self.addresses.loopback),
            format!("--secure-port={}", self.port),
            // A loopback address is not a valid endpoint of the `kubernetes` Service, and there may be no other
            // address.
            "--endpoint-reconciler-type=none".into(),
            format!("--tls-cert-file={}", self.path("apiserver.crt")),
            format!("--tls-private-key-file={}", self.path("apiserver.key")),
            format!("--client-ca-file={}", self.path("ca.crt")),
            format!("--service-account-key-file={}", self.path("tokens.pub")),
            format!("--service-account-signing-key-file={}", self.path("tokens.key")),
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local".into(),
            "--authorization-mode=Node,RBAC".into(),
            format!("--service-cluster-ip-range={}", self.addresses.services),
        ];
        if options.audit_log {
            arguments.push(format!("--audit-policy-file={}", self.path("audit-policy.json")));
            arguments.push(format!("--audit-log-path={}", self.audit_log().display()));
            // In MiB: a single file is simpler to evaluate than several.
            arguments.push("--audit-log-maxsize=100000".into());
        }
        arguments.extend(options.apiserver_arguments.iter().cloned());
        arguments
    }

    fn kube_controller_manager(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.path("controller-manager.kubeconfig")),
            format!("--service-account-private-key-file={}", self.path("tokens.key")),
            format!("--root-ca-file={}", self.path("ca.crt")),
            "--use-service-account-credentials".into(),
            // Only EndpointSlices are read, not Endpoints.
            "--controllers=*,-endpoints-controller,-endpointslice-mirroring-controller".into(),
            // A machine that is busy for a minute is no node that is down: its pods would never be ready again.
            "--node-monitor-grace-period=600s".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=1000".into(),
        ]
    }

    fn kube_scheduler(&self) -> Vec<String> {
        vec![
            format!("--kubeconfig={}", self.path("scheduler.kubeconfig")),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
            "--kube-api-qps=1000".into(),
            "--kube-api-burst=1000".into(),
        ]
    }

    fn kwok(&self) -> Vec<String> {
        let mut arguments = vec![
            format!("--kubeconfig={}", self.path("kwok.kubeconfig")),
            "--manage-all-nodes=true".into(),
            "--node-lease-duration-seconds=40".into(),
            format!("--cidr={}", self.addresses.pods),
            // The kubelet of all nodes, for commands in containers.
            format!("--server-address={}", SocketAddr::new(self.addresses.loopback, self.kubelet_port)),
            format!("--node-ip={}", self.addresses.loopback),
            format!("--node-port={}", self.kubelet_port),
            format!("--tls-cert-file={}", self.path("apiserver.crt")),
            format!("--tls-private-key-file={}", self.path("apiserver.key")),
        ];
        for (name, _) in STAGES {
            arguments.push(format!("--config={}", self.path(&format!("{name}.yaml"))));
        }
        arguments
    }

    fn path(&self, file: &str) -> String {
        self.directory.join(file).display().to_string()
    }

    /// Helm complains about a kubeconfig that others may read, wherever it is.
    fn file(&self, name: &str, content: &str) -> Result<()> {
        let path = self.directory.join(name);
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(content.as_bytes()))
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

fn recipe(name: &'static str, program: &Path, arguments: Vec<String>) -> Recipe {
    Recipe { name, program: program.to_owned(), arguments, environment: Vec::new() }
}
