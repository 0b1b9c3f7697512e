//! Who reaches whom: an instance that the HTTP API has made in a namespace of its own, and a pod of another.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::files::path;
use super::inside::Node;
use super::rootfs::POSTGRES;
use super::scenario::LONG;
use super::steps::Steps;
use super::tenant::{Tenant, confined, make_namespace};
use super::workloads::TOOLS;
use crate::charts::DEFAULT;
use crate::manifests;
use crate::wait::within;

/// The label of namespaces that belong to an instance.
const OF_INSTANCES: &[(&str, &str)] = &[("app.kubernetes.io/managed-by", "clientapp-operator")];
const INSTANCE: (&str, &str) = ("tenant-shop", "shop");
const API: &str = "clientapp-operator.clientapp-operator.svc";

/// A pod that tries to connect.
pub(super) struct Stranger<'a> {
    node: &'a Node,
    namespace: &'a str,
    pod: &'a str,
}

impl<'a> Stranger<'a> {
    /// Starts a pod without labels. The namespace, if it is not there, is made as one of another instance.
    pub(super) async fn start(node: &'a Node, client: &Client, namespace: &'a str) -> Result<Self> {
        Self::with_labels(node, client, namespace, "stranger", json!({})).await
    }

    /// The same with labels.
    pub(super) async fn with_labels(
        node: &'a Node,
        client: &Client,
        namespace: &'a str,
        pod: &'a str,
        labels: Value,
    ) -> Result<Self> {
        if Api::<Namespace>::all(client.clone()).get_opt(namespace).await?.is_none() {
            make_namespace(client, namespace, OF_INSTANCES).await?;
        }
        let container = json!({
            "name": "tools", "image": TOOLS, "command": ["sleep", "infinity"], "securityContext": confined(),
        });
        let spec = json!({
            "containers": [container], "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        });
        let object = json!({"metadata": {"name": pod, "labels": labels}, "spec": spec});
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        within(LONG, "the namespace has its account", async || {
            pods.create(&PostParams::default(), &serde_json::from_value(object.clone()).expect("a pod")).await
        })
        .await?;
        let stranger = Self { node, namespace, pod };
        within(LONG, "the pod runs", async || stranger.exec("true")).await?;
        Ok(stranger)
    }

    fn exec(&self, command: &str) -> Result<String, String> {
        let exec = ["exec", "--namespace", self.namespace, self.pod, "--", "bash", "-c", command];
        self.node.kubectl(&exec).map_err(|error| error.to_string())
    }

    /// Waits until a connection succeeds, or is refused. A pod that has just started is not in all rules yet.
    pub(super) async fn reaches(&self, host: &str, port: u16, expected: bool) -> Result<()> {
        let what = format!(
            "{}/{} {} {host}:{port}",
            self.namespace,
            self.pod,
            if expected { "reaches" } else { "cannot reach" }
        );
        within(LONG, &what, async || self.exec(&connect(host, port)).is_ok() == expected).await
    }
}

/// Returns a command of bash that connects and hangs up.
fn connect(host: &str, port: u16) -> String {
    format!("timeout 3 bash -c '</dev/tcp/{host}/{port}'")
}

/// Runs all steps.
pub(super) async fn run(node: &Node, client: &Client, steps: &mut Steps) -> Result<()> {
    let (namespace, name) = INSTANCE;
    let shop = Tenant { node, client: client.clone(), namespace, app: name, restricted: false };
    steps
        .step("an instance made by the HTTP API", async || {
            make(node, client).await?;
            let said = shop.ready().await?;
            shop.write("first")?;
            shop.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    let stranger = Stranger::start(node, client, "tenant-next").await?;
    steps
        .step("it reaches its database and its Redis, another instance reaches neither", async || {
            let service = |name: &str| format!("{name}.{namespace}.svc");
            for (host, port, open) in
                [("shop-pg", 5432, false), ("shop-redis-master", 6379, false), ("shop-nextcloud", 8080, true)]
            {
                shop.exec(&["bash", "-c", &connect(&service(host), port)]).with_context(|| format!("to {host}"))?;
                stranger.reaches(&service(host), port, open).await?;
            }
            // Metrics and the API are open to all; only users with a token get an answer from the latter.
            for port in [8080, 8090] {
                stranger.reaches(API, port, true).await?;
            }
            Ok("as clientapp-isolation and the operator's policy have it".to_owned())
        })
        .await?;
    steps
        .step("deleted with its namespace", async || {
            shop.delete().await?;
            let namespaces: Api<Namespace> = Api::all(client.clone());
            within(LONG, "the namespace is gone", async || {
                namespaces.get_opt(namespace).await.is_ok_and(|found| found.is_none())
            })
            .await?;
            shop.volumes_are_gone().await
        })
        .await
}

/// Asks the operator's API for the instance, as a portal does.
async fn make(node: &Node, client: &Client) -> Result<()> {
    let (namespace, name) = INSTANCE;
    make_namespace(client, "portal", &[]).await?;
    node.kubectl(&["create", "serviceaccount", "portal", "--namespace", "portal"])?;
    let bind = ["create", "clusterrolebinding", "portal", "--clusterrole=clientapp-api-user"];
    node.kubectl(&[&bind[..], &["--serviceaccount=portal:portal"]].concat())?;
    let token = ["create", "token", "portal", "--namespace", "portal", "--audience", "clientapp-operator"];
    let token = node.kubectl(&token)?;
    let services: Api<Service> = Api::namespaced(client.clone(), manifests::NAMESPACE);
    let service = services.get("clientapp-operator").await?;
    let address = service.spec.and_then(|spec| spec.cluster_ip).context("the Service has no address")?;
    let _ = rustls::crypto::ring::default_provider().install_default();
    let authority = reqwest::Certificate::from_pem(&std::fs::read(path("ca.crt"))?)?;
    let http = reqwest::Client::builder().tls_certs_only([authority]);
    let http = http.resolve(API, SocketAddr::new(address.parse()?, 8090)).build()?;
    let request = json!({
        "name": name, "namespace": namespace, "hostname": "shop.example.com", "chartVersion": DEFAULT,
        "postgres": {"provider": "standalone", "version": POSTGRES, "storageSize": "1Gi"},
        "persistence": {"size": "1Gi"},
    });
    within(LONG, "the API answers", async || {
        let request = http.post(format!("https://{API}:8090/instances")).bearer_auth(token.trim()).json(&request);
        let answer = request.send().await.map_err(|error| format!("{error:#}"))?;
        let status = answer.status();
        // Any other answer is final, unless it asks to come back.
        match status.as_u16() {
            503 => Err(answer.text().await.unwrap_or_default()),
            _ => Ok((status, answer.text().await.unwrap_or_default())),
        }
    })
    .await
    .and_then(|(status, text)| {
        ensure!(status == 201, "the API answers {status}: {text}");
        Ok(())
    })
}

/// Returns the Secret with the certificate of the API.
pub(super) fn certificate(node: &Node) -> Result<Value> {
    let identity = node.authority.server("clientapp-operator", vec![API.to_owned()])?;
    Ok(json!({
        "metadata": {"name": "clientapp-operator-api-tls"}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": identity.certificate, "tls.key": identity.key},
    }))
}
