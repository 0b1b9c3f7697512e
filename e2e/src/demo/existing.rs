//! The user's cluster. Everything created there has this run's mark, and only marked objects are removed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clientapp_crd::{self as crd, ClientApp, LEASE, percona};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Api, Client, Config, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::timeout;

use super::home::Home;
use super::operator::{Operator, Surroundings};
use super::screen::{Commands, say, step};
use super::{Place, Stage, apart};
use crate::charts::{self, Content};
use crate::manifests;
use crate::progress::Progress;
use crate::tools::Tools;

/// Contains everything namespaced that the demonstration creates.
const NAMESPACE: &str = "clientapp-demo";
/// On everything that the demonstration creates: which run created it.
const MARK: &str = "apps.bnerd-operator.local/demo";
const MANAGER: &str = "clientapp-demo";
/// A cluster that does not answer its first request within this time is unreachable.
const FIRST_ANSWER: Duration = Duration::from_secs(15);
/// Enough to pull images and create volumes.
const TIMEOUT: Duration = Duration::from_secs(600);
/// How long one kind of object may take to be deleted.
const FAREWELL: Duration = Duration::from_secs(180);
/// The name for `kubectl apply`.
const SAMPLE: &str = "clientapp.yaml";

/// The user's cluster, and what was created in it.
pub(super) struct Existing {
    operator: Option<Operator>,
    home: Home,
    context: String,
    run: String,
    client: Option<Client>,
}

impl Existing {
    pub(super) fn new(context: &str) -> Result<Self> {
        let home = Home::new()?;
        // The directory's name is unique enough for one cluster, and not secret.
        let run = home.path().file_name().and_then(|name| name.to_str()).context("the directory has no name")?;
        Ok(Self { operator: None, run: run.to_owned(), home, context: context.to_owned(), client: None })
    }

    /// A complete kubeconfig file with only this context, for operator, kubectl and helm.
    fn kubeconfig(&self, kubectl: &Path) -> Result<PathBuf> {
        let output = Command::new(kubectl)
            .args(["config", "view", "--raw", "--flatten", "--minify", "--context", &self.context])
            .stdin(Stdio::null())
            .output()
            .with_context(|| format!("cannot start {}", kubectl.display()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr);
            bail!("context {} of your kubeconfig: {}", self.context, words.trim_end().trim_start_matches("error: "));
        }
        let path = self.home.path().join("kubeconfig");
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| file.write_all(&output.stdout))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    fn is_marked<K: Resource>(&self, object: &K) -> bool {
        object.labels().get(MARK) == Some(&self.run)
    }

    /// Creates the definition unless it exists. Returns whether it was created.
    async fn define(&self, client: &Client) -> Result<bool> {
        let api: Api<CustomResourceDefinition> = Api::all(client.clone());
        let mut made = false;
        for mut definition in crd::all() {
            let name = definition.name_any();
            if api.get_opt(&name).await?.is_none() {
                definition.labels_mut().insert(MARK.to_owned(), self.run.clone());
                api.patch(&name, &PatchParams::apply(MANAGER), &Patch::Apply(definition)).await?;
                made = true;
            }
            timeout(FIRST_ANSWER, await_condition(api.clone(), &name, conditions::is_crd_established()))
                .await
                .with_context(|| format!("the CustomResourceDefinition {name} is not established"))??;
        }
        Ok(made)
    }

    /// Creates the role that the operator binds for helm, unless it exists.
    async fn make_role(&self, client: &Client) -> Result<()> {
        let mut role: ClusterRole = manifests::role_deployer()?;
        let api: Api<ClusterRole> = Api::all(client.clone());
        if api.get_opt(&role.name_any()).await?.is_none() {
            role.labels_mut().insert(MARK.to_owned(), self.run.clone());
            api.create(&PostParams::default(), &role).await?;
        }
        Ok(())
    }

    async fn make_namespace(&self, client: &Client) -> Result<()> {
        let namespace = json!({"metadata": {"name": NAMESPACE, "labels": {MARK: self.run}}});
        let api: Api<Namespace> = Api::all(client.clone());
        api.create(&PostParams::default(), &serde_json::from_value(namespace)?).await?;
        Ok(())
    }

    fn write_sample(&self, with_database: bool) -> Result<()> {
        let sample = if with_database { "minimal.yaml" } else { "without-database.yaml" };
        let text = fs::read_to_string(manifests::samples().join(sample))?;
        let mut app: serde_json::Value = serde_yaml::from_str(&text)?;
        app["metadata"] = json!({"name": "demo", "namespace": NAMESPACE});
        // Its charts begin with the default version, which it upgrades.
        app["spec"].as_object_mut().context("the sample has no spec")?.remove("chartVersion");
        fs::write(self.home.path().join(SAMPLE), serde_yaml::to_string(&app)?)?;
        Ok(())
    }

    async fn remove_app(&self, client: &Client) -> Result<()> {
        let apps: Api<ClientApp> = Api::namespaced(client.clone(), NAMESPACE);
        let listed = match apps.list_metadata(&ListParams::default()).await {
            // If the kind does not exist, there is no ClientApp.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            listed => listed?,
        };
        for app in listed {
            delete(&apps, &app).await?;
        }
        Ok(())
    }
}

impl Place for Existing {
    async fn set_up(&mut self) -> Result<Stage> {
        say(&format!("The ClientApp operator, running on this machine, in the cluster of context {}.\n", self.context));
        let tools = apart(|| Tools::ensure(&Progress::stderr())).await?;
        let kubeconfig = self.kubeconfig(&tools.kubectl)?;
        let config = Kubeconfig::read_from(&kubeconfig)?;
        let config = Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
        let client = Client::try_from(config)?;
        let with_database = step("Checking that nothing would be disturbed", inspect(&client)).await?;
        // Not before: without a client nothing is taken down, and nothing was created so far.
        self.client = Some(client.clone());

        let binary = step("Building the operator", apart(crate::operator::binary)).await?;
        if !step("Applying the CRD", self.define(&client)).await? {
            say("The cluster already has it: it is used as it is, and stays.");
        }
        step("Creating the ClusterRole clientapp-deployer, for helm", self.make_role(&client)).await?;
        step("Creating the namespace clientapp-demo", self.make_namespace(&client)).await?;
        let repository = self.home.path().join("repository");
        fs::create_dir(&repository)?;
        for version in [charts::DEFAULT, charts::PATCH] {
            charts::package(&repository, version, Content::Genuine)?;
        }
        self.write_sample(with_database)?;
        let surroundings = Surroundings {
            kubeconfig: &kubeconfig,
            helm: &tools.helm,
            chart_repository: repository.to_str().context("the path is not UTF-8")?,
            lease_namespace: NAMESPACE,
        };
        let operator = Operator::lead(binary, &self.home, &surroundings);
        let what = "Starting the operator, with a directory of charts: a small one modelled on Nextcloud's";
        self.operator = Some(step(what, operator).await?);
        let plugin = Operator::plugin(binary, &self.home)?;
        Ok(Stage {
            client,
            commands: Commands::new(&tools, &kubeconfig, self.home.path(), self.home.path()),
            namespace: NAMESPACE,
            name: "demo",
            files: vec![SAMPLE],
            timeout: TIMEOUT,
            path: tools.directories().into_iter().map(Path::to_owned).chain([plugin]).collect(),
        })
    }

    fn operator(&mut self) -> Option<&mut Operator> {
        self.operator.as_mut()
    }

    async fn take_down(&mut self) -> Result<()> {
        let Some(client) = self.client.clone() else { return Ok(()) };
        let namespaces: Api<Namespace> = Api::all(client.clone());
        if let Some(namespace) = namespaces.get_opt(NAMESPACE).await?.filter(|namespace| self.is_marked(namespace)) {
            // While the operator still runs to do it.
            let removed = self.remove_app(&client).await;
            self.operator = None;
            removed?;
            delete(&namespaces, &namespace).await?;
        }
        self.operator = None;
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let role = roles.get_opt(&manifests::role_deployer()?.name_any()).await?;
        if let Some(role) = role.filter(|role| self.is_marked(role)) {
            delete(&roles, &role).await?;
        }
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        for definition in crd::all() {
            let Some(definition) = definitions.get_opt(&definition.name_any()).await? else { continue };
            if !self.is_marked(&definition) {
                continue;
            }
            if !clientapps(&client).await?.is_empty() {
                say("\nOther users have created ClientApps in the meantime: the CRD stays.");
                continue;
            }
            delete(&definitions, &definition).await?;
        }
        Ok(())
    }
}

/// Refuses a cluster in which the demonstration's operator would meet others' ClientApps or another operator. Returns
/// whether the cluster has Percona.
async fn inspect(client: &Client) -> Result<bool> {
    let answer = timeout(FIRST_ANSWER, client.apiserver_version()).await;
    answer.context("the cluster does not answer")?.context("the cluster does not answer")?;
    if Api::<Namespace>::all(client.clone()).get_opt(NAMESPACE).await?.is_some() {
        bail!("the namespace {NAMESPACE} already exists and may be in use, so nothing was changed: delete it first");
    }
    if let Some(app) = clientapps(client).await?.first() {
        bail!(
            "the cluster has ClientApps, such as {app}, and a second operator would act on them: nothing was changed"
        );
    }
    let leases: Api<Lease> = Api::all(client.clone());
    let leases = leases.list(&ListParams::default().fields(&format!("metadata.name={}", LEASE))).await?;
    if let Some(lease) = leases.iter().find(|lease| is_held(lease)) {
        let namespace = lease.namespace().unwrap_or_default();
        bail!(
            "an operator is running in the cluster (Lease {namespace}/{}): nothing was changed; use that operator",
            LEASE
        );
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    Ok(definitions.get_opt(percona::CRD_NAME).await?.is_some())
}

fn is_held(lease: &Lease) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let holder = spec.holder_identity.as_deref().is_some_and(|holder| !holder.is_empty());
    let valid =
        spec.renew_time.as_ref().zip(spec.lease_duration_seconds).is_some_and(|(renewed, seconds)| {
            Timestamp::now().duration_since(renewed.0).as_secs() <= i64::from(seconds)
        });
    holder && valid
}

/// All ClientApps of the cluster, as namespace/name.
async fn clientapps(client: &Client) -> Result<Vec<String>> {
    let listed = Api::<ClientApp>::all(client.clone()).list_metadata(&ListParams::default()).await;
    match listed {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Vec::new()),
        listed => {
            let listed = listed?.items.into_iter();
            Ok(listed.map(|app| format!("{}/{}", app.namespace().unwrap_or_default(), app.name_any())).collect())
        }
    }
}

/// Deletes an object and waits until it is gone.
async fn delete<K, M>(api: &Api<K>, object: &M) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    M: Resource,
{
    let name = object.name_any();
    let uid = object.uid().unwrap_or_default();
    match api.delete(&name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        deleted => deleted.map(|_| ()).with_context(|| format!("cannot delete {} {name}", K::kind(&())))?,
    }
    let gone = await_condition(api.clone(), &name, conditions::is_deleted(&uid));
    timeout(FAREWELL, gone).await.with_context(|| {
        format!("{} {name} still exists after {FAREWELL:?}: `kubectl describe` shows why", K::kind(&()))
    })??;
    Ok(())
}
