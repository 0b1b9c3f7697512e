//! The story of two tenants on a node, step by step: what their apps' status says is compared with what is there.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::{ClientApp, ClientAppBackup, ClientAppRestore};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolume, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::files::{self, ADDRESS};
use super::inside::{Node, client};
use super::rootfs::POSTGRES;
use super::steps::Steps;
use crate::charts::{DEFAULT, MAJOR, PATCH};
use crate::front::Front;
use crate::manifests::NAMESPACE;
use crate::progress::Progress;
use crate::repository::Repository;
use crate::tools::Extra;
use crate::wait::within;

/// No step takes this long, on whatever machine.
const LONG: Duration = Duration::from_secs(600);
const KUSTOMIZATION: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/node/operator");

/// The charts, at the address that `kustomization.yaml` names, while this lives.
pub(super) struct Charts {
    _front: Front,
    _repository: Repository,
}

impl Charts {
    /// Serves all versions of the test chart by https, with a certificate of the node's authority.
    pub(super) fn serve(node: &Node) -> Result<Self> {
        let repository = Repository::start()?;
        let behind: SocketAddr = repository.url().trim_start_matches("http://").parse()?;
        let front = Front::start_at(format!("{ADDRESS}:8443").parse()?, behind, &node.authority)?;
        Ok(Self { _front: front, _repository: repository })
    }
}

/// Applies `manifests/` and waits until the operator leads and stands by.
async fn install_operator(node: &Node, client: &Client) -> Result<String> {
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), NAMESPACE);
    node.kubectl(&["apply", "--kustomize", KUSTOMIZATION])?;
    within(LONG, "the operator's pods are ready", async || {
        let status = deployments.get_status("clientapp-operator").await.ok()?.status?;
        (status.ready_replicas == Some(2)).then_some(())
    })
    .await?;
    Ok("2 pods are ready".to_owned())
}

/// Creates what the operator's pods mount, so that they do not wait for it.
async fn prepare_operator(client: &Client) -> Result<()> {
    let namespace = json!({"metadata": {"name": NAMESPACE}});
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    let authority = std::fs::read_to_string(files::path("ca.crt"))?;
    let map = json!({"metadata": {"name": "charts-authority"}, "data": {"ca.crt": authority}});
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), NAMESPACE);
    maps.create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    Ok(())
}

/// Applies CloudNativePG's own manifest, and waits until its operator is ready.
async fn install_cloudnativepg(node: &Node, client: &Client) -> Result<String> {
    let mut objects = Extra::CloudNativePg.manifest(&Progress::hidden())?;
    for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    }
    node.apply(&objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>())?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "cnpg-system");
    within(LONG, "CloudNativePG's operator is ready", async || {
        let status = deployments.get_status("cnpg-controller-manager").await.ok()?.status?;
        (status.ready_replicas == Some(1)).then_some(())
    })
    .await?;
    Ok("it is ready".to_owned())
}

/// Returns the memory of each pod of the operator, as its cgroup counts it without what the kernel may drop.
async fn memory(client: &Client) -> Result<String> {
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

/// One tenant with an app, and what is done to it.
struct Tenant<'a> {
    node: &'a Node,
    client: Client,
    namespace: &'static str,
    app: &'static str,
}

impl Tenant<'_> {
    /// Creates namespace and app.
    async fn create(&self, chart: &str, postgres: Value) -> Result<String> {
        let namespace = json!({"metadata": {"name": self.namespace}});
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        self.create_app(chart, postgres).await
    }

    /// Creates the app, and waits until it is ready.
    async fn create_app(&self, chart: &str, mut postgres: Value) -> Result<String> {
        postgres["version"] = json!(POSTGRES);
        let app = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": self.app},
            "spec": {
                "hostname": format!("{}.example.com", self.app), "chartVersion": chart, "postgres": postgres,
                "persistence": {"size": "1Gi"},
            },
        });
        self.apps().create(&PostParams::default(), &serde_json::from_value(app)?).await?;
        self.ready().await
    }

    /// Changes the app's spec, and waits until it is ready again.
    async fn change(&self, spec: Value) -> Result<String> {
        self.patch(spec).await?;
        self.ready().await
    }

    /// Changes the app's spec.
    async fn patch(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.apps().patch(self.app, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the app is ready in its present generation, and returns the reasons on the way and the last sentence.
    async fn ready(&self) -> Result<String> {
        self.follow(&format!("{} is ready", self.app), |ready| ready.status == "True").await
    }

    /// Waits for a state of the condition `Ready` of the present generation.
    async fn follow(&self, what: &str, is_so: impl Fn(&Condition) -> bool) -> Result<String> {
        let mut reasons: Vec<String> = Vec::new();
        let (last, stalled) = within(LONG, what, async || {
            let app = self.apps().get(self.app).await.map_err(|error| error.to_string())?;
            let generation = app.metadata.generation;
            let status = app.status.unwrap_or_default();
            let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready").ok_or("no status yet")?;
            if reasons.last() != Some(&ready.reason) {
                reasons.push(ready.reason.clone());
            }
            let current = status.observed_generation == generation && ready.observed_generation == generation;
            if !current || !is_so(ready) {
                return Err(format!("{}: {}", ready.reason, ready.message));
            }
            let mut others = status.conditions.iter();
            let stalled = others.find(|condition| condition.type_ == "Stalled" && condition.status == "True");
            Ok((ready.message.clone(), stalled.map(|stalled| format!("Stalled {}", stalled.reason))))
        })
        .await?;
        reasons.extend(stalled);
        Ok(format!("{}: {last}", reasons.join(", ")))
    }

    /// Reads what the app itself says, through its Service.
    async fn page(&self) -> Result<Value> {
        let services: Api<Service> = self.api();
        let service = services.get(&format!("{}-nextcloud", self.app)).await?;
        let spec = service.spec.context("a Service has a spec")?;
        let address = spec.cluster_ip.context("it has an address")?;
        let port = spec.ports.unwrap_or_default().first().context("it has a port")?.port;
        let answer = reqwest::get(format!("http://{address}:{port}/status.php")).await?.error_for_status()?;
        Ok(answer.json().await?)
    }

    /// Waits until the app says this of itself.
    async fn says(&self, key: &str, value: Value) -> Result<String> {
        within(LONG, &format!("the app says {key}: {value}"), async || match self.page().await {
            Ok(page) if page[key] == value => Ok(()),
            Ok(page) => Err(format!("{key}: {}", page[key])),
            Err(error) => Err(format!("{error:#}")),
        })
        .await?;
        Ok(format!("the app says {key}: {value}"))
    }

    /// Runs a command in the app's container.
    fn exec(&self, command: &[&str]) -> Result<String> {
        let deployment = format!("deployment/{}-nextcloud", self.app);
        let mut arguments = vec!["exec", "--namespace", self.namespace, &deployment, "--container", "nextcloud", "--"];
        arguments.extend(command);
        self.node.kubectl(&arguments)
    }

    /// Writes a row and a file of this name.
    fn write(&self, name: &str) -> Result<()> {
        self.exec(&["php", "/var/www/html/occ", "note:add", name])?;
        self.exec(&["touch", &format!("/var/www/html/data/{name}")])?;
        Ok(())
    }

    /// Writes another password into the Secret of Redis.
    async fn change_redis_password(&self) -> Result<()> {
        let status = self.apps().get(self.app).await?.status.unwrap_or_default();
        let name = status.redis_secret_name.context("the status names no Secret of Redis")?;
        let patch = Patch::Merge(json!({"stringData": {"redis-password": "another"}}));
        self.api::<Secret>().patch(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Makes a backup object, and waits until it is complete.
    async fn back_up(&self, name: &str, parts: Value) -> Result<String> {
        self.carried_out::<ClientAppBackup>(name, json!({"of": {"name": self.app}, "parts": parts})).await
    }

    /// Makes a restore object, and waits until it is complete.
    async fn restore(&self, name: &str, backup: &str) -> Result<String> {
        self.carried_out::<ClientAppRestore>(name, json!({"of": {"name": self.app}, "backup": backup})).await
    }

    /// Makes an object that is carried out once, and waits until it is complete.
    async fn carried_out<K>(&self, name: &str, spec: Value) -> Result<String>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        let object = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}, "spec": spec,
        });
        let api = self.api::<K>();
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        within(LONG, &format!("{} {name} is complete", K::kind(&())), async || {
            outcome(&json!(api.get(name).await.ok()?)["status"])
        })
        .await?
    }

    /// Deletes a pod at once, as a node does that fails.
    async fn kill(&self, pod: &str) -> Result<()> {
        kill(&self.api(), pod).await
    }

    /// Evicts the app's pod, as `kubectl drain` does.
    async fn evict(&self) -> Result<()> {
        let pod = self.app_pod().await?;
        self.api::<Pod>().evict(&pod, &EvictParams::default()).await?;
        Ok(())
    }

    /// Returns the name of the app's pod.
    async fn app_pod(&self) -> Result<String> {
        let of_app = format!("app.kubernetes.io/component=app,app.kubernetes.io/instance={}", self.app);
        let pods = self.api::<Pod>().list(&ListParams::default().labels(&of_app)).await?;
        pods.items.first().map(|pod| pod.name_any()).context("the app has no pod")
    }

    /// Returns the newest revision of the release.
    async fn revision(&self) -> Result<u32> {
        let of_helm = ListParams::default().labels(&format!("owner=helm,name={}", self.app));
        let secrets = self.api::<Secret>().list(&of_helm).await?;
        let versions = secrets.items.iter().filter_map(|secret| secret.labels().get("version")?.parse().ok());
        versions.max().context("there is no release")
    }

    /// Waits until helm has begun a revision after this one.
    async fn helm_runs_after(&self, revision: u32) -> Result<()> {
        within(LONG, "helm has begun", async || self.revision().await.is_ok_and(|newest| newest > revision)).await
    }

    /// Deletes the app, and waits until it is gone.
    async fn delete(&self) -> Result<String> {
        self.apps().delete(self.app, &DeleteParams::default()).await?;
        within(LONG, &format!("{} is gone", self.app), async || match self.apps().get_opt(self.app).await {
            Ok(None) => Ok(()),
            Ok(Some(app)) => Err(json!(app.status.map(|status| status.conditions)).to_string()),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok("gone".to_owned())
    }

    /// Waits until the app is not ready, and then until it is, with its rows.
    async fn recovers(&self) -> Result<String> {
        self.follow("it is noticed", |ready| ready.status != "True").await?;
        let said = self.ready().await?;
        self.says("notes", json!(["first"])).await?;
        Ok(said)
    }

    /// Returns the names of the namespace's volumes.
    async fn volumes(&self) -> Result<BTreeSet<String>> {
        let volumes = Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await?;
        let here = volumes.items.into_iter().filter(|volume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.namespace.as_deref() == Some(self.namespace))
        });
        Ok(here.map(|volume| volume.name_any()).collect())
    }

    /// Waits until no volume of the namespace is left.
    async fn volumes_are_gone(&self) -> Result<String> {
        within(LONG, "the volumes are gone", async || match self.volumes().await {
            Ok(volumes) if volumes.is_empty() => Ok(()),
            Ok(volumes) => Err(format!("{volumes:?}")),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok("no volume is left".to_owned())
    }

    fn apps(&self) -> Api<ClientApp> {
        self.api()
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }
}

/// Returns the outcome once the phase is final: the sentence, or an error with it.
fn outcome(status: &Value) -> Option<Result<String>> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let said = conditions.iter().find(|condition| condition["type"] == "Ready");
    let said = said.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned();
    match status["phase"].as_str()? {
        "Completed" => Some(Ok(said)),
        "Failed" => Some(Err(anyhow::anyhow!("it has failed: {said}"))),
        _ => None,
    }
}

/// Kills the pod that leads.
async fn kill_leader(client: &Client) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let lease = leases.list(&ListParams::default()).await?.items.into_iter().next().context("nobody leads")?;
    let holder = lease.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let names = pods.list(&ListParams::default()).await?.into_iter().map(|pod| pod.name_any());
    // The holder's name has the end of the pod's.
    let leads = |name: &String| name.rsplit_once('-').is_some_and(|(_, end)| holder.contains(end));
    let leader = { names }.find(leads);
    kill(&pods, &leader.with_context(|| format!("the leader {holder} is none of the operator's pods"))?).await
}

/// Deletes a pod without giving it time.
async fn kill(pods: &Api<Pod>, name: &str) -> Result<()> {
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(name, &at_once).await?;
    Ok(())
}

/// Runs all steps.
pub(super) async fn run(node: &Node, steps: &mut Steps) -> Result<()> {
    let client = client().await?;
    let _charts = Charts::serve(node)?;
    prepare_operator(&client).await?;
    steps.step("the operator's Deployment", async || install_operator(node, &client).await).await?;
    let tenant = Tenant { node, client: client.clone(), namespace: "tenant-acme", app: "acme" };
    standalone(&tenant, steps).await?;
    steps.step("memory of the operator's pods", async || memory(&client).await).await?;
    steps.step("CloudNativePG's operator", async || install_cloudnativepg(node, &client).await).await?;
    let tenant = Tenant { node, client: client.clone(), namespace: "tenant-orders", app: "orders" };
    with_cloudnativepg(&tenant, steps).await
}

async fn standalone(acme: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    let postgres = json!({"provider": "standalone", "storageSize": "1Gi"});
    steps.step("an app with provider standalone", async || acme.create(DEFAULT, postgres).await).await?;
    steps
        .step("rows and files are written", async || {
            acme.write("first")?;
            acme.says("notes", json!(["first"])).await?;
            acme.says("files", json!(["first"])).await
        })
        .await?;
    steps
        .step("chartVersion upgraded, with a backup before it", async || {
            let said = acme.change(json!({"chartVersion": PATCH, "upgrade": {"backup": true}})).await?;
            acme.says("versionstring", json!("29.0.5")).await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps.step("backed up", async || acme.back_up("before", json!(["Database"])).await).await?;
    steps
        .step("restored", async || {
            acme.write("second")?;
            let said = acme.restore("back", "before").await?;
            acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("hostname changed", async || {
            let said = acme.change(json!({"hostname": "cloud.example.com"})).await?;
            let domains = acme.page().await?["domains"].to_string();
            ensure!(domains.contains("cloud.example.com"), "the app trusts {domains}");
            Ok(said)
        })
        .await?;
    steps
        .step("the password of Redis changed", async || {
            let revision = acme.revision().await?;
            acme.change_redis_password().await?;
            acme.helm_runs_after(revision).await?;
            acme.follow("it is noticed", |ready| ready.status != "True").await?;
            let said = acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("the leader's pod killed while helm runs", async || {
            let revision = acme.revision().await?;
            acme.patch(json!({"chartVersion": MAJOR})).await?;
            acme.helm_runs_after(revision).await?;
            kill_leader(&acme.client).await?;
            let said = acme.ready().await?;
            acme.says("versionstring", json!("30.0.0")).await?;
            let further = acme.revision().await? - revision;
            Ok(format!("{said} {further} revisions"))
        })
        .await?;
    steps
        .step("the database's pod killed", async || {
            acme.kill("acme-pg-0").await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("the kubelet killed and started again", async || {
            acme.node.restart("kubelet")?;
            acme.kill("acme-pg-0").await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("the app's pod evicted", async || {
            acme.evict().await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("an image that does not exist", async || {
            acme.patch(json!({"image": "nextcloud:nowhere"})).await?;
            let said = acme.follow("the image is named", |ready| ready.message.contains("nextcloud:nowhere")).await?;
            acme.change(json!({"image": null})).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("an app that needs more memory than it may have", async || {
            acme.patch(json!({"values": {"resources": {"limits": {"memory": "6Mi"}}}})).await?;
            let said = acme.follow("memory is named", |ready| ready.message.contains("memory")).await?;
            acme.change(json!({"values": null})).await?;
            Ok(said)
        })
        .await?;
    ends(acme, MAJOR, "standalone", steps).await
}

async fn with_cloudnativepg(orders: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    let postgres = json!({"provider": "cloudnativepg", "storageSize": "1Gi"});
    steps.step("an app with provider cloudnativepg", async || orders.create(DEFAULT, postgres).await).await?;
    steps
        .step("rows and files are written", async || {
            orders.write("first")?;
            orders.says("notes", json!(["first"])).await
        })
        .await?;
    steps
        .step("the primary's pod killed", async || {
            orders.kill("orders-pg-1").await?;
            orders.recovers().await
        })
        .await?;
    ends(orders, DEFAULT, "cloudnativepg", steps).await
}

/// Deletes an app twice: first its data stay, and the next app of this name continues with them; then nothing is left.
async fn ends(tenant: &Tenant<'_>, chart: &str, provider: &str, steps: &mut Steps) -> Result<()> {
    steps
        .step("deleted with policy Retain, and created again", async || {
            tenant.change(json!({"deletionPolicy": "Retain"})).await?;
            let kept = tenant.volumes().await?;
            tenant.delete().await?;
            let postgres = json!({"provider": provider, "storageSize": "1Gi", "adopt": true});
            let said = tenant.create_app(chart, postgres).await?;
            tenant.says("notes", json!(["first"])).await?;
            ensure!(tenant.volumes().await? == kept, "the volumes are others");
            Ok(said)
        })
        .await?;
    steps
        .step("deleted", async || {
            tenant.delete().await?;
            tenant.volumes_are_gone().await
        })
        .await
}
