//! The deletion of an app's database, or its retention. An **effect**.
//!
//! Who made it is not asked of the spec, which may be unreadable: each maker's object of the app's name is looked for.

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams},
};
use serde_json::json;

use super::{POLL, delete, hold, is_foreground};
use crate::{
    clientapp::{
        Ctx,
        error::Error,
        names::Maker,
        plan::{Hold, SAFETY_NET},
        retained::{self, Leaving},
        upgrade,
        world::{RetainedKind, ServerState},
    },
    controller::key::Key,
    crd::{
        DeletionPolicy, PostgresProvider, label,
        percona::{self, PerconaPGBackup},
    },
};

/// Takes down the database, or leaves it behind, as far as that goes now. It goes before the namespace could: who makes it has
/// to be there to take it down.
///
/// # Errors
/// A request failed.
pub async fn take_down(ctx: &Ctx, leaving: &Leaving<'_>) -> Result<Option<Hold>, Error> {
    for maker in Maker::ALL {
        if let Some(hold) = server(ctx, leaving, maker).await? {
            return Ok(Some(hold));
        }
    }
    Ok(None)
}

async fn server(ctx: &Ctx, leaving: &Leaving<'_>, maker: Maker) -> Result<Option<Hold>, Error> {
    let Leaving { key, meta, policy, .. } = leaving;
    let name = key.cluster();
    let kind = maker.kind();
    let server = match retained::api(ctx, key, RetainedKind::Server(maker)).get_metadata(&name).await {
        // No such object, or no such kind: then there is no database from this maker.
        Err(kube::Error::Api(status)) if status.code == 404 => return leftovers(ctx, leaving, maker).await,
        Err(error) => return Err(Error::api(format!("look for {kind} {}/{name}", key.namespace))(error)),
        Ok(server) => server,
    };
    let named = server.labels().get(label::APP) == Some(&key.name);
    let owned = server.owner_references().iter().all(|owner| Some(&owner.uid) == meta.uid.as_ref());
    if !(named && owned) {
        tracing::warn!(kind, %name, "is not this ClientApp's and stays as it is");
        return Ok(None);
    }
    match policy {
        DeletionPolicy::Retain => leave(ctx, leaving, maker).await.map(|()| None),
        DeletionPolicy::Delete => {
            ask_for_everything(ctx, key, maker, &server).await?;
            if server.metadata.deletion_timestamp.is_none() {
                let api = retained::api(ctx, key, RetainedKind::Server(maker));
                delete(&api, kind, &name, server.metadata.uid.clone()).await?;
            }
            Ok(Some(hold("DeletingDatabase", waiting(ctx, key, maker), Some(ctx.now() + SAFETY_NET))))
        }
    }
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

/// What belongs to the database stays, and can be found.
async fn leave(ctx: &Ctx, leaving: &Leaving<'_>, maker: Maker) -> Result<(), Error> {
    let key = leaving.key;
    let name = key.cluster();
    // The Secrets first: without them the database could be found, but not opened. Percona's have no owner, and a
    // Postgresql's belong to it.
    for secret in retained::secrets(maker, key) {
        retained::leave_to_its_owner(ctx, leaving, RetainedKind::Secret, &secret).await?;
    }
    // The label keeps them from being taken for the leftovers of a later app of this name.
    let of_server = match maker {
        Maker::Percona => of_cluster(&name),
        Maker::Standalone => format!("{}={name}", label::POSTGRESQL),
    };
    for claim in labelled(ctx, key, RetainedKind::Volume, &of_server).await? {
        retained::leave_to_its_owner(ctx, leaving, RetainedKind::Volume, &claim.name_any()).await?;
    }
    retained::leave(ctx, leaving, RetainedKind::Server(maker), &name).await?;
    tracing::info!(kind = maker.kind(), %name, "is retained");
    Ok(())
}

/// The database is gone, and what belonged to it may not be. In a foreground deletion the garbage collector takes the
/// database at once, before its maker could be asked to take volumes and Secrets with it: then that is done here. Whoever else
/// deleted it has left them, and no later app of this name shall get them by that.
async fn leftovers(ctx: &Ctx, leaving: &Leaving<'_>, maker: Maker) -> Result<Option<Hold>, Error> {
    let Leaving { key, meta, policy, provider, .. } = leaving;
    let own = match provider {
        Some(PostgresProvider::Percona) => maker == Maker::Percona,
        Some(PostgresProvider::Standalone) => maker == Maker::Standalone,
        Some(PostgresProvider::External) => false,
        // It may have had one, and then nothing of that is deleted.
        None => maker == Maker::Percona,
    };
    if !own {
        return Ok(None);
    }
    // The collector takes its mark off the app when it has finished, which may be before this app's turn came.
    let foreground =
        is_foreground(meta) || ctx.memory.foreground.get(key).is_some_and(|uid| Some(&uid) == meta.uid.as_ref());
    let delete_them = *policy == DeletionPolicy::Delete && foreground && provider.is_some();
    let labels = match maker {
        Maker::Percona => of_cluster(&key.cluster()),
        // A Postgresql that was not told otherwise has left its data by itself, and said whose they were.
        Maker::Standalone if !delete_them => return Ok(None),
        Maker::Standalone => format!(
            "{}={},{}={},{}={}",
            label::RETAINED_FROM,
            key.cluster(),
            label::RETAINED_KIND,
            maker.kind(),
            label::APP,
            key.name
        ),
    };
    let mut left = None;
    if delete_them && maker == Maker::Percona && ctx.watches.backups.installed() {
        left = backups(ctx, key).await?;
    }
    for kind in [RetainedKind::Volume, RetainedKind::Secret] {
        for object in labelled(ctx, key, kind, &labels).await? {
            let name = object.name_any();
            let going = object.metadata.deletion_timestamp.is_some();
            if !delete_them {
                // What has an owner is about to be collected.
                if !going && object.owner_references().is_empty() {
                    retained::leave_to_its_owner(ctx, leaving, kind, &name).await?;
                }
                continue;
            }
            if !going {
                delete(&retained::api(ctx, key, kind), kind.as_str(), &name, object.metadata.uid.clone()).await?;
            }
            left.get_or_insert(name);
        }
    }
    Ok(left.map(|name| {
        let message = format!("waiting for {name}, which {} {} has left, to be gone", maker.kind(), key.cluster());
        hold("DeletingDatabase", message, Some(ctx.now() + POLL))
    }))
}

/// Deletes the backups, those that Percona made by itself included, and names one of them. They have no owner.
async fn backups(ctx: &Ctx, key: &Key) -> Result<Option<String>, Error> {
    let name = key.cluster();
    let api: Api<PerconaPGBackup> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(Error::api(format!("list each PerconaPGBackup of PerconaPGCluster {name}")))?;
    let mut left = None;
    for backup in listed.items.iter().filter(|backup| backup.spec.pg_cluster == name) {
        if backup.metadata.deletion_timestamp.is_none() {
            delete(&api, upgrade::PERCONA_BACKUP, &backup.name_any(), backup.metadata.uid.clone()).await?;
        }
        left.get_or_insert(backup.name_any());
    }
    Ok(left)
}

/// Selects what belongs to Percona's cluster, but for what an earlier app has left.
fn of_cluster(name: &str) -> String {
    format!("{}={name},!{}", percona::CLUSTER_LABEL, label::RETAINED_FROM)
}

async fn labelled(
    ctx: &Ctx,
    key: &Key,
    kind: RetainedKind,
    labels: &str,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let objects = retained::api(ctx, key, kind).list_metadata(&ListParams::default().labels(labels)).await;
    let objects =
        objects.map_err(Error::api(format!("list each {} of {labels} in {}", kind.as_str(), key.namespace)))?;
    Ok(objects.items)
}

/// Unless asked, either maker leaves volumes and Secrets, and a later app of the same name would get them. That is asked for
/// only now, so that a database which is deleted by mistake keeps its data.
async fn ask_for_everything(
    ctx: &Ctx,
    key: &Key,
    maker: Maker,
    server: &PartialObjectMeta<DynamicObject>,
) -> Result<(), Error> {
    let name = server.name_any();
    let (patch, what) = match maker {
        // Percona has taken its own off one that is on its way out.
        Maker::Percona if server.metadata.deletion_timestamp.is_some() => return Ok(()),
        Maker::Percona => {
            let mut finalizers = server.finalizers().to_vec();
            // Percona before 2.7 would never take the last of them off again, and knows no other way to have no backups.
            let cluster = ctx.watches.clusters.objects.get(&Key::new(&key.namespace, &name));
            let backups = cluster.is_some_and(|cluster| cluster.backups).then_some(percona::DELETE_BACKUPS);
            for finalizer in [percona::DELETE_PVC, percona::DELETE_SSL].into_iter().chain(backups) {
                if !finalizers.iter().any(|present| present == finalizer) {
                    finalizers.push(finalizer.to_owned());
                }
            }
            let version = &server.metadata.resource_version;
            let metadata = json!({"uid": server.metadata.uid, "resourceVersion": version, "finalizers": finalizers});
            (json!({"metadata": metadata}), "set Percona's finalizers on")
        }
        Maker::Standalone => {
            let patch =
                json!({"metadata": {"uid": server.metadata.uid}, "spec": {"deletionPolicy": DeletionPolicy::Delete}});
            (patch, "set spec.deletionPolicy of")
        }
    };
    let api = retained::api(ctx, key, RetainedKind::Server(maker));
    match api.patch_metadata(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api(format!("{what} {} {}/{name}", maker.kind(), key.namespace))(error)),
        Ok(_) => Ok(()),
    }
}
