//! Deletion: a last dump if asked for, then servers, volumes by policy, then the finalizer. An **effect**.
//!
//! Everything but the dump derives from metadata alone, so a deletion works with a spec that does not decode. What decides
//! whether something is gone is asked of the API server, not of a cache that may be late.

use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DeleteParams, DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams, Preconditions},
};
use serde_json::json;

use super::{
    Ctx, act,
    build::{backup, network},
    decide::Hold,
    desired::Desired,
    error::Error,
    names,
    watches::whose,
    world::{Detail, JobView, Kind, ObjectView, Owner},
};
use crate::{
    controller::key::Key,
    crd::{DeletionPolicy, Postgresql, label},
};

/// What is to go.
pub struct Leaving<'a> {
    /// The Postgresql.
    pub key: &'a Key,
    /// Its uid.
    pub uid: &'a str,
    /// Its spec, if that can be read.
    pub desired: Option<&'a Desired>,
    /// The ClientApp that it was made for.
    pub app: Option<&'a str>,
    /// What becomes of its volume.
    pub policy: DeletionPolicy,
}

/// Takes down what belongs to a deleted Postgresql, as far as it goes now. `None`: everything is gone or retained.
///
/// # Errors
/// A request failed; the deletion is tried again.
pub async fn teardown(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<Option<Hold>, Error> {
    let last = leaving.desired.and_then(|desired| Some((desired, desired.backup.as_ref().filter(|b| b.on_delete)?)));
    if let Some((desired, backup)) = last
        && let Some(hold) = last_dump(ctx, desired, backup).await?
    {
        return Ok(Some(hold));
    }
    if let Some(hold) = servers(ctx, leaving).await? {
        return Ok(Some(hold));
    }
    if let Some(hold) = volumes(ctx, leaving, last.is_some()).await? {
        return Ok(Some(hold));
    }
    rest(ctx, leaving).await?;
    secrets(ctx, leaving).await?;
    Ok(None)
}

fn hold(reason: &'static str, message: String) -> Hold {
    Hold { reason, message, stalled: false }
}

async fn last_dump(
    ctx: &Ctx,
    desired: &Desired,
    wanted: &super::desired::DesiredBackup,
) -> Result<Option<Hold>, Error> {
    let name = &desired.key.name;
    let objects = ctx.watches.objects(&desired.key, &desired.uid);
    let data = (Kind::PersistentVolumeClaim, names::data_claim(&names::primary(name), 0));
    let job = names::last_dump(name);
    let instead = "to delete without it, set spec.backup.onDelete to false";
    match objects.get(&(Kind::Job, job.clone())) {
        Some(ObjectView { owner: Owner::Other(owner), .. }) => {
            Err(Error::NotOurs { object: format!("Job {job}"), owner: owner.clone() })
        }
        Some(ObjectView { detail: Detail::Job(JobView { succeeded: Some(true), .. }), .. }) => Ok(None),
        Some(ObjectView { detail: Detail::Job(JobView { succeeded: Some(false), .. }), deleting: false, .. }) => {
            Ok(Some(Hold {
                reason: "LastDumpFailed",
                message: format!(
                    "Job {job}, the last dump, has failed, and nothing is deleted: see `kubectl logs -n {} job/{job}`, and delete the Job to try again; {instead}",
                    desired.key.namespace
                ),
                stalled: true,
            }))
        }
        Some(_) => Ok(Some(hold("Dumping", format!("waiting for Job {job}, the last dump; {instead}")))),
        // There never was a database.
        None if !objects.contains_key(&data) => Ok(None),
        None => {
            let needed = [network::scripts(desired), network::client(desired), backup::claim(desired, wanted)];
            for object in needed.iter().filter(|object| !objects.contains_key(&object.id)) {
                act::apply(ctx, desired, object, false).await?;
            }
            act::apply(ctx, desired, &backup::last_dump(desired, wanted), false).await?;
            Ok(Some(hold("Dumping", format!("waiting for Job {job}, the last dump; {instead}"))))
        }
    }
}

/// What is labelled with this Postgresql's name, and is its own.
async fn ours(ctx: &Ctx, leaving: &Leaving<'_>, kind: Kind) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let Leaving { key, uid, .. } = leaving;
    let params = ListParams::default().labels(&format!("{}={}", label::POSTGRESQL, key.name));
    let listed = act::api(ctx, key, kind).list_metadata(&params).await;
    let listed = listed.map_err(Error::api(format!("list each {} of Postgresql {key}", kind.as_str())))?;
    Ok(listed.items.into_iter().filter(|object| whose(object).is_ok_and(|owner| owner == *uid)).collect())
}

async fn servers(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<Option<Hold>, Error> {
    let Leaving { key, .. } = leaving;
    let last = names::last_dump(&key.name);
    let mut left = None;
    // Other dumps have nothing to dump any more, and hold on to their volume.
    for kind in [Kind::CronJob, Kind::Job, Kind::StatefulSet] {
        for object in ours(ctx, leaving, kind).await? {
            let name = object.name_any();
            // The last one's Job says that it was taken, until everything else is gone.
            if kind == Kind::Job && name == last {
                continue;
            }
            if object.metadata.deletion_timestamp.is_none() {
                act::delete(ctx, key, &(kind, name.clone()), &object.uid().unwrap_or_default()).await?;
            }
            left = Some(format!("{} {name}", kind.as_str()));
        }
    }
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let servers = format!("{}={},{} in (primary,standby)", label::POSTGRESQL, key.name, label::ROLE);
    let pods = api.list_metadata(&ListParams::default().labels(&servers)).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Postgresql {key}")))?;
    let left = pods.items.first().map(|pod| format!("Pod {}", pod.name_any())).or(left);
    Ok(left.map(|left| hold("Stopping", format!("waiting for {left} to be gone"))))
}

async fn volumes(ctx: &Ctx, leaving: &Leaving<'_>, dumped: bool) -> Result<Option<Hold>, Error> {
    let Leaving { key, policy, .. } = leaving;
    let (dumps, copies) = (names::backup(&key.name), names::data_claim(&names::standby(&key.name), 0));
    let copies = copies.trim_end_matches('0');
    let mut left = None;
    for claim in ours(ctx, leaving, Kind::PersistentVolumeClaim).await? {
        let name = claim.name_any();
        let kept = match policy {
            // A last dump is taken to outlive the database.
            DeletionPolicy::Delete => dumped && name == dumps,
            DeletionPolicy::Retain => !name.starts_with(copies),
        };
        if kept {
            retain(leaving, &act::api(ctx, key, Kind::PersistentVolumeClaim), &claim).await?;
            continue;
        }
        if claim.metadata.deletion_timestamp.is_none() {
            let uid = claim.uid().unwrap_or_default();
            act::delete(ctx, key, &(Kind::PersistentVolumeClaim, name.clone()), &uid).await?;
        }
        left = Some(name);
    }
    Ok(left.map(|name| hold("DeletingVolumes", format!("waiting for PersistentVolumeClaim {name} to be gone"))))
}

/// What nothing has to wait for. The garbage collector would take most of it, but not while the kind itself is deleted.
async fn rest(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<(), Error> {
    for kind in [Kind::Job, Kind::Service, Kind::ConfigMap] {
        for object in ours(ctx, leaving, kind).await? {
            act::delete(ctx, leaving.key, &(kind, object.name_any()), &object.uid().unwrap_or_default()).await?;
        }
    }
    Ok(())
}

/// The password goes with the volume that it opens, or stays with it.
async fn secrets(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<(), Error> {
    let Leaving { key, uid, policy, .. } = leaving;
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    for name in [names::client_secret(&key.name), names::replication(&key.name), names::credentials(&key.name)] {
        let what = format!("Secret {}/{name}", key.namespace);
        let found = api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for {what}")))?;
        let Some(secret) = found.filter(|secret| whose(secret).is_ok_and(|owner| owner == *uid)) else { continue };
        if *policy == DeletionPolicy::Retain && name == names::credentials(&key.name) {
            retain(leaving, &api, &secret).await?;
            continue;
        }
        let this = Preconditions { uid: secret.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::default() };
        match api.delete(&name, &params).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::api(format!("delete {what}"))(error)),
            Ok(_) => {}
        }
    }
    Ok(())
}

/// Leaves an object behind: labelled so that it can be found, and no more this Postgresql's. What its ClientApp has left says
/// so already.
async fn retain<K>(leaving: &Leaving<'_>, api: &Api<K>, object: &PartialObjectMeta<K>) -> Result<(), Error>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let Leaving { key, app, .. } = leaving;
    let name = object.metadata.name.clone().unwrap_or_default();
    let mut labels = json!({label::POSTGRESQL: null, label::POSTGRESQL_UID: null});
    if !object.metadata.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM) {
        labels[label::RETAINED_FROM] = json!(key.name);
        labels[label::RETAINED_KIND] = json!(Postgresql::kind(&()));
        labels[label::APP] = json!(app);
    }
    let patch = json!({"metadata": {"ownerReferences": null, "labels": labels}});
    match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("retain {name} of Postgresql {key}"))(error)),
        Ok(_) => Ok(()),
    }
}
