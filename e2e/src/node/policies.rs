//! Enforces NetworkPolicies, which the bridge between the pods does not: those that our objects are made of, and the others are refused.
//!
//! As in real networks, a new pod is in the rules of the others only after a while. Connections from the node itself are never limited,
//! so probes are not, and neither are replies.

use std::io::Write as _;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::{Api, ListParams};
use kube::core::{Selector, SelectorExt as _};
use kube::{Client, ResourceExt as _};

use super::inside::run;

/// Between a look at the cluster and the rules that follow from it, so that a new pod waits for one to two of these.
const LATE: Duration = Duration::from_secs(1);
/// The chain that both kinds of packets pass: those to and between pods, and those from pods to the node.
const CHAIN: &str = "POLICIES";

/// The two directions of a policy, with iptables' flags for the selected pod and for its peer.
const DIRECTIONS: [(&str, &str, &str); 2] =
    [("Ingress", "--destination", "--source"), ("Egress", "--source", "--destination")];

/// Makes the chain, which limits nothing yet.
pub(super) fn install() -> Result<()> {
    run("iptables", &["--wait", "--new-chain", CHAIN])?;
    ["FORWARD", "INPUT"]
        .into_iter()
        .try_for_each(|hook| run("iptables", &["--wait", "--insert", hook, "--jump", CHAIN]))
}

/// Enforces them until it is dropped.
pub(super) async fn enforce(client: Client) {
    let mut applied = String::new();
    loop {
        let seen = Cluster::read(&client).await.and_then(|cluster| cluster.rules());
        tokio::time::sleep(LATE).await;
        let done = seen.and_then(|rules| {
            if rules != applied {
                restore(&rules)?;
                applied = rules;
            }
            Ok(())
        });
        if let Err(error) = done {
            eprintln!("network policies: {error:#}");
        }
    }
}

/// Replaces the rules, all at once.
fn restore(rules: &str) -> Result<()> {
    let mut restore = Command::new("iptables-restore");
    restore.args(["--noflush", "--wait", "5"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut restore = restore.spawn().context("cannot run iptables-restore")?;
    restore.stdin.take().context("it is piped")?.write_all(rules.as_bytes())?;
    let output = restore.wait_with_output()?;
    ensure!(output.status.success(), "iptables-restore: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

struct Cluster {
    namespaces: Vec<Namespace>,
    pods: Vec<Pod>,
    policies: Vec<NetworkPolicy>,
}

impl Cluster {
    async fn read(client: &Client) -> Result<Self> {
        let all = ListParams::default();
        let (namespaces, pods, policies) =
            (Api::all(client.clone()), Api::all(client.clone()), Api::all(client.clone()));
        Ok(Self {
            namespaces: namespaces.list(&all).await?.items,
            pods: pods.list(&all).await?.items,
            policies: policies.list(&all).await?.items,
        })
    }

    /// Returns the input of iptables-restore. Pure.
    fn rules(&self) -> Result<String> {
        let (mut heads, mut chains, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for (pod, address) in self.pods.iter().filter_map(|pod| Some((pod, address(pod)?))) {
            for (direction, this, other) in DIRECTIONS {
                let mut policies = Vec::new();
                for policy in self.policies.iter().filter(|policy| policy.namespace() == pod.namespace()) {
                    let spec = policy.spec.as_ref().context("a policy has a spec")?;
                    let types = spec.policy_types.as_ref().context("the API server defaults policyTypes")?;
                    if types.iter().any(|it| it == direction) && selects(spec.pod_selector.as_ref(), pod)? {
                        policies.push(spec);
                    }
                }
                if policies.is_empty() {
                    continue;
                }
                // Both ends may limit a connection: what one allows returns, for the other to judge.
                let chain = format!("{direction}-{:08x}", u32::from(address));
                heads.push(format!("-A {CHAIN} {this} {address} -j {chain}"));
                chains.push(chain.clone());
                for spec in policies {
                    let ingress = spec.ingress.iter().flatten().map(|rule| (&rule.from, &rule.ports));
                    let egress = spec.egress.iter().flatten().map(|rule| (&rule.to, &rule.ports));
                    let rules: Vec<_> = if direction == "Ingress" { ingress.collect() } else { egress.collect() };
                    for (peers, ports) in rules {
                        let matches = self.peers(peers.as_deref().unwrap_or_default(), pod)?;
                        let ports = ports.iter().flatten().map(|port| matching(port, pod, direction));
                        let mut ports = ports.collect::<Result<Vec<_>>>()?;
                        if ports.is_empty() {
                            ports.push(String::new());
                        }
                        for peer in matches {
                            let peer = peer.map(|peer| format!(" {other} {peer}")).unwrap_or_default();
                            bodies.extend(ports.iter().map(|port| format!("-A {chain}{peer}{port} -j RETURN")));
                        }
                    }
                }
                bodies.push(format!("-A {chain} -j REJECT"));
            }
        }
        let declared = chains.iter().map(|chain| format!(":{chain} - [0:0]"));
        let replies = format!("-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN");
        let lines = ["*filter".to_owned(), format!(":{CHAIN} - [0:0]")].into_iter().chain(declared).chain([replies]);
        let lines: Vec<_> = lines.chain(heads).chain(bodies).chain(["COMMIT\n".to_owned()]).collect();
        Ok(lines.join("\n"))
    }

    /// Returns the addresses of these peers of a pod's policy; `None` is everybody.
    fn peers(&self, peers: &[NetworkPolicyPeer], of: &Pod) -> Result<Vec<Option<Ipv4Addr>>> {
        if peers.is_empty() {
            return Ok(vec![None]);
        }
        let mut found = Vec::new();
        for (pod, address) in self.pods.iter().filter_map(|pod| Some((pod, address(pod)?))) {
            for NetworkPolicyPeer { ip_block, namespace_selector, pod_selector } in peers {
                ensure!(ip_block.is_none(), "ipBlock is not enforced here");
                let near = match namespace_selector {
                    None => pod.namespace() == of.namespace(),
                    Some(selector) => {
                        let namespace = self.namespaces.iter().find(|it| Some(it.name_any()) == pod.namespace());
                        namespace.map_or(Ok(false), |namespace| selects(Some(selector), namespace))?
                    }
                };
                if near && selects(pod_selector.as_ref(), pod)? {
                    found.push(Some(address));
                    break;
                }
            }
        }
        Ok(found)
    }
}

/// Tells if a selector selects an object. Without one, it selects all.
fn selects(selector: Option<&LabelSelector>, object: &impl kube::Resource) -> Result<bool> {
    let Some(selector) = selector else { return Ok(true) };
    Ok(Selector::try_from(selector.clone())?.matches(object.labels()))
}

/// Returns the address of a pod that has one of its own and has not ended.
fn address(pod: &Pod) -> Option<Ipv4Addr> {
    let status = pod.status.as_ref()?;
    let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    let on_host = pod.spec.as_ref().and_then(|spec| spec.host_network).unwrap_or_default();
    status.pod_ip.as_ref().filter(|_| !ended && !on_host)?.parse().ok()
}

/// Returns the flags for a port.
fn matching(
    NetworkPolicyPort { end_port, port, protocol }: &NetworkPolicyPort,
    pod: &Pod,
    direction: &str,
) -> Result<String> {
    ensure!(end_port.is_none(), "endPort is not enforced here");
    let protocol = protocol.as_deref().unwrap_or("TCP").to_lowercase();
    let number = match port {
        None => return Ok(format!(" --protocol {protocol}")),
        Some(IntOrString::Int(number)) => *number,
        Some(IntOrString::String(name)) if direction == "Ingress" => {
            let mut ports = pod.spec.iter().flat_map(|spec| &spec.containers).flat_map(|it| it.ports.iter().flatten());
            let port = ports.find(|port| port.name.as_ref() == Some(name));
            port.with_context(|| format!("{} has no port {name}", pod.name_any()))?.container_port
        }
        Some(IntOrString::String(name)) => bail!("the port {name} of a peer is not enforced here"),
    };
    Ok(format!(" --protocol {protocol} --dport {number}"))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn all<K: DeserializeOwned>(objects: Value) -> Vec<K> {
        serde_json::from_value(objects).expect("objects")
    }

    fn pod(namespace: &str, name: &str, address: &str) -> Value {
        let container = json!({"name": "c", "ports": [{"name": "http", "containerPort": 8080}]});
        json!({
            "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
            "spec": {"containers": [container]}, "status": {"phase": "Running", "podIP": address},
        })
    }

    /// Two instances, `a` with a database and an app, `b` with an app; and a namespace `c` of nobody, with a Job that has ended.
    fn rules(policies: &[Value]) -> Result<String> {
        let namespaces = [("a", "ours"), ("b", "ours"), ("c", "else")];
        let namespaces = namespaces.map(|(name, of)| json!({"metadata": {"name": name, "labels": {"of": of}}}));
        let mut ended = pod("c", "ended", "10.244.0.9");
        ended["status"]["phase"] = json!("Succeeded");
        let pods = [
            pod("a", "db", "10.244.0.1"),
            pod("a", "app", "10.244.0.2"),
            pod("b", "app", "10.244.0.3"),
            pod("c", "tool", "10.244.0.4"),
            ended,
        ];
        let policies = policies.iter().map(|spec| json!({"metadata": {"namespace": "a", "name": "p"}, "spec": spec}));
        let policies = all(policies.collect());
        let rules = Cluster { namespaces: all(json!(namespaces)), pods: all(json!(pods)), policies }.rules()?;
        let lines = rules.lines().filter(|line| line.starts_with("-A ") && !line.contains("conntrack"));
        Ok(lines.map(|line| format!("{}\n", line.trim_start_matches("-A "))).collect())
    }

    #[test]
    fn what_a_policy_allows_returns_and_everything_else_is_rejected() {
        let db = json!({"matchLabels": {"app": "db"}});
        let others = json!({"matchExpressions": [{"key": "of", "operator": "NotIn", "values": ["ours"]}]});
        for (policy, expected) in [
            // No peers and no ports: all of them.
            (
                json!({"podSelector": db, "policyTypes": ["Ingress"], "ingress": [{}]}),
                "POLICIES --destination 10.244.0.1 -j Ingress-0af40001\n\
                 Ingress-0af40001 -j RETURN\n\
                 Ingress-0af40001 -j REJECT\n",
            ),
            // No rules: nobody, in both directions.
            (
                json!({"podSelector": db, "policyTypes": ["Ingress", "Egress"]}),
                "POLICIES --destination 10.244.0.1 -j Ingress-0af40001\n\
                 POLICIES --source 10.244.0.1 -j Egress-0af40001\n\
                 Ingress-0af40001 -j REJECT\n\
                 Egress-0af40001 -j REJECT\n",
            ),
            // The namespace, and those that are of no instance; what has ended has no address.
            (
                json!({
                    "podSelector": db, "policyTypes": ["Ingress"],
                    "ingress": [{"from": [{"podSelector": {}}]}, {"from": [{"namespaceSelector": others}], "ports": [{"port": 5432}]}],
                }),
                "POLICIES --destination 10.244.0.1 -j Ingress-0af40001\n\
                 Ingress-0af40001 --source 10.244.0.1 -j RETURN\n\
                 Ingress-0af40001 --source 10.244.0.2 -j RETURN\n\
                 Ingress-0af40001 --source 10.244.0.4 --protocol tcp --dport 5432 -j RETURN\n\
                 Ingress-0af40001 -j REJECT\n",
            ),
            // A port by its name.
            (
                json!({"podSelector": db, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": "http", "protocol": "TCP"}]}]}),
                "POLICIES --destination 10.244.0.1 -j Ingress-0af40001\n\
                 Ingress-0af40001 --protocol tcp --dport 8080 -j RETURN\n\
                 Ingress-0af40001 -j REJECT\n",
            ),
            (
                json!({"podSelector": db, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53, "protocol": "UDP"}]}]}),
                "POLICIES --source 10.244.0.1 -j Egress-0af40001\n\
                 Egress-0af40001 --protocol udp --dport 53 -j RETURN\n\
                 Egress-0af40001 -j REJECT\n",
            ),
            // It selects no pod.
            (json!({"podSelector": {"matchLabels": {"app": "none"}}, "policyTypes": ["Ingress"]}), ""),
        ] {
            assert_eq!(rules(std::slice::from_ref(&policy)).expect("it is enforced"), expected, "{policy}");
        }
    }

    #[test]
    fn what_is_not_enforced_is_refused() {
        for rule in [
            json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}),
            json!({"ports": [{"port": 80, "endPort": 90}]}),
            json!({"ports": [{"port": "unknown"}]}),
        ] {
            let policy = json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule]});
            rules(&[policy]).expect_err("it is refused");
        }
    }
}
