//! The real Percona operator, beside a control plane whose pods do not run.
//!
//! Everything that the operator does is real. Not real is what its pods do, which the module `pods` writes in their place and nothing else:
//! Patroni's leader, the end of pgBackRest's Jobs and the list of their backups, and, by the scripts in `kwok/exec`, the answers to the
//! commands that the operator sends into containers.

mod pods;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use clientapp_crd::percona::{CRD_NAME, PerconaPGCluster};
use futures::future::try_join_all;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Config, ResourceExt as _};
use serde_json::json;
use tokio::sync::watch;

use crate::background::Background;
use crate::plane::ControlPlane;
use crate::plane::layout::PERCONA_POD;
pub use crate::plane::layout::PERCONA_USER as USER;
use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::{TIMEOUT, within};

const MANAGER: &str = "percona-pods";
/// On a namespace: the operator may write nothing there.
const IGNORED: &str = "clientapp.test/percona";

/// How a cluster's pods misbehave. The default is not at all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Knobs {
    /// No pod starts until [`Percona::set_for`] changes this.
    pub hold: bool,
    /// PgBouncer's pods do not start, and one that runs is deleted.
    pub pgbouncer_unready: bool,
    /// Jobs for a `PerconaPGBackup` run until [`Percona::set_for`] changes this, except the initial backup.
    pub hold_backups: bool,
    /// Jobs for a `PerconaPGBackup` fail, except the initial backup.
    pub fail_backups: bool,
    /// Jobs for a `PerconaPGRestore` run until [`Percona::set_for`] changes this.
    pub hold_restores: bool,
    /// Jobs for a `PerconaPGRestore` fail.
    pub fail_restores: bool,
}

/// By namespace and name of a cluster.
type Settings = BTreeMap<(String, String), Knobs>;

/// The operator, which is a server of its plane and ends with it, and what its pods do, until this is dropped.
#[derive(Debug)]
pub struct Percona {
    settings: watch::Sender<Settings>,
    config: Config,
    backups: PathBuf,
    pods: Mutex<Background>,
}

impl Percona {
    /// Creates the definitions of all kinds, and waits until clusters can be created: a client that finds the definition of clusters
    /// can rely on the others.
    pub async fn define(client: &Client) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let (clusters, others) = definitions()?.into_iter().partition::<Vec<_>, _>(of_clusters);
        try_join_all(others.iter().map(|definition| define(&api, definition))).await?;
        try_join_all(clusters.iter().map(|definition| define(&api, definition))).await?;
        Ok(())
    }

    /// Deletes the definitions and with them all clusters, backups and restores, and waits until they are gone.
    pub async fn undefine(client: &Client) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let (clusters, others) = definitions()?.into_iter().partition::<Vec<_>, _>(of_clusters);
        for definition in clusters.into_iter().chain(others) {
            let name = definition.name_any();
            if let Some(uid) = api.get_opt(&name).await?.and_then(|definition| definition.uid()) {
                api.delete(&name, &DeleteParams::default()).await?;
                await_condition(api.clone(), &name, conditions::is_deleted(&uid)).await?;
            }
        }
        Ok(())
    }

    /// Starts the operator for all namespaces, on a plane with its definitions.
    pub async fn start(plane: &ControlPlane) -> Result<Self> {
        let config = plane.config().await?;
        furnish(&Client::try_from(config.clone())?).await?;
        plane.run_percona(&Extra::Percona.ensure(&Progress::stderr())?)?;
        let (settings, _) = watch::channel(Settings::new());
        let backups = plane.directory().join("backups.json");
        let pods = Mutex::new(pods::start(&config, settings.subscribe(), &backups)?);
        Ok(Self { settings, config, backups, pods })
    }

    /// Starts the pods' part anew after an outage of the API server; its watches may take minutes to recover.
    pub fn restart(&self) -> Result<()> {
        let anew = pods::start(&self.config, self.settings.subscribe(), &self.backups)?;
        *self.pods.lock().unwrap_or_else(PoisonError::into_inner) = anew;
        Ok(())
    }

    /// Sets the knobs of one cluster.
    pub fn set_for(&self, namespace: &str, cluster: &str, knobs: Knobs) {
        self.settings.send_modify(|settings| {
            settings.insert((namespace.to_owned(), cluster.to_owned()), knobs);
        });
    }

    /// Lets the operator write nothing in a namespace, as if it did not watch it: no status, no Secret, no finalizer removed.
    pub async fn ignore(&self, namespace: &str, ignores: bool) -> Result<()> {
        let client = Client::try_from(self.config.clone())?;
        let value = ignores.then_some("ignores");
        let label = Patch::Merge(json!({"metadata": {"labels": {IGNORED: value}}}));
        Api::<Namespace>::all(client.clone()).patch(namespace, &PatchParams::default(), &label).await?;
        // The admission plugin reads it from a watch.
        let mut percona = self.config.clone();
        percona.auth_info.impersonate = Some(USER.to_owned());
        percona.auth_info.impersonate_groups = Some(vec!["system:masters".to_owned()]);
        let itself = Api::<ConfigMap>::namespaced(Client::try_from(percona)?, namespace);
        let probe: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "percona-probe"}}))?;
        let dry = PostParams { dry_run: true, ..PostParams::default() };
        let what = format!("Percona ignores {namespace}: {ignores}");
        within(TIMEOUT, &what, async || itself.create(&dry, &probe).await.is_err() == ignores).await?;
        if !ignores {
            // It retries what was refused later and later, and at once after an event.
            let clusters = Api::<PerconaPGCluster>::namespaced(client, namespace);
            let touch = json!({"metadata": {"annotations": {IGNORED: jiff::Timestamp::now().to_string()}}});
            for cluster in clusters.list(&ListParams::default()).await? {
                clusters.patch(&cluster.name_any(), &PatchParams::default(), &Patch::Merge(&touch)).await?;
            }
        }
        Ok(())
    }
}

/// Creates or changes a definition, and waits until it is established.
pub(crate) async fn define(api: &Api<CustomResourceDefinition>, definition: &CustomResourceDefinition) -> Result<()> {
    let name = definition.name_any();
    let params = PatchParams::apply(MANAGER).force();
    api.patch(&name, &params, &Patch::Apply(definition)).await.with_context(|| format!("cannot define {name}"))?;
    await_condition(api.clone(), &name, conditions::is_crd_established()).await?;
    Ok(())
}

fn of_clusters(definition: &CustomResourceDefinition) -> bool {
    definition.name_any() == CRD_NAME
}

/// The definitions of all kinds.
pub fn definitions() -> Result<Vec<CustomResourceDefinition>> {
    Extra::Percona.definitions(&Progress::stderr())
}

/// Creates the pod in which the operator finds its own image, and the policy of [`Percona::ignore`].
async fn furnish(client: &Client) -> Result<()> {
    let [namespace, name] = PERCONA_POD;
    let params = PatchParams::apply(MANAGER).force();
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
    Api::<Namespace>::all(client.clone()).patch(namespace, &params, &Patch::Apply(object)).await?;
    let image = "percona/percona-postgresql-operator:2.9.0";
    let object = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {"containers": [{"name": "operator", "image": image}]},
    });
    let pods = Api::<Pod>::namespaced(client.clone(), namespace);
    within(TIMEOUT, "Percona's pod", async || pods.patch(name, &params, &Patch::Apply(&object)).await).await?;

    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "percona"},
        "spec": {
            "matchConstraints": {"resourceRules": [{
                "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], "scope": "Namespaced",
            }]},
            "matchConditions": [{
                "name": "percona", "expression": format!("request.userInfo.username == '{USER}'"),
            }],
            "validations": [{"expression": "false", "message": "Percona ignores this namespace"}],
        },
    });
    Api::<ValidatingAdmissionPolicy>::all(client.clone()).patch("percona", &params, &Patch::Apply(policy)).await?;
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "percona"},
        "spec": {
            "policyName": "percona", "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {IGNORED: "ignores"}}},
        },
    });
    Api::<ValidatingAdmissionPolicyBinding>::all(client.clone())
        .patch("percona", &params, &Patch::Apply(binding))
        .await?;
    Ok(())
}
