//! Reads the present state in the API server, for decisions that must not depend on a late cache. **Effects**, reads only.

use k8s_openapi::{
    api::{
        batch::v1::Job,
        core::v1::{Pod, Secret},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use serde_json::{Map, Value};

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observed::{
            drift, field_edits, inventory,
            types::{DriftedObject, IgnoredField, LiveState},
        },
        spec::{desired::Desired, values::MAX_BYTES},
    },
    crd::{Inventory, ReleaseObject},
    deletion::{self, permit::DataKind},
    helm::storage::{self, Stored, Tests},
    platform::{
        account::AccountName, api::ignore_not_found, client::impersonating, error::api_sentence, key::Key,
        managed_fields::HELM,
    },
    secrets::{self, RevisionMeta, SecretMeta},
};

/// Reads an object as the API server has it now; also `None` if the cluster does not know its kind.
pub(crate) async fn object(ctx: &Ctx, key: &Key, kind: DataKind, name: &str) -> Result<Option<ObjectMeta>, Error> {
    let found = ignore_not_found(deletion::api(&ctx.client, &key.namespace, kind).get_metadata(name).await);
    let found = found.map_err(Error::api(format!("look for {} {}/{name}", kind.as_str(), key.namespace)))?;
    Ok(found.map(|found| found.metadata))
}

pub(crate) async fn claims(ctx: &Ctx, namespace: &str) -> Result<Vec<ObjectMeta>, Error> {
    let claims = deletion::api(&ctx.client, namespace, DataKind::Volume).list_metadata(&ListParams::default()).await;
    let claims = claims.map_err(Error::api(format!("list the volumes in {namespace}")))?.items;
    Ok(claims.into_iter().map(|claim| claim.metadata).collect())
}

/// Reads a Secret, as a watch would deliver it.
pub(crate) async fn secret(ctx: &Ctx, secret: &Key) -> Result<Option<SecretMeta>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
    let found = api.get_metadata_opt(&secret.name).await.map_err(Error::api(format!("look for Secret {secret}")))?;
    Ok(found.as_ref().map(secrets::meta))
}

/// Returns true if the app is gone, according to the API server now.
pub(crate) async fn is_gone(ctx: &Ctx, app: &App<'_>) -> Result<bool, Error> {
    app.is_gone(&ctx.client).await.map_err(Error::api(format!("get ClientApp {}", app.key)))
}

/// Returns true if the app is unchanged since this reconcile observed it, and not being deleted, according to the API server now.
pub(crate) async fn is_current(ctx: &Ctx, app: &App<'_>) -> Result<bool, Error> {
    app.is_current(&ctx.client).await.map_err(Error::api(format!("get ClientApp {}", app.key)))
}

/// Reads the pods that these parameters select, listed with the rights of this account.
pub(crate) async fn pods(ctx: &Ctx, key: &Key, account: &AccountName, selector: ListParams) -> Result<Vec<Pod>, Error> {
    const MOST: u32 = 20;
    let api: Api<Pod> = Api::namespaced(impersonating(&ctx.client, &key.namespace, account), &key.namespace);
    let found = api.list(&selector.limit(MOST)).await;
    found.map(|found| found.items).map_err(Error::api(format!("list the pods of ClientApp {key}")))
}

/// Reads the inventory of a stored revision; the inner error says what is wrong with the revision.
pub(crate) async fn stored(ctx: &Ctx, key: &Key, secret: &str) -> Result<Result<Inventory, String>, Error> {
    payload(ctx, key, secret, inventory::read).await
}

/// Reads each of these objects from a stored revision; the inner error says why it cannot be read.
pub(crate) async fn objects(
    ctx: &Ctx,
    key: &Key,
    secret: &str,
    objects: Vec<ReleaseObject>,
) -> Result<Vec<Result<Value, String>>, Error> {
    let count = objects.len();
    let read = payload(ctx, key, secret, move |_, stored| Ok(inventory::stored(stored, &objects))).await?;
    Ok(read.unwrap_or_else(|problem| vec![Err(problem); count]))
}

/// Reads the values of a stored revision; the inner error says why they cannot be read.
pub(crate) async fn values(ctx: &Ctx, key: &Key, secret: &str) -> Result<Result<Value, String>, Error> {
    let read = |_: &str, stored: &Stored| match &stored.config {
        // No values of the operator's are as large, and a tenant could write a revision.
        Some(values) if values.get().len() > 2 * MAX_BYTES => Err("its values are too large".to_owned()),
        Some(values) => serde_json::from_str(values.get()).map_err(|error| error.to_string()),
        None => Ok(Value::Object(Map::new())),
    };
    payload(ctx, key, secret, read).await
}

/// Reads the tests of a stored revision; the inner error says why they cannot be read.
pub(crate) async fn tests(ctx: &Ctx, key: &Key, secret: &str) -> Result<Result<Tests, String>, Error> {
    payload(ctx, key, secret, |_, stored| Ok(stored.tests())).await
}

/// Returns the API for the kind of an object of the release, with the rights of this account.
pub(crate) fn of_release(ctx: &Ctx, key: &Key, account: &AccountName, object: &ReleaseObject) -> Api<DynamicObject> {
    let (group, version) = object.group_version();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &object.kind));
    Api::namespaced_with(impersonating(&ctx.client, &key.namespace, account), &key.namespace, &resource)
}

/// Reads an object of any kind, with the rights of this account; `None`: neither it nor perhaps its kind exists.
pub(crate) async fn any(
    ctx: &Ctx,
    key: &Key,
    account: &AccountName,
    object: &ReleaseObject,
) -> kube::Result<Option<Value>> {
    let found = ignore_not_found(of_release(ctx, key, account, object).get(&object.name).await)?;
    Ok(found.and_then(|found| serde_json::to_value(found).ok()))
}

/// Returns what exists under the name of an object of the release that no watch shows.
pub(crate) async fn found(ctx: &Ctx, key: &Key, account: &AccountName, object: &ReleaseObject) -> Option<LiveState> {
    match of_release(ctx, key, account, object).get_metadata_opt(&object.name).await {
        Ok(there) => drift::found(there.as_ref().map(|there| &there.metadata), key),
        Err(error) => Some(LiveState::Unknown(api_sentence(&error))),
    }
}

/// Finds out which of these objects are edited, and how. A dry run changes nothing. `None`: what Helm stored cannot be read.
pub(crate) async fn edited(
    ctx: &Ctx,
    key: &Key,
    (desired, secret): (&Desired, &str),
    wanted: Vec<ReleaseObject>,
) -> Option<Vec<DriftedObject>> {
    let stored = objects(ctx, key, secret, wanted.clone()).await.ok()?;
    let mut all = Vec::new();
    for (object, document) in wanted.into_iter().zip(stored) {
        // What cannot be read is reported when it is missing.
        let Ok(document) = document else { continue };
        let api = of_release(ctx, key, &desired.account, &object);
        let compared = async {
            let Some(found) = api.get_opt(&object.name).await? else { return Ok(None) };
            let dry = PatchParams { dry_run: true, ..PatchParams::apply(HELM).force() };
            let apply = async |left: &[IgnoredField]| {
                let document = field_edits::document_of(document.clone(), key, left);
                api.patch(&object.name, &dry, &Patch::Apply(&document)).await
            };
            let mut left: Vec<_> = field_edits::scaled_replicas(&found).into_iter().collect();
            let mut applied = apply(&left).await?;
            let ignored = field_edits::ignored_fields(&object, (&found, &applied), &document, &desired.drift.ignore);
            if !ignored.is_empty() {
                left.extend(ignored);
                applied = apply(&left).await?;
            }
            Ok(field_edits::edit(&found, &applied, left).map(LiveState::Edited))
        };
        let found =
            compared.await.unwrap_or_else(|error: kube::Error| Some(LiveState::Uncompared(api_sentence(&error))));
        all.extend(found.map(|found| DriftedObject { object, state: found }));
    }
    Some(all)
}

/// Reads a revision from Helm's storage, with the uid of its Secret.
async fn payload<T: Send + 'static>(
    ctx: &Ctx,
    key: &Key,
    secret: &str,
    read: impl FnOnce(&str, &Stored) -> Result<T, String> + Send + 'static,
) -> Result<Result<T, String>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_opt(secret).await.map_err(Error::api(format!("read Secret {}/{secret}", key.namespace)))?;
    let Some(Secret { metadata, data, .. }) = found else { return Ok(Err("its Secret is gone".to_owned())) };
    let payload = data.and_then(|mut data| data.remove("release"));
    let Some(payload) = payload else { return Ok(Err("its Secret has no key release".to_owned())) };
    let unpack = move || read(&metadata.uid.unwrap_or_default(), &storage::read(&payload.0)?);
    Ok(unpacked(ctx, &key.namespace, unpack).await)
}

/// Runs work that unpacks a revision in this namespace, one at a time: a large revision takes much memory and time.
pub(crate) async fn unpacked<T: Send + 'static>(
    ctx: &Ctx,
    namespace: &str,
    work: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, String> {
    let _turn = ctx.memory.decode_lock.lock(namespace).await;
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|_| Err("reading it has panicked".to_owned()))
}

/// Reads the stored revisions of a release, listed from the API server.
pub(crate) async fn revisions(ctx: &Ctx, key: &Key) -> Result<Vec<(String, RevisionMeta)>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let params = ListParams::default().labels(&format!("owner=helm,name={}", key.name));
    let secrets =
        api.list_metadata(&params).await.map_err(Error::api(format!("list the revisions of release {key}")))?;
    let name = |secret: &PartialObjectMeta<Secret>| secret.metadata.name.clone().unwrap_or_default();
    Ok(secrets.items.iter().filter_map(|secret| Some((name(secret), secrets::revision(secret)?))).collect())
}

/// Returns true if a Job has not ended and is not being deleted; read with the rights of this account.
pub(crate) async fn job_runs(ctx: &Ctx, key: &Key, account: &AccountName, name: &str) -> Result<bool, Error> {
    let api: Api<Job> = Api::namespaced(impersonating(&ctx.client, &key.namespace, account), &key.namespace);
    let found = api.get_opt(name).await.map_err(Error::api(format!("look for Job {}/{name}", key.namespace)))?;
    let Some(job) = found.filter(|job| job.metadata.deletion_timestamp.is_none()) else { return Ok(false) };
    let mut conditions = job.status.into_iter().flat_map(|status| status.conditions).flatten();
    Ok(!conditions.any(|condition| ["Complete", "Failed"].contains(&&*condition.type_) && condition.status == "True"))
}
