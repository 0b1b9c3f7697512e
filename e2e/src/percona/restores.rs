//! Reconciles a `PerconaPGRestore`.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{ApiResource, Object, Patch, PatchParams};
use kube::runtime::controller::Action;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Knobs;
use super::reconcile::{Ctx, MANAGER, Scope};
use super::spec::{Cluster, of_kind};

pub(super) type Restore = Object<RestoreSpec, RestoreStatus>;

pub(super) fn resource() -> ApiResource {
    of_kind("PerconaPGRestore")
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RestoreSpec {
    pub(super) pg_cluster: String,
    #[serde(default)]
    repo_name: String,
    #[serde(default)]
    options: Vec<String>,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct RestoreStatus {
    #[serde(default)]
    state: String,
}

pub(super) async fn reconcile(restore: Arc<Restore>, ctx: Arc<Ctx>) -> Result<Action, kube::Error> {
    let scope = ctx.scope(restore.namespace());
    let knobs = ctx.settings.borrow().of(&scope.namespace, &restore.spec.pg_cluster).clone();
    if !knobs.ignore {
        scope.restore(&restore, &knobs).await?;
    }
    // The cluster is watched.
    Ok(Action::await_change())
}

impl Scope<'_> {
    async fn restore(&self, restore: &Restore, knobs: &Knobs) -> Result<(), kube::Error> {
        let Some(cluster) = self.clusters().get_opt(&restore.spec.pg_cluster).await? else { return Ok(()) };
        match restore.status.as_ref().map(|status| status.state.as_str()).unwrap_or_default() {
            // Another restore is in progress, and this one waits and reports nothing.
            "" if cluster.spec.backups.is_restored() => Ok(()),
            "" => {
                let RestoreSpec { repo_name, options, .. } = &restore.spec;
                self.set(&cluster, json!({"enabled": true, "repoName": repo_name, "options": options})).await?;
                self.say(restore, json!({"state": "Starting"})).await
            }
            "Starting" => self.say(restore, json!({"state": "Running"})).await,
            "Running" if knobs.hold_restores => Ok(()),
            "Running" => {
                // The request stays in the cluster, except for this.
                self.set(&cluster, json!({"enabled": false})).await?;
                let now = Time(jiff::Timestamp::now());
                let ended = match knobs.fail_restores {
                    true => json!({"state": "Failed"}),
                    false => json!({"state": "Succeeded", "completed": now}),
                };
                self.say(restore, ended).await
            }
            _ => Ok(()),
        }
    }

    async fn set(&self, cluster: &Cluster, restore: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"spec": {"backups": {"pgbackrest": {"restore": restore}}}}));
        self.clusters().patch(&cluster.name_any(), &as_operator(), &patch).await.map(drop)
    }

    async fn say(&self, restore: &Restore, status: Value) -> Result<(), kube::Error> {
        let patch = Patch::Merge(json!({"status": status}));
        self.restores().patch_status(&restore.name_any(), &as_operator(), &patch).await.map(drop)
    }
}

fn as_operator() -> PatchParams {
    PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() }
}
