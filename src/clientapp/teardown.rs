//! Deletion: uninstall and verify, then volumes and database by policy, then the finalizer. An **effect**.
//!
//! Everything here derives from metadata alone, so a deletion works with a spec that is invalid or does not decode.

mod database;

use k8s_openapi::{
    api::{batch::v1::Job, core::v1::PersistentVolumeClaim},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
};
use serde::de::DeserializeOwned;

use super::{
    Ctx,
    error::{self, Error},
    observe,
    plan::{Hold, SAFETY_NET},
    retained::{self, Leaving},
    world::{Phase, ReleaseView, RetainedKind},
};
use crate::{
    controller::key::Key,
    crd::{DeletionPolicy, conditions::kind, label},
    helm::{self, Uninstall},
};

/// On what a chart makes for a hook (helm.sh/helm/v4/pkg/release/v1, `HookAnnotation`).
const HOOK: &str = "helm.sh/hook";
/// On what is deleted with all that it owns first (k8s.io/apimachinery, `FinalizerDeleteDependents`).
const FOREGROUND: &str = "foregroundDeletion";
/// How soon to look again at what is not watched.
const POLL: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// Takes down what belongs to a deleted app, as far as it goes now. `None`: everything is gone or retained.
///
/// # Errors
/// A request or helm failed; the deletion is tried again.
pub async fn teardown(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<Option<Hold>, Error> {
    let Leaving { key, policy, .. } = leaving;
    let revisions = observe::live_revisions(ctx, key).await?;
    match observe::release_view(&revisions, &ctx.holder) {
        Some(release) if !release.known => {
            tracing::warn!(release = %key, "the release is not this operator's and stays as it is");
        }
        release => {
            // While there is a release, so that whoever adopts its data can also log in.
            if *policy == DeletionPolicy::Retain && release.is_some() {
                admin_secret(ctx, leaving).await?;
            }
            if let Some(hold) = uninstall(ctx, key, release).await? {
                return Ok(Some(hold));
            }
            hooks(ctx, key).await?;
            if let Some(hold) = volumes(ctx, leaving).await? {
                return Ok(Some(hold));
            }
        }
    }
    database::take_down(ctx, leaving).await
}

fn hold(reason: &'static str, message: String, until: Option<jiff::Timestamp>) -> Hold {
    Hold { condition: kind::READY, reason, message, stalled: false, until }
}

/// Uninstalls the release and believes only what storage and the workloads show.
async fn uninstall(ctx: &Ctx, key: &Key, release: Option<ReleaseView>) -> Result<Option<Hold>, Error> {
    if let Some(release) = release {
        let deadline = release.written.map(|written| written + ctx.config.helm_deadline);
        let busy = matches!(release.phase, Phase::Pending) && release.stamp.is_none();
        if busy && let Some(until) = deadline.filter(|deadline| *deadline > ctx.now()) {
            let message = format!(
                "revision {} of release {} is {}, begun by somebody else",
                release.revision, key.name, release.status
            );
            return Ok(Some(hold("ExternalOperationInProgress", message, Some(until))));
        }
        run(ctx, key).await?;
        if let Some((secret, _)) = observe::live_revisions(ctx, key).await?.first() {
            let message = format!("helm has uninstalled release {}, but its Secret {secret} is still there", key.name);
            return Ok(Some(hold("Uninstalling", message, Some(ctx.now() + POLL))));
        }
    }
    Ok(ctx.watches.workloads(key).first().map(|workload| {
        let message = format!("waiting for {} {} to be gone", workload.kind, workload.name);
        hold("Uninstalling", message, Some(ctx.now() + SAFETY_NET))
    }))
}

async fn run(ctx: &Ctx, key: &Key) -> Result<(), Error> {
    let failed = |refusal, message| Error::Uninstall { release: key.clone(), refusal, message };
    let parsed = |error: helm::command::InvalidArgument| failed(error::Refusal::UpgradeFailed, error.to_string());
    let request =
        Uninstall { release: key.name.parse().map_err(parsed)?, namespace: key.namespace.parse().map_err(parsed)? };
    let _slot = ctx.slot().await?;
    let started = std::time::Instant::now();
    let ended = ctx.helm.uninstall(&request, &ctx.stop).await;
    ctx.metrics.helm_run("uninstall", ended.is_ok(), started.elapsed());
    match ended {
        Ok(finished) => {
            for object in helm::left_behind(&finished.stdout) {
                tracing::warn!(release = %key, %object, "helm left an object of the release alone");
            }
            Ok(())
        }
        Err(error) => {
            Err(error::of_helm_error(&error).map_or(Error::Shutdown, |(refusal, message)| failed(refusal, message)))
        }
    }
}

/// What the chart's hooks have left: Helm does not count them among a release's objects, and a Job may still run.
async fn hooks(ctx: &Ctx, key: &Key) -> Result<(), Error> {
    let api: Api<Job> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let params = ListParams::default().labels(&format!("app.kubernetes.io/instance={}", key.name));
    let jobs = api.list_metadata(&params).await.map_err(Error::api(format!("list the Jobs of release {key}")))?;
    for job in jobs.items.iter().filter(|job| job.annotations().contains_key(HOOK)) {
        delete(&api, "Job", &job.name_any(), job.metadata.uid.clone()).await?;
    }
    Ok(())
}

/// The release's volumes: charts ask Helm to keep them, and those of a StatefulSet Helm never knew.
async fn volumes(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<Option<Hold>, Error> {
    let Leaving { key, policy, .. } = leaving;
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let params = ListParams::default().labels(&format!("app.kubernetes.io/instance={}", key.name));
    let claims = api
        .list_metadata(&params)
        .await
        .map_err(Error::api(format!("list the PersistentVolumeClaims of release {key}")))?;
    let ours: Vec<_> = claims.items.iter().filter(|claim| is_of_release(*claim, key)).collect();
    for claim in &ours {
        let name = claim.name_any();
        match policy {
            DeletionPolicy::Retain => retained::leave(ctx, leaving, RetainedKind::Volume, &name).await?,
            DeletionPolicy::Delete if claim.metadata.deletion_timestamp.is_some() => {}
            DeletionPolicy::Delete => {
                delete(&api, RetainedKind::Volume.as_str(), &name, claim.metadata.uid.clone()).await?
            }
        }
    }
    Ok(match (policy, ours.first()) {
        (DeletionPolicy::Delete, Some(claim)) => {
            let message = format!("waiting for PersistentVolumeClaim {} to be gone", claim.name_any());
            Some(hold("DeletingVolumes", message, Some(ctx.now() + POLL)))
        }
        _ => None,
    })
}

/// The generated credentials of the administrator stay with the data, which know no others.
async fn admin_secret(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<(), Error> {
    let Leaving { key, meta, .. } = leaving;
    let name = key.admin_secret();
    let secret = ctx.watches.secrets.get(&Key::new(&key.namespace, &name));
    let owner = secret.and_then(|secret| secret.owner);
    if owner.is_some_and(|(_, _, uid)| Some(&uid) == meta.uid.as_ref()) {
        retained::leave(ctx, leaving, RetainedKind::Secret, &name).await?;
    }
    Ok(())
}

/// Claims by Helm's own mark, or made by a StatefulSet of the release, which copies the instance label only. A claim
/// that another tool manages is not touched, whatever instance it names.
fn is_of_release<K: Resource>(claim: &K, key: &Key) -> bool {
    // What an earlier app of this name has left is not this one's to delete.
    if claim.labels().contains_key(label::RETAINED_FROM) {
        return false;
    }
    let release = claim.annotations().get("meta.helm.sh/release-name");
    let manager = claim.labels().get(label::MANAGED_BY).map(String::as_str);
    match (release, manager) {
        (Some(release), _) => *release == key.name,
        (None, None | Some("Helm")) => true,
        (None, Some(_)) => false,
    }
}

/// Whether an object is deleted only after all that it owns.
#[must_use]
pub fn is_foreground(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND)
}

/// Deletes an object, and in the background what it owns; one that is gone needs none.
async fn delete<K>(api: &Api<K>, what: &str, name: &str, uid: Option<String>) -> Result<(), Error>
where
    K: Clone + DeserializeOwned + std::fmt::Debug,
{
    // Without saying so, the pods of a Job would stay.
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::background()
    };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("delete {what} {name}"))(error)),
        Ok(_) => Ok(()),
    }
}
