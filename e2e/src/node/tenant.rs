//! One tenant on the node: what is done to its app, and what is there afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use anyhow::{Context as _, Result};
use clientapp_crd::{ClientApp, ClientAppBackup, ClientAppRestore};
use k8s_openapi::api::core::v1::{Namespace, PersistentVolume, Pod, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, DeleteParams, EvictParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::inside::{Node, run};
use super::rootfs::POSTGRES;
use super::scenario::LONG;
use crate::wait::within;

/// One tenant with an app, and what is done to it.
pub(super) struct Tenant<'a> {
    pub(super) node: &'a Node,
    pub(super) client: Client,
    pub(super) namespace: &'a str,
    pub(super) app: &'a str,
    /// True if the namespace takes only pods without any privilege.
    pub(super) restricted: bool,
}

impl Tenant<'_> {
    /// Creates namespace and app.
    pub(super) async fn create(&self, chart: &str, postgres: Value) -> Result<String> {
        let labels = if self.restricted { RESTRICTED } else { &[] };
        make_namespace(&self.client, self.namespace, labels).await?;
        self.create_app(chart, postgres).await
    }

    /// Creates the app, and waits until it is ready.
    pub(super) async fn create_app(&self, chart: &str, postgres: Value) -> Result<String> {
        self.create_with(chart, postgres, json!({})).await
    }

    /// Creates the app with more in its spec, and waits until it is ready.
    pub(super) async fn create_with(&self, chart: &str, postgres: Value, more: Value) -> Result<String> {
        self.begin_with(chart, postgres, more).await?;
        self.ready().await
    }

    /// Creates the app with more in its spec.
    pub(super) async fn begin_with(&self, chart: &str, mut postgres: Value, more: Value) -> Result<()> {
        postgres["version"] = json!(POSTGRES);
        let mut app = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": self.app},
            "spec": {
                "hostname": format!("{}.example.com", self.app), "chartVersion": chart, "postgres": postgres,
                "persistence": {"size": "1Gi"},
            },
        });
        if self.restricted {
            // What the chart's documentation tells users who have such a namespace.
            app["spec"]["values"] = json!({"nextcloud": {
                "containerPort": 8080, "extraEnv": [{"name": "PORT", "value": "8080"}],
                "podSecurityContext": {
                    "runAsNonRoot": true, "runAsUser": 33, "runAsGroup": 33, "fsGroup": 33,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "securityContext": confined(),
            }});
        }
        json_patch::merge(&mut app["spec"], &more);
        self.apps().create(&PostParams::default(), &serde_json::from_value(app)?).await?;
        Ok(())
    }

    /// Changes the app's spec, and waits until it is ready again.
    pub(super) async fn change(&self, spec: Value) -> Result<String> {
        self.patch(spec).await?;
        self.ready().await
    }

    /// Changes the app's spec.
    pub(super) async fn patch(&self, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.apps().patch(self.app, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the app is ready in its present generation, and returns the reasons on the way and the last sentence.
    pub(super) async fn ready(&self) -> Result<String> {
        self.follow(&format!("{} is ready", self.app), |ready| ready.status == "True").await
    }

    /// Waits for a state of the app's condition `Ready`, of its present generation.
    pub(super) async fn follow(&self, what: &str, is_so: impl Fn(&Condition) -> bool) -> Result<String> {
        follow(&self.apps(), self.app, what, is_so).await
    }

    /// Reads what the app itself says, through its Service.
    pub(super) async fn page(&self) -> Result<Value> {
        let services: Api<Service> = self.api();
        let service = services.get(&format!("{}-nextcloud", self.app)).await?;
        let spec = service.spec.context("a Service has a spec")?;
        let address = spec.cluster_ip.context("it has an address")?;
        let port = spec.ports.unwrap_or_default().first().context("it has a port")?.port;
        let answer = reqwest::get(format!("http://{address}:{port}/status.php")).await?.error_for_status()?;
        Ok(answer.json().await?)
    }

    /// Waits until the app says this of itself.
    pub(super) async fn says(&self, key: &str, value: Value) -> Result<String> {
        within(LONG, &format!("the app says {key}: {value}"), async || match self.page().await {
            Ok(page) if page[key] == value => Ok(()),
            Ok(page) => Err(format!("{key}: {}", page[key])),
            Err(error) => Err(format!("{error:#}")),
        })
        .await?;
        Ok(format!("the app says {key}: {value}"))
    }

    /// Runs a command in the app's container.
    pub(super) fn exec(&self, command: &[&str]) -> Result<String> {
        let deployment = format!("deployment/{}-nextcloud", self.app);
        let mut arguments = vec!["exec", "--namespace", self.namespace, &deployment, "--container", "nextcloud", "--"];
        arguments.extend(command);
        self.node.kubectl(&arguments)
    }

    /// Writes a row and a file of this name.
    pub(super) fn write(&self, name: &str) -> Result<()> {
        self.exec(&["php", "/var/www/html/occ", "note:add", name])?;
        self.exec(&["touch", &format!("/var/www/html/data/{name}")])?;
        Ok(())
    }

    /// Writes another password into the Secret of Redis.
    pub(super) async fn change_redis_password(&self) -> Result<()> {
        let status = self.apps().get(self.app).await?.status.unwrap_or_default();
        let name = status.redis_secret_name.context("the status names no Secret of Redis")?;
        let patch = Patch::Merge(json!({"stringData": {"redis-password": "another"}}));
        self.api::<Secret>().patch(&name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Makes a backup object, and waits until it is complete.
    pub(super) async fn back_up(&self, name: &str, parts: Value) -> Result<String> {
        self.carried_out::<ClientAppBackup>(name, json!({"of": {"name": self.app}, "parts": parts})).await
    }

    /// Makes a restore object, and waits until it is complete.
    pub(super) async fn restore(&self, name: &str, backup: &str) -> Result<String> {
        self.carried_out::<ClientAppRestore>(name, json!({"of": {"name": self.app}, "backup": backup})).await
    }

    /// Creates another app from a backup, and waits until it has its database and files.
    pub(super) async fn restore_into(&self, name: &str, backup: &str, into: Value) -> Result<String> {
        let spec = json!({"of": {"name": self.app}, "backup": backup, "into": into});
        self.carried_out::<ClientAppRestore>(name, spec).await
    }

    /// Makes an object that is carried out once, and waits until it is complete.
    async fn carried_out<K>(&self, name: &str, spec: Value) -> Result<String>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
        K: Clone + Debug + Serialize + DeserializeOwned,
    {
        carried_out(&self.api::<K>(), name, spec).await
    }

    /// Deletes a pod at once, as a node does that fails.
    pub(super) async fn kill(&self, pod: &str) -> Result<()> {
        kill(&self.api(), pod).await
    }

    /// Takes the network of a pod away while something runs.
    pub(super) async fn without_network(
        &self,
        pod: &str,
        runs: impl AsyncFnOnce() -> Result<String>,
    ) -> Result<String> {
        let status = self.api::<Pod>().get(pod).await?.status;
        let address = status.and_then(|status| status.pod_ip).context("the pod has no address")?;
        let rules = |action: &str| {
            ["--source", "--destination"]
                .into_iter()
                .try_for_each(|way| run("iptables", &["--wait", action, "FORWARD", way, &address, "--jump", "DROP"]))
        };
        rules("--insert")?;
        let result = runs().await;
        rules("--delete")?;
        result
    }

    /// Evicts the app's pod, as `kubectl drain` does.
    pub(super) async fn evict(&self) -> Result<()> {
        let pod = self.app_pod().await?;
        self.api::<Pod>().evict(&pod, &EvictParams::default()).await?;
        Ok(())
    }

    /// Returns the name of the app's pod.
    pub(super) async fn app_pod(&self) -> Result<String> {
        let of_app = format!("app.kubernetes.io/component=app,app.kubernetes.io/instance={}", self.app);
        let pods = self.api::<Pod>().list(&ListParams::default().labels(&of_app)).await?;
        pods.items.first().map(|pod| pod.name_any()).context("the app has no pod")
    }

    /// Returns the newest revision of the release.
    pub(super) async fn revision(&self) -> Result<u32> {
        let of_helm = ListParams::default().labels(&format!("owner=helm,name={}", self.app));
        let secrets = self.api::<Secret>().list(&of_helm).await?;
        let versions = secrets.items.iter().filter_map(|secret| secret.labels().get("version")?.parse().ok());
        versions.max().context("there is no release")
    }

    /// Waits until helm has begun a revision after this one.
    pub(super) async fn helm_runs_after(&self, revision: u32) -> Result<()> {
        within(LONG, "helm has begun", async || self.revision().await.is_ok_and(|newest| newest > revision)).await
    }

    /// Deletes the app, and waits until it is gone.
    pub(super) async fn delete(&self) -> Result<String> {
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
    pub(super) async fn recovers(&self) -> Result<String> {
        self.follow("it is noticed", |ready| ready.status != "True").await?;
        let said = self.ready().await?;
        self.says("notes", json!(["first"])).await?;
        Ok(said)
    }

    /// Returns the names of the namespace's volumes.
    pub(super) async fn volumes(&self) -> Result<BTreeSet<String>> {
        let volumes = Api::<PersistentVolume>::all(self.client.clone()).list(&ListParams::default()).await?;
        let here = volumes.items.into_iter().filter(|volume| {
            let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            claim.is_some_and(|claim| claim.namespace.as_deref() == Some(self.namespace))
        });
        Ok(here.map(|volume| volume.name_any()).collect())
    }

    /// Waits until no volume of the namespace is left.
    pub(super) async fn volumes_are_gone(&self) -> Result<String> {
        within(LONG, "the volumes are gone", async || match self.volumes().await {
            Ok(volumes) if volumes.is_empty() => Ok(()),
            Ok(volumes) => Err(format!("{volumes:?}")),
            Err(error) => Err(error.to_string()),
        })
        .await?;
        Ok("no volume is left".to_owned())
    }

    pub(super) fn apps(&self) -> Api<ClientApp> {
        self.api()
    }

    pub(super) fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), self.namespace)
    }
}

/// The label of a namespace whose pods may have no privilege.
pub(super) const RESTRICTED: &[(&str, &str)] = &[("pod-security.kubernetes.io/enforce", "restricted")];

/// Returns the `securityContext` of a container that may run in such a namespace.
pub(super) fn confined() -> Value {
    json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}})
}

/// Creates a namespace.
pub(super) async fn make_namespace(client: &Client, name: &str, labels: &[(&str, &str)]) -> Result<()> {
    let labels: BTreeMap<_, _> = labels.iter().copied().collect();
    let namespace = json!({"metadata": {"name": name, "labels": labels}});
    Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
    Ok(())
}

/// Waits for a state of an object's condition `Ready`, of its present generation, and returns the reasons on the way and the last sentence.
pub(super) async fn follow<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    is_so: impl Fn(&Condition) -> bool,
) -> Result<String>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let mut reasons: Vec<String> = Vec::new();
    let (last, stalled) = within(LONG, what, async || {
        let object = json!(api.get(name).await.map_err(|error| error.to_string())?);
        let conditions = object["status"]["conditions"].clone();
        let conditions: Vec<Condition> = serde_json::from_value(conditions).map_err(|_| "no status yet".to_owned())?;
        let ready = conditions.iter().find(|condition| condition.type_ == "Ready").ok_or("no status yet")?;
        if reasons.last() != Some(&ready.reason) {
            reasons.push(ready.reason.clone());
        }
        let generation = object["metadata"]["generation"].as_i64();
        let current = object["status"]["observedGeneration"].as_i64() == generation;
        if !current || ready.observed_generation != generation || !is_so(ready) {
            return Err(format!("{}: {}", ready.reason, ready.message));
        }
        let mut others = conditions.iter();
        let stalled = others.find(|condition| condition.type_ == "Stalled" && condition.status == "True");
        Ok((ready.message.clone(), stalled.map(|stalled| format!("Stalled {}", stalled.reason))))
    })
    .await?;
    reasons.extend(stalled);
    Ok(format!("{}: {last}", reasons.join(", ")))
}

/// Makes an object that is carried out once, and waits until it is complete.
pub(super) async fn carried_out<K>(api: &Api<K>, name: &str, spec: Value) -> Result<String>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let object = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {"name": name}, "spec": spec,
    });
    api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
    within(LONG, &format!("{} {name} is complete", K::kind(&())), async || {
        outcome(&json!(api.get(name).await.ok()?)["status"])
    })
    .await?
}

/// Returns the outcome once the phase is final: the sentence, or an error with it.
pub(super) fn outcome(status: &Value) -> Option<Result<String>> {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let said = conditions.iter().find(|condition| condition["type"] == "Ready");
    let said = said.and_then(|condition| condition["message"].as_str()).unwrap_or_default().to_owned();
    match status["phase"].as_str()? {
        "Completed" => Some(Ok(said)),
        "Failed" => Some(Err(anyhow::anyhow!("it has failed: {said}"))),
        _ => None,
    }
}

/// Deletes a pod without giving it time.
pub(super) async fn kill(pods: &Api<Pod>, name: &str) -> Result<()> {
    let at_once = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
    pods.delete(name, &at_once).await?;
    Ok(())
}
