//! The volumes and Secrets of a deleted Postgresql: retained, or deleted one by one, each with a proof. An **effect**.

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Resource as _,
    api::{ApiResource, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    crd::{Postgresql, Reason, label},
    deletion::{
        self, Destroyer,
        permit::{DataKind, RetainedObject},
    },
    platform::{api::ignore_not_found, error::ReconcileFailure, events::publish_by},
    postgresql::{
        context::{PostgresqlContext, PostgresqlObject},
        decide::PostgresqlHold,
        error::Error,
        names,
        observed::Kind,
        status::events,
        uncached::{metadata, owned},
        watches::whose,
    },
};

/// An object that outlives the Postgresql, and the sentence about it.
type Leftover = (ObjectMeta, RetainedObject);

/// Finds the volumes of this Postgresql and the Secrets that open them, by label and name.
async fn owned_data(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<[Vec<ObjectMeta>; 2], Error> {
    let (key, uid) = (postgres.key, postgres.uid());
    let claims = owned(ctx, postgres, Kind::PersistentVolumeClaim).await?.into_iter();
    let claims = claims.map(|claim| claim.metadata).filter(|claim| names::is_claim(&key.name, name(claim)));
    let mut claims: Vec<_> = claims.collect();
    // A claim that has lost its labels is still recorded.
    for entry in postgres.recorded_status.owned.iter().filter(|entry| entry.kind == DataKind::Volume.as_str()) {
        if !names::is_claim(&key.name, &entry.name) || claims.iter().any(|claim| claim.uid.as_ref() == Some(&entry.uid))
        {
            continue;
        }
        let found = metadata(ctx, key, &Kind::PersistentVolumeClaim.resource(), &entry.name).await?;
        let found = found.map(|claim| claim.metadata);
        let left = |claim: &ObjectMeta| claim.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM);
        claims.extend(found.filter(|claim| claim.uid.as_ref() == Some(&entry.uid) && !left(claim)));
    }
    let mut secrets = Vec::new();
    for name in names::secrets(&key.name) {
        let found = metadata(ctx, key, &ApiResource::erase::<Secret>(&()), &name).await?;
        secrets.extend(
            found.filter(|secret| whose(secret).is_ok_and(|owner| owner == *uid)).map(|secret| secret.metadata),
        );
    }
    Ok([claims, secrets])
}

pub(super) async fn all_leftovers(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    why: &str,
) -> Result<Vec<Leftover>, Error> {
    let [volumes, secrets] = owned_data(ctx, postgres).await?;
    let secrets = secrets.into_iter().map(|secret| leftover(DataKind::Secret, secret, why));
    Ok(secrets.chain(volumes.into_iter().map(|volume| leftover(DataKind::Volume, volume, why))).collect())
}

fn leftover(kind: DataKind, meta: ObjectMeta, why: &str) -> Leftover {
    let kept = RetainedObject { kind, name: name(&meta).to_owned(), because: format!("stays: {why}") };
    (meta, kept)
}

/// Deletes what may be deleted, and returns what stays, or a hold while a volume is not gone yet: Secrets are deleted after the
/// volumes that they open.
pub(super) async fn delete_all(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    dumped: bool,
) -> Result<Result<Vec<Leftover>, PostgresqlHold>, Error> {
    let [volumes, secrets] = owned_data(ctx, postgres).await?;
    let dumps = names::backup(&postgres.key.name);
    let mut left = None;
    let mut volumes_staying = Vec::new();
    for volume in volumes {
        if dumped && name(&volume) == dumps {
            volumes_staying.push(leftover(DataKind::Volume, volume, "the last dump is on it"));
            continue;
        }
        match delete_one(ctx, postgres, DataKind::Volume, &volume).await? {
            Some(kept) => volumes_staying.push((volume, kept)),
            None => left = Some(volume),
        }
    }
    if let Some(left) = left {
        let message = format!("waiting for {} {} to be gone", DataKind::Volume.as_str(), name(&left));
        return Ok(Err(PostgresqlHold::new(Reason::Deleting, message)));
    }
    // Dumps can be read without the Secrets.
    let opened = volumes_staying.iter().map(|(volume, _)| name(volume)).find(|volume| *volume != dumps);
    let mut staying = Vec::new();
    for secret in secrets {
        if let Some(volume) = opened {
            staying.push(leftover(DataKind::Secret, secret, &format!("it opens {volume}")));
        } else if let Some(kept) = delete_one(ctx, postgres, DataKind::Secret, &secret).await? {
            staying.push((secret, kept));
        }
    }
    staying.extend(volumes_staying);
    Ok(Ok(staying))
}

/// Deletes a volume, or a Secret that opens one, if there is proof that it may. `Some`: it stays, and why.
async fn delete_one(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    kind: DataKind,
    target: &ObjectMeta,
) -> Result<Option<RetainedObject>, Error> {
    let (key, uid) = (postgres.key, postgres.uid());
    let destroyer = Destroyer { client: &ctx.client, lead: &ctx.lead };
    let mandate = match destroyer.grant::<Postgresql>(key, uid).await? {
        Ok(mandate) => mandate,
        Err(withheld) => return Ok(Some(leftover(kind, target.clone(), &withheld.to_string()).1)),
    };
    match mandate.permit(kind, target.clone()) {
        Err(kept) => Ok(Some(kept)),
        Ok(permit) => Ok(destroyer.delete(permit).await.map(|()| None)?),
    }
}

/// Publishes what stays before it relabels it, volumes last: the next pass no longer sees a relabelled volume as this Postgresql's,
/// and would neither publish it nor keep the Secrets that open it.
pub(super) async fn retain_all(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    staying: Vec<Leftover>,
) -> Result<(), Error> {
    publish_retained(ctx, postgres, &staying).await;
    for (meta, kept) in staying {
        retain(ctx, postgres, kept.kind, &meta).await?;
    }
    Ok(())
}

pub(super) async fn publish_retained(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>, staying: &[Leftover]) {
    let kept: Vec<_> = staying.iter().map(|(_, kept)| kept.clone()).collect();
    if !kept.is_empty() {
        publish_by(&ctx.recorder, &postgres.reference(), &[events::data_kept(postgres.key, &kept)]).await;
    }
}

/// Retains an object: it no longer belongs to this Postgresql, and gets labels by which it can be found. An object that its
/// ClientApp has retained has these labels already.
async fn retain(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    kind: DataKind,
    object: &ObjectMeta,
) -> Result<(), Error> {
    let key = postgres.key;
    let operation = format!("retain {} {}/{}", kind.as_str(), key.namespace, name(object));
    if !ctx.lead.is_held() {
        return Err(ReconcileFailure::NotLeading { operation }.into());
    }
    let mut labels = json!({label::POSTGRESQL: null, label::POSTGRESQL_UID: null});
    if !object.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM) {
        labels[label::RETAINED_FROM] = json!(key.name);
        labels[label::RETAINED_KIND] = json!(Postgresql::kind(&()));
        labels[label::APP] = json!(postgres.meta().labels.as_ref().and_then(|labels| labels.get(label::APP)));
    }
    let patch = Patch::Merge(json!({"metadata": {"uid": object.uid, "ownerReferences": null, "labels": labels}}));
    let api = deletion::api(&ctx.client, &key.namespace, kind);
    let retained = ignore_not_found(api.patch_metadata(name(object), &PatchParams::default(), &patch).await);
    retained.map(drop).map_err(Error::api(operation))
}

fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}
