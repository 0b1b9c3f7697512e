//! What users do while something goes wrong: each scenario has a part before the fault and a part that is disturbed. An
//! **effect**.

use std::time::Duration;

use anyhow::Result;
use clientapp_operator::crd::{ClientApp, annotation};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::charts;
use crate::lab::{Apart, Tenant, has, hostname};
use crate::proxy::By;
use crate::scenario::with;
use crate::wait::within;

/// Longer than any recovery.
pub const TIMEOUT: Duration = Duration::from_secs(150);
const APP: &str = "acme";
const GIVEN: &str = "given";
const DEPLOYMENT: &str = "acme-nextcloud";
/// The password in the Secret that the user gives.
pub const CANARY: &str = "canary-4b1d-in-secrets-only";

#[derive(clap::ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// An app with a Postgresql, a volume and Redis is created.
    Install,
    /// The same with a PerconaPGCluster.
    InstallPercona,
    /// Another chart version, after a backup of the database.
    Upgrade,
    /// The spec is edited while helm installs it.
    Edit,
    /// An app with a PerconaPGCluster is deleted, and its data with it.
    Delete,
    /// An app is deleted, its data is retained, and adopted by the next app of its name.
    Adopt,
    /// A Deployment of a release is deleted, and put back.
    Repair,
    /// A password that the app's pods use is changed.
    Rotate,
    /// A revision fails, and the release goes back to the one before.
    Rollback,
}

impl Scenario {
    pub const ALL: [Scenario; 9] = [
        Scenario::Install,
        Scenario::InstallPercona,
        Scenario::Upgrade,
        Scenario::Edit,
        Scenario::Delete,
        Scenario::Adopt,
        Scenario::Repair,
        Scenario::Rotate,
        Scenario::Rollback,
    ];

    /// As on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Scenario::Install => "install",
            Scenario::InstallPercona => "install-percona",
            Scenario::Upgrade => "upgrade",
            Scenario::Edit => "edit",
            Scenario::Delete => "delete",
            Scenario::Adopt => "adopt",
            Scenario::Repair => "repair",
            Scenario::Rotate => "rotate",
            Scenario::Rollback => "rollback",
        }
    }

    fn spec(self, tenant: &Tenant) -> Value {
        let own = json!({"hostname": hostname(tenant, APP), "ingressClassName": "nginx"});
        let standalone = json!({"postgres": {"provider": "standalone"}});
        match self {
            Scenario::Install => with(own, standalone),
            Scenario::InstallPercona | Scenario::Delete => own,
            Scenario::Upgrade => with(with(own, standalone), json!({"upgrade": {"backup": true}})),
            Scenario::Edit | Scenario::Repair | Scenario::Rotate => {
                with(own, json!({"postgres": {"enabled": false}, "adminSecret": GIVEN}))
            }
            Scenario::Rollback => {
                let upgrade = json!({"onFailure": "Rollback", "retries": 0});
                with(own, json!({"postgres": {"enabled": false}, "adminSecret": GIVEN, "upgrade": upgrade}))
            }
            Scenario::Adopt => with(with(own, standalone), json!({"deletionPolicy": "Retain"})),
        }
    }

    /// The part that is not disturbed.
    pub async fn prepare(self, apart: &Apart) -> Result<()> {
        let tenant = &apart.tenant;
        match self {
            Scenario::Install | Scenario::InstallPercona => Ok(()),
            Scenario::Edit => give(tenant).await,
            Scenario::Repair | Scenario::Rotate | Scenario::Rollback => {
                give(tenant).await?;
                create(tenant, self.spec(tenant)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Upgrade | Scenario::Delete | Scenario::Adopt => {
                create(tenant, self.spec(tenant)).await?;
                ready(tenant, charts::DEFAULT).await
            }
        }
    }

    /// The part that is disturbed. It is over when the user has what was asked for.
    pub async fn act(self, apart: &Apart) -> Result<()> {
        let tenant = &apart.tenant;
        match self {
            Scenario::Install | Scenario::InstallPercona => {
                create(tenant, self.spec(tenant)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Upgrade => {
                patch(tenant, json!({"chartVersion": charts::PATCH})).await?;
                ready(tenant, charts::PATCH).await
            }
            Scenario::Edit => {
                create(tenant, self.spec(tenant)).await?;
                let helm_writes = async || apart.proxy.writes().iter().any(|write| write.by == By::Helm);
                within(TIMEOUT, "helm writes", helm_writes).await?;
                patch(tenant, json!({"chartVersion": charts::PATCH})).await?;
                ready(tenant, charts::PATCH).await
            }
            Scenario::Repair => {
                let deployments = tenant.api::<Deployment>();
                let before = deployments.get(DEPLOYMENT).await?.metadata.uid;
                let deleted = async || deployments.delete(DEPLOYMENT, &DeleteParams::default()).await.map(drop);
                within(TIMEOUT, "the Deployment is deleted", deleted).await?;
                let is_back = async || match deployments.get_opt(DEPLOYMENT).await {
                    Ok(Some(found)) if found.metadata.uid != before => Ok(()),
                    Ok(found) => Err(format!("{} is there", found.map_or("nothing", |_| "the old one"))),
                    Err(error) => Err(error.to_string()),
                };
                within(TIMEOUT, "the Deployment is back", is_back).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Rotate => {
                let before = credentials(tenant).await?;
                let other = json!({"stringData": {"nextcloud-password": format!("{CANARY}-2")}});
                let secrets = tenant.api::<Secret>();
                let changed =
                    async || secrets.patch(GIVEN, &PatchParams::default(), &Patch::Merge(&other)).await.map(drop);
                within(TIMEOUT, "the password is changed", changed).await?;
                let arrived = async || match credentials(tenant).await {
                    Ok(now) if now != before => Ok(()),
                    Ok(_) => Err("the pods have the old password".to_owned()),
                    Err(error) => Err(error.to_string()),
                };
                within(TIMEOUT, "the pods have the new password", arrived).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Rollback => {
                patch(tenant, json!({"values": {"service": {"type": "Nonsense"}}})).await?;
                let apps = tenant.api::<ClientApp>();
                let is_back = async || {
                    let app = apps.get(APP).await.map_err(|error| error.to_string())?;
                    let back = app.status.as_ref().is_some_and(|status| has(status, "Ready", "False", "RolledBack"));
                    if back { Ok(()) } else { Err(told(&app)) }
                };
                within(TIMEOUT, "the release is rolled back", is_back).await
            }
            Scenario::Delete => delete(tenant).await,
            Scenario::Adopt => {
                delete(tenant).await?;
                let adopt = json!({"postgres": {"provider": "standalone", "adopt": true}});
                create(tenant, with(self.spec(tenant), adopt)).await?;
                ready(tenant, charts::DEFAULT).await
            }
        }
    }
}

/// Creates the Secret that `spec.adminSecret` names.
async fn give(tenant: &Tenant) -> Result<()> {
    let given = json!({
        "metadata": {"name": GIVEN},
        "stringData": {"nextcloud-username": "admin", "nextcloud-password": CANARY},
    });
    let given = serde_json::from_value(given)?;
    tenant.api::<Secret>().create(&PostParams::default(), &given).await?;
    Ok(())
}

/// What the app's pods know of their credentials.
async fn credentials(tenant: &Tenant) -> Result<Option<String>> {
    let deployment = tenant.api::<Deployment>().get(DEPLOYMENT).await?;
    let template = deployment.spec.and_then(|spec| spec.template.metadata);
    Ok(template.and_then(|template| template.annotations?.remove(annotation::CREDENTIALS)))
}

/// Asks again after a failure: the API server may be away.
async fn create(tenant: &Tenant, spec: Value) -> Result<()> {
    let created = async || match tenant.create(APP, spec.clone()).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        created => created.map(drop),
    };
    within(TIMEOUT, "the ClientApp is created", created).await
}

async fn patch(tenant: &Tenant, spec: Value) -> Result<()> {
    within(TIMEOUT, "the ClientApp is patched", async || tenant.patch(APP, spec.clone()).await.map(drop)).await
}

async fn delete(tenant: &Tenant) -> Result<()> {
    let apps = tenant.api::<ClientApp>();
    let deleted = async || apps.delete(APP, &DeleteParams::default()).await.map(drop);
    within(TIMEOUT, "the ClientApp is deleted", deleted).await?;
    let gone = async || match apps.get_opt(APP).await {
        Ok(None) => Ok(()),
        Ok(Some(app)) => Err(told(&app)),
        Err(error) => Err(error.to_string()),
    };
    within(TIMEOUT, "the ClientApp is gone", gone).await
}

/// Waits until the app is Ready with its current spec, and with this chart.
async fn ready(tenant: &Tenant, chart: &str) -> Result<()> {
    let apps = tenant.api::<ClientApp>();
    let is_ready = async || {
        let app = apps.get(APP).await.map_err(|error| error.to_string())?;
        let ready = app.status.as_ref().is_some_and(|status| {
            let installed = status.release.as_ref().and_then(|release| release.chart_version.as_deref());
            let current = status.observed_generation == app.metadata.generation && installed == Some(chart);
            current && has(status, "Ready", "True", "Ready")
        });
        if ready { Ok(()) } else { Err(told(&app)) }
    };
    within(TIMEOUT, &format!("the ClientApp is Ready with chart {chart}"), is_ready).await
}

/// The conditions of an app, for people.
pub(crate) fn told(app: &ClientApp) -> String {
    let conditions = app.status.iter().flat_map(|status| &status.conditions);
    let words = conditions.map(|told| format!("{}={} {}: {}", told.type_, told.status, told.reason, told.message));
    words.collect::<Vec<_>>().join("; ")
}
