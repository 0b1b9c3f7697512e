//! Scenarios, which users run while something goes wrong: each scenario has a part before the fault and a part that is disturbed. An
//! **effect**.

mod archive;
mod backup;
mod foreground;
mod post;
mod profile;
mod replace;
mod writer;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use clientapp_crd::{ClientApp, ClientAppStatus};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Secret;
use kube::api::DeleteParams;
use serde_json::{Value, json};

use crate::charts;
use crate::lab::{Apart, IMAGE, Tenant, has, hostname};
use crate::proxy::By;
use crate::random::disturbance::operators::ApiUrl;
use crate::random::requests::{
    APP, CANARY, DEPLOYMENT, GIVEN, TIMEOUT, ask_to_delete, change, create, credentials, delete, give, patch, ready,
    ready_from, ready_or_deleted, suspended, told_of,
};
use crate::scenario::with;
use crate::wait::within;

/// The volume with the dumps of a database.
const DUMPS: &str = "acme-pg-backup";
/// The revision of another Helm client.
const BY_HAND: i64 = 2;

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// An app with a Postgresql, a volume and Redis is created.
    Install,
    /// The same with a PerconaPGCluster.
    InstallPercona,
    /// The same with a Postgresql; once it is Ready, the app is deleted, and its data with it.
    Brief,
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
    /// An app is suspended, edited meanwhile, and resumed.
    Suspend,
    /// An upgrade waits for approval, and is approved.
    Approve,
    /// Another Helm client has upgraded a release, and the operator puts it right.
    PutRight,
    /// An app with a Postgresql is deleted, and its data with it.
    DeleteBackground,
    /// The same in the foreground.
    DeleteForeground,
    /// The same with `--cascade=orphan`, and everything stays.
    DeleteOrphan,
    /// An app with a Postgresql is deleted, its data with it, and the next app of its name is created.
    Again,
    /// An app is created with a Postgresql from the last dump of an earlier one.
    Restore,
    /// Archives of the files are asked for, at another time, and no more.
    Archive,
    /// The database of an app is backed up by a ClientAppBackup.
    Backup,
    /// The database of an app is replaced by a ClientAppRestore.
    Replace,
    /// Another app is created by a ClientAppRestore of the first.
    Copy,
    /// The Profile of an app is changed, and the app follows.
    Profile,
    /// A PostgresWriter is created and changed, and another deleted.
    Writer,
    /// An instance is created through the HTTP API, and deleted again.
    Post,
}

impl Scenario {
    /// Returns its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    fn spec(self, tenant: &Tenant) -> Value {
        let own = json!({"hostname": hostname(tenant, APP), "ingressClassName": "nginx"});
        let standalone = json!({"postgres": {"provider": "standalone"}});
        let given = json!({"postgres": {"enabled": false}, "adminSecret": GIVEN});
        match self {
            Scenario::Install
            | Scenario::Brief
            | Scenario::DeleteBackground
            | Scenario::DeleteForeground
            | Scenario::DeleteOrphan
            | Scenario::Backup
            | Scenario::Replace
            | Scenario::Copy
            | Scenario::Again => with(own, standalone),
            // The last of them has no app.
            Scenario::InstallPercona | Scenario::Delete | Scenario::Writer => own,
            Scenario::Upgrade => with(with(own, standalone), json!({"upgrade": {"backup": true}})),
            Scenario::Edit
            | Scenario::Repair
            | Scenario::Rotate
            | Scenario::Suspend
            | Scenario::Approve
            | Scenario::PutRight
            | Scenario::Archive => with(own, given),
            Scenario::Rollback => with(with(own, given), json!({"upgrade": {"onFailure": "Rollback", "retries": 0}})),
            Scenario::Adopt => with(with(own, standalone), json!({"deletionPolicy": "Retain"})),
            Scenario::Post => with(own, json!({"postgres": {"enabled": false}})),
            Scenario::Profile => with(with(own, given), json!({"profile": profile::name(&tenant.namespace)})),
            Scenario::Restore => {
                let backup = json!({"schedule": "@yearly", "onDelete": true});
                with(own, json!({"postgres": {"provider": "standalone", "backup": backup}}))
            }
        }
    }

    /// Returns what its operators need in their environment; makes what that names.
    pub async fn environment(self, namespace: &str) -> Result<Vec<(String, String)>> {
        match self {
            Scenario::Writer => writer::environment(namespace).await,
            Scenario::Archive | Scenario::Replace | Scenario::Copy => {
                Ok(vec![("CLIENTAPP_IMAGE".to_owned(), IMAGE.to_owned())])
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The part that is not disturbed.
    pub async fn prepare(self, apart: &Apart) -> Result<()> {
        let tenant = &apart.tenant;
        match self {
            Scenario::Install | Scenario::InstallPercona | Scenario::Brief => Ok(()),
            Scenario::Edit => give(tenant).await,
            Scenario::PutRight => {
                self.install(tenant).await?;
                // The other client is done before the operator may do anything about it.
                patch(tenant, json!({"suspend": true})).await?;
                suspended(tenant).await?;
                upgrade_by_hand(tenant).await
            }
            Scenario::DeleteForeground => {
                self.install(tenant).await?;
                foreground::prepare(tenant).await
            }
            Scenario::Restore => {
                self.install(tenant).await?;
                delete::<ClientApp>(tenant, APP, &DeleteParams::default()).await
            }
            Scenario::Archive => {
                archive::prepare(tenant).await?;
                self.install(tenant).await
            }
            Scenario::Profile => {
                profile::prepare(tenant).await?;
                self.install(tenant).await
            }
            Scenario::Replace | Scenario::Copy => {
                replace::prepare(tenant).await?;
                self.install(tenant).await
            }
            Scenario::Writer => writer::prepare(tenant).await,
            Scenario::Post => post::prepare(tenant).await,
            _ => self.install(tenant).await,
        }
    }

    /// Creates the app, with the Secret that it names, and waits until it is Ready.
    async fn install(self, tenant: &Tenant) -> Result<()> {
        let spec = self.spec(tenant);
        if spec["adminSecret"].is_string() {
            give(tenant).await?;
        }
        create(tenant, spec).await?;
        ready(tenant, charts::DEFAULT).await
    }

    /// The part that is disturbed. It is over when the user has what was asked for.
    pub async fn act(self, apart: &Apart, api: &ApiUrl) -> Result<()> {
        let tenant = &apart.tenant;
        match self {
            Scenario::Install | Scenario::InstallPercona => {
                create(tenant, self.spec(tenant)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Brief => {
                create(tenant, self.spec(tenant)).await?;
                ready_or_deleted(tenant).await?;
                delete::<ClientApp>(tenant, APP, &DeleteParams::default()).await
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
                ask_to_delete::<Deployment>(tenant, DEPLOYMENT, &DeleteParams::default()).await?;
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
                change(&secrets, GIVEN, &other).await?;
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
                let is_back = |status: &ClientAppStatus| has(status, "Ready", "False", "RolledBack");
                told_of(tenant, "the release is rolled back", is_back).await.map(drop)
            }
            Scenario::Delete => delete::<ClientApp>(tenant, APP, &DeleteParams::default()).await,
            Scenario::Adopt => {
                delete::<ClientApp>(tenant, APP, &DeleteParams::default()).await?;
                let adopt = json!({"postgres": {"provider": "standalone", "adopt": true}});
                create(tenant, with(self.spec(tenant), adopt)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Suspend => {
                for spec in [json!({"suspend": true}), json!({"chartVersion": charts::PATCH})] {
                    patch(tenant, spec).await?;
                    suspended(tenant).await?;
                }
                patch(tenant, json!({"suspend": false})).await?;
                ready(tenant, charts::PATCH).await
            }
            Scenario::Approve => {
                patch(tenant, json!({"approval": "Manual", "chartVersion": charts::PATCH})).await?;
                let waits = |status: &ClientAppStatus| {
                    status.plan.as_ref().is_some_and(|plan| plan.chart_version == charts::PATCH)
                };
                let plan = told_of(tenant, "a plan waits for approval", waits).await?.plan;
                patch(tenant, json!({"approved": plan.map(|plan| plan.digest)})).await?;
                ready(tenant, charts::PATCH).await
            }
            Scenario::PutRight => {
                patch(tenant, json!({"suspend": false})).await?;
                ready_from(tenant, charts::DEFAULT, BY_HAND + 1).await
            }
            Scenario::DeleteBackground => delete::<ClientApp>(tenant, APP, &DeleteParams::background()).await,
            Scenario::DeleteForeground => foreground::act(tenant).await,
            Scenario::DeleteOrphan => delete::<ClientApp>(tenant, APP, &DeleteParams::orphan()).await,
            Scenario::Again => {
                delete::<ClientApp>(tenant, APP, &DeleteParams::default()).await?;
                create(tenant, self.spec(tenant)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Restore => {
                let restore = json!({"postgres": {"provider": "standalone", "restore": {"claim": DUMPS}}});
                create(tenant, with(self.spec(tenant), restore)).await?;
                ready(tenant, charts::DEFAULT).await
            }
            Scenario::Archive => archive::act(tenant).await,
            Scenario::Backup => backup::act(tenant).await,
            Scenario::Replace => replace::act(tenant, json!({})).await,
            Scenario::Copy => {
                let into = json!({"name": "beside", "hostname": hostname(tenant, "beside")});
                replace::act(tenant, json!({"into": into})).await
            }
            Scenario::Profile => profile::act(tenant).await,
            Scenario::Writer => writer::act(tenant).await,
            Scenario::Post => post::act(tenant, api, self.spec(tenant)).await,
        }
    }

    /// Returns whether it ends in the same way if the app is deleted before.
    pub fn may_be_cut_short(self) -> bool {
        self == Scenario::Brief
    }

    /// Deletes what the case has outside its namespace, once its operators have stopped.
    pub async fn clean_up(self, tenant: &Tenant) -> Result<()> {
        match self {
            Scenario::Profile => profile::clean_up(tenant).await,
            Scenario::Writer => writer::clean_up(&tenant.namespace).await,
            _ => Ok(()),
        }
    }

    /// Returns what is compared beside the objects of its namespace, in the form of objects.
    pub async fn beside(self, namespace: &str) -> Result<Vec<Value>> {
        match self {
            Scenario::Writer => writer::rows(namespace).await,
            _ => Ok(Vec::new()),
        }
    }
}

/// Upgrades the release as another Helm client, and waits until the status tells of it.
async fn upgrade_by_hand(tenant: &Tenant) -> Result<()> {
    let repository = tenant.lab.repository.url();
    let upgrade = ["upgrade", APP, charts::NAME, "--repo", &repository, "--version", charts::PATCH];
    let ran = tenant.helm(&[&upgrade[..], &["--reuse-values", "--set", "podAnnotations.by=hand"]].concat());
    ensure!(ran.success, "helm upgrade: {}", ran.stderr);
    let knows = |status: &ClientAppStatus| {
        let release = status.release.as_ref();
        let release = release.filter(|release| release.revision == BY_HAND && release.status == "deployed");
        release.is_some() && has(status, "WorkloadsReady", "True", "Ready")
    };
    told_of(tenant, "the status tells of the other client's revision", knows).await.map(drop)
}
