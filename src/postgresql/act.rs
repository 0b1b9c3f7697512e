//! Stage 4, the **effect** that changes things: performs a plan's steps in order; the first error stops.

use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::{CronJob, Job},
    core::v1::{ConfigMap, ObjectReference, PersistentVolumeClaim, Secret, Service},
};
use kube::{
    Api, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions},
};
use serde_json::json;

use super::{
    Ctx,
    build::{Object, secrets},
    decide::{Origin, Plan, Step},
    desired::{Desired, PasswordSource},
    error::Error,
    names, observe, report,
    watches::whose,
    world::{ClientSecret, Id, Kind, World},
};
use crate::{
    controller::{events::publish_by, key::Key},
    crd::label,
};

/// Field manager of what is made from documents.
const MANAGER: &str = "clientapp-operator/postgresql";
/// Field manager of the sizes of volumes.
const VOLUME_MANAGER: &str = "clientapp-operator/volume";

/// Performs the steps.
///
/// # Errors
/// The first step that failed.
pub async fn act(
    ctx: &Ctx,
    reference: &ObjectReference,
    desired: &Desired,
    world: &World,
    plan: &Plan,
) -> Result<(), Error> {
    for step in &plan.steps {
        match step {
            Step::KeepPassword(origin) => keep_password(ctx, reference, desired, *origin).await?,
            Step::CreateReplication => create(ctx, secrets::replication(desired)).await?,
            Step::ApplyClientSecret => apply_client_secret(ctx, desired, &world.credentials.client).await?,
            Step::Grow { claim, to } => grow(ctx, &desired.key, claim, to).await?,
            Step::Apply(object) => apply(ctx, desired, object, world.objects.contains_key(&object.id)).await?,
            Step::Delete { id, uid } => delete(ctx, &desired.key, id, uid).await?,
        }
    }
    Ok(())
}

async fn keep_password(ctx: &Ctx, reference: &ObjectReference, desired: &Desired, origin: Origin) -> Result<(), Error> {
    let key = &desired.key;
    let password = match (origin, &desired.password) {
        (Origin::Generated, _) | (Origin::Spec, PasswordSource::Generated) => Some(secrets::generated()),
        (Origin::Spec, PasswordSource::Inline(password)) => Some(password.clone()),
        (Origin::Spec, PasswordSource::Secret(given)) => {
            let value = observe::value(ctx, key, &given.name, &given.key).await?;
            value.and_then(|value| super::desired::usable(&value).ok().map(str::to_owned))
        }
        (Origin::ClientSecret, _) => observe::password(ctx, key, &names::client_secret(&key.name)).await?.ok(),
    };
    // Taken away since it was looked at: the watch brings the next pass.
    let Some(password) = password else { return Ok(()) };
    create(ctx, secrets::credentials(desired, &password)).await?;
    if origin == Origin::Spec && matches!(desired.password, PasswordSource::Inline(_)) {
        publish_by(&ctx.recorder, reference, &[report::inline_password(key)]).await;
    }
    Ok(())
}

/// Creates a Secret, and never touches one that is there: its password is in use.
async fn create(ctx: &Ctx, secret: Secret) -> Result<(), Error> {
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let name = secret.metadata.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
    let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
    match api.create(&params, &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(Error::api(format!("create Secret {namespace}/{name}"))(error)),
        Ok(_) => Ok(()),
    }
}

async fn apply_client_secret(ctx: &Ctx, desired: &Desired, found: &ClientSecret) -> Result<(), Error> {
    let key = &desired.key;
    let Ok(password) = observe::password(ctx, key, &names::credentials(&key.name)).await? else { return Ok(()) };
    let secret = secrets::client(desired, &password);
    if *found == ClientSecret::Absent {
        return create(ctx, secret).await;
    }
    let name = names::client_secret(&key.name);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    // By force: what somebody else wrote there reaches no database.
    api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret))
        .await
        .map_err(Error::api(format!("apply Secret {}/{name}", key.namespace)))?;
    Ok(())
}

/// Not by force and not by apply: whoever has made the volume larger keeps it so.
async fn grow(ctx: &Ctx, key: &Key, claim: &str, to: &str) -> Result<(), Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let patch = json!({"spec": {"resources": {"requests": {"storage": to}}}});
    let params = PatchParams { field_manager: Some(VOLUME_MANAGER.to_owned()), ..PatchParams::default() };
    match api.patch(claim, &params, &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 403 && status.message.contains("resize") => {
            Err(Error::Expansion { claim: claim.to_owned(), to: to.to_owned(), problem: status.message.clone() })
        }
        Err(error) => Err(Error::api(format!("grow PersistentVolumeClaim {}/{claim}", key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}

/// Applies an object. One that no watch has shown may still be somebody else's, who put no label of ours on it.
///
/// By force: these names are the operator's, and the spec is where to say something else. What others add is left alone.
///
/// # Errors
/// The API server's refusal; that the object is somebody else's.
pub async fn apply(ctx: &Ctx, desired: &Desired, object: &Object, seen: bool) -> Result<(), Error> {
    let key = &desired.key;
    let (kind, name) = &object.id;
    let api = api(ctx, key, *kind);
    let what = format!("{} {}/{name}", kind.as_str(), key.namespace);
    if !seen {
        let found = api.get_metadata_opt(name).await.map_err(Error::api(format!("look for {what}")))?;
        if let Some(owner) = found.and_then(|found| stranger(&found, &desired.uid)) {
            return Err(Error::NotOurs { object: format!("{} {name}", kind.as_str()), owner });
        }
        if *kind == Kind::StatefulSet {
            volumes_are_ours(ctx, desired, name, &object.document["spec"]["replicas"]).await?;
        }
    }
    api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&object.document))
        .await
        .map_err(Error::api(format!("apply {what}")))?;
    Ok(())
}

/// A StatefulSet takes any claim of the right name: one from before would give a new server old data, and a password that
/// nobody has.
async fn volumes_are_ours(ctx: &Ctx, desired: &Desired, set: &str, replicas: &serde_json::Value) -> Result<(), Error> {
    let key = &desired.key;
    let api = api(ctx, key, Kind::PersistentVolumeClaim);
    for ordinal in 0..replicas.as_i64().and_then(|replicas| i32::try_from(replicas).ok()).unwrap_or(1) {
        let claim = names::data_claim(set, ordinal);
        let found = api.get_metadata_opt(&claim).await;
        let found = found.map_err(Error::api(format!("look for PersistentVolumeClaim {}/{claim}", key.namespace)))?;
        let Some(found) = found else { continue };
        if let Some(owner) = stranger(&found, &desired.uid) {
            return Err(Error::VolumeNotOurs {
                claim,
                namespace: key.namespace.clone(),
                owner: owner.trim_end_matches(',').to_owned(),
                label: label::POSTGRESQL_UID,
                uid: desired.uid.clone(),
            });
        }
        // Handed over: from now on it is seen.
        if found.labels().get(label::POSTGRESQL) != Some(&key.name) {
            let labels = json!({
                label::POSTGRESQL: key.name, label::RETAINED_FROM: null, label::RETAINED_KIND: null, label::APP: null,
            });
            let patch = json!({"metadata": {"labels": labels}});
            let adopted = api.patch_metadata(&claim, &PatchParams::default(), &Patch::Merge(&patch)).await;
            adopted.map_err(Error::api(format!("adopt PersistentVolumeClaim {}/{claim}", key.namespace)))?;
        }
    }
    Ok(())
}

/// Whose an object is, if it is not this Postgresql's.
fn stranger<K: kube::Resource>(object: &K, uid: &str) -> Option<String> {
    match whose(object) {
        Ok(owner) if owner == uid => None,
        Ok(_) => Some("another Postgresql".to_owned()),
        Err(owner) => Some(owner),
    }
}

/// Deletes an object, and in the background what it owns; one that is gone needs none.
///
/// # Errors
/// The API server's refusal.
pub async fn delete(ctx: &Ctx, key: &Key, (kind, name): &Id, uid: &str) -> Result<(), Error> {
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None }),
        // Without saying so, the pods of a Job would stay.
        ..DeleteParams::background()
    };
    match api(ctx, key, *kind).delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("delete {} {}/{name}", kind.as_str(), key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}

/// Objects of a kind in a Postgresql's namespace.
#[must_use]
pub fn api(ctx: &Ctx, key: &Key, kind: Kind) -> Api<DynamicObject> {
    let resource = match kind {
        Kind::ConfigMap => ApiResource::erase::<ConfigMap>(&()),
        Kind::Service => ApiResource::erase::<Service>(&()),
        Kind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
        Kind::PersistentVolumeClaim => ApiResource::erase::<PersistentVolumeClaim>(&()),
        Kind::CronJob => ApiResource::erase::<CronJob>(&()),
        Kind::Job => ApiResource::erase::<Job>(&()),
    };
    Api::namespaced_with(ctx.client.clone(), &key.namespace, &resource)
}
