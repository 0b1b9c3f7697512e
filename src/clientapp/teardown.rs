//! Deletion: uninstall and verify, then volumes and database by policy, then the finalizer. An **effect**.
//!
//! Everything here derives from metadata alone, so a deletion works with a spec that is invalid or does not decode.

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{PersistentVolumeClaim, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PartialObjectMeta, Patch, PatchParams, Preconditions},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    Ctx,
    decide::{Hold, SAFETY_NET},
    error::{self, Error},
    names::Key,
    observe,
    world::{Phase, ReleaseView},
};
use crate::{
    crd::{
        DeletionPolicy,
        conditions::kind,
        label,
        percona::{self, PerconaPGCluster},
    },
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
pub async fn teardown(ctx: &Ctx, key: &Key, meta: &ObjectMeta, policy: DeletionPolicy) -> Result<Option<Hold>, Error> {
    let revisions = observe::live_revisions(ctx, key).await?;
    match observe::release_view(&revisions, &ctx.holder) {
        Some(release) if !release.known => {
            tracing::warn!(release = %key, "the release is not this operator's and stays as it is");
        }
        release => {
            if let Some(hold) = uninstall(ctx, key, release).await? {
                return Ok(Some(hold));
            }
            hooks(ctx, key).await?;
            if let Some(hold) = volumes(ctx, key, policy).await? {
                return Ok(Some(hold));
            }
        }
    }
    database(ctx, key, meta, policy).await
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
        delete(&api, &job.name_any(), job.metadata.uid.clone()).await?;
    }
    Ok(())
}

/// The release's volumes: charts ask Helm to keep them, and those of a StatefulSet Helm never knew.
async fn volumes(ctx: &Ctx, key: &Key, policy: DeletionPolicy) -> Result<Option<Hold>, Error> {
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
            DeletionPolicy::Retain => retain(&api, key, &name, &[]).await?,
            DeletionPolicy::Delete if claim.metadata.deletion_timestamp.is_some() => {}
            DeletionPolicy::Delete => delete(&api, &name, claim.metadata.uid.clone()).await?,
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

/// The database goes before the namespace could: Percona has to be there to take it down.
async fn database(ctx: &Ctx, key: &Key, meta: &ObjectMeta, policy: DeletionPolicy) -> Result<Option<Hold>, Error> {
    let name = key.cluster();
    let api: Api<PerconaPGCluster> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let cluster = match api.get_metadata(&name).await {
        // No such cluster, or no such kind: without Percona there is no database of Percona's.
        Err(kube::Error::Api(status)) if status.code == 404 => return leftovers(ctx, key, meta, policy).await,
        Err(error) => return Err(Error::api(format!("look for PerconaPGCluster {}/{name}", key.namespace))(error)),
        Ok(cluster) => cluster,
    };
    let labelled = cluster.labels().get(label::APP) == Some(&key.name);
    let owned = cluster.owner_references().iter().all(|owner| Some(&owner.uid) == meta.uid.as_ref());
    if !(labelled && owned) {
        tracing::warn!(cluster = %name, "PerconaPGCluster is not this ClientApp's and stays as it is");
        return Ok(None);
    }
    match policy {
        DeletionPolicy::Retain => {
            let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
            // The Secret first: without it the database could be found, but not opened.
            retain(&secrets, key, &key.database_secret(), &[]).await?;
            // Labelled only: whom the volumes belong to is Percona's business. The label keeps them from being taken for
            // the leftovers of a later app of this name.
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
            for claim in of_cluster(&claims, key).await? {
                mark(&claims, key, &claim.name_any(), &json!({"labels": retained(key)})).await?;
            }
            retain(&api, key, &name, &[label::APP]).await?;
            tracing::info!(cluster = %name, "PerconaPGCluster is retained");
            Ok(None)
        }
        DeletionPolicy::Delete => {
            if cluster.metadata.deletion_timestamp.is_none() {
                ask_percona_for_everything(&api, &cluster).await?;
                delete(&api, &name, cluster.metadata.uid.clone()).await?;
            }
            let message = format!("waiting for Percona to delete PerconaPGCluster {name} with its volumes and Secrets");
            Ok(Some(hold("DeletingDatabase", message, Some(ctx.now() + SAFETY_NET))))
        }
    }
}

/// In a foreground deletion the garbage collector takes the database at once, before Percona could be asked to take its
/// volumes and Secrets with it: then that is done here.
async fn leftovers(ctx: &Ctx, key: &Key, meta: &ObjectMeta, policy: DeletionPolicy) -> Result<Option<Hold>, Error> {
    // The collector takes its mark off the app when it has finished, which may be before this app's turn came.
    let foreground =
        is_foreground(meta) || ctx.memory.foreground.get(key).is_some_and(|uid| Some(&uid) == meta.uid.as_ref());
    if policy == DeletionPolicy::Retain || !foreground {
        return Ok(None);
    }
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let left = delete_of_cluster(&claims, key).await?;
    let secrets: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let left = left.or(delete_of_cluster(&secrets, key).await?);
    Ok(left.map(|name| {
        let message = format!("waiting for {name}, which PerconaPGCluster {} has left, to be gone", key.cluster());
        hold("DeletingDatabase", message, Some(ctx.now() + POLL))
    }))
}

/// Whether an object is deleted only after all that it owns.
#[must_use]
pub fn is_foreground(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND)
}

/// Deletes what is labelled with the app's database, and returns the name of one such object if there was any.
async fn delete_of_cluster<K>(api: &Api<K>, key: &Key) -> Result<Option<String>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let objects = of_cluster(api, key).await?;
    for object in objects.iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
        delete(api, &object.name_any(), object.metadata.uid.clone()).await?;
    }
    Ok(objects.first().map(|object| object.name_any()))
}

/// What is labelled with the app's database, but for what an earlier app has left.
async fn of_cluster<K>(api: &Api<K>, key: &Key) -> Result<Vec<PartialObjectMeta<K>>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let cluster = key.cluster();
    let params =
        ListParams::default().labels(&format!("{}={cluster},!{}", percona::CLUSTER_LABEL, label::RETAINED_FROM));
    let what = || format!("list each {} of PerconaPGCluster {}/{cluster}", K::kind(&()), key.namespace);
    let objects = api.list_metadata(&params).await.map_err(|error| Error::api(what())(error))?;
    Ok(objects.items)
}

/// Without these finalizers Percona leaves volumes and Secrets, and a later app of the same name would get them. They
/// are set only now, so that a cluster deleted by mistake keeps its data.
async fn ask_percona_for_everything(
    api: &Api<PerconaPGCluster>,
    cluster: &PartialObjectMeta<PerconaPGCluster>,
) -> Result<(), Error> {
    let name = cluster.name_any();
    let mut finalizers = cluster.finalizers().to_vec();
    for finalizer in [percona::DELETE_PVC, percona::DELETE_SSL] {
        if !finalizers.iter().any(|present| present == finalizer) {
            finalizers.push(finalizer.to_owned());
        }
    }
    let patch = json!({"metadata": {
        "uid": cluster.metadata.uid,
        "resourceVersion": cluster.metadata.resource_version,
        "finalizers": finalizers,
    }});
    api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .map_err(Error::api(format!("set Percona's finalizers on PerconaPGCluster {name}")))?;
    Ok(())
}

/// Leaves an object behind: without owner, so that nothing collects it, and labelled, so that it can be found.
async fn retain<K>(api: &Api<K>, key: &Key, name: &str, without: &[&str]) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let mut labels = retained(key);
    labels.extend(without.iter().map(|label| ((*label).to_owned(), json!(null))));
    mark(api, key, name, &json!({"ownerReferences": null, "labels": labels})).await
}

fn retained(key: &Key) -> serde_json::Map<String, serde_json::Value> {
    serde_json::Map::from_iter([(label::RETAINED_FROM.to_owned(), json!(key.name))])
}

/// Merges a patch into an object's metadata; one that is gone needs none.
async fn mark<K>(api: &Api<K>, key: &Key, name: &str, metadata: &serde_json::Value) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&json!({"metadata": metadata}))).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("retain {} {}/{name}", K::kind(&()), key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}

async fn delete<K>(api: &Api<K>, name: &str, uid: Option<String>) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    // Without saying so, the pods of a Job would stay.
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::background()
    };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("delete {} {name}", K::kind(&())))(error)),
        Ok(_) => Ok(()),
    }
}
