//! The operator on the node: its own Deployment, and the process that leads.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret};
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt as _};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use super::inside::Node;
use super::scenario::LONG;
use super::tenant::{self, RESTRICTED};
use super::{cgroups, files, images, network};
use crate::manifests::NAMESPACE;
use crate::release;
use crate::wait::within;

/// The directory of the release, in the node's own.
pub(super) const RELEASE: &str = "release";
const KUSTOMIZATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/node/operator");

/// Creates what the operator's pods mount, so that they do not wait for it.
pub(super) async fn prepare(node: &Node, client: &Client) -> Result<()> {
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    let authority = fs::read_to_string(files::path("ca.crt"))?;
    let map = json!({"metadata": {"name": "charts-authority"}, "data": {"ca.crt": authority}});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &serde_json::from_value(network::certificate(node)?)?).await?;
    Ok(())
}

/// Waits until those of the newest revision are, and no other is left.
async fn pods_are_ready(client: &Client) -> Result<()> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    within(LONG, "the operator's pods are ready", async || {
        let deployment = deployments.get_status("clientapp-operator").await.ok()?;
        let status = deployment.status?;
        let observed = status.observed_generation == deployment.metadata.generation;
        let pods = [status.replicas, status.updated_replicas, status.ready_replicas];
        (observed && pods == [Some(2); 3]).then_some(())
    })
    .await
}

/// Installs the operator from [`RELEASE`] alone, as an admin does without a registry.
pub(super) async fn install_release(node: &Node, client: &Client) -> Result<String> {
    let directory = files::path(RELEASE);
    release::verify(&directory, None)?;
    let manifest = directory.join(release::MANIFEST);
    let image = release::image(&fs::read_to_string(&manifest)?)?.to_owned();
    images::import_release(&directory, image.split('@').next().unwrap_or_default())?;
    node.kubectl(&["apply", "--server-side", "--filename", &manifest.to_string_lossy()])?;
    pods_are_ready(client).await?;
    Ok(image)
}

/// Applies `manifests/` and waits until the operator leads and stands by.
pub(super) async fn install(node: &Node, client: &Client) -> Result<String> {
    node.kubectl(&["apply", "--kustomize", KUSTOMIZATION])?;
    pods_are_ready(client).await?;
    let namespace = Api::<Namespace>::all(client.clone()).get(NAMESPACE).await?;
    for (label, level) in RESTRICTED {
        ensure!(namespace.labels().get(*label).is_some_and(|it| it == level), "{NAMESPACE} takes any pod");
    }
    Ok("2 pods are ready".to_owned())
}

/// Returns the memory of each pod of the operator, as its cgroup counts it without what the kernel may drop.
pub(super) async fn memory(client: &Client) -> Result<String> {
    let request = http::Request::get(format!("/api/v1/nodes/{}/proxy/stats/summary", files::NAME)).body(Vec::new())?;
    let words = within(LONG, "the kubelet has measured the operator's pods", async || {
        let summary: Value = client.request(request.clone()).await.ok()?;
        let pods = summary["pods"].as_array()?.iter().filter(|pod| pod["podRef"]["namespace"] == NAMESPACE);
        let bytes = pods.filter_map(|pod| pod["memory"]["workingSetBytes"].as_u64()).filter(|bytes| *bytes > 0);
        let words: Vec<_> = bytes.map(|bytes| format!("{} MiB", bytes >> 20)).collect();
        (words.len() == 2).then(|| words.join(" and "))
    });
    Ok(format!("{} in use", words.await?))
}

/// Deletes the pod that leads, without giving it time.
pub(super) async fn kill_leading_pod(client: &Client) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    tenant::kill(&pods, &leader(client).await?.name_any()).await
}

/// Waits until the leader runs `helm upgrade`, and kills all processes of its container at once, as the kernel does with cgroup v2 when one
/// of them needs too much memory.
pub(super) async fn kill_leading_container(client: &Client) -> Result<()> {
    let pod = leader(client).await?.uid().context("a pod has a uid")?;
    let processes = within(LONG, "the leader runs helm upgrade", async || {
        let processes = processes(&pod).ok()?;
        processes.iter().any(|process| upgrades(*process)).then_some(processes)
    });
    for process in processes.await? {
        // Some may have ended meanwhile.
        kill(process, Signal::SIGKILL).ok();
    }
    Ok(())
}

/// Returns the processes of a pod's containers, but for what holds its namespaces.
fn processes(pod: &str) -> Result<Vec<Pid>> {
    let mut found = Vec::new();
    for list in cgroups::processes(pod)? {
        for process in fs::read_to_string(list)?.lines() {
            let program = fs::read_link(PathBuf::from("/proc").join(process).join("exe"));
            if program.is_ok_and(|program| !program.ends_with("busybox")) {
                found.push(Pid::from_raw(process.parse()?));
            }
        }
    }
    Ok(found)
}

fn upgrades(process: Pid) -> bool {
    fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|line| {
        let mut words = line.split(|byte| *byte == 0);
        words.next().is_some_and(|program| program.ends_with(b"helm")) && words.any(|word| word == b"upgrade")
    })
}

/// Returns the pod that leads.
async fn leader(client: &Client) -> Result<Pod> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases.list(&ListParams::default()).await?.items.into_iter().next().context("nobody leads")?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    // The holder's name has the end of the pod's.
    let leads = |pod: &Pod| pod.name_any().rsplit_once('-').is_some_and(|(_, end)| holder.contains(end));
    let leader = pods.list(&ListParams::default()).await?.into_iter().find(leads);
    leader.with_context(|| format!("the leader {holder} is none of the operator's pods"))
}
