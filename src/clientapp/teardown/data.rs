//! What a deleted app has of data and of what opens them: left behind, or destroyed one by one. An **effect**.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta},
};

use super::{Going, Piece, Progress, hold};
use crate::{
    clientapp::{
        Ctx,
        error::Error,
        inventory,
        names::Maker,
        owned,
        plan::{Hold, SAFETY_NET},
        retained::{self, Leaving},
        world::ServerState,
    },
    controller::key::Key,
    crd::{ClientApp, conditions::kind, label, percona},
    destroy::{
        self,
        permit::{Kept, Kind, Withheld},
    },
    postgresql,
};

/// The label by which charts tell their releases apart.
const INSTANCE: &str = "app.kubernetes.io/instance";

/// Leaves behind what is on record as the app's own, and what belongs to its database.
pub async fn leave(ctx: &Ctx, going: &Going<'_>, leaving: &Leaving<'_>) -> Result<(), Error> {
    let key = going.key;
    // Credentials first: without them the rest could be found, but not opened.
    for maker in Maker::ALL {
        let Some(server) = live(ctx, key, maker.data(), &key.cluster()).await? else {
            leftovers(ctx, going, leaving, maker).await?;
            continue;
        };
        if !going.owns(maker.data(), &server) {
            tracing::warn!(kind = maker.kind(), name = key.cluster(), "is not this ClientApp's and stays as it is");
            continue;
        }
        of_database(ctx, leaving, maker).await?;
        retained::leave(ctx, leaving, maker.data(), &server).await?;
    }
    for entry in going.status.owned.iter().filter(|entry| entry.kind == Kind::Volume.as_str()) {
        leave_one(ctx, going, leaving, Kind::Volume, &entry.name).await?;
    }
    if !going.goes(Piece::RedisSecret) {
        // The release goes on with it.
        leave_one(ctx, going, leaving, Kind::Secret, &key.redis_secret()).await?;
    }
    leave_one(ctx, going, leaving, Kind::Secret, &key.admin_secret()).await
}

async fn leave_one(ctx: &Ctx, going: &Going<'_>, leaving: &Leaving<'_>, kind: Kind, name: &str) -> Result<(), Error> {
    match live(ctx, going.key, kind, name).await? {
        Some(meta) if going.owns(kind, &meta) => retained::leave(ctx, leaving, kind, &meta).await,
        _ => Ok(()),
    }
}

/// The Secrets that open a database, and its volumes.
async fn of_database(ctx: &Ctx, leaving: &Leaving<'_>, maker: Maker) -> Result<(), Error> {
    let key = leaving.key;
    for name in retained::secrets(maker, key) {
        if let Some(secret) = live(ctx, key, Kind::Secret, &name).await? {
            retained::leave(ctx, leaving, Kind::Secret, &secret).await?;
        }
    }
    let labels = match maker {
        Maker::Percona => format!("{}={}", percona::CLUSTER_LABEL, key.cluster()),
        Maker::Standalone => format!("{}={}", label::POSTGRESQL, key.cluster()),
    };
    let cluster = key.cluster();
    for claim in labelled(ctx, key, Kind::Volume, &format!("{labels},!{}", label::RETAINED_FROM)).await? {
        let name = claim.name_any();
        let its = match maker {
            Maker::Percona => percona::names_volume(&cluster, &name),
            Maker::Standalone => postgresql::names::is_claim(&cluster, &name),
        };
        if !its {
            continue;
        }
        retained::leave(ctx, leaving, Kind::Volume, &claim.metadata).await?;
    }
    Ok(())
}

/// The app's database was deleted by another hand, and what belonged to it was left: no later app of this name shall get that
/// without asking for it. A Postgresql has said itself whose its data were.
async fn leftovers(ctx: &Ctx, going: &Going<'_>, leaving: &Leaving<'_>, maker: Maker) -> Result<(), Error> {
    let had_one = owned::uid(&going.status.owned, maker.data(), &going.key.cluster()).is_some();
    match maker {
        Maker::Percona if had_one => of_database(ctx, leaving, maker).await,
        _ => Ok(()),
    }
}

/// Destroys what is the app's own, as far as that goes now, each with a proof; what lacks one is told of.
pub async fn destroy(ctx: &Ctx, going: &Going<'_>, leaving: &Leaving<'_>, foreign: bool) -> Result<Progress, Error> {
    let mut kept = Vec::new();
    if going.goes(Piece::Volumes) {
        if !foreign && let Some(hold) = volumes(ctx, going, &mut kept).await? {
            return Ok(Progress::Hold(hold));
        }
        for maker in Maker::ALL {
            if let Some(hold) = database(ctx, going, leaving, maker, &mut kept).await? {
                return Ok(Progress::Hold(hold));
            }
        }
        let name = going.key.admin_secret();
        if let Some(meta) = live(ctx, going.key, Kind::Secret, &name).await?
            && let Some(hold) = one(ctx, going, Kind::Secret, meta, &mut kept).await?
        {
            return Ok(Progress::Hold(hold));
        }
    }
    Ok(Progress::Done(kept))
}

/// The release's volumes: charts ask Helm to keep them, and those of a StatefulSet Helm never knew.
async fn volumes(ctx: &Ctx, going: &Going<'_>, kept: &mut Vec<Kept>) -> Result<Option<Hold>, Error> {
    let key = going.key;
    let mut waits = None;
    for entry in going.status.owned.iter().filter(|entry| entry.kind == Kind::Volume.as_str()) {
        let Some(meta) = live(ctx, key, Kind::Volume, &entry.name).await? else { continue };
        // Another of its name was made since.
        if !going.owns(Kind::Volume, &meta) {
            continue;
        }
        let hold = one(ctx, going, Kind::Volume, meta, kept).await?;
        waits = waits.or(hold);
    }
    for claim in ctx.watches.claims(&key.namespace) {
        let instance = claim.labels.as_ref().and_then(|labels| labels.get(INSTANCE)) == Some(&key.name);
        let alike = instance || inventory::release_of(&claim).as_ref() == Some(key);
        if alike && !going.owns(Kind::Volume, &claim) && claim.deletion_timestamp.is_none() {
            let name = claim.name.clone().unwrap_or_default();
            let because = "stays: it is not on record as made for this ClientApp".to_owned();
            kept.push(Kept { kind: Kind::Volume, name, because });
        }
    }
    Ok(waits)
}

async fn database(
    ctx: &Ctx,
    going: &Going<'_>,
    leaving: &Leaving<'_>,
    maker: Maker,
    kept: &mut Vec<Kept>,
) -> Result<Option<Hold>, Error> {
    let name = going.key.cluster();
    match live(ctx, going.key, maker.data(), &name).await? {
        // No such object, or no such kind: then there is no database from this maker.
        None => leftovers(ctx, going, leaving, maker).await.map(|()| None),
        Some(meta) => {
            if maker == Maker::Percona
                && meta.deletion_timestamp.is_none()
                && going.owns(maker.data(), &meta)
                && let Some(hold) = look_alike(ctx, going.key).await?
            {
                return Ok(Some(hold));
            }
            let hold = one(ctx, going, maker.data(), meta, kept).await?;
            Ok(hold.map(|hold| Hold { message: waiting(ctx, going.key, maker), ..hold }))
        }
    }
}

/// Percona deletes what has a cluster's label, whoever made it. A copy of a volume, restored with its labels, would go, too.
async fn look_alike(ctx: &Ctx, key: &Key) -> Result<Option<Hold>, Error> {
    let cluster = key.cluster();
    let of_cluster = format!("{}={cluster}", percona::CLUSTER_LABEL);
    let of_users = format!("{of_cluster},{}", percona::USER_SELECTOR);
    for (kind, labels, names) in [
        (Kind::Volume, &of_cluster, percona::names_volume as fn(&str, &str) -> bool),
        (Kind::Secret, &of_users, percona::names_user_secret),
    ] {
        let labelled = labelled(ctx, key, kind, labels).await?;
        let Some(other) = labelled.iter().map(|object| object.name_any()).find(|name| !names(&cluster, name)) else {
            continue;
        };
        return Ok(Some(Hold {
            condition: kind::READY,
            reason: "LabelledForPercona",
            message: format!(
                "{} {other} has the label {of_cluster}, by which Percona deletes, and no name that Percona gives: PerconaPGCluster {cluster} is not deleted, since it would take that along; take the label off it, or delete it",
                kind.as_str()
            ),
            stalled: true,
            until: Some(ctx.now() + SAFETY_NET),
        }));
    }
    Ok(None)
}

fn waiting(ctx: &Ctx, key: &Key, maker: Maker) -> String {
    let name = key.cluster();
    let seen = ctx.watches.servers(maker).objects.get(&Key::new(&key.namespace, &name));
    match (maker, seen.map(|server| server.state)) {
        (Maker::Percona, _) => {
            format!("waiting for Percona to delete PerconaPGCluster {name} with its volumes and Secrets")
        }
        (Maker::Standalone, Some(ServerState::Waiting(why) | ServerState::Stalled(why))) => {
            format!("waiting for Postgresql {name} to be gone{why}")
        }
        (Maker::Standalone, _) => format!("waiting for Postgresql {name} to be gone with its volumes and Secrets"),
    }
}

/// Destroys one object if that is proven, and waits until it is gone.
async fn one(
    ctx: &Ctx,
    going: &Going<'_>,
    kind: Kind,
    meta: ObjectMeta,
    kept: &mut Vec<Kept>,
) -> Result<Option<Hold>, Error> {
    let name = meta.name.clone().unwrap_or_default();
    let destroyer = going.destroyer(ctx);
    // The ClientApp may have changed since this pass began: then the next one, which that change brings, goes by it.
    let withheld = |withheld: Withheld| {
        let message = format!("{} {name} is not deleted, since {withheld}", kind.as_str());
        hold("Deleting", message, Some(ctx.now() + SAFETY_NET))
    };
    let mandate = match destroyer.mandate::<ClientApp>(going.key, going.uid).await? {
        Ok(mandate) => mandate,
        Err(why) => return Ok(Some(withheld(why))),
    };
    match mandate.permit(kind, meta) {
        Ok(permit) => destroyer.delete(permit).await?,
        Err(reason) => {
            kept.push(reason);
            return Ok(None);
        }
    }
    let reason = match kind {
        Kind::Volume => "DeletingVolumes",
        Kind::Secret => "DeletingSecrets",
        Kind::PerconaPGCluster | Kind::Postgresql => "DeletingDatabase",
    };
    if kind == Kind::Secret && live(ctx, going.key, kind, &name).await?.is_none() {
        return Ok(None);
    }
    let message = format!("waiting for {} {name} to be gone", kind.as_str());
    Ok(Some(hold(reason, message, Some(ctx.now() + SAFETY_NET))))
}

/// An object as the API server has it now; `None` also where the cluster does not know its kind.
pub async fn live(ctx: &Ctx, key: &Key, kind: Kind, name: &str) -> Result<Option<ObjectMeta>, Error> {
    match destroy::api(&ctx.client, &key.namespace, kind).get_metadata(name).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Error::api(format!("look for {} {}/{name}", kind.as_str(), key.namespace))(error)),
        Ok(found) => Ok(Some(found.metadata)),
    }
}

async fn labelled(
    ctx: &Ctx,
    key: &Key,
    kind: Kind,
    labels: &str,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let objects =
        destroy::api(&ctx.client, &key.namespace, kind).list_metadata(&ListParams::default().labels(labels)).await;
    let objects =
        objects.map_err(Error::api(format!("list each {} of {labels} in {}", kind.as_str(), key.namespace)))?;
    Ok(objects.items.into_iter().filter(|object| object.metadata.deletion_timestamp.is_none()).collect())
}
